//! [`Shared`]: one atomic overlay that keeps its memory alive, on the heap or in a place.
//!
//! It is what lets an algorithm be written once: loom models it on the heap, processes run it in
//! a mapping.

use std::any::Any;
use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

/// A reference-counted pointer to atomics, wherever they live.
///
/// Dereferences to the overlay. Cloning costs one reference count, so clone at set-up only.
pub struct SharedRef<T: ?Sized> {
    at: NonNull<T>,
    keep: Arc<dyn Any + Send + Sync>,
}

impl<T: Send + Sync + 'static> SharedRef<T> {
    /// Moves `value` to the heap.
    pub fn heap(value: T) -> Self {
        let keep = Arc::new(value);
        Self { at: NonNull::from(&*keep), keep }
    }

    /// Moves the values to the heap, side by side.
    pub fn heap_slice(values: impl IntoIterator<Item = T>) -> SharedRef<[T]> {
        let values: Box<[T]> = values.into_iter().collect();
        let keep = Arc::new(values);
        SharedRef { at: NonNull::from(&**keep), keep }
    }
}

impl<T> SharedRef<[T]> {
    /// One element, or `None` beyond the end.
    pub fn element(&self, index: usize) -> Option<SharedRef<T>> {
        let at = NonNull::from(self.get(index)?);
        Some(SharedRef { at, keep: Arc::clone(&self.keep) })
    }
}

impl<T: ?Sized> SharedRef<T> {
    /// Overlays memory that `keep` keeps valid.
    ///
    /// # Safety
    /// `at` is valid for shared references to `T` for as long as `keep` lives, and `T` stays
    /// valid whatever bytes other processes write there (it consists of atomics only).
    #[cfg(not(loom))]
    pub(crate) unsafe fn overlay(at: NonNull<T>, keep: Arc<dyn Any + Send + Sync>) -> Self {
        Self { at, keep }
    }
}

impl<T: ?Sized> Deref for SharedRef<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: `keep` lives as long as we do and keeps `at` valid; the constructors promise
        // that only shared references to it exist.
        unsafe { self.at.as_ref() }
    }
}

impl<T: ?Sized> Clone for SharedRef<T> {
    fn clone(&self) -> Self {
        Self { at: self.at, keep: Arc::clone(&self.keep) }
    }
}

impl<T: ?Sized> fmt::Debug for SharedRef<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Shared").field(&self.at).finish()
    }
}

// SAFETY: it hands out `&T` only, which may cross threads when `T: Sync`; the last owner may drop
// `keep` on any thread, which its own bounds allow.
unsafe impl<T: ?Sized + Sync> Send for SharedRef<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Sync> Sync for SharedRef<T> {}
