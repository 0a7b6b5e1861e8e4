//! Draining: an engine that is about to end lets everything come to its end.

use std::sync::atomic::Ordering;
use std::time::Duration;

use penstock_core::{Cause, EngineName, Env};

use crate::engine::Engine;
use crate::shared::ControlCall;

/// What was left when a drain answered.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Drained {
    /// Peers whose session still stands: transfers run on one side or the other, or the peer's release does not
    /// know of draining.
    pub peers: Vec<EngineName>,
    /// Transfers of this engine that have not ended.
    pub transfers: usize,
    /// Notifications that wait in the inbox; they can be taken as long as the engine is there.
    pub notifications: usize,
}

impl Drained {
    /// Whether nothing runs any more and every goodbye is said.
    pub fn is_complete(&self) -> bool {
        self.peers.is_empty() && self.transfers == 0
    }
}

impl<E: Env> Engine<E> {
    /// Takes no new sessions and no new transfers, from here or from peers, lets those that run come to their
    /// end, and says goodbye to each peer once nothing runs between the two.
    ///
    /// Answers by its deadline what was left. What is left is not cut off: it goes on, and another call
    /// waits for it again. There is no way back; the end of a drained engine is its drop. Transfers of peers
    /// may wait for room in this engine's inbox, so notifications must be taken meanwhile, or between two calls.
    pub fn drain(&self, timeout: Duration) -> Result<Drained, Cause> {
        let shared = &self.engine.shared;
        shared.check_usable()?;
        self.engine.progress()?; // An inline engine's own thread alone can do it.
        let until = shared.env.now() + timeout;
        shared.draining.store(true, Ordering::Release); // SYNC draining: pairs with is_draining()'s Acquire
        // Now, and not when the control loop comes to it: who calls this has submitted its last.
        shared.peers.standing().iter().for_each(|peer| peer.drain(Cause::Draining));
        shared.control.call(ControlCall::Drain);
        self.engine.wait_until(until, || shared.peers.standing().is_empty() && !shared.has_running());
        Ok(Drained {
            peers: shared.peers.standing().iter().map(|peer| peer.name.clone()).collect(),
            transfers: shared.running().count(),
            notifications: shared.inbox.len(),
        })
    }
}
