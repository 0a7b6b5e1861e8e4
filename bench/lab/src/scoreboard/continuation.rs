//! C2: a request that goes on from another one has only the rest of it sent, beside one that has all of it sent.
//!
//! A parent of 500 and 200 tokens is kept where it has ended, and its child has 705: 688 of them are there in whole blocks, and 17 come.
//! In turns with that the same 705 tokens come to a request that has nothing. The source has computed everything before; time is from
//! the sink's first call, which is the one that inherits, to the word that all is there. Two engines of this process, over mapped pools.

use std::error::Error;
use std::time::{Duration, Instant};

use penstock::config::{Progress, TransportName};
use penstock::flows::{
    Group, Inherited, InputEvent, Isolation, Layout, LayoutSpec, Parent, ParentBlocks, PinSettings, Pins, Receive,
    RequestId, Rows, Send, TransferId,
};
use penstock::region::Pool;
use penstock::{Blocks, Config, Engine, Peer, PoolSpec, Rights, SystemEnv};

use super::row::{Goal, Row};
use super::{Effort, Pins as Cores};
use crate::ends::Folder;
use crate::error::LabError;
use crate::measure::cores::Stay;
use crate::measure::{interleave, nanos, spread};

/// The request that is gone on from: tokens that were sent, and tokens that were computed where it ran. Of the last one there is no data.
const PROMPT: u64 = 500;
const ANSWER: u64 = 200;
/// Its child.
const CHILD: u64 = PROMPT + ANSWER + 5;
/// What the child has to be sent: what is behind the parent's whole blocks.
const REST: u64 = CHILD - (PROMPT + ANSWER - 1) / TOKENS * TOKENS;

/// Blocks, as of a model with keys and values of 128 KiB a token.
const TOKENS: u64 = 16;
const LAYERS: u32 = 32;
const ROWS: Rows = Rows { first: 0, count: 8, of: 8, bytes: 512 };
const ROW: u64 = ROWS.count as u64 * ROWS.bytes as u64;
const TOKEN: u64 = LAYERS as u64 * ROW;
const BLOCK: u64 = TOKENS * TOKEN;
/// 512 MiB of them.
const BLOCKS: u64 = 256;
/// So many sets of blocks take turns on each side, so that caches do not hold what is moved.
const SETS: usize = 4;

/// Everything that is to take far less has that long.
const PATIENCE: Duration = Duration::from_secs(30);
/// What the design expects.
const SOONER: f64 = 25.0;
/// What a number of the parent's is made from; the child's tokens begin with the same ones.
const STAMP: u64 = 0x9e37_79b9_7f4a_7c15;

/// What takes turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// The rest only.
    Continued,
    /// All of it.
    Whole,
}

impl Turn {
    const fn tokens(self) -> u64 {
        match self {
            Self::Continued => REST,
            Self::Whole => CHILD,
        }
    }
}

pub(super) fn measure(effort: &Effort) -> Result<Vec<Row>, LabError> {
    let cores = Cores::choose();
    let _stay = Stay::on(&cores.far);
    effort.tell("C2: a parent is kept, and its children take turns with requests that go on from nothing");
    let mut both = Both::open(&cores)?;
    let turns = [Turn::Continued, Turn::Whole];
    let mut moved = [Vec::new(), Vec::new()];
    let times = interleave(effort.limit(), &turns, |turn| {
        let (took, tokens) = both.take_turn(turn)?;
        moved[turn as usize].push(tokens as f64);
        Ok::<_, LabError>(took)
    })?;
    for turn in turns {
        both.prove(turn)?;
    }
    let shm = TransportName::Shm.as_str();
    let whole = "all of it sent";
    let bytes = Row::compared(shm, (&moved[0], "tokens moved", 1.0), (whole, &moved[1]), Goal::AtMost(REST as f64))
        .noted(&format!(
            "a child of {CHILD} tokens, of which its parent of {PROMPT} and {ANSWER} has left {}: counted in bytes \
                 by the source's engine, {} KiB a token",
            CHILD - REST,
            TOKEN >> 10
        ));
    let time = Row::compared(shm, (&times[0], "us", 1e3), (whole, &times[1]), Goal::QuickerBy(SOONER));
    let apart = |times: &[f64]| {
        let ends =
            times.iter().fold((f64::INFINITY, 0.0_f64), |(least, most), &time| (least.min(time), most.max(time)));
        format!("{:.0} to {:.0} us", ends.0 / 1e3, ends.1 / 1e3)
    };
    let time = time.noted(&format!(
        "from inheriting to the last byte's arrival; {}; {} against {}; the same {} MB on both, each byte verified",
        spread(&times[0], &times[1]),
        apart(&times[0]),
        apart(&times[1]),
        CHILD * TOKEN / 1_000_000,
    ));
    Ok(vec![bytes, time])
}

/// One engine with its blocks. Fields end in this order.
struct Side {
    sets: Vec<Blocks>,
    layout: Layout<SystemEnv>,
    pool: Pool<SystemEnv>,
    engine: Engine,
}

impl Side {
    fn start(folder: &Folder, name: &str, cores: &[usize]) -> Result<Self, LabError> {
        let config = Config::default().named(name).directory(folder.path()).transports([TransportName::Shm]);
        let config = config.progress(Progress::Adaptive).workers(1).pinned_to(cores.iter().copied());
        let engine = Engine::start(config).map_err(LabError::refused("start an engine"))?;
        let spec = PoolSpec::host(BLOCKS * BLOCK).block(BLOCK).label("kv").rights(Rights::READ_WRITE);
        let pool = engine.pool(spec).map_err(LabError::refused("make a pool"))?;
        let spec = (0..LAYERS).fold(LayoutSpec::new("kv", TOKENS as u32, BLOCKS as u32), |spec, layer| {
            let form = penstock::flows::Form::TokenMajor(ROWS);
            let base = u64::from(layer) * TOKENS * ROW;
            spec.buffer(penstock::flows::Buffer { layer, base, stride: BLOCK, form })
        });
        let layout = engine.layout(&pool, spec).map_err(LabError::refused("make a layout"))?;
        let sets = (0..SETS).map(|_| pool.take(CHILD.div_ceil(TOKENS) as usize));
        let sets = sets.collect::<Result<_, _>>().map_err(LabError::refused("take blocks"))?;
        Ok(Self { sets, layout, pool, engine })
    }

    /// Where a token of a layer is, in blocks of which the first begins with token 0.
    fn at(&self, blocks: &[u32], token: u64, layer: u32) -> u64 {
        let block = blocks[(token / TOKENS) as usize];
        self.layout.offset(layer as usize, block, (token % TOKENS) as u32).expect("the block is of this layout")
    }

    /// Each row of these tokens, with what is to be in it.
    fn each_row(
        &self,
        blocks: &[u32],
        tokens: std::ops::Range<u64>,
        mut row: impl FnMut(u64, &[u8]) -> Result<(), LabError>,
    ) -> Result<(), LabError> {
        let mut bytes = [0; ROW as usize];
        for token in tokens {
            for layer in 0..LAYERS {
                let mut word = (token << 32 | u64::from(layer)).wrapping_add(1).wrapping_mul(STAMP);
                for piece in bytes.chunks_mut(8) {
                    word = word.rotate_left(29).wrapping_mul(STAMP);
                    piece.copy_from_slice(&word.to_le_bytes());
                }
                row(self.at(blocks, token, layer), &bytes)?;
            }
        }
        Ok(())
    }

    fn compute(&self, blocks: &[u32], tokens: std::ops::Range<u64>) -> Result<(), LabError> {
        self.each_row(blocks, tokens, |at, bytes| {
            self.pool.window().write_from(at, bytes).map_err(LabError::refused("compute a token"))
        })
    }

    fn wipe(&self, blocks: &[u32]) -> Result<(), LabError> {
        let nothing = vec![0; BLOCK as usize];
        let wiped =
            blocks.iter().try_for_each(|&block| self.pool.window().write_from(u64::from(block) * BLOCK, &nothing));
        wiped.map_err(LabError::refused("wipe a block"))
    }

    fn check(&self, blocks: &[u32], tokens: u64) -> Result<(), LabError> {
        let mut found = [0; ROW as usize];
        self.each_row(blocks, 0..tokens, |at, bytes| {
            self.pool.window().read_into(at, &mut found).map_err(LabError::refused("read a token"))?;
            let wrong =
                || LabError::refused("continue a request")(format!("wrong bytes have come to {at} of the pool"));
            if found == bytes { Ok(()) } else { Err(wrong()) }
        })
    }
}

/// A source and a sink. Fields end in this order.
struct Both {
    peer: Peer<SystemEnv>,
    pins: Pins<SystemEnv>,
    source: Side,
    sink: Side,
    parent: RequestId,
    last: u64,
    _folder: Folder,
}

impl Both {
    /// Both engines, the parent that is kept, and everything that the source has computed.
    fn open(cores: &Cores) -> Result<Self, LabError> {
        let folder = Folder::create()?;
        let source = Side::start(&folder, "prefill-0", &cores.near)?;
        let sink = Side::start(&folder, "decode-0", &cores.far)?;
        let card = source.engine.descriptor();
        let peer = sink.engine.connect(&card, PATIENCE).map_err(LabError::refused("connect to the source"))?;
        peer.wait_layout("kv", PATIENCE).map_err(LabError::refused("find the source's layout"))?;
        for set in &source.sets {
            source.compute(set.indices(), 0..CHILD)?;
        }
        let blocks = sink.pool.take((PROMPT + ANSWER).div_ceil(TOKENS) as usize);
        let blocks = blocks.map_err(LabError::refused("take blocks"))?;
        let computed = PROMPT + ANSWER - 1;
        sink.compute(blocks.indices(), 0..computed)?;
        let pins = sink.engine.pins(0, PinSettings::default()).map_err(LabError::refused("keep a parent"))?;
        let parent = name("parent", 0)?;
        let group = Group { block_tokens: TOKENS as u32, computed, block_bytes: BLOCK, ..Group::of(&blocks) };
        let kept =
            Parent { request: parent.clone(), isolation: Isolation::default(), groups: vec![group], blob: Vec::new() };
        pins.pin(kept, &[&blocks], Duration::from_secs(3600)).map_err(LabError::refused("keep a parent"))?;
        Ok(Self { peer, pins, source, sink, parent, last: 0, _folder: folder })
    }

    fn set(&self) -> usize {
        self.last as usize % SETS
    }

    /// One transfer: answers how long it took, and how many tokens were moved, by the bytes that the source's engine has counted.
    fn take_turn(&mut self, turn: Turn) -> Result<(f64, u64), LabError> {
        self.last += 1;
        let uuid = format!("{:08x}-9dad-41d1-80b4-00c04fd430c8", self.last);
        let transfer = TransferId::mint(&uuid, 0, 0).map_err(refused)?;
        let (request, child) = (name("prefill", self.last)?, name("decode", self.last)?);
        let Self { source, sink, peer, pins, parent, .. } = &*self;
        let within = Send::from(&source.layout).within(PATIENCE);
        let output = source.engine.produce(transfer, &request, within).map_err(refused)?;
        output.chunk(&source.sets[self.set()], CHILD, true).map_err(refused)?;
        let before = source.engine.statistics().bytes;
        let own = &sink.sets[self.set()];
        let begun = Instant::now();
        let receive = Receive::into(&sink.layout).from(0, peer).within(PATIENCE);
        let inherited: Option<Inherited<SystemEnv>> = match turn {
            Turn::Whole => None,
            Turn::Continued => {
                let inherited = pins.inherit(parent, &Isolation::default(), &child, CHILD).map_err(refused)?;
                Some(inherited.map_err(refused)?)
            }
        };
        let receive = match &inherited {
            Some(inherited) => receive.continuation_of(inherited),
            None => receive,
        };
        let input = sink.engine.consume(transfer, &child, receive).map_err(refused)?;
        input.grant(own).map_err(refused)?;
        let came = loop {
            match input.next(PATIENCE).map_err(refused)? {
                InputEvent::Done { tokens } => break tokens,
                InputEvent::Failed(failed) => return Err(refused(failed.words)),
                InputEvent::Layer { .. }
                | InputEvent::Leg { .. }
                | InputEvent::NeedsMemory { .. }
                | InputEvent::Lost { .. } => {}
            }
        };
        let took = nanos(begun.elapsed());
        let sent = output.wait(PATIENCE).map_err(refused)?;
        sent.map_err(|failed| refused(failed.words))?;
        // What a worker has moved it counts behind the end.
        let until = Instant::now() + PATIENCE;
        let moved = || source.engine.statistics().bytes - before;
        while moved() < turn.tokens() * TOKEN && Instant::now() < until {
            std::thread::yield_now();
        }
        let is_exact = came == turn.tokens() && moved() == came * TOKEN;
        let wrong = || refused(format!("{came} tokens came in {} bytes, for {}", moved(), turn.tokens()));
        if is_exact { Ok((took, moved() / TOKEN)) } else { Err(wrong()) }
    }

    /// Moves every set once more into blocks that were wiped, and looks at every byte that a child has then.
    fn prove(&mut self, turn: Turn) -> Result<(), LabError> {
        for _ in 0..SETS {
            let next = (self.last + 1) as usize % SETS;
            self.sink.wipe(self.sink.sets[next].indices())?;
            self.take_turn(turn)?;
            let own = self.sink.sets[next].indices();
            match turn {
                Turn::Whole => self.sink.check(own, CHILD)?,
                Turn::Continued => {
                    let child = name("proof", self.last)?;
                    let given = self.pins.inherit(&self.parent, &Isolation::default(), &child, CHILD);
                    let given = given.map_err(refused)?.map_err(refused)?;
                    self.sink.check(&[&given.groups()[0], own].concat(), CHILD)?;
                }
            }
        }
        Ok(())
    }
}

fn refused<E: Into<Box<dyn Error + std::marker::Send + Sync>>>(error: E) -> LabError {
    LabError::refused("continue a request")(error)
}

fn name(of: &str, number: u64) -> Result<RequestId, LabError> {
    RequestId::new(&format!("{of}-{number}")).map_err(LabError::refused("name a request"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_has_seventeen_tokens_sent_and_all_of_its_bytes() {
        assert_eq!((CHILD, REST), (705, 17));
        let mut both = Both::open(&Cores { near: Vec::new(), far: Vec::new() }).unwrap();
        for (turn, tokens) in [(Turn::Continued, 17), (Turn::Whole, 705)] {
            let (took, moved) = both.take_turn(turn).unwrap();
            assert!(took > 0.0);
            assert_eq!(moved, tokens);
        }
        both.prove(Turn::Continued).unwrap();
        // A single byte that is not as it should be is noticed.
        both.take_turn(Turn::Whole).unwrap();
        let blocks = both.sink.sets[both.set()].indices().to_vec();
        both.sink.check(&blocks, CHILD).unwrap();
        both.sink.pool.window().write_from(both.sink.at(&blocks, CHILD - 1, LAYERS - 1) + ROW - 1, &[0x5a]).unwrap();
        assert!(both.sink.check(&blocks, CHILD).is_err());
    }
}
