//! This engine's own memory as it is offered to peers.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use penstock_core::{Cause, Env, Rights};
use penstock_memory::{Blocks, Deregistered, Region, TakeError, Window};

use crate::counter::Counter;
use crate::error::RegionError;
use crate::hub::Hub;
use crate::quiesce::{Hold, Subject};

/// A registered region of this engine.
///
/// Dropping the handle does not deregister: peers may use the region until
/// [`LocalRegion::deregister`] is called or the engine ends.
pub struct LocalRegion<E: Env> {
    pub(crate) hub: Arc<Hub<E>>,
    pub(crate) region: Arc<Region>,
}

impl<E: Env> Clone for LocalRegion<E> {
    fn clone(&self) -> Self {
        Self { hub: Arc::clone(&self.hub), region: Arc::clone(&self.region) }
    }
}

impl<E: Env> std::fmt::Debug for LocalRegion<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalRegion").field("label", &self.label()).field("bytes", &self.bytes()).finish()
    }
}

impl<E: Env> LocalRegion<E> {
    /// The label peers find it by.
    pub fn label(&self) -> &str {
        self.region.label()
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> u64 {
        self.region.bytes()
    }

    /// What peers may do to it.
    pub fn rights(&self) -> Rights {
        self.region.rights()
    }

    /// Its memory. Peers may write it at any time, so it is never given out as a slice.
    pub fn window(&self) -> &Window {
        self.region.window()
    }

    /// An arrival counter that peers find by this label.
    pub fn counter(&self, label: &str) -> Result<Counter<E>, RegionError> {
        self.hub.shared.check_usable().map_err(RegionError::Call)?;
        let full = penstock_memory::MemoryError::NotHere {
            what: "another arrival counter",
            why: "the engine has as many as it may have",
            mend: "drop counters that are not needed any more",
        };
        if label.len() > penstock_session::frame::LABEL_BYTES_MAX {
            return Err(RegionError::LabelTooLong { bytes: label.len() });
        }
        let counter = Counter::open(&self.hub, label, self.region.id().0).ok_or(full)?;
        self.hub.shared.control.announce();
        Ok(counter)
    }

    /// Takes parts of the region back from everyone: transfers that touch them, in either
    /// direction, end with a typed cause, and plans made before are stale. **Plans built afterwards
    /// may use them again**: tell peers not to build them, or deregister.
    ///
    /// Answers by its deadline whether anything can still land. With living, running peers the
    /// answer is never quarantine, given time for one copy of 1 MiB; blocks of a pool that are quarantined stay
    /// allocated until the proof.
    pub fn revoke(&self, extents: &[(u64, u64)], within: Duration) -> Result<Hold, RegionError> {
        self.hub.shared.check_usable().map_err(RegionError::Call)?;
        for &(offset, len) in extents {
            let inside = offset.checked_add(len).is_some_and(|end| end <= self.bytes());
            if !inside || len == 0 {
                let label = self.label().to_owned();
                return Err(RegionError::OutOfBounds { label, offset, len, bytes: self.bytes() });
            }
        }
        if !self.region.is_live() {
            return Err(RegionError::Stale { label: self.label().to_owned() });
        }
        loop {
            let generation = self.region.generation();
            self.hub.withdraw(self.region.id(), generation.0, extents);
            // Renewed meanwhile: there may be plans of the next generation already.
            if self.region.generation() == generation {
                break;
            }
        }
        Ok(self.settle(extents, within))
    }

    /// Takes the whole region back for good. Once the answer is `Quiesced`, memory that the caller
    /// lent may be freed, and its windows may not be used any more. A region registered several
    /// times stands until its last registration ends; until then the answer is `StillRegistered`.
    pub fn deregister(&self, within: Duration) -> Result<Hold, RegionError> {
        if penstock_memory::fork::in_child() {
            return Err(RegionError::Call(Cause::Forked));
        }
        let shared = &self.hub.shared;
        shared.check_usable().map_err(RegionError::Call)?;
        let generation = loop {
            let generation = self.region.generation();
            match shared.deregister(&self.region, generation) {
                Ok(Deregistered::StillUsed(times)) => return Ok(Hold::StillRegistered(times)),
                Ok(Deregistered::Last(_)) => break generation,
                // Renewed between the two lines above.
                Err(_) if self.region.generation() != generation => {}
                Err(refused) => return Err(refused.into()),
            }
        };
        shared.commons.posts.withdraw_region(self.region.id().0, generation.0);
        shared.control.announce();
        let hold = self.settle(&[(0, self.bytes())], within);
        shared.forget(self.region.id(), generation);
        Ok(hold)
    }

    fn settle(&self, extents: &[(u64, u64)], within: Duration) -> Hold {
        let keep = || -> Vec<Blocks> {
            let blocks = |pool: &Arc<penstock_memory::Pool>| {
                extents.iter().flat_map(|&(offset, len)| pool.blocks().withhold_range(offset, len)).collect()
            };
            self.region.pool().map(blocks).unwrap_or_default()
        };
        self.hub.settle(&Subject { label: self.label(), region: Some(&self.region), extents, keep: &keep }, within)
    }
}

/// Memory that Penstock allocated, registered once and handed out in blocks.
pub struct Pool<E: Env> {
    pub(crate) region: LocalRegion<E>,
    pub(crate) pool: Arc<penstock_memory::Pool>,
}

impl<E: Env> Pool<E> {
    pub(crate) fn new(region: LocalRegion<E>, pool: Arc<penstock_memory::Pool>) -> Self {
        Self { region, pool }
    }

    /// Takes so many blocks, or none. They are given back when the last handle is dropped.
    pub fn take(&self, count: usize) -> Result<Blocks, TakeError> {
        self.pool.take(count)
    }

    /// The same, as soon as so many are free, at most after this time: blocks of transfers come back when the engine has seen that nothing
    /// touches them any more, a moment after they were let go. More than there are is refused at once.
    pub fn take_within(&self, count: usize, within: Duration) -> Result<Blocks, TakeError> {
        let hub = &self.region.hub;
        let until = hub.shared.env.now() + within;
        let mut taken = self.take(count);
        if taken.is_err() && count <= self.pool.blocks_total() as usize {
            hub.wait_until(until, || {
                taken = self.take(count);
                taken.is_ok()
            });
        }
        taken
    }

    /// The memory itself: its blocks, pages and node.
    pub fn memory(&self) -> &Arc<penstock_memory::Pool> {
        &self.pool
    }
}

impl<E: Env> Clone for Pool<E> {
    fn clone(&self) -> Self {
        Self { region: self.region.clone(), pool: Arc::clone(&self.pool) }
    }
}

impl<E: Env> Deref for Pool<E> {
    type Target = LocalRegion<E>;

    fn deref(&self) -> &LocalRegion<E> {
        &self.region
    }
}
