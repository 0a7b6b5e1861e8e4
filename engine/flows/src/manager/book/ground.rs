//! Where the blocks of one numbering lie in a region, and where they meet those of another.

use crate::action::RegionRef;
use crate::geometry::ShardStripe;
use crate::layout::Layout;

/// How blocks are numbered somewhere: those of one number lie in these stripes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::manager) struct Ground {
    region: RegionRef,
    /// In the order of where they begin, none twice.
    stripes: Vec<ShardStripe>,
}

impl Ground {
    pub(in crate::manager) fn new(region: RegionRef, stripes: impl IntoIterator<Item = ShardStripe>) -> Self {
        let mut stripes: Vec<ShardStripe> = stripes.into_iter().collect();
        stripes.sort_unstable_by_key(|of| (of.base, of.stride, of.len, of.blocks));
        stripes.dedup();
        Self { region, stripes }
    }

    pub(in crate::manager) fn of(layout: &Layout) -> Self {
        Self::new(layout.region(), layout.stripes())
    }

    pub(in crate::manager) fn region(&self) -> RegionRef {
        self.region
    }

    /// Whether a block of the one may have bytes of a block of the other. All numberings of a region give a byte one number, so these two are
    /// of one number.
    pub(in crate::manager) fn may_meet(&self, other: &Self) -> bool {
        self.region == other.region
            && self.stripes.iter().any(|here| other.stripes.iter().any(|there| may_meet(here, there)))
    }

    /// Whether the blocks of this number have bytes in common.
    pub(in crate::manager) fn meet_at(&self, other: &Self, block: u32) -> bool {
        let there = |(offset, len): (u64, u64)| {
            let extents = other.stripes.iter().filter_map(|of| of.extent(block));
            extents.into_iter().any(|(begin, its)| begin < offset + len && offset < begin + its)
        };
        self.stripes.iter().filter_map(|of| of.extent(block)).any(there)
    }

    /// The blocks that have some of these bytes, each once.
    pub(in crate::manager) fn blocks_in(&self, extents: &[(u64, u64)]) -> Vec<u32> {
        let mut blocks: Vec<u32> = Vec::new();
        for &(offset, len) in extents {
            let end = offset.saturating_add(len);
            let near = self.stripes.iter().take_while(|of| of.base < end).filter(|of| end_of(of) > offset);
            blocks.extend(near.flat_map(|of| of.blocks_in(offset, len)));
        }
        blocks.sort_unstable();
        blocks.dedup();
        blocks
    }
}

/// Behind the last byte.
fn end_of(stripe: &ShardStripe) -> u64 {
    let last = u64::from(stripe.blocks.saturating_sub(1)).saturating_mul(stripe.stride);
    stripe.base.saturating_add(last).saturating_add(stripe.len)
}

fn may_meet(here: &ShardStripe, there: &ShardStripe) -> bool {
    if here.stride == there.stride {
        // What block 0 has in common each block has.
        return here.base < there.base.saturating_add(there.len) && there.base < here.base.saturating_add(here.len);
    }
    here.base < end_of(there) && there.base < end_of(here)
}
