//! Hops of a lane's operations: near, by a device or this processor; far, by the transport; and at the peer, which is asked.

use penstock_core::plan::RegionKey;
use penstock_core::planted::{self, Bug};
use penstock_core::{Cause, Direction};
use penstock_memory::Memory;
use penstock_memory::copy;

use super::lane::StagedLane;
use super::message::{self, CopyHead};
use super::op::{Hop, OpOf, StagedOp};
use crate::host::check_withdrawals;
use crate::lane::{Batch, PostError, Posted, Revisions};

/// How often one hop is checked again against what was withdrawn.
const RECHECKS_MAX: u32 = 64;

impl StagedLane {
    /// Begins the hop that an operation has, or what is left of it. Returns whether it is over already.
    pub(super) fn begin(&mut self, op: &mut StagedOp) -> Result<bool, PostError> {
        match op.hop {
            Hop::Near => self.copy(op),
            Hop::Far => self.carry(op),
            Hop::Remote => self.ask(op),
        }
    }

    /// Copies between the slot and the memory here: a device does if that is a device's, and else this processor.
    fn copy(&mut self, op: &mut StagedOp) -> Result<bool, PostError> {
        let count = op.spans_of_hop(&mut self.spans);
        let copied = match (&op.local, &self.devices) {
            (Memory::Device(_), None) => self.copy_by_lane(op, count),
            _ => self.copy_here(op, count),
        };
        if let Ok(Posted::Accepted(taken)) = copied {
            (op.is_under_way, op.posted) = (true, taken);
            let is_last = op.next_hop().is_none() && op.done + taken == count;
            if planted::is(Bug::SlotReusedBeforeCopy) && is_last && matches!(op.of, OpOf::Worker(_)) {
                self.slots[op.direction as usize] -= usize::from(op.slot.take().is_some());
            }
        }
        copied.map(|posted| matches!(posted, Posted::Moved(_)))
    }

    fn copy_here(&mut self, op: &mut StagedOp, count: usize) -> Result<Posted, PostError> {
        let Some(slots) = &op.slots else { return Err(PostError::Refused(Cause::NoPath)) };
        let spans = &self.spans[op.done..count];
        self.touch.enter();
        let view = self.session.staging.segments.owner_state.view();
        let (revision, checked_at, region) = (view.revision(), op.checked_at, op.local_region);
        let extents = op.spans.iter().map(|span| (span.local, span.len));
        let withdrawn = check_withdrawals(view, checked_at.local, op.local_region, extents);
        let copied = match (op.of, op.direction, withdrawn) {
            // The worker looks again by itself, with all of the plan.
            (OpOf::Worker(_), Direction::Write, _) if revision != checked_at.local => {
                Err(PostError::StaleRevisions(Revisions { local: revision, ..checked_at }))
            }
            (OpOf::Worker(_), _, Err(withdrawn)) => Err(PostError::Refused(withdrawn.cause_for_local())),
            (OpOf::Peer { .. }, _, Err(withdrawn)) => Err(PostError::Refused(withdrawn.cause_for_peer())),
            // Somebody may wait for what devices have of this region: that only becomes less until all of it has ended.
            _ if !self.pages.may_hold(revision, region) => Err(PostError::Full),
            _ => match (&op.local, &slots.memory, &mut self.devices) {
                (Memory::Host(local), Memory::Host(slots), _) => {
                    let copied = copy::scatter(local, slots, op.direction, spans, op.hint);
                    copied.map(Posted::Moved).map_err(|_| PostError::OutOfBounds)
                }
                (_, _, Some(devices)) => devices.post(&op.batch(spans, checked_at)).map(Posted::Accepted),
                _ => Err(PostError::Refused(Cause::NoPath)),
            },
        };
        if let Ok(Posted::Accepted(_)) = copied {
            op.hold = Some(self.pages.hold(revision, [region].into_iter()));
        }
        self.touch.leave();
        copied
    }

    /// By the lane, which has the devices of this process, and shows itself that they have the memory.
    fn copy_by_lane(&mut self, op: &mut StagedOp, count: usize) -> Result<Posted, PostError> {
        for _ in 0..RECHECKS_MAX {
            // The slot is nobody's to take back, and its region none of the other engine's.
            let batch = op.batch(&self.spans[op.done..count], op.checked_at);
            let now = match self.inner.post(&Batch { remote_region: RegionKey::NOBODYS, ..batch }) {
                Err(PostError::StaleRevisions(now)) if op.direction == Direction::Read => now,
                answer => return answer,
            };
            let extents = op.spans.iter().map(|span| (span.local, span.len));
            check_withdrawals(self.view(), op.checked_at.local, op.local_region, extents)
                .map_err(|withdrawn| PostError::Refused(withdrawn.cause_for_local()))?;
            op.checked_at = now;
        }
        Err(PostError::Refused(Cause::PlanTooOld))
    }

    /// Has the transport move bytes between this side, or its slot, and the peer, or its slot.
    fn carry(&mut self, op: &mut StagedOp) -> Result<bool, PostError> {
        let (count, is_first) = (op.spans_of_hop(&mut self.spans), op.hop == op.first_hop());
        let mut rechecks = 0;
        while op.done < count {
            // What is in a slot was copied out of memory that was not withdrawn then, or is looked at before it is copied out of it.
            let local = if op.slots.is_some() { self.view().revision() } else { op.checked_at.local };
            let checked_at = Revisions { local, ..op.checked_at };
            let mut batch = op.batch(&self.spans[op.done..count], checked_at);
            if self.session.reaches_devices && op.slots.is_some() {
                batch.local_region = RegionKey::NOBODYS;
            }
            match self.inner.post(&batch) {
                Ok(Posted::Moved(_)) => op.done = count,
                Ok(Posted::Accepted(taken)) => {
                    (op.is_under_way, op.posted) = (true, taken);
                    return Ok(false);
                }
                // The worker looks again by itself, with all of the plan.
                Err(PostError::StaleRevisions(now)) if is_first => return Err(PostError::StaleRevisions(now)),
                Err(PostError::StaleRevisions(now)) if rechecks < RECHECKS_MAX => {
                    self.check_again(op, now)?;
                    rechecks += 1;
                }
                Err(PostError::StaleRevisions(_)) => return Err(PostError::Refused(Cause::PlanTooOld)),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Nothing of an operation was withdrawn up to these revisions, of its memory that the hop touches, or that later ones do.
    fn check_again(&self, op: &mut StagedOp, now: Revisions) -> Result<(), PostError> {
        let extents = op.spans.iter().map(|span| (span.remote, span.len));
        let checked = self.session.peer_view.check_withdrawals(op.checked_at.remote, op.remote_region, extents);
        checked.map_err(|withdrawn| PostError::Refused(withdrawn.cause_for_peer()))?;
        op.checked_at.remote = now.remote;
        if op.slots.is_none() {
            let extents = op.spans.iter().map(|span| (span.local, span.len));
            check_withdrawals(self.view(), op.checked_at.local, op.local_region, extents)
                .map_err(|withdrawn| PostError::Refused(withdrawn.cause_for_local()))?;
            op.checked_at.local = now.local;
        }
        Ok(())
    }

    /// Asks the peer to copy between its slot and its memory, and hears of it by a message.
    fn ask(&mut self, op: &mut StagedOp) -> Result<bool, PostError> {
        let copy = CopyHead {
            direction: op.direction,
            slot: op.grant.unwrap_or_default(),
            key: op.remote_region,
            number: op.own_id,
            revision: op.checked_at.remote,
        };
        let extents = op.spans.iter().map(|span| (span.remote, span.len));
        let workers = self.to_peer();
        message::put_copy(&mut self.message, workers, &copy, extents);
        self.say(op.own_id, op.transfer, op.transfer_bytes)?;
        op.is_under_way = true;
        Ok(false)
    }
}
