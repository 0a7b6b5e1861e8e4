//! What a peer may do to this engine's memory: looked up and checked for each of its operations, before its first byte.

use std::collections::VecDeque;

use penstock_core::Cause;
use penstock_core::limits::IN_FLIGHT_PER_LANE_MAX;
use penstock_memory::{Registry, Window};
use penstock_transport::LaneFault;
use penstock_transport::host::{LastRegion, OwnerStateView, check_withdrawals};

use crate::wire::Request;

/// What the peer wants with its extents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wants {
    /// To put bytes there.
    Write,
    /// To have the bytes there.
    Read,
}

/// The memory that a request names, if the peer may do that to it: what to answer if not. A request that nobody who keeps to
/// the rules can make breaks the lane.
///
/// The answer is good at the revision that the log had before the call.
pub(crate) fn admit(
    wants: Wants,
    request: &Request<'_>,
    view: &OwnerStateView,
    registry: &Registry,
    known: &mut LastRegion,
) -> Result<Result<Window, Cause>, LaneFault> {
    if request.revision > view.revision() {
        return Err(LaneFault(Cause::PeerCorrupt)); // Nobody can have told it.
    }
    if let Err(withdrawn) = check_withdrawals(view, request.revision, request.key, request.extents()) {
        return Ok(Err(withdrawn.cause_for_peer()));
    }
    let Some(region) = known.find(registry, request.key) else { return Ok(Err(Cause::RevokedByPeer)) };
    let (rights, window) = (region.rights(), region.window());
    let is_allowed = match wants {
        Wants::Write => rights.allows_write() && window.is_writable(),
        Wants::Read => rights.allows_read(),
    };
    let is_inside = |(offset, len): (u64, u64)| offset.checked_add(len).is_some_and(|end| end <= window.len());
    let is_fine = is_allowed && request.extents().all(is_inside);
    Ok(if is_fine { Ok(window.clone()) } else { Err(Cause::OutOfBounds) })
}

/// Transfers of the peer of which something was refused: what notifies of them is not told.
///
/// A notification that follows such a write left before the peer heard of the refusal, so within the window that
/// it has; older ones are forgotten.
#[derive(Default)]
pub(crate) struct Poisoned(VecDeque<(u64, u64, Cause)>);

impl Poisoned {
    /// The write of this number did not land.
    pub(crate) fn add(&mut self, sequence: u64, transfer: u64, cause: Cause) {
        while self.0.front().is_some_and(|&(old, ..)| old + IN_FLIGHT_PER_LANE_MAX as u64 <= sequence) {
            self.0.pop_front();
        }
        self.0.push_back((sequence, transfer, cause));
    }

    /// Why this transfer may not be notified of, if so.
    pub(crate) fn why(&self, transfer: u64) -> Option<Cause> {
        self.0.iter().find(|(_, poisoned, _)| *poisoned == transfer).map(|&(.., cause)| cause)
    }
}
