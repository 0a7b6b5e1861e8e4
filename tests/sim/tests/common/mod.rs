//! One exchange between two engines, from hello to goodbye, with everything checked on the way.

use std::time::Duration;

use penstock::config::TransportName;
use penstock::{Cause, Config, NoteId, Notified, Peer, Plan, Pool, PoolSpec, Submit};
use penstock_simulation::trace::digest;
use penstock_simulation::{Node, Random, SimEnv, World};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// Steps within which everything in these tests happens, many times over.
pub(crate) const STEPS: u64 = 20_000;
/// Blocks of a pool, and bytes of a block: together more than two units of work.
const BLOCKS: u32 = 40;
const BLOCK_BYTES: u64 = 4096;

pub(crate) fn config(name: &str, transports: &[TransportName]) -> Config {
    World::config(name).transports(transports.iter().copied())
}

pub(crate) fn pool(engine: &Node, label: &str) -> Pool<SimEnv> {
    engine.pool(PoolSpec::host(u64::from(BLOCKS) * BLOCK_BYTES).block(BLOCK_BYTES).label(label)).unwrap()
}

/// Connects step by step, as a caller does who must not wait.
pub(crate) fn connect(world: &World, source: &Node, target: &Node) -> Peer<SimEnv> {
    let connecting = source.connect_begin(&target.descriptor()).unwrap();
    world.run_until(STEPS, || connecting.poll().is_some()).unwrap();
    connecting.poll().unwrap().unwrap()
}

/// Connect, write, tell, verify, revoke, read, disconnect.
pub(crate) fn exchange(world: &World, transport: TransportName) {
    let target = world.start(config("target", &[transport])).unwrap();
    let source = world.start(config("source", &[transport])).unwrap();
    let (far, near) = (pool(&target, "kv"), pool(&source, "kv"));
    let counter = far.counter("arrivals").unwrap();
    let peer = connect(world, &source, &target);
    assert_eq!(peer.transport(), transport.as_str());

    let mut random = Random::new(world.seed());
    let mut places: Vec<u32> = (0..BLOCKS).collect();
    random.shuffle(&mut places);
    let pairs: Vec<(u32, u32)> = places.iter().enumerate().map(|(from, &to)| (from as u32, to)).collect();
    for &(block, _) in &pairs {
        near.window().fill(u64::from(block) * BLOCK_BYTES, BLOCK_BYTES, block as u8 ^ 0x5a).unwrap();
    }
    let remote = peer.region("kv").unwrap();
    let plan = Plan::write(&near, &remote).blocks(&pairs).build().unwrap();
    world.run_until(STEPS, || peer.counter("arrivals").is_some()).unwrap();
    let arrivals = peer.counter("arrivals").unwrap();
    let how = Submit::new().notify(NoteId(world.seed().into()), b"layer 3").count(arrivals);
    let transfer = peer.submit(&plan, how).unwrap();
    let mut notes = Vec::new();
    world.run_until(STEPS, || transfer.poll().is_some() && target.notifications(&mut notes) > 0).unwrap();
    let done = transfer.poll().unwrap().unwrap();
    assert_eq!((done.bytes, done.notified), (u64::from(BLOCKS) * BLOCK_BYTES, Notified::Yes));
    assert_eq!((notes[0].id, notes[0].payload.as_slice()), (NoteId(world.seed().into()), b"layer 3".as_slice()));
    assert_eq!(counter.value(), 1);
    let mut found = vec![0; BLOCK_BYTES as usize];
    for &(from, to) in &pairs {
        far.window().read_into(u64::from(to) * BLOCK_BYTES, &mut found).unwrap();
        assert!(found.iter().all(|&byte| byte == from as u8 ^ 0x5a), "block {to}");
    }
    world.note(digest(&found));

    assert!(far.revoke(&[(0, BLOCK_BYTES)], SECOND).unwrap().is_quiesced());
    let stale = peer.submit(&plan, Submit::new()).unwrap();
    world.run_until(STEPS, || stale.poll().is_some()).unwrap();
    assert_eq!(stale.poll().unwrap().unwrap_err().cause, Cause::RevokedByPeer);
    let again = Plan::read(&near, &remote).blocks(&pairs).build().unwrap();
    assert_eq!(peer.submit(&again, Submit::new()).unwrap().wait().unwrap().bytes, again.bytes());

    assert!(peer.disconnect(SECOND));
    world.run_until(STEPS, || source.peers().is_empty() && target.peers().is_empty()).unwrap();
    drop((transfer, stale));
    world.run_until(STEPS, || source.transfers_held() == 0 && target.transfers_held() == 0).unwrap();
    assert!(source.quarantined().is_empty() && target.quarantined().is_empty());
    drop((plan, again, peer, far, near, counter, source, target));
    assert_eq!(world.open_ends(), 0, "engines leave nothing behind");
}
