//! The way to a peer's memory: its owner takes bytes from packets and gives them to some.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use penstock_core::Rights;
use penstock_core::plan::RegionKey;
use penstock_memory::Region;
use penstock_transport::{
    AccessPath, AdvertisedRegion, Exported, ImportError, Registrar, RemoteMemory, TargetMediatedMemory,
};

/// The path of memory that peers may not touch.
const NOTHING: u8 = 0;
/// The path of memory that its owner moves for peers.
const OWNERS: u8 = 1;

/// The name of the way.
const SIM: &str = "sim";

/// Exports regions to, and imports them from, engines on other simulated hosts.
pub struct SimRegistrar;

impl Registrar for SimRegistrar {
    fn export(&self, region: &Arc<Region>) -> Exported {
        let kind = if region.rights() == Rights::NONE { NOTHING } else { OWNERS };
        Exported { access_blob: vec![kind], ..Exported::default() }
    }

    fn import(&self, region: &AdvertisedRegion<'_>, fd: Option<OwnedFd>) -> Result<RemoteMemory, ImportError> {
        match (region.access_blob, fd) {
            ([OWNERS], None) => {
                let key = RegionKey { region: region.id, generation: region.generation };
                Ok(RemoteMemory::TargetMediated(TargetMediatedMemory { key, bytes: region.bytes }))
            }
            ([NOTHING], None) => Err(ImportError::NoPath("the region gives no rights to peers".to_owned())),
            _ => Err(ImportError::Malformed("its path is not one of sim")),
        }
    }

    fn access_path(&self, region: &AdvertisedRegion<'_>) -> AccessPath {
        match region.access_blob {
            [OWNERS] => AccessPath { name: SIM, reason: "the peer is met over a simulated network".to_owned() },
            _ => AccessPath { name: AccessPath::NONE, reason: "the region gives no rights to peers".to_owned() },
        }
    }
}
