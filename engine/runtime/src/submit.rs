//! Handing transfers to workers: by a peer's handle, and by the control loop itself.

use std::sync::Arc;
use std::time::Duration;

use penstock_core::limits::NOTE_BYTES_MAX;
use penstock_core::{Cause, Env, Notified, Stage};
use penstock_ring::Key;
use penstock_transport::Note;
use penstock_transport::lane::{CounterRef, Handle};

use crate::error::SubmitError;
use crate::peer_state::PeerState;
use crate::plan::Plan;
use crate::shared::Shared;
use crate::slot::TransferOutcome;
use crate::worker::{Command, NotifySpec, Priority};

/// A transfer of at least so many bytes is split among all workers, where its transport gains from that.
const SPLIT_BYTES_MIN: u64 = 4 * penstock_core::limits::UNIT_BYTES;

/// A transfer that is to be submitted.
pub(crate) struct Submission<'a> {
    pub(crate) plan: Option<&'a Plan>,
    pub(crate) counter: Option<CounterRef>,
    pub(crate) note: Option<Note<'a>>,
    pub(crate) handle: Option<Handle>,
    pub(crate) within: Duration,
    pub(crate) priority: Priority,
    /// The control loop hears of its end.
    pub(crate) is_watched: bool,
}

impl<E: Env> Shared<E> {
    /// Whether a transfer with this peer may begin now.
    #[inline]
    pub(crate) fn check_submit(&self, peer: &PeerState, note: Option<Note<'_>>) -> Result<(), SubmitError> {
        self.check_usable().map_err(SubmitError::Call)?;
        if let Some(cause) = peer.ended() {
            return Err(SubmitError::PeerGone { peer: peer.name.clone(), cause });
        }
        if let Some(cause) = peer.draining() {
            return Err(SubmitError::Draining { peer: peer.name.clone(), cause });
        }
        match note {
            Some(Note { payload, .. }) if payload.len() > NOTE_BYTES_MAX => {
                Err(SubmitError::NoteTooLong { bytes: payload.len(), most: NOTE_BYTES_MAX })
            }
            _ => Ok(()),
        }
    }

    /// Gives a transfer to the workers. The caller holds its slot, and has checked that it may begin.
    pub(crate) fn submit(&self, peer: &Arc<PeerState>, submission: Submission<'_>) -> Result<Key, SubmitError> {
        let Submission { plan, counter, note, handle, within, priority, is_watched } = submission;
        let key = self.slots.claim().ok_or(SubmitError::Full { what: "the table of transfers" })?;
        let slot = self.slots.get(key).expect("this key was claimed just now");
        let bytes = plan.map_or(0, Plan::bytes);
        let split =
            self.workers.len() > 1 && bytes >= SPLIT_BYTES_MIN && plan.is_some_and(|plan| plan.inner.pair.splits);
        let helpers = if split { self.workers.len() } else { 1 };
        slot.begin(1 + helpers as u32, note.map(|note| note.payload), is_watched);
        let command = |step: usize| Command {
            key,
            plan: plan.cloned(),
            peer: Arc::clone(peer),
            notify: NotifySpec { counter, note: note.map(|note| note.id), handle: handle.clone() },
            timeout: within,
            priority,
            is_split: helpers > 1,
            is_helper: step > 0,
        };
        let first = self.pick_port();
        if self.workers[first].commands.push(command(0)).is_err() {
            // Nobody else knows of it yet: both holders let go.
            for _ in 0..=helpers {
                self.release_slot(key);
            }
            return Err(SubmitError::Full { what: "the worker's queue" });
        }
        for step in 1..helpers {
            let port = &self.workers[(first + step) % self.workers.len()];
            if port.commands.push(command(step)).is_err() {
                self.release_slot(key); // One helper less; the others do its part.
            }
        }
        for step in 0..helpers {
            self.workers[(first + step) % self.workers.len()].bell.ring();
        }
        if self.workers[first].commands.is_closed() && slot.stop(Stage::Queue, Cause::EngineClosed) {
            // The engine was dropped in between: nobody will take it from the queue.
            let notified = if note.is_some() || counter.is_some() { Notified::No } else { Notified::NotAsked };
            slot.finish(TransferOutcome { failure: Some((Stage::Queue, Cause::EngineClosed.into())), notified });
        }
        Ok(key)
    }
}

impl<E: Env> Shared<E> {
    /// Asks for the end of a transfer that the caller holds. Answers whether it has ended by that.
    pub(crate) fn stop_transfer(&self, key: Key) -> bool {
        let slot = self.slots.get(key).expect("the caller holds its slot");
        if slot.outcome().is_none() && slot.stop(Stage::Move, Cause::Cancelled) {
            // No unit is in anybody's hands and none will be: this caller ends it.
            slot.finish(TransferOutcome {
                failure: Some((Stage::Move, Cause::Cancelled.into())),
                notified: Notified::No,
            });
            self.workers[0].statistics.transfers_failed.add_shared(1);
            self.count_completion(key, slot.is_watched());
            return true;
        }
        // A worker that sleeps until the receiver has room, or until a deadline, shall see the stop now.
        self.workers.iter().for_each(|port| port.bell.ring());
        false
    }
}
