//! Memfds and their seals: making them, and believing a peer's only after looking.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{self, MemfdFlags, SealFlags};
use rustix::io::Errno;

use crate::error::{MemoryError, MemoryLimit, MissingSeals};

/// Makes an empty sealable memfd of `bytes` bytes. The name is only seen in `/proc`.
pub(crate) fn create(name: &str, bytes: u64, huge_tlb: bool, what: &'static str) -> Result<OwnedFd, MemoryError> {
    let mut flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    if huge_tlb {
        flags |= MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    }
    // The kernel refuses names over 249 bytes or with a NUL; a label must never make that happen.
    let name: String = name.chars().filter(|c| c.is_ascii_graphic() && *c != '/').take(200).collect();
    let refused = |call, errno: Errno| system_error(call, what, bytes, errno.into());
    let fd = fs::memfd_create(name, flags).map_err(|errno| refused("memfd_create", errno))?;
    fs::ftruncate(&fd, bytes).map_err(|errno| refused("ftruncate", errno))?;
    Ok(fd)
}

/// Seals the size for good; `owner_writes_only` also forbids every further writable mapping, so
/// it must come after the owner's own.
pub(crate) fn seal(fd: BorrowedFd<'_>, owner_writes_only: bool, what: &'static str) -> Result<(), MemoryError> {
    let mut seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    if owner_writes_only {
        seals |= SealFlags::FUTURE_WRITE;
    }
    fs::fcntl_add_seals(fd, seals).map_err(|errno| MemoryError::System {
        call: "fcntl(F_ADD_SEALS)",
        what,
        source: errno.into(),
    })
}

/// Checks that a peer's descriptor is a memfd of exactly `bytes` bytes that can neither shrink
/// nor grow (and, where `owner_writes_only`, that nobody can map writable any more).
///
/// A memfd that could shrink would let its owner kill this process with SIGBUS.
pub(crate) fn verify(
    fd: BorrowedFd<'_>,
    bytes: u64,
    owner_writes_only: bool,
    what: &'static str,
) -> Result<(), MemoryError> {
    let seals = seals_of(fd, what)?;
    let missing = MissingSeals {
        shrink: !seals.contains(SealFlags::SHRINK),
        grow: !seals.contains(SealFlags::GROW),
        future_write: owner_writes_only && !seals.intersects(SealFlags::FUTURE_WRITE | SealFlags::WRITE),
    };
    if missing.any() {
        return Err(MemoryError::Unsealed { missing });
    }
    let found = fs::fstat(fd)
        .map_err(|errno| MemoryError::System { call: "fstat", what, source: errno.into() })?
        .st_size as u64;
    if found != bytes {
        return Err(MemoryError::WrongSize { expected: bytes, found });
    }
    Ok(())
}

fn seals_of(fd: BorrowedFd<'_>, what: &'static str) -> Result<SealFlags, MemoryError> {
    match fs::fcntl_get_seals(fd) {
        Ok(seals) => Ok(seals),
        Err(Errno::INVAL) => Err(MemoryError::NotAMemfd),
        Err(errno) => Err(MemoryError::System { call: "fcntl(F_GET_SEALS)", what, source: errno.into() }),
    }
}

/// How long a memfd is; whatever is none is refused.
pub(crate) fn bytes_of(fd: BorrowedFd<'_>) -> Result<u64, MemoryError> {
    const WHAT: &str = "what a peer has passed";
    seals_of(fd, WHAT)?;
    let found =
        fs::fstat(fd).map_err(|errno| MemoryError::System { call: "fstat", what: WHAT, source: errno.into() })?;
    Ok(found.st_size as u64)
}

/// Checks that a peer's memfd has pages for so many bytes. Touching one that has none would give it this process's.
pub(crate) fn verify_backed(fd: BorrowedFd<'_>, bytes: u64, what: &'static str) -> Result<(), MemoryError> {
    let found = fs::fstat(fd).map_err(|errno| MemoryError::System { call: "fstat", what, source: errno.into() })?;
    // Pages that are swapped out are counted, too.
    let backed = (found.st_blocks as u64).saturating_mul(512);
    if backed < bytes { Err(MemoryError::Sparse { bytes, backed }) } else { Ok(()) }
}

/// True when the descriptor is of a memfd that is backed by explicitly reserved huge pages. Whatever is no memfd is not asked: who serves its file
/// system may not answer.
pub fn is_huge_tlb(fd: BorrowedFd<'_>) -> bool {
    const HUGETLBFS_MAGIC: u64 = 0x958458f6;
    bytes_of(fd).is_ok() && fs::fstatfs(fd).is_ok_and(|stat| stat.f_type as u64 & 0xffff_ffff == HUGETLBFS_MAGIC)
}

/// Gives an errno of a memory call its name.
pub(crate) fn system_error(call: &'static str, what: &'static str, asked: u64, source: io::Error) -> MemoryError {
    const MEND: &str = "ask for less, free memory, or raise the limit that stands in the way \
                        (`penstock doctor memory cgroup limits`)";
    match source.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => MemoryError::NoDescriptor { what },
        // Populating a page that cannot be had answers EFAULT; a size past every limit, EFBIG.
        Some(errno @ (libc::ENOMEM | libc::ENOSPC | libc::EFAULT | libc::EFBIG | libc::EDQUOT)) => {
            MemoryError::OutOfMemory { what, asked, limit: MemoryLimit::Kernel { errno }, mend: MEND }
        }
        _ => MemoryError::System { call, what, source },
    }
}
