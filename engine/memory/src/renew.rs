//! Fresh memory under an old address.
//!
//! A peer that was stopped in the middle of a copy keeps its mapping of the pool's pages and writes into
//! them when it runs again, however late. So a range that it might write gets other pages: a sealed memfd
//! of its own, a *piece*, is put over the range in this process, and peers that live are given the piece
//! to map. The stopped one still has the old pages, and nobody else reads them.
//!
//! A pool is its first memfd with the pieces on top: whole pages, sorted, never overlapping. A range
//! that meets a piece grows until it covers it, so that the piece it replaces is gone for good.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, MutexGuard, PoisonError};

use penstock_core::{Direction, Rights, Span};
use rustix::fs::FallocateFlags;
use rustix::mm::Advice;

use crate::copy::{self, hint_for};
use crate::error::MemoryError;
use crate::mapping::{Access, ForeignShare, HUGE_PAGE_BYTES, Mapping, page_bytes, round_up};
use crate::memfd;
use crate::numa;
use crate::pages::{self, PageKind};
use crate::pool::Pool;
use crate::segment::window_over;
use crate::window::Window;

const WHAT: &str = "fresh memory of a pool";

/// The most pieces that lie over one pool: each costs whoever maps the pool a descriptor.
pub const PIECES_MAX: usize = 15;

/// Memory over a part of a pool, with its descriptor.
#[derive(Debug, Clone)]
pub struct FreshPiece<D> {
    /// Where it begins in the pool, in bytes.
    pub offset: u64,
    /// Its length and that of its descriptor, in bytes.
    pub len: u64,
    pub fd: D,
}

impl<D> FreshPiece<D> {
    fn end(&self) -> u64 {
        self.offset + self.len
    }

    fn meets(&self, start: u64, end: u64) -> bool {
        self.offset < end && start < self.end()
    }
}

/// The pieces of one pool.
pub type Pieces = Vec<FreshPiece<Arc<OwnedFd>>>;

/// Pages that a pool has turned away from. Somebody may still write them; nobody reads them.
#[derive(Debug)]
pub struct OldPages {
    /// The pool's first memfd and the ranges of it that are no longer seen.
    first: Arc<OwnedFd>,
    ranges: Vec<(u64, u64)>,
}

impl OldPages {
    /// Gives them back to the system, once nobody writes them any more. Those of a pool that its peers may
    /// only read stay until the pool is gone: its seal protects them from this, too.
    pub fn free(self) {
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        for (offset, len) in self.ranges {
            // Refused by the seal, or by a kernel that cannot: then they stay as they are.
            let _ = rustix::fs::fallocate(&self.first, how, offset, len);
        }
    }
}

impl Pool {
    fn pieces(&self) -> MutexGuard<'_, Pieces> {
        self.pieces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Descriptors of the whole pool as it is now, to be sent to a peer: the one it began with and the pieces that lie over it.
    pub fn share_in_pieces(&self) -> (Arc<OwnedFd>, Pieces) {
        (Arc::clone(&self.fd), self.pieces().clone())
    }

    /// The ranges that fresh memory for these extents, given as (offset, length), has to cover: whole pages,
    /// whole pieces, in order and apart.
    pub fn renewable(&self, extents: &[(u64, u64)]) -> Result<Vec<(u64, u64)>, MemoryError> {
        if self.pages().got == PageKind::HugeTlb {
            return Err(MemoryError::NotHere {
                what: "fresh memory for a pool of reserved huge pages",
                why: "a part of it cannot be replaced by pages of another kind",
                mend: "wait for the proof, or end the stopped process",
            });
        }
        let pieces = self.pieces();
        let page = page_bytes();
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        let mut sorted = extents.to_vec();
        sorted.sort_unstable();
        for (offset, len) in sorted {
            let outside = MemoryError::PieceMisplaced { offset, len, bytes: self.bytes() };
            let end = offset.checked_add(len).filter(|&end| end <= self.bytes() && len > 0).ok_or(outside)?;
            // The pool is whole pages, so rounding up stays inside.
            let (start, end) = widen(&pieces, offset / page * page, end.next_multiple_of(page));
            match ranges.last_mut() {
                Some(last) if start <= last.0 + last.1 => last.1 = last.1.max(end - last.0),
                _ => ranges.push((start, end - start)),
            }
        }
        let stays = |piece: &&FreshPiece<_>| !ranges.iter().any(|&(offset, len)| piece.meets(offset, offset + len));
        if pieces.iter().filter(stays).count() + ranges.len() > PIECES_MAX {
            return Err(MemoryError::NotHere {
                what: "another piece of fresh memory",
                why: "the pool has as many as it may have",
                mend: "wait for the proof, end the stopped process, or register a new pool",
            });
        }
        Ok(ranges)
    }

    /// Puts fresh memory over the ranges that [`renewable`](Self::renewable) named; the bytes are the same as
    /// before. On an error, each range has either its old memory or fresh.
    ///
    /// The caller keeps peers and other copiers away from the ranges meanwhile. What the application itself
    /// writes there while this runs may be lost.
    pub fn renew(&self, ranges: &[(u64, u64)]) -> Result<OldPages, MemoryError> {
        if let Some(&(offset, len)) = ranges.first()
            && self.renewable(ranges)? != ranges
        {
            return Err(MemoryError::PieceMisplaced { offset, len, bytes: self.bytes() });
        }
        pages::refuse_impossible(ranges.iter().map(|&(_, len)| len).sum(), WHAT)?;
        let mut pieces = self.pieces();
        let mut old = OldPages { first: Arc::clone(&self.fd), ranges: Vec::new() };
        let fresh: Vec<_> =
            ranges.iter().map(|&(offset, len)| self.fresh(offset, len)).collect::<Result<_, MemoryError>>()?;
        for ((fresh, fd), &(offset, len)) in fresh.into_iter().zip(ranges) {
            let replaced = self.mapping.replace(offset, fresh);
            replaced.map_err(|source| memfd::system_error("mremap", WHAT, len, source))?;
            old.ranges.extend(gaps(&pieces, offset, offset + len));
            pieces.retain(|piece| !piece.meets(offset, offset + len));
            pieces.push(FreshPiece { offset, len, fd: Arc::new(fd) });
            pieces.sort_unstable_by_key(|piece| piece.offset);
        }
        Ok(old)
    }

    /// Sealed memory with the bytes that this range has now, mapped somewhere else.
    fn fresh(&self, offset: u64, len: u64) -> Result<(Mapping, OwnedFd), MemoryError> {
        let refused = |call, source| memfd::system_error(call, WHAT, len, source);
        let fd = memfd::create(&format!("penstock-pool-{}", self.label()), len, false, WHAT)?;
        let transparent = self.pages().got == PageKind::Transparent;
        let fresh =
            Mapping::new(fd.as_fd(), len, Access::ReadWrite, transparent && offset.is_multiple_of(HUGE_PAGE_BYTES));
        let fresh = fresh.map_err(|source| refused("mmap", source))?;
        // Advice only, as for the pool itself.
        let _ = fresh.advise(if transparent { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage });
        if let Some(node) = self.asked_node {
            let preferred = numa::prefer(node, fresh.base().as_ptr(), len);
            preferred.map_err(|source| MemoryError::Node { node, source })?;
        }
        fresh.populate(fd.as_fd(), Access::ReadWrite).map_err(|source| refused("madvise(populate)", source))?;
        memfd::seal(fd.as_fd(), !self.rights().allows_write(), WHAT)?;
        let fresh = Arc::new(fresh);
        {
            let from = self.window().slice(offset, len).expect("renewable() checked the range");
            let to = window_over(Arc::clone(&fresh), Access::ReadWrite);
            let whole = Span { local: 0, remote: 0, len };
            let copied = copy::scatter(&from, &to, Direction::Write, &[whole], hint_for(len));
            copied.expect("both windows have as many bytes");
        }
        Ok((Arc::into_inner(fresh).expect("its only window is gone"), fd))
    }
}

/// The range with all pieces that it meets.
fn widen<D>(pieces: &[FreshPiece<D>], start: u64, end: u64) -> (u64, u64) {
    // Pieces do not overlap, so those met at first are all there are.
    let met = pieces.iter().filter(|piece| piece.meets(start, end));
    met.fold((start, end), |(low, high), piece| (low.min(piece.offset), high.max(piece.end())))
}

/// The parts of a range that no piece covers.
fn gaps<D>(pieces: &[FreshPiece<D>], start: u64, end: u64) -> Vec<(u64, u64)> {
    let (mut at, mut gaps) = (start, Vec::new());
    for piece in pieces.iter().filter(|piece| piece.meets(start, end)) {
        if at < piece.offset {
            gaps.push((at, piece.offset - at));
        }
        at = piece.end();
    }
    if at < end {
        gaps.push((at, end - at));
    }
    gaps
}

/// Maps a pool of another process with the pieces that lie over it, each checked as
/// [`map_foreign_pool`](crate::map_foreign_pool) checks the pool: a memfd of exactly its length, sealed. Pieces are whole
/// pages inside the pool, in order, and do not overlap. `share`: what goes with a peer's memory.
pub fn map_foreign_pieces(
    fd: OwnedFd,
    bytes: u64,
    rights: Rights,
    pages: PageKind,
    pieces: &[FreshPiece<OwnedFd>],
    share: Option<ForeignShare>,
) -> Result<Window, MemoryError> {
    let page = page_bytes();
    if pieces.len() > PIECES_MAX || pages == PageKind::HugeTlb || memfd::is_huge_tlb(fd.as_fd()) {
        let Some(first) = pieces.first() else {
            return crate::pool::map_counted_pool(fd, bytes, rights, pages, share);
        };
        return Err(MemoryError::PieceMisplaced { offset: first.offset, len: first.len, bytes });
    }
    let (writable, mut from) = (rights.allows_write(), 0);
    for &FreshPiece { offset, len, ref fd } in pieces {
        let misplaced = || MemoryError::PieceMisplaced { offset, len, bytes };
        let end = offset.checked_add(len).filter(|&end| end <= bytes).ok_or_else(misplaced)?;
        if len == 0 || offset < from || !offset.is_multiple_of(page) || !len.is_multiple_of(page) {
            return Err(misplaced());
        }
        memfd::verify(fd.as_fd(), len, !writable, WHAT)?;
        memfd::verify_backed(fd.as_fd(), len, WHAT)?;
        from = end;
    }
    if round_up(bytes, page) != Some(bytes) {
        return Err(MemoryError::PieceMisplaced { offset: 0, len: bytes, bytes });
    }
    // What lies under the pieces may be given back already.
    let own = bytes - pieces.iter().map(|piece| piece.len).sum::<u64>();
    let mapping = crate::pool::map_unpopulated(&fd, bytes, (rights, pages), own)?.foreign(share);
    let access = if writable { Access::ReadWrite } else { Access::Read };
    let refused = |call, source| memfd::system_error(call, WHAT, bytes, source);
    for piece in pieces {
        let over =
            Mapping::new(piece.fd.as_fd(), piece.len, access, false).map_err(|source| refused("mmap", source))?;
        mapping.replace(piece.offset, over).map_err(|source| refused("mremap", source))?;
    }
    crate::pool::populate_foreign(&mapping, fd.as_fd(), access, own)?;
    Ok(window_over(Arc::new(mapping), access))
}

#[cfg(test)]
mod tests;
