//! The way to a peer's memory: keys to it, one for each rail.
//!
//! ```text
//! a path: version u8 | 0 | why in words, UTF-8
//!         version u8 | 1, 2 or 3 | rails u8 | base u64 | for each rail: key u32
//! ```
//!
//! Of memory of the host it is 1; of memory of a device 2, if the peer's cards get at it by a dma-buf, and 3, if by its address.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use penstock_core::Rights;
use penstock_core::limits::UNITS_AT_ONCE;
use penstock_core::plan::RegionKey;
use penstock_memory::Region;
use penstock_transport::{
    AccessPath, AdvertisedRegion, Caps, Exported, ImportError, Pair, RdmaMemory, Registrar, RemoteMemory,
};

use crate::pairing::RAILS_MAX;
use crate::regions::{Regions, RegistrationKind};

const VERSION: u8 = 1;
/// Memory that no adapter reaches.
const NOTHING: u8 = 0;
/// Memory with its keys.
const KEYED: u8 = 1;
const KEYED_BY_DMA_BUF: u8 = 2;
const KEYED_BY_PEER_MEMORY: u8 = 3;

const WHY_BYTES_MAX: usize = 200;

/// Exports regions to, and imports them from, one peer.
pub(crate) struct VerbsRegistrar {
    regions: Arc<Regions>,
    /// The adapter of each rail of the link.
    adapters: Vec<usize>,
    /// All of them, in words.
    names: String,
}

/// What a path says.
#[derive(Debug, PartialEq, Eq)]
pub enum Path<'a> {
    /// The memory is not reached, and why.
    Nothing(&'a str),
    /// Where it begins, and its keys, as many as there are rails.
    Keyed {
        /// The address of its first byte.
        base: u64,
        /// One for each rail.
        keys: Vec<u32>,
        /// By what the peer's cards get at it.
        kind: RegistrationKind,
    },
}

pub fn parse(path: &[u8]) -> Result<Path<'_>, &'static str> {
    match path {
        [VERSION, NOTHING, why @ ..] if why.len() <= WHY_BYTES_MAX => {
            std::str::from_utf8(why).map(Path::Nothing).map_err(|_| "its reason is no text")
        }
        [VERSION, kind @ (KEYED | KEYED_BY_DMA_BUF | KEYED_BY_PEER_MEMORY), rails, rest @ ..] => {
            let (base, keys) = rest.split_first_chunk().ok_or("its path ends early")?;
            let (keys, excess) = keys.as_chunks();
            let count = usize::from(*rails);
            if count == 0 || count > RAILS_MAX || keys.len() != count || !excess.is_empty() {
                return Err("its path has another number of keys than it says");
            }
            let keys = keys.iter().map(|key| u32::from_le_bytes(*key)).collect();
            let kind = match *kind {
                KEYED_BY_DMA_BUF => RegistrationKind::DmaBuf,
                KEYED_BY_PEER_MEMORY => RegistrationKind::PeerMemory,
                _ => RegistrationKind::Host,
            };
            Ok(Path::Keyed { base: u64::from_le_bytes(*base), keys, kind })
        }
        _ => Err("its path is not one of verbs"),
    }
}

/// The memory of a region that a peer has advertised on a link of so many rails.
pub fn import(region: &AdvertisedRegion<'_>, rails: usize) -> Result<RdmaMemory, ImportError> {
    match parse(region.access_blob).map_err(ImportError::Malformed)? {
        Path::Nothing(why) => Err(ImportError::NoPath(why.to_owned())),
        Path::Keyed { base, keys, .. } => {
            if keys.len() != rails {
                return Err(ImportError::Malformed("it has another number of keys than the session has rails"));
            }
            if base != region.base || base.checked_add(region.bytes).is_none() {
                return Err(ImportError::Malformed("it does not lie where it is said to"));
            }
            let key = RegionKey { region: region.id, generation: region.generation };
            Ok(RdmaMemory { key, iova: base, bytes: region.bytes, rkeys: keys })
        }
    }
}

fn nothing(why: &str) -> Vec<u8> {
    let end = (0..=why.len().min(WHY_BYTES_MAX)).rev().find(|end| why.is_char_boundary(*end)).unwrap_or(0);
    [&[VERSION, NOTHING][..], &why.as_bytes()[..end]].concat()
}

fn keyed(base: u64, keys: &[u32], kind: RegistrationKind) -> Vec<u8> {
    let number = match kind {
        RegistrationKind::Host => KEYED,
        RegistrationKind::DmaBuf => KEYED_BY_DMA_BUF,
        RegistrationKind::PeerMemory => KEYED_BY_PEER_MEMORY,
    };
    let mut path = vec![VERSION, number, keys.len() as u8];
    path.extend(base.to_le_bytes());
    path.extend(keys.iter().flat_map(|key| key.to_le_bytes()));
    path
}

impl VerbsRegistrar {
    /// The registrar of a link whose rails are of these adapters.
    pub(crate) fn new(regions: Arc<Regions>, adapters: Vec<usize>, names: String) -> Self {
        Self { regions, adapters, names }
    }

    fn path(&self, region: &Arc<Region>) -> Vec<u8> {
        let generation = region.generation();
        // With no rights as well: this side's own adapters read it and write it, and now is a better moment than under a transfer.
        let has_keys = self.regions.has_keys(region, generation, &self.adapters);
        let keys = match self.regions.refusal(region, generation).filter(|_| !has_keys) {
            Some(why) => Err(why),
            None => self.regions.keys(region, generation, &self.adapters).map_err(|error| error.to_string()),
        };
        match keys {
            _ if region.rights() == Rights::NONE => nothing("the region gives no rights to peers"),
            Ok(keys) => keyed(region.base_address(), &keys.remote[..self.adapters.len()], keys.kind),
            Err(error) => {
                tracing::warn!(region = region.label(), %error, "memory cannot be offered to a peer's cards");
                nothing(&error)
            }
        }
    }
}

impl Registrar for VerbsRegistrar {
    fn preparation(&self, region: &Arc<Region>) -> Option<Box<dyn FnOnce() + Send>> {
        let generation = region.generation();
        if self.regions.has_keys(region, generation, &self.adapters) {
            return None;
        }
        let (regions, region, adapters) = (Arc::clone(&self.regions), Arc::clone(region), self.adapters.clone());
        Some(Box::new(move || regions.prepare(&region, generation, &adapters)))
    }

    fn export(&self, region: &Arc<Region>) -> Exported {
        Exported { access_blob: self.path(region), ..Exported::default() }
    }

    fn import(&self, region: &AdvertisedRegion<'_>, fd: Option<OwnedFd>) -> Result<RemoteMemory, ImportError> {
        if fd.is_some() {
            return Err(ImportError::Malformed("a card needs no descriptor"));
        }
        Ok(RemoteMemory::Rdma(Arc::new(import(region, self.adapters.len())?)))
    }

    fn reaches_device(&self, region: &Arc<Region>) -> Result<(), String> {
        let keys = self.regions.keys(region, region.generation(), &self.adapters);
        keys.map(|_| ()).map_err(|error| error.to_string())
    }

    fn pair(&self, caps: &Caps, local: &Arc<Region>, remote: &RemoteMemory) -> Result<Pair, ImportError> {
        if local.host().is_none() {
            self.reaches_device(local).map_err(ImportError::NoPath)?;
        }
        // Whose memory it is makes no difference to a card.
        match remote {
            RemoteMemory::Rdma(_) => Ok(Pair {
                is_synchronous: false,
                is_ordered: caps.ordered,
                splits: caps.multi_worker,
                units_at_once: UNITS_AT_ONCE,
                is_staged: false,
            }),
            _ => Err(ImportError::NoPath("a card reaches no such memory".to_owned())),
        }
    }

    fn access_path(&self, region: &AdvertisedRegion<'_>) -> AccessPath {
        match parse(region.access_blob) {
            Ok(Path::Keyed { kind, .. }) => {
                let (name, theirs) = match kind {
                    RegistrationKind::Host => (AccessPath::VERBS, ""),
                    RegistrationKind::DmaBuf => {
                        (AccessPath::GPUDIRECT_DMA_BUF, "; the peer's card reaches its device's memory by a dma-buf")
                    }
                    RegistrationKind::PeerMemory => (
                        AccessPath::GPUDIRECT_PEER_MEMORY,
                        "; the peer's card reaches its device's memory by a kernel module",
                    ),
                };
                AccessPath { name, reason: format!("by this side's card, over {}{theirs}", self.names) }
            }
            Ok(Path::Nothing(why)) => AccessPath { name: AccessPath::NONE, reason: why.to_owned() },
            Err(why) => AccessPath { name: AccessPath::NONE, reason: why.to_owned() },
        }
    }
}
