//! What the transfer manager keeps of one transfer.

use std::collections::BTreeMap;
use std::time::Duration;

use penstock_core::{EngineName, Timestamp};
use penstock_session::PeerKey;
use penstock_session::control::TransferHead;
use penstock_session::few::FewMap;
use penstock_session::transfers::places::Places;
use penstock_session::transfers::table::StillTouched;

use super::book::PageId;
use crate::action::{MoveId, Urgency};
use crate::input::{Pull, SinkLegs};
use crate::output::{Loans, SourceLegs};
use crate::ranks::Spread;
use crate::spares::{Boxed, Spares};
use crate::status::Status;

/// A transfer, and what the transfer manager has to know of each.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) flow: Flow,
    /// The moment for which it stands among the timers.
    pub(super) armed: Timestamp,
    /// Nobody will ask for it any more.
    pub(super) is_released: bool,
    /// Where it is written down who has its blocks.
    pub(super) page: Option<PageId>,
    /// A source whose blocks stand there as read, and how many of its chunks' do.
    pub(super) is_reading: bool,
    pub(super) read: usize,
    pub(super) naming: Naming,
}

/// What is still to be said of the end of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Naming {
    /// Nothing: it stands, or its request was named.
    Nothing,
    /// That it has failed: when nothing touches its memory any more, and at this moment at the latest.
    FailedBy(Timestamp),
    /// That what was quarantined of it is released.
    Released,
}

impl Held {
    /// When something has to be done though nothing happens.
    pub(super) fn deadline(&self) -> Timestamp {
        match self.naming {
            Naming::FailedBy(by) => self.flow.deadline().min(by),
            Naming::Nothing | Naming::Released => self.flow.deadline(),
        }
    }
}

/// A transfer, from one of its sides.
#[derive(Debug)]
pub(super) enum Flow {
    /// This engine has the bytes, and sends them.
    Source(Boxed<SourceTransfer>),
    /// This engine needs them, and is sent them.
    Sink(Boxed<SinkTransfer>),
    /// This engine has the bytes, and lends them.
    Lent(Boxed<LentTransfer>),
    /// This engine needs them, and reads them.
    Pull(Boxed<Pulled>),
}

/// This engine has the bytes, and sends them.
#[derive(Debug)]
pub(super) struct SourceTransfer {
    /// What was sent to each rank of the sink, and whose that is.
    pub(super) legs: SourceLegs,
    /// Who had the ranks whose session is over.
    pub(super) gone: BTreeMap<u16, EngineName>,
    /// How rows lie on the ranks of this side, where that says who sends what.
    pub(super) spread: Option<Spread>,
    /// What is moving, by rank and number.
    pub(super) moves: FewMap<(u16, u64), MoveId>,
    /// How long one move may take.
    pub(super) within: Duration,
    /// The higher one of what this side and the ranks of the other want.
    pub(super) urgency: Urgency,
    /// The trace context of the rank that granted first, if it has one.
    pub(super) trace: Vec<u8>,
}

/// This engine needs them, and is sent them.
#[derive(Debug)]
pub(super) struct SinkTransfer {
    pub(super) legs: SinkLegs,
    /// Who each rank of the source is.
    pub(super) sources: FewMap<u16, PeerKey>,
    /// Who had the ranks whose session is over, and that are not resumed in another.
    pub(super) gone: BTreeMap<u16, EngineName>,
}

/// This engine has the bytes, and lends them.
#[derive(Debug)]
pub(super) struct LentTransfer {
    pub(super) loans: Loans,
    /// Whose each rank of the sink is.
    pub(super) places: Places,
    /// The trace context of the rank that claimed first, if it has one.
    pub(super) trace: Vec<u8>,
}

/// This engine needs them, and reads them.
#[derive(Debug)]
pub(super) struct Pulled {
    pub(super) pull: Pull,
    /// Who each rank of the source is.
    pub(super) sources: FewMap<u16, PeerKey>,
    /// What is being read, by rank and number.
    pub(super) moves: FewMap<(u16, u64), MoveId>,
    /// How long one read may take.
    pub(super) within: Duration,
    pub(super) urgency: Urgency,
}

/// FlowMemory for those that come.
#[derive(Debug, Default)]
pub(super) struct FlowMemory {
    pub(super) sources: Spares<SourceTransfer>,
    pub(super) sinks: Spares<SinkTransfer>,
    pub(super) lent: Spares<LentTransfer>,
    pub(super) pulled: Spares<Pulled>,
}

impl FlowMemory {
    /// Nothing is kept of it any more.
    pub(super) fn drop(&mut self, flow: Flow) {
        match flow {
            Flow::Source(source) => self.sources.drop(source),
            Flow::Sink(sink) => self.sinks.drop(sink),
            Flow::Lent(lent) => self.lent.drop(lent),
            Flow::Pull(pulled) => self.pulled.drop(pulled),
        }
    }

    /// Gives back memory that a peak has left behind: half of it, or all where nothing stands.
    pub(super) fn shrink(&mut self, is_idle: bool) {
        self.sources.shrink(is_idle);
        self.sinks.shrink(is_idle);
        self.lent.shrink(is_idle);
        self.pulled.shrink(is_idle);
    }
}

impl Flow {
    pub(super) fn head(&self) -> &TransferHead {
        match self {
            Self::Source(source) => source.legs.head(),
            Self::Sink(sink) => sink.legs.head(),
            Self::Lent(lent) => lent.loans.head(),
            Self::Pull(pulled) => pulled.pull.legs().head(),
        }
    }

    pub(super) fn status(&self) -> Status {
        match self {
            Self::Source(source) => source.legs.status(),
            Self::Sink(sink) => sink.legs.status(),
            Self::Lent(lent) => lent.loans.status(),
            Self::Pull(pulled) => pulled.pull.legs().status(),
        }
    }

    /// Whether it has ended, no byte of it moves and everything was let go.
    pub(super) fn is_over(&self) -> bool {
        match self {
            Self::Source(source) => source.legs.is_over() && source.moves.is_empty(),
            Self::Sink(sink) => sink.legs.is_over(),
            Self::Lent(lent) => lent.loans.is_over(),
            Self::Pull(pulled) => pulled.pull.is_over() && pulled.moves.is_empty(),
        }
    }

    /// Whether it has ended, and nothing of it can touch this engine's memory any more. What has come may not be taken yet.
    pub(super) fn is_quiet(&self) -> bool {
        match self {
            Self::Source(_) | Self::Lent(_) => self.is_over(),
            Self::Sink(sink) => sink.legs.is_quiet(),
            Self::Pull(pulled) => pulled.pull.is_quiet() && pulled.moves.is_empty(),
        }
    }

    /// The blocks that it reads here, and the one that has what goes once, if it is a source.
    pub(super) fn read_blocks(&self) -> Option<(&[u32], Option<u32>)> {
        match self {
            Self::Source(source) => Some(source.legs.blocks()),
            Self::Lent(lent) => Some(lent.loans.blocks()),
            Self::Sink(_) | Self::Pull(_) => None,
        }
    }

    /// What of this engine's memory it may still touch.
    pub(super) fn touched(&self) -> StillTouched {
        let (layout, blocks, once) = match self {
            Self::Source(source) => (source.legs.layout(), None, None),
            Self::Lent(lent) => (lent.loans.layout(), None, None),
            Self::Sink(sink) => {
                let (blocks, once) = sink.legs.open_blocks();
                (sink.legs.layout(), Some(blocks), Some(once))
            }
            Self::Pull(pulled) => {
                let (blocks, once) = pulled.pull.legs().open_blocks();
                (pulled.pull.legs().layout(), Some(blocks), Some(once))
            }
        };
        let read = self.read_blocks();
        let mut blocks = blocks.unwrap_or_else(|| read.map_or_else(Vec::new, |(blocks, _)| blocks.to_vec()));
        let once = once.unwrap_or_else(|| read.and_then(|(_, once)| once).into_iter().collect());
        let extents = layout.extents(&blocks, &once);
        blocks.extend(once);
        blocks.sort_unstable();
        blocks.dedup();
        StillTouched { layout: layout.label().to_owned(), blocks, extents }
    }

    pub(super) fn deadline(&self) -> Timestamp {
        match self {
            Self::Source(source) => source.legs.deadline(),
            Self::Sink(sink) => sink.legs.deadline(),
            Self::Lent(lent) => lent.loans.deadline(),
            Self::Pull(pulled) => pulled.pull.legs().deadline(),
        }
    }

    pub(super) fn expire(&mut self, now: Timestamp) {
        match self {
            Self::Source(source) => source.legs.expire(now),
            Self::Sink(sink) => sink.legs.expire(now),
            Self::Lent(lent) => lent.loans.expire(now),
            Self::Pull(pulled) => pulled.pull.expire(now),
        }
    }
}
