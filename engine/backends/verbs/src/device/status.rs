//! What verbs answer, in the words of the seam.

use std::io;

use penstock_verbs_sys::verbs::*;

use crate::adapter::{AdapterError, WR_IDS, Wc, WcStatus, WorkCompletion};

/// The bit by which receives are told from requests: a completion that failed says nothing else of what it was.
pub(super) const RECEIVE: u64 = WR_IDS;

/// A call has failed with this error.
pub(super) fn refused(call: &'static str, adapter: &str, source: io::Error) -> AdapterError {
    let mend = mend(call, source.raw_os_error().unwrap_or(0));
    AdapterError::Refused { call, adapter: adapter.to_owned(), source, mend }
}

/// A call that answers an error number has answered this one.
pub(super) fn check(call: &'static str, adapter: &str, answer: i32) -> Result<(), AdapterError> {
    match answer {
        0 => Ok(()),
        // Some answer -1 and leave the number in `errno`.
        -1 => Err(refused(call, adapter, io::Error::last_os_error())),
        number => Err(refused(call, adapter, io::Error::from_raw_os_error(number.abs()))),
    }
}

/// What to do about it.
fn mend(call: &'static str, number: i32) -> &'static str {
    let registers = call.starts_with("ibv_reg");
    match number {
        libc::ENOMEM if registers => {
            "memory may not be locked, or not so much: `ulimit -l unlimited`, or LimitMEMLOCK=infinity for a service"
        }
        libc::EFAULT if registers => {
            "the memory is not mapped, or is of a kind that cannot be pinned, such as a file of some file systems"
        }
        libc::EOPNOTSUPP | libc::ENOSYS | libc::EPROTONOSUPPORT => "the card's driver cannot do it: a newer one may",
        libc::EACCES | libc::EPERM => {
            "this user may not: look at the rights of /dev/infiniband, and at the device control of its container"
        }
        libc::ENOMEM => {
            "the card or the limit of locked memory is used up: `rdma resource` shows by whom, `ulimit -l` the limit"
        }
        libc::ENODEV | libc::EIO | libc::ENXIO => "the card has gone, or is being reset: look at the kernel's messages",
        libc::ENETUNREACH | libc::EHOSTUNREACH | libc::ETIMEDOUT => {
            "the peer's address cannot be reached from this card's network device: look at its routes and neighbours"
        }
        libc::EINVAL if call == MODIFY_TO_RTR => {
            "the two ends do not fit: compare addresses, packet sizes and versions of RoCE of both sides' ports"
        }
        _ => "`penstock doctor` looks at this machine's cards",
    }
}

/// The call that tells a queue pair of its peer.
pub(super) const MODIFY_TO_RTR: &str = "ibv_modify_qp to RTR";

/// A completion, as the seam says it.
pub(super) fn done(completion: &ibv_wc) -> WorkCompletion {
    let is_receive = completion.wr_id & RECEIVE != 0;
    let what = match (completion.status, is_receive) {
        (IBV_WC_SUCCESS, false) => Wc::Send,
        (IBV_WC_SUCCESS, true) => {
            let immediate = (completion.wc_flags & IBV_WC_WITH_IMM != 0).then(|| u32::from_be(completion.imm_data));
            // The bytes of a write with an immediate are not in the receive.
            let is_write = completion.opcode == IBV_WC_RECV_RDMA_WITH_IMM;
            Wc::Recv { bytes: if is_write { 0 } else { completion.byte_len }, immediate }
        }
        (_, true) => Wc::Unused,
        (status, false) => Wc::Failed(wc_status(status)),
    };
    WorkCompletion { queue: completion.qp_num, id: completion.wr_id & !RECEIVE, result: what }
}

/// Why a request failed.
fn wc_status(status: ibv_wc_status) -> WcStatus {
    match status {
        IBV_WC_WR_FLUSH_ERR => WcStatus::Flushed,
        IBV_WC_REM_ACCESS_ERR => WcStatus::Refused,
        IBV_WC_LOC_PROT_ERR | IBV_WC_LOC_ACCESS_ERR => WcStatus::Memory,
        IBV_WC_RETRY_EXC_ERR | IBV_WC_RESP_TIMEOUT_ERR => WcStatus::Silence,
        IBV_WC_RNR_RETRY_EXC_ERR => WcStatus::NoReceive,
        IBV_WC_REM_INV_REQ_ERR | IBV_WC_REM_OP_ERR | IBV_WC_BAD_RESP_ERR => WcStatus::Invalid,
        IBV_WC_FATAL_ERR => WcStatus::Card,
        other => WcStatus::Other(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn completion(wr_id: u64, status: ibv_wc_status) -> ibv_wc {
        ibv_wc { wr_id, status, qp_num: 7, ..ibv_wc::ZERO }
    }

    #[test]
    fn a_failed_completion_is_told_apart_by_its_name_alone() {
        // What it completes is not said when it failed: the opcode here is that of a receive.
        let request = ibv_wc { opcode: IBV_WC_RECV, ..completion(5, IBV_WC_WR_FLUSH_ERR) };
        assert_eq!(done(&request), WorkCompletion { queue: 7, id: 5, result: Wc::Failed(WcStatus::Flushed) });
        let receive = completion(5 | RECEIVE, IBV_WC_WR_FLUSH_ERR);
        assert_eq!(done(&receive), WorkCompletion { queue: 7, id: 5, result: Wc::Unused });
    }

    #[test]
    fn an_immediate_has_no_bytes_in_its_receive() {
        let told = ibv_wc {
            opcode: IBV_WC_RECV_RDMA_WITH_IMM,
            byte_len: 4096,
            wc_flags: IBV_WC_WITH_IMM,
            imm_data: 0x0102_0304_u32.to_be(),
            ..completion(1 | RECEIVE, IBV_WC_SUCCESS)
        };
        assert_eq!(done(&told).result, Wc::Recv { bytes: 0, immediate: Some(0x0102_0304) });
        let message =
            ibv_wc { opcode: IBV_WC_RECV, byte_len: 4096, imm_data: 9, ..completion(1 | RECEIVE, IBV_WC_SUCCESS) };
        assert_eq!(done(&message).result, Wc::Recv { bytes: 4096, immediate: None });
    }

    #[test]
    fn a_status_that_nobody_knows_is_kept() {
        assert_eq!(done(&completion(0, 4711)).result, Wc::Failed(WcStatus::Other(4711)));
        assert_eq!(done(&completion(0, IBV_WC_GENERAL_ERR)).result, Wc::Failed(WcStatus::Other(IBV_WC_GENERAL_ERR)));
    }

    #[test]
    fn too_little_locked_memory_says_what_to_raise() {
        let error = refused("ibv_reg_mr", "rxe0/1", io::Error::from_raw_os_error(libc::ENOMEM)).to_string();
        assert!(error.contains("ibv_reg_mr on rxe0/1") && error.contains("ulimit -l"), "{error}");
        let error = check("ibv_create_cq", "rxe0/1", libc::ENOMEM).expect_err("an error number").to_string();
        assert!(error.contains("rdma resource"), "{error}");
    }
}
