//! Handing out a pool's blocks in constant time, counted, with generations.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::fork::Maker;
use crate::memory::Memory;
use crate::window::Window;

/// One use of one block: the generation tells it from earlier and later uses of the same index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId {
    /// Which block of the pool. It starts at `index * block_bytes`, unless a layout has it elsewhere.
    pub index: u32,
    /// Which use of it.
    pub generation: u32,
}

/// Too few blocks are free. Nothing was taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TakeError {
    /// Fewer blocks are free than were asked for.
    #[error("{asked} blocks were asked for and {free} are free: give blocks back or make a larger pool")]
    Exhausted {
        asked: usize,
        /// Blocks free at that moment.
        free: usize,
    },
}

/// Why blocks could not be retained or released. Nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BlockError {
    /// The block is free already: one release too many.
    #[error("block {} generation {} is already free: it was released once too often", .0.index, .0.generation)]
    DoubleFree(BlockId),
    /// The block was freed and has since been in use by somebody else.
    #[error("block {} generation {} is long gone (now generation {current}): the holder kept its id past its release", .id.index, .id.generation)]
    Stale {
        id: BlockId,
        /// The generation the block has now.
        current: u32,
    },
    #[error("block {index} does not exist: the pool has {total}")]
    OutOfRange {
        index: u32,
        /// Blocks the pool has.
        total: u32,
    },
    /// The block has 2^32 - 1 holders already.
    #[error("block {0} has as many holders as can be counted")]
    TooManyHolders(u32),
    /// A handle has fewer blocks.
    #[error("blocks {} to {} of a handle were asked for, which has {len}", .places.0, .places.1)]
    NoSuchPlaces {
        /// Which were asked for, counted from 0.
        places: (usize, usize),
        /// How many the handle has.
        len: usize,
    },
    /// Blocks of two pools.
    #[error("the handles hold blocks of two pools, which number theirs each by itself: chain blocks of one pool")]
    TwoPools,
}

/// What a release did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Released {
    /// So many other holders remain.
    Shared(u32),
    /// That was the last holder; the block may be taken again.
    Freed,
}

/// Counts the holders of a pool's blocks and keeps the free ones.
///
/// A block's generation and count share one word, so that a count is only ever changed for the
/// use it was meant for. The last block freed is the first taken: its lines are likeliest cached.
pub struct BlockAllocator {
    memory: Memory,
    block_bytes: u64,
    slots: Box<[Slot]>,
    free: Mutex<Vec<u32>>,
    maker: Maker,
}

/// Generation in the high half, holders in the low; no holders means free.
struct Slot(AtomicU64);

const fn word(generation: u32, holders: u32) -> u64 {
    (generation as u64) << 32 | holders as u64
}

const fn parts(word: u64) -> (u32, u32) {
    ((word >> 32) as u32, word as u32)
}

impl BlockAllocator {
    /// All `total` blocks of `block_bytes` in this memory are free. The caller checked that they fit.
    pub(crate) fn new(memory: Memory, block_bytes: u64, total: u32) -> Self {
        let slots = (0..total).map(|_| Slot(AtomicU64::new(word(0, 0)))).collect();
        // Popped from the end, so a fresh pool hands out its blocks in order.
        let free = Mutex::new((0..total).rev().collect());
        Self { memory, block_bytes, slots, free, maker: Maker::this_process() }
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    pub fn total(&self) -> u32 {
        self.slots.len() as u32
    }

    /// Blocks free at this moment.
    pub fn free(&self) -> usize {
        self.free_list().len()
    }

    /// Takes `n` blocks with one holder each, all or none.
    pub fn take(self: &Arc<Self>, n: usize) -> Result<Blocks, TakeError> {
        let taken = {
            let mut free = self.free_list();
            let left = free.len().checked_sub(n).ok_or(TakeError::Exhausted { asked: n, free: free.len() })?;
            free.split_off(left)
        };
        let ids = taken.into_iter().rev().map(|index| {
            let slot = &self.slots[index as usize].0;
            // A free slot is changed by nobody but its taker, and the free list's lock orders
            // this after its release: a plain read and write will do.
            let (generation, _) = parts(slot.load(Ordering::Relaxed));
            slot.store(word(generation, 1), Ordering::Relaxed);
            BlockId { index, generation }
        });
        Ok(Blocks::new(Arc::clone(self), ids.collect()))
    }

    /// Adds a holder to a block in use.
    pub fn retain(&self, id: BlockId) -> Result<(), BlockError> {
        let slot = self.slot(id.index)?;
        let mut seen = slot.load(Ordering::Relaxed);
        loop {
            let holders = holders_of(id, seen)?;
            let more = holders.checked_add(1).ok_or(BlockError::TooManyHolders(id.index))?;
            let next = word(id.generation, more);
            // Relaxed: who may retain already holds, or was told the id by one who does.
            match slot.compare_exchange_weak(seen, next, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => seen = now,
            }
        }
    }

    /// A further handle of these blocks, in this order, all or none. [`Blocks::slice`] and [`Blocks::chain`] make one of
    /// what handles hold.
    pub fn share(self: &Arc<Self>, ids: &[BlockId]) -> Result<Blocks, BlockError> {
        Blocks::retained(self, ids.iter().copied())
    }

    /// Takes a holder away; the last one frees the block and starts its next generation.
    pub fn release(&self, id: BlockId) -> Result<Released, BlockError> {
        let released = self.release_count(id)?;
        if released == Released::Freed {
            self.free_list().push(id.index);
        }
        Ok(released)
    }

    /// Holders of a block in use.
    pub fn holders(&self, id: BlockId) -> Result<u32, BlockError> {
        holders_of(id, self.slot(id.index)?.load(Ordering::Relaxed))
    }

    /// Retains every block in use that overlaps `len` bytes at `offset`, so that none of them is
    /// handed out again before the answer is dropped: how quarantine keeps memory out of reuse.
    pub fn retain_range(self: &Arc<Self>, offset: u64, len: u64) -> Blocks {
        let total = u64::from(self.total());
        let first = (offset / self.block_bytes).min(total);
        let end = if len == 0 { first } else { offset.saturating_add(len).div_ceil(self.block_bytes).min(total) };
        self.retain_all(first as u32..end as u32)
    }

    /// Retains those of these blocks that are in use.
    fn retain_all(self: &Arc<Self>, indices: impl Iterator<Item = u32>) -> Blocks {
        let held = indices.filter_map(|index| {
            let (generation, _) = parts(self.slot(index).ok()?.load(Ordering::Relaxed));
            let id = BlockId { index, generation };
            self.retain(id).is_ok().then_some(id)
        });
        Blocks::new(Arc::clone(self), held.collect())
    }

    /// As [`BlockAllocator::retain_range`], and takes the free blocks of the range as well: nobody
    /// gets any of them before the answer is dropped.
    pub fn withhold_range(self: &Arc<Self>, offset: u64, len: u64) -> Vec<Blocks> {
        let first = offset / self.block_bytes;
        let end = offset.saturating_add(len).div_ceil(self.block_bytes);
        self.withhold(|index| (first..end).contains(&u64::from(index)))
    }

    /// The same of all blocks of these numbers, wherever their bytes lie.
    pub fn withhold(self: &Arc<Self>, is_one: impl Fn(u32) -> bool) -> Vec<Blocks> {
        let (used, taken): (Blocks, Vec<u32>) = {
            // Nobody takes one of them while they are looked through.
            let mut free = self.free_list();
            let used = self.retain_all((0..self.total()).filter(|index| is_one(*index)));
            let (taken, kept) = free.drain(..).partition(|index| is_one(*index));
            *free = kept;
            (used, taken)
        };
        let ids = taken.into_iter().map(|index| {
            let slot = &self.slots[index as usize].0;
            // As in take(): a free slot is changed by nobody but its taker.
            let (generation, _) = parts(slot.load(Ordering::Relaxed));
            slot.store(word(generation, 1), Ordering::Relaxed);
            BlockId { index, generation }
        });
        let ids: Vec<BlockId> = ids.collect();
        vec![used, Blocks::new(Arc::clone(self), ids)]
    }

    /// Shuffles the order in which the free blocks will be taken, the same way for the same
    /// seed: what a pool looks like after long use.
    pub fn shuffle(&self, seed: u64) {
        let mut free = self.free_list();
        let mut state = seed;
        for last in (1..free.len()).rev() {
            // Split-mix: good enough to scatter, small enough to need no dependency.
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            free.swap(last, ((mixed ^ (mixed >> 31)) % (last as u64 + 1)) as usize);
        }
    }

    /// Takes a holder away without touching the free list.
    fn release_count(&self, id: BlockId) -> Result<Released, BlockError> {
        let slot = self.slot(id.index)?;
        let mut seen = slot.load(Ordering::Relaxed);
        loop {
            let holders = holders_of(id, seen)?;
            let (next, released) = if holders == 1 {
                (word(id.generation.wrapping_add(1), 0), Released::Freed)
            } else {
                (word(id.generation, holders - 1), Released::Shared(holders - 1))
            };
            // SYNC block-release: every release is a Release and the freeing one also an Acquire
            // of the others', so that all use of the block happens before its next taking (which
            // the free list's lock orders after this).
            match slot.compare_exchange_weak(seen, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Ok(released),
                Err(now) => seen = now,
            }
        }
    }

    fn slot(&self, index: u32) -> Result<&AtomicU64, BlockError> {
        let out_of_range = BlockError::OutOfRange { index, total: self.total() };
        self.slots.get(index as usize).map(|slot| &slot.0).ok_or(out_of_range)
    }

    fn free_list(&self) -> MutexGuard<'_, Vec<u32>> {
        // Nothing under the lock can leave the list half changed.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Holders in `seen` if that is the use that `id` names.
fn holders_of(id: BlockId, seen: u64) -> Result<u32, BlockError> {
    let (current, holders) = parts(seen);
    if current == id.generation && holders > 0 {
        return Ok(holders);
    }
    let just_freed = holders == 0 && current == id.generation.wrapping_add(1);
    if just_freed || current == id.generation {
        return Err(BlockError::DoubleFree(id));
    }
    Err(BlockError::Stale { id, current })
}

impl fmt::Debug for BlockAllocator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockAllocator")
            .field("block_bytes", &self.block_bytes)
            .field("total", &self.total())
            .field("free", &self.free())
            .finish_non_exhaustive()
    }
}

/// Blocks in somebody's keeping. Clones share them; the last one gives them back on drop. They
/// also keep the pool's memory mapped.
#[derive(Clone)]
pub struct Blocks {
    held: Arc<Held>,
}

struct Held {
    allocator: Arc<BlockAllocator>,
    indices: Box<[u32]>,
    generations: Box<[u32]>,
}

impl Blocks {
    /// Takes over one holder of each id.
    fn new(allocator: Arc<BlockAllocator>, ids: Vec<BlockId>) -> Self {
        let indices = ids.iter().map(|id| id.index).collect();
        let generations = ids.iter().map(|id| id.generation).collect();
        Self { held: Arc::new(Held { allocator, indices, generations }) }
    }

    pub fn len(&self) -> usize {
        self.held.indices.len()
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.held.indices.is_empty()
    }

    /// Their indices, in the order they were taken: what a plan is built from.
    pub fn indices(&self) -> &[u32] {
        &self.held.indices
    }

    /// The `i`-th block's id.
    pub fn get(&self, i: usize) -> Option<BlockId> {
        let index = *self.held.indices.get(i)?;
        Some(BlockId { index, generation: *self.held.generations.get(i)? })
    }

    /// All ids, in the same order as [`indices`](Self::indices).
    pub fn ids(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.held.ids()
    }

    /// Where the `i`-th block starts in its pool, in bytes: its index times the bytes of a block.
    /// Where a layout says otherwise, these are other blocks' bytes.
    pub fn offset(&self, i: usize) -> Option<u64> {
        let index = *self.held.indices.get(i)?;
        Some(u64::from(index) * self.held.allocator.block_bytes)
    }

    /// The memory of the `i`-th block, if it lies at its [`offset`](Self::offset).
    pub fn memory(&self, i: usize) -> Option<Memory> {
        self.held.allocator.memory.slice(self.offset(i)?, self.held.allocator.block_bytes)
    }

    /// The same, if a processor can touch it.
    pub fn window(&self, i: usize) -> Option<Window> {
        self.memory(i)?.host().cloned()
    }

    /// Those at these places, in the same order, as a handle of their own. They are held by both handles, and free when both are gone.
    pub fn slice(&self, places: Range<usize>) -> Result<Self, BlockError> {
        if places.start > places.end || places.end > self.len() {
            return Err(BlockError::NoSuchPlaces { places: (places.start, places.end), len: self.len() });
        }
        Self::retained(self.allocator(), self.ids().skip(places.start).take(places.len()))
    }

    /// These and behind them those of another handle, as a handle of its own that holds all of them once more.
    ///
    /// ```
    /// # use penstock_memory::{BlockError, HostMemory, PoolSpec};
    /// # fn chained(pool: &std::sync::Arc<penstock_memory::BlockAllocator>) -> Result<(), Box<dyn std::error::Error>> {
    /// let (first, fresh) = (pool.take(2)?, pool.take(3)?);
    /// // The last block of `first`, and the fresh ones.
    /// let both = first.slice(1..2)?.chain(&fresh)?;
    /// assert_eq!(both.len(), 4);
    /// assert_eq!(both.indices()[0], first.indices()[1]);
    /// # Ok(())
    /// # }
    /// ```
    pub fn chain(&self, next: &Self) -> Result<Self, BlockError> {
        if !Arc::ptr_eq(self.allocator(), next.allocator()) {
            return Err(BlockError::TwoPools);
        }
        Self::retained(self.allocator(), self.ids().chain(next.ids()))
    }

    /// Each of these blocks once more, all or none.
    fn retained(allocator: &Arc<BlockAllocator>, ids: impl Iterator<Item = BlockId>) -> Result<Self, BlockError> {
        let mut held = Vec::with_capacity(ids.size_hint().0);
        let retained = ids.map(|id| allocator.retain(id).map(|()| id)).try_for_each(|id| id.map(|id| held.push(id)));
        // Dropped as an error is answered, it releases those that were retained before.
        let held = Self::new(Arc::clone(allocator), held);
        retained.map(|()| held)
    }

    /// The allocator they came from.
    pub fn allocator(&self) -> &Arc<BlockAllocator> {
        &self.held.allocator
    }
}

impl Held {
    fn ids(&self) -> impl Iterator<Item = BlockId> + '_ {
        let pairs = self.indices.iter().zip(&self.generations);
        pairs.map(|(&index, &generation)| BlockId { index, generation })
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if self.allocator.maker.is_ancestor() {
            return; // The pool is the parent's, and a thread of it may have held the lock at the fork.
        }
        // In reverse, so that the next taker gets them in the order this one had them. A refusal
        // means that somebody released one of our ids by hand; there is nothing left to undo.
        let freed = |id: &BlockId| self.allocator.release_count(*id) == Ok(Released::Freed);
        let ids: Vec<BlockId> = self.ids().collect();
        let freed: Vec<u32> = ids.into_iter().rev().filter(freed).map(|id| id.index).collect();
        self.allocator.free_list().extend(freed);
    }
}

impl fmt::Debug for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocks").field("indices", &self.indices()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
