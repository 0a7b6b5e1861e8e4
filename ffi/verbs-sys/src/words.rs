//! What numbers of the libraries mean, in words: for errors that people read.

use crate::cm::*;
use crate::verbs::*;

/// How a work request ended.
pub fn wc_status(status: ibv_wc_status) -> &'static str {
    match status {
        IBV_WC_SUCCESS => "done",
        IBV_WC_LOC_LEN_ERR => "more bytes than the place for them has, or than one request may move",
        IBV_WC_LOC_QP_OP_ERR => "the queue pair could not carry out a request of this side",
        IBV_WC_LOC_EEC_OP_ERR => "the end-to-end context could not carry out a request of this side",
        IBV_WC_LOC_PROT_ERR => "this side's memory is not registered for what the request does with it",
        IBV_WC_WR_FLUSH_ERR => "thrown out undone, because the connection had ended",
        IBV_WC_MW_BIND_ERR => "the memory window could not be bound",
        IBV_WC_BAD_RESP_ERR => "the other side answered something that is no answer to this",
        IBV_WC_LOC_ACCESS_ERR => "what came may not be written where this side's memory was to take it",
        IBV_WC_REM_INV_REQ_ERR => "the other side takes the request for malformed, or has no room for it",
        IBV_WC_REM_ACCESS_ERR => "the other side does not allow this to be done to that memory",
        IBV_WC_REM_OP_ERR => "the other side could not carry the request out",
        IBV_WC_RETRY_EXC_ERR => "the other side did not answer, however often it was asked",
        IBV_WC_RNR_RETRY_EXC_ERR => "the other side never had a place ready to receive",
        IBV_WC_LOC_RDD_VIOL_ERR => "queue pair and end-to-end context are of different domains",
        IBV_WC_REM_INV_RD_REQ_ERR => "the other side does not take this request as a datagram",
        IBV_WC_REM_ABORT_ERR => "the other side broke the request off",
        IBV_WC_INV_EECN_ERR => "there is no end-to-end context of that number",
        IBV_WC_INV_EEC_STATE_ERR => "the end-to-end context is not in a state for this",
        IBV_WC_FATAL_ERR => "the device has failed",
        IBV_WC_RESP_TIMEOUT_ERR => "the answer did not come in time",
        IBV_WC_GENERAL_ERR => "the transport failed in a way that has no name of its own",
        IBV_WC_TM_ERR => "matching of tags failed",
        IBV_WC_TM_RNDV_INCOMPLETE => "the message was matched, but its transfer is left to software",
        _ => "ended in a way that is not known here",
    }
}

/// What happened to a device, a port or a queue.
pub fn event(event: ibv_event_type) -> &'static str {
    match event {
        IBV_EVENT_CQ_ERR => "a completion queue ran over or failed",
        IBV_EVENT_QP_FATAL => "a queue pair failed and completes nothing more",
        IBV_EVENT_QP_REQ_ERR => "a queue pair was sent a malformed request",
        IBV_EVENT_QP_ACCESS_ERR => "a queue pair was sent a request for memory that is not allowed",
        IBV_EVENT_COMM_EST => "the first packet of a connection came",
        IBV_EVENT_SQ_DRAINED => "a send queue has come to rest",
        IBV_EVENT_PATH_MIG => "a connection has moved to its other path",
        IBV_EVENT_PATH_MIG_ERR => "a connection could not move to its other path",
        IBV_EVENT_DEVICE_FATAL => "the device has failed",
        IBV_EVENT_PORT_ACTIVE => "a port has come up",
        IBV_EVENT_PORT_ERR => "a port has gone down",
        IBV_EVENT_LID_CHANGE => "a port's local address has changed",
        IBV_EVENT_PKEY_CHANGE => "a port's partitions have changed",
        IBV_EVENT_SM_CHANGE => "the fabric has another manager",
        IBV_EVENT_SRQ_ERR => "a shared receive queue has failed",
        IBV_EVENT_SRQ_LIMIT_REACHED => "a shared receive queue runs low",
        IBV_EVENT_QP_LAST_WQE_REACHED => "a failed queue pair takes nothing more from its shared receive queue",
        IBV_EVENT_CLIENT_REREGISTER => "the fabric's manager asks for all subscriptions anew",
        IBV_EVENT_GID_CHANGE => "a port's table of addresses has changed",
        IBV_EVENT_WQ_FATAL => "a work queue has failed",
        _ => "something that is not known here",
    }
}

/// What happened while a connection was made or after.
pub fn cm_event(event: rdma_cm_event_type) -> &'static str {
    match event {
        RDMA_CM_EVENT_ADDR_RESOLVED => "the address leads to a device here",
        RDMA_CM_EVENT_ADDR_ERROR => "no device here leads to the address",
        RDMA_CM_EVENT_ROUTE_RESOLVED => "a route was found",
        RDMA_CM_EVENT_ROUTE_ERROR => "no route was found",
        RDMA_CM_EVENT_CONNECT_REQUEST => "somebody asks for a connection",
        RDMA_CM_EVENT_CONNECT_RESPONSE => "the other side agrees to connect",
        RDMA_CM_EVENT_CONNECT_ERROR => "the connection failed while it was made",
        RDMA_CM_EVENT_UNREACHABLE => "the other side cannot be reached or does not answer",
        RDMA_CM_EVENT_REJECTED => "the other side refused the connection",
        RDMA_CM_EVENT_ESTABLISHED => "the connection stands",
        RDMA_CM_EVENT_DISCONNECTED => "the connection has ended",
        RDMA_CM_EVENT_DEVICE_REMOVAL => "the device goes away",
        RDMA_CM_EVENT_MULTICAST_JOIN => "the group was joined",
        RDMA_CM_EVENT_MULTICAST_ERROR => "the group could not be joined, or was lost",
        RDMA_CM_EVENT_ADDR_CHANGE => "the address has moved to another device",
        RDMA_CM_EVENT_TIMEWAIT_EXIT => "the numbers of an ended connection may be used again",
        _ => "something that is not known here",
    }
}

/// How far a port has come.
pub fn port_state(state: ibv_port_state) -> &'static str {
    match state {
        IBV_PORT_NOP => "no state",
        IBV_PORT_DOWN => "down",
        IBV_PORT_INIT => "up, waiting for the fabric's manager",
        IBV_PORT_ARMED => "armed",
        IBV_PORT_ACTIVE => "active",
        IBV_PORT_ACTIVE_DEFER => "active, with its link interrupted",
        _ => "a state that is not known here",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::layout;

    /// The values of the enumeration `of`.
    fn constants(of: &str) -> impl Iterator<Item = u32> {
        let values = layout::constants().filter(move |constant| constant.of == Some(of));
        values.map(|constant| u32::try_from(constant.value).expect("these are not negative"))
    }

    #[test]
    fn every_number_has_words_of_its_own_and_others_say_that_they_are_not_known() {
        type Words = fn(u32) -> &'static str;
        let kinds: [(&str, Words); 4] = [
            ("ibv_wc_status", wc_status),
            ("ibv_event_type", event),
            ("rdma_cm_event_type", cm_event),
            ("ibv_port_state", port_state),
        ];
        for (name, words) in kinds {
            let unknown = words(1000);
            assert!(unknown.contains("not known here"), "{name}: {unknown}");
            let said: BTreeSet<&str> = constants(name).map(words).collect();
            assert_eq!(said.len(), constants(name).count(), "{name}: each its own");
            assert!(!said.contains(unknown), "{name}: none is forgotten");
        }
    }
}
