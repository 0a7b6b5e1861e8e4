//! Scenes in which devices copy: bytes go in all directions, streams fall behind, and a seed says the same every time.

use penstock::config::TransportName;
use penstock_cuda_driver::model;
use penstock_simulation::deed::{Family, Script};
use penstock_simulation::run::{Account, perform};

/// Scenes that a test looks at.
const SCENES: usize = 24;

fn scenes() -> impl Iterator<Item = Script> {
    all_scenes().take(SCENES)
}

fn all_scenes() -> impl Iterator<Item = Script> {
    (0..).filter(|seed| Family::of(*seed) == Family::Copies).map(Script::of)
}

fn run(script: &Script) -> Account {
    let all: Vec<usize> = (0..script.deeds.len()).collect();
    perform(script, &all).unwrap_or_else(|violated| panic!("seed {}: {violated}", script.seed))
}

#[test]
fn devices_copy_in_all_directions() {
    let (mut moved, mut account) = (model::Moved::default(), Account::default());
    for script in scenes() {
        let of_it = run(&script);
        // The model is this thread's, and so are its figures until the next scene begins.
        let bytes = model::moved();
        moved.to_device += bytes.to_device;
        moved.to_host += bytes.to_host;
        moved.within += bytes.within;
        (account.well, account.failed) = (account.well + of_it.well, account.failed + of_it.failed);
    }
    assert!(moved.to_device > 10_000 && moved.to_host > 10_000 && moved.within > 10_000, "{moved:?}");
    assert!(account.well > 50 && account.failed > 0, "{account:?}");
}

#[test]
fn engines_that_reach_only_host_memory_of_each_other_stage() {
    for over in [TransportName::Shm, TransportName::Datagram] {
        let (mut account, mut passed) = (Account::default(), 0);
        let is_over = |script: &Script| script.copying.is_some_and(|copying| copying.over == over);
        for script in all_scenes().filter(is_over).take(SCENES / 2) {
            let of_it = run(&script);
            let bytes = model::moved();
            passed += bytes.to_device.min(bytes.to_host);
            (account.well, account.staged) = (account.well + of_it.well, account.staged + of_it.staged);
        }
        assert!(account.staged > 20 && 3 * account.staged > account.well, "over {over:?}: {account:?}");
        assert!(passed > 10_000, "over {over:?}: {passed} B");
    }
}

#[test]
fn one_seed_gives_one_run_of_copies() {
    for script in scenes() {
        assert_eq!(run(&script), run(&script), "seed {}", script.seed);
    }
}

#[test]
fn another_thread_has_devices_of_its_own() {
    let script = scenes().next().expect("there is one of this family");
    let here = run(&script);
    let there = std::thread::spawn(move || run(&script)).join().expect("the run ends well");
    assert_eq!(here, there);
}
