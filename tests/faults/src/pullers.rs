//! Sinks in processes of their own, that read what is lent to them until they are stopped or killed.

use std::path::Path;

use penstock::config::{Progress, TransportName};
use penstock::flows::{InputEvent, Layout, LayoutSpec, Receive, RequestId, Rows, TransferId};
use penstock::region::Pool;
use penstock::{Engine, PoolSpec, Rights, SystemEnv};

use crate::child::{from_word, obey, say};
use crate::pair::{PATIENCE, config};

/// Blocks of each side, all of which are lent.
pub const BLOCKS: u32 = 64;
/// Tokens of them.
pub const TOKENS: u64 = BLOCKS as u64 * BLOCK_TOKENS;
/// Tokens of a block.
pub const BLOCK_TOKENS: u64 = 16;
/// Layers of a token.
pub const LAYERS: u64 = 2;
/// Bytes of a token in a layer.
pub const TOKEN_BYTES: u64 = 64 * 256;
/// Bytes of a block: so many that a reader that is stopped at any time is in a copy as often as not.
pub const BLOCK_BYTES: u64 = LAYERS * BLOCK_TOKENS * TOKEN_BYTES;

const ROWS: Rows = Rows { first: 0, count: 64, of: 64, bytes: 256 };

/// The request's UUID of every transfer here.
const UUID: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";

/// The name of a transfer.
///
/// # Panics
/// Never: the UUID is one.
pub fn transfer(number: u32) -> TransferId {
    TransferId::mint(UUID, number, 0).expect("it is a UUID")
}

/// What this side's scheduler calls it.
///
/// # Panics
/// Never: it is not empty.
pub fn request(number: u32) -> RequestId {
    RequestId::new(&format!("cmpl-{number}")).expect("it is neither empty nor long")
}

/// A pool of blocks and how they lie.
///
/// # Panics
/// If there is no memory for it.
pub fn pool(engine: &Engine) -> (Layout<SystemEnv>, Pool<SystemEnv>) {
    let spec = PoolSpec::host(u64::from(BLOCKS) * BLOCK_BYTES).block(BLOCK_BYTES).label("kv");
    let pool = engine.pool(spec.rights(Rights::READ_WRITE)).expect("there is memory for a small pool");
    let half = BLOCK_BYTES / 2;
    let buffer = |layer: u32| penstock::flows::Buffer {
        layer,
        base: u64::from(layer) * half,
        stride: BLOCK_BYTES,
        form: penstock::flows::Form::TokenMajor(ROWS),
    };
    let spec = LayoutSpec::new("kv", BLOCK_TOKENS as u32, BLOCKS).buffer(buffer(0)).buffer(buffer(1));
    let layout = engine.layout(&pool, spec).expect("it lies in the pool");
    (layout, pool)
}

/// The child's side: it claims transfer 1 of the engine with this descriptor, says `reads`, and then how that ended.
///
/// # Panics
/// If it cannot.
pub fn read(folder: &Path, name: &str, transport: &str, card: &str) {
    let transport = if transport == "tcp" { TransportName::Tcp } else { TransportName::Shm };
    let engine = Engine::start(config(folder, name, transport, Progress::Adaptive)).expect("an engine starts");
    let (layout, pool) = pool(&engine);
    let there = engine.connect(&from_word(card).expect("a descriptor"), PATIENCE).expect("the lender is there");
    there.wait_layout("kv", PATIENCE).expect("it has one");
    let how = Receive::into(&layout).from(0, &there).pull();
    let number = name.rsplit_once('-').and_then(|(_, number)| number.parse().ok()).expect("its name has a number");
    let input = engine.consume(transfer(number), &request(number), how).expect("nobody has used the name");
    input.grant(&pool.take(BLOCKS as usize).expect("the pool is fresh")).expect("they are as many as are needed");
    say("reads");
    let end = loop {
        match input.next(6 * PATIENCE) {
            Ok(InputEvent::Done { .. }) => break "done".to_owned(),
            Ok(InputEvent::Failed(failed)) => break format!("{:?} {}", failed.cause, failed.blocks.len()),
            Ok(_) => {}
            Err(error) => break error.to_string(),
        }
    };
    say(&end);
    obey(|order| panic!("no such order: {order}"));
}
