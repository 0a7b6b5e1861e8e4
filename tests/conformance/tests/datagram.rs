//! The suite between two processes in datagrams over UDP.

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
    let (of_peer, all) = (stage.peer().packets().unwrap(), stage.engine.packet_statistics());
    assert!(of_peer.packets.received > 0 && of_peer.packets.sent > 0, "{of_peer:?}");
    assert!(all.sent >= of_peer.packets.sent && all.received >= of_peer.packets.received, "{all:?}");
}
