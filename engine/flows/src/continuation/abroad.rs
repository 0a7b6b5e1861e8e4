//! Parents of other engines: asked for by a frame, lent under a lease.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use penstock_core::Timestamp;
use penstock_session::control::{BLOCKS_MAX, ControlMessage, PinAnswer, PinAsk};
use penstock_session::{PeerKey, RequestId};

use super::inherit::{Isolation, Miss};
use super::pins::{Child, Identity, Inherited, Pins};
use crate::action::Action;
use crate::event::Event;

/// What a lender lends under: a lease that the caller has made, and where the blocks are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// The lease.
    pub lease: u64,
    /// How long it stands without being renewed.
    pub ttl_ms: u32,
    /// The layout of the blocks.
    pub layout: u32,
    /// Which use of that number.
    pub layout_generation: u32,
}

impl Pins {
    /// Answers another engine. What it gets is its own until [`lease_over`](Self::lease_over); nothing, if the lease is not needed.
    /// A parent that is still running is a miss: nobody waits for it at a distance.
    pub fn answer_peer(
        &mut self,
        peer: PeerKey,
        ask: &PinAsk,
        terms: Terms,
        now: Timestamp,
    ) -> (ControlMessage, Option<Inherited>) {
        let child = Child::Lease(peer, terms.lease);
        let parent = RequestId::new(&ask.parent).map_err(|_| Miss::NoParent);
        let identity = Identity::Digest(&ask.isolation);
        let taken = parent.and_then(|parent| self.take(&parent, &identity, ask.tokens, None, &child, now));
        let Terms { lease, ttl_ms, layout, layout_generation } = terms;
        let nothing = PinAnswer {
            ask: ask.ask,
            code: 0,
            lease: 0,
            ttl_ms: 0,
            layout,
            layout_generation,
            tokens: 0,
            blocks: vec![],
        };
        match taken {
            Ok(inherited) => {
                let (tokens, blocks) = (inherited.tokens, inherited.groups.first().cloned().unwrap_or_default());
                (ControlMessage::PinAnswer(PinAnswer { lease, ttl_ms, tokens, blocks, ..nothing }), Some(inherited))
            }
            Err(miss) => (ControlMessage::PinAnswer(PinAnswer { code: miss.code(), ..nothing }), None),
        }
    }

    /// A lease has ended, and its reader is in no copy any more. Whether it had blocks.
    pub fn lease_over(&mut self, peer: PeerKey, lease: u64) -> bool {
        self.give_up_all(&Child::Lease(peer, lease)) > 0
    }
}

/// What another engine has lent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lent {
    /// Who.
    pub peer: PeerKey,
    /// Under which lease, and where.
    pub terms: Terms,
    /// How many tokens.
    pub tokens: u64,
    /// Its blocks.
    pub blocks: Vec<u32>,
}

/// A question to another engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AskKey(u64);

struct Asked {
    peer: PeerKey,
    tokens: u64,
    until: Timestamp,
}

/// Questions to other engines, each answered once, by the engine that was asked or by time.
pub struct Asks {
    most: usize,
    next: u64,
    asked: BTreeMap<u64, Asked>,
    answers: VecDeque<(AskKey, Result<Lent, Miss>)>,
    actions: VecDeque<Action>,
    strays: u64,
}

impl Asks {
    /// At most so many that are not answered, or whose answer was not fetched.
    pub fn new(most: usize) -> Self {
        Self { most, next: 0, asked: BTreeMap::new(), answers: VecDeque::new(), actions: VecDeque::new(), strays: 0 }
    }

    /// Asks an engine for a parent as it is called there, for a child of so many tokens.
    pub fn ask(
        &mut self,
        peer: PeerKey,
        parent: &RequestId,
        isolation: &Isolation,
        tokens: u64,
        within: Duration,
        now: Timestamp,
    ) -> Result<AskKey, Miss> {
        if self.asked.len() + self.answers.len() >= self.most {
            return Err(Miss::Crowded);
        }
        self.next += 1;
        let (ask, parent, isolation) = (self.next, parent.as_str().to_owned(), isolation.digest());
        self.asked.insert(ask, Asked { peer, tokens, until: now + within });
        self.actions
            .push_back(Action::Say { peer, said: ControlMessage::PinAsk(PinAsk { ask, parent, isolation, tokens }) });
        Ok(AskKey(ask))
    }

    /// Something has happened, perhaps an answer.
    pub fn handle(&mut self, event: &Event) {
        match event {
            Event::Said { peer, said: ControlMessage::PinAnswer(answer) } => self.heard(*peer, answer),
            Event::Left { peer, .. } => {
                let of_it = self.asked.iter().filter(|(_, asked)| asked.peer == *peer);
                let asks: Vec<u64> = of_it.map(|(ask, _)| *ask).collect();
                asks.into_iter().for_each(|ask| self.settle(ask, Err(Miss::PeerLost)));
            }
            _ => {}
        }
    }

    fn heard(&mut self, peer: PeerKey, answer: &PinAnswer) {
        let Some(asked) = self.asked.get(&answer.ask).filter(|asked| asked.peer == peer) else {
            // Too late, twice, or from somebody else. A lease that nobody renews ends by itself.
            self.strays += 1;
            return;
        };
        let makes_sense = (1..asked.tokens).contains(&answer.tokens)
            && (1..=BLOCKS_MAX).contains(&answer.blocks.len())
            && answer.blocks.len() as u64 <= answer.tokens
            && answer.tokens.is_multiple_of(answer.blocks.len() as u64);
        let PinAnswer { ask, code, lease, ttl_ms, layout, layout_generation, tokens, .. } = *answer;
        let terms = Terms { lease, ttl_ms, layout, layout_generation };
        let result = match code {
            0 if makes_sense => Ok(Lent { peer, terms, tokens, blocks: answer.blocks.clone() }),
            0 => Err(Miss::Senseless),
            code => Err(Miss::of_code(code)),
        };
        self.settle(ask, result);
    }

    fn settle(&mut self, ask: u64, result: Result<Lent, Miss>) {
        if self.asked.remove(&ask).is_some() {
            self.answers.push_back((AskKey(ask), result));
            self.actions.push_back(Action::Tell);
        }
    }

    /// Time has passed.
    pub fn expire(&mut self, now: Timestamp) {
        let late = self.asked.iter().filter(|(_, asked)| asked.until <= now);
        let late: Vec<u64> = late.map(|(ask, _)| *ask).collect();
        late.into_iter().for_each(|ask| self.settle(ask, Err(Miss::Late)));
    }

    /// When time has to be looked at again.
    pub fn deadline(&self) -> Option<Timestamp> {
        self.asked.values().map(|asked| asked.until).min()
    }

    /// The next answer.
    pub fn next_answer(&mut self) -> Option<(AskKey, Result<Lent, Miss>)> {
        self.answers.pop_front()
    }

    /// The next thing that is to be done.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Answers that nobody had asked for, or not any more.
    pub fn strays(&self) -> u64 {
        self.strays
    }
}
