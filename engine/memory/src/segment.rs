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
/// fresh segment is all zeroes and fully backed: touching it neither faults nor fails.
#[derive(Debug)]
pub struct Segment {
    fd: OwnedFd,
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

    fn create_sealed(name: &str, bytes: u64, owner_only: bool) -> Result<Self, MemoryError> {
        let bytes = whole_pages(bytes)?;
        let fd = memfd::create(name, bytes, false, WHAT)?;
        // The seal against writers comes after the one writable mapping it must not hit.
        let window = map(fd.as_fd(), bytes, Access::ReadWrite)?;
        memfd::seal(fd.as_fd(), owner_only, WHAT)?;
        Ok(Self { fd, window })
    }

    /// Maps a peer's segment after checking that it is a memfd of the size announced, sealed
    /// against shrinking and growing; anything else is refused before it is mapped.
    pub fn open(fd: OwnedFd, expected_bytes: u64, access: Access) -> Result<Self, MemoryError> {
        let bytes = whole_pages(expected_bytes)?;
        memfd::verify(fd.as_fd(), bytes, false, WHAT)?;
        let window = map(fd.as_fd(), bytes, access)?;
        Ok(Self { fd, window })
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

fn map(fd: BorrowedFd<'_>, bytes: u64, access: Access) -> Result<Window, MemoryError> {
    let refused = |call, source| memfd::system_error(call, WHAT, bytes, source);
    let mapping = Mapping::new(fd, bytes, access, false).map_err(|source| refused("mmap", source))?;
    mapping.populate(fd, access).map_err(|source| refused("madvise(populate)", source))?;
    Ok(window_over(Arc::new(mapping), access))
}

/// The window over a whole mapping, which it keeps.
pub(crate) fn window_over(mapping: Arc<Mapping>, access: Access) -> Window {
    let (base, len) = (mapping.base(), mapping.len());
    // SAFETY: the mapping is readable, writable for ReadWrite, and lives inside the Arc until
    // the last window is gone; nobody makes references to its bytes.
    unsafe { Window::new(base, len, access == Access::ReadWrite, mapping) }
}
