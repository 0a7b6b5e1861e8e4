//! Regions of another engine of the same process, reached by their own windows.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use penstock_memory::{Memory, Region};
use penstock_transport::{AccessPath, AdvertisedRegion, Exported, ImportError, Registrar, RemoteMemory};

use crate::directory::{Deposit, Regions};

/// Exports regions to, and imports them from, engines of the same process.
pub struct LocalRegistrar {
    pub(crate) ours: Arc<Regions>,
    pub(crate) theirs: Arc<Regions>,
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

    fn access_path(&self, _region: &AdvertisedRegion<'_>) -> AccessPath {
        AccessPath { name: AccessPath::MAPPED, reason: "both engines are in this process".to_owned() }
    }
}
