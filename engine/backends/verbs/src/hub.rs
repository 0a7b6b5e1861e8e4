//! What a worker's driver and its lanes share: a CQ on each adapter, the queues on them, and what has come for each lane.
//!
//! A worker and its lanes use it from one thread; queues are made and taken away by the control thread as well. A driver that
//! finds it locked looks again in its next turn.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

use penstock_ring::ReadyBits;

use crate::adapter::{Adapter, AdapterError, AsyncEvent, QpFactory, QueuePair, Wc, WorkCompletion, WorkerCq};
use crate::receives::Receives;
use crate::slab::RegisteredSlots;

/// Completions that are taken at once.
const POLLED_AT_ONCE: usize = 64;

/// How often a CQ is polled in a turn while it has completions.
const POLLS_PER_TURN: usize = 4;

pub(crate) struct Hub {
    inner: Mutex<Inner>,
}

/// How large CQs are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CqSize {
    pub(crate) completions: usize,
    pub(crate) receives: usize,
}

/// Something for a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HubItem {
    /// The place of the channel in its lane.
    pub(crate) channel: u16,
    /// The rail of the link.
    pub(crate) rail: u8,
    pub(crate) what: HubEvent,
}

impl HubItem {
    /// Whether somebody may be told of bytes for it: it is a message, or what this side has asked for has ended well.
    pub(crate) fn may_follow_bytes(&self) -> bool {
        let HubEvent::Done { done, .. } = self.what else { return false };
        matches!(done.result, Wc::Recv { .. } | Wc::Send)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum HubEvent {
    /// A completion. If it is a message, its bytes are in a slot of this CQ until it is given back.
    Done { cq: u8, done: WorkCompletion },
    /// Something has happened to the adapter, or to the queue.
    Event(AsyncEvent),
}

/// What is behind the lock.
pub(crate) struct Inner {
    cqs: Vec<Place>,
    inboxes: Inboxes,
    /// When a turn began that has looked at the clock.
    now: Option<Instant>,
}

/// What waits for the worker's lanes.
struct Inboxes {
    list: Vec<Inbox>,
    free: Vec<u32>,
    /// Where it is marked which lane has something.
    ready: ReadyBits,
    /// No lane is to be polled before this although nothing has come.
    earliest: Option<Instant>,
}

/// What waits for one lane. It is bounded by what its queues can have under way.
#[derive(Default)]
struct Inbox {
    /// The place of the lane among the worker's.
    peer_index: Option<u32>,
    items: VecDeque<HubItem>,
    /// When the lane is to be polled although nothing has come.
    look: Option<Instant>,
}

/// A CQ of one adapter, and its queues.
struct Place {
    cq: Box<dyn WorkerCq>,
    adapter: Arc<dyn Adapter>,
    queues: HashMap<u32, Placed, BuildHasherDefault<NumberHash>>,
    size: CqSize,
    /// Completions that its queues may have.
    completions: usize,
    receives: Receives,
    /// Room for what is taken at once, which a poll that finds nothing does not touch.
    found: Box<[WorkCompletion; POLLED_AT_ONCE]>,
    /// The CQ itself has failed: so have all its queues.
    is_broken: bool,
    /// Its adapter has failed: it takes no new queues.
    is_dead: bool,
}

/// A queue on a CQ.
#[derive(Debug, Clone, Copy)]
struct Placed {
    inbox: u32,
    channel: u16,
    /// Until a lane has it, it is no rail's.
    rail: Option<u8>,
    requests: usize,
    grants: usize,
    /// It is not in the middle of a message that goes into a receive of a lower number.
    seen: u64,
}

/// Room for a queue that is about to be made.
struct Reserved {
    maker: Arc<dyn QpFactory>,
    on: Arc<dyn Adapter>,
    /// Its receives have to be made, too.
    needs_slots: bool,
}

/// Queue numbers are an adapter's own and as good as random below a few thousand.
#[derive(Default)]
struct NumberHash(u64);

impl Hasher for NumberHash {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}

impl Hub {
    /// A hub with a CQ on each adapter, of the worker with these ready bits.
    pub(crate) fn open(adapters: &[Arc<dyn Adapter>], wanted: CqSize, ready: ReadyBits) -> Result<Self, AdapterError> {
        let place = |adapter: &Arc<dyn Adapter>| {
            let attr = adapter.attr();
            let size = CqSize {
                completions: wanted.completions.min(attr.completions_max),
                receives: wanted.receives.min(attr.receives_max),
            };
            let cq = adapter.worker_cq(size.completions, size.receives)?;
            let (adapter, queues, receives) = (Arc::clone(adapter), HashMap::default(), Receives::default());
            let found = Box::new([WorkCompletion::default(); POLLED_AT_ONCE]);
            Ok(Place { cq, adapter, queues, size, completions: 0, receives, found, is_broken: false, is_dead: false })
        };
        let cqs = adapters.iter().map(place).collect::<Result<_, AdapterError>>()?;
        let inboxes = Inboxes { list: Vec::new(), free: Vec::new(), ready, earliest: None };
        Ok(Self { inner: Mutex::new(Inner { cqs, inboxes, now: None }) })
    }

    /// Makes a queue on the CQ of this adapter, and gives the adapter the receives that it may need. The worker does not wait meanwhile.
    pub(crate) fn queue(
        &self,
        adapter: usize,
        inbox: u32,
        channel: u16,
        (requests, grants): (usize, usize),
    ) -> Result<Box<dyn QueuePair>, AdapterError> {
        let Reserved { maker, on, needs_slots } = self.lock().reserve(adapter, requests, grants)?;
        let slots = if needs_slots { RegisteredSlots::new([&on], grants).map(Some) } else { Ok(None) };
        let made = slots.and_then(|slots| Ok((maker.queue(requests)?, slots)));
        let mut inner = self.lock();
        let place = &mut inner.cqs[adapter];
        place.receives.unreserve(grants, made.is_ok());
        let (queue, slots) = match made {
            Ok(made) => made,
            Err(error) => {
                place.completions -= requests + grants;
                return Err(error);
            }
        };
        if let Some(slots) = slots {
            place.receives.add(slots);
        }
        let seen = place.receives.next();
        place.queues.insert(queue.number(), Placed { inbox, channel, rail: None, requests, grants, seen });
        if let Err(error) = place.supply() {
            inner.forget_queue(adapter, queue.number());
            return Err(error);
        }
        Ok(queue)
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Unless somebody else has it now.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, Inner>> {
        match self.inner.try_lock() {
            Ok(inner) => Some(inner),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

impl Inboxes {
    /// Something is there for a lane.
    fn put(&mut self, inbox: u32, item: HubItem) {
        let inbox = &mut self.list[inbox as usize];
        // A port may go up and down without end: that it has is enough.
        if !matches!(item.what, HubEvent::Event(_)) || !inbox.items.contains(&item) {
            inbox.items.push_back(item);
        }
        if let Some(peer_index) = inbox.peer_index {
            self.ready.mark(peer_index as usize);
        }
    }

    /// Marks the lanes whose time has come. Returns whether there were any.
    fn look(&mut self, now: Instant) -> bool {
        if self.earliest.is_none_or(|earliest| now < earliest) {
            return false;
        }
        let mut any = false;
        for inbox in self.list.iter_mut().filter(|inbox| inbox.look.is_some_and(|look| look <= now)) {
            inbox.look = None;
            if let Some(peer_index) = inbox.peer_index {
                self.ready.mark(peer_index as usize);
                any = true;
            }
        }
        self.earliest = self.list.iter().filter_map(|inbox| inbox.look).min();
        any
    }
}

impl Inner {
    /// A new inbox, of the lane at this place among the worker's.
    pub(crate) fn new_inbox(&mut self, peer_index: u32) -> u32 {
        let Inboxes { list, free, .. } = &mut self.inboxes;
        let place = free.pop().unwrap_or(list.len() as u32);
        if place as usize == list.len() {
            list.push(Inbox::default());
        }
        list[place as usize].peer_index = Some(peer_index);
        place
    }

    /// An inbox is given up, with all that is in it. Its queues are gone.
    pub(crate) fn drop_inbox(&mut self, place: u32) {
        let mut items = std::mem::take(&mut self.inboxes.list[place as usize]).items;
        self.discard(&mut items);
        self.inboxes.free.push(place);
    }

    /// What was taken and will not be seen to.
    pub(crate) fn discard(&mut self, items: &mut VecDeque<HubItem>) {
        for HubItem { what, .. } in items.drain(..) {
            if let HubEvent::Done { cq, done: WorkCompletion { id, result: Wc::Recv { .. }, .. } } = what {
                self.give_back(cq, &[id]);
            }
        }
    }

    /// Sees to it that there is room for another queue. Answers what makes it, and whether its receives have to be made.
    fn reserve(&mut self, adapter: usize, requests: usize, grants: usize) -> Result<Reserved, AdapterError> {
        let place = &mut self.cqs[adapter];
        let name = || place.adapter.attr().name.clone();
        if place.is_dead {
            let why = "it has failed since the engine started".to_owned();
            let mend = "look at the kernel's messages, and start the engine again when it is back".to_owned();
            return Err(AdapterError::NotHere { what: name(), why, mend });
        }
        let has = place.size.completions - place.completions;
        if requests + grants > has {
            let (what, wants) = ("the completions of one more queue", requests + grants);
            return Err(AdapterError::NoRoom { adapter: name(), what, has, wants });
        }
        let has = place.size.receives - place.receives.needed();
        if grants > has {
            return Err(AdapterError::NoRoom {
                adapter: name(),
                what: "the receives of one more queue",
                has,
                wants: grants,
            });
        }
        place.completions += requests + grants;
        let needs_slots = place.receives.reserve(grants);
        Ok(Reserved { maker: place.cq.maker(), on: Arc::clone(&place.adapter), needs_slots })
    }

    /// A queue is of this rail.
    pub(crate) fn assign(&mut self, adapter: usize, number: u32, rail: u8) {
        if let Some(placed) = self.cqs[adapter].queues.get_mut(&number) {
            placed.rail = Some(rail);
        }
    }

    /// A queue will not be heard of any more. Call it when it is reset, and before it is dropped or given back: its number may be another's then.
    pub(crate) fn forget_queue(&mut self, adapter: usize, number: u32) {
        self.drain();
        let place = &mut self.cqs[adapter];
        if let Some(placed) = place.queues.remove(&number) {
            place.completions -= placed.requests + placed.grants;
            place.receives.wanted -= placed.grants;
            place.receives.suspect();
        }
    }

    /// A queue was made new. Call it before it is connected again.
    pub(crate) fn was_made_new(&mut self, adapter: usize, number: u32) {
        self.drain();
        let place = &mut self.cqs[adapter];
        if let Some(placed) = place.queues.get_mut(&number) {
            placed.seen = place.receives.next();
            place.receives.suspect();
        }
    }

    /// The clock, looked at once a turn.
    pub(crate) fn now(&mut self) -> Instant {
        *self.now.get_or_insert_with(Instant::now)
    }

    pub(crate) fn next_turn(&mut self) {
        self.now = None;
    }

    /// Asks all adapters, and marks the lanes that have something. Returns whether any had.
    pub(crate) fn turn(&mut self) -> bool {
        let mut any = false;
        for cq in 0..self.cqs.len() {
            for _ in 0..POLLS_PER_TURN {
                let found = self.poll(cq);
                any |= found > 0;
                if found < POLLED_AT_ONCE {
                    break;
                }
            }
        }
        if self.inboxes.earliest.is_some() {
            let now = self.now();
            any |= self.inboxes.look(now);
        }
        any
    }

    /// Takes all completions that there are.
    pub(crate) fn drain(&mut self) {
        for cq in 0..self.cqs.len() {
            while self.poll(cq) > 0 {}
        }
    }

    /// When a lane is to be polled next although nothing has come.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        self.inboxes.earliest
    }

    /// This lane is to be polled then, at the latest.
    pub(crate) fn look_at(&mut self, inbox: u32, at: Option<Instant>) {
        self.inboxes.list[inbox as usize].look = at;
        let earliest = self.inboxes.earliest.into_iter().chain(at).min();
        self.inboxes.earliest = earliest;
    }

    /// The next completions make the CQs' descriptors readable.
    pub(crate) fn arm(&mut self) {
        for cq in 0..self.cqs.len() {
            if !self.cqs[cq].is_broken
                && let Err(error) = self.cqs[cq].cq.arm()
            {
                self.break_cq(cq, &error);
            }
        }
    }

    /// Whether this adapter has failed.
    pub(crate) fn is_dead(&self, adapter: usize) -> bool {
        self.cqs[adapter].is_dead
    }

    /// The CQ on this adapter.
    pub(crate) fn cq(&self, adapter: usize) -> &dyn WorkerCq {
        &*self.cqs[adapter].cq
    }

    /// Takes completions of a CQ and puts them where they belong. Returns how many.
    fn poll(&mut self, cq: usize) -> usize {
        let place = &mut self.cqs[cq];
        if place.is_broken {
            return 0;
        }
        let count = match place.cq.poll(&mut place.found[..]) {
            Ok(0) => return 0,
            Ok(count) => count,
            Err(error) => {
                self.break_cq(cq, &error);
                return 0;
            }
        };
        let (mut unused, mut slots, mut has_received) = (0, [0; POLLED_AT_ONCE], false);
        for done in &place.found[..count] {
            let received = place.receives.take(done);
            has_received |= received.is_some();
            let placed = place.queues.get_mut(&done.queue).filter(|_| done.result != Wc::Unused);
            if let Some(placed) = placed
                && let Some(rail) = placed.rail
            {
                placed.seen = placed.seen.max(received.unwrap_or(0));
                let Placed { inbox, channel, .. } = *placed;
                let what = HubEvent::Done { cq: cq as u8, done: *done };
                self.inboxes.put(inbox, HubItem { channel, rail, what });
            } else if received.is_some() {
                // Not used, or of a queue that is gone.
                slots[unused] = done.id;
                unused += 1;
            }
        }
        if unused > 0 {
            self.give_back(cq as u8, &slots[..unused]);
        }
        // Which ones were lost is told by those that come after them.
        if has_received && self.cqs[cq].receives.is_suspicious() {
            let now = self.now();
            if let Err(error) = self.cqs[cq].look_for_lost(now) {
                self.break_cq(cq, &error);
            }
        }
        count
    }

    /// The bytes of a message.
    pub(crate) fn read(&self, cq: u8, id: u64, bytes: &mut [u8]) {
        self.cqs[usize::from(cq)].receives.read(id, bytes);
    }

    /// These slots may take other messages.
    pub(crate) fn give_back(&mut self, cq: u8, ids: &[u64]) {
        let place = &mut self.cqs[usize::from(cq)];
        place.receives.give_back(ids);
        if !place.is_broken
            && let Err(error) = place.supply()
        {
            self.break_cq(usize::from(cq), &error);
        }
    }

    /// A CQ has failed: all lanes with a queue there hear of it.
    fn break_cq(&mut self, cq: usize, error: &AdapterError) {
        tracing::error!(%error, "a card's desk has failed: its queues are given up");
        self.cqs[cq].is_broken = true;
        self.event(cq, AsyncEvent::Fatal);
    }

    /// Something has happened to an adapter, or to a queue of it: its lanes hear of it.
    pub(crate) fn event(&mut self, adapter: usize, event: AsyncEvent) {
        self.cqs[adapter].is_dead |= event == AsyncEvent::Fatal;
        for (&number, &Placed { inbox, channel, rail, .. }) in &self.cqs[adapter].queues {
            let Some(rail) = rail else { continue };
            if !matches!(event, AsyncEvent::QueueBroken(its) | AsyncEvent::CmProgress(its) if its != number) {
                self.inboxes.put(inbox, HubItem { channel, rail, what: HubEvent::Event(event) });
            }
        }
    }

    /// Takes what waits for a lane, which has seen to all that it took before.
    pub(crate) fn take(&mut self, inbox: u32, items: &mut VecDeque<HubItem>) {
        debug_assert!(items.is_empty(), "what was taken before was not seen to");
        std::mem::swap(&mut self.inboxes.list[inbox as usize].items, items);
    }

    /// How many receives the adapters have as far as is known, and how many their queues may need.
    #[cfg(test)]
    pub(crate) fn receives(&self) -> (usize, usize) {
        let counts = self.cqs.iter().map(|place| place.receives.counts());
        counts.fold((0, 0), |(given, wanted), its| (given + its.0, wanted + its.1))
    }

    /// How many there are in all.
    #[cfg(test)]
    pub(crate) fn slots(&self) -> usize {
        self.cqs.iter().map(|place| place.receives.counts().2).sum()
    }
}

impl Place {
    /// Gives the adapter as many receives as its queues may need.
    fn supply(&mut self) -> Result<(), AdapterError> {
        self.receives.supply(&mut *self.cq)
    }

    /// Looks for receives that were lost with a queue.
    fn look_for_lost(&mut self, now: Instant) -> Result<(), AdapterError> {
        let floor = self.queues.values().map(|placed| placed.seen).min().unwrap_or(u64::MAX);
        self.receives.look(floor, now, &self.adapter);
        self.supply()
    }
}
