//! How two engines of one process find each other's memory: what other transports pass as
//! descriptors is here a number in a table of the process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use penstock_memory::Region;
use penstock_memory::fork::{Maker, PerProcess};
use penstock_ring::SharedRange;
use penstock_transport::host::{EngineSegments, HandOvers};

/// What one engine offers another of the same process.
pub(crate) struct Parcel {
    pub(crate) segments: Arc<EngineSegments>,
    pub(crate) regions: Arc<Regions>,
    pub(crate) rings: SharedRange,
    /// Queues for handles, one beside each ring.
    pub(crate) handles: Vec<HandOvers>,
}

#[derive(Default)]
struct Tables {
    next: u64,
    parcels: HashMap<u64, Parcel>,
}

static TABLES: PerProcess<Mutex<Tables>> = PerProcess::new();

fn tables() -> MutexGuard<'static, Tables> {
    TABLES.get(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

/// A parcel that nobody has collected yet; dropped, it is taken back.
pub(crate) struct Deposit {
    number: u64,
    maker: Maker,
}

impl Deposit {
    pub(crate) fn make(parcel: Parcel) -> Self {
        let mut tables = tables();
        tables.next += 1;
        let number = tables.next;
        tables.parcels.insert(number, parcel);
        Self { number, maker: Maker::this_process() }
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }
}

impl Drop for Deposit {
    fn drop(&mut self) {
        // In a child the number may be another's.
        if !self.maker.is_ancestor() {
            tables().parcels.remove(&self.number);
        }
    }
}

/// Collects what the other side deposited.
pub(crate) fn collect(number: u64) -> Option<Parcel> {
    tables().parcels.remove(&number)
}

/// The regions of one engine that others of its process may reach, each for as long as it lives.
#[derive(Default)]
pub(crate) struct Regions(Mutex<HashMap<(u32, u32), Weak<Region>>>);

impl Regions {
    fn lock(&self) -> MutexGuard<'_, HashMap<(u32, u32), Weak<Region>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a region findable by its id and generation.
    pub(crate) fn publish(&self, region: &Arc<Region>) {
        let mut regions = self.lock();
        if regions.len() >= 64 && regions.len().is_power_of_two() {
            regions.retain(|_, region| region.strong_count() > 0);
        }
        regions.insert((region.id().0, region.generation().0), Arc::downgrade(region));
    }

    /// The region of that name, if it still lives.
    pub(crate) fn find(&self, id: u32, generation: u32) -> Option<Arc<Region>> {
        self.lock().get(&(id, generation))?.upgrade()
    }
}
