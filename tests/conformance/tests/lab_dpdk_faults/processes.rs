//! Peers in processes of their own that are killed, stopped, and back at their address.

use std::time::{Duration, Instant};

use penstock::{Cause, Submit};
use penstock_conformance::churn::churn;
use penstock_conformance::command::{Command, Reply};
use penstock_conformance::death::die_far;
use penstock_conformance::gauge::measured;
use penstock_conformance::pattern;
use penstock_conformance::setting::SOURCE;
use penstock_conformance::stage::{KV, NEAR_SEED, PATIENCE, all_end_well};
use penstock_conformance::stopped::Stopped;
use penstock_conformance::{Carrier, Stage};

use super::{INTO, THERE, all, all_are_lost, alone, busy, carried, known_within, on_a_bridge, plan};

const BYTES: u64 = 8 << 20;
/// Deaths of which what the survivor holds is looked at, and after how many of them first.
const DEATHS: usize = 12;
const EARLY: usize = 5;
/// From a kill to the end of everything.
const KNOWN_WITHIN: Duration = Duration::from_millis(100);
/// From the start of an engine to bytes that have landed there.
const BACK_WITHIN: Duration = Duration::from_secs(3);

fn stop(stage: &mut Stage) -> Stopped {
    Stopped::new(stage.target(0).process_id().expect("it is a process of its own"))
}

#[test]
fn a_killed_peer_ends_everything_with_it_and_another_process_has_its_address_next() {
    let name = "a_killed_peer_ends_everything_with_it_and_another_process_has_its_address_next";
    let Some(_alone) = alone(name, Carrier::Bridge) else { return };
    let setting = carried(Carrier::Bridge, THERE);
    for _ in 0..2 {
        let took = measured(KNOWN_WITHIN, || {
            let death = die_far(&setting);
            eprintln!("killed: {death:?}");
            assert!(death.cut > 0, "nothing was under way");
            death.ended
        });
        assert!(took <= KNOWN_WITHIN, "{took:?}");
    }
    let told = churn(&setting, EARLY, DEATHS);
    eprintln!("{DEATHS} deaths: {told:?}");
    assert!(told.back[0] <= BACK_WITHIN, "{:?}", told.back);
}

#[test]
fn a_peer_that_stands_still_for_less_than_the_heartbeat_goes_on() {
    let Some(_alone) = alone("a_peer_that_stands_still_for_less_than_the_heartbeat_goes_on", Carrier::Bridge) else {
        return;
    };
    let mut stage = on_a_bridge(BYTES, Duration::from_secs(5));
    let write = plan(&stage, true);
    let transfers: Vec<_> = (0..8).map(|_| stage.submit(stage.peer(), &write, Submit::new())).collect();
    std::thread::sleep(INTO);
    let stopped = stop(&mut stage);
    std::thread::sleep(Duration::from_secs(2));
    assert!(transfers.iter().any(|transfer| transfer.poll().is_none()), "all was through before");
    let begun = Instant::now();
    drop(stopped);
    all_end_well(&transfers);
    eprintln!("stopped for 2 s: done {:.2?} after it went on", begun.elapsed());
    stage.assert_far(0, KV, &pattern::bytes(NEAR_SEED, 0, BYTES as usize));
    assert_eq!(stage.peer().ended(), None);
}

#[test]
fn a_peer_that_stands_still_for_longer_is_lost_and_writes_nothing_when_it_goes_on() {
    let name = "a_peer_that_stands_still_for_longer_is_lost_and_writes_nothing_when_it_goes_on";
    let Some(_alone) = alone(name, Carrier::Bridge) else { return };
    let heartbeat = Duration::from_secs(1);
    for is_revoked in [false, true] {
        let mut stage = on_a_bridge(BYTES, heartbeat);
        let peer = stage.peer().clone();
        let transfers = busy(&stage);
        stage.tell(0, Command::WriteTo { peer: SOURCE.to_owned(), label: KV.to_owned(), times: u64::MAX });
        std::thread::sleep(INTO);
        let stopped = stop(&mut stage);
        let begun = Instant::now();
        all_are_lost(&transfers);
        let lost = begun.elapsed();
        stage.wait_until("the session has ended", || peer.ended().is_some());
        assert_eq!(peer.ended(), Some(Cause::PeerLost));
        if is_revoked {
            assert!(stage.near.revoke(&[(0, BYTES)], Duration::ZERO).unwrap().is_quiesced(), "nobody writes");
        }
        pattern::fill(stage.near.window(), 51);
        drop(stopped);
        // It wakes in the middle of a write, and is told in the end that the session is over.
        let refused = stage.hear(0);
        eprintln!("stopped for longer than {heartbeat:?}: lost after {lost:.2?}; there, as it woke: {refused:?}");
        assert!(matches!(refused, Reply::Refused(_)), "{refused:?}");
        let expected = pattern::bytes(51, 0, BYTES as usize);
        stage.assert_near(&expected);
        assert!(lost <= known_within(heartbeat), "{lost:?}");
        stage.peers[0] = stage.engine.reconnect(&peer, PATIENCE).expect("it is awake");
        stage.write(all(&stage));
        stage.assert_far(0, KV, &expected);
    }
}
