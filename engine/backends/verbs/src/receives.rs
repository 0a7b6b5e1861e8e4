//! The receives of a CQ: slots that wait for messages, and those of them that an adapter has lost.
//!
//! A queue that breaks while a message is coming takes the receive of that message with it on some adapters: it completes neither as
//! used nor as unused. The CQ would have one less for ever. Adapters say nothing of that, but receives are numbered as they are given,
//! and taken in this order:
//!
//! ```text
//! given    1  2  3  4  5  6  7  8          the queue that broke while a message was coming has taken 3
//! done     x  x     x  x  x                6 was taken, so 3 was: no queue takes 3 any more
//! ```
//!
//! 3 is lost, unless a queue that stands is in the middle of its message. A queue has one message at a time, so it is not at 3 when it has
//! taken a later one, or was made new since. When that is so of all queues, 3 is free again. Queues may have nothing to say for hours: after a
//! while another slot is given in the place of 3, of a few that are made for this, and 3 waits until it is certain.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::adapter::{Adapter, AdapterError, RecvBuffer, Wc, WorkCompletion, WorkerCq};
use crate::slab::{RegisteredSlots, SLOT_BYTES};

/// Slots beyond those that queues need, made in the place of such as are probably lost: a quarter of a megabyte of each CQ.
const SPARE_MAX: usize = 64;

/// The middle of a message lasts no longer: its sender's adapter gives up before, and its queue is made new.
const COMING: Duration = Duration::from_secs(5);

/// Receives that are given at once.
const GIVEN_AT_ONCE: usize = 64;

/// The receives of a CQ.
#[derive(Default)]
pub(crate) struct Receives {
    slabs: Vec<RegisteredSlots>,
    /// Which slab and which slot of it a name means.
    slots: Vec<(u32, u32)>,
    /// The number under which each is given, zero if it is not.
    given_as: Vec<u64>,
    free: Vec<u32>,
    /// How many the adapter has, and how many its queues may need.
    given: usize,
    pub(crate) wanted: usize,
    /// How many queues need that are being made.
    reserved: usize,
    /// The last number that was given, and the highest that was taken.
    last: u64,
    taken: u64,
    /// Receives that were given, in their order. Those that were taken are let go when they are the first, or are too many.
    order: VecDeque<(u64, u32)>,
    /// A queue was made new when so many had been given. None: nothing can have been lost.
    suspected: Option<u64>,
    /// Since when the first one that was passed over is, and which it is.
    passed_over: Option<(u64, Instant)>,
    /// What was passed over for long: others are given in the place of these.
    missing: Vec<(u64, u32)>,
    spare: usize,
}

impl Receives {
    /// The number that the next one will have.
    pub(crate) fn next(&self) -> u64 {
        self.last + 1
    }

    /// Another queue is being made, which needs so many. Returns whether slots have to be made for it.
    pub(crate) fn reserve(&mut self, count: usize) -> bool {
        self.reserved += count;
        self.slots.len() < self.wanted + self.reserved + self.spare
    }

    /// It is made, or is not.
    pub(crate) fn unreserve(&mut self, count: usize, is_made: bool) {
        self.reserved -= count;
        self.wanted += if is_made { count } else { 0 };
    }

    /// How many its queues need, with those that are being made.
    pub(crate) fn needed(&self) -> usize {
        self.wanted + self.reserved
    }

    pub(crate) fn add(&mut self, slab: RegisteredSlots) {
        let place = self.slabs.len() as u32;
        for slot in 0..slab.slots() as u32 {
            self.free.push(self.slots.len() as u32);
            self.slots.push((place, slot));
            self.given_as.push(0);
        }
        self.slabs.push(slab);
    }

    /// Gives the adapter as many as its queues may need.
    pub(crate) fn supply(&mut self, cq: &mut dyn WorkerCq) -> Result<(), AdapterError> {
        while self.given < self.wanted {
            let mut recvs = [RecvBuffer { id: 0, sge: Default::default() }; GIVEN_AT_ONCE];
            let count = self.free.len().min(self.wanted - self.given).min(recvs.len());
            if count == 0 {
                break;
            }
            for recv in &mut recvs[..count] {
                let id = self.free.pop().expect("as many as were counted");
                let (slab, slot) = self.slots[id as usize];
                let sge = self.slabs[slab as usize].sge(0, slot as usize, SLOT_BYTES);
                *recv = RecvBuffer { id: id.into(), sge };
                self.last += 1;
                self.given_as[id as usize] = self.last;
                self.order.push_back((self.last, id));
            }
            self.given += count;
            cq.post_recv(&recvs[..count])?;
        }
        Ok(())
    }

    /// These may take other messages.
    pub(crate) fn give_back(&mut self, ids: &[u64]) {
        self.free.extend(ids.iter().map(|id| *id as u32));
    }

    /// The bytes of a message.
    pub(crate) fn read(&self, id: u64, bytes: &mut [u8]) {
        let (slab, slot) = self.slots[id as usize];
        self.slabs[slab as usize].get(slot as usize, bytes);
    }

    /// A completion is here: if it is one of a receive, the adapter has one less. Answers its number if it is.
    pub(crate) fn take(&mut self, done: &WorkCompletion) -> Option<u64> {
        let is_received = matches!(done.result, Wc::Recv { .. } | Wc::Unused);
        let given_as = self.given_as.get_mut(done.id as usize).filter(|given| is_received && **given > 0)?;
        let number = std::mem::take(given_as);
        self.taken = self.taken.max(number);
        match self.missing.iter().position(|(missing, _)| *missing == number) {
            // Another was given in its place.
            Some(place) => drop(self.missing.swap_remove(place)),
            None => self.given -= 1,
        }
        while let Some(&(first, id)) = self.order.front()
            && self.given_as[id as usize] != first
        {
            self.order.pop_front();
        }
        // Behind one that never comes the list grows by each that does: they are let go together, so that it costs each a few steps.
        if self.order.len() > 2 * self.slots.len() {
            self.order.retain(|&(number, id)| self.given_as[id as usize] == number);
        }
        Some(number)
    }

    /// A queue was made new, or is gone: perhaps it had taken one.
    pub(crate) fn suspect(&mut self) {
        self.suspected = Some(self.last);
    }

    /// Whether something may have been lost that was not found yet.
    pub(crate) fn is_suspicious(&self) -> bool {
        self.suspected.is_some() || !self.missing.is_empty()
    }

    /// Looks for what was lost. Below `floor` no queue has one in the middle of a message.
    pub(crate) fn look(&mut self, floor: u64, now: Instant, adapter: &Arc<dyn Adapter>) {
        let certain = floor.min(self.taken);
        let (lost, missing) = self.missing.drain(..).partition::<Vec<_>, _>(|(number, _)| *number < certain);
        self.missing = missing;
        for (_, id) in lost {
            self.given_as[id as usize] = 0;
            self.free.push(id);
        }
        while let Some((number, id)) = self.first_passed_over() {
            if number < certain {
                self.given_as[id as usize] = 0;
                self.free.push(id);
            } else {
                match self.passed_over {
                    Some((before, since)) if before == number && since + COMING <= now => {}
                    Some((before, _)) if before == number => break,
                    _ => {
                        self.passed_over = Some((number, now));
                        break;
                    }
                }
                if !self.has_another(adapter) {
                    break;
                }
                self.missing.push((number, id));
            }
            self.given -= 1;
            self.order.pop_front();
        }
        // Behind what was given when the last queue was made new nothing is missing because of that.
        let is_found = |before: u64| self.taken > before && self.order.front().is_none_or(|(first, _)| *first > before);
        if self.suspected.is_some_and(is_found) {
            self.suspected = None;
        }
    }

    /// The first receive that the adapter has and that a later one was taken before.
    fn first_passed_over(&mut self) -> Option<(u64, u32)> {
        while let Some(&(first, id)) = self.order.front() {
            if self.given_as[id as usize] == first {
                return (first < self.taken).then_some((first, id));
            }
            self.order.pop_front();
        }
        None
    }

    /// Whether there is a slot to give in the place of one that is missing.
    fn has_another(&mut self, adapter: &Arc<dyn Adapter>) -> bool {
        if self.free.len() > self.wanted.saturating_sub(self.given) {
            return true;
        }
        if self.spare == SPARE_MAX {
            return false;
        }
        match RegisteredSlots::new([adapter], SPARE_MAX / 4) {
            Ok(slab) => {
                self.spare += slab.slots();
                self.add(slab);
                true
            }
            Err(error) => {
                tracing::warn!(%error, "no memory for a message in the place of one that a card has lost");
                false
            }
        }
    }

    /// How many the adapter has as far as is known, how many its queues may need, and how many there are.
    #[cfg(test)]
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        (self.given, self.wanted, self.slots.len())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;

    use super::*;
    use crate::adapter::QpFactory;
    use crate::model::ModelNetwork;

    const WANTED: usize = 8;

    /// Takes receives in their order.
    #[derive(Default)]
    struct Taker(VecDeque<u64>);

    impl WorkerCq for Taker {
        fn maker(&self) -> Arc<dyn QpFactory> {
            unreachable!("nobody asks")
        }

        fn post_recv(&mut self, receives: &[RecvBuffer]) -> Result<(), AdapterError> {
            self.0.extend(receives.iter().map(|recv| recv.id));
            Ok(())
        }

        fn poll(&mut self, _: &mut [WorkCompletion]) -> Result<usize, AdapterError> {
            Ok(0)
        }

        fn arm(&mut self) -> Result<(), AdapterError> {
            Ok(())
        }

        fn descriptor(&self) -> BorrowedFd<'_> {
            unreachable!("nobody asks")
        }
    }

    struct Bench {
        adapter: Arc<dyn Adapter>,
        taker: Taker,
        receives: Receives,
        now: Instant,
    }

    impl Bench {
        fn new() -> Self {
            let adapter: Arc<dyn Adapter> = ModelNetwork::by_hand().adapter();
            let (mut taker, mut receives) = (Taker::default(), Receives::default());
            assert!(receives.reserve(WANTED));
            receives.add(RegisteredSlots::new([&adapter], WANTED).unwrap());
            receives.unreserve(WANTED, true);
            receives.supply(&mut taker).unwrap();
            Self { adapter, taker, receives, now: Instant::now() }
        }

        /// A message begins to come.
        fn begin(&mut self) -> u64 {
            self.taker.0.pop_front().expect("there is one")
        }

        /// It is there, and its slot is given again. Answers its number.
        fn end(&mut self, id: u64) -> u64 {
            let what = Wc::Recv { bytes: 1, immediate: None };
            let number = self.receives.take(&WorkCompletion { queue: 1, id, result: what }).expect("it is one of ours");
            self.receives.give_back(&[id]);
            self.receives.supply(&mut self.taker).unwrap();
            number
        }

        fn look(&mut self, floor: u64) {
            self.receives.look(floor, self.now, &self.adapter);
            self.receives.supply(&mut self.taker).unwrap();
        }

        fn pass(&mut self) {
            self.now += COMING;
        }
    }

    #[test]
    fn what_no_queue_can_have_any_more_is_given_again_at_once() {
        let mut bench = Bench::new();
        for _ in 0..1000 {
            bench.begin();
            bench.receives.suspect();
            let floor = bench.receives.next();
            bench.look(floor);
            assert_eq!(bench.taker.0.len(), WANTED - 1, "nobody knows yet that it was taken");
            let later = bench.begin();
            bench.end(later);
            bench.look(floor);
            assert_eq!(bench.taker.0.len(), WANTED);
        }
        assert_eq!(bench.receives.counts(), (WANTED, WANTED, WANTED));
        assert_eq!(bench.receives.missing, []);
    }

    #[test]
    fn what_a_queue_may_still_have_is_waited_for_then_replaced_and_never_given_twice() {
        let mut bench = Bench::new();
        let slow = bench.begin();
        bench.receives.suspect();
        let quick = bench.begin();
        bench.end(quick);
        for _ in 0..3 {
            bench.look(0);
            assert_eq!(bench.taker.0.len(), WANTED - 1, "its message may be coming");
        }
        bench.pass();
        bench.look(0);
        assert_eq!(bench.taker.0.len(), WANTED, "another is given in its place");
        assert!(!bench.taker.0.contains(&slow));
        assert!(bench.receives.is_suspicious());
        // It comes after all.
        bench.end(slow);
        assert_eq!((bench.taker.0.len(), bench.receives.counts().0), (WANTED, WANTED), "no more than are wanted");
        let mut all: Vec<_> = bench.taker.0.iter().copied().collect();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), WANTED);
        for _ in 0..2 * WANTED {
            let next = bench.begin();
            bench.end(next);
            bench.look(0);
        }
        assert!(!bench.receives.is_suspicious());
    }

    #[test]
    fn while_a_queue_says_nothing_only_so_many_are_replaced_and_all_come_back_when_it_does() {
        let mut bench = Bench::new();
        let losses = SPARE_MAX + 4;
        for _ in 0..losses {
            bench.begin();
            bench.receives.suspect();
            let later = bench.begin();
            bench.end(later);
            bench.look(0);
            bench.pass();
            bench.look(0);
        }
        assert_eq!(bench.receives.counts(), (WANTED, WANTED, WANTED + SPARE_MAX), "memory is bounded");
        assert_eq!(bench.taker.0.len(), WANTED - 4, "the last ones wait for certainty");
        let later = bench.begin();
        let floor = bench.end(later);
        bench.look(floor);
        assert_eq!(bench.taker.0.len(), WANTED);
        assert_eq!(bench.receives.missing, [], "their slots are used again");
        assert_eq!(bench.receives.free.len(), SPARE_MAX);
    }

    #[test]
    fn behind_one_that_never_comes_what_is_remembered_does_not_grow() {
        let mut bench = Bench::new();
        for _ in 0..4 {
            bench.begin();
        }
        for _ in 0..1000 {
            let id = bench.begin();
            bench.end(id);
        }
        assert!(bench.receives.order.len() <= 2 * WANTED, "{}", bench.receives.order.len());
        // All four are found as before.
        bench.receives.suspect();
        let later = bench.begin();
        let floor = bench.end(later);
        bench.look(floor);
        assert_eq!(bench.taker.0.len(), WANTED);
    }

    #[test]
    fn where_nothing_was_lost_nothing_is_looked_for_any_more() {
        let mut bench = Bench::new();
        bench.receives.suspect();
        for _ in 0..2 * WANTED {
            let id = bench.begin();
            bench.end(id);
            bench.look(u64::MAX);
        }
        assert!(!bench.receives.is_suspicious());
        assert_eq!(bench.receives.counts(), (WANTED, WANTED, WANTED));
    }
}
