//! An engine that ends while a peer is stopped in the middle of a copy into memory of the engine's: that memory is
//! given to nobody before the peer is seen to have moved on.

use std::time::{Duration, Instant};

use penstock::config::{Progress, TransportName};
use penstock::{Cause, Engine, HostMemory, Rights};
use penstock_faults::child::Child;
use penstock_faults::folder::Folder;
use penstock_faults::frozen::{BLOCK_BYTES, CANARY, Stopped, WRITTEN, start_writer, wait_until};
use penstock_faults::pair::{PATIENCE, config};

const CHILD: &str = env!("CARGO_BIN_EXE_penstock-faults-child");
const BYTES: usize = WRITTEN * BLOCK_BYTES as usize;
/// Engines that end until one does so beside a frozen copy that goes on and lands.
const ENDS_MAX: u32 = 40;
/// Engines that are dropped at least.
const DROPS: u32 = 5;

/// An engine with memory from the heap, and a writer that was stopped while it wrote there.
struct Scene {
    stopped: Stopped,
    writer: Child,
    base: u64,
    engine: Engine,
    _folder: Folder,
}

impl Scene {
    fn new(label: &str, round: u32) -> Self {
        let folder = Folder::new(label);
        let owner = config(folder.path(), "owner", TransportName::Shm, Progress::Adaptive);
        let engine = Engine::start(owner).expect("an engine starts in a fresh folder");
        let memory = HostMemory::from_vec(vec![0; BYTES]).expect("there is memory");
        let window = memory.window().clone();
        drop(engine.register(memory, "board", Rights::READ_WRITE).expect("it can be registered"));
        let mut writer = start_writer(&folder, "writer", &engine, CHILD);
        writer.order("write");
        let start = Instant::now();
        while window.load_u64(BYTES as u64 - 8).expect("it is as long as that") == 0 {
            assert!(start.elapsed() < PATIENCE, "the writer does not write");
            std::thread::yield_now();
        }
        std::thread::sleep(Duration::from_micros(u64::from(round) * 97 % 2000));
        let stopped = Stopped::new(&writer);
        Self { stopped, writer, base: window.base_address(), engine, _folder: folder }
    }
}

/// Memory as it is allocated by a program that goes on. Large blocks come from where others of their size were freed.
fn canaries() -> Vec<Vec<u8>> {
    (0..4).map(|_| vec![CANARY; BYTES]).collect()
}

fn overlaps(canary: &[u8], base: u64) -> bool {
    let at = canary.as_ptr() as u64;
    at < base + BYTES as u64 && base < at + canary.len() as u64
}

fn are_whole(canaries: &[Vec<u8>]) -> bool {
    canaries.iter().all(|canary| canary.iter().all(|&byte| byte == CANARY))
}

#[test]
fn memory_of_a_dropped_engine_is_given_to_nobody_while_a_frozen_peer_may_write_there() {
    let mut kept = 0;
    let mut rounds = 0..ENDS_MAX;
    while let Some(round) = rounds.next().filter(|&round| round < DROPS || kept == 0) {
        let Scene { stopped, writer, base, engine, _folder } = Scene::new("dropped", round);
        drop(engine);
        let canaries = canaries();
        kept += u32::from(!canaries.iter().any(|canary| overlaps(canary, base)));
        drop(stopped);
        std::thread::sleep(Duration::from_millis(50));
        assert!(are_whole(&canaries), "a peer of an ended engine wrote into memory that is another's");
        writer.finish();
    }
    assert!(kept > 0, "no stop came in the middle of a copy");
}

#[test]
fn a_closed_engine_says_what_a_frozen_peer_may_still_write_and_it_can_be_asked_without_the_engine() {
    let mut landed = false;
    for round in 0..ENDS_MAX {
        let Scene { stopped, writer, base, engine, _folder } = Scene::new("closed", round);
        let within = Duration::from_millis(400);
        let start = Instant::now();
        let held = engine.close(within);
        assert!(start.elapsed() < within + PATIENCE / 4, "it answered after {:?}", start.elapsed());
        let Some(board) = held.first() else {
            // It was stopped between two copies, and finds the withdrawal before the next.
            let canaries = canaries();
            drop(stopped);
            std::thread::sleep(Duration::from_millis(50));
            assert!(are_whole(&canaries), "memory that was answered to be quiet was written");
            writer.finish();
            continue;
        };
        assert_eq!((held.len(), board.region(), board.ranges()), (1, "board", vec![(base, BYTES as u64)]));
        let suspects: Vec<String> = board.suspects().into_iter().flatten().map(|peer| peer.to_string()).collect();
        assert_eq!(suspects, ["writer"]);
        assert!(!board.is_released(), "the writer stands still in the middle of a copy");
        let canaries = canaries();
        assert!(!canaries.iter().any(|canary| overlaps(canary, base)), "the memory was given away");
        drop(stopped);
        assert!(wait_until(|| board.is_released()), "the writer runs again and is not seen to move: {board:?}");
        assert!(are_whole(&canaries));
        landed = true;
        writer.finish();
        drop(held);
        let again = vec![CANARY; BYTES];
        if overlaps(&again, base) {
            return; // The proof has come, so the memory was freed and is as good as any other.
        }
    }
    assert!(landed, "no stop came in the middle of a copy");
}

#[test]
fn an_engine_beside_a_peer_that_runs_is_closed_with_nothing_left() {
    for round in 0..4 {
        let Scene { stopped, mut writer, engine, _folder, .. } = Scene::new("quiet", round);
        drop(stopped);
        let start = Instant::now();
        assert!(engine.close(Duration::from_secs(5)).is_empty(), "a peer that runs is no reason");
        assert!(start.elapsed() < Duration::from_secs(4), "it took {:?}", start.elapsed());
        writer.order("end");
        let end = writer.answer(PATIENCE);
        let ends = [Cause::PeerClosed, Cause::RevokedByPeer].map(Cause::text);
        assert!(ends.iter().any(|text| end.contains(text)), "{end}");
        writer.finish();
    }
}
