//! Pools as descriptors, mapped by the peer.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use penstock_memory::{MemoryError, PageKind, Piece, Pool, Region, map_foreign_pieces, map_foreign_pool};
use penstock_transport::{Exported, ImportError, Registrar, RemoteMemory, RemoteRegion};

/// The path of memory that a peer can map; what follows is the kind of its pages.
const MAPPABLE: u8 = 1;
/// The path of a pool with fresh memory over parts of it: the kind of its pages, then for each part its offset and its length,
/// eight bytes each. A release that does not know it refuses the region instead of mapping old memory.
const MAPPABLE_IN_PIECES: u8 = 3;
/// The path of memory that a peer cannot map.
const NOT_MAPPABLE: u8 = 0;

/// Exports pools to, and imports them from, processes of the same host.
pub struct ShmRegistrar;

impl Registrar for ShmRegistrar {
    fn export(&self, region: &Arc<Region>) -> Exported {
        let pool = region.pool().filter(|_| region.rights() != penstock_core::Rights::NONE);
        let unmappable = Exported { path: vec![NOT_MAPPABLE], ..Exported::default() };
        pool.and_then(|pool| export_pool(pool)).unwrap_or(unmappable)
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

    fn import_with(
        &self,
        region: &RemoteRegion<'_>,
        token: Option<OwnedFd>,
        more: Vec<OwnedFd>,
    ) -> Result<RemoteMemory, ImportError> {
        let ([MAPPABLE_IN_PIECES, pages, places @ ..], Some(token)) = (region.path, token.as_ref()) else {
            return self.import(region, token);
        };
        let token = token.try_clone().map_err(|_| ImportError::Memory(MemoryError::NoDescriptor { what: "a pool" }))?;
        let pages = PageKind::from_code(*pages).ok_or(ImportError::Garbled("its pages are of no known kind"))?;
        let (places, rest) = places.as_chunks::<16>();
        if !rest.is_empty() || places.len() != more.len() {
            return Err(ImportError::Garbled("its pieces and its descriptors do not belong together"));
        }
        let pieces: Vec<Piece<OwnedFd>> = places.iter().zip(more).map(|(place, fd)| piece(place, fd)).collect();
        Ok(map_foreign_pieces(token, region.bytes, region.rights, pages, &pieces)?.into())
    }
}

fn export_pool(pool: &Pool) -> Option<Exported> {
    let (token, pieces) = pool.share_in_pieces().ok()?;
    let pages = pool.pages().got.code();
    if pieces.is_empty() {
        return Some(Exported { path: vec![MAPPABLE, pages], token: Some(token), more: Vec::new() });
    }
    let mut path = vec![MAPPABLE_IN_PIECES, pages];
    for piece in &pieces {
        path.extend(piece.offset.to_le_bytes());
        path.extend(piece.len.to_le_bytes());
    }
    Some(Exported { path, token: Some(token), more: pieces.into_iter().map(|piece| piece.fd).collect() })
}

fn piece(place: &[u8; 16], fd: OwnedFd) -> Piece<OwnedFd> {
    // Both halves of one word; whatever they say is checked before anything is mapped.
    let word = u128::from_le_bytes(*place);
    Piece { offset: word as u64, len: (word >> 64) as u64, fd }
}
