//! Work requests.

use std::ffi::{c_int, c_uint, c_void};

use super::constants::ibv_wr_opcode;
use super::memory::ibv_mr;
use crate::layout::c_structs;

c_structs! {
    /// A piece of registered memory of this side.
    struct ibv_sge {
        addr: u64,
        length: u32,
        lkey: u32,
    }

    /// A piece of any memory of this side, for what is sent inline.
    struct ibv_data_buf {
        addr: *mut c_void,
        length: usize,
    }

    /// A request to send, write, read or change something, with the next one behind it.
    struct ibv_send_wr {
        wr_id: u64,
        next: *mut ibv_send_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
        opcode: ibv_wr_opcode,
        send_flags: c_uint,
        /// Immediate data, in network order; for requests that invalidate, the key.
        imm_data: u32,
        wr: ibv_send_wr_remote,
        qp_type: ibv_send_wr_qp_type,
        /// The largest of what C keeps here, most of which is not used with reliable connections.
        bind_mw: ibv_send_wr_bind_mw,
    }

    /// The other side's part of a request.
    union ibv_send_wr_remote = "__typeof__(((struct ibv_send_wr *)0)->wr)" {
        rdma: ibv_send_wr_rdma,
        atomic: ibv_send_wr_atomic,
        ud: ibv_send_wr_ud,
    }

    /// The other side's memory, for writes and reads.
    struct ibv_send_wr_rdma = "__typeof__(((struct ibv_send_wr *)0)->wr.rdma)" {
        remote_addr: u64,
        rkey: u32,
    }

    /// The other side's word, for atomic operations.
    struct ibv_send_wr_atomic = "__typeof__(((struct ibv_send_wr *)0)->wr.atomic)" {
        remote_addr: u64,
        compare_add: u64,
        swap: u64,
        rkey: u32,
    }

    /// The other side, for datagrams.
    struct ibv_send_wr_ud = "__typeof__(((struct ibv_send_wr *)0)->wr.ud)" {
        ah: *mut ibv_ah,
        remote_qpn: u32,
        remote_qkey: u32,
    }

    /// An address that datagrams go to.
    struct ibv_ah {
        context: *mut super::context::ibv_context,
        pd: *mut super::memory::ibv_pd,
        handle: u32,
    }

    /// What other kinds of queue pairs need.
    union ibv_send_wr_qp_type = "__typeof__(((struct ibv_send_wr *)0)->qp_type)" {
        xrc: ibv_send_wr_xrc,
    }

    /// What extended connections need.
    struct ibv_send_wr_xrc = "__typeof__(((struct ibv_send_wr *)0)->qp_type.xrc)" {
        remote_srqn: u32,
    }

    /// The window that is bound to a part of registered memory.
    struct ibv_send_wr_bind_mw = "__typeof__(((struct ibv_send_wr *)0)->bind_mw)" {
        mw: *mut ibv_mw,
        rkey: u32,
        bind_info: ibv_mw_bind_info,
    }

    /// A window onto a part of registered memory.
    struct ibv_mw {
        context: *mut super::context::ibv_context,
        pd: *mut super::memory::ibv_pd,
        rkey: u32,
        handle: u32,
        type_ as "type": super::constants::ibv_mw_type,
    }

    /// The part of registered memory that a window is bound to.
    struct ibv_mw_bind_info {
        mr: *mut ibv_mr,
        addr: u64,
        length: u64,
        mw_access_flags: c_uint,
    }

    /// A place for what is received, with the next one behind it.
    struct ibv_recv_wr {
        wr_id: u64,
        next: *mut ibv_recv_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
    }
}
