//! What goes out.

use std::time::Duration;

use penstock_core::{Direction, Generation, RegionId, Span};
use penstock_session::PeerKey;
use penstock_session::control::ControlMessage;

use crate::manager::Report;

/// Something that is being moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MoveId(pub u64);

/// A question whether a peer is quiet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WatchId(pub u64);

/// Something that the runtime keeps for a flow, such as blocks or a region: it is let go by its number only, and once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlocksRef(pub u64);

/// A region, in one use of its id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionRef {
    /// Its id.
    pub region: RegionId,
    /// Which use of it.
    pub generation: Generation,
}

/// How urgent a move is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Urgency {
    /// Usual.
    #[default]
    Bulk,
    /// Before everything that is not.
    Urgent,
}

/// Whole blocks between two layouts alike, relative to the regions' beginnings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WholeBlocks {
    /// This engine's region.
    pub local: RegionRef,
    /// The peer's.
    pub remote: RegionRef,
    /// Bytes of a block.
    pub block_bytes: u64,
    /// Bytes from one block to the next, here and there.
    pub strides: (u64, u64),
    /// Where block 0 begins, here and there, of each layer.
    pub layers: Vec<(u64, u64)>,
    /// The blocks, here and there.
    pub blocks: Vec<(u32, u32)>,
}

/// What is to be moved where, relative to the regions' beginnings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Spans {
    /// Whole blocks between two layouts alike.
    Blocks(Box<WholeBlocks>),
    /// Pieces of blocks.
    Cut {
        /// This engine's region.
        local: RegionRef,
        /// The peer's.
        remote: RegionRef,
        /// The pieces.
        spans: Vec<Span>,
    },
}

/// One move.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moving {
    /// Which way, seen from this engine.
    pub direction: Direction,
    /// What and where.
    pub spans: Spans,
    /// How long it may take.
    pub within: Duration,
    /// How urgent it is.
    pub urgency: Urgency,
    /// What the peer is told behind the bytes: the number of the note, and its payload.
    pub landing: Option<(u64, Vec<u8>)>,
}

/// Something is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Say this to a peer.
    Say { peer: PeerKey, said: ControlMessage },
    /// Move this; its end comes as [`Event::Ended`](crate::Event::Ended), also if it cannot begin.
    Move {
        /// Under which name.
        id: MoveId,
        /// With whom.
        peer: PeerKey,
        /// What.
        moving: Moving,
    },
    /// Stop that; its end still comes.
    Stop {
        /// Which.
        id: MoveId,
    },
    /// Answer [`Event::Quiet`](crate::Event::Quiet) once this peer is in no copy that began before, or is gone.
    Watch {
        /// Under which name.
        id: WatchId,
        /// Whom.
        peer: PeerKey,
    },
    /// Keep this from everybody until its release is proven: by [`Action::Free`], or by the end of the peer.
    Quarantine {
        /// What.
        ticket: BlocksRef,
        /// Who may still be at it: it is kept until none of them is.
        peers: Vec<PeerKey>,
        /// Why, for the list of what is quarantined.
        why: &'static str,
    },
    /// Let this go.
    Free {
        /// What.
        ticket: BlocksRef,
    },
    /// A transfer has ended, and somebody wants to hear of it: see [`TransferManager::report`](crate::TransferManager::report).
    Report {
        /// How.
        report: Box<Report>,
    },
    /// Something can be fetched: wake whoever waits.
    Tell,
}
