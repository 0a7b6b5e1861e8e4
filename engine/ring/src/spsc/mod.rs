//! Bounded ring of 64-byte lines with one producer and one consumer.
//!
//! The indices run freely and are masked by the capacity. Each side keeps its own index
//! privately and reads the other's, so a scribbled index is noticed ([`Corrupt`]) and never
//! followed: slots are reached through private indices and the mask only.

mod heap;
#[cfg(not(loom))]
mod mapped;
#[cfg(all(test, not(loom)))]
mod tests;

pub use heap::{HeapStorage, pair};
#[cfg(not(loom))]
pub use mapped::MappedStorage;

use crate::error::{Corrupt, Full, RingError};
use crate::sync::{AtomicU32, AtomicU64, Ordering, WithBarrier, full_barrier};

/// What travels through the ring: one cache line.
#[repr(C, align(64))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RingLine(pub [u64; 8]);

/// Bytes of a [`Line`].
pub const LINE_BYTES: usize = size_of::<RingLine>();

/// Most lines a ring can hold: differences of indices stay far from wrapping.
pub const CAPACITY_MAX: usize = 1 << 24;

/// Where the indices and slots of a ring live. Implemented in this crate only.
pub trait Storage: sealed::Sealed + Send {
    /// Lines; a power of two.
    fn capacity(&self) -> usize;
    /// Lines produced since the ring began; written by the producer.
    fn tail(&self) -> &AtomicU64;
    /// Lines consumed since the ring began; written by the consumer.
    fn head(&self) -> &AtomicU64;
    /// One while the producer waits for space.
    fn waiting(&self) -> &AtomicU32;

    /// Writes a slot.
    ///
    /// # Safety
    /// `slot < capacity`; the caller is the only producer, and the consumer is done with the slot.
    unsafe fn write(&self, slot: usize, line: &RingLine);

    /// Reads every word of a slot once.
    ///
    /// # Safety
    /// `slot < capacity`; the caller is the only consumer, and the producer published the slot.
    unsafe fn read(&self, slot: usize) -> RingLine;
}

mod sealed {
    pub trait Sealed {}
}

fn check_capacity(capacity: usize) -> Result<(), RingError> {
    if capacity.is_power_of_two() && capacity <= CAPACITY_MAX {
        return Ok(());
    }
    Err(RingError::Capacity { asked: capacity, largest: CAPACITY_MAX })
}

#[derive(Debug)]
pub struct Producer<S: Storage> {
    storage: S,
    capacity: u64,
    /// Our own index. The copy in the storage is for the consumer; it is never read back.
    tail: u64,
    /// The consumer's index as last read, always between `tail - capacity` and `tail`.
    head_seen: u64,
    corrupt: Option<Corrupt>,
}

impl<S: Storage> Producer<S> {
    /// Takes over at the indices found in the storage.
    fn attach_to(storage: S) -> Result<Self, Corrupt> {
        let capacity = storage.capacity() as u64;
        let tail = storage.tail().load(Ordering::Relaxed);
        // SYNC release-slots: pairs with `Consumer::release`'s store of head.
        let head = storage.head().load(Ordering::Acquire);
        if tail.wrapping_sub(head) > capacity {
            return Err(Corrupt { head, tail, capacity });
        }
        Ok(Self { storage, capacity, tail, head_seen: head, corrupt: None })
    }

    /// Lines the ring can hold.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// Lines that can be pushed now, at least. Looks at the consumer's index only when the last
    /// look left nothing.
    #[inline]
    pub fn free(&mut self) -> usize {
        self.free_for(1)
    }

    /// Lines that can be pushed now, at least. Looks at the consumer's index only when the last
    /// look left less than `wanted`.
    #[inline]
    pub fn free_for(&mut self, wanted: usize) -> usize {
        let free = self.free_seen();
        if free >= wanted as u64 {
            return free as usize;
        }
        self.look_at_head();
        self.free_seen() as usize
    }

    /// Publishes all of `lines` at once, or none. More lines than the capacity never fit.
    #[inline]
    pub fn push(&mut self, lines: &[RingLine]) -> Result<(), Full> {
        if self.free_for(lines.len()) < lines.len() {
            return Err(Full(()));
        }
        let mask = self.capacity - 1;
        let mut tail = self.tail;
        for line in lines {
            // SAFETY: masked, hence below the capacity; `&mut self` makes us the only producer,
            // and `free_for` saw (Acquire) that the consumer released these slots.
            unsafe { self.storage.write((tail & mask) as usize, line) };
            tail = tail.wrapping_add(1);
        }
        self.tail = tail;
        // SYNC publish-lines: pairs with `Consumer::available`'s load of tail.
        self.storage.tail().store(self.tail, Ordering::Release);
        Ok(())
    }

    /// Asks the consumer to ring when it next releases lines, then looks once more and returns
    /// the lines that are free *now*. Sleep only when that is still too little; else call
    /// [`Producer::clear_waiting`] and go on.
    #[inline]
    #[must_use = "space may have come back in between, and then nobody rings"]
    pub fn mark_waiting(&mut self) -> usize {
        // SYNC wait-for-space: pairs with the barrier in `Consumer::release`. Either it sees the
        // mark, or we see its head.
        self.storage.waiting().store_then_barrier(1);
        self.look_at_head();
        self.free_seen() as usize
    }

    /// Takes the mark back. A consumer may have taken it just before and ring once for nothing.
    #[inline]
    pub fn clear_waiting(&mut self) {
        self.storage.waiting().store(0, Ordering::Relaxed);
    }

    /// `Err` once the consumer's index was seen to be impossible. The ring keeps to the last
    /// possible one and fills up, so ask when a push was refused.
    #[inline]
    pub fn health(&self) -> Result<(), Corrupt> {
        match self.corrupt {
            None => Ok(()),
            Some(corrupt) => Err(corrupt),
        }
    }

    #[inline]
    fn free_seen(&self) -> u64 {
        self.capacity - self.tail.wrapping_sub(self.head_seen)
    }

    #[inline]
    fn look_at_head(&mut self) {
        // SYNC release-slots: pairs with `Consumer::release`'s store of head: the lines are read
        // before their slots are written again.
        let head = self.storage.head().load(Ordering::Acquire);
        let advanced = head.wrapping_sub(self.head_seen);
        if advanced > self.tail.wrapping_sub(self.head_seen) {
            self.note_corrupt(head);
        } else {
            self.head_seen = head;
        }
    }

    #[cold]
    fn note_corrupt(&mut self, head: u64) {
        self.corrupt = Some(Corrupt { head, tail: self.tail, capacity: self.capacity });
    }
}

#[derive(Debug)]
pub struct Consumer<S: Storage> {
    storage: S,
    capacity: u64,
    /// Our own index. The copy in the storage is for the producer; it is never read back.
    head: u64,
    /// The producer's index as last read, always between `head` and `head + capacity`.
    tail_seen: u64,
}

impl<S: Storage> Consumer<S> {
    /// Takes over at the index found in the storage; [`Consumer::available`] checks the other.
    fn attach_to(storage: S) -> Self {
        let capacity = storage.capacity() as u64;
        let head = storage.head().load(Ordering::Relaxed);
        Self { storage, capacity, head, tail_seen: head }
    }

    /// Lines the ring can hold.
    #[inline]
    pub fn capacity(&self) -> usize {
        self.capacity as usize
    }

    /// Lines that wait to be read, after a look at the producer's index. An index that went back
    /// or ran ahead is refused.
    #[inline]
    pub fn available(&mut self) -> Result<usize, Corrupt> {
        // SYNC publish-lines: pairs with `Producer::push`'s store of tail.
        let tail = self.storage.tail().load(Ordering::Acquire);
        let waiting = tail.wrapping_sub(self.head);
        if waiting > self.capacity || waiting < self.tail_seen.wrapping_sub(self.head) {
            return Err(Corrupt { head: self.head, tail, capacity: self.capacity });
        }
        self.tail_seen = tail;
        Ok(waiting as usize)
    }

    /// Copies out the `index`-th waiting line, reading it exactly once; `None` beyond what
    /// [`Consumer::available`] last told. Check the copy, not the slot: its bytes are the peer's.
    #[inline]
    pub fn peek(&self, index: usize) -> Option<RingLine> {
        if index as u64 >= self.tail_seen.wrapping_sub(self.head) {
            return None;
        }
        let slot = self.head.wrapping_add(index as u64) & (self.capacity - 1);
        // SAFETY: masked, hence below the capacity; we are the only consumer and do not move the
        // head while `self` is borrowed, and `available` saw (Acquire) that it was published.
        Some(unsafe { self.storage.read(slot as usize) })
    }

    /// Gives the first `count` waiting lines back to the producer; at most as many as
    /// [`Consumer::available`] last told. `true` when the producer waits for space and has to be
    /// woken; the mark is taken, so this is told once.
    ///
    /// Release once a turn, not once a line: each call makes the producer fetch the head's cache
    /// line again, and that trip costs more than reading eight lines.
    #[inline]
    #[must_use = "the producer may sleep until it is rung"]
    pub fn release(&mut self, count: usize) -> bool {
        let waiting = self.tail_seen.wrapping_sub(self.head);
        self.head = self.head.wrapping_add(waiting.min(count as u64));
        // SYNC release-slots: pairs with `Producer::look_at_head`.
        // SYNC wait-for-space: pairs with the barrier in `Producer::mark_waiting`.
        self.storage.head().store_then_barrier(self.head);
        self.take_mark()
    }

    /// As [`Consumer::release`], for a producer that polls and never waits: without the barrier.
    #[inline]
    pub fn release_quietly(&mut self, count: usize) {
        let waiting = self.tail_seen.wrapping_sub(self.head);
        self.head = self.head.wrapping_add(waiting.min(count as u64));
        // SYNC release-slots: pairs with `Producer::look_at_head`.
        self.storage.head().store(self.head, Ordering::Release);
    }

    /// Whether the producer waits for space, for lines that went by [`Consumer::release_quietly`];
    /// takes the mark. Call it before sleeping, and as often as the producer may have to wait.
    #[inline]
    #[must_use = "the producer may sleep until it is rung"]
    pub fn take_waiting(&mut self) -> bool {
        // SYNC wait-for-space: pairs with the barrier in `Producer::mark_waiting`.
        full_barrier();
        self.take_mark()
    }

    #[inline]
    fn take_mark(&mut self) -> bool {
        let waiting = self.storage.waiting();
        // The load keeps the flag's line shared while nobody waits. No ordering is needed: what
        // the producer does next it decides by the head, which it loads itself.
        waiting.load(Ordering::Relaxed) != 0 && waiting.swap(0, Ordering::Relaxed) != 0
    }
}
