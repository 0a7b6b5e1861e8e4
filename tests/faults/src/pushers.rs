//! Sources in processes of their own, that push as far as they are told to until they are killed.

use std::path::Path;

use penstock::config::{Progress, TransportName};
use penstock::flows::{Output, Send};
use penstock::region::Pool;
use penstock::{Blocks, Engine, SystemEnv};

use crate::child::{Child, from_word, obey, say, to_word};
use crate::frozen::wait_until;
use crate::pair::{PATIENCE, config};
use crate::pullers::{BLOCK_BYTES, BLOCK_TOKENS, LAYERS, TOKEN_BYTES, pool, request, transfer};

/// The child's side. It says its descriptor, and then answers these orders:
///
/// | order | answers |
/// |---|---|
/// | `push <number> <tokens> <layers> <chunk>` | `pushes`: it has computed so many tokens in chunks of so many, of which the first so many layers are ready, and more may come |
///
/// # Panics
/// If it cannot.
pub fn push(folder: &Path, name: &str, transport: &str) {
    let transport = if transport == "tcp" { TransportName::Tcp } else { TransportName::Shm };
    let engine = Engine::start(config(folder, name, transport, Progress::Adaptive)).expect("an engine starts");
    let (layout, pool) = pool(&engine);
    say(&to_word(&engine.descriptor()));
    let mut outputs: Vec<Output<SystemEnv>> = Vec::new();
    obey(|order| {
        let words: Vec<u64> = order.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [number, tokens, layers, chunk] = words[..] else { panic!("no such order: {order}") };
        let how = Send::from(&layout).by_layer();
        let output = engine.produce(transfer(number as u32), &request(number as u32), how).expect("the name is new");
        let chunks: Vec<u64> = (0..tokens).step_by(chunk as usize).map(|first| chunk.min(tokens - first)).collect();
        let take = |tokens: &u64| pool.take(tokens.div_ceil(BLOCK_TOKENS) as usize).expect("there are as many");
        let blocks: Vec<Blocks> = chunks.iter().map(take).collect();
        fill(&pool, &blocks.iter().flat_map(|blocks| blocks.indices()).copied().collect::<Vec<_>>(), number, tokens);
        let mut given = 0;
        for (blocks, tokens) in blocks.iter().zip(chunks) {
            output.chunk(blocks, tokens, false).expect("it stands");
            given += tokens;
            (0..layers).for_each(|layer| output.layer(layer as u32, given).expect("it stands"));
        }
        outputs.push(output);
        "pushes".to_owned()
    });
}

/// Computes tokens of a transfer.
fn fill(pool: &Pool<SystemEnv>, blocks: &[u32], number: u64, tokens: u64) {
    for token in 0..tokens {
        for layer in 0..LAYERS {
            let offset = offset(blocks[(token / BLOCK_TOKENS) as usize], layer, token);
            pool.window().write_from(offset, &bytes(number, layer, token)).expect("the block is of the pool");
        }
    }
}

/// Whether a token of a transfer is in this block of the pool.
///
/// # Panics
/// If the block is not of the pool.
pub fn has_token(pool: &Pool<SystemEnv>, block: u32, number: u64, layer: u64, token: u64) -> bool {
    let mut found = vec![0; TOKEN_BYTES as usize];
    pool.window().read_into(offset(block, layer, token), &mut found).expect("the block is of the pool");
    found == bytes(number, layer, token)
}

fn offset(block: u32, layer: u64, token: u64) -> u64 {
    u64::from(block) * BLOCK_BYTES + layer * BLOCK_BYTES / LAYERS + token % BLOCK_TOKENS * TOKEN_BYTES
}

fn bytes(number: u64, layer: u64, token: u64) -> Vec<u8> {
    let seed = (number << 40 | layer << 32 | token).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..TOKEN_BYTES / 8).flat_map(|word| seed.wrapping_mul(2 * word + 1).to_le_bytes()).collect()
}

/// A source, as the test sees it.
#[derive(Debug)]
pub struct Pusher {
    child: Child,
    /// Its engine's descriptor.
    pub card: Vec<u8>,
}

impl Pusher {
    /// Starts one, as a process of `program`.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(program: &str, folder: &Path, name: &str, transport: &str) -> Self {
        let path = folder.to_str().expect("folders for temporary files have plain names");
        let mut child = Child::start(program, &["push", path, name, transport]);
        let card = from_word(&child.answer(PATIENCE)).expect("it says its descriptor first");
        Self { child, card }
    }

    /// Has it push so many tokens in chunks of so many, of which so many layers are ready.
    ///
    /// # Panics
    /// If it does not.
    pub fn push(&mut self, number: u64, tokens: u64, layers: u64, chunk: u64) {
        self.child.order(&format!("push {number} {tokens} {layers} {chunk}"));
        assert_eq!(self.child.answer(PATIENCE), "pushes");
    }

    /// Kills it, and waits until its process is gone.
    ///
    /// # Panics
    /// If it does not go.
    pub fn kill(&self) {
        self.child.kill();
        let stat = format!("/proc/{}/stat", self.child.id());
        let has_ended = || std::fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z"));
        assert!(wait_until(has_ended), "{} lives on", self.child.id());
    }
}
