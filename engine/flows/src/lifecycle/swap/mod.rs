//! Swaps: transfers between the device's pool and the host's, whose blocks are free only when nothing can land in them any more.
//!
//! Whoever begins a swap lends it two tickets, of what is read and of what is written. Moved and committed, what was read is freed;
//! rolled back, what was written. If the request is over meanwhile or has dropped its bytes, or if the swap took too long, both are: then
//! nobody else frees them. Nothing of it is freed before
//! the move has ended and its peer is proven to be in no copy of it.

use std::time::Duration;

use penstock_core::Cause;
use penstock_session::PeerKey;

use super::BlockRef;
use crate::action::{BlocksRef, RegionRef};

pub(super) mod table;

penstock_session::machine! {
    /// A swap.
    pub Swap on SwapEvent {
        states {
            /// Its bytes are on their way.
            Moving,
            /// They are there; whoever began it has to commit it or to roll it back.
            Moved,
            /// It was stopped, and may still land.
            Stopping,
            /// It was stopped and has not ended in time: its blocks are kept from everybody.
            Quarantined,
        }
        ends {
            /// What was read is free, what was written counts.
            Committed,
            /// What was written is free.
            RolledBack,
        }
        events {
            /// All bytes are there.
            Land,
            /// Bytes could not be moved.
            Fault,
            /// Its time is over.
            Late,
            /// Whoever began it wants it no more.
            RollBack,
            /// Whoever began it goes on with what was written.
            Commit,
            /// Nothing of it can land any more.
            Quiet,
        }
        Moving { Land => Moved, Fault => Stopping, Late => Stopping, RollBack => Stopping }
        Moved { Commit => Committed, RollBack => RolledBack, Land => Moved }
        Stopping {
            Land => Stopping, Fault => Stopping, RollBack => Stopping, Late => Quarantined, Quiet => RolledBack,
        }
        Quarantined {
            Land => Quarantined, Fault => Quarantined, RollBack => Quarantined, Late => Quarantined, Quiet => RolledBack,
        }
    }
}

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SwapWay {
    /// From the device to the host.
    Out,
    /// From the host to the device.
    In,
}

/// Where the two pools are. The device is a peer: its own engine in this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwapPath {
    /// Who has the device's pool.
    pub peer: PeerKey,
    /// The host's pool, this engine's.
    pub host: RegionRef,
    /// The device's.
    pub device: RegionRef,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Bytes from one block to the next, of the host and of the device.
    pub strides: (u64, u64),
    /// Where block 0 of each layer begins, of the host and of the device.
    pub layers: Vec<(u64, u64)>,
}

/// What is to be swapped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwapAsk {
    /// Which way.
    pub way: SwapWay,
    /// Between which pools.
    pub path: SwapPath,
    /// Blocks of the device, and of the host. Out, all that the request has of the device; in, fresh ones, and all that it was swapped out
    /// to.
    pub pairs: Vec<(BlockRef, BlockRef)>,
    /// What is read.
    pub source: BlocksRef,
    /// What is written.
    pub target: BlocksRef,
    /// How long it may take.
    pub within: Duration,
}

/// A swap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SwapKey(pub(super) u64);

/// What became of a swap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SwapNews {
    /// Its bytes are there: commit it, or roll it back.
    Moved { key: SwapKey },
    /// Bytes could not be moved: it is rolled back, and the request is where it was before.
    Failed {
        /// Which.
        key: SwapKey,
        /// Why.
        cause: Cause,
    },
    /// It took too long: it is stopped, and the request is dropped.
    TimedOut {
        /// Which.
        key: SwapKey,
    },
    /// It does not end: its blocks are kept until it is proven to be quiet.
    Quarantined {
        /// Which.
        key: SwapKey,
    },
    /// It was rolled back, and what it wrote to is free.
    Over {
        /// Which.
        key: SwapKey,
        /// What was read, if it goes back to whoever began the swap and was not freed.
        kept: Option<BlocksRef>,
    },
}
