//! Remote flushes: for transfers that failed or were cancelled before their writes were known to be placed.
//!
//! Some lanes report a write as complete when the peer's NIC has it, before it is in the peer's memory. A successful
//! transfer promises no more than that; where it has a notification, that comes behind the bytes. A failed or cancelled one
//! may still write: its slot counts as `remote_pending` from its first batch until a remote flush completes. The transfer
//! does not wait for the flush; its slot does.

use penstock_core::{Direction, Env, Stage};
use penstock_ring::Key;
use penstock_transport::{Failure, FlushRequest, NotifyPosted, PostError};

use super::command::Active;
use super::in_flight::{InFlight, transfer_of};
use super::{Worker, lane_entry};
use crate::slot::Slot;

/// A remote flush that is not posted yet. It has a reference to the slot of its transfer.
pub(super) struct PendingFlush {
    key: Key,
    peer_index: u32,
    transfer_bytes: u64,
}

/// So many batches were accepted by a lane that completes writes before they are placed. The caller has a claim of their transfer.
pub(super) fn mark_needs_flush(active: &mut Active, slot: &Slot, accepted: u32) {
    let writes = active.command.plan.as_ref().is_some_and(|plan| plan.inner.shape.direction() == Direction::Write);
    if writes && accepted > 0 && !active.needs_flush {
        active.needs_flush = true;
        slot.mark_remote_pending();
    }
}

impl<E: Env> Worker<E> {
    /// A transfer succeeds: its slot is no longer `remote_pending`, and no remote flush is posted.
    pub(super) fn skip_flush(&self, active: &Active) {
        if active.needs_flush {
            self.shared.slots.get(active.command.key).expect("a worker holds its slots").clear_remote_pending();
        }
    }

    /// A transfer has failed. No notification is posted any more; whether one that was arrived is in its outcome.
    pub(super) fn fail(&mut self, active: Active, stage: Stage, failure: impl Into<Failure>) {
        self.require_flush(&active);
        self.shared.finish_failed(active, stage, failure);
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
            return; // Without a lane nothing can be proven: the slot stays `remote_pending`.
        }
        let (key, peer_index) = (active.command.key, active.command.peer.peer_index);
        let transfer_bytes = active.command.plan.as_ref().map_or(0, |plan| plan.inner.shape.bytes());
        self.shared.slots.get(key).expect("a worker holds its slots").add_reference();
        self.pending_flushes.push(PendingFlush { key, peer_index, transfer_bytes });
    }

    /// Posts the queued remote flushes, as far as the lanes have room. Returns whether any left the queue.
    #[cold]
    pub(super) fn post_flushes(&mut self) -> bool {
        let before = self.pending_flushes.len();
        self.blocked.clear();
        let mut pending = std::mem::take(&mut self.pending_flushes);
        pending.retain(|pending| !self.post_flush(pending));
        self.pending_flushes = pending;
        self.pending_flushes.len() < before
    }

    /// Posts one. Returns whether it left the queue.
    fn post_flush(&mut self, &PendingFlush { key, peer_index, transfer_bytes }: &PendingFlush) -> bool {
        if self.blocked.contains(&peer_index) {
            return false;
        }
        let completion_id = self.in_flight.next_completion_id();
        let lane = self.lanes.get_mut(peer_index as usize).and_then(Option::as_mut).map(|entry| &mut entry.lane);
        let request = FlushRequest { transfer: transfer_of(key), transfer_bytes, completion_id };
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
                self.shared.slots.get(key).expect("a pending flush holds its slot").clear_remote_pending();
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
