//! What is registered with this engine's adapters: each region once with each adapter, whoever needs it.
//!
//! A registration is made when a peer or a lane first needs it and ends when its region is forgotten. A region whose memory was renewed
//! is registered anew under its next generation; what was registered before keeps the old pages until the region is forgotten.
//!
//! Memory of a device is registered by the dma-buf of its pages, or else by its address, which a kernel module may know. Both are asked for anew with each
//! generation.

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use penstock_core::plan::RegionKey;
use penstock_core::{Generation, RegionId};
use penstock_memory::{DeviceId, DeviceWindow, Memory, Region, RegionError, Registry};
use penstock_transport::{CardAccess, Devices, DmaBuf};

use crate::adapter::{AccessFlags, Adapter, AdapterError, DeviceReach, Registration};
use crate::pairing::RAILS_MAX;

/// All registrations of an engine's regions.
pub(crate) struct Regions {
    adapters: Vec<Arc<dyn Adapter>>,
    /// Which of them have failed. They register nothing, and no rail of theirs needs a key.
    dead: Vec<AtomicBool>,
    registry: Arc<Registry>,
    /// Those of this process; none: no memory of them is registered.
    devices: Option<Arc<dyn Devices>>,
    table: Mutex<HashMap<(RegionId, Generation), Entry>>,
    /// Why cards have refused what was prepared for peers: nobody who may not wait tries it once more.
    refused: Mutex<HashMap<(RegionId, Generation), String>>,
    /// Devices that see what adapters have written after a flush only, and whether there are any.
    flushed: Mutex<Vec<DeviceId>>,
    any_flushed: AtomicBool,
}

/// One use of a region's id, as far as adapters know it.
struct Entry {
    /// Stays what it is while adapters know it.
    memory: Memory,
    kind: RegistrationKind,
    /// By the adapter's place.
    on: Vec<Option<Arc<dyn Registration>>>,
    /// The device that has to be flushed before anybody is told of bytes in it.
    flushed: Option<DeviceId>,
}

/// By what adapters get at a memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum RegistrationKind {
    /// It is the host's.
    #[default]
    Host,
    /// A device's, by the kernel's descriptor of it.
    DmaBuf,
    /// A device's, by its address.
    PeerMemory,
}

/// What was registered, by the adapter's place.
type Made = Vec<(usize, Arc<dyn Registration>)>;

/// The keys of one region on the rails of one link, in their order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Keys {
    pub(crate) local: LocalKeys,
    pub(crate) remote: [u32; RAILS_MAX],
    pub(crate) kind: RegistrationKind,
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
        let (table, refused, flushed, any_flushed) = Default::default();
        Self { adapters, dead, registry, devices: None, table, refused, flushed, any_flushed }
    }

    /// Memory of these devices is registered, too.
    pub(crate) fn with_devices(self, devices: Arc<dyn Devices>) -> Self {
        Self { devices: Some(devices), ..self }
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

    /// Registers a region, by somebody who may wait, for [`Regions::keys`] and [`Regions::refusal`].
    pub(crate) fn prepare(&self, region: &Arc<Region>, generation: Generation, rails: &[usize]) {
        let outcome = self.keys(region, generation, rails);
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        match outcome {
            Err(NoKeys::Card(error)) => drop(refused.insert((region.id(), generation), error.to_string())),
            _ => drop(refused.remove(&(region.id(), generation))),
        }
    }

    /// Why a region was refused when it was prepared last.
    pub(crate) fn refusal(&self, region: &Region, generation: Generation) -> Option<String> {
        let refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.get(&(region.id(), generation)).cloned()
    }

    /// Whether a region has its keys under this generation, so that nothing has to be registered.
    pub(crate) fn has_keys(&self, region: &Region, generation: Generation, rails: &[usize]) -> bool {
        let table = self.lock();
        let entry = table.get(&(region.id(), generation));
        entry.is_some_and(|entry| entry.keys(rails, |adapter| self.is_dead(adapter)).is_some())
    }

    /// The keys of a region under this generation on rails of these adapters. It is registered now where it is not yet.
    pub(crate) fn keys(&self, region: &Arc<Region>, generation: Generation, rails: &[usize]) -> Result<Keys, NoKeys> {
        let name = (region.id(), generation);
        if let Some(keys) = self.lock().get(&name).and_then(|entry| entry.keys(rails, |adapter| self.is_dead(adapter)))
        {
            return Ok(keys);
        }
        // Not under the lock: memory is pinned meanwhile, which may take long. Who comes second drops what it has made.
        let is_missing = |&adapter: &usize| {
            let is_there = |entry: &Entry| entry.on[adapter].is_some();
            !self.is_dead(adapter) && !self.lock().get(&name).is_some_and(is_there)
        };
        let missing: Vec<usize> = rails.iter().copied().filter(is_missing).collect();
        // Asked for long ago, it may be another's memory by now.
        is_current(region, generation)?;
        let (made, kind, flushed) = match region.memory() {
            Memory::Host(window) => {
                let register = |adapter: usize| Ok((adapter, self.adapters[adapter].register(window, access(region))?));
                let made = missing.into_iter().map(register).collect::<Result<Made, AdapterError>>()?;
                (made, RegistrationKind::Host, None)
            }
            Memory::Device(memory) => self.register_device(memory, missing, access(region))?,
        };
        let mut table = self.lock();
        // Looked at under the lock under which it is forgotten: nothing is registered for who was forgotten already.
        is_current(region, generation)?;
        let entry = table.entry(name).or_insert_with(|| Entry {
            memory: region.memory().clone(),
            kind: RegistrationKind::Host,
            on: vec![None; self.adapters.len()],
            flushed: None,
        });
        // Of several adapters the one counts that is served worst.
        entry.kind = entry.kind.max(kind);
        entry.flushed = entry.flushed.or(flushed);
        for (adapter, registration) in made {
            entry.on[adapter].get_or_insert(registration);
        }
        // By now it is registered with all of them but those that have failed.
        let keys = entry.keys(rails, |_| true).expect("no key has to be there");
        if flushed.is_some() {
            self.list_flushed(&table);
        }
        Ok(keys)
    }

    fn register_device(
        &self,
        memory: &DeviceWindow,
        missing: Vec<usize>,
        access: AccessFlags,
    ) -> Result<(Made, RegistrationKind, Option<DeviceId>), AdapterError> {
        let no_path = |why: String| AdapterError::DeviceMemory { why };
        let devices = self.devices.as_ref().ok_or_else(|| no_path("this engine has no devices".to_owned()))?;
        let shared = devices.share_with_cards(memory).map_err(no_path)?;
        let (mut made, mut kind) = (Made::with_capacity(missing.len()), RegistrationKind::Host);
        for place in missing {
            let (registration, by) = register_on(&*self.adapters[place], memory, &shared, access)?;
            made.push((place, registration));
            kind = kind.max(by);
        }
        Ok((made, kind, shared.needs_flush.then(|| memory.device())))
    }

    /// Lists anew which devices are to be flushed. Before keys to their memory are given to anybody.
    fn list_flushed(&self, table: &HashMap<(RegionId, Generation), Entry>) {
        let mut devices: Vec<DeviceId> = table.values().filter_map(|entry| entry.flushed).collect();
        devices.sort_unstable();
        devices.dedup();
        let mut flushed = self.flushed.lock().unwrap_or_else(PoisonError::into_inner);
        // SYNC device-flush: pairs with flushes_any()'s Acquire: who is told of bytes was sent them by somebody who got the keys after this.
        self.any_flushed.store(!devices.is_empty(), Ordering::Release);
        *flushed = devices;
    }

    /// Whether anything has to be flushed before somebody is told of bytes.
    #[inline]
    pub(crate) fn flushes_any(&self) -> bool {
        self.any_flushed.load(Ordering::Acquire) // SYNC device-flush: pairs with list_flushed()'s Release
    }

    /// Has devices see what adapters have written whose completions were polled.
    #[cold]
    pub(crate) fn flush(&self) {
        let Some(devices) = &self.devices else { return };
        for &device in &*self.flushed.lock().unwrap_or_else(PoisonError::into_inner) {
            // It fails with the device, which nothing can be read from any more, and other memory is well.
            if let Err(error) = devices.flush_card_writes(device) {
                tracing::warn!(error, %device, "what cards have written to a device was not flushed");
            }
        }
    }

    /// Whether copies that a program has ordered behind its streams may begin on this device.
    pub(crate) fn is_in_order(&self, device: DeviceId) -> bool {
        self.devices.as_ref().is_none_or(|devices| devices.is_in_order(device))
    }

    /// A region is gone, or the engine is: what was registered for it up to this generation ends. Its id may be another's already.
    pub(crate) fn forget(&self, id: RegionId, last: Generation) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.retain(|(region, generation), _| *region != id || generation.0 > last.0);
        drop(refused);
        let mut gone = Vec::new();
        let mut table = self.lock();
        table.retain(|(region, generation), entry| {
            let stays = *region != id || generation.0 > last.0;
            if !stays {
                gone.push((std::mem::take(&mut entry.on), entry.memory.clone()));
            }
            stays
        });
        if self.flushes_any() {
            self.list_flushed(&table);
        }
        drop(table);
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

/// Whether a region is still there, under this generation.
fn is_current(region: &Region, generation: Generation) -> Result<(), RegionError> {
    let (id, current) = (region.id(), region.generation());
    if !region.is_live() || current != generation {
        return Err(RegionError::StaleGeneration { id, presented: generation, current });
    }
    Ok(())
}

/// Registers memory of a device with one adapter, by what that takes.
fn register_on(
    adapter: &dyn Adapter,
    memory: &DeviceWindow,
    shared: &CardAccess,
    access: AccessFlags,
) -> Result<(Arc<dyn Registration>, RegistrationKind), AdapterError> {
    let no_dma_buf = match &shared.dma_buf {
        Ok(DmaBuf { descriptor, offset }) => {
            let by = DeviceReach::DmaBuf { descriptor: descriptor.as_fd(), offset: *offset };
            match adapter.register_device(memory, by, access) {
                Ok(registration) => return Ok((registration, RegistrationKind::DmaBuf)),
                Err(error) => error.to_string(),
            }
        }
        Err(why) => why.clone(),
    };
    match adapter.register_device(memory, DeviceReach::PeerMemory, access) {
        Ok(registration) => {
            tracing::debug!(why = no_dma_buf, "memory of a device is reached by peer memory, and not by a dma-buf");
            Ok((registration, RegistrationKind::PeerMemory))
        }
        Err(error) => {
            Err(AdapterError::DeviceMemory { why: format!("by dma-buf: {no_dma_buf}; by peer memory: {error}") })
        }
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
        let mut keys = Keys { kind: self.kind, ..Keys::default() };
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
