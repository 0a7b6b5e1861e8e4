//! One engine of a case, its memory and its layout.

use std::ops::Range;

use penstock::flows::{Buffer, Form, Layout, LayoutSpec, RequestId, Rows, TransferId};
use penstock::region::LocalRegion;
use penstock::{Blocks, HostMemory, PoolSpec, Rights, SystemEnv, Window};

use crate::pattern;
use crate::stage::{KV, PATIENCE};
use crate::{Engine, Peer, Pool};

const UUID: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";

/// How blocks lie.
#[derive(Debug, Clone, Copy)]
pub struct Geometry {
    /// Layers.
    pub layers: u32,
    /// Blocks.
    pub blocks: u32,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// Bytes of a token in one layer.
    pub token_bytes: u32,
    /// Bytes that each block has for what goes once for a transfer; 0 for a layout without.
    pub once_bytes: u64,
    /// All blocks of a layer, then those of the next, as in the first program of the connectors' guide: the number of a block and its byte
    /// offset divided by the bytes of a block are not the same. Otherwise all layers of a block lie behind each other.
    pub is_layer_major: bool,
}

impl Geometry {
    /// Small blocks in two layers.
    pub const SMALL: Self =
        Self { layers: 2, blocks: 64, block_tokens: 16, token_bytes: 256, once_bytes: 0, is_layer_major: true };

    /// Bytes of all blocks in one layer.
    pub fn layer_bytes(self) -> u64 {
        u64::from(self.blocks) * self.layer_block_bytes()
    }

    /// Bytes of a block in one layer.
    pub fn layer_block_bytes(self) -> u64 {
        u64::from(self.block_tokens) * u64::from(self.token_bytes)
    }

    /// Bytes of a block in all layers, with its part for what goes once.
    pub fn block_bytes(self) -> u64 {
        u64::from(self.layers) * self.layer_block_bytes() + self.once_bytes
    }

    /// Bytes in all.
    pub fn bytes(self) -> u64 {
        u64::from(self.blocks) * self.block_bytes()
    }

    /// Where the part of a block for what goes once begins.
    pub fn once_offset(self, block: u32) -> u64 {
        self.base(self.layers) + u64::from(block) * self.stride(self.once_bytes)
    }

    /// Where the first block begins in a layer.
    fn base(self, layer: u32) -> u64 {
        u64::from(layer) * if self.is_layer_major { self.layer_bytes() } else { self.layer_block_bytes() }
    }

    /// From one block to the next, where it has so many bytes.
    fn stride(self, bytes: u64) -> u64 {
        if self.is_layer_major { bytes } else { self.block_bytes() }
    }

    pub(super) fn spec(self) -> LayoutSpec {
        let rows = Rows { first: 0, count: 1, of: 1, bytes: self.token_bytes };
        let spec = LayoutSpec::new(KV, self.block_tokens, self.blocks);
        let buffer = |layer, form, base, bytes| Buffer { layer, form, base, stride: self.stride(bytes) };
        let spec = (0..self.layers).fold(spec, |spec, layer| {
            spec.buffer(buffer(layer, Form::TokenMajor(rows), self.base(layer), self.layer_block_bytes()))
        });
        if self.once_bytes == 0 {
            return spec;
        }
        spec.buffer(buffer(0, Form::Once(self.once_bytes), self.once_offset(0), self.once_bytes))
    }

    /// Writes tokens of a layer of a transfer; the first of the blocks begins with token 0.
    pub fn compute(self, window: &Window, (name, layer): (u32, u32), blocks: &[u32], tokens: Range<u64>) {
        self.each(layer, blocks, tokens, |offset, first, len| {
            let bytes = pattern::bytes(seed(name, layer), first, len);
            window.write_from(offset, &bytes).expect("the block is of this memory");
        });
    }

    /// Calls `each` with the offset of each piece of these tokens within a block, its first byte among those of the transfer in this
    /// layer, and its length.
    fn each(self, layer: u32, blocks: &[u32], tokens: Range<u64>, mut each: impl FnMut(u64, u64, usize)) {
        let (of_block, of_token) = (u64::from(self.block_tokens), u64::from(self.token_bytes));
        let mut token = tokens.start;
        while token < tokens.end {
            let count = (of_block - token % of_block).min(tokens.end - token);
            let offset = self.offset(layer, blocks[(token / of_block) as usize], (token % of_block) as u32);
            each(offset, token * of_token, (count * of_token) as usize);
            token += count;
        }
    }

    /// Where a token of a block begins in a layer.
    pub fn offset(self, layer: u32, block: u32, token: u32) -> u64 {
        self.base(layer)
            + u64::from(block) * self.stride(self.layer_block_bytes())
            + u64::from(token) * u64::from(self.token_bytes)
    }
}

/// An engine with one layout. Fields are dropped in this order.
pub struct End {
    /// How blocks lie in its memory.
    pub layout: Layout<SystemEnv>,
    /// The memory of the layout, where the caller registered it.
    pub region: Option<LocalRegion<SystemEnv>>,
    /// The pool of the layout; for registered memory, a pool that only numbers its blocks.
    pub pool: Pool,
    /// The engine.
    pub engine: Engine,
    /// How blocks lie.
    pub geometry: Geometry,
}

impl End {
    /// With a pool of the engine's.
    pub fn pooled(engine: Engine, geometry: Geometry) -> Self {
        let spec = PoolSpec::host(geometry.bytes()).block(geometry.block_bytes());
        let pool = engine.pool(spec.label(KV).rights(Rights::READ_WRITE)).expect("there is memory for a pool");
        let layout = engine.layout(&pool, geometry.spec()).expect("the layout is sound");
        Self { layout, region: None, pool, engine, geometry }
    }

    /// With memory of the caller's.
    pub fn registered(engine: Engine, geometry: Geometry) -> Self {
        let memory = HostMemory::from_vec(vec![0; geometry.bytes() as usize]).expect("there is memory");
        let region = engine.register(memory, KV, Rights::READ_WRITE).expect("there is room for a region");
        let layout = engine.layout(&region, geometry.spec()).expect("the layout is sound");
        let spec = PoolSpec::host(u64::from(geometry.blocks) * 64).block(64).label("numbers");
        let pool = engine.pool(spec).expect("there is memory for a small pool");
        Self { layout, region: Some(region), pool, engine, geometry }
    }

    /// Its memory.
    pub fn window(&self) -> &Window {
        self.region.as_ref().and_then(LocalRegion::host).unwrap_or(self.pool.window())
    }

    /// Blocks, as soon as so many are free.
    pub fn take(&self, count: usize) -> Blocks {
        let taken = self.pool.take_within(count, PATIENCE);
        taken.unwrap_or_else(|error| panic!("{error}: {:?}", self.engine.control_metrics()))
    }

    /// All blocks, as soon as they are free.
    pub fn take_all(&self) -> Blocks {
        self.take(self.geometry.blocks as usize)
    }

    /// Every block that is free now.
    pub fn take_free(&self) -> Blocks {
        loop {
            // Another thread may take or free some between the two calls.
            if let Ok(blocks) = self.pool.take(self.pool.memory().blocks().free()) {
                return blocks;
            }
        }
    }

    /// Holds so many blocks from this one on, all of which are taken.
    pub fn run(&self, first: u32, count: u32) -> Blocks {
        let (first, count) = (u64::from(first), u64::from(count));
        let bytes = self.pool.memory().blocks().block_bytes();
        let run = self.pool.memory().blocks().retain_range(first * bytes, count * bytes);
        assert_eq!(run.len() as u64, count, "they are taken");
        run
    }

    /// Writes tokens of a transfer in one layer; the first of the blocks begins with token 0.
    pub fn compute(&self, name: u32, layer: u32, blocks: &[u32], tokens: Range<u64>) {
        self.geometry.compute(self.window(), (name, layer), blocks, tokens);
    }

    /// The same in all layers.
    pub fn compute_all(&self, name: u32, blocks: &[u32], tokens: Range<u64>) {
        (0..self.geometry.layers).for_each(|layer| self.compute(name, layer, blocks, tokens.clone()));
    }

    /// How many tokens in one layer are not those of this transfer.
    pub fn wrong_tokens(&self, name: u32, layer: u32, blocks: &[u32], tokens: Range<u64>) -> usize {
        let (mut wrong, mut found) = (0, Vec::new());
        let token_bytes = self.geometry.token_bytes as usize;
        self.geometry.each(layer, blocks, tokens, |offset, first, len| {
            found.resize(len, 0);
            self.window().read_into(offset, &mut found).expect("the block is of this memory");
            let expected = pattern::bytes(seed(name, layer), first, len);
            let pairs = found.chunks(token_bytes).zip(expected.chunks(token_bytes));
            wrong += pairs.filter(|(found, expected)| found != expected).count();
        });
        wrong
    }

    /// Why these blocks have not the tokens of this transfer, if that is so.
    pub fn check(&self, name: u32, blocks: &[u32], tokens: u64) -> Result<(), String> {
        for layer in 0..self.geometry.layers {
            let wrong = self.wrong_tokens(name, layer, blocks, 0..tokens);
            if wrong > 0 {
                let found = self.byte(self.geometry.offset(layer, blocks[0], 0));
                return Err(format!(
                    "{wrong} of {tokens} tokens are wrong in layer {layer}; the first byte is {found:#04x}"
                ));
            }
        }
        Ok(())
    }

    /// Fills blocks, in all layers, with one byte.
    pub fn fill(&self, blocks: &[u32], byte: u8) {
        for (offset, len) in self.extents(blocks) {
            self.window().fill(offset, len, byte).expect("the block is of this memory");
        }
    }

    /// The first byte of these blocks that is not this one, and how many are not.
    pub fn unlike(&self, blocks: &[u32], byte: u8) -> Option<(u8, usize)> {
        let (mut first, mut count) = (None, 0);
        let (mut found, mut expected) = (Vec::new(), Vec::new());
        for (offset, len) in self.extents(blocks) {
            found.resize(len as usize, 0);
            expected.resize(len as usize, byte);
            self.window().read_into(offset, &mut found).expect("the block is of this memory");
            // Compared as a whole first: byte by byte takes long.
            if found == expected {
                continue;
            }
            first = first.or(found.iter().copied().find(|&found| found != byte));
            count += found.iter().filter(|&&found| found != byte).count();
        }
        first.map(|first| (first, count))
    }

    /// A byte of these blocks that is none of these, and how many blocks have one.
    pub fn unlike_any(&self, blocks: &[u32], bytes: &[u8]) -> Option<(u8, usize)> {
        let (mut first, mut count, mut found) = (None, 0, Vec::new());
        for (offset, len) in self.extents(blocks) {
            found.resize(len as usize, 0);
            self.window().read_into(offset, &mut found).expect("the block is of this memory");
            let other = found.iter().copied().find(|found| !bytes.contains(found));
            (first, count) = (first.or(other), count + usize::from(other.is_some()));
        }
        first.map(|first| (first, count))
    }

    /// Where these blocks lie, in all layers, with their parts for what goes once.
    pub fn extents(&self, blocks: &[u32]) -> Vec<(u64, u64)> {
        let geometry = self.geometry;
        let layers = (0..geometry.layers).flat_map(|layer| {
            blocks.iter().map(move |&block| {
                (
                    self.layout.offset(layer as usize, block, 0).expect("the block is of the layout"),
                    geometry.layer_block_bytes(),
                )
            })
        });
        let once = blocks.iter().map(|&block| (geometry.once_offset(block), geometry.once_bytes));
        layers.chain(once.filter(|&(_, len)| len > 0)).collect()
    }

    /// One byte of its memory.
    pub fn byte(&self, offset: u64) -> u8 {
        let mut byte = [0];
        self.window().read_into(offset, &mut byte).expect("it is of this memory");
        byte[0]
    }

    /// Blocks are free again, and nothing is kept of any transfer.
    pub fn assert_nothing_is_left(&self) {
        drop(self.take_all());
        let metrics = self.engine.control_metrics();
        assert_eq!((metrics.transfers.live, metrics.moving), (0, 0), "{metrics:?}");
    }

    /// The peer of this engine, as soon as its session stands.
    pub fn peer(&self) -> Peer {
        let since = std::time::Instant::now();
        loop {
            if let Some(peer) = self.engine.peers().into_iter().find(|peer| peer.ended().is_none()) {
                return peer;
            }
            assert!(since.elapsed() < PATIENCE, "the other engine has no session with this one");
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
    }
}

fn seed(name: u32, layer: u32) -> u64 {
    u64::from(name) << 8 | u64::from(layer)
}

/// The name of a transfer.
pub fn transfer(name: u32) -> TransferId {
    TransferId::mint(UUID, name, 0).expect("it is a UUID")
}

/// What a scheduler calls a request.
pub fn request(name: u32) -> RequestId {
    RequestId::new(&format!("cmpl-{name}")).expect("it is neither empty nor long")
}
