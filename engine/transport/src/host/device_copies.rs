//! Copies that devices of this process make for one lane, between memories of two engines of it.
//!
//! A device has both memories until it has copied, and that can neither be taken back nor hurried. What it has is counted by region in the
//! state of either engine, so that whoever takes back other memory waits for none of it, also where a device has failed and keeps what it has for ever.

use std::collections::VecDeque;
use std::sync::Arc;

use penstock_core::limits::IN_FLIGHT_PER_LANE_MAX;
use penstock_core::plan::RegionKey;
use penstock_core::planted::{self, Bug};

use super::held_pages::{HeldPages, PageHold};
use super::segments::EngineSegments;
use crate::device::{CopyEnd, DeviceLane};
use crate::lane::{Batch, CancelledOp, LaneEvents, PostError, Revisions};

/// What devices have for one lane.
pub(super) struct DeviceCopies {
    devices: Box<dyn DeviceLane>,
    /// Of this engine's memory, and of the peer's.
    pages: [Arc<HeldPages>; 2],
    /// Of each post, in their order.
    holds: Holds,
}

type Holds = VecDeque<(u64, [Option<PageHold>; 2])>;

fn take(holds: &mut Holds, completion_id: u64) -> Option<[Option<PageHold>; 2]> {
    // Mostly the first one.
    let place = holds.iter().position(|(held, _)| *held == completion_id)?;
    holds.remove(place).map(|(_, hold)| hold)
}

impl DeviceCopies {
    /// Those of this worker, between the memory of two engines, of which each has the other at this index.
    pub(super) fn new(
        devices: Box<dyn DeviceLane>,
        worker: usize,
        (ours, peer_index): (&EngineSegments, u32),
        (theirs, index_at_peer): (&EngineSegments, u32),
    ) -> Self {
        let pages =
            [ours.owner_state.held_pages(peer_index, worker), theirs.owner_state.held_by_peer(index_at_peer, worker)];
        Self { devices, pages, holds: VecDeque::new() }
    }

    /// Gives the batch to a device. Called under the lane's hazard, after it was looked up that nothing was withdrawn.
    pub(super) fn post(&mut self, batch: &Batch<'_>, now: Revisions) -> Result<usize, PostError> {
        let sides = [(now.local, batch.local_region), (now.remote, batch.remote_region)];
        // Somebody may wait for what devices have of these regions: that only becomes less until all of it has ended.
        let mut all = self.pages.iter().zip(sides);
        if !all.all(|(pages, (revision, key))| key == RegionKey::NOBODYS || pages.may_hold(revision, key)) {
            return Err(PostError::Full);
        }
        let taken = self.devices.post(batch)?;
        if !planted::is(Bug::FreedUnderACopy) {
            if self.holds.capacity() == 0 {
                self.holds.reserve(IN_FLIGHT_PER_LANE_MAX);
            }
            let hold = |side: usize| {
                let (revision, key) = sides[side];
                (key != RegionKey::NOBODYS).then(|| self.pages[side].hold(revision, [key].into_iter()))
            };
            self.holds.push_back((batch.completion_id, [hold(0), hold(1)]));
        }
        Ok(taken)
    }

    pub(super) fn submit(&mut self) {
        self.devices.submit();
    }

    pub(super) fn cancel_op(&mut self, completion_id: u64) -> Option<CancelledOp> {
        let cancelled = self.devices.cancel_op(completion_id);
        if cancelled == Some(CancelledOp::Quiesced) {
            drop(take(&mut self.holds, completion_id));
        }
        cancelled
    }

    /// Reports what has ended, and lets go of it before.
    pub(super) fn collect(&mut self, events: &mut dyn LaneEvents) {
        let holds = &mut self.holds;
        self.devices.collect(&mut |completion_id, end| {
            let hold = take(holds, completion_id);
            match end {
                CopyEnd::Completed(result) => {
                    drop(hold);
                    events.completed(completion_id, result);
                }
                CopyEnd::Lost(failure) => {
                    hold.into_iter().flatten().flatten().for_each(PageHold::lose);
                    events.lost(completion_id, failure);
                }
            }
        });
    }

    /// Whether devices have nothing, and have lost nothing.
    pub(super) fn is_quiet(&self) -> bool {
        !self.devices.is_busy() && !self.pages.iter().any(|pages| pages.has_any())
    }
}
