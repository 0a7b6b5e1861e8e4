//! Moving a unit, telling the peer, finishing.

use std::sync::Arc;

use penstock_core::limits::SPANS_PER_POST;
use penstock_core::{Cause, Env, Notified, Span, Stage, Timestamp};
use penstock_transport::host::OwnerStateView;
use penstock_transport::{Batch, Failure, Lane, Note, NotifyPosted, NotifyRequest, PostError, Posted, Revisions};

use super::command::{Active, CancelLevel, Command, NotifyState, PlanPosition, Priority};
use super::flush::mark_needs_flush;
use super::in_flight::{AsyncTracker, InFlight, InFlightOps, OpTracker, SyncTracker, transfer_of};
use super::{LaneEntry, URGENT_UNITS_AT_ONCE, Worker, lane_entry, stage_lane};
use crate::peer_state::PeerState;
use crate::plan::{PlanInner, check_withdrawn};
use crate::shared::Shared;
use crate::slot::{ClaimResult, Phase, Slot, TransferOutcome};
use crate::statistics::WorkerStatistics;

/// How often a plan is checked again against the withdrawal logs while one unit is moved.
const RECHECKS_MAX: u32 = 64;

/// How a transfer ends that finds its memory withdrawn.
const WITHDRAWN: [Cause; 4] = [Cause::RevokedByPeer, Cause::RevokedHere, Cause::MemoryRenewed, Cause::PlanTooOld];

/// Why a unit was not moved to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MoveEnd {
    /// The lane has no room for what begins here now.
    Full(PlanPosition),
    /// The transfer must end.
    Stop(Cause),
}

/// Posts units of a plan on a lane, in batches as large as a post takes. Returns the bytes moved, the batches posted, and
/// why it stopped before the end, if it did.
#[inline]
pub(crate) fn move_units(
    plan: &PlanInner,
    (PlanPosition { unit: mut next_unit, spans: mut next_span }, count): (PlanPosition, u64),
    lane: &mut dyn Lane,
    local_state: &OwnerStateView,
    expected: &mut Revisions,
    spans: &mut [Span; SPANS_PER_POST],
    tracker: &mut impl OpTracker,
) -> (u64, u64, Option<MoveEnd>) {
    let end = next_unit + count;
    let (mut bytes, mut posts, mut rechecks) = (0, 0, 0);
    while next_unit < end {
        let Some((unit, units)) = plan.shape.unit_range(next_unit, end - next_unit) else { break };
        let sides = &plan.sides[unit.section()];
        while next_span < unit.spans() {
            let filled = unit.fill(next_span, spans);
            let batch = Batch {
                direction: plan.shape.direction(),
                local: &sides.local,
                local_region: sides.local_key,
                remote_region: sides.remote_key,
                remote: &sides.remote,
                spans: &spans[..filled],
                hint: plan.hint,
                checked_at: *expected,
                completion_id: tracker.completion_id(),
                transfer: tracker.transfer(),
                transfer_bytes: plan.shape.bytes(),
            };
            posts += 1;
            match lane.post(&batch) {
                Ok(Posted::Moved(moved)) => {
                    bytes += moved;
                    next_span += filled;
                }
                Ok(Posted::Accepted(accepted)) => {
                    tracker.accepted();
                    next_span += accepted;
                }
                Err(PostError::Full) => {
                    return (bytes, posts - 1, Some(MoveEnd::Full(PlanPosition { unit: next_unit, spans: next_span })));
                }
                // A peer that withdraws without end costs its own transfer, not the others' turn.
                Err(PostError::StaleRevisions(_)) if rechecks == RECHECKS_MAX => {
                    return (bytes, posts, Some(MoveEnd::Stop(Cause::PlanTooOld)));
                }
                Err(PostError::StaleRevisions(_)) => match check_withdrawn(plan, local_state, *expected) {
                    Ok(checked) => {
                        rechecks += 1;
                        *expected = checked;
                    }
                    Err(cause) => return (bytes, posts, Some(MoveEnd::Stop(cause))),
                },
                Err(PostError::OutOfBounds) => return (bytes, posts, Some(MoveEnd::Stop(Cause::OutOfBounds))),
                Err(PostError::Refused(cause)) => return (bytes, posts, Some(MoveEnd::Stop(cause))),
                Err(PostError::Fault(fault)) => return (bytes, posts, Some(MoveEnd::Stop(fault.0))),
            }
        }
        (next_unit, next_span) = (next_unit + units, 0);
    }
    // The peer may have renewed the range while this process was stopped in a copy: the bytes are in old pages then, and
    // must not count as moved.
    (bytes, posts, plan.check_renewed(*expected).err().map(MoveEnd::Stop))
}

/// As [`move_units`] over an asynchronous lane; not inlined, to keep the synchronous path small.
#[inline(never)]
fn post_async(
    current: &mut Active,
    unit_range: (PlanPosition, u64),
    entry: &mut LaneEntry,
    (slot, in_flight, statistics): (&Slot, &mut InFlightOps, &WorkerStatistics),
    local_state: &OwnerStateView,
    spans: &mut [Span; SPANS_PER_POST],
) -> (u64, u64, Option<MoveEnd>) {
    let Active { command, expected, .. } = &mut *current;
    let plan = &command.plan.as_ref().expect("a transfer with units has a plan").inner;
    let units = plan.shape.units();
    let mut tracker = AsyncTracker::new(in_flight, slot, InFlight::new(command.key, units, command.peer.peer_index));
    let moved = move_units(plan, unit_range, entry.lane.as_mut(), local_state, expected, spans, &mut tracker);
    let (accepted, most) = (tracker.accepted, tracker.most);
    current.in_flight += accepted;
    if entry.completes_before_placement {
        mark_needs_flush(current, slot, accepted);
    }
    statistics.async_ops.add(u64::from(accepted));
    statistics.async_ops_most.raise_to(most as u64);
    // What found no room leaves nothing to send: a lane that is asked to send looks at once whether there is room now.
    if accepted > 0 || moved.2.is_none() {
        in_flight.doorbell_due(current.command.peer.peer_index);
    }
    if moved.2.is_none() && slot.unclaimed(units) == 0 {
        post_notify(current, slot, entry, in_flight);
    }
    moved
}

impl<E: Env> Worker<E> {
    /// Moves units of the transfer whose turn it is. Returns whether it has left its class.
    pub(super) fn advance(&mut self, class: Priority) -> bool {
        let (is_alone, lanes_ready) = (self.has_one_transfer(), !self.ready.is_empty_below(self.lanes.len()));
        let Self { shared, active, lanes, spans, in_flight, without_room, .. } = self;
        let current = &mut active[class as usize][0];
        let slot = shared.slots.get(current.command.key).expect("a worker holds its slots");
        if current.command.plan.as_ref().is_some_and(|plan| plan.inner.pair.is_staged) {
            stage_lane(lanes, &current.command.peer, self.index);
        }
        let Some(entry) = lane_entry(lanes, &current.command.peer) else {
            return self.advance_without_lane(class);
        };
        let units = current.command.units();
        // An asynchronous lane may return `Full` inside a unit: then one unit is claimed at a time.
        let is_synchronous = current.command.plan.as_ref().is_none_or(|plan| plan.inner.pair.is_synchronous);
        let statistics = &shared.workers[self.index].statistics;
        // On an asynchronous lane, ready bits of other lanes are no reason to post fewer units.
        let at_once = match &current.command.plan {
            Some(plan) if is_alone && !(lanes_ready && is_synchronous) => plan.inner.pair.units_at_once,
            _ => 1,
        };
        let mut left = if class == Priority::Urgent { URGENT_UNITS_AT_ONCE } else { at_once };
        // Workers that share a plan claim fewer units near its end, so that all finish together.
        let share_divisor = 2 * shared.workers.len() as u64;
        let share = |left: u64| match share_divisor {
            _ if !is_synchronous => 1,
            2 => left.min(at_once),
            _ => left.min(at_once).min(slot.unclaimed(units) / share_divisor).max(1),
        };
        let mut has_posted = false;
        let end = loop {
            if left == 0 {
                break End::Stay;
            }
            let (at, count) = match current.at.take() {
                None => match slot.claim(units, share(left)) {
                    ClaimResult::Finish => break End::Finish,
                    ClaimResult::Nothing => break End::Drop,
                    ClaimResult::Units(first, count) => (PlanPosition::start_of(first), count),
                },
                Some(at) if slot.stop_reason().is_none() => (at, 1),
                Some(_) if slot.release_claim(0, units) => break End::Finish,
                Some(_) => continue,
            };
            left -= count;
            let plan = &current.command.plan.as_ref().expect("a transfer with units has a plan").inner;
            let local_state = shared.segments.owner_state.view();
            let before = current.expected;
            let (bytes, posts, stop) = if is_synchronous {
                let (lane, expected) = (entry.lane.as_mut(), &mut current.expected);
                move_units(plan, (at, count), lane, local_state, expected, spans, &mut SyncTracker)
            } else {
                post_async(current, (at, count), entry, (slot, in_flight, statistics), local_state, spans)
            };
            if stop.is_some() || current.expected != before {
                let is_withdrawn = matches!(stop, Some(MoveEnd::Stop(cause)) if WITHDRAWN.contains(&cause));
                statistics.withdrawals_seen.add(u64::from(is_withdrawn || current.expected != before));
            }
            statistics.posts.add(posts);
            statistics.bytes.add(bytes);
            has_posted |= posts > 0;
            match stop {
                Some(MoveEnd::Full(at)) => {
                    slot.add_bytes(bytes);
                    (current.at, current.stalled) = (Some(at), true);
                    *without_room += usize::from(!has_posted);
                    break End::Wait;
                }
                Some(MoveEnd::Stop(cause)) => {
                    slot.stop(Stage::Move, cause);
                }
                None => {}
            }
            statistics.units.add(count);
            if slot.release_claim(bytes, units) {
                break End::Finish;
            }
        };
        match end {
            End::Stay => {
                self.arm_first(class);
                return false;
            }
            End::Drop | End::Wait => {
                let rest = self.take_first(class);
                if rest.in_flight > 0 || rest.stalled {
                    self.wait_for_lane(rest);
                } else {
                    self.release_active(rest);
                }
            }
            End::Finish => {
                let done = self.take_first(class);
                self.notify_or_wait(done);
            }
        }
        true
    }

    /// A transfer whose peer's lane is not here: the session has ended, or has not quite begun.
    fn advance_without_lane(&mut self, class: Priority) -> bool {
        match self.shared.end_cause(&self.active[class as usize][0].command.peer) {
            None => {
                self.arm_first(class);
                false
            }
            Some(cause) => {
                let gone = self.take_first(class);
                self.cancel(gone, Stage::Queue, cause, CancelLevel::Immediate);
                true
            }
        }
    }

    /// Whether this worker has one active transfer, and no command, call or blocked notification waits.
    #[inline]
    fn has_one_transfer(&self) -> bool {
        self.active[0].len() + self.active[1].len() == 1
            && self.notify_blocked.is_empty()
            && self.commands.is_empty()
            && self.own().calls.is_empty()
    }

    fn take_first(&mut self, class: Priority) -> Active {
        self.active[class as usize].pop_front().expect("it is this transfer's turn")
    }

    /// Gives a transfer that survived its first turn its deadline.
    fn arm_first(&mut self, class: Priority) {
        let active = &self.active[class as usize][0];
        if active.deadline == Timestamp::NEVER {
            let deadline = self.arm(active.command.timeout);
            self.active[class as usize][0].deadline = deadline;
        }
    }

    /// All units have ended: posts the notification and finishes, or waits for room.
    pub(super) fn notify_or_wait(&mut self, active: Active) {
        if active.notify_state != NotifyState::NotPosted {
            return self.finish_after_notify(active);
        }
        // Behind those that wait already: a short notification must not starve a long one.
        let is_theirs = |waiting: &Active| Arc::ptr_eq(&waiting.command.peer, &active.command.peer);
        if !active.command.notify.is_empty() && self.notify_blocked.iter().any(is_theirs) {
            return self.block_notify(active);
        }
        self.notify(active);
    }

    fn notify(&mut self, active: Active) {
        let slot = self.shared.slots.get(active.command.key).expect("a worker holds its slots");
        if let Some((stage, failure)) = slot.stop_reason() {
            self.fail(active, stage, failure);
            return;
        }
        let Some(entry) = lane_entry(&mut self.lanes, &active.command.peer) else {
            return match self.shared.end_cause(&active.command.peer) {
                None => self.block_notify(active),
                Some(cause) => self.fail(active, Stage::Notify, cause),
            };
        };
        let statistics = &self.shared.workers[self.index].statistics;
        match send_notify(entry, slot, &active.command, self.in_flight.next_completion_id()) {
            Ok(Some(notified)) => {
                statistics.notes_sent.add(u64::from(active.command.notify.note.is_some()));
                statistics.transfers_completed.add(1);
                self.skip_flush(&active);
                self.shared.finish(active, TransferOutcome { failure: None, notified });
            }
            Ok(None) => self.wait_for_notify(active),
            Err(PostError::Fault(fault)) => {
                self.break_lane(Arc::clone(&active.command.peer), fault.0);
                self.fail(active, Stage::Notify, fault.0);
            }
            Err(_) => {
                statistics.waits_for_room.add(1);
                self.block_notify(active);
            }
        }
    }

    fn block_notify(&mut self, mut active: Active) {
        self.shared.slots.get(active.command.key).expect("a worker holds its slots").advance_to(Phase::Notifying);
        if active.deadline == Timestamp::NEVER {
            active.deadline = self.arm(active.command.timeout);
        }
        self.notify_blocked.push_back(active);
    }

    /// Retries notifications that found no room, for each peer in the order of its transfers. Returns whether any was
    /// posted.
    pub(super) fn retry_blocked_notifies(&mut self) -> bool {
        let mut progressed = false;
        self.blocked.clear();
        for _ in 0..self.notify_blocked.len() {
            let Some(active) = self.notify_blocked.pop_front() else { break };
            let peer_index = active.command.peer.peer_index;
            let slot = self.shared.slots.get(active.command.key).expect("a worker holds its slots");
            if slot.stop_reason().is_none() && self.blocked.contains(&peer_index) {
                self.notify_blocked.push_back(active);
                continue;
            }
            let waiting = self.notify_blocked.len();
            self.notify(active);
            if self.notify_blocked.len() == waiting {
                progressed = true;
            } else {
                self.blocked.push(peer_index);
            }
        }
        progressed
    }
}

enum End {
    /// There is more to move.
    Stay,
    /// There is nothing more to claim here.
    Drop,
    /// Its lane has no room.
    Wait,
    /// No claim of it is left: this worker ends it.
    Finish,
}

/// Posts the transfer's notification and counter increment. `None`: accepted, and completed later under `completion_id`.
fn send_notify(
    entry: &mut LaneEntry,
    slot: &Slot,
    command: &Command,
    completion_id: u64,
) -> Result<Option<Notified>, PostError> {
    let notify = &command.notify;
    if notify.is_empty() {
        return Ok(Some(Notified::NotAsked));
    }
    let payload = slot.payload();
    let note = notify.note.map(|id| Note { id, payload: &payload });
    let transfer_bytes = command.plan.as_ref().map_or(0, |plan| plan.inner.shape.bytes());
    let request = NotifyRequest {
        transfer: transfer_of(command.key),
        transfer_bytes,
        completion_id,
        counter: notify.counter,
        note,
    };
    let posted = match (&notify.handle, note) {
        (Some(handle), Some(note)) => {
            entry.lane.hand_over(note, handle)?;
            entry.lane.notify(&NotifyRequest { note: None, ..request })?
        }
        _ => entry.lane.notify(&request)?,
    };
    Ok(match posted {
        NotifyPosted::Delivered(counted) => Some(if counted || note.is_some() { Notified::Yes } else { Notified::No }),
        NotifyPosted::Accepted => None,
    })
}

/// Posts the notification right behind the batches of its transfer, all of which are posted, where the lane keeps their
/// order. If that fails now, it is posted after they have landed. The caller has a claim of the transfer.
#[inline(never)]
fn post_notify(current: &mut Active, slot: &Slot, entry: &mut LaneEntry, in_flight: &mut InFlightOps) {
    let Active { command, notify_state, .. } = &*current;
    let is_ordered = command.plan.as_ref().is_some_and(|plan| plan.inner.pair.is_ordered);
    let is_meant = is_ordered && !command.is_split && *notify_state == NotifyState::NotPosted;
    if !is_meant || command.notify.is_empty() || slot.stop_reason().is_some() {
        return;
    }
    let completion_id = in_flight.next_completion_id();
    if let Ok(None) = send_notify(entry, slot, command, completion_id) {
        slot.take_op_claim();
        in_flight.insert(InFlight::notify(command.key, command.units(), command.peer.peer_index));
        current.in_flight += 1;
        current.notify_state = NotifyState::PostedOrdered(completion_id);
    }
}

impl<E: Env> Shared<E> {
    /// Publishes how a transfer ended and lets go of it.
    pub(crate) fn finish(&self, active: Active, outcome: TransferOutcome) {
        let key = active.command.key;
        let slot = self.slots.get(key).expect("a worker holds its slots");
        // The plan first: a caller that sees the transfer end must find this worker's references gone. Of a split transfer
        // other workers may still have the command in their queues, and the plan with it.
        drop(active);
        let is_watched = slot.is_watched();
        slot.finish(outcome);
        self.release_slot(key);
        self.count_completion(key, is_watched);
    }

    /// Ends a transfer that has failed. No notification is posted any more; whether one that was arrived is in its outcome.
    pub(crate) fn finish_failed(&self, active: Active, stage: Stage, failure: impl Into<Failure>) {
        let notified = active.notified();
        self.workers[0].statistics.transfers_failed.add_shared(1);
        self.finish(active, TransferOutcome { failure: Some((stage, failure.into())), notified });
    }

    /// Ends a transfer in the middle; if others have units of it in hand, they finish it.
    pub(crate) fn stop_and_drop(&self, active: Active, stage: Stage, failure: impl Into<Failure>) {
        let failure = failure.into();
        let key = active.command.key;
        let slot = self.slots.get(key).expect("a worker holds its slots");
        if slot.stop(stage, failure) {
            self.finish_failed(active, stage, failure);
        } else {
            self.release_slot(key);
        }
    }

    /// Why there is no lane to a peer; `None` if the lane is about to be added.
    fn end_cause(&self, peer: &PeerState) -> Option<Cause> {
        peer.ended().or_else(|| self.is_closing().then_some(Cause::EngineClosed))
    }
}
