//! Clients that come at once, a way that is cut for a while, a server that is asked to end.

use std::time::{Duration, Instant};

use penstock_wire::{Direction, Family};

use crate::stage::{Running, Serving, Stage};

const CLIENTS: usize = 64;

#[test]
fn sixty_four_clients_at_once_are_all_served() {
    let Some(stage) = Stage::new("sixty_four_clients_at_once_are_all_served") else { return };
    let (serving, there) = (stage.serve(&["--memory-mib", "1024"]), stage.there(Family::V4));
    // Of the server's own, which the clients need before they come.
    let ping = ["ping", &there, "-c", "3", "-i", "0.1", "--within", "20"];
    let perf = ["perf", &there, "-w", "tiny.yaml", "--pool-mib", "4", "--rounds", "3"];
    for arguments in [&ping[..], &perf] {
        let running: Vec<Running> = (0..CLIENTS).map(|_| Running::begin(stage.here(arguments))).collect();
        let failed: Vec<_> = running.into_iter().map(Running::end).filter(|ran| ran.status != 0).collect();
        assert!(failed.is_empty(), "{} of {CLIENTS}: {:?}", failed.len(), failed[0]);
    }
    let (out, err) = serving.end();
    assert_eq!(out.matches(" came over tcp from 10.77.0.2:").count(), 2 * CLIENTS, "{out}\n{err}");
}

#[test]
fn an_outage_of_nearly_three_seconds_ends_no_measurement() {
    let Some(mut stage) = Stage::new("an_outage_of_nearly_three_seconds_ends_no_measurement") else { return };
    let (serving, there) = (stage.serve(&["--memory-mib", "256"]), stage.there(Family::V4));
    // Whenever in the time between two signs of life it begins.
    for lead in [1_000, 1_700] {
        let arguments = ["perf", &there, "-w", "tiny.yaml", "--pool-mib", "8", "-t", "7"];
        let running = Running::begin(stage.here(&arguments));
        serving.out.wait_for(" came over ");
        std::thread::sleep(Duration::from_millis(lead));
        stage.hosts.cut(Direction::Both).unwrap();
        // TCP tries at 3.0 s, and then too late for the heartbeat.
        std::thread::sleep(Duration::from_millis(2_800));
        stage.hosts.heal(Direction::Both).unwrap();
        let ran = running.end();
        assert_eq!(ran.status, 0, "cut {lead} ms after it began: {ran:?}");
        assert!(ran.out.contains("verified"), "{ran:?}");
    }
}

#[test]
fn an_outage_without_end_is_told_as_what_it_is() {
    let Some(mut stage) = Stage::new("an_outage_without_end_is_told_as_what_it_is") else { return };
    let (serving, there) = (stage.serve(&["--memory-mib", "256"]), stage.there(Family::V4));
    let running = Running::begin(stage.here(&["ping", &there, "-i", "0.1"]));
    let perf = Running::begin(stage.here(&["perf", &there, "-w", "tiny.yaml", "--pool-mib", "8", "-t", "50"]));
    wait_for_two(&serving);
    std::thread::sleep(Duration::from_millis(700));
    stage.hosts.cut(Direction::Both).unwrap();
    let begun = Instant::now();
    let ran = running.end();
    assert!(begun.elapsed() > Duration::from_secs(4), "it ended {:?} after the cut", begun.elapsed());
    assert!(ran.status == 1 && ran.err.contains("no answer for 5."), "{ran:?}");
    assert!(!ran.err.contains("gone") && !ran.err.contains("restarted"), "{ran:?}");
    let ran = perf.end();
    assert!(ran.status == 1 && ran.err.contains("no answer for 5."), "{ran:?}");
    assert!(!ran.err.contains("gone") && !ran.err.contains("restarted"), "{ran:?}");
    let out = serving.out.wait_for(" went: ");
    assert!(out.contains(" went: no answer for 5."), "{out}");
}

/// Waits until two clients are there.
fn wait_for_two(serving: &Serving) {
    let until = Instant::now() + Duration::from_secs(20);
    while serving.out.get().matches(" came over ").count() < 2 {
        assert!(Instant::now() < until, "{}", serving.out.get());
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_server_that_is_asked_to_end_under_load_says_so() {
    let Some(stage) = Stage::new("a_server_that_is_asked_to_end_under_load_says_so") else { return };
    let (serving, there) = (stage.serve(&["--memory-mib", "256"]), stage.there(Family::V4));
    let perf = Running::begin(stage.here(&["perf", &there, "-w", "tiny.yaml", "--pool-mib", "8", "-t", "50"]));
    let ping = Running::begin(stage.here(&["ping", &there, "-i", "0.01"]));
    wait_for_two(&serving);
    std::thread::sleep(Duration::from_millis(700));
    let begun = Instant::now();
    let (out, _) = serving.end();
    assert!(begun.elapsed() < Duration::from_secs(8), "{:?}", begun.elapsed());
    assert!(out.contains("\nended: 2 peers were told so; "), "{out}");
    for (what, running) in [("perf", perf), ("ping", ping)] {
        let ran = running.end();
        assert!(ran.status == 1 && ran.err.contains("is shutting down"), "{what}: {ran:?}");
        assert!(!ran.err.contains("revoked") && !ran.err.contains("restarted"), "{what}: {ran:?}");
    }
}
