//! Blocks of requests between a device's pool and another, by the control layer.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use penstock::flows::{
    LifecycleSettings, LifecycleSpec, RequestId, SchedulerReport, SwapFailed, SwapState, SwapWay, block_refs,
};
use penstock::memory::DeviceId;
use penstock::{Blocks, Config, DevicePool, Engine, LocalRegion, Plan, Pool, PoolSpec, Submit, SystemEnv};

use crate::card::{Buffer, Card};
use crate::engines::{PATIENCE, pattern};
use crate::on_stand_in;

const BLOCK: u64 = 64 << 10;
const BLOCKS: u32 = 32;
const BYTES: u64 = BLOCKS as u64 * BLOCK;

/// An engine with a pool on a device, and one on the host by whose blocks tests look at the device's.
struct Node {
    engine: Engine,
    device: DevicePool<SystemEnv>,
    host: Pool<SystemEnv>,
    folder: PathBuf,
}

impl Drop for Node {
    fn drop(&mut self) {
        drop(self.engine.close(PATIENCE));
        // The assertions of a test say more than what stays of its folder.
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

impl Node {
    fn start() -> Self {
        let folder = std::env::temp_dir().join(format!("penstock-swaps-{}", std::process::id()));
        let engine = Engine::start(Config::default().named("decode-0").directory(&folder)).unwrap();
        let device = device_pool(&engine, 0, "device");
        let host = engine.pool(PoolSpec::host(BYTES).block(BLOCK).label("host")).unwrap();
        Self { engine, device, host, folder }
    }

    /// A request that has so many blocks of the device.
    fn active(&self, lives: &penstock::flows::Lifecycle<SystemEnv>, name: &str, blocks: &Blocks) -> (RequestId, u64) {
        let request = RequestId::new(name).unwrap();
        let life = lives.open(&request, 1).unwrap();
        let fresh = block_refs(blocks);
        lives.report(&request, life, &SchedulerReport::Allocated { fresh, cached: vec![] }).unwrap();
        lives.report(&request, life, &SchedulerReport::Active).unwrap();
        (request, life)
    }

    /// Copies blocks of the host's pool to others of a region of this engine, or back.
    fn copy(&self, host: &Blocks, region: &str, blocks: &Blocks, is_write: bool) {
        let oneself = self.engine.connect(&self.engine.descriptor(), PATIENCE).unwrap();
        let remote = oneself.wait_region(region, PATIENCE).unwrap();
        let pairs: Vec<_> = host.indices().iter().copied().zip(blocks.indices().iter().copied()).collect();
        let plan = if is_write { Plan::write(&self.host, &remote) } else { Plan::read(&self.host, &remote) };
        let plan = plan.blocks(&pairs).build().unwrap();
        oneself.submit(&plan, Submit::new().within(PATIENCE)).unwrap().wait().unwrap();
    }

    fn fill(&self, region: &str, blocks: &Blocks, seed: u64) {
        let host = self.host.take(blocks.len()).unwrap();
        for at in 0..blocks.len() {
            host.window(at).unwrap().write_from(0, &pattern(BLOCK, seed + at as u64)).unwrap();
        }
        self.copy(&host, region, blocks, true);
        self.let_go(host);
    }

    fn assert_filled(&self, region: &str, blocks: &Blocks, seed: u64) {
        let host = self.host.take(blocks.len()).unwrap();
        self.copy(&host, region, blocks, false);
        assert_host_filled(&host, seed);
        self.let_go(host);
    }

    fn let_go(&self, host: Blocks) {
        self.host.window().fill(0, BYTES, 0).unwrap();
        drop(host);
    }
}

fn device_pool(engine: &Engine, number: i32, label: &str) -> DevicePool<SystemEnv> {
    let device: DeviceId = Buffer::on(number, BLOCK).register(engine, &format!("{label} known")).device().unwrap();
    engine.device_pool(PoolSpec::device(device, BYTES).block(BLOCK).label(label)).unwrap()
}

fn assert_host_filled(host: &Blocks, seed: u64) {
    for at in 0..host.len() {
        let mut found = vec![0; BLOCK as usize];
        host.window(at).unwrap().read_into(0, &mut found).unwrap();
        assert!(found == pattern(BLOCK, seed + at as u64), "block {at}");
    }
}

/// What the driver does with a pool is done when swaps are set up, where there is somebody to be told.
#[test]
fn stand_in_a_pool_that_cannot_be_pinned_is_refused_before_its_first_swap() {
    if !on_stand_in("swaps::stand_in_a_pool_that_cannot_be_pinned_is_refused_before_its_first_swap", "pinned=1048576") {
        return;
    }
    let node = Node::start();
    let refused = node.engine.lifecycle(LifecycleSpec::between(&node.host, &node.device)).err().unwrap();
    let words = "bytes of pinned memory cannot be had (CUDA error 2, out of memory)";
    assert!(refused.to_string().contains(words), "{refused}");
    let small = node.engine.pool(PoolSpec::host(8 * BLOCK).block(BLOCK).label("small")).unwrap();
    node.engine.lifecycle(LifecycleSpec::between(&small, &node.device)).unwrap();
}

#[test]
fn stand_in_swaps_requests_out_to_the_host_and_in_again() {
    if !on_stand_in("swaps::stand_in_swaps_requests_out_to_the_host_and_in_again", "") {
        return;
    }
    let node = Node::start();
    let far = node.engine.pool(PoolSpec::host(BYTES).block(BLOCK).label("far")).unwrap();
    let there = far.take(8).unwrap();
    out_and_in(&node, &far, &there, "far");
    assert_host_filled(&there, 7);
}

#[test]
fn stand_in_swaps_requests_between_two_devices() {
    if !on_stand_in("swaps::stand_in_swaps_requests_between_two_devices", "devices=2") {
        return;
    }
    let node = Node::start();
    let far = device_pool(&node.engine, 1, "far");
    out_and_in(&node, &far, &far.take(8).unwrap(), "far");
}

/// Both ways between other blocks each time, all others untouched.
fn out_and_in(node: &Node, far: &LocalRegion<SystemEnv>, there: &Blocks, label: &str) {
    let lives = node.engine.lifecycle(LifecycleSpec::between(far, &node.device)).unwrap();
    let blocks = node.device.take(8).unwrap();
    let others = node.device.take(8).unwrap();
    node.fill("device", &blocks, 7);
    node.fill("device", &others, 100);
    let (request, life) = node.active(&lives, "cmpl-1", &blocks);
    let swap = lives.swap(SwapWay::Out, (&request, life), &blocks, there, PATIENCE).unwrap();
    swap.wait(PATIENCE).unwrap().unwrap();
    swap.commit().unwrap();
    node.assert_filled(label, there, 7);
    node.fill("device", &blocks, 50);
    let fresh = node.device.take(8).unwrap();
    let swap = lives.swap(SwapWay::In, (&request, life), &fresh, there, PATIENCE).unwrap();
    swap.wait(PATIENCE).unwrap().unwrap();
    swap.commit().unwrap();
    for (blocks, seed) in [(&fresh, 7), (&blocks, 50), (&others, 100)] {
        node.assert_filled("device", blocks, seed);
    }
    assert_eq!(lives.device_blocks(&request, life).unwrap(), block_refs(&fresh));
    assert_eq!((lives.swaps().unwrap(), node.engine.control_metrics().swaps), ((0, 0), 0));
    assert_eq!(crate::card::forbidden(), "", "nothing of this waits for the device, or uses what is its caller's");
}

/// The device has not begun the copy when the swap is too late: its blocks are nobody's before it has ended.
#[test]
fn stand_in_blocks_of_a_late_swap_are_nobodys_before_the_device_has_ended_it() {
    if !on_stand_in("swaps::stand_in_blocks_of_a_late_swap_are_nobodys_before_the_device_has_ended_it", "") {
        return;
    }
    let node = Node::start();
    let settings = LifecycleSettings { blocks: BLOCKS, grace: Duration::ZERO, ..LifecycleSettings::default() };
    let lives = node.engine.lifecycle(LifecycleSpec::between(&node.host, &node.device).settings(settings)).unwrap();
    let blocks = node.device.take(8).unwrap();
    node.fill("device", &blocks, 7);
    let (request, life) = node.active(&lives, "cmpl-1", &blocks);
    let host = node.host.take(8).unwrap();
    let card = Card::of_this_process();
    card.hold();
    let swap = lives.swap(SwapWay::Out, (&request, life), &blocks, &host, Duration::from_millis(50)).unwrap();
    drop((blocks, host));
    assert_eq!(swap.wait(PATIENCE).unwrap(), Err(SwapFailed::TimedOut));
    let since = Instant::now();
    while swap.status().state != SwapState::Quarantined {
        assert!(since.elapsed() < PATIENCE, "{:?}", swap.status());
        std::thread::sleep(Duration::from_millis(1));
    }
    let free = || (node.device.memory().blocks().free(), node.host.memory().blocks().free());
    assert_eq!(free(), (24, 24), "the device reads the ones and writes the others");
    card.go_on();
    assert!(swap.wait_over(PATIENCE));
    let all = BLOCKS as usize;
    drop((node.device.take_within(all, PATIENCE).unwrap(), node.host.take_within(all, PATIENCE).unwrap()));
    // The session goes on.
    let (blocks, host) = (node.device.take_within(8, PATIENCE).unwrap(), node.host.take_within(8, PATIENCE).unwrap());
    let (request, life) = node.active(&lives, "cmpl-2", &blocks);
    let swap = lives.swap(SwapWay::Out, (&request, life), &blocks, &host, PATIENCE).unwrap();
    swap.wait(PATIENCE).unwrap().unwrap();
    swap.commit().unwrap();
}
