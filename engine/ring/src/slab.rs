//! A fixed number of preconstructed items behind generational keys.
//!
//! Claiming and releasing are O(1) and lock-free: a stack of free indices whose head carries a tag
//! that changes with every operation, so that a head that came back is not mistaken for one that
//! stayed. An item's generation is odd while it is claimed; it repeats after 2^31 claims of the
//! same item, the tag after 2^32 releases.

pub use crate::error::StaleKey;
use crate::sync::{AtomicU32, AtomicU64, Ordering, Padded};

#[cfg(all(test, not(loom)))]
mod tests;

/// The index that ends the free list.
const NONE: u32 = u32::MAX;

/// Names one claim of one item.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub index: u32,
    /// Which of its claims; always odd.
    pub generation: u32,
}

#[derive(Debug)]
struct Entry<T> {
    generation: AtomicU32,
    /// The next free index, while this one is free.
    next: AtomicU32,
    item: T,
}

/// Items that are built once and then claimed and released many times.
#[derive(Debug)]
pub struct Slab<T> {
    /// Tag in the upper half, index of the first free item in the lower.
    free: Padded<AtomicU64>,
    entries: Box<[Entry<T>]>,
}

const fn pack(tag: u32, index: u32) -> u64 {
    (tag as u64) << 32 | index as u64
}

const fn unpack(head: u64) -> (u32, u32) {
    ((head >> 32) as u32, head as u32)
}

impl<T: Sync> Slab<T> {
    /// Builds `capacity` items by their index.
    pub fn new(capacity: u32, mut build: impl FnMut(u32) -> T) -> Self {
        let entries: Box<[_]> = (0..capacity)
            .map(|index| Entry {
                generation: AtomicU32::new(0),
                next: AtomicU32::new(if index + 1 < capacity { index + 1 } else { NONE }),
                item: build(index),
            })
            .collect();
        let first = if capacity == 0 { NONE } else { 0 };
        Self { free: Padded(AtomicU64::new(pack(0, first))), entries }
    }

    /// Takes a free item, the one released last; `None` when all are in use. The item is as its
    /// last user left it.
    #[inline]
    pub fn claim(&self) -> Option<Key> {
        // SYNC free-item: pairs with `release`'s exchange; so do the ones below.
        let mut head = self.free.0.load(Ordering::Acquire);
        loop {
            let (tag, index) = unpack(head);
            let entry = self.entries.get(index as usize)?;
            // May be stale when somebody else claims the item now. Then the head has changed, and
            // for this index to be first again it has to be released, which changes the tag.
            let next = entry.next.load(Ordering::Relaxed);
            // SYNC free-item: pairs with `release`'s exchange.
            match self.free.0.compare_exchange_weak(head, pack(tag, next), Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => {
                    let generation = entry.generation.load(Ordering::Relaxed).wrapping_add(1);
                    // SYNC claim-item: pairs with `get`.
                    entry.generation.store(generation, Ordering::Release);
                    return Some(Key { index, generation });
                }
                Err(current) => head = current,
            }
        }
    }

    /// Gives an item back. Of several releases of one claim, one succeeds.
    #[inline]
    pub fn release(&self, key: Key) -> Result<(), StaleKey> {
        let stale = StaleKey { index: key.index, generation: key.generation };
        let entry = self.entries.get(key.index as usize).ok_or(stale)?;
        if key.generation.is_multiple_of(2) {
            return Err(stale);
        }
        // Relaxed: it decides who releases; what the item holds is ordered by the free list.
        entry
            .generation
            .compare_exchange(key.generation, key.generation.wrapping_add(1), Ordering::Relaxed, Ordering::Relaxed)
            .map_err(|_| stale)?;
        let mut head = self.free.0.load(Ordering::Relaxed);
        loop {
            let (tag, first) = unpack(head);
            entry.next.store(first, Ordering::Relaxed);
            // SYNC free-item: pairs with `claim`'s loads of the head.
            match self.free.0.compare_exchange_weak(
                head,
                pack(tag.wrapping_add(1), key.index),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Ok(()),
                Err(current) => head = current,
            }
        }
    }

    /// The item of a claim that is not released yet. A release at the same moment does not take
    /// the reference away; it may then show the next user's values, so whoever holds a claim
    /// decides when nobody looks any more, or the item carries its own check.
    #[inline]
    pub fn get(&self, key: Key) -> Option<&T> {
        let entry = self.entries.get(key.index as usize)?;
        // SYNC claim-item: pairs with `claim`.
        let generation = entry.generation.load(Ordering::Acquire);
        (generation == key.generation && generation % 2 == 1).then_some(&entry.item)
    }

    /// Every item by index, claimed or not: for sweeps, never for the hot path.
    pub fn items(&self) -> impl Iterator<Item = (u32, &T)> {
        (0u32..).zip(self.entries.iter().map(|entry| &entry.item))
    }

    /// The key of the claim that holds an item now.
    pub fn current_key(&self, index: u32) -> Option<Key> {
        // SYNC claim-item: pairs with `claim`.
        let generation = self.entries.get(index as usize)?.generation.load(Ordering::Acquire);
        (generation % 2 == 1).then_some(Key { index, generation })
    }

    pub fn capacity(&self) -> u32 {
        self.entries.len() as u32
    }
}
