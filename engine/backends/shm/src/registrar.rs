//! Pools as descriptors, mapped by the peer.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use penstock_memory::{PageKind, Region, map_foreign_pool};
use penstock_transport::{Exported, ImportError, Registrar, RemoteMemory, RemoteRegion};

/// The path of memory that a peer can map; what follows is the kind of its pages.
const MAPPABLE: u8 = 1;
/// The path of memory that a peer cannot map.
const NOT_MAPPABLE: u8 = 0;

/// Exports pools to, and imports them from, processes of the same host.
pub struct ShmRegistrar;

impl Registrar for ShmRegistrar {
    fn export(&self, region: &Arc<Region>) -> Exported {
        let pool = region.pool().filter(|_| region.rights() != penstock_core::Rights::NONE);
        match pool.and_then(|pool| Some((pool.share().ok()?, pool.pages().got))) {
            Some((token, pages)) => Exported { path: vec![MAPPABLE, pages.code()], token: Some(token) },
            None => Exported { path: vec![NOT_MAPPABLE], token: None },
        }
    }

    fn import(&self, region: &RemoteRegion<'_>, token: Option<OwnedFd>) -> Result<RemoteMemory, ImportError> {
        match (region.path, token) {
            ([MAPPABLE, pages], Some(token)) => {
                let pages =
                    PageKind::from_code(*pages).ok_or(ImportError::Garbled("its pages are of no known kind"))?;
                Ok(map_foreign_pool(token, region.bytes, region.rights, pages)?.into())
            }
            ([NOT_MAPPABLE], None) => Err(ImportError::NoPath(
                "the region is memory that Penstock did not allocate, which shm cannot reach; \
                 let the peer use a pool as its storage",
            )),
            ([MAPPABLE, _], None) => Err(ImportError::Garbled("it names a descriptor that did not come")),
            _ => Err(ImportError::Garbled("its path is not one of shm")),
        }
    }
}
