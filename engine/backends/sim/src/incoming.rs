//! What a peer may do here: looked up and checked for each of its messages, before its first byte.

use std::collections::VecDeque;
use std::sync::Arc;

use penstock_core::Cause;
use penstock_core::limits::IN_FLIGHT_PER_LANE_MAX;
use penstock_core::plan::RegionKey;
use penstock_memory::{Registry, Window};
use penstock_ring::Hazard;
use penstock_transport::host::{
    Bell, EngineSegments, LastRegion, OwnerStateView, WithdrawalConflict, check_withdrawals,
};
use penstock_transport::{CounterRef, LaneEvents, LaneFault};
use rustix::thread::futex;

use crate::notes::Notes;
use crate::packet::{Message, PAYLOAD_BYTES_MAX, Request};

const CORRUPT: LaneFault = LaneFault(Cause::PeerCorrupt);

/// What a lane shows of itself while it touches this engine's memory.
pub(crate) struct Touch(pub(crate) Hazard);

impl Touch {
    /// Copies under the raised hazard. What is withdrawn is looked up inside.
    pub(crate) fn during<R>(&mut self, copy: impl FnOnce() -> R) -> R {
        self.0.enter(0);
        let result = copy();
        self.0.leave();
        result
    }
}

/// What a lane uses of its engine.
pub(crate) struct Common {
    pub(crate) segments: Arc<EngineSegments>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) touch: Touch,
    pub(crate) known: LastRegion,
    pub(crate) application: Bell,
}

impl Common {
    /// Returns whether the counter is still there.
    fn count(&self, counter: CounterRef) -> bool {
        let cell = self.segments.mailbox.view().counter(counter.index);
        let Some(cell) = cell.filter(|cell| cell.generation() == counter.generation) else { return false };
        if cell.add_one() {
            // Fails only if nobody waits any more.
            let _ = futex::wake(cell.futex_word(), futex::Flags::empty(), i32::MAX as u32);
        }
        self.application.ring_after_barrier();
        true
    }
}

/// What the peer wants with its extents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wants {
    Write,
    Read,
}

/// The memory that a request names, if the peer may do that to it: what to answer if not. A request that nobody who keeps to
/// the rules can make breaks the lane.
fn admit(
    wants: Wants,
    request: &Request,
    view: &OwnerStateView,
    registry: &Registry,
    known: &mut LastRegion,
) -> Result<Result<Window, Cause>, LaneFault> {
    if request.revision > view.revision() {
        return Err(CORRUPT); // Nobody can have told it.
    }
    if let Err(withdrawn) = check_withdrawals(view, request.revision, request.key, request.extents.iter().copied()) {
        return Ok(Err(withdrawn.cause_for_peer()));
    }
    let Some(region) = known.find(registry, request.key) else { return Ok(Err(Cause::RevokedByPeer)) };
    let (rights, window) = (region.rights(), region.window());
    let is_allowed = match wants {
        Wants::Write => rights.allows_write() && window.is_writable(),
        Wants::Read => rights.allows_read(),
    };
    let is_inside = |&(offset, len): &(u64, u64)| offset.checked_add(len).is_some_and(|end| end <= window.len());
    let is_fine = is_allowed && request.extents.iter().all(is_inside);
    Ok(if is_fine { Ok(window.clone()) } else { Err(Cause::OutOfBounds) })
}

/// Transfers of the peer of which something was refused: what notifies of them is not told.
///
/// A notification that follows such a write left before the peer heard of the refusal, so within the window that
/// it has; older ones are forgotten.
#[derive(Default)]
struct Poisoned(VecDeque<(u64, u64, Cause)>);

impl Poisoned {
    fn add(&mut self, operation: u64, transfer: u64, cause: Cause) {
        while self.0.front().is_some_and(|&(old, ..)| old + IN_FLIGHT_PER_LANE_MAX as u64 <= operation) {
            self.0.pop_front();
        }
        self.0.push_back((operation, transfer, cause));
    }

    fn why(&self, transfer: u64) -> Option<Cause> {
        self.0.iter().find(|(_, poisoned, _)| *poisoned == transfer).map(|&(.., cause)| cause)
    }
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
        common: &mut Common,
    ) -> Result<Result<(), Cause>, LaneFault> {
        let Common { segments, registry, touch, known, .. } = common;
        touch.during(|| {
            let memory = match admit(Wants::Write, request, segments.owner_state.view(), registry, known)? {
                Ok(memory) => memory,
                Err(cause) => return Ok(Err(cause)),
            };
            let mut start = 0;
            for &(offset, len) in &request.extents {
                let part = &bytes[start..start + len as usize];
                if memory.write_from(offset, part).is_err() {
                    return Ok(Err(Cause::OutOfBounds)); // Checked when it was admitted.
                }
                start += len as usize;
            }
            Ok(Ok(()))
        })
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
    pub(crate) fn asked(&mut self, request: Request, common: &mut Common) -> Result<(), LaneFault> {
        self.begin(request.operation)?;
        let view = common.segments.owner_state.view();
        // Before anything is looked up: what is withdrawn from now on is seen when the bytes leave.
        let checked = view.revision();
        let operation = request.operation;
        let reply = match admit(Wants::Read, &request, view, &common.registry, &mut common.known)? {
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
        common: &Common,
        notes: &mut Notes,
        events: &mut dyn LaneEvents,
    ) -> Result<(), LaneFault> {
        let &Message::Notify { operation, transfer, counter, note } = message else { return Err(CORRUPT) };
        self.begin(operation)?;
        let why = self.poisoned.why(transfer);
        if let Some(note) = note {
            notes.arrive(note, why.is_none(), events)?;
        }
        let is_counted = why.is_some() || counter.is_none_or(|counter| common.count(counter));
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
    pub(crate) fn reply(&mut self, common: &mut Common) -> Option<Vec<u8>> {
        let view = common.segments.owner_state.view();
        let done = match self.replies.front_mut()? {
            Reply::Done { operation, result } => (*operation, *result),
            Reply::Answer(answer) => match answer.next(view, &mut common.touch) {
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
