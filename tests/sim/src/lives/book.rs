//! What subscribers of a device have to be told: written down from what was reported, and held against what they are.

use std::collections::{BTreeMap, VecDeque};

use penstock::flows::{BlockRef, Evicted, Eviction, Lag, RequestId};

/// The end of a life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Gone {
    pub(super) request: RequestId,
    pub(super) generation: u64,
    /// Blocks that are named in it.
    pub(super) device: Vec<BlockRef>,
}

/// What waits for a subscriber.
#[derive(Debug)]
pub(super) struct Queue<T> {
    most: usize,
    waiting: VecDeque<T>,
    lost: u64,
}

impl<T: Clone> Queue<T> {
    pub(super) fn of(most: usize) -> Self {
        Self { most, waiting: VecDeque::new(), lost: 0 }
    }

    pub(super) fn push(&mut self, notice: &T) {
        if self.lost == 0 && self.waiting.len() < self.most {
            self.waiting.push_back(notice.clone());
        } else {
            self.lost += 1 + self.waiting.len() as u64;
            self.waiting.clear();
        }
    }

    /// What is given out now, and what was lost.
    pub(super) fn take(&mut self) -> (Vec<T>, Lag) {
        (self.waiting.drain(..).collect(), Lag { lost: self.lost })
    }

    /// It begins anew, with a snapshot.
    pub(super) fn restart(&mut self) {
        self.waiting.clear();
        self.lost = 0;
    }
}

/// By which hashes which blocks are found.
#[derive(Debug, Default)]
pub(super) struct Found {
    blocks: BTreeMap<u32, (u32, Option<u64>)>,
    by_hash: BTreeMap<u64, BlockRef>,
}

impl Found {
    /// These blocks are somebody's, in this use. Answers what is found no more.
    pub(super) fn hold(&mut self, blocks: &[BlockRef]) -> Vec<Evicted> {
        let mut evicted = Vec::new();
        for block in blocks {
            let known = self.blocks.entry(block.index).or_insert((block.generation, None));
            if known.0 != block.generation {
                let before = BlockRef { index: block.index, generation: known.0 };
                let hash = std::mem::replace(known, (block.generation, None)).1;
                evicted.extend(hash.map(|hash| Evicted { hash, block: before, why: Eviction::Reallocated }));
            }
        }
        self.by_hash.retain(|hash, _| !evicted.iter().any(|evicted| evicted.hash == *hash));
        evicted
    }

    /// These can be found from now on.
    pub(super) fn store(&mut self, blocks: &[(u64, BlockRef)]) -> Vec<Evicted> {
        let mut evicted = Vec::new();
        for &(hash, block) in blocks {
            if self.by_hash.get(&hash) == Some(&block) {
                continue;
            }
            let known = self.blocks.entry(block.index).or_insert((block.generation, None));
            if let Some(before) = known.1.replace(hash) {
                self.by_hash.remove(&before);
                evicted.push(Evicted { hash: before, block, why: Eviction::Replaced });
            }
            if let Some(other) = self.by_hash.insert(hash, block) {
                self.blocks.insert(other.index, (other.generation, None));
                evicted.push(Evicted { hash, block: other, why: Eviction::Replaced });
            }
        }
        evicted
    }

    /// This one is found no more, if it was.
    pub(super) fn forget(&mut self, hash: u64, block: BlockRef) -> bool {
        let is_found = self.by_hash.get(&hash) == Some(&block);
        if is_found {
            self.by_hash.remove(&hash);
            self.blocks.insert(block.index, (block.generation, None));
        }
        is_found
    }

    /// The block of a hash.
    pub(super) fn block(&self, hash: u64) -> Option<BlockRef> {
        self.by_hash.get(&hash).copied()
    }

    /// All of them.
    pub(super) fn all(&self) -> Vec<(u64, BlockRef)> {
        self.by_hash.iter().map(|(hash, block)| (*hash, *block)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(index: u32, generation: u32) -> BlockRef {
        BlockRef { index, generation }
    }

    #[test]
    fn a_queue_that_was_full_gives_nothing_before_it_begins_anew() {
        let mut queue = Queue::of(2);
        (1..=3).for_each(|number| queue.push(&number));
        assert_eq!(queue.take(), (vec![], Lag { lost: 3 }));
        queue.push(&4);
        assert_eq!(queue.take().1.lost, 4);
        queue.restart();
        queue.push(&5);
        assert_eq!(queue.take(), (vec![5], Lag { lost: 0 }));
    }

    #[test]
    fn a_block_in_another_use_and_another_block_of_a_hash_are_found_no_more() {
        let mut found = Found::default();
        assert_eq!(found.hold(&[block(1, 1), block(2, 1)]), []);
        assert_eq!(found.store(&[(10, block(1, 1))]), []);
        let evicted = |hash, block, why| Evicted { hash, block, why };
        assert_eq!(found.store(&[(10, block(2, 1))]), [evicted(10, block(1, 1), Eviction::Replaced)]);
        assert_eq!(found.hold(&[block(2, 3)]), [evicted(10, block(2, 1), Eviction::Reallocated)]);
        assert_eq!((found.block(10), found.all()), (None, vec![]));
        found.store(&[(11, block(2, 3))]);
        assert!(found.forget(11, block(2, 3)) && !found.forget(11, block(2, 3)));
    }
}
