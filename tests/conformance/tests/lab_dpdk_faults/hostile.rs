//! An honest peer beside somebody on the same bridge who sends to the device what it likes, as fast as it can, and sees the peer's packets.

use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use penstock::{Engine, NoteId, PacketStatistics, Submit};
use penstock_conformance::folder::Folder;
use penstock_conformance::setting::SOURCE;
use penstock_conformance::stage::PATIENCE;
use penstock_conformance::{Carrier, Place, dpdk};

use super::arena::{Arena, HONEST, VICTIM, beside, median};
use super::frames::Framer;
use super::injector::Injector;
use super::{alone, carried};

const SLICE: Duration = Duration::from_millis(800);
const SLICES: usize = 2;
const HONEST_PORT: u16 = 7401;
const VICTIM_PORT: u16 = 7411;

/// What was counted, once nothing more of what was injected is on its way.
fn settled(engine: &Engine) -> PacketStatistics {
    let begun = Instant::now();
    let counted = |now: &PacketStatistics| [now.strangers, now.forged, now.replayed, now.corrupt, now.dropped_by_port];
    let mut last = engine.packet_statistics();
    loop {
        std::thread::sleep(Duration::from_millis(20));
        let now = engine.packet_statistics();
        if counted(&now) == counted(&last) {
            return now;
        }
        assert!(begun.elapsed() < PATIENCE, "nobody injects, and more is counted");
        last = now;
    }
}

#[test]
fn what_others_send_to_the_device_places_nothing_and_ends_nothing() {
    // The kernel sends what is injected, as it would on a wire.
    let name = "what_others_send_to_the_device_places_nothing_and_ends_nothing";
    let Some(_alone) = alone(name, Carrier::FromUdp) else { return };
    let folder = Folder::fresh();
    let setting = carried(Carrier::Bridge, Place::Here);
    let arena = Arena::new(setting, &folder, HONEST_PORT, VICTIM_PORT);
    let (bridge, host) = dpdk::stranger(folder.path());
    let address = |name, port| SocketAddrV4::new(dpdk::address_of(folder.path(), name), port);
    let (honest, victim) = (address(HONEST, HONEST_PORT), address(VICTIM, VICTIM_PORT));
    let mut injector = Injector::new(host, HONEST_PORT, VICTIM_PORT);
    let mut framer = Framer::new(&bridge, victim, dpdk::station_of(folder.path(), VICTIM), honest);
    let mut seed = 1000;
    arena.moves_both_ways(seed);
    for _ in 0..64 {
        injector.listen();
    }
    assert!(injector.seen() > 0, "the session's packets are seen");
    let (mut last, mut rates) = (arena.victim.packet_statistics(), [Vec::new(), Vec::new(), Vec::new()]);
    for _ in 0..SLICES {
        rates[0].push(arena.rate(SLICE, &mut seed));
        let (rate, sent) = beside(|stop| injector.inject(victim, stop), || arena.rate(SLICE, &mut seed));
        rates[1].push(rate);
        arena.is_unharmed();
        let now = settled(&arena.victim);
        let counted = [
            now.strangers - last.strangers,
            now.forged - last.forged,
            now.replayed - last.replayed,
            now.corrupt - last.corrupt,
        ];
        eprintln!("packets: {sent:?}; strangers, forged, replayed, corrupt {counted:?}");
        assert!(counted[..3].iter().all(|&count| count > 0), "{counted:?}");
        assert!(counted[0] <= sent.strangers && counted[1] <= sent.forged, "nothing honest is counted there");
        assert!(counted.iter().sum::<u64>() <= sent.all(), "{counted:?}");
        last = now;
        let (rate, sent) = beside(|stop| framer.send(stop), || arena.rate(SLICE, &mut seed));
        rates[2].push(rate);
        arena.is_unharmed();
        let now = settled(&arena.victim);
        let strangers = now.strangers - last.strangers;
        eprintln!("frames: {} in all, {sent:?}; strangers {strangers}", sent.all());
        assert!(strangers > 0 && strangers <= sent.strangers, "only whole packets are looked at");
        assert_eq!((now.forged, now.corrupt), (last.forged, last.corrupt));
        let dropped = now.dropped_by_port - last.dropped_by_port;
        let others = sent.malformed + sent.arps + sent.misled;
        assert!(
            (1..=others).contains(&dropped),
            "{dropped} of {others} frames that are no packets for it were counted"
        );
        last = now;
    }
    // All places for those who ask are taken; who is sent to has one all the same.
    let late = setting.spec(folder.path(), SOURCE).start().expect("there is one more device");
    let peer = late.connect(&arena.victim.descriptor(), PATIENCE).expect("the victim lives");
    peer.notify(NoteId(1), b"late", Submit::new()).unwrap().wait().expect("it has been answered");
    let own = arena.honest.packet_statistics();
    eprintln!("the honest peer has sent {}, lost {}, of which {} had arrived", own.sent, own.lost, own.spurious);
    let rates = rates.map(|rates| {
        eprintln!("GB/s {rates:.3?}");
        median(rates)
    });
    eprintln!("GB/s quiet {:.3}, beside packets {:.3}, beside frames {:.3}", rates[0], rates[1], rates[2]);
}
