//! The blocks of requests that have ended, kept for their children, and who has some of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use penstock_core::Timestamp;
use penstock_core::planted::{self, Bug};
use penstock_session::machine::Step;
use penstock_session::{PeerKey, RequestId};

use super::blobs::Blobs;
use super::inherit::{Group, Isolation, Miss};
use super::{GROUPS_MAX, Home, MEDIA_MAX, Parent, PinError, PinMetrics, PinSettings};
use crate::action::{Action, BlocksRef};

mod taking;
mod waiting;

pub(super) use taking::Identity;
use waiting::Waiter;

penstock_session::machine! {
    /// The blocks of one parent.
    pub Pin on PinEvent {
        states {
            /// They are kept, and nobody has any.
            Held,
            /// Children have some.
            Used,
            /// Children have some, and nobody else gets any.
            Doomed,
        }
        ends {
            /// They are free.
            Gone,
        }
        events {
            /// A child takes some.
            Inherit,
            /// A child gives them back, and others still have some.
            GiveUp,
            /// The last child gives them back.
            GiveUpLast,
            /// Their time is over, or others of the same parent take their place.
            Expire,
            /// Room is needed for others.
            Evict,
        }
        Held { Inherit => Used, Expire => Gone, Evict => Gone }
        Used { Inherit => Used, GiveUp => Used, GiveUpLast => Held, Expire => Doomed, Evict => Used }
        Doomed { GiveUp => Doomed, GiveUpLast => Gone, Expire => Doomed, Evict => Doomed }
    }
}

/// The blocks of one parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PinKey(u64);

/// One child's part of them, as it was given once: who asks twice has two. It is given back by this and no other, as often as one likes:
/// there is no count that could go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UseKey(u64);

/// Somebody who waits for a parent to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct WaitKey(u64);

/// Who inherits. The same child that asks again gets the same blocks once more, and gives them back once more.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Child {
    /// A request of this engine.
    Request(RequestId),
    /// Another engine, under a lease of this number.
    Lease(PeerKey, u64),
}

/// What a child asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ask {
    /// Who asks.
    pub child: Child,
    /// Of whom.
    pub parent: RequestId,
    /// What the child is.
    pub isolation: Isolation,
    /// How many tokens the child has.
    pub tokens: u64,
    /// What is hashed of each of its whole blocks, for each group, to be compared with the parent's.
    pub hashes: Option<Vec<Vec<u64>>>,
}

/// What a child has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inherited {
    /// How many tokens it need not compute.
    pub tokens: u64,
    /// The blocks of these tokens, of each group. They are shared: nobody writes to them.
    pub groups: Vec<Vec<u32>>,
    /// So many tokens behind those have data too: to be copied, or computed again.
    pub tail_tokens: u64,
    /// By what it is given back.
    pub key: UseKey,
}

/// What came of a question that could wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waited {
    /// This, at once.
    Now(Result<Inherited, Miss>),
    /// Nothing yet, as the parent is running: [`Pins::next_answer`] gives it.
    Later(WaitKey),
}

struct Held {
    state: Pin,
    parent: RequestId,
    isolation: Isolation,
    digest: [u8; 32],
    groups: Vec<Group>,
    keep: Vec<BlocksRef>,
    bytes: u64,
    until: Timestamp,
    uses: BTreeSet<UseKey>,
}

struct Use {
    pin: PinKey,
    child: Child,
    tokens: u64,
    reach: u64,
}

/// Pins, bounded in number, bytes and time. The oldest one makes room, and never one that a child has blocks of.
pub struct Pins {
    settings: PinSettings,
    home: Home,
    next: u64,
    pins: BTreeMap<PinKey, Held>,
    by_parent: BTreeMap<RequestId, PinKey>,
    bytes: u64,
    uses: BTreeMap<UseKey, Use>,
    by_child: BTreeSet<(Child, UseKey)>,
    /// How many of them are other engines.
    lent: usize,
    running: BTreeMap<RequestId, Isolation>,
    waiting: VecDeque<Waiter>,
    answers: VecDeque<(WaitKey, Result<Inherited, Miss>)>,
    blobs: Blobs,
    actions: VecDeque<Action>,
    metrics: PinMetrics,
}

impl Pins {
    /// Whether these are its own; if not, says which rank it is.
    pub fn is_as(&self, settings: &PinSettings, home: &Home) -> Result<(), PinError> {
        if (&self.settings, &self.home) == (settings, home) {
            Ok(())
        } else {
            Err(PinError::OpenOtherwise { rank: self.home.rank })
        }
    }

    /// None yet, of the engine at `home`.
    pub fn new(settings: PinSettings, home: Home) -> Self {
        Self {
            settings,
            home,
            next: 0,
            pins: BTreeMap::new(),
            by_parent: BTreeMap::new(),
            bytes: 0,
            uses: BTreeMap::new(),
            by_child: BTreeSet::new(),
            lent: 0,
            running: BTreeMap::new(),
            waiting: VecDeque::new(),
            answers: VecDeque::new(),
            blobs: Blobs::new(settings.blobs, settings.blob_bytes),
            actions: VecDeque::new(),
            metrics: PinMetrics::default(),
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// A request runs that may become a parent: whoever asks for it hears so, or waits.
    pub fn runs(&mut self, parent: RequestId, isolation: Isolation) -> Result<(), PinError> {
        if isolation.media.len() > MEDIA_MAX {
            return Err(PinError::Media { found: isolation.media.len() });
        }
        if self.running.len() >= self.settings.running && !self.running.contains_key(&parent) {
            return Err(PinError::TooManyRunning { most: self.settings.running });
        }
        self.running.insert(parent, isolation);
        Ok(())
    }

    /// It has ended and nothing of it is kept. Whoever waited for it is told.
    pub fn ended(&mut self, parent: &RequestId, now: Timestamp) {
        if self.running.remove(parent).is_some() {
            self.wake(parent, now);
        }
    }

    /// Keeps the blocks of a request that ends, for its children. To be called before any of them is freed: see [`finish`](super::finish).
    /// What was kept of a request of the same name makes way. An error keeps nothing and changes nothing.
    pub fn pin(
        &mut self,
        parent: Parent,
        keep: Vec<BlocksRef>,
        ttl: Duration,
        now: Timestamp,
    ) -> Result<PinKey, PinError> {
        let bytes = self.check(&parent)?;
        self.expire(now);
        let before = self.by_parent.get(&parent.request).copied();
        let victims = self.make_room(bytes, before)?;
        if let Some(before) = before {
            self.go(before, PinEvent::Expire, Miss::Expired);
        }
        for victim in victims {
            self.metrics.evicted += 1;
            self.go(victim, PinEvent::Evict, Miss::Evicted);
        }
        let Parent { request, isolation, groups, blob } = parent;
        let key = PinKey(self.number());
        self.bytes += bytes;
        self.by_parent.insert(request.clone(), key);
        self.blobs.keep(request.clone(), isolation.clone(), blob);
        let (digest, until, uses) = (isolation.digest(), now + ttl, BTreeSet::new());
        let held =
            Held { state: Pin::Held, parent: request.clone(), isolation, digest, groups, keep, bytes, until, uses };
        self.pins.insert(key, held);
        self.running.remove(&request);
        self.wake(&request, now);
        Ok(key)
    }

    fn check(&self, parent: &Parent) -> Result<u64, PinError> {
        let found = parent.groups.len();
        if !(1..=GROUPS_MAX).contains(&found) {
            return Err(PinError::Groups { found });
        }
        if parent.isolation.media.len() > MEDIA_MAX {
            return Err(PinError::Media { found: parent.isolation.media.len() });
        }
        if parent.blob.len() > self.blobs.bytes_most() {
            return Err(PinError::BlobTooLarge { found: parent.blob.len(), most: self.blobs.bytes_most() });
        }
        let mut bytes = 0_u64;
        for (group, it) in parent.groups.iter().enumerate() {
            if it.block_tokens == 0 || it.block_bytes == 0 {
                return Err(PinError::EmptyBlocks { group });
            }
            let room = it.blocks.len() as u64 * u64::from(it.block_tokens);
            if it.computed > room {
                return Err(PinError::NoDataOf { group, computed: it.computed, room });
            }
            if it.hashes.len() > it.blocks.len() {
                return Err(PinError::Hashes { group, hashes: it.hashes.len(), blocks: it.blocks.len() });
            }
            bytes = bytes.saturating_add(it.block_bytes.saturating_mul(it.blocks.len() as u64));
        }
        if bytes > self.settings.bytes {
            return Err(PinError::TooLarge { bytes, most: self.settings.bytes });
        }
        Ok(bytes)
    }

    /// Who has to go so that so many bytes have room, oldest first; `before` goes anyway.
    fn make_room(&self, bytes: u64, before: Option<PinKey>) -> Result<Vec<PinKey>, PinError> {
        let is_unused = |key: &PinKey| self.pins.get(key).is_some_and(|held| held.state == Pin::Held);
        let goes = before.filter(is_unused).and_then(|key| self.pins.get(&key));
        let (mut count, mut held) = (self.pins.len(), self.bytes);
        if let Some(goes) = goes {
            (count, held) = (count - 1, held - goes.bytes);
        }
        let mut victims = Vec::new();
        let mut oldest = self.pins.iter().filter(|(key, held)| held.state == Pin::Held && Some(**key) != before);
        while count >= self.settings.count || held.saturating_add(bytes) > self.settings.bytes {
            let Some((key, victim)) = oldest.next() else { return Err(PinError::InUse { bytes, held }) };
            victims.push(*key);
            (count, held) = (count - 1, held - victim.bytes);
        }
        Ok(victims)
    }

    /// Lets a pin go before its time, if children have no blocks of it; otherwise when the last one has given its own back.
    pub fn unpin(&mut self, key: PinKey) {
        self.go(key, PinEvent::Expire, Miss::Expired);
    }

    fn go(&mut self, key: PinKey, event: PinEvent, why: Miss) {
        let is_lent = self.uses.values().any(|its| its.pin == key && matches!(its.child, Child::Lease(..)));
        let Some(held) = self.pins.get_mut(&key) else { return };
        let Step::Go(next) = held.state.step(event) else { return };
        held.state = next;
        if is_lent && planted::is(Bug::PinFreedUnderALease) {
            self.actions.extend(held.keep.drain(..).map(|ticket| Action::Free { ticket }));
        }
        held.until = Timestamp::NEVER;
        let parent = held.parent.clone();
        if self.by_parent.get(&parent) == Some(&key) {
            self.by_parent.remove(&parent);
            self.blobs.set_gone(&parent, why);
        }
        self.take_out(key);
    }

    /// Frees a pin that is gone.
    fn take_out(&mut self, key: PinKey) {
        if self.pins.get(&key).is_none_or(|held| !held.state.is_end()) {
            return;
        }
        let Some(held) = self.pins.remove(&key) else { return };
        self.bytes -= held.bytes;
        self.actions.extend(held.keep.into_iter().map(|ticket| Action::Free { ticket }));
    }

    /// What the parent's caller has left, as long as it is remembered, with blocks or without; and where a child is best placed.
    pub fn blob(&self, parent: &RequestId, isolation: &Isolation) -> Option<(&[u8], &Home)> {
        let memory = self.blobs.get(parent).filter(|memory| isolation.differs(&memory.isolation).is_none())?;
        Some((&memory.blob, &self.home))
    }

    /// Time has passed.
    pub fn expire(&mut self, now: Timestamp) {
        let over = self.pins.iter().filter(|(_, held)| held.until <= now);
        let over: Vec<PinKey> = over.map(|(key, _)| *key).collect();
        for key in over {
            self.metrics.expired += 1;
            self.go(key, PinEvent::Expire, Miss::Expired);
        }
        let (waiting, late) = std::mem::take(&mut self.waiting).into_iter().partition(|waiter| waiter.until > now);
        self.waiting = waiting;
        let late: VecDeque<Waiter> = late;
        late.into_iter().for_each(|waiter| self.answer(waiter.key, Err(Miss::Running)));
    }

    /// When time has to be looked at again.
    pub fn deadline(&self) -> Option<Timestamp> {
        let pins = self.pins.values().map(|held| held.until);
        let waiters = self.waiting.iter().map(|waiter| waiter.until);
        pins.chain(waiters).filter(|until| *until != Timestamp::NEVER).min()
    }

    /// The next thing that is to be done.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// The pin of a parent, if its blocks are kept.
    pub fn pin_of(&self, parent: &RequestId) -> Option<PinKey> {
        self.by_parent.get(parent).copied()
    }

    /// The state of a pin that is not gone.
    pub fn state(&self, key: PinKey) -> Option<Pin> {
        self.pins.get(&key).map(|held| held.state)
    }

    /// How it is doing.
    pub fn metrics(&self) -> PinMetrics {
        let (blobs, blob_bytes) = self.blobs.size();
        let doomed = self.pins.values().filter(|held| held.state == Pin::Doomed).count();
        let used = self.pins.values().filter(|held| !held.uses.is_empty()).count();
        let (pins, bytes, uses) = (self.pins.len(), self.bytes, self.uses.len());
        PinMetrics { pins, bytes, uses, used, doomed, waiting: self.waiting.len(), blobs, blob_bytes, ..self.metrics }
    }

    /// Whether nothing is kept but blobs.
    pub fn is_empty(&self) -> bool {
        self.pins.is_empty() && self.uses.is_empty() && self.waiting.is_empty() && self.answers.is_empty()
    }

    /// What does not agree with itself, in words: nothing, unless there is a mistake here.
    pub fn check_counts(&self) -> Result<(), &'static str> {
        let agrees = |held: &Held| match held.state {
            Pin::Held => held.uses.is_empty(),
            Pin::Used | Pin::Doomed => !held.uses.is_empty(),
            Pin::Gone => false,
        };
        let is_used = |(key, its): (&UseKey, &Use)| {
            self.pins.get(&its.pin).is_some_and(|held| held.uses.contains(key))
                && self.by_child.contains(&(its.child.clone(), *key))
        };
        let uses: usize = self.pins.values().map(|held| held.uses.len()).sum();
        let bytes: u64 = self.pins.values().map(|held| held.bytes).sum();
        let lent = self.uses.values().filter(|its| matches!(its.child, Child::Lease(..))).count();
        let rules: [(bool, &str); 7] = [
            (lent == self.lent, "what other engines have is counted otherwise than it is lent"),
            (self.pins.values().all(agrees), "a pin's state is not that of its children"),
            (self.uses.iter().all(is_used), "a child has blocks of a pin that does not know it"),
            (uses == self.uses.len() && uses == self.by_child.len(), "children are counted twice"),
            (bytes == self.bytes && bytes <= self.settings.bytes, "bytes are counted otherwise than they are kept"),
            (self.pins.len() <= self.settings.count, "there are more pins than there may be"),
            (self.blobs.agrees(), "blobs are counted otherwise than they are kept"),
        ];
        rules.iter().find(|(holds, _)| !holds).map_or(Ok(()), |(_, words)| Err(words))
    }
}
