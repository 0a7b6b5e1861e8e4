//! A source that is killed in the middle of its layers: the sink knows it within a second, and is told exactly what has not arrived.
#![allow(clippy::print_stderr, reason = "the figures are what a reader of the output looks for")]

use std::time::{Duration, Instant};

use penstock::config::{Progress, TransportName};
use penstock::flows::{Failed, FlowCause, Input, InputEvent, Layout, Missing, Receive, Side};
use penstock::region::Pool;
use penstock::{Blocks, Engine, Peer, SystemEnv};
use penstock_faults::folder::Folder;
use penstock_faults::frozen::wait_until;
use penstock_faults::pair::{PATIENCE, config};
use penstock_faults::pullers::{BLOCK_BYTES, BLOCK_TOKENS, BLOCKS, LAYERS, pool, request, transfer};
use penstock_faults::pushers::{Pusher, has_token};
use penstock_faults::seed::Random;

const CHILD: &str = env!("CARGO_BIN_EXE_penstock-faults-child");
const KNOWN_WITHIN: Duration = Duration::from_secs(1);
/// Twelve blocks and a half.
const PART: u64 = 200;
/// Those of the transfer that is cut off in the middle of its copies.
const LARGE: u64 = 512;

/// An engine that receives. Fields end in this order.
struct Sink {
    layout: Layout<SystemEnv>,
    pool: Pool<SystemEnv>,
    engine: Engine,
    folder: Folder,
}

/// One transfer into it, and the blocks of its legs in their order.
struct Incoming {
    number: u64,
    input: Input<SystemEnv>,
    blocks: Vec<u32>,
}

impl Sink {
    fn start(label: &str, transport: TransportName) -> Self {
        let folder = Folder::new(label);
        let engine = Engine::start(config(folder.path(), "sink", transport, Progress::Adaptive)).unwrap();
        let (layout, pool) = pool(&engine);
        Self { layout, pool, engine, folder }
    }

    fn consume(&self, number: u64, there: &Peer<SystemEnv>, legs: &[usize]) -> Incoming {
        let how = Receive::into(&self.layout).from(0, there);
        let input = self.engine.consume(transfer(number as u32), &request(number as u32), how).unwrap();
        let mut blocks = Vec::new();
        for &leg in legs {
            let granted = self.take(leg);
            input.grant(&granted).unwrap();
            blocks.extend_from_slice(granted.indices());
        }
        Incoming { number, input, blocks }
    }

    /// Blocks, as soon as they are free: what ended is let go by the control loop.
    fn take(&self, count: usize) -> Blocks {
        self.pool.take_within(count, PATIENCE).unwrap()
    }

    fn has(&self, incoming: &Incoming, layer: u64, token: u64) -> bool {
        let block = incoming.blocks[(token / BLOCK_TOKENS) as usize];
        has_token(&self.pool, block, incoming.number, layer, token)
    }

    /// What is not said to be missing is there, byte for byte; and the blocks are those that miss something. Answers how many those are.
    fn assert_exact(&self, incoming: &Incoming, failed: &Failed) -> usize {
        let missing = |layer: u64, place: u32| {
            let is_in =
                |run: &&Missing| u64::from(run.layer) == layer && (run.first..run.first + run.count).contains(&place);
            failed.missing.iter().any(|run| is_in(&run))
        };
        let mut blocks = Vec::new();
        for (place, &block) in (0..).zip(&incoming.blocks) {
            let misses: Vec<bool> = (0..LAYERS).map(|layer| missing(layer, place)).collect();
            for (layer, _) in (0..).zip(&misses).filter(|(_, misses)| !**misses) {
                for token in (0..BLOCK_TOKENS).map(|token| u64::from(place) * BLOCK_TOKENS + token) {
                    assert!(self.has(incoming, layer, token), "layer {layer}, token {token}, not said to be missing");
                }
            }
            if misses.contains(&true) {
                blocks.push(block);
            }
        }
        assert_eq!(failed.blocks, blocks, "{failed:?}");
        blocks.len()
    }
}

/// It ended because the source is gone.
fn failure(incoming: &Incoming) -> Failed {
    loop {
        match incoming.input.next(PATIENCE).unwrap() {
            InputEvent::Failed(failed) => {
                assert!(matches!(failed.cause, FlowCause::PeerLost | FlowCause::PeerClosed), "{failed:?}");
                assert_eq!(failed.said_by, Side::Sink);
                return *failed;
            }
            InputEvent::Done { .. } => panic!("the source was killed before it had said that it has everything"),
            _ => {}
        }
    }
}

/// By layer, the runs of places of blocks.
fn runs(failed: &Failed) -> Vec<(u32, u32, u32)> {
    failed.missing.iter().map(|run| (run.layer, run.first, run.count)).collect()
}

fn what_a_killed_source_has_not_sent_is_told_exactly(label: &str, transport: TransportName) {
    let sink = Sink::start(label, transport);
    let word = if transport == TransportName::Tcp { "tcp" } else { "shm" };
    let (mut random, mut cut) = (Random::new(13), 0);
    for life in 0..6 {
        let name = format!("source-{life}");
        let mut source = Pusher::start(CHILD, sink.folder.path(), &name, word);
        let there = sink.engine.connect(&source.card, PATIENCE).unwrap();
        there.wait_layout("kv", PATIENCE).unwrap();
        let [first, second, third] = [0, 1, 2].map(|number| 3 * life + number);
        let one_layer = sink.consume(first, &there, &[16]);
        let both_layers = sink.consume(second, &there, &[8, 8]);
        source.push(first, PART, 1, PART);
        source.push(second, PART, 2, PART);
        let has_come = || sink.has(&one_layer, 0, PART - 1) && sink.has(&both_layers, 1, PART - 1);
        assert!(wait_until(has_come), "{:?}", sink.engine.control_metrics());
        // Bytes are there before they are told of.
        std::thread::sleep(Duration::from_secs(1));
        let large = sink.consume(third, &there, &[LARGE as usize / BLOCK_TOKENS as usize]);
        source.push(third, LARGE, LAYERS, 2 * BLOCK_TOKENS);
        std::thread::sleep(Duration::from_micros(random.below(6_000)));

        let killed = Instant::now();
        source.kill();
        let ends = [&one_layer, &both_layers, &large].map(failure);
        let took = killed.elapsed();
        assert!(took < KNOWN_WITHIN, "{took:?}");
        assert_eq!(runs(&ends[0]), [(0, 12, 4), (1, 0, 16)], "half of block 12, and nothing of the other layer");
        assert_eq!(ends[0].blocks, one_layer.blocks);
        assert_eq!(runs(&ends[1]), [(0, 12, 4), (1, 12, 4)], "the first leg is whole, and four blocks of the second");
        assert_eq!(ends[1].blocks, both_layers.blocks[12..]);
        let all = [&one_layer, &both_layers, &large];
        let missing = all.iter().zip(&ends).map(|(of, end)| sink.assert_exact(of, end)).last().unwrap();
        cut += usize::from((1..large.blocks.len()).contains(&missing));
        eprintln!("{label}: known after {took:?}; of the large one {missing} of {} blocks missed", large.blocks.len());

        // The killed one can write to nothing any more, and everything comes back.
        assert!(all.iter().all(|incoming| incoming.input.abort(PATIENCE)));
        drop((one_layer, both_layers, large, there));
        let all = sink.take(BLOCKS as usize);
        sink.pool.window().fill(0, u64::from(BLOCKS) * BLOCK_BYTES, 0).unwrap();
        drop(all);
        drop(source);
        sink.folder.sweep_up_after(&name);
    }
    eprintln!("{label}: {cut} of 6 were cut between two blocks");
    let metrics = sink.engine.control_metrics();
    assert_eq!((metrics.transfers.live, metrics.ending, metrics.moving), (0, 0, 0), "{metrics:?}");
}

#[test]
fn what_a_source_killed_in_mid_layer_has_not_sent_is_told_exactly_over_mapped_pools() {
    what_a_killed_source_has_not_sent_is_told_exactly("push-killed-shm", TransportName::Shm);
}

#[test]
fn what_a_source_killed_in_mid_layer_has_not_sent_is_told_exactly_over_sockets() {
    what_a_killed_source_has_not_sent_is_told_exactly("push-killed-tcp", TransportName::Tcp);
}
