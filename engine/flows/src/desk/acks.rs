//! Words that a session may have taken with it: a sink that has everything says so once, and is done. If the session breaks behind that
//! word, the source waits for one that will not come. So what was said lately is said again in the next session with the same engine;
//! who has heard it changes nothing.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use penstock_core::{EngineName, Epoch, Moment};
use penstock_session::{PeerKey, Said};

use super::Desk;

/// The most words that are kept for one peer: older ones have come, or their transfers are not waited for any more.
const WORDS_MAX: usize = 1024;
/// The most engines whose session broke for which words are kept.
const ENGINES_MAX: usize = 256;

/// When it was said, and what.
type Word = (Moment, Said);

/// What was said lately.
#[derive(Debug, Default)]
pub(super) struct Acks {
    /// In sessions that stand.
    said: BTreeMap<PeerKey, VecDeque<Word>>,
    /// In sessions that broke, until when, by whom each was with.
    unheard: BTreeMap<(EngineName, Epoch), (Moment, VecDeque<Word>)>,
}

impl Acks {
    /// Something is said to a peer that it may have to hear again.
    fn note(&mut self, peer: PeerKey, said: Said, within: Duration, now: Moment) {
        let words = self.said.entry(peer).or_default();
        while words.front().is_some_and(|(at, _)| now.since(*at) >= within) || words.len() >= WORDS_MAX {
            words.pop_front();
        }
        words.push_back((now, said));
    }

    /// A session is over.
    fn broke(&mut self, peer: PeerKey, name: &EngineName, within: Duration, now: Moment) {
        self.unheard.retain(|_, (until, _)| *until > now);
        let Some(words) = self.said.remove(&peer) else { return };
        let engine = (name.clone(), peer.epoch);
        let is_full = self.unheard.len() >= ENGINES_MAX && !self.unheard.contains_key(&engine);
        let soonest = self.unheard.iter().min_by_key(|(_, (until, _))| *until).map(|(engine, _)| engine.clone());
        if let Some(soonest) = soonest.filter(|_| is_full) {
            self.unheard.remove(&soonest);
        }
        let (until, unheard) = self.unheard.entry(engine).or_insert((now + within, VecDeque::new()));
        *until = now + within;
        unheard.extend(words);
        unheard.drain(..unheard.len().saturating_sub(WORDS_MAX));
    }

    /// What an engine may not have heard.
    fn unheard(&mut self, peer: PeerKey, name: &EngineName, now: Moment) -> VecDeque<Word> {
        let words = self.unheard.remove(&(name.clone(), peer.epoch));
        words.filter(|(until, _)| *until > now).map_or_else(VecDeque::new, |(_, words)| words)
    }
}

impl Desk {
    /// A sink says that it has everything, of a transfer that may be resumed.
    pub(super) fn note_ack(&mut self, peer: PeerKey, said: Said, gone: Option<&EngineName>, now: Moment) {
        let within = self.settings.resume_within;
        self.acks.note(peer, said, within, now);
        // Its session is over already, and nobody will say so again.
        if let Some(name) = gone.filter(|_| self.partners.name(peer).is_none()) {
            self.acks.broke(peer, name, within, now);
        }
    }

    pub(super) fn acks_broke(&mut self, peer: PeerKey, name: &EngineName, now: Moment) {
        self.acks.broke(peer, name, self.settings.resume_within, now);
    }

    /// A peer is there, perhaps again.
    pub(super) fn say_acks_again(&mut self, peer: PeerKey, now: Moment) {
        let Some(name) = self.partners.name(peer) else { return };
        for (_, said) in self.acks.unheard(peer, name, now) {
            self.acks.note(peer, said.clone(), self.settings.resume_within, now);
            self.say(peer, said);
        }
    }
}
