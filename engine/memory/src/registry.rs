//! The registry: which regions an engine has, by id, by label and by content.

mod addresses;

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use penstock_core::{Generation, RegionId, Rights};

use crate::device_blocks::DeviceBlocks;
use crate::hash::FastHash;
use crate::host::HostMemory;
use crate::memory::{DeviceMemory, Memory};
use crate::pool::Pool;
use crate::region::{Origin, Region};

use self::addresses::Addresses;

/// Changes that are kept. Who is further behind looks at all regions.
const CHANGES_KEPT: usize = 4096;

/// Why an id names no region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RegionError {
    /// The id was never given out.
    #[error("region {0} does not exist: its owner never announced it")]
    Unknown(RegionId),
    /// The id was given out again, or its region is gone.
    #[error(
        "region {id} generation {presented} is gone (the next or present one is {current}): ask its owner for a fresh announcement"
    )]
    StaleGeneration {
        id: RegionId,
        presented: Generation,
        /// The generation the id has, or will have when it is next used.
        current: Generation,
    },
    /// Peers were to have the right to write memory that this process itself may only read.
    #[error(
        "the memory is mapped read-only, and peers were to write it: register it without that right, or map it writable"
    )]
    ReadOnly,
    /// 2^32 regions are registered.
    #[error("no region id is left: take back registrations that are no longer used")]
    NoIdLeft,
}

/// What taking back a registration did.
#[derive(Debug)]
pub enum Deregistered {
    /// So many registrations of the same memory remain.
    StillUsed(u64),
    /// That was the last: the id is stale from now on. Work in flight may still hold the region.
    Last(Arc<Region>),
}

/// All regions of an engine. Registering costs no system call, and as much at 10,000 regions as
/// at ten.
#[derive(Debug, Default)]
pub struct Registry {
    revision: AtomicU64,
    tables: RwLock<Tables>,
    addresses: Addresses,
}

/// What has changed since a revision.
#[derive(Debug)]
pub struct Changes {
    /// The revision that this leads to.
    pub revision: u64,
    /// Whether all regions are listed, because the revision is older than what is kept: what is not listed is gone.
    pub is_all: bool,
    /// Each id that changed, once, in the order of the latest change; None: no region has it any more.
    pub list: Vec<(RegionId, Option<Arc<Region>>)>,
}

#[derive(Debug, Default)]
struct Tables {
    slots: Vec<Slot>,
    vacant: Vec<u32>,
    by_content: HashMap<Content, u32, FastHash>,
    /// The slots that the latest revisions changed, the newest last.
    changes: VecDeque<u32>,
}

#[derive(Debug, Default)]
struct Slot {
    /// Of the region here, or of the next one where there is none.
    generation: u32,
    /// The revision that changed it last.
    changed_at: u64,
    live: Option<Live>,
}

#[derive(Debug)]
struct Live {
    region: Arc<Region>,
    registrations: u64,
}

/// What makes two registrations the same.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Content {
    base: u64,
    len: u64,
    is_writable: bool,
    number: u64,
    rights: u8,
    label: Arc<str>,
}

impl Content {
    fn of(memory: &Memory, label: &Arc<str>, rights: Rights) -> Self {
        let (base, len, is_writable) = (memory.base_address(), memory.len(), memory.is_writable());
        Self { base, len, is_writable, number: memory.number(), rights: rights.into(), label: Arc::clone(label) }
    }
}

impl Registry {
    pub fn new() -> Self {
        Self::default()
    }

    /// Registers memory the caller brought. Ranges may overlap; the same range, label and rights
    /// again give the same region, counted.
    pub fn register_host(&self, memory: HostMemory, label: &str, rights: Rights) -> Result<Arc<Region>, RegionError> {
        let window = memory.window().clone();
        if rights.allows_write() && !window.is_writable() {
            return Err(RegionError::ReadOnly);
        }
        self.register(window.into(), label, rights, || Origin::Host)
    }

    /// The same of a device's memory.
    pub fn register_device(
        &self,
        memory: DeviceMemory,
        label: &str,
        rights: Rights,
    ) -> Result<Arc<Region>, RegionError> {
        self.register(memory.window().clone().into(), label, rights, || Origin::Device)
    }

    /// Registers a pool of a device's memory under its own label and rights.
    pub fn register_device_blocks(&self, pool: Arc<DeviceBlocks>) -> Result<Arc<Region>, RegionError> {
        let (window, rights) = (pool.window().clone(), pool.rights());
        let origin = Arc::clone(&pool);
        self.register(window.into(), pool.label(), rights, || Origin::DevicePool(origin))
    }

    /// Registers a pool under its own label and rights; again gives the same region, counted.
    pub fn register_pool(&self, pool: Arc<Pool>) -> Result<Arc<Region>, RegionError> {
        let (window, rights) = (pool.window().clone(), pool.rights());
        let origin = Arc::clone(&pool);
        self.register(window.into(), pool.label(), rights, || Origin::Pool(origin))
    }

    /// Registers memory through which the engine itself moves bytes.
    pub fn register_staging(&self, pool: Arc<Pool>) -> Result<Arc<Region>, RegionError> {
        let (window, rights) = (pool.window().clone(), pool.rights());
        let origin = Arc::clone(&pool);
        self.register(window.into(), pool.label(), rights, || Origin::Staging(origin))
    }

    fn register(
        &self,
        memory: Memory,
        label: &str,
        rights: Rights,
        origin: impl FnOnce() -> Origin,
    ) -> Result<Arc<Region>, RegionError> {
        let label: Arc<str> = Arc::from(label);
        let content = Content::of(&memory, &label, rights);
        let mut tables = self.write();
        if let Some(region) = tables.again(&content) {
            return Ok(region);
        }
        let index = tables.vacant_slot()?;
        let slot = &mut tables.slots[index as usize];
        let name = (RegionId(index), Generation(slot.generation));
        let region = Arc::new(Region::new(name, label, rights, memory, origin()));
        slot.live = Some(Live { region: Arc::clone(&region), registrations: 1 });
        tables.by_content.insert(content, index);
        self.changed(&mut tables, index);
        Ok(region)
    }

    /// The region with this id at present.
    pub fn get(&self, id: RegionId) -> Option<Arc<Region>> {
        let tables = self.read();
        Some(Arc::clone(&tables.slots.get(id.0 as usize)?.live.as_ref()?.region))
    }

    /// The region that this id and generation name, or why there is none.
    pub fn resolve(&self, id: RegionId, generation: Generation) -> Result<Arc<Region>, RegionError> {
        let tables = self.read();
        let slot = tables.slots.get(id.0 as usize).ok_or(RegionError::Unknown(id))?;
        Ok(Arc::clone(&slot.live_as(id, generation)?.region))
    }

    /// The first region, by id, with this label. Looks at every region: for control calls.
    pub fn find(&self, label: &str) -> Option<Arc<Region>> {
        let tables = self.read();
        let found = tables.live().find(|region| region.label() == label);
        found.map(Arc::clone)
    }

    /// Takes back one registration.
    pub fn deregister(&self, id: RegionId, generation: Generation) -> Result<Deregistered, RegionError> {
        let mut tables = self.write();
        let slot = tables.slots.get_mut(id.0 as usize).ok_or(RegionError::Unknown(id))?;
        let live = slot.live_as_mut(id, generation)?;
        live.registrations -= 1;
        if live.registrations > 0 {
            return Ok(Deregistered::StillUsed(live.registrations));
        }
        let region = Arc::clone(&live.region);
        slot.live = None;
        // After 2^32 uses of one id its generations would repeat: such an id is retired.
        if let Some(next) = slot.generation.checked_add(1) {
            slot.generation = next;
            tables.vacant.push(id.0);
        }
        let content = Content::of(&region.memory, &region.label, region.rights);
        tables.by_content.remove(&content);
        region.withdraw();
        self.changed(&mut tables, id.0);
        Ok(Deregistered::Last(region))
    }

    /// Gives a region whose memory was renewed its next generation: peers have to map it anew, and know it by that.
    pub fn renew(&self, id: RegionId, generation: Generation) -> Result<Generation, RegionError> {
        let mut tables = self.write();
        let slot = tables.slots.get_mut(id.0 as usize).ok_or(RegionError::Unknown(id))?;
        let region = Arc::clone(&slot.live_as(id, generation)?.region);
        let next = Generation(slot.generation.checked_add(1).ok_or(RegionError::NoIdLeft)?);
        slot.generation = next.0;
        region.renewed(next);
        self.changed(&mut tables, id.0);
        Ok(next)
    }

    /// All regions at this moment, by id.
    pub fn iter(&self) -> impl Iterator<Item = Arc<Region>> + use<> {
        let regions: Vec<_> = self.read().live().map(Arc::clone).collect();
        regions.into_iter()
    }

    /// Regions at this moment.
    pub fn len(&self) -> usize {
        self.read().by_content.len()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// A number that goes up whenever a region comes or goes: one load tells that nothing did.
    pub fn revision(&self) -> u64 {
        // SYNC registry-revision: pairs with changed()'s Release.
        self.revision.load(Ordering::Acquire)
    }

    /// What has changed after this revision.
    pub fn changes_since(&self, revision: u64) -> Changes {
        let tables = self.read();
        let now = self.revision.load(Ordering::Relaxed); // It changes under the lock only.
        let behind = usize::try_from(now.saturating_sub(revision)).unwrap_or(usize::MAX);
        let is_all = behind > tables.changes.len();
        let mut list: Vec<(u64, u32)> = if is_all {
            let live = tables.slots.iter().zip(0..).filter(|(slot, _)| slot.live.is_some());
            live.map(|(slot, index)| (slot.changed_at, index)).collect()
        } else {
            let latest = tables.changes.iter().skip(tables.changes.len() - behind).zip(now - behind as u64 + 1..);
            // A slot that changed again is listed for that.
            latest
                .filter(|&(&index, at)| tables.slots[index as usize].changed_at == at)
                .map(|(&index, at)| (at, index))
                .collect()
        };
        list.sort_unstable();
        let region = |index: u32| tables.slots[index as usize].live.as_ref().map(|live| Arc::clone(&live.region));
        let list = list.into_iter().map(|(_, index)| (RegionId(index), region(index))).collect();
        Changes { revision: now, is_all, list }
    }

    /// The region to use for `bytes` at an address of this process, or for the first of them: the newest that
    /// covers all of them, else the one that covers most. Only those that can be written to, if so asked.
    pub fn find_at(&self, address: u64, bytes: u64, writable: bool) -> Option<Arc<Region>> {
        self.addresses.find(self, address, bytes, writable)
    }

    /// A region close to an address that none covers.
    pub fn nearest(&self, address: u64) -> Option<Arc<Region>> {
        self.addresses.nearest(self, address)
    }

    /// Called with the write lock held, so that a reader who sees the number sees the change.
    fn changed(&self, tables: &mut Tables, index: u32) {
        if tables.changes.len() == CHANGES_KEPT {
            tables.changes.pop_front();
        }
        tables.changes.push_back(index);
        // SYNC registry-revision: pairs with revision()'s Acquire.
        let before = self.revision.fetch_add(1, Ordering::Release);
        tables.slots[index as usize].changed_at = before + 1;
    }

    fn read(&self) -> RwLockReadGuard<'_, Tables> {
        self.tables.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Tables> {
        self.tables.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Tables {
    /// Counts one more registration of the same content, if there is one already.
    fn again(&mut self, content: &Content) -> Option<Arc<Region>> {
        let index = *self.by_content.get(content)?;
        let live = self.slots[index as usize].live.as_mut()?;
        live.registrations += 1;
        Some(Arc::clone(&live.region))
    }

    fn vacant_slot(&mut self) -> Result<u32, RegionError> {
        if let Some(index) = self.vacant.pop() {
            return Ok(index);
        }
        let index = u32::try_from(self.slots.len()).map_err(|_| RegionError::NoIdLeft)?;
        self.slots.push(Slot::default());
        Ok(index)
    }

    fn live(&self) -> impl Iterator<Item = &Arc<Region>> {
        self.slots.iter().filter_map(|slot| slot.live.as_ref().map(|live| &live.region))
    }
}

impl Slot {
    fn live_as(&self, id: RegionId, presented: Generation) -> Result<&Live, RegionError> {
        let current = Generation(self.generation);
        self.live.as_ref().filter(|_| presented == current).ok_or(RegionError::StaleGeneration {
            id,
            presented,
            current,
        })
    }

    fn live_as_mut(&mut self, id: RegionId, presented: Generation) -> Result<&mut Live, RegionError> {
        let current = Generation(self.generation);
        self.live.as_mut().filter(|_| presented == current).ok_or(RegionError::StaleGeneration {
            id,
            presented,
            current,
        })
    }
}

#[cfg(test)]
mod tests;
