//! Ways that let the control connection pass and not the packets.

use std::time::{Duration, Instant};

use penstock::config::TransportName;
use penstock::{Cause, Submit};
use penstock_conformance::Peer;
use penstock_conformance::stage::PATIENCE;
use penstock_wire::{Direction, Side};

use super::wired::alone;
use super::wired::hosts::{Hosted, setting};

const BYTES: u64 = 4 << 20;
const HEARTBEAT: Duration = Duration::from_secs(5);
/// Not one packet has come for so long.
const UNHEARD: Duration = Duration::from_secs(1);
/// How long after that everybody knows.
const LATE: Duration = Duration::from_millis(500);

/// How a session has ended, and how long after `begun`.
fn end_of(peer: &Peer, begun: Instant) -> (Cause, Duration) {
    loop {
        if let Some(cause) = peer.ended() {
            return (cause, begun.elapsed());
        }
        assert!(begun.elapsed() < PATIENCE, "the session stands");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The only session of the other engine, while it stands.
fn mirror(hosted: &Hosted) -> Peer {
    let there = hosted.there.as_ref().expect("it was not taken away");
    let begun = Instant::now();
    loop {
        if let Some(peer) = there.peers().pop() {
            return peer;
        }
        assert!(begun.elapsed() < PATIENCE, "nobody has called");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_session_whose_packets_do_not_pass_ends_after_a_second_and_says_so() {
    let Some(_alone) = alone("a_session_whose_packets_do_not_pass_ends_after_a_second_and_says_so") else { return };
    for direction in [Direction::AToB, Direction::BToA, Direction::Both] {
        let scenario = format!("{direction} udp-loss=100%; both delay=1ms");
        let asked = Instant::now();
        let mut hosted = Hosted::new(setting(TransportName::Datagram), &scenario, 1500, BYTES, HEARTBEAT);
        let begun = Instant::now();
        let there = mirror(&hosted);
        let transfer = hosted.peer.submit(&hosted.plan(true, BYTES), Submit::new()).unwrap();
        let fault = transfer.wait().expect_err("no packet passes");
        let ended = begun.elapsed();
        let (near, far) = (end_of(&hosted.peer, begun), end_of(&there, begun));
        eprintln!(
            "{direction} lets no UDP pass: a write ends after {ended:.2?} with {:?}; the session ends here {near:.2?}, there {far:.2?}; hosts and all took {:.2?}",
            fault.cause,
            asked.elapsed()
        );
        assert_eq!((fault.cause, near.0, far.0), (Cause::NoPath, Cause::NoPath, Cause::NoPath), "{direction}");
        let words = [hosted.peer.loss(), there.loss()].map(|words| words.unwrap_or_default().to_owned());
        assert!(words.iter().all(|words| words.contains("let UDP pass")), "{words:?}");
        assert!(ended <= UNHEARD + LATE && near.1 <= UNHEARD + LATE && far.1 <= UNHEARD + LATE, "{direction}");
        // As the firewall is told to let it pass, all is well.
        hosted.hosts.set(direction, "udp-loss=0%").unwrap();
        hosted.peer = hosted.engine.reconnect(&hosted.peer, PATIENCE).expect("TCP passed all the time");
        hosted.moves_all(9);
    }
}

#[test]
fn a_route_that_becomes_too_narrow_for_the_frames_ends_the_session_and_the_next_one_fits() {
    let name = "a_route_that_becomes_too_narrow_for_the_frames_ends_the_session_and_the_next_one_fits";
    let Some(_alone) = alone(name) else { return };
    let mut hosted = Hosted::new(setting(TransportName::Datagram), "both delay=1ms", 1500, BYTES, HEARTBEAT);
    assert!(hosted.peer.path().contains("frame 1472"), "{}", hosted.peer.path());
    for side in [Side::A, Side::B] {
        hosted.hosts.set_mtu(side, 1400).unwrap();
    }
    let (there, begun) = (mirror(&hosted), Instant::now());
    let fault = hosted.peer.submit(&hosted.plan(true, BYTES), Submit::new()).unwrap().wait().expect_err("too long");
    let (near, far) = (end_of(&hosted.peer, begun), end_of(&there, begun));
    eprintln!("MTU 1500, then 1400: a write ends with {:?}; the session here {near:.2?}, there {far:.2?}", fault.cause);
    assert_eq!((fault.cause, near.0, far.0), (Cause::NoPath, Cause::NoPath, Cause::NoPath));
    assert!(near.1 <= LATE && far.1 <= LATE, "{near:?} {far:?}");
    hosted.peer = hosted.engine.reconnect(&hosted.peer, PATIENCE).expect("TCP finds its size itself");
    assert!(hosted.peer.path().contains("frame 1372"), "{}", hosted.peer.path());
    hosted.moves_all(10);
}
