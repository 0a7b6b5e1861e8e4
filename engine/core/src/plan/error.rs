//! Why a plan is refused: which item, where, and what to do about it.

use std::fmt;

use super::Direction;
use crate::ids::RegionId;
use crate::rights::Rights;

/// One of the two ends of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    Local,
    Remote,
}

impl Side {
    /// The member of a (local, remote) pair that belongs to this side.
    pub(crate) fn of<T>(self, (local, remote): (T, T)) -> T {
        match self {
            Self::Local => local,
            Self::Remote => remote,
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Local => "local",
            Self::Remote => "remote",
        })
    }
}

/// One item of what the caller gave.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Item {
    /// Which part of the plan: every list of layers and blocks, of strided runs or of extents is
    /// one part, counted from zero in the order they were given.
    pub part: usize,
    /// Which item of that part.
    pub place: Place,
}

/// Which item of a part; every index counts from zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// A block in a layer.
    Block {
        /// Index into the layers.
        layer: usize,
        /// Index into the blocks.
        block: usize,
    },
    /// A step of a strided run.
    Step {
        /// Index into the strided runs.
        run: usize,
        /// Which of its steps.
        step: u64,
    },
    Extent(usize),
}

impl fmt::Display for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place {
            Place::Block { layer, block } => write!(f, "block {block} of layer {layer}")?,
            Place::Step { run, step } => write!(f, "step {step} of strided run {run}")?,
            Place::Extent(index) => write!(f, "extent {index}")?,
        }
        write!(f, " (part {} of the plan)", self.part)
    }
}

/// Why a plan is refused. Nothing was moved and nothing was kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Something to move was named before any pair of regions.
    #[error("what to move was named before the regions: call between(local, remote) first")]
    NoRegions,
    /// No part, or a pair of regions without a part.
    #[error("the plan moves nothing: give layers and blocks, strided runs or extents for every pair of regions")]
    Empty,
    /// A list without entries.
    #[error("part {part} of the plan has an empty list of {list}: leave the part out, or give at least one")]
    EmptyList { part: usize, list: &'static str },
    /// The regions do not say how long a block is, or do not agree.
    #[error(
        "part {part} of the plan does not say how long a block is, and its regions do not agree \
         (local {}, remote {}): give the bytes of a block",
        bytes_or_none(*local), bytes_or_none(*remote)
    )]
    BlockBytesUnknown {
        part: usize,
        /// Bytes of a block of the local region, if it has blocks.
        local: Option<u64>,
        /// Bytes of a block of the remote region, if it has blocks.
        remote: Option<u64>,
    },
    /// An item of no bytes.
    #[error("{item} has a length of zero bytes: leave it out (a notification alone needs no plan)")]
    ZeroLength { item: Item },
    /// A strided run of no steps.
    #[error("strided run {run} (part {part} of the plan) has a count of zero: leave it out")]
    ZeroCount {
        part: usize,
        /// Index into its strided runs.
        run: usize,
    },
    /// Blocks closer to each other than they are long.
    #[error(
        "part {part} of the plan: the {side} stride of {stride} bytes is shorter than a block of {block_bytes} bytes, \
         so that neighbours overlap: give a stride of at least the block's length"
    )]
    StrideTooShort {
        part: usize,
        side: Side,
        /// The stride, in bytes.
        stride: u64,
        /// Bytes of a block.
        block_bytes: u64,
    },
    /// The peer does not allow this.
    #[error(
        "a plan that {direction}s needs that right, but the peer gives `{rights}` for its region {region}: \
         ask its owner for more, or name another region"
    )]
    NotAllowed {
        direction: Direction,
        region: RegionId,
        /// What its owner allows.
        rights: Rights,
    },
    /// An offset beyond 64 bits.
    #[error(
        "{item}: its {side} offset does not fit in 64 bits (region {region} has {region_len} bytes): \
         check its base, index and stride"
    )]
    Overflow {
        item: Item,
        side: Side,
        /// The region of that side.
        region: RegionId,
        /// Bytes of that region.
        region_len: u64,
    },
    /// An item that does not lie within its region.
    #[error(
        "{item}: its {len} bytes at {side} offset {offset} reach past the end of region {region} of {region_len} bytes: \
         check its base, index and stride, or register more memory"
    )]
    OutOfBounds {
        item: Item,
        side: Side,
        /// The region of that side.
        region: RegionId,
        /// Where the item starts, in bytes from the start of the region.
        offset: u64,
        /// Bytes of the item.
        len: u64,
        /// Bytes of that region.
        region_len: u64,
    },
    /// Two items would write the same byte, and which one wins would be chance.
    #[error(
        "{first} and {second} both write {side} offset {offset} of region {region}: \
         give every destination byte once, or use two plans, one after the other"
    )]
    Overlap {
        first: Item,
        second: Item,
        /// The side that is written.
        side: Side,
        region: RegionId,
        /// A byte that both write, from the start of the region.
        offset: u64,
    },
    /// Destinations that interleave in so many pieces that proving them disjoint costs too much.
    #[error(
        "the destinations in {side} region {region} interleave in {pieces} pieces, and at most {pieces_max} are checked \
         one by one: use several smaller plans, or layers and blocks with strides"
    )]
    TooTangled {
        /// The side that is written.
        side: Side,
        region: RegionId,
        /// How many pieces interleave.
        pieces: u64,
        /// How many are checked one by one.
        pieces_max: u64,
    },
    /// More bytes or pieces than can be counted.
    #[error("the plan has more bytes or pieces than 64 bits can count: use several smaller plans")]
    TooLarge,
}

fn bytes_or_none(bytes: Option<u64>) -> String {
    bytes.map_or("none".to_owned(), |bytes| format!("{bytes} bytes"))
}
