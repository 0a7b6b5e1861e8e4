//! Events, port spaces and options.

use std::ffi::{c_int, c_uint};

use crate::layout::c_constants;

c_constants! {
    /// What happened while a connection was made or after. [`crate::words::cm_event`] says it in words.
    enum rdma_cm_event_type: c_uint {
        RDMA_CM_EVENT_ADDR_RESOLVED = 0,
        RDMA_CM_EVENT_ADDR_ERROR = 1,
        RDMA_CM_EVENT_ROUTE_RESOLVED = 2,
        RDMA_CM_EVENT_ROUTE_ERROR = 3,
        RDMA_CM_EVENT_CONNECT_REQUEST = 4,
        RDMA_CM_EVENT_CONNECT_RESPONSE = 5,
        RDMA_CM_EVENT_CONNECT_ERROR = 6,
        RDMA_CM_EVENT_UNREACHABLE = 7,
        RDMA_CM_EVENT_REJECTED = 8,
        RDMA_CM_EVENT_ESTABLISHED = 9,
        RDMA_CM_EVENT_DISCONNECTED = 10,
        RDMA_CM_EVENT_DEVICE_REMOVAL = 11,
        RDMA_CM_EVENT_MULTICAST_JOIN = 12,
        RDMA_CM_EVENT_MULTICAST_ERROR = 13,
        RDMA_CM_EVENT_ADDR_CHANGE = 14,
        RDMA_CM_EVENT_TIMEWAIT_EXIT = 15,
    }

    /// What the port of an address is a port of.
    enum rdma_port_space: c_uint {
        RDMA_PS_IPOIB = 0x0002,
        RDMA_PS_TCP = 0x0106,
        RDMA_PS_UDP = 0x0111,
        RDMA_PS_IB = 0x013f,
    }

    values u8 {
        /// As many reads and atomic operations of the other side at once as the device allows.
        RDMA_MAX_RESP_RES = 255,
        /// As many reads and atomic operations of this side at once as the device allows.
        RDMA_MAX_INIT_DEPTH = 255,
    }

    values c_int {
        /// The result is to be listened on.
        RAI_PASSIVE = 1,
        /// The node is written as a number.
        RAI_NUMERICHOST = 2,
        /// No route is looked for.
        RAI_NOROUTE = 4,
        /// The hint's family is to be kept to.
        RAI_FAMILY = 8,
        /// Options of an identifier.
        RDMA_OPTION_ID = 0,
        /// Options of InfiniBand.
        RDMA_OPTION_IB = 1,
        /// The type of service of its packets, a `u8`.
        RDMA_OPTION_ID_TOS = 0,
        /// Whether an address may be bound that is still in use, a `c_int`.
        RDMA_OPTION_ID_REUSEADDR = 1,
        /// Whether only the family that it is bound to is listened to, a `c_int`.
        RDMA_OPTION_ID_AFONLY = 2,
        /// How long an acknowledgement is waited for, a `u8`: 4.096 µs times two to its power.
        RDMA_OPTION_ID_ACK_TIMEOUT = 3,
        /// The path's records.
        RDMA_OPTION_IB_PATH = 1,
    }
}
