//! Peers in processes of their own that are killed, stopped, and back at their address.

use std::time::{Duration, Instant};

use penstock::config::TransportName;
use penstock::{Cause, Submit};
use penstock_conformance::command::{Command, Reply};
use penstock_conformance::gauge::measured;
use penstock_conformance::pattern;
use penstock_conformance::remote::Remote;
use penstock_conformance::setting::{EngineSpec, Tuning};
use penstock_conformance::stage::{KV, PATIENCE};
use penstock_conformance::stopped::Stopped;
use penstock_conformance::{Peer, Transfer};
use penstock_wire::{Direction, Side};

use super::wired::alone;
use super::wired::guest::{call, guest};
use super::wired::hosts::{Hosted, setting};

const NAME: &str = "guest";
const BYTES: u64 = 8 << 20;
/// The UDP port of all lives of a guest.
const PORT: u16 = 7401;
/// So much is under way with a guest when something happens to it.
const TRANSFERS: usize = 8;
/// How long it is under way before.
const INTO: Duration = Duration::from_millis(15);
/// From a kill to the end of everything.
const KNOWN_WITHIN: Duration = Duration::from_millis(100);
/// How long after its time anything may end.
const LATE: Duration = Duration::from_millis(500);
/// Where something has to be under way for long, at 12 MB/s.
const SLOW: &str = "both delay=1ms,rate=100mbit";

fn hosted(scenario: &str, heartbeat: Duration) -> Hosted {
    Hosted::new(setting(TransportName::Datagram), scenario, 1500, BYTES, heartbeat)
}

/// A guest whose packets come from the same port in all of its lives, and its session.
fn visit(hosted: &Hosted, seed: u64) -> (Remote, Peer) {
    let spec = hosted.spec(Side::B, NAME);
    let tuning = Tuning { udp_port: Some(PORT), ..spec.tuning };
    let mut remote = guest(hosted, EngineSpec { tuning, ..spec }, BYTES, seed);
    let (_, peer) = call(hosted, &mut remote, NAME);
    (remote, peer)
}

/// Writes and reads of all its memory.
fn busy(hosted: &Hosted, peer: &Peer) -> Vec<Transfer> {
    let plans = [true, false].map(|is_write| hosted.plan_with(peer, is_write, BYTES));
    (0..TRANSFERS).map(|number| peer.submit(&plans[number % 2], Submit::new()).expect("there is room")).collect()
}

/// All of them end because the peer is gone, those apart that were through before.
fn all_are_lost(transfers: &[Transfer]) {
    let faults: Vec<_> = transfers.iter().filter_map(|transfer| transfer.wait().err()).collect();
    assert!(!faults.is_empty(), "all was through before");
    assert!(faults.iter().all(|fault| fault.cause == Cause::PeerLost), "{faults:?}");
}

fn wait_for_the_end(peer: &Peer) {
    let begun = Instant::now();
    while peer.ended().is_none() {
        assert!(begun.elapsed() < PATIENCE, "the session stands");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(peer.ended(), Some(Cause::PeerLost));
}

/// Every page of a guest's memory is of that pattern.
fn holds(remote: &mut Remote, seed: u64) {
    let Reply::Digests(found) = remote.ask(Command::Digest { label: KV.to_owned() }) else { panic!("no digests") };
    pattern::assert_same(&found, &pattern::digests(&pattern::bytes(seed, 0, BYTES as usize)), "in the guest");
}

/// Writes all of a guest's memory, and looks at every byte.
fn fills(hosted: &Hosted, (remote, peer): &mut (Remote, Peer), seed: u64) {
    pattern::fill(hosted.near.window(), seed);
    peer.submit(&hosted.plan_with(peer, true, BYTES), Submit::new()).unwrap().wait().expect("it lives");
    holds(remote, seed);
}

#[test]
fn a_killed_peer_ends_what_is_under_way_with_it_and_its_next_life_is_met_at_the_same_ports() {
    let name = "a_killed_peer_ends_what_is_under_way_with_it_and_its_next_life_is_met_at_the_same_ports";
    let Some(_alone) = alone(name) else { return };
    let hosted = hosted("both delay=1ms", Duration::from_secs(10));
    let mut seed = 20;
    for _ in 0..3 {
        let took = measured(KNOWN_WITHIN, || {
            seed += 1;
            let mut visit = visit(&hosted, seed);
            holds(&mut visit.0, seed);
            fills(&hosted, &mut visit, seed + 100);
            let (mut remote, peer) = visit;
            let transfers = busy(&hosted, &peer);
            std::thread::sleep(INTO);
            let killed = Instant::now();
            remote.kill();
            all_are_lost(&transfers);
            let took = killed.elapsed();
            wait_for_the_end(&peer);
            took
        });
        eprintln!("killed: everything has ended after {took:.2?}");
        assert!(took <= KNOWN_WITHIN, "{took:?}");
        // The other peer of this engine, on the same host, has noticed nothing.
        assert_eq!(hosted.peer.ended(), None);
        hosted.moves_all(seed);
    }
    fills(&hosted, &mut visit(&hosted, seed), seed + 200);
}

#[test]
fn packets_for_the_dead_change_nothing_in_the_one_that_has_its_ports_now() {
    let Some(_alone) = alone("packets_for_the_dead_change_nothing_in_the_one_that_has_its_ports_now") else { return };
    // So long that a heartbeat ends nothing here.
    let mut hosted = hosted(SLOW, Duration::from_secs(60));
    let (mut remote, peer) = visit(&hosted, 30);
    let transfers = busy(&hosted, &peer);
    std::thread::sleep(INTO);
    hosted.hosts.cut(Direction::Both).unwrap();
    remote.kill();
    drop(remote);
    let spec = hosted.spec(Side::B, NAME);
    let tuning = Tuning { udp_port: Some(PORT), ..spec.tuning };
    let mut heir = guest(&hosted, EngineSpec { tuning, ..spec }, BYTES, 31);
    assert_eq!(peer.ended(), None, "nobody can know");
    let healed = Instant::now();
    hosted.hosts.heal(Direction::Both).unwrap();
    let (took, fresh) = call(&hosted, &mut heir, NAME);
    all_are_lost(&transfers);
    let ended = healed.elapsed();
    wait_for_the_end(&peer);
    eprintln!(
        "back at its ports: a new session after {took:.2?}, the old one over {ended:.2?} after the wire was whole"
    );
    assert_ne!(fresh.epoch(), peer.epoch());
    holds(&mut heir, 31);
    fills(&hosted, &mut (heir, fresh), 32);
    assert_eq!(hosted.peer.ended(), None);
    hosted.moves_all(33);
}

#[test]
fn a_peer_that_stands_still_for_less_than_the_heartbeat_goes_on() {
    let Some(_alone) = alone("a_peer_that_stands_still_for_less_than_the_heartbeat_goes_on") else { return };
    let hosted = hosted(SLOW, Duration::from_secs(5));
    let (mut remote, peer) = visit(&hosted, 40);
    pattern::fill(hosted.near.window(), 41);
    let transfer = peer.submit(&hosted.plan_with(&peer, true, BYTES), Submit::new()).unwrap();
    std::thread::sleep(INTO);
    let stopped = Stopped::new(remote.process_id().expect("it is a process of its own"));
    std::thread::sleep(Duration::from_secs(2));
    assert!(transfer.poll().is_none());
    let begun = Instant::now();
    drop(stopped);
    transfer.wait().expect("the session stands");
    eprintln!("stopped for 2 s: done {:.2?} after it went on", begun.elapsed());
    holds(&mut remote, 41);
    assert_eq!((peer.ended(), hosted.peer.ended()), (None, None));
}

#[test]
fn a_peer_that_stands_still_for_longer_is_lost_and_writes_nothing_when_it_goes_on() {
    let name = "a_peer_that_stands_still_for_longer_is_lost_and_writes_nothing_when_it_goes_on";
    let Some(_alone) = alone(name) else { return };
    let heartbeat = Duration::from_secs(1);
    for is_revoked in [false, true] {
        let hosted = hosted(SLOW, heartbeat);
        let (mut remote, peer) = visit(&hosted, 50);
        let transfers = busy(&hosted, &peer);
        let (to, label) = (hosted.engine.name().to_string(), KV.to_owned());
        remote.tell(Command::WriteTo { peer: to, label, times: u64::MAX });
        std::thread::sleep(INTO);
        let stopped = Stopped::new(remote.process_id().expect("it is a process of its own"));
        let begun = Instant::now();
        all_are_lost(&transfers);
        let lost = begun.elapsed();
        wait_for_the_end(&peer);
        if is_revoked {
            assert!(hosted.near.revoke(&[(0, BYTES)], Duration::ZERO).unwrap().is_quiesced(), "nobody writes");
        }
        pattern::fill(hosted.near.window(), 51);
        drop(stopped);
        // It wakes in the middle of a write, and is told in the end that the session is over.
        let refused = remote.hear(PATIENCE);
        eprintln!("stopped for longer than {heartbeat:?}: lost after {lost:.2?}; there, as it woke: {refused:?}");
        assert!(matches!(refused, Reply::Refused(_)), "{refused:?}");
        let expected = pattern::digests(&pattern::bytes(51, 0, BYTES as usize));
        pattern::assert_same(&pattern::memory_digests(hosted.near.window()), &expected, "here, after it woke");
        assert!(lost <= heartbeat + heartbeat / 3 + heartbeat / 12 + LATE, "{lost:?}");
        assert_eq!(hosted.peer.ended(), None);
        hosted.moves_all(52);
        let fresh = call(&hosted, &mut remote, NAME).1;
        fills(&hosted, &mut (remote, fresh), 53);
    }
}
