//! Transfers by name between unequal ranks, unequal blocks and unequal forms: every byte is compared with where it belongs by itself.
//!
//! All engines are of this process, each with a thread of its own, so that those without threads turn while the others do.

use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use penstock::flows::{
    Buffer, Form, InputEvent, Layout, LayoutSpec, Output, Receive, RequestId, Rows, Send, Status, TransferId,
};
use penstock::{Blocks, SystemEnv};

use crate::own::{Bytes, DEVICE_PAGE_BYTES};
use crate::setting::SOURCE;
use crate::stage::{KV, PATIENCE};
use crate::{Engine, Own, Peer, Setting};

/// Heads of a layer, and bytes of one of a token.
const HEADS: u32 = 8;
const HEAD_BYTES: u32 = 16;
/// Heads that are fewer than ranks may be, so that several ranks have the same.
const FEW_HEADS: u32 = 2;
/// Planes that every rank has as a whole.
const PLANES: u32 = 3;
/// Bytes that go once for a transfer.
const ONCE_BYTES: u64 = 40;
/// Bytes of a block of a pool: enough for each layout.
const BLOCK_BYTES: u64 = 32 << 10;
const BLOCKS: u32 = 48;
const TOKENS: u64 = 200;
const UUID: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";

/// Four sinks read what two sources have: each source sends to two of them.
pub fn two_ranks_send_to_four(setting: &Setting) {
    between(setting, 2, 4);
}

/// Two sinks read what four sources have: each sink hears from two of them, and what several have comes once.
pub fn four_ranks_send_to_two(setting: &Setting) {
    between(setting, 4, 2);
}

/// How one transfer is tried: forms and tokens of a block, of the source and of the sink.
#[derive(Clone, Copy)]
struct Try {
    is_plane_major: (bool, bool),
    block_tokens: (u32, u32),
    is_by_layer: bool,
}

const fn of(is_plane_major: (bool, bool), block_tokens: (u32, u32), is_by_layer: bool) -> Try {
    Try { is_plane_major, block_tokens, is_by_layer }
}

const TRIES: [Try; 6] = [
    of((false, false), (16, 64), false),
    of((false, false), (64, 16), true),
    of((true, true), (16, 64), true),
    of((true, true), (64, 16), false),
    of((false, true), (16, 64), false),
    of((true, false), (64, 16), true),
];

/// What a byte of a row of a token of a buffer is, wherever it lies.
fn value(number: usize, buffer: usize, token: u64, row: u32, byte: u32) -> u8 {
    let mixed = (number as u64 * 31 + buffer as u64)
        .wrapping_mul(1_000_003)
        .wrapping_add(token.wrapping_mul(7919))
        .wrapping_add(u64::from(row) * 104_729 + u64::from(byte) + 1);
    (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u8
}

/// The rows of a rank of so many: as many each, or each on as many ranks.
fn rows(rank: u16, ranks: u16, of: u32, bytes: u32) -> Rows {
    let (rank, ranks) = (u32::from(rank), u32::from(ranks));
    let count = (of / ranks).max(1);
    Rows { first: rank * of / ranks, count, of, bytes }
}

/// The buffers of a rank: heads of two layers, few heads, whole planes, and what goes once, one behind the other in each block.
fn buffers(rank: u16, ranks: u16, block_tokens: u32, is_plane_major: bool) -> Vec<Buffer> {
    let heads = |rows| if is_plane_major { Form::PlaneMajor(rows) } else { Form::TokenMajor(rows) };
    let forms = [
        (0, heads(rows(rank, ranks, HEADS, HEAD_BYTES))),
        (1, heads(rows(rank, ranks, HEADS, HEAD_BYTES))),
        (1, heads(rows(rank, ranks, FEW_HEADS, HEAD_BYTES))),
        (0, Form::PlaneMajor(Rows { first: 0, count: PLANES, of: PLANES, bytes: 4 })),
        (2, Form::Once(ONCE_BYTES)),
    ];
    let mut base = 0;
    let place = |(layer, form): (u32, Form)| {
        let buffer = Buffer { layer, base, stride: BLOCK_BYTES, form };
        base += match form {
            Form::TokenMajor(rows) | Form::PlaneMajor(rows) => u64::from(rows.count * rows.bytes * block_tokens),
            Form::Once(bytes) => bytes,
        };
        buffer
    };
    let placed = forms.into_iter().map(place).collect();
    assert!(base <= BLOCK_BYTES);
    placed
}

/// Where a byte of a row, counted from the rank's first, of a token lies among so many tokens.
fn at(form: Form, tokens: u64, token: u64, row: u32, byte: u32) -> u64 {
    let (row, byte) = (u64::from(row), u64::from(byte));
    match form {
        Form::TokenMajor(rows) => (token * u64::from(rows.count) + row) * u64::from(rows.bytes) + byte,
        Form::PlaneMajor(rows) => (row * tokens + token) * u64::from(rows.bytes) + byte,
        Form::Once(_) => byte,
    }
}

/// One engine of a side.
struct End {
    engine: Engine,
    pool: Own,
    layouts: Vec<Layout<SystemEnv>>,
    rank: u16,
    ranks: u16,
    is_source: bool,
}

impl End {
    fn start(setting: &Setting, folder: &Path, is_source: bool, (rank, ranks): (u16, u16)) -> Self {
        let name = if is_source { format!("{SOURCE}-{rank}") } else { format!("sink-{rank}") };
        let engine = setting.spec(folder, &name).start().expect("the engine starts");
        // What has landed is copied out by a processor here.
        let is_on_device = is_source && setting.devices.here();
        let bytes = (u64::from(BLOCKS) * BLOCK_BYTES).next_multiple_of(DEVICE_PAGE_BYTES);
        let pool = Own::pool(&engine, is_on_device, (bytes, BLOCK_BYTES), KV);
        let pool = pool.expect("there is memory for a pool");
        let mut end = Self { engine, pool, layouts: Vec::new(), rank, ranks, is_source };
        for (number, one) in TRIES.iter().enumerate() {
            let spec = LayoutSpec::new(&label(number), end.block_tokens(one), BLOCKS).rank(rank, ranks);
            let spec = end.buffers(one).into_iter().fold(spec, LayoutSpec::buffer);
            end.layouts.push(end.engine.layout(&end.pool, spec).expect("the layout is sound"));
        }
        end
    }

    fn block_tokens(&self, one: &Try) -> u32 {
        if self.is_source { one.block_tokens.0 } else { one.block_tokens.1 }
    }

    fn buffers(&self, one: &Try) -> Vec<Buffer> {
        let is_plane_major = if self.is_source { one.is_plane_major.0 } else { one.is_plane_major.1 };
        buffers(self.rank, self.ranks, self.block_tokens(one), is_plane_major)
    }

    /// Blocks, as soon as they are free: what ended is let go by the control loop.
    fn take(&self, count: u64) -> Blocks {
        let until = std::time::Instant::now() + PATIENCE;
        loop {
            match self.pool.take(count as usize) {
                Ok(blocks) => return blocks,
                Err(error) if std::time::Instant::now() > until => panic!("{error}"),
                Err(_) => self.turn(),
            }
        }
    }

    fn turn(&self) {
        // Engines with threads say so, and need nobody.
        if !self.engine.progress_all().unwrap_or(false) {
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
    }

    /// Writes what a token range is, byte by byte, to the blocks that have it.
    fn fill(&self, number: usize, blocks: &Blocks, from: u64, tokens: u64) {
        let one = &TRIES[number];
        let block_tokens = u64::from(self.block_tokens(one));
        for (buffer, lies) in self.buffers(one).iter().enumerate() {
            let Some(rows) = rows_of(lies.form) else { continue };
            for (place, &block) in blocks.indices().iter().enumerate() {
                let first = place as u64 * block_tokens;
                let stretch = (rows.count * rows.bytes) as usize * block_tokens as usize;
                let mut bytes = vec![0; stretch];
                for token in first..tokens.min(first + block_tokens) {
                    for (row, byte) in each(rows) {
                        let place = at(lies.form, block_tokens, token - first, row, byte) as usize;
                        bytes[place] = value(number, buffer, from + token, rows.first + row, byte);
                    }
                }
                let offset = lies.base + u64::from(block) * lies.stride;
                self.pool.write(offset, &bytes);
            }
        }
    }

    /// Gives one transfer to the ranks that need it, in two chunks of which the first ends with a block.
    fn send(&self, number: usize, sinks: u16) -> Output<SystemEnv> {
        let one = &TRIES[number];
        let once = self.take(1);
        let bytes: Vec<u8> = (0..ONCE_BYTES).map(|byte| value(number, 4, 0, 0, byte as u32)).collect();
        let lies = self.buffers(one)[4];
        let offset = lies.base + u64::from(once.indices()[0]) * lies.stride;
        self.pool.write(offset, &bytes);
        let how = Send::from(&self.layouts[number]).rank(self.rank, self.ranks).to(sinks).once(&once);
        let how = if one.is_by_layer { how.by_layer() } else { how };
        let request = RequestId::new(&format!("source {} of {number}", self.rank)).unwrap();
        let output = self.engine.produce(transfer(number), &request, how).expect("ranks are spread");
        drop(once);
        let first = 128;
        for (from, tokens, is_last) in [(0, first, false), (first, TOKENS - first, true)] {
            let blocks = self.take(tokens.div_ceil(u64::from(self.block_tokens(one))));
            self.fill(number, &blocks, from, tokens);
            output.chunk(&blocks, tokens, is_last).expect("it stands");
        }
        if one.is_by_layer {
            [1, 2, 0].into_iter().for_each(|layer| output.layer(layer, TOKENS).expect("it stands"));
        }
        output.wait(PATIENCE).expect("it ends").expect("every rank has everything");
        output
    }

    /// Has one transfer in legs, and looks at every byte.
    fn receive(&self, number: usize, sources: &[Peer]) {
        let one = &TRIES[number];
        let how = Receive::into(&self.layouts[number]).rank(self.rank, self.ranks);
        let how = how.from_all(sources, &label(number));
        let request = RequestId::new(&format!("sink {} of {number}", self.rank)).unwrap();
        let input = self.engine.consume(transfer(number), &request, how).expect("ranks are spread");
        let room = |buffer| input.assembled_bytes(buffer, TOKENS).expect("it is a buffer of the layout") as usize;
        let mut assembled: Vec<Vec<u8>> = (0..5).map(|buffer| vec![0; room(buffer)]).collect();
        // Two legs, the first of which ends inside a block of 64.
        let first_leg = 112_u64.div_ceil(u64::from(self.block_tokens(one)));
        input.grant_with(&self.take(first_leg), 0, Some(&self.take(1))).expect("it stands");
        loop {
            match input.next(PATIENCE).expect("it goes on") {
                InputEvent::NeedsMemory { tokens, .. } => {
                    let blocks = tokens.min(TOKENS).div_ceil(u64::from(self.block_tokens(one)));
                    input.grant(&self.take(blocks)).expect("it stands");
                }
                event @ (InputEvent::Leg { .. } | InputEvent::Done { .. }) => {
                    let mut buffers: Vec<&mut [u8]> = assembled.iter_mut().map(Vec::as_mut_slice).collect();
                    input.assemble(&mut buffers, TOKENS).expect("what landed can be copied out");
                    // Not by the status: the last leg may have landed behind the look at those that had.
                    if matches!(event, InputEvent::Done { .. }) {
                        break;
                    }
                }
                InputEvent::Failed(failed) => panic!("{failed:?}"),
                _ => {}
            }
        }
        assert_eq!(input.status(), Status::Success);
        drop(input);
        for (buffer, lies) in self.buffers(one).iter().enumerate() {
            let found = &assembled[buffer];
            let Some(rows) = rows_of(lies.form) else {
                let is_it = |(byte, found): (usize, &u8)| *found == value(number, buffer, 0, 0, byte as u32);
                assert!(found.iter().enumerate().all(is_it), "what goes once, of try {number}");
                continue;
            };
            for token in 0..TOKENS {
                for (row, byte) in each(rows) {
                    let place = at(lies.form, TOKENS, token, row, byte) as usize;
                    let wanted = value(number, buffer, token, rows.first + row, byte);
                    assert_eq!(
                        found[place], wanted,
                        "try {number}, rank {}, buffer {buffer}, token {token}, row {row}",
                        self.rank
                    );
                }
            }
        }
    }
}

fn rows_of(form: Form) -> Option<Rows> {
    match form {
        Form::TokenMajor(rows) | Form::PlaneMajor(rows) => Some(rows),
        Form::Once(_) => None,
    }
}

/// Each byte of the rows of a token.
fn each(rows: Rows) -> impl Iterator<Item = (u32, u32)> {
    (0..rows.count).flat_map(move |row| (0..rows.bytes).map(move |byte| (row, byte)))
}

fn label(number: usize) -> String {
    format!("try {number}")
}

fn transfer(number: usize) -> TransferId {
    TransferId::mint(UUID, number as u32 + 1, 0).unwrap()
}

/// How many of each side are not done.
struct Left {
    sinks: AtomicUsize,
    gone: AtomicUsize,
}

fn source(setting: &Setting, folder: &Path, rank: (u16, u16), sinks: u16, tell: &Sender<(u16, Vec<u8>)>, left: &Left) {
    let end = End::start(setting, folder, true, rank);
    tell.send((rank.0, end.engine.descriptor())).expect("somebody listens");
    let outputs: Vec<_> = (0..TRIES.len()).map(|number| end.send(number, sinks)).collect();
    // The others need this engine's turns until they are gone.
    let until = std::time::Instant::now() + PATIENCE;
    while left.gone.load(Ordering::Acquire) > 0 && std::time::Instant::now() < until {
        end.turn();
    }
    drop(outputs);
    let metrics = end.engine.control_metrics();
    assert_eq!((metrics.transfers.live, metrics.refused), (0, 0), "{metrics:?}");
    drop(end.take(u64::from(BLOCKS)));
}

fn sink(setting: &Setting, folder: &Path, rank: (u16, u16), cards: &[Vec<u8>], left: &Left) {
    let end = End::start(setting, folder, false, rank);
    let join = |card: &Vec<u8>| end.engine.connect(card, PATIENCE).expect("a session with the source");
    let sources: Vec<Peer> = cards.iter().map(join).collect();
    for number in 0..TRIES.len() {
        sources.iter().for_each(|peer| peer.wait_layout(&label(number), PATIENCE).expect("the layout is told"));
        end.receive(number, &sources);
    }
    let metrics = end.engine.control_metrics();
    assert_eq!((metrics.transfers.live, metrics.refused), (0, 0), "{metrics:?}");
    drop(end.take(u64::from(BLOCKS)));
    left.sinks.fetch_sub(1, Ordering::Release);
    let until = std::time::Instant::now() + PATIENCE;
    while left.sinks.load(Ordering::Acquire) > 0 && std::time::Instant::now() < until {
        end.turn();
    }
}

fn between(setting: &Setting, sources: u16, sinks: u16) {
    let folder = crate::folder::Folder::fresh();
    let left = Left { sinks: AtomicUsize::new(sinks.into()), gone: AtomicUsize::new(sinks.into()) };
    let (tell, cards): (_, Receiver<(u16, Vec<u8>)>) = channel();
    let failed = Mutex::new(Vec::new());
    let guard = |what: String, is_sink: bool, work: &mut dyn FnMut()| {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        if is_sink {
            left.gone.fetch_sub(1, Ordering::Release);
        }
        if let Err(why) = done {
            let words = why.downcast_ref::<String>().cloned();
            let words = words.or_else(|| why.downcast_ref::<&str>().map(|words| (*words).to_owned()));
            failed.lock().unwrap().push(format!("{what}: {}", words.unwrap_or_default()));
        }
    };
    {
        let (guard, left, folder) = (&guard, &left, folder.path());
        std::thread::scope(|threads| {
            for rank in 0..sources {
                let tell = tell.clone();
                threads.spawn(move || {
                    let mut work = || source(setting, folder, (rank, sources), sinks, &tell, left);
                    guard(format!("source {rank}"), false, &mut work);
                });
            }
            let mut told: Vec<(u16, Vec<u8>)> = (0..sources).map_while(|_| cards.recv_timeout(PATIENCE).ok()).collect();
            told.sort();
            let told: Vec<Vec<u8>> = told.into_iter().map(|(_, card)| card).collect();
            for rank in 0..sinks {
                let cards = told.clone();
                threads.spawn(move || {
                    let mut work = || sink(setting, folder, (rank, sinks), &cards, left);
                    guard(format!("sink {rank}"), true, &mut work);
                });
            }
        });
    }
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{failed:#?}");
}
