//! The lives of requests, as their scheduler reports them, and the swaps of their blocks.
//!
//! A scheduler reports what it does. The answer says what becomes of an index that somebody keeps of its requests: nothing, nothing
//! yet, or that the request is to be removed. A removal is said once in a life of a request, and is with everybody who asked for it
//! before the report returns: so the order is *report, then free*, and no block is used again under an index that still names it.
//!
//! ```
//! use penstock_core::Timestamp;
//! use penstock_flows::lifecycle::{BlockRef, DeferSite, Lifecycle, SchedulerReport, LifecycleSettings, Verdict};
//! use penstock_session::RequestId;
//!
//! let (mut lives, now) = (Lifecycle::new(LifecycleSettings::default(), 0), Timestamp::from_ns(1));
//! let index = lives.tracker_mut().subscribe_removals(1024).unwrap();
//! let request = RequestId::new("cmpl-7").unwrap();
//! let life = lives.tracker_mut().open(request.clone(), 1).unwrap();
//! let mut say = |report: SchedulerReport| lives.report(&request, life, &report, now).unwrap();
//!
//! let fresh = vec![BlockRef { index: 3, generation: 1 }];
//! assert_eq!(say(SchedulerReport::Allocated { fresh, cached: vec![] }), Verdict::NoOp);
//! assert_eq!(say(SchedulerReport::Rolled(DeferSite::ScheduleRollback)), Verdict::Defer);
//! assert_eq!(say(SchedulerReport::Aborted), Verdict::Remove);
//! assert_eq!(say(SchedulerReport::Removed), Verdict::NoOp);
//!
//! let mut removed = Vec::new();
//! lives.tracker_mut().take_removals(index, &mut removed).unwrap();
//! assert_eq!((removed.len(), &removed[0].request), (1, &request));
//! ```
//!
//! - [`request`]: the states of a request, and what may be reported
//! - [`tracker`]: all requests, whose blocks are whose, and who is told
//! - [`subscribers`]: bounded queues with a lag that can be seen
//! - [`swap`]: the transfers between the device's pool and the host's
//! - [`error`]: why a report changes nothing

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use penstock_core::Timestamp;
use penstock_core::planted::{self, Bug};
use penstock_session::RequestId;

use crate::action::{Action, BlocksRef};
use crate::event::Event;

mod blocks;
pub mod error;
pub mod request;
pub mod subscribers;
pub mod swap;
pub mod tracker;

pub use error::LifecycleError;
pub use request::{DeferSite, Request, RequestEvent, SchedulerReport, Verdict};
pub use subscribers::{Lag, SubscribeError, Subscriber};
pub use swap::{Swap, SwapAsk, SwapKey, SwapNews, SwapPath, SwapWay};
pub use tracker::{Deferral, Tracker, TrackerMetrics};

use swap::table::{Change, Swaps};

/// A block of the device in one use. Blocks are used again under the same index; a later use has a greater generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockRef {
    /// Which block.
    pub index: u32,
    /// Which use of it; these numbers may wrap.
    pub generation: u32,
}

/// A request is over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Removed {
    /// Which.
    pub request: RequestId,
    /// In which life.
    pub generation: u64,
    /// The blocks of the device that it still had: none that have been somebody else's since, none that a swap is at, and none that are
    /// kept for its children.
    pub device: Vec<BlockRef>,
}

/// A block can be found by a hash no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Evicted {
    /// The hash.
    pub hash: u64,
    /// The block, in the use in which it could be found.
    pub block: BlockRef,
    /// Why.
    pub why: Eviction,
}

/// Why a block can be found no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Eviction {
    /// It was given to somebody else.
    Reallocated,
    /// The hash leads to another block, or the block has another hash.
    Replaced,
}

/// How much may be tracked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LifecycleSettings {
    /// The most requests that live at once.
    pub requests: usize,
    /// The most sequences of a request that live at once.
    pub sequences: u32,
    /// Blocks of the device: indices are below this.
    pub blocks: u32,
    /// The most subscribers of either stream.
    pub subscribers: usize,
    /// The most swaps under way.
    pub swaps: usize,
    /// How long a swap that was stopped may take to end before its blocks are quarantined.
    pub grace: Duration,
}

impl Default for LifecycleSettings {
    fn default() -> Self {
        let grace = Duration::from_millis(500);
        Self { requests: 65_536, sequences: 4096, blocks: 1 << 24, subscribers: 64, swaps: 1024, grace }
    }
}

/// Requests and their swaps together.
pub struct Lifecycle {
    tracker: Tracker,
    swaps: Swaps,
    /// To which blocks of the host requests were swapped out by swaps of this engine, by their generation.
    hosts: BTreeMap<u64, Vec<BlockRef>>,
    actions: VecDeque<Action>,
    /// What there was to be fetched when somebody was last woken for it.
    told: (u64, u64),
}

impl Lifecycle {
    /// One that knows of nobody. Its moves and watches are numbered from `first_id`: whoever joins several flows gives each a range of
    /// its own.
    pub fn new(settings: LifecycleSettings, first_id: u64) -> Self {
        let swaps = Swaps::new(settings.swaps, settings.grace, first_id);
        Self { tracker: Tracker::new(settings), swaps, hosts: BTreeMap::new(), actions: VecDeque::new(), told: (0, 0) }
    }

    /// Who lives, and who is told.
    pub fn tracker(&self) -> &Tracker {
        &self.tracker
    }

    /// The same, for subscribers, openings and evictions. Reports go through [`report`](Self::report), which minds the swaps.
    pub fn tracker_mut(&mut self) -> &mut Tracker {
        &mut self.tracker
    }

    /// Takes in what a scheduler says. When this returns [`Verdict::Remove`], everybody has been told: free what the request had after
    /// that, and not before.
    pub fn report(
        &mut self,
        request: &RequestId,
        generation: u64,
        report: &SchedulerReport,
        now: Timestamp,
    ) -> Result<Verdict, LifecycleError> {
        match report {
            SchedulerReport::Allocated { fresh, cached } => {
                self.swaps.check_free(fresh, false)?;
                self.swaps.check_free(cached, true)?;
            }
            SchedulerReport::Grown { blocks } | SchedulerReport::SwapInPrepared { blocks } => {
                self.swaps.check_free(blocks, false)?
            }
            settling if settling.settles_swap() && self.swaps.current(generation).is_some() => {
                return Err(LifecycleError::SwapOfOurs { request: request.clone() });
            }
            _ => {}
        }
        if self.tracker.ends(request, generation, report) && !planted::is(Bug::RemovalNamesBlocksUnderASwap) {
            // What a swap is at is freed by the swap, and not by whoever reads of the removal.
            self.tracker.let_go(generation, &self.swaps.blocks_of(generation));
        }
        let verdict = self.tracker.report(request, generation, report, now)?;
        if verdict != Verdict::NoOp
            || matches!(report, SchedulerReport::SwapOutCommitted | SchedulerReport::SwapInCommitted)
        {
            // It has nothing in the host any more, or what its scheduler has put there by itself.
            self.hosts.remove(&generation);
        }
        if verdict != Verdict::NoOp {
            self.swaps.drop_request(generation, now, &mut self.actions);
        }
        Ok(verdict)
    }

    /// What a request is about to leave behind is not free with its end: others keep these blocks.
    pub(crate) fn keep_from_removal<'a>(&mut self, generation: u64, blocks: impl Iterator<Item = &'a BlockRef>) {
        let indices: BTreeSet<u32> = blocks.map(|block| block.index).collect();
        self.tracker.let_go(generation, &indices);
    }

    /// Begins a swap, and says so of the request. Lends it both tickets: one of them, or both, come back by [`Action::Free`].
    pub fn swap_begin(
        &mut self,
        request: &RequestId,
        generation: u64,
        ask: SwapAsk,
        now: Timestamp,
    ) -> Result<SwapKey, LifecycleError> {
        if self.tracker.state(request, generation)?.is_end() {
            return Err(LifecycleError::LifeOver { request: request.clone(), generation });
        }
        self.swaps.check(&ask)?;
        let blocks: Vec<BlockRef> = ask.pairs.iter().map(|(block, _)| *block).collect();
        let asked = blocks.len();
        let report = match ask.way {
            SwapWay::Out => {
                let held: BTreeSet<&BlockRef> = self.tracker.device_blocks(request, generation).iter().collect();
                if let Some(block) = blocks.iter().find(|block| !held.contains(block)) {
                    return Err(LifecycleError::BlockNotHeld { block: *block });
                }
                let mut sorted = blocks;
                sorted.sort_unstable();
                if let Some(twice) = sorted.windows(2).find(|two| two[0] == two[1]) {
                    return Err(LifecycleError::BlockTwice { block: twice[0] });
                }
                if asked < held.len() && !planted::is(Bug::PartOfARequestSwapped) {
                    return Err(LifecycleError::PartOfRequest { request: request.clone(), asked, has: held.len() });
                }
                SchedulerReport::SwapOutPrepared
            }
            SwapWay::In => {
                self.check_host(request, generation, &ask)?;
                SchedulerReport::SwapInPrepared { blocks }
            }
        };
        self.tracker.report(request, generation, &report, now)?;
        Ok(self.swaps.begin(generation, ask, now, &mut self.actions))
    }

    /// Whether all that the request has of the host comes back, and nothing else. Of what its scheduler has swapped out by itself only the
    /// number is known.
    fn check_host(&self, request: &RequestId, generation: u64, ask: &SwapAsk) -> Result<(), LifecycleError> {
        if self.tracker.state(request, generation)? != Request::Swapped || planted::is(Bug::PartOfARequestSwapped) {
            return Ok(());
        }
        let (asked, has) = (ask.pairs.len(), self.tracker.swapped_blocks(generation));
        if asked != has {
            return Err(LifecycleError::PartOfRequest { request: request.clone(), asked, has });
        }
        let Some(hosts) = self.hosts.get(&generation) else { return Ok(()) };
        let hosts: BTreeSet<&BlockRef> = hosts.iter().collect();
        match ask.pairs.iter().find(|(_, block)| !hosts.contains(block)) {
            Some((_, block)) => Err(LifecycleError::NotSwappedTo { request: request.clone(), block: *block }),
            None => Ok(()),
        }
    }

    /// The state of a swap that is not over.
    pub fn swap_state(&self, key: SwapKey) -> Option<Swap> {
        self.swaps.get(key).map(|entry| entry.state)
    }

    /// Goes on with what a swap has written: its blocks are the request's, what was read is freed. Gives back the ticket of what was
    /// written.
    pub fn swap_commit(&mut self, key: SwapKey, now: Timestamp) -> Result<BlocksRef, LifecycleError> {
        let entry = self.swaps.get(key).ok_or(LifecycleError::NoSuchSwap)?;
        let (state, generation) = (entry.state, entry.generation);
        let (report, host) = match entry.way {
            SwapWay::Out => (SchedulerReport::SwapOutCommitted, Some(entry.host.clone())),
            SwapWay::In => (SchedulerReport::SwapInCommitted, None),
        };
        if state != Swap::Moved {
            return Err(LifecycleError::NotMoved { state });
        }
        let request = self.tracker.request_of(generation).ok_or(LifecycleError::NoSuchSwap)?;
        self.tracker.report(&request, generation, &report, now)?;
        match host {
            Some(host) => drop(self.hosts.insert(generation, host)),
            None => drop(self.hosts.remove(&generation)),
        }
        self.swaps.commit(key, &mut self.actions).ok_or(LifecycleError::NotMoved { state })
    }

    /// Gives a swap up: the request is where it was before, and what was written is freed once nothing can land in it.
    pub fn swap_roll_back(&mut self, key: SwapKey, now: Timestamp) -> Result<(), LifecycleError> {
        let entry = self.swaps.get(key).ok_or(LifecycleError::NoSuchSwap)?;
        let (generation, way, is_wanted) = (entry.generation, entry.way, !entry.is_stopped());
        if is_wanted {
            self.tracker_rolls_back(generation, way, now);
        }
        self.swaps.roll_back(key, false, now, &mut self.actions);
        Ok(())
    }

    fn tracker_rolls_back(&mut self, generation: u64, way: SwapWay, now: Timestamp) {
        let report = match way {
            SwapWay::Out => SchedulerReport::SwapOutRolledBack { is_lost: false },
            SwapWay::In => SchedulerReport::SwapInRolledBack { is_lost: false },
        };
        self.tracker_takes(generation, &report, now);
    }

    fn tracker_takes(&mut self, generation: u64, report: &SchedulerReport, now: Timestamp) {
        let Some(request) = self.tracker.request_of(generation) else { return };
        // A swap of ours holds its request in the state in which this can happen; a refusal is counted there.
        let _ = self.tracker.report(&request, generation, report, now);
    }

    /// The next thing that became of a swap.
    pub fn next_news(&mut self) -> Option<SwapNews> {
        self.swaps.next_news()
    }

    /// Something has happened, perhaps to a swap.
    pub fn handle(&mut self, event: &Event, now: Timestamp) {
        let change = self.swaps.handle(event, now, &mut self.actions);
        change.into_iter().for_each(|change| self.apply(&change, now));
    }

    /// Time has passed.
    pub fn expire(&mut self, now: Timestamp) {
        let changes = self.swaps.expire(now, &mut self.actions);
        changes.iter().for_each(|change| self.apply(change, now));
    }

    fn apply(&mut self, change: &Change, now: Timestamp) {
        match *change {
            Change::Failed(generation, way) => self.tracker_rolls_back(generation, way, now),
            Change::TimedOut(generation, SwapWay::Out) => {
                self.tracker_takes(generation, &SchedulerReport::Rolled(DeferSite::SwapOutTimeout), now);
            }
            Change::TimedOut(generation, SwapWay::In) => {
                self.tracker_takes(generation, &SchedulerReport::Rolled(DeferSite::SwapInTimeout), now);
            }
        }
    }

    /// When time has to be looked at again.
    pub fn deadline(&self) -> Option<Timestamp> {
        self.swaps.deadline()
    }

    /// The next thing that is to be done.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front().or_else(|| {
            let told = (self.tracker.told(), self.swaps.told());
            (std::mem::replace(&mut self.told, told) != told).then_some(Action::Tell)
        })
    }

    /// Swaps under way, and how many of them are quarantined.
    pub fn swaps(&self) -> (usize, usize) {
        (self.swaps.len(), self.swaps.quarantined())
    }

    /// What does not agree with itself, in words: nothing, unless there is a mistake here.
    pub fn check(&self) -> Result<(), &'static str> {
        self.tracker.check()?;
        if !self.swaps.agrees() {
            return Err("swaps are counted otherwise than they are under way");
        }
        let is_swapping =
            |life| matches!(self.tracker.state_of(life), Some(Request::SwappingOut | Request::SwappingIn));
        if self.swaps.current_lives().all(is_swapping) {
            Ok(())
        } else {
            Err("a swap is under way of a request that is not being swapped")
        }
    }

    /// Whether nobody lives and no swap is under way.
    pub fn is_empty(&self) -> bool {
        self.tracker.is_empty() && self.swaps.len() == 0 && self.actions.is_empty()
    }
}
