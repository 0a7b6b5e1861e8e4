//! Parents of other engines: lent to them under a lease of this engine, and read of them under a lease of theirs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use penstock_core::Timestamp;
use penstock_core::planted::{self, Bug};
use penstock_session::control::{Ack, LeaseVerdict, PinAnswer, PinAsk, Side, TransferHead};
use penstock_session::leases::LeaseId;
use penstock_session::{ControlMessage, PeerKey, RequestId, TransferId};

use super::TransferManager;
use super::lending::{Borrowed, LeasedItem};
use crate::continuation::abroad::AskKey;
use crate::continuation::{Asks, Isolation, Lent as LentParent, Miss, PinKey, Terms};
use crate::event::Event;
use crate::partners::LayoutKey;

/// The most questions to other engines that are not answered, or whose answer was not fetched.
const ASKS_MAX: usize = 4096;

/// A lease of another engine's that is given back.
#[derive(Debug, Clone, Copy)]
struct Returned {
    /// Whether it stood until then, once that is known.
    stood: Option<Result<(), Miss>>,
    /// Somebody asks for that.
    is_watched: bool,
}

/// Questions to other engines and what came of them; and which pins of this engine others may have.
pub(super) struct Abroad {
    asks: Asks,
    answers: BTreeMap<AskKey, Result<LentParent, Miss>>,
    /// Nobody waits for these any more.
    forgotten: BTreeSet<AskKey>,
    returned: BTreeMap<(PeerKey, LeaseId), Returned>,
    /// Where the blocks of pins lie that other engines may have.
    layouts: BTreeMap<PinKey, LayoutKey>,
}

impl Default for Abroad {
    fn default() -> Self {
        let (answers, returned, layouts) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { asks: Asks::new(ASKS_MAX), answers, forgotten: BTreeSet::new(), returned, layouts }
    }
}

impl std::fmt::Debug for Abroad {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Abroad").field("answers", &self.answers.len()).finish_non_exhaustive()
    }
}

impl Abroad {
    pub(super) fn deadline(&self) -> Timestamp {
        self.asks.deadline().unwrap_or(Timestamp::NEVER)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.deadline() == Timestamp::NEVER && self.answers.is_empty() && self.returned.is_empty()
    }
}

impl TransferManager {
    /// Other engines may have blocks of this pin, which lie in this layout.
    pub fn lend_pin(&mut self, pin: PinKey, layout: LayoutKey) {
        let Some(pins) = self.keeping.pins.as_ref() else { return };
        // Those that are gone make room.
        self.abroad.layouts.retain(|pin, _| pins.state(*pin).is_some());
        self.abroad.layouts.insert(pin, layout);
    }

    /// Another engine asks for a parent's blocks.
    pub(super) fn hear_pin_ask(&mut self, peer: PeerKey, ask: &PinAsk, now: Timestamp) {
        let answer = match self.answer_ask(peer, ask, now) {
            Ok(said) => said,
            Err(miss) => ControlMessage::PinAnswer(PinAnswer {
                ask: ask.ask,
                code: miss.code(),
                lease: 0,
                ttl_ms: 0,
                layout: 0,
                layout_generation: 0,
                tokens: 0,
                blocks: Vec::new(),
            }),
        };
        self.say(peer, answer);
    }

    fn answer_ask(&mut self, peer: PeerKey, ask: &PinAsk, now: Timestamp) -> Result<ControlMessage, Miss> {
        let parent = RequestId::new(&ask.parent).map_err(|_| Miss::NoParent)?;
        let pins = self.keeping.pins.as_ref().ok_or(Miss::NoParent)?;
        let Some(pin) = pins.pin_of(&parent) else {
            // Nothing is lent; why not, is for the pins to say. What they let go at that is let go here, as with every call of theirs.
            let nothing = Terms { lease: 0, ttl_ms: 0, layout: 0, layout_generation: 0 };
            let answered = self.call_pins(|pins| pins.answer_peer(peer, ask, nothing, now).0);
            return answered.ok_or(Miss::NoParent);
        };
        let layout = self.abroad.layouts.get(&pin).copied().ok_or(Miss::NoParent)?;
        let ttl = self.settings.lease_ttl;
        let lease = self.lend(peer, LeasedItem::Pin { peer }, ttl, now).map_err(|_| Miss::Crowded)?;
        let terms = Terms {
            lease: lease.0,
            ttl_ms: u32::try_from(ttl.as_millis()).unwrap_or(u32::MAX),
            layout: layout.number,
            layout_generation: layout.generation,
        };
        let answered = self.call_pins(|pins| pins.answer_peer(peer, ask, terms, now));
        let (said, given) = answered.ok_or(Miss::NoParent)?;
        if given.is_none() {
            self.end_lending(peer, lease, now);
        }
        Ok(said)
    }

    /// The reader of a pin's blocks is done, or proven quiet.
    pub(super) fn pin_is_back(&mut self, peer: PeerKey, lease: LeaseId) {
        if !planted::is(Bug::PartOfALeaseKept) {
            self.call_pins(|pins| pins.lease_over(peer, lease.0));
        }
        self.tell();
    }

    /// Asks another engine for a parent as it is called there, for a child of so many tokens.
    pub fn ask_parent(
        &mut self,
        peer: PeerKey,
        parent: &RequestId,
        isolation: &Isolation,
        tokens: u64,
        within: Duration,
        now: Timestamp,
    ) -> Result<AskKey, Miss> {
        self.speaks(peer)?;
        let ask = self.abroad.asks.ask(peer, parent, isolation, tokens, within, now);
        self.drain_abroad(now);
        ask
    }

    /// Something has happened that may be an answer.
    pub(super) fn abroad_hears(&mut self, event: &Event, now: Timestamp) {
        self.abroad.asks.handle(event);
        self.drain_abroad(now);
    }

    pub(super) fn abroad_expires(&mut self, now: Timestamp) {
        if self.abroad.deadline() <= now {
            self.abroad.asks.expire(now);
            self.drain_abroad(now);
        }
    }

    fn drain_abroad(&mut self, now: Timestamp) {
        while let Some((key, answer)) = self.abroad.asks.next_answer() {
            let answer = answer.and_then(|lent| self.borrow_parent(lent, now));
            match answer {
                Ok(lent) if self.abroad.forgotten.remove(&key) => {
                    self.return_parent(lent.peer, LeaseId(lent.terms.lease), false);
                }
                answer if self.abroad.forgotten.remove(&key) => drop(answer),
                answer => drop(self.abroad.answers.insert(key, answer)),
            }
        }
        self.actions.extend(std::iter::from_fn(|| self.abroad.asks.poll_action()));
    }

    /// Takes what another engine lends, if it can be so.
    fn borrow_parent(&mut self, lent: LentParent, now: Timestamp) -> Result<LentParent, Miss> {
        let Terms { lease, ttl_ms, layout: number, layout_generation: generation } = lent.terms;
        let layout = self.partners.theirs_at(lent.peer, LayoutKey { number, generation }).ok_or(Miss::Senseless)?;
        let holds = lent.blocks.len() as u64 * u64::from(layout.block_tokens());
        if holds != lent.tokens || lent.blocks.iter().any(|block| *block >= layout.blocks()) {
            return Err(Miss::Senseless);
        }
        let ttl = Duration::from_millis(ttl_ms.into());
        self.borrow(lent.peer, LeaseId(lease), Borrowed::Pin, ttl, now).map_err(|_| Miss::Crowded)?;
        Ok(lent)
    }

    /// The answer to a question, once it is there. What was lent is to be given back by [`TransferManager::give_back_parent`].
    pub fn parent_lent(&mut self, ask: AskKey) -> Option<Result<LentParent, Miss>> {
        self.abroad.answers.remove(&ask)
    }

    /// Whether it is there.
    pub fn has_parent(&self, ask: AskKey) -> bool {
        self.abroad.answers.contains_key(&ask)
    }

    /// Nobody waits for an answer any more. What is lent all the same is given back.
    pub fn stop_asking(&mut self, ask: AskKey) {
        match self.abroad.answers.remove(&ask) {
            Some(Ok(lent)) => self.return_parent(lent.peer, LeaseId(lent.terms.lease), false),
            Some(Err(_)) => {}
            None => drop(self.abroad.forgotten.insert(ask)),
        }
    }

    /// Nothing is read of it any more. If somebody is to know whether the lease stood until now, [`TransferManager::parent_stood`] says it.
    pub fn give_back_parent(&mut self, lent: &LentParent, is_watched: bool) {
        self.return_parent(lent.peer, LeaseId(lent.terms.lease), is_watched);
    }

    /// Nobody wants anything more of it, and it cannot be said that nothing reads it any more: its lease ends by the lender's clock.
    pub fn leave_parent(&mut self, lent: &LentParent) {
        self.end_borrowing(lent.peer, LeaseId(lent.terms.lease));
    }

    fn return_parent(&mut self, peer: PeerKey, lease: LeaseId, is_watched: bool) {
        if !self.lending.is_borrowed(peer, lease) {
            // It has ended before.
            if is_watched {
                let returned = Returned { stood: Some(Err(Miss::Expired)), is_watched };
                self.abroad.returned.insert((peer, lease), returned);
            }
            return;
        }
        self.abroad.returned.insert((peer, lease), Returned { stood: None, is_watched });
        // A lease of no transfer: the lender knows it by its number.
        let head = TransferHead { transfer: TransferId::from_bytes([0; 16]), side: Side::Sink, rank: 0, ranks: 1 };
        self.say(peer, ControlMessage::Ack(Ack { head, lease: Some(lease.0) }));
    }

    /// Whether a lease that was given back stood until then, once that is known. It is said once.
    pub fn parent_stood(&mut self, lent: &LentParent) -> Option<Result<(), Miss>> {
        let key = (lent.peer, LeaseId(lent.terms.lease));
        let stood = self.abroad.returned.get(&key)?.stood?;
        self.abroad.returned.remove(&key);
        Some(stood)
    }

    /// Whether that is known.
    pub fn knows_parent_stood(&self, lent: &LentParent) -> bool {
        let key = (lent.peer, LeaseId(lent.terms.lease));
        self.abroad.returned.get(&key).is_none_or(|returned| returned.stood.is_some())
    }

    /// Nobody asks any more whether it stood.
    pub fn forget_parent(&mut self, lent: &LentParent) {
        let key = (lent.peer, LeaseId(lent.terms.lease));
        if let Some(returned) = self.abroad.returned.get_mut(&key) {
            returned.is_watched = false;
            if returned.stood.is_some() {
                self.abroad.returned.remove(&key);
            }
        }
    }

    /// A lender answers. Says whether that was of a parent's lease.
    pub(super) fn hear_parent_acked(&mut self, peer: PeerKey, acked: &LeaseVerdict) -> bool {
        let lease = LeaseId(acked.lease);
        if self.abroad.returned.get(&(peer, lease)).is_none_or(|returned| returned.stood.is_some()) {
            return false;
        }
        self.end_borrowing(peer, lease);
        self.parent_is_over(peer, lease, if acked.is_valid { Ok(()) } else { Err(Miss::Expired) });
        true
    }

    /// A lease under which a parent is read is over.
    pub(super) fn parent_is_over(&mut self, peer: PeerKey, lease: LeaseId, stood: Result<(), Miss>) {
        match self.abroad.returned.get_mut(&(peer, lease)) {
            Some(returned) if returned.is_watched => returned.stood = Some(stood),
            Some(_) => drop(self.abroad.returned.remove(&(peer, lease))),
            // It is still read: whoever does hears of it when it gives it back.
            None => {}
        }
        self.tell();
    }
}

#[cfg(test)]
mod tests;
