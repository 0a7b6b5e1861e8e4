//! The memory that one connection moves bytes from and to: of this side's operations, and of the peer's.

use std::sync::Arc;

use penstock_core::Cause;
use penstock_core::plan::RegionKey;
use penstock_datagram::initiator::{OPERATIONS_MAX, ProtocolViolation};
use penstock_datagram::wire::MemoryRequest;
use penstock_datagram::{LentPiece, LocalSide, OutgoingOp, Piece};
use penstock_memory::{AccessError, Window, copy};
use penstock_transport::host::{WithdrawalConflict, check_withdrawals};
use penstock_transport::mediated::{LaneTarget, Notes, Wants};
use penstock_transport::{CounterRef, Note, RemoteGateLog};

/// Memory of this engine that an operation touches.
#[derive(Debug, Clone)]
pub(crate) struct OpMemory {
    pub(crate) window: Window,
    pub(crate) key: RegionKey,
    /// The revision of this engine's log up to which nothing withdrawn concerns it.
    pub(crate) checked_at: u64,
}

/// The memory of an operation, if it has any still, and what to say of it if it was withdrawn.
type TouchedMemory<'a> = (Option<&'a OpMemory>, fn(WithdrawalConflict) -> Cause);

/// What one of this side's operations holds here.
#[derive(Debug, Default)]
struct LocalOp {
    memory: Option<OpMemory>,
    /// Lines at the receiver that a notification has reserved.
    lines: u64,
}

pub(crate) struct Side {
    pub(crate) target: LaneTarget,
    pub(crate) told: Arc<RemoteGateLog>,
    pub(crate) notes: Notes,
    /// By the number of the operation.
    local: Vec<LocalOp>,
    /// What the peer reads, by the number of its operation.
    reads: Vec<Option<OpMemory>>,
}

fn slot(operation: u64) -> usize {
    (operation % OPERATIONS_MAX) as usize
}

fn extents(pieces: &[Piece]) -> impl ExactSizeIterator<Item = (u64, u64)> + Clone + '_ {
    pieces.iter().map(|piece| (piece.offset, u64::from(piece.len)))
}

impl Side {
    pub(crate) fn new(target: LaneTarget, told: Arc<RemoteGateLog>) -> Self {
        let slots = 0..OPERATIONS_MAX;
        Self {
            target,
            told,
            notes: Notes::default(),
            local: slots.clone().map(|_| LocalOp::default()).collect(),
            reads: slots.map(|_| None).collect(),
        }
    }

    /// An operation of this side begins, on this memory.
    pub(crate) fn begin_move(&mut self, operation: u64, memory: OpMemory) {
        self.local[slot(operation)] = LocalOp { memory: Some(memory), lines: 0 };
    }

    /// A notification of this side begins, which has reserved so many lines.
    pub(crate) fn begin_notify(&mut self, operation: u64, lines: u64) {
        self.local[slot(operation)] = LocalOp { memory: None, lines };
    }

    /// The memory of an operation is not touched any more.
    pub(crate) fn release_memory(&mut self, operation: u64) {
        self.local[slot(operation)].memory = None;
    }

    /// An operation of this side has ended. A notification that the peer did not get has its room back.
    pub(crate) fn end(&mut self, operation: u64, was_delivered: bool) {
        let op = std::mem::take(&mut self.local[slot(operation)]);
        if !was_delivered {
            self.notes.take_back(op.lines);
        }
    }

    fn memory<'a>(local: &'a [LocalOp], reads: &'a [Option<OpMemory>], op: OutgoingOp) -> TouchedMemory<'a> {
        match op {
            OutgoingOp::Write(operation) => {
                (local[slot(operation)].memory.as_ref(), WithdrawalConflict::cause_for_local)
            }
            OutgoingOp::Answer(operation) => (reads[slot(operation)].as_ref(), WithdrawalConflict::cause_for_peer),
        }
    }

    /// Passes on pieces of memory that an operation was let to, unless it was withdrawn since.
    fn touch(
        target: &mut LaneTarget,
        (memory, cause_of): TouchedMemory<'_>,
        pieces: &[Piece],
        mut touch: impl FnMut(&Window, u64, usize) -> Result<(), AccessError>,
    ) -> Result<(), Cause> {
        let memory = memory.ok_or(Cause::Cancelled)?;
        target.begin_section();
        check_withdrawals(target.view(), memory.checked_at, memory.key, extents(pieces)).map_err(cause_of)?;
        // What was let was checked to be within its memory.
        let mut each = |piece: &Piece| touch(&memory.window, piece.offset, piece.len as usize);
        pieces.iter().try_for_each(&mut each).map_err(|_| Cause::OutOfBounds)
    }

    /// Memory is not touched any more before the next packet comes or leaves. Called after each burst of packets.
    pub(crate) fn end_section(&mut self) {
        self.target.end_section();
    }
}

/// Fills a packet's payload, piece by piece.
fn reader(mut into: &mut [u8]) -> impl FnMut(&Window, u64, usize) -> Result<(), AccessError> {
    move |window, offset, len| {
        let (part, rest) = std::mem::take(&mut into).split_at_mut(len);
        into = rest;
        window.read_into(offset, part)
    }
}

/// Empties a packet's payload, piece by piece.
fn writer(mut bytes: &[u8]) -> impl FnMut(&Window, u64, usize) -> Result<(), AccessError> {
    move |window, offset, len| {
        let (part, rest) = bytes.split_at(len);
        bytes = rest;
        window.write_from(offset, part)
    }
}

impl LocalSide for Side {
    fn gather(&mut self, op: OutgoingOp, pieces: &[Piece], into: &mut [u8]) -> Result<(), Cause> {
        let Self { target, local, reads, .. } = self;
        Self::touch(target, Self::memory(local, reads, op), pieces, reader(into))
    }

    fn lend(
        &mut self,
        op: OutgoingOp,
        pieces: &[Piece],
        lent: &mut Vec<LentPiece>,
        is_scattered: bool,
    ) -> Result<(), Cause> {
        let Self { target, local, reads, .. } = self;
        Self::touch(target, Self::memory(local, reads, op), pieces, |window, offset, len| {
            // This side's section lasts until the port has sent the burst, so these bytes are let until then.
            if is_scattered {
                copy::prefetch_read(window, offset, len as u64);
            }
            lent.push(LentPiece { address: window.address_of(offset, len as u64)?, len: len as u64 });
            Ok(())
        })
    }

    fn prefetch(&mut self, operation: u64, piece: Piece) {
        if let Some(memory) = &self.local[slot(operation)].memory {
            copy::prefetch_read(&memory.window, piece.offset, piece.len.into());
        }
    }

    fn prefetch_place(&mut self, request: &MemoryRequest<'_>) {
        if let Some(window) = self.target.admitted(request.key) {
            request.extents.iter().for_each(|(offset, len)| copy::prefetch_write(window, offset, len));
        }
    }

    fn land(&mut self, operation: u64, pieces: &[Piece], bytes: &[u8]) -> Result<(), Cause> {
        let Self { target, local, reads, .. } = self;
        Self::touch(target, Self::memory(local, reads, OutgoingOp::Write(operation)), pieces, writer(bytes))
    }

    fn place(&mut self, request: &MemoryRequest<'_>, bytes: &[u8]) -> Result<Result<(), Cause>, ProtocolViolation> {
        self.target.begin_section();
        let (key, revision) = (request.key, request.revision);
        let admitted = self.target.admit_in_section(Wants::Write, key, revision, request.extents.iter());
        Ok(admitted.map_err(|_| ProtocolViolation)?.and_then(|window| {
            let (mut write, mut extents) = (writer(bytes), request.extents.iter());
            // Checked when it was admitted.
            extents.try_for_each(|(offset, len)| write(window, offset, len as usize)).map_err(|_| Cause::OutOfBounds)
        }))
    }

    fn open_read(
        &mut self,
        operation: u64,
        request: &MemoryRequest<'_>,
    ) -> Result<Result<(), Cause>, ProtocolViolation> {
        // Before anything is looked up: what is withdrawn from now on is seen when the bytes leave.
        let (key, checked_at) = (request.key, self.target.view().revision());
        let admitted = self.target.admit(Wants::Read, key, request.revision, request.extents.iter());
        let admitted = admitted.map_err(|_| ProtocolViolation)?;
        Ok(admitted.map(|window| self.reads[slot(operation)] = Some(OpMemory { window, key, checked_at })))
    }

    fn close_read(&mut self, operation: u64) {
        self.reads[slot(operation)] = None;
    }

    fn notify(&mut self, counter: Option<CounterRef>, note: Option<Note<'_>>) -> Result<bool, ProtocolViolation> {
        if let Some(note) = note {
            self.notes.keep(note).map_err(|_| ProtocolViolation)?;
        }
        Ok(counter.is_none_or(|counter| self.target.increment_counter(counter)))
    }

    fn on_note_credit(&mut self, lines: u64) -> Result<(), ProtocolViolation> {
        self.notes.hear(lines).map_err(|_| ProtocolViolation)
    }

    fn on_revision(&mut self, revision: u64) {
        self.told.on_revision(revision);
    }

    fn revision(&self) -> u64 {
        self.target.view().revision()
    }
}
