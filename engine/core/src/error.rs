//! How things end when they do not end well.
//!
//! A transfer ends in a [`Fault`]: which peer, at which [`Stage`], by which [`Cause`], and what is
//! known of its notification. All of it fits into one word so that a worker can publish it without
//! allocating; the words a person reads are made when the fault is printed.

use std::fmt;

use crate::ids::EngineName;

macro_rules! coded {
    (
        $(#[$doc:meta])* $name:ident {
            $($(#[$vdoc:meta])* $variant:ident = $code:literal : $text:literal),+ $(,)?
        }
    ) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        #[non_exhaustive]
        pub enum $name { $($(#[$vdoc])* $variant = $code),+ }

        impl $name {
            /// Every value, in the order of its code.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The stable number of this value (it crosses the C boundary and shared memory).
            pub const fn code(self) -> u8 { self as u8 }

            /// The value with this number.
            pub const fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$variant),)+ _ => None }
            }

            /// The value in words.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { f.write_str(self.text()) }
        }
    };
}

coded! {
    /// Where in its life a transfer or a call ended.
    Stage {
        /// Being handed to a worker.
        Submit = 1: "submitting",
        /// Waiting in a worker's queue.
        Queue = 2: "queued",
        Move = 3: "moving bytes",
        /// All bytes moved; waiting for the receiver's room for the notification.
        Notify = 4: "notifying",
        /// Finding, greeting or mapping a peer.
        Connect = 5: "connecting",
        /// Stopping what may still touch memory.
        Quiesce = 6: "quiescing",
    }
}

coded! {
    /// Why a transfer ended without success.
    Cause {
        /// The caller cancelled it.
        Cancelled = 1: "cancelled by the caller",
        DeadlineExceeded = 2: "the deadline passed; give it more time or fewer bytes, or see why the peer is slow",
        /// The peer took back memory that this plan touches.
        RevokedByPeer = 3: "the peer revoked memory that this plan touches; ask it for fresh extents and build a new plan",
        /// This engine took back memory that this plan touches.
        RevokedHere = 4: "memory of this engine that the plan touches was revoked or deregistered; build a new plan",
        /// The plan is older than the peer's log of withdrawn memory reaches back.
        PlanTooOld = 5: "the plan is older than the log of withdrawn memory reaches; build it again",
        /// One of the two sides ended the session with a goodbye.
        PeerClosed = 6: "the session was closed; connect again",
        PeerLost = 7: "the peer does not answer any more: its process, its host or the network between failed; connect again when it is back",
        /// What the peer left in shared memory makes no sense.
        PeerCorrupt = 8: "the peer's shared memory holds nonsense and its session was ended; restart the peer",
        /// This engine is shutting down.
        EngineClosed = 9: "this engine was shut down; start another one",
        /// The call came from a forked child.
        Forked = 10: "this process is a fork of the one that started the engine; start an engine in the child",
        /// An inline engine was used from another thread than the one that made it.
        WrongThread = 11: "an inline engine belongs to the thread that made it; use it there, or choose a threaded mode",
        /// No transport can move bytes between these two regions.
        NoPath = 12: "no transport can move bytes between these two regions; `penstock doctor` says what is missing",
        /// A step inside the plan reached outside its region.
        OutOfBounds = 13: "the plan reaches outside a region; build it again",
        /// An inline engine's call was made from inside another of its calls.
        Reentered = 14: "an inline engine's call was made from inside another call of the same engine; make it after that call",
        /// A wait is over and the transfer is not; its memory may not be reused.
        NotEnded = 15: "the transfer has not ended, its worker has not run; cancel it and see what that answers",
        /// Registered memory was freed, or access to it taken away, without deregistering it first.
        MemoryGone = 16: "memory of the plan is not there any more: it was freed, protected or withheld without deregistering its region; deregister before that",
        Draining = 20: "this engine is draining and takes nothing new; use another engine, or start this one anew",
        PeerDraining = 21: "the peer is draining and takes nothing new; use another peer, or reconnect when it is back",
        /// A part of the peer's region got fresh memory, because somebody might still write the old.
        MemoryRenewed = 24: "the region's memory was renewed; get the region again and build a new plan",
        /// No answer came over a rail, again and again.
        RailLost = 30: "the peer's card does not answer over this rail; look at the ports, cables and switches between the two, or leave the rail out",
        /// The peer's card refused the memory.
        AccessRefused = 31: "the peer's card refused the memory of the plan; get the region again and build a new plan, and see that it allows what the plan does",
        /// The peer took no messages.
        ReceiverNotReady = 32: "the peer's worker took no messages for too long; see whether it is stopped or overloaded",
        CardFailed = 33: "a network card of this host has failed; see the kernel's log, and start the engine anew when it is well",
        /// A card cannot do what was asked of it.
        CardRefused = 34: "a network card cannot carry out a part of the plan; see the log for its own words, and leave the rail out if it comes again",
        /// Bytes came with another checksum than they left with, again and again.
        PayloadCorrupt = 35: "bytes of the plan came otherwise than they left, again and again; leave memory unchanged while it is moved, or see what on the way between the hosts changes packets",
        /// A device, here or at the peer, does not go on: what it was given may be done or not.
        DeviceFailed = 36: "a device, here or at the peer, has failed, and with it all that its process does on it; see the kernel's log there (`dmesg`, Xid) and start that process anew",
    }
}

coded! {
    /// What is known of a transfer's notification or counter.
    Notified {
        /// None was asked for.
        NotAsked = 0: "no notification was asked for",
        /// It is in the peer's keeping.
        Yes = 1: "the peer was notified",
        /// It was not and will not be delivered.
        No = 2: "the peer was not notified",
        /// The session ended before the peer confirmed it.
        Unknown = 3: "whether the peer was notified is not known",
    }
}

impl std::error::Error for Cause {}

/// A failure of a transfer or of a call about one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The other engine, if one was involved.
    pub peer: Option<EngineName>,
    pub stage: Stage,
    pub cause: Cause,
    /// The rail on which it ended, a pair of cards, where it was one.
    pub rail: Option<String>,
    /// What became of the notification.
    pub notified: Notified,
    /// Bytes that had moved. Which ones is not defined: a failed transfer leaves its destination undefined.
    pub bytes: u64,
}

impl Fault {
    /// A fault that involves no peer and no notification.
    pub fn new(stage: Stage, cause: Cause) -> Self {
        Self { peer: None, stage, cause, rail: None, notified: Notified::NotAsked, bytes: 0 }
    }

    /// The same fault, with the peer's name.
    #[must_use]
    pub fn with_peer(mut self, peer: &EngineName) -> Self {
        self.peer = Some(peer.clone());
        self
    }

    /// The same fault, with the name of the rail on which it ended.
    #[must_use]
    pub fn with_rail(mut self, rail: &str) -> Self {
        self.rail = Some(rail.to_owned());
        self
    }

    /// The same fault, with what is known of the notification.
    #[must_use]
    pub fn with_notified(mut self, notified: Notified) -> Self {
        self.notified = notified;
        self
    }

    /// The same fault, with the bytes that had moved.
    #[must_use]
    pub fn with_bytes(mut self, bytes: u64) -> Self {
        self.bytes = bytes;
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(peer) = &self.peer {
            write!(f, "peer `{peer}`, ")?;
        }
        write!(f, "{}", self.stage)?;
        if let Some(rail) = &self.rail {
            write!(f, " on rail `{rail}`")?;
        }
        write!(f, ": {}", self.cause)?;
        if self.bytes != 0 {
            write!(f, "; {} bytes had moved", self.bytes)?;
        }
        if self.notified != Notified::NotAsked {
            write!(f, " ({})", self.notified)?;
        }
        Ok(())
    }
}

impl std::error::Error for Fault {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_go_both_ways_and_unknown_ones_are_refused() {
        for &cause in Cause::ALL {
            assert_eq!(Cause::from_code(cause.code()), Some(cause));
        }
        for &stage in Stage::ALL {
            assert_eq!(Stage::from_code(stage.code()), Some(stage));
        }
        for &notified in Notified::ALL {
            assert_eq!(Notified::from_code(notified.code()), Some(notified));
        }
        assert_eq!(Cause::from_code(0), None);
        assert_eq!(Stage::from_code(0), None);
    }

    #[test]
    fn a_fault_reads_as_a_sentence() {
        let peer = EngineName::new("decode-0").unwrap();
        let fault = Fault::new(Stage::Move, Cause::Cancelled).with_peer(&peer).with_notified(Notified::No);
        assert_eq!(
            fault.to_string(),
            "peer `decode-0`, moving bytes: cancelled by the caller (the peer was not notified)"
        );
        let fault = Fault::new(Stage::Move, Cause::NoPath).with_rail("mlx5_0/1").with_bytes(7);
        assert_eq!(
            fault.to_string(),
            "moving bytes on rail `mlx5_0/1`: no transport can move bytes between these two regions; `penstock doctor` \
             says what is missing; 7 bytes had moved"
        );
    }
}
