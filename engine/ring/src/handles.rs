//! Objects found by number: a number that was given back, or never given out, finds nothing, and an
//! object is dropped when the last caller that has found it has let go.
//!
//! A slot has its object, the number by which that is found, and a word: generation, whether it was
//! removed, how many callers are inside. Finding adds one to the word and then looks at the number; so
//! no lock is held while a call runs, and a removal waits for nobody.

use std::ops::Deref;
use std::sync::{Mutex, OnceLock, PoisonError};

use crate::sync::{AtomicU32, AtomicU64, Ordering, UnsafeCell};

/// What each caller inside adds to a word.
const PIN: u64 = 1;
/// The object was removed and goes with the last caller inside.
const DYING: u64 = 1 << 31;
const GENERATION_SHIFT: u32 = 32;
const GENERATIONS: u64 = (1 << 28) - 1;

const INDEX_BITS: u32 = 24;
/// How far up in a number its tag is: above 24 bits of index and 28 of generation.
pub const TAG_SHIFT: u32 = INDEX_BITS + 28;

/// Slots that are made together.
const CHUNK: u32 = if cfg!(loom) { 4 } else { 4096 };
const CHUNKS: usize = if cfg!(loom) { 1 } else { (1 << INDEX_BITS) / CHUNK as usize };

#[derive(Debug)]
struct Slot<T> {
    word: AtomicU64,
    /// The number of the object; 0 while there is none, and once it was removed.
    number: AtomicU64,
    /// While it is free: the next free one, as [`HandleTable::free`] has the first.
    next: AtomicU32,
    object: UnsafeCell<Option<T>>,
}

type Chunk<T> = [Slot<T>; CHUNK as usize];

/// Objects by number, nearly 2^24 of them. A number has 12 bits that its maker chooses.
#[derive(Debug)]
pub struct HandleTable<T> {
    /// Made when they are needed, and never moved.
    chunks: [OnceLock<Box<Chunk<T>>>; CHUNKS],
    /// The free slot that is taken next, its index and one, 0 where there is none; above it a count, so that nobody takes an old list
    /// for this one.
    free: AtomicU64,
    /// How many chunks were made.
    made: Mutex<u32>,
}

// SAFETY: an object is put in and taken out by one thread at a time, and seen by many, as the words arrange.
unsafe impl<T: Send + Sync> Sync for HandleTable<T> {}

impl<T> Default for HandleTable<T> {
    fn default() -> Self {
        Self { chunks: std::array::from_fn(|_| OnceLock::new()), free: AtomicU64::new(0), made: Mutex::default() }
    }
}

impl<T> HandleTable<T> {
    /// Puts an object in, and answers its number, which begins with a tag that is not 0. `None` when there are as many as there may be: the
    /// object is dropped.
    #[inline(always)]
    pub fn insert(&self, tag: u64, object: T) -> Option<u64> {
        let index = self.take_free()?;
        let slot = self.slot(index.into())?;
        // SAFETY: the slot is free and was just taken off the list, so nobody looks at its object.
        slot.object.with_mut(|place| unsafe { place.write(Some(object)) });
        // Relaxed: the generation changed before the slot came to the list. Callers with old numbers come and go meanwhile.
        let generation = slot.word.load(Ordering::Relaxed) >> GENERATION_SHIFT;
        let number = tag << TAG_SHIFT | generation << INDEX_BITS | u64::from(index);
        slot.number.store(number, Ordering::Release); // SYNC handle: pairs with get()
        Some(number)
    }

    /// The object of this number, kept as long as the answer lives.
    #[inline(always)]
    pub fn get(&self, number: u64) -> Option<Pinned<'_, T>> {
        let slot = self.slot(number)?;
        // SYNC handle-gone: pairs with remove(): who is counted in too late to keep the object sees that it has no number.
        slot.word.fetch_add(PIN, Ordering::Acquire);
        let pinned = Pinned { table: self, index: index_of(number), slot };
        let is_it = number != 0 && slot.number.load(Ordering::Acquire) == number; // SYNC handle: pairs with insert()
        is_it.then_some(pinned)
    }

    /// Gives a number back. Of several that do one hears `true`. The object goes now, or with the last caller inside.
    #[inline(always)]
    pub fn remove(&self, number: u64) -> bool {
        let Some(pinned) = self.get(number) else { return false };
        // Relaxed: it goes before the word.
        pinned.slot.number.store(0, Ordering::Relaxed);
        // SYNC handle-gone: pairs with get().
        pinned.slot.word.fetch_or(DYING, Ordering::Release) & DYING == 0
    }

    /// The slot of a number, or of an index.
    #[inline(always)]
    fn slot(&self, number: u64) -> Option<&Slot<T>> {
        let index = index_of(number);
        Some(&self.chunks.get((index / CHUNK) as usize)?.get()?[(index % CHUNK) as usize])
    }

    #[inline(always)]
    fn take_free(&self) -> Option<u32> {
        let mut first = self.free.load(Ordering::Acquire); // SYNC handle-free: pairs with give_back()
        loop {
            let Some(index) = (first as u32).checked_sub(1) else {
                first = self.make_chunk()?;
                continue;
            };
            // Of a slot that another has taken meanwhile: then the exchange fails.
            let next = self.slot(index.into())?.next.load(Ordering::Relaxed);
            // SYNC handle-free: pairs with give_back()
            match self.free.compare_exchange_weak(first, after(first, next), Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Some(index),
                Err(now) => first = now,
            }
        }
    }

    /// Puts free slots before the others: one, or the first and the last of a chain.
    #[inline(always)]
    fn give_back(&self, first: u32, last: &Slot<T>) {
        let mut before = self.free.load(Ordering::Relaxed);
        loop {
            last.next.store(before as u32, Ordering::Relaxed);
            // SYNC handle-free: pairs with take_free()
            match self.free.compare_exchange_weak(
                before,
                after(before, first + 1),
                Ordering::Release,
                Ordering::Relaxed,
            ) {
                Ok(_) => return,
                Err(now) => before = now,
            }
        }
    }

    /// Makes slots, if there are none, and answers what is free then.
    #[cold]
    #[inline(never)]
    fn make_chunk(&self) -> Option<u64> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.free.load(Ordering::Acquire); // SYNC handle-free: pairs with give_back()
        if now as u32 != 0 {
            return Some(now); // Another thread has made some, or given one back.
        }
        let place = self.chunks.get(*made as usize)?;
        let first = *made * CHUNK;
        let slot = |at: u32| Slot {
            word: AtomicU64::new(0),
            number: AtomicU64::new(0),
            next: AtomicU32::new(first + at + 2),
            object: UnsafeCell::new(None),
        };
        let chunk = (0..CHUNK).map(slot).collect::<Box<[Slot<T>]>>().try_into().ok()?;
        let chunk = place.get_or_init(|| chunk);
        *made += 1;
        self.give_back(first, &chunk[CHUNK as usize - 1]);
        Some(self.free.load(Ordering::Acquire)) // SYNC handle-free: pairs with give_back()
    }

    /// The last caller inside a removed object has left; of those that think so one takes it.
    #[inline(never)]
    fn reap(&self, index: u32, slot: &Slot<T>, word: u64) {
        let next = (((word >> GENERATION_SHIFT) + 1) & GENERATIONS) << GENERATION_SHIFT;
        // SYNC handle-last: pairs with Pinned::drop(): all that others did with the object is before.
        if slot.word.compare_exchange(word, next, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return;
        }
        // SAFETY: the number finds nothing any more and nobody was inside, so the object is this thread's alone.
        slot.object.with_mut(|place| unsafe { *place = None });
        self.give_back(index, slot);
    }
}

/// What is free after a change.
fn after(before: u64, first: u32) -> u64 {
    ((before >> 32).wrapping_add(1)) << 32 | u64::from(first)
}

fn index_of(number: u64) -> u32 {
    number as u32 & ((1 << INDEX_BITS) - 1)
}

/// An object that was found.
#[derive(Debug)]
pub struct Pinned<'a, T> {
    table: &'a HandleTable<T>,
    index: u32,
    slot: &'a Slot<T>,
}

impl<T> Deref for Pinned<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the slot was live when this caller was counted in, and its object stays until the last one has left.
        unsafe { self.slot.object.with(|place| (*place).as_ref().unwrap_unchecked()) }
    }
}

impl<T> Drop for Pinned<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        let word = self.slot.word.fetch_sub(PIN, Ordering::Release) - PIN; // SYNC handle-last: pairs with reap()
        if word as u32 == DYING as u32 {
            self.table.reap(self.index, self.slot, word);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::HashMap;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_table_is_a_map_whose_numbers_are_never_found_again(deeds in prop::collection::vec((0..3_u8, 0..40_usize), 1..400)) {
            let (table, mut map, mut gone) = (HandleTable::default(), HashMap::new(), Vec::new());
            for (number, (deed, which)) in deeds.into_iter().enumerate() {
                let chosen = map.keys().nth(which).copied();
                match (deed, chosen) {
                    (0, _) | (_, None) => {
                        let key = table.insert(7, number).unwrap();
                        prop_assert_eq!(key >> TAG_SHIFT, 7);
                        prop_assert!(!gone.contains(&key));
                        prop_assert!(map.insert(key, number).is_none());
                    }
                    (1, Some(key)) => {
                        map.remove(&key);
                        gone.push(key);
                        prop_assert!(table.remove(key) && !table.remove(key));
                    }
                    (_, Some(key)) => prop_assert_eq!(*table.get(key).unwrap(), map[&key]),
                }
                prop_assert!(gone.iter().all(|key| table.get(*key).is_none())
                    && map.keys().all(|key| table.get(key ^ 1 << TAG_SHIFT).is_none()));
            }
        }
    }

    /// Counts what is dropped, and says whether it is alive.
    struct Counted(Arc<AtomicUsize>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn threads_that_find_and_remove_drop_each_object_once() {
        let (table, dropped) = (HandleTable::default(), Arc::new(AtomicUsize::new(0)));
        const ROUNDS: usize = 2000;
        for _ in 0..ROUNDS {
            let key = table.insert(1, Counted(Arc::clone(&dropped))).unwrap();
            let removed = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..3)
                    .map(|_| {
                        scope.spawn(|| {
                            let found = table.get(key);
                            let removed = table.remove(key);
                            // Whoever has found it may look at it, removed or not.
                            found.inspect(|found| assert!(Arc::strong_count(&found.0) > 1));
                            usize::from(removed)
                        })
                    })
                    .collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
            });
            assert_eq!(removed, 1);
        }
        assert_eq!(dropped.load(Ordering::Relaxed), ROUNDS);
    }

    #[test]
    fn what_was_found_stays_until_it_is_let_go() {
        let (table, dropped) = (HandleTable::default(), Arc::new(AtomicUsize::new(0)));
        let key = table.insert(1, Counted(Arc::clone(&dropped))).unwrap();
        let found = table.get(key).unwrap();
        assert!(table.remove(key) && table.get(key).is_none());
        assert_eq!(dropped.load(Ordering::Relaxed), 0);
        drop(found);
        assert_eq!(dropped.load(Ordering::Relaxed), 1);
    }
}

#[cfg(all(test, loom))]
mod models {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicUsize;

    use super::*;

    struct Counted(Arc<AtomicUsize>);

    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn an_object_is_dropped_once_and_after_its_last_use() {
        loom::model(|| {
            let (table, dropped) = (Arc::new(HandleTable::default()), Arc::new(AtomicUsize::new(0)));
            let key = table.insert(1, Counted(Arc::clone(&dropped))).unwrap();
            let user = {
                let table = Arc::clone(&table);
                loom::thread::spawn(move || {
                    if let Some(found) = table.get(key) {
                        assert_eq!(found.0.load(Ordering::Relaxed), 0, "it is still there");
                        drop(found);
                    }
                    usize::from(table.remove(key))
                })
            };
            let here = usize::from(table.remove(key));
            assert_eq!(here + user.join().unwrap(), 1);
            assert_eq!(dropped.load(Ordering::Relaxed), 1);
            assert!(table.get(key).is_none());
        });
    }

    #[test]
    fn a_slot_is_taken_by_one_at_a_time() {
        loom::model(|| {
            let dropped = Arc::new(AtomicUsize::new(0));
            let table = Arc::new(HandleTable::default());
            // One is given back while another thread takes two, of which it may be one.
            let first = table.insert(1, Counted(Arc::clone(&dropped))).unwrap();
            let other = {
                let (table, dropped) = (Arc::clone(&table), Arc::clone(&dropped));
                loom::thread::spawn(move || [(); 2].map(|()| table.insert(1, Counted(Arc::clone(&dropped))).unwrap()))
            };
            assert!(table.remove(first));
            let here = table.insert(1, Counted(Arc::clone(&dropped))).unwrap();
            let [one, two] = other.join().unwrap();
            let slots = [here, one, two].map(index_of);
            assert!(slots[0] != slots[1] && slots[0] != slots[2] && slots[1] != slots[2], "{slots:?}");
            assert!([one, two, here].iter().all(|number| *number != first && table.get(*number).is_some()));
            assert_eq!(dropped.load(Ordering::Relaxed), 1);
        });
    }
}
