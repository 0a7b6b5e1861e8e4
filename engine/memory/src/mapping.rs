//! Shared mappings of memfds: aligned, pre-faulted, unmapped on drop.

use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{fmt, io};

use penstock_core::budget::BudgetShare;
use penstock_core::env::BlockingJob;
use rustix::io::Errno;
use rustix::mm::{self, Advice, MapFlags, MremapFlags, ProtFlags};

use crate::blocking::BlockingCalls;

/// Bytes of a huge page that this crate aligns to and asks for.
pub(crate) const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// How much is backed by one call of the kernel: signals are not taken before it is over, and threads that map something else wait.
pub(crate) const POPULATE_STEP_BYTES: u64 = 16 * HUGE_PAGE_BYTES;

/// Bytes of a base page on this machine.
pub(crate) fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

/// `bytes` rounded up to whole pages of `page` bytes, or `None` past what an object may span.
pub(crate) fn round_up(bytes: u64, page: u64) -> Option<u64> {
    let rounded = bytes.checked_next_multiple_of(page)?;
    isize::try_from(rounded).ok().map(|_| rounded)
}

/// What a mapping may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    Read,
    ReadWrite,
}

/// One shared mapping of a whole memfd from offset zero, perhaps with others put over parts of it.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: u64,
    registration: Mutex<Option<Box<dyn PageRegistration>>>,
    /// Of a peer's memory.
    foreign: Option<ForeignShare>,
}

/// What goes with a mapping of a peer's memory.
#[derive(Debug)]
pub struct ForeignShare {
    /// It counts in a budget until it is unmapped.
    pub share: BudgetShare,
    /// Where it is unmapped: whoever is the last to have it frees all of its pages.
    pub blocking: BlockingCalls,
}

/// A registration of a mapping's pages with a device, which knows them by the addresses that they have. It ends before they are unmapped.
pub trait PageRegistration: Send {
    /// Some of the addresses are about to get other pages: the device must know none of the old ones any more.
    fn suspend(&mut self);

    /// The other pages are there, and may be registered. Answers whether they are.
    fn resume(&mut self) -> bool;

    /// Ends it, and has the pages unmapped behind that. A device may take as long as its copies do, so both are for a thread that may be kept waiting.
    fn end(self: Box<Self>, unmap: BlockingJob);
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping").field("base", &self.base).field("len", &self.len).finish_non_exhaustive()
    }
}

// SAFETY: a mapping is only an address range that is unmapped once, on drop; it does not touch
// the bytes by itself.
unsafe impl Send for Mapping {}
// SAFETY: as for Send.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `len` bytes (whole pages) of `fd`; `aligned` puts it on a 2 MiB boundary so that
    /// file and address agree about where a huge page starts.
    pub(crate) fn new(fd: BorrowedFd<'_>, len: u64, access: Access, aligned: bool) -> io::Result<Self> {
        let base = if aligned { map_aligned(fd, len, access)? } else { map(fd, len, access)? };
        let base = NonNull::new(base.cast::<u8>()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { base, len, registration: Mutex::default(), foreign: None })
    }

    /// A mapping of a peer's memory.
    pub(crate) fn foreign(mut self, share: Option<ForeignShare>) -> Self {
        self.foreign = share;
        self
    }

    /// Its pages' registration with a device, if they have one.
    pub(crate) fn registration(&self) -> MutexGuard<'_, Option<Box<dyn PageRegistration>>> {
        self.registration.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Gives the kernel advice about the whole mapping.
    pub(crate) fn advise(&self, advice: Advice) -> io::Result<()> {
        // SAFETY: the range is exactly this mapping; callers only pass advice that leaves the
        // contents alone (huge pages, population).
        unsafe { mm::madvise(self.base.as_ptr().cast(), self.len as usize, advice)? };
        Ok(())
    }

    /// Backs every page now, so that no later access pays a fault or dies of a full file system.
    pub(crate) fn populate(&self, fd: BorrowedFd<'_>, access: Access) -> io::Result<()> {
        self.populate_range(fd, access, 0, self.len)
    }

    /// As [`Mapping::populate`], for whole pages of it.
    pub(crate) fn populate_range(&self, fd: BorrowedFd<'_>, access: Access, from: u64, len: u64) -> io::Result<()> {
        let inside = from.checked_add(len).is_some_and(|end| end <= self.len);
        if !inside {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let advice = match access {
            Access::Read => Advice::LinuxPopulateRead,
            Access::ReadWrite => Advice::LinuxPopulateWrite,
        };
        let mut done = 0;
        let errno = loop {
            if done == len {
                return Ok(());
            }
            let (at, step) = ((from + done) as usize, (len - done).min(POPULATE_STEP_BYTES));
            // SAFETY: population leaves the contents alone; the range was found inside this mapping, and this is a part of it.
            match unsafe { mm::madvise(self.base.as_ptr().add(at).cast(), step as usize, advice) } {
                Ok(()) => done += step,
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(errno) => break errno,
            }
        };
        if errno != Errno::INVAL {
            return Err(errno.into());
        }
        // Kernels before 5.14 lack the advice. Allocating through the file first turns a full
        // file system into an error here instead of a SIGBUS at the touch.
        if access == Access::ReadWrite {
            rustix::fs::fallocate(fd, rustix::fs::FallocateFlags::empty(), from, len)?;
        }
        self.touch_each_page(from, len);
        Ok(())
    }

    /// Puts the whole of another mapping in the place of a part of this one, which must begin and end
    /// at pages inside it. Whoever touches the range meanwhile waits; afterwards the memory there is the
    /// other's, and is unmapped with this one.
    pub(crate) fn replace(&self, offset: u64, other: Self) -> io::Result<()> {
        let page = page_bytes();
        let inside = offset.checked_add(other.len).is_some_and(|end| end <= self.len);
        if !inside || !offset.is_multiple_of(page) || !other.len.is_multiple_of(page) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let (from, len) = (other.base.as_ptr().cast::<c_void>(), other.len as usize);
        // Held, so that nobody registers the old pages meanwhile.
        let mut registration = self.registration();
        registration.iter_mut().for_each(|registration| registration.suspend());
        // SAFETY: the source is exactly the other mapping, which this call owns and nobody has a window
        // over. The target lies inside this mapping, as checked: the range stays mapped, of the same
        // length and, as all mappings of one pool are made with the same access, with the same
        // rights, which is all that windows over it rely on.
        let moved = unsafe {
            let to = self.base.as_ptr().add(offset as usize).cast::<c_void>();
            mm::mremap_fixed(from, len, len, MremapFlags::MAYMOVE, to)
        };
        // What is not registered any more is by the next who needs it, or that one hears why not.
        if registration.as_mut().is_some_and(|registration| !registration.resume()) {
            *registration = None;
        }
        moved?;
        // Its addresses are gone; the memory is this mapping's to unmap.
        std::mem::forget(other);
        Ok(())
    }

    fn touch_each_page(&self, from: u64, len: u64) {
        for offset in (from..from + len).step_by(page_bytes() as usize) {
            // SAFETY: `offset` is inside the mapping, whose file has all its pages.
            unsafe { self.base.as_ptr().add(offset as usize).read_volatile() };
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        let registration = self.registration().take();
        let foreign = self.foreign.take();
        let (base, len) = (self.base.as_ptr().expose_provenance(), self.len as usize);
        let unmap = move || {
            // SAFETY: the range was mapped by `new`, was owned by this value alone, and every window
            // over it held this value alive. Unmapping an owned range cannot fail.
            let _ = unsafe { mm::munmap(ptr::with_exposed_provenance_mut(base), len) };
        };
        let unmap = move || match foreign {
            None => unmap(),
            Some(ForeignShare { share, blocking }) => blocking.run(move || {
                unmap();
                drop(share);
            }),
        };
        match registration {
            None => unmap(),
            Some(registration) => registration.end(BlockingJob::once(unmap)),
        }
    }
}

fn protection(access: Access) -> ProtFlags {
    match access {
        Access::Read => ProtFlags::READ,
        Access::ReadWrite => ProtFlags::READ | ProtFlags::WRITE,
    }
}

fn map(fd: BorrowedFd<'_>, len: u64, access: Access) -> rustix::io::Result<*mut c_void> {
    // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing existing.
    unsafe { mm::mmap(ptr::null_mut(), len as usize, protection(access), MapFlags::SHARED, fd, 0) }
}

/// Reserves more address space than needed, maps over its aligned middle and gives the rest back.
fn map_aligned(fd: BorrowedFd<'_>, len: u64, access: Access) -> rustix::io::Result<*mut c_void> {
    let (len, huge) = (len as usize, HUGE_PAGE_BYTES as usize);
    let reserved = len.checked_add(huge).ok_or(Errno::NOMEM)?;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a fresh inaccessible mapping at an address of the kernel's choice.
    let start = unsafe { mm::mmap_anonymous(ptr::null_mut(), reserved, ProtFlags::empty(), flags)? };
    let lead = start.cast::<u8>().align_offset(huge);
    let flags = MapFlags::SHARED | MapFlags::FIXED;
    // SAFETY: lead < huge, so lead + len lies inside the reservation, which is ours alone: the
    // fixed mapping replaces inaccessible pages nobody else can be using.
    let mapped = unsafe {
        let at = start.cast::<u8>().add(lead).cast::<c_void>();
        mm::mmap(at, len, protection(access), flags, fd, 0)
    };
    // SAFETY: the pieces given back are parts of the reservation outside lead .. lead + len (all
    // of it when the mapping failed), rounded inwards to pages by construction: `start` and
    // `huge` are page aligned, and the tail starts at the page after `len`.
    unsafe {
        let whole = start.cast::<u8>();
        if mapped.is_err() {
            let _ = mm::munmap(start, reserved);
        } else {
            let end = lead + len.next_multiple_of(page_bytes() as usize);
            if lead > 0 {
                let _ = mm::munmap(start, lead);
            }
            if end < reserved {
                let _ = mm::munmap(whole.add(end).cast(), reserved - end);
            }
        }
    }
    mapped
}
