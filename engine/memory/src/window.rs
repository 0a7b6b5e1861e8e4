//! A window: the one type by which safe code names memory.

use std::any::Any;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::AccessError;
use crate::mapping::{Mapping, PageRegistration};

/// A range of mapped memory with its bounds and its right to be written, kept alive by whoever
/// owns it for as long as any window over it exists.
///
/// A window never gives out `&[u8]`: a peer, or another thread, may write the bytes at any moment,
/// and a Rust reference would promise that nobody does. Bytes are copied in and out instead.
/// Cloning and slicing cost a reference count.
#[derive(Clone)]
pub struct Window {
    base: NonNull<u8>,
    len: u64,
    writable: bool,
    keep: Arc<dyn Any + Send + Sync>,
}

// SAFETY: a window is an address, a length and an owner that is itself Send + Sync; every access
// goes through raw copies that assume concurrent writers (see `copy`), so moving it between
// threads adds no hazard. `Window::new`'s caller keeps the range mapped while `keep` lives.
unsafe impl Send for Window {}
// SAFETY: as for Send; no method hands out a reference to the bytes.
unsafe impl Sync for Window {}

impl Window {
    /// Names `len` bytes at `base`.
    ///
    /// # Safety
    /// For as long as `keep` or a clone of it lives, `base .. base + len` stays mapped and
    /// readable (writable as well where `writable`), lies in one mapping or allocation, and no
    /// Rust reference to its bytes is used while windows over it are.
    pub(crate) unsafe fn new(base: NonNull<u8>, len: u64, writable: bool, keep: Arc<dyn Any + Send + Sync>) -> Self {
        Self { base, len, writable, keep }
    }

    /// Bytes in the window.
    #[inline]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// True when the window has no bytes.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the other is the very same memory, kept by the same owner.
    pub fn is_same(&self, other: &Self) -> bool {
        (self.base, self.len, self.writable) == (other.base, other.len, other.writable)
            && Arc::ptr_eq(&self.keep, &other.keep)
    }

    /// True when bytes may be written through this window.
    #[inline]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// The first address, as an opaque number: for announcing, hashing and comparing.
    #[inline]
    pub fn base_address(&self) -> u64 {
        self.base.as_ptr() as usize as u64
    }

    /// The first address, for backends that hand it to a kernel, a device or a copy kernel.
    ///
    /// Dereferencing is the caller's own unsafe act: stay within `len()`, write only when
    /// `is_writable()`, hold a clone of the window meanwhile, make no references.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        self.base.as_ptr()
    }

    /// The address of `len` bytes at `offset`, for backends that hand it to a kernel or a driver, as for [`Window::as_ptr`].
    #[inline]
    pub fn address_of(&self, offset: u64, len: u64) -> Result<u64, AccessError> {
        self.check(offset, len)?;
        Ok(self.base_address() + offset)
    }

    /// The part of `len` bytes at `offset`, or `None` when it leaves the window.
    pub fn slice(&self, offset: u64, len: u64) -> Option<Self> {
        self.check(offset, len).ok()?;
        // SAFETY: `check` put offset .. offset + len inside the mapped range, which `keep` holds.
        let base = unsafe { self.base.add(offset as usize) };
        Some(Self { base, len, writable: self.writable, keep: Arc::clone(&self.keep) })
    }

    /// Registers the whole mapping that this window is over, given as address and bytes, with a device, unless that was done before. None: Penstock has
    /// not mapped it, so nobody says when it changes.
    pub fn register_pages<E>(
        &self,
        register: impl FnOnce(u64, u64) -> Result<Box<dyn PageRegistration>, E>,
    ) -> Option<Result<(), E>> {
        let keep: &(dyn Any + Send + Sync) = &*self.keep;
        let mapping = keep.downcast_ref::<Mapping>()?;
        let mut registration = mapping.registration();
        if registration.is_some() {
            return Some(Ok(()));
        }
        let made = register(mapping.base().as_ptr() as u64, mapping.len());
        Some(made.map(|made| *registration = Some(made)))
    }

    /// Whether it is over a mapping of Penstock's, whose pages can be registered with devices.
    pub fn is_of_mapping(&self) -> bool {
        let keep: &(dyn Any + Send + Sync) = &*self.keep;
        keep.is::<Mapping>()
    }

    /// The same bytes without the right to write them.
    pub fn read_only(&self) -> Self {
        Self { writable: false, ..self.clone() }
    }

    /// Copies bytes at `offset` into `out`.
    pub fn read_into(&self, offset: u64, out: &mut [u8]) -> Result<(), AccessError> {
        self.check(offset, out.len() as u64)?;
        // SAFETY: in bounds by `check`; `out` is a live exclusive slice, and nothing in this
        // window is ever a Rust reference, so the two cannot be the same bytes.
        unsafe {
            ptr::copy(self.as_ptr().add(offset as usize).cast_const(), out.as_mut_ptr(), out.len());
        }
        Ok(())
    }

    /// Copies `bytes` to `offset`.
    pub fn write_from(&self, offset: u64, bytes: &[u8]) -> Result<(), AccessError> {
        self.check_write(offset, bytes.len() as u64)?;
        // SAFETY: in bounds and writable by `check_write`; `bytes` is a live slice.
        unsafe {
            ptr::copy(bytes.as_ptr(), self.as_ptr().add(offset as usize), bytes.len());
        }
        Ok(())
    }

    /// Sets `len` bytes at `offset` to `byte`.
    pub fn fill(&self, offset: u64, len: u64, byte: u8) -> Result<(), AccessError> {
        self.check_write(offset, len)?;
        // SAFETY: in bounds and writable by `check_write`.
        unsafe { ptr::write_bytes(self.as_ptr().add(offset as usize), byte, len as usize) };
        Ok(())
    }

    /// Reads the 8 bytes at `offset` as one word in the machine's byte order, with acquire
    /// meaning: what its writer wrote before a releasing store of the word is visible after.
    pub fn load_u64(&self, offset: u64) -> Result<u64, AccessError> {
        self.check(offset, 8)?;
        let word = self.word(offset)?;
        // SYNC window-word: pairs with store_u64's Release, in this process or a peer's.
        Ok(word.load(Ordering::Acquire))
    }

    /// Writes the 8 bytes at `offset` as one word in the machine's byte order, after everything
    /// this thread wrote before.
    pub fn store_u64(&self, offset: u64, value: u64) -> Result<(), AccessError> {
        self.check_write(offset, 8)?;
        let word = self.word(offset)?;
        // SYNC window-word: pairs with load_u64's Acquire, in this process or a peer's.
        word.store(value, Ordering::Release);
        Ok(())
    }

    /// The word at an offset that `check` accepted.
    fn word(&self, offset: u64) -> Result<&AtomicU64, AccessError> {
        // SAFETY: the caller checked that 8 bytes at `offset` are in bounds.
        let at = unsafe { self.as_ptr().add(offset as usize) }.cast::<AtomicU64>();
        if !at.is_aligned() {
            return Err(AccessError::Misaligned { offset, align: 8 });
        }
        // SAFETY: in bounds, aligned, mapped while `self` lives; an atomic tolerates writers in
        // other threads and processes. `load` never writes, so a read-only mapping is enough.
        Ok(unsafe { &*at })
    }

    #[inline]
    fn check(&self, offset: u64, len: u64) -> Result<(), AccessError> {
        check_bounds(self.len, offset, len)
    }

    #[inline]
    fn check_write(&self, offset: u64, len: u64) -> Result<(), AccessError> {
        if !self.writable {
            return Err(AccessError::ReadOnly);
        }
        self.check(offset, len)
    }
}

/// Whether a window of so many bytes has these.
#[inline]
pub(crate) fn check_bounds(window_len: u64, offset: u64, len: u64) -> Result<(), AccessError> {
    if len <= window_len && offset <= window_len - len {
        return Ok(());
    }
    Err(AccessError::OutOfBounds { offset, len, window_len })
}

impl fmt::Debug for Window {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Window")
            .field("base", &format_args!("{:#x}", self.base_address()))
            .field("len", &self.len)
            .field("writable", &self.writable)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};

    use penstock_core::env::BlockingJob;

    use super::PageRegistration;
    use crate::error::AccessError;
    use crate::{HostMemory, Pool, PoolSpec};

    #[test]
    fn registered_pages_are_unmapped_behind_the_end_of_their_registration() {
        struct Registered(Sender<BlockingJob>);
        impl PageRegistration for Registered {
            fn suspend(&mut self) {}

            fn resume(&mut self) -> bool {
                true
            }

            fn end(self: Box<Self>, unmap: BlockingJob) {
                self.0.send(unmap).unwrap();
            }
        }
        let pool = Pool::create(PoolSpec::host(1 << 20).label("registered")).unwrap();
        let (given, ending) = channel();
        let begin = pool.window().base_address();
        let is_mapped = || {
            std::fs::read_to_string("/proc/self/maps")
                .unwrap()
                .lines()
                .any(|line| line.starts_with(&format!("{begin:x}-")))
        };
        pool.window().register_pages(|_, _| Ok::<_, ()>(Box::new(Registered(given)) as _)).unwrap().unwrap();
        drop(pool);
        let unmap = ending.try_recv().unwrap();
        assert!(is_mapped(), "a device may still have the pages");
        unmap.run();
        assert!(!is_mapped());
    }

    #[test]
    fn bytes_go_in_and_come_out() {
        let window = HostMemory::from_vec(vec![0; 64]).unwrap().window().clone();
        window.write_from(3, b"hello").unwrap();
        let mut out = [0; 7];
        window.read_into(2, &mut out).unwrap();
        assert_eq!(&out, b"\0hello\0");
        window.fill(0, 64, 7).unwrap();
        window.read_into(57, &mut out).unwrap();
        assert_eq!(out, [7; 7]);
    }

    #[test]
    fn bounds_hold_at_the_edges_and_against_overflow() {
        let window = HostMemory::from_vec(vec![0; 16]).unwrap().window().clone();
        assert!(window.slice(0, 16).is_some());
        assert!(window.slice(16, 0).is_some());
        assert!(window.slice(17, 0).is_none());
        assert!(window.slice(1, 16).is_none());
        assert!(window.slice(u64::MAX, 2).is_none());
        assert!(window.slice(2, u64::MAX).is_none());
        let refused = AccessError::OutOfBounds { offset: 9, len: 8, window_len: 16 };
        assert_eq!(window.load_u64(9), Err(refused));
        assert_eq!(window.write_from(9, &[0; 8]), Err(refused));
    }

    #[test]
    fn a_read_only_window_refuses_every_write() {
        let window = HostMemory::from_vec(vec![1; 16]).unwrap().window().read_only();
        assert_eq!(window.write_from(0, &[0]), Err(AccessError::ReadOnly));
        assert_eq!(window.fill(0, 1, 0), Err(AccessError::ReadOnly));
        assert_eq!(window.store_u64(0, 0), Err(AccessError::ReadOnly));
        assert!(!window.slice(4, 4).unwrap().is_writable());
    }

    #[test]
    fn words_need_alignment() {
        let window = HostMemory::from_vec(vec![0; 64]).unwrap().window().clone();
        let aligned = (8 - window.base_address() % 8) % 8;
        window.store_u64(aligned, 0x0123_4567_89ab_cdef).unwrap();
        assert_eq!(window.load_u64(aligned), Ok(0x0123_4567_89ab_cdef));
        assert!(matches!(window.load_u64(aligned + 1), Err(AccessError::Misaligned { .. })));
    }
}
