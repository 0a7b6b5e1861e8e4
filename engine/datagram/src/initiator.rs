//! This side's operations: what of each is still to be sent, and how each ends.
//!
//! Operations are numbered. The target publishes which have finished; at most [`OPERATIONS_MAX`] are beyond those that it has
//! published without a gap, so that one bit map names them all.
//!
//! ```text
//! Open ──finished, refused, all data here──▶ Ended ──below the watermark──▶ (free)
//!  └──cancelled──▶ GivenUp ──finished or refused──▶ Ended
//! ```

use std::collections::VecDeque;

use penstock_core::plan::RegionKey;
use penstock_core::planted::{self, Bug};
use penstock_core::{Cause, Span};

use crate::checksum::Mismatches;
use crate::connection::{LocalSide, Piece};
use crate::in_flight::PacketItem;
use crate::target::PartArrival;
use crate::wire::{
    ACK_WORDS, ACK_WORDS_WITH_PAYLOAD, AckBits, EXTENT_BYTES, HEADER_BYTES_MAX, HEADER_BYTES_MIN, NotifyHead, OpPart,
    PARTS_MAX, WRITE_BYTES, ack_bytes, bits,
};

/// Operations beyond the target's watermark.
pub const OPERATIONS_MAX: u64 = 64 * ACK_WORDS as u64;

/// From this length on a packet that is full of an operation has room for an acknowledgement as well: it takes less than 2 % of the frame.
/// In a shorter one the room is the operation's, and an acknowledgement that cannot ride leaves alone.
const ACK_RIDES_FROM: usize = 4096;

/// A first part that shares a packet is at least so long.
const FIRST_BYTES_MIN: usize = 64;

/// Bytes of extents and payload that one packet of an operation has room for.
pub const fn part_bytes(frame: usize) -> usize {
    frame - if frame < ACK_RIDES_FROM { HEADER_BYTES_MIN } else { HEADER_BYTES_MAX }
}

/// Bytes of each part but the last, if so many bytes are dealt out evenly to as few parts as they need with so much room in each.
pub fn even_part(bytes: u64, room: usize) -> usize {
    bytes.div_ceil(bytes.div_ceil(room as u64).max(1)) as usize
}

/// A frame that breaks the protocol: the connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProtocolViolation;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum OpState {
    #[default]
    Free,
    Open,
    /// Nothing more of it is sent but that it was given up; the target has not confirmed that.
    GivenUp,
    /// Its result was reported. Its number is free once the target's watermark has passed it.
    Ended,
}

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OpKind {
    #[default]
    Write,
    Read,
    Notify,
}

/// A part: where it begins, in this span and so far into it, and how many pieces and bytes it has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Cut {
    span: u8,
    pieces: u8,
    within: u32,
    bytes: u32,
}

/// A batch of spans between one local and one remote region.
#[derive(Debug, Clone, Copy)]
pub struct MoveRequest<'a> {
    pub completion_id: u64,
    pub transfer: u64,
    pub key: RegionKey,
    /// The remote revision at which its plan was checked.
    pub revision: u64,
    /// At least one and at most [`penstock_core::limits::SPANS_PER_POST`], none empty, together at most
    /// [`penstock_core::limits::UNIT_BYTES`].
    pub spans: &'a [Span],
}

#[derive(Debug, Default)]
struct Op {
    state: OpState,
    kind: OpKind,
    completion_id: u64,
    transfer: u64,
    /// None of a notification.
    key: Option<RegionKey>,
    revision: u64,
    spans: Vec<Span>,
    bytes: u64,
    cuts: Vec<Cut>,
    /// Bytes that are left in the packet of a WRITE's last part.
    left: usize,
    /// Parts to be sent, for the first time or again. A READ and what was given up have one.
    unsent: u64,
    /// Parts that were sent at least once.
    sent: u64,
    /// Parts of a READ's data that are here.
    landed: u64,
    mismatches: Mismatches,
    failed: Option<Cause>,
    notify: NotifyHead,
    payload: Vec<u8>,
}

impl Op {
    fn parts(&self) -> usize {
        self.cuts.len()
    }

    /// Packets that carry all of it to the target.
    fn packets(&self) -> u32 {
        if self.kind == OpKind::Read { 1 } else { self.parts() as u32 }
    }

    /// Where a part's bytes are: spans and the range within each.
    fn pieces(&self, index: u8) -> impl ExactSizeIterator<Item = Span> + Clone + '_ {
        let cut = self.cuts[usize::from(index)];
        let (mut from, mut left) = (u64::from(cut.within), u64::from(cut.bytes));
        self.spans[usize::from(cut.span)..].iter().take(cut.pieces.into()).map(move |span| {
            let len = (span.len - from).min(left);
            let piece = Span { local: span.local + from, remote: span.remote + from, len };
            (from, left) = (0, left - len);
            piece
        })
    }

    /// Cuts its spans into parts, the first of so much room and the others of `room`, with `overhead` more bytes for each piece. Answers
    /// what is left of the last one's room.
    fn cut(&mut self, first: usize, room: usize, overhead: usize) -> usize {
        self.cuts.clear();
        let (mut left, mut next) = (0, first);
        for (index, span) in self.spans.iter().enumerate() {
            let mut within = 0;
            while within < span.len {
                if left <= overhead {
                    self.cuts.push(Cut { span: index as u8, pieces: 0, within: within as u32, bytes: 0 });
                    (left, next) = (next, room);
                }
                let taken = (span.len - within).min((left - overhead) as u64);
                let cut = self.cuts.last_mut().expect("there was no room before the first");
                (cut.pieces, cut.bytes) = (cut.pieces + 1, cut.bytes + taken as u32);
                within += taken;
                left -= overhead + taken as usize;
            }
        }
        left
    }
}

/// The operations of this side.
#[derive(Debug)]
pub struct Initiator {
    room: usize,
    /// What packets with several messages leave free of it.
    shared: usize,
    ops: Vec<Op>,
    /// The number of the next operation.
    next: u64,
    /// All below are known to have finished.
    watermark: u64,
    /// Slots with something to send.
    ready: [u64; ACK_WORDS],
    /// No operation below has something to send.
    first_ready: u64,
    /// Those that were not taken, with their transfers.
    ended: VecDeque<(EndedOp, u64)>,
}

/// An operation that has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EndedOp {
    pub completion_id: u64,
    /// Its number; none: a notification that was not sent, because its transfer had failed.
    pub operation: Option<u64>,
    /// The bytes moved, or, of a notification, 1, or 0 without its counter.
    pub result: Result<u64, Cause>,
}

/// An operation that was given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GivenUpOp {
    /// Its number, as [`EndedOp::operation`].
    pub operation: Option<u64>,
    /// Nothing of it has left, and [`Initiator::pop_ended`] does not report it; else it does, once the target has confirmed.
    pub has_ended: bool,
}

fn slot(operation: u64) -> usize {
    (operation % OPERATIONS_MAX) as usize
}

impl Initiator {
    /// Of a connection with frames of so many bytes.
    pub fn new(frame: usize) -> Self {
        Self {
            room: part_bytes(frame),
            shared: ack_bytes(ACK_WORDS_WITH_PAYLOAD) - (frame - HEADER_BYTES_MIN - part_bytes(frame)),
            ops: (0..OPERATIONS_MAX).map(|_| Op::default()).collect(),
            next: 0,
            watermark: 0,
            ready: [0; ACK_WORDS],
            first_ready: 0,
            ended: VecDeque::with_capacity(OPERATIONS_MAX as usize),
        }
    }

    /// Whether one more operation can be taken. None is while some have ended that were not taken: what the caller keeps for them, by
    /// their slots, is still theirs.
    pub fn has_room(&self) -> bool {
        self.next - self.watermark < OPERATIONS_MAX && self.ended.is_empty()
    }

    fn open(&self, operation: u64) -> Option<&Op> {
        (self.watermark..self.next).contains(&operation).then(|| &self.ops[slot(operation)])
    }

    fn open_mut(&mut self, operation: u64) -> Option<&mut Op> {
        (self.watermark..self.next).contains(&operation).then(|| &mut self.ops[slot(operation)])
    }

    fn mark(&mut self, operation: u64) {
        let bit = slot(operation);
        self.ready[bit / 64] |= 1 << (bit % 64);
        self.first_ready = self.first_ready.min(operation);
    }

    /// Nothing more of it is to be sent.
    fn unmark(&mut self, operation: u64) {
        let bit = slot(operation);
        self.ops[bit].unsent = 0;
        self.ready[bit / 64] &= !(1 << (bit % 64));
    }

    /// The room of the next WRITE's first part: what the last one's last part has left in its packet, if that has not been sent and it is
    /// worth it. So operations that follow each other fill their packets, and only the last packet is shorter.
    fn first_room(&self) -> usize {
        let last = self.next.checked_sub(1).and_then(|last| self.open(last));
        let waits = |op: &&Op| {
            let part = 1 << (op.parts() - 1);
            op.state == OpState::Open && op.kind == OpKind::Write && op.unsent & part != 0 && op.sent & part == 0
        };
        let left = last.filter(waits).map_or(0, |op| op.left.saturating_sub(WRITE_BYTES + self.shared));
        if left >= FIRST_BYTES_MIN { left } else { self.room }
    }

    /// Takes a WRITE or a READ; there is room. Answers its number.
    pub fn post(&mut self, kind: OpKind, what: &MoveRequest<'_>) -> u64 {
        debug_assert!(!what.spans.is_empty() && what.spans.iter().all(|span| span.len > 0), "a batch was checked");
        let (operation, room, first) = (self.next, self.room, self.first_room());
        let op = &mut self.ops[slot(operation)];
        (op.state, op.kind, op.completion_id, op.transfer) = (OpState::Open, kind, what.completion_id, what.transfer);
        (op.key, op.revision, op.sent, op.landed, op.failed) = (Some(what.key), what.revision, 0, 0, None);
        op.spans.clear();
        op.spans.extend_from_slice(what.spans);
        op.mismatches = Mismatches::default();
        op.bytes = what.spans.iter().map(|span| span.len).sum();
        if kind == OpKind::Write {
            op.left = op.cut(first, room, EXTENT_BYTES);
            op.unsent = u64::MAX >> (PARTS_MAX - op.parts());
        } else {
            let even = even_part(op.bytes, room);
            op.cut(even, even, 0);
            op.unsent = 1;
        }
        self.next += 1;
        self.mark(operation);
        operation
    }

    /// Takes a notification; there is room. It comes behind the transfer's operations that are open. Answers its number; none: its
    /// transfer has failed, and so it has ended.
    pub fn notify(&mut self, completion_id: u64, transfer: u64, mut head: NotifyHead, payload: &[u8]) -> Option<u64> {
        let has_failed = |(ended, of): &(EndedOp, u64)| ended.result.err().filter(|_| *of == transfer);
        if let Some(cause) = self.ended.iter().find_map(has_failed) {
            self.ended.push_back((EndedOp { completion_id, operation: None, result: Err(cause) }, transfer));
            return None;
        }
        let operation = self.next;
        head.before = [0; ACK_WORDS];
        for before in self.watermark..operation {
            let op = &self.ops[slot(before)];
            if op.state != OpState::Ended && op.transfer == transfer && op.kind == OpKind::Write {
                let distance = operation - 1 - before;
                head.before[(distance / 64) as usize] |= 1 << (distance % 64);
            }
        }
        let chunk = self.note_bytes();
        let op = &mut self.ops[slot(operation)];
        (op.state, op.kind, op.completion_id, op.transfer) = (OpState::Open, OpKind::Notify, completion_id, transfer);
        (op.sent, op.landed, op.failed, op.bytes) = (0, 0, None, 0);
        op.spans.clear();
        op.cuts.clear();
        op.notify = head;
        op.payload.clear();
        op.payload.extend_from_slice(payload);
        let parts = payload.len().div_ceil(chunk).max(1);
        op.cuts.extend((0..parts).map(|_| Cut { span: 0, pieces: 0, within: 0, bytes: 0 }));
        op.unsent = u64::MAX >> (PARTS_MAX - parts);
        self.next += 1;
        self.mark(operation);
        Some(operation)
    }

    /// Payload bytes of one packet of a notification.
    fn note_bytes(&self) -> usize {
        self.room - crate::wire::NOTIFY_BYTES
    }

    /// Whether a READ of this transfer is open: its notification has to wait for the bytes to be here.
    pub fn reads(&self, transfer: u64) -> bool {
        let is_reading = |op: &Op| op.kind == OpKind::Read && op.transfer == transfer && op.state != OpState::Ended;
        (self.watermark..self.next).any(|operation| is_reading(&self.ops[slot(operation)]))
    }

    /// Gives up an operation. None: there is none of this id.
    pub fn cancel(&mut self, completion_id: u64) -> Option<GivenUpOp> {
        let is_it = |op: &Op| matches!(op.state, OpState::Open | OpState::GivenUp) && op.completion_id == completion_id;
        let Some(operation) = (self.watermark..self.next).find(|&operation| is_it(&self.ops[slot(operation)])) else {
            let ended = self.ended.iter().find(|(ended, _)| ended.completion_id == completion_id);
            return ended.map(|(ended, _)| GivenUpOp { operation: ended.operation, has_ended: false });
        };
        if planted::is(Bug::RepeatedAfterGivenUp) {
            return Some(GivenUpOp { operation: Some(operation), has_ended: true });
        }
        let op = &mut self.ops[slot(operation)];
        let has_ended = op.sent == 0 && op.state == OpState::Open;
        if op.state == OpState::Open {
            self.give_up(operation, None);
        }
        if has_ended {
            // The target has to hear of the number all the same.
            self.ops[slot(operation)].state = OpState::Ended;
        }
        Some(GivenUpOp { operation: Some(operation), has_ended })
    }

    fn give_up(&mut self, operation: u64, failed: Option<Cause>) {
        let op = &mut self.ops[slot(operation)];
        (op.state, op.unsent, op.failed) = (OpState::GivenUp, 1, failed);
        self.mark(operation);
    }

    /// The completion id and the kind of an operation that is open or given up, which end with it.
    fn end(&mut self, operation: u64, result: Result<u64, Cause>) {
        let op = &mut self.ops[slot(operation)];
        if matches!(op.state, OpState::Open | OpState::GivenUp) {
            let result = result.map_err(|cause| op.failed.unwrap_or(cause));
            op.state = OpState::Ended;
            let ended = EndedOp { completion_id: op.completion_id, operation: Some(operation), result };
            self.ended.push_back((ended, op.transfer));
            self.unmark(operation);
        }
    }

    /// The next operation that has ended.
    pub fn pop_ended(&mut self) -> Option<EndedOp> {
        self.ended.pop_front().map(|(ended, _)| ended)
    }

    /// The target publishes which operations have finished.
    pub fn on_finished(&mut self, watermark: u64, finished: &AckBits) -> Result<(), ProtocolViolation> {
        if watermark > self.next {
            return Err(ProtocolViolation);
        }
        // One that was overtaken by a later one says nothing new.
        for operation in self.watermark..watermark {
            self.finish(operation)?;
            self.ops[slot(operation)].state = OpState::Free;
        }
        self.watermark = self.watermark.max(watermark);
        self.first_ready = self.first_ready.max(self.watermark);
        for bit in bits(&finished.words) {
            let operation = watermark + bit;
            if operation >= self.next {
                return Err(ProtocolViolation);
            }
            if operation >= self.watermark {
                self.finish(operation)?;
            }
        }
        Ok(())
    }

    fn finish(&mut self, operation: u64) -> Result<(), ProtocolViolation> {
        let op = &mut self.ops[slot(operation)];
        let is_waited_for = matches!(op.state, OpState::Open | OpState::GivenUp);
        // What has not left whole cannot have arrived.
        if is_waited_for && op.sent.count_ones() < op.packets() {
            return Err(ProtocolViolation);
        }
        let result = match op.kind {
            OpKind::Write => Ok(op.bytes),
            OpKind::Notify => Ok(1),
            OpKind::Read if op.state == OpState::Open => return Err(ProtocolViolation), // Its data would have ended it.
            OpKind::Read => Err(Cause::Cancelled),
        };
        self.unmark(operation);
        self.end(operation, result);
        Ok(())
    }

    /// The target has refused an operation, or confirms that it was given up.
    pub fn on_refused(&mut self, operation: u64, cause: Option<Cause>) -> Result<(), ProtocolViolation> {
        if operation >= self.next {
            return Err(ProtocolViolation);
        }
        if let Some(op) = self.open_mut(operation) {
            if op.sent == 0 {
                return Err(ProtocolViolation);
            }
            self.unmark(operation);
            self.end(operation, cause.map_or(Ok(0), Err));
        }
        Ok(())
    }

    /// Data of a READ has come.
    pub fn on_data(
        &mut self,
        part: OpPart,
        bytes: &[u8],
        pieces: &mut Vec<Piece>,
        side: &mut impl LocalSide,
    ) -> Result<PartArrival, ProtocolViolation> {
        if part.operation >= self.next {
            return Err(ProtocolViolation);
        }
        let Some(op) = self.open_mut(part.operation) else { return Ok(PartArrival::Late) };
        if op.kind != OpKind::Read || usize::from(part.count) != op.parts() || op.sent == 0 {
            return Err(ProtocolViolation);
        }
        if op.state != OpState::Open || op.landed >> part.index & 1 == 1 {
            return Ok(PartArrival::Late);
        }
        pieces.clear();
        pieces.extend(op.pieces(part.index).map(|piece| Piece { offset: piece.local, len: piece.len as u32 }));
        if pieces.iter().map(|piece| u64::from(piece.len)).sum::<u64>() != bytes.len() as u64 {
            return Err(ProtocolViolation);
        }
        match side.land(part.operation, pieces, bytes) {
            Ok(()) => {
                op.landed |= 1 << part.index;
                if op.landed.count_ones() as usize == op.parts() {
                    let bytes = op.bytes;
                    self.end(part.operation, Ok(bytes));
                }
            }
            Err(cause) => self.give_up(part.operation, Some(cause)),
        }
        Ok(PartArrival::New)
    }

    /// Data of a READ came in this packet with a wrong checksum. Too often: it is given up.
    pub fn on_mismatch(&mut self, part: OpPart, number: u64) {
        let Some(op) = self.open_mut(part.operation) else { return };
        let is_waited_for = op.kind == OpKind::Read && op.state == OpState::Open && op.landed >> part.index & 1 == 0;
        if is_waited_for && op.mismatches.count(part.index, number, op.landed) {
            self.give_up(part.operation, Some(Cause::PayloadCorrupt));
        }
    }

    /// What is to be sent next, at or behind this operation.
    pub fn next_item(&mut self, from: u64) -> Option<PacketItem> {
        let start = from.max(self.first_ready);
        for operation in start..self.next {
            let bit = slot(operation);
            if self.ready[bit / 64] >> (bit % 64) & 1 == 0 {
                continue;
            }
            let op = &self.ops[bit];
            if from <= self.first_ready {
                self.first_ready = operation;
            }
            let part = OpPart { operation, index: op.unsent.trailing_zeros() as u8, count: op.parts() as u8 };
            return Some(match (op.state, op.kind) {
                (OpState::Open, OpKind::Write) => PacketItem::Write(part),
                (OpState::Open, OpKind::Read) => PacketItem::Read(operation),
                (OpState::Open, OpKind::Notify) => PacketItem::Notify(part),
                _ => PacketItem::GivenUp(operation),
            });
        }
        if from <= self.first_ready {
            self.first_ready = self.next;
        }
        None
    }

    fn index(item: PacketItem) -> (u64, u8) {
        match item {
            PacketItem::Write(part) | PacketItem::Notify(part) | PacketItem::Data(part) => (part.operation, part.index),
            PacketItem::Read(operation) | PacketItem::GivenUp(operation) | PacketItem::Refused(operation) => {
                (operation, 0)
            }
            PacketItem::Credit(_) => (0, 0),
        }
    }

    /// It is sent. Answers whether for the first time.
    pub fn on_sent(&mut self, item: PacketItem) -> bool {
        let (operation, index) = Self::index(item);
        let op = &mut self.ops[slot(operation)];
        op.unsent &= !(1 << index);
        let is_first = op.sent >> index & 1 == 0 && !matches!(item, PacketItem::GivenUp(_));
        op.sent |= 1 << index;
        if op.unsent == 0 {
            self.unmark(operation);
        }
        is_first
    }

    /// Whether it was never sent before.
    pub fn is_first(&self, item: PacketItem) -> bool {
        let (operation, index) = Self::index(item);
        self.ops[slot(operation)].sent >> index & 1 == 0
    }

    /// The packet that carried it is lost.
    pub fn on_lost(&mut self, item: PacketItem) {
        let (operation, index) = Self::index(item);
        let Some(op) = self.open_mut(operation) else { return };
        let is_due = match op.state {
            OpState::Open => !matches!(item, PacketItem::GivenUp(_)),
            OpState::GivenUp | OpState::Ended => matches!(item, PacketItem::GivenUp(_)),
            OpState::Free => false,
        };
        if is_due {
            op.unsent |= 1 << index;
            self.mark(operation);
        }
    }

    /// How many pieces a WRITE's part has, and their bytes.
    pub fn part_size(&self, part: OpPart) -> (usize, usize) {
        let cut = self.ops[slot(part.operation)].cuts[usize::from(part.index)];
        (cut.pieces.into(), cut.bytes as usize)
    }

    /// The part of a WRITE that leaves so many parts later, if all leave in their order: of this operation or the next one.
    pub fn later(&self, part: OpPart, distance: usize) -> Option<OpPart> {
        let index = usize::from(part.index) + distance;
        let (operation, index) = match index.checked_sub(part.count.into()) {
            None => (part.operation, index),
            Some(beyond) => (part.operation + 1, beyond),
        };
        let op = self.open(operation).filter(|op| op.state == OpState::Open && op.kind == OpKind::Write)?;
        (index < op.parts()).then(|| OpPart { operation, index: index as u8, count: op.parts() as u8 })
    }

    /// Pieces of a WRITE's part: local offset, remote offset, length.
    pub fn pieces(&self, part: OpPart) -> impl ExactSizeIterator<Item = Span> + Clone + '_ {
        self.ops[slot(part.operation)].pieces(part.index)
    }

    /// Region and revision of an operation, and all of its spans.
    pub fn request(&self, operation: u64) -> (RegionKey, u64, &[Span]) {
        let op = &self.ops[slot(operation)];
        (op.key.expect("a WRITE and a READ have a region"), op.revision, &op.spans)
    }

    /// The head of a notification, and the payload of one part of it.
    pub fn note(&self, part: OpPart) -> (&NotifyHead, &[u8]) {
        let (op, chunk) = (&self.ops[slot(part.operation)], self.note_bytes());
        let start = usize::from(part.index) * chunk;
        (&op.notify, &op.payload[start..op.payload.len().min(start + chunk)])
    }

    /// Its local memory is not there any more: it is given up, and ends with this cause.
    pub fn fail(&mut self, operation: u64, cause: Cause) {
        if self.open(operation).is_some_and(|op| op.state == OpState::Open) {
            self.give_up(operation, Some(cause));
        }
    }

    /// Whether something is to be sent.
    pub fn has_unsent(&self) -> bool {
        self.ready != [0; ACK_WORDS]
    }

    /// Whether nothing is open, and the target knows it.
    pub fn is_idle(&self) -> bool {
        self.watermark == self.next
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::wire::FRAME_BYTES_MIN;
    use penstock_core::limits::{SPANS_PER_POST, UNIT_BYTES};
    use penstock_core::{Generation, RegionId};

    const KEY: RegionKey = RegionKey { region: RegionId(1), generation: Generation(1) };

    fn lens() -> impl Strategy<Value = Vec<u64>> {
        let any = proptest::collection::vec(1..=UNIT_BYTES, 1..=SPANS_PER_POST);
        prop_oneof![
            any,
            proptest::collection::vec(1u64..=1100, 1..=SPANS_PER_POST),
            (1u64..=1024).prop_map(|len| vec![len; SPANS_PER_POST]),
        ]
        .prop_map(|lens| {
            let within = |left: &mut u64, len: u64| {
                let len = len.min(*left);
                *left -= len;
                (len > 0).then_some(len)
            };
            lens.into_iter().scan(UNIT_BYTES, within).collect()
        })
    }

    proptest! {
        /// All shapes that one post accepts fit into the packets of an operation, and the parts are the whole, in order.
        #[test]
        fn every_post_fits_its_parts(before in 1..=UNIT_BYTES, lens in lens(), frame in FRAME_BYTES_MIN..10_000) {
            let mut at = 0;
            let spans: Vec<Span> = lens.iter().map(|&len| { let local = at; at += len + 7; Span { local, remote: 3 * local, len } }).collect();
            let mut initiator = Initiator::new(frame);
            let what = MoveRequest { completion_id: 1, transfer: 1, key: KEY, revision: 0, spans: &spans };
            // The one before it leaves any room in its last packet.
            let one = [Span { local: 0, remote: 0, len: before }];
            initiator.post(OpKind::Write, &MoveRequest { spans: &one, ..what });
            let operation = initiator.post(OpKind::Write, &what);
            let parts = initiator.ops[1].parts();
            prop_assert!((1..=PARTS_MAX).contains(&parts), "{} parts", parts);
            let mut bytes: Vec<(u64, u64)> = Vec::new();
            for index in 0..parts {
                let part = OpPart { operation, index: index as u8, count: parts as u8 };
                let pieces: Vec<Span> = initiator.pieces(part).collect();
                let size: u64 = pieces.iter().map(|piece| piece.len + EXTENT_BYTES as u64).sum();
                prop_assert!(!pieces.is_empty() && pieces.len() <= SPANS_PER_POST && size as usize <= part_bytes(frame));
                for piece in pieces {
                    prop_assert!(piece.len > 0);
                    match bytes.last_mut() {
                        Some((start, len)) if *start + *len == piece.local => *len += piece.len,
                        _ => bytes.push((piece.local, piece.len)),
                    }
                    let span = spans.iter().find(|span| (span.local..span.local + span.len).contains(&piece.local)).unwrap();
                    prop_assert_eq!(piece.local - span.local, piece.remote - span.remote);
                }
            }
            let expected: Vec<(u64, u64)> = spans.iter().map(|span| (span.local, span.len)).collect();
            prop_assert_eq!(bytes, expected);
        }
    }
}
