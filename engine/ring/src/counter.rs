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
//! A count and the use of the counter that it is for are one word: who was stopped on the way to a counter that has another use by then
//! counts for none. A stopped process may go on at any time later, so that numbers of uses must not come round soon.
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

/// Arrivals of a use have so many bits: a million a second for twelve days. What comes after is not counted.
const VALUE_BITS: u32 = 40;
const VALUES: u64 = (1 << VALUE_BITS) - 1;

const fn generation_of(word: u64) -> u32 {
    (word >> VALUE_BITS) as u32
}

/// One counter, as it lies in memory.
///
/// | bytes | what |
/// |---|---|
/// | 0 | which use it is, in the upper 24 bits of a u64, and arrivals of this use in the others |
/// | 8 | waiters that sleep, u32 |
/// | 12 | reserved |
/// | 16 | ticks, u32: goes up when a waiter is woken, the word for the futex |
/// | 20 | reserved up to 64 |
#[repr(C, align(64))]
#[derive(Debug)]
pub struct CounterCell {
    word: AtomicU64,
    waiters: AtomicU32,
    _unused: AtomicU32,
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
            word: AtomicU64::new(0),
            waiters: AtomicU32::new(0),
            _unused: AtomicU32::new(0),
            ticks: AtomicU32::new(0),
            _reserved: std::array::from_fn(|_| AtomicU32::new(0)),
        }
    }
}

impl CounterCell {
    /// The greatest number of a use.
    pub const GENERATION_MAX: u32 = (1 << (64 - VALUE_BITS)) - 1;

    /// Counts one arrival for this use, after its bytes were written (and fenced, when they were written by
    /// non-temporal stores). `Some(true)` when somebody sleeps: wake the futex. None: the counter has another use, or none.
    #[inline]
    #[must_use = "waiters sleep until the futex is woken"]
    pub fn count(&self, generation: u32) -> Option<bool> {
        // SYNC arrive: pairs with `value`: who sees the count sees the bytes.
        // SYNC count-sleep: pairs with `add_waiter`'s barrier.
        self.word.step_then_barrier(|word| {
            let is_it = generation_of(word) == generation && word & VALUES != VALUES;
            is_it.then_some(word + 1)
        })?;
        if self.waiters.load(Ordering::Relaxed) == 0 {
            return Some(false);
        }
        // SYNC tick: pairs with `ticks`.
        self.ticks.fetch_add(1, Ordering::Release);
        Some(true)
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
        // SYNC arrive: pairs with `count`.
        self.word.load(Ordering::Acquire) & VALUES
    }

    /// What the futex is to be compared with. Read it *before* the value.
    #[inline]
    pub fn ticks(&self) -> u32 {
        // SYNC tick: pairs with `count`.
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
        // SYNC count-sleep: pairs with `count`'s barrier: it sees us, or we see its tick.
        self.waiters.add_then_barrier(1);
    }

    /// The waiter is awake again.
    #[inline]
    pub fn remove_waiter(&self) {
        self.waiters.fetch_sub(1, Ordering::Relaxed);
    }

    /// Which use of this cell it is; set by its owner. None has the number 0.
    #[inline]
    pub fn generation(&self) -> u32 {
        generation_of(self.word.load(Ordering::Relaxed))
    }

    /// Begins a use of this number at zero, and answers what was counted for the one before. For the owner, when nobody waits any more; late counts
    /// are for no use.
    pub fn begin_use(&self, generation: u32) -> u64 {
        debug_assert!(generation <= Self::GENERATION_MAX, "it has 24 bits");
        let counted = self.word.swap(u64::from(generation) << VALUE_BITS, Ordering::Relaxed) & VALUES;
        self.waiters.store(0, Ordering::Relaxed);
        counted
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
        assert_eq!(offset_of!(CounterCell, word), 0);
        assert_eq!(offset_of!(CounterCell, waiters), 8);
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
        assert_eq!(cell.count(0), Some(false), "the first use of all has the number 0");
        cell.add_waiter();
        assert_eq!(cell.count(0), Some(true));
        cell.remove_waiter();
        assert_eq!(cell.count(0), Some(false));
        assert_eq!((cell.value(), cell.ticks()), (3, 1), "only one of three met a waiter");
        assert_eq!(cell.futex_word().load(Ordering::Relaxed), 1);
        assert_eq!(place.atomic_u64(128).unwrap().load(Ordering::Relaxed), 3);
        assert_eq!(cell.begin_use(CounterCell::GENERATION_MAX), 3);
        assert_eq!((cell.value(), cell.generation(), cell.ticks()), (0, CounterCell::GENERATION_MAX, 1));
        assert_eq!((cell.count(0), cell.count(CounterCell::GENERATION_MAX)), (None, Some(false)));
        assert_eq!((cell.begin_use(7), cell.value(), cell.generation()), (1, 0, 7));
    }

    #[test]
    fn a_counter_that_is_full_counts_no_more_and_keeps_its_use() {
        let place = SharedRange::heap(CounterTable::bytes_for(1));
        let table = CounterTable::mapped(&place, 1).unwrap();
        let cell = table.cell(0).unwrap();
        cell.begin_use(5);
        place.atomic_u64(0).unwrap().fetch_or(VALUES - 1, Ordering::Relaxed);
        assert_eq!((cell.count(5), cell.count(5)), (Some(false), None));
        assert_eq!((cell.value(), cell.generation()), (VALUES, 5));
    }

    #[test]
    fn a_shared_cell_outlives_its_table() {
        let cell = CounterTable::heap(2).shared_cell(1).unwrap();
        assert_eq!(cell.count(0), Some(false));
        assert_eq!(cell.value(), 1);
    }
}
