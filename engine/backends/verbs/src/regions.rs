//! What is registered with this engine's adapters: each region once with each adapter, whoever needs it.
//!
//! A registration is made when a peer or a lane first needs it and ends when its region is forgotten. A region whose memory was renewed
//! is registered anew under its next generation; what was registered before keeps the old pages until the region is forgotten.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use penstock_core::plan::RegionKey;
use penstock_core::{Generation, RegionId};
use penstock_memory::{Region, RegionError, Registry, Window};

use crate::adapter::{AccessFlags, Adapter, AdapterError, Registration};
use crate::pairing::RAILS_MAX;

/// All registrations of an engine's regions.
pub(crate) struct Regions {
    adapters: Vec<Arc<dyn Adapter>>,
    /// Which of them have failed. They register nothing, and no rail of theirs needs a key.
    dead: Vec<AtomicBool>,
    registry: Arc<Registry>,
    table: Mutex<HashMap<(RegionId, Generation), Entry>>,
}

/// One use of a region's id, as far as adapters know it.
struct Entry {
    /// Stays mapped while adapters know it.
    window: Window,
    /// By the adapter's place.
    on: Vec<Option<Arc<dyn Registration>>>,
}

/// The keys of one region on the rails of one link, in their order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) local: LocalKeys,
    pub(crate) remote: [u32; RAILS_MAX],
}

/// What this side's requests name a region by on each rail.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LocalKeys {
    keys: [u32; RAILS_MAX],
}

impl LocalKeys {
    /// The keys on the first rails, which are all that a link has.
    #[inline]
    pub(crate) fn first(&self, rails: usize) -> &[u32] {
        &self.keys[..rails]
    }
}

/// Why a region has no keys.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoKeys {
    /// It has gone, or has another generation by now.
    #[error(transparent)]
    Gone(#[from] RegionError),
    /// An adapter does not take it.
    #[error(transparent)]
    Card(#[from] AdapterError),
}

impl Regions {
    pub(crate) fn new(adapters: Vec<Arc<dyn Adapter>>, registry: Arc<Registry>) -> Self {
        let dead = adapters.iter().map(|_| AtomicBool::new(false)).collect();
        Self { adapters, dead, registry, table: Mutex::default() }
    }

    /// An adapter has failed: from now on regions do without it.
    pub(crate) fn has_failed(&self, adapter: usize) {
        // Relaxed: who does not see it yet is refused by the adapter.
        self.dead[adapter].store(true, Ordering::Relaxed);
    }

    fn is_dead(&self, adapter: usize) -> bool {
        self.dead[adapter].load(Ordering::Relaxed)
    }

    /// The keys of the region of this name.
    pub(crate) fn keys_of(&self, key: RegionKey, rails: &[usize]) -> Result<Keys, NoKeys> {
        let region = self.registry.resolve(key.region, key.generation)?;
        self.keys(&region, key.generation, rails)
    }

    /// The keys of a region under this generation on rails of these adapters. It is registered now where it is not yet.
    pub(crate) fn keys(&self, region: &Arc<Region>, generation: Generation, rails: &[usize]) -> Result<Keys, NoKeys> {
        let name = (region.id(), generation);
        if let Some(keys) = self.lock().get(&name).and_then(|entry| entry.keys(rails, |adapter| self.is_dead(adapter)))
        {
            return Ok(keys);
        }
        let Some(window) = region.host() else {
            return Err(AdapterError::DeviceMemory { why: "no card is asked yet".to_owned() }.into());
        };
        // Not under the lock: memory is pinned meanwhile, which may take long. Who comes second drops what it has made.
        let mut made = Vec::with_capacity(rails.len());
        for &adapter in rails {
            let is_there = |entry: &Entry| entry.on[adapter].is_some();
            if !self.is_dead(adapter) && !self.lock().get(&name).is_some_and(is_there) {
                made.push((adapter, self.adapters[adapter].register(window, access(region))?));
            }
        }
        let mut table = self.lock();
        let current = region.generation();
        // Looked at under the lock under which it is forgotten: nothing is registered for who was forgotten already.
        if !region.is_live() || current != generation {
            let (id, presented) = (region.id(), generation);
            return Err(RegionError::StaleGeneration { id, presented, current }.into());
        }
        let entry =
            table.entry(name).or_insert_with(|| Entry { window: window.clone(), on: vec![None; self.adapters.len()] });
        for (adapter, registration) in made {
            entry.on[adapter].get_or_insert(registration);
        }
        // By now it is registered with all of them but those that have failed.
        Ok(entry.keys(rails, |_| true).expect("no key has to be there"))
    }

    /// A region is gone, or the engine is: what was registered for it up to this generation ends. Its id may be another's already.
    pub(crate) fn forget(&self, id: RegionId, last: Generation) {
        let mut gone = Vec::new();
        self.lock().retain(|(region, generation), entry| {
            let stays = *region != id || generation.0 > last.0;
            if !stays {
                gone.push((std::mem::take(&mut entry.on), entry.window.clone()));
            }
            stays
        });
        // Not under the lock: memory is let go of meanwhile.
        drop(gone);
    }

    /// How many registrations there are.
    pub(crate) fn count(&self) -> usize {
        self.lock().values().map(|entry| entry.on.iter().flatten().count()).sum()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<(RegionId, Generation), Entry>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What peers and this side's own adapters may do with a region.
fn access(region: &Region) -> AccessFlags {
    let (rights, land) = (region.rights(), region.memory().is_writable());
    AccessFlags { read: rights.allows_read(), write: rights.allows_write() && land, land }
}

impl Entry {
    /// Its keys, if it is registered with all of these adapters but those that it may do without, for which the key is zero.
    fn keys(&self, rails: &[usize], may_lack: impl Fn(usize) -> bool) -> Option<Keys> {
        let mut keys = Keys::default();
        for (rail, &adapter) in rails.iter().enumerate() {
            let Some(registration) = &self.on[adapter] else {
                if may_lack(adapter) {
                    continue;
                }
                return None;
            };
            (keys.local.keys[rail], keys.remote[rail]) = (registration.local_key(), registration.remote_key());
        }
        Some(keys)
    }
}
