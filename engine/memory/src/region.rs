//! A region: registered memory with a name, rights and a generation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use penstock_core::plan::RegionKey;
use penstock_core::{Generation, RegionId, Rights};

use crate::blocks::BlockAllocator;
use crate::device_blocks::DeviceBlocks;
use crate::memory::Memory;
use crate::pool::Pool;
use crate::window::Window;

/// Where a region's memory came from.
#[derive(Debug, Clone)]
pub enum Origin {
    /// A pool that Penstock allocated; peers on this host can map it.
    Pool(Arc<Pool>),
    /// Memory of this process that the caller brought.
    Host,
    /// A pool of a device's memory.
    DevicePool(Arc<DeviceBlocks>),
    /// A device's memory that the caller brought.
    Device,
    /// A pool of the engine's own, through which bytes of devices go to and from peers. Nobody lists it.
    Staging(Arc<Pool>),
}

/// Registered memory. Whoever holds it keeps its memory, registered or not.
#[derive(Debug)]
pub struct Region {
    pub(crate) id: RegionId,
    generation: AtomicU32,
    /// That with which it was registered.
    first: Generation,
    pub(crate) label: Arc<str>,
    pub(crate) rights: Rights,
    pub(crate) memory: Memory,
    pub(crate) origin: Origin,
    withdrawn: AtomicBool,
}

impl Region {
    pub(crate) fn new(
        (id, generation): (RegionId, Generation),
        label: Arc<str>,
        rights: Rights,
        memory: Memory,
        origin: Origin,
    ) -> Self {
        let (withdrawn, first) = (AtomicBool::new(false), generation);
        let generation = AtomicU32::new(generation.0);
        Self { id, generation, first, label, rights, memory, origin, withdrawn }
    }

    /// Its id, reused after it is gone; only together with the generation a name.
    pub fn id(&self) -> RegionId {
        self.id
    }

    /// Which use of the id this is. It changes when a part of a pool gets fresh memory, see
    /// [`Registry::renew`](crate::Registry::renew).
    pub fn generation(&self) -> Generation {
        // SYNC region-generation: pairs with renewed()'s Release: who sees it sees the fresh memory.
        Generation(self.generation.load(Ordering::Acquire))
    }

    /// Its name when it was registered. Renewals have raised its generation since.
    pub fn first_key(&self) -> RegionKey {
        RegionKey { region: self.id, generation: self.first }
    }

    pub(crate) fn renewed(&self, generation: Generation) {
        // SYNC region-generation: pairs with generation()'s Acquire.
        self.generation.store(generation.0, Ordering::Release);
    }

    /// The name peers find it by; several regions may share one.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// What peers may do.
    pub fn rights(&self) -> Rights {
        self.rights
    }

    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Its memory, if a processor can touch it.
    pub fn host(&self) -> Option<&Window> {
        self.memory.host()
    }

    pub fn bytes(&self) -> u64 {
        self.memory.len()
    }

    /// Its first byte, as its owner calls it.
    pub fn base_address(&self) -> u64 {
        self.memory.base_address()
    }

    /// Where its memory came from.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Whether it is the engine's own: neither its user nor peers are told of it.
    pub fn is_internal(&self) -> bool {
        matches!(self.origin, Origin::Staging(_))
    }

    /// The pool it is, if it is one.
    pub fn pool(&self) -> Option<&Arc<Pool>> {
        match &self.origin {
            Origin::Pool(pool) | Origin::Staging(pool) => Some(pool),
            Origin::Host | Origin::DevicePool(_) | Origin::Device => None,
        }
    }

    /// The allocator of its blocks, if it is a pool, of whichever memory.
    pub fn blocks(&self) -> Option<&Arc<BlockAllocator>> {
        match &self.origin {
            Origin::Pool(pool) => Some(pool.blocks()),
            Origin::DevicePool(pool) => Some(pool.blocks()),
            Origin::Host | Origin::Device | Origin::Staging(_) => None,
        }
    }

    /// False once its last registration was taken back: no new work may name it.
    pub fn is_live(&self) -> bool {
        // SYNC region-withdrawn: pairs with withdraw()'s Release.
        !self.withdrawn.load(Ordering::Acquire)
    }

    pub(crate) fn withdraw(&self) {
        // SYNC region-withdrawn: pairs with is_live()'s Acquire.
        self.withdrawn.store(true, Ordering::Release);
    }
}
