//! Pools: memory that Penstock allocates itself, shares by descriptor and hands out in blocks.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};

use penstock_core::Rights;
use rustix::mm::Advice;

use crate::blocks::{BlockAllocator, Blocks, TakeError};
use crate::error::MemoryError;
use crate::mapping::{Access, ForeignShare, HUGE_PAGE_BYTES, Mapping, POPULATE_STEP_BYTES, page_bytes, round_up};
use crate::memfd;
use crate::numa;
use crate::pages::{self, PageKind, PagesReport};
use crate::pool_spec::{Pages, PoolSpec};
use crate::renew::Pieces;
use crate::segment::window_over;
use crate::window::Window;

const WHAT: &str = "a pool";

/// A sealed, fully backed memfd, mapped here, that peers on this host can map as well.
///
/// Its size can never change, and where its rights do not let peers write, the kernel refuses
/// every writable mapping but this process's own.
#[derive(Debug)]
pub struct Pool {
    pub(crate) fd: Arc<OwnedFd>,
    pub(crate) mapping: Arc<Mapping>,
    /// What lies over parts of it, see [`renew`](crate::renew).
    pub(crate) pieces: Mutex<Pieces>,
    window: Window,
    label: String,
    rights: Rights,
    pages: PagesReport,
    node: Option<u32>,
    pub(crate) asked_node: Option<u32>,
    blocks: Arc<BlockAllocator>,
}

impl Pool {
    /// Makes the pool: allocates, maps, backs every page and seals.
    pub fn create(spec: PoolSpec) -> Result<Self, MemoryError> {
        if spec.device_id().is_some() {
            return Err(MemoryError::NotHere {
                what: "a pool of device memory that a processor can touch",
                why: "only the device does",
                mend: "make it with Engine::device_pool, or use PoolSpec::host",
            });
        }
        let blocks_total = blocks_total(&spec)?;
        let (fd, mapping, pages) = back(&spec)?;
        memfd::seal(fd.as_fd(), !spec.rights.allows_write(), WHAT)?;
        let node = numa::node_of(mapping.base().as_ptr());
        let (mapping, fd) = (Arc::new(mapping), Arc::new(fd));
        let window = window_over(Arc::clone(&mapping), Access::ReadWrite);
        let blocks = BlockAllocator::new(window.clone().into(), block_bytes(&spec), blocks_total);
        let (label, rights, asked_node) = (spec.label, spec.rights, spec.node);
        let (pieces, blocks) = (Mutex::default(), Arc::new(blocks));
        Ok(Self { fd, mapping, pieces, window, label, rights, pages, node, asked_node, blocks })
    }

    /// Takes `n` blocks, all or none; they are given back when the last clone is dropped.
    pub fn take(&self, n: usize) -> Result<Blocks, TakeError> {
        self.blocks.take(n)
    }

    /// The descriptor that the pool began with. Fresh memory has others, see
    /// [`share_in_pieces`](Self::share_in_pieces).
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub fn window(&self) -> &Window {
        &self.window
    }

    /// The first address, for making the pool the storage of somebody's array.
    ///
    /// The owner of such an array keeps a clone of [`window`](Self::window) for as long as it
    /// uses the address, and accepts that peers may change the bytes at any time their transfers
    /// name them.
    pub fn base_ptr(&self) -> *mut u8 {
        self.window.as_ptr()
    }

    /// Bytes of the pool and of its descriptor: what was asked for, rounded up to whole pages.
    pub fn bytes(&self) -> u64 {
        self.window.len()
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> u64 {
        self.blocks.block_bytes()
    }

    /// Blocks the pool has in all, from the bytes asked for before rounding.
    pub fn blocks_total(&self) -> u32 {
        self.blocks.total()
    }

    /// The allocator of its blocks, for counting by explicit id.
    pub fn blocks(&self) -> &Arc<BlockAllocator> {
        &self.blocks
    }

    /// The name peers find it by.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// What peers may do.
    pub fn rights(&self) -> Rights {
        self.rights
    }

    /// Which pages back it, and why not better ones.
    pub fn pages(&self) -> &PagesReport {
        &self.pages
    }

    /// The NUMA node of its first page; `None` where the kernel does not say.
    pub fn node(&self) -> Option<u32> {
        self.node
    }
}

/// Maps a pool of another process on this host after checking that it is a memfd of exactly
/// `bytes` bytes that can neither shrink nor grow and has all of its pages. Without the right to write, the mapping is read
/// only, and a pool that is not sealed against writers is refused: its owner promised what it
/// did not enforce.
pub fn map_foreign_pool(fd: OwnedFd, bytes: u64, rights: Rights, pages: PageKind) -> Result<Window, MemoryError> {
    map_counted_pool(fd, bytes, rights, pages, None)
}

/// As [`map_foreign_pool`]; of a peer, with what goes with that.
pub fn map_counted_pool(
    fd: OwnedFd,
    bytes: u64,
    rights: Rights,
    pages: PageKind,
    share: Option<ForeignShare>,
) -> Result<Window, MemoryError> {
    let mapping = map_unpopulated(&fd, bytes, (rights, pages), bytes)?.foreign(share);
    let access = if rights.allows_write() { Access::ReadWrite } else { Access::Read };
    populate_foreign(&mapping, fd.as_fd(), access, bytes)?;
    Ok(window_over(Arc::new(mapping), access))
}

/// Populates a peer's pool of which so many bytes must have pages, a part at a time: whoever punches holes meanwhile has this process pay
/// for one part at most.
pub(crate) fn populate_foreign(
    mapping: &Mapping,
    fd: BorrowedFd<'_>,
    access: Access,
    backed: u64,
) -> Result<(), MemoryError> {
    for from in (0..mapping.len()).step_by(POPULATE_STEP_BYTES as usize) {
        memfd::verify_backed(fd, backed, WHAT)?;
        let len = POPULATE_STEP_BYTES.min(mapping.len() - from);
        let populated = mapping.populate_range(fd, access, from, len);
        populated.map_err(|source| memfd::system_error("madvise(populate)", WHAT, len, source))?;
    }
    Ok(())
}

/// As [`map_foreign_pool`], with its checks, and without touching a page. So many of its bytes must have their pages.
pub(crate) fn map_unpopulated(
    fd: &OwnedFd,
    bytes: u64,
    (rights, pages): (Rights, PageKind),
    backed: u64,
) -> Result<Mapping, MemoryError> {
    if bytes == 0 {
        return Err(MemoryError::Empty { what: WHAT });
    }
    let writable = rights.allows_write();
    memfd::verify(fd.as_fd(), bytes, !writable, WHAT)?;
    memfd::verify_backed(fd.as_fd(), backed, WHAT)?;
    let access = if writable { Access::ReadWrite } else { Access::Read };
    let aligned = pages != PageKind::Small || memfd::is_huge_tlb(fd.as_fd());
    let refused = |call, source| memfd::system_error(call, WHAT, bytes, source);
    let mapping = Mapping::new(fd.as_fd(), bytes, access, aligned).map_err(|source| refused("mmap", source))?;
    if pages == PageKind::Transparent {
        // Only advice: where it is refused the same bytes come by base pages.
        let _ = mapping.advise(Advice::LinuxHugepage);
    }
    Ok(mapping)
}

pub(crate) fn block_bytes(spec: &PoolSpec) -> u64 {
    spec.block_bytes.unwrap_or(crate::pool_spec::DEFAULT_BLOCK_BYTES.min(spec.bytes))
}

pub(crate) fn blocks_total(spec: &PoolSpec) -> Result<u32, MemoryError> {
    if spec.bytes == 0 {
        return Err(MemoryError::Empty { what: WHAT });
    }
    let block_bytes = block_bytes(spec);
    let total = spec.bytes.checked_div(block_bytes).unwrap_or(0);
    match u32::try_from(total) {
        Ok(total) if total > 0 => Ok(total),
        _ => Err(MemoryError::BlockSize { block_bytes, bytes: spec.bytes }),
    }
}

type Backing = (OwnedFd, Mapping, PagesReport);

/// Backs the pool with the best pages that its specification and the machine allow.
fn back(spec: &PoolSpec) -> Result<Backing, MemoryError> {
    let mut reasons = Vec::new();
    if spec.pages == Pages::Huge {
        match back_with(spec, PageKind::HugeTlb) {
            Ok((fd, mapping)) => return Ok((fd, mapping, report(spec, PageKind::HugeTlb, reasons))),
            // What no other kind of page would mend.
            Err(error @ (MemoryError::Node { .. } | MemoryError::NoDescriptor { .. })) => return Err(error),
            Err(_) => reasons.push(format!(
                "too few reserved huge pages: sysctl vm.nr_hugepages={} (or more)",
                spec.bytes.div_ceil(HUGE_PAGE_BYTES)
            )),
        }
    }
    if spec.pages != Pages::Small {
        match pages::transparent_allowed(spec.bytes) {
            Ok(()) => return back_transparently(spec, reasons),
            Err(why) => reasons.push(why),
        }
    }
    let (fd, mapping) = back_with(spec, PageKind::Small)?;
    Ok((fd, mapping, report(spec, PageKind::Small, reasons)))
}

/// Asks for transparent huge pages and looks whether they came: fragmented memory gives few.
fn back_transparently(spec: &PoolSpec, mut reasons: Vec<String>) -> Result<Backing, MemoryError> {
    let (fd, mapping) = back_with(spec, PageKind::Transparent)?;
    let huge = pages::transparent_bytes(mapping.base().as_ptr() as u64);
    let possible = mapping.len() / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    if huge < possible {
        reasons.push(format!("memory is fragmented: the kernel found huge pages for {huge} of {possible} B"));
    }
    let got = if huge >= possible / 2 { PageKind::Transparent } else { PageKind::Small };
    Ok((fd, mapping, report(spec, got, reasons)))
}

fn report(spec: &PoolSpec, got: PageKind, reasons: Vec<String>) -> PagesReport {
    let reason = if reasons.is_empty() { None } else { Some(reasons.join("; ")) };
    PagesReport { asked: spec.pages, got, reason }
}

fn back_with(spec: &PoolSpec, kind: PageKind) -> Result<(OwnedFd, Mapping), MemoryError> {
    let huge_tlb = kind == PageKind::HugeTlb;
    let page = if huge_tlb { HUGE_PAGE_BYTES } else { page_bytes() };
    let bytes = round_up(spec.bytes, page).ok_or(MemoryError::AddressOverflow { base: 0, len: spec.bytes })?;
    if !huge_tlb {
        pages::refuse_impossible(bytes, WHAT)?;
    }
    let name = format!("penstock-pool-{}", spec.label);
    let fd = memfd::create(&name, bytes, huge_tlb, WHAT)?;
    let refused = |call, source| memfd::system_error(call, WHAT, bytes, source);
    let mapping = Mapping::new(fd.as_fd(), bytes, Access::ReadWrite, kind != PageKind::Small)
        .map_err(|source| refused("mmap", source))?;
    // Advice only: a kernel built without huge pages refuses it, and has none to give or keep off.
    let _ = match kind {
        PageKind::HugeTlb => Ok(()),
        PageKind::Transparent => mapping.advise(Advice::LinuxHugepage),
        PageKind::Small => mapping.advise(Advice::LinuxNoHugepage),
    };
    if let Some(node) = spec.node {
        numa::prefer(node, mapping.base().as_ptr(), bytes).map_err(|source| MemoryError::Node { node, source })?;
    }
    mapping.populate(fd.as_fd(), Access::ReadWrite).map_err(|source| refused("madvise(populate)", source))?;
    Ok((fd, mapping))
}

#[cfg(test)]
mod tests;
