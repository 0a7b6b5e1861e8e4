//! A ring inside one process.

use super::{Consumer, Producer, RingLine, Storage, check_capacity, sealed};
use crate::error::RingError;
use crate::sync::{Arc, AtomicU32, AtomicU64, Padded, UnsafeCell};

/// A ring on the heap, freed with its last end.
#[derive(Debug)]
pub struct HeapStorage(Arc<HeapRing>);

#[derive(Debug)]
struct HeapRing {
    tail: Padded<AtomicU64>,
    head: Padded<AtomicU64>,
    waiting: Padded<AtomicU32>,
    slots: Box<[UnsafeCell<RingLine>]>,
}

// SAFETY: a slot is written by the one producer and read by the one consumer, never at the same
// time: the indices hand it over with Release and Acquire. `pair` makes one end of each kind.
unsafe impl Sync for HeapRing {}

/// The two ends of a ring of `capacity` lines (a power of two) inside this process.
pub fn pair(capacity: usize) -> Result<(Producer<HeapStorage>, Consumer<HeapStorage>), RingError> {
    check_capacity(capacity)?;
    let ring = Arc::new(HeapRing {
        tail: Padded(AtomicU64::new(0)),
        head: Padded(AtomicU64::new(0)),
        waiting: Padded(AtomicU32::new(0)),
        slots: (0..capacity).map(|_| UnsafeCell::new(RingLine::default())).collect(),
    });
    let producer = Producer::attach_to(HeapStorage(Arc::clone(&ring)))?;
    Ok((producer, Consumer::attach_to(HeapStorage(ring))))
}

impl sealed::Sealed for HeapStorage {}

impl Storage for HeapStorage {
    #[inline]
    fn capacity(&self) -> usize {
        self.0.slots.len()
    }

    #[inline]
    fn tail(&self) -> &AtomicU64 {
        &self.0.tail.0
    }

    #[inline]
    fn head(&self) -> &AtomicU64 {
        &self.0.head.0
    }

    #[inline]
    fn waiting(&self) -> &AtomicU32 {
        &self.0.waiting.0
    }

    #[inline]
    unsafe fn write(&self, slot: usize, line: &RingLine) {
        // SAFETY: the caller promises an index below the capacity, and that nobody else touches
        // the slot now.
        unsafe {
            let cell = self.0.slots.get_unchecked(slot);
            cell.with_mut(|at| at.write(*line));
        }
    }

    #[inline]
    unsafe fn read(&self, slot: usize) -> RingLine {
        // SAFETY: as in `write`.
        unsafe {
            let cell = self.0.slots.get_unchecked(slot);
            cell.with(|at| at.read())
        }
    }
}
