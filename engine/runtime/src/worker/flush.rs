//! Transfers that end while what they wrote may not be placed.
//!
//! Some lanes say that bytes have moved when the peer's card has them, which is before the peer's memory does. A transfer that ends
//! well leaves it at that, and its notification says more. One that ends otherwise has an owner at the peer who wants to
//! know when nothing of it lands any more: its slot says that it is open there from its first batch on, until the lane has proven
//! the opposite. The transfer itself does not wait for that; its slot does.

use penstock_core::{Direction, Env, Stage};
use penstock_ring::Key;
use penstock_transport::{Failure, FlushRequest, NotifyPosted, PostError};

use super::command::Active;
use super::in_flight::{InFlight, transfer_of};
use super::{Worker, lane_entry};
use crate::slot::Slot;

/// A proof that was not asked of its lane yet, and holds the slot of its transfer.
pub(super) struct PendingFlush {
    key: Key,
    peer_index: u32,
    whole: u64,
}

/// So many batches have set off over a lane that acknowledges early. The caller has a claim of their transfer.
pub(super) fn mark_needs_flush(active: &mut Active, slot: &Slot, departed: u32) {
    let writes = active.command.plan.as_ref().is_some_and(|plan| plan.inner.shape.direction() == Direction::Write);
    if writes && departed > 0 && !active.needs_flush {
        active.needs_flush = true;
        slot.add_remote_pending();
    }
}

impl<E: Env> Worker<E> {
    /// A transfer succeeds: its slot no longer counts as open at the peer, and no remote flush is posted.
    pub(super) fn flush_is_not_needed(&self, active: &Active) {
        if active.needs_flush {
            self.shared.slots.get(active.command.key).expect("a worker holds its slots").end_remote_pending();
        }
    }

    /// A transfer has failed; nothing more is announced.
    pub(super) fn fail(&mut self, active: Active, stage: Stage, failure: impl Into<Failure>) {
        self.require_flush(&active);
        self.shared.finish_unnotified(active, stage, failure);
    }

    /// There is nothing more to do here for a transfer that others end, or have ended.
    pub(super) fn release_active(&mut self, active: Active) {
        self.require_flush(&active);
        self.shared.release_slot(active.command.key);
    }

    /// Queues the remote flush, if one is needed, of a transfer that does not succeed and of which nothing more is posted
    /// here.
    pub(super) fn require_flush(&mut self, active: &Active) {
        if !active.needs_flush || lane_entry(&mut self.lanes, &active.command.peer).is_none() {
            return; // Of a lane that is gone nothing can be proven: the slot goes on saying that it is open.
        }
        let (key, peer_index) = (active.command.key, active.command.peer.peer_index);
        let whole = active.command.plan.as_ref().map_or(0, |plan| plan.inner.shape.bytes());
        self.shared.slots.get(key).expect("a worker holds its slots").retain();
        self.pending_flushes.push(PendingFlush { key, peer_index, whole });
    }

    /// Posts the queued remote flushes, as far as the lanes have room. Answers whether any left the queue.
    #[cold]
    pub(super) fn post_flushes(&mut self) -> bool {
        let before = self.pending_flushes.len();
        self.blocked.clear();
        let mut pending = std::mem::take(&mut self.pending_flushes);
        pending.retain(|pending| !self.post_flush(pending));
        self.pending_flushes = pending;
        self.pending_flushes.len() < before
    }

    /// Posts one. Answers whether it left the queue.
    fn post_flush(&mut self, &PendingFlush { key, peer_index, whole }: &PendingFlush) -> bool {
        if self.blocked.contains(&peer_index) {
            return false;
        }
        let completion_id = self.in_flight.next_completion_id();
        let lane = self.lanes.get_mut(peer_index as usize).and_then(Option::as_mut).map(|entry| &mut entry.lane);
        let request = FlushRequest { transfer: transfer_of(key), transfer_bytes: whole, completion_id: completion_id };
        match lane.map(|lane| lane.flush_remote(&request)) {
            Some(Err(PostError::Full)) => {
                self.blocked.push(peer_index);
                return false;
            }
            Some(Ok(NotifyPosted::Accepted)) => {
                self.in_flight.insert(InFlight::flush(key, peer_index));
                self.in_flight.doorbell_due(peer_index);
            }
            Some(Ok(NotifyPosted::Delivered(_))) => {
                self.shared.slots.get(key).expect("what is owed holds its slot").end_remote_pending();
                self.shared.release_slot(key);
            }
            // A lane that is broken says so when it is polled next.
            Some(Err(_)) | None => self.shared.release_slot(key),
        }
        true
    }

    /// The lane to this peer is gone.
    pub(super) fn drop_flushes_to(&mut self, peer_index: u32) {
        let Self { pending_flushes: pending, shared, .. } = self;
        pending.retain(|pending| {
            let is_theirs = pending.peer_index == peer_index;
            if is_theirs {
                shared.release_slot(pending.key);
            }
            !is_theirs
        });
    }
}
