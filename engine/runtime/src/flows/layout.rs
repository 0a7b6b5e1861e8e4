//! How blocks lie in a region.

use std::sync::{Arc, Weak};
use std::time::Duration;

use penstock_core::{Cause, Env};
use penstock_flows::action::RegionRef;
use penstock_flows::{Layout as FlowLayout, LayoutKey};
use penstock_memory::{BlockAllocator, Blocks};
use penstock_session::control::{Buffer, Form, LayoutNews, Rows};

use super::{CallError, FlowError, ForeignMemory, LayoutRefused};
use crate::engine::Engine;
use crate::engine_inner::EngineInner;
use crate::manager::key_of;
use crate::peer::Peer;
use crate::region::LocalRegion;

/// What a layout is to be.
///
/// ```
/// use penstock::flows::{LayoutSpec, Rows};
///
/// // Two layers of 8 heads of 256 bytes, in blocks of 16 tokens, of which there are 64.
/// let layer = 64 * 16 * 8 * 256;
/// let rows = Rows { first: 0, count: 8, of: 8, bytes: 256 };
/// let spec = LayoutSpec::new("kv", 16, 64).token_major(0, 0, rows).token_major(1, layer, rows);
/// # let _ = spec;
/// ```
#[derive(Debug, Clone)]
pub struct LayoutSpec {
    news: LayoutNews,
}

impl LayoutSpec {
    /// So many blocks of so many tokens, under this label.
    pub fn new(label: &str, block_tokens: u32, blocks: u32) -> Self {
        let news = LayoutNews {
            number: 0,
            generation: 0,
            label: label.to_owned(),
            region: 0,
            region_generation: 0,
            block_tokens,
            blocks,
            rank: 0,
            ranks: 1,
            buffers: Vec::new(),
        };
        Self { news }
    }

    /// The rank whose part of the rows lies here, of how many.
    #[must_use]
    pub fn rank(mut self, rank: u16, ranks: u16) -> Self {
        (self.news.rank, self.news.ranks) = (rank, ranks);
        self
    }

    /// A buffer of a layer, one block behind the other from `base` on, each one token after the other.
    #[must_use]
    pub fn token_major(self, layer: u32, base: u64, rows: Rows) -> Self {
        let stride = u64::from(self.news.block_tokens) * u64::from(rows.count) * u64::from(rows.bytes);
        self.buffer(Buffer { layer, base, stride, form: Form::TokenMajor(rows) })
    }

    /// The same, each block one row after the other.
    #[must_use]
    pub fn plane_major(self, layer: u32, base: u64, rows: Rows) -> Self {
        let stride = u64::from(self.news.block_tokens) * u64::from(rows.count) * u64::from(rows.bytes);
        self.buffer(Buffer { layer, base, stride, form: Form::PlaneMajor(rows) })
    }

    /// So many bytes once for a transfer, in one of the blocks from `base` on.
    #[must_use]
    pub fn once(self, layer: u32, base: u64, bytes: u64) -> Self {
        self.buffer(Buffer { layer, base, stride: bytes, form: Form::Once(bytes) })
    }

    /// A buffer that lies otherwise.
    #[must_use]
    pub fn buffer(mut self, buffer: Buffer) -> Self {
        self.news.buffers.push(buffer);
        self
    }
}

/// How blocks lie in a region of this engine. Peers know it by its label until it is dropped.
///
/// Block `i` of the layout is the one that its pool hands out as number `i` ([`Blocks::indices`]), and lies where the layout says, in one
/// piece for each buffer. [`Blocks::offset`] and [`Blocks::window`] know nothing of layouts: they are right only where all that a layout
/// has of a block lies within the pool's own block of that number.
pub struct Layout<E: Env> {
    pub(crate) engine: Arc<EngineInner<E>>,
    pub(crate) key: LayoutKey,
    pub(super) ground: Ground,
    pub(super) of: Arc<FlowLayout>,
}

/// What a layout's blocks are taken from: the pool that its region is, or memory that has no blocks of its own. Numbers of blocks mean
/// nothing in another pool.
#[derive(Debug, Clone)]
pub(super) struct Ground {
    /// Known and not kept: whoever has blocks has their pool.
    pool: Option<Weak<BlockAllocator>>,
    label: String,
}

impl Ground {
    fn of<E: Env>(region: &LocalRegion<E>) -> Self {
        let pool = region.region.blocks().map(Arc::downgrade);
        Self { pool, label: region.label().to_owned() }
    }

    /// Refuses blocks of another pool. Where the region is the caller's own memory, it is the caller who numbers its blocks.
    pub(super) fn check(&self, blocks: &Blocks) -> Result<(), FlowError> {
        match &self.pool {
            Some(pool) if pool.as_ptr() != Arc::as_ptr(blocks.allocator()) => {
                Err(ForeignMemory::Blocks { label: self.label.clone() }.into())
            }
            _ => Ok(()),
        }
    }

    /// The same of a block for what goes once, which is exactly one. Answers its number.
    pub(super) fn check_once(&self, once: &Blocks) -> Result<u32, FlowError> {
        self.check(once)?;
        match once.indices() {
            [block] => Ok(*block),
            blocks => Err(ForeignMemory::Once { blocks: blocks.len() }.into()),
        }
    }
}

impl<E: Env> Engine<E> {
    /// Tells all peers how blocks lie in a region. Where it is a pool's, only blocks of that pool are taken for this layout. Several layouts
    /// of a region have to give each byte the number of the same block: one that does not is refused
    /// ([`LayoutRefused::Renumbered`](super::LayoutRefused::Renumbered)), also after the other was dropped, until all blocks of the pool are
    /// free ([`LayoutRefused::StillHeld`](super::LayoutRefused::StillHeld)).
    pub fn layout(&self, region: &LocalRegion<E>, spec: LayoutSpec) -> Result<Layout<E>, FlowError> {
        let shared = &self.engine.shared;
        shared.check_usable().map_err(FlowError::Engine)?;
        if !Arc::ptr_eq(&region.engine, &self.engine) {
            return Err(FlowError::ForeignRegion { label: region.label().to_owned() });
        }
        let mut news = spec.news;
        (news.region, news.region_generation) = (region.region.id().0, region.region.generation().0);
        let bytes = region.bytes();
        // Of memory of the caller's own it is the caller who knows.
        let is_free = region.region.blocks().is_none_or(|blocks| blocks.free() == blocks.total() as usize);
        let at = RegionRef { region: region.region.id(), generation: region.region.generation() };
        let added = shared.call_manager(|manager, _| {
            if is_free {
                manager.forget_gone_layouts(at);
            }
            let key = manager.add_layout(news, bytes)?;
            Ok::<_, LayoutRefused>((key, manager.layout(key).map(Arc::clone)))
        });
        let (key, of) = added?;
        let of = of.ok_or(CallError::NoLayout)?;
        Ok(Layout { engine: Arc::clone(&self.engine), key, ground: Ground::of(region), of })
    }
}

impl<E: Env> Peer<E> {
    /// The labels of the layouts that the peer has told of.
    pub fn layouts(&self) -> Vec<String> {
        let look = |manager: &penstock_flows::TransferManager| {
            manager.labels_of(key_of(&self.state)).into_iter().map(str::to_owned).collect()
        };
        self.engine.shared.look_at_manager(look)
    }

    /// Waits until the peer has told of a layout of this label.
    pub fn wait_layout(&self, label: &str, timeout: Duration) -> Result<(), FlowError> {
        let peer = key_of(&self.state);
        let found = self.engine.wait_for_manager(timeout, |manager| {
            let is_there = manager.layout_of(peer, label).is_some();
            if is_there || self.state.ended().is_some() { Some(is_there) } else { None }
        });
        match found {
            Some(true) => Ok(()),
            Some(false) => Err(FlowError::Engine(self.state.ended().unwrap_or(Cause::PeerLost))),
            None => Err(FlowError::Nothing(timeout)),
        }
    }
}

impl<E: Env> Layout<E> {
    /// The label by which peers know it.
    pub fn label(&self) -> &str {
        self.of.label()
    }

    /// Its buffers, by whose place here they are named.
    pub fn buffers(&self) -> &[Buffer] {
        self.of.buffers()
    }

    /// Tokens of a block.
    pub fn block_tokens(&self) -> u32 {
        self.of.block_tokens()
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> u32 {
        self.of.blocks()
    }

    /// Where a token of a block begins in a buffer, in bytes of the region: for [`LocalRegion::window`] and for
    /// [extents](super::relay::Extents).
    ///
    /// In a token-major buffer all rows of the token lie there, one behind the other. In a plane-major one it is the token's first row,
    /// its next one lies [`row_stride`](Self::row_stride) bytes behind it, and the same row of the next token right behind this one. What
    /// goes once for a transfer has one place, that of token 0. Nothing for a buffer, a block or a token that is not there.
    ///
    /// ```
    /// # use penstock::{Config, Engine, PoolSpec};
    /// # use penstock::flows::{LayoutSpec, Rows};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = std::env::temp_dir().join(format!("penstock-doc-layout-{}", std::process::id()));
    /// # let engine = Engine::start(Config::default().named("decode-0").directory(&folder))?;
    /// // Embeddings of 64 bytes, and behind all of them three planes of positions, of four bytes.
    /// let (hidden, positions) = (Rows { first: 0, count: 1, of: 1, bytes: 64 }, Rows { first: 0, count: 3, of: 3, bytes: 4 });
    /// let pool = engine.pool(PoolSpec::host(32 * 16 * 76).block(16 * 76).label("embeddings"))?;
    /// let spec = LayoutSpec::new("embeddings", 16, 32).token_major(0, 0, hidden).plane_major(0, 32 * 16 * 64, positions);
    /// let layout = engine.layout(&pool, spec)?;
    /// // Token 5 of block 2, and its position of plane 1.
    /// assert_eq!(layout.offset(0, 2, 5), Some((2 * 16 + 5) * 64));
    /// let first = layout.offset(1, 2, 5).ok_or("it is there")?;
    /// let plane = layout.row_stride(1).ok_or("it has planes")?;
    /// assert_eq!((first + plane, plane), (32 * 16 * 64 + 2 * 16 * 12 + 16 * 4 + 5 * 4, 16 * 4));
    /// # drop((layout, pool, engine));
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn offset(&self, buffer: usize, block: u32, token: u32) -> Option<u64> {
        self.of.offset(buffer, block, token)
    }

    /// Bytes from one row of a token to its next row: those of one row in a token-major buffer, those of a block's plane in a plane-major one.
    /// Nothing for what goes once.
    pub fn row_stride(&self, buffer: usize) -> Option<u64> {
        self.of.row_stride(buffer)
    }

    /// Where a block lies in a buffer, and how many bytes it has there.
    pub fn extent(&self, buffer: usize, block: u32) -> Option<(u64, u64)> {
        self.of.stripe(buffer)?.extent(block)
    }
}

impl<E: Env> Drop for Layout<E> {
    fn drop(&mut self) {
        if !self.engine.shared.is_inherited() {
            self.engine.shared.call_manager(|manager, _| manager.remove_layout(self.key));
        }
    }
}
