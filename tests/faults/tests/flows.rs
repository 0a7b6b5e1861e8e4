//! What becomes of memory that is lent to a reader that is killed, or stands still.
#![allow(clippy::print_stderr, reason = "the figures are what a reader of the output looks for")]

use std::time::{Duration, Instant};

use penstock::Engine;
use penstock::config::{Progress, TransportName};
use penstock::flows::{FlowCause, Layout, Output, Send};
use penstock::region::Pool;
use penstock::{Blocks, SystemEnv};
use penstock_faults::child::{Child, to_word};
use penstock_faults::folder::Folder;
use penstock_faults::frozen::{Stopped, wait_until};
use penstock_faults::pair::{PATIENCE, config};
use penstock_faults::pullers::{BLOCKS, TOKENS, pool, request, transfer};
use penstock_faults::seed::Random;

const CHILD: &str = env!("CARGO_BIN_EXE_penstock-faults-child");
/// How long a lease stands here without being renewed.
const LEASE: Duration = Duration::from_millis(400);
/// What is promised beyond that.
const SLACK: Duration = Duration::from_millis(100);
/// What a machine that is busy with other tests may take besides.
const ROOM: Duration = Duration::from_secs(2);

/// An engine that lends. Fields end in this order.
struct Lender {
    layout: Layout<SystemEnv>,
    pool: Pool<SystemEnv>,
    engine: Engine,
    folder: Folder,
    word: &'static str,
}

impl Lender {
    fn start(label: &str, transport: TransportName) -> Self {
        let folder = Folder::new(label);
        let engine = Engine::start(config(folder.path(), "lender", transport, Progress::Adaptive)).unwrap();
        let (layout, pool) = pool(&engine);
        let word = if transport == TransportName::Tcp { "tcp" } else { "shm" };
        Self { layout, pool, engine, folder, word }
    }

    /// Lends all blocks to a reader in a process of its own, of which the first layer can be read.
    fn lend(&self, number: u32) -> (Output<SystemEnv>, Child) {
        let how = Send::from(&self.layout).by_layer().lend().lease(LEASE);
        let output = self.engine.produce(transfer(number), &request(number), how).unwrap();
        let blocks = self.all();
        output.chunk(&blocks, TOKENS, true).unwrap();
        drop(blocks);
        let (path, name) = (self.folder.path().to_str().unwrap(), format!("reader-{number}"));
        let card = to_word(&self.engine.descriptor());
        let mut reader = Child::start(CHILD, &["pull", path, &name, self.word, &card]);
        assert_eq!(reader.answer(PATIENCE), "reads");
        (output, reader)
    }

    /// All blocks, as soon as they are free.
    fn all(&self) -> Blocks {
        let taken = self.pool.take_within(BLOCKS as usize, PATIENCE);
        taken.unwrap_or_else(|error| panic!("{error}: {:?}", self.engine.control_metrics()))
    }

    fn assert_nothing_is_left(&self) {
        let is_empty = || {
            let metrics = self.engine.control_metrics();
            (metrics.transfers.live, metrics.ending, metrics.lent) == (0, 0, 0)
        };
        assert!(wait_until(is_empty), "{:?}", self.engine.control_metrics());
    }
}

/// Killed at any time while it reads, or waits to.
fn a_killed_reader_costs_its_lease_at_most(label: &str, transport: TransportName) {
    let lender = Lender::start(label, transport);
    let (mut random, mut worst) = (Random::new(7), Duration::ZERO);
    for number in 0..8 {
        let (output, reader) = lender.lend(number);
        assert!(lender.pool.take(1).is_err(), "everything is lent");
        output.layer(0, TOKENS).unwrap();
        if number % 2 == 0 {
            // It may have everything before it is killed, but for the second layer.
            output.layer(1, TOKENS).unwrap();
        }
        std::thread::sleep(Duration::from_micros(random.below(20_000)));
        let killed = Instant::now();
        Stopped::new(&reader).kill();
        let free = lender.all();
        worst = worst.max(killed.elapsed());
        drop(free);
        if let Err(failed) = output.wait(PATIENCE).unwrap() {
            assert!(
                matches!(failed.cause, FlowCause::PeerLost | FlowCause::PeerClosed | FlowCause::Expired),
                "{failed:?}"
            );
        }
        drop(reader);
        lender.folder.sweep_up_after(&format!("reader-{number}"));
    }
    assert!(worst <= LEASE + SLACK + ROOM, "{worst:?}");
    eprintln!("{label}: blocks lent to a killed reader were free after {worst:?} at most");
    lender.assert_nothing_is_left();
}

#[test]
fn a_reader_killed_in_mid_pull_over_mapped_pools_costs_its_lease_at_most() {
    a_killed_reader_costs_its_lease_at_most("pull-killed-shm", TransportName::Shm);
}

#[test]
fn a_reader_killed_in_mid_pull_over_sockets_costs_its_lease_at_most() {
    a_killed_reader_costs_its_lease_at_most("pull-killed-tcp", TransportName::Tcp);
}

/// Stopped, it renews nothing: its lease ends, and what it may be copying from is kept until it is seen not to.
#[test]
fn a_reader_that_is_stopped_in_mid_pull_gets_expired_and_its_blocks_are_never_freed_under_it() {
    let lender = Lender::start("pull-frozen", TransportName::Shm);
    let mut random = Random::new(11);
    for number in 0..4 {
        let (output, mut reader) = lender.lend(number);
        output.layer(0, TOKENS).unwrap();
        std::thread::sleep(Duration::from_micros(random.below(8_000)));
        let stopped = Stopped::new(&reader);
        let since = Instant::now();
        let failed = output.wait(PATIENCE).unwrap().unwrap_err();
        let took = since.elapsed();
        assert_eq!(failed.cause, FlowCause::Expired);
        assert!(took <= LEASE + SLACK + ROOM, "{took:?}");
        let was_copying = lender.engine.control_metrics().lent > 0 && {
            std::thread::sleep(SLACK);
            lender.engine.control_metrics().lent > 0
        };
        if was_copying {
            assert!(lender.pool.take(1).is_err(), "blocks are kept for as long as it may read them");
        } else {
            drop(lender.all());
        }
        drop(stopped);
        assert_eq!(reader.answer(PATIENCE), format!("Expired {BLOCKS}"), "never stale bytes");
        drop(lender.all());
        drop(output);
        reader.finish();
        eprintln!("stopped reader {number}: in a copy: {was_copying}; its lease had ended after {took:?}");
    }
    lender.assert_nothing_is_left();
}
