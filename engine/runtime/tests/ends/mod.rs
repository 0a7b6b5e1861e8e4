//! Two engines of one process with a pool each, for transfers by name between them.

#![allow(dead_code)]

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use penstock::config::{Progress, TransportName};
use penstock::flows::{Layout, LayoutSpec, Output, Rows};
use penstock::region::Pool;
use penstock::{Blocks, Config, Engine, Peer, PoolSpec, Rights, SystemEnv};

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);
pub(crate) const UUID: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";
/// Two layers of 4 rows of 32 bytes: 256 bytes a token.
pub(crate) const ROWS: Rows = Rows { first: 0, count: 4, of: 4, bytes: 32 };
pub(crate) const BLOCKS: u32 = 64;

pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let last = LAST.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("penstock-flows-{}-{last}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let secret = path.join("secret");
        std::fs::write(&secret, "5a".repeat(32)).unwrap();
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

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
        let config = Config::default()
            .named(name)
            .directory(&folder.0)
            .transports([transport])
            .progress(progress)
            .secret_file(folder.0.join("secret"))
            .heartbeat(Duration::from_secs(2));
        let config = if transport == TransportName::Tcp { config.listen(["127.0.0.1:0"]) } else { config };
        let engine = Engine::start(config).unwrap();
        // Both layers of a block behind one another.
        let layer = u64::from(tokens) * 128;
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
        let since = Instant::now();
        loop {
            match self.pool.take(count) {
                Ok(blocks) => return blocks,
                Err(error) if since.elapsed() > PATIENCE => panic!("{error}: {:?}", self.engine.control_metrics()),
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
        }
    }

    /// Computes so many tokens of a transfer in two chunks, the first of whole blocks, and gives them to an output.
    pub(crate) fn compute(&self, output: &Output<SystemEnv>, number: u8, tokens: u64) {
        let first = tokens / 32 * 16;
        for (from, chunk, is_last) in [(0, first, false), (first, tokens - first, true)] {
            let blocks = self.take(chunk.div_ceil(16) as usize);
            for token in from..from + chunk {
                let block = blocks.indices()[((token - from) / 16) as usize];
                for layer in 0..2 {
                    let bytes: Vec<u8> = (0..128).map(|at| byte(number, layer, token, at)).collect();
                    let at = self.at(block, layer, (token % 16) as u32);
                    self.pool.window().write_from(at, &bytes).unwrap();
                }
            }
            output.chunk(&blocks, chunk, is_last).unwrap();
        }
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

    pub(crate) fn at(&self, block: u32, layer: u32, token: u32) -> u64 {
        let of_layer = u64::from(self.tokens) * 128;
        u64::from(block) * 2 * of_layer + u64::from(layer) * of_layer + u64::from(token) * 128
    }
}

pub(crate) fn byte(transfer: u8, layer: u32, token: u64, at: u64) -> u8 {
    (u64::from(transfer) * 101 + u64::from(layer) * 53 + token * 7 + at) as u8
}

pub(crate) struct Both {
    pub(crate) source: End,
    pub(crate) sink: End,
    /// The source, as the sink knows it.
    pub(crate) there: Peer<SystemEnv>,
    _folder: Folder,
}

pub(crate) fn both(transport: TransportName) -> Both {
    let folder = Folder::new();
    let source = End::start(&folder, "prefill-0", transport, 16);
    let sink = End::start(&folder, "decode-0", transport, 64);
    let there = sink.engine.connect(&source.engine.descriptor(), PATIENCE).unwrap();
    there.wait_layout("kv", PATIENCE).unwrap();
    Both { source, sink, there, _folder: folder }
}

/// Every byte that was assembled is the source's.
pub(crate) fn assert_bytes(number: u8, tokens: u64, layers: &[Vec<u8>; 2]) {
    for (layer, bytes) in (0..).zip(layers) {
        let expected = (0..tokens).flat_map(|token| (0..128).map(move |at| byte(number, layer, token, at)));
        assert!(bytes.iter().copied().eq(expected), "layer {layer} of transfer {number}");
    }
}
