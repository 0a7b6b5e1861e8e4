//! The peer's operations at this side: each packet's bytes are placed once, each operation ends once, and what has ended is
//! published until the peer has heard it.
//!
//! ```text
//! (none) ──first packet──▶ Open ──all parts placed──▶ Finished ──the watermark passes──▶ (none)
//!                           └──refused, given up──▶ Refused ──the peer has heard──▶ Finished
//! ```
//!
//! Nothing of an operation is placed that has ended, or whose number the watermark has passed: a packet that comes late, twice or
//! from before lands nowhere.

use std::collections::VecDeque;

use penstock_core::Cause;
use penstock_core::limits::NOTE_BYTES_MAX;
use penstock_core::planted::{self, Bug};
use penstock_transport::Note;

use crate::checksum::Mismatches;
use crate::connection::{LocalSide, Piece};
use crate::in_flight::PacketItem;
use crate::initiator::{OPERATIONS_MAX, ProtocolViolation, even_part, part_bytes};
use crate::wire::{ACK_WORDS, AckBits, MemoryRequest, NotifyHead, OpPart, PARTS_MAX, bits};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum PeerOpState {
    #[default]
    Unknown,
    Open,
    Refused {
        cause: Option<Cause>,
        revision: u64,
    },
    Finished,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PeerOpKind {
    Write,
    Read,
    Notify,
}

#[derive(Debug, Default)]
struct PeerOp {
    state: PeerOpState,
    kind: Option<PeerOpKind>,
    /// Parts that are here; of a READ those of its data that the peer has.
    had: u64,
    count: u8,
    /// Of a READ: parts of its data to be sent, and that were sent at least once.
    unsent: u64,
    sent: u64,
    /// It is among those with data to send.
    is_queued: bool,
    extents: Vec<(u64, u64)>,
    bytes: u64,
    mismatches: Mismatches,
    notify: NotifyHead,
    payload: Vec<u8>,
}

/// What a packet of an operation was.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartArrival {
    /// It changed the operation: bytes were placed, or it has ended.
    New,
    /// Its bytes were here already, or its operation has ended.
    Late,
}

/// The operations of the peer.
#[derive(Debug)]
pub struct Target {
    chunk: usize,
    ops: Vec<PeerOp>,
    /// All below have finished.
    watermark: u64,
    /// Operations that have finished, by their slot; none of them is below the watermark.
    finished: [u64; ACK_WORDS],
    /// Refusals that the peer has not heard, to be sent.
    refusals: VecDeque<u64>,
    /// Operations that were refused lately: what notifies of their transfer is refused, too.
    refused: VecDeque<(u64, Cause)>,
    /// Notifications that are here and wait for operations before them.
    waiting: Vec<u64>,
    /// READs with data to send: those that repeat some before those that have never sent any.
    answers: VecDeque<u64>,
}

fn slot(operation: u64) -> usize {
    (operation % OPERATIONS_MAX) as usize
}

impl Target {
    /// Of a connection with frames of so many bytes.
    pub fn new(frame: usize) -> Self {
        Self {
            chunk: part_bytes(frame),
            ops: (0..OPERATIONS_MAX).map(|_| PeerOp::default()).collect(),
            watermark: 0,
            finished: [0; ACK_WORDS],
            refusals: VecDeque::with_capacity(OPERATIONS_MAX as usize),
            refused: VecDeque::with_capacity(OPERATIONS_MAX as usize),
            waiting: Vec::with_capacity(OPERATIONS_MAX as usize),
            answers: VecDeque::with_capacity(OPERATIONS_MAX as usize),
        }
    }

    /// All operations below have finished.
    pub fn watermark(&self) -> u64 {
        self.watermark
    }

    /// How many operations have finished.
    pub fn finished_total(&self) -> u64 {
        self.watermark + self.finished.iter().map(|word| u64::from(word.count_ones())).sum::<u64>()
    }

    /// Whether refusals or data are to be sent.
    pub fn has_unsent(&self) -> bool {
        !self.refusals.is_empty() || !self.answers.is_empty()
    }

    #[cfg(test)]
    pub(crate) fn state_of(&self, operation: u64) -> String {
        match operation < self.watermark {
            true => "Passed".to_owned(),
            false => format!("{:?}", self.ops[slot(operation)].state),
        }
    }

    /// Which of those from the watermark on have finished.
    pub fn finished(&self, words: usize) -> AckBits {
        let first = slot(self.watermark);
        let (word, bit) = (first / 64, first % 64);
        let at = |index: usize| {
            let low = self.finished[(word + index) % ACK_WORDS] >> bit;
            let high = self.finished[(word + index + 1) % ACK_WORDS];
            if bit == 0 { low } else { low | high << (64 - bit) }
        };
        AckBits::first(std::array::from_fn(at), words)
    }

    /// The slot of an operation that a packet is part of; none if it has ended.
    fn begin(&mut self, operation: u64, kind: PeerOpKind, count: u8) -> Result<Option<&mut PeerOp>, ProtocolViolation> {
        if operation < self.watermark {
            return Ok(None);
        }
        if operation - self.watermark >= OPERATIONS_MAX {
            return Err(ProtocolViolation);
        }
        let op = &mut self.ops[slot(operation)];
        match op.state {
            PeerOpState::Finished | PeerOpState::Refused { .. } => Ok(None),
            PeerOpState::Open if op.kind != Some(kind) || op.count != count => Err(ProtocolViolation),
            PeerOpState::Open => Ok(Some(op)),
            PeerOpState::Unknown => {
                (op.state, op.kind, op.count) = (PeerOpState::Open, Some(kind), count);
                (op.had, op.unsent, op.sent, op.bytes, op.is_queued) = (0, 0, 0, 0, false);
                op.mismatches = Mismatches::default();
                Ok(Some(op))
            }
        }
    }

    fn has_all(op: &PeerOp) -> bool {
        op.had.count_ones() == u32::from(op.count)
    }

    /// Bytes for this side's memory.
    pub fn on_write(
        &mut self,
        part: OpPart,
        request: &MemoryRequest<'_>,
        bytes: &[u8],
        side: &mut impl LocalSide,
    ) -> Result<PartArrival, ProtocolViolation> {
        let is_skipped = planted::is(Bug::FinishedBeforePlaced) && part.operation > self.watermark;
        let Some(op) = self.begin(part.operation, PeerOpKind::Write, part.count)? else {
            if planted::is(Bug::LatePacketPlaced) {
                _ = side.place(request, bytes)?;
            }
            return Ok(PartArrival::Late);
        };
        if op.had >> part.index & 1 == 1 {
            return Ok(PartArrival::Late);
        }
        let placed = if is_skipped { Ok(()) } else { side.place(request, bytes)? };
        match placed {
            Ok(()) => {
                op.had |= 1 << part.index;
                if Self::has_all(op) {
                    self.finish(part.operation);
                }
            }
            Err(cause) => self.refuse(part.operation, Some(cause), side),
        }
        self.notify_ready(side)?;
        Ok(PartArrival::New)
    }

    /// Bytes for this side's memory came in this packet with a wrong checksum. Too often: they are refused.
    pub fn on_mismatch(
        &mut self,
        part: OpPart,
        number: u64,
        side: &mut impl LocalSide,
    ) -> Result<(), ProtocolViolation> {
        let Some(op) = self.begin(part.operation, PeerOpKind::Write, part.count)? else { return Ok(()) };
        let is_here = op.had >> part.index & 1 == 1;
        if !is_here && op.mismatches.count(part.index, number, op.had) {
            self.refuse(part.operation, Some(Cause::PayloadCorrupt), side);
            self.notify_ready(side)?;
        }
        Ok(())
    }

    /// The peer asks for bytes.
    pub fn on_read(
        &mut self,
        operation: u64,
        request: &MemoryRequest<'_>,
        side: &mut impl LocalSide,
    ) -> Result<PartArrival, ProtocolViolation> {
        let bytes = request.extents.bytes();
        let count = bytes.div_ceil(self.chunk as u64);
        if count > PARTS_MAX as u64 {
            return Err(ProtocolViolation);
        }
        let Some(op) = self.begin(operation, PeerOpKind::Read, count as u8)? else { return Ok(PartArrival::Late) };
        if op.bytes > 0 {
            return Ok(PartArrival::Late);
        }
        match side.open_read(operation, request)? {
            Ok(()) => {
                (op.bytes, op.unsent) = (bytes, u64::MAX >> (PARTS_MAX as u64 - count));
                op.extents.clear();
                op.extents.extend(request.extents.iter());
                op.is_queued = true;
                self.answers.push_back(operation);
            }
            Err(cause) => self.refuse(operation, Some(cause), side),
        }
        Ok(PartArrival::New)
    }

    /// A part of a notification.
    pub fn on_notify(
        &mut self,
        part: OpPart,
        head: &NotifyHead,
        bytes: &[u8],
        side: &mut impl LocalSide,
    ) -> Result<PartArrival, ProtocolViolation> {
        let len = head.note.map_or(0, |(_, len)| usize::from(len));
        let chunk = self.chunk - crate::wire::NOTIFY_BYTES;
        let start = usize::from(part.index) * chunk;
        let is_whole = bytes.len() == len.saturating_sub(start).min(chunk) && len <= NOTE_BYTES_MAX;
        if !is_whole || usize::from(part.count) != len.div_ceil(chunk).max(1) {
            return Err(ProtocolViolation);
        }
        let Some(op) = self.begin(part.operation, PeerOpKind::Notify, part.count)? else {
            return Ok(PartArrival::Late);
        };
        if op.had == 0 {
            op.notify = *head;
            op.payload.clear();
            op.payload.resize(len, 0);
        } else if op.notify != *head {
            return Err(ProtocolViolation);
        }
        if op.had >> part.index & 1 == 1 {
            return Ok(PartArrival::Late);
        }
        op.had |= 1 << part.index;
        op.payload[start..start + bytes.len()].copy_from_slice(bytes);
        if Self::has_all(op) {
            self.waiting.push(part.operation);
            self.notify_ready(side)?;
        }
        Ok(PartArrival::New)
    }

    /// The peer gives an operation up: nothing of it is placed from now on.
    pub fn on_given_up(&mut self, operation: u64, side: &mut impl LocalSide) -> Result<PartArrival, ProtocolViolation> {
        if operation < self.watermark {
            return Ok(PartArrival::Late);
        }
        if operation - self.watermark >= OPERATIONS_MAX {
            return Err(ProtocolViolation);
        }
        match self.ops[slot(operation)].state {
            PeerOpState::Finished | PeerOpState::Refused { .. } => return Ok(PartArrival::Late),
            PeerOpState::Unknown | PeerOpState::Open => self.refuse(operation, Some(Cause::Cancelled), side),
        }
        self.notify_ready(side)?;
        Ok(PartArrival::New)
    }

    fn finish(&mut self, operation: u64) {
        let bit = slot(operation);
        self.ops[bit].state = PeerOpState::Finished;
        self.finished[bit / 64] |= 1 << (bit % 64);
        while self.finished[slot(self.watermark) / 64] >> (slot(self.watermark) % 64) & 1 == 1 {
            let passed = slot(self.watermark);
            self.finished[passed / 64] &= !(1 << (passed % 64));
            self.ops[passed].state = PeerOpState::Unknown;
            self.watermark += 1;
        }
        // A notification names operations that are at most so far before it, and is itself not far beyond the watermark.
        while self.refused.front().is_some_and(|&(old, _)| old + 2 * OPERATIONS_MAX < self.watermark) {
            self.refused.pop_front();
        }
    }

    /// Ends an operation with a cause; without one it is a notification whose counter is gone.
    fn refuse(&mut self, operation: u64, cause: Option<Cause>, side: &mut impl LocalSide) {
        let op = &mut self.ops[slot(operation)];
        if op.kind == Some(PeerOpKind::Read) && op.state == PeerOpState::Open && op.bytes > 0 {
            side.close_read(operation);
            op.unsent = 0;
        }
        op.state = PeerOpState::Refused { cause, revision: side.revision() };
        if let Some(cause) = cause {
            self.refused.push_back((operation, cause));
        }
        self.refusals.push_back(operation);
    }

    /// Delivers the notifications whose operations have all ended.
    fn notify_ready(&mut self, side: &mut impl LocalSide) -> Result<(), ProtocolViolation> {
        let mut index = 0;
        while let Some(&operation) = self.waiting.get(index) {
            let op = &self.ops[slot(operation)];
            if op.state != PeerOpState::Open {
                self.waiting.swap_remove(index);
                continue;
            }
            match self.fate(operation, &op.notify.before) {
                None => index += 1,
                Some(Err(cause)) => {
                    self.waiting.swap_remove(index);
                    self.refuse(operation, Some(cause), side);
                    index = 0; // Another one may name this one.
                }
                Some(Ok(())) => {
                    self.waiting.swap_remove(index);
                    let op = &self.ops[slot(operation)];
                    let note = op.notify.note.map(|(id, _)| Note { id, payload: &op.payload });
                    if side.notify(op.notify.counter, note)? {
                        self.finish(operation);
                    } else {
                        self.refuse(operation, None, side);
                    }
                    index = 0;
                }
            }
        }
        Ok(())
    }

    /// How the operations before a notification have ended, if all have.
    fn fate(&self, operation: u64, before: &[u64; ACK_WORDS]) -> Option<Result<(), Cause>> {
        let mut fate = Ok(());
        for bit in bits(before) {
            // Before the first operation there is none.
            let Some(named) = operation.checked_sub(1 + bit) else { continue };
            if let Some(&(_, cause)) = self.refused.iter().find(|(refused, _)| *refused == named) {
                fate = Err(cause);
            } else if named >= self.watermark && self.ops[slot(named)].state != PeerOpState::Finished {
                return None;
            }
            if planted::is(Bug::NotifiedAtTheFirst) {
                return Some(fate);
            }
        }
        Some(fate)
    }

    /// What is to be sent next: a refusal.
    pub fn next_refusal(&self) -> Option<PacketItem> {
        self.refusals.front().map(|&operation| PacketItem::Refused(operation))
    }

    /// What a refusal says.
    pub fn refusal(&self, operation: u64) -> (Option<Cause>, u64) {
        match self.ops[slot(operation)].state {
            PeerOpState::Refused { cause, revision } => (cause, revision),
            _ => (None, 0),
        }
    }

    /// The next part of data that the peer has asked for.
    pub fn next_answer(&mut self) -> Option<PacketItem> {
        while let Some(&operation) = self.answers.front() {
            let op = &mut self.ops[slot(operation)];
            if operation >= self.watermark && op.state == PeerOpState::Open && op.unsent != 0 {
                return Some(PacketItem::Data(OpPart {
                    operation,
                    index: op.unsent.trailing_zeros() as u8,
                    count: op.count,
                }));
            }
            if operation >= self.watermark {
                op.is_queued = false;
            }
            self.answers.pop_front();
        }
        None
    }

    /// Bytes of a part of data.
    pub fn answer_bytes(&self, part: OpPart) -> usize {
        let bytes = self.ops[slot(part.operation)].bytes;
        let chunk = even_part(bytes, self.chunk) as u64;
        (bytes - u64::from(part.index) * chunk).min(chunk) as usize
    }

    /// In how many extents they are, at most.
    pub fn answer_extents(&self, part: OpPart) -> usize {
        let op = &self.ops[slot(part.operation)];
        let start = u64::from(part.index) * even_part(op.bytes, self.chunk) as u64;
        let end = start + self.answer_bytes(part) as u64;
        let mut at = 0;
        let is_touched = |&&(_, len): &&(u64, u64)| {
            let from = at;
            at += len;
            from < end && start < at
        };
        op.extents.iter().filter(is_touched).count()
    }

    /// In how many extents all bytes of an answer are.
    pub fn runs(&self, operation: u64) -> usize {
        self.ops[slot(operation)].extents.len()
    }

    /// Where the bytes of a part of data are.
    pub fn answer_pieces(&self, part: OpPart, pieces: &mut Vec<Piece>) {
        let chunk = even_part(self.ops[slot(part.operation)].bytes, self.chunk);
        let (mut skip, mut left) = (usize::from(part.index) * chunk, self.answer_bytes(part));
        pieces.clear();
        for &(offset, len) in &self.ops[slot(part.operation)].extents {
            let len = len as usize;
            if skip >= len {
                skip -= len;
                continue;
            }
            let taken = (len - skip).min(left);
            if taken == 0 {
                break;
            }
            pieces.push(Piece { offset: offset + skip as u64, len: taken as u32 });
            (left, skip) = (left - taken, 0);
        }
    }

    /// Whether a part of data was never sent before.
    pub fn is_first(&self, part: OpPart) -> bool {
        self.ops[slot(part.operation)].sent >> part.index & 1 == 0
    }

    /// It is sent. Answers whether for the first time.
    pub fn on_sent(&mut self, item: PacketItem) -> bool {
        match item {
            PacketItem::Refused(_) => {
                self.refusals.pop_front();
                false
            }
            PacketItem::Data(part) => {
                let op = &mut self.ops[slot(part.operation)];
                let is_first = op.sent >> part.index & 1 == 0;
                op.unsent &= !(1 << part.index);
                op.sent |= 1 << part.index;
                is_first
            }
            _ => false,
        }
    }

    /// Memory that the peer reads is not there any more.
    pub fn fail_read(&mut self, operation: u64, cause: Cause, side: &mut impl LocalSide) {
        if operation >= self.watermark && self.ops[slot(operation)].state == PeerOpState::Open {
            self.refuse(operation, Some(cause), side);
        }
    }

    /// The peer has what a packet carried.
    pub fn on_acked(&mut self, item: PacketItem, side: &mut impl LocalSide) -> Result<(), ProtocolViolation> {
        match item {
            PacketItem::Refused(operation) if operation >= self.watermark => {
                if matches!(self.ops[slot(operation)].state, PeerOpState::Refused { .. }) {
                    self.finish(operation);
                }
            }
            PacketItem::Data(part) if part.operation >= self.watermark => {
                let op = &mut self.ops[slot(part.operation)];
                if op.state == PeerOpState::Open && op.kind == Some(PeerOpKind::Read) {
                    op.had |= 1 << part.index;
                    if Self::has_all(op) {
                        side.close_read(part.operation);
                        self.finish(part.operation);
                    }
                }
            }
            _ => return Ok(()),
        }
        self.notify_ready(side)
    }

    /// The packet that carried it is lost.
    pub fn on_lost(&mut self, item: PacketItem) {
        match item {
            PacketItem::Refused(operation) if operation >= self.watermark => {
                if matches!(self.ops[slot(operation)].state, PeerOpState::Refused { .. }) {
                    self.refusals.push_back(operation);
                }
            }
            PacketItem::Data(part) if part.operation >= self.watermark => {
                let op = &mut self.ops[slot(part.operation)];
                if op.state == PeerOpState::Open && op.had >> part.index & 1 == 0 {
                    op.unsent |= 1 << part.index;
                    if !std::mem::replace(&mut op.is_queued, true) {
                        // A repeat needs no credit: it does not wait behind what was never sent and has none.
                        self.answers.push_front(part.operation);
                    }
                }
            }
            _ => {}
        }
    }
}
