//! The access path to memory that its owner moves for peers: there is nothing to register.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use penstock_core::Rights;
use penstock_core::plan::RegionKey;
use penstock_memory::Region;

use crate::{AccessPath, AdvertisedRegion, Exported, ImportError, Registrar, RemoteMemory, TargetMediatedMemory};

/// The access blob of memory that peers may not touch.
const NO_ACCESS: u8 = 0;
/// The access blob of memory that its owner moves for peers.
const TARGET_MEDIATED: u8 = 1;

/// Exports regions to, and imports them from, engines whose workers move the bytes of their own memory.
pub struct TargetMediatedRegistrar {
    /// The name of the access path.
    pub name: &'static str,
    /// Why it is this one, in words.
    pub reason: &'static str,
}

impl Registrar for TargetMediatedRegistrar {
    fn export(&self, region: &Arc<Region>) -> Exported {
        let kind = if region.rights() == Rights::NONE { NO_ACCESS } else { TARGET_MEDIATED };
        Exported { access_blob: vec![kind], ..Exported::default() }
    }

    fn import(&self, region: &AdvertisedRegion<'_>, fd: Option<OwnedFd>) -> Result<RemoteMemory, ImportError> {
        match (region.access_blob, fd) {
            ([TARGET_MEDIATED], None) => {
                let key = RegionKey { region: region.id, generation: region.generation };
                Ok(RemoteMemory::TargetMediated(TargetMediatedMemory { key, bytes: region.bytes }))
            }
            ([NO_ACCESS], None) => Err(ImportError::NoPath("the region gives no rights to peers".to_owned())),
            _ => Err(ImportError::Malformed("its access path is none of this transport")),
        }
    }

    fn access_path(&self, region: &AdvertisedRegion<'_>) -> AccessPath {
        match region.access_blob {
            [TARGET_MEDIATED] => AccessPath { name: self.name, reason: self.reason.to_owned() },
            _ => AccessPath { name: AccessPath::NONE, reason: "the region gives no rights to peers".to_owned() },
        }
    }
}
