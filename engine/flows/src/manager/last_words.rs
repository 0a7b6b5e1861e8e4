//! Words that a session may have taken with it: a sink that has everything says so once, and one that fails says why once. If the session
//! breaks behind that word, or is broken already, the source waits for one that will not come. So last words are said, perhaps again, in the
//! next session with the same engine; who has heard one before changes nothing for it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use penstock_core::planted::{self, Bug};
use penstock_core::{EngineName, Epoch, Timestamp};
use penstock_session::{ControlMessage, PeerKey};

use super::TransferManager;
use super::flow::SinkTransfer;
use crate::input::SinkWish;

/// The most words that are kept for one engine: the longest have some 300 bytes, and so many of them less than a third of what may wait for a
/// peer that does not read, so that who is back is not given up for being told. Nobody says what was heard: where more was said than this in
/// `control.resume_ms`, the oldest are forgotten, and a source that has not heard one of those waits until that time is over.
const WORDS_MAX: usize = 8192;
/// The most engines whose session broke for which words are kept.
const ENGINES_MAX: usize = 256;

/// When it was said, and what.
type Word = (Timestamp, ControlMessage);

/// What was said lately.
#[derive(Debug, Default)]
pub(super) struct LastWords {
    /// In sessions that stand.
    said: BTreeMap<PeerKey, VecDeque<Word>>,
    /// In sessions that broke, until when, by whom each was with.
    unheard: BTreeMap<(EngineName, Epoch), (Timestamp, VecDeque<Word>)>,
}

impl LastWords {
    /// Something is said to a peer that it may have to hear again.
    fn note(&mut self, peer: PeerKey, said: ControlMessage, within: Duration, now: Timestamp) {
        let words = self.said.entry(peer).or_default();
        while words.front().is_some_and(|(at, _)| now.since(*at) >= within) || words.len() >= WORDS_MAX {
            words.pop_front();
        }
        words.push_back((now, said));
    }

    /// A session is over.
    fn broke(&mut self, peer: PeerKey, name: &EngineName, within: Duration, now: Timestamp) {
        if let Some(words) = self.said.remove(&peer) {
            self.keep((name.clone(), peer.epoch), words, within, now);
        }
    }

    /// An engine is to hear this when it is back.
    fn keep(
        &mut self,
        engine: (EngineName, Epoch),
        words: impl IntoIterator<Item = Word>,
        within: Duration,
        now: Timestamp,
    ) {
        self.unheard.retain(|_, (until, _)| *until > now);
        if self.unheard.len() >= ENGINES_MAX && !self.unheard.contains_key(&engine) {
            let soonest = self.unheard.iter().min_by_key(|(_, (until, _))| *until).map(|(engine, _)| engine.clone());
            soonest.into_iter().for_each(|soonest| drop(self.unheard.remove(&soonest)));
        }
        let (until, unheard) = self.unheard.entry(engine).or_insert((now + within, VecDeque::new()));
        *until = now + within;
        if !planted::is(Bug::LastWordNotSaidAgain) {
            unheard.extend(words);
        }
        unheard.drain(..unheard.len().saturating_sub(WORDS_MAX));
    }

    /// What an engine may not have heard.
    fn unheard(&mut self, peer: PeerKey, name: &EngineName, now: Timestamp) -> VecDeque<Word> {
        let words = self.unheard.remove(&(name.clone(), peer.epoch));
        words.filter(|(until, _)| *until > now).map_or_else(VecDeque::new, |(_, words)| words)
    }
}

impl SinkTransfer {
    /// Whether what it wants is to say something that is never said otherwise: that it has everything, where a source may wait for it, or
    /// why it has failed. That a source waits its sink cannot know, where they were told different things.
    pub(super) fn is_last_word(&self, wish: &SinkWish) -> bool {
        match wish {
            SinkWish::Say { said: ControlMessage::Fail(_), .. } => true,
            SinkWish::Say { said: ControlMessage::Ack(_), .. } => self.legs.is_resumable(),
            _ => false,
        }
    }
}

impl TransferManager {
    /// A sink says the last that it has to say to an engine: in the session that stands with it, and in the next one if that breaks. `gone` is
    /// whose session is over, as far as the sink knows: the engine may be back, and not resumed.
    pub(super) fn say_last(&mut self, peer: PeerKey, said: ControlMessage, gone: Option<&EngineName>, now: Timestamp) {
        let within = self.settings.resume_within;
        let there = match gone {
            None => Some(peer),
            Some(name) => {
                self.partners.able().find(|able| able.epoch == peer.epoch && self.partners.name(*able) == Some(name))
            }
        };
        match (there, gone) {
            (Some(there), _) => {
                self.last_words.note(there, said.clone(), within, now);
                self.say(there, said);
            }
            (None, Some(name)) => self.last_words.keep((name.clone(), peer.epoch), [(now, said)], within, now),
            (None, None) => {}
        }
    }

    pub(super) fn last_words_broke(&mut self, peer: PeerKey, name: &EngineName, now: Timestamp) {
        self.last_words.broke(peer, name, self.settings.resume_within, now);
    }

    /// A peer is there, perhaps again.
    pub(super) fn say_last_words_again(&mut self, peer: PeerKey, now: Timestamp) {
        let Some(name) = self.partners.name(peer) else { return };
        for (_, said) in self.last_words.unheard(peer, name, now) {
            self.last_words.note(peer, said.clone(), self.settings.resume_within, now);
            self.say(peer, said);
        }
    }
}

#[cfg(test)]
mod tests {
    use penstock_session::control::{Fail, Side, TransferHead, WORDS_BYTES_MAX};
    use penstock_session::{Frame, TransferId, codec};

    use super::*;

    const WITHIN: Duration = Duration::from_secs(10);

    fn word(number: u32) -> ControlMessage {
        let transfer = TransferId::from_bytes(u128::from(number).to_le_bytes());
        let head = TransferHead { transfer, side: Side::Sink, rank: u16::MAX, ranks: u16::MAX };
        ControlMessage::Fail(Fail { head, cause: u16::MAX, words: "w".repeat(WORDS_BYTES_MAX), missing: Vec::new() })
    }

    fn engine(number: u32) -> (PeerKey, EngineName) {
        (PeerKey { peer_index: number, epoch: Epoch(7) }, EngineName::new(&format!("engine-{number}")).unwrap())
    }

    #[test]
    fn of_too_many_words_the_newest_are_said_again_and_all_of_them_fit_where_they_wait() {
        let (mut words, now) = (LastWords::default(), Timestamp::from_ns(1));
        let (peer, name) = engine(1);
        (0..WORDS_MAX as u32 + 2).for_each(|number| words.note(peer, word(number), WITHIN, now));
        words.broke(peer, &name, WITHIN, now);
        words.keep((name.clone(), peer.epoch), [(now, word(u32::MAX))], WITHIN, now);
        let said: Vec<ControlMessage> = words.unheard(peer, &name, now).into_iter().map(|(_, said)| said).collect();
        assert_eq!((said.len(), &said[0], said.last()), (WORDS_MAX, &word(3), Some(&word(u32::MAX))));
        let mut bytes = Vec::new();
        said.into_iter().for_each(|said| codec::encode(&Frame::Control(said), 0, &mut bytes).unwrap());
        assert!(bytes.len() < 8 * 1024 * 1024 / 3, "{} bytes", bytes.len());
        assert!(words.unheard(peer, &name, now).is_empty(), "they are said once in a session");
    }

    #[test]
    fn words_are_kept_for_so_long_and_for_so_many_engines() {
        let (mut words, now) = (LastWords::default(), Timestamp::from_ns(1));
        for number in 0..=ENGINES_MAX as u32 {
            let ((peer, name), later) = (engine(number), now + Duration::from_millis(number.into()));
            words.keep((name, peer.epoch), [(later, word(number))], WITHIN, later);
        }
        let mut heard = |number: u32, now: Timestamp| {
            let (peer, name) = engine(number);
            words.unheard(peer, &name, now).len()
        };
        assert_eq!((heard(0, now), heard(1, now)), (0, 1), "the first was to be forgotten soonest");
        assert_eq!(heard(2, now + WITHIN + Duration::from_millis(2)), 0, "its time is over");
        assert_eq!(heard(3, now + WITHIN + Duration::from_millis(2)), 1);
    }
}
