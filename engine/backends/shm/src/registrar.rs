//! The ways to a peer's memory: pools are mapped; what the caller brought is reached where it is, or through
//! its owner.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use penstock_core::Rights;
use penstock_core::budget::PeerBudget;
use penstock_core::plan::RegionKey;
use penstock_memory::{
    BlockingCalls, ForeignShare, FreshPiece, MemoryError, MemoryLimit, PageKind, Pool, ProcessVmMemory, Region, Trial,
    is_huge_tlb, map_counted_pool, map_foreign_pieces,
};
use penstock_transport::{
    AccessPath, AdvertisedRegion, Exported, ImportError, Registrar, RemoteMemory, TargetMediatedMemory,
};

/// The path of memory that peers may not touch.
const NOTHING: u8 = 0;
/// The path of memory that a peer can map; what follows is the kind of its pages.
const MAPPABLE: u8 = 1;
/// The path of memory that only its own process has mapped.
const CALLER: u8 = 2;
/// The path of a pool with fresh memory over parts of it: the kind of its pages, then for each part its offset and its
/// length, eight bytes each. A release that does not know it refuses the region instead of mapping old memory.
const MAPPABLE_IN_PIECES: u8 = 3;

/// Why such a pool is not mapped.
const HUGE: &str = "a pool of reserved huge pages that peers may write: a hole in it would end whoever had it mapped";

/// Exports regions to, and imports them from, processes of the same host.
pub struct ShmRegistrar {
    /// The peer's process, if its memory can be reached from this one.
    process: Trial,
    /// What may be mapped of its pools.
    mapped: Arc<PeerBudget>,
    /// Where they are unmapped.
    blocking: BlockingCalls,
}

impl ShmRegistrar {
    /// The registrar of a session with this process.
    pub fn new(process: Trial, mapped: Arc<PeerBudget>, blocking: BlockingCalls) -> Self {
        Self { process, mapped, blocking }
    }

    fn take(&self, bytes: u64) -> Result<Option<ForeignShare>, MemoryError> {
        let limit = MemoryLimit::Configured { key: "session.mapped_bytes", allowed: self.mapped.most() };
        let mend = "raise it, or have the peer register less";
        let none = MemoryError::OutOfMemory { what: "a peer's pool", asked: bytes, limit, mend };
        let share = self.mapped.take(bytes).ok_or(none)?;
        Ok(Some(ForeignShare { share, blocking: self.blocking.clone() }))
    }

    /// All ways of this session, in words.
    pub fn path(&self) -> String {
        let pools = "same host, pools mapped, one copy";
        match self.process.answer() {
            Ok(_) => format!("{pools}; caller memory by process_vm, one copy"),
            Err(why) => format!("{pools}; caller memory by its owner through bounce slots, two copies: {why}"),
        }
    }

    /// The one place where it is decided how memory is reached that is not mapped here.
    fn way_to_unmapped(&self, region: &AdvertisedRegion<'_>) -> Result<RemoteMemory, ImportError> {
        match self.process.answer() {
            Ok(process) => {
                let writable = region.rights.allows_write();
                let memory = ProcessVmMemory::new(process, region.base, region.bytes, writable);
                Ok(RemoteMemory::ProcessVm(memory.ok_or(ImportError::Malformed("no memory has such addresses"))?))
            }
            Err(_) => {
                let key = RegionKey { region: region.id, generation: region.generation };
                Ok(RemoteMemory::TargetMediated(TargetMediatedMemory { key, bytes: region.bytes }))
            }
        }
    }
}

impl Registrar for ShmRegistrar {
    fn export(&self, region: &Arc<Region>) -> Exported {
        match region.pool() {
            _ if region.rights() == Rights::NONE => Exported { access_blob: vec![NOTHING], ..Exported::default() },
            // Never by its addresses: fresh memory under them must be out of a frozen writer's reach.
            Some(pool) => export_pool(pool),
            None => Exported { access_blob: vec![CALLER], ..Exported::default() },
        }
    }

    fn is_settled(&self) -> bool {
        self.process.is_over()
    }

    fn is_renewed(&self, path: &[u8]) -> bool {
        path.first() == Some(&MAPPABLE_IN_PIECES)
    }

    fn import(&self, region: &AdvertisedRegion<'_>, fd: Option<OwnedFd>) -> Result<RemoteMemory, ImportError> {
        match (region.access_blob, fd) {
            ([MAPPABLE, pages], Some(fd)) => {
                let pages =
                    PageKind::from_code(*pages).ok_or(ImportError::Malformed("its pages are of no known kind"))?;
                // Seals keep nobody who may write from punching holes, and touching one of reserved huge pages ends the process.
                if region.rights.allows_write() && is_huge_tlb(fd.as_fd()) {
                    return self.way_to_unmapped(region);
                }
                Ok(map_counted_pool(fd, region.bytes, region.rights, pages, self.take(region.bytes)?)?.into())
            }
            ([CALLER], None) => self.way_to_unmapped(region),
            ([NOTHING], None) => Err(ImportError::NoPath("the region gives no rights to peers".to_owned())),
            ([MAPPABLE, _], None) => Err(ImportError::Malformed("it names a descriptor that did not come")),
            _ => Err(ImportError::Malformed("its path is not one of shm")),
        }
    }

    fn import_with_extra_fds(
        &self,
        region: &AdvertisedRegion<'_>,
        fd: Option<OwnedFd>,
        more: Vec<OwnedFd>,
    ) -> Result<RemoteMemory, ImportError> {
        let ([MAPPABLE_IN_PIECES, pages, places @ ..], Some(fd)) = (region.access_blob, fd.as_ref()) else {
            return self.import(region, fd);
        };
        // Nor is there a way to what lies over it but by mapping.
        if [fd].into_iter().chain(&more).any(|fd| is_huge_tlb(fd.as_fd())) {
            return Err(ImportError::Malformed("nothing lies over reserved huge pages, nor do they over others"));
        }
        let fd = fd.try_clone().map_err(|_| ImportError::Memory(MemoryError::NoDescriptor { what: "a pool" }))?;
        let pages = PageKind::from_code(*pages).ok_or(ImportError::Malformed("its pages are of no known kind"))?;
        let (places, rest) = places.as_chunks::<16>();
        if !rest.is_empty() || places.is_empty() || places.len() != more.len() {
            return Err(ImportError::Malformed("its pieces and its descriptors do not belong together"));
        }
        let pieces: Vec<FreshPiece<OwnedFd>> = places.iter().zip(more).map(|(place, fd)| piece(place, fd)).collect();
        Ok(map_foreign_pieces(fd, region.bytes, region.rights, pages, &pieces, self.take(region.bytes)?)?.into())
    }

    fn access_path(&self, region: &AdvertisedRegion<'_>) -> AccessPath {
        let is_huge = matches!(region.access_blob, [MAPPABLE, pages] if *pages == PageKind::HugeTlb.code());
        match (region.access_blob, self.process.answer()) {
            (_, Ok(_)) if is_huge && region.rights.allows_write() => {
                AccessPath { name: AccessPath::PROCESS_VM, reason: HUGE.to_owned() }
            }
            (_, Err(why)) if is_huge && region.rights.allows_write() => {
                AccessPath { name: AccessPath::BOUNCE, reason: format!("{HUGE}; {why}") }
            }
            ([MAPPABLE, _] | [MAPPABLE_IN_PIECES, ..], _) => {
                AccessPath { name: AccessPath::MAPPED, reason: "a pool, which is mapped here".to_owned() }
            }
            ([CALLER], Ok(_)) => {
                let why = "memory that Penstock did not allocate; a trial has shown that the kernel lets this process reach it";
                AccessPath { name: AccessPath::PROCESS_VM, reason: why.to_owned() }
            }
            ([CALLER], Err(why)) => AccessPath { name: AccessPath::BOUNCE, reason: why.to_string() },
            _ => AccessPath { name: AccessPath::NONE, reason: "the region gives no rights to peers".to_owned() },
        }
    }
}

fn export_pool(pool: &Pool) -> Exported {
    let (fd, pieces) = pool.share_in_pieces();
    let pages = pool.pages().got.code();
    if pieces.is_empty() {
        return Exported { access_blob: vec![MAPPABLE, pages], fd: Some(fd), extra_fds: Vec::new() };
    }
    let mut path = vec![MAPPABLE_IN_PIECES, pages];
    for piece in &pieces {
        path.extend(piece.offset.to_le_bytes());
        path.extend(piece.len.to_le_bytes());
    }
    Exported { access_blob: path, fd: Some(fd), extra_fds: pieces.into_iter().map(|piece| piece.fd).collect() }
}

fn piece(place: &[u8; 16], fd: OwnedFd) -> FreshPiece<OwnedFd> {
    // Both halves of one word; whatever they say is checked before anything is mapped.
    let word = u128::from_le_bytes(*place);
    FreshPiece { offset: word as u64, len: (word >> 64) as u64, fd }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use penstock_core::budget::Budget;
    use penstock_core::{Generation, RegionId};
    use penstock_memory::{Pages, PoolSpec, WhyNot};
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

    use super::*;

    const HUGE_BYTES: u64 = 2 << 20;

    fn region<'a>(bytes: u64, rights: Rights, access_blob: &'a [u8]) -> AdvertisedRegion<'a> {
        AdvertisedRegion {
            epoch: 1,
            id: RegionId(0),
            generation: Generation(1),
            bytes,
            base: 1 << 30,
            rights,
            access_blob,
        }
    }

    #[test]
    fn a_pool_of_huge_pages_that_may_be_written_is_not_mapped() {
        let registrar =
            ShmRegistrar::new(Trial::of(Err(WhyNot::SwitchedOff)), Budget::new(u64::MAX).peer(), BlockingCalls::of(0));
        // Without a page behind it: nobody reserves any here.
        let huge = || {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING | MemfdFlags::HUGETLB;
            let fd = memfd_create("huge", flags).unwrap();
            ftruncate(&fd, HUGE_BYTES).unwrap();
            fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW).unwrap();
            fd
        };
        for pages in [PageKind::HugeTlb, PageKind::Small] {
            let blob = [MAPPABLE, pages.code()];
            let imported = registrar.import(&region(HUGE_BYTES, Rights::READ_WRITE, &blob), Some(huge()));
            assert!(matches!(imported, Ok(RemoteMemory::TargetMediated(_))), "whatever it says: {imported:?}");
        }
        let blob = [MAPPABLE, PageKind::HugeTlb.code()];
        let path = registrar.access_path(&region(HUGE_BYTES, Rights::READ_WRITE, &blob));
        assert_eq!(path.name, AccessPath::BOUNCE);
        assert!(path.reason.starts_with(HUGE), "{path:?}");
        assert_eq!(registrar.access_path(&region(HUGE_BYTES, Rights::READ, &blob)).name, AccessPath::MAPPED);
        let read = registrar.import(&region(HUGE_BYTES, Rights::READ, &blob), Some(huge()));
        assert!(matches!(read, Err(ImportError::Memory(MemoryError::Unsealed { .. }))), "{read:?}");
    }

    #[test]
    fn pools_are_mapped_as_far_as_there_is_room_for_them() {
        const BYTES: u64 = 1 << 20;
        let registrar =
            ShmRegistrar::new(Trial::of(Err(WhyNot::SwitchedOff)), Budget::new(5 * BYTES).peer(), BlockingCalls::of(0));
        let pool = Pool::create(PoolSpec::host(BYTES).pages(Pages::Small).rights(Rights::READ_WRITE)).unwrap();
        let blob = [MAPPABLE, pool.pages().got.code()];
        let import = || {
            registrar.import(
                &region(BYTES, Rights::READ_WRITE, &blob),
                Some(export_pool(&pool).fd.unwrap().as_fd().try_clone_to_owned().unwrap()),
            )
        };
        let (first, second) = (import().unwrap(), import().unwrap());
        let refused = import().unwrap_err().to_string();
        assert!(refused.contains("session.mapped_bytes") && refused.contains("5242880 B"), "{refused}");
        drop(first);
        let begun = Instant::now();
        let third = loop {
            match import() {
                Err(_) if begun.elapsed() < Duration::from_secs(10) => std::thread::yield_now(),
                third => break third.unwrap(),
            }
        };
        drop((second, third));
    }
}
