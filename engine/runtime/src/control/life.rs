//! Peers that die without a word.
//!
//! The kernel closes the sockets of a killed process only after it has freed its memory, which takes a
//! second for a large one. It marks the lock in its owner state before. So the control loop looks at those words
//! now and then, as long as there is anybody to look at; a worker whose transfers wait for a peer's room
//! looks more often, since it is awake for them anyway.
//!
//! A mark ends the session and proves nothing about memory: other threads of the dying process may still be
//! in the middle of a copy. That proof stays with hazards, departures and the process's descriptor.
//!
//! What a peer sent before it died counts: it is read before the session ends by any of these signs.

use std::time::Duration;

use penstock_core::{Cause, Env};

use super::{Control, Phase, Talk};

/// How long a death may go unnoticed at most. Each look wakes a thread: every 20 ms would cost an idle engine
/// 0.14 % of a core, where 0.1 % is what idling may cost.
const LOOK_EVERY: Duration = Duration::from_millis(40);

/// Whether a transfer or a lane that ends with this cause may be the first sign that its peer is gone.
pub(super) fn is_loss(cause: Cause) -> bool {
    matches!(cause, Cause::PeerLost | Cause::PeerClosed | Cause::RailLost)
}

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
            self.hear_out(token);
            self.leave(token, Cause::PeerLost, None);
            self.mute(token);
        }
    }

    /// Slots that a peer may have written to are for others once its session is over, which its process may have to be dead for.
    pub(super) fn take_back_slots(&mut self) {
        let is_left = self.shared.staging.take_back_left();
        self.slots_at = is_left.then(|| self.shared.env.now() + LOOK_EVERY);
    }

    /// Reads what a peer sent before its loss was noticed, ahead of the end of the session. A worker may see the lane break before this loop
    /// has read the control channel, where a sink that exits as soon as it has everything has acknowledged that.
    pub(super) fn hear_out(&mut self, token: u64) {
        if matches!(self.talks.get(&token), Some(Talk { phase: Phase::Open { .. }, .. })) {
            self.serve(token);
        }
    }
}
