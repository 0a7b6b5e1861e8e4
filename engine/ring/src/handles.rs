//! Objects found by number: a number that was given back, or never given out, finds nothing, and an
//! object is dropped when the last caller that has found it has let go.
//!
//! A slot is one word (generation, whether it is live, whether it was removed, how many callers are
//! inside) beside its object. Finding adds one to the word and looks at what was there; so no lock
//! is held while a call runs, and a removal waits for nobody.

use std::collections::VecDeque;
use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::sync::{AtomicU64, Ordering, UnsafeCell};

const PIN: u64 = 1;
/// Callers inside.
const PINS: u64 = (1 << 32) - 1;
/// There is an object.
const LIVE: u64 = 1 << 32;
/// It was removed and goes with the last caller inside.
const DYING: u64 = 1 << 33;
const GENERATION_SHIFT: u32 = 36;

/// Slots of the first chunk; each further chunk has twice as many as the one before.
const FIRST: u32 = 64;
const CHUNKS: usize = 18;
/// Slots that stay free: a number is not given out again before that many others were.
const RESTING: usize = 32;

/// The number of an object: 24 bits of index, 28 of generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HandleKey {
    /// Which slot.
    pub index: u32,
    /// Which object of that slot.
    pub generation: u32,
}

#[derive(Debug)]
struct Slot<T> {
    word: AtomicU64,
    object: UnsafeCell<Option<T>>,
}

/// Objects by number, any number of them up to 2^24.
#[derive(Debug)]
pub struct HandleTable<T> {
    /// Made when they are needed, and never moved.
    chunks: [OnceLock<Box<[Slot<T>]>>; CHUNKS],
    free: Mutex<Free>,
}

#[derive(Debug, Default)]
struct Free {
    /// In the order in which they were given back.
    list: VecDeque<u32>,
    /// How many slots were made.
    made: u32,
}

// SAFETY: an object is put in and taken out by one thread at a time, and seen by many, as the words arrange.
unsafe impl<T: Send + Sync> Sync for HandleTable<T> {}

impl<T> Default for HandleTable<T> {
    fn default() -> Self {
        Self { chunks: std::array::from_fn(|_| OnceLock::new()), free: Mutex::default() }
    }
}

impl<T> HandleTable<T> {
    /// Puts an object in. `None` when there are as many as there may be: the object is dropped.
    pub fn insert(&self, object: T) -> Option<HandleKey> {
        let index = self.take_free()?;
        let slot = self.slot(index)?;
        // SAFETY: the slot is free and was just taken off the list, so nobody looks at its object.
        slot.object.with_mut(|place| unsafe { *place = Some(object) });
        // SYNC handle: pairs with pin(). Callers with old numbers may be counted in the word meanwhile, so it is added to.
        let before = slot.word.fetch_add(LIVE, Ordering::Release);
        Some(HandleKey { index, generation: generation_of(before) })
    }

    /// The object of this number, kept as long as the answer lives.
    #[inline]
    pub fn get(&self, key: HandleKey) -> Option<Pinned<'_, T>> {
        let slot = self.slot(key.index)?;
        let before = slot.word.fetch_add(PIN, Ordering::Acquire); // SYNC handle: pairs with insert()
        let pinned = Pinned { table: self, index: key.index, slot };
        (before & (LIVE | DYING) == LIVE && generation_of(before) == key.generation).then_some(pinned)
    }

    /// Gives a number back. Of several that do one hears `true`. The object goes now, or with the last caller inside.
    pub fn remove(&self, key: HandleKey) -> bool {
        let Some(pinned) = self.get(key) else { return false };
        // Relaxed: what orders the drop is the last caller's leaving.
        pinned.slot.word.fetch_or(DYING, Ordering::Relaxed) & DYING == 0
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        let free = self.free();
        free.made as usize - free.list.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    #[inline]
    fn slot(&self, index: u32) -> Option<&Slot<T>> {
        let (chunk, at) = chunk_of(index);
        self.chunks.get(chunk)?.get()?.get(at)
    }

    fn take_free(&self) -> Option<u32> {
        let mut free = self.free();
        if free.list.len() <= RESTING && self.make_chunk(free.made) {
            let (from, count) = (free.made, chunk_slots(chunk_of(free.made).0));
            free.list.extend(from..from + count);
            free.made += count;
        }
        free.list.pop_front()
    }

    fn make_chunk(&self, made: u32) -> bool {
        let (chunk, _) = chunk_of(made);
        let slots = || Slot { word: AtomicU64::new(1 << GENERATION_SHIFT), object: UnsafeCell::new(None) };
        let make = || (0..chunk_slots(chunk)).map(|_| slots()).collect();
        self.chunks.get(chunk).is_some_and(|of| of.set(make()).is_ok())
    }

    fn free(&self) -> MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The last caller inside a removed object has left; of those that think so one takes it.
    #[cold]
    fn reap(&self, index: u32, slot: &Slot<T>, word: u64) {
        let next = u64::from(generation_of(word).wrapping_add(1)) << GENERATION_SHIFT;
        // SYNC handle-last: pairs with Pinned::drop(): all that others did with the object is before.
        if slot.word.compare_exchange(word, next, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return;
        }
        // SAFETY: the number finds nothing any more and nobody was inside, so the object is this thread's alone.
        let object = slot.object.with_mut(|place| unsafe { (*place).take() });
        self.free().list.push_back(index);
        drop(object);
    }
}

fn generation_of(word: u64) -> u32 {
    (word >> GENERATION_SHIFT) as u32
}

fn chunk_of(index: u32) -> (usize, usize) {
    let chunk = (index / FIRST + 1).ilog2();
    (chunk as usize, (index - FIRST * ((1 << chunk) - 1)) as usize)
}

fn chunk_slots(chunk: usize) -> u32 {
    FIRST << chunk
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

    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: the slot was live when this caller was counted in, and its object stays until the last one has left.
        let object = self.slot.object.with(|place| unsafe { (*place).as_ref() });
        object.expect("a live slot has its object")
    }
}

impl<T> Drop for Pinned<'_, T> {
    #[inline]
    fn drop(&mut self) {
        let word = self.slot.word.fetch_sub(PIN, Ordering::Release) - PIN; // SYNC handle-last: pairs with reap()
        if word & (DYING | PINS) == DYING {
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

    #[test]
    fn indices_fill_chunks_without_gaps() {
        let mut expected = (0, 0);
        for index in 0..10_000 {
            assert_eq!(chunk_of(index), expected, "{index}");
            expected.1 += 1;
            if expected.1 == chunk_slots(expected.0) as usize {
                expected = (expected.0 + 1, 0);
            }
        }
        let all: u64 = (0..CHUNKS).map(|chunk| u64::from(chunk_slots(chunk))).sum();
        assert!(all < 1 << 24, "an index has 24 bits");
    }

    proptest! {
        #[test]
        fn a_table_is_a_map_whose_numbers_are_never_found_again(deeds in prop::collection::vec((0..3_u8, 0..40_usize), 1..400)) {
            let (table, mut map, mut gone) = (HandleTable::default(), HashMap::new(), Vec::new());
            for (number, (deed, which)) in deeds.into_iter().enumerate() {
                let chosen = map.keys().nth(which).copied();
                match (deed, chosen) {
                    (0, _) | (_, None) => {
                        let key = table.insert(number).unwrap();
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
                prop_assert_eq!(table.len(), map.len());
                prop_assert!(gone.iter().all(|key| table.get(*key).is_none()));
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
            let key = table.insert(Counted(Arc::clone(&dropped))).unwrap();
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
        assert_eq!((dropped.load(Ordering::Relaxed), table.len()), (ROUNDS, 0));
    }

    #[test]
    fn what_was_found_stays_until_it_is_let_go() {
        let (table, dropped) = (HandleTable::default(), Arc::new(AtomicUsize::new(0)));
        let key = table.insert(Counted(Arc::clone(&dropped))).unwrap();
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
            let key = table.insert(Counted(Arc::clone(&dropped))).unwrap();
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
}
