//! The lane of the transports inside one host: this CPU copies, and everything else is a few words
//! of shared memory.

use std::sync::Arc;

use crossbeam_queue::ArrayQueue;
use penstock_core::limits::{NOTE_BYTES_MAX, NOTE_LINES_MAX};
use penstock_core::{Cause, NoteId};
use penstock_memory::{Memory, ProcessVmMemory, Window, copy};
use penstock_ring::spsc::{Consumer, MappedStorage};
use penstock_ring::{ReadyBits, RingLine, SharedRange};

use super::bells::Bell;
use super::bounce::{AnswerBell, BounceParts, RequestBank, ServedBanks};
use super::device_copies::DeviceCopies;
use super::kernel_copies::{BlockingRun, KernelCopies};
use super::rings::{InboundRings, OutboundRing, RingOf, outbound};
use super::segments::{EngineSegments, PeerSegments};
use crate::device::Devices;
use crate::lane::{
    Batch, CancelledOp, CounterRef, Handle, Lane, LaneEvents, LaneFault, Note, NotifyPosted, NotifyRequest, PostError,
    Posted, Revisions,
};
use crate::link::JoinError;
use crate::mediated::Touch;
use crate::record::{self, RecordKind};
use crate::remote::{RemoteMemory, TargetMediatedMemory};

/// Records taken from one ring before the worker looks at anything else.
const RECORDS_PER_POLL: usize = 32;

/// Handles handed over between two engines of one process, in the order of their records.
pub type HandOvers = Arc<ArrayQueue<Handle>>;

/// What a copying lane is made of.
pub struct CopyLaneParts<'a> {
    pub segments: &'a Arc<EngineSegments>,
    pub peer_segments: &'a Arc<PeerSegments>,
    /// The index of the peer in our table.
    pub peer_index: u32,
    /// Our index in the peer's table.
    pub index_at_peer: u32,
    /// Where we leave our notes: memory of the peer.
    pub outbound: &'a SharedRange,
    /// The rings the peer fills.
    pub inbound: InboundRings,
    /// Queues for handles where the transport can hand over: one beside each ring, so that a record
    /// and its handle cannot be parted.
    pub hand_overs: Option<HandOverQueues>,
    /// Slots for memory that only its owner may touch, where there can be such memory.
    pub bounce: Option<BounceParts>,
    /// The devices of this process, if it has any and the peer, whose segments these are, is in it.
    pub devices: Option<(&'a Arc<dyn Devices>, &'a Arc<EngineSegments>)>,
    /// Who makes calls that may wait for the peer, where the kernel copies to it.
    pub kernel: Option<BlockingRun>,
}

/// The queues beside the rings of a session.
pub struct HandOverQueues {
    /// Beside the rings that we fill, by our worker.
    pub outgoing: Vec<HandOvers>,
    /// Beside the rings that the peer fills, by its worker.
    pub incoming: Vec<HandOvers>,
}

struct Inbound {
    ring: Consumer<MappedStorage>,
    of: RingOf,
    sequence: u64,
    /// Wakes the sender when it waits for room.
    sender_bell: Bell,
    /// Handles that belong to records of this ring.
    handles: Option<HandOvers>,
}

/// Slots in both directions.
struct Bounce {
    outgoing: RequestBank,
    incoming: ServedBanks,
}

impl Bounce {
    fn new(
        parts: &BounceParts,
        peer_segments: &PeerSegments,
        index_at_peer: usize,
        worker: usize,
        workers: usize,
    ) -> Self {
        // Dealt as the rings are: the peer's worker `s` is served by our worker `s % workers`.
        let senders = (worker..peer_segments.workers()).step_by(workers);
        let senders = senders.map(|sender| AnswerBell {
            worker: sender,
            ready: peer_segments.mailbox.ready(sender),
            bell: peer_segments.bell(1 + sender),
        });
        Self {
            outgoing: RequestBank::new(&parts.outgoing, worker),
            incoming: ServedBanks::new(&parts.registry, &parts.incoming, index_at_peer, senders.collect()),
        }
    }
}

/// One worker's lane to a peer on this host.
pub struct CopyLane {
    /// None: this process has no devices, or the peer is in another one.
    devices: Option<Box<DeviceCopies>>,
    segments: Arc<EngineSegments>,
    peer_segments: Arc<PeerSegments>,
    touch: Touch,
    /// The rings that this fills, and how many records went into each.
    outbound: [(OutboundRing, u64); 2],
    peer_ready: ReadyBits,
    index_at_peer: usize,
    receiver_bell: Bell,
    application_bell: Bell,
    inbound: Vec<Inbound>,
    handles: Option<HandOvers>,
    bounce: Option<Box<Bounce>>,
    kernel: Option<Box<KernelCopies>>,
    lines: Box<[RingLine; NOTE_LINES_MAX]>,
    payload: Box<[u8; NOTE_BYTES_MAX]>,
}

impl CopyLane {
    /// One lane for each worker of this engine.
    pub fn for_each_worker(parts: CopyLaneParts<'_>) -> Result<Vec<Box<dyn Lane>>, JoinError> {
        let CopyLaneParts {
            segments,
            peer_segments,
            peer_index,
            index_at_peer,
            outbound: range,
            inbound,
            hand_overs,
            bounce,
            devices,
            kernel,
        } = parts;
        let dealt = inbound.deal(segments.workers());
        let lanes = dealt.into_iter().enumerate().map(|(worker, rings)| {
            let receiver = worker % peer_segments.workers();
            let inbound = |(sender, [notes, messages]): (usize, [Consumer<MappedStorage>; 2])| {
                let inbound = |(ring, of)| Inbound {
                    ring,
                    of,
                    sequence: 0,
                    sender_bell: peer_segments.bell(1 + sender),
                    handles: hand_overs.as_ref().map(|queues| Arc::clone(&queues.incoming[sender])),
                };
                [(notes, RingOf::Notes), (messages, RingOf::LaneMessages)].map(inbound)
            };
            let inbound = rings.into_iter().flat_map(inbound).collect();
            let lane = Self {
                segments: Arc::clone(segments),
                peer_segments: Arc::clone(peer_segments),
                touch: Touch::new(segments.owner_state.hazard(peer_index, worker)),
                devices: devices.map(|(devices, theirs)| {
                    let (ours, theirs) = ((&**segments, peer_index), (&**theirs, index_at_peer));
                    Box::new(DeviceCopies::new(devices.lane(worker, peer_index), worker, ours, theirs))
                }),
                outbound: outbound(range, worker)?.map(|ring| (ring, 0)),
                peer_ready: peer_segments.mailbox.ready(receiver),
                index_at_peer: index_at_peer as usize,
                receiver_bell: peer_segments.bell(1 + receiver),
                application_bell: peer_segments.bell(0),
                inbound,
                handles: hand_overs.as_ref().map(|queues| Arc::clone(&queues.outgoing[worker])),
                bounce: bounce.as_ref().map(|parts| {
                    Box::new(Bounce::new(parts, peer_segments, index_at_peer as usize, worker, segments.workers()))
                }),
                kernel: kernel.as_ref().map(|run| {
                    let woken = (segments.ringer(1 + worker), segments.mailbox.view().ready(worker));
                    Box::new(KernelCopies::new(run, &segments.owner_state, (peer_index, worker), woken))
                }),
                lines: Box::new([RingLine::default(); NOTE_LINES_MAX]),
                payload: Box::new([0; NOTE_BYTES_MAX]),
            };
            Ok(Box::new(lane) as Box<dyn Lane>)
        });
        lanes.collect()
    }

    /// Room for so many lines, or "full" with the receiver asked to ring when there is more.
    fn reserve(&mut self, of: RingOf, lines: usize) -> Result<(), PostError> {
        let (ring, _) = &mut self.outbound[of as usize];
        if ring.free_for(lines) >= lines {
            return Ok(());
        }
        if ring.mark_waiting() >= lines {
            ring.clear_waiting();
            return Ok(());
        }
        match ring.health() {
            Ok(()) => Err(PostError::Full),
            Err(_) => Err(PostError::Fault(LaneFault(Cause::PeerCorrupt))),
        }
    }

    fn push(&mut self, kind: RecordKind, note: Note<'_>) -> Result<(), PostError> {
        let of = if note.id == NoteId::STAGING { RingOf::LaneMessages } else { RingOf::Notes };
        self.reserve(of, record::lines_for(note.payload.len()))?;
        let (ring, sequence) = &mut self.outbound[of as usize];
        let count = record::write(kind, *sequence, note.id, note.payload, &mut self.lines);
        ring.push(&self.lines[..count]).map_err(|_| PostError::Full)?;
        *sequence += 1;
        self.receiver_bell.mark_and_ring(&self.peer_ready, self.index_at_peer);
        Ok(())
    }

    /// Copies now, unless something was withdrawn.
    #[inline(always)]
    fn copy(
        &mut self,
        batch: &Batch<'_>,
        copy: impl FnOnce(&Batch<'_>) -> Result<Posted, PostError>,
    ) -> Result<Posted, PostError> {
        self.touch.enter();
        let now = revisions(&self.segments, &self.peer_segments);
        // Fences its own non-temporal stores before it returns, so before the hazard clears.
        let result = if now == batch.checked_at { copy(batch) } else { Err(PostError::StaleRevisions(now)) };
        self.touch.leave();
        result
    }

    /// Posts a request to the memory's owner: a write is gathered into a bounce slot here, a read is answered in one.
    #[cold]
    #[inline(never)]
    fn post_bounce(&mut self, batch: &Batch<'_>, memory: &TargetMediatedMemory) -> Result<Posted, PostError> {
        let Some(bounce) = &mut self.bounce else {
            return Err(PostError::Fault(LaneFault(Cause::NoPath)));
        };
        bounce.outgoing.reserve()?;
        self.touch.enter();
        let now = revisions(&self.segments, &self.peer_segments);
        let filled = if now == batch.checked_at {
            bounce.outgoing.fill(batch, memory)
        } else {
            Err(PostError::StaleRevisions(now))
        };
        self.touch.leave();
        let spans = filled?;
        bounce.outgoing.send();
        self.receiver_bell.mark_and_ring(&self.peer_ready, self.index_at_peer);
        Ok(Posted::Accepted(spans))
    }

    /// Has the kernel copy in a thread that may wait for the peer; where that waits already, the peer is asked to copy.
    #[cold]
    #[inline(never)]
    fn post_kernel(
        &mut self,
        batch: &Batch<'_>,
        local: &Window,
        remote: &ProcessVmMemory,
    ) -> Result<Posted, PostError> {
        if remote.process().is_stalled() {
            let mediated = TargetMediatedMemory { key: batch.remote_region, bytes: remote.bytes() };
            return self.post_bounce(batch, &mediated);
        }
        let Some(kernel) = &mut self.kernel else {
            return Err(PostError::Fault(LaneFault(Cause::NoPath)));
        };
        let (ours, theirs) = (&self.segments, &self.peer_segments);
        self.touch.enter();
        let accepted = kernel.post(batch, (local, remote), || revisions(ours, theirs));
        self.touch.leave();
        accepted.map(Posted::Accepted)
    }

    /// Gives the batch to a device.
    #[cold]
    #[inline(never)]
    fn post_device(&mut self, batch: &Batch<'_>) -> Result<Posted, PostError> {
        let Some(devices) = &mut self.devices else {
            return Err(PostError::Refused(Cause::NoPath));
        };
        self.touch.enter();
        let now = revisions(&self.segments, &self.peer_segments);
        let taken = match now == batch.checked_at {
            true => devices.post(batch, now),
            false => Err(PostError::StaleRevisions(now)),
        };
        self.touch.leave();
        taken.map(Posted::Accepted)
    }

    fn collect_from_devices(&mut self, events: &mut dyn LaneEvents) {
        if let Some(devices) = &mut self.devices {
            devices.collect(events);
        }
    }

    /// Returns whether the kernel has anything left.
    fn collect_from_kernel(&mut self, events: &mut dyn LaneEvents) -> bool {
        let Some(kernel) = &mut self.kernel else { return false };
        kernel.collect(events);
        kernel.is_busy()
    }

    /// Takes records of one inbound ring. Returns whether there may be more.
    fn poll_ring(&mut self, index: usize, events: &mut dyn LaneEvents) -> Result<bool, LaneFault> {
        let corrupt = |_| LaneFault(Cause::PeerCorrupt);
        let inbound = &mut self.inbound[index];
        for _ in 0..RECORDS_PER_POLL {
            let available = inbound.ring.available().map_err(corrupt)?;
            if available == 0 {
                return Ok(false);
            }
            if inbound.of == RingOf::Notes && !events.reserve_note() {
                return Ok(false); // The worker comes back when there is.
            }
            let first = inbound.ring.peek(0).ok_or(LaneFault(Cause::PeerCorrupt))?;
            let head = record::parse(&first, inbound.sequence).map_err(|_| LaneFault(Cause::PeerCorrupt))?;
            if head.lines > available {
                return Err(LaneFault(Cause::PeerCorrupt)); // Records are published whole.
            }
            let payload = &mut self.payload[..head.bytes];
            record::unpack(0, &first, payload);
            for index in 1..head.lines {
                let line = inbound.ring.peek(index).ok_or(LaneFault(Cause::PeerCorrupt))?;
                record::unpack(index, &line, payload);
            }
            let note = Note { id: head.id, payload };
            match (inbound.of, head.kind, &inbound.handles) {
                (RingOf::Notes, RecordKind::Note, _) => events.note(note),
                (RingOf::LaneMessages, RecordKind::Note, _) => events.lane_message(note.payload),
                (RingOf::Notes, RecordKind::HandOver, Some(handles)) => {
                    let handle = handles.pop().ok_or(LaneFault(Cause::PeerCorrupt))?;
                    events.handed_over(note, handle);
                }
                (_, RecordKind::HandOver, _) => return Err(LaneFault(Cause::PeerCorrupt)),
            }
            inbound.sequence += 1;
            if inbound.ring.release(head.lines) {
                inbound.sender_bell.ring();
            }
        }
        Ok(true)
    }
}

/// The state of withdrawn memory of both sides as it is now.
#[inline]
fn revisions(ours: &EngineSegments, theirs: &PeerSegments) -> Revisions {
    Revisions { local: ours.owner_state.view().revision(), remote: theirs.owner_state.revision() }
}

#[inline]
fn copy_mapped(batch: &Batch<'_>, local: &Window, remote: &Window) -> Result<Posted, PostError> {
    copy::scatter(local, remote, batch.direction, batch.spans, batch.hint)
        .map(Posted::Moved)
        .map_err(|_| PostError::OutOfBounds)
}

impl Lane for CopyLane {
    #[inline]
    fn post(&mut self, batch: &Batch<'_>) -> Result<Posted, PostError> {
        match (batch.local, batch.remote) {
            (Memory::Host(local), RemoteMemory::Mapped(remote)) => {
                self.copy(batch, |batch| copy_mapped(batch, local, remote))
            }
            (Memory::Host(local), RemoteMemory::ProcessVm(remote)) => self.post_kernel(batch, local, remote),
            (_, RemoteMemory::TargetMediated(memory)) => self.post_bounce(batch, memory),
            (_, RemoteMemory::Device(_)) | (Memory::Device(_), RemoteMemory::Mapped(_)) => self.post_device(batch),
            (_, RemoteMemory::Rdma(_) | RemoteMemory::Staged(_)) | (Memory::Device(_), RemoteMemory::ProcessVm(_)) => {
                Err(PostError::Fault(LaneFault(Cause::NoPath)))
            }
        }
    }

    #[inline]
    fn prefetch(&self, counter: CounterRef) {
        if let Some(cell) = self.peer_segments.mailbox.counter(counter.index) {
            cell.prefetch();
        }
    }

    #[inline]
    fn notify(&mut self, arrival: &NotifyRequest<'_>) -> Result<NotifyPosted, PostError> {
        if let Some(note) = arrival.note {
            self.push(RecordKind::Note, note)?;
        }
        Ok(NotifyPosted::Delivered(
            arrival
                .counter
                .is_none_or(|counter| self.peer_segments.mailbox.increment_counter(counter, &self.application_bell)),
        ))
    }

    fn hand_over(&mut self, note: Note<'_>, handle: &Handle) -> Result<(), PostError> {
        let Some(handles) = &self.handles else {
            return Err(PostError::Fault(LaneFault(Cause::NoPath)));
        };
        // The handle must be there before its record; and only this lane fills this ring, so room
        // that is there now is still there below.
        let handles = Arc::clone(handles);
        self.reserve(RingOf::Notes, record::lines_for(note.payload.len()))?;
        if handles.push(Arc::clone(handle)).is_err() {
            return Err(PostError::Full);
        }
        self.push(RecordKind::HandOver, note)
    }

    fn ring_doorbell(&mut self) -> Result<(), LaneFault> {
        if let Some(devices) = &mut self.devices {
            devices.submit();
        }
        Ok(())
    }

    fn cancel_op(&mut self, completion_id: u64) -> CancelledOp {
        if let Some(cancelled) = self.devices.as_mut().and_then(|devices| devices.cancel_op(completion_id)) {
            return cancelled;
        }
        if let Some(cancelled) = self.kernel.as_mut().and_then(|kernel| kernel.cancel_op(completion_id)) {
            return cancelled;
        }
        self.bounce.as_mut().map_or(CancelledOp::Quiesced, |bounce| bounce.outgoing.cancel_op(completion_id))
    }

    fn drain(&mut self, events: &mut dyn LaneEvents) -> bool {
        let is_kernel_busy = self.collect_from_kernel(events);
        self.collect_from_devices(events);
        !is_kernel_busy && self.devices.as_ref().is_none_or(|devices| devices.is_quiet())
    }

    fn poll(&mut self, events: &mut dyn LaneEvents) -> Result<bool, LaneFault> {
        let mut more = false;
        for index in 0..self.inbound.len() {
            more |= self.poll_ring(index, events)?;
        }
        self.collect_from_devices(events);
        self.collect_from_kernel(events);
        if let Some(bounce) = &mut self.bounce {
            more |= bounce.outgoing.collect(&self.segments, &mut self.touch, events)?;
            more |= bounce.incoming.serve(&self.segments, &mut self.touch)?;
        }
        Ok(more)
    }
}
