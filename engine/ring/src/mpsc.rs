//! Bounded queue of values with many producers and one consumer (Vyukov's sequenced slots).
//!
//! A slot's sequence says whose turn it is: `position` means free for the push of that position,
//! `position + 1` filled by it, `position + capacity` free for the next lap.

use std::fmt;
use std::mem::MaybeUninit;

pub use crate::error::Full;
use crate::sync::{Arc, AtomicBool, AtomicUsize, Ordering, Padded, UnsafeCell};

#[cfg(all(test, not(loom)))]
mod tests;

struct Slot<T> {
    sequence: AtomicUsize,
    value: UnsafeCell<MaybeUninit<T>>,
}

struct Queue<T> {
    /// The position of the next push.
    tail: Padded<AtomicUsize>,
    /// The receiver is gone.
    closed: AtomicBool,
    slots: Box<[Slot<T>]>,
}

// SAFETY: a value is moved in by the one push that won its position and moved out by the one
// receiver, ordered by the slot's sequence; only values cross threads, hence `T: Send`.
unsafe impl<T: Send> Sync for Queue<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Queue<T> {}

/// A queue of at least `capacity` values; rounded up to a power of two, two at least.
pub fn channel<T: Send>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    // With one slot, "filled" and "free for the next lap" would be the same sequence.
    let capacity = capacity.max(2).next_power_of_two();
    let queue = Arc::new(Queue {
        tail: Padded(AtomicUsize::new(0)),
        closed: AtomicBool::new(false),
        slots: (0..capacity)
            .map(|position| Slot {
                sequence: AtomicUsize::new(position),
                value: UnsafeCell::new(MaybeUninit::uninit()),
            })
            .collect(),
    });
    let sender = Sender { queue: Arc::clone(&queue) };
    (sender, Receiver { queue, head: 0 })
}

impl<T> Queue<T> {
    #[inline]
    fn slot(&self, position: usize) -> &Slot<T> {
        &self.slots[position & (self.slots.len() - 1)]
    }
}

impl<T> Drop for Queue<T> {
    fn drop(&mut self) {
        // The last Arc is gone, so every push is complete. What was not popped lies within one
        // lap before the tail.
        let tail = self.tail.0.load(Ordering::Relaxed);
        for back in 1..=self.slots.len() {
            let position = tail.wrapping_sub(back);
            let slot = self.slot(position);
            if slot.sequence.load(Ordering::Relaxed) == position.wrapping_add(1) {
                // SAFETY: this sequence means filled and not taken out; nobody else is left.
                slot.value.with_mut(|at| unsafe { (*at).assume_init_drop() });
            }
        }
    }
}

/// A pushing end; clone it for more.
pub struct Sender<T> {
    queue: Arc<Queue<T>>,
}

impl<T: Send> Sender<T> {
    /// Appends `value`, or hands it back when the queue is full.
    #[inline]
    pub fn push(&self, value: T) -> Result<(), Full<T>> {
        let mut position = self.queue.tail.0.load(Ordering::Relaxed);
        loop {
            let slot = self.queue.slot(position);
            // SYNC recycle-slot: pairs with `Receiver::pop`'s store of the sequence.
            let sequence = slot.sequence.load(Ordering::Acquire);
            let ahead = sequence.wrapping_sub(position) as isize;
            if ahead < 0 {
                return Err(Full(value));
            }
            if ahead > 0 {
                position = self.queue.tail.0.load(Ordering::Relaxed);
                continue;
            }
            // Relaxed: the tail only deals out positions, the slot's sequence orders the values.
            match self.queue.tail.0.compare_exchange_weak(
                position,
                position.wrapping_add(1),
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => {
                    // SAFETY: the exchange gave this position to us alone, and the sequence said
                    // that the receiver emptied the slot.
                    slot.value.with_mut(|at| unsafe {
                        (*at).write(value);
                    });
                    // SYNC fill-slot: pairs with `Receiver::pop`'s load of the sequence.
                    slot.sequence.store(position.wrapping_add(1), Ordering::Release);
                    return Ok(());
                }
                Err(current) => position = current,
            }
        }
    }

    /// Whether the receiver is gone, so that nothing pushed will ever be popped.
    #[inline]
    pub fn is_closed(&self) -> bool {
        // SYNC close: pairs with `Receiver::drop`.
        self.queue.closed.load(Ordering::Acquire)
    }

    /// Values the queue can hold.
    pub fn capacity(&self) -> usize {
        self.queue.slots.len()
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Self { queue: Arc::clone(&self.queue) }
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").field("capacity", &self.queue.slots.len()).finish()
    }
}

pub struct Receiver<T> {
    queue: Arc<Queue<T>>,
    /// The position of the next pop.
    head: usize,
}

impl<T: Send> Receiver<T> {
    /// The oldest value. `None` also while a push that began before others is not complete.
    #[inline]
    pub fn pop(&mut self) -> Option<T> {
        let slot = self.queue.slot(self.head);
        // SYNC fill-slot: pairs with `Sender::push`'s store of the sequence.
        if slot.sequence.load(Ordering::Acquire) != self.head.wrapping_add(1) {
            return None;
        }
        // SAFETY: the sequence says filled; we are the only receiver, and no push takes the slot
        // before the store below.
        let value = slot.value.with(|at| unsafe { (*at).assume_init_read() });
        let next_lap = self.head.wrapping_add(self.queue.slots.len());
        // SYNC recycle-slot: pairs with `Sender::push`'s load of the sequence.
        slot.sequence.store(next_lap, Ordering::Release);
        self.head = self.head.wrapping_add(1);
        Some(value)
    }

    /// Whether [`Receiver::pop`] would answer `None` now.
    #[inline]
    pub fn is_empty(&self) -> bool {
        // SYNC fill-slot: pairs with `Sender::push`'s store of the sequence.
        let sequence = self.queue.slot(self.head).sequence.load(Ordering::Acquire);
        sequence != self.head.wrapping_add(1)
    }

    /// Values the queue can hold.
    pub fn capacity(&self) -> usize {
        self.queue.slots.len()
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        // SYNC close: pairs with `Sender::is_closed`. The values left go with the last end.
        self.queue.closed.store(true, Ordering::Release);
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").field("capacity", &self.queue.slots.len()).finish_non_exhaustive()
    }
}
