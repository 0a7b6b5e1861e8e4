//! The suite between two processes in datagrams over UDP.

use std::time::{Duration, Instant};

use penstock::config::TransportName;
use penstock_conformance::{Memory, Place, Setting, Stage, suite, suite_by_name};

const THERE: Place = Place::Process(env!("CARGO_BIN_EXE_penstock-conformance-peer"));

const fn workers(count: usize) -> Setting {
    Setting::adaptive(TransportName::Datagram, count, THERE)
}

const fn no_threads() -> Setting {
    Setting::inline(TransportName::Datagram, THERE)
}

suite!(udp: workers(1));
suite!(udp_two_workers: workers(2).with(Memory::Caller));
suite!(udp_inline: no_threads());
suite_by_name!(udp_by_name: workers(1));

/// Without this the suites above could pass by another way.
#[test]
fn the_suites_take_the_way_that_they_are_named_for() {
    let stage = Stage::open(&workers(1));
    assert_eq!(stage.far().access_path(), "datagram", "{}", stage.far().access_reason());
    assert!(stage.peer().path().contains("udp"), "{}", stage.peer().path());
    // A session can be complete before its worker has had a turn.
    let (begun, of_peer) = (Instant::now(), || stage.peer().packets().unwrap());
    while of_peer().packets.received.min(of_peer().packets.sent) == 0 {
        assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", of_peer());
        std::thread::sleep(Duration::from_millis(1));
    }
    let (of_peer, all) = (of_peer(), stage.engine.packet_statistics());
    assert!(all.sent >= of_peer.packets.sent && all.received >= of_peer.packets.received, "{all:?}");
}
