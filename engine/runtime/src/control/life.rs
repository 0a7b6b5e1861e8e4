//! Peers that die without a word.
//!
//! The kernel closes the sockets of a killed process only after it has freed its memory, which takes a
//! second for a large one. It marks the lock in its posts before. So the control loop looks at those words
//! now and then, as long as there is anybody to look at; a worker whose transfers wait for a peer's room
//! looks more often, since it is awake for them anyway.
//!
//! A mark ends the session and proves nothing about memory: other threads of the dying process may still be
//! in the middle of a copy. That proof stays with hazards, departures and the process's descriptor.

use std::time::Duration;

use penstock_core::{Cause, Env};

use super::{Control, Phase, Talk};

/// How long a death may go unnoticed at most. Each look wakes a thread: every 20 ms would cost an idle engine
/// 0.14 % of a core, where 0.1 % is what idling may cost.
const LOOK_EVERY: Duration = Duration::from_millis(40);

impl<E: Env> Control<E> {
    /// Ends the sessions of peers whose lives are marked as over, if it is time to look.
    pub(super) fn look_at_lives(&mut self) {
        let is_watched = |talk: &Talk<E>| matches!(&talk.phase, Phase::Open { peer, .. } if peer.can_die_alone());
        if !self.talks.values().any(is_watched) {
            self.look_at = None;
            return;
        }
        let now = self.shared.env.now();
        if self.look_at.is_some_and(|look_at| look_at > now) {
            return;
        }
        self.look_at = Some(now + LOOK_EVERY);
        let is_dead = |talk: &Talk<E>| matches!(&talk.phase, Phase::Open { peer, .. } if peer.is_marked_dead());
        let dead: Vec<u64> = self.talks.iter().filter(|(_, talk)| is_dead(talk)).map(|(&token, _)| token).collect();
        for token in dead {
            if let Some(Talk { phase: Phase::Open { peer, .. }, .. }) = self.talks.get(&token) {
                tracing::info!(peer = %peer.name, "the thread that stood for a peer has died");
            }
            self.leave(token, Cause::PeerLost, None);
            self.mute(token);
        }
    }
}
