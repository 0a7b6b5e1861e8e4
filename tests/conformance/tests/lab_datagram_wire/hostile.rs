//! An honest peer beside somebody who sends to the same port what it likes, as fast as it can, and sees the peer's packets.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::time::{Duration, Instant};

use penstock::config::TransportName;
use penstock_conformance::folder::Folder;

use super::arena::{Arena, beside, median};
use super::injector::{BURST, Injected, Injector};
use super::wired::alone;
use super::wired::hosts::setting;

const SLICE: Duration = Duration::from_millis(1500);
/// Pairs of slices: aimed at the victim, and elsewhere.
const PAIRS: usize = 5;

/// A UDP port that is free, below those of the kernel's own choice or not.
fn free_port() -> u16 {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

#[test]
fn what_others_send_to_the_port_places_nothing_and_ends_nothing() {
    let Some(_alone) = alone("what_others_send_to_the_port_places_nothing_and_ends_nothing") else { return };
    let begun = Instant::now();
    let folder = Folder::fresh();
    let (honest_port, victim_port) = (free_port(), free_port());
    let unread = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let victim = SocketAddrV4::new(Ipv4Addr::LOCALHOST, victim_port);
    let elsewhere = SocketAddrV4::new(Ipv4Addr::LOCALHOST, unread.local_addr().unwrap().port());
    let mut injector = Injector::new(Ipv4Addr::LOCALHOST, honest_port, victim_port);
    let arena = Arena::new(setting(TransportName::Datagram), &folder, honest_port, victim_port);
    let mut seed = 1000;
    arena.moves_both_ways(seed);
    for _ in 0..64 {
        injector.listen();
    }
    assert!(injector.seen() > 0, "the session's packets are seen");
    let before = arena.victim.packet_statistics();
    let (mut sent, mut rates) = (Injected::default(), [Vec::new(), Vec::new()]);
    for _ in 0..PAIRS {
        let (rate, injected) = beside(|stop| injector.inject(victim, stop), || arena.rate(SLICE, &mut seed));
        rates[0].push(rate);
        sent += injected;
        arena.is_unharmed();
        let (rate, _) = beside(|stop| injector.inject(elsewhere, stop), || arena.rate(SLICE, &mut seed));
        rates[1].push(rate);
    }
    let quiet = arena.rate(SLICE, &mut seed);
    std::thread::sleep(Duration::from_millis(50));
    arena.is_unharmed();
    let after = arena.victim.packet_statistics();
    let [strangers, forged, replayed, corrupt, dropped] = [
        after.strangers - before.strangers,
        after.forged - before.forged,
        after.replayed - before.replayed,
        after.corrupt - before.corrupt,
        after.dropped_by_port - before.dropped_by_port,
    ];
    let counted = strangers + forged + replayed + corrupt;
    eprintln!("sent {} in all: {sent:?}", sent.all());
    eprintln!(
        "strangers {strangers}, forged {forged}, replayed {replayed}, corrupt {corrupt}; dropped by the kernel {dropped}"
    );
    let (own, taken) = (arena.honest.packet_statistics(), after.received - before.received);
    eprintln!(
        "the honest peer has sent {}, lost {}, of which {} had arrived; {taken} were taken",
        own.sent, own.lost, own.spurious
    );
    let [at_victim, aside] = rates.map(|rates| {
        eprintln!("GB/s {rates:.3?}");
        median(rates)
    });
    eprintln!(
        "beside what is aimed at it {at_victim:.3} GB/s, aimed elsewhere {aside:.3}: {:.2}; quiet {quiet:.3}; {:.1?} in all",
        at_victim / aside,
        begun.elapsed()
    );
    assert!(dropped > 0 && forged > 0 && replayed > 0);
    assert!(strangers * 100 < sent.strangers, "the kernel drops what does not begin as this port's ids do");
    assert!(strangers <= sent.strangers && forged <= sent.forged, "nothing honest is counted there");
    // A real packet that the kernel had dropped is new when it comes again; a burst that it drops is one to it.
    let may_be_less = sent.replayed + sent.cut + BURST as u64 * dropped;
    assert!(counted <= sent.all() && counted + may_be_less >= sent.all(), "{counted} of {}", sent.all());
}
