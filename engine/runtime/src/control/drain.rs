//! How sessions come to rest: nobody begins anything new, both say when nothing runs any more, then
//! whoever drains says goodbye.
//!
//! ```text
//!      who drains                                  its peer
//!          │ Draining ───────────────────────────▶   │ submits nothing new to it
//!   its transfers end                        its transfers end
//!          │ ◀─────────────────────────── Settled    │
//!          │ Goodbye ────────────────────────────▶   │ (see `leave`)
//! ```

use std::sync::Arc;

use penstock_core::{Cause, Env};
use penstock_session::Frame;

use super::connection::Broken;
use super::{Control, Phase, Talk};
use crate::shared::{Latch, WorkerCall};

/// How far a session is on its way to rest.
#[derive(Default)]
pub(super) struct Rest {
    /// This engine drains, and has said so.
    here: bool,
    /// The peer drains.
    there: bool,
    /// Opens when nothing that this engine has submitted to the peer runs any more.
    workers: Option<Arc<Latch>>,
    /// The peer was told so.
    said: bool,
    /// The peer has said so.
    heard: bool,
}

impl Rest {
    fn is_settled(&self) -> bool {
        self.workers.as_ref().is_some_and(|workers| workers.is_open())
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
        let Some(Talk { connection, phase: Phase::Open { peer, rest, .. } }) = self.talks.get_mut(&token) else { return };
        if std::mem::replace(&mut rest.here, true) {
            return;
        }
        peer.drain(Cause::Draining);
        let sent = connection.send(&Frame::Draining, Vec::new());
        self.settle_workers(token);
        self.went(token, sent);
    }

    /// The peer drains.
    pub(super) fn heard_draining(&mut self, token: u64) {
        let Some(Talk { phase: Phase::Open { peer, rest, .. }, .. }) = self.talks.get_mut(&token) else { return };
        if !std::mem::replace(&mut rest.there, true) {
            tracing::info!(peer = %peer.name, "a peer drains");
            peer.drain(Cause::PeerDraining);
            self.settle_workers(token);
        }
    }

    /// The peer says that nothing of its own runs any more. Answers whether it was asked.
    pub(super) fn heard_settled(&mut self, token: u64) -> bool {
        let Some(Talk { phase: Phase::Open { rest, .. }, .. }) = self.talks.get_mut(&token) else { return false };
        rest.heard |= rest.here;
        rest.here
    }

    fn settle_workers(&mut self, token: u64) {
        let Some(Talk { phase: Phase::Open { peer, rest, .. }, .. }) = self.talks.get_mut(&token) else { return };
        if rest.workers.is_some() {
            return;
        }
        let workers = Latch::new(self.shared.ports.len());
        for port in &self.shared.ports {
            port.call(WorkerCall::Settle { peer: Arc::clone(peer), settled: Arc::clone(&workers) });
        }
        rest.workers = Some(workers);
    }

    /// Takes every session that comes to rest a step further.
    pub(super) fn advance_draining(&mut self) {
        let is_settled = |talk: &Talk<E>| matches!(&talk.phase, Phase::Open { rest, .. } if rest.is_settled());
        let tokens: Vec<u64> =
            self.talks.iter().filter(|(_, talk)| is_settled(talk)).map(|(&token, _)| token).collect();
        for token in tokens {
            let Some(Talk { connection, phase: Phase::Open { rest, .. } }) = self.talks.get_mut(&token) else { continue };
            let must_say = rest.there && !std::mem::replace(&mut rest.said, rest.there);
            let may_leave = rest.here && rest.heard;
            let sent = if must_say { connection.send(&Frame::Settled, Vec::new()) } else { Ok(()) };
            if may_leave {
                self.leave(token, Cause::PeerClosed, None);
            }
            self.went(token, sent);
        }
    }

    fn went(&mut self, token: u64, sent: Result<(), Broken>) {
        match sent {
            Ok(()) => self.rewatch(token),
            Err(broken) => self.broke(token, &broken),
        }
    }
}
