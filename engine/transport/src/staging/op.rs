//! An operation whose bytes go through slots: its hops, one after another.

use std::sync::Arc;

use penstock_core::limits::SPANS_PER_POST;
use penstock_core::plan::RegionKey;
use penstock_core::{Direction, Span};
use penstock_memory::Memory;
use penstock_memory::copy::Hint;

use super::slots::{SLOT_BYTES, Slots, StagingSlot};
use crate::host::PageHold;
use crate::lane::{Batch, Revisions};
use crate::remote::{RemoteMemory, StagedMemory};

/// A part of the way of an operation's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hop {
    /// Between the memory here and the slot here.
    Near,
    /// Between this side's memory, or its slot, and the peer's memory, or its slot, by the transport.
    Far,
    /// Between the peer's slot and its memory, by the peer.
    Remote,
}

/// Who asked for an operation, and hears of its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OpOf {
    /// The worker's, which knows it by this.
    Worker(u64),
    /// The peer's: a copy between memory here and a slot that it was granted. The answer goes to this worker of it, and names it so.
    Peer { worker: u16, number: u64 },
}

pub(super) struct StagedOp {
    pub(super) of: OpOf,
    /// As whoever has it knows it now.
    pub(super) own_id: u64,
    pub(super) hop: Hop,
    /// Else the hop has not begun.
    pub(super) is_under_way: bool,
    pub(super) direction: Direction,
    pub(super) local: Memory,
    pub(super) local_region: RegionKey,
    pub(super) remote: RemoteMemory,
    pub(super) remote_region: RegionKey,
    pub(super) spans: Vec<Span>,
    /// Spans of the hop that are over, and those behind them that are under way.
    pub(super) done: usize,
    pub(super) posted: usize,
    pub(super) hint: Hint,
    pub(super) checked_at: Revisions,
    pub(super) transfer: u64,
    pub(super) transfer_bytes: u64,
    /// It goes through one here. None: it does not, or was given up, and the bytes that are on their way are not in it any more.
    pub(super) slot: Option<StagingSlot>,
    /// Those that it is one of.
    pub(super) slots: Option<Arc<Slots>>,
    /// It goes through one at the peer.
    pub(super) grant: Option<u32>,
    /// That one is given back when this has ended: others want it.
    pub(super) gives_back: bool,
    /// The worker has given it up, and waits until it touches nothing.
    pub(super) is_cancelled: bool,
    /// A device has the memory here.
    pub(super) hold: Option<PageHold>,
}

impl StagedOp {
    pub(super) fn bytes(&self) -> u64 {
        self.spans.iter().map(|span| span.len).sum()
    }

    pub(super) fn has(&self, hop: Hop) -> bool {
        match hop {
            Hop::Near => self.slots.is_some(),
            Hop::Far => matches!(self.of, OpOf::Worker(_)),
            Hop::Remote => self.grant.is_some(),
        }
    }

    fn order(&self) -> [Hop; 3] {
        match self.direction {
            Direction::Write => [Hop::Near, Hop::Far, Hop::Remote],
            Direction::Read => [Hop::Remote, Hop::Far, Hop::Near],
        }
    }

    pub(super) fn first_hop(&self) -> Hop {
        self.order().into_iter().find(|hop| self.has(*hop)).unwrap_or(Hop::Far)
    }

    /// The one behind the hop that it has; none: that is its last.
    pub(super) fn next_hop(&self) -> Option<Hop> {
        let mut behind = self.order().into_iter().skip_while(|hop| *hop != self.hop).skip(1);
        behind.find(|hop| self.has(*hop))
    }

    fn staged(&self) -> Option<&StagedMemory> {
        match &self.remote {
            RemoteMemory::Staged(memory) if self.grant.is_some() => Some(memory),
            _ => None,
        }
    }

    /// How many spans the hop that it has takes.
    pub(super) fn spans_in_hop(&self) -> usize {
        let is_between_slots = self.hop == Hop::Far && self.slots.is_some() && self.grant.is_some();
        if is_between_slots { 1 } else { self.spans.len() }
    }

    /// What a hop moves, in the order of the operation's spans: in slots all of it lies together.
    pub(super) fn spans_of_hop(&self, into: &mut [Span; SPANS_PER_POST]) -> usize {
        let slot = self.slot.as_ref().map(StagingSlot::offset);
        let grant = self.grant.map(|slot| u64::from(slot) * SLOT_BYTES);
        let (local, remote) = match self.hop {
            Hop::Near => (None, slot),
            Hop::Far => (slot, grant),
            Hop::Remote => return 0,
        };
        if self.hop == Hop::Near && slot.is_none() || self.hop == Hop::Far && self.slots.is_some() && slot.is_none() {
            return 0; // It was given up.
        }
        if let (Some(local), Some(remote)) = (local, remote) {
            into[0] = Span { local, remote, len: self.bytes() };
            return 1;
        }
        let mut before = 0;
        for (span, into) in self.spans.iter().zip(into.iter_mut()) {
            let at = |slot: Option<u64>, own| slot.map_or(own, |slot| slot + before);
            *into = Span { local: at(local, span.local), remote: at(remote, span.remote), len: span.len };
            before += span.len;
        }
        self.spans.len()
    }

    /// These spans of the hop that it has.
    pub(super) fn batch<'a>(&'a self, spans: &'a [Span], checked_at: Revisions) -> Batch<'a> {
        let (mut local, mut local_region) = (&self.local, self.local_region);
        let (mut remote, mut remote_region) = (&self.remote, self.remote_region);
        match (self.hop, &self.slots, self.staged()) {
            (Hop::Near, Some(slots), _) => (remote, remote_region) = (&slots.mapped, slots.key),
            (Hop::Far, slots, staged) => {
                if let Some(slots) = slots {
                    (local, local_region) = (&slots.memory, slots.key);
                }
                if let Some(Some(slots)) = staged.map(|memory| &memory.slots[self.direction as usize]) {
                    (remote, remote_region) = (&slots.memory, slots.key);
                }
            }
            _ => {}
        }
        Batch {
            direction: self.direction,
            local,
            local_region,
            remote_region,
            remote,
            spans,
            hint: self.hint,
            checked_at,
            completion_id: self.own_id,
            transfer: self.transfer,
            transfer_bytes: self.transfer_bytes,
        }
    }
}
