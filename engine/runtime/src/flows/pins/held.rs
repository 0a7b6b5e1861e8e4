//! Which pool the blocks of a parent's groups are held in, and in which use.

use std::collections::BTreeMap;
use std::sync::Arc;

use penstock_flows::continuation::PinError;
use penstock_flows::lifecycle::BlockRef;
use penstock_memory::{BlockAllocator, BlockId, Blocks};

/// The blocks of one group, in its order; nothing if there are none.
pub(super) type OfGroup = Option<Blocks>;

/// As reports name the blocks of a group, if they are of this pool.
pub(super) fn refs_in(group: &OfGroup, pool: &Arc<BlockAllocator>) -> Vec<BlockRef> {
    let its = group.iter().filter(|blocks| Arc::ptr_eq(blocks.allocator(), pool));
    its.flat_map(Blocks::ids).map(|id| BlockRef { index: id.index, generation: id.generation }).collect()
}

/// Finds the blocks of each group among what these handles hold: all of a group in one pool, and a handle of them. As every pool numbers
/// from 0, several can have those of a group: then it is the handle at the group's own place that has them, or it is not said which.
pub(super) fn held_of<'a>(
    groups: impl Iterator<Item = &'a [u32]>,
    handles: &[&Blocks],
) -> Result<Vec<OfGroup>, PinError> {
    let groups: Vec<&[u32]> = groups.collect();
    let mut held: Vec<Held<'_>> = handles.iter().map(|blocks| Held::of(blocks)).collect();
    let is_in_order =
        held.len() == groups.len() && groups.iter().zip(&held).all(|(group, held)| held.has(group) == Ok(()));
    if is_in_order {
        let each = groups.iter().zip(&held).enumerate();
        return each.map(|(number, (group, held))| held.share(number, group)).collect();
    }
    held = pools_of(held);
    let of_group = |(group, blocks): (usize, &&[u32])| {
        let mut having = held.iter().filter(|held| held.has(blocks) == Ok(()));
        match (having.next(), having.next(), blocks.first()) {
            (_, _, None) => Ok(None),
            (Some(_), Some(_), Some(&block)) => Err(PinError::SeveralPools { group, block }),
            (Some(held), None, _) => held.share(group, blocks),
            (None, _, Some(&first)) => {
                let furthest = held.iter().filter_map(|held| held.has(blocks).err()).max();
                let block = furthest.and_then(|place| blocks.get(place).copied()).unwrap_or(first);
                Err(PinError::NotHeld { group, block })
            }
        }
    };
    groups.iter().enumerate().map(of_group).collect()
}

/// What is held of one pool.
struct Held<'a> {
    pool: &'a Arc<BlockAllocator>,
    ids: BTreeMap<u32, BlockId>,
}

/// Those of the same pool are one.
fn pools_of(handles: Vec<Held<'_>>) -> Vec<Held<'_>> {
    let mut pools: Vec<Held<'_>> = Vec::new();
    for held in handles {
        match pools.iter_mut().find(|other| Arc::ptr_eq(other.pool, held.pool)) {
            Some(other) => other.ids.extend(held.ids),
            None => pools.push(held),
        }
    }
    pools
}

impl<'a> Held<'a> {
    fn of(blocks: &'a Blocks) -> Self {
        Self { pool: blocks.allocator(), ids: blocks.ids().map(|id| (id.index, id)).collect() }
    }

    /// Whether all of these are among them; if not, the place of the first one that is not.
    fn has(&self, blocks: &[u32]) -> Result<(), usize> {
        blocks.iter().position(|block| !self.ids.contains_key(block)).map_or(Ok(()), Err)
    }

    /// A handle of these.
    fn share(&self, group: usize, blocks: &[u32]) -> Result<OfGroup, PinError> {
        let Some(&block) = blocks.first() else { return Ok(None) };
        let ids: Vec<BlockId> = blocks.iter().filter_map(|block| self.ids.get(block).copied()).collect();
        // A handle's blocks are held, unless somebody has released one by its number.
        self.pool.share(&ids).map(Some).map_err(|_| PinError::NotHeld { group, block })
    }
}
