//! When a session is complete: it is known whether the peer speaks of transfers by name, and the layouts that it had are here.
//!
//! No frame says that. What this engine can do is said to the peer, and a [`Frame::Ping`] behind it: whoever
//! answers that has said before what it can do itself, and what layouts it has, as answers leave behind everything else. A peer that
//! answers a question which was asked when its first regions were known, and has not said by then what it can do, is of a release
//! that does not speak of transfers. Of one that answers no questions at all nobody knows: after a while its session is good for plans.

use std::sync::Arc;

use penstock_core::Env;
use penstock_core::planted::{self, Bug};
use penstock_flows::Event;
use penstock_session::Frame;

use super::heartbeat::PendingPing;
use super::{Control, Phase, Question, Talk};
use crate::manager::key_of;
use crate::peer_state::PeerState;

/// How many times the time for connecting a peer has until its session is taken for complete although it has not answered.
const PATIENCE: u32 = 5;

/// How far one session has come with that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Introduction {
    /// This engine has not said what it can do.
    #[default]
    Untold,
    /// It was asked when nothing was known of it yet.
    Asked,
    /// It has answered before its first regions came: it is asked again when they do.
    Answered,
    /// It was asked when its regions were known: the next answer decides.
    AskedAgain,
    /// The session is complete.
    Over,
}

impl<E: Env> Control<E> {
    fn introduction(&mut self, token: u64) -> Option<(&mut Introduction, &Arc<PeerState>)> {
        match self.talks.get_mut(&token) {
            Some(Talk { phase: Phase::Open { peer, announced, .. }, .. }) => Some((&mut announced.introduction, peer)),
            _ => None,
        }
    }

    /// What this engine can do was said in this session.
    pub(super) fn told_what_it_can_do(&mut self, token: u64) {
        if let Some((Introduction::Untold, _)) = self.introduction(token) {
            self.ask_for_introduction(token);
        }
    }

    fn ask_for_introduction(&mut self, token: u64) {
        let Some((introduction, peer)) = self.introduction(token) else { return };
        *introduction = if peer.is_introduced() { Introduction::AskedAgain } else { Introduction::Asked };
        if planted::is(Bug::ConnectedBeforeAble) {
            peer.completed();
        }
        let by = self.shared.env.now() + PATIENCE * self.shared.config.session.connect_timeout();
        if let Some(Talk { phase: Phase::Open { announced, .. }, .. }) = self.talks.get_mut(&token) {
            announced.introduced_by.get_or_insert(by);
        }
        self.probe(token, PendingPing::Introduction);
    }

    /// The peer has had its time to answer. What it can do may still come.
    pub(super) fn introduction_expired(&mut self, token: u64) {
        let Some((introduction, peer)) = self.introduction(token) else { return };
        *introduction = Introduction::Over;
        let peer = Arc::clone(peer);
        tracing::warn!(peer = %peer.name, "a peer has not answered, and has not said whether it speaks of transfers by name");
        self.complete(token, &peer);
    }

    /// Regions of the peer are known.
    pub(super) fn heard_regions(&mut self, token: u64) {
        if let Some((Introduction::Answered, _)) = self.introduction(token) {
            self.ask_for_introduction(token);
        }
    }

    /// The peer has answered.
    pub(super) fn introduced(&mut self, token: u64) {
        let Some((introduction, peer)) = self.introduction(token) else { return };
        let (before, peer) = (*introduction, Arc::clone(peer));
        if before == Introduction::Over {
            return;
        }
        if peer.landing_tag().is_none() && before != Introduction::AskedAgain {
            *introduction = Introduction::Answered;
            if peer.is_introduced() {
                self.ask_for_introduction(token);
            }
            return;
        }
        *introduction = Introduction::Over;
        if peer.landing_tag().is_none() {
            tracing::info!(peer = %peer.name, "a peer does not speak of transfers by name: its release is older");
            self.tell_manager(Event::Unable { peer: key_of(&peer) });
        }
        self.complete(token, &peer);
    }

    fn complete(&mut self, token: u64, peer: &PeerState) {
        peer.completed();
        if let Some(Talk { phase: Phase::Open { announced, .. }, .. }) = self.talks.get_mut(&token) {
            announced.introduced_by = None;
            let asked = self.shared.env.now();
            self.questions.extend(announced.asked.take().map(|number| Question { token, number, asked }));
        }
    }

    /// Answers everybody who has asked since the last turn, behind all that was to be said to them.
    ///
    /// Who has called this engine, and can do what it can, is answered when the session is complete here: so it is complete on both sides
    /// when it is for the caller. The first question alone waits for that.
    pub(super) fn answer_questions(&mut self) {
        if !self.questions.is_empty() {
            // What was registered before it asked is known to it when it is answered.
            self.advertise_changes();
        }
        let now = self.shared.env.now();
        for question in std::mem::take(&mut self.questions) {
            let Question { token, number, asked } = question;
            let Some(Talk { phase: Phase::Open { peer, announced, .. }, .. }) = self.talks.get_mut(&token) else {
                continue;
            };
            if number != 0 && announced.preparing.holds_answer(asked, now) {
                self.questions.push(question);
                continue;
            }
            let is_complete = announced.introduction == Introduction::Over;
            let may_wait = !peer.was_called() && peer.landing_tag().is_some() && announced.asked.is_none();
            if number != 0 && !is_complete && may_wait {
                announced.asked = Some(number);
            } else {
                self.say(token, &Frame::Pong { number });
            }
        }
    }
}
