//! Regions that cannot be told to a peer yet: registering them with its cards takes as long as it takes to pin them.
//!
//! That is done where nobody waits. Such a region alone is told later, and what names memory behind it; withdrawals, counters, other regions and signs of
//! life are not.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use penstock_core::env::BlockingJob;
use penstock_core::{Env, Timestamp};
use penstock_memory::Region;
use penstock_session::{ControlMessage, Frame};
use penstock_transport::Registrar;

use super::{Control, Phase, Talk};
use crate::shared::{ControlCall, Shared};

/// So long a question waits for regions that are being prepared: who asks whether this engine lives may not wait much longer.
const ANSWER_WITHIN: Duration = Duration::from_millis(40);

/// What waits in one session for regions to be prepared.
#[derive(Default)]
pub(super) struct Preparing {
    regions: BTreeMap<u32, Preparation>,
    /// Since when there are any.
    since: Option<Timestamp>,
    /// Behind a message that may name one of them.
    said: VecDeque<ControlMessage>,
}

struct Preparation {
    region: Arc<Region>,
    generation: u32,
    stage: Arc<AtomicU8>,
}

/// How far a preparation is: nobody waits for it yet, somebody waits, it is done.
const BEGUN: u8 = 0;
const AWAITED: u8 = 1;
const DONE: u8 = 2;

impl Preparing {
    /// Whether there is nothing that a region has to be prepared for first.
    pub(super) fn is_over(&self) -> bool {
        self.regions.is_empty() && self.said.is_empty()
    }

    /// Whether whoever asks now waits.
    pub(super) fn holds_answers(&self, now: Timestamp) -> bool {
        self.since.is_some_and(|since| now.since(since) < ANSWER_WITHIN)
    }

    /// Those that are prepared by now, under the generation that they were prepared for.
    pub(super) fn take_done(&mut self) -> Vec<(Arc<Region>, u32)> {
        // SYNC prepared: pairs with the swap in begin(): what was registered before is found.
        let done = self.regions.extract_if(.., |_, one| one.stage.load(Ordering::Acquire) == DONE);
        let done = done.map(|(_, one)| (one.region, one.generation)).collect();
        self.look_for_end();
        done
    }

    /// A region is gone.
    pub(super) fn forget(&mut self, gone: impl Fn(u32) -> bool) {
        self.regions.retain(|&id, _| !gone(id));
        self.look_for_end();
    }

    fn look_for_end(&mut self) {
        if self.regions.is_empty() {
            self.since = None;
        }
    }

    /// Whether a region has to be prepared, and is not yet; then it is by `run`, in another thread.
    pub(super) fn begin(
        &mut self,
        region: &Arc<Region>,
        registrar: &dyn Registrar,
        run: &PrepareElsewhere<'_>,
    ) -> bool {
        let (id, generation) = (region.id().0, region.generation().0);
        if self.regions.get(&id).is_some_and(|one| one.generation == generation) {
            return true;
        }
        let Some(job) = registrar.preparation(region) else { return false };
        let stage = Arc::new(AtomicU8::new(BEGUN));
        let there = Arc::clone(&stage);
        (run.run)(Box::new(move || {
            job();
            there.swap(DONE, Ordering::AcqRel) == AWAITED // SYNC prepared: pairs with take_done()'s load and the exchange below
        }));
        // SYNC prepared: pairs with the swap above: either this finds that it is done, or that finds that somebody waits.
        if stage.compare_exchange(BEGUN, AWAITED, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return false;
        }
        self.regions.insert(id, Preparation { region: Arc::clone(region), generation, stage });
        self.since.get_or_insert(run.now);
        true
    }
}

/// Prepares a region, and answers whether somebody waits for that.
pub(super) type PreparationJob = Box<dyn FnOnce() -> bool + Send>;

/// How something is done in another thread, and what time it is.
pub(super) struct PrepareElsewhere<'a> {
    pub(super) run: &'a dyn Fn(PreparationJob),
    pub(super) now: Timestamp,
}

impl<E: Env> Shared<E> {
    /// Has a region prepared, and the control loop look at that peer's afterwards.
    pub(super) fn prepare(self: &Arc<Self>, token: u64, job: PreparationJob) {
        let shared = Arc::downgrade(self);
        // One after another for the whole engine: the thread is one for what waits for nobody but this process.
        self.env.run_blocking(
            std::process::id(),
            BlockingJob::once(move || {
                if job()
                    && let Some(shared) = shared.upgrade()
                {
                    shared.control.call(ControlCall::Prepared { token });
                }
            }),
        );
    }
}

impl<E: Env> Control<E> {
    fn preparing(&mut self, token: u64) -> Option<&mut Preparing> {
        match self.talks.get_mut(&token) {
            Some(Talk { phase: Phase::Open { announced, .. }, .. }) => Some(&mut announced.preparing),
            _ => None,
        }
    }

    /// A region of those that a peer was not told of is prepared.
    pub(super) fn prepared(&mut self, token: u64) {
        self.announce_to(token);
        while let Some(preparing) = self.preparing(token).filter(|preparing| preparing.regions.is_empty()) {
            let Some(said) = preparing.said.pop_front() else { break };
            self.say_transfer(token, said);
        }
    }

    /// Whether something about transfers may be said now; else it is when all memory is told that it may name.
    pub(super) fn may_say(&mut self, token: u64, said: ControlMessage) -> Option<ControlMessage> {
        let Some(preparing) = self.preparing(token) else { return Some(said) };
        if preparing.is_over() || preparing.said.is_empty() && !matches!(said, ControlMessage::Chunk(_)) {
            return Some(said);
        }
        preparing.said.push_back(said);
        None
    }

    pub(super) fn say_transfer(&mut self, token: u64, said: ControlMessage) {
        let is_first = matches!(said, ControlMessage::PeerFeatures(_));
        self.say(token, &Frame::Control(said));
        if is_first {
            self.told_what_it_can_do(token);
        }
    }
}
