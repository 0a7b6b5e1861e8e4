//! libibverbs: its exported functions.
//!
//! What the headers of C define as inline functions is in `calls` beside it.

use std::ffi::{c_char, c_int, c_uint, c_void};

use super::completion::{ibv_comp_channel, ibv_cq};
use super::constants::{ibv_fork_status, ibv_wr_opcode};
use super::context::ibv_context;
use super::device::{ibv_async_event, ibv_device, ibv_device_attr, ibv_gid, ibv_gid_entry};
use super::extended::ibv_qp_ex;
use super::memory::{ibv_mr, ibv_pd};
use super::queue::{ibv_ece, ibv_qp, ibv_qp_attr, ibv_qp_init_attr, ibv_srq, ibv_srq_attr, ibv_srq_init_attr};
use penstock_loader::c_library;

/// The beginning of [`ibv_port_attr`], as programs knew it that were built with older headers.
#[derive(Debug)]
#[repr(transparent)]
pub(super) struct _compat_ibv_port_attr(c_void);

c_library! {
    /// libibverbs. Every function may be called from any thread.
    struct Verbs = "libibverbs.so.1" in "libibverbs1 and ibverbs-providers";

    wrapped {
        // The exported functions of these names belong to older headers: see the methods of the same names.
        "IBVERBS_1.1" fn ibv_query_port(
            context: *mut ibv_context,
            port_num: u8,
            port_attr: *mut _compat_ibv_port_attr,
        ) -> c_int;
        "IBVERBS_1.1" fn ibv_reg_mr(pd: *mut ibv_pd, addr: *mut c_void, length: usize, access: c_int) -> *mut ibv_mr;
    }

    required {
        /// The devices here, ended by a null pointer: null with `errno` if they cannot be looked for.
        "IBVERBS_1.1" fn ibv_get_device_list(num_devices: *mut c_int) -> *mut *mut ibv_device;

        /// Gives the list back. Devices that were opened stay.
        "IBVERBS_1.1" fn ibv_free_device_list(list: *mut *mut ibv_device);

        /// The kernel's name of a device.
        "IBVERBS_1.1" fn ibv_get_device_name(device: *mut ibv_device) -> *const c_char;

        /// The number that a device has in the whole world, in network order.
        "IBVERBS_1.1" fn ibv_get_device_guid(device: *mut ibv_device) -> u64;

        /// Opens a device; null with `errno`.
        "IBVERBS_1.1" fn ibv_open_device(device: *mut ibv_device) -> *mut ibv_context;

        /// Closes it. What was made in it is not destroyed by that.
        "IBVERBS_1.1" fn ibv_close_device(context: *mut ibv_context) -> c_int;

        /// What a device can do, the oldest part of it.
        "IBVERBS_1.1" fn ibv_query_device(context: *mut ibv_context, device_attr: *mut ibv_device_attr) -> c_int;

        /// An entry of a port's table of addresses.
        "IBVERBS_1.1" fn ibv_query_gid(context: *mut ibv_context, port_num: u8, index: c_int, gid: *mut ibv_gid) -> c_int;

        /// An entry of a port's table of partitions.
        "IBVERBS_1.1" fn ibv_query_pkey(context: *mut ibv_context, port_num: u8, index: c_int, pkey: *mut u16) -> c_int;

        /// Waits for something that happens outside any work request, unless `async_fd` does not block.
        "IBVERBS_1.1" fn ibv_get_async_event(context: *mut ibv_context, event: *mut ibv_async_event) -> c_int;

        /// Says that it was dealt with; what it happened to cannot be destroyed before.
        "IBVERBS_1.1" fn ibv_ack_async_event(event: *mut ibv_async_event);

        /// Makes a protection domain; null with `errno`.
        "IBVERBS_1.1" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd;

        /// Ends a protection domain or a parent domain; refused while anything is in it.
        "IBVERBS_1.1" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int;

        /// Ends a registration: 0, or an error number and it stands.
        "IBVERBS_1.1" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int;

        /// Makes a channel that completion queues wake sleepers through; null with `errno`.
        "IBVERBS_1.0" fn ibv_create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel;

        /// Ends it; refused while a completion queue uses it.
        "IBVERBS_1.0" fn ibv_destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int;

        /// Makes a completion queue of at least `cqe` places; null with `errno`.
        "IBVERBS_1.1" fn ibv_create_cq(
            context: *mut ibv_context,
            cqe: c_int,
            cq_context: *mut c_void,
            channel: *mut ibv_comp_channel,
            comp_vector: c_int,
        ) -> *mut ibv_cq;

        /// Changes how many places it has; not every device can.
        "IBVERBS_1.1" fn ibv_resize_cq(cq: *mut ibv_cq, cqe: c_int) -> c_int;

        /// Ends it; refused while a queue pair uses it, and waits until its events are acknowledged.
        "IBVERBS_1.1" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int;

        /// Waits for a completion queue to call, unless the channel's `fd` does not block.
        "IBVERBS_1.1" fn ibv_get_cq_event(
            channel: *mut ibv_comp_channel,
            cq: *mut *mut ibv_cq,
            cq_context: *mut *mut c_void,
        ) -> c_int;

        /// Says that `nevents` calls were dealt with. Takes a lock: better many at once.
        "IBVERBS_1.1" fn ibv_ack_cq_events(cq: *mut ibv_cq, nevents: c_uint);

        /// Makes a shared receive queue; null with `errno`.
        "IBVERBS_1.1" fn ibv_create_srq(pd: *mut ibv_pd, srq_init_attr: *mut ibv_srq_init_attr) -> *mut ibv_srq;

        /// Changes its size, or arms the event that says it runs low.
        "IBVERBS_1.1" fn ibv_modify_srq(srq: *mut ibv_srq, srq_attr: *mut ibv_srq_attr, srq_attr_mask: c_int) -> c_int;

        /// Its sizes.
        "IBVERBS_1.1" fn ibv_query_srq(srq: *mut ibv_srq, srq_attr: *mut ibv_srq_attr) -> c_int;

        /// Ends it; refused while a queue pair uses it.
        "IBVERBS_1.1" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int;

        /// Makes a queue pair and writes the sizes it really has; null with `errno`.
        "IBVERBS_1.1" fn ibv_create_qp(pd: *mut ibv_pd, qp_init_attr: *mut ibv_qp_init_attr) -> *mut ibv_qp;

        /// Changes what `attr_mask` names; answers an error number.
        "IBVERBS_1.1" fn ibv_modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, attr_mask: c_int) -> c_int;

        /// How a queue pair is.
        "IBVERBS_1.1" fn ibv_query_qp(
            qp: *mut ibv_qp,
            attr: *mut ibv_qp_attr,
            attr_mask: c_int,
            init_attr: *mut ibv_qp_init_attr,
        ) -> c_int;

        /// Ends it: from its return on nothing of it touches memory. Waits until its events are acknowledged.
        "IBVERBS_1.1" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int;

        /// Has registered memory survive a `fork` of this process. To be called before anything is registered.
        "IBVERBS_1.1" fn ibv_fork_init() -> c_int;
    }

    optional {
        /// The kernel's number of a device, -1 if it does not know.
        "IBVERBS_1.9" fn ibv_get_device_index(device: *mut ibv_device) -> c_int;

        /// The place of a partition in a port's table, or -1.
        "IBVERBS_1.5" fn ibv_get_pkey_index(context: *mut ibv_context, port_num: u8, pkey: u16) -> c_int;

        /// The functions of a queue pair that was made with `send_ops_flags`; null if it was not.
        "IBVERBS_1.6" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex;

        /// Registers memory under an address of the caller's choice; rights that may be ignored are, where the kernel does not
        /// know them.
        "IBVERBS_1.8" fn ibv_reg_mr_iova2(
            pd: *mut ibv_pd,
            addr: *mut c_void,
            length: usize,
            iova: u64,
            access: c_uint,
        ) -> *mut ibv_mr;

        /// Registers memory that another device shares as a dma-buf; null with `errno`.
        "IBVERBS_1.12" fn ibv_reg_dmabuf_mr(
            pd: *mut ibv_pd,
            offset: u64,
            length: usize,
            iova: u64,
            fd: c_int,
            access: c_int,
        ) -> *mut ibv_mr;

        /// An entry of a port's table of addresses with its kind and its network interface.
        "IBVERBS_1.11" fn _ibv_query_gid_ex(
            context: *mut ibv_context,
            port_num: u32,
            gid_index: u32,
            entry: *mut ibv_gid_entry,
            flags: u32,
            entry_size: usize,
        ) -> c_int;

        /// All valid entries of all ports' tables of addresses: how many, or a negative error number.
        "IBVERBS_1.11" fn _ibv_query_gid_table(
            context: *mut ibv_context,
            entries: *mut ibv_gid_entry,
            max_entries: usize,
            flags: u32,
            entry_size: usize,
        ) -> isize;

        /// Whether registered memory survives a `fork`.
        "IBVERBS_1.13" fn ibv_is_fork_initialized() -> ibv_fork_status;

        /// Whether what is written arrives in order.
        "IBVERBS_1.14" fn ibv_query_qp_data_in_order(qp: *mut ibv_qp, op: ibv_wr_opcode, flags: u32) -> c_int;

        /// What beyond the standard a queue pair shall use.
        "IBVERBS_1.10" fn ibv_set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int;

        /// What beyond the standard a queue pair uses.
        "IBVERBS_1.10" fn ibv_query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int;
    }
}
