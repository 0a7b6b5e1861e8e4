//! Looking up what a peer names, among this engine's own regions and withdrawals.
//!
//! Shared by all who move bytes for a peer that cannot do it itself: what it names is its word, and is
//! compared with what stands here at that moment.

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
    /// The log does not reach back far enough to tell.
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
    check_against(view.withdrawals_since(since), || view.is_untouched_since(key.region.0, since), key, extents)
}

/// Whether none of these withdrawals concerns these extents of a region. Where the log does not reach back, it is asked whether the region
/// is untouched.
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

/// The latest of these withdrawals that concerns these extents of a region: what is withdrawn from one use of
/// an id was withdrawn from all before it.
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

/// The region that was asked for last: the next question is mostly for the same. It is not held, so that it can go.
#[derive(Debug, Default)]
pub struct LastRegion(Option<(RegionKey, Weak<Region>)>);

impl LastRegion {
    /// The region of this name, if it still stands.
    pub fn find(&mut self, registry: &Registry, key: RegionKey) -> Option<Arc<Region>> {
        if let Some((last, region)) = &self.0
            && *last == key
            && let Some(region) = region.upgrade()
        {
            // The same region may have another generation by now: then its memory was renewed.
            return Some(region).filter(|region| region.is_live() && region.generation() == key.generation);
        }
        let region = registry.resolve(key.region, key.generation).ok()?;
        self.0 = Some((key, Arc::downgrade(&region)));
        Some(region)
    }
}
