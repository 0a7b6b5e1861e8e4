//! The source's side of a transfer in legs: what was granted, what is sent next, and when its own blocks may be let go.
//!
//! Two things that look alike are kept apart. A *chunk* is what the source has computed: it comes when it is ready, and one is the last. A
//! *leg* is what the sinks have room for. Success needs the last of both.
//!
//! - [`legs`]: the book of all legs of one transfer
//! - `resume`: a rank whose session broke, and that goes on in another one
//! - [`lend`]: what is lent to be read, where the sinks fetch it themselves

mod check;
mod chunks;
mod ending;
pub mod legs;
pub mod lend;
mod resume;

use std::sync::Arc;
use std::time::Duration;

use penstock_core::{Span, Timestamp};
use penstock_session::TransferId;
use penstock_session::control::{ControlMessage, Side};
use penstock_session::few::Few;

pub use legs::SourceLegs;
pub use lend::{LendOptions, Loans};

use crate::action::{BlocksRef, RegionRef};
use crate::cause::{FlowCause, Words};
use crate::layout::Layout;
use crate::part::PartLanded;

/// How a transfer is to be sent.
#[derive(Debug, Clone)]
pub struct Send {
    /// Its name.
    pub transfer: TransferId,
    /// This rank, and of how many.
    pub rank: u16,
    /// How many ranks this side has.
    pub ranks: u16,
    /// The ranks of the sink that this one sends to: a leg starts when all of them have granted it. None, if others of the source send
    /// everything.
    pub sinks: Few<u16>,
    /// How many ranks the sink has.
    pub of: u16,
    /// Where the blocks are.
    pub layout: Arc<Layout>,
    /// The block that has what goes once for a transfer, if the layout has such buffers.
    pub once: Option<u32>,
    /// Each layer goes by itself, when it is ready.
    pub is_by_layer: bool,
    /// The most bytes of a part. A token of a layer, and what goes once, are never cut.
    pub part_bytes: u64,
    /// The most parts that are under way to one rank.
    pub parts_ahead: usize,
    /// When it has to be over.
    pub deadline: Timestamp,
    /// How long a rank whose session broke is waited for, if it is.
    pub resumes: Option<Waiting>,
}

/// How long a source waits for a rank of the sink to go on in another session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    /// As its session broke.
    pub broken: Duration,
    /// As a part could not be moved, and nobody has said that its session is over. Longer than that stays unknown of none that is.
    pub in_doubt: Duration,
}

/// A part of a leg, to be moved to one rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// To which rank of the sink.
    pub sink: u16,
    /// This engine's region, and the peer's.
    pub regions: (RegionRef, RegionRef),
    /// Which bytes go where.
    pub spans: Vec<Span>,
    /// How many bytes that are.
    pub bytes: u64,
    /// What is said behind them. Its number names the part in what is said of it here.
    pub landing: PartLanded,
}

/// What a source wants done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceWish {
    /// Say this to a rank of the sink.
    Say { sink: u16, said: ControlMessage },
    /// Stop a part that is under way; its end still comes.
    Stop {
        /// To which rank it goes.
        sink: u16,
        /// Its number.
        number: u64,
    },
    /// Let this go; it is wished once for each.
    Free {
        /// What.
        ticket: BlocksRef,
    },
}

/// How a transfer failed at its source. That is told at once: its blocks may still be read until its request is given out as finished.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{cause}{}", Words(.words))]
pub struct SendFailed {
    /// Why.
    pub cause: FlowCause,
    /// Which side said so.
    pub said_by: Side,
    /// The rank of the sink that it came from, if it came from one.
    pub sink: Option<u16>,
    /// Why, in words.
    pub words: String,
}
