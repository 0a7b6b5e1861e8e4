//! The hot verbs: each one is a call through a table of the device's own driver, and nothing else.

use std::ffi::{c_int, c_uint, c_void};

use libc::EOPNOTSUPP;

use super::completion::{ibv_cq, ibv_cq_ex, ibv_poll_cq_attr, ibv_wc};
use super::constants::ibv_wc_opcode;
use super::extended::ibv_qp_ex;
use super::flags as bits;
use super::queue::{ibv_qp, ibv_srq};
use super::work::{ibv_data_buf, ibv_recv_wr, ibv_send_wr, ibv_sge};

/// Posts a list of requests. On an error number `bad_wr` names the first that was not posted; those before it were.
///
/// # Safety
///
/// The queue pair stands, the list and what it points to can be read, the memory that its keys name stays registered until the
/// completions have come. `bad_wr` may be written.
#[inline]
pub unsafe fn ibv_post_send(qp: *mut ibv_qp, wr: *mut ibv_send_wr, bad_wr: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: as the caller promises; a queue pair's context stands as long as it does.
    unsafe {
        match (*(*qp).context).ops.post_send {
            Some(post) => post(qp, wr, bad_wr),
            None => {
                *bad_wr = wr;
                EOPNOTSUPP
            }
        }
    }
}

/// Posts a list of places for what will be received. As [`ibv_post_send`] otherwise.
///
/// # Safety
///
/// As for [`ibv_post_send`].
#[inline]
pub unsafe fn ibv_post_recv(qp: *mut ibv_qp, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: as the caller promises; a queue pair's context stands as long as it does.
    unsafe {
        match (*(*qp).context).ops.post_recv {
            Some(post) => post(qp, wr, bad_wr),
            None => {
                *bad_wr = wr;
                EOPNOTSUPP
            }
        }
    }
}

/// Posts a list of places to a shared receive queue. As [`ibv_post_send`] otherwise.
///
/// # Safety
///
/// As for [`ibv_post_send`].
#[inline]
pub unsafe fn ibv_post_srq_recv(srq: *mut ibv_srq, wr: *mut ibv_recv_wr, bad_wr: *mut *mut ibv_recv_wr) -> c_int {
    // SAFETY: as the caller promises; a queue's context stands as long as it does.
    unsafe {
        match (*(*srq).context).ops.post_srq_recv {
            Some(post) => post(srq, wr, bad_wr),
            None => {
                *bad_wr = wr;
                EOPNOTSUPP
            }
        }
    }
}

/// Takes up to `num_entries` completions: how many it took, or a negative number.
///
/// # Safety
///
/// The queue stands, and `num_entries` completions may be written at `wc`.
#[inline]
pub unsafe fn ibv_poll_cq(cq: *mut ibv_cq, num_entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: as the caller promises; a queue's context stands as long as it does.
    unsafe {
        match (*(*cq).context).ops.poll_cq {
            Some(poll) => poll(cq, num_entries, wc),
            None => -EOPNOTSUPP,
        }
    }
}

/// Has the next completion wake the queue's channel; with `solicited_only` only one that its sender marked so. What came before
/// this call wakes nobody: the queue is to be polled once more after it.
///
/// # Safety
///
/// The queue stands.
#[inline]
pub unsafe fn ibv_req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: as the caller promises; a queue's context stands as long as it does.
    unsafe {
        match (*(*cq).context).ops.req_notify_cq {
            Some(request) => request(cq, solicited_only),
            None => EOPNOTSUPP,
        }
    }
}

/// Whether a queue pair has every posting function that `send_ops_flags` names, and those that set data and begin and end a batch.
/// To be asked once, after it was made: `ibv_wr_…` do not look again.
///
/// # Safety
///
/// `qp` came from [`super::Verbs::ibv_qp_to_qp_ex`] and stands.
pub unsafe fn ibv_qp_ex_offers(qp: *const ibv_qp_ex, send_ops_flags: bits::ibv_qp_create_send_ops_flags) -> bool {
    // SAFETY: it stands, as the caller promises.
    let qp = unsafe { &*qp };
    let batches = qp.wr_start.is_some() && qp.wr_complete.is_some() && qp.wr_abort.is_some();
    let data = qp.wr_set_sge.is_some()
        && qp.wr_set_sge_list.is_some()
        && qp.wr_set_inline_data.is_some()
        && qp.wr_set_inline_data_list.is_some();
    let asked = [
        (bits::IBV_QP_EX_WITH_RDMA_WRITE, qp.wr_rdma_write.is_some()),
        (bits::IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, qp.wr_rdma_write_imm.is_some()),
        (bits::IBV_QP_EX_WITH_SEND, qp.wr_send.is_some()),
        (bits::IBV_QP_EX_WITH_SEND_WITH_IMM, qp.wr_send_imm.is_some()),
        (bits::IBV_QP_EX_WITH_RDMA_READ, qp.wr_rdma_read.is_some()),
        (bits::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP, qp.wr_atomic_cmp_swp.is_some()),
        (bits::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD, qp.wr_atomic_fetch_add.is_some()),
        (bits::IBV_QP_EX_WITH_LOCAL_INV, qp.wr_local_inv.is_some()),
        (bits::IBV_QP_EX_WITH_BIND_MW, qp.wr_bind_mw.is_some()),
        (bits::IBV_QP_EX_WITH_SEND_WITH_INV, qp.wr_send_inv.is_some()),
        (bits::IBV_QP_EX_WITH_TSO, qp.wr_send_tso.is_some()),
    ];
    let known = asked.iter().fold(0, |known, (flag, _)| known | flag);
    batches
        && data
        && send_ops_flags & !known == 0
        && asked.iter().all(|(flag, is_there)| send_ops_flags & flag == 0 || *is_there)
}

/// Whether an extended completion queue can be polled and has every field that `wc_flags` names. To be asked once, after it was
/// made: `ibv_…_poll` and `ibv_wc_read_…` do not look again.
///
/// # Safety
///
/// `cq` came from [`super::ibv_create_cq_ex`] and stands.
pub unsafe fn ibv_cq_ex_offers(cq: *const ibv_cq_ex, wc_flags: bits::ibv_create_cq_wc_flags) -> bool {
    // SAFETY: it stands, as the caller promises.
    let cq = unsafe { &*cq };
    let polls = cq.start_poll.is_some() && cq.next_poll.is_some() && cq.end_poll.is_some();
    let always = cq.read_opcode.is_some() && cq.read_vendor_err.is_some() && cq.read_wc_flags.is_some();
    let asked = [
        (bits::IBV_WC_EX_WITH_BYTE_LEN, cq.read_byte_len.is_some()),
        (bits::IBV_WC_EX_WITH_IMM, cq.read_imm_data.is_some()),
        (bits::IBV_WC_EX_WITH_QP_NUM, cq.read_qp_num.is_some()),
        (bits::IBV_WC_EX_WITH_SRC_QP, cq.read_src_qp.is_some()),
        (bits::IBV_WC_EX_WITH_SLID, cq.read_slid.is_some()),
        (bits::IBV_WC_EX_WITH_SL, cq.read_sl.is_some()),
        (bits::IBV_WC_EX_WITH_DLID_PATH_BITS, cq.read_dlid_path_bits.is_some()),
        (bits::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP, cq.read_completion_ts.is_some()),
        (bits::IBV_WC_EX_WITH_CVLAN, cq.read_cvlan.is_some()),
        (bits::IBV_WC_EX_WITH_FLOW_TAG, cq.read_flow_tag.is_some()),
        (bits::IBV_WC_EX_WITH_TM_INFO, !cq.read_tm_info.is_null()),
        (bits::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK, cq.read_completion_wallclock_ns.is_some()),
    ];
    let known = asked.iter().fold(0, |known, (flag, _)| known | flag);
    polls && always && wc_flags & !known == 0 && asked.iter().all(|(flag, is_there)| wc_flags & flag == 0 || *is_there)
}

/// Calls through the table of an object, without looking whether the function is there.
macro_rules! through_table {
    ($object:ident, $asked:literal: $(
        $(#[$meta:meta])*
        fn $name:ident = $field:ident($($argument:ident: $type:ty),*) $(-> $returns:ty)?;
    )*) => { $(
        $(#[$meta])*
        ///
        /// # Safety
        ///
        #[doc = $asked]
        #[inline]
        pub unsafe fn $name(object: *mut $object, $($argument: $type),*) $(-> $returns)? {
            // SAFETY: the object stands and has the function, as the caller was told.
            unsafe { ((*object).$field.unwrap_unchecked())(object, $($argument),*) }
        }
    )* };
}

through_table! { ibv_qp_ex,
    "The queue pair stands, [`ibv_qp_ex_offers`] this, and one thread at a time is between [`ibv_wr_start`] and its end. What the \
     request names stays until its completion has come.":

    /// Begins a batch of requests.
    fn ibv_wr_start = wr_start();
    /// Posts the batch; on an error number nothing of it was posted.
    fn ibv_wr_complete = wr_complete() -> c_int;
    /// Forgets the batch.
    fn ibv_wr_abort = wr_abort();
    /// A write into the other side's memory.
    fn ibv_wr_rdma_write = wr_rdma_write(rkey: u32, remote_addr: u64);
    /// A write that takes one of the other side's places to receive and tells it a word, in network order.
    fn ibv_wr_rdma_write_imm = wr_rdma_write_imm(rkey: u32, remote_addr: u64, imm_data: u32);
    /// A read of the other side's memory.
    fn ibv_wr_rdma_read = wr_rdma_read(rkey: u32, remote_addr: u64);
    /// A message.
    fn ibv_wr_send = wr_send();
    /// A message with a word beside it, in network order.
    fn ibv_wr_send_imm = wr_send_imm(imm_data: u32);
    /// A message that makes a key of the other side invalid.
    fn ibv_wr_send_inv = wr_send_inv(invalidate_rkey: u32);
    /// Replaces a word of the other side if it is `compare`.
    fn ibv_wr_atomic_cmp_swp = wr_atomic_cmp_swp(rkey: u32, remote_addr: u64, compare: u64, swap: u64);
    /// Adds to a word of the other side.
    fn ibv_wr_atomic_fetch_add = wr_atomic_fetch_add(rkey: u32, remote_addr: u64, add: u64);
    /// Makes a key of this side invalid.
    fn ibv_wr_local_inv = wr_local_inv(invalidate_rkey: u32);
    /// The piece of this side's memory that the request is about.
    fn ibv_wr_set_sge = wr_set_sge(lkey: u32, addr: u64, length: u32);
    /// The pieces of this side's memory that the request is about.
    fn ibv_wr_set_sge_list = wr_set_sge_list(num_sge: usize, sg_list: *const ibv_sge);
    /// Bytes that the request takes with it at once.
    fn ibv_wr_set_inline_data = wr_set_inline_data(addr: *mut c_void, length: usize);
    /// Pieces of bytes that the request takes with it at once.
    fn ibv_wr_set_inline_data_list = wr_set_inline_data_list(num_buf: usize, buf_list: *const ibv_data_buf);
}

through_table! { ibv_cq_ex,
    "The queue stands and [`ibv_cq_ex_offers`] this. One thread at a time polls it; fields are read after [`ibv_start_poll`] or \
     [`ibv_next_poll`] answered 0, and before [`ibv_end_poll`].":

    /// Begins to poll: 0 and the first completion can be read, or `ENOENT` and there is none and nothing to end.
    fn ibv_start_poll = start_poll(attr: *mut ibv_poll_cq_attr) -> c_int;
    /// Goes on to the next completion: 0, or `ENOENT`.
    fn ibv_next_poll = next_poll() -> c_int;
    /// Ends polling and gives the places of what was read back to the device.
    fn ibv_end_poll = end_poll();
    /// What was completed.
    fn ibv_wc_read_opcode = read_opcode() -> ibv_wc_opcode;
    /// The driver's own word about a failure.
    fn ibv_wc_read_vendor_err = read_vendor_err() -> u32;
    /// Bytes received or read.
    fn ibv_wc_read_byte_len = read_byte_len() -> u32;
    /// The word that came beside it, in network order, or the key that is no longer valid.
    fn ibv_wc_read_imm_data = read_imm_data() -> u32;
    /// The queue pair of this side.
    fn ibv_wc_read_qp_num = read_qp_num() -> u32;
    /// The queue pair of the other side.
    fn ibv_wc_read_src_qp = read_src_qp() -> u32;
    /// What it has with it.
    fn ibv_wc_read_wc_flags = read_wc_flags() -> c_uint;
    /// The device's clock when it was completed.
    fn ibv_wc_read_completion_ts = read_completion_ts() -> u64;
    /// The time of day when it was completed, in nanoseconds.
    fn ibv_wc_read_completion_wallclock_ns = read_completion_wallclock_ns() -> u64;
}

#[cfg(test)]
mod tests;
