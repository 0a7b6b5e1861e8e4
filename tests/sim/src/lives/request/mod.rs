//! One life of a request, as its scheduler has it: what it was given, what was reported of it, and what has to be true of it.

mod swaps;

use std::collections::{BTreeSet, VecDeque};

use penstock::flows::lifecycle::Request as State;
use penstock::flows::{
    BlockRef, DeferSite, FlowError, LifecycleError, RequestId, SchedulerReport, SwapWay, Verdict, block_refs,
};
use penstock::{Blocks, Timestamp};

use super::book::Gone;
use super::content::{Content, broken};
use super::device::Device;
use super::spec::{Life, Step};
use super::swapping::Swapping;
use crate::deed::Script;
use crate::oracle::{GRANTED, Invariant, UNREADY, Violated};
use crate::stage::{BLOCKS, Seat, Stage};

/// The most blocks that are kept for others to find.
const CACHE_MAX: usize = 6;

/// One life.
pub(super) struct Request {
    pub(super) life: usize,
    pub(super) seat: usize,
    pub(super) spec: Life,
    who: String,
    id: RequestId,
    generation: u64,
    /// What its engine has to say that it is; nothing before it is opened.
    state: Option<State>,
    sequences: BTreeSet<u32>,
    next_sequence: u32,
    /// Its blocks of the device: those that were found, then those that are its own alone.
    cached: Vec<Blocks>,
    device: Vec<Blocks>,
    host: Option<Blocks>,
    /// Blocks that were reported, in their order.
    held: Vec<BlockRef>,
    content: Option<Content>,
    computed: usize,
    swap: Option<Swapping>,
    /// Swaps that were given up and may still be at their blocks.
    given_up: Vec<Swapping>,
    /// Blocks of swaps that nobody can ask any more.
    let_go: Vec<BlockRef>,
    wishes: VecDeque<Step>,
    begun: Timestamp,
    ended: Timestamp,
    /// It is over, and nothing of it is.
    pub(super) is_gone: bool,
    /// How its swaps ended.
    pub(super) outcomes: Vec<bool>,
}

/// What a request sends by name: bytes on the host that stay what they are.
pub(super) struct Parcel {
    pub(super) blocks: Blocks,
    pub(super) content: Content,
}

impl Parcel {
    /// Whether whoever is to take it has room for it and more.
    pub(super) fn fits(&self, spec: &Life, stage: &Stage<'_>) -> bool {
        let (from, to) = (stage.seats[spec.at].player(), stage.seats[spec.to].player());
        self.content.tokens(from) <= u64::from(to.block_tokens * BLOCKS / 2)
    }
}

impl Request {
    pub(super) fn new(script: &Script, life: usize, stage: &Stage<'_>) -> Self {
        let spec = script.lives[life];
        let id = RequestId::new(&format!("cmpl {} at {}", spec.request, spec.at)).expect("the text is short");
        Self {
            life,
            seat: spec.at,
            spec,
            who: format!("life {life}"),
            id,
            generation: 0,
            state: None,
            sequences: (0..spec.sequences).collect(),
            next_sequence: spec.sequences,
            cached: Vec::new(),
            device: Vec::new(),
            host: None,
            held: Vec::new(),
            content: None,
            computed: 0,
            swap: None,
            given_up: Vec::new(),
            let_go: Vec::new(),
            wishes: VecDeque::new(),
            begun: stage.world.now(),
            ended: stage.world.now(),
            is_gone: stage.seats[spec.at].device().is_none(),
            outcomes: Vec::new(),
        }
    }

    /// Its scheduler is going to do this as soon as that makes sense.
    pub(super) fn wishes(&mut self, step: Step) {
        if !self.is_gone {
            self.wishes.push_back(step);
        }
    }

    /// Its engine has died, and everything is let go.
    pub(super) fn die(&mut self) {
        self.is_gone = true;
        (self.swap, self.state, self.host) = (None, None, None);
        self.given_up.clear();
        self.cached.clear();
        self.device.clear();
    }

    fn broken(&self, invariant: Invariant, words: impl AsRef<str>) -> Violated {
        broken(invariant, &self.who, words)
    }

    /// Says something of it, and looks at what that is answered.
    fn report(&mut self, report: &SchedulerReport, right: Verdict, device: &mut Device) -> Result<(), Violated> {
        let said = device.lives.report(&self.id, self.generation, report);
        if said != Ok(right) {
            let words = format!("{report:?} is answered by {said:?}, and not by {right:?}");
            return Err(self.broken(Invariant::FreedOnceAndUntouched, words));
        }
        device.check_told()
    }

    /// The scheduler looks. What it is about to send is answered.
    pub(super) fn turn(&mut self, stage: &mut Stage<'_>) -> Result<Option<Parcel>, Violated> {
        let (now, disturbed) = (stage.world.now(), stage.disturbed);
        let seat = &mut stage.seats[self.seat];
        let Some(state) = self.state else {
            self.open(now, device_of(seat))?;
            return Ok(None);
        };
        self.given_up.iter().try_for_each(|swap| swap.check_over(now, disturbed))?;
        self.given_up.retain(|swap| !swap.is_over());
        if state == State::Freed {
            if now >= self.ended + self.spec.late && self.given_up.is_empty() {
                // Whoever lives under this name by now is another one.
                self.report(&SchedulerReport::Aborted, Verdict::NoOp, device_of(seat))?;
                self.is_gone = true;
            }
            return Ok(None);
        }
        if self.swap.is_some() {
            self.look_at_swap(now, disturbed, seat)?;
        }
        self.check_state(device_of(seat))?;
        if now >= self.begun + self.spec.within {
            self.end(Step::Abort, now, device_of(seat))?;
            return Ok(None);
        }
        if self.do_at_once(now, seat)? {
            return Ok(None);
        }
        match self.state {
            Some(State::Queued | State::Dropped) => self.allocate(device_of(seat))?,
            Some(State::Allocated) => self.compute(seat)?,
            Some(State::Active | State::Swapped) => return self.go_on(now, seat),
            _ => {}
        }
        Ok(None)
    }

    /// A life begins, unless the last one of this request has not ended.
    fn open(&mut self, now: Timestamp, device: &mut Device) -> Result<(), Violated> {
        let lives = device.lives_of(&self.id);
        match (device.lives.open(&self.id, self.spec.sequences), lives) {
            (Ok(generation), None) => {
                device.opened(&self.id, generation);
                (self.generation, self.state) = (generation, Some(State::Queued));
                Ok(())
            }
            (Err(FlowError::Lifecycle(why)), Some(lives)) if matches!(&*why, LifecycleError::StillLives { generation, .. } if *generation == lives) =>
            {
                self.is_gone = now >= self.begun + self.spec.within;
                Ok(())
            }
            (said, lives) => {
                let words = format!("it is opened as {said:?}, and {lives:?} lives");
                Err(self.broken(Invariant::OneEndEach, words))
            }
        }
    }

    /// What the engine says that it is, has and owes is what was reported.
    fn check_state(&self, device: &Device) -> Result<(), Violated> {
        let lives = &device.lives;
        let said = lives.state(&self.id, self.generation).expect("it was opened");
        if Some(said) != self.state {
            let words = format!("it is {said:?}, and has to be {:?}", self.state);
            return Err(self.broken(Invariant::OneEndEach, words));
        }
        let held = lives.device_blocks(&self.id, self.generation).expect("its engine lives");
        if held != self.held {
            let words = format!("it has {held:?}, and was given {:?}", self.held);
            return Err(self.broken(Invariant::FreedOnceAndUntouched, words));
        }
        let deferred = lives.deferred().expect("its engine lives");
        let is_deferred = deferred.iter().any(|its| (&its.request, its.generation) == (&self.id, self.generation));
        if is_deferred != (said == State::Dropped) {
            let words = format!("it is {said:?}, and that its free is put off is said to be {is_deferred}");
            return Err(self.broken(Invariant::FreedOnceAndUntouched, words));
        }
        Ok(())
    }

    /// What does not wait for anything. Answers whether there was something of that kind.
    fn do_at_once(&mut self, now: Timestamp, seat: &mut Seat) -> Result<bool, Violated> {
        let Some(step) = self.wishes.front().copied() else { return Ok(false) };
        let Some(state) = self.state else { return Ok(false) };
        self.check_bytes(seat)?;
        let device = device_of(seat);
        match step {
            Step::Remove | Step::Abort => return self.end(step, now, device),
            Step::EndSequence if self.sequences.len() == 1 => return self.end(step, now, device),
            Step::EndSequence => {
                let sequence = self.sequences.pop_first().unwrap_or_default();
                self.report(&SchedulerReport::SequenceEnded { sequence }, Verdict::NoOp, device)?;
                // One that has ended does so once.
                self.report(&SchedulerReport::SequenceEnded { sequence }, Verdict::NoOp, device)?;
            }
            Step::Fork => {
                let sequence = self.next_sequence;
                self.next_sequence += 1;
                self.sequences.insert(sequence);
                self.report(&SchedulerReport::SequenceForked { sequence }, Verdict::NoOp, device)?;
            }
            Step::Finish => {
                self.report(&SchedulerReport::Finished, Verdict::NoOp, device)?;
                self.check_whose(device)?;
            }
            Step::Preempt(site) => self.preempt(site, state, now, device)?,
            Step::RollBack | Step::LetGo => self.give_up_swap(step, now)?,
            _ => return Ok(false),
        }
        self.wishes.pop_front();
        Ok(true)
    }

    /// Gets its blocks, if there are as many: those that can be found, and the rest.
    fn allocate(&mut self, device: &mut Device) -> Result<(), Violated> {
        let content = Content::of(self.life, &self.spec, self.computed, device.epoch());
        let shared = if self.spec.hits { self.spec.shared.min(self.spec.blocks - 1) } else { 0 };
        let hits: Vec<(BlockRef, Blocks)> = (0..shared).map_while(|block| device.find(content.hash(block))).collect();
        let Some(fresh) = device.take(content.len() - hits.len(), UNREADY)? else { return Ok(()) };
        let (cached, handles): (Vec<BlockRef>, Vec<Blocks>) = hits.into_iter().unzip();
        self.computed += 1;
        self.held = cached.iter().copied().chain(block_refs(&fresh)).collect();
        let evicted = device.found.hold(&self.held);
        device.evicted(&evicted);
        let report = SchedulerReport::Allocated { fresh: block_refs(&fresh), cached };
        (self.cached, self.device, self.content) = (handles, vec![fresh], Some(content));
        self.state = Some(State::Allocated);
        self.report(&report, Verdict::NoOp, device)
    }

    /// What it has of others is as they have left it; the rest is computed, and it runs.
    fn compute(&mut self, seat: &mut Seat) -> Result<(), Violated> {
        let (player, places, found) = (*seat.player(), self.places(), self.cached.len());
        let device = device_of(seat);
        let Some(content) = &self.content else { return Ok(()) };
        content.check(&player, device.pool(), &places[..found], &self.who)?;
        content.fill(&player, device.pool(), &places, found..places.len());
        if self.spec.stores {
            let hashes = self.held.iter().enumerate().map(|(block, its)| (content.hash(block), *its));
            let blocks: Vec<(u64, BlockRef)> = hashes.collect();
            let evicted = device.found.store(&blocks);
            device.evicted(&evicted);
            self.report(&SchedulerReport::Registered { blocks }, Verdict::NoOp, device)?;
        }
        self.state = Some(State::Active);
        self.report(&SchedulerReport::Active, Verdict::NoOp, device)
    }

    /// Where its blocks of the device are.
    fn places(&self) -> Vec<u32> {
        self.cached.iter().chain(&self.device).flat_map(|blocks| blocks.indices().iter().copied()).collect()
    }

    /// Everything that it has is as it was computed.
    fn check_bytes(&self, seat: &Seat) -> Result<(), Violated> {
        let (Some(content), Some(device)) = (&self.content, seat.device()) else { return Ok(()) };
        match (self.state, &self.host) {
            (Some(State::Active), _) => content.check(seat.player(), device.pool(), &self.places(), &self.who),
            (Some(State::Swapped), Some(host)) => {
                content.check(seat.player(), seat.pool().expect("it lives"), host.indices(), &self.who)
            }
            _ => Ok(()),
        }
    }

    /// It runs, or is on the host, and its scheduler goes on.
    fn go_on(&mut self, now: Timestamp, seat: &mut Seat) -> Result<Option<Parcel>, Violated> {
        let Some(step) = self.wishes.front().copied() else { return Ok(None) };
        let is_active = self.state == Some(State::Active);
        // What others may have as well is not swapped.
        let is_own = self.cached.is_empty();
        match step {
            Step::Out(within) if is_active && self.held.len() > 1 => self.swap_part(SwapWay::Out, within, now, seat)?,
            Step::In(within) if !is_active && self.host.as_ref().is_some_and(|host| host.len() > 1) => {
                self.swap_part(SwapWay::In, within, now, seat)?;
            }
            _ => {}
        }
        match step {
            Step::Grow if is_active => {
                let Some(block) = device_of(seat).take(1, UNREADY)? else { return Ok(None) };
                self.grow(block, seat)?;
            }
            Step::Out(within) if is_active && is_own => {
                self.check_bytes(seat)?;
                let Some(host) = seat.take(self.held.len(), GRANTED, now)? else {
                    // There is nowhere to go.
                    self.preempt(DeferSite::NoSwapBuffers, State::Active, now, device_of(seat))?;
                    self.wishes.pop_front();
                    return Ok(None);
                };
                let chained = |all: Blocks, next: &Blocks| all.chain(next).expect("they are of one pool");
                let device = self.device[1..].iter().fold(self.device[0].clone(), chained);
                self.state = Some(State::SwappingOut);
                self.begin_swap(SwapWay::Out, device, host, within, now, seat)?;
            }
            Step::In(within) if !is_active => {
                self.check_bytes(seat)?;
                let Some(host) = self.host.clone() else { return Ok(None) };
                let Some(fresh) = device_of(seat).take(host.len(), GRANTED)? else { return Ok(None) };
                let device = device_of(seat);
                let refs = block_refs(&fresh);
                let evicted = device.found.hold(&refs);
                device.evicted(&evicted);
                (self.state, self.held) = (Some(State::SwappingIn), refs);
                self.begin_swap(SwapWay::In, fresh, host, within, now, seat)?;
            }
            Step::Send if !is_active => {
                self.wishes.pop_front();
                let parcel = self.host.clone().zip(self.content.clone());
                return Ok(parcel.map(|(blocks, content)| Parcel { blocks, content }));
            }
            _ => {}
        }
        self.wishes.pop_front();
        Ok(None)
    }

    fn grow(&mut self, block: Blocks, seat: &mut Seat) -> Result<(), Violated> {
        let player = *seat.player();
        let device = device_of(seat);
        let blocks = block_refs(&block);
        let evicted = device.found.hold(&blocks);
        device.evicted(&evicted);
        self.held.extend(&blocks);
        self.device.push(block);
        self.report(&SchedulerReport::Grown { blocks }, Verdict::NoOp, device)?;
        let (places, life) = (self.places(), self.life);
        if let Some(content) = &mut self.content {
            content.grow(life);
            content.fill(&player, device.pool(), &places, places.len() - 1..places.len());
        }
        Ok(())
    }

    /// Its blocks are freed, and it waits again.
    fn preempt(&mut self, site: DeferSite, state: State, now: Timestamp, device: &mut Device) -> Result<(), Violated> {
        let is_possible = match site {
            DeferSite::ScheduleRollback => !matches!(state, State::Queued | State::SwappingOut),
            DeferSite::NoSwapBuffers => state != State::Queued,
            DeferSite::SwapOutTimeout => matches!(state, State::SwappingOut | State::Dropped),
            DeferSite::SwapInTimeout => matches!(state, State::Swapped | State::SwappingIn | State::Dropped),
        };
        let report = SchedulerReport::Rolled(site);
        if !is_possible {
            let said = device.lives.report(&self.id, self.generation, &report);
            let is_refused =
                matches!(&said, Err(FlowError::Lifecycle(why)) if matches!(**why, LifecycleError::Impossible { .. }));
            if is_refused {
                return Ok(());
            }
            let words = format!("{report:?} while it is {state:?} is answered by {said:?}");
            return Err(self.broken(Invariant::OneEndEach, words));
        }
        self.report(&report, Verdict::Defer, device)?;
        self.give_up_for_good(now);
        Ok(())
    }

    /// The request wants nothing of its swap any more, and has no bytes.
    fn give_up_for_good(&mut self, now: Timestamp) {
        if let Some(mut swap) = self.swap.take() {
            swap.is_given_up(None, now);
            self.outcomes.push(false);
            self.given_up.push(swap);
        }
        self.drop_bytes();
    }

    fn drop_bytes(&mut self) {
        self.state = Some(State::Dropped);
        (self.host, self.content) = (None, None);
        self.cached.clear();
        self.device.clear();
        self.held.clear();
    }

    /// It is over: told first, freed then. Answers whether it could be.
    fn end(&mut self, step: Step, now: Timestamp, device: &mut Device) -> Result<bool, Violated> {
        let report = match step {
            Step::Remove => SchedulerReport::Removed,
            Step::EndSequence => {
                SchedulerReport::SequenceEnded { sequence: self.sequences.first().copied().unwrap_or_default() }
            }
            _ => SchedulerReport::Aborted,
        };
        // What a swap is at is freed by that swap.
        let swaps = self.swap.iter().chain(&self.given_up).filter(|swap| !swap.is_over());
        let under: BTreeSet<BlockRef> = swaps.flat_map(|swap| swap.device.iter().copied()).collect();
        let own: Vec<BlockRef> = self.held.iter().copied().filter(|block| !under.contains(block)).collect();
        // Of a swap that was let go nobody knows whether it is over: it is, once none is under way.
        let is_unknown = self.let_go.iter().any(|block| own.contains(block));
        if is_unknown && device.lives.swaps().expect("its engine lives").0 > 0 {
            return Ok(false);
        }
        let gone = Gone { request: self.id.clone(), generation: self.generation, device: own };
        device.gone(&gone);
        self.report(&report, Verdict::Remove, device)?;
        // Whatever comes after that changes nothing.
        for late in
            [SchedulerReport::Removed, SchedulerReport::Aborted, SchedulerReport::Rolled(DeferSite::ScheduleRollback)]
        {
            self.report(&late, Verdict::NoOp, device)?;
        }
        self.keep_for_others(device);
        self.give_up_for_good(now);
        (self.state, self.ended) = (Some(State::Freed), now);
        Ok(true)
    }

    /// Others may find what it has stored, for a while.
    fn keep_for_others(&mut self, device: &mut Device) {
        let (Some(content), Some(State::Active)) = (&self.content, self.state) else { return };
        if !self.spec.stores {
            return;
        }
        let hashes: Vec<u64> = (0..content.len()).map(|block| content.hash(block)).collect();
        let kept = hashes.iter().filter_map(|&hash| {
            let (block, handle) = device.find(hash)?;
            self.held.contains(&block).then_some((hash, handle))
        });
        let kept: Vec<(u64, Blocks)> = kept.take(CACHE_MAX).collect();
        device.cache.extend(kept);
    }
}

fn device_of(seat: &mut Seat) -> &mut Device {
    seat.device_mut().expect("a request is where a device is")
}
