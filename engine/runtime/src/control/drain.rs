//! How sessions come to rest: nobody begins anything new, both say when nothing of theirs runs any more and
//! then when all they were told is taken in, and whoever drains says goodbye.
//!
//! ```text
//!      who drains                                  its peer
//!          │ Draining ───────────────────────────▶   │ submits nothing new to it
//!   its transfers end                        its transfers end
//!          │ Settled ────────────────────────────▶   │
//!          │ ◀─────────────────────────── Settled    │
//!   the rings are empty                      the rings are empty
//!          │ Rested ─────────────────────────────▶   │
//!          │ ◀──────────────────────────── Rested    │
//!          │ Goodbye ────────────────────────────▶   │ (see `leave`)
//! ```
//!
//! Without the second step the last notifications of either side, which are in the other's keeping but wait
//! for room in its inbox, would be lost with the session.

use std::sync::Arc;

use penstock_core::{Cause, Env};
use penstock_session::Frame;

use super::connection::Broken;
use super::{Control, Phase, Talk};
use crate::peer_state::PeerState;
use crate::shared::{Latch, WorkerCall};

/// How far a session is on its way to rest.
#[derive(Default)]
pub(super) struct DrainProgress {
    /// This engine drains, and has said so.
    here: bool,
    /// Opens when nothing that this engine has submitted to the peer runs any more. There once a side drains.
    settled: Option<Arc<Latch>>,
    /// Opens when all that the peer has told is in the inbox. There once the peer has settled.
    emptied: Option<Arc<Latch>>,
    said_settled: bool,
    said_rested: bool,
    heard_rested: bool,
}

fn is_open(latch: &Option<Arc<Latch>>) -> bool {
    latch.as_ref().is_some_and(|latch| latch.is_open())
}

impl DrainProgress {
    fn can_advance(&self) -> bool {
        is_open(&self.settled) && (!self.said_rested || self.heard_rested)
    }

    /// What is to be said now, at most once each.
    fn next_frame(&mut self) -> Option<Frame> {
        if is_open(&self.settled) && !self.said_settled {
            self.said_settled = true;
            return Some(Frame::Settled);
        }
        if self.said_settled && is_open(&self.emptied) && !self.said_rested {
            self.said_rested = true;
            return Some(Frame::Rested);
        }
        None
    }

    fn may_leave(&self) -> bool {
        self.here && self.said_rested && self.heard_rested
    }
}

impl<E: Env> Control<E> {
    /// This engine drains: every session begins to come to rest.
    pub(super) fn drain(&mut self) {
        let tokens: Vec<u64> = self.talks.keys().copied().collect();
        for token in tokens {
            self.drain_session(token);
        }
    }

    pub(super) fn drain_session(&mut self, token: u64) {
        let Some((peer, rest)) = self.rest_of(token) else { return };
        if std::mem::replace(&mut rest.here, true) {
            return;
        }
        self.stop_submitting(token, &peer, Cause::Draining);
        self.say(token, &Frame::Draining);
    }

    /// The peer drains. Answers whether that makes sense, which it always does.
    pub(super) fn heard_draining(&mut self, token: u64) -> bool {
        if let Some((peer, _)) = self.rest_of(token) {
            self.stop_submitting(token, &peer, Cause::PeerDraining);
        }
        true
    }

    /// The peer submits and says nothing more. Answers whether it may say so now.
    pub(super) fn heard_settled(&mut self, token: u64) -> bool {
        let ports = self.shared.workers.len();
        let Some((peer, rest)) = self.rest_of(token) else { return false };
        if rest.settled.is_none() || rest.emptied.is_some() {
            return false;
        }
        let emptied = Latch::new(ports);
        rest.emptied = Some(Arc::clone(&emptied));
        for port in &self.shared.workers {
            port.call(WorkerCall::DrainInbound { peer: Arc::clone(&peer), drained: Arc::clone(&emptied) });
        }
        true
    }

    /// The peer has taken in all it was told. Answers whether it may say so now.
    pub(super) fn heard_rested(&mut self, token: u64) -> bool {
        let Some((_, rest)) = self.rest_of(token) else { return false };
        let may = rest.said_settled && rest.emptied.is_some();
        rest.heard_rested |= may;
        may
    }

    fn rest_of(&mut self, token: u64) -> Option<(Arc<PeerState>, &mut DrainProgress)> {
        match &mut self.talks.get_mut(&token)?.phase {
            Phase::Open { peer, rest, .. } => Some((Arc::clone(peer), rest)),
            _ => None,
        }
    }

    fn stop_submitting(&mut self, token: u64, peer: &Arc<PeerState>, cause: Cause) {
        let ports = self.shared.workers.len();
        let Some((_, rest)) = self.rest_of(token) else { return };
        if rest.settled.is_some() {
            return;
        }
        tracing::info!(peer = %peer.name, %cause, "a session comes to rest");
        peer.drain(cause);
        let settled = Latch::new(ports);
        rest.settled = Some(Arc::clone(&settled));
        for port in &self.shared.workers {
            port.call(WorkerCall::DrainTransfers { peer: Arc::clone(peer), drained: Arc::clone(&settled) });
        }
    }

    /// Takes every session that comes to rest a step further.
    pub(super) fn advance_draining(&mut self) {
        let can_advance = |talk: &Talk<E>| matches!(&talk.phase, Phase::Open { rest, .. } if rest.can_advance());
        let tokens: Vec<u64> =
            self.talks.iter().filter(|(_, talk)| can_advance(talk)).map(|(&token, _)| token).collect();
        for token in tokens {
            while let Some(frame) = self.rest_of(token).and_then(|(_, rest)| rest.next_frame()) {
                self.say(token, &frame);
            }
            if self.rest_of(token).is_some_and(|(_, rest)| rest.may_leave()) {
                self.leave(token, Cause::PeerClosed, None);
            }
        }
    }

    pub(super) fn say(&mut self, token: u64, frame: &Frame) {
        let Some(Talk { connection, .. }) = self.talks.get_mut(&token) else { return };
        let sent: Result<(), Broken> = connection.send(frame, Vec::new());
        match sent {
            Ok(()) => self.rewatch(token),
            // Nothing of it was sent. It is a fault of this engine, and the peer has no part in it.
            Err(Broken::Wire(error)) => tracing::error!(%error, "a frame that cannot be said is not sent"),
            Err(broken) => self.broke(token, &broken),
        }
    }
}
