//! What engines tell each other about where they are.

use penstock_core::Env;
use penstock_session::descriptor::DESCRIPTOR_BYTES_MAX;
use penstock_session::directory::Learned;
use penstock_session::{EngineDescriptor, Frame};

use super::{Control, Phase, Talk};

/// Cards in one frame, so that the largest ones fit.
const CARDS_PER_FRAME: usize = 32;

fn encode(cards: &[EngineDescriptor]) -> Vec<Vec<u8>> {
    cards.iter().map(EngineDescriptor::encode).filter(|card| card.len() <= DESCRIPTOR_BYTES_MAX).collect()
}

impl<E: Env> Control<E> {
    /// A session between hosts stands: it hears where this engine is, and whom this engine knows.
    pub(super) fn tell_cards(&mut self, token: u64) {
        let Some(name) = self.network_peer(token).map(|peer| peer.name.clone()) else { return };
        self.say(token, &Frame::Descriptor(self.shared.descriptor.encode()));
        let known = encode(&self.shared.book().to_tell(name.as_str()));
        for part in known.chunks(CARDS_PER_FRAME) {
            self.say(token, &Frame::Known(part.to_vec()));
        }
    }

    /// A peer says where it is. What is new is told to the others.
    pub(super) fn learn_card(&mut self, token: u64, bytes: &[u8]) {
        let Some(peer) = self.network_peer(token) else { return };
        // A later release may write cards that this one does not read: no harm.
        let Ok(card) = EngineDescriptor::decode(bytes) else { return };
        if card.name != peer.name.as_str() || card.epoch != peer.epoch.0 {
            return;
        }
        let learned = self.shared.book().learn_own(card.clone());
        if learned == Learned::New && !card.addresses.is_empty() {
            let news = Frame::Known(encode(&[card]));
            let others: Vec<u64> = self.talks.keys().copied().filter(|&other| other != token).collect();
            for other in others.into_iter().filter(|&other| self.network_peer(other).is_some()).collect::<Vec<_>>() {
                self.say(other, &news);
            }
        }
    }

    /// A peer says where others are.
    pub(super) fn learn_known(&mut self, token: u64, cards: &[Vec<u8>]) {
        if self.network_peer(token).is_none() {
            return;
        }
        let mut book = self.shared.book();
        for card in cards.iter().filter_map(|bytes| EngineDescriptor::decode(bytes).ok()) {
            if card.name != self.shared.name.as_str() {
                book.learn_hearsay(card);
            }
        }
    }

    /// The peer of this talk, if it is on another host.
    fn network_peer(&self, token: u64) -> Option<&crate::peer_state::PeerState> {
        match self.talks.get(&token)? {
            Talk { phase: Phase::Open { peer, .. }, line: Some(_), .. } => Some(peer),
            _ => None,
        }
    }
}
