//! Memory that a device and what is at the other end of a session do not both reach: a device's here and a peer's host memory, or, within a process,
//! a device's and host memory that Penstock has not mapped.
//!
//! Bytes go through pinned memory of the worker, a slot for each post. A WRITE is copied into the slot first, and leaves from there as host memory does; a
//! READ comes into the slot, and is copied to its place. So a transport needs nothing for it, and knows nothing of it: this stands around its lanes and
//! its registrar.
//!
//! - [`slots`]: the memory between
//! - [`lane`]: one worker's lane, with what is between its two hops

mod lane;
mod slots;

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use penstock_core::Direction;
use penstock_core::limits::UNITS_AT_ONCE;
use penstock_memory::{Memory, MemoryError, Region};

use self::lane::{StagedLane, is_staged_within};
use self::slots::Slots;
use crate::caps::Caps;
use crate::device::Devices;
use crate::host::EngineSegments;
use crate::lane::Lane;
use crate::link::{AdvertisedRegion, Exported, ImportError, Link, Registrar};
use crate::pair::Pair;
use crate::remote::{AccessPath, RemoteMemory};

/// The staging memory of an engine.
pub struct Staging {
    devices: Arc<dyn Devices>,
    segments: Arc<EngineSegments>,
    /// Bytes for each worker and direction.
    bytes: u64,
    /// By worker, and [`Direction`]. Made when a plan needs it first.
    slots: Box<[[OnceLock<Arc<Slots>>; 2]]>,
}

impl Staging {
    /// None is made yet. Each worker has so many bytes for each direction.
    pub fn new(devices: Arc<dyn Devices>, segments: Arc<EngineSegments>, bytes: u64) -> Self {
        let slots = (0..segments.workers()).map(|_| Default::default()).collect();
        Self { devices, segments, bytes, slots }
    }

    /// Has the lanes of a session take memory of devices on this side.
    pub fn over(self: &Arc<Self>, link: Link, peer_index: u32) -> Link {
        let Link { lanes, registrar, peer_view, .. } = link;
        let view = (&peer_view, registrar.reaches_devices());
        let staged = |(worker, lane)| Box::new(StagedLane::new(self, lane, view, worker, peer_index)) as Box<dyn Lane>;
        let lanes = lanes.into_iter().enumerate().map(staged).collect();
        let registrar = Arc::new(StagedRegistrar { inner: registrar, staging: Arc::clone(self) });
        Link { lanes, registrar, peer_view, ..link }
    }

    /// Whether and how bytes go between this memory here and this one of a peer through staging memory.
    fn pair(
        &self,
        inner: &dyn Registrar,
        caps: &Caps,
        local: &Memory,
        remote: &RemoteMemory,
    ) -> Option<Result<Pair, ImportError>> {
        let device = match (inner.reaches_devices(), remote) {
            (true, _) if !is_staged_within(local, remote) => return None,
            (true, RemoteMemory::Device(window)) => Memory::Device(window.clone()),
            // A card looks local memory up by its region's key.
            (false, RemoteMemory::Device(_) | RemoteMemory::Rdma(_)) => return None,
            (false, _) if local.device().is_none() => return None,
            _ => local.clone(),
        };
        let pair =
            Pair { is_synchronous: false, is_ordered: false, splits: caps.multi_worker, units_at_once: UNITS_AT_ONCE };
        Some(self.prepare(&device).map(|()| pair))
    }

    /// All workers can stage for this device from now on.
    fn prepare(&self, device: &Memory) -> Result<(), ImportError> {
        for (worker, slots) in self.slots.iter().enumerate() {
            for slots in slots {
                let slots = match slots.get() {
                    Some(slots) => slots,
                    None => {
                        let ready = self.segments.mailbox.view().ready(worker);
                        let made = Slots::new(self.bytes, ready).map_err(|error| no_memory(&error))?;
                        slots.get_or_init(|| Arc::new(made))
                    }
                };
                self.devices.pair(device, &slots.memory).map_err(|error| not_pinned(&error, self.bytes))?;
            }
        }
        Ok(())
    }

    fn slots(&self, worker: usize, direction: Direction) -> Option<&Arc<Slots>> {
        self.slots.get(worker)?[direction as usize].get()
    }
}

fn not_pinned(error: &ImportError, bytes: u64) -> ImportError {
    ImportError::NoPath(format!(
        "bytes are to be staged here, in {bytes} B for each worker and direction (`device.staging_bytes`, which may be lowered), and {error}"
    ))
}

fn no_memory(error: &MemoryError) -> ImportError {
    ImportError::NoPath(format!("there is no memory to stage in ({error}): lower `device.staging_bytes`"))
}

/// What a transport registers, and between a device's memory here and host memory there what is staged.
struct StagedRegistrar {
    inner: Arc<dyn Registrar>,
    staging: Arc<Staging>,
}

impl Registrar for StagedRegistrar {
    fn export(&self, region: &Arc<Region>) -> Exported {
        self.inner.export(region)
    }

    fn is_renewed(&self, access_blob: &[u8]) -> bool {
        self.inner.is_renewed(access_blob)
    }

    fn import(&self, region: &AdvertisedRegion<'_>, fd: Option<OwnedFd>) -> Result<RemoteMemory, ImportError> {
        self.inner.import(region, fd)
    }

    fn import_with_extra_fds(
        &self,
        region: &AdvertisedRegion<'_>,
        fd: Option<OwnedFd>,
        extra_fds: Vec<OwnedFd>,
    ) -> Result<RemoteMemory, ImportError> {
        self.inner.import_with_extra_fds(region, fd, extra_fds)
    }

    fn reaches_devices(&self) -> bool {
        self.inner.reaches_devices()
    }

    fn pair(&self, caps: &Caps, local: &Memory, remote: &RemoteMemory) -> Result<Pair, ImportError> {
        let staged = self.staging.pair(&*self.inner, caps, local, remote);
        staged.unwrap_or_else(|| self.inner.pair(caps, local, remote))
    }

    fn access_path(&self, region: &AdvertisedRegion<'_>) -> AccessPath {
        self.inner.access_path(region)
    }
}
