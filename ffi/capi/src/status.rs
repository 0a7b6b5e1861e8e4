//! The numbers that calls answer. They never change their meaning, and none is used again.

use std::ffi::{CStr, c_char, c_int};

use penstock::Cause;

use self::penstock_status::*;

/// What a call answers.
///
/// Below 10 nothing has failed; from 100 on it is the cause by which a transfer or a session ended.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum penstock_status {
    /// It is done.
    PENSTOCK_OK = 0,
    /// It has not ended yet; look again.
    PENSTOCK_PENDING = 1,
    /// `penstock_arm`: something has happened, look before sleeping.
    PENSTOCK_BUSY = 2,
    /// The caller's array or buffer had no room for all; the length says how much there is.
    PENSTOCK_TRUNCATED = 3,
    /// The wait is over, and what was waited for goes on.
    PENSTOCK_TIMED_OUT = 4,
    /// The region was registered more than once, and stands until the others have ended, too.
    PENSTOCK_STILL_REGISTERED = 5,
    /// A peer that was stopped or is not reached might still touch the memory: it must not be reused yet.
    PENSTOCK_QUARANTINED = 6,
    /// An argument makes no sense: a null pointer, text that is not UTF-8, a size that is not set.
    PENSTOCK_INVALID_ARGUMENT = 10,
    /// No object has this handle: it was released, is of another kind, or never was one.
    PENSTOCK_BAD_HANDLE = 11,
    /// There are 16 million objects; release some.
    PENSTOCK_TOO_MANY_HANDLES = 12,
    /// A mistake in Penstock. The call may have had no effect; please report it with the log.
    PENSTOCK_INTERNAL = 13,
    /// The configuration cannot be read, or contradicts itself.
    PENSTOCK_BAD_CONFIG = 20,
    /// The engine did not start.
    PENSTOCK_NOT_STARTED = 21,
    /// There is no secret to share with other hosts, or it cannot be used.
    PENSTOCK_NO_SECRET = 22,
    /// The bytes are no descriptor of an engine.
    PENSTOCK_BAD_DESCRIPTOR = 30,
    /// Neither side has a transport that reaches the other.
    PENSTOCK_NO_ROUTE = 31,
    /// Nobody answers there.
    PENSTOCK_UNREACHABLE = 32,
    /// It did not answer in time.
    PENSTOCK_CONNECT_TIMED_OUT = 33,
    /// One side refused the session.
    PENSTOCK_REFUSED = 34,
    /// The connection ended before the session stood.
    PENSTOCK_CONNECTION_LOST = 35,
    /// What answers there is another program.
    PENSTOCK_NOT_PENSTOCK = 36,
    /// The two sides do not share a secret.
    PENSTOCK_WRONG_SECRET = 37,
    /// No address was found for the name.
    PENSTOCK_UNRESOLVED = 38,
    /// No region of this label, or with these bytes, is known.
    PENSTOCK_NO_REGION = 50,
    /// The region was deregistered or renewed.
    PENSTOCK_STALE_REGION = 51,
    /// The peer has changed its regions and the news is under way: try again.
    PENSTOCK_NEWS_UNDER_WAY = 52,
    /// Bytes lie outside the region. Also of a plan.
    PENSTOCK_OUT_OF_BOUNDS = 53,
    /// The region does not give that right, or the memory is mapped read-only. Also of a plan.
    PENSTOCK_NO_RIGHT = 54,
    /// Nothing is mapped at that address, or it cannot be read.
    PENSTOCK_NOT_MAPPED = 55,
    /// The pool has not so many free blocks.
    PENSTOCK_NO_BLOCKS = 56,
    /// Memory could not be made, taken in or renewed.
    PENSTOCK_NO_MEMORY = 57,
    /// No counter of this label is known.
    PENSTOCK_NO_COUNTER = 58,
    /// There is no CUDA driver that can be used here, or it has no device.
    PENSTOCK_NO_DEVICE = 59,
    /// What was asked for does not fit its regions.
    PENSTOCK_BAD_PLAN = 70,
    /// The plan was made for another peer or session.
    PENSTOCK_FOREIGN_PLAN = 71,
    /// There is no room: release transfers that have ended, then submit again.
    PENSTOCK_FULL = 72,
    /// A notification carries less.
    PENSTOCK_NOTE_TOO_LONG = 73,
    /// The number is one of those by which the peer hears of transfers by name.
    PENSTOCK_RESERVED_NOTE = 74,
    /// The counter is another peer's, or of another life of it.
    PENSTOCK_FOREIGN_COUNTER = 75,
    /// The caller cancelled it.
    PENSTOCK_CANCELLED = 101,
    /// Its deadline passed.
    PENSTOCK_DEADLINE_EXCEEDED = 102,
    /// The peer took back memory that the plan touches.
    PENSTOCK_REVOKED_BY_PEER = 103,
    /// This engine took back memory that the plan touches.
    PENSTOCK_REVOKED_HERE = 104,
    /// The plan is older than the log of withdrawn memory reaches.
    PENSTOCK_PLAN_TOO_OLD = 105,
    /// The session was closed, from here or by the peer.
    PENSTOCK_PEER_CLOSED = 106,
    /// The session broke.
    PENSTOCK_PEER_LOST = 107,
    /// The peer's shared memory holds nonsense.
    PENSTOCK_PEER_CORRUPT = 108,
    /// This engine was closed.
    PENSTOCK_ENGINE_CLOSED = 109,
    /// The process is a fork of the one that made the object.
    PENSTOCK_FORKED = 110,
    /// An inline engine belongs to the thread that made it.
    PENSTOCK_WRONG_THREAD = 111,
    /// No transport can move bytes between these two regions.
    PENSTOCK_NO_PATH = 112,
    /// A step of the plan reached outside its region.
    PENSTOCK_PLAN_OUT_OF_BOUNDS = 113,
    /// A call from inside another call of the same inline engine.
    PENSTOCK_REENTERED = 114,
    /// A wait is over and the transfer is not: its worker has not run.
    PENSTOCK_NOT_ENDED = 115,
    /// Registered memory is not there any more.
    PENSTOCK_MEMORY_GONE = 116,
    /// This engine drains.
    PENSTOCK_DRAINING = 120,
    /// The peer drains.
    PENSTOCK_PEER_DRAINING = 121,
    /// A part of the region got fresh memory.
    PENSTOCK_MEMORY_RENEWED = 124,
    /// No answer came over a rail.
    PENSTOCK_RAIL_LOST = 130,
    /// The peer's card refused the memory.
    PENSTOCK_ACCESS_REFUSED = 131,
    /// The peer took no messages.
    PENSTOCK_RECEIVER_NOT_READY = 132,
    /// A card of this host failed.
    PENSTOCK_CARD_FAILED = 133,
    /// A card cannot do what was asked.
    PENSTOCK_CARD_REFUSED = 134,
    /// Bytes came otherwise than they left, again and again.
    PENSTOCK_PAYLOAD_CORRUPT = 135,
    /// A device failed, here or at the peer.
    PENSTOCK_DEVICE_FAILED = 136,
}

/// All of them in words.
pub(crate) const TEXTS: &[(penstock_status, &CStr)] = &[
    (PENSTOCK_OK, c"done"),
    (PENSTOCK_PENDING, c"not ended yet"),
    (PENSTOCK_BUSY, c"something has happened: look before sleeping"),
    (PENSTOCK_TRUNCATED, c"the array is too small for all there is"),
    (PENSTOCK_TIMED_OUT, c"the time is over; what was waited for goes on"),
    (PENSTOCK_STILL_REGISTERED, c"the region was registered more than once and stands"),
    (PENSTOCK_QUARANTINED, c"memory is quarantined: it must not be reused yet"),
    (PENSTOCK_INVALID_ARGUMENT, c"an argument makes no sense"),
    (PENSTOCK_BAD_HANDLE, c"no object of this kind has this handle"),
    (PENSTOCK_TOO_MANY_HANDLES, c"there are as many objects as there may be; release some"),
    (PENSTOCK_INTERNAL, c"a mistake in Penstock itself; please report it with the log"),
    (PENSTOCK_BAD_CONFIG, c"the configuration is wrong"),
    (PENSTOCK_NOT_STARTED, c"the engine did not start"),
    (PENSTOCK_NO_SECRET, c"there is no secret to share with other hosts"),
    (PENSTOCK_BAD_DESCRIPTOR, c"these bytes are no descriptor of an engine"),
    (PENSTOCK_NO_ROUTE, c"there is no transport to that engine"),
    (PENSTOCK_UNREACHABLE, c"nobody answers there"),
    (PENSTOCK_CONNECT_TIMED_OUT, c"the other engine did not answer in time"),
    (PENSTOCK_REFUSED, c"the session was refused"),
    (PENSTOCK_CONNECTION_LOST, c"the connection ended before the session stood"),
    (PENSTOCK_NOT_PENSTOCK, c"what answers there is not Penstock"),
    (PENSTOCK_WRONG_SECRET, c"the two sides do not share a secret"),
    (PENSTOCK_UNRESOLVED, c"no address was found for the name"),
    (PENSTOCK_NO_REGION, c"no such region is known"),
    (PENSTOCK_STALE_REGION, c"the region was deregistered or renewed; get it again"),
    (PENSTOCK_NEWS_UNDER_WAY, c"news of the peer's regions is under way; try again"),
    (PENSTOCK_OUT_OF_BOUNDS, c"bytes lie outside of the region"),
    (PENSTOCK_NO_RIGHT, c"the region does not give that right"),
    (PENSTOCK_NOT_MAPPED, c"nothing that can be read is mapped at that address"),
    (PENSTOCK_NO_BLOCKS, c"the pool has not so many free blocks"),
    (PENSTOCK_NO_MEMORY, c"the memory cannot be had"),
    (PENSTOCK_NO_COUNTER, c"no counter of this label is known"),
    (PENSTOCK_NO_DEVICE, c"there is no CUDA driver with a device that can be used here"),
    (PENSTOCK_BAD_PLAN, c"the plan does not fit its regions"),
    (PENSTOCK_FOREIGN_PLAN, c"the plan was made for another peer or session"),
    (PENSTOCK_FULL, c"there is no room; release transfers that have ended, then submit again"),
    (PENSTOCK_NOTE_TOO_LONG, c"the payload of the notification is too long"),
    (PENSTOCK_RESERVED_NOTE, c"the number of the notification is reserved; leave its upper half 0"),
    (PENSTOCK_FOREIGN_COUNTER, c"the counter is not one of this peer"),
    (PENSTOCK_CANCELLED, c"cancelled by the caller"),
    (PENSTOCK_DEADLINE_EXCEEDED, c"the deadline passed"),
    (PENSTOCK_REVOKED_BY_PEER, c"the peer revoked memory that the plan touches"),
    (PENSTOCK_REVOKED_HERE, c"memory of this engine that the plan touches was revoked"),
    (PENSTOCK_PLAN_TOO_OLD, c"the plan is too old; build it again"),
    (PENSTOCK_PEER_CLOSED, c"the session was closed"),
    (PENSTOCK_PEER_LOST, c"the peer does not answer any more"),
    (PENSTOCK_PEER_CORRUPT, c"the peer's shared memory holds nonsense"),
    (PENSTOCK_ENGINE_CLOSED, c"this engine was closed"),
    (PENSTOCK_FORKED, c"this process is a fork of the one that made the object; start an engine here"),
    (PENSTOCK_WRONG_THREAD, c"an inline engine belongs to the thread that made it"),
    (PENSTOCK_NO_PATH, c"no transport can move bytes between these two regions"),
    (PENSTOCK_PLAN_OUT_OF_BOUNDS, c"the plan reaches outside a region"),
    (PENSTOCK_REENTERED, c"a call was made from inside another call of the same inline engine"),
    (PENSTOCK_NOT_ENDED, c"the transfer has not ended; cancel it and see what that answers"),
    (PENSTOCK_MEMORY_GONE, c"registered memory was freed or protected without deregistering it"),
    (PENSTOCK_DRAINING, c"this engine is draining and takes nothing new"),
    (PENSTOCK_PEER_DRAINING, c"the peer is draining and takes nothing new"),
    (PENSTOCK_MEMORY_RENEWED, c"the region's memory was renewed; get the region again"),
    (PENSTOCK_RAIL_LOST, c"the peer's card does not answer over this rail"),
    (PENSTOCK_ACCESS_REFUSED, c"the peer's card refused the memory of the plan"),
    (PENSTOCK_RECEIVER_NOT_READY, c"the peer's worker took no messages for too long"),
    (PENSTOCK_CARD_FAILED, c"a network card of this host has failed"),
    (PENSTOCK_CARD_REFUSED, c"a network card cannot carry out a part of the plan"),
    (PENSTOCK_PAYLOAD_CORRUPT, c"bytes of the plan came otherwise than they left, again and again"),
    (PENSTOCK_DEVICE_FAILED, c"a device, here or at the peer, has failed, and with it all that its process does on it"),
];

/// Where the causes begin.
const CAUSES: c_int = 100;

impl penstock_status {
    /// What to do about it. Those from 100 on have it in the words of their cause.
    pub(crate) fn remedy(self) -> &'static str {
        match self {
            PENSTOCK_INVALID_ARGUMENT => "give the argument that the text names as the header says",
            PENSTOCK_BAD_HANDLE => "use a handle until it is released, in calls that take its kind",
            PENSTOCK_TOO_MANY_HANDLES => "release handles that are not needed any more",
            PENSTOCK_INTERNAL => "report it, with the log",
            PENSTOCK_BAD_CONFIG => "change the key that the text names",
            PENSTOCK_NOT_STARTED => "take away what the text names, and start it again",
            PENSTOCK_NO_SECRET => "set PENSTOCK_SECRET or `session.secret_file`, the same on all hosts",
            PENSTOCK_BAD_DESCRIPTOR => "pass on all bytes of penstock_engine_descriptor, as they are",
            PENSTOCK_NO_ROUTE => "allow a transport in `transports.allow` that both sides have",
            PENSTOCK_UNREACHABLE => "see whether the other engine runs, and get its descriptor anew",
            PENSTOCK_CONNECT_TIMED_OUT => "give it more time; see whether the other engine runs and is turned",
            PENSTOCK_REFUSED => "do on the side that the text names what it says",
            PENSTOCK_CONNECTION_LOST => "connect again",
            PENSTOCK_NOT_PENSTOCK => "check the address and the port",
            PENSTOCK_WRONG_SECRET => "give both sides the same secret",
            PENSTOCK_UNRESOLVED => "check the name, or use an address with a port",
            PENSTOCK_NO_REGION => {
                "register the memory, wait for the peer to announce it, or check label, address and length"
            }
            PENSTOCK_STALE_REGION => "get the region again, and build a new plan",
            PENSTOCK_NEWS_UNDER_WAY => "try again in a moment, or wait with penstock_peer_refresh",
            PENSTOCK_OUT_OF_BOUNDS => "stay within the region, or register more memory",
            PENSTOCK_NO_RIGHT => "register the memory with that right, or use other memory",
            PENSTOCK_NOT_MAPPED => "map the memory before it is registered; check address and length",
            PENSTOCK_NO_BLOCKS => "release blocks, wait for them with a timeout, or make a larger pool",
            PENSTOCK_NO_MEMORY => "ask for less, or give the process more",
            PENSTOCK_NO_COUNTER => "wait for it with a timeout, or check the label",
            PENSTOCK_NO_DEVICE => {
                "see what `penstock doctor gpu` says; host memory is registered with penstock_register"
            }
            PENSTOCK_BAD_PLAN => "change the item that the text names",
            PENSTOCK_FOREIGN_PLAN => "build the plan with this session's regions",
            PENSTOCK_FULL => "release transfers that have ended, then submit again",
            PENSTOCK_NOTE_TOO_LONG => "send the rest as bytes of the transfer",
            PENSTOCK_RESERVED_NOTE => "leave `note_high` 0",
            PENSTOCK_FOREIGN_COUNTER => "look the counter up at this peer",
            _ => "",
        }
    }

    fn of_code(code: c_int) -> Option<Self> {
        TEXTS.iter().map(|(status, _)| *status).find(|status| *status as c_int == code)
    }
}

impl From<Cause> for penstock_status {
    fn from(cause: Cause) -> Self {
        Self::of_code(CAUSES + c_int::from(cause.code())).unwrap_or(PENSTOCK_INTERNAL)
    }
}

/// A status in words, in English; the same for every number that is none. Lives as long as the program. Any thread, also after a fork.
#[unsafe(no_mangle)]
pub extern "C" fn penstock_message(status: c_int) -> *const c_char {
    let known = TEXTS.iter().find(|(known, _)| *known as c_int == status);
    known.map_or(c"no status of this library", |(_, text)| text).as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_has_a_number_of_its_own_and_words() {
        for &cause in Cause::ALL {
            let status = penstock_status::from(cause);
            assert_eq!(status as c_int, CAUSES + c_int::from(cause.code()), "{cause:?}");
        }
        for (status, text) in TEXTS {
            let is_a_cause = *status as c_int >= CAUSES;
            assert_eq!(status.remedy().is_empty(), is_a_cause || (*status as c_int) < 10, "{status:?}");
            assert!(!text.is_empty() && penstock_status::of_code(*status as c_int) == Some(*status), "{status:?}");
        }
        assert!(penstock_status::of_code(-1).is_none() && penstock_status::of_code(100).is_none());
    }
}
