//! Engines that end leave no descriptors, threads, mappings or files behind.
//!
//! A program of its own with a single test: what is counted is the process's.

use std::time::{Duration, Instant};

use penstock::config::TransportName::{Local, Shm};
use penstock::{NoteId, Plan, Submit};
use penstock_conformance::command::{Command, Reply};
use penstock_conformance::target::footprint;
use penstock_conformance::{Options, Place, Setting, Stage};

const THERE: Place = Place::Process(env!("CARGO_BIN_EXE_penstock-conformance-peer"));

/// The threads of a process whose engine has ended: who runs it, and who reads its orders.
const THREADS_AT_REST: usize = 2;

/// The other process without its engine. Threads that have ended need a moment until the kernel has forgotten them.
fn at_rest(stage: &mut Stage) -> Reply {
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        let found = stage.ask(0, Command::Footprint);
        if matches!(found, Reply::Footprint { threads: THREADS_AT_REST, .. }) {
            return found;
        }
        assert!(Instant::now() < until, "{found:?}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A life of two engines, from start to end.
fn live(setting: &Setting) {
    let mut stage = Stage::open(setting);
    let there = stage.ask(0, Command::Footprint);
    for name in ["second", "third"] {
        stage.add_target(name, Options::default());
    }
    let counter = stage.near.counter("own").unwrap();
    for number in 0..3 {
        let plan = Plan::write(&stage.near, &stage.region(number, "kv")).blocks(&[(0, 1)]).build().unwrap();
        let how = Submit::new().notify(NoteId(1), b"taken by nobody");
        stage.submit(&stage.peers[number], &plan, how).wait().unwrap();
    }
    assert_eq!(counter.value(), 0);
    if setting.place != Place::Here {
        // The other process lives on after its engine: it must be as it was before.
        stage.order(0, Command::Stop);
        let stopped = at_rest(&mut stage);
        assert_ne!(there, stopped, "a running engine has descriptors");
        stage.start_engine(0, "target-0", Options::default());
        stage.order(0, Command::Stop);
        assert_eq!(at_rest(&mut stage), stopped, "{setting}: the other process");
    }
}

#[test]
fn engines_leave_nothing_behind() {
    let (here, inline) = (Place::Here, Setting::inline);
    let settings = [
        Setting::adaptive(Local, 2, here),
        inline(Local, here),
        Setting::adaptive(Shm, 2, THERE),
        inline(Shm, THERE),
        Setting::adaptive(Shm, 1, here),
        inline(Shm, here),
    ];
    let before = footprint().unwrap();
    let Reply::Footprint { mappings: 0, .. } = before else { panic!("not a fresh process: {before:?}") };
    for setting in settings {
        for _ in 0..3 {
            live(&setting);
        }
        // Threads that were told to end need a moment until the kernel has forgotten them.
        let until = Instant::now() + Duration::from_secs(5);
        while footprint().unwrap() != before && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(footprint().unwrap(), before, "{setting}: this process");
    }
}
