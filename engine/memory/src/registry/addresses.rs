//! The regions of an engine by address. It follows the registry when it is asked, so that registering
//! costs nothing for those who never ask.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use penstock_core::RegionId;
use penstock_core::address::AddressIndex;

use super::Registry;
use crate::region::Region;

#[derive(Debug, Default)]
pub(super) struct Addresses {
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    /// The registry's revision that the index reflects.
    revision: u64,
    index: AddressIndex<Entry>,
    /// The range that each id has in the index.
    ranges: HashMap<u32, (u64, u64)>,
}

/// No reference to the region itself: its memory goes when the registry lets it go.
#[derive(Debug, Clone, Copy)]
struct Entry {
    id: RegionId,
    is_writable: bool,
}

impl Addresses {
    pub(super) fn find(&self, registry: &Registry, address: u64, bytes: u64, writable: bool) -> Option<Arc<Region>> {
        loop {
            let kept = self.lock(registry);
            let entry = kept.index.find(address, bytes, |entry| entry.is_writable || !writable)?;
            match registry.get(entry.id) {
                Some(region) if kept.ranges.get(&entry.id.0) == Some(&range_of(&region)) => return Some(region),
                // Deregistered between the two looks: the next one follows.
                _ => {}
            }
        }
    }

    pub(super) fn nearest(&self, registry: &Registry, address: u64) -> Option<Arc<Region>> {
        registry.get(self.lock(registry).index.nearest(address)?.id)
    }

    fn lock(&self, registry: &Registry) -> MutexGuard<'_, Kept> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.revision != registry.revision() {
            kept.follow(registry);
        }
        kept
    }
}

fn range_of(region: &Region) -> (u64, u64) {
    (region.base_address(), region.bytes())
}

impl Kept {
    fn follow(&mut self, registry: &Registry) {
        let changes = registry.changes_since(self.revision);
        self.revision = changes.revision;
        if changes.is_all {
            (self.index, self.ranges) = (AddressIndex::default(), HashMap::new());
        }
        for (id, region) in changes.list {
            if let Some(range) = self.ranges.remove(&id.0) {
                self.index.remove(range, id.0);
            }
            // The engine's own are nobody's to name.
            if let Some(region) = region.filter(|region| !region.is_internal()) {
                let range = range_of(&region);
                self.index.insert(range, id.0, Entry { id, is_writable: region.memory().is_writable() });
                self.ranges.insert(id.0, range);
            }
        }
    }
}
