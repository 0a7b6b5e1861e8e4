//! Segments: sealed shared memory for control structures such as rings.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use crate::error::MemoryError;
use crate::mapping::{Access, Mapping, page_bytes, round_up};
use crate::memfd;
use crate::window::Window;

const WHAT: &str = "a shared segment";

/// A sealed memfd and this process's mapping of it.
///
/// Sizes are rounded up to whole pages, on both sides by the same rule, so the number of bytes
/// that made a segment is also the number that opens it. The window covers the rounded size. A
/// fresh segment is all zeroes and fully backed: touching it neither faults nor fails. Only of those made
/// or opened `backed_to` a length the rest has no pages until [`Segment::back`] gives it some.
#[derive(Debug)]
pub struct Segment {
    fd: OwnedFd,
    mapping: Arc<Mapping>,
    access: Access,
    window: Window,
}

impl Segment {
    /// Makes a segment that peers may map for reading and writing.
    pub fn create(name: &str, bytes: u64) -> Result<Self, MemoryError> {
        Self::create_sealed(name, bytes, false)
    }

    /// Makes a segment that only this process can write: whoever gets the descriptor can map it
    /// for reading and nothing else, enforced by the kernel (`F_SEAL_FUTURE_WRITE`).
    pub fn create_owner_writes_only(name: &str, bytes: u64) -> Result<Self, MemoryError> {
        Self::create_sealed(name, bytes, true)
    }

    /// As [`Segment::create`], but only the first `backed` bytes have their pages at once.
    pub fn create_backed_to(name: &str, bytes: u64, backed: u64) -> Result<Self, MemoryError> {
        let bytes = whole_pages(bytes)?;
        let fd = memfd::create(name, bytes, false, WHAT)?;
        let made = Self::map(fd, bytes, Access::ReadWrite, backed)?;
        memfd::seal(made.fd.as_fd(), false, WHAT)?;
        Ok(made)
    }

    fn create_sealed(name: &str, bytes: u64, owner_only: bool) -> Result<Self, MemoryError> {
        let bytes = whole_pages(bytes)?;
        let fd = memfd::create(name, bytes, false, WHAT)?;
        // The seal against writers comes after the one writable mapping it must not hit.
        let made = Self::map(fd, bytes, Access::ReadWrite, bytes)?;
        memfd::seal(made.fd.as_fd(), owner_only, WHAT)?;
        Ok(made)
    }

    /// Maps a peer's segment after checking that it is a memfd of the size announced, sealed
    /// against shrinking and growing; anything else is refused before it is mapped.
    pub fn open(fd: OwnedFd, expected_bytes: u64, access: Access) -> Result<Self, MemoryError> {
        Self::open_backed_to(fd, expected_bytes, access, whole_pages(expected_bytes)?)
    }

    /// As [`Segment::open`], but only the first `backed` bytes are sure to have their pages.
    pub fn open_backed_to(fd: OwnedFd, expected_bytes: u64, access: Access, backed: u64) -> Result<Self, MemoryError> {
        let bytes = whole_pages(expected_bytes)?;
        memfd::verify(fd.as_fd(), bytes, false, WHAT)?;
        Self::map(fd, bytes, access, backed)
    }

    fn map(fd: OwnedFd, bytes: u64, access: Access, backed: u64) -> Result<Self, MemoryError> {
        let refused = |call, source| memfd::system_error(call, WHAT, bytes, source);
        let mapping = Mapping::new(fd.as_fd(), bytes, access, false).map_err(|source| refused("mmap", source))?;
        let mapping = Arc::new(mapping);
        let window = window_over(Arc::clone(&mapping), access);
        let made = Self { fd, mapping, access, window };
        made.back(0, whole_pages(backed)?.min(bytes))?;
        Ok(made)
    }

    /// Gives this range its pages, if it has none yet: from then on touching it neither faults nor
    /// fails. The range is rounded outwards to whole pages.
    pub fn back(&self, offset: u64, len: u64) -> Result<(), MemoryError> {
        let (page, bytes) = (page_bytes(), self.window.len());
        let from = offset.min(bytes) / page * page;
        let end = offset.saturating_add(len).min(bytes).next_multiple_of(page);
        let backed = self.mapping.populate_range(self.fd.as_fd(), self.access, from, end - from);
        backed.map_err(|source| memfd::system_error("madvise(populate)", WHAT, end - from, source))
    }

    /// The descriptor, for sending to a peer.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// The memory; it stays mapped while any clone of this window lives.
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Bytes mapped: the size asked for, rounded up to whole pages.
    pub fn bytes(&self) -> u64 {
        self.window.len()
    }
}

fn whole_pages(bytes: u64) -> Result<u64, MemoryError> {
    if bytes == 0 {
        return Err(MemoryError::Empty { what: WHAT });
    }
    round_up(bytes, page_bytes()).ok_or(MemoryError::AddressOverflow { base: 0, len: bytes })
}

/// The window over a whole mapping, which it keeps.
pub(crate) fn window_over(mapping: Arc<Mapping>, access: Access) -> Window {
    let (base, len) = (mapping.base(), mapping.len());
    // SAFETY: the mapping is readable, writable for ReadWrite, and lives inside the Arc until
    // the last window is gone; nobody makes references to its bytes.
    unsafe { Window::new(base, len, access == Access::ReadWrite, mapping) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_backed_in_part_is_backed_further_when_asked() {
        let page = page_bytes();
        let made = Segment::create_backed_to("penstock-test", 5 * page, page).unwrap();
        let resident = |segment: &Segment| rustix::fs::fstat(segment.fd()).unwrap().st_blocks as u64 * 512;
        assert_eq!(resident(&made), page, "one page was asked for");
        made.back(2 * page + 1, page).unwrap();
        assert_eq!(resident(&made), 3 * page, "a range is rounded outwards");
        made.window().fill(2 * page, 2 * page, 7).unwrap();
        let opened = Segment::open_backed_to(made.fd().try_clone_to_owned().unwrap(), 5 * page, Access::ReadWrite, 0);
        assert!(opened.is_err(), "nothing at all cannot be asked for");
        let fd = made.fd().try_clone_to_owned().unwrap();
        let opened = Segment::open_backed_to(fd, 5 * page, Access::ReadWrite, page).unwrap();
        let mut seen = [0];
        opened.window().read_into(3 * page, &mut seen).unwrap();
        assert_eq!((seen, resident(&made)), ([7], 3 * page));
        opened.back(u64::MAX, 1).unwrap();
        assert_eq!(resident(&made), 3 * page, "beyond the end is nothing");
    }
}
