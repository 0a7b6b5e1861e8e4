//! Arrival counters: one cache line each, counted up by whoever landed bytes, awaited by polling
//! or by a futex.
//!
//! A waiter that sleeps:
//!
//! ```text
//! add_waiter()
//! loop { tick = ticks(); if value() reached the target: break; futex_wait(futex_word(), tick) }
//! remove_waiter()
//! ```
//!
//! Whoever counts looks for waiters behind a full barrier, as does a waiter before its look at the value:
//! either the waiter sees the new value, or it is seen. Only if it is seen the tick goes up: a tick that is
//! new shows the new value, and one that changes before the wait began makes the futex return at once.

#[cfg(not(loom))]
use crate::error::RingError;
use crate::shared::SharedRef;
#[cfg(not(loom))]
use crate::shared_range::{Overlay, SharedRange};
use crate::sync::{AtomicU32, AtomicU64, Ordering, WithBarrier};

/// One counter, as it lies in memory.
///
/// | bytes | what |
/// |---|---|
/// | 0 | value, u64 |
/// | 8 | waiters that sleep, u32 |
/// | 12 | generation, u32 |
/// | 16 | ticks, u32: goes up when a waiter is woken, the word for the futex |
/// | 20 | reserved up to 64 |
#[repr(C, align(64))]
#[derive(Debug)]
pub struct CounterCell {
    value: AtomicU64,
    waiters: AtomicU32,
    generation: AtomicU32,
    ticks: AtomicU32,
    /// Atomics too, so that others may write here without harm.
    _reserved: [AtomicU32; 11],
}

#[cfg(not(loom))]
const _: () =
    assert!(size_of::<CounterCell>() == CounterTable::CELL_BYTES, "processes of different builds share this layout");

// SAFETY: atomics without padding: 8 + 3 × 4 + 11 × 4 = 64 bytes.
#[cfg(not(loom))]
unsafe impl Overlay for CounterCell {}

impl Default for CounterCell {
    fn default() -> Self {
        Self {
            value: AtomicU64::new(0),
            waiters: AtomicU32::new(0),
            generation: AtomicU32::new(0),
            ticks: AtomicU32::new(0),
            _reserved: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }
}

impl CounterCell {
    /// Counts one arrival, after its bytes were written (and fenced, when they were written by
    /// non-temporal stores). `true` when somebody sleeps: wake the futex.
    #[inline]
    #[must_use = "waiters sleep until the futex is woken"]
    pub fn add_one(&self) -> bool {
        // SYNC arrive: pairs with `value`: who sees the count sees the bytes.
        // SYNC count-sleep: pairs with `add_waiter`'s barrier.
        self.value.add_then_barrier(1);
        if self.waiters.load(Ordering::Relaxed) == 0 {
            return false;
        }
        // SYNC tick: pairs with `ticks`.
        self.ticks.fetch_add(1, Ordering::Release);
        true
    }

    /// Fetches the cell for writing: the line that this count is for is about to travel anyway, and
    /// travels while the bytes are still on their way.
    #[inline]
    pub fn prefetch(&self) {
        // SAFETY: a prefetch of any address changes nothing that a program can see.
        #[cfg(all(target_arch = "x86_64", not(any(loom, miri))))]
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_ET0 }>((&raw const *self).cast());
        }
    }

    /// Arrivals so far. Who sees one also sees its bytes.
    #[inline]
    pub fn value(&self) -> u64 {
        // SYNC arrive: pairs with `add_one`.
        self.value.load(Ordering::Acquire)
    }

    /// What the futex is to be compared with. Read it *before* the value.
    #[inline]
    pub fn ticks(&self) -> u32 {
        // SYNC tick: pairs with `add_one`.
        self.ticks.load(Ordering::Acquire)
    }

    /// The word to wait on and to wake.
    #[inline]
    pub fn futex_word(&self) -> &AtomicU32 {
        &self.ticks
    }

    /// Announces a waiter that is about to sleep. Look at the value after it.
    #[inline]
    pub fn add_waiter(&self) {
        // SYNC count-sleep: pairs with `add_one`'s barrier: it sees us, or we see its tick.
        self.waiters.add_then_barrier(1);
    }

    /// The waiter is awake again.
    #[inline]
    pub fn remove_waiter(&self) {
        self.waiters.fetch_sub(1, Ordering::Relaxed);
    }

    /// Which use of this cell it is; set by its owner.
    #[inline]
    pub fn generation(&self) -> u32 {
        // SYNC recycle: pairs with `recycle`.
        self.generation.load(Ordering::Acquire)
    }

    /// Begins a new use at zero. For the owner, when nobody counts or waits any more.
    pub fn recycle(&self, generation: u32) {
        self.value.store(0, Ordering::Relaxed);
        self.waiters.store(0, Ordering::Relaxed);
        // SYNC recycle: pairs with `generation`.
        self.generation.store(generation, Ordering::Release);
    }
}

/// Counters side by side.
#[derive(Clone, Debug)]
pub struct CounterTable {
    cells: SharedRef<[CounterCell]>,
}

impl CounterTable {
    /// Bytes of one counter.
    pub const CELL_BYTES: usize = 64;

    /// Bytes of `count` counters.
    pub const fn bytes_for(count: usize) -> usize {
        count.saturating_mul(Self::CELL_BYTES)
    }

    /// `count` counters inside this process.
    pub fn heap(count: usize) -> Self {
        Self { cells: SharedRef::heap_slice((0..count).map(|_| CounterCell::default())) }
    }

    /// The `count` counters at the start of `place`.
    #[cfg(not(loom))]
    pub fn mapped(place: &SharedRange, count: usize) -> Result<Self, RingError> {
        Ok(Self { cells: place.cells(0, count)? })
    }

    pub fn count(&self) -> usize {
        self.cells.len()
    }

    /// One counter; `None` beyond the end.
    #[inline]
    pub fn cell(&self, index: usize) -> Option<&CounterCell> {
        self.cells.get(index)
    }

    /// One counter that keeps its memory alive by itself; `None` beyond the end.
    pub fn shared_cell(&self, index: usize) -> Option<SharedRef<CounterCell>> {
        self.cells.element(index)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::mem::offset_of;

    #[test]
    fn the_layout_is_the_documented_one() {
        assert_eq!(offset_of!(CounterCell, value), 0);
        assert_eq!(offset_of!(CounterCell, waiters), 8);
        assert_eq!(offset_of!(CounterCell, generation), 12);
        assert_eq!(offset_of!(CounterCell, ticks), 16);
        assert_eq!(align_of::<CounterCell>(), 64);
    }

    #[test]
    fn counts_and_tells_of_sleepers() {
        let place = SharedRange::heap(CounterTable::bytes_for(3));
        let table = CounterTable::mapped(&place, 3).unwrap();
        assert_eq!(table.count(), 3);
        assert!(table.cell(3).is_none());
        assert!(CounterTable::mapped(&place, 4).is_err());
        let cell = table.cell(2).unwrap();
        assert!(!cell.add_one());
        cell.add_waiter();
        assert!(cell.add_one());
        cell.remove_waiter();
        assert!(!cell.add_one());
        assert_eq!((cell.value(), cell.ticks()), (3, 1), "only one of three met a waiter");
        assert_eq!(cell.futex_word().load(Ordering::Relaxed), 1);
        assert_eq!(place.atomic_u64(128).unwrap().load(Ordering::Relaxed), 3);
        cell.recycle(9);
        assert_eq!((cell.value(), cell.generation(), cell.ticks()), (0, 9, 1));
    }

    #[test]
    fn a_shared_cell_outlives_its_table() {
        let cell = CounterTable::heap(2).shared_cell(1).unwrap();
        assert!(!cell.add_one());
        assert_eq!(cell.value(), 1);
    }
}
