//! What a peer may do to this engine's memory: looked up and checked for each of its operations, before its first byte.

use std::collections::VecDeque;
use std::sync::Arc;

use penstock_core::Cause;
use penstock_core::limits::IN_FLIGHT_PER_LANE_MAX;
use penstock_core::plan::RegionKey;
use penstock_memory::{Region, Registry, Window};

use super::Touch;
use crate::host::{Bell, EngineSegments, LastRegion, OwnerStateView, check_withdrawals};
use crate::{CounterRef, LaneFault};

/// What the peer wants with its extents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wants {
    /// To put bytes there.
    Write,
    /// To have the bytes there.
    Read,
}

/// One lane's access to this engine's memory, for what the peer asks.
pub struct LaneTarget {
    pub segments: Arc<EngineSegments>,
    pub touch: Touch,
    registry: Arc<Registry>,
    last: LastRegion,
    /// Whether memory may be touched now.
    in_section: bool,
    application: Bell,
}

impl LaneTarget {
    /// That of a worker's lane to the peer with this index.
    pub fn new(segments: Arc<EngineSegments>, registry: Arc<Registry>, peer_index: u32, worker: usize) -> Self {
        let touch = Touch::new(segments.owner_state.hazard(peer_index, worker));
        let application = segments.ringer(0);
        Self { segments, touch, registry, last: LastRegion::default(), in_section: false, application }
    }

    /// This engine's withdrawals.
    #[inline]
    pub fn view(&self) -> &OwnerStateView {
        self.segments.owner_state.view()
    }

    /// Begins a section in which memory is touched, if it has not begun: one barrier is paid for all that is placed or gathered in it.
    /// What is withdrawn is looked up inside, for each operation.
    #[inline]
    pub fn begin_section(&mut self) {
        if !self.in_section {
            self.touch.enter();
            self.in_section = true;
        }
    }

    /// Ends the section, if one has begun: whoever wants memory back waits for this.
    #[inline]
    pub fn end_section(&mut self) {
        if self.in_section {
            self.touch.leave();
            self.last.release();
            self.in_section = false;
        }
    }

    /// The memory of a region that an operation names, if the peer may do that to these extents of it, (offset, length): what
    /// to answer if not. `revision` is what its plan was checked against; one that this engine never had breaks the lane.
    ///
    /// The answer is good at the revision that the log had before the call: bytes that are placed later, outside of the
    /// section in which it was called, are checked for withdrawals since then.
    pub fn admit(
        &mut self,
        wants: Wants,
        key: RegionKey,
        revision: u64,
        extents: impl Iterator<Item = (u64, u64)> + Clone,
    ) -> Result<Result<Window, Cause>, LaneFault> {
        let admitted = self.admit_in_section(wants, key, revision, extents).map(|admitted| admitted.cloned());
        if !self.in_section {
            self.last.release();
        }
        admitted
    }

    /// [`LaneTarget::admit`] for bytes that are placed within the section that has begun.
    pub fn admit_in_section(
        &mut self,
        wants: Wants,
        key: RegionKey,
        revision: u64,
        extents: impl Iterator<Item = (u64, u64)> + Clone,
    ) -> Result<Result<&Window, Cause>, LaneFault> {
        let view = self.segments.owner_state.view();
        if revision > view.revision() {
            return Err(LaneFault(Cause::PeerCorrupt)); // Nobody can have told it.
        }
        if let Err(withdrawn) = check_withdrawals(view, revision, key, extents.clone()) {
            return Ok(Err(withdrawn.cause_for_peer()));
        }
        let Some(region) = self.last.hold(&self.registry, key) else { return Ok(Err(Cause::RevokedByPeer)) };
        let (rights, Some(window)) = (region.rights(), region.host()) else { return Ok(Err(Cause::NoPath)) };
        let is_allowed = match wants {
            Wants::Write => rights.allows_write() && window.is_writable(),
            Wants::Read => rights.allows_read(),
        };
        let is_inside = |(offset, len): (u64, u64)| offset.checked_add(len).is_some_and(|end| end <= window.len());
        let is_fine = is_allowed && extents.clone().all(is_inside);
        Ok(if is_fine { Ok(window) } else { Err(Cause::OutOfBounds) })
    }

    /// The memory of the last region that was admitted in this section, if it is this one: for a look ahead that touches nothing.
    pub fn admitted(&self, key: RegionKey) -> Option<&Window> {
        self.last.held(key).and_then(Region::host)
    }

    /// Increments one of this engine's counters for the peer. False if it does not exist any more.
    pub fn increment_counter(&self, counter: CounterRef) -> bool {
        self.segments.mailbox.view().increment_counter(counter, &self.application)
    }
}

/// Transfers of the peer of which something was refused: what notifies of them is not told.
///
/// A notification that follows such a write left before the peer heard of the refusal, so within the window that
/// it has; older ones are forgotten.
#[derive(Default)]
pub struct Poisoned(VecDeque<(u64, u64, Cause)>);

impl Poisoned {
    /// The write of this number did not land.
    pub fn add(&mut self, sequence: u64, transfer: u64, cause: Cause) {
        while self.0.front().is_some_and(|&(old, ..)| old + IN_FLIGHT_PER_LANE_MAX as u64 <= sequence) {
            self.0.pop_front();
        }
        self.0.push_back((sequence, transfer, cause));
    }

    /// Why this transfer may not be notified of, if so.
    pub fn why(&self, transfer: u64) -> Option<Cause> {
        self.0.iter().find(|(_, poisoned, _)| *poisoned == transfer).map(|&(.., cause)| cause)
    }
}
