//! When memory may be used again: a request is named by `drain_finished` when nothing can touch its memory any more.

use std::time::{Duration, Instant};

use penstock::config::{ProcessVmChoice, Progress, TransportName};
use penstock::flows::{
    BlockHeld, CallError, FinishedTransfer, FlowError, Input, InputEvent, Layout, LayoutSpec, Output, Receive,
    RequestId, Rows, Send, Status, TransferId,
};
use penstock::region::Pool;
use penstock::{Armed, Blocks, Engine, HostMemory, LocalRegion, Peer, PoolSpec, Rights, SystemEnv};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::ends::{Folder, PATIENCE, UUID};

const BLOCKS: u32 = 256;
const TOKENS: u32 = 16;
const ROW: u32 = 4096;
const BLOCK: u64 = TOKENS as u64 * ROW as u64;
/// Blocks of one transfer: 12.5 MiB, which take a while on every path.
const SENT: usize = 200;
/// Bytes of what goes once, where the layout has it.
const ONCE: u64 = 4096;
/// What a source sends, and what the next owner of a sink's memory writes there.
const OLD: u8 = 0x77;
const NEXT: u8 = 0xaa;

/// Where the blocks of an end lie.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Ground {
    /// In a pool.
    Pool,
    /// In memory of the caller's; a pool of its own numbers its blocks.
    Registered,
}

/// One engine. Fields end in this order.
struct End {
    layout: Layout<SystemEnv>,
    memory: LocalRegion<SystemEnv>,
    numbers: Pool<SystemEnv>,
    engine: Engine,
}

impl End {
    fn start(folder: &Folder, name: &str, way: Way) -> Self {
        Self::start_as(folder, name, way, Progress::Adaptive)
    }

    fn start_as(folder: &Folder, name: &str, way: Way, progress: Progress) -> Self {
        let engine = folder.engine_with(name, way.transport, progress, |config| {
            if way.is_bounced { config.process_vm(ProcessVmChoice::Off) } else { config }
        });
        let rows = Rows { first: 0, count: 1, of: 1, bytes: ROW };
        let end = u64::from(BLOCKS) * BLOCK;
        let rows_only = LayoutSpec::new("kv", TOKENS, BLOCKS).token_major(0, 0, rows);
        let spec = if way.has_once { rows_only.once(0, end, ONCE) } else { rows_only };
        let bytes = end + if way.has_once { u64::from(BLOCKS) * ONCE } else { 0 };
        let (numbers, memory) = match way.ground {
            Ground::Pool => {
                // What goes once lies behind all blocks: the pool has more of them than the layout.
                let spec =
                    PoolSpec::host(bytes.next_multiple_of(BLOCK)).block(BLOCK).label("kv").rights(Rights::READ_WRITE);
                let pool = engine.pool(spec).unwrap();
                let region = LocalRegion::clone(&pool);
                (pool, region)
            }
            Ground::Registered => {
                let spec = PoolSpec::host(u64::from(BLOCKS) * 4096).block(4096).label("numbers");
                let memory = HostMemory::from_vec(vec![0; bytes as usize]).unwrap();
                (engine.pool(spec).unwrap(), engine.register(memory, "kv", Rights::READ_WRITE).unwrap())
            }
        };
        let layout = engine.layout(&memory, spec).unwrap();
        Self { layout, memory, numbers, engine }
    }

    fn take(&self, count: usize) -> Blocks {
        let taken = self.numbers.take_within(count, PATIENCE);
        taken.unwrap_or_else(|error| panic!("{error}: {:?}", self.engine.control_metrics()))
    }

    fn fill(&self, blocks: &[u32], byte: u8) {
        blocks
            .iter()
            .for_each(|&block| self.memory.host().unwrap().fill(u64::from(block) * BLOCK, BLOCK, byte).unwrap());
    }

    /// Bytes of these blocks that are not this one.
    fn others(&self, blocks: &[u32], byte: u8) -> usize {
        let mut found = vec![0; BLOCK as usize];
        let count = |&block: &u32| {
            self.memory.host().unwrap().read_into(u64::from(block) * BLOCK, &mut found).unwrap();
            found.iter().filter(|found| **found != byte).count()
        };
        blocks.iter().map(count).sum()
    }

    /// Sleeps on the event fd until what was drained has something.
    fn wait_finished(&self, finished: &mut FinishedTransfer, has: impl Fn(&FinishedTransfer) -> bool) {
        let until = Instant::now() + PATIENCE;
        loop {
            self.engine.drain_finished(finished);
            if has(finished) {
                return;
            }
            assert!(Instant::now() < until, "{finished:?}: {:?}", self.engine.control_metrics());
            if self.engine.arm().unwrap() == Armed::Armed {
                let descriptor = self.engine.event_fd();
                let mut fds = [PollFd::new(&descriptor, PollFlags::IN)];
                let rung = poll(&mut fds, Some(&Timespec { tv_sec: 5, tv_nsec: 0 })).unwrap();
                self.engine.drain_finished(finished);
                assert!(rung > 0 || !has(finished), "the event fd says when something can be drained");
            }
        }
    }

    /// Waits until this request is named, and what was quarantined of it then is released. Answers whether it has failed.
    fn wait_named(&self, request: &RequestId) -> bool {
        let mut finished = FinishedTransfer::default();
        let has_ended =
            |finished: &FinishedTransfer| finished.sent.len() + finished.received.len() + finished.failed.len() > 0;
        self.wait_finished(&mut finished, has_ended);
        if !finished.quarantined.is_empty() {
            // A machine that is busy answers late.
            self.wait_finished(&mut finished, |finished| !finished.released.is_empty());
        }
        let named: Vec<&RequestId> = finished.sent.iter().chain(&finished.received).chain(&finished.failed).collect();
        assert_eq!(named, [request], "each is named once");
        !finished.failed.is_empty()
    }
}

#[derive(Debug, Clone, Copy)]
struct Way {
    transport: TransportName,
    ground: Ground,
    /// The kernel lets neither process reach the other.
    is_bounced: bool,
    /// Something goes once for a transfer.
    has_once: bool,
}

const fn way(transport: TransportName, ground: Ground) -> Way {
    Way { transport, ground, is_bounced: false, has_once: false }
}

/// The source, as the sink knows it.
fn connect(source: &End, sink: &End) -> Peer<SystemEnv> {
    std::thread::scope(|scope| {
        let (descriptor, is_inline) = (source.engine.descriptor(), source.engine.progress().is_ok());
        let called = scope.spawn(move || {
            let there = sink.engine.connect(&descriptor, PATIENCE).unwrap();
            there.wait_layout("kv", PATIENCE).unwrap();
            there
        });
        while is_inline && !called.is_finished() {
            source.engine.progress_all().unwrap();
        }
        called.join().unwrap()
    })
}

/// The names of a transfer: its own, and what the source and the sink call it.
fn names(number: u32) -> (TransferId, [RequestId; 2]) {
    let requests = ["a", "b"].map(|half| RequestId::new(&format!("{half}-{number}")).unwrap());
    (TransferId::mint(UUID, number, 0).unwrap(), requests)
}

/// Who ends it, and how.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Ends {
    SinkFails,
    SinkDrops,
    SourceFails,
    SourceDrops,
}

/// One transfer that is ended while its bytes move.
fn ended_early(source: &End, sink: &End, there: &Peer<SystemEnv>, number: u32, is_pull: bool, ends: Ends) {
    let (transfer, [sent, received]) = names(number);
    let how = Send::from(&source.layout);
    let output: Output<SystemEnv> =
        source.engine.produce(transfer, &sent, if is_pull { how.lend() } else { how }).unwrap();
    let how = Receive::into(&sink.layout).from(0, there);
    let input: Input<SystemEnv> =
        sink.engine.consume(transfer, &received, if is_pull { how.pull() } else { how }).unwrap();
    let (here, blocks) = (source.take(SENT), sink.take(SENT));
    source.fill(here.indices(), OLD);
    input.grant(&blocks).unwrap();
    output.chunk(&here, SENT as u64 * u64::from(TOKENS), true).unwrap();
    let since = Instant::now();
    while output.status() != Status::Transferring && since.elapsed() < Duration::from_millis(100) {
        std::thread::yield_now();
    }
    std::thread::sleep(Duration::from_micros(u64::from(number % 7) * 150));
    let (mut input, mut output) = (Some(input), Some(output));
    match ends {
        Ends::SinkFails => input.iter().for_each(|input| input.fail("x")),
        Ends::SinkDrops => drop(input.take()),
        Ends::SourceFails => output.iter().for_each(|output| output.fail("x")),
        Ends::SourceDrops => drop(output.take()),
    }
    // One that was quicker than who ends it has ended well, and is as quiet.
    sink.wait_named(&received);
    // The next owner.
    sink.fill(blocks.indices(), NEXT);
    std::thread::sleep(Duration::from_millis(3));
    let touched = sink.others(blocks.indices(), NEXT);
    assert_eq!(touched, 0, "bytes of the next owner's were overwritten after `failed` had named the one before");
    if source.wait_named(&sent)
        && let Some(output) = &output
    {
        assert!(output.abort(Duration::ZERO), "nothing of it moves any more when it is named");
    }
}

fn memory_is_nobodys_when_failed_names_it(way: Way, rounds: u32) {
    let folder = Folder::new();
    let (source, sink) = (End::start(&folder, "prefill-0", way), End::start(&folder, "decode-0", way));
    let there = connect(&source, &sink);
    let mut number = 0;
    for _ in 0..rounds {
        for is_pull in [false, true] {
            for ends in [Ends::SinkFails, Ends::SinkDrops, Ends::SourceFails, Ends::SourceDrops] {
                number += 1;
                ended_early(&source, &sink, &there, number, is_pull, ends);
            }
        }
    }
}

#[test]
fn memory_is_nobodys_when_failed_names_its_request_within_a_process() {
    memory_is_nobodys_when_failed_names_it(way(TransportName::Local, Ground::Registered), 5);
}

#[test]
fn memory_is_nobodys_when_failed_names_its_request_in_mapped_pools() {
    memory_is_nobodys_when_failed_names_it(way(TransportName::Shm, Ground::Pool), 5);
}

#[test]
fn memory_is_nobodys_when_failed_names_its_request_where_the_kernel_copies() {
    memory_is_nobodys_when_failed_names_it(way(TransportName::Shm, Ground::Registered), 5);
}

#[test]
fn memory_is_nobodys_when_failed_names_its_request_behind_bounce_slots() {
    let bounced = Way { is_bounced: true, ..way(TransportName::Shm, Ground::Registered) };
    memory_is_nobodys_when_failed_names_it(bounced, 5);
}

#[test]
fn memory_is_nobodys_when_failed_names_its_request_in_pools_over_sockets() {
    memory_is_nobodys_when_failed_names_it(way(TransportName::Tcp, Ground::Pool), 5);
}

#[test]
fn memory_is_nobodys_when_failed_names_its_request_in_memory_of_the_callers_over_sockets() {
    memory_is_nobodys_when_failed_names_it(way(TransportName::Tcp, Ground::Registered), 5);
}

/// A source that is not turned answers nothing: its session stands until the heartbeat's time is over.
#[test]
fn what_is_quarantined_is_named_with_its_extents_and_released_when_the_source_has_answered() {
    for (ground, is_dropped) in [(Ground::Pool, false), (Ground::Registered, false), (Ground::Registered, true)] {
        let (folder, way) = (Folder::new(), way(TransportName::Tcp, ground));
        let source = End::start_as(&folder, "prefill-0", way, Progress::Inline);
        let sink = End::start(&folder, "decode-0", way);
        let there = connect(&source, &sink);
        let (transfer, [sent, received]) = names(1);
        let output = source.engine.produce(transfer, &sent, Send::from(&source.layout)).unwrap();
        let input = sink.engine.consume(transfer, &received, Receive::into(&sink.layout).from(0, &there)).unwrap();
        let (here, blocks) = (source.take(SENT), sink.take(2));
        input.grant(&blocks).unwrap();
        output.chunk(&here, SENT as u64 * u64::from(TOKENS), true).unwrap();
        let since = Instant::now();
        while output.status() != Status::Transferring {
            source.engine.progress_all().unwrap();
            assert!(since.elapsed() < PATIENCE);
        }
        let since = Instant::now();
        let input = if is_dropped {
            drop(input);
            None
        } else {
            input.fail("x");
            Some(input)
        };
        if let Some(input) = &input {
            assert!(matches!(input.next(PATIENCE).unwrap(), InputEvent::Layer { .. } | InputEvent::Failed(_)));
            assert_eq!(input.status(), Status::Failed, "that it has failed is known at once");
        }
        let mut finished = FinishedTransfer::default();
        sink.wait_finished(&mut finished, |finished| !finished.failed.is_empty());
        let took = since.elapsed();
        assert!(took >= Duration::from_millis(400), "not before the time for an answer is over: {took:?}");
        assert_eq!((&finished.failed, finished.quarantined.len()), (&vec![received.clone()], 1), "{finished:?}");
        let of_it = &finished.quarantined[0];
        assert_eq!((&of_it.request, of_it.transfer, &of_it.layout[..]), (&received, transfer, "kv"));
        let mut indices = blocks.indices().to_vec();
        indices.sort_unstable();
        assert_eq!(of_it.blocks, indices);
        assert_eq!(of_it.extents.iter().map(|(_, len)| len).sum::<u64>(), 2 * BLOCK);
        assert!(finished.released.is_empty());
        // It is turned again.
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                sink.wait_finished(&mut finished, |finished| !finished.released.is_empty());
            });
            while !waits.is_finished() {
                source.engine.progress_all().unwrap();
            }
        });
        assert_eq!((&finished.failed, &finished.released), (&vec![received.clone()], &vec![received]));
        sink.fill(blocks.indices(), NEXT);
        for _ in 0..1000 {
            source.engine.progress_all().unwrap();
        }
        assert_eq!(sink.others(blocks.indices(), NEXT), 0);
        drop((input, output));
    }
}

/// What goes once is written with the first part: whoever gives the transfer up gets its block back with the others, and not earlier.
#[test]
fn the_block_for_what_goes_once_is_kept_until_nothing_can_land_there() {
    for transport in [TransportName::Shm, TransportName::Tcp] {
        let way = Way { has_once: true, ..way(transport, Ground::Pool) };
        let folder = Folder::new();
        let (source, sink) = (End::start(&folder, "prefill-0", way), End::start(&folder, "decode-0", way));
        let there = connect(&source, &sink);
        let mut kept = 0;
        for number in 1..=40 {
            let (transfer, [sent, received]) = names(number);
            let once = source.take(1);
            let how = Send::from(&source.layout).once(&once);
            let output = source.engine.produce(transfer, &sent, how).unwrap();
            let of_source = (once.get(0).unwrap(), std::sync::Arc::clone(once.allocator()));
            drop(once);
            let how = Receive::into(&sink.layout).from(0, &there);
            let input = sink.engine.consume(transfer, &received, how).unwrap();
            let here = source.take(SENT);
            output.chunk(&here, SENT as u64 * u64::from(TOKENS), true).unwrap();
            drop(here);
            let (blocks, once) = (sink.take(SENT), sink.take(1));
            input.grant_with(&blocks, 0, Some(&once)).unwrap();
            let (id, allocator) = (once.get(0).unwrap(), std::sync::Arc::clone(once.allocator()));
            drop((blocks, once));
            std::thread::sleep(Duration::from_micros(u64::from(number % 5) * 100));
            input.fail("x");
            let (is_kept, is_kept_there) = (allocator.holders(id).is_ok(), of_source.1.holders(of_source.0).is_ok());
            let is_quiet = input.abort(Duration::ZERO);
            assert!(is_kept || is_quiet, "round {number}: its block is free, and something may land there");
            assert!(is_kept_there || output.abort(Duration::ZERO), "round {number}: it is read at the source");
            kept += u32::from(is_kept && !is_quiet);
            // The next owner.
            let next = sink.numbers.take_within(1, PATIENCE).unwrap();
            let at = u64::from(BLOCKS) * BLOCK + u64::from(id.index) * ONCE;
            let is_its = next.indices() == [id.index];
            if is_its {
                sink.memory.host().unwrap().fill(at, ONCE, NEXT).unwrap();
            }
            assert!(input.abort(PATIENCE));
            let mut found = vec![0; ONCE as usize];
            sink.memory.host().unwrap().read_into(at, &mut found).unwrap();
            assert!(!is_its || found.iter().all(|byte| *byte == NEXT), "round {number}: it was overwritten");
            drop((input, output, next));
        }
        assert!(kept > 0, "no round was quick enough to show anything");
    }
}

#[test]
fn what_goes_once_has_exactly_one_block_of_the_layouts_pool() {
    let way = Way { has_once: true, ..way(TransportName::Local, Ground::Pool) };
    let folder = Folder::new();
    let (source, sink) = (End::start(&folder, "prefill-0", way), End::start(&folder, "decode-0", way));
    let there = connect(&source, &sink);
    let (transfer, [sent, received]) = names(1);
    let input = sink.engine.consume(transfer, &received, Receive::into(&sink.layout).from(0, &there)).unwrap();
    for (blocks, expected) in
        [(sink.take(2), "2 were given"), (sink.take(0), "0 were given"), (source.take(1), "blocks of another pool")]
    {
        let error = input.grant_with(&sink.take(1), 0, Some(&blocks)).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        let layout = if expected.contains("another") { &sink } else { &source };
        let blocks = if expected.contains("another") { blocks } else { source.take(blocks.len()) };
        let how = Send::from(&layout.layout).once(&blocks);
        let error = layout.engine.produce(transfer, &sent, how).map(drop).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    // Another transfer's.
    let taken = sink.take(2);
    input.grant_with(&taken, 0, Some(&sink.take(1))).unwrap();
    let (other, [_, second]) = names(2);
    let second = sink.engine.consume(other, &second, Receive::into(&sink.layout).from(0, &there)).unwrap();
    let one = taken.allocator().retain_range(taken.offset(1).unwrap(), BLOCK);
    let error = second.grant_with(&sink.take(1), 0, Some(&one)).unwrap_err();
    assert!(matches!(&error, FlowError::Call(CallError::Held(held)) if matches!(**held, BlockHeld::Written { .. })));
    let words = error.to_string();
    assert!(words.contains("b-1") && words.contains(&transfer.to_string()), "{words}");
}

#[test]
fn a_block_is_granted_to_one_transfer_alone_and_handed_on_when_it_is_there() {
    for way in [
        way(TransportName::Local, Ground::Registered),
        way(TransportName::Shm, Ground::Pool),
        way(TransportName::Tcp, Ground::Pool),
    ] {
        let folder = Folder::new();
        let (source, sink) = (End::start(&folder, "prefill-0", way), End::start(&folder, "decode-0", way));
        let (there, back) = (connect(&source, &sink), connect(&sink, &source));
        let inputs = [1, 2].map(|number| {
            let (transfer, [_, received]) = names(number);
            sink.engine.consume(transfer, &received, Receive::into(&sink.layout).from(0, &there)).unwrap()
        });
        let blocks = sink.take(3);
        inputs[0].grant(&blocks).unwrap();
        let refused = |result: Result<u32, FlowError>| match result {
            Err(FlowError::Call(CallError::Held(held))) => *held,
            other => panic!("{other:?}"),
        };
        let held = refused(inputs[1].grant(&blocks));
        assert!(matches!(held, BlockHeld::Written { block, .. } if block == blocks.indices()[0]), "{held}");
        assert!(held.to_string().contains("b-1"), "{held}");
        // Nor is it sent while it is written.
        let (next, [onward, home]) = names(3);
        let handed = sink.engine.produce(next, &onward, Send::from(&sink.layout)).unwrap();
        let held = refused(handed.chunk(&blocks, 48, true).map(|()| 0));
        assert!(matches!(held, BlockHeld::Written { .. }), "{held}");
        // Once its leg is there it is handed on, also before it was taken.
        let (transfer, [sent, _]) = names(1);
        let output = source.engine.produce(transfer, &sent, Send::from(&source.layout)).unwrap();
        let here = source.take(3);
        source.fill(here.indices(), OLD);
        output.chunk(&here, 48, true).unwrap();
        while !matches!(inputs[0].next(PATIENCE).unwrap(), InputEvent::Done { .. }) {}
        handed.chunk(&blocks, 48, true).unwrap();
        let held = refused(inputs[1].grant(&blocks));
        assert!(matches!(held, BlockHeld::Read { .. }), "{held}");
        assert!(held.to_string().contains("a-3"), "{held}");
        let input = source.engine.consume(next, &home, Receive::into(&source.layout).from(0, &back)).unwrap();
        let fresh = source.take(3);
        input.grant(&fresh).unwrap();
        while !matches!(input.next(PATIENCE).unwrap(), InputEvent::Done { .. }) {}
        assert_eq!(source.others(fresh.indices(), OLD), 0);
        handed.wait(PATIENCE).unwrap().unwrap();
        let held = refused(inputs[1].grant(&blocks));
        assert!(matches!(held, BlockHeld::Untaken { .. }), "{held}");
        inputs[0].taken(0).unwrap();
        inputs[1].grant(&blocks).unwrap();
        output.wait(PATIENCE).unwrap().unwrap();
    }
}
