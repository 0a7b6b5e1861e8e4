//! Calls at the first instant of a session: whoever has a peer may name it in any of them, and knows what it had when the session began.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use penstock::config::{Progress, TransportName};
use penstock::counter::Counter;
use penstock::flows::relay::{Put, Relay, RelaySpec};
use penstock::flows::{Isolation, LayoutSpec, Miss, PinSettings, Pins, Receive, RequestId, Rows, TransferId};
use penstock::{Peer, PoolSpec, Rights, SystemEnv};

use crate::ends::{End, Folder, PATIENCE, UUID};

/// Sessions of one engine with another, one after the other.
const ROUNDS: u32 = 200;

/// Two threads that wait for each other, where neither waits for one that has failed.
struct Turns(SyncSender<()>, Receiver<()>);

impl Turns {
    fn of_two() -> [Self; 2] {
        let ((one, of_one), (other, of_other)) = (sync_channel(1), sync_channel(1));
        [Self(one, of_other), Self(other, of_one)]
    }

    fn wait(&self) {
        self.0.send(()).expect("the other one is there");
        self.1.recv_timeout(PATIENCE).expect("the other one comes");
    }
}

/// An engine that has everything that a peer may ask for.
struct Whole {
    relay: Relay<SystemEnv>,
    pins: Pins<SystemEnv>,
    _counter: Counter<SystemEnv>,
    end: End,
    last: std::cell::Cell<u32>,
}

impl Whole {
    fn start(folder: &Folder, name: &str, transport: TransportName, progress: Progress) -> Self {
        let end = End::start_as(folder, name, transport, 16, progress);
        let relay = end.engine.relay(RelaySpec::new().berths(4096, 2, 2)).unwrap();
        let pins = end.engine.pins(0, PinSettings::default()).unwrap();
        let counter = end.pool.counter("arrivals").unwrap();
        Self { relay, pins, _counter: counter, end, last: std::cell::Cell::new(0) }
    }

    /// Everything that names a peer, before anything else is done with it. `turns` is what has to be done for others to go on.
    fn name_in_all_calls(&self, peer: &Peer<SystemEnv>, turns: impl Fn()) {
        let number = self.last.get() + 1;
        self.last.set(number);
        let id = |what: &str| RequestId::new(&format!("{what}-{number}")).unwrap();
        let transfer = |sample| TransferId::mint(UUID, number, sample).unwrap();
        let End { engine, layout, .. } = &self.end;

        let one = engine.consume(transfer(1), &id("one"), Receive::into(layout).from(0, peer));
        let all =
            engine.consume(transfer(2), &id("all"), Receive::into(layout).from_all(std::slice::from_ref(peer), "kv"));
        let region = peer.region("kv").map(drop);
        let counter = peer.counter("arrivals");
        let asked = (&id("nobody"), &Isolation::default());
        let own = self.end.take(1);
        let within = Duration::from_secs(2);
        let mut asking = self.pins.inherit_from_begin(peer, asked, 33, (layout, &own), within).unwrap();
        let put = self.relay.put(Put::bytes(b"some"), &id("chunk"), &[peer]);
        let stream = self.relay.stream(&id("stream"), &[peer]).map(drop);
        let since = Instant::now();
        let missed = loop {
            turns();
            match asking.poll() {
                Some(answer) => break answer,
                None => assert!(since.elapsed() < PATIENCE, "round {number}: no answer"),
            }
        };
        let found = (one.map(drop), all.map(drop), put.map(drop), stream, missed);
        assert_eq!(found, (Ok(()), Ok(()), Ok(()), Ok(()), Err(Miss::NoParent)), "round {number}");
        assert!(counter.is_some(), "round {number}");
        region.unwrap_or_else(|error| panic!("round {number}: {error}"));
    }
}

/// Two engines, and a session after the other between them: each is begun so, and used at once.
fn whoever_has_begun(
    transport: TransportName,
    progress: Progress,
    begin: impl Fn(&Whole, &Whole, Option<&Peer<SystemEnv>>) -> Peer<SystemEnv>,
) {
    let folder = Folder::new();
    let near = Whole::start(&folder, "near", transport, progress);
    let far = Whole::start(&folder, "far", transport, Progress::Adaptive);
    let mut last: Option<Peer<SystemEnv>> = None;
    for _ in 0..ROUNDS {
        let peer = begin(&near, &far, last.as_ref());
        near.name_in_all_calls(&peer, || _ = near.end.engine.progress_all());
        // The other side knows this engine no later.
        let back = far.end.engine.peers().pop().expect("a session is known to both when one has it");
        far.name_in_all_calls(&back, || _ = near.end.engine.progress_all());
        assert!(peer.disconnect(PATIENCE));
        let since = Instant::now();
        while !far.end.engine.peers().is_empty() {
            assert!(since.elapsed() < PATIENCE, "the session does not end there");
            near.end.engine.progress_all().ok();
        }
        last = Some(peer);
    }
}

macro_rules! over_all {
    ($($name:ident: $progress:ident, $begin:expr;)*) => {
        $(mod $name {
            use super::*;
            #[test] fn local() { whoever_has_begun(TransportName::Local, Progress::$progress, $begin) }
            #[test] fn shm() { whoever_has_begun(TransportName::Shm, Progress::$progress, $begin) }
            #[test] fn tcp() { whoever_has_begun(TransportName::Tcp, Progress::$progress, $begin) }
        })*
    };
}

over_all! {
    connected: Adaptive, |near, far, _| near.end.engine.connect(&far.end.engine.descriptor(), PATIENCE).unwrap();
    connected_by_name: Adaptive, |near, far, _| match far.end.engine.addresses().first() {
        None => near.end.engine.connect_name("far", PATIENCE).unwrap(),
        Some(address) => near.end.engine.connect_address(&address.to_string(), PATIENCE).unwrap(),
    };
    connected_inline: Inline, |near, far, _| near.end.engine.connect(&far.end.engine.descriptor(), PATIENCE).unwrap();
    reconnected: Adaptive, |near, far, last| match last {
        None => near.end.engine.connect(&far.end.engine.descriptor(), PATIENCE).unwrap(),
        Some(last) => near.end.engine.reconnect(last, PATIENCE).unwrap(),
    };
}

/// A session that comes in: its peer is named at the first look that finds it.
fn who_comes_in(transport: TransportName) {
    let folder = Folder::new();
    let host = Whole::start(&folder, "host", transport, Progress::Adaptive);
    let guest = End::start(&folder, "guest", transport, 16);
    let card = host.end.engine.descriptor();
    let [turns, theirs] = Turns::of_two();
    std::thread::scope(|scope| {
        let (guest, card) = (&guest, &card);
        let guests = scope.spawn(move || {
            for _ in 0..ROUNDS {
                let peer = guest.engine.connect(card, PATIENCE).unwrap();
                theirs.wait();
                assert!(peer.disconnect(PATIENCE));
                theirs.wait();
            }
        });
        let look = |is_there: bool| {
            let since = Instant::now();
            while host.end.engine.peers().is_empty() == is_there && !guests.is_finished() {
                assert!(since.elapsed() < PATIENCE);
                std::hint::spin_loop();
            }
        };
        for number in 0..ROUNDS {
            look(true);
            let peer = host.end.engine.peers().pop().expect("a guest");
            let layout = &host.end.layout;
            let (transfer, id) =
                (TransferId::mint(UUID, number, 1).unwrap(), RequestId::new(&format!("r-{number}")).unwrap());
            let input = host.end.engine.consume(transfer, &id, Receive::into(layout).from(0, &peer));
            let put = host.relay.put(Put::bytes(b"some"), &id, &[&peer]).map(drop);
            let asked = (&id, &Isolation::default());
            let own = host.end.take(1);
            let missed = host.pins.inherit_from(&peer, asked, 33, (layout, &own), PATIENCE).unwrap();
            turns.wait();
            let found = (input.map(drop), put, missed);
            assert_eq!(found, (Ok(()), Ok(()), Err(Miss::NoParent)), "round {number}");
            look(false);
            turns.wait();
        }
    });
}

#[test]
fn who_comes_in_is_named_at_once_over_mapped_pools() {
    who_comes_in(TransportName::Shm);
}

#[test]
fn who_comes_in_is_named_at_once_over_connections() {
    who_comes_in(TransportName::Tcp);
}

/// Both look for each other at the same moment, so that one may find the session of the other, or both have one.
fn both_look_for_each_other(transport: TransportName) {
    let folder = Folder::new();
    let [a, b] = ["a", "b"].map(|name| Whole::start(&folder, name, transport, Progress::Adaptive));
    let first = a.end.engine.connect(&b.end.engine.descriptor(), PATIENCE).unwrap();
    let back = b.end.engine.peers().pop().unwrap();
    let [one, other] = Turns::of_two();
    std::thread::scope(|scope| {
        for (mine, mut peer, turn) in [(a, first, one), (b, back, other)] {
            scope.spawn(move || {
                for _ in 0..ROUNDS / 2 {
                    turn.wait();
                    for peer in mine.end.engine.peers() {
                        let _ = peer.disconnect(PATIENCE);
                    }
                    let since = Instant::now();
                    while !mine.end.engine.peers().is_empty() {
                        assert!(since.elapsed() < PATIENCE);
                    }
                    turn.wait();
                    peer = mine.end.engine.reconnect(&peer, PATIENCE).unwrap();
                    mine.name_in_all_calls(&peer, || {});
                }
                turn.wait();
            });
        }
    });
}

#[test]
fn who_looks_for_each_other_is_named_at_once_over_mapped_pools() {
    both_look_for_each_other(TransportName::Shm);
}

#[test]
fn who_looks_for_each_other_is_named_at_once_within_a_process() {
    both_look_for_each_other(TransportName::Local);
}

/// Two engines that one thread turns: each is complete for the other when both have their answer.
#[test]
fn engines_that_one_thread_turns_are_named_at_once() {
    for transport in [TransportName::Local, TransportName::Shm] {
        let folder = Folder::new();
        let [near, far] = ["near", "far"].map(|name| Whole::start(&folder, name, transport, Progress::Inline));
        let turn = || {
            near.end.engine.progress_all().unwrap();
            far.end.engine.progress_all().unwrap();
        };
        for _ in 0..ROUNDS / 4 {
            let connecting = near.end.engine.connect_begin(&far.end.engine.descriptor()).unwrap();
            let peer = loop {
                turn();
                if let Some(answer) = connecting.poll() {
                    break answer.unwrap();
                }
            };
            near.name_in_all_calls(&peer, turn);
            let back = far.end.engine.peers().pop().expect("a session is known to both when one has it");
            far.name_in_all_calls(&back, turn);
            // Neither waits: the one thread turns the other one.
            let _ = peer.disconnect(Duration::ZERO);
            let since = Instant::now();
            while !near.end.engine.peers().is_empty() || !far.end.engine.peers().is_empty() {
                assert!(since.elapsed() < PATIENCE);
                turn();
            }
        }
    }
}

/// More regions, counters and layouts than go in one frame are all known when `connect` answers.
#[test]
fn all_of_many_regions_counters_and_layouts_are_known_at_once() {
    const MANY: u32 = 100;
    let folder = Folder::new();
    let far = End::start(&folder, "far", TransportName::Shm, 16);
    let near = End::start(&folder, "near", TransportName::Shm, 16);
    let pools: Vec<_> = (0..MANY)
        .map(|number| {
            let label = format!("kv-{number}");
            let spec = PoolSpec::host(4096).block(4096).label(&label).rights(Rights::READ_WRITE);
            let pool = far.engine.pool(spec).unwrap();
            let counter = pool.counter(&label).unwrap();
            let rows = Rows { first: 0, count: 1, of: 1, bytes: 256 };
            let layout = far.engine.layout(&pool, LayoutSpec::new(&label, 16, 1).token_major(0, 0, rows)).unwrap();
            (layout, counter, pool)
        })
        .collect();
    for round in 0..20 {
        let peer = near.engine.connect(&far.engine.descriptor(), PATIENCE).unwrap();
        let is_known = |label: &String| {
            let layouts = peer.layouts();
            peer.region(label).is_ok() && peer.counter(label).is_some() && layouts.contains(label)
        };
        let unknown: Vec<String> =
            (0..MANY).map(|number| format!("kv-{number}")).filter(|label| !is_known(label)).collect();
        assert!(unknown.is_empty(), "round {round}: {unknown:?}");
        assert!(peer.disconnect(PATIENCE));
        let since = Instant::now();
        while !far.engine.peers().is_empty() {
            assert!(since.elapsed() < PATIENCE);
        }
    }
    drop(pools);
}
