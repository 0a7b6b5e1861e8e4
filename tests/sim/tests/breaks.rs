//! Streams that break, and strangers that say anything: every party comes to a typed end, and those
//! who did nothing wrong go on.

mod common;

use std::fs::File;
use std::os::fd::AsFd;

use common::{SECOND, STEPS, config, connect, exchange, pool};
use penstock::config::TransportName;
use penstock::env::{Address, Env, Stream};
use penstock::session::codec::encode;
use penstock::session::{CounterNews, EngineDescriptor, Frame, Hello, Offer, RefusalCode, RegionsGone};
use penstock::{Cause, ConnectError, NoteId, Plan, Span, Submit};
use penstock_simulation::{Identity, Node, Random, SimEnv, World, replay};

const ANY: &[TransportName] = &[TransportName::Local, TransportName::Shm];

fn is_empty(engines: &[&Node]) -> bool {
    engines.iter().all(|engine| engine.peers().is_empty())
}

#[test]
fn a_stream_may_break_at_any_moment() {
    replay(0..300, |world| {
        let mut random = Random::new(!world.seed());
        let transport = ANY[random.below(2)];
        let target = world.start(config("target", &[transport])).unwrap();
        let source = world.start(config("source", &[transport])).unwrap();
        let (far, near) = (pool(&target, "kv"), pool(&source, "kv"));
        let connecting = source.connect_begin(&target.descriptor()).unwrap();
        (0..random.below(120)).for_each(|_| world.step());
        let mut transfers = Vec::new();
        if let Some(Ok(peer)) = connecting.poll() {
            let span = [Span { local: 0, remote: 0, len: 150_000 }];
            let plan = Plan::write(&near, &peer.region("kv").unwrap()).extents(&span).build().unwrap();
            transfers.extend((0..4).map(|id| peer.submit(&plan, Submit::new().notify(NoteId(id), b"note")).unwrap()));
            (0..random.below(10)).for_each(|_| world.step());
        }
        if world.open_ends() == 2 {
            return; // Nobody has called yet: there is nothing to break.
        }
        world.sever();
        world.run_until(STEPS, || connecting.poll().is_some()).unwrap();
        match connecting.poll().unwrap() {
            Ok(peer) => {
                world.run_until(STEPS, || peer.ended().is_some()).unwrap();
                assert_eq!(peer.ended(), Some(Cause::PeerLost));
            }
            Err(ConnectError::Lost { .. }) => {}
            Err(other) => panic!("{other}"),
        }
        world.run_until(STEPS, || transfers.iter().all(|transfer| transfer.poll().is_some())).unwrap();
        for transfer in &transfers {
            match transfer.poll().unwrap() {
                Ok(done) => assert_eq!(done.bytes, 150_000),
                Err(fault) => assert_eq!(fault.cause, Cause::PeerLost),
            }
        }
        drop(transfers);
        world.run_until(STEPS, || is_empty(&[&source, &target])).unwrap();
        assert!(far.revoke(&[(0, far.bytes())], SECOND).unwrap().is_quiesced());
        assert_eq!(connect(world, &source, &target).ended(), None, "a broken stream is no obstacle to a new one");
        drop((far, near, connecting, source, target));
        assert_eq!(world.open_ends(), 0, "engines leave nothing behind");
        exchange(world, transport);
    });
}

fn hostile_hello(random: &mut Random, target: &Node) -> Frame {
    let odd = |random: &mut Random, usual: u64| if random.once_in(4) { random.next_u64() } else { usual };
    Frame::Hello(Hello {
        version_min: odd(random, 1) as u16,
        version_max: odd(random, 1) as u16,
        name: if random.once_in(6) { "../no name".to_owned() } else { "stranger".to_owned() },
        epoch: random.next_u64(),
        expects: odd(random, target.epoch().0),
        host: odd(random, Identity::default().host),
        process: odd(random, Identity::default().process),
        workers: odd(random, 1) as u16,
        peer_index: odd(random, 0) as u32,
        transports: [&["shm"][..], &["local"], &["local", "shm"], &["pigeon"], &[]][random.below(5)]
            .iter()
            .map(|name| (*name).to_owned())
            .collect(),
    })
}

fn hostile_frame(random: &mut Random, target: &Node) -> Frame {
    match random.below(8) {
        0..3 => hostile_hello(random, target),
        3 => {
            let transport = if random.once_in(2) { "shm" } else { "local" };
            let blob = (0..random.below(40)).map(|_| random.next_u64() as u8).collect();
            Frame::Offer(Offer { transport: transport.to_owned(), blob })
        }
        4 => Frame::RegionsGone(RegionsGone { revision: random.next_u64(), gone: vec![(0, 0), (u32::MAX, 1)] }),
        5 => Frame::Counters(vec![CounterNews { id: u32::MAX, generation: 1, region: 0, label: String::new() }]),
        6 => Frame::Refuse { code: RefusalCode::Full, text: "go away".to_owned() },
        _ => Frame::Goodbye,
    }
}

/// Says up to eight frames or not even frames, some with descriptors that lead nowhere.
fn harass(world: &World, stranger: &SimEnv, target: &Node, random: &mut Random) {
    let card = EngineDescriptor::decode(&target.descriptor()).unwrap();
    let mut stream = stranger.connect(&Address::Unix(card.socket.into())).unwrap();
    let nowhere = File::open("/dev/null").unwrap();
    for _ in 0..1 + random.below(8) {
        let mut bytes = Vec::new();
        let tokens = if random.once_in(3) { random.below(7) } else { 0 };
        encode(&hostile_frame(random, target), tokens, &mut bytes).unwrap();
        if random.once_in(4) {
            let place = random.below(bytes.len());
            bytes[place] ^= 1 << random.below(8);
        }
        // It may promise more descriptors than come, or fewer.
        let count = if random.once_in(4) { random.below(7) } else { tokens };
        let _ = stream.send(&bytes, &vec![nowhere.as_fd(); count]);
        (0..random.below(12)).for_each(|_| world.step());
    }
    let _ = stream.receive(&mut [0; 4096], &mut Vec::new());
}

#[test]
fn strangers_disturb_nobody() {
    replay(0..300, |world| {
        let mut random = Random::new(!world.seed());
        let target = world.start(config("target", ANY)).unwrap();
        let source = world.start(config("source", ANY)).unwrap();
        let (far, near) = (pool(&target, "kv"), pool(&source, "kv"));
        let peer = connect(world, &source, &target);
        let stranger = world.stranger(Identity::default());
        (0..4).for_each(|_| harass(world, &stranger, &target, &mut random));
        // Both engines listen, and have one stream between them.
        world.run_until(STEPS, || world.open_ends() == 4).unwrap();
        let span = [Span { local: 1, remote: 2, len: 99_999 }];
        let plan = Plan::write(&near, &peer.region("kv").unwrap()).extents(&span).build().unwrap();
        assert_eq!(peer.submit(&plan, Submit::new()).unwrap().wait().unwrap().bytes, 99_999);
        assert!(far.deregister(SECOND).unwrap().is_quiesced());
        assert_eq!((peer.ended(), target.peers().len()), (None, 1));
    });
}

#[test]
fn a_silent_stranger_is_dropped_in_time() {
    let world = World::new(1);
    let target = world.start(config("target", ANY)).unwrap();
    let card = EngineDescriptor::decode(&target.descriptor()).unwrap();
    let stranger = world.stranger(Identity::default());
    let stream = stranger.connect(&Address::Unix(card.socket.into())).unwrap();
    let before = world.now();
    let mut told = [0; 256];
    let mut stream = stream;
    world
        .run_until(1_000_000, || {
            stranger.pause(std::time::Duration::from_millis(1));
            matches!(stream.receive(&mut told, &mut Vec::new()), Ok(bytes) if bytes > 0)
        })
        .unwrap();
    let allowed = target.config().session.greeting_timeout();
    assert!(world.now().since(before) < 2 * allowed, "after {:?}", world.now().since(before));
}
