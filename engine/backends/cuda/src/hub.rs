//! One worker's copies, on all devices and for all its lanes.
//!
//! Its driver and its lanes share it, so the lock is waited for only where a plan is built that needs a device for the first time.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use penstock_core::env::TransportEnv;
use penstock_core::limits::SPANS_PER_POST;
use penstock_core::{Cause, Direction, Span, Timestamp};
use penstock_memory::{DeviceId, Memory, Segment};
use penstock_ring::ReadyBits;
use penstock_transport::{Batch, CancelledOp, CopyEnd, DeviceLane, Driver, PostError, RemoteMemory, Rest};

use crate::adopt::Adopted;
use crate::bell::StreamBell;
use crate::context::{Context, CurrentContext};
use crate::error::CudaError;
use crate::pinned::pin;
use crate::queue::{Copy, CopyQueue, FLUSHES_MAX, LaneId, OpResult, OpenOp, Way};

/// How often streams are asked whether they go on. Who sleeps wakes as often while there are copies.
const ASK_EVERY: Duration = Duration::from_millis(5);
/// A driver that has no memory for the other half of a flush is asked again for so long.
const SHORTAGE_MAX: Duration = Duration::from_secs(1);
/// Words are in lines of their own.
const WORD_BYTES: u64 = 64;

pub(crate) struct Hub {
    env: Arc<dyn TransportEnv>,
    bell: Arc<StreamBell>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    movers: Vec<Mover>,
    ended: Ends,
    /// What a device has that does not go on: it keeps the memory.
    lost: Vec<OpenOp>,
    /// Queues in which lanes have found no room, and the indices of their peers.
    without_room: Vec<(DeviceId, Way, u32)>,
    asked_at: Timestamp,
}

/// Ends that lanes have not heard of, by the index of the peer.
type Ends = Vec<VecDeque<(LaneId, u64, CopyEnd)>>;

/// One device's part.
struct Mover {
    context: Arc<Context>,
    queues: [CopyQueue; 3],
    has_failed: bool,
    /// Since when the driver has no memory for the other half of a flush.
    short_since: Option<Timestamp>,
    _words: Segment,
}

impl Mover {
    fn new(env: &Arc<dyn TransportEnv>, context: Arc<Context>) -> Result<Self, CudaError> {
        let words = Segment::create("penstock-cuda-words", Way::ALL.len() as u64 * WORD_BYTES);
        let words = words.map_err(|error| CudaError::Words { why: error.to_string() })?;
        pin(env, &context, words.window())?;
        let entered = context.enter()?;
        let queue = |way: Way| {
            let word = words.window().slice(way as u64 * WORD_BYTES, 8).expect("there is one for each way");
            CopyQueue::new(way, word, &context, &entered)
        };
        let queues = [queue(Way::ToDevice)?, queue(Way::ToHost)?, queue(Way::Within)?];
        drop(entered);
        Ok(Self { context, queues, has_failed: false, short_since: None, _words: words })
    }

    /// Does something with the driver. What goes wrong there is the device's end for this worker, but where the driver has no memory for a call: what is left
    /// to do then is done when the streams are asked next.
    fn with_driver(
        &mut self,
        env: &dyn TransportEnv,
        does: impl FnOnce(&mut [CopyQueue; 3], &CurrentContext<'_>) -> Result<(), CudaError>,
        ended: &mut Ends,
        lost: &mut Vec<OpenOp>,
    ) {
        let Self { context, queues, has_failed, short_since, .. } = self;
        if *has_failed {
            return;
        }
        let done = context.enter().and_then(|entered| does(queues, &entered));
        // What no stream has waits until there is memory, or its transfers end; half a flush does not.
        let has_begun = queues.iter().any(CopyQueue::has_begun);
        *short_since = short_since.filter(|_| has_begun);
        let Err(error) = done else { return };
        if error.is_shortage() {
            let now = env.now();
            if !has_begun || now.since(*short_since.get_or_insert(now)) < SHORTAGE_MAX {
                return;
            }
        }
        tracing::error!(device = %context.device, %error, "a device has failed: its transfers end, and their memory stays withheld");
        *has_failed = true;
        for (op, was_given) in queues.iter_mut().flat_map(CopyQueue::give_up) {
            let failed = Cause::DeviceFailed.into();
            let end = if was_given { CopyEnd::Lost(failed) } else { CopyEnd::Completed(Err(failed)) };
            tell(ended, &op, end);
            if was_given {
                lost.push(op);
            }
        }
    }

    /// Whether there is an operation, given to a stream or not.
    fn has_any(&self) -> bool {
        self.queues.iter().any(CopyQueue::has_any)
    }

    fn is_busy(&self) -> bool {
        self.queues.iter().any(CopyQueue::is_busy)
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        let (context, queues) = (Arc::clone(&self.context), &mut self.queues);
        // A stream that still has something writes to the words, and one of a failed device may: then both stay.
        if !self.has_failed && !queues.iter().any(CopyQueue::is_busy) {
            if let Ok(entered) = context.enter() {
                queues.iter_mut().for_each(|queue| queue.end(&entered));
            }
        } else {
            std::mem::forget(self._words.window().clone());
            let given = queues.iter_mut().flat_map(CopyQueue::give_up).filter(|(_, was_given)| *was_given);
            given.for_each(std::mem::forget);
        }
    }
}

impl Drop for State {
    /// Nobody knows what a device still does that is lost.
    fn drop(&mut self) {
        self.lost.drain(..).for_each(std::mem::forget);
    }
}

fn tell(ended: &mut Ends, op: &OpenOp, end: CopyEnd) {
    let place = op.lane.peer_index as usize;
    if ended.len() <= place {
        ended.resize_with(place + 1, VecDeque::new);
    }
    let ended = &mut ended[place];
    if ended.capacity() == 0 {
        // As many as end between two looks of a lane, unless it has stood still.
        ended.reserve(FLUSHES_MAX as usize * SPANS_PER_POST);
    }
    ended.push_back((op.lane, op.completion_id, end));
}

impl Hub {
    pub(crate) fn new(env: Arc<dyn TransportEnv>) -> io::Result<Self> {
        Ok(Self { env, bell: StreamBell::new()?, state: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has streams on this device from now on.
    pub(crate) fn prepare(&self, context: &Arc<Context>) -> Result<(), CudaError> {
        let has_it = |state: &State| state.movers.iter().any(|mover| mover.context.device == context.device);
        if has_it(&self.lock()) {
            return Ok(());
        }
        let mover = Mover::new(&self.env, Arc::clone(context))?;
        let mut state = self.lock();
        if !has_it(&state) {
            state.movers.push(mover);
        }
        Ok(())
    }
}

impl State {
    fn mover(&mut self, device: DeviceId) -> Option<&mut Mover> {
        self.movers.iter_mut().find(|mover| mover.context.device == device)
    }

    /// Takes operations that have ended, and gives streams more. Returns whether any had.
    fn collect(&mut self, hub: &Hub) -> bool {
        let Self { movers, ended, lost, .. } = self;
        let mut any = false;
        for mover in movers.iter_mut().filter(|mover| mover.is_busy()) {
            let mut has_ended = false;
            for queue in &mut mover.queues {
                let take = |op: OpenOp, result: OpResult| {
                    tell(ended, &op, CopyEnd::Completed(result.map_err(Into::into)));
                };
                has_ended |= queue.collect(take);
            }
            if has_ended {
                any = true;
                let flush = |queues: &mut [CopyQueue; 3], entered: &CurrentContext<'_>| {
                    CopyQueue::flush_each(queues, &hub.bell, entered)
                };
                mover.with_driver(&*hub.env, flush, ended, lost);
            }
        }
        any
    }

    /// Takes what has ended, and asks streams now and then where nothing has.
    fn look(&mut self, hub: &Hub) {
        if self.movers.iter().any(Mover::has_any) && !self.collect(hub) {
            let now = hub.env.now();
            if now.since(self.asked_at) >= ASK_EVERY {
                self.asked_at = now;
                self.ask(hub);
            }
        }
    }

    /// Asks all streams that have something whether they go on, and gives them what the driver had no memory for.
    fn ask(&mut self, hub: &Hub) {
        let Self { movers, ended, lost, .. } = self;
        for mover in movers.iter_mut().filter(|mover| mover.has_any()) {
            let ask = |queues: &mut [CopyQueue; 3], entered: &CurrentContext<'_>| {
                let flushed = CopyQueue::flush_each(queues, &hub.bell, entered);
                queues.iter().filter(|queue| queue.is_busy()).try_for_each(|queue| queue.ask(entered))?;
                flushed
            };
            mover.with_driver(&*hub.env, ask, ended, lost);
        }
    }
}

/// A worker's driver.
pub(crate) struct HubDriver {
    pub(crate) hub: Arc<Hub>,
    /// The worker's, by which lanes are marked.
    pub(crate) ready: ReadyBits,
}

impl Driver for HubDriver {
    fn turn(&mut self) -> bool {
        self.hub.bell.silence();
        let mut state = self.hub.lock();
        state.look(&self.hub);
        let State { movers, ended, without_room, .. } = &mut *state;
        let told = ended.iter().enumerate().filter(|(_, ended)| !ended.is_empty());
        let mut any = false;
        let mut mark = |peer_index| {
            self.ready.mark(peer_index);
            any = true;
        };
        told.for_each(|(peer_index, _)| mark(peer_index));
        without_room.retain(|&(device, way, peer_index)| {
            let mover = movers.iter().find(|mover| mover.context.device == device);
            let is_full = mover.is_some_and(|mover| !mover.queues[way as usize].has_room());
            if !is_full {
                mark(peer_index as usize);
            }
            is_full
        });
        any
    }

    fn rest(&mut self, now: Timestamp) -> Rest {
        let mut state = self.hub.lock();
        let State { movers, ended, lost, .. } = &mut *state;
        let mut has_any = false;
        for mover in movers.iter_mut().filter(|mover| mover.has_any()) {
            let arm = |queues: &mut [CopyQueue; 3], entered: &CurrentContext<'_>| {
                queues.iter_mut().try_for_each(|queue| queue.arm(&self.hub.bell, entered))
            };
            mover.with_driver(&*self.hub.env, arm, ended, lost);
            has_any |= mover.has_any();
        }
        // What has passed before the bell was hung rings none.
        let has_ended = (has_any && state.collect(&self.hub)) || state.ended.iter().any(|ended| !ended.is_empty());
        match (has_ended, has_any) {
            (true, _) => Rest::Busy,
            (false, true) => Rest::Until(now + ASK_EVERY),
            (false, false) => Rest::Until(Timestamp::NEVER),
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.hub.bell.descriptor()
    }
}

/// What one lane is given.
pub(crate) struct HubLane {
    hub: Arc<Hub>,
    id: LaneId,
}

impl HubLane {
    pub(crate) fn new(hub: &Arc<Hub>, peer_index: u32) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { hub: Arc::clone(hub), id: LaneId { peer_index, number: NEXT.fetch_add(1, Ordering::Relaxed) } }
    }

    fn place(&self) -> usize {
        self.id.peer_index as usize
    }
}

impl DeviceLane for HubLane {
    fn post(&mut self, batch: &Batch<'_>) -> Result<usize, PostError> {
        let remote = match batch.remote {
            RemoteMemory::Mapped(window) => Memory::Host(window.clone()),
            RemoteMemory::Device(window) => Memory::Device(window.clone()),
            _ => return Err(PostError::Refused(Cause::NoPath)),
        };
        let (from, to) = match batch.direction {
            Direction::Write => (batch.local, &remote),
            Direction::Read => (&remote, batch.local),
        };
        let (way, device) = match (from.device(), to.device()) {
            (Some(device), Some(_)) => (Way::Within, device),
            (Some(device), None) => (Way::ToHost, device),
            (None, Some(device)) => (Way::ToDevice, device),
            (None, None) => return Err(PostError::Refused(Cause::NoPath)),
        };
        let copy = |span: &Span| {
            let (from_at, to_at) = match batch.direction {
                Direction::Write => (span.local, span.remote),
                Direction::Read => (span.remote, span.local),
            };
            let (from, to) = (from.address_of(from_at, span.len), to.address_of(to_at, span.len));
            Some(Copy { to: to.ok()?, from: from.ok()?, bytes: span.len })
        };
        let (taken, _) = batch.fitting(u64::MAX);
        let spans = &batch.spans[..taken];
        if taken == 0 || !to.is_writable() || spans.iter().any(|span| copy(span).is_none()) {
            return Err(PostError::OutOfBounds);
        }
        let is_gone = |memory: &Memory| match memory {
            Memory::Device(window) => window.keep::<Adopted>().is_some_and(|adopted| !adopted.is_there()),
            Memory::Host(_) => false,
        };
        if is_gone(from) || is_gone(to) {
            return Err(PostError::Refused(Cause::MemoryGone));
        }
        let mut state = self.hub.lock();
        let no_path = PostError::Refused(Cause::NoPath);
        let other = match to.device().filter(|other| *other != device) {
            Some(other) => Some(Arc::clone(&state.mover(other).ok_or(no_path)?.context)),
            None => None,
        };
        let mover = state.mover(device).ok_or(no_path)?;
        let queue = &mut mover.queues[way as usize];
        match (mover.has_failed, queue.has_room()) {
            (true, _) => Err(PostError::Refused(Cause::DeviceFailed)),
            (false, false) => {
                let waits = (device, way, self.id.peer_index);
                if !state.without_room.contains(&waits) {
                    state.without_room.push(waits);
                }
                Err(PostError::Full)
            }
            (false, true) => {
                let copies = spans.iter().filter_map(copy);
                queue.push((batch.completion_id, self.id), [from.clone(), to.clone()], copies, other.as_ref());
                Ok(taken)
            }
        }
    }

    fn submit(&mut self) {
        let mut state = self.hub.lock();
        let State { movers, ended, lost, .. } = &mut *state;
        for mover in movers.iter_mut() {
            let flush = |queues: &mut [CopyQueue; 3], entered: &CurrentContext<'_>| {
                CopyQueue::flush_each(queues, &self.hub.bell, entered)
            };
            mover.with_driver(&*self.hub.env, flush, ended, lost);
        }
    }

    fn cancel_op(&mut self, completion_id: u64) -> Option<CancelledOp> {
        let mut state = self.hub.lock();
        let mut queues = state.movers.iter_mut().flat_map(|mover| &mut mover.queues);
        // Lanes number their operations by themselves: what another one has may be called the same.
        let cancelled = queues.find_map(|queue| queue.cancel_op(self.id, completion_id));
        // It has passed, or was lost, and the worker has not heard of it yet.
        let is_it = |(lane, id, _): &(LaneId, u64, CopyEnd)| *lane == self.id && *id == completion_id;
        let is_told = |state: &State| state.ended.iter().flatten().any(is_it);
        cancelled.or_else(|| is_told(&state).then_some(CancelledOp::LocalPending))
    }

    fn is_busy(&self) -> bool {
        let state = self.hub.lock();
        let is_told = state.ended.get(self.place()).is_some_and(|ended| !ended.is_empty());
        is_told || state.movers.iter().flat_map(|mover| &mover.queues).any(|queue| queue.has_any_of(self.id))
    }

    fn collect(&mut self, tell: &mut dyn FnMut(u64, CopyEnd)) {
        let mut state = self.hub.lock();
        state.look(&self.hub);
        let Some(ended) = state.ended.get_mut(self.place()) else { return };
        // Others are of lanes that could not wait for them.
        for (_, completion_id, end) in ended.drain(..).filter(|(lane, ..)| *lane == self.id) {
            tell(completion_id, end);
        }
    }
}

impl Drop for HubLane {
    /// What streams have keeps its memory, and is nobody's any more.
    fn drop(&mut self) {
        let mut state = self.hub.lock();
        for queue in state.movers.iter_mut().flat_map(|mover| &mut mover.queues) {
            while let Some(completion_id) = queue.waiting_of(self.id) {
                queue.cancel_op(self.id, completion_id);
            }
        }
    }
}
