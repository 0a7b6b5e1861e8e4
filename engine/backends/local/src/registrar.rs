//! Regions of another engine of the same process, reached by their own windows.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use penstock_memory::{Memory, Region};
use penstock_transport::{
    AccessPath, AdvertisedRegion, Caps, Devices, Exported, ImportError, Pair, Registrar, RemoteMemory,
};

use crate::directory::{Deposit, Regions};

/// Why an engine copies no device memory.
const NO_DEVICES: &str = "this engine has found no CUDA driver when it started: `penstock doctor gpu` says why";

/// Exports regions to, and imports them from, engines of the same process.
pub struct LocalRegistrar {
    pub(crate) ours: Arc<Regions>,
    pub(crate) theirs: Arc<Regions>,
    /// What copies where a device's memory is on a side.
    pub(crate) devices: Option<Arc<dyn Devices>>,
    /// Our side of the session, for as long as it lasts: the peer may collect it after we joined.
    pub(crate) _deposit: Deposit,
}

impl Registrar for LocalRegistrar {
    fn export(&self, region: &Arc<Region>) -> Exported {
        self.ours.publish(region);
        Exported::default()
    }

    fn import(&self, region: &AdvertisedRegion<'_>, _token: Option<OwnedFd>) -> Result<RemoteMemory, ImportError> {
        let found = self.theirs.find(region.id.0, region.generation.0).ok_or(ImportError::Gone)?;
        if found.bytes() != region.bytes {
            return Err(ImportError::Malformed("its length is not the one advertised"));
        }
        Ok(match found.memory().clone() {
            Memory::Host(window) => RemoteMemory::Mapped(window),
            Memory::Device(window) => RemoteMemory::Device(window),
        })
    }

    fn reaches_devices(&self) -> bool {
        true
    }

    fn pair(&self, caps: &Caps, local: &Arc<Region>, remote: &RemoteMemory) -> Result<Pair, ImportError> {
        let local = local.memory();
        if let Some(pair) = Pair::of_host(caps, local, remote) {
            return Ok(pair);
        }
        let devices = self.devices.as_deref().ok_or_else(|| ImportError::NoPath(NO_DEVICES.to_owned()))?;
        let remote = match remote {
            RemoteMemory::Mapped(window) => Memory::Host(window.clone()),
            RemoteMemory::Device(window) => Memory::Device(window.clone()),
            _ => return Err(ImportError::NoPath("no device copies to or from memory of another process".to_owned())),
        };
        devices.pair(local, &remote)
    }

    fn access_path(&self, region: &AdvertisedRegion<'_>) -> AccessPath {
        let found = self.theirs.find(region.id.0, region.generation.0);
        if let Some(device) = found.and_then(|found| found.memory().device()) {
            return AccessPath { name: AccessPath::DEVICE, reason: format!("{device} of this process copies") };
        }
        AccessPath { name: AccessPath::MAPPED, reason: "both engines are in this process".to_owned() }
    }
}
