//! All swaps under way, and what may still land.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use penstock_core::planted::{self, Bug};
use penstock_core::{Cause, Direction, Timestamp};
use penstock_session::PeerKey;
use penstock_session::control::BLOCKS_MAX;
use penstock_session::machine::Step;

use super::{Swap, SwapAsk, SwapEvent, SwapKey, SwapNews, SwapWay};
use crate::action::{Action, BlocksRef, MoveId, Moving, Spans, Urgency, WatchId, WholeBlocks};
use crate::event::Event;
use crate::lifecycle::{BlockRef, LifecycleError};

/// How far the move is.
enum Move {
    Running,
    /// It has ended, and its peer may be in a copy of it.
    Open {
        watch: WatchId,
        result: Result<(), Cause>,
    },
    Over,
}

pub(in crate::lifecycle) struct Entry {
    pub(in crate::lifecycle) generation: u64,
    pub(in crate::lifecycle) way: SwapWay,
    pub(in crate::lifecycle) state: Swap,
    peer: PeerKey,
    device: Vec<u32>,
    /// Blocks of the host.
    pub(in crate::lifecycle) host: Vec<BlockRef>,
    source: BlocksRef,
    target: BlocksRef,
    frees_source: bool,
    moving: Move,
    /// When it is late.
    until: Timestamp,
}

impl Entry {
    /// Whether its request goes on without it.
    pub(in crate::lifecycle) fn is_stopped(&self) -> bool {
        !matches!(self.state, Swap::Moving | Swap::Moved)
    }
}

/// What an event has changed, for the request.
pub(in crate::lifecycle) enum Change {
    Failed(u64, SwapWay),
    TimedOut(u64, SwapWay),
}

/// All swaps under way.
pub(in crate::lifecycle) struct Swaps {
    most: usize,
    grace: Duration,
    next: u64,
    entries: BTreeMap<SwapKey, Entry>,
    watches: BTreeMap<WatchId, SwapKey>,
    /// The last swap of each request that has one.
    last: BTreeMap<u64, SwapKey>,
    /// Blocks of the device that swaps may still be at.
    device: BTreeMap<u32, Touched>,
    news: VecDeque<SwapNews>,
    /// How many news there have been.
    told: u64,
}

/// How swaps are at a block.
#[derive(Default)]
struct Touched {
    swaps: u32,
    /// One of them, then the only one, writes.
    is_written: bool,
}

/// How much longer a move may take than its swap, at least.
const MOVE_GRACE: Duration = Duration::from_secs(1);
/// News that one swap can make at most.
const NEWS_EACH: usize = 4;

impl Swaps {
    pub(in crate::lifecycle) fn new(most: usize, grace: Duration, first_id: u64) -> Self {
        Self {
            most,
            grace,
            next: first_id,
            entries: BTreeMap::new(),
            watches: BTreeMap::new(),
            last: BTreeMap::new(),
            device: BTreeMap::new(),
            news: VecDeque::new(),
            told: 0,
        }
    }

    /// Blocks of the device at which swaps of this request may still be.
    pub(in crate::lifecycle) fn blocks_of(&self, generation: u64) -> BTreeSet<u32> {
        let of_it = self.entries.values().filter(|entry| entry.generation == generation);
        of_it.flat_map(|entry| entry.device.iter().copied()).collect()
    }

    /// Whether no swap is at any of these blocks, or if they are only to be read, whether none writes to them.
    pub(in crate::lifecycle) fn check_free(&self, blocks: &[BlockRef], is_read: bool) -> Result<(), LifecycleError> {
        let is_taken =
            |block: &&BlockRef| self.device.get(&block.index).is_some_and(|touched| touched.is_written || !is_read);
        blocks.iter().find(is_taken).map_or(Ok(()), |block| Err(LifecycleError::BlockUnderSwap { block: *block }))
    }

    /// The swap that a request is in.
    pub(in crate::lifecycle) fn current(&self, generation: u64) -> Option<SwapKey> {
        let key = self.last.get(&generation)?;
        self.entries.get(key).filter(|entry| !entry.is_stopped()).map(|_| *key)
    }

    /// Requests that are in a swap.
    pub(in crate::lifecycle) fn current_lives(&self) -> impl Iterator<Item = u64> + '_ {
        self.entries.values().filter(|entry| !entry.is_stopped()).map(|entry| entry.generation)
    }

    /// Whether this can be begun.
    pub(in crate::lifecycle) fn check(&self, ask: &SwapAsk) -> Result<(), LifecycleError> {
        if self.news.len() + NEWS_EACH * (self.entries.len() + 1) > NEWS_EACH * self.most {
            return Err(LifecycleError::TooManySwaps { most: self.most });
        }
        if ask.pairs.is_empty() || ask.path.layers.is_empty() {
            return Err(LifecycleError::NothingToSwap);
        }
        if ask.pairs.len() > BLOCKS_MAX {
            return Err(LifecycleError::SwapTooLarge { asked: ask.pairs.len() });
        }
        let mut hosts: Vec<u32> = ask.pairs.iter().map(|(_, host)| host.index).collect();
        hosts.sort_unstable();
        if let Some(twice) = hosts.windows(2).find(|two| two[0] == two[1]) {
            return Err(LifecycleError::HostBlockTwice { block: twice[0] });
        }
        let blocks: Vec<BlockRef> = ask.pairs.iter().map(|(block, _)| *block).collect();
        self.check_free(&blocks, ask.way == SwapWay::Out)
    }

    /// Begins what was checked.
    pub(in crate::lifecycle) fn begin(
        &mut self,
        generation: u64,
        ask: SwapAsk,
        now: Timestamp,
        actions: &mut VecDeque<Action>,
    ) -> SwapKey {
        let key = SwapKey(self.next);
        self.next += 1;
        let SwapAsk { way, path, pairs, source, target, within } = ask;
        let spans = Spans::Blocks(Box::new(WholeBlocks {
            local: path.host,
            remote: path.device,
            block_bytes: path.block_bytes,
            strides: path.strides,
            layers: path.layers,
            blocks: pairs.iter().map(|(device, host)| (host.index, device.index)).collect(),
        }));
        let direction = match way {
            SwapWay::Out => Direction::Read,
            SwapWay::In => Direction::Write,
        };
        // The swap minds its time by itself; the move's own is the last resort.
        let at_most = within + self.grace.max(MOVE_GRACE);
        let moving = Moving { direction, spans, within: at_most, urgency: Urgency::Urgent, landing: None };
        let device: Vec<u32> = pairs.iter().map(|(device, _)| device.index).collect();
        let host = pairs.into_iter().map(|(_, host)| host).collect();
        for index in &device {
            let touched = self.device.entry(*index).or_default();
            touched.swaps += 1;
            touched.is_written = way == SwapWay::In;
        }
        let (peer, until) = (path.peer, now + within);
        let first = if planted::is(Bug::SwapMovedBeforeItsBytes) { Swap::Moved } else { Swap::Moving };
        let (state, moving_now, frees_source) = (first, Move::Running, false);
        let entry = Entry {
            generation,
            way,
            state,
            peer,
            device,
            host,
            source,
            target,
            frees_source,
            moving: moving_now,
            until,
        };
        self.entries.insert(key, entry);
        self.last.insert(generation, key);
        actions.push_back(Action::Move { id: MoveId(key.0), peer, moving });
        key
    }

    pub(in crate::lifecycle) fn get(&self, key: SwapKey) -> Option<&Entry> {
        self.entries.get(&key)
    }

    /// Goes on with what was written. Gives the ticket of that back.
    pub(in crate::lifecycle) fn commit(&mut self, key: SwapKey, actions: &mut VecDeque<Action>) -> Option<BlocksRef> {
        let entry = self.entries.get_mut(&key)?;
        let Step::Go(next) = entry.state.step(SwapEvent::Commit) else { return None };
        entry.state = next;
        actions.push_back(Action::Free { ticket: entry.source });
        self.take_out(key).map(|entry| entry.target)
    }

    /// Gives a swap up. What was read is freed with it, if nobody needs that any more.
    pub(in crate::lifecycle) fn roll_back(
        &mut self,
        key: SwapKey,
        frees_source: bool,
        now: Timestamp,
        actions: &mut VecDeque<Action>,
    ) {
        let Some(entry) = self.entries.get_mut(&key) else { return };
        if frees_source && !entry.frees_source {
            entry.frees_source = true;
            if entry.state == Swap::Quarantined {
                actions.push_back(quarantine(entry.source, entry.peer));
            }
        }
        let Step::Go(next) = entry.state.step(SwapEvent::RollBack) else { return };
        if planted::is(Bug::FreedUnderARolledBackSwap) {
            actions.push_back(Action::Free { ticket: entry.target });
        }
        entry.state = next;
        if next.is_end() {
            self.over(key, actions);
        } else {
            stop(entry, key, now + self.grace, actions);
        }
    }

    /// The request of these swaps has no use for them any more.
    pub(in crate::lifecycle) fn drop_request(
        &mut self,
        generation: u64,
        now: Timestamp,
        actions: &mut VecDeque<Action>,
    ) {
        let of_it = self.entries.iter().filter(|(_, entry)| entry.generation == generation);
        let keys: Vec<SwapKey> = of_it.map(|(key, _)| *key).collect();
        keys.into_iter().for_each(|key| self.roll_back(key, true, now, actions));
    }

    /// Something has happened, perhaps to one of these.
    pub(in crate::lifecycle) fn handle(
        &mut self,
        event: &Event,
        now: Timestamp,
        actions: &mut VecDeque<Action>,
    ) -> Option<Change> {
        match event {
            Event::Ended { id, result, is_open_there } => {
                let (key, result) = (SwapKey(id.0), (*result).map(|_| ()));
                let entry = self.entries.get_mut(&key).filter(|entry| matches!(entry.moving, Move::Running))?;
                if !is_open_there {
                    return self.settle(key, result, now, actions);
                }
                let watch = WatchId(self.next);
                self.next += 1;
                entry.moving = Move::Open { watch, result };
                actions.push_back(Action::Watch { id: watch, peer: entry.peer });
                self.watches.insert(watch, key);
                let cause = result.err()?;
                self.fail(key, cause, now)
            }
            Event::Closed { id } => self.closed(SwapKey(id.0), now, actions),
            Event::Quiet { id } => {
                let key = self.watches.get(id).copied()?;
                self.closed(key, now, actions)
            }
            _ => None,
        }
    }

    /// What was open there is not any more.
    fn closed(&mut self, key: SwapKey, now: Timestamp, actions: &mut VecDeque<Action>) -> Option<Change> {
        let Move::Open { watch, result } = self.entries.get(&key)?.moving else { return None };
        self.watches.remove(&watch);
        self.settle(key, result, now, actions)
    }

    /// The move has ended, and nothing of it can land any more.
    fn settle(
        &mut self,
        key: SwapKey,
        result: Result<(), Cause>,
        now: Timestamp,
        actions: &mut VecDeque<Action>,
    ) -> Option<Change> {
        let change = result.err().and_then(|cause| self.fail(key, cause, now));
        let entry = self.entries.get_mut(&key)?;
        entry.moving = Move::Over;
        let event = if entry.state == Swap::Moving { SwapEvent::Land } else { SwapEvent::Quiet };
        if let Step::Go(next) = entry.state.step(event) {
            entry.state = next;
        }
        if entry.state == Swap::Moved {
            entry.until = Timestamp::NEVER;
            self.tell(SwapNews::Moved { key });
        } else if entry.state.is_end() {
            self.over(key, actions);
        }
        change
    }

    fn fail(&mut self, key: SwapKey, cause: Cause, now: Timestamp) -> Option<Change> {
        let entry = self.entries.get_mut(&key)?;
        let Step::Go(next) = entry.state.step(SwapEvent::Fault) else { return None };
        entry.state = next;
        entry.until = now + self.grace;
        if cause == Cause::DeadlineExceeded {
            // Whoever noticed first: what is late is dropped, and not rolled back as if bytes could not be moved.
            entry.frees_source = true;
            let change = Change::TimedOut(entry.generation, entry.way);
            self.tell(SwapNews::TimedOut { key });
            return Some(change);
        }
        let change = Change::Failed(entry.generation, entry.way);
        self.tell(SwapNews::Failed { key, cause });
        Some(change)
    }

    /// Time has passed.
    pub(in crate::lifecycle) fn expire(&mut self, now: Timestamp, actions: &mut VecDeque<Action>) -> Vec<Change> {
        let late = self.entries.iter().filter(|(_, entry)| entry.until <= now);
        let late: Vec<SwapKey> = late.map(|(key, _)| *key).collect();
        let mut changes = Vec::new();
        for key in late {
            let Some(entry) = self.entries.get_mut(&key) else { continue };
            let Step::Go(next) = entry.state.step(SwapEvent::Late) else { continue };
            entry.state = next;
            if next == Swap::Stopping {
                entry.frees_source = true;
                stop(entry, key, now + self.grace, actions);
                changes.push(Change::TimedOut(entry.generation, entry.way));
                self.tell(SwapNews::TimedOut { key });
            } else {
                entry.until = Timestamp::NEVER;
                actions.push_back(quarantine(entry.target, entry.peer));
                if entry.frees_source {
                    actions.push_back(quarantine(entry.source, entry.peer));
                }
                self.tell(SwapNews::Quarantined { key });
            }
        }
        changes
    }

    /// When time has to be looked at again.
    pub(in crate::lifecycle) fn deadline(&self) -> Option<Timestamp> {
        self.entries.values().map(|entry| entry.until).filter(|until| *until != Timestamp::NEVER).min()
    }

    pub(in crate::lifecycle) fn next_news(&mut self) -> Option<SwapNews> {
        self.news.pop_front()
    }

    /// Whether what is written of blocks, watches and requests is what the swaps say.
    pub(in crate::lifecycle) fn agrees(&self) -> bool {
        let mut swaps: BTreeMap<u32, u32> = BTreeMap::new();
        for index in self.entries.values().flat_map(|entry| &entry.device) {
            *swaps.entry(*index).or_default() += 1;
        }
        let is_open = |key: &SwapKey, watch: &WatchId| {
            let moving = self.entries.get(key).map(|entry| &entry.moving);
            matches!(moving, Some(Move::Open { watch: its, .. }) if its == watch)
        };
        self.device.iter().map(|(index, touched)| (*index, touched.swaps)).eq(swaps)
            && self.watches.iter().all(|(watch, key)| is_open(key, watch))
            && self.last.values().all(|key| self.entries.contains_key(key))
            && self.entries.values().all(|entry| !entry.state.is_end())
    }

    pub(in crate::lifecycle) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(in crate::lifecycle) fn quarantined(&self) -> usize {
        self.entries.values().filter(|entry| entry.state == Swap::Quarantined).count()
    }

    /// How many news there have been.
    pub(in crate::lifecycle) fn told(&self) -> u64 {
        self.told
    }

    fn tell(&mut self, news: SwapNews) {
        self.told += 1;
        self.news.push_back(news);
    }

    fn over(&mut self, key: SwapKey, actions: &mut VecDeque<Action>) {
        let Some(entry) = self.take_out(key) else { return };
        if !planted::is(Bug::FreedUnderARolledBackSwap) {
            actions.push_back(Action::Free { ticket: entry.target });
        }
        if entry.frees_source {
            actions.push_back(Action::Free { ticket: entry.source });
        }
        if planted::is(Bug::SourceOfTheDeadKept) && entry.frees_source {
            actions.pop_back();
        }
        let kept = (!entry.frees_source).then_some(entry.source);
        self.tell(SwapNews::Over { key, kept });
    }

    fn take_out(&mut self, key: SwapKey) -> Option<Entry> {
        let entry = self.entries.remove(&key)?;
        for index in &entry.device {
            let Some(touched) = self.device.get_mut(index) else { continue };
            touched.swaps -= 1;
            if touched.swaps == 0 {
                self.device.remove(index);
            }
        }
        if self.last.get(&entry.generation) == Some(&key) {
            self.last.remove(&entry.generation);
        }
        Some(entry)
    }
}

/// Stops a move that has not ended, and says by when it should have.
fn stop(entry: &mut Entry, key: SwapKey, until: Timestamp, actions: &mut VecDeque<Action>) {
    entry.until = until;
    if matches!(entry.moving, Move::Running) {
        actions.push_back(Action::Stop { id: MoveId(key.0) });
    }
}

fn quarantine(ticket: BlocksRef, peer: PeerKey) -> Action {
    if planted::is(Bug::NoQuarantineForALateSwap) {
        return Action::Free { ticket };
    }
    Action::Quarantine { ticket, peers: vec![peer], why: "a swap that took too long has not ended" }
}
