//! Sessions that drain: what is in flight ends, and nothing new begins.

use std::sync::Arc;

use penstock_core::{Cause, Env, Stage};

use super::command::{Active, Command};
use super::{Worker, lane_entry};
use crate::peer_state::PeerState;
use crate::shared::ControlCall;

impl<E: Env> Worker<E> {
    /// Takes every draining session a step further.
    #[cold]
    pub(super) fn drain_sessions(&mut self) {
        self.drain_transfers();
        self.drain_inbound();
    }

    /// Arrives at the latch of every session whose peer sends nothing more, once all that it sent is in the inbox.
    fn drain_inbound(&mut self) {
        let mut emptying = std::mem::take(&mut self.draining_inbound);
        emptying.retain(|(peer, drained)| {
            if lane_entry(&mut self.lanes, peer).is_none() || !self.poll_lane(peer.peer_index as usize).is_empty {
                return true;
            }
            drained.arrive();
            self.shared.control.call(ControlCall::LatchArrived);
            false
        });
        self.draining_inbound = emptying;
    }

    /// Arrives at the latch of every draining session of which this worker has no transfer left.
    fn drain_transfers(&mut self) {
        if !self.commands.is_empty() {
            return; // Commands still queued may belong to a draining session.
        }
        let mut settling = std::mem::take(&mut self.draining_transfers);
        settling.retain(|(peer, drained)| {
            if self.is_busy_with(peer) {
                return true;
            }
            if let Some(entry) = lane_entry(&mut self.lanes, peer) {
                entry.transfers_drained = true;
            }
            drained.arrive();
            self.shared.control.call(ControlCall::LatchArrived);
            false
        });
        self.draining_transfers = settling;
    }

    fn is_busy_with(&self, peer: &Arc<PeerState>) -> bool {
        let is_theirs = |active: &Active| Arc::ptr_eq(&active.command.peer, peer);
        self.active.iter().flatten().chain(&self.waiting).any(is_theirs) || self.notify_blocked.iter().any(is_theirs)
    }

    /// A transfer for a draining session: accepted as long as this worker has not reported that it has none left.
    #[cold]
    pub(super) fn accept_draining(&mut self, command: Command, cause: Cause) {
        if !lane_entry(&mut self.lanes, &command.peer).is_some_and(|entry| entry.transfers_drained) {
            return self.enqueue(command);
        }
        let slot = self.shared.slots.get(command.key).expect("a worker holds its slots");
        // If another worker has started this transfer, that worker also does this worker's part.
        if command.is_helper || !slot.stop_unclaimed(Stage::Queue, cause) {
            return self.shared.release_slot(command.key);
        }
        self.shared.finish_failed(Active::new(command, Default::default()), Stage::Queue, cause);
    }
}
