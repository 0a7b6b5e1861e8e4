//! Which pool the blocks of a parent's groups are held in, and in which use.

use std::collections::BTreeMap;
use std::sync::Arc;

use penstock_flows::continuation::PinError;
use penstock_flows::lifecycle::BlockRef;
use penstock_memory::{BlockAllocator, BlockId, Blocks};

/// The blocks of one group.
pub(super) struct OfGroup {
    /// Their pool; nothing if there are no blocks.
    pub(super) pool: Option<Arc<BlockAllocator>>,
    pub(super) ids: Vec<BlockId>,
}

impl OfGroup {
    /// As reports name them, if they are of this pool.
    pub(super) fn refs_in(&self, pool: &Arc<BlockAllocator>) -> Vec<BlockRef> {
        let is_its = self.pool.as_ref().is_some_and(|its| Arc::ptr_eq(its, pool));
        let ids = self.ids.iter().filter(|_| is_its);
        ids.map(|id| BlockRef { index: id.index, generation: id.generation }).collect()
    }

    /// A handle of them.
    pub(super) fn share(&self) -> Option<Blocks> {
        self.pool.as_ref()?.share(&self.ids).ok()
    }
}

/// Finds the blocks of each group among what these handles hold: all of a group in one pool.
pub(super) fn held_of<'a>(
    groups: impl Iterator<Item = &'a [u32]>,
    handles: &[&Blocks],
) -> Result<Vec<OfGroup>, PinError> {
    let mut pools: Vec<(&Arc<BlockAllocator>, BTreeMap<u32, BlockId>)> = Vec::new();
    for blocks in handles {
        let its = pools.iter().position(|(pool, _)| Arc::ptr_eq(pool, blocks.allocator()));
        let its = its.unwrap_or_else(|| {
            pools.push((blocks.allocator(), BTreeMap::new()));
            pools.len() - 1
        });
        pools[its].1.extend(blocks.ids().map(|id| (id.index, id)));
    }
    let of_group = |(group, blocks): (usize, &[u32])| {
        let mut furthest = 0;
        for (pool, held) in &pools {
            let ids: Vec<BlockId> = blocks.iter().map_while(|block| held.get(block).copied()).collect();
            if ids.len() == blocks.len() {
                return Ok(OfGroup { pool: Some(Arc::clone(pool)), ids });
            }
            furthest = furthest.max(ids.len());
        }
        match blocks.get(furthest) {
            Some(&block) => Err(PinError::NotHeld { group, block }),
            None => Ok(OfGroup { pool: None, ids: Vec::new() }),
        }
    };
    groups.enumerate().map(of_group).collect()
}
