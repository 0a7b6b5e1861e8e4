//! Parts of this engine's memory, for puts out of it and gets into it, with what is kept of it until nothing is at it any more.

use std::collections::BTreeSet;
use std::sync::Arc;

use penstock_core::Env;
use penstock_core::planted::{self, Bug};
use penstock_flows::action::RegionRef;
use penstock_flows::geometry::ShardStripe;
use penstock_flows::manager::{BlockAccess, User};
use penstock_flows::relay::StagingPlace;
use penstock_flows::{BlocksRef, Layout as FlowLayout, TransferManager};
use penstock_memory::{BlockAllocator, Blocks, Region};

use super::{FlowError, Inner};
use crate::flows::{CallError, ForeignMemory, Layout};
use crate::region::{LocalRegion, Pool};

/// Parts of a region of this engine, offsets and lengths, with the blocks that they lie in.
///
/// Blocks that were named are kept until nothing can be read from them, or land in them, any more, whoever drops them meanwhile. What lies
/// in a pool and in none of the blocks that were named is refused: it could be given out again while a peer is at it.
///
/// ```
/// # use penstock::{Config, Engine, PoolSpec, Rights};
/// # use penstock::flows::{LayoutSpec, Rows};
/// # use penstock::flows::relay::{Extents, Put};
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let folder = std::env::temp_dir().join(format!("penstock-doc-extents-{}", std::process::id()));
/// # let engine = Engine::start(Config::default().named("thinker").directory(&folder))?;
/// // Two layers, one behind the other: block 5 lies in two pieces.
/// let (rows, layer) = (Rows { first: 0, count: 8, of: 8, bytes: 256 }, 64 * 16 * 8 * 256);
/// let pool = engine.pool(PoolSpec::host(2 * layer).block(2 * layer / 64).label("kv").rights(Rights::READ))?;
/// let layout = engine.layout(&pool, LayoutSpec::new("kv", 16, 64).token_major(0, 0, rows).token_major(1, layer, rows))?;
/// let blocks = pool.take(1)?;
/// let whole = Put::extents(Extents::blocks(&layout, &[&blocks]));
/// // The first three tokens of it, of layer 1.
/// let block = blocks.indices()[0];
/// let first = layout.offset(1, block, 0).ok_or("it is there")?;
/// let part = Put::extents(Extents::of_layout(&layout, &[&blocks], &[(first, 3 * 8 * 256)]));
/// # drop((whole, part));
/// # drop((layout, pool, blocks, engine));
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok(())
/// # }
/// ```
pub struct Extents<'a, E: Env> {
    of: Of<'a, E>,
    blocks: Vec<Blocks>,
    parts: Vec<(u64, u64)>,
}

enum Of<'a, E: Env> {
    Registered(&'a LocalRegion<E>),
    Pool(&'a Pool<E>),
    Layout(&'a Layout<E>),
}

impl<'a, E: Env> Extents<'a, E> {
    /// Of memory that the caller has [registered](crate::engine::Engine::register), which nobody here keeps: it is to be left as it is until
    /// the put or the get has rested. A pool's region is refused.
    pub fn registered(region: &'a LocalRegion<E>, parts: &[(u64, u64)]) -> Self {
        Self { of: Of::Registered(region), blocks: Vec::new(), parts: parts.to_vec() }
    }

    /// Of blocks of a pool without layouts, where block `i` lies at `i` times the bytes of a block ([`Blocks::offset`]).
    pub fn of_pool(pool: &'a Pool<E>, blocks: &[&Blocks], parts: &[(u64, u64)]) -> Self {
        Self { of: Of::Pool(pool), blocks: handles(blocks), parts: parts.to_vec() }
    }

    /// Of blocks of a layout, which lie where [`Layout::offset`] says.
    pub fn of_layout(layout: &'a Layout<E>, blocks: &[&Blocks], parts: &[(u64, u64)]) -> Self {
        Self { of: Of::Layout(layout), blocks: handles(blocks), parts: parts.to_vec() }
    }

    /// These blocks of a layout whole: buffer after buffer, and in each of them block after block. What lies behind one another is one part.
    pub fn blocks(layout: &'a Layout<E>, blocks: &[&Blocks]) -> Self {
        let numbers = || blocks.iter().flat_map(|blocks| blocks.indices());
        let of_buffer = |buffer| numbers().map(move |number| (buffer, *number));
        let mut parts: Vec<(u64, u64)> = Vec::new();
        for (buffer, number) in (0..layout.buffers().len()).flat_map(of_buffer) {
            // A block that the layout has not is refused when it is used.
            let (offset, len) = layout.extent(buffer, number).unwrap_or((u64::MAX, 0));
            match parts.last_mut() {
                Some((begin, before)) if begin.checked_add(*before) == Some(offset) => *before += len,
                _ => parts.push((offset, len)),
            }
        }
        Self { of: Of::Layout(layout), blocks: handles(blocks), parts }
    }
}

fn handles(blocks: &[&Blocks]) -> Vec<Blocks> {
    blocks.iter().map(|blocks| (*blocks).clone()).collect()
}

/// Extents that were checked, and what is kept for them.
pub(super) struct KeptExtents {
    pub(super) region: Arc<Region>,
    pub(super) places: Vec<StagingPlace>,
    pub(super) keep: BlocksRef,
}

impl<E: Env> Inner<E> {
    /// Parts of a region as the transfer manager names them, and what keeps them until they are quiet. Others that have them in a way that stands against
    /// this one are a refusal; with what is not ready that is looked at by nobody, as it may still be written.
    pub(super) fn keep(
        &self,
        extents: Extents<'_, E>,
        (access, is_ready): (BlockAccess, bool),
        user: User,
    ) -> Result<KeptExtents, FlowError> {
        let region = self.checked(&extents)?;
        let Extents { blocks, parts, .. } = extents;
        let held = match region.blocks().filter(|_| planted::is(Bug::PutHoldsOtherBlocks)) {
            Some(pool) => parts.iter().map(|(offset, len)| pool.retain_range(*offset, *len)).collect(),
            None => blocks,
        };
        let at = RegionRef { region: region.id(), generation: region.generation() };
        let places = parts.iter().map(|&(offset, len)| StagingPlace { region: at, offset, len }).collect();
        let keep = self.engine.shared.manager.keep_all(held);
        let begin =
            |manager: &mut TransferManager| manager.begin_extents_use(keep, (at, &parts), (access, is_ready), user);
        let begun = self.engine.shared.change_manager(begin).map_err(|held| CallError::Held(Box::new(held)));
        begun.inspect_err(|_| self.engine.shared.manager.free(keep))?;
        Ok(KeptExtents { places, keep, region })
    }

    /// What was kept for something that has not begun.
    pub(super) fn keep_no_more(&self, keep: BlocksRef) {
        self.engine.shared.change_manager(|manager| manager.end_kept_use(keep));
        self.engine.shared.manager.free(keep);
    }

    /// The region of these extents, all of which lie in blocks that are held.
    fn checked(&self, Extents { of, blocks, parts }: &Extents<'_, E>) -> Result<Arc<Region>, FlowError> {
        match *of {
            Of::Registered(region) => {
                self.check_own(region, parts)?;
                let label = || region.label().to_owned();
                if region.region.blocks().is_some() {
                    return Err(ForeignMemory::IsPool { label: label() }.into());
                }
                Ok(Arc::clone(&region.region))
            }
            Of::Pool(pool) => {
                self.check_own(pool, parts)?;
                let allocator = pool.memory().blocks();
                let whole = stripe_of(allocator);
                let region = &pool.region.region;
                let at = RegionRef { region: region.id(), generation: region.generation() };
                let other = self
                    .engine
                    .shared
                    .look_at_manager(|manager| manager.layout_otherwise(at, &[whole]).map(str::to_owned));
                if let Some(layout) = other {
                    return Err(ForeignMemory::OtherNumbers { label: pool.label().to_owned(), layout }.into());
                }
                if blocks.iter().any(|blocks| !Arc::ptr_eq(blocks.allocator(), allocator)) {
                    return Err(ForeignMemory::Blocks { label: pool.label().to_owned() }.into());
                }
                check_held(pool.label(), parts, blocks, |offset| whole.block_at(offset))?;
                Ok(Arc::clone(region))
            }
            Of::Layout(layout) => {
                if !Arc::ptr_eq(&layout.engine, &self.engine) {
                    return Err(FlowError::ForeignLayout { label: layout.label().to_owned() });
                }
                blocks.iter().try_for_each(|blocks| layout.ground.check(blocks))?;
                let its: &FlowLayout = &layout.of;
                let missing = blocks.iter().flat_map(|blocks| blocks.indices()).find(|block| **block >= its.blocks());
                if let Some(&block) = missing {
                    let label = layout.label().to_owned();
                    return Err(ForeignMemory::NoSuchBlock { label, block, blocks: its.blocks() }.into());
                }
                let at = its.region();
                let region =
                    self.engine.shared.registry.resolve(at.region, at.generation).map_err(|_| CallError::NoLayout)?;
                check_inside(&region, parts)?;
                check_held(layout.label(), parts, blocks, |offset| its.block_at(offset))?;
                Ok(region)
            }
        }
    }

    fn check_own(&self, region: &LocalRegion<E>, parts: &[(u64, u64)]) -> Result<(), FlowError> {
        if !Arc::ptr_eq(&region.engine, &self.engine) {
            return Err(FlowError::ForeignRegion { label: region.label().to_owned() });
        }
        check_inside(&region.region, parts)
    }
}

/// How a pool numbers its bytes by itself.
fn stripe_of(allocator: &BlockAllocator) -> ShardStripe {
    let len = allocator.block_bytes();
    ShardStripe { base: 0, stride: len, len, blocks: allocator.total() }
}

fn check_inside(region: &Region, parts: &[(u64, u64)]) -> Result<(), FlowError> {
    let bytes = region.bytes();
    let is_outside = |&&(offset, len): &&(u64, u64)| offset.checked_add(len).is_none_or(|end| end > bytes);
    match parts.iter().find(is_outside) {
        Some(&(offset, len)) => Err(FlowError::Outside { label: region.label().to_owned(), offset, len, bytes }),
        None => Ok(()),
    }
}

/// Whether each byte is of a block that is held.
fn check_held(
    label: &str,
    parts: &[(u64, u64)],
    blocks: &[Blocks],
    block_at: impl Fn(u64) -> Option<(u32, u64)>,
) -> Result<(), ForeignMemory> {
    if planted::is(Bug::PutHoldsOtherBlocks) {
        return Ok(());
    }
    let held: BTreeSet<u32> = blocks.iter().flat_map(|blocks| blocks.indices().iter().copied()).collect();
    let label = || label.to_owned();
    for &(begin, len) in parts {
        let (mut offset, end) = (begin, begin + len);
        while offset < end {
            let (block, behind) = block_at(offset).ok_or_else(|| ForeignMemory::NoBlock { label: label(), offset })?;
            if !held.contains(&block) {
                return Err(ForeignMemory::Unheld { label: label(), offset, block });
            }
            offset = behind;
        }
    }
    Ok(())
}
