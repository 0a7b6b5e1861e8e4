//! What leaves on a stream: own operations in their order, answers to the peer's reads, acknowledgements.
//!
//! An operation gets its number when its message is written. From then on the peer counts it, whatever becomes of it
//! here; before that it can be taken back as if it had never been.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

use penstock_core::Cause;
use penstock_core::limits::IN_FLIGHT_PER_LANE_MAX;
use penstock_transport::host::{HeldPages, OwnerStateView, check_withdrawals};
use penstock_transport::lane::CancelledOp;
use penstock_transport::mediated::Touch;
use penstock_transport::{Failure, LaneEvents, LaneFault};

use crate::group::{FrameGroup, Sent, StreamPath};
use crate::io::{PieceSpace, ZeroCopyId};
use crate::op::{Kind, Op, OpEnded, OpId, Ops};
use crate::wire::{
    Asked, CONTROL_BYTES_MAX, ReadRefusal, WORDS_BYTES_MAX, notification_bytes, put_credit, put_data, put_done,
    put_notification, put_refused, put_request, request_bytes,
};

const CORRUPT: LaneFault = LaneFault(Cause::PeerCorrupt);

/// What the peer shall hear of its own operations.
#[derive(Default)]
pub(crate) struct Acks {
    /// All its operations up to this one have ended here.
    pub(crate) done: u64,
    /// What it was told of that.
    pub(crate) told: u64,
    /// Which have not ended well, and this engine's revision then.
    pub(crate) refused: VecDeque<(u64, Option<Cause>, u64)>,
    /// Bytes that have landed since it was told.
    pub(crate) landed: u64,
    /// Looks that nothing came of since then.
    pub(crate) looks: u32,
}

/// Looks that find nothing before an acknowledgement goes by itself: whoever answers what has arrived takes it along.
const LOOKS: u32 = 2;
/// What may have landed without being acknowledged while more and more comes: a part of the sender's window.
const LANDED_MAX: u64 = 1024 * 1024;
const DONE_MAX: u64 = IN_FLIGHT_PER_LANE_MAX as u64 / 4;

impl Acks {
    /// Whether there is anything it was not told.
    pub(crate) fn are_due(&self) -> bool {
        self.done != self.told || !self.refused.is_empty()
    }

    /// Whether it must be told now, though there is nothing else to say.
    pub(crate) fn are_urgent(&self) -> bool {
        let waits = self.done != self.told
            && (self.looks >= LOOKS || self.landed >= LANDED_MAX || self.done - self.told >= DONE_MAX);
        waits || !self.refused.is_empty()
    }

    /// How far the peer may have numbered its operations: whatever was not acknowledged is in its window.
    pub(crate) fn window_end(&self) -> u64 {
        self.told + IN_FLIGHT_PER_LANE_MAX as u64
    }
}

/// One stream's outgoing side.
pub(crate) struct Outgoing {
    /// Own operations that have not left.
    waiting: VecDeque<OpId>,
    /// Answers to the peer's reads.
    answers: VecDeque<OpId>,
    /// Own operations that the peer counts, by their numbers.
    flying: VecDeque<OpId>,
    /// The number of the first of them, less one.
    before: u64,
    /// The peer has said that it is done with all up to here.
    heard: u64,
    /// The last number in the group that is leaving, or has left last.
    last: u64,
    group: FrameGroup,
}

impl Outgoing {
    /// One with room for all that may be under way, so that nothing allocates afterwards.
    pub(crate) fn new() -> Self {
        let list = || VecDeque::with_capacity(IN_FLIGHT_PER_LANE_MAX);
        Self {
            waiting: list(),
            answers: list(),
            flying: list(),
            before: 0,
            heard: 0,
            last: 0,
            group: FrameGroup::new(),
        }
    }

    /// Own operations that have not ended, and those whose number still stands.
    pub(crate) fn count(&self) -> usize {
        self.waiting.len() + self.flying.len()
    }

    pub(crate) fn push(&mut self, id: OpId) {
        self.waiting.push_back(id);
    }

    /// An answer to a READ of the peer.
    pub(crate) fn answer(&mut self, id: OpId) {
        self.answers.push_back(id);
    }

    /// Answers that have not begun to leave.
    pub(crate) fn answers(&self) -> usize {
        self.answers.len()
    }

    /// Whether it has anything to send, besides acknowledgements.
    pub(crate) fn has_something(&self) -> bool {
        self.group.is_leaving() || !self.waiting.is_empty() || !self.answers.is_empty()
    }

    /// Whether a transfer has own operations of this kind here that have not ended.
    pub(crate) fn carries(&self, kind: Kind, transfer: u64, ops: &Ops) -> bool {
        let is_its = |&id: &OpId| {
            let op = &ops[id];
            op.kind == kind && op.transfer == transfer && !op.has_ended
        };
        self.waiting.iter().any(is_its) || self.flying.iter().any(is_its)
    }

    /// Fills the next group. Returns whether one leaves. What may not leave any more ends here.
    pub(crate) fn form(
        &mut self,
        ops: &mut Ops,
        acks: &mut Acks,
        credit: Option<u64>,
        view: &OwnerStateView,
        ended: &mut Vec<OpEnded>,
    ) -> bool {
        self.group.begin(view.revision());
        while let Some((sequence, cause, revision)) = acks.refused.pop_front() {
            put_refused(&mut self.group.head, sequence, cause, revision);
        }
        if acks.done != acks.told {
            (acks.told, acks.landed) = (acks.done, 0);
            put_done(&mut self.group.head, acks.done);
        }
        if let Some(lines) = credit {
            put_credit(&mut self.group.head, lines);
        }
        // In turns, so that neither side's bulk waits for the other's.
        loop {
            let answered = self.form_answer(ops, view);
            if !self.form_own(ops, view, ended) && !answered {
                break;
            }
        }
        self.last = self.before + self.flying.len() as u64;
        self.group.close()
    }

    fn form_answer(&mut self, ops: &mut Ops, view: &OwnerStateView) -> bool {
        let Some(&id) = self.answers.front() else { return false };
        let op = &mut ops[id];
        if self.group.control_bytes() + WORDS_BYTES_MAX > CONTROL_BYTES_MAX
            || !self.group.has_room(op.bytes, op.spans.len())
        {
            return false;
        }
        self.answers.pop_front();
        if op.failed.is_none()
            && let Err(withdrawn) = check_withdrawals(view, op.checked, op.key, op.extents())
        {
            op.failed = Some(withdrawn.cause_for_peer());
        }
        match op.failed {
            Some(cause) => {
                let revision = view.revision();
                put_data(&mut self.group.head, op.sequence, Err(ReadRefusal { cause, revision }));
                ops.give_back(id);
            }
            None => {
                put_data(&mut self.group.head, op.sequence, Ok(op.bytes as u32));
                self.group.carry(id, op.bytes, op.spans.len());
            }
        }
        true
    }

    fn form_own(&mut self, ops: &mut Ops, view: &OwnerStateView, ended: &mut Vec<OpEnded>) -> bool {
        let Some(&id) = self.waiting.front() else { return false };
        let op = &mut ops[id];
        let control = match op.kind {
            Kind::Notify => notification_bytes(op.payload.len()),
            _ => request_bytes(op.spans.len()),
        };
        let payload = if op.kind == Kind::Write { op.bytes } else { 0 };
        if self.group.control_bytes() + control > CONTROL_BYTES_MAX || !self.group.has_room(payload, op.spans.len()) {
            return false;
        }
        if op.kind == Kind::Write
            && let Err(withdrawn) = check_withdrawals(view, op.checked, op.key, op.extents())
        {
            let (transfer, cause) = (op.transfer, withdrawn.cause_for_local());
            self.waiting.pop_front();
            end_unsent(id, ops, cause, ended);
            self.end_notifications(transfer, cause, ops, ended);
            return true;
        }
        self.waiting.pop_front();
        self.flying.push_back(id);
        op.sequence = self.before + self.flying.len() as u64;
        let asked = Asked { sequence: op.sequence, transfer: op.transfer, key: op.remote, revision: op.revision };
        match op.kind {
            Kind::Write => put_request(&mut self.group.head, true, &asked, op.remote_extents()),
            Kind::Read => put_request(&mut self.group.head, false, &asked, op.remote_extents()),
            Kind::Notify | Kind::Answer => {
                put_notification(&mut self.group.head, op.sequence, op.transfer, op.counter, op.said());
            }
        }
        if op.kind == Kind::Write {
            self.group.carry(id, op.bytes, op.spans.len());
        }
        true
    }

    /// What was to be said behind an operation that has failed is not said.
    fn end_notifications(&mut self, transfer: u64, cause: Cause, ops: &mut Ops, ended: &mut Vec<OpEnded>) {
        self.waiting.retain(|&id| {
            let is_meant = ops[id].kind == Kind::Notify && ops[id].transfer == transfer;
            if is_meant {
                end_unsent(id, ops, cause, ended);
            }
            !is_meant
        });
    }

    /// Whether a group is on its way.
    pub(crate) fn is_sending(&self) -> bool {
        self.group.is_leaving()
    }

    /// Sends of the group that is leaving what goes in one call.
    pub(crate) fn send(
        &mut self,
        way: StreamPath<'_>,
        ops: &mut Ops,
        view: &OwnerStateView,
        memory: (&mut Touch, &Arc<HeldPages>),
        space: &mut PieceSpace,
    ) -> io::Result<Sent> {
        self.group.send(way, ops, view, memory, space)
    }

    fn named(&self, sequence: u64) -> Option<OpId> {
        let place = sequence.checked_sub(self.before + 1)?;
        self.flying.get(usize::try_from(place).ok()?).copied()
    }

    /// The peer is done with all up to this number.
    pub(crate) fn done(&mut self, sequence: u64, ops: &mut Ops, events: &mut dyn LaneEvents) -> Result<(), LaneFault> {
        let end = self.group.first_own(ops).map_or(self.last + 1, |id| ops[id].sequence);
        if sequence < self.heard || sequence >= end {
            return Err(CORRUPT);
        }
        for number in self.heard.max(self.before) + 1..=sequence {
            let Some(id) = self.named(number) else { return Err(CORRUPT) };
            let op = &mut ops[id];
            if op.kind != Kind::Read && !op.has_ended {
                op.is_acknowledged = true;
                end_if_over(op, events);
            }
        }
        self.heard = sequence;
        self.let_go(ops);
        Ok(())
    }

    /// The kernel has let go of a send's pages.
    pub(crate) fn released(&mut self, ticket: ZeroCopyId, ops: &mut Ops, events: &mut dyn LaneEvents) {
        let pages = &mut self.group.pages;
        while let Some(place) = pages.iter().position(|(of, _)| *of == ticket) {
            let (_, id) = pages.swap_remove(place);
            let op = &mut ops[id];
            op.in_kernel -= 1;
            end_if_over(op, events);
        }
        self.let_go(ops);
    }

    /// The peer has refused one: how, it says with its number; that it is done with it, later.
    pub(crate) fn refused(&mut self, sequence: u64, cause: Option<Cause>, ops: &mut Ops) -> Result<(), LaneFault> {
        let op = &mut ops[self.named(sequence).ok_or(CORRUPT)?];
        match (op.kind, cause) {
            _ if op.has_ended || op.is_acknowledged => return Err(CORRUPT),
            (Kind::Write | Kind::Notify, Some(cause)) => {
                op.failed.get_or_insert(cause);
            }
            (Kind::Notify, None) if op.counter.is_some() => op.is_uncounted = true,
            _ => return Err(CORRUPT),
        }
        Ok(())
    }

    /// The READ of this number, if its bytes may come now.
    pub(crate) fn asked(&self, sequence: u64, ops: &Ops) -> Result<OpId, LaneFault> {
        let id = self.named(sequence).ok_or(CORRUPT)?;
        let op = &ops[id];
        let is_open = op.kind == Kind::Read && !op.has_ended && !op.is_landing;
        if is_open { Ok(id) } else { Err(CORRUPT) }
    }

    /// A READ has ended.
    pub(crate) fn answered(
        &mut self,
        id: OpId,
        result: Result<u64, Cause>,
        ops: &mut Ops,
        events: &mut dyn LaneEvents,
    ) {
        let op = &mut ops[id];
        (op.has_ended, op.memory) = (true, None);
        events.completed(op.completion_id, result.map_err(Failure::from));
        self.let_go(ops);
    }

    /// Frees the numbers before the first that has not ended, and that the peer has counted: a READ ends here before
    /// the peer has said that it is done with its number, by which it judges how far this side may number.
    fn let_go(&mut self, ops: &mut Ops) {
        while let Some(&id) = self.flying.front()
            && ops[id].has_ended
            && self.before < self.heard
        {
            self.flying.pop_front();
            self.before += 1;
            ops.give_back(id);
        }
    }

    /// Gives up what goes under this token, if it is here. With the place of a READ whose bytes may be coming in.
    pub(crate) fn cancel_op(&mut self, completion_id: u64, ops: &mut Ops) -> Option<(CancelledOp, OpId)> {
        if let Some(place) = self.waiting.iter().position(|&id| ops[id].completion_id == completion_id) {
            let id = self.waiting.remove(place)?;
            return Some((CancelledOp::Quiesced, id));
        }
        let is_it = |&&id: &&OpId| ops[id].completion_id == completion_id && !ops[id].has_ended;
        let id = *self.flying.iter().find(is_it)?;
        if self.group.has_unsent(id) {
            ops[id].spoil(Cause::Cancelled);
        }
        ops[id].memory = None;
        let answer = if ops[id].in_kernel > 0 { CancelledOp::LocalPending } else { CancelledOp::RemotePending };
        Some((answer, id))
    }
}

/// An operation is over when the peer is done with it and the kernel has none of its pages.
fn end_if_over(op: &mut Op, events: &mut dyn LaneEvents) {
    if op.is_acknowledged && op.in_kernel == 0 {
        op.has_ended = true;
        events.completed(op.completion_id, op.result().map_err(Failure::from));
    }
}

fn end_unsent(id: OpId, ops: &mut Ops, cause: Cause, ended: &mut Vec<OpEnded>) {
    let op = &ops[id];
    ended.push(OpEnded { completion_id: op.completion_id, transfer: op.transfer, cause, lines: op.lines() });
    ops.give_back(id);
}
