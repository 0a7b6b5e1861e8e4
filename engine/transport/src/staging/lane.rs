//! One worker's lane to one peer, with what devices copy before and behind what the transport moves.

use std::collections::VecDeque;
use std::mem;
use std::sync::Arc;

use penstock_core::limits::{IN_FLIGHT_PER_LANE_MAX, SPANS_PER_POST};
use penstock_core::plan::RegionKey;
use penstock_core::{Cause, Direction, Span};
use penstock_memory::{DeviceId, Memory};
use penstock_ring::ReadyBits;

use super::gone::GoneLane;
use super::message::Answer;
use super::op::{Hop, OpOf, StagedOp};
use super::peer::{DIRECTIONS, GrantedTo, Grants};
use super::slots::{IsOver, SLOT_BYTES, StagingSlot};
use super::talk::put_heard;
use super::{StagedSession, is_staged_within};
use crate::device::{CopyEnd, DeviceLane};
use crate::host::{EngineSegments, HeldPages, OwnerStateView, PageHold};
use crate::lane::{
    Batch, CancelledOp, CounterRef, Failure, FlushRequest, Handle, Lane, LaneEvents, LaneFault, Note, NotifyPosted,
    NotifyRequest, PostError, Posted,
};
use crate::mediated::Touch;
use crate::remote::RemoteMemory;

/// Ids of what this posts itself have this bit, which none of a worker's has; below it a number of the post, and the place of the operation.
const OWN: u64 = 1 << 63;
pub(super) const PLACE_BITS: u32 = 16;
/// The id of messages of which nobody waits to hear.
pub(super) const MESSAGE: u64 = OWN | ((1 << PLACE_BITS) - 1);
/// Operations that one look gives their next hop, which may be a copy by this processor.
const HOPS_PER_POLL: usize = 8;
/// A slot of the peer into which bytes of this transfer may still come.
pub(super) struct SpoiltSlot {
    pub(super) direction: Direction,
    pub(super) slot: u32,
    pub(super) transfer: u64,
    pub(super) transfer_bytes: u64,
}

pub(super) struct StagedLane {
    /// Dropped before slots are given back.
    pub(super) inner: Box<dyn Lane>,
    /// None: the lane itself has them, or there are none.
    pub(super) devices: Option<Box<dyn DeviceLane>>,
    pub(super) session: Arc<StagedSession>,
    pub(super) is_over: IsOver,
    pub(super) touch: Touch,
    /// By region, what its devices have of this side's memory.
    pub(super) pages: Arc<HeldPages>,
    pub(super) ready: ReadyBits,
    pub(super) worker: usize,
    pub(super) ops: Vec<Option<StagedOp>>,
    pub(super) free: Vec<usize>,
    /// By direction, how many slots its operations have.
    pub(super) slots: [usize; 2],
    /// The peer's that it has, and this side's that the peer has.
    pub(super) grants: [Grants; 2],
    pub(super) granted: Vec<GrantedTo>,
    /// Those that are being granted.
    pub(super) fresh: Vec<StagingSlot>,
    /// With the worker of the peer that each is for.
    pub(super) answers: Vec<(u16, Answer)>,
    /// The peer's that are given back when nothing comes into them any more.
    pub(super) spoilt: Vec<SpoiltSlot>,
    /// Lists of spans, to be used again.
    pub(super) lists: Vec<Vec<Span>>,
    pub(super) posts: u64,
    /// Places of operations that wait for their next hop: by direction, and those of the peer.
    pub(super) waiting: [VecDeque<usize>; 3],
    /// Devices that have no room, while operations are given their next hop.
    full: Vec<DeviceId>,
    pub(super) ended: Vec<(u64, CopyEnd)>,
    /// What the peer's lanes have said, each behind its length.
    pub(super) heard: Vec<u8>,
    pub(super) message: Vec<u8>,
    /// How often one after another there was no room for it.
    pub(super) refusals: u32,
    pub(super) spans: Box<[Span; SPANS_PER_POST]>,
}

/// What lanes and devices report, as this and the worker have to hear it.
struct Sorted<'a> {
    events: &'a mut dyn LaneEvents,
    ended: &'a mut Vec<(u64, CopyEnd)>,
    heard: &'a mut Vec<u8>,
}

impl LaneEvents for Sorted<'_> {
    fn reserve_note(&mut self) -> bool {
        self.events.reserve_note()
    }

    fn note(&mut self, note: Note<'_>) {
        self.events.note(note);
    }

    fn lane_message(&mut self, message: &[u8]) {
        put_heard(self.heard, message);
    }

    fn handed_over(&mut self, note: Note<'_>, handle: Handle) {
        self.events.handed_over(note, handle);
    }

    fn completed(&mut self, completion_id: u64, result: Result<u64, Failure>) {
        match completion_id & OWN {
            0 => self.events.completed(completion_id, result),
            _ => self.ended.push((completion_id, CopyEnd::Completed(result))),
        }
    }

    fn lost(&mut self, completion_id: u64, failure: Failure) {
        match completion_id & OWN {
            0 => self.events.lost(completion_id, failure),
            _ => self.ended.push((completion_id, CopyEnd::Lost(failure))),
        }
    }

    fn lost_at_peer(&mut self, completion_id: u64, failure: Failure) {
        self.events.lost_at_peer(completion_id, failure);
    }
}

fn queue_of(op: &StagedOp) -> usize {
    if matches!(op.of, OpOf::Peer { .. }) { 2 } else { op.direction as usize }
}

impl StagedLane {
    pub(super) fn new(session: &Arc<StagedSession>, inner: Box<dyn Lane>, worker: usize, is_over: IsOver) -> Self {
        let (staging, peer_index) = (&session.staging, session.peer_index);
        let devices = staging.devices.as_ref().filter(|_| !session.reaches_devices);
        let segments = &staging.segments;
        Self {
            inner,
            devices: devices.map(|devices| devices.lane(worker, peer_index)),
            session: Arc::clone(session),
            is_over,
            touch: Touch::new(segments.owner_state.staging_hazard(peer_index, worker)),
            pages: segments.owner_state.held_by_staging(peer_index, worker),
            ready: segments.mailbox.view().ready(worker),
            worker,
            ops: Vec::new(),
            free: Vec::new(),
            slots: [0; 2],
            grants: Default::default(),
            granted: Vec::new(),
            fresh: Vec::new(),
            answers: Vec::new(),
            spoilt: Vec::new(),
            lists: Vec::new(),
            posts: 0,
            waiting: Default::default(),
            full: Vec::new(),
            ended: Vec::new(),
            heard: Vec::new(),
            message: Vec::new(),
            refusals: 0,
            spans: Box::new([Span::default(); SPANS_PER_POST]),
        }
    }

    pub(super) fn segments(&self) -> &EngineSegments {
        &self.session.staging.segments
    }

    pub(super) fn view(&self) -> &OwnerStateView {
        self.segments().owner_state.view()
    }

    fn has_any(&self) -> bool {
        self.free.len() < self.ops.len()
    }

    /// Whether there is nothing but the lane inside.
    fn is_at_rest(&self) -> bool {
        !self.has_any()
            && self.heard.is_empty()
            && self.answers.is_empty()
            && self.spoilt.is_empty()
            && self.grants.iter().all(Grants::is_at_rest)
            && self.granted.iter().flat_map(|granted| &granted.slots).all(|granted| granted.lacks() == 0)
            && !self.session.has_mail(self.worker)
    }

    /// Takes slots, and gives the first hop to whoever makes it.
    #[cold]
    #[inline(never)]
    fn post_staged(&mut self, batch: &Batch<'_>) -> Result<Posted, PostError> {
        let (taken, bytes) = batch.fitting(SLOT_BYTES);
        let is_inside = |span: &Span| {
            let ends = [(span.local, batch.local.len()), (span.remote, batch.remote.bytes())];
            span.len > 0 && ends.iter().all(|&(at, of)| at.checked_add(span.len).is_some_and(|end| end <= of))
        };
        if taken == 0 || !batch.spans[..taken].iter().all(is_inside) {
            return Err(PostError::OutOfBounds);
        }
        let (direction, session) = (batch.direction as usize, Arc::clone(&self.session));
        let grant = match batch.remote {
            RemoteMemory::Staged(memory) if memory.slots[direction].is_none() => return Err(PostError::OutOfBounds),
            RemoteMemory::Staged(_) => {
                let slot = self.grants[direction].take(batch.transfer_bytes.div_ceil(SLOT_BYTES));
                if slot.is_none() {
                    self.ask_for_slots()?;
                }
                Some(slot.ok_or(PostError::Full)?)
            }
            _ => None,
        };
        let is_near = (batch.local.device().is_some() && !self.inner.reaches_device(batch.local_region))
            || is_staged_within(batch.local, batch.remote);
        let slots = match session.staging.slots(self.worker, batch.direction) {
            None if is_near => Err(PostError::Refused(Cause::NoPath)),
            slots => Ok(slots.filter(|_| is_near)),
        };
        let slot = slots.and_then(|slots| {
            let take = |slots: &Arc<_>| {
                super::slots::Slots::take(slots, (self.worker, session.peer_index), self.slots[direction])
            };
            slots.map(|slots| Ok((Arc::clone(slots), take(slots).ok_or(PostError::Full)?))).transpose()
        });
        let (slots, slot) = match slot {
            Ok(slot) => slot.unzip(),
            Err(error) => {
                grant.into_iter().for_each(|grant| self.grants[direction].put(grant));
                return Err(error);
            }
        };
        self.slots[direction] += usize::from(slot.is_some());
        let place = self.place();
        let own_id = self.next_id(place);
        let mut spans = self.lists.pop().unwrap_or_else(|| Vec::with_capacity(SPANS_PER_POST));
        spans.extend_from_slice(&batch.spans[..taken]);
        // Of its own: what says that its bytes are in the peer's slot waits for nothing else of the transfer.
        let (transfer, transfer_bytes) = match grant {
            Some(_) => (own_id, bytes),
            None => (batch.transfer, batch.transfer_bytes),
        };
        let mut op = StagedOp {
            of: OpOf::Worker(batch.completion_id),
            own_id,
            hop: Hop::Far,
            is_under_way: false,
            direction: batch.direction,
            local: batch.local.clone(),
            local_region: batch.local_region,
            remote: batch.remote.clone(),
            remote_region: batch.remote_region,
            spans,
            done: 0,
            posted: 0,
            hint: batch.hint,
            checked_at: batch.checked_at,
            transfer,
            transfer_bytes,
            slot,
            slots,
            grant,
            gives_back: false,
            is_cancelled: false,
            hold: None,
        };
        op.hop = op.first_hop();
        let begun = self.begin(&mut op);
        if op.posted > 0 {
            // The worker posts the others anew.
            op.spans.truncate(op.posted);
        }
        let taken = op.spans.len();
        self.ops[place] = Some(op);
        match begun {
            Ok(false) => {}
            Ok(true) => {
                self.queue_next(place);
                self.ready.mark(session.peer_index as usize);
            }
            Err(_) => self.take_out(place, true),
        }
        begun.map(|_| Posted::Accepted(taken))
    }

    /// A place for an operation.
    pub(super) fn place(&mut self) -> usize {
        if self.ops.capacity() == 0 {
            // Whatever is under way later, nothing of this grows then.
            self.ops.reserve(IN_FLIGHT_PER_LANE_MAX);
            self.ended.reserve(IN_FLIGHT_PER_LANE_MAX);
            self.answers.reserve(IN_FLIGHT_PER_LANE_MAX);
            self.waiting.iter_mut().for_each(|waiting| waiting.reserve(IN_FLIGHT_PER_LANE_MAX));
        }
        self.free.pop().unwrap_or_else(|| {
            self.ops.push(None);
            self.free.reserve(self.ops.len());
            self.lists.reserve(self.ops.len());
            self.ops.len() - 1
        })
    }

    pub(super) fn next_id(&mut self, place: usize) -> u64 {
        self.posts += 1;
        OWN | (self.posts << PLACE_BITS & !OWN) | place as u64
    }

    /// Takes the ends of hops.
    fn take_ends(&mut self, events: &mut dyn LaneEvents) {
        let mut ended = mem::take(&mut self.ended);
        for (own_id, end) in ended.drain(..) {
            let place = (own_id & ((1 << PLACE_BITS) - 1)) as usize;
            let Some(Some(op)) = self.ops.get_mut(place) else { continue };
            // Nor is it the end of a hop that waits for its turn: the peer has answered before it acknowledged that it was asked.
            if op.own_id != own_id || !op.is_under_way {
                continue;
            }
            match end {
                CopyEnd::Lost(failure) => self.lose(place, failure, events),
                CopyEnd::Completed(Err(failure)) => self.finish(place, Err(failure), events),
                // It was asked for; the answer comes by itself.
                CopyEnd::Completed(Ok(_)) if op.hop == Hop::Remote => {}
                CopyEnd::Completed(Ok(_)) => {
                    op.done += mem::take(&mut op.posted);
                    (op.is_under_way, op.hold) = (false, None);
                    let is_over = op.done >= op.spans_in_hop();
                    match (is_over, op.is_cancelled) {
                        (true, _) => self.hop_is_over(place, events),
                        (false, true) => self.finish(place, Err(Cause::Cancelled.into()), events),
                        (false, false) => self.waiting[queue_of(op)].push_back(place),
                    }
                }
            }
        }
        self.ended = ended;
    }

    /// What has had its last hop has ended, and the others wait for their next one.
    pub(super) fn hop_is_over(&mut self, place: usize, events: &mut dyn LaneEvents) {
        let Some(op) = &self.ops[place] else { return };
        match (op.next_hop(), op.is_cancelled) {
            (None, _) => {
                let bytes = op.bytes();
                self.finish(place, Ok(bytes), events);
            }
            (Some(_), true) => self.finish(place, Err(Cause::Cancelled.into()), events),
            (Some(_), false) => self.queue_next(place),
        }
    }

    fn queue_next(&mut self, place: usize) {
        let Some(op) = &mut self.ops[place] else { return };
        if let Some(hop) = op.next_hop() {
            (op.hop, op.done, op.posted) = (hop, 0, 0);
            self.waiting[queue_of(op)].push_back(place);
        }
    }

    /// Nothing of an operation is left, and nobody hears of it. A slot of the other side's is used again only if it `is_quiet`.
    fn take_out(&mut self, place: usize, is_quiet: bool) {
        let Some(op) = self.ops.get_mut(place).and_then(Option::take) else { return };
        let StagedOp { of, slot, grant, mut spans, direction, transfer, transfer_bytes, gives_back, .. } = op;
        match of {
            OpOf::Worker(_) => {
                self.slots[direction as usize] -= usize::from(slot.is_some());
                let grants = &mut self.grants[direction as usize];
                match grant {
                    Some(grant) if is_quiet && !gives_back => grants.put(grant),
                    Some(slot) => {
                        grants.forget();
                        self.spoilt.push(SpoiltSlot { direction, slot, transfer, transfer_bytes });
                    }
                    None => {}
                }
            }
            OpOf::Peer { worker, .. } => {
                let of_peer = if direction == Direction::Read { Direction::Write } else { Direction::Read };
                if let Some(granted) = self.granted_to(worker) {
                    match slot.filter(|_| is_quiet) {
                        Some(slot) => granted.slots[of_peer as usize].put(slot),
                        None => granted.slots[of_peer as usize].forget(),
                    }
                }
            }
        }
        spans.clear();
        self.lists.push(spans);
        self.free.push(place);
    }

    /// Whether no byte of an operation that does not end well is on its way into the peer's slot: where writes complete before they are placed,
    /// those that the peer has not answered may be.
    fn is_quiet(&self, op: &StagedOp) -> bool {
        let has_begun =
            op.hop == Hop::Remote || (op.hop == Hop::Far && (op.done > 0 || op.is_under_way || op.is_cancelled));
        !has_begun || !self.inner.completes_before_placement()
    }

    /// An operation has ended, and whoever asked for it hears of that.
    pub(super) fn finish(&mut self, place: usize, result: Result<u64, Failure>, events: &mut dyn LaneEvents) {
        let Some(op) = &self.ops[place] else { return };
        let is_quiet = match (op.of, &result) {
            (_, Ok(_)) => true,
            (OpOf::Worker(_), Err(_)) => self.is_quiet(op),
            // Who hears that a device has failed never uses the slot again.
            (OpOf::Peer { .. }, Err(failure)) => failure.cause != Cause::DeviceFailed,
        };
        let of = op.of;
        self.take_out(place, is_quiet);
        self.tell(of, result, events);
    }

    fn tell(&mut self, of: OpOf, result: Result<u64, Failure>, events: &mut dyn LaneEvents) {
        match of {
            OpOf::Worker(completion_id) => events.completed(completion_id, result),
            OpOf::Peer { worker, number } => {
                self.answer(worker, number, result.map(drop).map_err(|failure| failure.cause));
            }
        }
    }

    /// A device has failed, and may have an operation's memory and its slot for ever.
    fn lose(&mut self, place: usize, failure: Failure, events: &mut dyn LaneEvents) {
        let Some(op) = &mut self.ops[place] else { return };
        let (of, slot) = (op.of, op.slot.take());
        if slot.is_some() && matches!(of, OpOf::Worker(_)) {
            self.slots[op.direction as usize] -= 1;
        }
        slot.into_iter().for_each(StagingSlot::withhold);
        op.hold.take().into_iter().for_each(PageHold::lose);
        self.take_out(place, matches!(of, OpOf::Worker(_)));
        match of {
            OpOf::Worker(completion_id) => events.lost(completion_id, failure),
            OpOf::Peer { .. } => self.tell(of, Err(failure), events),
        }
    }

    /// A device of the peer has failed, and may have the peer's memory and its slot for ever.
    pub(super) fn lose_at_peer(&mut self, place: usize, cause: Cause, events: &mut dyn LaneEvents) {
        let Some(op) = &mut self.ops[place] else { return };
        let of = op.of;
        if op.grant.take().is_some() {
            self.grants[op.direction as usize].forget();
        }
        self.take_out(place, true);
        match of {
            OpOf::Worker(completion_id) => events.lost_at_peer(completion_id, cause.into()),
            OpOf::Peer { .. } => self.tell(of, Err(cause.into()), events),
        }
    }

    /// Gives operations their next hop, as far as there is room. Returns whether any has, and whether there is more to do by itself.
    fn give_next_hops(&mut self, events: &mut dyn LaneEvents) -> Result<(bool, bool), LaneFault> {
        let (mut any, mut more) = (false, false);
        for queue in 0..self.waiting.len() {
            self.full.clear();
            let (mut at, mut turns) = (0, 0);
            while let Some(&place) = self.waiting[queue].get(at) {
                if turns == HOPS_PER_POLL {
                    more = true;
                    break;
                }
                let Some(mut op) = self.ops[place].take() else {
                    self.waiting[queue].remove(at);
                    continue;
                };
                let device = self.device_of_hop(&op);
                let waits = device.is_some_and(|device| self.full.contains(&device));
                if !waits {
                    op.own_id = self.next_id(place);
                }
                let begun = if waits { Err(PostError::Full) } else { self.begin(&mut op) };
                self.ops[place] = Some(op);
                let failed = match begun {
                    Ok(_) => None,
                    // Others do not wait for a device. It marks the lane once it has room, as a transport does.
                    Err(PostError::Full) => {
                        let Some(device) = device else { break };
                        at += 1;
                        if !waits {
                            self.full.push(device);
                        }
                        continue;
                    }
                    Err(PostError::Refused(cause)) => Some(cause),
                    Err(PostError::OutOfBounds) => Some(Cause::OutOfBounds),
                    Err(PostError::StaleRevisions(_)) => Some(Cause::PlanTooOld),
                    Err(PostError::Fault(fault)) => return Err(fault),
                };
                self.waiting[queue].remove(at);
                turns += 1;
                any = true;
                match (failed, begun) {
                    (Some(cause), _) => self.finish(place, Err(cause.into()), events),
                    (None, Ok(true)) => self.hop_is_over(place, events),
                    (None, _) => {}
                }
            }
        }
        Ok((any, more))
    }

    /// The device that makes an operation's hop, if one does.
    fn device_of_hop(&self, op: &StagedOp) -> Option<DeviceId> {
        match (op.hop, &op.remote) {
            (Hop::Near, _) => op.local.device(),
            (Hop::Far, RemoteMemory::Device(window)) => Some(window.device()),
            _ => None,
        }
    }

    /// Hears of what devices have done.
    fn collect(&mut self, events: &mut dyn LaneEvents) {
        if let Some(devices) = &mut self.devices {
            devices.collect(&mut |own_id, end| self.ended.push((own_id, end)));
        }
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
        match (&self.devices, batch.local, batch.remote) {
            (_, _, RemoteMemory::Staged(_)) => true,
            (Some(_), local, _) => local.device().is_some() && !self.inner.reaches_device(batch.local_region),
            (None, local, remote) => self.session.reaches_devices && is_staged_within(local, remote),
        }
    }
}

impl Lane for StagedLane {
    #[inline]
    fn post(&mut self, batch: &Batch<'_>) -> Result<Posted, PostError> {
        match (batch.local, batch.remote) {
            (Memory::Device(_), _) | (_, RemoteMemory::Device(_) | RemoteMemory::Staged(_))
                if self.is_staged(batch) =>
            {
                self.post_staged(batch)
            }
            _ => self.inner.post(batch),
        }
    }

    fn reaches_device(&self, local_region: RegionKey) -> bool {
        self.inner.reaches_device(local_region)
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
        let is_it = |op: &Option<StagedOp>| op.as_ref().is_some_and(|op| op.of == OpOf::Worker(completion_id));
        let Some(place) = self.ops.iter().position(is_it) else {
            if self.waiting.iter().any(|waiting| !waiting.is_empty()) {
                // It may be what they wait for.
                self.ready.mark(self.session.peer_index as usize);
            }
            return self.inner.cancel_op(completion_id);
        };
        let is_quiet = self.ops[place].as_ref().is_some_and(|op| self.is_quiet(op));
        let Some(op) = self.ops[place].as_mut() else { return CancelledOp::Quiesced };
        let answer = match op.hop {
            _ if !op.is_under_way => {
                self.waiting[queue_of(op)].retain(|&waiting| waiting != place);
                CancelledOp::Quiesced
            }
            Hop::Near => match self.devices.as_mut().map(|devices| devices.cancel_op(op.own_id)) {
                None => self.inner.cancel_op(op.own_id),
                Some(Some(CancelledOp::Quiesced)) => CancelledOp::Quiesced,
                Some(_) => CancelledOp::LocalPending,
            },
            Hop::Far => match self.inner.cancel_op(op.own_id) {
                // What may be touched here is the slot.
                CancelledOp::LocalPending if op.slots.is_some() => CancelledOp::RemotePending,
                CancelledOp::RemotePending => {
                    // The peer may take its time: others need the slot.
                    self.slots[op.direction as usize] -= usize::from(op.slot.take().is_some());
                    CancelledOp::RemotePending
                }
                answer => answer,
            },
            Hop::Remote => {
                self.slots[op.direction as usize] -= usize::from(op.slot.take().is_some());
                CancelledOp::RemotePending
            }
        };
        match answer {
            CancelledOp::Quiesced => {
                self.take_out(place, is_quiet);
                // Others may wait for what it had of the peer.
                self.ready.mark(self.session.peer_index as usize);
            }
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
        let mut more = self.inner.poll(&mut Sorted { events, ended: &mut self.ended, heard: &mut self.heard })?;
        if self.is_at_rest() {
            self.ended.clear();
            return Ok(more);
        }
        self.collect(events);
        self.hear(events)?;
        let (given, has_more) = self.give_next_hops(events)?;
        let (said, look_again) = self.speak()?;
        if given || said {
            self.submit()?;
        }
        more |= has_more | look_again;
        Ok(more)
    }

    fn drain(&mut self, events: &mut dyn LaneEvents) -> bool {
        let is_quiet = self.inner.drain(&mut Sorted { events, ended: &mut self.ended, heard: &mut self.heard });
        self.collect(events);
        // What is between its hops touches nothing, and goes nowhere any more.
        for place in mem::take(&mut self.waiting).into_iter().flatten() {
            self.finish(place, Err(Cause::Cancelled.into()), events);
        }
        if is_quiet {
            // As it would be without this, which may have to stay for as long as a device likes. Nobody looks at the lane inside any more, and
            // what is due for it, or comes, would keep the worker awake.
            self.inner = Box::new(GoneLane);
        }
        // What a device has lost is held for ever.
        is_quiet && self.devices.as_ref().is_none_or(|devices| !devices.is_busy()) && !self.pages.has_any()
    }

    fn why_broken(&self) -> Option<String> {
        self.inner.why_broken()
    }
}

impl Drop for StagedLane {
    /// The peer may write into what it was granted until nothing of the session reaches this engine any more.
    fn drop(&mut self) {
        let of_peer = |op: &StagedOp| matches!(op.of, OpOf::Peer { .. });
        let in_ops = self.ops.iter_mut().flatten().filter(|op| of_peer(op));
        for op in in_ops {
            if let (Some(slots), Some(slot)) = (&op.slots, op.slot.take()) {
                slots.leave([slot].into_iter(), &self.is_over);
            }
        }
        for direction in DIRECTIONS {
            if let Some(slots) = self.session.staging.for_peers(direction) {
                let granted = self.granted.iter_mut().flat_map(|granted| granted.slots[direction as usize].leave());
                slots.leave(granted, &self.is_over);
            }
        }
    }
}
