//! What a peer may do here: looked up and checked for each of its messages, before its first byte.

use std::collections::VecDeque;

use penstock_core::Cause;
use penstock_core::limits::IN_FLIGHT_PER_LANE_MAX;
use penstock_core::plan::RegionKey;
use penstock_memory::Window;
use penstock_transport::host::{OwnerStateView, WithdrawalConflict, check_withdrawals};
use penstock_transport::mediated::{LaneTarget, Notes, Poisoned, Touch, Wants};
use penstock_transport::{LaneEvents, LaneFault};

use crate::packet::{Message, PAYLOAD_BYTES_MAX, Request};

const CORRUPT: LaneFault = LaneFault(Cause::PeerCorrupt);

fn admit(wants: Wants, request: &Request, target: &mut LaneTarget) -> Result<Result<Window, Cause>, LaneFault> {
    target.admit(wants, request.key, request.revision, request.extents.iter().copied())
}

/// Bytes that the peer asked for and that leave as there is room.
struct Answer {
    operation: u64,
    memory: Window,
    key: RegionKey,
    checked: u64,
    extents: Vec<(u64, u64)>,
    /// The extent that leaves next, and how much of it has left.
    at: (usize, u64),
    sent: u64,
}

/// What the peer is to hear of its operations.
enum Reply {
    Answer(Answer),
    Done { operation: u64, result: Result<u64, Cause> },
}

/// One lane's incoming side.
#[derive(Default)]
pub(crate) struct Incoming {
    /// The number of the peer's operation that began last.
    last: u64,
    /// A WRITE of which more is to come, and why it does not end well.
    open: Option<(u64, Option<Cause>)>,
    poisoned: Poisoned,
    replies: VecDeque<Reply>,
}

impl Incoming {
    /// Bytes for this engine's memory have come, before or after those around them: they land at once, or not at all.
    pub(crate) fn land(
        &mut self,
        request: &Request,
        bytes: &[u8],
        target: &mut LaneTarget,
    ) -> Result<Result<(), Cause>, LaneFault> {
        target.touch.enter();
        let landed = admit(Wants::Write, request, target).map(|admitted| {
            let memory = admitted?;
            let mut start = 0;
            for &(offset, len) in &request.extents {
                let part = &bytes[start..start + len as usize];
                memory.write_from(offset, part).map_err(|_| Cause::OutOfBounds)?; // Checked when it was admitted.
                start += len as usize;
            }
            Ok(())
        });
        target.touch.leave();
        landed
    }

    /// All before it have come: the next part of a WRITE, with what became of its bytes.
    pub(crate) fn wrote(
        &mut self,
        operation: u64,
        transfer: u64,
        is_last: bool,
        landed: Result<(), Cause>,
    ) -> Result<(), LaneFault> {
        let failed = match self.open {
            Some((open, failed)) if open == operation => failed,
            Some(_) => return Err(CORRUPT),
            None => {
                self.number(operation)?;
                None
            }
        };
        if let (None, Err(cause)) = (failed, landed) {
            self.poisoned.add(operation, transfer, cause);
        }
        let failed = failed.or(landed.err());
        self.open = (!is_last).then_some((operation, failed));
        if is_last {
            let result = failed.map_or(Ok(0), Err);
            self.replies.push_back(Reply::Done { operation, result });
        }
        Ok(())
    }

    /// The peer asks for bytes.
    pub(crate) fn asked(&mut self, request: Request, target: &mut LaneTarget) -> Result<(), LaneFault> {
        self.begin(request.operation)?;
        // Before anything is looked up: what is withdrawn from now on is seen when the bytes leave.
        let checked = target.view().revision();
        let operation = request.operation;
        let reply = match admit(Wants::Read, &request, target)? {
            Err(cause) => Reply::Done { operation, result: Err(cause) },
            Ok(memory) => {
                let (key, extents) = (request.key, request.extents);
                Reply::Answer(Answer { operation, memory, key, checked, extents, at: (0, 0), sent: 0 })
            }
        };
        self.replies.push_back(reply);
        Ok(())
    }

    /// All of a transfer has come before this: it is told, unless some of it did not land.
    pub(crate) fn notified(
        &mut self,
        message: &Message<'_>,
        target: &LaneTarget,
        notes: &mut Notes,
        events: &mut dyn LaneEvents,
    ) -> Result<(), LaneFault> {
        let &Message::Notify { operation, transfer, counter, note } = message else { return Err(CORRUPT) };
        self.begin(operation)?;
        let why = self.poisoned.why(transfer);
        if let Some(note) = note {
            notes.arrive(note, why.is_none(), events)?;
        }
        let is_counted = why.is_some() || counter.is_none_or(|counter| target.increment_counter(counter));
        let result = why.map_or(Ok(u64::from(is_counted)), Err);
        self.replies.push_back(Reply::Done { operation, result });
        Ok(())
    }

    fn begin(&mut self, operation: u64) -> Result<(), LaneFault> {
        if self.open.is_some() { Err(CORRUPT) } else { self.number(operation) }
    }

    /// The number of the peer's operation is the next, and it may have so many under way.
    fn number(&mut self, operation: u64) -> Result<(), LaneFault> {
        if operation != self.last + 1 || self.replies.len() >= IN_FLIGHT_PER_LANE_MAX {
            return Err(CORRUPT);
        }
        self.last = operation;
        Ok(())
    }

    /// The next message that the peer is to hear, if there is any.
    pub(crate) fn reply(&mut self, target: &mut LaneTarget) -> Option<Vec<u8>> {
        let LaneTarget { segments, touch, .. } = target;
        let view = segments.owner_state.view();
        let done = match self.replies.front_mut()? {
            Reply::Done { operation, result } => (*operation, *result),
            Reply::Answer(answer) => match answer.next(view, touch) {
                Ok(Some(message)) => return Some(message),
                Ok(None) => (answer.operation, Ok(answer.sent)),
                Err(cause) => (answer.operation, Err(cause)),
            },
        };
        self.replies.pop_front();
        let mut message = Vec::new();
        Message::Done { operation: done.0, result: done.1, revision: view.revision() }.put(&mut message);
        Some(message)
    }
}

impl Answer {
    /// The next part of it; none: all has left.
    fn next(&mut self, view: &OwnerStateView, touch: &mut Touch) -> Result<Option<Vec<u8>>, Cause> {
        if self.at.0 == self.extents.len() {
            return Ok(None);
        }
        let mut bytes = Vec::with_capacity(PAYLOAD_BYTES_MAX);
        touch.during(|| {
            let stands = check_withdrawals(view, self.checked, self.key, self.extents.iter().copied());
            stands.map_err(WithdrawalConflict::cause_for_peer)?;
            while let Some(&(offset, len)) = self.extents.get(self.at.0)
                && bytes.len() < PAYLOAD_BYTES_MAX
            {
                let start = bytes.len();
                let count = (len - self.at.1).min((PAYLOAD_BYTES_MAX - start) as u64);
                bytes.resize(start + count as usize, 0);
                self.memory.read_into(offset + self.at.1, &mut bytes[start..]).map_err(|_| Cause::OutOfBounds)?;
                self.at = if self.at.1 + count == len { (self.at.0 + 1, 0) } else { (self.at.0, self.at.1 + count) };
            }
            Ok(())
        })?;
        let mut message = Vec::new();
        Message::Data { operation: self.operation, place: self.sent, bytes: &bytes }.put(&mut message);
        self.sent += bytes.len() as u64;
        Ok(Some(message))
    }
}
