//! How bytes go between a local memory and a remote one.

use penstock_core::limits::{UNITS_AT_ONCE, UNITS_AT_ONCE_BY_KERNEL};
use penstock_memory::Memory;

use crate::caps::Caps;
use crate::remote::RemoteMemory;

/// What a plan is told of two memories when it is built: how one worker's posts between them behave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pair {
    /// Whether [`crate::Lane::post`] has moved the bytes when it returns.
    pub is_synchronous: bool,
    /// Whether the notification may be posted while batches are still in flight, as [`Caps::ordered`] says.
    pub is_ordered: bool,
    /// Whether several workers share a large transfer.
    pub splits: bool,
    /// Units that are worth one go while nothing else waits.
    pub units_at_once: u64,
    /// Whether they go through staging memory, of either side.
    pub is_staged: bool,
}

impl Pair {
    /// Of memory that a processor touches here, and of what this transport makes of the peer's; none: a device's is on a side.
    pub fn of_host(caps: &Caps, local: &Memory, remote: &RemoteMemory) -> Option<Self> {
        let (is_synchronous, units_at_once) = match remote {
            RemoteMemory::Mapped(_) => (true, UNITS_AT_ONCE),
            RemoteMemory::ProcessVm(_) => (false, UNITS_AT_ONCE_BY_KERNEL),
            RemoteMemory::TargetMediated(_) | RemoteMemory::Rdma(_) => (false, UNITS_AT_ONCE),
            RemoteMemory::Device(_) | RemoteMemory::Staged(_) => return None,
        };
        let pair = Self {
            is_synchronous,
            is_ordered: caps.ordered,
            splits: caps.multi_worker,
            units_at_once,
            is_staged: false,
        };
        local.host().map(|_| pair)
    }

    /// Of a plan without bytes.
    pub const NOTHING: Self =
        Self { is_synchronous: true, is_ordered: true, splits: true, units_at_once: UNITS_AT_ONCE, is_staged: false };

    /// Of a plan that has pairs of both kinds: what both allow, and the larger of what is worth one go.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            is_synchronous: self.is_synchronous && other.is_synchronous,
            is_ordered: self.is_ordered && other.is_ordered,
            splits: self.splits && other.splits,
            units_at_once: self.units_at_once.max(other.units_at_once),
            is_staged: self.is_staged || other.is_staged,
        }
    }
}

#[cfg(test)]
mod tests {
    use penstock_core::plan::RegionKey;
    use penstock_core::{Generation, RegionId};
    use penstock_memory::HostMemory;

    use super::*;
    use crate::{Placement, TargetMediatedMemory, Trust};

    const CAPS: Caps = Caps {
        trust: Trust::Checked,
        placement: Placement::AtCompletion,
        synchronous: true,
        ordered: true,
        multi_worker: true,
        remote_caller_memory: true,
        hand_over: false,
    };

    #[test]
    fn a_plan_between_memories_of_several_kinds_does_what_all_of_them_allow() {
        let window = HostMemory::from_vec(vec![0; 64]).unwrap().window().clone();
        let local = Memory::from(window.clone());
        let key = RegionKey { region: RegionId(1), generation: Generation(0) };
        let mediated = RemoteMemory::TargetMediated(TargetMediatedMemory { key, bytes: 64 });
        let mapped = Pair::of_host(&CAPS, &local, &window.into()).unwrap();
        assert_eq!(mapped, Pair::NOTHING);
        let caps = Caps { ordered: false, multi_worker: false, ..CAPS };
        let moved = Pair::of_host(&caps, &local, &mediated).unwrap();
        let both = Pair {
            is_synchronous: false,
            is_ordered: false,
            splits: false,
            units_at_once: UNITS_AT_ONCE,
            is_staged: false,
        };
        assert_eq!((moved, mapped.and(moved), moved.and(mapped)), (both, both, both));
        let by_kernel = Pair { units_at_once: UNITS_AT_ONCE_BY_KERNEL, ..mapped };
        assert_eq!(moved.and(by_kernel), Pair { units_at_once: UNITS_AT_ONCE_BY_KERNEL, ..moved });
    }
}
