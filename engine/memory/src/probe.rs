//! What the kernel lets this process do, found out by doing it once: for reports, never on the way of bytes.
//!
//! These are the calls that have no safe wrapper elsewhere.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use crate::mapping::page_bytes;
use crate::numa;

/// What this kernel's io_uring can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IoUring {
    /// The feature bits of `io_uring_setup(2)`.
    pub features: u32,
    /// How many operations it has, if it says so.
    pub operations: Option<u32>,
    /// Whether it sends without copying.
    pub sends_without_copy: bool,
}

/// Makes a small ring, asks it what it can do, and closes it.
pub fn io_uring() -> io::Result<IoUring> {
    const ENTRIES: libc::c_uint = 4;
    /// `struct io_uring_params` in words: its features are the sixth.
    const PARAMS_WORDS: usize = 30;
    const FEATURES: usize = 5;
    let mut params = [0_u32; PARAMS_WORDS];
    // SAFETY: io_uring_setup reads and writes one `struct io_uring_params`, 120 bytes, which `params` is; with no
    // flags set it uses nothing else of this process.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, ENTRIES, params.as_mut_ptr()) };
    let fd = i32::try_from(fd).ok().filter(|&fd| fd >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel has just given us this descriptor, and nobody else knows it.
    let ring = unsafe { OwnedFd::from_raw_fd(fd) };
    let operations = operations(&ring);
    Ok(IoUring {
        features: params[FEATURES],
        operations: operations.as_ref().map(|flags| flags.len() as u32),
        sends_without_copy: operations.is_some_and(|flags| flags.get(SEND_ZC).is_some_and(|&there| there)),
    })
}

const SEND_ZC: usize = 47;

/// For each operation this kernel knows, whether it has it; none where it cannot be asked (before 5.6).
fn operations(ring: &OwnedFd) -> Option<Vec<bool>> {
    const REGISTER_PROBE: libc::c_uint = 8;
    const OPS: usize = 256;
    const HEAD_BYTES: usize = 16;
    const OP_BYTES: usize = 8;
    const FLAGS_AT: usize = 2;
    const SUPPORTED: u8 = 1;
    let mut probe = [0_u8; HEAD_BYTES + OPS * OP_BYTES];
    // SAFETY: io_uring_register(PROBE) writes a `struct io_uring_probe` with room for OPS operations, which is what
    // `probe` is: 16 bytes and 8 for each.
    let answer = unsafe {
        libc::syscall(
            libc::SYS_io_uring_register,
            ring.as_raw_fd(),
            REGISTER_PROBE,
            probe.as_mut_ptr(),
            OPS as libc::c_uint,
        )
    };
    if answer != 0 {
        return None;
    }
    let known = usize::from(probe[1]).min(OPS);
    let flags = (0..known).map(|op| probe[HEAD_BYTES + op * OP_BYTES + FLAGS_AT]);
    Some(flags.map(|flags| flags & SUPPORTED != 0).collect())
}

/// Reads memory of another process (`process_vm_readv`) into `bytes`; answers how many came.
///
/// Nothing of this process but `bytes` is touched, whatever `address` is.
pub fn read_of_process(process: u32, address: u64, bytes: &mut [u8]) -> io::Result<usize> {
    let here = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let there = there(address, bytes.len());
    // SAFETY: the kernel writes only to `here`, which is `bytes`; `there` names memory of the other process and is
    // checked against that process's mappings.
    let answer = unsafe { libc::process_vm_readv(id(process)?, &raw const here, 1, &raw const there, 1, 0) };
    usize::try_from(answer).map_err(|_| io::Error::last_os_error())
}

/// Writes into the memory of another process (`process_vm_writev`); answers how many bytes went. Refuses this one.
///
/// Nothing of this process is touched. Of the other one it can break anything, as a debugger can: the caller has
/// been told the address by it.
pub fn write_to_process(process: u32, address: u64, bytes: &[u8]) -> io::Result<usize> {
    if process == std::process::id() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let here = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let there = there(address, bytes.len());
    // SAFETY: the kernel only reads `here`, which is `bytes`; `there` is memory of another process, as was asked above,
    // and is checked against that process's mappings.
    let answer = unsafe { libc::process_vm_writev(id(process)?, &raw const here, 1, &raw const there, 1, 0) };
    usize::try_from(answer).map_err(|_| io::Error::last_os_error())
}

/// Copies a word of this process's own by both calls, which no rule about processes forbids: only a filter does.
pub fn copy_own_word() -> io::Result<()> {
    const BYTES: usize = size_of::<u64>();
    let (from, mut to) = (0x7065_6e73_746f_636b_u64, 0_u64);
    let mut read = [0; BYTES];
    read_of_process(std::process::id(), &raw const from as u64, &mut read)?;
    let here = libc::iovec { iov_base: read.as_mut_ptr().cast(), iov_len: BYTES };
    let there = there(&raw mut to as u64, BYTES);
    // SAFETY: the kernel reads `here`, which is `read`, and writes `there`, which is `to`: both are local words of this
    // length, and nobody else knows them.
    let answer =
        unsafe { libc::process_vm_writev(id(std::process::id())?, &raw const here, 1, &raw const there, 1, 0) };
    match usize::try_from(answer) {
        Ok(BYTES) if to == from => Ok(()),
        Ok(_) => Err(io::ErrorKind::InvalidData.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

fn id(process: u32) -> io::Result<libc::pid_t> {
    libc::pid_t::try_from(process).map_err(|_| io::ErrorKind::InvalidInput.into())
}

fn there(address: u64, len: usize) -> libc::iovec {
    libc::iovec { iov_base: address as usize as *mut libc::c_void, iov_len: len }
}

/// Asks for a page near node `node`, as a pool with a node does.
pub fn prefer_node(node: u32) -> io::Result<()> {
    let len = page_bytes();
    // SAFETY: a fresh inaccessible mapping at an address of the kernel's choice touches nothing existing.
    let start = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            len as usize,
            rustix::mm::ProtFlags::empty(),
            rustix::mm::MapFlags::PRIVATE,
        )?
    };
    let answer = numa::prefer(node, start.cast(), len);
    // SAFETY: the mapping was made above, and nobody else knows it.
    unsafe { rustix::mm::munmap(start, len as usize)? };
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_reads_its_own_memory() {
        let word = Box::new(0x1234_5678_9abc_def0_u64);
        let mut bytes = [0; 8];
        match read_of_process(std::process::id(), &raw const *word as u64, &mut bytes) {
            Ok(read) => assert_eq!((read, u64::from_ne_bytes(bytes)), (8, *word)),
            // A container may forbid it; then it must say so.
            Err(error) => assert!(error.raw_os_error().is_some(), "{error}"),
        }
    }

    #[test]
    fn a_process_copies_a_word_of_its_own_but_is_not_written_into_blindly() {
        if let Err(error) = copy_own_word() {
            assert!(error.raw_os_error().is_some(), "{error}");
        }
        let word = Box::new(7_u64);
        let refused = write_to_process(std::process::id(), &raw const *word as u64, &[0; 8]);
        assert_eq!((refused.unwrap_err().kind(), *word), (io::ErrorKind::InvalidInput, 7));
    }

    #[test]
    fn addresses_that_are_nothing_are_refused_and_harm_nothing() {
        let mut bytes = [7; 8];
        assert!(read_of_process(std::process::id(), 8, &mut bytes).is_err());
        assert!(read_of_process(u32::MAX, 0, &mut bytes).is_err());
        assert_eq!(bytes, [7; 8]);
    }

    #[test]
    fn a_ring_says_what_it_can_do() {
        match io_uring() {
            Ok(found) => assert!(found.operations.is_none_or(|operations| operations > 0), "{found:?}"),
            Err(error) => assert!(error.raw_os_error().is_some(), "{error}"),
        }
    }

    #[test]
    fn a_node_that_cannot_exist_is_refused() {
        assert!(prefer_node(1000).is_err() && prefer_node(u32::MAX).is_err());
    }
}
