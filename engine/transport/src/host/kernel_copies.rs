//! Copies that the kernel makes between this process's memory and another's, for one lane.
//!
//! Such a call waits as long as the other process's memory does, which may lie in a file that this process serves itself. So a thread makes it that
//! nobody has to wait for, and the lane hears of its end. What a call that does not come back touches is held, what waits behind it until it is given up, and nothing else: peers see a hazard of
//! its own, and this process counts its pages by region.

use std::collections::VecDeque;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use penstock_core::env::BlockingJob;
use penstock_core::limits::{SPANS_PER_POST, UNIT_BYTES, UNITS_AT_ONCE_BY_KERNEL};
use penstock_core::{Cause, Direction, Span};
use penstock_memory::process_vm::ForeignProcess;
use penstock_memory::{ProcessVmError, ProcessVmMemory, Window, process_vm};
use penstock_ring::ReadyBits;

use super::bells::Bell;
use super::held_pages::{HeldPages, PageHold};
use super::owner_state::OwnerState;
use crate::lane::{Batch, CancelledOp, Failure, LaneEvents, PostError, Revisions};
use crate::mediated::Touch;

/// Batches of one lane that are under way: enough that the thread finds the next ones when it has ended some.
const BATCHES_MAX: usize = 32;

/// What one call moves of them, at least one: the looks around it cost as much as 16 KiB do.
const AT_ONCE_MAX: u64 = UNITS_AT_ONCE_BY_KERNEL * UNIT_BYTES;

/// A call that has not come back after so long when its transfer has to end is waited for by no other transfer.
const STALLED_AFTER: Duration = Duration::from_millis(500);

/// A thread that has begun nothing after so long may not have been there.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(100);

/// Calls go on without asking again as long as this: then other lanes have their turn.
const TURN: Duration = Duration::from_millis(2);

/// Has calls made that may wait for the peer's process.
pub type BlockingRun = Arc<dyn Fn(BlockingJob) + Send + Sync>;

/// The batches of one lane, and the holds that lie over what they touch.
pub(super) struct KernelCopies {
    queue: Arc<Queue>,
    /// Copies what is next in it.
    copy: Arc<Copy>,
    pages: Arc<HeldPages>,
    under_way: usize,
    /// What has ended, on its way to the worker.
    told: Vec<(u64, Result<u64, Cause>)>,
    /// Something was posted since it was looked last for what has ended.
    is_fresh: bool,
    /// When it was looked last whether there is a thread.
    looked: Instant,
}

type Copy = dyn Fn() + Send + Sync;

struct Queue {
    run: BlockingRun,
    /// As the lane has it.
    copy: OnceLock<Weak<Copy>>,
    state: Mutex<State>,
    /// For who polls: it takes no lock as long as nothing has ended.
    has_ended: AtomicBool,
    /// The worker's own bell, and its bit for the peer.
    bell: Bell,
    ready: ReadyBits,
    peer_index: usize,
}

struct State {
    /// What the peer sees. The thread lets go of it, too: who posted may not look for a long time.
    touch: Touch,
    waiting: VecDeque<Job>,
    running: Running,
    /// When the thread was asked for; none: it has said that nothing is left.
    asked: Option<Instant>,
    ended: Vec<(u64, Result<u64, Cause>)>,
    /// Emptied, to be filled again.
    spans: Vec<Vec<Span>>,
    /// The same, for what one call moves.
    merged: Vec<Span>,
}

impl State {
    fn new(touch: Touch) -> Self {
        let (waiting, ended, spans, merged) = Default::default();
        Self { touch, waiting, running: Running::default(), asked: None, ended, spans, merged }
    }
}

/// A batch that waits.
struct Job {
    completion_id: u64,
    transfer: u64,
    direction: Direction,
    local: Window,
    remote: ProcessVmMemory,
    spans: Vec<Span>,
    bytes: u64,
    hold: PageHold,
}

/// What is copied at this moment, by one call.
#[derive(Default)]
struct Running {
    /// Each with its bytes; none: nothing is.
    batches: Vec<(u64, u64)>,
    since: Option<Instant>,
    process: Option<Arc<ForeignProcess>>,
}

impl KernelCopies {
    /// Those of a worker's lane to this peer. `bell` and `ready` are the worker's own.
    pub(super) fn new(
        run: &BlockingRun,
        owner_state: &OwnerState,
        (peer_index, worker): (u32, usize),
        (bell, ready): (Bell, ReadyBits),
    ) -> Self {
        let queue = Arc::new(Queue {
            run: Arc::clone(run),
            copy: OnceLock::new(),
            state: Mutex::new(State::new(Touch::new(owner_state.kernel_hazard(peer_index, worker)))),
            has_ended: AtomicBool::new(false),
            bell,
            ready,
            peer_index: peer_index as usize,
        });
        let copied = Arc::clone(&queue);
        let copy: Arc<Copy> = Arc::new(move || copied.take_turn());
        queue.copy.get_or_init(|| Arc::downgrade(&copy));
        let (pages, told) = (owner_state.held_pages(peer_index, worker), Vec::new());
        Self { queue, copy, pages, under_way: 0, told, is_fresh: false, looked: Instant::now() }
    }

    /// Has a batch copied, unless something was withdrawn. Called under the lane's own hazard, by which the peer knows of calls that are about to
    /// raise this one, and this process of those about to hold pages.
    pub(super) fn post(
        &mut self,
        batch: &Batch<'_>,
        (local, remote): (&Window, &ProcessVmMemory),
        revisions: impl FnOnce() -> Revisions,
    ) -> Result<usize, PostError> {
        if self.under_way == BATCHES_MAX {
            return Err(PostError::Full);
        }
        let region = batch.local_region;
        let mut state = self.queue.state();
        state.touch.enter();
        let now = revisions();
        let asked = if now != batch.checked_at {
            Err(PostError::StaleRevisions(now))
        } else if !state.touch.may_hold(now.remote) || !self.pages.may_hold(now.local, region) {
            // Somebody may wait for what is under way: that only becomes less until all of it has ended.
            Err(PostError::Full)
        } else {
            state.touch.hold(now.remote);
            Ok(self.pages.hold(now.local, std::iter::once(region)))
        };
        state.touch.leave();
        let hold = asked?;
        self.under_way += 1;
        self.is_fresh = true;
        // All of it with the first batch: most lanes never post one.
        if state.merged.capacity() == 0 && state.running.batches.is_empty() {
            state.waiting.reserve(BATCHES_MAX);
            state.ended.reserve(BATCHES_MAX);
            self.told.reserve(BATCHES_MAX);
            state.spans.extend((0..BATCHES_MAX).map(|_| Vec::with_capacity(SPANS_PER_POST)));
            state.merged.reserve(BATCHES_MAX * SPANS_PER_POST);
            state.running.batches.reserve(BATCHES_MAX);
        }
        let mut spans = state.spans.pop().unwrap_or_default();
        spans.extend_from_slice(batch.spans);
        let bytes = batch.spans.iter().map(|span| span.len).sum();
        let (local, remote) = (local.clone(), remote.clone());
        let (completion_id, transfer, direction) = (batch.completion_id, batch.transfer, batch.direction);
        state.waiting.push_back(Job { completion_id, transfer, direction, local, remote, spans, bytes, hold });
        self.ask(state);
        Ok(batch.spans.len())
    }

    /// Asks for the thread, unless it was asked for: once more where the system had none.
    fn ask(&self, mut state: MutexGuard<'_, State>) {
        let is_asked =
            state.running.since.is_some() || state.asked.is_some_and(|asked| asked.elapsed() < ASK_AGAIN_AFTER);
        if is_asked || state.waiting.is_empty() {
            return;
        }
        state.asked = Some(Instant::now());
        drop(state);
        (self.queue.run)(BlockingJob::Again(Arc::clone(&self.copy)));
    }

    /// Tells of what has ended. Where nothing has, and nothing more was posted, the thread may need this very core.
    pub(super) fn collect(&mut self, events: &mut dyn LaneEvents) {
        let (before, is_fresh) = (self.under_way, mem::take(&mut self.is_fresh));
        self.take_ended(events);
        if self.under_way > 0 && self.under_way == before && !is_fresh {
            std::thread::yield_now();
            // Rarely: a thread that is there, and waits in somebody else's call, hears of each time.
            if self.looked.elapsed() > 10 * ASK_AGAIN_AFTER {
                self.looked = Instant::now();
                self.ask(self.queue.state());
            }
        }
    }

    fn take_ended(&mut self, events: &mut dyn LaneEvents) {
        // SYNC kernel-copies: pairs with the store behind a call: what is told here was put there before.
        if self.under_way == 0 || !self.queue.has_ended.load(Ordering::Acquire) {
            return;
        }
        let mut state = self.queue.state();
        self.queue.has_ended.store(false, Ordering::Relaxed); // SYNC kernel-copies: under the lock, as all stores
        mem::swap(&mut state.ended, &mut self.told);
        drop(state);
        for (completion_id, result) in self.told.drain(..) {
            self.under_way -= 1;
            events.completed(completion_id, result.map_err(Failure::from));
        }
    }

    /// Gives up a batch, if it is one of these.
    pub(super) fn cancel_op(&mut self, completion_id: u64) -> Option<CancelledOp> {
        let mut state = self.queue.state();
        if state.running.batches.iter().any(|(running, _)| *running == completion_id) {
            let has_stalled = state.running.since.is_some_and(|since| since.elapsed() > STALLED_AFTER);
            if let Some(process) = state.running.process.as_ref().filter(|_| has_stalled) {
                process.stall();
            }
            return Some(CancelledOp::LocalPending);
        }
        if state.ended.iter().any(|(ended, _)| *ended == completion_id) {
            return Some(CancelledOp::RemotePending);
        }
        let place = state.waiting.iter().position(|job| job.completion_id == completion_id)?;
        let job = state.waiting.remove(place);
        state.touch.released();
        drop(state);
        drop(job);
        self.under_way -= 1;
        Some(CancelledOp::Quiesced)
    }

    /// Whether a batch is under way.
    pub(super) fn is_busy(&self) -> bool {
        self.under_way > 0
    }
}

impl Queue {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Copies what waits for a while, and asks for a further turn: so lanes of several workers take turns.
    fn take_turn(&self) {
        let until = Instant::now() + TURN;
        let mut state = self.state();
        while Instant::now() < until {
            let Some(first) = state.waiting.pop_front() else {
                state.asked = None; // All of it is done, was given up, or somebody else has it.
                return;
            };
            state = self.copy_with_others(first, state);
        }
        state.asked = Some(Instant::now());
        drop(state);
        if let Some(copy) = self.copy.get().and_then(Weak::upgrade) {
            (self.run)(BlockingJob::Again(copy));
        }
    }

    /// Copies a batch, and what waits behind it as far as it is worth one call.
    fn copy_with_others<'a>(&'a self, first: Job, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let mut holds = [const { None }; BATCHES_MAX];
        let (mut bytes, mut running) = (first.bytes, mem::take(&mut state.running));
        let mut spans = mem::take(&mut state.merged);
        spans.extend_from_slice(&first.spans);
        running.batches.push((first.completion_id, first.bytes));
        while let Some(next) = state.waiting.pop_front_if(|next| next.goes_with(&first, bytes)) {
            holds[running.batches.len()] = Some(next.hold);
            running.batches.push((next.completion_id, next.bytes));
            spans.extend_from_slice(&next.spans);
            bytes += next.bytes;
            state.spans.push(emptied(next.spans));
        }
        running.since = Some(Instant::now());
        running.process = Some(Arc::clone(first.remote.process()));
        state.running = running;
        drop(state);
        // Who writes the log may panic: the kernel is done by then.
        let copied = catch_unwind(AssertUnwindSafe(|| first.copy(&spans)));
        let (result, own) = copied.unwrap_or_else(|_| (Err(Cause::MemoryGone), Vec::new()));
        drop(holds);
        let mut state = self.state();
        let State { running, ended, touch, .. } = &mut *state;
        running.batches.iter().for_each(|_| touch.released());
        (running.since, running.process) = (None, None);
        // All of it was moved, or nobody knows what.
        ended.extend(running.batches.drain(..).map(|(completion_id, bytes)| (completion_id, result.map(|()| bytes))));
        self.has_ended.store(true, Ordering::Release); // SYNC kernel-copies: pairs with the load of who polls
        state.spans.push(own);
        state.merged = emptied(spans);
        self.bell.mark_and_ring(&self.ready, self.peer_index);
        state
    }
}

fn emptied(mut spans: Vec<Span>) -> Vec<Span> {
    spans.clear();
    spans
}

impl Job {
    /// Whether it may be copied by the same call as another, which has so many bytes by now. What fails, fails for one transfer.
    fn goes_with(&self, other: &Self, bytes: u64) -> bool {
        self.transfer == other.transfer
            && self.direction == other.direction
            && bytes + self.bytes <= AT_ONCE_MAX
            && self.local.is_same(&other.local)
            && self.remote.is_same(&other.remote)
    }

    /// Copies these spans, which are its own and those of others, and lets go of this process's memory.
    fn copy(self, all: &[Span]) -> (Result<(), Cause>, Vec<Span>) {
        let Self { direction, local, remote, spans, hold, .. } = self;
        let copied = process_vm::scatter(&local, &remote, direction, all).map_err(|error| {
            if let ProcessVmError::Refused(_) = error {
                return Cause::OutOfBounds;
            }
            tracing::warn!(%error, "memory of another process was not reached");
            match error {
                ProcessVmError::Gone { .. } => Cause::PeerLost,
                _ => Cause::MemoryGone,
            }
        });
        drop((local, remote, hold));
        (copied.map(drop), emptied(spans))
    }
}
