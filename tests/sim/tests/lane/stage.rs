//! Two engines on two hosts with a pool each, and what is moved between them.

use std::cell::Cell;
use std::time::Duration;

use penstock::{Cause, Completed, Config, Fault, Peer, Plan, Pool, PoolSpec, Submit, Transfer};
use penstock_simulation::{Clock, Identity, Node, Random, SimEnv, Weather, World};

pub(crate) const SECOND: Duration = Duration::from_secs(1);
/// Within this everything in these tests happens, many times over.
pub(crate) const SOON: Duration = Duration::from_secs(4);
/// How long a peer may be silent here.
pub(crate) const HEARTBEAT: Duration = Duration::from_millis(300);
/// Blocks of a pool, and bytes of a block: together more than two units of work, and not whole packets.
pub(crate) const BLOCKS: u32 = 36;
pub(crate) const BLOCK_BYTES: u64 = 5_000;
pub(crate) const BYTES: u64 = BLOCKS as u64 * BLOCK_BYTES;

/// The hosts.
pub(crate) const NEAR: u64 = 1;
pub(crate) const FAR: u64 = 2;

/// The engine `source` on one host, `target` on another, and a session between them.
pub(crate) struct Stage<'w> {
    pub(crate) world: &'w World,
    pub(crate) source: Node,
    pub(crate) target: Node,
    pub(crate) near: Pool<SimEnv>,
    pub(crate) far: Pool<SimEnv>,
    pub(crate) peer: Peer<SimEnv>,
}

pub(crate) fn config(host: u64, name: &str) -> Config {
    World::config_on(host, name).heartbeat(HEARTBEAT)
}

/// Starts an engine whose clock the seed has set.
pub(crate) fn start(world: &World, host: u64, name: &str) -> Node {
    let mut random = Random::new(world.seed() << 8 | host);
    let ahead = Duration::from_millis(random.below(5_000) as u64);
    let clock = Clock { ahead, drift_ppm: random.below(401) as i32 - 200 };
    world.start_as(Identity { clock, ..Identity::on(host) }, config(host, name)).unwrap()
}

pub(crate) fn pool(engine: &Node, label: &str) -> Pool<SimEnv> {
    engine.pool(PoolSpec::host(BYTES).block(BLOCK_BYTES).label(label)).unwrap()
}

/// Connects step by step, as a caller does who must not wait.
pub(crate) fn connect(world: &World, source: &Node, target: &Node) -> Peer<SimEnv> {
    let connecting = source.connect_begin(&target.descriptor()).unwrap();
    world.wait(SOON, || connecting.poll().is_some()).unwrap();
    let peer = connecting.poll().unwrap().unwrap();
    world.wait(SOON, || peer.region("kv").is_ok()).unwrap();
    peer
}

impl<'w> Stage<'w> {
    pub(crate) fn open(world: &'w World, weather: Weather) -> Self {
        world.set_weather(weather);
        let (target, source) = (start(world, FAR, "target"), start(world, NEAR, "source"));
        let (far, near) = (pool(&target, "kv"), pool(&source, "kv"));
        let peer = connect(world, &source, &target);
        assert_eq!(peer.transport(), "datagram");
        Self { world, source, target, near, far, peer }
    }

    /// Every block of ours onto one of theirs, in an order of the seed's.
    pub(crate) fn pairs(&self, salt: u64) -> Vec<(u32, u32)> {
        let mut random = Random::new(self.world.seed() ^ salt << 32);
        let mut places: Vec<u32> = (0..BLOCKS).collect();
        random.shuffle(&mut places);
        places.into_iter().enumerate().map(|(from, to)| (from as u32, to)).collect()
    }

    pub(crate) fn write(&self, pairs: &[(u32, u32)]) -> Plan {
        let remote = self.peer.region("kv").unwrap();
        Plan::write(&self.near, &remote).blocks(pairs).build().unwrap()
    }

    pub(crate) fn read(&self, pairs: &[(u32, u32)]) -> Plan {
        let remote = self.peer.region("kv").unwrap();
        Plan::read(&self.near, &remote).blocks(pairs).build().unwrap()
    }

    pub(crate) fn submit(&self, plan: &Plan, how: Submit<'_>) -> Transfer<SimEnv> {
        self.peer.submit(plan, how.within(SOON)).unwrap()
    }

    /// Waits for the end of a transfer.
    pub(crate) fn end(&self, transfer: &Transfer<SimEnv>) -> Result<Completed, Fault> {
        self.world.wait(2 * SOON, || transfer.poll().is_some()).unwrap();
        transfer.poll().unwrap()
    }

    /// Ends the session, looks that nothing is left of it, and that nothing is left of the engines.
    pub(crate) fn close(self) {
        let Self { world, source, target, near, far, peer } = self;
        assert!(peer.disconnect(SECOND));
        world.wait(SOON, || source.peers().is_empty() && target.peers().is_empty()).unwrap();
        world.wait(SOON, || source.transfers_held() == 0 && target.transfers_held() == 0).unwrap();
        assert!(source.quarantined().is_empty() && target.quarantined().is_empty());
        drop((near, far, peer, source, target));
        assert_eq!(world.open_ends(), 0, "engines leave nothing behind");
    }
}

/// The byte that belongs at this place of a pool that was filled with this salt.
fn byte_at(salt: u64, place: u64) -> u8 {
    let mixed = (place ^ salt << 40).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 56) as u8
}

/// Fills a pool so that no two places of it look alike.
pub(crate) fn fill(pool: &Pool<SimEnv>, salt: u64) {
    let bytes: Vec<u8> = (0..BYTES).map(|place| byte_at(salt, place)).collect();
    pool.window().write_from(0, &bytes).unwrap();
}

pub(crate) fn bytes_of(pool: &Pool<SimEnv>) -> Vec<u8> {
    let mut bytes = vec![0; BYTES as usize];
    pool.window().read_into(0, &mut bytes).unwrap();
    bytes
}

/// Whether all of these blocks lie where they belong; (from, to) with the salt of what they came from.
pub(crate) fn expect_blocks(found: &[u8], salt: u64, pairs: &[(u32, u32)]) {
    for &(from, to) in pairs {
        let start = u64::from(to) * BLOCK_BYTES;
        for place in 0..BLOCK_BYTES {
            let expected = byte_at(salt, u64::from(from) * BLOCK_BYTES + place);
            assert_eq!(found[(start + place) as usize], expected, "byte {place} of block {to}");
        }
    }
}

pub(crate) fn cause(result: Result<Completed, Fault>) -> Cause {
    result.expect_err("it does not end well").cause
}

/// How transfers ended over all seeds: a test of a race has seen both ends of it.
#[derive(Default)]
pub(crate) struct Ends {
    well: Cell<u32>,
    otherwise: Cell<u32>,
}

impl Ends {
    pub(crate) fn note(&self, result: &Result<Completed, Fault>) {
        let count = if result.is_ok() { &self.well } else { &self.otherwise };
        count.set(count.get() + 1);
    }

    /// Some ended well and some did not. One seed alone has but one end.
    pub(crate) fn expect_both(&self) {
        let (well, otherwise) = (self.well.get(), self.otherwise.get());
        assert!(well + otherwise == 1 || well.min(otherwise) > 0, "{well} ended well and {otherwise} did not");
    }
}

/// A thousandth part, so often, of about twice the time that a transfer of all blocks takes in a storm.
pub(crate) fn a_while(parts: u64) -> Duration {
    Duration::from_micros(parts % 1000 * 20)
}

/// Packets vanish, come twice, and overtake each other.
pub(crate) fn storm() -> Weather {
    Weather {
        delay_min: Duration::from_micros(5),
        delay_max: Duration::from_micros(900),
        lost: 50,
        doubled: 50,
        rotten: 5,
        ..Weather::default()
    }
}
