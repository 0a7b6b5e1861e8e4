//! An engine with itself: a session like any other, however it is asked for.

use std::path::PathBuf;
use std::time::Duration;

use penstock::config::{Progress, TransportName};
use penstock::{Config, Engine, NoteId, Plan, PoolSpec, Rights, Submit};

const SOON: Duration = Duration::from_secs(5);

struct Folder(PathBuf);

impl Folder {
    fn new(label: &str) -> Self {
        let path = std::env::temp_dir().join(format!("penstock-oneself-{}-{label}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn start(folder: &Folder, progress: Progress, transports: &[TransportName]) -> Engine {
    let config = Config::default().named("self").directory(&folder.0).progress(progress);
    let config = config.listen(["127.0.0.1:0"]).secret("5e".repeat(32));
    Engine::start(config.transports(transports.iter().copied())).unwrap()
}

/// Writes from one half of a pool to the other and reads it back, with a notification.
fn use_it(engine: &Engine, peer: &penstock::Peer<penstock::SystemEnv>) {
    let pool = engine.pool(PoolSpec::host(1 << 20).block(4096).label("kv").rights(Rights::READ_WRITE)).unwrap();
    peer.refresh(SOON).unwrap();
    pool.window().fill(0, 8192, 7).unwrap();
    let remote = peer.region("kv").unwrap();
    assert_eq!(remote.base(), pool.window().base_address());
    let plan = Plan::write(&pool, &remote).blocks(&[(0, 100), (1, 101)]).build().unwrap();
    let sent = peer.submit(&plan, Submit::new().notify(NoteId(9), b"to me").within(SOON)).unwrap();
    assert_eq!(sent.wait().unwrap().bytes, 8192);
    assert!(engine.wait_notification(SOON));
    let mut taken = Vec::new();
    engine.notifications(&mut taken);
    assert_eq!((taken.len(), taken[0].peer.as_str(), &taken[0].payload[..]), (1, "self", &b"to me"[..]));
    let entries = [(pool.window().base_address() + 200 * 4096, remote.base() + 100 * 4096, 8192)];
    let plan = Plan::read_addresses(peer, &entries).build().unwrap();
    peer.submit(&plan, Submit::new().within(SOON)).unwrap().wait().unwrap();
    let mut found = [0; 8192];
    pool.window().read_into(200 * 4096, &mut found).unwrap();
    assert_eq!(found, [7; 8192]);
    let answer = pool.deregister(SOON).unwrap();
    assert!(answer.is_quiesced());
}

#[test]
fn an_engine_connects_to_itself_by_descriptor_name_and_address_and_is_its_own_peer_once() {
    use TransportName::{Local, Shm, Tcp};
    let all: [(_, &[TransportName]); 4] = [
        (Progress::Adaptive, &[Local, Shm, Tcp]),
        (Progress::Inline, &[Local, Shm, Tcp]),
        (Progress::Adaptive, &[Tcp]),
        (Progress::Inline, &[Tcp]),
    ];
    for (progress, transports) in all {
        let folder = Folder::new(progress.as_str());
        for order in 0..3 {
            let engine = start(&folder, progress, transports);
            for turn in 0..3 {
                let peer = match (order + turn) % 3 {
                    0 => engine.connect(&engine.descriptor(), SOON),
                    1 => engine.connect_name("self", SOON),
                    _ => engine.connect_address(&engine.addresses()[0].to_string(), SOON),
                };
                let peer = peer.unwrap_or_else(|error| {
                    panic!("{progress:?}, {transports:?}, order {order}, turn {turn}: {error}")
                });
                assert_eq!(peer.name().as_str(), "self");
                use_it(&engine, &peer);
                let peers = engine.peers();
                assert_eq!(peers.len(), 1, "{progress:?}, {transports:?}, order {order}, turn {turn}: {peers:?}");
                use_it(&engine, &peers[0]);
            }
            let peers = engine.peers();
            assert!(peers[0].disconnect(SOON));
            assert!(engine.peers().is_empty(), "{:?}", engine.peers());
            assert!(engine.close(SOON).is_empty());
        }
    }
}
