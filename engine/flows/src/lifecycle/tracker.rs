//! Every request in every one of its lives, and who is told of their ends.

use std::collections::{BTreeMap, BTreeSet};

use penstock_core::Timestamp;
use penstock_core::planted::{self, Bug};
use penstock_session::RequestId;

use super::blocks::BlockTable;
use super::request::{DeferSite, Request, RequestEvent, SchedulerReport, Verdict, judge};
use super::subscribers::{Feed, Lag, SubscribeError, Subscriber};
use super::{BlockRef, Evicted, Eviction, LifecycleError, LifecycleSettings, Removed};

/// A free that is put off until the request is allocated again or ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deferral {
    /// Whose.
    pub request: RequestId,
    /// In which life.
    pub generation: u64,
    /// Where its blocks were freed; nothing if its bytes were lost in a rollback.
    pub site: Option<DeferSite>,
    /// Since when.
    pub since: Timestamp,
}

/// How a tracker is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TrackerMetrics {
    /// Requests that live.
    pub live: usize,
    /// Frees that are put off.
    pub deferred: usize,
    /// Lives that have ended, each by one removal.
    pub removed: u64,
    /// Reports of lives that had ended before.
    pub late: u64,
    /// Reports that made no sense.
    pub refused: u64,
}

struct Record {
    request: RequestId,
    state: Request,
    /// Sequences that have not ended.
    live: BTreeSet<u32>,
    /// The least number that no sequence has had.
    next: u32,
    /// Its blocks of the device.
    device: Vec<BlockRef>,
    /// How many of them were swapped out last.
    swapped: usize,
    deferral: Option<(Option<DeferSite>, Timestamp)>,
}

/// What is known of requests.
///
/// Each life of a request has a generation, a number that no other life in this tracker has. Its end is told once to everybody who
/// asked for removals, before the call returns that reports it: so whoever frees blocks after that call cannot be too early.
pub struct Tracker {
    settings: LifecycleSettings,
    next: u64,
    lives: BTreeMap<u64, Record>,
    by_request: BTreeMap<RequestId, u64>,
    blocks: BlockTable,
    removals: Feed<Removed>,
    evictions: Feed<Evicted>,
    metrics: TrackerMetrics,
}

impl Tracker {
    /// One that knows of nobody.
    pub fn new(settings: LifecycleSettings) -> Self {
        Self {
            settings,
            next: 1,
            lives: BTreeMap::new(),
            by_request: BTreeMap::new(),
            blocks: BlockTable::new(settings.blocks),
            removals: Feed::new(settings.subscribers),
            evictions: Feed::new(settings.subscribers),
            metrics: TrackerMetrics::default(),
        }
    }

    /// Begins a life of a request of so many sequences, numbered from 0. Gives its generation.
    pub fn open(&mut self, request: RequestId, sequences: u32) -> Result<u64, LifecycleError> {
        if let Some(&generation) = self.by_request.get(&request) {
            return Err(LifecycleError::StillLives { request, generation });
        }
        if self.lives.len() >= self.settings.requests {
            return Err(LifecycleError::Full { most: self.settings.requests });
        }
        if !(1..=self.settings.sequences).contains(&sequences) {
            return Err(LifecycleError::Sequences { asked: sequences, most: self.settings.sequences });
        }
        let generation = self.next;
        self.next += 1;
        self.by_request.insert(request.clone(), generation);
        let (live, state) = ((0..sequences).collect(), Request::Queued);
        let record = Record { request, state, live, next: sequences, device: Vec::new(), swapped: 0, deferral: None };
        self.lives.insert(generation, record);
        Ok(generation)
    }

    /// The state that a request is in. A life that was and is no more is [`Request::Freed`].
    pub fn state(&self, request: &RequestId, generation: u64) -> Result<Request, LifecycleError> {
        Ok(self.record(request, generation)?.map_or(Request::Freed, |record| record.state))
    }

    /// The life that a request is in, if it is in one.
    pub fn generation(&self, request: &RequestId) -> Option<u64> {
        self.by_request.get(request).copied()
    }

    /// The blocks of the device that a request has now.
    pub fn device_blocks(&self, request: &RequestId, generation: u64) -> &[BlockRef] {
        let record = self.record(request, generation).ok().flatten();
        record.map_or(&[], |record| record.device.as_slice())
    }

    /// How many blocks a request had when it was swapped out last.
    pub(super) fn swapped_blocks(&self, generation: u64) -> usize {
        self.lives.get(&generation).map_or(0, |record| record.swapped)
    }

    /// Whether this report would end the request.
    pub fn ends(&self, request: &RequestId, generation: u64, report: &SchedulerReport) -> bool {
        let Ok(Some(record)) = self.record(request, generation) else { return false };
        match report {
            SchedulerReport::Removed | SchedulerReport::Aborted => true,
            SchedulerReport::SequenceEnded { sequence } => record.live.len() == 1 && record.live.contains(sequence),
            _ => false,
        }
    }

    /// The record of a life, nothing if that has ended.
    fn record(&self, request: &RequestId, generation: u64) -> Result<Option<&Record>, LifecycleError> {
        match self.lives.get(&generation) {
            Some(record) if record.request == *request => Ok(Some(record)),
            None if (1..self.next).contains(&generation) => Ok(None),
            _ => Err(LifecycleError::NoSuchLife { request: request.clone(), generation }),
        }
    }

    /// Takes in what a scheduler says. An error changes nothing.
    pub fn report(
        &mut self,
        request: &RequestId,
        generation: u64,
        report: &SchedulerReport,
        now: Timestamp,
    ) -> Result<Verdict, LifecycleError> {
        let answer = self.take_in(request, generation, report, now);
        self.metrics.refused += u64::from(answer.is_err());
        answer
    }

    fn take_in(
        &mut self,
        request: &RequestId,
        generation: u64,
        report: &SchedulerReport,
        now: Timestamp,
    ) -> Result<Verdict, LifecycleError> {
        let newest = planted::is(Bug::EndOfAFormerLife).then(|| self.by_request.get(request).copied()).flatten();
        let generation = newest.unwrap_or(generation);
        if self.record(request, generation)?.is_none() {
            self.metrics.late += 1;
            return Ok(Verdict::NoOp);
        }
        let record = self.lives.get_mut(&generation).expect("it was found above");
        let event = match report {
            SchedulerReport::SequenceForked { sequence } => {
                return fork(record, *sequence, self.settings.sequences).map(|()| Verdict::NoOp);
            }
            SchedulerReport::SequenceEnded { sequence } if *sequence >= record.next => {
                let (request, sequence) = (request.clone(), *sequence);
                return Err(LifecycleError::NoSuchSequence { request, sequence, next: record.next });
            }
            SchedulerReport::SequenceEnded { sequence } => {
                let is_last = record.live.len() == 1 && record.live.contains(sequence);
                if !is_last {
                    record.live.remove(sequence);
                    return Ok(Verdict::NoOp);
                }
                RequestEvent::End
            }
            other => other.event().expect("sequences were looked at above"),
        };
        let Some((next, verdict)) = judge(record.state, event) else {
            let (request, state) = (request.clone(), record.state);
            return Err(LifecycleError::Impossible { request, generation, state, event });
        };
        let mut evicted = Vec::new();
        match report {
            SchedulerReport::Allocated { fresh, cached } => {
                self.blocks.check(fresh, cached)?;
                self.blocks.hold(cached, &mut evicted);
                self.blocks.hold(fresh, &mut evicted);
                record.device.extend(cached.iter().chain(fresh));
                if !planted::is(Bug::DeferralOutlivesItsEnd) {
                    record.deferral = None;
                }
            }
            SchedulerReport::Grown { blocks } | SchedulerReport::SwapInPrepared { blocks } => {
                self.blocks.check(blocks, &[])?;
                self.blocks.hold(blocks, &mut evicted);
                record.device.extend(blocks);
            }
            SchedulerReport::Registered { blocks } => {
                self.blocks.check_hashes(blocks, &record.device)?;
                self.blocks.register(blocks, &mut evicted);
            }
            SchedulerReport::SwapOutCommitted => {
                record.swapped = record.device.len();
                self.blocks.release(&mut std::mem::take(&mut record.device));
            }
            SchedulerReport::SwapInRolledBack { .. } => {
                self.blocks.release(&mut std::mem::take(&mut record.device));
            }
            _ => {}
        }
        record.state = next;
        match verdict {
            Verdict::NoOp => {}
            Verdict::Defer => {
                let site = if let SchedulerReport::Rolled(site) = report { Some(*site) } else { None };
                record.deferral = record.deferral.or(Some((site, now)));
                self.blocks.release(&mut std::mem::take(&mut record.device));
            }
            Verdict::Remove => self.remove(generation),
        }
        evicted.iter().for_each(|evicted| self.evictions.publish(evicted));
        Ok(verdict)
    }

    /// The only way out: both directions of the map, the blocks, the deferral, and everybody is told.
    fn remove(&mut self, generation: u64) {
        let Some(Record { request, mut device, .. }) = self.lives.remove(&generation) else { return };
        self.by_request.remove(&request);
        self.blocks.release(&mut device);
        self.metrics.removed += 1;
        self.removals.publish(&Removed { request, generation, device });
    }

    /// The request of a life that has not ended.
    pub(super) fn request_of(&self, generation: u64) -> Option<RequestId> {
        self.lives.get(&generation).map(|record| record.request.clone())
    }

    /// The state of a life that has not ended.
    pub(super) fn state_of(&self, generation: u64) -> Option<Request> {
        self.lives.get(&generation).map(|record| record.state)
    }

    /// Takes blocks from a request that are somebody else's to free from now on.
    pub(super) fn let_go(&mut self, generation: u64, others: &BTreeSet<u32>) {
        let Some(record) = self.lives.get_mut(&generation) else { return };
        let (mut others, own) = record.device.iter().partition(|block| others.contains(&block.index));
        record.device = own;
        self.blocks.release(&mut others);
    }

    /// How many notices there have been.
    pub(super) fn told(&self) -> u64 {
        self.removals.published() + self.evictions.published()
    }

    /// A block cannot be found by this hash any more. Tells those who asked for evictions, unless it could not be found before.
    pub fn evict(&mut self, hash: u64, block: BlockRef, why: Eviction) -> bool {
        let is_found = self.blocks.forget(hash, block);
        if is_found {
            self.evictions.publish(&Evicted { hash, block, why });
        }
        is_found
    }

    /// Begins to tell of requests that end, in a queue of so many notices.
    pub fn subscribe_removals(&mut self, most: usize) -> Result<Subscriber, SubscribeError> {
        self.removals.subscribe(most)
    }

    /// Takes what has come of removals.
    pub fn take_removals(&mut self, who: Subscriber, out: &mut Vec<Removed>) -> Result<Lag, SubscribeError> {
        self.removals.take(who, out)
    }

    /// All that live now, by their generation: whatever is not among them has ended. Removals after this moment are told again.
    pub fn resync_removals(&mut self, who: Subscriber) -> Result<Vec<(RequestId, u64)>, SubscribeError> {
        self.removals.restart(who)?;
        Ok(self.lives.iter().map(|(generation, record)| (record.request.clone(), *generation)).collect())
    }

    /// Tells no more of removals.
    pub fn unsubscribe_removals(&mut self, who: Subscriber) {
        self.removals.unsubscribe(who);
    }

    /// Begins to tell of blocks that can be found no more, in a queue of so many notices.
    pub fn subscribe_evictions(&mut self, most: usize) -> Result<Subscriber, SubscribeError> {
        self.evictions.subscribe(most)
    }

    /// Takes what has come of evictions.
    pub fn take_evictions(&mut self, who: Subscriber, out: &mut Vec<Evicted>) -> Result<Lag, SubscribeError> {
        self.evictions.take(who, out)
    }

    /// All blocks that can be found now, by their hash. Evictions after this moment are told again.
    pub fn resync_evictions(&mut self, who: Subscriber) -> Result<Vec<(u64, BlockRef)>, SubscribeError> {
        self.evictions.restart(who)?;
        Ok(self.blocks.registered())
    }

    /// Tells no more of evictions.
    pub fn unsubscribe_evictions(&mut self, who: Subscriber) {
        self.evictions.unsubscribe(who);
    }

    /// Frees that are put off, by the generation of their requests.
    pub fn deferred(&self) -> impl Iterator<Item = Deferral> + '_ {
        self.lives.iter().filter_map(|(generation, record)| {
            let (site, since) = record.deferral?;
            Some(Deferral { request: record.request.clone(), generation: *generation, site, since })
        })
    }

    /// How it is doing.
    pub fn metrics(&self) -> TrackerMetrics {
        TrackerMetrics { live: self.lives.len(), deferred: self.deferred().count(), ..self.metrics }
    }

    /// Whether nobody lives. Blocks may still be found by their hash.
    pub fn is_empty(&self) -> bool {
        self.lives.is_empty()
    }

    /// What does not agree with itself, in words: nothing, unless there is a mistake here.
    pub fn check(&self) -> Result<(), &'static str> {
        let has_deferral = |record: &Record| (record.state == Request::Dropped) == record.deferral.is_some();
        let may_have = |record: &Record| match record.state {
            Request::Queued | Request::Swapped | Request::Dropped | Request::Freed => record.device.is_empty(),
            Request::Allocated | Request::Active | Request::SwappingOut | Request::SwappingIn => true,
        };
        let rules: [(bool, &str); 6] = [
            (self.lives.values().all(has_deferral), "a request is dropped, and nobody owns its deferral"),
            (self.lives.values().all(may_have), "a request has blocks of the device that its state has not"),
            (self.lives.values().all(|record| !record.live.is_empty()), "a request lives, and no sequence of it does"),
            (self.by_request.len() == self.lives.len(), "requests and lives are not as many"),
            (
                self.by_request.iter().all(|(id, life)| self.lives.get(life).is_some_and(|r| r.request == *id)),
                "a request leads to another's life",
            ),
            (
                self.blocks.agrees_with(self.lives.values().flat_map(|record| &record.device)),
                "blocks are counted otherwise than they are held",
            ),
        ];
        rules.iter().find(|(holds, _)| !holds).map_or(Ok(()), |(_, words)| Err(words))
    }

    /// Subscribers of removals and of evictions.
    pub fn subscribers(&self) -> (usize, usize) {
        (self.removals.len(), self.evictions.len())
    }
}

fn fork(record: &mut Record, sequence: u32, most: u32) -> Result<(), LifecycleError> {
    if record.live.contains(&sequence) {
        return Ok(());
    }
    if sequence < record.next || sequence == u32::MAX {
        let (request, next) = (record.request.clone(), record.next);
        return Err(LifecycleError::SequenceOver { request, sequence, next });
    }
    if record.live.len() >= most as usize {
        return Err(LifecycleError::Sequences { asked: most.saturating_add(1), most });
    }
    record.live.insert(sequence);
    record.next = sequence + 1;
    Ok(())
}
