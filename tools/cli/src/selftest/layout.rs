//! Which blocks go where: the same on both sides, without a word exchanged.

/// Bytes of a block.
pub(crate) const BLOCK_BYTES: u64 = 16 << 10;

/// Blocks of one transfer, as in the comparison case `kv16`.
pub(crate) const BLOCKS_PER_SET: usize = 1000;

/// The pools and the transfers between them. Transfers take turns through the pools, so that it is memory that
/// is measured and not the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layout {
    /// Blocks of each pool.
    pub(crate) blocks: u32,
    /// Different transfers.
    pub(crate) sets: usize,
}

impl Layout {
    /// Pools of 128 MiB, or of 32 MiB where it must be quick.
    pub(crate) fn of(quick: bool) -> Self {
        let mib = if quick { 32 } else { 128 };
        let blocks = ((mib << 20) / BLOCK_BYTES) as u32;
        Self { blocks, sets: blocks as usize / BLOCKS_PER_SET }
    }

    /// Bytes of each pool.
    pub(crate) fn bytes(self) -> u64 {
        u64::from(self.blocks) * BLOCK_BYTES
    }

    /// All pairs (near, far) of block numbers: set after set, scattered over both pools.
    pub(crate) fn pairs(self) -> Vec<(u32, u32)> {
        let near = shuffled(self.blocks, 1);
        let far = shuffled(self.blocks, 2);
        near.into_iter().zip(far).take(self.sets * BLOCKS_PER_SET).collect()
    }
}

/// The numbers below `count`, in an order that has no pattern (Fisher and Yates).
pub(crate) fn shuffled(count: u32, seed: u64) -> Vec<u32> {
    let mut numbers: Vec<u32> = (0..count).collect();
    let mut state = seed;
    for last in (1..numbers.len()).rev() {
        state = state.wrapping_add(1);
        let other = mixed(state ^ seed << 32) % (last as u64 + 1);
        numbers.swap(last, other as usize);
    }
    numbers
}

/// A word that looks random (the finalizer of splitmix64).
pub(crate) fn mixed(word: u64) -> u64 {
    let word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_block_is_used_at_most_once_on_each_side() {
        let layout = Layout::of(true);
        let pairs = layout.pairs();
        assert_eq!((layout.sets, pairs.len()), (2, 2000));
        let near: HashSet<u32> = pairs.iter().map(|pair| pair.0).collect();
        let far: HashSet<u32> = pairs.iter().map(|pair| pair.1).collect();
        assert_eq!((near.len(), far.len()), (2000, 2000));
        assert!(near.iter().chain(&far).all(|&block| block < layout.blocks));
        assert!(pairs.windows(2).filter(|two| two[0].1 + 1 == two[1].1).count() < 10, "hardly any neighbours");
    }
}
