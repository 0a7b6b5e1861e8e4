//! Bytes between two engines that have met over the network.

#[path = "network/common.rs"]
mod common;

use common::*;
use penstock::config::{Progress, TransportName};
use penstock::{Engine, NoteId, Notified, Plan, PoolSpec, Rights, Span, Submit};

fn tcp(config: penstock::Config) -> penstock::Config {
    config.transports([TransportName::Tcp])
}

#[test]
fn bytes_and_their_arrival_come_over_the_network() {
    let folder = Folder::new("tcp");
    for (listen, workers) in [("127.0.0.1:0", 1), ("127.0.0.1:0", 1), ("[::1]:0", 2)] {
        let b = Engine::start(tcp(config(&folder, "b")).listen([listen])).unwrap();
        let a = Engine::start(tcp(config(&folder, "a")).workers(workers)).unwrap();
        let spec = || PoolSpec::host(1 << 20).block(4096).label("kv").rights(Rights::READ_WRITE);
        let (far, near) = (b.pool(spec()).unwrap(), a.pool(spec()).unwrap());
        // On one host, but only `tcp` is allowed: the descriptor leads to its addresses.
        let peer = a.connect(&b.descriptor(), SOON).unwrap();
        assert_eq!((peer.transport(), peer.address()), ("tcp", Some(address(&b))));
        near.window().write_from(0, &[7; 8192]).unwrap();
        let remote = peer.wait_region("kv", SOON).unwrap();
        let spans = [Span { local: 0, remote: 4096, len: 8192 }];
        let plan = Plan::write(&near, &remote).extents(&spans).build().unwrap();
        let done = peer.submit(&plan, Submit::new().within(SOON).notify(NoteId(5), b"here")).unwrap().wait().unwrap();
        assert_eq!((done.bytes, done.notified), (8192, Notified::Yes));
        assert!(b.wait_notification(SOON));
        let mut notes = Vec::new();
        b.notifications(&mut notes);
        assert_eq!((notes[0].id, notes[0].payload.as_ref()), (NoteId(5), &b"here"[..]));
        let mut landed = [0; 8192];
        far.window().read_into(4096, &mut landed).unwrap();
        assert_eq!(landed, [7; 8192]);
        assert!(peer.disconnect(SOON));
    }
}

#[test]
fn a_socket_that_is_gone_leaves_the_addresses() {
    let folder = Folder::new("fallback");
    let all = [TransportName::Local, TransportName::Shm, TransportName::Tcp];
    let b = Engine::start(config(&folder, "b").transports(all).listen(["127.0.0.1:0"])).unwrap();
    let a = Engine::start(config(&folder, "a").transports(all)).unwrap();
    let mut card = penstock::session::Card::decode(&b.descriptor()).unwrap();
    card.socket = folder.0.join("nowhere.sock").display().to_string();
    let peer = a.connect(&card.encode(), SOON).unwrap();
    assert_eq!(peer.transport(), "tcp");
    assert!(peer.disconnect(SOON));
    assert_eq!(a.connect(&b.descriptor(), SOON).unwrap().transport(), "local");
}

#[test]
fn an_inline_engine_calls_over_the_network() {
    let folder = Folder::new("inline");
    let b = Engine::start(tcp(config(&folder, "b")).listen(["127.0.0.1:0"])).unwrap();
    let a = Engine::start(tcp(config(&folder, "a")).progress(Progress::Inline)).unwrap();
    let peer = a.connect_address(&format!("localhost:{}", address(&b).port()), SOON).unwrap();
    assert_eq!(peer.name().as_str(), "b");
    assert!(peer.ping(SOON).is_ok());
    assert!(peer.disconnect(SOON));
}
