//! Engines that end in good order and are started again, in processes that go on.

use std::time::{Duration, Instant};

use penstock_conformance::churn::Holding;
use penstock_conformance::command::{Command, Reply};
use penstock_conformance::stage::{KV, PATIENCE};
use penstock_conformance::{Carrier, Options, Place, Setting, Stage, pattern};
use penstock_dpdk_shim::Shim;

use super::child::in_a_child;
use super::{THERE, all, alone, carried};

/// How often either side of a memif ends.
const ROUNDS: u64 = 5;
/// How often both do at once.
const TOGETHER: u64 = 200;
/// Lives of engines in this process: more than DPDK has room for devices (32) and, on a bridge, threads (128) at once, and its memory for
/// their buffers, so that what stayed would be missed before the end.
const LIVES: [(Carrier, u64); 2] = [(Carrier::Memif, 40), (Carrier::Bridge, 132)];
/// After how many of them this process is looked at first.
const EARLY: u64 = 15;
/// What DPDK's memif keeps of each life: the interrupt handle of a queue to send by, with room for hundreds of events.
const MEMIF_LEAVES_BYTES: u64 = 32 << 10;

/// Writes all, and looks at every byte.
fn moves_all(stage: &mut Stage, seed: u64) {
    pattern::fill(stage.near.window(), seed);
    stage.write(all(stage));
    stage.assert_far(0, KV, &pattern::bytes(seed, 0, stage.near.bytes() as usize));
}

/// The other engine ends and is started again, with a session.
fn restart_there(stage: &mut Stage, options: Options) {
    assert_eq!(stage.ask(0, Command::Stop), Reply::Done);
    stage.start_engine(0, "target-0", options);
    stage.peers[0] = stage.engine.reconnect(&stage.peers[0], PATIENCE).expect("it was started again");
}

#[test]
fn either_side_of_a_memif_ends_and_is_met_again() {
    let Some(_alone) = alone("either_side_of_a_memif_ends_and_is_met_again", Carrier::Memif) else { return };
    let (options, mut took) = (Options::default(), [Duration::ZERO; 2]);
    let mut stage = Stage::with(&carried(Carrier::Memif, THERE), options);
    moves_all(&mut stage, 10);
    for round in 1..=ROUNDS {
        // The client, and then the server, which it has to look for.
        let begun = Instant::now();
        restart_there(&mut stage, options);
        moves_all(&mut stage, 10 + 2 * round);
        took[0] = took[0].max(begun.elapsed());
        let begun = Instant::now();
        stage = stage.restart_here(options);
        moves_all(&mut stage, 11 + 2 * round);
        took[1] = took[1].max(begun.elapsed());
    }
    eprintln!(
        "{ROUNDS} times each: the client was back after {:.2?} at most, the server after {:.2?}",
        took[0], took[1]
    );
}

#[test]
fn both_ends_of_a_memif_end_at_once() {
    let Some(_alone) = alone("both_ends_of_a_memif_end_at_once", Carrier::Memif) else { return };
    // In one process, where a thread of DPDK's hears of the one end while the other closes.
    for round in 0..TOGETHER {
        moves_all(&mut Stage::sized(&carried(Carrier::Memif, Place::Here), 256 << 10), round);
    }
}

#[test]
fn a_forked_child_is_told_that_dpdk_is_its_parents() {
    let Some(_alone) = alone("a_forked_child_is_told_that_dpdk_is_its_parents", Carrier::Memif) else { return };
    let mut stage = Stage::with(&carried(Carrier::Memif, Place::Here), Options::default());
    let spec = carried(Carrier::Memif, THERE).spec(stage.folder.path(), "child");
    let answer = in_a_child(|| match spec.start() {
        Err(error) if error.to_string().contains("forked from has started DPDK") => 0,
        Err(error) => {
            eprintln!("{error}");
            1
        }
        Ok(_) => 2,
    });
    assert_eq!(answer, 0);
    moves_all(&mut stage, 1);
}

/// What DPDK has here: devices, and whether there is room for one more thread.
#[allow(unsafe_code, reason = "the shim is as unsafe as C")]
fn devices() -> (i32, bool) {
    let shim = Shim::find().expect("it was opened before");
    // A thread of its own, as it must leave again.
    std::thread::spawn(|| {
        // SAFETY: DPDK runs, as engines have started it; what enters leaves.
        unsafe {
            let entered = shim.penstock_dpdk_enter() == 0;
            let devices = shim.penstock_dpdk_ports();
            if entered {
                shim.penstock_dpdk_leave();
            }
            (devices, entered)
        }
    })
    .join()
    .expect("it only asks")
}

/// What this process holds, once those have ended that are ending.
fn holding(at_most: Option<Holding>) -> Holding {
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        std::thread::sleep(Duration::from_millis(50));
        let now = Holding::now();
        if Instant::now() > until || at_most.is_none_or(|before| !now.is_more_than(&before)) {
            return now;
        }
    }
}

/// Of two engines here that move bytes one ends and is started again, each in turn.
fn come_and_go(setting: &Setting, lives: u64) {
    let (begun, mut early) = (Instant::now(), None);
    let options = Options { bytes: 256 << 10, ..Options::default() };
    let mut stage = Stage::with(setting, options);
    for cycle in 0..lives {
        if cycle % 2 == 0 {
            restart_there(&mut stage, options);
        } else {
            stage = stage.restart_here(options);
        }
        moves_all(&mut stage, cycle);
        if cycle + 1 == EARLY {
            early = Some((holding(None), devices()));
        }
    }
    let (early, devices_early) = early.expect("the first look is before the last cycle");
    let kept = if setting.carrier == Carrier::Memif { MEMIF_LEAVES_BYTES } else { 0 };
    let most = early.and_bytes((lives - EARLY) * kept);
    let late = holding(Some(most));
    eprintln!("{setting}: {lives} lives of engines in {:.1?}: {early:?}, then {late:?}", begun.elapsed());
    assert_eq!((devices_early, devices()), ((2, true), (2, true)), "{setting}");
    assert!(!late.is_more_than(&most), "{setting}: {early:?}, then {late:?}");
}

#[test]
fn engines_that_come_and_go_in_one_process_leave_nothing_in_it() {
    let Some(_alone) = alone("engines_that_come_and_go_in_one_process_leave_nothing_in_it", Carrier::Bridge) else {
        return;
    };
    for (carrier, lives) in LIVES {
        come_and_go(&carried(carrier, Place::Here), lives);
    }
}
