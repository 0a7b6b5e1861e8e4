//! The atomics of this crate: std's, or loom's under `--cfg loom`, and the full barriers.
//!
//! Loom regards a `SeqCst` load or store as acquire/release and models only `fence(SeqCst)`
//! fully. The store-then-load handshakes of this crate are therefore written with the barrier
//! helpers below: a fence wherever loom looks, one locked instruction on x86-64.

#[cfg(loom)]
pub(crate) use loom::{
    cell::UnsafeCell,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
    },
};

#[cfg(not(loom))]
pub(crate) use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

/// `std::cell::UnsafeCell` with the closure interface of loom's, which checks every access.
#[cfg(not(loom))]
#[derive(Debug)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    #[inline(always)]
    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// Keeps what is written often by one side on its own pair of cache lines: Intel's prefetcher
/// fetches lines in pairs of 128 bytes.
#[repr(align(128))]
#[derive(Debug)]
pub(crate) struct Padded<T>(pub(crate) T);

/// Orders every access before it against every access after it, stores before loads included.
///
/// SYNC full-barrier: pairs with the other side's full barrier; each caller names it.
#[inline(always)]
pub(crate) fn full_barrier() {
    #[cfg(all(target_arch = "x86_64", not(any(loom, miri))))]
    // SAFETY: a locked OR with zero leaves the word on our own stack as it was and touches no
    // flag that is not declared clobbered. Any locked instruction is a full barrier on x86, at
    // half the price of the MFENCE that `fence(SeqCst)` becomes; without `nomem` the compiler
    // moves no access across it either.
    unsafe {
        std::arch::asm!("lock or dword ptr [rsp], 0", options(nostack));
    }
    // SYNC full-barrier: the partner is named where this is called.
    #[cfg(not(all(target_arch = "x86_64", not(any(loom, miri)))))]
    fence(Ordering::SeqCst);
}

/// Read-modify-write and store operations that are followed by a full barrier.
pub(crate) trait WithBarrier {
    type Value;

    /// Release store, then a full barrier.
    fn store_then_barrier(&self, value: Self::Value);

    /// Acquire-release swap, then a full barrier.
    fn swap_then_barrier(&self, value: Self::Value) -> Self::Value;

    /// Acquire-release addition (wrapping), then a full barrier. Returns the value before.
    fn add_then_barrier(&self, value: Self::Value) -> Self::Value;

    /// Acquire-release step to what is answered for the value there is, then a full barrier. Returns the value before; none: no step, and no
    /// barrier.
    fn step_then_barrier(&self, step: impl Fn(Self::Value) -> Option<Self::Value>) -> Option<Self::Value>;

    /// Acquire-release OR, then a full barrier. Returns the value before.
    fn or_then_barrier(&self, value: Self::Value) -> Self::Value;
}

/// After a locked instruction: nothing to do for an x86 processor, a fence for all others.
#[inline(always)]
fn barrier_after_locked() {
    // SYNC full-barrier: the partner is named where this is called.
    #[cfg(all(target_arch = "x86_64", not(any(loom, miri))))]
    std::sync::atomic::compiler_fence(Ordering::SeqCst);
    // SYNC full-barrier: the partner is named where this is called.
    #[cfg(not(all(target_arch = "x86_64", not(any(loom, miri)))))]
    fence(Ordering::SeqCst);
}

macro_rules! with_barrier {
    ($atomic:ty, $value:ty) => {
        impl WithBarrier for $atomic {
            type Value = $value;

            #[inline(always)]
            fn store_then_barrier(&self, value: $value) {
                // On x86 XCHG is the cheapest store that later loads cannot pass.
                // SYNC full-barrier: the partner is named where this is called.
                #[cfg(all(target_arch = "x86_64", not(any(loom, miri))))]
                self.swap(value, Ordering::SeqCst);
                // SYNC full-barrier: the partner is named where this is called.
                #[cfg(not(all(target_arch = "x86_64", not(any(loom, miri)))))]
                self.store(value, Ordering::Release);
                barrier_after_locked();
            }

            #[inline(always)]
            fn swap_then_barrier(&self, value: $value) -> $value {
                // SYNC full-barrier: the partner is named where this is called.
                let before = self.swap(value, Ordering::AcqRel);
                barrier_after_locked();
                before
            }

            #[inline(always)]
            fn add_then_barrier(&self, value: $value) -> $value {
                // SYNC full-barrier: the partner is named where this is called.
                let before = self.fetch_add(value, Ordering::AcqRel);
                barrier_after_locked();
                before
            }

            #[inline(always)]
            fn step_then_barrier(&self, step: impl Fn($value) -> Option<$value>) -> Option<$value> {
                let mut before = self.load(Ordering::Relaxed);
                // SYNC full-barrier: the partner is named where this is called.
                while let Err(now) =
                    self.compare_exchange_weak(before, step(before)?, Ordering::AcqRel, Ordering::Relaxed)
                {
                    before = now;
                }
                barrier_after_locked();
                Some(before)
            }

            #[inline(always)]
            fn or_then_barrier(&self, value: $value) -> $value {
                // SYNC full-barrier: the partner is named where this is called.
                let before = self.fetch_or(value, Ordering::AcqRel);
                barrier_after_locked();
                before
            }
        }
    };
}

with_barrier!(AtomicU32, u32);
with_barrier!(AtomicU64, u64);

/// Loads a word that may lie in a read-only mapping, with acquire semantics.
///
/// Rust guarantees only *relaxed* atomic loads on memory that is mapped read-only, so the acquire
/// part is a fence. It costs nothing on x86.
#[inline(always)]
pub(crate) fn load_acquire_read_only(word: &AtomicU64) -> u64 {
    let value = word.load(Ordering::Relaxed);
    // SYNC: the caller names the store this pairs with.
    fence(Ordering::Acquire);
    value
}

/// A relaxed load that decides whether this thread writes the same word next.
#[inline(always)]
pub(crate) fn glance(word: &AtomicU64) -> u64 {
    #[cfg(loom)]
    explore();
    word.load(Ordering::Relaxed)
}

/// Makes loom try both orders of everything around it.
///
/// Loom remembers one last access of each word. A thread's own load hides another's earlier load
/// from its write that follows, so the order "write first" is never tried. A relaxed addition of
/// nothing to one common word brings it back and orders no other memory.
#[cfg(loom)]
fn explore() {
    loom::lazy_static! {
        static ref COMMON: AtomicU64 = AtomicU64::new(0);
    }
    COMMON.fetch_add(0, Ordering::Relaxed);
}
