//! How two engines of one process find each other's memory: what other transports pass as
//! descriptors is here a number in a table of the process.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use penstock_memory::Region;
use penstock_ring::Place;
use penstock_transport::host::{Commons, HandOvers};

/// What one engine offers another of the same process.
pub(crate) struct Parcel {
    pub(crate) commons: Arc<Commons>,
    pub(crate) rings: Place,
    /// Queues for handles, one beside each ring.
    pub(crate) handles: Vec<HandOvers>,
}

#[derive(Default)]
struct Tables {
    next: u64,
    parcels: HashMap<u64, Parcel>,
    regions: HashMap<(u64, u32, u32), Weak<Region>>,
}

static TABLES: LazyLock<Mutex<Tables>> = LazyLock::new(Mutex::default);

fn tables() -> MutexGuard<'static, Tables> {
    TABLES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A parcel that nobody has collected yet; dropped, it is taken back.
pub(crate) struct Deposit(u64);

impl Deposit {
    pub(crate) fn make(parcel: Parcel) -> Self {
        let mut tables = tables();
        tables.next += 1;
        let number = tables.next;
        tables.parcels.insert(number, parcel);
        Self(number)
    }

    pub(crate) fn number(&self) -> u64 {
        self.0
    }
}

impl Drop for Deposit {
    fn drop(&mut self) {
        tables().parcels.remove(&self.0);
    }
}

/// Collects what the other side deposited.
pub(crate) fn collect(number: u64) -> Option<Parcel> {
    tables().parcels.remove(&number)
}

/// Makes a region findable by (epoch, id, generation) for as long as it lives.
pub(crate) fn publish(epoch: u64, region: &Arc<Region>) {
    let mut tables = tables();
    if tables.regions.len() >= 64 && tables.regions.len().is_power_of_two() {
        tables.regions.retain(|_, region| region.strong_count() > 0);
    }
    tables.regions.insert((epoch, region.id().0, region.generation().0), Arc::downgrade(region));
}

/// The region of that name, if it still lives.
pub(crate) fn find(epoch: u64, id: u32, generation: u32) -> Option<Arc<Region>> {
    tables().regions.get(&(epoch, id, generation))?.upgrade()
}
