//! Which blocks of the device are whose, in which use, and by which hash they are found.

use std::collections::{BTreeMap, BTreeSet};

use super::{BlockRef, Evicted, Eviction, LifecycleError};
use penstock_core::planted::{self, Bug};

/// A block as far as it is known.
struct Known {
    /// Its newest use.
    generation: u32,
    /// Requests that have it in that use.
    holders: u32,
    /// What it is found by.
    hash: Option<u64>,
}

/// The blocks of a device.
pub(super) struct BlockTable {
    most: u32,
    known: BTreeMap<u32, Known>,
    by_hash: BTreeMap<u64, BlockRef>,
}

/// Whether one use of a block is later than another; their numbers may wrap.
fn is_later(one: u32, other: u32) -> bool {
    one.wrapping_sub(other).cast_signed() > 0
}

impl BlockTable {
    pub(super) fn new(most: u32) -> Self {
        Self { most, known: BTreeMap::new(), by_hash: BTreeMap::new() }
    }

    /// Whether somebody may be given these blocks: `fresh` ones that nobody has, `cached` ones that others may have in the same use.
    pub(super) fn check(&self, fresh: &[BlockRef], cached: &[BlockRef]) -> Result<(), LifecycleError> {
        let mut seen = BTreeSet::new();
        for (block, is_fresh) in fresh.iter().map(|block| (block, true)).chain(cached.iter().map(|b| (b, false))) {
            self.is_one(*block)?;
            if !seen.insert(block.index) {
                return Err(LifecycleError::BlockTwice { block: *block });
            }
            let Some(known) = self.known.get(&block.index) else { continue };
            if is_later(known.generation, block.generation) {
                return Err(LifecycleError::BlockStale { block: *block, newest: known.generation });
            }
            let is_same = known.generation == block.generation;
            if known.holders > 0 && (is_fresh || !is_same) {
                return Err(LifecycleError::BlockHeld { block: *block, holders: known.holders });
            }
        }
        Ok(())
    }

    fn is_one(&self, block: BlockRef) -> Result<(), LifecycleError> {
        if block.index < self.most { Ok(()) } else { Err(LifecycleError::NoSuchBlock { block, blocks: self.most }) }
    }

    /// Gives somebody blocks that were checked. What was found in them in an earlier use is found no more.
    pub(super) fn hold(&mut self, blocks: &[BlockRef], evicted: &mut Vec<Evicted>) {
        for block in blocks {
            let fresh = Known { generation: block.generation, holders: 0, hash: None };
            let known = self.known.entry(block.index).or_insert(fresh);
            if known.generation != block.generation {
                let old = BlockRef { index: block.index, generation: known.generation };
                known.generation = block.generation;
                if let Some(hash) = known.hash.take() {
                    self.by_hash.remove(&hash);
                    if !planted::is(Bug::EvictionKeptToItself) {
                        evicted.push(Evicted { hash, block: old, why: Eviction::Reallocated });
                    }
                }
            }
            known.holders += 1;
        }
    }

    /// Takes blocks back, and leaves those that are still in the use that was given.
    pub(super) fn release(&mut self, blocks: &mut Vec<BlockRef>) {
        blocks.retain(|block| {
            let known = self.known.get_mut(&block.index).filter(|known| known.generation == block.generation);
            known.map(|known| known.holders = known.holders.saturating_sub(1)).is_some()
        });
    }

    /// Whether these blocks, all of them in `held`, can be found by these hashes.
    pub(super) fn check_hashes(&self, blocks: &[(u64, BlockRef)], held: &[BlockRef]) -> Result<(), LifecycleError> {
        let held: BTreeSet<&BlockRef> = held.iter().collect();
        match blocks.iter().find(|(_, block)| !held.contains(block)) {
            Some((_, block)) => Err(LifecycleError::BlockNotHeld { block: *block }),
            None => Ok(()),
        }
    }

    /// Makes them be found. Another block of the same hash, and another hash of the same block, is found no more.
    pub(super) fn register(&mut self, blocks: &[(u64, BlockRef)], evicted: &mut Vec<Evicted>) {
        for &(hash, block) in blocks {
            let Some(known) = self.known.get_mut(&block.index) else { continue };
            if known.hash == Some(hash) {
                continue;
            }
            if let Some(before) = known.hash.replace(hash) {
                self.by_hash.remove(&before);
                evicted.push(Evicted { hash: before, block, why: Eviction::Replaced });
            }
            if let Some(other) = self.by_hash.insert(hash, block) {
                if let Some(known) = self.known.get_mut(&other.index) {
                    known.hash = None;
                }
                evicted.push(Evicted { hash, block: other, why: Eviction::Replaced });
            }
        }
    }

    /// Whether this block was found by this hash, which it is no more.
    pub(super) fn forget(&mut self, hash: u64, block: BlockRef) -> bool {
        let is_found = self.by_hash.get(&hash) == Some(&block);
        if is_found {
            self.by_hash.remove(&hash);
            if let Some(known) = self.known.get_mut(&block.index) {
                known.hash = None;
            }
        }
        is_found
    }

    /// All that can be found, in the order of the hashes.
    pub(super) fn registered(&self) -> Vec<(u64, BlockRef)> {
        self.by_hash.iter().map(|(hash, block)| (*hash, *block)).collect()
    }

    /// Holders that these blocks have, by what is written here against what `held` says.
    pub(super) fn agrees_with<'a>(&self, held: impl Iterator<Item = &'a BlockRef>) -> bool {
        let mut count: BTreeMap<u32, u32> = BTreeMap::new();
        let mut are_newest = true;
        for block in held {
            *count.entry(block.index).or_default() += 1;
            are_newest &= self.known.get(&block.index).is_some_and(|known| known.generation == block.generation);
        }
        let holders = self.known.iter().filter(|(_, known)| known.holders > 0);
        let found = self.known.iter().filter_map(|(index, known)| known.hash.map(|hash| (hash, *index)));
        let mut found: Vec<(u64, u32)> = found.collect();
        found.sort_unstable();
        are_newest
            && holders.map(|(index, known)| (*index, known.holders)).eq(count)
            && self.by_hash.iter().map(|(hash, block)| (*hash, block.index)).eq(found)
    }
}
