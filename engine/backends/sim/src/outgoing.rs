//! What this side has under way: its own operations, cut into packets as there is room.

use std::collections::{BTreeMap, VecDeque};

use penstock_core::limits::IN_FLIGHT_PER_LANE_MAX;
use penstock_core::plan::RegionKey;
use penstock_core::{Cause, NoteId, Span};
use penstock_memory::Window;
use penstock_transport::host::{OwnerStateView, WithdrawalConflict, check_withdrawals};
use penstock_transport::lane::CancelledOp;
use penstock_transport::mediated::Touch;
use penstock_transport::{CounterRef, Failure, LaneEvents, LaneFault, Note};

use crate::line::{FramePart, Line};
use crate::packet::{Message, PAYLOAD_BYTES_MAX, Request};

const CORRUPT: LaneFault = LaneFault(Cause::PeerCorrupt);

/// What an operation is.
pub(crate) enum Kind {
    /// Bytes of ours go into the peer's region.
    Write,
    /// Bytes of the peer's region come into ours.
    Read {
        /// So many are here.
        landed: u64,
    },
    /// The peer shall hear that a transfer is there.
    Notify { counter: Option<CounterRef>, note: Option<(NoteId, Vec<u8>)>, lines: u64 },
}

/// The two memories of an operation.
pub(crate) struct Memories {
    /// Memory of this engine that it may still touch.
    pub(crate) local: Option<Window>,
    /// The name of that memory.
    pub(crate) key: RegionKey,
    /// The revision of this engine's log up to which nothing withdrawn concerns it.
    pub(crate) checked: u64,
    pub(crate) remote: RegionKey,
    /// The peer's revision that the plan was checked against.
    pub(crate) revision: u64,
    /// Where its bytes are.
    pub(crate) spans: Vec<Span>,
}

pub(crate) struct Op {
    pub(crate) kind: Kind,
    /// What it is reported under.
    pub(crate) completion_id: u64,
    /// The transfer it belongs to.
    pub(crate) transfer: u64,
    /// None of a notification.
    pub(crate) memories: Option<Memories>,
    pub(crate) bytes: u64,
    /// The span that leaves next, and how much of it has left.
    at: (usize, u64),
    /// All of it has left.
    is_sent: bool,
    /// Why it will not end well.
    failed: Option<Cause>,
}

impl Op {
    pub(crate) fn new(kind: Kind, completion_id: u64, transfer: u64, memories: Option<Memories>, bytes: u64) -> Self {
        Self { kind, completion_id, transfer, memories, bytes, at: (0, 0), is_sent: false, failed: None }
    }

    fn forget_memory(&mut self) {
        if let Some(memories) = &mut self.memories {
            memories.local = None;
        }
    }

    fn fail(&mut self, cause: Cause) {
        self.failed.get_or_insert(cause);
        self.forget_memory();
    }
}

impl Memories {
    fn extents(&self) -> impl ExactSizeIterator<Item = (u64, u64)> + Clone + '_ {
        self.spans.iter().map(|span| (span.local, span.len))
    }

    /// Its memory, if nothing was withdrawn of it.
    fn standing(&self, view: &OwnerStateView) -> Result<&Window, Cause> {
        check_withdrawals(view, self.checked, self.key, self.extents()).map_err(WithdrawalConflict::cause_for_local)?;
        self.local.as_ref().ok_or(Cause::Cancelled)
    }
}

/// One lane's own operations.
#[derive(Default)]
pub(crate) struct Outgoing {
    /// Those of which nothing has left.
    waiting: VecDeque<Op>,
    /// Those that the peer counts, by their numbers.
    flying: BTreeMap<u64, Op>,
    /// The number of the last that began to leave. Of a WRITE there may be more to send.
    last: u64,
}

impl Outgoing {
    /// Whether one more may set off.
    pub(crate) fn has_room(&self) -> bool {
        self.waiting.len() + self.flying.len() < IN_FLIGHT_PER_LANE_MAX
    }

    pub(crate) fn push(&mut self, op: Op) {
        self.waiting.push_back(op);
    }

    /// Whether a transfer has READs here that have not ended.
    pub(crate) fn reads(&self, transfer: u64) -> bool {
        let is_its = |op: &Op| op.transfer == transfer && matches!(op.kind, Kind::Read { .. });
        self.waiting.iter().any(is_its) || self.flying.values().any(is_its)
    }

    /// The next message, if there is anything to send.
    pub(crate) fn next(&mut self, view: &OwnerStateView, touch: &mut Touch) -> Option<(Vec<u8>, Option<FramePart>)> {
        if self.flying.get(&self.last).is_none_or(|op| op.is_sent) {
            let op = self.waiting.pop_front()?;
            self.last += 1;
            self.flying.insert(self.last, op);
        }
        let operation = self.last;
        let op = self.flying.get_mut(&operation)?;
        let mut message = Vec::new();
        match (&op.kind, &op.memories) {
            (Kind::Write, Some(memories)) => {
                let part = match write(operation, op.transfer, op.at, memories, view, touch, &mut message) {
                    Ok(at) => {
                        op.at = at;
                        op.is_sent = at.0 == memories.spans.len();
                        FramePart { operation, is_last: op.is_sent }
                    }
                    Err(cause) => {
                        op.fail(cause);
                        op.is_sent = true;
                        given_up(op, operation, true, &mut message);
                        FramePart { operation, is_last: true }
                    }
                };
                return Some((message, Some(part)));
            }
            (Kind::Read { .. }, Some(memories)) => {
                let extents = memories.spans.iter().map(|span| (span.remote, span.len)).collect();
                Message::Read(memories.request(operation, op.transfer, extents)).put(&mut message);
            }
            (Kind::Notify { counter, note, .. }, _) => {
                let note = note.as_ref().map(|(id, payload)| Note { id: *id, payload });
                Message::Notify { operation, transfer: op.transfer, counter: *counter, note }.put(&mut message);
            }
            (Kind::Write | Kind::Read { .. }, None) => return None, // It is never made without.
        }
        op.is_sent = true;
        Some((message, None))
    }

    /// Some of what a READ asked for has come: it lands at once.
    pub(crate) fn land(
        &mut self,
        operation: u64,
        place: u64,
        bytes: &[u8],
        view: &OwnerStateView,
        touch: &mut Touch,
    ) -> Result<(), LaneFault> {
        let op = self.flying.get_mut(&operation).ok_or(CORRUPT)?;
        let (Kind::Read { landed }, Some(memories)) = (&mut op.kind, &op.memories) else { return Err(CORRUPT) };
        let end = place.checked_add(bytes.len() as u64).filter(|end| *end <= op.bytes).ok_or(CORRUPT)?;
        if !op.is_sent || op.bytes - *landed < bytes.len() as u64 {
            return Err(CORRUPT);
        }
        *landed += bytes.len() as u64;
        if op.failed.is_some() {
            return Ok(()); // Given up while it came: it goes nowhere.
        }
        let put = touch.during(|| {
            let memory = memories.standing(view)?;
            let mut start = 0;
            for span in &memories.spans {
                let (from, to) = (place.max(start), end.min(start + span.len));
                if from < to {
                    let part = &bytes[(from - place) as usize..(to - place) as usize];
                    memory.write_from(span.local + (from - start), part).map_err(|_| Cause::OutOfBounds)?;
                }
                start += span.len;
            }
            Ok(())
        });
        if let Err(cause) = put {
            op.fail(cause);
        }
        Ok(())
    }

    /// The peer is done with one of them.
    pub(crate) fn done(
        &mut self,
        operation: u64,
        result: Result<u64, Cause>,
        events: &mut dyn LaneEvents,
    ) -> Result<(), LaneFault> {
        let op = self.flying.remove(&operation).filter(|op| op.is_sent).ok_or(CORRUPT)?;
        let result = match (op.failed, &op.kind, result) {
            (Some(cause), ..) | (None, _, Err(cause)) => Err(cause),
            (None, Kind::Read { landed }, Ok(_)) if *landed != op.bytes => return Err(CORRUPT),
            (None, Kind::Notify { .. }, Ok(told)) => Ok(told.min(1)),
            (None, _, Ok(_)) => Ok(op.bytes),
        };
        events.completed(op.completion_id, result.map_err(Failure::from));
        Ok(())
    }

    /// Gives up what goes under this token, if it is here. With the lines of a note that does not leave.
    pub(crate) fn cancel_op(&mut self, completion_id: u64, line: &mut Line) -> Option<(CancelledOp, u64)> {
        if let Some(place) = self.waiting.iter().position(|op| op.completion_id == completion_id) {
            let lines = match self.waiting.remove(place)?.kind {
                Kind::Notify { lines, .. } => lines,
                _ => 0,
            };
            return Some((CancelledOp::Quiesced, lines));
        }
        let (&operation, op) = self.flying.iter_mut().find(|(_, op)| op.completion_id == completion_id)?;
        match op.kind {
            // What it has not landed yet it need not land.
            Kind::Write => {
                op.fail(Cause::Cancelled);
                line.replace(operation, |part| {
                    let mut message = Vec::new();
                    given_up(op, operation, part.is_last, &mut message);
                    message
                });
            }
            Kind::Read { .. } => op.fail(Cause::Cancelled),
            Kind::Notify { .. } => {}
        }
        Some((CancelledOp::RemotePending, 0))
    }
}

fn given_up(op: &Op, operation: u64, is_last: bool, into: &mut Vec<u8>) {
    let cause = op.failed.unwrap_or(Cause::Cancelled);
    Message::GivenUp { operation, transfer: op.transfer, is_last, cause }.put(into);
}

impl Memories {
    fn request(&self, operation: u64, transfer: u64, extents: Vec<(u64, u64)>) -> Request {
        Request { operation, transfer, key: self.remote, revision: self.revision, extents }
    }
}

/// Makes the next packet of a WRITE. Answers where the one after it begins.
fn write(
    operation: u64,
    transfer: u64,
    mut at: (usize, u64),
    memories: &Memories,
    view: &OwnerStateView,
    touch: &mut Touch,
    into: &mut Vec<u8>,
) -> Result<(usize, u64), Cause> {
    let mut bytes = Vec::with_capacity(PAYLOAD_BYTES_MAX);
    let mut extents = Vec::new();
    touch.during(|| {
        let memory = memories.standing(view)?;
        while let Some(span) = memories.spans.get(at.0)
            && bytes.len() < PAYLOAD_BYTES_MAX
        {
            let start = bytes.len();
            let count = (span.len - at.1).min((PAYLOAD_BYTES_MAX - start) as u64);
            bytes.resize(start + count as usize, 0);
            memory.read_into(span.local + at.1, &mut bytes[start..]).map_err(|_| Cause::OutOfBounds)?;
            extents.push((span.remote + at.1, count));
            at = if at.1 + count == span.len { (at.0 + 1, 0) } else { (at.0, at.1 + count) };
        }
        Ok(())
    })?;
    let request = memories.request(operation, transfer, extents);
    Message::Write { request, is_last: at.0 == memories.spans.len(), bytes: &bytes }.put(into);
    Ok(at)
}
