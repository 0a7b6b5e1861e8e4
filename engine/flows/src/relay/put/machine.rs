//! Where a put is, and how it is spoken of.

use penstock_session::machine;

use crate::action::BlocksRef;
use crate::relay::berths::StagingPlace;

machine! {
    /// A put, at the engine that has the bytes.
    pub Put on PutEvent {
        states {
            /// For its credits.
            Waiting,
            /// A part of it is with the application, which writes the bytes.
            Filling,
            /// All parts that have a berth are with their readers.
            Published,
            /// It has failed; readers may still be at its memory.
            Draining,
            /// It has failed, and a reader has not answered in time: its memory is kept from everybody.
            Quarantined,
        }
        ends {
            /// Nothing of it is anywhere.
            Freed,
        }
        events {
            /// It has all its credits.
            Credits,
            /// No part is with the application any more.
            Filled,
            /// A berth that came back takes the next part.
            NextPart,
            /// The last part came back from its last reader.
            LastBack,
            /// Its time is over, or after it had failed, that of its readers.
            Late,
            /// It is given up.
            Abort,
        }
        Waiting { Credits => Filling, Late => Freed, Abort => Freed }
        Filling { Filled => Published, NextPart => Filling, Late => Draining, Abort => Draining }
        Published { NextPart => Filling, LastBack => Freed, Late => Draining, Abort => Draining }
        Draining { LastBack => Freed, Late => Quarantined, Abort => Draining }
        Quarantined { LastBack => Freed, Late => Quarantined, Abort => Quarantined }
    }
}

/// A put of this engine: its number, which its readers name in their answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PutKey(pub(crate) u64);

/// Where the bytes of a put are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PutSource {
    /// The application writes them into berths, part by part, as it is told.
    Berths { bytes: u64 },
    /// They are in the application's own registered memory.
    Extents {
        /// Where.
        extents: Vec<StagingPlace>,
        /// What keeps that memory; let go when no reader can be at it any more.
        keep: BlocksRef,
        /// Whether the bytes are there. If not, `filled` says it, such as behind a device's fence.
        is_ready: bool,
    },
}

/// A part that the application is to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToFill {
    /// Which.
    pub part: u32,
    /// The first byte of the buffer that belongs there.
    pub from: u64,
    /// Where to; nothing for an application's own memory, which only has to be ready.
    pub place: Option<StagingPlace>,
}
