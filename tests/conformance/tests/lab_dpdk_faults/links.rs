//! Links that go down, for a while and for good, at the device and at the other end of its cable.

use std::time::{Duration, Instant};

use penstock::{Cause, Submit};
use penstock_conformance::gauge::measured;
use penstock_conformance::setting::SOURCE;
use penstock_conformance::stage::{KV, NEAR_SEED, PATIENCE, all_end_well};
use penstock_conformance::{Carrier, Stage, dpdk, pattern};

use super::{INTO, LATE, all, alone, known_within, on_a_bridge, plan};

const BYTES: u64 = 32 << 20;
const WITHIN: Duration = Duration::from_millis(300);
/// How long a link is down that comes up again within the heartbeat.
const DOWN: Duration = Duration::from_millis(500);
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Each engine's link, and the end of it that goes down.
const LINKS: [(&str, bool); 4] = [(SOURCE, true), (SOURCE, false), ("target-0", true), ("target-0", false)];

fn set(stage: &Stage, (name, at_device): (&str, bool), is_up: bool) {
    dpdk::set_link(stage.folder.path(), name, at_device, is_up);
}

/// A link goes down in the middle of transfers. Answers how long after their deadline they end, and after what time of silence those
/// without one.
fn break_and_mend(link: (&str, bool)) -> [Duration; 2] {
    let mut stage = on_a_bridge(BYTES, HEARTBEAT);
    let deadline = Instant::now() + WITHIN;
    let plans = [true, false].map(|is_write| plan(&stage, is_write));
    let transfers: Vec<_> = plans
        .iter()
        .cycle()
        .take(16)
        .map(|plan| stage.submit(stage.peer(), plan, Submit::new().within(WITHIN)))
        .collect();
    std::thread::sleep(INTO);
    set(&stage, link, false);
    let broken = Instant::now();
    let faults: Vec<_> = transfers.iter().filter_map(|transfer| transfer.wait().err()).collect();
    let late = Instant::now().saturating_duration_since(deadline);
    assert!(!faults.is_empty(), "{link:?}: all was through before");
    assert!(faults.iter().all(|fault| fault.cause == Cause::DeadlineExceeded), "{link:?}: {faults:?}");
    assert!(stage.near.revoke(&[(0, BYTES)], Duration::ZERO).unwrap().is_quiesced(), "own memory is never held");
    let waiting = stage.submit(stage.peer(), &plan(&stage, true), Submit::new());
    let fault = waiting.wait().expect_err("nothing passes");
    let silent = broken.elapsed();
    assert_eq!(fault.cause, Cause::PeerLost, "{link:?}: {fault}");
    stage.wait_until("the session has ended", || stage.peer().ended().is_some());
    assert_eq!(stage.peer().ended(), Some(Cause::PeerLost));
    set(&stage, link, true);
    stage.peers[0] = stage.engine.reconnect(&stage.peers[0], PATIENCE).expect("the link is up");
    pattern::fill(stage.near.window(), 7);
    stage.write(all(&stage));
    stage.assert_far(0, KV, &pattern::bytes(7, 0, BYTES as usize));
    [late, silent]
}

#[test]
fn a_link_that_goes_down_ends_transfers_by_their_deadline_and_the_session_by_the_heartbeat() {
    let name = "a_link_that_goes_down_ends_transfers_by_their_deadline_and_the_session_by_the_heartbeat";
    let Some(_alone) = alone(name, Carrier::Bridge) else { return };
    for link in LINKS {
        let mut silent = Duration::ZERO;
        let late = measured(LATE, || {
            let told = break_and_mend(link);
            silent = told[1];
            told[0]
        });
        eprintln!("{link:?} down: transfers {late:.2?} after their deadline, session over after {silent:.2?}");
        assert!(late <= LATE, "{link:?}: {late:?}");
        assert!(silent <= known_within(HEARTBEAT), "{link:?}: {silent:?}");
    }
}

#[test]
fn a_link_that_is_down_for_less_than_the_heartbeat_costs_time_only() {
    let Some(_alone) = alone("a_link_that_is_down_for_less_than_the_heartbeat_costs_time_only", Carrier::Bridge) else {
        return;
    };
    let mut stage = on_a_bridge(BYTES, Duration::from_secs(5));
    let write = plan(&stage, true);
    for link in LINKS {
        let transfers: Vec<_> = (0..4).map(|_| stage.submit(stage.peer(), &write, Submit::new())).collect();
        std::thread::sleep(INTO);
        set(&stage, link, false);
        std::thread::sleep(DOWN);
        assert!(transfers.iter().any(|transfer| transfer.poll().is_none()), "{link:?}: all was through before");
        set(&stage, link, true);
        let begun = Instant::now();
        all_end_well(&transfers);
        eprintln!("{link:?} down for {DOWN:?}: done {:.2?} after it was up again", begun.elapsed());
        stage.assert_far(0, KV, &pattern::bytes(NEAR_SEED, 0, BYTES as usize));
        assert_eq!(stage.peer().ended(), None, "{link:?}");
    }
}
