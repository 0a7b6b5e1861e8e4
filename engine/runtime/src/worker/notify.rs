//! Notifications that complete asynchronously: a lane accepts them, and the peer acknowledges them later.
//!
//! On ordered lanes the notification is posted directly behind the batches of its transfer (`PostedOrdered`). On others it
//! is posted after all batches have completed (`PostedLast`). It never touches this engine's memory.

use penstock_core::{Env, Notified, Stage};
use penstock_transport::{CancelledOp, Failure};

use super::command::{Active, CancelLevel, NotifyState};
use super::in_flight::InFlight;
use super::{Worker, lane_entry};
use crate::slot::{Phase, TransferOutcome};

impl<E: Env> Worker<E> {
    /// The notification of a transfer that has nothing else under way was accepted.
    pub(super) fn wait_for_notify(&mut self, mut active: Active) {
        let completion_id = self.in_flight.next_completion_id();
        let (key, peer_index) = (active.command.key, active.command.peer.peer_index);
        self.in_flight.insert(InFlight::notify(key, active.command.units(), peer_index));
        self.shared.slots.get(key).expect("a worker holds its slots").advance_to(Phase::Notifying);
        (active.notify_state, active.in_flight, active.stalled) =
            (NotifyState::PostedLast(completion_id), active.in_flight + 1, false);
        self.in_flight.doorbell_due(peer_index);
        self.wait_for_lane(active);
    }

    /// The lane reports the end of a notification that is not ignored.
    pub(super) fn on_notify_done(&mut self, op: &InFlight, result: Result<u64, Failure>) {
        let Some(active) = self.holding(op) else {
            debug_assert!(false, "a worker keeps the command while its notification is in flight");
            return;
        };
        let notified = match result {
            Ok(0) if active.command.notify.note.is_none() => Notified::No, // Its counter was gone.
            Ok(_) => Notified::Yes,
            Err(_) => Notified::No,
        };
        // A completed notification proves that all batches before it are placed.
        let is_proven = result.is_ok() && std::mem::take(&mut active.needs_flush);
        let was = std::mem::replace(&mut active.notify_state, NotifyState::Completed(notified));
        let slot = self.shared.slots.get(op.key).expect("a notification in flight holds its slot");
        if is_proven {
            slot.clear_remote_pending();
        }
        if let NotifyState::PostedLast(_) = was {
            let is_it = |active: &Active| active.command.key == op.key;
            let index = self
                .waiting
                .iter()
                .position(is_it)
                .expect("a transfer whose notification was posted last is in `waiting`");
            let active = self.waiting.remove(index).expect("the index was found just now");
            return match result {
                Ok(_) => self.finish_ok(active),
                Err(failure) => self.fail(active, Stage::Notify, failure),
            };
        }
        if let Err(failure) = result {
            slot.stop(Stage::Notify, failure);
        }
        let finishes = slot.release_claim(0, op.plan_units);
        self.op_completed(op.key, finishes);
    }

    fn holding(&mut self, op: &InFlight) -> Option<&mut Active> {
        let is_it = |active: &&mut Active| active.command.key == op.key;
        let Self { active, waiting, .. } = self;
        waiting.iter_mut().chain(active.iter_mut().flatten()).find(is_it)
    }

    /// All of a transfer has ended, its notification with it.
    pub(super) fn finish_after_notify(&mut self, active: Active) {
        let slot = self.shared.slots.get(active.command.key).expect("a worker holds its slots");
        match slot.stop_reason() {
            // Cancelled too late: the peer has all bytes and was notified.
            Some(_) if active.notify_state == NotifyState::Completed(Notified::Yes) => self.finish_ok(active),
            Some((stage, failure)) => self.fail(active, stage, failure),
            None => self.finish_ok(active),
        }
    }

    fn finish_ok(&mut self, active: Active) {
        self.skip_flush(&active);
        let statistics = &self.shared.workers[self.index].statistics;
        statistics.notes_sent.add(u64::from(active.command.notify.note.is_some()));
        statistics.transfers_completed.add(1);
        let notified = active.notified();
        self.shared.finish(active, TransferOutcome { failure: None, notified });
    }

    /// Ends a transfer that waits only for its notification: cancels that, ignores it, or waits for its completion.
    pub(super) fn stop_notify(
        &mut self,
        mut active: Active,
        completion_id: u64,
        why: (Stage, Failure),
        level: CancelLevel,
    ) {
        let lane = lane_entry(&mut self.lanes, &active.command.peer).map(|entry| &mut entry.lane);
        // Without a lane the operation is removed and the state stays `PostedLast`, so that `notified()` returns `Unknown`.
        let is_gone = lane.is_none();
        if lane.is_some_and(|lane| lane.cancel_op(completion_id) == CancelledOp::Quiesced) {
            self.in_flight.remove(completion_id);
            active.notify_state = NotifyState::NotPosted;
        } else if is_gone {
            self.in_flight.remove(completion_id);
        } else if level == CancelLevel::Immediate {
            self.in_flight.ignore(completion_id);
        } else {
            active.cancel_level = level;
            return self.wait_for_lane(active);
        }
        self.fail(active, why.0, why.1);
    }
}
