//! [`SharedRange`]: a piece of memory, shared with other processes or not, that stays mapped while it
//! is used.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::any::Any;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use crate::error::RingError;
use crate::shared::SharedRef;

/// Alignment of [`SharedRange::heap`], bytes: a pair of cache lines.
const HEAP_ALIGN: usize = 128;

/// Types that may lie over memory which other processes write at any moment.
///
/// # Safety
/// The type consists of atomics only (no padding, no plain field), so that every bit pattern is
/// valid and concurrent writes are not data races.
pub unsafe trait Overlay: Send + Sync + 'static {}

// SAFETY: an atomic integer, any bits are valid.
unsafe impl Overlay for AtomicU32 {}
// SAFETY: an atomic integer, any bits are valid.
unsafe impl Overlay for AtomicU64 {}

/// A piece of shared memory: base, length, and what keeps it mapped.
///
/// Everything in a place is untrusted: other processes may write it at any time. That is why its
/// safe accessors give atomics and nothing else.
#[derive(Clone)]
pub struct SharedRange {
    base: NonNull<u8>,
    len: usize,
    writable: bool,
    keep: Arc<dyn Any + Send + Sync>,
}

impl SharedRange {
    /// A place that this process may read and write.
    ///
    /// # Safety
    /// `len` bytes from `base` are mapped readable and writable for as long as `keep` lives, and
    /// nothing in this process accesses them but through atomics, or through raw pointers under a
    /// protocol of its own that keeps the two apart.
    pub unsafe fn new(base: NonNull<u8>, len: usize, keep: Arc<dyn Any + Send + Sync>) -> Self {
        Self { base, len, writable: true, keep }
    }

    /// A place that this process may only read: its owner is somebody else.
    ///
    /// # Safety
    /// As [`Place::new`], with a mapping that need only be readable.
    pub unsafe fn read_only(base: NonNull<u8>, len: usize, keep: Arc<dyn Any + Send + Sync>) -> Self {
        Self { base, len, writable: false, keep }
    }

    /// Zeroed memory of this process, at a multiple of 128 bytes.
    pub fn heap(len: usize) -> Self {
        let block = HeapBlock::new(len);
        Self { base: block.base, len, writable: true, keep: Arc::new(block) }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is not one byte.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether this process may write.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// The first byte. For those who copy bulk bytes under a protocol of their own.
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.base
    }

    /// A part of it, kept alive by the same owner; `None` when it would reach beyond the end.
    pub fn slice(&self, offset: usize, len: usize) -> Option<Self> {
        let end = offset.checked_add(len)?;
        if end > self.len {
            return None;
        }
        Some(Self {
            // SAFETY: offset <= end <= self.len, so it stays within (or one past) the mapping.
            base: unsafe { self.base.add(offset) },
            len,
            writable: self.writable,
            keep: Arc::clone(&self.keep),
        })
    }

    /// The same memory without the right to write through it.
    pub fn without_writing(&self) -> Self {
        Self { writable: false, ..self.clone() }
    }

    /// The word at `offset` bytes; `None` when out of bounds, misaligned, or read-only.
    #[inline]
    pub fn atomic_u64(&self, offset: usize) -> Option<&AtomicU64> {
        self.atomic(offset)
    }

    /// The half word at `offset` bytes; `None` when out of bounds, misaligned, or read-only.
    #[inline]
    pub fn atomic_u32(&self, offset: usize) -> Option<&AtomicU32> {
        self.atomic(offset)
    }

    /// An overlay at `offset` bytes that keeps the place alive.
    pub fn cell<T: Overlay>(&self, offset: usize) -> Result<SharedRef<T>, RingError> {
        self.require_writable()?;
        self.readable_cell(offset)
    }

    /// `count` overlays side by side from `offset` bytes, which keep the place alive.
    pub fn cells<T: Overlay>(&self, offset: usize, count: usize) -> Result<SharedRef<[T]>, RingError> {
        self.require_writable()?;
        self.readable_cells(offset, count)
    }

    /// As [`Place::cell`], on read-only places too: the caller only ever loads.
    pub(crate) fn readable_cell<T: Overlay>(&self, offset: usize) -> Result<SharedRef<T>, RingError> {
        let at = self.locate::<T>(offset, 1)?;
        // SAFETY: `locate` checked bounds and alignment, `keep` keeps the mapping, and `Overlay`
        // promises that any bytes are a valid `T`.
        Ok(unsafe { SharedRef::overlay(at, Arc::clone(&self.keep)) })
    }

    /// As [`Place::cells`], on read-only places too: the caller only ever loads.
    pub(crate) fn readable_cells<T: Overlay>(&self, offset: usize, count: usize) -> Result<SharedRef<[T]>, RingError> {
        let first = self.locate::<T>(offset, count)?;
        let at = NonNull::slice_from_raw_parts(first, count);
        // SAFETY: as in `readable_cell`, for all `count` elements.
        Ok(unsafe { SharedRef::overlay(at, Arc::clone(&self.keep)) })
    }

    pub(crate) fn require_writable(&self) -> Result<(), RingError> {
        if self.writable { Ok(()) } else { Err(RingError::ReadOnly) }
    }

    /// Checks bounds and alignment of `count` values at `offset`.
    pub(crate) fn locate<T: Overlay>(&self, offset: usize, count: usize) -> Result<NonNull<T>, RingError> {
        let end = count.checked_mul(size_of::<T>()).and_then(|bytes| bytes.checked_add(offset)).unwrap_or(usize::MAX);
        if end > self.len {
            return Err(RingError::TooSmall { needed: end, given: self.len });
        }
        // SAFETY: offset <= end <= self.len, so the pointer stays within the mapping.
        let at = unsafe { self.base.add(offset) }.cast::<T>();
        if !at.is_aligned() {
            return Err(RingError::Misaligned { offset, align: align_of::<T>() });
        }
        Ok(at)
    }

    #[inline]
    fn atomic<T: Overlay>(&self, offset: usize) -> Option<&T> {
        if !self.writable {
            return None;
        }
        let at = self.locate::<T>(offset, 1).ok()?;
        // SAFETY: checked by `locate`; the reference borrows `self`, which keeps the mapping.
        Some(unsafe { at.as_ref() })
    }
}

impl fmt::Debug for SharedRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Place")
            .field("base", &self.base)
            .field("len", &self.len)
            .field("writable", &self.writable)
            .finish_non_exhaustive()
    }
}

// SAFETY: the safe interface touches the memory through atomics only, and `keep` is Send + Sync.
unsafe impl Send for SharedRange {}
// SAFETY: as above.
unsafe impl Sync for SharedRange {}

/// A zeroed, aligned allocation.
struct HeapBlock {
    base: NonNull<u8>,
    layout: Layout,
}

impl HeapBlock {
    fn new(len: usize) -> Self {
        // A multiple of the alignment, and never zero: the allocator accepts no empty layout.
        let bytes = len.max(1).checked_next_multiple_of(HEAP_ALIGN);
        let layout = bytes.and_then(|bytes| Layout::from_size_align(bytes, HEAP_ALIGN).ok());
        let Some(layout) = layout else {
            // What the allocator would answer for a size no machine has.
            handle_alloc_error(Layout::new::<u8>());
        };
        // SAFETY: the layout is not empty.
        let base = unsafe { alloc_zeroed(layout) };
        match NonNull::new(base) {
            Some(base) => Self { base, layout },
            None => handle_alloc_error(layout),
        }
    }
}

impl Drop for HeapBlock {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, freed once.
        unsafe { dealloc(self.base.as_ptr(), self.layout) }
    }
}

// SAFETY: it only owns the allocation; access goes through `Place`.
unsafe impl Send for HeapBlock {}
// SAFETY: as above.
unsafe impl Sync for HeapBlock {}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering::Relaxed;

    #[test]
    fn heap_is_zeroed_and_aligned() {
        let place = SharedRange::heap(300);
        assert_eq!(place.len(), 300);
        assert_eq!(place.as_ptr().addr().get() % HEAP_ALIGN, 0);
        let word = place.atomic_u64(288).unwrap();
        assert_eq!(word.load(Relaxed), 0);
        assert!(SharedRange::heap(0).is_empty());
    }

    #[test]
    fn bounds_and_alignment_are_checked() {
        let place = SharedRange::heap(64);
        assert!(place.atomic_u64(56).is_some());
        assert!(place.atomic_u64(57).is_none());
        assert!(place.atomic_u64(4).is_none());
        assert!(place.atomic_u32(4).is_some());
        assert!(place.atomic_u64(usize::MAX).is_none());
        assert_eq!(
            place.cells::<AtomicU64>(0, usize::MAX / 2).unwrap_err(),
            RingError::TooSmall { needed: usize::MAX, given: 64 }
        );
        assert!(matches!(place.cell::<AtomicU64>(4), Err(RingError::Misaligned { .. })));
    }

    #[test]
    fn slices_share_the_memory_and_outlive_the_whole() {
        let place = SharedRange::heap(128);
        assert!(place.slice(64, 65).is_none());
        assert!(place.slice(usize::MAX, 2).is_none());
        let part = place.slice(64, 64).unwrap();
        place.atomic_u64(64).unwrap().store(7, Relaxed);
        drop(place);
        assert_eq!(part.atomic_u64(0).unwrap().load(Relaxed), 7);
    }

    #[test]
    fn a_read_only_place_gives_no_writable_word() {
        let place = SharedRange::heap(64).without_writing();
        assert!(place.atomic_u64(0).is_none());
        assert_eq!(place.cell::<AtomicU32>(0).unwrap_err(), RingError::ReadOnly);
        assert!(place.readable_cell::<AtomicU32>(0).is_ok());
    }
}
