//! librdmacm: its exported functions.

use std::ffi::{c_char, c_int, c_void};
use std::ptr;

use super::constants::rdma_port_space;
use super::types::{rdma_addrinfo, rdma_cm_event, rdma_cm_id, rdma_conn_param, rdma_event_channel};
use crate::verbs::{ibv_context, ibv_event_type, ibv_qp_attr};
use penstock_loader::c_library;

c_library! {
    /// librdmacm. Its functions answer 0, or -1 with `errno`, where they do not say otherwise.
    struct Cm = "librdmacm.so.1" in "librdmacm1";

    wrapped {}

    required {
        /// Makes a channel for events; null with `errno`.
        "RDMACM_1.0" fn rdma_create_event_channel() -> *mut rdma_event_channel;

        /// Ends it, after all its identifiers.
        "RDMACM_1.0" fn rdma_destroy_event_channel(channel: *mut rdma_event_channel);

        /// Makes an identifier.
        "RDMACM_1.0" fn rdma_create_id(
            channel: *mut rdma_event_channel,
            id: *mut *mut rdma_cm_id,
            context: *mut c_void,
            ps: rdma_port_space,
        ) -> c_int;

        /// Ends it and what it waits for. Waits itself until its events are acknowledged.
        "RDMACM_1.0" fn rdma_destroy_id(id: *mut rdma_cm_id) -> c_int;

        /// Gives it an address of this side.
        "RDMACM_1.0" fn rdma_bind_addr(id: *mut rdma_cm_id, addr: *mut libc::sockaddr) -> c_int;

        /// Looks for the device that leads to `dst_addr`; an event says what was found.
        "RDMACM_1.0" fn rdma_resolve_addr(
            id: *mut rdma_cm_id,
            src_addr: *mut libc::sockaddr,
            dst_addr: *mut libc::sockaddr,
            timeout_ms: c_int,
        ) -> c_int;

        /// Looks for the way there; an event says what was found.
        "RDMACM_1.0" fn rdma_resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int;

        /// Asks the other side for a connection; events say what comes of it.
        "RDMACM_1.0" fn rdma_connect(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int;

        /// Has others ask for connections.
        "RDMACM_1.0" fn rdma_listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int;

        /// Agrees to connect.
        "RDMACM_1.0" fn rdma_accept(id: *mut rdma_cm_id, conn_param: *mut rdma_conn_param) -> c_int;

        /// Refuses to connect.
        "RDMACM_1.0" fn rdma_reject(id: *mut rdma_cm_id, private_data: *const c_void, private_data_len: u8) -> c_int;

        /// Tells the connection manager of something that happened to the identifier's queue pair.
        "RDMACM_1.0" fn rdma_notify(id: *mut rdma_cm_id, event: ibv_event_type) -> c_int;

        /// Ends a connection; both sides get an event.
        "RDMACM_1.0" fn rdma_disconnect(id: *mut rdma_cm_id) -> c_int;

        /// Waits for an event, unless the channel's `fd` does not block.
        "RDMACM_1.0" fn rdma_get_cm_event(channel: *mut rdma_event_channel, event: *mut *mut rdma_cm_event) -> c_int;

        /// Says that an event was dealt with, and frees it.
        "RDMACM_1.0" fn rdma_ack_cm_event(event: *mut rdma_cm_event) -> c_int;

        /// The port of this side, in network order.
        "RDMACM_1.0" fn rdma_get_src_port(id: *mut rdma_cm_id) -> u16;

        /// The port of the other side, in network order.
        "RDMACM_1.0" fn rdma_get_dst_port(id: *mut rdma_cm_id) -> u16;

        /// The open devices that the connection manager uses; null with `errno`.
        "RDMACM_1.0" fn rdma_get_devices(num_devices: *mut c_int) -> *mut *mut ibv_context;

        /// Gives the list back.
        "RDMACM_1.0" fn rdma_free_devices(list: *mut *mut ibv_context);

        /// Chooses an option.
        "RDMACM_1.0" fn rdma_set_option(
            id: *mut rdma_cm_id,
            level: c_int,
            optname: c_int,
            optval: *mut c_void,
            optlen: usize,
        ) -> c_int;

        /// Has the identifier's events come through another channel; waits until those under way are acknowledged.
        "RDMACM_1.0" fn rdma_migrate_id(id: *mut rdma_cm_id, channel: *mut rdma_event_channel) -> c_int;

        /// Looks an address up by names.
        "RDMACM_1.0" fn rdma_getaddrinfo(
            node: *const c_char,
            service: *const c_char,
            hints: *const rdma_addrinfo,
            res: *mut *mut rdma_addrinfo,
        ) -> c_int;

        /// Gives what was found back.
        "RDMACM_1.0" fn rdma_freeaddrinfo(res: *mut rdma_addrinfo);

        /// What a queue pair of the caller's own is to be changed to next: the state wanted goes in, attributes and their mask
        /// come out.
        "RDMACM_1.2" fn rdma_init_qp_attr(id: *mut rdma_cm_id, qp_attr: *mut ibv_qp_attr, qp_attr_mask: *mut c_int) -> c_int;

        /// Completes a connection whose queue pair is the caller's own, after the other side agreed.
        "RDMACM_1.2" fn rdma_establish(id: *mut rdma_cm_id) -> c_int;
    }

    optional {
        /// Refuses to connect because of what the other side asks for beyond the standard.
        "RDMACM_1.3" fn rdma_reject_ece(id: *mut rdma_cm_id, private_data: *const c_void, private_data_len: u8) -> c_int;
    }
}

/// The address of this side.
///
/// # Safety
///
/// `id` stands.
#[inline]
pub unsafe fn rdma_get_local_addr(id: *mut rdma_cm_id) -> *mut libc::sockaddr {
    // SAFETY: it stands, as the caller promises.
    unsafe { ptr::addr_of_mut!((*id).route.addr.src_storage).cast() }
}

/// The address of the other side.
///
/// # Safety
///
/// `id` stands.
#[inline]
pub unsafe fn rdma_get_peer_addr(id: *mut rdma_cm_id) -> *mut libc::sockaddr {
    // SAFETY: it stands, as the caller promises.
    unsafe { ptr::addr_of_mut!((*id).route.addr.dst_storage).cast() }
}
