//! How a session ends: the workers leave, then goodbye is said, then the peer's goodbye is heard.
//!
//! A goodbye, or the word about departures in this engine's owner state, is a promise: no worker of this
//! engine copies for that peer any more. So it is given only when every worker has said so, however
//! long that takes; the control loop does not stand still meanwhile.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use penstock_core::{Cause, Env, Timestamp};
use penstock_flows::Event;
use penstock_session::Frame;

use super::{Control, Phase, Talk};
use crate::manager::key_of;
use crate::peer_state::PeerState;
use crate::shared::{Latch, WorkerCall};

/// How long a peer may take to answer a goodbye.
const GOODBYE_WITHIN: Duration = Duration::from_millis(500);

/// A session that ends.
pub(super) struct Leaving {
    pub(super) peer: Arc<PeerState>,
    /// Opens when every worker of this engine has left the peer.
    workers: Arc<Latch>,
    /// Our goodbye is said; by then theirs must have come.
    said: Option<Timestamp>,
    /// Theirs was heard: they touch nothing of ours any more.
    heard: bool,
    /// The connection is over: theirs will not come.
    mute: bool,
    /// Whoever waits for the end.
    waiting: Vec<Arc<Latch>>,
}

impl Leaving {
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        self.said
    }
}

impl Drop for Leaving {
    /// Whoever waits for the end has it, also where the control loop has panicked.
    fn drop(&mut self) {
        self.waiting.iter().for_each(|latch| latch.arrive());
    }
}

impl<E: Env> Control<E> {
    /// Ends a session from this side.
    pub(super) fn leave(&mut self, token: u64, cause: Cause, waiting: Option<Arc<Latch>>) {
        let Some(talk) = self.talks.get_mut(&token) else { return };
        match &mut talk.phase {
            Phase::Leaving(leaving) => leaving.waiting.extend(waiting),
            Phase::Open { peer, .. } => {
                let peer = Arc::clone(peer);
                peer.end(cause);
                self.shared.manager.handle(Event::Left { peer: key_of(&peer), cause }, self.shared.env.now());
                self.shared.book().forget_own(peer.name.as_str(), peer.epoch.0);
                let workers = Latch::new(self.shared.workers.len());
                for port in &self.shared.workers {
                    let (peer, left) = (Arc::clone(&peer), Arc::clone(&workers));
                    port.call(WorkerCall::RemoveLane { peer, cause, left });
                }
                let waiting = waiting.into_iter().collect();
                let leaving = Leaving { peer, workers, said: None, heard: false, mute: false, waiting };
                talk.phase = Phase::Leaving(Box::new(leaving));
                if talk.line.is_some() {
                    self.shared.sessions_between_hosts.fetch_sub(1, Ordering::Relaxed);
                    self.drop_dialing(token);
                }
                self.drop_probes(token);
            }
            _ => {}
        }
    }

    /// The peer says that it touches nothing of ours any more.
    pub(super) fn heard_goodbye(&mut self, token: u64) {
        self.leave(token, Cause::PeerClosed, None);
        if let Some(Talk { phase: Phase::Leaving(leaving), .. }) = self.talks.get_mut(&token) {
            leaving.heard = true;
            leaving.peer.said_goodbye();
        }
    }

    /// The connection of a session that ends is over.
    pub(super) fn mute(&mut self, token: u64) {
        if let Some(Talk { connection, phase: Phase::Leaving(leaving), .. }) = self.talks.get_mut(&token)
            && !std::mem::replace(&mut leaving.mute, true)
        {
            // Or the reactor would report its end again and again.
            let _ = penstock_core::env::Reactor::unwatch_stream(&mut self.reactor, &connection.stream);
        }
    }

    /// Takes every session that ends a step further.
    pub(super) fn advance_leaving(&mut self) {
        let is_leaving = |talk: &Talk<E>| matches!(talk.phase, Phase::Leaving(_));
        let tokens: Vec<u64> =
            self.talks.iter().filter(|(_, talk)| is_leaving(talk)).map(|(&token, _)| token).collect();
        for token in tokens {
            self.say_goodbye(token);
            let is_over = |leaving: &Leaving| leaving.said.is_some() && (leaving.heard || leaving.mute);
            if let Some(Talk { phase: Phase::Leaving(leaving), .. }) = self.talks.get(&token)
                && is_over(leaving)
            {
                self.end_session(token);
            }
        }
    }

    /// Says goodbye, once every worker has left.
    fn say_goodbye(&mut self, token: u64) {
        let Some(Talk { connection, phase: Phase::Leaving(leaving), .. }) = self.talks.get_mut(&token) else { return };
        if leaving.said.is_some() || !leaving.workers.is_open() {
            return;
        }
        self.shared.segments.owner_state.count_session_end(leaving.peer.peer_index);
        leaving.peer.was_left();
        leaving.said = Some(self.shared.env.now() + GOODBYE_WITHIN);
        if !leaving.mute {
            match connection.send(&Frame::Goodbye, Vec::new()) {
                Ok(()) => self.rewatch(token),
                Err(_) => self.mute(token),
            }
        }
    }

    pub(super) fn leaving_expired(&mut self, token: u64) {
        self.mute(token);
        self.end_session(token);
    }

    fn end_session(&mut self, token: u64) {
        if let Some(talk) = self.remove(token)
            && let Phase::Leaving(leaving) = talk.phase
        {
            if !leaving.heard {
                leaving.peer.was_lost();
            }
            self.shared.peers.remove(leaving.peer.peer_index, leaving.heard);
            leaving.waiting.iter().for_each(|latch| latch.arrive());
        }
    }
}
