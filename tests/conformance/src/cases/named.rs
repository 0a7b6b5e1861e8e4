//! Transfers by name between two engines: what both sides' applications see, and that every byte is where it belongs.
//!
//! Both engines are of this process, and one thread turns both, so that those without threads go on.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use penstock::config::TransportName;
use penstock::flows::{
    Buffer, FinishedTransfer, FlowCause, Form, Input, InputEvent, Layout, LayoutSpec, MemoryPolicy, NoMemory, Output,
    Receive, RequestId, Rows, Send, Side, Status, TransferId,
};
use penstock::session::{EngineDescriptor, Frame};
use penstock::{Blocks, HostMemory, LocalRegion, PoolSpec, Rights, SystemEnv, Window};

use crate::folder::Folder;
use crate::rogue;
use crate::setting::{Memory, SOURCE};
use crate::stage::{KV, PATIENCE};
use crate::{Engine, Peer, Pool, Setting};

pub(super) const UUID: &str = "6ba7b810-9dad-11d1-80b4-00c04fd430c8";
/// What one side may need to know that the other has failed. The promise is a second.
const KNOWN_WITHIN: Duration = Duration::from_secs(1);
/// Tokens of a block of the source, and of the sink: neither fits into the other evenly where a leg is cut.
const SOURCE_TOKENS: u32 = 16;
pub(super) const SINK_TOKENS: u32 = 128;
/// A row of heads, token after token.
const HEADS: Rows = Rows { first: 0, count: 2, of: 2, bytes: 16 };
/// Three planes of positions, plane after plane.
const PLANES: Rows = Rows { first: 0, count: 3, of: 3, bytes: 8 };
pub(super) const TOKEN_BYTES: u64 = 56;
const MIB: u64 = 1 << 20;
/// Bytes of a block of a pool that only numbers blocks.
const NUMBER_BYTES: u64 = 64;

/// What a byte of a token is, wherever it lies.
fn value(name: u32, buffer: usize, token: u64, row: u32, byte: u32) -> u8 {
    let mixed = u64::from(name) * 1_000_003 + buffer as u64 * 7919 + token * 104_729 + u64::from(row * 61 + byte) + 1;
    (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u8
}

fn buffers(block_tokens: u32) -> [Buffer; 2] {
    let stride = TOKEN_BYTES * u64::from(block_tokens);
    let planes = u64::from(HEADS.count * HEADS.bytes * block_tokens);
    [
        Buffer { layer: 0, base: 0, stride, form: Form::TokenMajor(HEADS) },
        Buffer { layer: 1, base: planes, stride, form: Form::PlaneMajor(PLANES) },
    ]
}

/// Where a byte lies among so many tokens.
fn at(form: Form, tokens: u64, token: u64, row: u32, byte: u32) -> u64 {
    let (row, byte) = (u64::from(row), u64::from(byte));
    match form {
        Form::TokenMajor(rows) => (token * u64::from(rows.count) + row) * u64::from(rows.bytes) + byte,
        Form::PlaneMajor(rows) => (row * tokens + token) * u64::from(rows.bytes) + byte,
        Form::Once(_) => byte,
    }
}

fn each(form: Form) -> impl Iterator<Item = (u32, u32)> {
    let (Form::TokenMajor(rows) | Form::PlaneMajor(rows)) = form else { unreachable!("nothing goes once here") };
    (0..rows.count).flat_map(move |row| (0..rows.bytes).map(move |byte| (row, byte)))
}

/// One engine with a pool and a layout. Fields end in this order.
pub(super) struct End {
    pub(super) layout: Layout<SystemEnv>,
    /// The blocks: of the memory itself, or of a pool that numbers those of the caller's memory.
    pub(super) pool: Pool,
    /// Where they lie.
    region: LocalRegion<SystemEnv>,
    engine: Engine,
    block_tokens: u32,
    pub(super) blocks: u32,
}

impl End {
    fn start(setting: &Setting, folder: &Folder, name: &str, block_tokens: u32, blocks: u32) -> Self {
        let engine = setting.spec(folder.path(), name).start().expect("the engine starts");
        let block = TOKEN_BYTES * u64::from(block_tokens);
        let blocks = blocks.max((MIB / block) as u32);
        let bytes = u64::from(blocks) * block;
        let (pool, region) = if setting.memory == Memory::Caller {
            // At an odd address.
            let memory = HostMemory::from_vec(vec![0; bytes as usize + 1]).expect("there is memory");
            let memory = memory.part(1, bytes).expect("all bytes but the first");
            let region = engine.register(memory, KV, Rights::READ_WRITE).expect("there is room for a region");
            let pool = PoolSpec::host(u64::from(blocks) * NUMBER_BYTES).block(NUMBER_BYTES).label("numbers");
            (engine.pool(pool).expect("there is memory for a pool"), region)
        } else {
            let pool = PoolSpec::host(bytes).block(block).label(KV).rights(Rights::READ_WRITE);
            let pool = engine.pool(pool).expect("there is memory for a pool");
            let region = LocalRegion::clone(&pool);
            (pool, region)
        };
        let spec =
            buffers(block_tokens).into_iter().fold(LayoutSpec::new(KV, block_tokens, blocks), LayoutSpec::buffer);
        let layout = engine.layout(&region, spec).expect("the layout is sound");
        Self { layout, pool, region, engine, block_tokens, blocks }
    }

    /// The memory in which blocks lie.
    pub(super) fn window(&self) -> &Window {
        self.region.host().unwrap()
    }

    /// Writes tokens of a transfer to the blocks that have them.
    fn fill(&self, name: u32, blocks: &[u32], tokens: u64) {
        let block_tokens = u64::from(self.block_tokens);
        for (buffer, lies) in self.layout.buffers().iter().enumerate() {
            let mut bytes = vec![0; each(lies.form).count() * self.block_tokens as usize];
            for (place, &block) in blocks.iter().enumerate() {
                let first = place as u64 * block_tokens;
                for token in first..tokens.min(first + block_tokens) {
                    for (row, byte) in each(lies.form) {
                        bytes[at(lies.form, block_tokens, token - first, row, byte) as usize] =
                            value(name, buffer, token, row, byte);
                    }
                }
                let (offset, _) = self.layout.extent(buffer, block).expect("the block is of the layout");
                self.window().write_from(offset, &bytes).expect("the block is of the pool");
            }
        }
    }

    /// These blocks have the first so many tokens of a transfer.
    fn assert_has(&self, name: u32, blocks: &[u32], tokens: u64) {
        let block_tokens = u64::from(self.block_tokens);
        for (buffer, lies) in buffers(self.block_tokens).iter().enumerate() {
            let mut bytes = vec![0; each(lies.form).count() * self.block_tokens as usize];
            for (place, &block) in blocks.iter().enumerate() {
                self.window().read_into(lies.base + u64::from(block) * lies.stride, &mut bytes).expect("it lies there");
                let first = place as u64 * block_tokens;
                for token in first..tokens.min(first + block_tokens) {
                    for (row, byte) in each(lies.form) {
                        let found = bytes[at(lies.form, block_tokens, token - first, row, byte) as usize];
                        let expected = value(name, buffer, token, row, byte);
                        assert_eq!(found, expected, "buffer {buffer}, token {token}, row {row}");
                    }
                }
            }
        }
    }

    /// All blocks are free, each once.
    fn is_free(&self) -> bool {
        let Ok(all) = self.pool.take(self.blocks as usize) else { return false };
        let mut indices = all.indices().to_vec();
        indices.sort_unstable();
        indices.dedup();
        assert_eq!(indices.len(), self.blocks as usize, "a block came back twice");
        assert!(self.pool.take(1).is_err(), "more blocks came back than there are");
        true
    }
}

/// A source and a sink with a session.
pub(super) struct Both {
    there: Peer,
    pub(super) sink: End,
    pub(super) source: End,
    setting: Setting,
    /// Dropped last.
    folder: Folder,
}

impl Both {
    pub(super) fn open(setting: &Setting, source_blocks: u32, sink_blocks: u32) -> Self {
        let folder = Folder::fresh();
        let source = End::start(setting, &folder, SOURCE, SOURCE_TOKENS, source_blocks);
        let sink = End::start(setting, &folder, "sink", SINK_TOKENS, sink_blocks);
        let there = join(&sink.engine, &source.engine, &[&source.engine, &sink.engine]);
        let both = Self { there, sink, source, setting: *setting, folder };
        both.until("the layout is told", || both.there.layouts().contains(&KV.to_owned()).then_some(()));
        // Without this a suite over the caller's memory could pass by another way.
        if setting.memory == Memory::Caller && setting.transport == TransportName::Shm {
            let far = both.until("the region is told", || both.there.region(KV).ok());
            assert_eq!(
                far.access_path(),
                if setting.process_vm { "process_vm" } else { "bounce" },
                "{}",
                far.access_reason()
            );
        }
        both
    }

    /// Turns both engines until there is an answer.
    pub(super) fn until<T>(&self, what: &str, look: impl FnMut() -> Option<T>) -> T {
        until(&[&self.source.engine, &self.sink.engine], what, look)
    }

    pub(super) fn produce(&self, name: u32) -> Output<SystemEnv> {
        self.produce_as(name, transfer(name), Send::from(&self.source.layout))
    }

    pub(super) fn produce_as(&self, name: u32, transfer: TransferId, how: Send<'_, SystemEnv>) -> Output<SystemEnv> {
        let request = RequestId::new(&format!("cmpl-source-{name}")).unwrap();
        self.source.engine.produce(transfer, &request, how).expect("it is admitted")
    }

    pub(super) fn consume(&self, name: u32, policy: MemoryPolicy) -> Input<SystemEnv> {
        self.consume_as(name, transfer(name), policy)
    }

    pub(super) fn consume_as(&self, name: u32, transfer: TransferId, policy: MemoryPolicy) -> Input<SystemEnv> {
        let request = RequestId::new(&format!("cmpl-sink-{name}")).unwrap();
        let how = Receive::into(&self.sink.layout).from(0, &self.there).memory(policy);
        self.sink.engine.consume(transfer, &request, how).expect("it is admitted")
    }

    /// Gives so many tokens in one chunk.
    pub(super) fn give(&self, output: &Output<SystemEnv>, name: u32, tokens: u64) {
        let blocks = self.take(&self.source, tokens.div_ceil(u64::from(SOURCE_TOKENS)));
        self.source.fill(name, blocks.indices(), tokens);
        output.chunk(&blocks, tokens, true).expect("it stands");
    }

    /// Blocks, as soon as they are free: what ended is let go by the control loop.
    pub(super) fn take(&self, end: &End, count: u64) -> Blocks {
        self.until("blocks are free", || end.pool.take(count as usize).ok())
    }

    pub(super) fn next(&self, input: &Input<SystemEnv>) -> InputEvent {
        self.until("something happens at the sink", || input.try_next())
    }

    /// So many tokens have come, and layers are all that was told of before.
    pub(super) fn done(&self, input: &Input<SystemEnv>, tokens: u64) {
        loop {
            match self.next(input) {
                InputEvent::Layer { .. } => {}
                last => return assert_eq!(last, InputEvent::Done { tokens }),
            }
        }
    }

    /// Has it all in legs of so many blocks. Answers how many legs there were, and how the application saw it end.
    pub(super) fn receive(&self, input: &Input<SystemEnv>, name: u32, tokens: u64, leg_blocks: u64) -> u32 {
        let mut found =
            [0, 1].map(|buffer| vec![0; input.assembled_bytes(buffer, tokens).expect("there are two") as usize]);
        let (mut legs, mut confirmed_before) = (0, 0);
        let grant = || {
            input.grant(&self.take(&self.sink, leg_blocks)).expect("it stands");
        };
        grant();
        loop {
            match self.next(input) {
                InputEvent::NeedsMemory { .. } => grant(),
                InputEvent::Leg { leg, confirmed, .. } => {
                    assert!(leg == legs && confirmed > confirmed_before, "leg {leg} to {confirmed}");
                    (legs, confirmed_before) = (legs + 1, confirmed);
                    let [one, other] = &mut found;
                    assert_eq!(input.assemble(&mut [one, other], tokens).expect("it has landed"), 1);
                }
                InputEvent::Done { tokens: came } => {
                    assert_eq!(came, tokens);
                    let [one, other] = &mut found;
                    input.assemble(&mut [one, other], tokens).expect("it has landed");
                    break;
                }
                InputEvent::Layer { .. } => {}
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(input.status(), Status::Success);
        assert_whole(&found, name, tokens);
        legs + 1
    }

    /// One transfer of so many tokens, in so many legs of so many blocks.
    pub(super) fn comes_whole(&self, name: u32, tokens: u64, leg_blocks: u64, legs: u32) {
        let (output, input) = (self.produce(name), self.consume(name, MemoryPolicy::Wait));
        self.give(&output, name, tokens);
        assert_eq!(self.receive(&input, name, tokens, leg_blocks), legs, "{tokens} tokens");
        self.until("the source ends", || output.poll()).expect("the sink has everything");
    }

    /// Everything has come to its end: nothing is kept, and all blocks are free.
    pub(super) fn assert_nothing_is_left(&self) {
        for end in [&self.source, &self.sink] {
            self.until("all blocks are free", || end.is_free().then_some(()));
            let metrics = end.engine.control_metrics();
            assert_eq!((metrics.transfers.live, metrics.moving), (0, 0), "{metrics:?}");
        }
    }
}

fn transfer(name: u32) -> TransferId {
    TransferId::mint(UUID, name, 0).expect("it is a UUID")
}

fn until<T>(engines: &[&Engine], what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let since = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        let metrics = || engines.iter().map(|engine| engine.control_metrics()).collect::<Vec<_>>();
        assert!(since.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain until {what}: {:?}", metrics());
        // Engines with threads refuse to be turned, and need nobody.
        let turned = engines.iter().filter(|engine| engine.progress_all().unwrap_or(false)).count();
        if turned == 0 {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

fn join(from: &Engine, to: &Engine, turned: &[&Engine]) -> Peer {
    let connecting = from.connect_begin(&to.descriptor()).expect("the card is sound");
    until(turned, "there is a session", || connecting.poll()).expect("there is a session")
}

pub(super) fn assert_whole(found: &[Vec<u8>; 2], name: u32, tokens: u64) {
    for (buffer, lies) in buffers(SINK_TOKENS).iter().enumerate() {
        for token in 0..tokens {
            for (row, byte) in each(lies.form) {
                let found = found[buffer][at(lies.form, tokens, token, row, byte) as usize];
                assert_eq!(found, value(name, buffer, token, row, byte), "buffer {buffer}, token {token}, row {row}");
            }
        }
    }
}

/// Whoever is asked first: the sink's words come before its source knows the name, and each side hears of its end once.
pub fn scenario_01_a_completion_before_the_mapping_is_delivered_once(setting: &Setting) {
    let both = Both::open(setting, 16, 4);
    for (name, sink_first) in [(1, true), (2, false)] {
        let early = sink_first.then(|| both.consume(name, MemoryPolicy::Wait));
        if let Some(input) = &early {
            input.grant(&both.take(&both.sink, 1)).unwrap();
            let kept = || (both.source.engine.control_metrics().transfers.early > 0).then_some(());
            both.until("the grant waits for its transfer", kept);
        }
        let output = both.produce(name);
        both.give(&output, name, 100);
        let input = early.unwrap_or_else(|| {
            let input = both.consume(name, MemoryPolicy::Wait);
            input.grant(&both.take(&both.sink, 1)).unwrap();
            input
        });
        let mut ends = 0;
        while ends == 0 {
            ends += usize::from(matches!(both.next(&input), InputEvent::Done { tokens: 100 }));
        }
        both.until("the source ends", || output.poll()).expect("the sink has everything");
        assert_eq!(input.try_next(), None, "an end is told once");
        let (mut sent, mut received) = (FinishedTransfer::default(), FinishedTransfer::default());
        both.source.engine.drain_finished(&mut sent);
        both.sink.engine.drain_finished(&mut received);
        let names = |requests: &[RequestId]| requests.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!((names(&sent.sent), sent.failed.len()), (vec![format!("cmpl-source-{name}")], 0));
        assert_eq!((names(&received.received), received.failed.len()), (vec![format!("cmpl-sink-{name}")], 0));
        assert_eq!(both.source.engine.drain_finished(&mut sent) + both.sink.engine.drain_finished(&mut received), 0);
    }
    both.assert_nothing_is_left();
}

/// A live name belongs to who has it, and so does a request; whoever comes second hears whose it is.
pub fn scenario_02_a_live_id_of_a_second_owner_is_refused_and_the_first_is_unaffected(setting: &Setting) {
    let both = Both::open(setting, 16, 4);
    let output = both.produce(1);
    let other = RequestId::new("cmpl-other").unwrap();
    let how = || Send::from(&both.source.layout);
    let refused = both.source.engine.produce(transfer(1), &other, how()).map(drop).unwrap_err().to_string();
    assert!(refused.contains("cmpl-source-1"), "{refused}");
    let same = RequestId::new("cmpl-source-1").unwrap();
    let refused = both.source.engine.produce(transfer(2), &same, how()).map(drop).unwrap_err().to_string();
    assert!(refused.contains(&transfer(1).to_string()), "{refused}");
    assert_eq!(both.source.engine.request_of(Side::Source, transfer(1)), Some(same));
    let input = both.consume(1, MemoryPolicy::Wait);
    both.give(&output, 1, 100);
    assert_eq!(both.receive(&input, 1, 100, 1), 1);
    both.until("the source ends", || output.poll()).expect("the sink has everything");
    drop((output, input));
    both.assert_nothing_is_left();
}

/// Two ranks of a sink: the source's blocks are held until both have everything. The first rank has said so, and another engine that
/// claims to be that rank gets nothing, while the second rank has not been heard: then nothing is free, and nothing has ended.
pub fn scenario_03_memory_is_held_until_all_distinct_ranks_have_acked(setting: &Setting) {
    let both = Both::open(setting, 8, 4);
    // The second rank says what it has only when this thread turns its engine.
    let second = End::start(&setting.without_threads(), &both.folder, "sink-1", SINK_TOKENS, 4);
    let third = End::start(setting, &both.folder, "sink-2", SINK_TOKENS, 4);
    let all = [&both.source.engine, &both.sink.engine, &third.engine, &second.engine];
    let but_the_second = &all[..3];
    let [to_second, to_third] = [&second, &third].map(|end| {
        let there = join(&end.engine, &both.source.engine, &all);
        until(&all, "the layout is told", || there.layouts().contains(&KV.to_owned()).then_some(()));
        there
    });
    let request = |name: &str| RequestId::new(name).unwrap();
    let how = Send::from(&both.source.layout).to_ranks(&[0, 1], 2);
    let output = both.source.engine.produce(transfer(1), &request("cmpl-source"), how).unwrap();
    both.give(&output, 1, 100);
    let consume = |end: &End, peer: &Peer, rank: u16| {
        let how = Receive::into(&end.layout).rank(rank, 2).from(0, peer);
        let input = end.engine.consume(transfer(1), &request("cmpl-sink"), how).unwrap();
        (input, end.pool.take(1).expect("nobody else has any"))
    };
    let given = both.source.pool.memory().blocks().free();
    let is_held = || both.source.pool.memory().blocks().free() == given && output.poll().is_none();
    let while_turning = |engines: &[&Engine], time: Duration, what: &str| {
        let since = Instant::now();
        until(engines, what, || (!is_held() || since.elapsed() > time).then_some(()));
        assert!(is_held(), "{what}: the source's blocks are free, or it has ended: {:?}", output.poll());
    };

    // A leg goes when both have granted it.
    let (first, blocks) = consume(&both.sink, &both.there, 0);
    first.grant(&blocks).unwrap();
    while_turning(&all, Duration::from_millis(20), "one of two has granted");
    assert_eq!(first.try_next(), None, "nothing goes before the other rank has room");
    let (other, blocks) = consume(&second, &to_second, 1);
    other.grant(&blocks).unwrap();
    let mut is_whole = false;
    while !is_whole {
        // Its grant is said, and nothing that it could have heard since: the leg has not gone.
        second.engine.progress_all().expect("this thread made the engine");
        let since = Instant::now();
        is_whole = until(but_the_second, "the first rank has everything, or a moment is over", || {
            let is_whole = matches!(first.try_next(), Some(InputEvent::Done { tokens: 100 }));
            (is_whole || since.elapsed() > Duration::from_millis(50)).then_some(is_whole)
        });
    }
    while_turning(but_the_second, Duration::from_millis(20), "the first of two ranks has everything");
    // Whoever says that it is the first rank, too, is not the second one.
    let (imposter, blocks) = consume(&third, &to_third, 0);
    imposter.grant(&blocks).unwrap();
    let ended = until(but_the_second, "the first rank's double has ended", || imposter.try_next());
    assert!(matches!(&ended, InputEvent::Failed(failed) if failed.cause != FlowCause::Deadline), "{ended:?}");
    while_turning(but_the_second, Duration::from_millis(20), "one rank was claimed twice");

    let done = || other.try_next().filter(|what| matches!(what, InputEvent::Done { tokens: 100 }));
    until(&all, "the second rank has everything", done);
    until(&all, "the source ends", || output.poll()).expect("both have everything");
    until(&all, "the source's blocks are free", || both.source.is_free().then_some(()));
}

/// 2,000 tokens into a sink with room for 1,024: the rest comes in a second leg.
pub fn scenario_04_two_thousand_tokens_in_two_legs_match(setting: &Setting) {
    in_legs(setting, 2_000, 8, 2);
}

/// 10,000 tokens into a sink with room for 1,024.
pub fn scenario_05_ten_legs_match(setting: &Setting) {
    in_legs(setting, 10_000, 8, 10);
}

/// A cut inside a block of both sides' sizes: 1,000 is neither 16 nor 128 times anything. Once the first 1,000 tokens are at the sink before
/// the others are computed, and once they are there from elsewhere and only the others are asked for.
pub fn scenario_06_a_cut_at_token_1000_gives_the_same_bytes(setting: &Setting) {
    const CUT: u64 = 1_000;
    const TOKENS: u64 = 2_000;
    let both = Both::open(setting, 126, 17);
    let (output, input) = (both.produce(1), both.consume(1, MemoryPolicy::Wait));
    // The first chunk ends at 1,000, and what comes behind it begins inside of its last block.
    let (first, second) = (both.take(&both.source, 63), both.take(&both.source, 62));
    let given = [first.indices(), second.indices()].concat();
    let begun = first.slice(62..63).and_then(|begun| begun.chain(&second)).expect("they are of one pool");
    let granted = both.take(&both.sink, 16);
    input.grant(&granted).expect("it stands");
    both.source.fill(1, &given, CUT);
    output.chunk(&first, CUT, false).expect("it stands");
    both.until("the first 1,000 have come", || (input.received() == CUT).then_some(()));
    both.sink.assert_has(1, granted.indices(), CUT);
    both.source.fill(1, &given, TOKENS);
    output.chunk(&begun, CUT, true).expect("it stands");
    both.done(&input, TOKENS);
    both.sink.assert_has(1, granted.indices(), TOKENS);
    both.until("the source ends", || output.poll()).expect("the sink has everything");
    drop((output, input));

    // The same from token 1,000 on, of which the sink has 104 in the first block of its leg; nothing of those is touched.
    both.sink.window().fill(0, u64::from(both.sink.blocks) * TOKEN_BYTES * u64::from(SINK_TOKENS), 0).expect("its own");
    both.sink.fill(1, granted.indices(), CUT);
    let kept = CUT / u64::from(SINK_TOKENS);
    let rest = granted.slice(kept as usize..16).expect("there are as many");
    let output = both.produce(2);
    let request = RequestId::new("cmpl-sink-2").unwrap();
    let how = Receive::into(&both.sink.layout).from(0, &both.there).begin(CUT);
    let input = both.sink.engine.consume(transfer(2), &request, how).expect("it is admitted");
    input.grant_with(&rest, (CUT % u64::from(SINK_TOKENS)) as u32, None).expect("it stands");
    let all = first.chain(&second).expect("they are of one pool");
    output.chunk(&all, TOKENS, true).expect("it stands");
    both.done(&input, TOKENS - CUT);
    both.sink.assert_has(1, granted.indices(), TOKENS);
    both.until("the source ends", || output.poll()).expect("the sink has everything");
    drop((output, input, first, second, begun, granted, rest, all));
    both.assert_nothing_is_left();
}

fn in_legs(setting: &Setting, tokens: u64, leg_blocks: u64, legs: u32) {
    let both = Both::open(setting, tokens.div_ceil(u64::from(SOURCE_TOKENS)) as u32, leg_blocks as u32);
    both.comes_whole(1, tokens, leg_blocks, legs);
    both.assert_nothing_is_left();
}

/// Without memory for its second leg a sink waits, takes what there is, or fails, as it was told to; what the first leg brought stays, and
/// each block comes back once.
pub fn scenario_07_no_memory_for_a_leg_is_met_as_configured(setting: &Setting) {
    const TOKENS: u64 = 400;
    let first_leg = u64::from(SINK_TOKENS);
    let both = Both::open(setting, 32, 4);
    for (name, policy) in [(1, MemoryPolicy::Wait), (2, MemoryPolicy::Shrink), (3, MemoryPolicy::Fail)] {
        let (output, input) = (both.produce(name), both.consume(name, policy));
        both.give(&output, name, TOKENS);
        let first = both.take(&both.sink, 1);
        input.grant(&first).expect("it stands");
        let is_there =
            |what: &InputEvent| matches!(what, InputEvent::Leg { leg: 0, confirmed, .. } if *confirmed == first_leg);
        both.until("the first leg is there", || input.try_next().filter(&is_there));
        let needs = || input.try_next().filter(|what| matches!(what, InputEvent::NeedsMemory { leg: 1, .. }));
        both.until("memory is needed for the second", needs);
        both.sink.assert_has(name, first.indices(), first_leg);
        let mut found =
            [0, 1].map(|buffer| vec![0; input.assembled_bytes(buffer, TOKENS).expect("there are two") as usize]);
        let mut rest = |leg_blocks: u64| loop {
            match both.next(&input) {
                InputEvent::NeedsMemory { .. } => {
                    let _ = input.grant(&both.take(&both.sink, leg_blocks)).expect("it stands");
                }
                event => {
                    let [one, other] = &mut found;
                    input.assemble(&mut [one, other], TOKENS).expect("it has landed");
                    if let InputEvent::Done { tokens } = event {
                        return tokens;
                    }
                }
            }
        };
        match policy {
            MemoryPolicy::Wait => {
                assert_eq!(input.no_memory(0), Ok(NoMemory::Wait));
                assert_eq!(input.status(), Status::Transferring);
                both.sink.assert_has(name, first.indices(), first_leg);
                drop(first);
                input.grant(&both.take(&both.sink, 3)).expect("it stands");
                assert_eq!(rest(3), TOKENS, "it was not lost");
            }
            MemoryPolicy::Shrink => {
                assert_eq!(input.no_memory(0), Ok(NoMemory::Wait));
                assert_eq!(input.no_memory(1), Ok(NoMemory::Take { blocks: 1 }));
                drop(first);
                input.grant(&both.take(&both.sink, 1)).expect("it stands");
                assert_eq!(rest(1), TOKENS);
            }
            MemoryPolicy::Fail => {
                assert_eq!(input.no_memory(0), Ok(NoMemory::Failed));
                let failed = both.until("the sink ends", || match input.try_next()? {
                    InputEvent::Failed(failed) => Some(failed),
                    _ => None,
                });
                assert_eq!((failed.cause, failed.said_by), (FlowCause::NoMemory, Side::Sink));
                assert_eq!((failed.blocks, failed.missing.len()), (vec![], 0), "the first leg is whole");
                let there = both.until("the source hears of it", || output.poll()).unwrap_err();
                assert_eq!((there.cause, there.said_by), (FlowCause::NoMemory, Side::Sink), "{there:?}");
                both.sink.assert_has(name, first.indices(), first_leg);
                drop((first, input, output));
                both.assert_nothing_is_left();
                continue;
            }
        }
        assert_whole(&found, name, TOKENS);
        both.until("the source ends", || output.poll()).expect("the sink has everything");
        drop((input, output));
        both.assert_nothing_is_left();
    }
}

/// Blocks of a sink that gives up come back when it is proven that nothing can land in them any more, and not a moment before: whoever
/// takes them writes to them at once.
pub fn scenario_08_an_aborting_sink_gets_its_blocks_when_nothing_can_land_any_more(setting: &Setting) {
    let tokens = setting.large() / 4 / TOKEN_BYTES;
    let blocks = |of: u32| tokens.div_ceil(u64::from(of)) as u32;
    let both = Both::open(setting, blocks(SOURCE_TOKENS), blocks(SINK_TOKENS));
    let all = both.sink.blocks;
    let bytes = u64::from(all) * TOKEN_BYTES * u64::from(SINK_TOKENS);
    let mut unproven = 0;
    for name in 1..=4 {
        let (output, input) = (both.produce(name), both.consume(name, MemoryPolicy::Wait));
        let granted = both.take(&both.sink, u64::from(all));
        both.sink.window().fill(0, bytes, 0).unwrap();
        input.grant(&granted).unwrap();
        drop(granted);
        let given = both.take(&both.source, u64::from(both.source.blocks));
        both.source
            .window()
            .fill(0, u64::from(both.source.blocks) * TOKEN_BYTES * u64::from(SOURCE_TOKENS), 0x11)
            .unwrap();
        output.chunk(&given, tokens, true).unwrap();
        drop(given);
        // In the middle of it: the first bytes are there, whichever block they are in.
        let stride = TOKEN_BYTES * u64::from(SINK_TOKENS);
        both.until("the first bytes are there", || {
            let mut byte = [0];
            (0..u64::from(all))
                .any(|block| {
                    both.sink.window().read_into(block * stride, &mut byte).unwrap();
                    byte != [0]
                })
                .then_some(())
        });
        let is_proven = input.abort(Duration::ZERO);
        unproven += u32::from(!is_proven);
        // Nobody is told of it between the two looks: who gets the blocks before can be told that nothing lands any more.
        let next = both.until("the blocks are free", || {
            let taken = both.sink.pool.take(all as usize).ok()?;
            assert!(input.abort(Duration::ZERO), "its blocks are free, and something may land in them");
            Some(taken)
        });
        both.sink.window().fill(0, bytes, 0x5a).unwrap();
        let since = Instant::now();
        both.until("a moment has passed", || (since.elapsed() > Duration::from_millis(20)).then_some(()));
        let mut found = vec![0; bytes as usize];
        both.sink.window().read_into(0, &mut found).unwrap();
        assert!(found.iter().all(|&byte| byte == 0x5a), "something has landed in blocks that were free");
        if let Err(failed) = both.until("the source ends", || output.poll()) {
            assert_eq!((failed.cause, failed.said_by), (FlowCause::Aborted, Side::Sink), "{failed:?}");
        }
        drop((output, input, next));
        both.assert_nothing_is_left();
    }
    // Where the sink alone can stop whoever writes, that is proven at once.
    assert!(unproven > 0 || !setting.is_between_hosts(), "no abort came in the middle of a transfer");
}

/// A source that fails in the middle of its layers is known at the sink within a second, in its own words, with what has not come.
pub fn scenario_09_a_source_that_fails_in_mid_layer_is_known_in_a_second(setting: &Setting) {
    let both = Both::open(setting, 16, 4);
    let request = RequestId::new("cmpl-source").unwrap();
    let how = Send::from(&both.source.layout).by_layer();
    let output = both.source.engine.produce(transfer(1), &request, how).unwrap();
    let input = both.consume(1, MemoryPolicy::Wait);
    let granted = both.take(&both.sink, 2);
    let blocks = granted.indices().to_vec();
    input.grant(&granted).unwrap();
    both.give(&output, 1, 200);
    output.layer(0, 200).unwrap();
    let layer = || input.try_next().filter(|what| matches!(what, InputEvent::Layer { layer: 0, .. }));
    both.until("the first layer is there", layer);
    let since = Instant::now();
    output.fail("the model ran out of memory in layer 1");
    let failed = both.until("the sink hears of it", || match input.try_next()? {
        InputEvent::Failed(failed) => Some(failed),
        _ => None,
    });
    assert!(since.elapsed() < KNOWN_WITHIN, "{:?}", since.elapsed());
    assert_eq!((failed.cause, failed.said_by), (FlowCause::SourceFailed, Side::Source));
    assert!(failed.words.contains("ran out of memory in layer 1"), "{failed:?}");
    let layers: Vec<(u32, u32, u32)> = failed.missing.iter().map(|run| (run.layer, run.first, run.count)).collect();
    assert_eq!((layers, failed.blocks), (vec![(1, 0, 2)], blocks), "all of the second layer, and nothing of the first");
    drop((output, input, granted));
    both.assert_nothing_is_left();
}

/// Strangers who say what is no frame, or one of a version that is not spoken here, are counted and turned away; everybody else is served.
pub fn scenario_11_what_makes_no_sense_is_counted_and_everybody_else_is_served(setting: &Setting) {
    let both = Both::open(setting, 32, 4);
    let (output, input) = (both.produce(1), both.consume(1, MemoryPolicy::Wait));
    let counted = || {
        let network = both.source.engine.network_statistics();
        network.garbled + network.refused
    };
    let before = counted();
    let mut strangers = Vec::new();
    for words in
        [&b"GET / HTTP/1.1\r\nHost: decode-0\r\n\r\n"[..], &of_the_future(), b"PNSN\x63\x00\x00\x00 and what follows"]
    {
        strangers.extend(knock(&both.source.engine, words));
    }
    both.give(&output, 1, 100);
    assert_eq!(both.receive(&input, 1, 100, 1), 1, "what was under way goes on");
    both.until("the source ends", || output.poll()).expect("the sink has everything");
    for stranger in &mut strangers {
        both.until("a stranger is turned away", || stranger.is_turned_away().then_some(()));
    }
    both.until("all were counted", || (counted() == before + strangers.len() as u64).then_some(()));
    // Whoever comes now is heard.
    let third = End::start(setting, &both.folder, "sink-1", SINK_TOKENS, 4);
    let all = [&both.source.engine, &both.sink.engine, &third.engine];
    let there = join(&third.engine, &both.source.engine, &all);
    until(&all, "the layout is told", || there.layouts().contains(&KV.to_owned()).then_some(()));
    drop((output, input));
    both.assert_nothing_is_left();
}

/// A frame of a version that nobody speaks yet.
fn of_the_future() -> Vec<u8> {
    let mut frame = rogue::encoded(&Frame::Goodbye, 0);
    frame[4..6].copy_from_slice(&99_u16.to_le_bytes());
    frame.extend([0; 16]);
    frame
}

/// Says this at each door of an engine.
fn knock(engine: &Engine, words: &[u8]) -> Vec<Stranger> {
    let card = EngineDescriptor::decode(&engine.descriptor()).expect("an engine's own descriptor");
    let here = UnixStream::connect(&card.socket).expect("it listens");
    here.set_nonblocking(true).expect("a socket");
    let mut strangers = vec![Stranger::Here(here)];
    for address in engine.addresses() {
        let far = TcpStream::connect(address).expect("it listens");
        far.set_nonblocking(true).expect("a socket");
        strangers.push(Stranger::Far(far));
    }
    for stranger in &mut strangers {
        match stranger {
            Stranger::Here(stream) => stream.write_all(words),
            Stranger::Far(stream) => stream.write_all(words),
        }
        .expect("there is room for a few words");
    }
    strangers
}

/// Who is not of the session.
enum Stranger {
    Here(UnixStream),
    Far(TcpStream),
}

impl Stranger {
    /// The engine has closed its connection, at most after a word about why.
    fn is_turned_away(&mut self) -> bool {
        let mut bytes = [0; 4096];
        let read = match self {
            Self::Here(stream) => stream.read(&mut bytes),
            Self::Far(stream) => stream.read(&mut bytes),
        };
        match read {
            Ok(read) => read == 0,
            Err(error) => error.kind() != ErrorKind::WouldBlock,
        }
    }
}

/// An engine that was started again under the same name is another one: what it was told before is not for it.
pub fn scenario_12_a_restarted_peer_is_another_one(setting: &Setting) {
    let both = Both::open(setting, 16, 4);
    let (output, input) = (both.produce(1), both.consume(1, MemoryPolicy::Wait));
    input.grant(&both.take(&both.sink, 2)).unwrap();
    let Both { there, sink, source, setting, folder } = both;
    drop((output, source));
    let failed = until(&[&sink.engine], "the sink hears of its end", || match input.try_next()? {
        InputEvent::Failed(failed) => Some(failed),
        _ => None,
    });
    assert!(
        matches!(
            failed.cause,
            FlowCause::PeerClosed | FlowCause::PeerLost | FlowCause::Aborted | FlowCause::EngineClosed
        ),
        "{failed:?}"
    );
    drop((input, there));
    let source = End::start(&setting, &folder, SOURCE, SOURCE_TOKENS, 16);
    let there = join(&sink.engine, &source.engine, &[&source.engine, &sink.engine]);
    let both = Both { there, sink, source, setting, folder };
    both.until("the layout is told", || both.there.layouts().contains(&KV.to_owned()).then_some(()));
    // The new one does not know the old name, and can give it anew under the next attempt.
    assert_eq!(both.source.engine.request_of(Side::Source, transfer(1)), None);
    let (output, input) = (both.produce(2), both.consume(2, MemoryPolicy::Wait));
    both.give(&output, 2, 100);
    assert_eq!(both.receive(&input, 2, 100, 1), 1);
    both.until("the source ends", || output.poll()).expect("the sink has everything");
    drop((output, input));
    assert!(!both.setting.is_inline() || both.source.engine.progress_all().is_ok());
    both.assert_nothing_is_left();
}
