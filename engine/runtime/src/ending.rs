//! Regions that are gone: transports hear of each once, when its memory is proven quiet or given up, or the engine ends.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use penstock_core::{Env, Generation, RegionId};
use penstock_memory::{Deregistered, Region, RegionError};

use crate::shared::Shared;

/// Regions whose last registration has ended and that transports have not heard of.
#[derive(Default)]
pub(crate) struct Endings {
    pending: Mutex<Pending>,
}

#[derive(Default)]
struct Pending {
    regions: Vec<(RegionId, Generation)>,
    /// The engine has ended, and with it every region.
    is_over: bool,
}

impl Endings {
    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<E: Env> Shared<E> {
    /// Ends one registration of a region. After its last one, [`Shared::forget`] is to follow.
    pub(crate) fn deregister(&self, region: &Arc<Region>, generation: Generation) -> Result<Deregistered, RegionError> {
        // Under one lock with the list: an engine that ends finds the region in one of the two.
        let mut pending = self.endings.lock();
        let ended = self.registry.deregister(region.id(), generation)?;
        if let (Deregistered::Last(_), false) = (&ended, pending.is_over) {
            pending.regions.push((region.id(), generation));
        }
        Ok(ended)
    }

    /// Transports end what they have registered for a region that is gone.
    pub(crate) fn forget(&self, region: RegionId, generation: Generation) {
        let mut pending = self.endings.lock();
        let found = pending.regions.iter().position(|&gone| gone == (region, generation));
        // Else the engine has ended meanwhile.
        let Some(place) = found else { return };
        pending.regions.swap_remove(place);
        drop(pending);
        self.tell_transports(region, generation);
    }

    /// The engine ends: so does every registration.
    pub(crate) fn forget_all(&self) {
        let mut pending = self.endings.lock();
        pending.is_over = true;
        let gone = std::mem::take(&mut pending.regions);
        let live: Vec<_> = self.registry.iter().map(|region| (region.id(), region.generation())).collect();
        drop(pending);
        for (region, generation) in gone.into_iter().chain(live) {
            self.tell_transports(region, generation);
        }
    }

    fn tell_transports(&self, region: RegionId, generation: Generation) {
        self.transports.iter().for_each(|transport| transport.release_registrations(region, generation));
    }
}
