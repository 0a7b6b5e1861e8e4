//! Signs of life: a peer on another host that says nothing is asked, and given up when it does not answer.
//!
//! Nothing but the control channel is looked at. A peer that was heard within a sixth of the time is not asked, so of two
//! engines that are quiet only one asks. An unanswered question has five sixths of it: an outage that is shorter by the time in
//! which TCP sends again ends no session, whenever it begins. Questions that are nearly due go with the next one: an idle engine
//! with a thousand peers wakes as often as one with a single peer.

use std::sync::Arc;
use std::time::Duration;

use penstock_core::{Cause, Env, Timestamp};
use penstock_session::Frame;

use super::network::NetworkConnection;
use super::{Control, Phase, Talk};
use crate::peer_state::PeerState;
use crate::shared::Echo;

/// How long a peer may take to say that it lives, while another engine with its name waits.
const PROBE_WITHIN: Duration = Duration::from_millis(300);

/// A question that somebody waits for.
pub(super) struct Probe {
    number: u64,
    /// The talk that was asked.
    token: u64,
    asked: Timestamp,
    waiting: PendingPing,
}

pub(super) enum PendingPing {
    /// A greeting that is held until it is known whether its name is taken.
    Newcomer(u64),
    Caller(Arc<Echo>),
    /// A session that is not complete.
    Introduction,
}

impl Drop for Probe {
    /// Whoever waits for the answer has one, also where the control loop has panicked.
    fn drop(&mut self) {
        if let PendingPing::Caller(echo) = &self.waiting {
            echo.latch.arrive();
        }
    }
}

/// Questions are due at multiples of this part of the heartbeat.
const GRAINS: u32 = 12;
/// The part of the heartbeat after which a silent peer is asked.
const ASKED_AFTER: u32 = 6;

/// When this line is looked at next: to ask, or to give it up.
pub(super) fn deadline(line: &NetworkConnection, heartbeat: Duration) -> Timestamp {
    match line.asked {
        None => {
            let grain = u64::try_from((heartbeat / GRAINS).as_nanos()).unwrap_or(u64::MAX).max(1);
            let due = (line.heard + heartbeat / ASKED_AFTER).as_ns();
            Timestamp::from_ns(due.div_ceil(grain).saturating_mul(grain))
        }
        // What was silent before it was asked had nothing to say: only the question shows that packets are lost. An engine that
        // has itself stood still gives its peers time to be heard.
        Some(asked) => (line.heard + heartbeat).max(asked + (heartbeat - heartbeat / ASKED_AFTER)),
    }
}

impl<E: Env> Control<E> {
    /// Something has come over this talk, if it was heard.
    pub(super) fn note_life(&mut self, token: u64) {
        if let Some(Talk { connection, line: Some(line), .. }) = self.talks.get_mut(&token)
            && connection.has_heard()
        {
            line.heard = self.shared.env.now();
            line.asked = None;
        }
    }

    /// A peer was silent for long: it is asked, or given up.
    pub(super) fn pulse(&mut self, token: u64) {
        let now = self.shared.env.now();
        let Some(Talk { phase: Phase::Open { peer, .. }, line: Some(line), .. }) = self.talks.get_mut(&token) else {
            return;
        };
        if line.asked.is_none() {
            line.asked = Some(now);
            return self.say(token, &Frame::Ping { number: 0 });
        }
        let silent = now.since(line.heard);
        peer.note_loss(|| format!("no answer for {:.1} s", silent.as_secs_f64()));
        tracing::info!(peer = %peer.name, ?silent, "a peer on another host gives no sign of life");
        self.leave(token, Cause::PeerLost, None);
        self.mute(token);
    }

    pub(super) fn probe(&mut self, token: u64, waiting: PendingPing) {
        self.last_probe += 1;
        let number = self.last_probe;
        self.probes.push(Probe { number, token, asked: self.shared.env.now(), waiting });
        self.say(token, &Frame::Ping { number });
    }

    /// Asks a peer for an echo.
    pub(super) fn measure(&mut self, peer: &Arc<PeerState>, echo: Arc<Echo>) {
        // Those that nobody waits for any more.
        self.probes
            .retain(|probe| !matches!(&probe.waiting, PendingPing::Caller(echo) if Arc::strong_count(echo) == 1));
        match self.token_of(peer) {
            Some(token) if peer.ended().is_none() => self.probe(token, PendingPing::Caller(echo)),
            _ => echo.latch.arrive(),
        }
    }

    /// Whether an engine of this name has a standing session between hosts, in another life. It is asked whether it
    /// lives then, and the answer must be there at the moment this answers.
    pub(super) fn probe_namesake(&mut self, newcomer: u64, name: &str, epoch: u64) -> Option<Timestamp> {
        let old = self.namesake(name, epoch)?;
        self.probe(old, PendingPing::Newcomer(newcomer));
        // The newcomer has to be answered in its time.
        let patience = self.shared.config.session.greeting_timeout() / 2;
        Some(self.shared.env.now() + PROBE_WITHIN.min(patience))
    }

    fn namesake(&self, name: &str, epoch: u64) -> Option<u64> {
        let is_namesake = |talk: &Talk<E>| {
            talk.line.is_some()
                && matches!(&talk.phase, Phase::Open { peer, .. } if peer.name.as_str() == name && peer.epoch.0 != epoch)
        };
        self.talks.iter().find(|(_, talk)| is_namesake(talk)).map(|(&token, _)| token)
    }

    pub(super) fn heard_pong(&mut self, token: u64, number: u64) {
        let Some(place) = self.probes.iter().position(|probe| probe.number == number && probe.token == token) else {
            return;
        };
        let probe = self.probes.swap_remove(place);
        match &probe.waiting {
            &PendingPing::Newcomer(newcomer) => self.refuse_newcomer(newcomer),
            PendingPing::Caller(echo) => echo.came(self.shared.env.now().since(probe.asked)),
            PendingPing::Introduction => self.introduced(token),
        }
    }

    /// The session of this talk ends: nobody waits for its answers any more.
    pub(super) fn drop_probes(&mut self, token: u64) {
        let (gone, kept) = std::mem::take(&mut self.probes).into_iter().partition(|probe: &Probe| probe.token == token);
        self.probes = kept;
        let gone: Vec<Probe> = gone;
        for probe in gone {
            match &probe.waiting {
                &PendingPing::Newcomer(newcomer) => self.newcomer_may_go_on(newcomer),
                PendingPing::Caller(echo) => echo.latch.arrive(),
                // Whoever waits for the session sees that it has ended.
                PendingPing::Introduction => {}
            }
        }
    }

    /// The one who was asked for the sake of this newcomer has not answered: it is given up.
    pub(super) fn give_up_namesake(&mut self, newcomer: u64) {
        let is_asked = |probe: &&Probe| matches!(probe.waiting, PendingPing::Newcomer(token) if token == newcomer);
        let Some(old) = self.probes.iter().find(is_asked).map(|probe| probe.token) else {
            return self.newcomer_may_go_on(newcomer);
        };
        tracing::info!("a peer gives no sign of life and another engine has its name");
        // Which lets the newcomer go on.
        self.leave(old, Cause::PeerLost, None);
        self.mute(old);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEARTBEAT: Duration = Duration::from_secs(5);

    fn line(heard: Timestamp, asked: Option<Timestamp>) -> NetworkConnection {
        let mut line = NetworkConnection::new(std::net::SocketAddr::from(([10, 77, 0, 2], 7400)), heard);
        line.asked = asked;
        line
    }

    #[test]
    fn an_outage_of_three_fifths_of_the_heartbeat_ends_no_session_whenever_it_begins() {
        let outage = HEARTBEAT * 3 / 5;
        // When the kernel sends a question for the first time and again, the pauses doubling as they do where nothing bounds them.
        let sent = [0, 200, 600, 1_400, 3_000, 6_200].map(Duration::from_millis);
        for phase in 0..50 {
            let heard = Timestamp::from_ns(phase * 10_000_000);
            let asked = deadline(&line(heard, None), HEARTBEAT);
            assert!(asked.since(heard) <= HEARTBEAT / ASKED_AFTER + HEARTBEAT / GRAINS);
            let given_up = deadline(&line(heard, Some(asked)), HEARTBEAT);
            assert!(given_up.since(heard) >= HEARTBEAT, "not before the bound");
            assert!(given_up.since(heard) <= HEARTBEAT + HEARTBEAT / GRAINS, "and hardly after it");
            for millis in 0..=asked.since(heard).as_millis() as u64 {
                let begun = heard + Duration::from_millis(millis);
                let passed = sent.iter().map(|after| asked + *after).find(|&at| at < begun || at >= begun + outage);
                assert!(passed.is_some_and(|at| at < given_up), "begun {millis} ms after it was heard");
            }
        }
    }
}
