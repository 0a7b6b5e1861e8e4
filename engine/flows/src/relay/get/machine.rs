//! Where a get is, and how it is spoken of.

use penstock_session::machine;

use crate::action::BlocksRef;
use crate::relay::berths::StagingPlace;

machine! {
    /// A get, at the engine that fetches.
    pub Get on GetEvent {
        states {
            /// For the first word of its putter.
            Waiting,
            /// For a berth, or for the next part.
            Announced,
            /// Bytes are coming.
            Reading,
            /// It has failed; bytes may still land.
            Stopping,
            /// It has failed, and its moves have not ended in time: its memory is kept from everybody.
            Quarantined,
        }
        ends {
            /// Everything is here.
            Read,
            /// It has failed, and nothing can land any more.
            Failed,
        }
        events {
            /// A part was announced.
            Chunk,
            /// A move begins.
            Begin,
            /// All moves have ended, and parts are missing.
            Idle,
            /// Everything is here.
            Last,
            /// A move has failed, or the peer.
            Fault,
            /// Its time is over, or after it had failed, that of its moves.
            Late,
            /// It is given up.
            Abort,
            /// After it had failed: all moves have ended.
            Quiet,
        }
        Waiting { Chunk => Announced, Fault => Failed, Late => Failed, Abort => Failed }
        Announced { Chunk => Announced, Begin => Reading, Last => Read, Fault => Failed, Late => Failed, Abort => Failed }
        Reading {
            Chunk => Reading, Begin => Reading, Idle => Announced, Last => Read,
            Fault => Stopping, Late => Stopping, Abort => Stopping,
        }
        Stopping { Quiet => Failed, Late => Quarantined, Fault => Stopping, Abort => Stopping }
        Quarantined { Quiet => Failed, Late => Quarantined, Fault => Quarantined, Abort => Quarantined }
    }
}

/// A get of this engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GetKey(pub(crate) u64);

/// Where a get puts bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Destination {
    /// Into berths; the application copies each piece out, and says so.
    Berths,
    /// Into the application's own registered memory.
    Extents {
        /// Where, as many bytes as there are.
        extents: Vec<StagingPlace>,
        /// What keeps that memory; let go when nothing can land there any more.
        keep: BlocksRef,
    },
}

/// Bytes that have come and are to be copied out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GetPiece {
    /// Which: what is to be said when it was copied.
    pub number: u64,
    /// The first byte of the buffer that it is.
    pub from: u64,
    /// Where it lies.
    pub place: StagingPlace,
}
