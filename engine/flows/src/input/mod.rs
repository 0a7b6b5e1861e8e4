//! The sink's side of a transfer in legs: what it grants, what has landed, and when blocks may be let go.
//!
//! - [`leg`]: the machine of one leg
//! - [`link`]: the machine of one rank of the source, and how it goes on when its session broke
//! - [`allocate`]: for how many tokens memory is asked, and what is done when there is none
//! - [`legs`]: the book of all legs of one transfer
//! - [`pull`]: the same where the sink reads what the sources lend
//! - [`assembly`]: where what has landed belongs in one contiguous piece a buffer

pub mod allocate;
pub mod assembly;
mod check;
mod ending;
pub mod leg;
pub mod legs;
pub mod link;
mod progress;
pub mod pull;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use penstock_core::Timestamp;
use penstock_session::TransferId;
use penstock_session::control::{ControlMessage, Missing, Side};
use penstock_session::few::Few;

pub use allocate::{DEFAULT_TOKENS, MemoryPolicy, Totals};
pub use assembly::AssemblyPiece;
pub use leg::{Leg, LegEvent};
pub use legs::{NoMemory, SinkLegs};
pub use link::{Link, LinkEvent};
pub use pull::{Pull, PullWish, Read};

use crate::action::BlocksRef;
use crate::cause::{FlowCause, Words};
use crate::layout::Layout;

/// What was copied of a parent behind its whole blocks, into blocks of the sink's own. The first grant begins in the middle of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tail {
    /// How many tokens.
    pub tokens: u64,
    /// The block in which they end, if that is not full: one for each group of the layout. Nothing where it is not known.
    pub ends_in: Vec<u32>,
    /// Those that are full.
    pub full: Vec<u32>,
}

/// How a transfer is to be received.
#[derive(Debug, Clone)]
pub struct Receive {
    /// Its name.
    pub transfer: TransferId,
    /// This rank, and of how many.
    pub rank: u16,
    /// How many ranks this side has.
    pub ranks: u16,
    /// The ranks of the source that send to this one.
    pub sources: Few<u16>,
    /// Where blocks are granted.
    pub layout: Arc<Layout>,
    /// The first token that is needed: those before it are here already.
    pub begin: u64,
    /// What stands behind whole blocks of a parent, in blocks that are granted, where that is known.
    pub tail: Option<Tail>,
    /// For how many tokens memory is asked for while nobody knows how many come.
    pub tokens_default: u64,
    /// What is done when there is none.
    pub memory: MemoryPolicy,
    /// The most legs that are granted and not let go.
    pub ahead: u32,
    /// When it has to be over.
    pub deadline: Timestamp,
    /// How long sources may take to say that nothing can land any more.
    pub abort_within: Duration,
    /// How long a source whose session broke is waited for, if it is.
    pub resumes: Option<Duration>,
    /// How urgent it is: 0 is usual.
    pub urgency: u8,
    /// A trace context, as its tool writes it.
    pub trace: Vec<u8>,
}

/// What a sink wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SinkWish {
    /// Say this to a rank of the source.
    Say { source: u16, said: ControlMessage },
    /// Let this go; it is wished once for each.
    Free {
        /// What.
        ticket: BlocksRef,
    },
    /// Keep this from everybody, as these ranks of the source may still be at it. It is freed when all of them are known not to be.
    Quarantine {
        /// What.
        ticket: BlocksRef,
        /// Who.
        sources: Vec<u16>,
    },
}

/// What a sink's application is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InputEvent {
    /// A layer of a leg is there. It can be read. Where the transfer may be resumed, its bytes may be written once more, the same ones, until the
    /// whole leg is there: nothing is to be written into its blocks before that.
    Layer { leg: u32, layer: u32 },
    /// A leg is there, and more are needed.
    Leg {
        /// The leg.
        leg: u32,
        /// How many tokens it brought.
        tokens: u64,
        /// How many are there from the first one on, in all legs.
        confirmed: u64,
        /// How many the source has in all, if that is known.
        total: Option<u64>,
    },
    /// Memory is needed for a further leg. It is said once for each.
    NeedsMemory {
        /// The leg.
        leg: u32,
        /// For how many tokens.
        tokens: u64,
    },
    /// The session with a rank of the source broke, and the transfer waits: it goes on when it is
    /// [resumed](SinkLegs::resume) in another session with the same engine.
    Lost {
        /// Which rank.
        source: u16,
    },
    /// Everything is there.
    Done {
        /// How many tokens came.
        tokens: u64,
    },
    /// It has failed. That is told at once: bytes may still land in its blocks. These may be written again when an abort of it is answered, or
    /// when its request is given out as finished.
    Failed(Box<Failed>),
}

/// How a transfer failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failed {
    /// Why.
    pub cause: FlowCause,
    /// Which side said so.
    pub said_by: Side,
    /// The rank of the source that it came from, if it came from one.
    pub source: Option<u16>,
    /// Why, in words.
    pub words: String,
    /// What did not arrive, by layer and by the places of blocks among all granted ones; at most
    /// [`MISSING_MAX`](penstock_session::control::MISSING_MAX) runs.
    pub missing: Vec<Missing>,
    /// The blocks that have not arrived whole, in the order in which they were granted.
    pub blocks: Vec<u32>,
}

impl fmt::Display for Failed {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}{}", self.cause, Words(&self.words))
    }
}

impl std::error::Error for Failed {}
