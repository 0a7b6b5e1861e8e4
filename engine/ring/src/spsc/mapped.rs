//! A ring in memory shared with another process.

use std::ptr::NonNull;

use super::{Consumer, LINE_BYTES, Producer, RingLine, Storage, check_capacity, sealed};
use crate::error::{Corrupt, RingError};
use crate::shared_range::SharedRange;
use crate::sync::{AtomicU32, AtomicU64, Ordering};

// The layout, bytes from the start of the place. Pairs of cache lines, as in `Padded`.
const TAIL_AT: usize = 0;
const HEAD_AT: usize = 128;
const WAITING_AT: usize = 256;
const LINES_AT: usize = 384;

const WORDS: usize = LINE_BYTES / size_of::<u64>();

/// A ring in a [`SharedRange`].
///
/// | bytes | what |
/// |---|---|
/// | 0 | tail, u64, written by the producer |
/// | 128 | head, u64, written by the consumer |
/// | 256 | producer waits for space, u32 |
/// | 384 | `capacity` lines of 64 bytes |
///
/// All zero is an empty ring. Nothing but agreement makes each end unique across processes: two
/// producers mix up each other's lines, but every word is atomic and every index is checked, so
/// they spoil this ring only.
#[derive(Debug)]
pub struct MappedStorage {
    tail: NonNull<AtomicU64>,
    head: NonNull<AtomicU64>,
    waiting: NonNull<AtomicU32>,
    words: NonNull<AtomicU64>,
    capacity: usize,
    /// Keeps all of the above mapped.
    _place: SharedRange,
}

impl MappedStorage {
    /// Alignment the place needs, bytes.
    pub const ALIGN: usize = LINE_BYTES;

    /// Bytes of a ring of `capacity` lines; saturates for a capacity that is refused anyway.
    pub const fn bytes_for(capacity: usize) -> usize {
        LINES_AT.saturating_add(capacity.saturating_mul(LINE_BYTES))
    }

    /// The ring of `capacity` lines (a power of two) at the start of `place`.
    pub fn new(place: SharedRange, capacity: usize) -> Result<Self, RingError> {
        check_capacity(capacity)?;
        place.require_writable()?;
        if !place.as_ptr().addr().get().is_multiple_of(Self::ALIGN) {
            return Err(RingError::Misaligned { offset: 0, align: Self::ALIGN });
        }
        Ok(Self {
            words: place.locate(LINES_AT, capacity * WORDS)?,
            tail: place.locate(TAIL_AT, 1)?,
            head: place.locate(HEAD_AT, 1)?,
            waiting: place.locate(WAITING_AT, 1)?,
            capacity,
            _place: place,
        })
    }

    #[inline]
    fn slot(&self, slot: usize) -> NonNull<[AtomicU64; WORDS]> {
        debug_assert!(slot < self.capacity);
        // SAFETY: the callers promise `slot < capacity`, and `new` checked that so many lines
        // lie within the place.
        unsafe { self.words.cast::<[AtomicU64; WORDS]>().add(slot) }
    }
}

impl Producer<MappedStorage> {
    /// The writing end; goes on where the indices in the memory stand.
    pub fn attach(storage: MappedStorage) -> Result<Self, Corrupt> {
        Self::attach_to(storage)
    }
}

impl Consumer<MappedStorage> {
    /// The reading end; goes on where the indices in the memory stand.
    pub fn attach(storage: MappedStorage) -> Self {
        Self::attach_to(storage)
    }
}

// SAFETY: the pointers lead to atomics in `_place`, which is Send + Sync and keeps them valid.
unsafe impl Send for MappedStorage {}
// SAFETY: as above.
unsafe impl Sync for MappedStorage {}

impl sealed::Sealed for MappedStorage {}

impl Storage for MappedStorage {
    #[inline]
    fn capacity(&self) -> usize {
        self.capacity
    }

    #[inline]
    fn tail(&self) -> &AtomicU64 {
        // SAFETY: checked by `new`, kept mapped by `_place`.
        unsafe { self.tail.as_ref() }
    }

    #[inline]
    fn head(&self) -> &AtomicU64 {
        // SAFETY: checked by `new`, kept mapped by `_place`.
        unsafe { self.head.as_ref() }
    }

    #[inline]
    fn waiting(&self) -> &AtomicU32 {
        // SAFETY: checked by `new`, kept mapped by `_place`.
        unsafe { self.waiting.as_ref() }
    }

    // Word by word and relaxed: a peer that writes at the same time is then no data race, at the
    // price of plain moves instead of vector moves.

    #[inline]
    unsafe fn write(&self, slot: usize, line: &RingLine) {
        // SAFETY: the caller promises `slot < capacity`; mapped as long as `self` lives.
        let words = unsafe { self.slot(slot).as_ref() };
        for (word, value) in words.iter().zip(line.0) {
            word.store(value, Ordering::Relaxed);
        }
    }

    #[inline]
    unsafe fn read(&self, slot: usize) -> RingLine {
        // SAFETY: the caller promises `slot < capacity`; mapped as long as `self` lives.
        let words = unsafe { self.slot(slot).as_ref() };
        let mut line = RingLine::default();
        for (value, word) in line.0.iter_mut().zip(words) {
            *value = word.load(Ordering::Relaxed);
        }
        line
    }
}
