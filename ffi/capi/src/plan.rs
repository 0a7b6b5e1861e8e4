//! Plans: what moves, checked once and submitted often.

use penstock::{Blocks, Peer, Plan, PlanBuilder, RemoteRegion, Span, SystemEnv};

use crate::arguments::{Out, Versioned, array, read_sized};
use crate::call::call;
use crate::engine::penstock_peer;
use crate::failure::{Answer, Failure};
use crate::memory::{find_region, penstock_blocks, penstock_region};
use crate::objects::{add, find};
use crate::peer::penstock_remote_region;
use crate::status::penstock_status::{self, *};

/// Handle of a plan.
pub type penstock_plan = u64;

/// From this engine's memory to the peer's.
pub const PENSTOCK_WRITE: u32 = 0;
/// From the peer's memory to this engine's.
pub const PENSTOCK_READ: u32 = 1;

/// Two offsets that belong together.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct penstock_layer {
    /// Into the local region.
    pub local: u64,
    /// Into the remote region.
    pub remote: u64,
}

/// Two numbers of blocks that belong together.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct penstock_block_pair {
    /// In the local region.
    pub local: u32,
    /// In the remote region.
    pub remote: u32,
}

/// Bytes that move together, by offsets into two regions.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct penstock_extent {
    /// Into the local region.
    pub local: u64,
    /// Into the remote region.
    pub remote: u64,
    /// How many, not none.
    pub bytes: u64,
}

/// Pieces at regular distances.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct penstock_strided {
    /// Offset of the first piece in the local region.
    pub local: u64,
    /// The same in the remote region.
    pub remote: u64,
    /// Bytes of a piece.
    pub bytes: u64,
    /// From one piece to the next in the local region.
    pub local_stride: u64,
    /// The same in the remote region.
    pub remote_stride: u64,
    /// How many pieces.
    pub count: u64,
}

/// Bytes that move together, by addresses.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct penstock_entry {
    /// An address of this process.
    pub local: u64,
    /// An address of the peer's.
    pub remote: u64,
    /// How many; none is nothing.
    pub bytes: u64,
}

/// What a plan over two regions moves: blocks (of each layer, if there are any), strided pieces, extents, or more than one of the three. Numbers of
/// blocks are those of `penstock_blocks_indices`, and every offset is from the beginning of its region.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct penstock_plan_options {
    /// `sizeof(penstock_plan_options)`.
    pub size: usize,
    /// `PENSTOCK_WRITE` or `PENSTOCK_READ`.
    pub direction: u32,
    /// 0.
    pub reserved: u32,
    /// Where layers begin in the two regions; none: one layer at their beginnings.
    pub layers: *const penstock_layer,
    /// How many.
    pub layer_count: usize,
    /// Which block goes where, in each layer.
    pub blocks: *const penstock_block_pair,
    /// How many.
    pub block_count: usize,
    /// Bytes of a block; 0: as the pool has them.
    pub block_bytes: u64,
    /// From one block to the next in the local region; 0: the bytes of a block.
    pub local_stride: u64,
    /// The same in the remote region.
    pub remote_stride: u64,
    /// Pieces at regular distances.
    pub strided: *const penstock_strided,
    /// How many of them.
    pub strided_count: usize,
    /// Bytes by offsets.
    pub extents: *const penstock_extent,
    /// How many of them.
    pub extent_count: usize,
    /// Blocks that stay allocated as long as the plan or a transfer of it lives.
    pub keep: *const penstock_blocks,
    /// How many handles.
    pub keep_count: usize,
}

impl Versioned for penstock_plan_options {
    fn size(&self) -> usize {
        self.size
    }
}

/// Makes a plan between a region (or a pool) of this engine and one of a peer. Everything is checked now. Nothing of the arrays is kept. Any thread.
///
/// # Safety
/// The arrays of the options have as many values as they say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_plan_create(
    local: penstock_region,
    remote: penstock_remote_region,
    options: *const penstock_plan_options,
    plan: *mut penstock_plan,
) -> penstock_status {
    call(|| {
        // SAFETY: all zeros is a value of it: numbers and null pointers.
        let zeros: penstock_plan_options = unsafe { std::mem::zeroed() };
        // SAFETY: the caller's promise.
        let (options, plan) = unsafe { (read_sized(options, zeros)?, Out::new(plan, "plan")?) };
        if options.reserved != 0 {
            return Err(Failure::invalid("`reserved` is not 0"));
        }
        let (local, remote) = (find_region(local)?, find::<RemoteRegion<SystemEnv>>(remote)?);
        // SAFETY: the caller's promise.
        let (layers, blocks, strided, extents, keep) = unsafe {
            (
                array(options.layers, options.layer_count, "layers")?,
                array(options.blocks, options.block_count, "blocks")?,
                array(options.strided, options.strided_count, "strided")?,
                array(options.extents, options.extent_count, "extents")?,
                array(options.keep, options.keep_count, "keep")?,
            )
        };
        let layers: Vec<(u64, u64)> = layers.iter().map(|layer| (layer.local, layer.remote)).collect();
        let blocks: Vec<(u32, u32)> = blocks.iter().map(|pair| (pair.local, pair.remote)).collect();
        let spans = |of: &penstock_extent| Span { local: of.local, remote: of.remote, len: of.bytes };
        let spans: Vec<Span> = extents.iter().map(spans).collect();
        let runs = |of: &penstock_strided| penstock::plan::Strided {
            local: of.local,
            remote: of.remote,
            len: of.bytes,
            local_stride: of.local_stride,
            remote_stride: of.remote_stride,
            count: of.count,
        };
        let runs: Vec<penstock::plan::Strided> = strided.iter().map(runs).collect();
        let mut builder: PlanBuilder<'_> = match direction(options.direction)? {
            PENSTOCK_WRITE => Plan::write(&local, &remote),
            _ => Plan::read(&local, &remote),
        };
        if !layers.is_empty() {
            builder = builder.layers(&layers);
        }
        if !blocks.is_empty() {
            builder = builder.blocks(&blocks);
        }
        if options.block_bytes != 0 {
            builder = builder.block_bytes(options.block_bytes);
        }
        if (options.local_stride, options.remote_stride) != (0, 0) {
            builder = builder.strides(options.local_stride, options.remote_stride);
        }
        if !runs.is_empty() {
            builder = builder.strided(&runs);
        }
        if !spans.is_empty() {
            builder = builder.extents(&spans);
        }
        for blocks in keep {
            builder = builder.keep(&*find::<Blocks>(*blocks)?);
        }
        plan.put(add(builder.build()?)?);
        Ok(PENSTOCK_OK)
    })
}

/// Makes a plan by addresses, over any regions of either side. Of several that cover an entry the newest is used; an entry may run over
/// regions that adjoin; destinations may overlap, and then it is not defined whose bytes stay. A plan of no bytes only tells. `keep` are
/// blocks that stay allocated with it. Any thread.
///
/// # Safety
/// The arrays have as many values as they say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_plan_addresses(
    peer: penstock_peer,
    direction: u32,
    entries: *const penstock_entry,
    count: usize,
    keep: *const penstock_blocks,
    keep_count: usize,
    plan: *mut penstock_plan,
) -> penstock_status {
    // SAFETY: the caller's promise.
    call(|| unsafe { addresses(peer, direction, (entries, count), (keep, keep_count), plan) })
}

/// # Safety
/// As of [`penstock_plan_addresses`].
unsafe fn addresses(
    peer: penstock_peer,
    wanted: u32,
    (entries, count): (*const penstock_entry, usize),
    (keep, keep_count): (*const penstock_blocks, usize),
    plan: *mut penstock_plan,
) -> Answer {
    // SAFETY: the caller's promise.
    let (entries, keep, plan) =
        unsafe { (array(entries, count, "entries")?, array(keep, keep_count, "keep")?, Out::new(plan, "plan")?) };
    let entries: Vec<(u64, u64, u64)> = entries.iter().map(|of| (of.local, of.remote, of.bytes)).collect();
    let peer = find::<Peer<SystemEnv>>(peer)?;
    let mut builder = match direction(wanted)? {
        PENSTOCK_WRITE => Plan::write_addresses(&peer, &entries),
        _ => Plan::read_addresses(&peer, &entries),
    };
    for blocks in keep {
        builder = builder.keep(&*find::<Blocks>(*blocks)?);
    }
    plan.put(add(builder.build()?)?);
    Ok(PENSTOCK_OK)
}

fn direction(direction: u32) -> Result<u32, Box<Failure>> {
    match direction {
        PENSTOCK_WRITE | PENSTOCK_READ => Ok(direction),
        other => Err(Failure::invalid(format!("{other} is no direction: use PENSTOCK_WRITE or PENSTOCK_READ"))),
    }
}

/// Bytes that a transfer of the plan moves. Any thread.
///
/// # Safety
/// Pointers as their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_plan_bytes(plan: penstock_plan, bytes: *mut u64) -> penstock_status {
    call(|| {
        // SAFETY: the caller's promise.
        let bytes = unsafe { Out::new(bytes, "bytes") }?;
        bytes.put(find::<Plan>(plan)?.bytes());
        Ok(PENSTOCK_OK)
    })
}
