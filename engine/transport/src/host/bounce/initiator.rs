//! The bank that this engine's worker fills.

use penstock_core::limits::SPANS_PER_POST;
use penstock_core::{Cause, Direction, Span, plan::RegionKey};
use penstock_memory::copy::{self, Hint};
use penstock_memory::{Window, copy::CopyError};
use penstock_ring::Publisher;
use penstock_ring::bounce::{BounceStage, Nonsense, Requester};

use super::{Banks, BounceRequest, REQUEST_WORDS, SLOT_BYTES, SLOTS, assign_slot_offsets};
use crate::host::{EngineSegments, WithdrawalConflict, check_withdrawals};
use crate::lane::{Batch, CancelledOp, Failure, LaneEvents, LaneFault, PostError};
use crate::mediated::Touch;
use crate::remote::TargetMediatedMemory;

/// Slots whose bytes are copied into local memory before the worker looks at anything else.
const COPIES_PER_POLL: usize = 4;

pub(crate) struct RequestBank {
    banks: Banks,
    worker: usize,
    posts: Publisher,
    asked: u64,
    /// Made with the first request: most sessions never post one.
    slots: Vec<Slot>,
    /// The one used last first: its bytes are still in the cache.
    free: Vec<usize>,
    /// In the order they were asked.
    in_flight: Vec<usize>,
    request: Box<[u64; REQUEST_WORDS]>,
}

struct Slot {
    asker: Requester,
    data: Window,
    spans: Box<[Span; SPANS_PER_POST]>,
    pending: PendingBatch,
}

/// What a slot carries.
struct PendingBatch {
    completion_id: u64,
    direction: Direction,
    spans: usize,
    bytes: u64,
    /// Where the bytes of a read go, unless it was given up.
    read_target: Option<PendingRead>,
}

impl Default for PendingBatch {
    fn default() -> Self {
        Self { completion_id: 0, direction: Direction::Write, spans: 0, bytes: 0, read_target: None }
    }
}

struct PendingRead {
    local: Window,
    key: RegionKey,
    hint: Hint,
    /// The revision of this engine's gate that the plan was checked against.
    expected: u64,
}

impl RequestBank {
    pub(crate) fn new(banks: &Banks, worker: usize) -> Self {
        let range = banks.segment().range();
        let posts = Publisher::mapped(&range, Banks::posts_offset(worker)).expect("workers are bounded by the banks");
        Self {
            banks: banks.clone(),
            worker,
            posts,
            asked: 0,
            slots: Vec::new(),
            free: Vec::new(),
            in_flight: Vec::new(),
            request: Box::new([0; REQUEST_WORDS]),
        }
    }

    /// Makes sure that there is a free slot, or answers that there is none now.
    pub(crate) fn reserve(&mut self) -> Result<(), PostError> {
        if !self.free.is_empty() {
            return Ok(());
        }
        if self.slots.len() == SLOTS {
            return Err(PostError::Full);
        }
        self.make_slots()
    }

    /// Allocates all slots at the first use of the lane, so that later batches never allocate.
    #[cold]
    fn make_slots(&mut self) -> Result<(), PostError> {
        self.slots.reserve_exact(SLOTS - self.slots.len());
        self.free.reserve_exact(SLOTS);
        self.in_flight.reserve_exact(SLOTS);
        // If pages cannot be allocated, fewer slots are made; with none the answer is `Full`, to be tried again.
        while self.slots.len() < SLOTS && self.banks.populate(self.worker, self.slots.len()).is_ok() {
            self.make_slot(self.slots.len());
        }
        // Taken from the end: the lowest index first.
        self.free.sort_unstable_by(|a, b| b.cmp(a));
        if self.free.is_empty() { Err(PostError::Full) } else { Ok(()) }
    }

    fn make_slot(&mut self, index: usize) {
        let range = self.banks.segment().range();
        let asker = Requester::mapped(&range, Banks::slot_offset(self.worker, index), REQUEST_WORDS);
        self.slots.push(Slot {
            asker: asker.expect("slots are bounded by their banks"),
            data: self.banks.data(self.worker, index),
            spans: Box::new([Span::default(); SPANS_PER_POST]),
            pending: PendingBatch::default(),
        });
        self.free.push(index);
    }

    /// Fills the free slot that [`RequestBank::reserve`] found, under the caller's hazard. Returns how
    /// many spans it took.
    pub(crate) fn fill(&mut self, batch: &Batch<'_>, memory: &TargetMediatedMemory) -> Result<usize, PostError> {
        let local = batch.host()?;
        let index = *self.free.last().expect("a slot was reserved just now");
        let slot = &mut self.slots[index];
        let (count, bytes) = batch.fitting(SLOT_BYTES);
        let spans = &batch.spans[..count];
        batch.check_bounds(spans, memory)?;
        let request = BounceRequest {
            direction: batch.direction,
            hint: batch.hint,
            key: memory.key,
            revision: batch.checked_at.remote,
        };
        request.encode(spans, &mut self.request);
        slot.spans[..count].copy_from_slice(spans);
        assign_slot_offsets(&mut slot.spans[..count]);
        let landing = match batch.direction {
            Direction::Write => {
                let gathered = copy::scatter(local, &slot.data, Direction::Write, &slot.spans[..count], Hint::Cached);
                gathered.map_err(|_: CopyError| PostError::OutOfBounds)?;
                None
            }
            Direction::Read => Some(PendingRead {
                local: local.clone(),
                key: batch.local_region,
                hint: batch.hint,
                expected: batch.checked_at.local,
            }),
        };
        slot.pending = PendingBatch {
            completion_id: batch.completion_id,
            direction: batch.direction,
            spans: count,
            bytes,
            read_target: landing,
        };
        Ok(count)
    }

    /// Sends the slot that was filled. The owner is to be rung afterwards.
    pub(crate) fn send(&mut self) {
        let index = self.free.pop().expect("a slot was filled just now");
        let slot = &mut self.slots[index];
        slot.asker.ask(&self.request[..3 + 2 * slot.pending.spans]);
        self.in_flight.push(index);
        self.asked = self.asked.wrapping_add(1);
        self.posts.publish(self.asked);
    }

    /// Looks what the owner has answered. Returns whether there is more that could be taken now.
    pub(crate) fn collect(
        &mut self,
        segments: &EngineSegments,
        touch: &mut Touch,
        events: &mut dyn LaneEvents,
    ) -> Result<bool, LaneFault> {
        let mut landings = 0;
        let mut position = 0;
        while let Some(&index) = self.in_flight.get(position) {
            let slot = &mut self.slots[index];
            let stage = slot.asker.look().map_err(|Nonsense| LaneFault(Cause::PeerCorrupt))?;
            let BounceStage::Done([cause, bytes]) = stage else {
                position += 1;
                continue;
            };
            if landings == COPIES_PER_POLL {
                return Ok(true);
            }
            let answered = slot.pending.read(cause, bytes)?;
            let result = match (answered, slot.pending.direction) {
                (Ok(_), Direction::Read) if slot.pending.read_target.is_none() => Ok(0), // Given up: nothing lands here.
                (Ok(bytes), Direction::Read) => {
                    landings += 1;
                    slot.copy_out(segments, touch).map(|()| bytes)
                }
                (other, _) => other,
            };
            slot.pending.read_target = None;
            slot.asker.free();
            self.in_flight.remove(position);
            self.free.push(index);
            events.completed(slot.pending.completion_id, result.map_err(Failure::from));
        }
        Ok(false)
    }

    /// Cancels the request of this completion id. If the owner has taken it already, its response is still awaited, but
    /// nothing is copied into local memory.
    pub(crate) fn cancel_op(&mut self, completion_id: u64) -> CancelledOp {
        let under = |&&index: &&usize| self.slots[index].pending.completion_id == completion_id;
        let Some(position) = self.in_flight.iter().position(|index| under(&index)) else {
            return CancelledOp::Quiesced;
        };
        let index = self.in_flight[position];
        let slot = &mut self.slots[index];
        slot.pending.read_target = None;
        if slot.asker.try_cancel() {
            self.in_flight.remove(position);
            self.free.push(index);
            return CancelledOp::Quiesced;
        }
        CancelledOp::RemotePending
    }
}

impl PendingBatch {
    /// The owner's answer, in which nothing is believed.
    fn read(&self, cause: u64, bytes: u64) -> Result<Result<u64, Cause>, LaneFault> {
        let corrupt = LaneFault(Cause::PeerCorrupt);
        match (cause, bytes) {
            (0, bytes) if bytes == self.bytes => Ok(Ok(bytes)),
            (0, _) => Err(corrupt),
            (code, _) => {
                let cause = u8::try_from(code).ok().and_then(Cause::from_code);
                Ok(Err(cause.ok_or(corrupt)?))
            }
        }
    }
}

impl Slot {
    /// Copies the bytes of a read to where they belong, unless that was taken back in the meantime.
    fn copy_out(&mut self, segments: &EngineSegments, touch: &mut Touch) -> Result<(), Cause> {
        let landing = self.pending.read_target.take().expect("only a read lands");
        let spans = &self.spans[..self.pending.spans];
        touch.enter();
        let allowed = landing.is_allowed(segments, spans);
        let copied = allowed.and_then(|()| {
            let copied = copy::scatter(&landing.local, &self.data, Direction::Read, spans, landing.hint);
            copied.map(|_| ()).map_err(|_| Cause::OutOfBounds)
        });
        touch.leave();
        copied
    }
}

impl PendingRead {
    fn is_allowed(&self, segments: &EngineSegments, spans: &[Span]) -> Result<(), Cause> {
        let extents = spans.iter().map(|span| (span.local, span.len));
        check_withdrawals(segments.owner_state.view(), self.expected, self.key, extents)
            .map_err(WithdrawalConflict::cause_for_local)
    }
}
