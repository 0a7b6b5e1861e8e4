//! Operations that a lane has accepted and will complete later.
//!
//! A batch or a notification holds one claim of its transfer's slot; whichever worker releases the last one finishes the
//! transfer. A remote flush holds only a reference to the slot. While batches are in flight, the worker keeps the command:
//! in its class, or in `waiting` if there is nothing to post.
//!
//! Cancelling takes back batches that the peer has not begun and waits for the others. At its deadline, at the
//! session's end, or when a cancel has waited long enough, the transfer ends without them; their table entries and the
//! transfer's slot stay until the lane reports that the peer is done with them.

use std::sync::Arc;

use penstock_core::{Cause, Env, Stage, Timestamp};
use penstock_ring::Key;
use penstock_transport::{CancelledOp, Failure};

use super::command::{Active, CancelLevel, Command, NotifyState};
use super::{LeavingLane, Worker, lane_entry};
use crate::peer_state::PeerState;
use crate::plan::Plan;
use crate::slot::Slot;

/// One accepted operation: a batch, a notification or a remote flush.
#[derive(Clone, Copy)]
pub(crate) struct InFlight {
    pub(crate) key: Key,
    /// Units of the whole transfer.
    pub(crate) plan_units: u64,
    /// Index of the peer whose lane it is on.
    pub(crate) peer_index: u32,
    state: OpState,
    is_notify: bool,
    /// It was detached while it could still touch this engine's memory.
    local_pending: bool,
}

/// How an in-flight operation relates to its transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OpState {
    /// It holds a claim of the transfer.
    Attached,
    /// It was cancelled; the peer may still execute it, and the transfer waits for it.
    Cancelled,
    /// The transfer ended without it; or it is the remote flush of an ended transfer.
    Detached,
    /// It is a notification whose result no longer matters.
    Ignored,
}

impl InFlight {
    pub(crate) fn new(key: Key, plan_units: u64, peer_index: u32) -> Self {
        Self { key, plan_units, peer_index, state: OpState::Attached, is_notify: false, local_pending: false }
    }

    /// The remote flush of an ended transfer.
    pub(crate) fn flush(key: Key, peer_index: u32) -> Self {
        Self { state: OpState::Detached, ..Self::new(key, 0, peer_index) }
    }

    pub(crate) fn notify(key: Key, units: u64, peer_index: u32) -> Self {
        Self { is_notify: true, ..Self::new(key, units, peer_index) }
    }
}

/// The id of a transfer for its lane.
pub(crate) fn transfer_of(key: Key) -> u64 {
    u64::from(key.generation) << 32 | u64::from(key.index)
}

/// One worker's operations in flight, by completion id: `generation << 32 | index`.
pub(crate) struct InFlightOps {
    entries: Vec<OpEntry>,
    free: Vec<u32>,
    /// Peer indices of the lanes whose doorbell is due: they have accepted what is not sent yet.
    doorbells_due: Vec<u32>,
    /// Plans of transfers that ended before an operation that may still touch this engine's memory, with its completion id: they keep the blocks.
    kept: Vec<(u64, Plan)>,
}

/// Operations in flight before the table has to grow: a few lanes' worth.
const ROOM: usize = 64;

impl Default for InFlightOps {
    fn default() -> Self {
        let (entries, free) = (Vec::with_capacity(ROOM), Vec::with_capacity(ROOM));
        Self { entries, free, doorbells_due: Vec::with_capacity(8), kept: Vec::new() }
    }
}

struct OpEntry {
    generation: u32,
    op: Option<InFlight>,
}

impl InFlightOps {
    /// The completion id of the next operation, should it be accepted.
    #[inline]
    pub(super) fn next_completion_id(&mut self) -> u64 {
        match self.free.last() {
            Some(&index) => u64::from(self.entries[index as usize].generation) << 32 | u64::from(index),
            None => self.grow(),
        }
    }

    #[cold]
    fn grow(&mut self) -> u64 {
        let index = self.entries.len() as u32;
        self.entries.push(OpEntry { generation: 0, op: None });
        // Room for every entry to be free: releasing one never allocates.
        self.free.reserve(self.entries.len());
        self.free.push(index);
        u64::from(index)
    }

    /// The operation of the next completion id was accepted.
    pub(super) fn insert(&mut self, op: InFlight) {
        let index = self.free.pop().expect("its id was given out just now");
        self.entries[index as usize].op = Some(op);
    }

    fn get_mut(&mut self, completion_id: u64) -> Option<&mut InFlight> {
        let slot = self.entries.get_mut(completion_id as u32 as usize)?;
        slot.op.as_mut().filter(|_| u64::from(slot.generation) == completion_id >> 32)
    }

    pub(super) fn remove(&mut self, completion_id: u64) -> Option<InFlight> {
        let op = *self.get_mut(completion_id)?;
        let slot = &mut self.entries[completion_id as u32 as usize];
        slot.op = None;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(completion_id as u32);
        if op.local_pending {
            self.kept.retain(|(kept, _)| *kept != completion_id);
        }
        Some(op)
    }

    /// What keeps the blocks that operations to this peer may still touch.
    pub(super) fn take_kept(&mut self, peer_index: u32) -> Vec<Plan> {
        let kept = std::mem::take(&mut self.kept);
        let mut is_its = |id: u64| self.get_mut(id).is_some_and(|op| op.peer_index == peer_index);
        let (its, others): (Vec<_>, Vec<_>) = kept.into_iter().partition(|(id, _)| is_its(*id));
        self.kept = others;
        its.into_iter().map(|(_, plan)| plan).collect()
    }

    /// The transfer ends without this operation, which may still touch this engine's memory.
    fn detach_pending(&mut self, completion_id: u64, plan: Option<&Plan>) {
        if let Some(op) = self.get_mut(completion_id) {
            (op.state, op.local_pending) = (OpState::Detached, true);
            self.kept.extend(plan.map(|plan| (completion_id, plan.clone())));
        }
    }

    /// The result of this notification no longer matters; its entry stays until the lane reports it.
    pub(super) fn ignore(&mut self, completion_id: u64) {
        if let Some(op) = self.get_mut(completion_id) {
            op.state = OpState::Ignored;
        }
    }

    /// Rings the doorbell of the lane to this peer at the end of the turn.
    pub(super) fn doorbell_due(&mut self, peer_index: u32) {
        if !self.doorbells_due.contains(&peer_index) {
            self.doorbells_due.push(peer_index);
        }
    }

    #[inline]
    pub(super) fn has_doorbells_due(&self) -> bool {
        !self.doorbells_due.is_empty()
    }

    pub(super) fn next_doorbell(&mut self) -> Option<u32> {
        self.doorbells_due.pop()
    }

    /// The next completion id after `after`, in table order, whose operation satisfies `is_meant`.
    fn next_where(&self, after: Option<u64>, is_meant: impl Fn(&InFlight) -> bool) -> Option<u64> {
        let first = after.map_or(0, |completion_id| completion_id as u32 as usize + 1);
        (first..self.entries.len()).find_map(|index| {
            let slot = &self.entries[index];
            let op = slot.op.as_ref()?;
            is_meant(op).then_some(u64::from(slot.generation) << 32 | index as u64)
        })
    }

    fn count(&self) -> usize {
        self.entries.len() - self.free.len()
    }
}

/// Supplies completion id and transfer id of the next batch, and records that the lane has accepted it.
pub(crate) trait OpTracker {
    fn completion_id(&mut self) -> u64;
    /// The transfer it belongs to.
    fn transfer(&self) -> u64;
    /// The lane has accepted it.
    fn accepted(&mut self);
}

/// For plans whose lanes have moved everything when they return.
pub(crate) struct SyncTracker;

impl OpTracker for SyncTracker {
    fn completion_id(&mut self) -> u64 {
        0
    }

    fn transfer(&self) -> u64 {
        0
    }

    fn accepted(&mut self) {
        debug_assert!(false, "a lane accepts nothing for memory that it says is synchronous");
    }
}

/// For one unit of one transfer.
pub(super) struct AsyncTracker<'a> {
    in_flight: &'a mut InFlightOps,
    slot: &'a Slot,
    op: InFlight,
    /// Batches accepted so far.
    pub(super) accepted: u32,
    /// The most that were under way at once.
    pub(super) most: usize,
}

impl<'a> AsyncTracker<'a> {
    pub(super) fn new(in_flight: &'a mut InFlightOps, slot: &'a Slot, op: InFlight) -> Self {
        Self { in_flight, slot, op, accepted: 0, most: 0 }
    }
}

impl OpTracker for AsyncTracker<'_> {
    #[inline]
    fn completion_id(&mut self) -> u64 {
        self.in_flight.next_completion_id()
    }

    #[inline]
    fn transfer(&self) -> u64 {
        transfer_of(self.op.key)
    }

    fn accepted(&mut self) {
        self.slot.take_op_claim();
        self.in_flight.insert(self.op);
        self.accepted += 1;
        self.most = self.in_flight.count();
    }
}

impl<E: Env> Worker<E> {
    /// Keeps a transfer that has nothing to post now: batches of it are under way, or its lane is full.
    pub(super) fn wait_for_lane(&mut self, mut active: Active) {
        if active.deadline == Timestamp::NEVER {
            active.deadline = self.arm(active.command.timeout);
        }
        self.waiting.push_back(active);
    }

    /// A lane has room again: stalled transfers go back to their class.
    pub(super) fn unstall(&mut self, peer: &Arc<PeerState>) {
        for _ in 0..self.waiting.len() {
            let Some(mut active) = self.waiting.pop_front() else { break };
            if active.stalled && Arc::ptr_eq(&active.command.peer, peer) {
                active.stalled = false;
                self.active[active.command.priority as usize].push_back(active);
            } else {
                self.waiting.push_back(active);
            }
        }
    }

    /// A lane reports the end of an accepted batch.
    pub(super) fn on_completion(&mut self, completion_id: u64, result: Result<u64, Failure>) {
        let Some(op) = self.in_flight.remove(completion_id) else {
            debug_assert!(false, "a completion that nobody waits for");
            return;
        };
        if op.state == OpState::Ignored {
            return;
        }
        if op.is_notify {
            return self.on_notify_done(&op, result);
        }
        let slot = self.shared.slots.get(op.key).expect("a batch under way holds its slot");
        let bytes = result.unwrap_or(0);
        // Before anybody hears of its end.
        let is_counted = !matches!(op.state, OpState::Ignored | OpState::Detached);
        self.own().statistics.bytes.add(if is_counted { bytes } else { 0 });
        let finishes = match (op.state, result) {
            (OpState::Ignored | OpState::Detached, _) => {
                if op.local_pending {
                    slot.end_local_pending();
                }
                slot.clear_remote_pending();
                self.shared.release_slot(op.key);
                return;
            }
            (OpState::Cancelled, _) => slot.release_claim_clearing_remote(bytes, op.plan_units),
            (OpState::Attached, Ok(_)) => slot.release_claim(bytes, op.plan_units),
            (OpState::Attached, Err(failure)) => {
                slot.stop(Stage::Move, failure);
                slot.release_claim(0, op.plan_units)
            }
        };
        self.op_completed(op.key, finishes);
    }

    /// A lane says that a batch has failed and that its memory is not to be had back.
    pub(super) fn on_lost(&mut self, completion_id: u64, failure: Failure) {
        let Some(op) = self.in_flight.get_mut(completion_id) else {
            debug_assert!(false, "an operation that nobody waits for is lost");
            return;
        };
        let (OpState::Attached | OpState::Cancelled) = op.state else { return };
        let op = *op;
        let mut all = self.waiting.iter().chain(self.active.iter().flatten());
        let its = all.find(|active| active.command.key == op.key);
        self.in_flight.detach_pending(completion_id, its.and_then(|active| active.command.plan.as_ref()));
        let slot = self.shared.slots.get(op.key).expect("a batch under way holds its slot");
        slot.stop(Stage::Move, failure);
        slot.add_reference();
        let finishes = slot.release_claim_keeping_local(op.plan_units);
        self.op_completed(op.key, finishes);
    }

    /// A lane says that a batch has failed, and that the peer's memory is not to be had back.
    pub(super) fn on_lost_at_peer(&mut self, completion_id: u64, failure: Failure) {
        let Some(op) = self.in_flight.get_mut(completion_id) else {
            debug_assert!(false, "an operation that nobody waits for is lost");
            return;
        };
        let (key, units) = (op.key, op.plan_units);
        let slot = self.shared.slots.get(key).expect("a batch under way holds its slot");
        match op.state {
            OpState::Attached => {
                slot.stop(Stage::Move, failure);
                slot.mark_claim_remote_pending();
            }
            OpState::Cancelled => {}
            OpState::Detached | OpState::Ignored => return,
        }
        // The transfer ends all the same; the peer's memory is not quiet before the session is over on both sides.
        slot.add_reference();
        op.state = OpState::Detached;
        let finishes = slot.release_claim_keeping_remote(units);
        self.op_completed(key, finishes);
    }

    /// An operation has released its claim: finishes the transfer if it was the last.
    pub(super) fn op_completed(&mut self, key: Key, finishes: bool) {
        let is_it = |active: &Active| active.command.key == key;
        if let Some(index) = self.waiting.iter().position(is_it) {
            let active = &mut self.waiting[index];
            active.in_flight -= 1;
            // Transfers in `waiting` that are not stalled have no unit to claim: with nothing in flight this worker is done.
            let is_over = active.in_flight == 0 && !active.stalled;
            if finishes || is_over {
                let done = self.waiting.remove(index).expect("the index was found just now");
                return if finishes { self.notify_or_wait(done) } else { self.release_active(done) };
            }
            return;
        }
        for class in 0..2 {
            if let Some(index) = self.active[class].iter().position(is_it) {
                self.active[class][index].in_flight -= 1;
                if finishes {
                    let done = self.active[class].remove(index).expect("the index was found just now");
                    self.notify_or_wait(done);
                }
                return;
            }
        }
        debug_assert!(false, "a worker keeps the command while batches are under way");
    }

    /// Cancels this worker's part of a transfer. The worker that releases the last claim finishes it.
    pub(super) fn cancel(&mut self, mut active: Active, stage: Stage, failure: impl Into<Failure>, level: CancelLevel) {
        let failure = failure.into();
        if active.at.is_none() && active.in_flight == 0 {
            self.require_flush(&active);
            return self.shared.stop_and_drop(active, stage, failure);
        }
        if let NotifyState::PostedLast(completion_id) = active.notify_state {
            return self.stop_notify(active, completion_id, (stage, failure), level);
        }
        let shared = Arc::clone(&self.shared);
        let (key, peer) = (active.command.key, Arc::clone(&active.command.peer));
        let slot = shared.slots.get(key).expect("a worker holds its slots");
        // This worker has a claim of it, so it is not finished here.
        slot.stop(stage, failure);
        let mut finishes = active.at.take().is_some() && slot.release_claim(0, active.command.units());
        let (mut has_freed, mut last) = (false, None);
        let is_its = |op: &InFlight| op.key == key && !matches!(op.state, OpState::Detached | OpState::Ignored);
        while let Some(completion_id) = self.in_flight.next_where(last, is_its) {
            last = Some(completion_id);
            let (freed, ended) = self.cancel_in_flight(completion_id, slot, &active.command, level);
            has_freed |= freed;
            active.in_flight -= u32::from(ended.is_some());
            finishes |= ended.unwrap_or(false);
            if active.notify_state == NotifyState::PostedOrdered(completion_id)
                && self.in_flight.get_mut(completion_id).is_none()
            {
                active.notify_state = NotifyState::NotPosted; // Cancelled before it was sent.
            }
        }
        if finishes {
            let (stage, failure) = slot.stop_reason().unwrap_or((stage, failure));
            self.fail(active, stage, failure);
        } else if active.in_flight > 0 {
            (active.cancel_level, active.stalled) = (level, false);
            if level == CancelLevel::Immediate {
                active.deadline = Timestamp::NEVER;
                self.waiting.push_back(active);
            } else {
                self.wait_for_lane(active);
            }
        } else {
            self.release_active(active);
        }
        if has_freed {
            self.unstall(&peer);
        }
    }

    /// Cancels one operation. Returns whether its room in the lane is free again, and, if its claim was released, whether
    /// that was the last.
    fn cancel_in_flight(
        &mut self,
        completion_id: u64,
        slot: &Slot,
        command: &Command,
        level: CancelLevel,
    ) -> (bool, Option<bool>) {
        let op = self.in_flight.get_mut(completion_id).expect("it was found just now");
        let answer = match op.state {
            OpState::Attached => lane_entry(&mut self.lanes, &command.peer)
                .map_or(CancelledOp::Quiesced, |entry| entry.lane.cancel_op(completion_id)),
            OpState::Cancelled | OpState::Detached | OpState::Ignored => CancelledOp::RemotePending,
        };
        let units = op.plan_units;
        match answer {
            CancelledOp::LocalPending | CancelledOp::RemotePending if op.is_notify => {
                if level != CancelLevel::Immediate {
                    return (false, None);
                }
                op.state = OpState::Ignored;
                (false, Some(slot.release_claim(0, units)))
            }
            CancelledOp::LocalPending if level == CancelLevel::Immediate => {
                // The transfer ends all the same; its memory is not quiesced before the lane reports the operation.
                slot.add_reference();
                self.in_flight.detach_pending(completion_id, command.plan.as_ref());
                (false, Some(slot.release_claim_keeping_local(units)))
            }
            CancelledOp::LocalPending => (false, None),
            CancelledOp::Quiesced => {
                self.in_flight.remove(completion_id);
                (true, Some(slot.release_claim(0, units)))
            }
            CancelledOp::RemotePending => {
                if op.state == OpState::Attached {
                    slot.mark_claim_remote_pending();
                    op.state = OpState::Cancelled;
                }
                if level != CancelLevel::Immediate {
                    return (false, None);
                }
                slot.add_reference();
                op.state = OpState::Detached;
                (false, Some(slot.release_claim_keeping_remote(units)))
            }
        }
    }

    /// Cancels each waiting transfer for which `why` gives a reason. Returns whether there was any.
    pub(super) fn cancel_waiting(
        &mut self,
        why: impl Fn(&Self, &Active) -> Option<(Stage, Failure, CancelLevel)>,
    ) -> bool {
        let mut any = false;
        let mut index = 0;
        while let Some(active) = self.waiting.get(index) {
            let Some((stage, failure, level)) = why(self, active) else {
                index += 1;
                continue;
            };
            let active = self.waiting.remove(index).expect("the index is in range");
            self.cancel(active, stage, failure, level);
            // Others may have moved on meanwhile: look from the beginning.
            (any, index) = (true, 0);
        }
        any
    }

    /// Why a waiting transfer was asked to end, unless this worker has seen it already.
    pub(super) fn cancel_wanted(&self, active: &Active) -> Option<(Stage, Failure, CancelLevel)> {
        let slot = self.shared.slots.get(active.command.key).expect("a worker holds its slots");
        let level = match active.cancel_level {
            CancelLevel::None => CancelLevel::WaitForPeer,
            CancelLevel::WaitForPeer if slot.is_cancel_forced() => CancelLevel::Immediate,
            CancelLevel::WaitForPeer | CancelLevel::Immediate => return None,
        };
        slot.stop_reason().map(|(stage, failure)| (stage, failure, level))
    }

    /// Ends everything in flight on a lane, and sets the lane aside.
    pub(super) fn drop_lane(&mut self, peer: &Arc<PeerState>, cause: Cause) {
        self.end_transfers(peer, cause);
        if lane_entry(&mut self.lanes, peer).is_some() {
            let lane = self.lanes[peer.peer_index as usize].take().expect("it was found just now");
            self.leaving.push(LeavingLane { lane, left: None });
        }
    }

    /// Ends all transfers to this peer. What its lane may still touch stays in the table.
    pub(super) fn end_transfers(&mut self, peer: &Arc<PeerState>, cause: Cause) {
        let is_theirs = |active: &Active| Arc::ptr_eq(&active.command.peer, peer);
        self.cancel_waiting(|_, active| {
            let is_meant = is_theirs(active) && active.cancel_level != CancelLevel::Immediate;
            is_meant.then_some((Stage::Move, cause.into(), CancelLevel::Immediate))
        });
        for class in 0..2 {
            let is_posting = |active: &Active| is_theirs(active) && (active.in_flight > 0 || active.at.is_some());
            while let Some(index) = self.active[class].iter().position(is_posting) {
                let active = self.active[class].remove(index).expect("the index was found just now");
                self.cancel(active, Stage::Move, cause, CancelLevel::Immediate);
            }
        }
    }

    /// The lane to this peer is gone; with whether it touches this engine's memory no more.
    pub(super) fn forget_ops(&mut self, peer_index: u32, is_quiet: bool) {
        self.drop_flushes_to(peer_index);
        while let Some(completion_id) = self.in_flight.next_where(None, |op| op.peer_index == peer_index) {
            let op = self.in_flight.remove(completion_id).expect("it was found just now");
            if op.state == OpState::Ignored {
                continue;
            }
            if op.state == OpState::Detached {
                if op.local_pending
                    && is_quiet
                    && let Some(slot) = self.shared.slots.get(op.key)
                {
                    slot.end_local_pending();
                }
                // Whether the peer still executes it is unknown: the slot stays `remote_pending`.
                self.shared.release_slot(op.key);
            } else {
                let slot = self.shared.slots.get(op.key).expect("a batch under way holds its slot");
                let finishes = slot.release_claim(0, op.plan_units);
                self.op_completed(op.key, finishes);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_completion_id_names_one_operation_and_no_later_one_of_its_slot() {
        let mut in_flight = InFlightOps::default();
        let key = |index| Key { index, generation: 1 };
        let first = in_flight.next_completion_id();
        in_flight.insert(InFlight::new(key(1), 1, 0));
        let second = in_flight.next_completion_id();
        in_flight.insert(InFlight::new(key(2), 1, 0));
        assert_ne!(first, second);
        assert_eq!(in_flight.count(), 2);
        assert_eq!(in_flight.remove(first).map(|op| op.key), Some(key(1)));
        assert!(in_flight.remove(first).is_none(), "landed once");
        let third = in_flight.next_completion_id();
        in_flight.insert(InFlight::new(key(3), 1, 0));
        assert_eq!(third as u32, first as u32, "the place is used again");
        assert!(in_flight.get_mut(first).is_none());
        assert!(in_flight.remove(u64::MAX).is_none());
        let of_two = |op: &InFlight| op.key == key(2);
        assert_eq!(in_flight.next_where(None, of_two), Some(second));
        assert_eq!(in_flight.next_where(Some(second), of_two), None);
    }
}
