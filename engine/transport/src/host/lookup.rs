//! Looking up the region that a peer's request names, and checking it against this engine's withdrawals.
//!
//! Shared by all backends whose workers move bytes on a peer's request. The request is untrusted: it is checked against
//! the regions that are registered at that moment.

use std::sync::{Arc, Weak};

use penstock_core::Cause;
use penstock_core::plan::RegionKey;
use penstock_memory::{Region, Registry};
use penstock_ring::gate::Withdrawals;
use penstock_ring::{LogOverrun, Withdrawal};

use super::owner_state::{OwnerStateView, is_renewal, withdrawn_bytes};

/// Why memory may not be touched any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WithdrawalConflict {
    /// It was taken back.
    Revoked,
    /// It got fresh memory.
    Renewed,
    /// The log no longer reaches back to the plan's revision.
    LogOverrun,
}

impl WithdrawalConflict {
    /// The cause that the peer gets if its operation touches this memory.
    pub fn cause_for_peer(self) -> Cause {
        match self {
            Self::Revoked => Cause::RevokedByPeer,
            Self::Renewed => Cause::MemoryRenewed,
            Self::LogOverrun => Cause::PlanTooOld,
        }
    }

    /// The cause with which an operation of this engine ends if this is its local memory.
    pub fn cause_for_local(self) -> Cause {
        match self {
            Self::Revoked | Self::Renewed => Cause::RevokedHere,
            Self::LogOverrun => Cause::PlanTooOld,
        }
    }
}

/// Checks that no withdrawal after revision `since` overlaps these extents, (offset, length), of a region. The error
/// says what kind did, or that the log no longer reaches back far enough.
pub fn check_withdrawals(
    view: &OwnerStateView,
    since: u64,
    key: RegionKey,
    extents: impl Iterator<Item = (u64, u64)> + Clone,
) -> Result<(), WithdrawalConflict> {
    if view.revision() == since {
        return Ok(());
    }
    check_against(view.withdrawals_since(since), || view.not_withdrawn_since(key.region.0, since), key, extents)
}

/// Checks that no listed withdrawal overlaps the extents. If the log has overrun, uses the revision of the region's last
/// withdrawal.
pub(crate) fn check_against(
    withdrawals: Result<Withdrawals, LogOverrun>,
    is_untouched: impl FnOnce() -> bool,
    key: RegionKey,
    extents: impl Iterator<Item = (u64, u64)> + Clone,
) -> Result<(), WithdrawalConflict> {
    let Ok(after) = withdrawals else {
        return if is_untouched() { Ok(()) } else { Err(WithdrawalConflict::LogOverrun) };
    };
    match concerning(&after.list, key, extents) {
        None => Ok(()),
        Some(gone) if is_renewal(gone) => Err(WithdrawalConflict::Renewed),
        Some(_) => Err(WithdrawalConflict::Revoked),
    }
}

/// The newest withdrawal that overlaps these extents. A withdrawal for one generation of a region id also covers all
/// earlier generations.
fn concerning(
    withdrawals: &[Withdrawal],
    key: RegionKey,
    extents: impl Iterator<Item = (u64, u64)> + Clone,
) -> Option<&Withdrawal> {
    withdrawals.iter().rev().find(|gone| {
        let is_meant = gone.region == key.region.0 && gone.generation >= key.generation.0;
        let gone_end = gone.offset.saturating_add(withdrawn_bytes(gone));
        is_meant && extents.clone().any(|(offset, len)| offset < gone_end && gone.offset < offset.saturating_add(len))
    })
}

/// The region of the last lookup: the next one is mostly for the same. Remembered weakly, so that it can be deregistered.
#[derive(Debug, Default)]
pub struct LastRegion {
    last: Option<(RegionKey, Weak<Region>)>,
    held: Option<Arc<Region>>,
}

impl LastRegion {
    /// The region of this id and generation, if it is still registered.
    pub fn find(&mut self, registry: &Registry, key: RegionKey) -> Option<Arc<Region>> {
        let is_there = self.hold(registry, key).is_some();
        self.held.take().filter(|_| is_there)
    }

    /// The same without a count for each call: it is kept until [`LastRegion::release`]. A count is an atomic operation, which waits
    /// until all that was written before it is in the cache.
    pub fn hold(&mut self, registry: &Registry, key: RegionKey) -> Option<&Arc<Region>> {
        let Self { last, held } = self;
        let is_last = last.as_ref().is_some_and(|(last, _)| *last == key);
        if !is_last {
            *held = None;
        }
        if held.is_none() {
            *held = last.as_ref().filter(|_| is_last).and_then(|(_, region)| region.upgrade());
        }
        if held.is_none() {
            let region = registry.resolve(key.region, key.generation).ok()?;
            *last = Some((key, Arc::downgrade(&region)));
            *held = Some(region);
        }
        // The same region may have another generation by now: then its memory was renewed.
        held.as_ref().filter(|region| region.is_live() && region.generation() == key.generation)
    }

    /// The region that is held, if it is this one.
    pub fn held(&self, key: RegionKey) -> Option<&Region> {
        let is_it = self.last.as_ref().is_some_and(|(last, _)| *last == key);
        self.held.as_deref().filter(|_| is_it)
    }

    /// Lets go of what is held.
    pub fn release(&mut self) {
        self.held = None;
    }
}
