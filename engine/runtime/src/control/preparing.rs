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
    /// Behind a message that may name one of them, each with the number of the last region that had begun by then.
    said: VecDeque<(u64, ControlMessage)>,
    begun: u64,
}

struct Preparation {
    region: Arc<Region>,
    generation: u32,
    number: u64,
    /// An earlier generation of it was told.
    replaces: bool,
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

    /// Whether any takes the place of what the peer knows: until it is told, the peer must not take its picture for recent.
    pub(super) fn replaces_any(&self) -> bool {
        self.regions.values().any(|one| one.replaces)
    }

    /// Whether whoever asked at that time waits.
    pub(super) fn holds_answer(&self, asked: Timestamp, now: Timestamp) -> bool {
        !self.regions.is_empty() && now.since(asked) < ANSWER_WITHIN
    }

    /// Those that are prepared by now, under the generation that they were prepared for.
    pub(super) fn take_done(&mut self) -> Vec<(Arc<Region>, u32)> {
        // SYNC prepared: pairs with the swap in begin(): what was registered before is found.
        let done = self.regions.extract_if(.., |_, one| one.stage.load(Ordering::Acquire) == DONE);
        done.map(|(_, one)| (one.region, one.generation)).collect()
    }

    /// A region is gone.
    pub(super) fn forget(&mut self, gone: impl Fn(u32) -> bool) {
        self.regions.retain(|&id, _| !gone(id));
    }

    /// Whether a region has to be prepared, and is not yet; then it is by `run`, in another thread.
    pub(super) fn begin(
        &mut self,
        region: &Arc<Region>,
        registrar: &dyn Registrar,
        replaces: bool,
        run: &PrepareElsewhere<'_>,
    ) -> bool {
        let (id, generation) = (region.id().0, region.generation().0);
        if self.regions.get(&id).is_some_and(|one| one.generation == generation) {
            return true;
        }
        let Some(job) = registrar.preparation(region) else { return false };
        let stage = Arc::new(AtomicU8::new(BEGUN));
        let ends = EndsPreparation { stage: Arc::clone(&stage), tell: (run.tell)() };
        (run.run)(BlockingJob::once(move || {
            let _ends = ends;
            job();
        }));
        // SYNC prepared: pairs with the swap in drop(): either this finds that it is done, or that finds that somebody waits.
        if stage.compare_exchange(BEGUN, AWAITED, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return false;
        }
        self.begun += 1;
        // What waits for an earlier generation, which is told no more, waits for this one.
        let number = self.regions.get(&id).map_or(self.begun, |earlier| earlier.number);
        self.regions.insert(id, Preparation { region: Arc::clone(region), generation, number, replaces, stage });
        true
    }
}

/// Ends a preparation also where it has panicked, or was never begun.
struct EndsPreparation {
    stage: Arc<AtomicU8>,
    tell: Arc<dyn Fn() + Send + Sync>,
}

impl Drop for EndsPreparation {
    fn drop(&mut self) {
        // SYNC prepared: pairs with take_done()'s load and the exchange in begin().
        if self.stage.swap(DONE, Ordering::AcqRel) == AWAITED {
            (self.tell)();
        }
    }
}

/// How something is done in another thread, and who hears of its end.
pub(super) struct PrepareElsewhere<'a> {
    pub(super) run: &'a dyn Fn(BlockingJob),
    pub(super) tell: &'a dyn Fn() -> Arc<dyn Fn() + Send + Sync>,
}

impl<E: Env> Shared<E> {
    /// Has it done by the thread for what waits for nobody but this process, one after another for the whole engine.
    pub(super) fn run_for_ourselves(&self, job: BlockingJob) {
        self.env.run_blocking(std::process::id(), job);
    }

    /// Has the control loop look at what is prepared for this session.
    pub(super) fn tell_prepared(self: &Arc<Self>, token: u64) -> Arc<dyn Fn() + Send + Sync> {
        let shared = Arc::downgrade(self);
        Arc::new(move || {
            if let Some(shared) = shared.upgrade() {
                shared.control.call(ControlCall::Prepared { token });
            }
        })
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
        while let Some(preparing) = self.preparing(token) {
            let waits = |after: u64| preparing.regions.values().any(|one| one.number <= after);
            let Some((after, _)) = preparing.said.front() else { break };
            if waits(*after) {
                break;
            }
            let Some((_, said)) = preparing.said.pop_front() else { break };
            self.say_transfer(token, said);
        }
    }

    /// Whether something about transfers may be said now; else it is when all memory is told that it may name.
    pub(super) fn may_say(&mut self, token: u64, said: ControlMessage) -> Option<ControlMessage> {
        let Some(preparing) = self.preparing(token) else { return Some(said) };
        if preparing.is_over() || preparing.said.is_empty() && !matches!(said, ControlMessage::Chunk(_)) {
            return Some(said);
        }
        preparing.said.push_back((preparing.begun, said));
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
