//! Two engines of one process with a pool each, for transfers by name between them.

#![allow(dead_code)]

mod folder;

use std::ops::Range;
use std::time::{Duration, Instant};

pub(crate) use folder::Folder;

use penstock::config::{Progress, TransportName};
use penstock::flows::{Layout, LayoutSpec, Output, Rows};
use penstock::region::Pool;
use penstock::{Blocks, Engine, Peer, PoolSpec, Rights, SystemEnv};

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const UUID: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";
/// Two layers of 4 rows of 32 bytes: 256 bytes a token.
pub(crate) const ROWS: Rows = Rows { first: 0, count: 4, of: 4, bytes: 32 };
/// Bytes of a token in one of the two layers.
pub(crate) const TOKEN: u64 = 128;
pub(crate) const BLOCKS: u32 = 256;

/// One engine with a pool of blocks of so many tokens. Fields end in this order.
pub(crate) struct End {
    pub(crate) layout: Layout<SystemEnv>,
    pub(crate) pool: Pool<SystemEnv>,
    pub(crate) engine: Engine,
    pub(crate) tokens: u32,
}

impl End {
    pub(crate) fn start(folder: &Folder, name: &str, transport: TransportName, tokens: u32) -> Self {
        Self::start_as(folder, name, transport, tokens, Progress::Adaptive)
    }

    pub(crate) fn start_as(
        folder: &Folder,
        name: &str,
        transport: TransportName,
        tokens: u32,
        progress: Progress,
    ) -> Self {
        let engine = folder.engine(name, transport, progress);
        // Both layers of a block behind one another.
        let layer = u64::from(tokens) * TOKEN;
        let spec =
            PoolSpec::host(u64::from(BLOCKS) * 2 * layer).block(2 * layer).label("kv").rights(Rights::READ_WRITE);
        let pool = engine.pool(spec).unwrap();
        let stride = |layer_number: u32, base: u64| penstock::flows::Buffer {
            layer: layer_number,
            base,
            stride: 2 * layer,
            form: penstock::flows::Form::TokenMajor(ROWS),
        };
        let spec = LayoutSpec::new("kv", tokens, BLOCKS).buffer(stride(0, 0)).buffer(stride(1, layer));
        let layout = engine.layout(&pool, spec).unwrap();
        Self { layout, pool, engine, tokens }
    }

    /// So many blocks, as soon as they are free: what ended is let go by the control loop.
    pub(crate) fn take(&self, count: usize) -> Blocks {
        let taken = self.pool.take_within(count, PATIENCE);
        taken.unwrap_or_else(|error| panic!("{error}: {:?}", self.engine.control_metrics()))
    }

    /// Computes so many tokens of a transfer in two chunks, the first of whole blocks, and gives them to an output.
    pub(crate) fn compute(&self, output: &Output<SystemEnv>, number: u8, tokens: u64) {
        let first = tokens / 32 * 16;
        self.compute_part(output, number, 0..first, false);
        self.compute_part(output, number, first..tokens, true);
    }

    /// Computes these tokens, the first of which begins a block, and gives them as a chunk.
    pub(crate) fn compute_part(&self, output: &Output<SystemEnv>, number: u8, tokens: Range<u64>, is_last: bool) {
        let (from, chunk) = (tokens.start, tokens.end - tokens.start);
        let blocks = self.take(chunk.div_ceil(16) as usize);
        self.fill(blocks.indices(), number, from, tokens);
        output.chunk(&blocks, chunk, is_last).unwrap();
    }

    /// Computes these tokens of a transfer into blocks, of which the first begins with token `first`.
    pub(crate) fn fill(&self, blocks: &[u32], number: u8, first: u64, tokens: Range<u64>) {
        for token in tokens {
            for layer in 0..2 {
                let bytes: Vec<u8> = (0..TOKEN).map(|at| byte(number, layer, token, at)).collect();
                self.pool.window().write_from(self.at(blocks, token - first, layer), &bytes).unwrap();
            }
        }
    }

    /// The first so many tokens in these blocks are what they are to be.
    pub(crate) fn assert_tokens(&self, blocks: &[u32], number: u8, tokens: u64) {
        for token in 0..tokens {
            for layer in 0..2 {
                let mut found = [0; TOKEN as usize];
                self.pool.window().read_into(self.at(blocks, token, layer), &mut found).unwrap();
                let expected = std::array::from_fn(|at| byte(number, layer, token, at as u64));
                assert_eq!(found, expected, "token {token} of layer {layer}");
            }
        }
    }

    /// Every block is free again.
    pub(crate) fn assert_all_free(&self) {
        drop(self.take(BLOCKS as usize));
    }

    /// Every block is free again, and nothing is left in any table.
    pub(crate) fn assert_nothing_is_left(&self) {
        let since = Instant::now();
        let is_busy = |metrics: penstock::flows::Metrics| metrics.ending + metrics.lent + metrics.borrowed > 0;
        while self.pool.take(BLOCKS as usize).is_err() || is_busy(self.engine.control_metrics()) {
            assert!(since.elapsed() < PATIENCE, "{:?}", self.engine.control_metrics());
            std::thread::sleep(Duration::from_millis(1));
        }
        let metrics = self.engine.control_metrics();
        assert_eq!((metrics.transfers.live, metrics.moving, metrics.refused), (0, 0, 0), "{metrics:?}");
    }

    fn at(&self, blocks: &[u32], token: u64, layer: u32) -> u64 {
        let (block, place) = (blocks[(token / u64::from(self.tokens)) as usize], token % u64::from(self.tokens));
        self.layout.offset(layer as usize, block, place as u32).unwrap()
    }
}

pub(crate) fn byte(transfer: u8, layer: u32, token: u64, at: u64) -> u8 {
    (u64::from(transfer) * 101 + u64::from(layer) * 53 + token * 31 + token / 251 + at * 7) as u8
}

pub(crate) struct Both {
    pub(crate) source: End,
    pub(crate) sink: End,
    /// The source, as the sink knows it.
    pub(crate) there: Peer<SystemEnv>,
    pub(crate) folder: Folder,
}

/// Blocks of 16 tokens at the source, of 64 at the sink.
pub(crate) fn both(transport: TransportName) -> Both {
    both_with(transport, 64)
}

/// With so many tokens in a block of the sink's.
pub(crate) fn both_with(transport: TransportName, tokens: u32) -> Both {
    let folder = Folder::new();
    let source = End::start(&folder, "prefill-0", transport, 16);
    let sink = End::start(&folder, "decode-0", transport, tokens);
    let there = sink.engine.connect(&source.engine.descriptor(), PATIENCE).unwrap();
    there.wait_layout("kv", PATIENCE).unwrap();
    Both { source, sink, there, folder }
}

/// Every byte that was assembled is the source's.
pub(crate) fn assert_bytes(number: u8, tokens: u64, layers: &[Vec<u8>; 2]) {
    for (layer, bytes) in (0..).zip(layers) {
        let expected = (0..tokens).flat_map(|token| (0..TOKEN).map(move |at| byte(number, layer, token, at)));
        assert!(bytes.iter().copied().eq(expected), "layer {layer} of transfer {number}");
    }
}
