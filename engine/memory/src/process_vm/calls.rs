//! The two system calls, and the lists they are given.

use std::io;
use std::mem::MaybeUninit;

use libc::iovec;
use penstock_core::Direction;

/// Ranges of one call on either side: as many as the kernel takes.
const RANGES_MAX: usize = libc::UIO_MAXIOV as usize;

/// Ranges of one side, neighbours merged.
struct Ranges {
    list: [MaybeUninit<iovec>; RANGES_MAX],
    /// The first that is not used up.
    first: usize,
    end: usize,
}

impl Ranges {
    fn new() -> Self {
        Self { list: [const { MaybeUninit::uninit() }; RANGES_MAX], first: 0, end: 0 }
    }

    fn is_full(&self) -> bool {
        self.end == RANGES_MAX
    }

    /// Adds a range; there is room for one.
    #[inline]
    fn push(&mut self, address: usize, len: usize) {
        if let Some(last) = self.list[..self.end].last_mut() {
            // SAFETY: all places before `end` were written by this function.
            let last = unsafe { last.assume_init_mut() };
            if last.iov_base.addr() + last.iov_len == address {
                last.iov_len += len;
                return;
            }
        }
        // Addresses of another process are no pointers of ours: the kernel is the only one to follow them.
        let iov_base = std::ptr::without_provenance_mut(address);
        self.list[self.end].write(iovec { iov_base, iov_len: len });
        self.end += 1;
    }

    /// Uses up the first `bytes` bytes, which may end in the middle of a range.
    fn advance(&mut self, mut bytes: usize) {
        for range in &mut self.list[self.first..self.end] {
            // SAFETY: all places before `end` were written by `push`.
            let range = unsafe { range.assume_init_mut() };
            if bytes < range.iov_len {
                range.iov_base = std::ptr::without_provenance_mut(range.iov_base.addr() + bytes);
                range.iov_len -= bytes;
                return;
            }
            bytes -= range.iov_len;
            self.first += 1;
        }
    }

    fn rest(&self) -> &[MaybeUninit<iovec>] {
        &self.list[self.first..self.end]
    }

    fn clear(&mut self) {
        (self.first, self.end) = (0, 0);
    }
}

/// What one call is to move.
pub(super) struct VmCall {
    local: Ranges,
    remote: Ranges,
    bytes: usize,
}

impl VmCall {
    pub(super) fn new() -> Self {
        Self { local: Ranges::new(), remote: Ranges::new(), bytes: 0 }
    }

    pub(super) fn is_full(&self) -> bool {
        self.local.is_full() || self.remote.is_full()
    }

    /// Bytes still to be moved.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a piece; there is room for one.
    ///
    /// # Safety
    /// Until the call is cleared, `local` and the `len` bytes there stay mapped, writable if the call reads
    /// from the other process, and no reference to them is used.
    #[inline]
    pub(super) unsafe fn push(&mut self, local: *mut u8, remote: u64, len: usize) {
        // Exposed: the kernel follows it.
        self.local.push(local.expose_provenance(), len);
        self.remote.push(remote as usize, len);
        self.bytes += len;
    }

    /// Makes the call once. Answers the bytes it moved, which the lists are rid of; less than all is
    /// no error.
    pub(super) fn make(&mut self, pid: i32, direction: Direction) -> Result<usize, i32> {
        let (local, remote) = (self.local.rest(), self.remote.rest());
        let (ours, theirs) = (local.as_ptr().cast::<iovec>(), remote.as_ptr().cast::<iovec>());
        let (our_count, their_count) = (local.len() as libc::c_ulong, remote.len() as libc::c_ulong);
        // SAFETY: both lists are initialised as far as they are long, and live; the local ranges are
        // mapped as `push`'s caller promised. What the addresses of the other process mean is checked by the kernel.
        let moved = unsafe {
            match direction {
                Direction::Write => libc::process_vm_writev(pid, ours, our_count, theirs, their_count, 0),
                Direction::Read => libc::process_vm_readv(pid, ours, our_count, theirs, their_count, 0),
            }
        };
        let moved = usize::try_from(moved).map_err(|_| last_errno())?;
        self.local.advance(moved);
        self.remote.advance(moved);
        self.bytes -= moved;
        Ok(moved)
    }

    /// Where the next byte is, here and there, and how much of either range is left.
    #[cfg(test)]
    pub(super) fn next(&self) -> Option<((usize, usize), (usize, usize))> {
        // SAFETY: places that are in use are initialised.
        let place = |range: &MaybeUninit<iovec>| unsafe {
            let range = range.assume_init_ref();
            (range.iov_base.addr(), range.iov_len)
        };
        Some((place(self.local.rest().first()?), place(self.remote.rest().first()?)))
    }

    pub(super) fn clear(&mut self) {
        self.local.clear();
        self.remote.clear();
        self.bytes = 0;
    }
}

fn last_errno() -> i32 {
    io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// The word at `address` of another process.
pub(super) fn read_word(pid: i32, address: u64) -> Result<u64, i32> {
    let mut word = 0_u64;
    let ours = iovec { iov_base: (&raw mut word).cast(), iov_len: 8 };
    let theirs = iovec { iov_base: std::ptr::without_provenance_mut(address as usize), iov_len: 8 };
    // SAFETY: one live word here, written by the kernel; the other address is checked by the kernel.
    let moved = unsafe { libc::process_vm_readv(pid, &raw const ours, 1, &raw const theirs, 1, 0) };
    match moved {
        8 => Ok(word),
        0.. => Err(libc::EFAULT),
        _ => Err(last_errno()),
    }
}

/// Writes the word at `address` of another process.
pub(super) fn write_word(pid: i32, address: u64, mut word: u64) -> Result<(), i32> {
    let ours = iovec { iov_base: (&raw mut word).cast(), iov_len: 8 };
    let theirs = iovec { iov_base: std::ptr::without_provenance_mut(address as usize), iov_len: 8 };
    // SAFETY: one live word here, only read; the other address is checked by the kernel.
    let moved = unsafe { libc::process_vm_writev(pid, &raw const ours, 1, &raw const theirs, 1, 0) };
    match moved {
        8 => Ok(()),
        0.. => Err(libc::EFAULT),
        _ => Err(last_errno()),
    }
}

/// Makes both calls on this very process, which no rule between processes forbids.
pub(super) fn try_own_memory() -> Result<(), i32> {
    let word = std::sync::atomic::AtomicU64::new(7);
    let (pid, address) = (std::process::id() as i32, word.as_ptr().expose_provenance() as u64);
    let found = read_word(pid, address)?;
    write_word(pid, address, found)
}
