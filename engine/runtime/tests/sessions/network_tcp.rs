//! Bytes between two engines that have met over the network.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use penstock::config::{Progress, TransportName};
use penstock::{Cause, Engine, NoteId, Notified, Plan, PoolSpec, RemoteQuiesce, Rights, Span, Submit};

use crate::hosts::*;

fn tcp(config: penstock::Config) -> penstock::Config {
    config.transports([TransportName::Tcp])
}

#[test]
fn bytes_and_their_arrival_come_over_the_network() {
    for (listen, workers) in [("127.0.0.1:0", 1), ("127.0.0.1:0", 1), ("[::1]:0", 2)] {
        bytes_and_their_arrival_come(TransportName::Tcp, listen, workers);
    }
}

#[test]
fn bytes_and_their_arrival_come_in_datagrams() {
    for (listen, workers) in [("127.0.0.1:0", 1), ("[::]:0", 1), ("0.0.0.0:0", 1), ("[::1]:0", 2)] {
        bytes_and_their_arrival_come(TransportName::Datagram, listen, workers);
    }
}

fn bytes_and_their_arrival_come(transport: TransportName, listen: &str, workers: usize) {
    let folder = Folder::new(transport.as_str());
    {
        let allow = |config: penstock::Config| config.transports([transport]);
        let b = Engine::start(allow(config(&folder, "b")).listen([listen])).unwrap();
        let a = Engine::start(allow(config(&folder, "a")).workers(workers)).unwrap();
        let spec = || PoolSpec::host(1 << 20).block(4096).label("kv").rights(Rights::READ_WRITE);
        let (far, near) = (b.pool(spec()).unwrap(), a.pool(spec()).unwrap());
        // On one host, but only `tcp` is allowed: the descriptor leads to its addresses.
        let peer = a.connect(&b.descriptor(), SOON).unwrap();
        assert_eq!(peer.transport(), transport.as_str());
        if !listen.contains("::]") && !listen.contains("0.0") {
            assert_eq!(peer.address(), Some(address(&b)));
        }
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
    let mut card = penstock::session::EngineDescriptor::decode(&b.descriptor()).unwrap();
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

/// An engine with a pool that makes progress while it is let.
struct Halting {
    descriptor: Vec<u8>,
    halts: Arc<AtomicBool>,
    halted: Arc<AtomicBool>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Halting {
    fn start(folder: &Folder) -> Self {
        let flag = || Arc::new(AtomicBool::new(false));
        let (halts, halted, ends) = (flag(), flag(), flag());
        let config = tcp(config(folder, "far")).listen(["127.0.0.1:0"]).progress(Progress::Inline);
        let (told, descriptor) = channel();
        let flags = (Arc::clone(&halts), Arc::clone(&halted), Arc::clone(&ends));
        let thread = std::thread::spawn(move || {
            let engine = Engine::start(config).unwrap();
            let spec = PoolSpec::host(1 << 20).block(4096).label("kv").rights(Rights::READ_WRITE);
            let _pool = engine.pool(spec).unwrap();
            told.send(engine.descriptor()).unwrap();
            while !flags.2.load(Ordering::SeqCst) {
                let halts = flags.0.load(Ordering::SeqCst);
                flags.1.store(halts, Ordering::SeqCst);
                if halts || !engine.progress_all().unwrap() {
                    std::thread::sleep(Duration::from_micros(100));
                }
            }
        });
        Self { descriptor: descriptor.recv().unwrap(), halts, halted, ends, thread: Some(thread) }
    }

    fn halt(&self, halts: bool) {
        self.halts.store(halts, Ordering::SeqCst);
        until("it has seen that", || self.halted.load(Ordering::SeqCst) == halts);
    }
}

impl Drop for Halting {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::SeqCst);
        let ended = self.thread.take().expect("it is joined once").join();
        assert!(ended.is_ok() || std::thread::panicking());
    }
}

#[test]
fn bytes_that_a_peer_has_not_taken_yet_may_still_land_there_until_it_has_or_is_lost() {
    let folder = Folder::new("tcp-open");
    for is_lost in [false, true] {
        let far = Halting::start(&folder);
        let silence = Duration::from_millis(if is_lost { 3_000 } else { 30_000 });
        let near = Engine::start(tcp(config(&folder, "near")).heartbeat(silence)).unwrap();
        let pool = near.pool(PoolSpec::host(1 << 20).block(4096).label("kv").rights(Rights::READ_WRITE)).unwrap();
        let peer = near.connect(&far.descriptor, SOON).unwrap();
        let remote = peer.wait_region("kv", SOON).unwrap();
        // What the sockets take whole.
        let whole = [Span { local: 0, remote: 0, len: 64 << 10 }];
        let plan = Plan::write(&pool, &remote).extents(&whole).build().unwrap();
        far.halt(true);
        let transfer = peer.submit(&plan, Submit::new().within(8 * SOON)).unwrap();
        until("it is under way", || near.statistics().async_ops >= 1);
        std::thread::sleep(Duration::from_millis(50));
        let answer = transfer.cancel(Duration::from_millis(500));
        assert!(answer.local.is_quiesced(), "{answer:?}");
        let RemoteQuiesce::Quarantined(held) = answer.remote else { panic!("it may still land: {:?}", answer.remote) };
        assert!(!held.is_released(), "nobody there has looked");
        let begun = Instant::now();
        if !is_lost {
            far.halt(false);
        }
        until("the peer has taken it, or is given up", || held.is_released());
        assert!(begun.elapsed() < 2 * SOON, "{:?}", begun.elapsed());
        assert_eq!(peer.ended(), is_lost.then_some(Cause::PeerLost));
        let again = transfer.cancel(Duration::from_millis(50)).remote;
        assert_eq!(matches!(again, RemoteQuiesce::Unknown), is_lost, "{again:?}");
        assert_eq!(matches!(again, RemoteQuiesce::Quiesced), !is_lost, "{again:?}");
    }
}
