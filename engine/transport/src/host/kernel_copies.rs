//! Copies that the kernel makes between this process's memory and another's, for one lane.
//!
//! Such a call waits as long as the other process's memory does, which may lie in a file that this process serves itself. So a thread makes it that
//! nobody has to wait for, and the lane hears of its end. What a call that does not come back touches is held, and nothing else: peers see a hazard of
//! its own, and this process counts its pages by region.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use penstock_core::env::BlockingJob;
use penstock_core::{Cause, Direction, Span};
use penstock_memory::{ProcessVmError, ProcessVmMemory, Window, process_vm};
use penstock_ring::ReadyBits;

use super::bells::Bell;
use super::held_pages::{HeldPages, PageHold};
use super::owner_state::OwnerState;
use crate::lane::{Batch, CancelledOp, Failure, LaneEvents, PostError, Revisions};
use crate::mediated::Touch;

/// Batches of one lane that are under way: enough that the thread finds one when it has ended another.
const BATCHES_MAX: usize = 8;

/// A call that has not come back after so long when its transfer has to end is waited for by no other transfer.
const STALLED_AFTER: Duration = Duration::from_millis(500);

/// Has calls made that may wait for the peer's process.
pub type BlockingRun = Arc<dyn Fn(BlockingJob) + Send + Sync>;

/// The batches of one lane, and the holds that lie over what they touch.
pub(super) struct KernelCopies {
    run: BlockingRun,
    queue: Arc<Queue>,
    /// Copies what is next in it.
    copy: Arc<dyn Fn() + Send + Sync>,
    touch: Touch,
    pages: Arc<HeldPages>,
    under_way: usize,
}

struct Queue {
    state: Mutex<State>,
    /// The worker's own bell, and its bit for the peer.
    bell: Bell,
    ready: ReadyBits,
    peer_index: usize,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    running: Option<Running>,
    ended: VecDeque<(u64, Result<u64, Cause>)>,
    /// Emptied, to be filled again.
    spans: Vec<Vec<Span>>,
}

struct Job {
    completion_id: u64,
    direction: Direction,
    local: Window,
    remote: ProcessVmMemory,
    spans: Vec<Span>,
    hold: PageHold,
}

struct Running {
    completion_id: u64,
    since: Instant,
    remote: ProcessVmMemory,
}

impl KernelCopies {
    /// Those of a worker's lane to this peer. `bell` and `ready` are the worker's own.
    pub(super) fn new(
        run: &BlockingRun,
        owner_state: &OwnerState,
        (peer_index, worker): (u32, usize),
        (bell, ready): (Bell, ReadyBits),
    ) -> Self {
        let queue = Arc::new(Queue { state: Mutex::default(), bell, ready, peer_index: peer_index as usize });
        let copied = Arc::clone(&queue);
        Self {
            run: Arc::clone(run),
            queue,
            copy: Arc::new(move || copied.copy_next()),
            touch: Touch::new(owner_state.kernel_hazard(peer_index, worker)),
            pages: owner_state.held_pages(peer_index, worker),
            under_way: 0,
        }
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
        self.touch.enter();
        let now = revisions();
        let asked = if now != batch.checked_at {
            Err(PostError::StaleRevisions(now))
        } else if !self.touch.may_hold(now.remote) || !self.pages.may_hold(now.local) {
            // Somebody may wait for what is under way: that only becomes less until all of it has ended.
            Err(PostError::Full)
        } else {
            self.touch.hold(now.remote);
            Ok(self.pages.hold(now.local, std::iter::once(batch.local_region.region.0)))
        };
        self.touch.leave();
        let hold = asked?;
        self.under_way += 1;
        let mut state = self.queue.state();
        let mut spans = state.spans.pop().unwrap_or_default();
        spans.extend_from_slice(batch.spans);
        let (local, remote) = (local.clone(), remote.clone());
        let (completion_id, direction) = (batch.completion_id, batch.direction);
        state.waiting.push_back(Job { completion_id, direction, local, remote, spans, hold });
        drop(state);
        // One call for each batch, so that lanes of several workers take turns.
        (self.run)(BlockingJob::Again(Arc::clone(&self.copy)));
        Ok(batch.spans.len())
    }

    /// Tells of what has ended.
    pub(super) fn collect(&mut self, events: &mut dyn LaneEvents) {
        while self.under_way > 0 {
            let ended = match self.queue.state.try_lock() {
                Ok(mut state) => state.ended.pop_front(),
                Err(TryLockError::Poisoned(state)) => state.into_inner().ended.pop_front(),
                // The bell rings once it has ended what it has.
                Err(TryLockError::WouldBlock) => None,
            };
            let Some((completion_id, result)) = ended else { return };
            self.release();
            events.completed(completion_id, result.map_err(Failure::from));
        }
    }

    /// Gives up a batch, if it is one of these.
    pub(super) fn cancel_op(&mut self, completion_id: u64) -> Option<CancelledOp> {
        let mut state = self.queue.state();
        if let Some(running) = state.running.as_ref().filter(|running| running.completion_id == completion_id) {
            if running.since.elapsed() > STALLED_AFTER {
                running.remote.process().stall();
            }
            return Some(CancelledOp::LocalPending);
        }
        if state.ended.iter().any(|(ended, _)| *ended == completion_id) {
            return Some(CancelledOp::RemotePending);
        }
        let place = state.waiting.iter().position(|job| job.completion_id == completion_id)?;
        let job = state.waiting.remove(place);
        drop(state);
        drop(job);
        self.release();
        Some(CancelledOp::Quiesced)
    }

    fn release(&mut self) {
        self.under_way -= 1;
        self.touch.released();
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

    /// Copies one batch, unless all have been given up.
    fn copy_next(&self) {
        let mut state = self.state();
        let Some(job) = state.waiting.pop_front() else { return };
        let (completion_id, remote) = (job.completion_id, job.remote.clone());
        state.running = Some(Running { completion_id, since: Instant::now(), remote });
        drop(state);
        let (result, spans) = job.copy();
        let mut state = self.state();
        state.running = None;
        state.ended.push_back((completion_id, result));
        state.spans.push(spans);
        drop(state);
        self.bell.mark_and_ring(&self.ready, self.peer_index);
    }
}

impl Job {
    /// Copies, and lets go of this process's memory.
    fn copy(self) -> (Result<u64, Cause>, Vec<Span>) {
        let Self { completion_id: _, direction, local, remote, mut spans, hold } = self;
        let copied = process_vm::scatter(&local, &remote, direction, &spans).map_err(|error| {
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
        spans.clear();
        (copied, spans)
    }
}
