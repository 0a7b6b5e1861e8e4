//! One worker's lane to one peer, with what devices copy between its two hops.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use penstock_core::limits::{IN_FLIGHT_PER_LANE_MAX, SPANS_PER_POST};
use penstock_core::plan::RegionKey;
use penstock_core::{Cause, Direction, Generation, RegionId, Span};
use penstock_memory::Memory;
use penstock_memory::copy::{self, Hint};
use penstock_ring::ReadyBits;

use super::Staging;
use super::slots::{SLOT_BYTES, Slots, StagingSlot};
use crate::device::DeviceLane;
use crate::host::{EngineSegments, check_withdrawals};
use crate::lane::{
    Batch, CancelledOp, CounterRef, Failure, FlushRequest, Handle, Lane, LaneEvents, LaneFault, Note, NotifyPosted,
    NotifyRequest, PostError, Posted, Revisions,
};
use crate::mediated::Touch;
use crate::peer_view::PeerView;
use crate::remote::RemoteMemory;

/// Ids of what this posts itself have this bit, which none of a worker's has; below it a number of the post, and the place of the operation.
const OWN: u64 = 1 << 63;
const PLACE_BITS: u32 = 16;
/// Operations that one look gives their second hop, which may be a copy by this processor.
const HOPS_PER_POLL: usize = 8;
/// How often one hop is checked again against what the peer has withdrawn.
const RECHECKS_MAX: u32 = 64;

/// Staging memory is nobody's to withdraw: no region has this key.
const NOBODYS: RegionKey = RegionKey { region: RegionId(u32::MAX), generation: Generation(u32::MAX) };

/// Where an operation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hop {
    /// Between the memory here and the slot.
    Near,
    /// Between the slot and the peer, by the transport.
    Far,
    /// One is over and the other has not begun.
    Between,
}

/// A post, whose bytes go through a slot.
struct StagedOp {
    /// As the worker knows it.
    completion_id: u64,
    /// As whoever has it knows it now.
    own_id: u64,
    hop: Hop,
    direction: Direction,
    local: Memory,
    local_region: RegionKey,
    remote: RemoteMemory,
    remote_region: RegionKey,
    spans: Vec<Span>,
    /// Spans that have had their second hop, and those behind them that have it now.
    done: usize,
    posted: usize,
    /// Bytes that have arrived.
    moved: u64,
    hint: Hint,
    checked_at: Revisions,
    transfer: u64,
    transfer_bytes: u64,
    /// None: it was given up, and the bytes that are on their way are not in it any more.
    slot: Option<StagingSlot>,
    /// Those that it is one of.
    slots: Arc<Slots>,
    /// The worker has given it up, and waits until it touches nothing.
    is_cancelled: bool,
}

/// How a hop has ended.
enum HopEnd {
    Completed(Result<u64, Failure>),
    /// A device has failed, and may have both memories for ever.
    Lost(Failure),
}

pub(super) struct StagedLane {
    /// Dropped before slots are given back.
    inner: Box<dyn Lane>,
    /// None: the lane itself has them.
    devices: Option<Box<dyn DeviceLane>>,
    staging: Arc<Staging>,
    segments: Arc<EngineSegments>,
    peer_view: PeerView,
    touch: Touch,
    ready: ReadyBits,
    worker: usize,
    peer_index: u32,
    ops: Vec<Option<StagedOp>>,
    free: Vec<usize>,
    /// By direction, how many slots they have.
    slots: [usize; 2],
    /// Lists of spans, to be used again.
    lists: Vec<Vec<Span>>,
    posts: u64,
    /// By direction, the places of operations that are between their hops.
    between: [VecDeque<usize>; 2],
    ended: Vec<(u64, HopEnd)>,
    spans: Box<[Span; SPANS_PER_POST]>,
}

/// What lanes and devices report, as this and the worker have to hear it.
struct Sorted<'a> {
    events: &'a mut dyn LaneEvents,
    ended: &'a mut Vec<(u64, HopEnd)>,
}

impl LaneEvents for Sorted<'_> {
    fn reserve_note(&mut self) -> bool {
        self.events.reserve_note()
    }

    fn note(&mut self, note: Note<'_>) {
        self.events.note(note);
    }

    fn handed_over(&mut self, note: Note<'_>, handle: Handle) {
        self.events.handed_over(note, handle);
    }

    fn completed(&mut self, completion_id: u64, result: Result<u64, Failure>) {
        match completion_id & OWN {
            0 => self.events.completed(completion_id, result),
            _ => self.ended.push((completion_id, HopEnd::Completed(result))),
        }
    }

    fn lost(&mut self, completion_id: u64, failure: Failure) {
        match completion_id & OWN {
            0 => self.events.lost(completion_id, failure),
            _ => self.ended.push((completion_id, HopEnd::Lost(failure))),
        }
    }
}

impl StagedOp {
    /// Its bytes in the slot, in the order of its spans: those of its memory here are at the same places of one, and the peer's at those of the other.
    fn spans_of_hop(&self, hop: Hop, into: &mut [Span; SPANS_PER_POST]) -> usize {
        let Some(slot) = &self.slot else { return 0 };
        let mut at = slot.offset();
        for (span, into) in self.spans.iter().zip(into.iter_mut()) {
            *into = match hop {
                Hop::Near => Span { local: span.local, remote: at, len: span.len },
                _ => Span { local: at, remote: span.remote, len: span.len },
            };
            at += span.len;
        }
        self.spans.len()
    }

    fn batch<'a>(&'a self, hop: Hop, spans: &'a [Span], checked_at: Revisions) -> Batch<'a> {
        let (local, remote) = match hop {
            Hop::Near => (&self.local, &self.slots.mapped),
            _ => (&self.slots.memory, &self.remote),
        };
        Batch {
            direction: self.direction,
            local,
            local_region: if hop == Hop::Near { self.local_region } else { NOBODYS },
            remote_region: if hop == Hop::Near { NOBODYS } else { self.remote_region },
            remote,
            spans,
            hint: self.hint,
            checked_at,
            completion_id: self.own_id,
            transfer: self.transfer,
            transfer_bytes: self.transfer_bytes,
        }
    }

    fn second_hop(&self) -> Hop {
        if self.direction == Direction::Write { Hop::Far } else { Hop::Near }
    }
}

/// Within a process a device copies host memory that Penstock has mapped; other memory cannot be registered, since nobody says when it changes.
pub(super) fn is_staged_within(local: &Memory, remote: &RemoteMemory) -> bool {
    match (local, remote) {
        (Memory::Device(_), RemoteMemory::Mapped(window)) | (Memory::Host(window), RemoteMemory::Device(_)) => {
            !window.is_of_mapping()
        }
        _ => false,
    }
}

impl StagedLane {
    pub(super) fn new(
        staging: &Arc<Staging>,
        inner: Box<dyn Lane>,
        (peer_view, reaches_devices): (&PeerView, bool),
        worker: usize,
        peer_index: u32,
    ) -> Self {
        let segments = Arc::clone(&staging.segments);
        Self {
            inner,
            devices: (!reaches_devices).then(|| staging.devices.lane(worker, peer_index)),
            staging: Arc::clone(staging),
            peer_view: peer_view.clone(),
            touch: Touch::new(segments.owner_state.staging_hazard(peer_index, worker)),
            ready: segments.mailbox.view().ready(worker),
            segments,
            worker,
            peer_index,
            ops: Vec::new(),
            free: Vec::new(),
            slots: [0; 2],
            lists: Vec::new(),
            posts: 0,
            between: Default::default(),
            ended: Vec::new(),
            spans: Box::new([Span::default(); SPANS_PER_POST]),
        }
    }

    fn has_any(&self) -> bool {
        self.free.len() < self.ops.len()
    }

    /// Takes a slot, and gives the first hop to whoever makes it.
    #[cold]
    #[inline(never)]
    fn post_staged(&mut self, batch: &Batch<'_>) -> Result<Posted, PostError> {
        let (taken, _) = batch.fitting(SLOT_BYTES);
        if taken == 0 {
            return Err(PostError::OutOfBounds);
        }
        let Some(slots) = self.staging.slots(self.worker, batch.direction) else {
            return Err(PostError::Refused(Cause::NoPath));
        };
        let slot = slots.take(self.peer_index, self.slots[batch.direction as usize]).ok_or(PostError::Full)?;
        self.slots[batch.direction as usize] += 1;
        if self.ops.capacity() == 0 {
            // Whatever is under way later, nothing of this grows then.
            self.ops.reserve(IN_FLIGHT_PER_LANE_MAX);
            self.ended.reserve(IN_FLIGHT_PER_LANE_MAX);
            self.between.iter_mut().for_each(|between| between.reserve(IN_FLIGHT_PER_LANE_MAX));
        }
        let place = self.free.pop().unwrap_or_else(|| {
            self.ops.push(None);
            self.free.reserve(self.ops.len());
            self.lists.reserve(self.ops.len());
            self.ops.len() - 1
        });
        let mut spans = self.lists.pop().unwrap_or_else(|| Vec::with_capacity(SPANS_PER_POST));
        spans.extend_from_slice(&batch.spans[..taken]);
        let mut op = StagedOp {
            completion_id: batch.completion_id,
            own_id: self.next_id(place),
            hop: Hop::Between,
            direction: batch.direction,
            local: batch.local.clone(),
            local_region: batch.local_region,
            remote: batch.remote.clone(),
            remote_region: batch.remote_region,
            spans,
            done: 0,
            posted: 0,
            moved: 0,
            hint: batch.hint,
            checked_at: batch.checked_at,
            transfer: batch.transfer,
            transfer_bytes: batch.transfer_bytes,
            slots: Arc::clone(&slot.slots),
            slot: Some(slot),
            is_cancelled: false,
        };
        let begun = match batch.direction {
            Direction::Write => self.copy(&mut op),
            Direction::Read => self.fetch(&mut op),
        };
        match begun {
            // The worker posts the others anew.
            Ok(Posted::Accepted(taken)) => op.spans.truncate(taken),
            Ok(Posted::Moved(_)) => {
                self.between[batch.direction as usize].push_back(place);
                self.ready.mark(self.peer_index as usize);
            }
            Err(_) => {}
        }
        (op.posted, op.moved) = (0, 0);
        let taken = op.spans.len();
        self.ops[place] = Some(op);
        if begun.is_err() {
            self.take_out(place);
        }
        begun.map(|_| Posted::Accepted(taken))
    }

    fn next_id(&mut self, place: usize) -> u64 {
        self.posts += 1;
        OWN | (self.posts << PLACE_BITS & !OWN) | place as u64
    }

    /// Copies between the slot and the memory here what was not: a device does if that is a device's, and else this processor.
    fn copy(&mut self, op: &mut StagedOp) -> Result<Posted, PostError> {
        let count = op.spans_of_hop(Hop::Near, &mut self.spans);
        let copied = match (&op.local, &self.devices) {
            (Memory::Device(_), None) => self.copy_by_lane(op, count),
            _ => self.copy_here(op, count),
        };
        if let Ok(Posted::Accepted(taken)) = copied {
            (op.hop, op.posted) = (Hop::Near, taken);
        }
        copied
    }

    fn copy_here(&mut self, op: &StagedOp, count: usize) -> Result<Posted, PostError> {
        let spans = &self.spans[op.done..count];
        self.touch.enter();
        let view = self.segments.owner_state.view();
        let (revision, checked_at) = (view.revision(), op.checked_at);
        let extents = op.spans.iter().map(|span| (span.local, span.len));
        let copied = match (op.direction, check_withdrawals(view, checked_at.local, op.local_region, extents)) {
            // The worker looks again by itself, with all of the plan.
            (Direction::Write, _) if revision != checked_at.local => {
                Err(PostError::StaleRevisions(Revisions { local: revision, ..checked_at }))
            }
            (_, Err(withdrawn)) => Err(PostError::Refused(withdrawn.cause_for_local())),
            // Somebody may wait for what devices have: that only becomes less until all of it has ended.
            _ if !self.touch.may_hold(revision) => Err(PostError::Full),
            _ => match (&op.local, &op.slots.memory, &mut self.devices) {
                (Memory::Host(local), Memory::Host(slots), _) => {
                    let copied = copy::scatter(local, slots, op.direction, spans, op.hint);
                    copied.map(Posted::Moved).map_err(|_| PostError::OutOfBounds)
                }
                (_, _, Some(devices)) => devices.post(&op.batch(Hop::Near, spans, checked_at)).map(Posted::Accepted),
                _ => Err(PostError::Refused(Cause::NoPath)),
            },
        };
        if let Ok(Posted::Accepted(_)) = copied {
            self.touch.hold(revision);
        }
        self.touch.leave();
        copied
    }

    /// By the lane, which has the devices of this process, and shows itself that they have the memory.
    fn copy_by_lane(&mut self, op: &mut StagedOp, count: usize) -> Result<Posted, PostError> {
        for _ in 0..RECHECKS_MAX {
            let spans = &self.spans[op.done..count];
            let now = match self.inner.post(&op.batch(Hop::Near, spans, op.checked_at)) {
                Err(PostError::StaleRevisions(now)) if op.direction == Direction::Read => now,
                answer => return answer,
            };
            let extents = op.spans.iter().map(|span| (span.local, span.len));
            let view = self.segments.owner_state.view();
            check_withdrawals(view, op.checked_at.local, op.local_region, extents)
                .map_err(|withdrawn| PostError::Refused(withdrawn.cause_for_local()))?;
            op.checked_at = now;
        }
        Err(PostError::Refused(Cause::PlanTooOld))
    }

    /// Has the transport bring the peer's bytes into the slot.
    fn fetch(&mut self, op: &mut StagedOp) -> Result<Posted, PostError> {
        let count = op.spans_of_hop(Hop::Far, &mut self.spans);
        let posted = self.inner.post(&op.batch(Hop::Far, &self.spans[..count], op.checked_at));
        if let Ok(Posted::Accepted(_)) = posted {
            op.hop = Hop::Far;
        }
        posted
    }

    /// Has the transport move what is in the slot to the peer. Returns whether all of it has arrived.
    fn send(&mut self, op: &mut StagedOp) -> Result<bool, PostError> {
        let count = op.spans_of_hop(Hop::Far, &mut self.spans);
        let mut rechecks = 0;
        while op.done < count {
            let spans = &self.spans[op.done..count];
            // What is in the slot was copied out of memory that was not withdrawn then.
            let checked_at = Revisions { local: self.segments.owner_state.view().revision(), ..op.checked_at };
            match self.inner.post(&op.batch(Hop::Far, spans, checked_at)) {
                Ok(Posted::Moved(bytes)) => {
                    op.moved += bytes;
                    op.done = count;
                }
                Ok(Posted::Accepted(taken)) => {
                    (op.hop, op.posted) = (Hop::Far, taken);
                    return Ok(false);
                }
                Err(PostError::StaleRevisions(now)) if rechecks < RECHECKS_MAX => {
                    let extents = op.spans.iter().map(|span| (span.remote, span.len));
                    let checked = self.peer_view.check_withdrawals(op.checked_at.remote, op.remote_region, extents);
                    checked.map_err(|withdrawn| PostError::Refused(withdrawn.cause_for_peer()))?;
                    op.checked_at.remote = now.remote;
                    rechecks += 1;
                }
                Err(PostError::StaleRevisions(_)) => return Err(PostError::Refused(Cause::PlanTooOld)),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Takes the ends of hops. What has had its first one waits for its second one, and the worker hears of what has had both.
    fn take_ends(&mut self, events: &mut dyn LaneEvents) {
        let mut ended = mem::take(&mut self.ended);
        for (own_id, end) in ended.drain(..) {
            let place = (own_id & ((1 << PLACE_BITS) - 1)) as usize;
            let Some(Some(op)) = self.ops.get_mut(place) else { continue };
            if op.own_id != own_id {
                continue;
            }
            let is_last = op.hop == op.second_hop();
            match end {
                HopEnd::Lost(failure) => {
                    if let Some((completion_id, slot)) = self.take_out(place) {
                        events.lost(completion_id, failure);
                        slot.into_iter().for_each(StagingSlot::withhold);
                    }
                }
                HopEnd::Completed(Err(failure)) => self.finish(place, Err(failure), events),
                HopEnd::Completed(Ok(bytes)) => {
                    if is_last {
                        op.moved += bytes;
                        op.done += mem::take(&mut op.posted);
                    }
                    op.hop = Hop::Between;
                    let is_over = is_last && op.done == op.spans.len();
                    match (is_over, op.is_cancelled) {
                        (true, _) => {
                            let moved = op.moved;
                            self.finish(place, Ok(moved), events);
                        }
                        (false, true) => self.finish(place, Err(Cause::Cancelled.into()), events),
                        (false, false) => self.between[op.direction as usize].push_back(place),
                    }
                }
            }
        }
        self.ended = ended;
    }

    /// An operation has ended: its completion id, and the slot that it had.
    fn take_out(&mut self, place: usize) -> Option<(u64, Option<StagingSlot>)> {
        let StagedOp { completion_id, slot, mut spans, direction, .. } = self.ops.get_mut(place)?.take()?;
        self.slots[direction as usize] -= usize::from(slot.is_some());
        spans.clear();
        self.lists.push(spans);
        self.free.push(place);
        Some((completion_id, slot))
    }

    fn finish(&mut self, place: usize, result: Result<u64, Failure>, events: &mut dyn LaneEvents) {
        if let Some((completion_id, _slot)) = self.take_out(place) {
            events.completed(completion_id, result);
        }
    }

    /// Gives operations their second hop, as far as there is room. Returns whether there is more to do by itself.
    fn give_second_hops(&mut self, events: &mut dyn LaneEvents) -> Result<bool, LaneFault> {
        let (mut any, mut more) = (false, false);
        for direction in [Direction::Write, Direction::Read] {
            for turn in 0.. {
                let Some(&place) = self.between[direction as usize].front() else { break };
                if turn == HOPS_PER_POLL {
                    more = true;
                    break;
                }
                let Some(mut op) = self.ops[place].take() else { break };
                op.own_id = self.next_id(place);
                let given = match direction {
                    Direction::Write => self.send(&mut op),
                    Direction::Read => self.copy(&mut op).map(|posted| match posted {
                        Posted::Accepted(_) => false,
                        Posted::Moved(bytes) => {
                            op.moved += bytes;
                            true
                        }
                    }),
                };
                let moved = op.moved;
                self.ops[place] = Some(op);
                match given {
                    Ok(false) => {}
                    Ok(true) => self.finish(place, Ok(moved), events),
                    Err(PostError::Full) => {
                        // A device's own copies, or those of other lanes, make room; a transport marks its lane.
                        more |= direction == Direction::Read && !self.touch.is_held();
                        break;
                    }
                    Err(PostError::Refused(cause)) => self.finish(place, Err(cause.into()), events),
                    Err(PostError::OutOfBounds) => self.finish(place, Err(Cause::OutOfBounds.into()), events),
                    Err(PostError::StaleRevisions(_)) => self.finish(place, Err(Cause::PlanTooOld.into()), events),
                    Err(PostError::Fault(fault)) => return Err(fault),
                }
                self.between[direction as usize].pop_front();
                any = true;
            }
        }
        if any {
            self.submit()?;
        }
        Ok(more)
    }

    /// Hears of what devices have done.
    fn collect(&mut self, events: &mut dyn LaneEvents) {
        let mut sorted = Sorted { events, ended: &mut self.ended };
        let passed = self.devices.as_mut().map_or(0, |devices| devices.collect(&mut sorted));
        (0..passed).for_each(|_| self.touch.released());
        self.take_ends(events);
    }

    /// Has everybody begin with what they were given.
    fn submit(&mut self) -> Result<(), LaneFault> {
        if let Some(devices) = self.devices.as_mut() {
            devices.submit();
        }
        self.inner.ring_doorbell()
    }

    /// Whether these bytes go through a slot.
    fn is_staged(&self, batch: &Batch<'_>) -> bool {
        match (&self.devices, batch.local) {
            (Some(_), local) => local.device().is_some(),
            (None, local) => is_staged_within(local, batch.remote),
        }
    }
}

impl Lane for StagedLane {
    #[inline]
    fn post(&mut self, batch: &Batch<'_>) -> Result<Posted, PostError> {
        match (batch.local, batch.remote) {
            (Memory::Device(_), _) | (_, RemoteMemory::Device(_)) if self.is_staged(batch) => self.post_staged(batch),
            _ => self.inner.post(batch),
        }
    }

    #[inline]
    fn prefetch(&self, counter: CounterRef) {
        self.inner.prefetch(counter);
    }

    #[inline]
    fn notify(&mut self, request: &NotifyRequest<'_>) -> Result<NotifyPosted, PostError> {
        self.inner.notify(request)
    }

    fn ring_doorbell(&mut self) -> Result<(), LaneFault> {
        if self.has_any() { self.submit() } else { self.inner.ring_doorbell() }
    }

    fn hand_over(&mut self, note: Note<'_>, handle: &Handle) -> Result<(), PostError> {
        self.inner.hand_over(note, handle)
    }

    fn cancel_op(&mut self, completion_id: u64) -> CancelledOp {
        let is_it = |op: &Option<StagedOp>| op.as_ref().is_some_and(|op| op.completion_id == completion_id);
        let Some(place) = self.ops.iter().position(is_it) else { return self.inner.cancel_op(completion_id) };
        let Some(op) = self.ops[place].as_mut() else { return CancelledOp::Quiesced };
        let answer = match op.hop {
            Hop::Between => {
                self.between[op.direction as usize].retain(|&waiting| waiting != place);
                CancelledOp::Quiesced
            }
            Hop::Near => match self.devices.as_mut().map(|devices| devices.cancel_op(op.own_id)) {
                None => self.inner.cancel_op(op.own_id),
                Some(Some(CancelledOp::Quiesced)) => {
                    self.touch.released();
                    CancelledOp::Quiesced
                }
                Some(_) => CancelledOp::LocalPending,
            },
            Hop::Far => match self.inner.cancel_op(op.own_id) {
                CancelledOp::Quiesced => CancelledOp::Quiesced,
                CancelledOp::RemotePending => {
                    // The peer may take its time: others need the slot.
                    self.slots[op.direction as usize] -= usize::from(op.slot.take().is_some());
                    CancelledOp::RemotePending
                }
                // What may be touched here is the slot.
                CancelledOp::LocalPending => CancelledOp::RemotePending,
            },
        };
        match answer {
            CancelledOp::Quiesced => drop(self.take_out(place)),
            CancelledOp::RemotePending | CancelledOp::LocalPending => op.is_cancelled = true,
        }
        answer
    }

    fn completes_before_placement(&self) -> bool {
        self.inner.completes_before_placement()
    }

    fn flush_remote(&mut self, request: &FlushRequest) -> Result<NotifyPosted, PostError> {
        self.inner.flush_remote(request)
    }

    fn poll(&mut self, events: &mut dyn LaneEvents) -> Result<bool, LaneFault> {
        if !self.has_any() {
            return self.inner.poll(events);
        }
        let more = self.inner.poll(&mut Sorted { events, ended: &mut self.ended })?;
        self.collect(events);
        Ok(self.give_second_hops(events)? | more)
    }

    fn drain(&mut self, events: &mut dyn LaneEvents) -> bool {
        let is_quiet = self.inner.drain(&mut Sorted { events, ended: &mut self.ended });
        self.collect(events);
        // What is between its hops touches nothing, and goes nowhere any more.
        for place in mem::take(&mut self.between).into_iter().flatten() {
            self.finish(place, Err(Cause::Cancelled.into()), events);
        }
        // What a device has lost is held for ever.
        is_quiet && self.devices.as_ref().is_none_or(|devices| !devices.is_busy()) && !self.touch.is_held()
    }

    fn why_broken(&self) -> Option<String> {
        self.inner.why_broken()
    }
}
