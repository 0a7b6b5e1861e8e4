//! The hot verbs call what the tables say, and what the tables lack is said before it is called.

use std::ptr;

use super::*;
use crate::verbs::ibv_context;

extern "C" fn post_send(_: *mut ibv_qp, wr: *mut ibv_send_wr, bad: *mut *mut ibv_send_wr) -> c_int {
    // SAFETY: the test passes both.
    unsafe {
        *bad = (*wr).next;
        (*wr).wr_id as c_int
    }
}

extern "C" fn poll(_: *mut ibv_cq, entries: c_int, wc: *mut ibv_wc) -> c_int {
    // SAFETY: the test passes room for one.
    unsafe { (*wc).wr_id = 5 };
    entries
}

#[test]
fn posting_and_polling_go_through_the_context() {
    let mut context = ibv_context::ZERO;
    context.ops.post_send = Some(post_send);
    context.ops.poll_cq = Some(poll);
    let mut pair = ibv_qp { context: &raw mut context, ..ibv_qp::ZERO };
    let mut queue = ibv_cq { context: &raw mut context, ..ibv_cq::ZERO };
    let mut second = ibv_send_wr::ZERO;
    let mut first = ibv_send_wr { wr_id: 3, next: &raw mut second, ..ibv_send_wr::ZERO };
    let (mut bad, mut done) = (ptr::null_mut(), ibv_wc::ZERO);
    // SAFETY: everything stands, and the functions look at nothing else.
    unsafe {
        assert_eq!(ibv_post_send(&raw mut pair, &raw mut first, &raw mut bad), 3);
        assert_eq!(ibv_poll_cq(&raw mut queue, 1, &raw mut done), 1);
    }
    assert_eq!((bad, done.wr_id), (&raw mut second, 5));
}

#[test]
fn what_a_device_has_no_function_for_is_refused_whole() {
    let mut context = ibv_context::ZERO;
    let mut pair = ibv_qp { context: &raw mut context, ..ibv_qp::ZERO };
    let mut queue = ibv_cq { context: &raw mut context, ..ibv_cq::ZERO };
    let mut shared = ibv_srq { context: &raw mut context, ..ibv_srq::ZERO };
    let (mut send, mut receive) = (ibv_send_wr::ZERO, ibv_recv_wr::ZERO);
    let (mut bad_send, mut bad_receive) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: everything stands.
    unsafe {
        assert_eq!(ibv_post_send(&raw mut pair, &raw mut send, &raw mut bad_send), EOPNOTSUPP);
        assert_eq!(bad_send, &raw mut send);
        assert_eq!(ibv_post_recv(&raw mut pair, &raw mut receive, &raw mut bad_receive), EOPNOTSUPP);
        assert_eq!(bad_receive, &raw mut receive);
        bad_receive = ptr::null_mut();
        assert_eq!(ibv_post_srq_recv(&raw mut shared, &raw mut receive, &raw mut bad_receive), EOPNOTSUPP);
        assert_eq!(bad_receive, &raw mut receive);
        assert_eq!(ibv_poll_cq(&raw mut queue, 1, ptr::null_mut()), -EOPNOTSUPP);
        assert_eq!(ibv_req_notify_cq(&raw mut queue, 0), EOPNOTSUPP);
    }
}

extern "C" fn write(pair: *mut ibv_qp_ex, rkey: u32, remote: u64) {
    // SAFETY: the test passes it.
    unsafe { (*pair).comp_mask = u64::from(rkey) + remote };
}

extern "C" fn nothing(_: *mut ibv_qp_ex) {}

extern "C" fn complete(_: *mut ibv_qp_ex) -> c_int {
    11
}

extern "C" fn piece(_: *mut ibv_qp_ex, _: u32, _: u64, _: u32) {}

extern "C" fn pieces(_: *mut ibv_qp_ex, _: usize, _: *const ibv_sge) {}

extern "C" fn bytes(_: *mut ibv_qp_ex, _: *mut c_void, _: usize) {}

extern "C" fn buffers(_: *mut ibv_qp_ex, _: usize, _: *const ibv_data_buf) {}

#[test]
fn a_queue_pair_offers_what_it_has_functions_for() {
    let mut pair = ibv_qp_ex {
        wr_start: Some(nothing),
        wr_complete: Some(complete),
        wr_abort: Some(nothing),
        wr_set_sge: Some(piece),
        wr_set_sge_list: Some(pieces),
        wr_set_inline_data: Some(bytes),
        wr_set_inline_data_list: Some(buffers),
        wr_rdma_write: Some(write),
        ..ibv_qp_ex::ZERO
    };
    let writes = bits::IBV_QP_EX_WITH_RDMA_WRITE;
    // SAFETY: it stands, and what is called is offered.
    unsafe {
        assert!(ibv_qp_ex_offers(&raw const pair, writes));
        assert!(!ibv_qp_ex_offers(&raw const pair, writes | bits::IBV_QP_EX_WITH_RDMA_READ));
        assert!(!ibv_qp_ex_offers(&raw const pair, writes | 1 << 31), "a bit that is not known here");
        ibv_wr_start(&raw mut pair);
        ibv_wr_rdma_write(&raw mut pair, 40, 2);
        assert_eq!(ibv_wr_complete(&raw mut pair), 11);
        assert_eq!(pair.comp_mask, 42);
        pair.wr_abort = None;
        assert!(!ibv_qp_ex_offers(&raw const pair, writes), "without a way back");
    }
}

extern "C" fn start(_: *mut ibv_cq_ex, _: *mut ibv_poll_cq_attr) -> c_int {
    libc::ENOENT
}

extern "C" fn next(_: *mut ibv_cq_ex) -> c_int {
    libc::ENOENT
}

extern "C" fn end(_: *mut ibv_cq_ex) {}

extern "C" fn opcode(_: *mut ibv_cq_ex) -> ibv_wc_opcode {
    super::super::IBV_WC_RECV
}

extern "C" fn word(_: *mut ibv_cq_ex) -> u32 {
    9
}

#[test]
fn a_completion_queue_offers_the_fields_it_has_functions_for() {
    let mut queue = ibv_cq_ex {
        start_poll: Some(start),
        next_poll: Some(next),
        end_poll: Some(end),
        read_opcode: Some(opcode),
        read_vendor_err: Some(word),
        read_wc_flags: Some(word),
        read_byte_len: Some(word),
        ..ibv_cq_ex::ZERO
    };
    // SAFETY: it stands, and what is called is offered.
    unsafe {
        assert!(ibv_cq_ex_offers(&raw const queue, bits::IBV_WC_EX_WITH_BYTE_LEN));
        assert!(!ibv_cq_ex_offers(&raw const queue, bits::IBV_WC_EX_WITH_IMM));
        assert!(!ibv_cq_ex_offers(&raw const queue, 1 << 31), "a bit that is not known here");
        assert_eq!(ibv_start_poll(&raw mut queue, ptr::null_mut()), libc::ENOENT);
        assert_eq!((ibv_wc_read_byte_len(&raw mut queue), ibv_wc_read_opcode(&raw mut queue)), (9, 128));
        queue.next_poll = None;
        assert!(!ibv_cq_ex_offers(&raw const queue, 0));
    }
}
