//! The ways to a peer's memory: pools are mapped; what the caller brought is reached where it is.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use penstock_core::Rights;
use penstock_memory::{ForeignMemory, ForeignProcess, PageKind, Region, WhyNot, map_foreign_pool};
use penstock_transport::{Exported, ImportError, Registrar, RemoteMemory, RemoteRegion, Way};

/// The path of memory that peers may not touch.
const NOTHING: u8 = 0;
/// The path of memory that a peer can map; what follows is the kind of its pages.
const MAPPABLE: u8 = 1;
/// The path of memory that only its own process has mapped.
const CALLER: u8 = 2;

/// Exports regions to, and imports them from, processes of the same host.
pub struct ShmRegistrar {
    /// The peer's process, if its memory can be reached from this one.
    process: Result<Arc<ForeignProcess>, WhyNot>,
}

impl ShmRegistrar {
    /// The registrar of a session with this process.
    pub fn new(process: Result<Arc<ForeignProcess>, WhyNot>) -> Self {
        Self { process }
    }

    /// All ways of this session, in words.
    pub fn path(&self) -> String {
        let pools = "same host, pools mapped, one copy";
        match &self.process {
            Ok(_) => format!("{pools}; caller memory by process_vm, one copy"),
            Err(why) => format!("{pools}; caller memory out of reach: {why}"),
        }
    }

    /// The one place where it is decided how memory is reached that the peer brought itself.
    fn way_to_caller_memory(&self, region: &RemoteRegion<'_>) -> Result<RemoteMemory, ImportError> {
        match &self.process {
            Ok(process) => {
                let writable = region.rights.allows_write();
                let memory = ForeignMemory::new(process, region.base, region.bytes, writable);
                Ok(RemoteMemory::Foreign(memory.ok_or(ImportError::Garbled("no memory has such addresses"))?))
            }
            Err(why) => Err(ImportError::NoPath(format!(
                "the region is memory that Penstock did not allocate, and it is out of reach: {why}; or let the peer use a \
                 pool as its storage"
            ))),
        }
    }
}

impl Registrar for ShmRegistrar {
    fn export(&self, region: &Arc<Region>) -> Exported {
        if region.rights() == Rights::NONE {
            return Exported { path: vec![NOTHING], token: None };
        }
        let mappable = region.pool().and_then(|pool| Some((pool.share().ok()?, pool.pages().got)));
        match mappable {
            Some((token, pages)) => Exported { path: vec![MAPPABLE, pages.code()], token: Some(token) },
            None => Exported { path: vec![CALLER], token: None },
        }
    }

    fn import(&self, region: &RemoteRegion<'_>, token: Option<OwnedFd>) -> Result<RemoteMemory, ImportError> {
        match (region.path, token) {
            ([MAPPABLE, pages], Some(token)) => {
                let pages =
                    PageKind::from_code(*pages).ok_or(ImportError::Garbled("its pages are of no known kind"))?;
                Ok(map_foreign_pool(token, region.bytes, region.rights, pages)?.into())
            }
            ([CALLER], None) => self.way_to_caller_memory(region),
            ([NOTHING], None) => Err(ImportError::NoPath("the region gives no rights to peers".to_owned())),
            ([MAPPABLE, _], None) => Err(ImportError::Garbled("it names a descriptor that did not come")),
            _ => Err(ImportError::Garbled("its path is not one of shm")),
        }
    }

    fn way(&self, region: &RemoteRegion<'_>) -> Way {
        match (region.path, &self.process) {
            ([MAPPABLE, _], _) => Way { name: Way::MAPPED, why: "a pool, which is mapped here".to_owned() },
            ([CALLER], Ok(_)) => {
                let why = "memory that Penstock did not allocate; a trial has shown that the kernel lets this process reach it";
                Way { name: Way::PROCESS_VM, why: why.to_owned() }
            }
            ([CALLER], Err(why)) => Way { name: Way::NONE, why: why.to_string() },
            _ => Way { name: Way::NONE, why: "the region gives no rights to peers".to_owned() },
        }
    }
}
