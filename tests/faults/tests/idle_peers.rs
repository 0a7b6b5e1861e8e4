//! Sixty-four idle peers cost a worker that never sleeps at most twice the time per turn of one.
#![allow(clippy::print_stderr, reason = "the figures are what a reader of the output looks for")]

use std::time::{Duration, Instant};

use penstock::config::{Progress, TransportName};
use penstock::{Engine, NoteId};
use penstock_faults::child::{Child, to_word};
use penstock_faults::folder::Folder;
use penstock_faults::pair::{PATIENCE, config};
use penstock_faults::seed::{Random, Seed};

const CHILD: &str = env!("CARGO_BIN_EXE_penstock-faults-child");
const PEERS: usize = 64;
/// Rounds at least, and at most: a busy machine spoils some of them, the best tell what a turn costs.
const ROUNDS_MIN: u64 = 3;
const ROUNDS_MAX: u64 = 12;
/// Windows of one measurement.
const WINDOWS: u32 = 12;
const WINDOW: Duration = Duration::from_millis(20);
/// More turns than this in one window, and a peer is not asleep.
const ASLEEP_TURNS_MAX: u64 = 2_000;
/// The promise.
const RATIO_MAX: f64 = 2.0;

/// The best nanoseconds per turn of an engine with one worker.
fn turn_ns(engine: &Engine) -> f64 {
    let windows = (0..WINDOWS).map(|_| {
        let (start, before) = (Instant::now(), engine.statistics().turns);
        std::thread::sleep(WINDOW);
        let turns = engine.statistics().turns - before;
        start.elapsed().as_nanos() as f64 / turns as f64
    });
    windows.fold(f64::INFINITY, f64::min)
}

fn turns_of(child: &mut Child) -> u64 {
    child.order("turns");
    child.answer(PATIENCE).parse().expect("turns are a number")
}

fn connect(children: &mut [Child], engine: &Engine) {
    let card = to_word(&engine.descriptor());
    for child in children.iter_mut() {
        child.order(&format!("connect {card}"));
    }
    for child in children {
        assert_eq!(child.answer(PATIENCE), "connected");
    }
}

/// One fresh engine with one peer, then with all. Answers the nanoseconds per turn of both.
fn round(folder: &Folder, children: &mut [Child], random: &mut Random) -> (f64, f64) {
    let config = config(folder.path(), "busy", TransportName::Shm, Progress::Busy).workers(1);
    let engine = Engine::start(config).expect("an engine starts in a fresh folder");
    connect(&mut children[..1], &engine);
    let one = turn_ns(&engine);
    connect(&mut children[1..], &engine);
    assert_eq!(engine.peers().len(), PEERS);
    let before: Vec<u64> = children.iter_mut().map(turns_of).collect();
    let all = turn_ns(&engine);
    for (child, before) in children.iter_mut().zip(before) {
        let turns = turns_of(child) - before;
        assert!(turns < ASLEEP_TURNS_MAX * u64::from(WINDOWS), "a peer made {turns} turns with nothing to do");
    }
    // Among so many, each one is heard.
    let sender = random.below(PEERS as u64) as usize;
    let id = random.below(1000) as u32;
    children[sender].order(&format!("notify {id}"));
    assert_eq!(children[sender].answer(PATIENCE), "notified");
    assert!(engine.wait_notification(PATIENCE), "a notification of one peer among many did not arrive");
    let mut notes = Vec::new();
    assert_eq!(engine.notifications(&mut notes), 1);
    assert_eq!((notes[0].id, notes[0].peer.as_str()), (NoteId(id.into()), name_of(sender).as_str()));
    (one, all)
}

fn name_of(child: usize) -> String {
    format!("idle-{child}")
}

#[test]
fn many_idle_peers_cost_at_most_twice_one() {
    let folder = Folder::new("idle-peers");
    let mut seed = Seed::of_this_run();
    let path = folder.path().to_str().expect("folders for temporary files have plain names");
    let mut children: Vec<Child> =
        (0..PEERS).map(|child| Child::start(CHILD, &["sleep", path, &name_of(child)])).collect();
    for child in &mut children {
        assert_eq!(child.answer(PATIENCE), "ready");
    }
    let (mut one, mut all) = (f64::INFINITY, f64::INFINITY);
    for number in 0..ROUNDS_MAX {
        let (with_one, with_all) = round(&folder, &mut children, &mut Random::new(seed.of_step(number)));
        eprintln!("round {number}: {with_one:.1} ns per turn with one idle peer, {with_all:.1} with {PEERS}");
        (one, all) = (one.min(with_one), all.min(with_all));
        if number + 1 >= ROUNDS_MIN && all / one < RATIO_MAX {
            break;
        }
    }
    let ratio = all / one;
    eprintln!("best: {one:.1} ns per turn with one idle peer, {all:.1} with {PEERS}, ratio {ratio:.2}");
    assert!(ratio < RATIO_MAX, "{PEERS} idle peers cost {ratio:.2} times one ({one:.1} and {all:.1} ns per turn)");
    children.into_iter().for_each(Child::finish);
}
