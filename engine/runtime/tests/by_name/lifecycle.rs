//! Lives of requests and the swaps of their blocks, in whole engines: a pool of the host plays the device's.

use std::time::{Duration, Instant};

use penstock::config::{Progress, TransportName};
use penstock::flows::lifecycle::{Request, TrackerMetrics};
use penstock::flows::{
    Eviction, FlowError, ForeignMemory, Lifecycle, LifecycleError, LifecycleSettings, LifecycleSpec, Removals,
    RequestId, SchedulerReport, Swap, SwapFailed, SwapState, SwapWay, Verdict, block_refs,
};
use penstock::region::Pool;
use penstock::{Blocks, Engine, PoolSpec, Rights, SystemEnv};

use crate::ends::{Folder, PATIENCE};

const BLOCK: u64 = 64 << 10;

/// A scheduler with a device of so many blocks, and a host with as many. Fields end in this order.
pub(crate) struct Node {
    pub(crate) removals: Removals<SystemEnv>,
    pub(crate) lives: Lifecycle<SystemEnv>,
    pub(crate) device: Pool<SystemEnv>,
    pub(crate) host: Pool<SystemEnv>,
    pub(crate) engine: Engine,
    _folder: Folder,
}

/// A pool of so many blocks that plays a device's.
pub(crate) fn device_pool(engine: &Engine, blocks: u32, block_bytes: u64) -> Pool<SystemEnv> {
    let spec = PoolSpec::host(u64::from(blocks) * block_bytes).block(block_bytes).label("device");
    let spec = spec.rights(Rights::READ_WRITE);
    engine.pool(spec).unwrap()
}

pub(crate) fn node(progress: Progress, blocks: u32, grace: Duration) -> Node {
    let folder = Folder::new();
    let engine = folder.engine("decode-0", TransportName::Local, progress);
    let spec = PoolSpec::host(u64::from(blocks) * BLOCK).block(BLOCK);
    let host = engine.pool(spec.clone().label("host")).unwrap();
    let device = device_pool(&engine, blocks, BLOCK);
    let settings = LifecycleSettings { blocks, grace, ..LifecycleSettings::default() };
    let lives = engine.lifecycle(LifecycleSpec::between(&host, &device).settings(settings)).unwrap();
    let removals = lives.removals(64).unwrap();
    Node { removals, lives, device, host, engine, _folder: folder }
}

/// Each byte of each block of a request.
pub(crate) fn fill(blocks: &Blocks, number: u8) {
    for at in 0..blocks.len() {
        let words: Vec<u8> = (0..BLOCK).map(|byte| (byte / 251) as u8 ^ byte as u8 ^ number ^ at as u8).collect();
        blocks.window(at).unwrap().write_from(0, &words).unwrap();
    }
}

pub(crate) fn assert_filled(blocks: &Blocks, number: u8) {
    for at in 0..blocks.len() {
        let mut found = vec![0; BLOCK as usize];
        blocks.window(at).unwrap().read_into(0, &mut found).unwrap();
        let is_its = |(byte, found): (usize, &u8)| *found == (byte / 251) as u8 ^ byte as u8 ^ number ^ at as u8;
        assert!(found.iter().enumerate().all(is_its), "block {at} of request {number}");
    }
}

impl Node {
    /// A request that is computed, in so many blocks of the device.
    pub(crate) fn active(&self, name: &str, number: u8, count: usize) -> (RequestId, u64, Blocks) {
        let request = RequestId::new(name).unwrap();
        let life = self.lives.open(&request, 1).unwrap();
        let blocks = self.device.take(count).unwrap();
        fill(&blocks, number);
        let fresh = block_refs(&blocks);
        assert_eq!(self.say(&request, life, SchedulerReport::Allocated { fresh, cached: vec![] }), Verdict::NoOp);
        assert_eq!(self.say(&request, life, SchedulerReport::Active), Verdict::NoOp);
        (request, life, blocks)
    }

    pub(crate) fn say(&self, request: &RequestId, life: u64, report: SchedulerReport) -> Verdict {
        self.lives.report(request, life, &report).unwrap()
    }

    pub(crate) fn state(&self, request: &RequestId, life: u64) -> Request {
        self.lives.state(request, life).unwrap()
    }

    pub(crate) fn swap(
        &self,
        way: SwapWay,
        of: (&RequestId, u64),
        device: &Blocks,
        host: &Blocks,
        within: Duration,
    ) -> Swap<SystemEnv> {
        self.lives.swap(way, of, device, host, within).unwrap()
    }

    fn removed(&self) -> Vec<RequestId> {
        let mut removed = Vec::new();
        assert_eq!(self.removals.take(&mut removed).unwrap().lost, 0);
        removed.into_iter().map(|removed| removed.request).collect()
    }

    /// Waits until so many blocks of both pools are free: what a swap lets go is freed by the control loop.
    pub(crate) fn assert_free(&self, device: u32, host: u32) {
        let since = Instant::now();
        let free = || (self.device.memory().blocks().free(), self.host.memory().blocks().free());
        while free() != (device as usize, host as usize) {
            assert!(since.elapsed() < PATIENCE, "free are {:?}, not {:?}", free(), (device, host));
            let _ = self.engine.progress_all();
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Row 03 and row 04 of the scheduler's table: prepare and commit, out and in again into other blocks.
fn bytes_go_out_and_come_back(progress: Progress) {
    let node = node(progress, 32, Duration::from_millis(500));
    let (request, life, first) = node.active("cmpl-1", 7, 8);
    let taken = block_refs(&first);
    let host = node.host.take(8).unwrap();
    let swap = node.swap(SwapWay::Out, (&request, life), &first, &host, PATIENCE);
    assert_eq!(node.state(&request, life), Request::SwappingOut, "prepared");
    swap.wait(PATIENCE).unwrap().unwrap();
    assert_filled(&host, 7);
    assert_eq!(swap.status().state, SwapState::Moved);
    swap.commit().unwrap();
    assert_eq!((node.state(&request, life), swap.status().state), (Request::Swapped, SwapState::Committed));
    assert_eq!(node.lives.device_blocks(&request, life).unwrap(), []);
    node.assert_free(24, 24);
    drop(first);
    node.assert_free(32, 24);
    // Somebody else has the device's blocks meanwhile: none of them is named by what is freed now.
    let (other, others_life, _others) = node.active("cmpl-2", 99, 24);
    let second = node.device.take(8).unwrap();
    assert!(block_refs(&second).iter().all(|block| !taken.contains(block)), "another use, if it is the same block");
    let swap = node.swap(SwapWay::In, (&request, life), &second, &host, PATIENCE);
    assert_eq!(node.state(&request, life), Request::SwappingIn);
    swap.wait(PATIENCE).unwrap().unwrap();
    swap.commit().unwrap();
    assert_eq!(node.state(&request, life), Request::Active);
    assert_filled(&second, 7);
    assert_eq!(node.lives.device_blocks(&request, life).unwrap(), block_refs(&second));
    drop((swap, host));
    node.assert_free(0, 32);
    assert_eq!(node.removed(), []);
    assert_eq!(node.say(&request, life, SchedulerReport::Removed), Verdict::Remove);
    assert_eq!(node.say(&request, life, SchedulerReport::Aborted), Verdict::NoOp, "the end is told once");
    assert_eq!(node.say(&other, others_life, SchedulerReport::Aborted), Verdict::Remove);
    assert_eq!(node.removed(), [request, other]);
    drop((second, _others));
    node.assert_free(32, 32);
    assert_eq!(node.lives.swaps().unwrap(), (0, 0));
    assert_eq!(node.engine.control_metrics().swaps, 0);
}

#[test]
fn lifecycle_native_03_04_swap_out_and_in_with_threads() {
    bytes_go_out_and_come_back(Progress::Adaptive);
}

#[test]
fn lifecycle_native_03_04_swap_out_and_in_inline() {
    bytes_go_out_and_come_back(Progress::Inline);
}

/// Row 09 and row 10: a swap takes too long. The request is dropped and its free put off; the blocks are nobody's before the copy has
/// ended, and those of a copy that does not end at once are quarantined and released by its end.
fn a_late_swap_is_stopped(way: SwapWay) {
    // Nothing is waited for after the stop: whatever is in a worker's hands then is quarantined.
    let node = node(Progress::Adaptive, 1024, Duration::ZERO);
    let (mut quarantined, since) = (0, Instant::now());
    for attempt in 0.. {
        if since.elapsed() > PATIENCE {
            break;
        }
        let (request, life, device) = node.active(&format!("cmpl-{attempt}"), 3, 16);
        drop(device);
        node.say(&request, life, SchedulerReport::Aborted);
        node.assert_free(1024, 1024);
        let request = RequestId::new(&format!("late-{attempt}")).unwrap();
        let life = node.lives.open(&request, 1).unwrap();
        let device = node.device.take(1024).unwrap();
        let fresh = block_refs(&device);
        let host = node.host.take(1024).unwrap();
        node.say(&request, life, SchedulerReport::Allocated { fresh, cached: vec![] });
        if way == SwapWay::In {
            // Its scheduler has taken it to the host by itself.
            node.say(&request, life, SchedulerReport::SwapOutPrepared);
            node.say(&request, life, SchedulerReport::SwapOutCommitted);
        }
        let swap = node.swap(way, (&request, life), &device, &host, Duration::from_micros(200));
        match swap.wait(PATIENCE).unwrap() {
            // It was in time.
            Ok(()) => {
                swap.roll_back(PATIENCE).map(drop).unwrap();
                drop((device, host));
            }
            Err(failed) => {
                assert_eq!(failed, SwapFailed::TimedOut);
                assert_eq!(node.state(&request, life), Request::Dropped);
                let deferred = node.lives.deferred().unwrap();
                assert_eq!((deferred.len(), &deferred[0].request), (1, &request), "put off, and it has an owner");
                drop((device, host));
                if swap.status().state == SwapState::Quarantined {
                    let free = (node.device.memory().blocks().free(), node.host.memory().blocks().free());
                    // It may have ended between the two looks, and not the other way round.
                    if swap.status().state == SwapState::Quarantined {
                        assert_eq!(free, (0, 0), "nobody gets blocks that a copy may be at");
                    }
                }
                assert!(swap.wait_over(PATIENCE));
                quarantined = node.engine.statistics().quarantines;
            }
        }
        assert_eq!(node.say(&request, life, SchedulerReport::Aborted), Verdict::Remove, "once, at the true end");
        drop(swap);
        node.assert_free(1024, 1024);
        assert!(node.engine.quarantined().is_empty(), "released by the copy's end");
        assert_eq!(node.engine.control_metrics().swaps_quarantined, 0);
        if quarantined > 0 {
            break;
        }
    }
    assert!(quarantined > 0, "not one copy of 64 MB was still under way when it was stopped");
    assert_eq!(node.lives.swaps().unwrap(), (0, 0));
    let TrackerMetrics { live, deferred, .. } = node.lives.metrics().unwrap();
    assert_eq!((live, deferred), (0, 0));
}

/// Late, it is deferred, quarantined and released.
#[test]
fn lifecycle_native_09_swap_out_timeout() {
    a_late_swap_is_stopped(SwapWay::Out);
}

/// Late, it is deferred, quarantined and released.
#[test]
fn lifecycle_native_10_swap_in_timeout() {
    a_late_swap_is_stopped(SwapWay::In);
}

/// Rolled back while it moves it leaves the request where it was.
#[test]
fn lifecycle_swap_out_rolled_back() {
    let node = node(Progress::Adaptive, 256, Duration::from_secs(5));
    let (request, life, device) = node.active("cmpl-1", 5, 256);
    let host = node.host.take(256).unwrap();
    let swap = node.swap(SwapWay::Out, (&request, life), &device, &host, PATIENCE);
    assert!(swap.roll_back(PATIENCE).unwrap(), "nothing lands any more");
    assert_eq!((swap.status().state, swap.status().failed), (SwapState::RolledBack, Some(SwapFailed::RolledBack)));
    assert_eq!(node.state(&request, life), Request::Active);
    let error = swap.commit().unwrap_err().to_string();
    assert!(error.contains("no such swap any more"), "{error}");
    assert_filled(&device, 5);
    drop(host);
    node.assert_free(0, 256);
    // And again, to its end: dropped uncommitted it is rolled back by that.
    let host = node.host.take(256).unwrap();
    drop(node.swap(SwapWay::Out, (&request, life), &device, &host, PATIENCE));
    drop(host);
    node.assert_free(0, 256);
    assert_eq!(node.state(&request, life), Request::Active);
    let host = node.host.take(256).unwrap();
    let swap = node.swap(SwapWay::Out, (&request, life), &device, &host, PATIENCE);
    swap.wait(PATIENCE).unwrap().unwrap();
    swap.commit().unwrap();
    assert_filled(&host, 5);
}

#[test]
fn scenario_15_a_deferred_request_is_removed_once_at_its_abort() {
    let node = node(Progress::Adaptive, 1024, Duration::from_secs(5));
    let first = fall_back(&node);
    // It is computed again, in other blocks.
    let (request, life) = (&first.0, first.1);
    let again = node.device.take(4).unwrap();
    let fresh = block_refs(&again);
    assert_eq!(node.say(request, life, SchedulerReport::Allocated { fresh, cached: vec![] }), Verdict::NoOp);
    assert_eq!(node.say(request, life, SchedulerReport::Active), Verdict::NoOp);
    assert_eq!((node.lives.deferred().unwrap().len(), node.removed()), (0, vec![]), "its end is not put off any more");
    assert_eq!(node.say(request, life, SchedulerReport::Aborted), Verdict::Remove);
    assert_eq!(node.say(request, life, SchedulerReport::Removed), Verdict::NoOp);
    assert_eq!(node.removed(), std::slice::from_ref(request), "once, at its abort");
    // The id again has a removal of its own.
    let next = node.lives.open(request, 1).unwrap();
    assert_eq!(node.say(request, next, SchedulerReport::Removed), Verdict::Remove);
    assert_eq!(node.removed(), std::slice::from_ref(request));
    drop(again);
    node.assert_free(1024, 1024);
}

/// A swap of a request that is too late, so that its free is put off. Answers the request, whose blocks are free again.
fn fall_back(node: &Node) -> (RequestId, u64) {
    let since = Instant::now();
    for attempt in 0.. {
        assert!(since.elapsed() < PATIENCE, "copies of 64 MB are over in microseconds");
        let (request, life, device) = node.active(&format!("late-{attempt}"), 3, 1020);
        let host = node.host.take(1020).unwrap();
        let swap = node.swap(SwapWay::Out, (&request, life), &device, &host, Duration::from_micros(200));
        let ended = swap.wait(PATIENCE).unwrap();
        drop((device, host));
        if ended.is_err() {
            assert_eq!(ended, Err(SwapFailed::TimedOut));
            assert!(swap.wait_over(PATIENCE));
            assert_eq!(node.lives.deferred().unwrap().len(), 1);
            drop(swap);
            node.assert_free(1024, 1024);
            return (request, life);
        }
        drop(swap);
        node.say(&request, life, SchedulerReport::Aborted);
        node.removed();
        node.assert_free(1024, 1024);
    }
    unreachable!("the loop ends by its time")
}

/// A request that is aborted in mid swap is removed once, and its blocks wait for the copy.
#[test]
fn defect_002_abort_while_waiting_deferred_or_in_mid_swap_has_no_row() {
    let node = node(Progress::Adaptive, 256, Duration::from_secs(5));
    let (request, life, device) = node.active("cmpl-1", 5, 256);
    let host = node.host.take(256).unwrap();
    let swap = node.swap(SwapWay::Out, (&request, life), &device, &host, PATIENCE);
    assert_eq!(node.say(&request, life, SchedulerReport::Aborted), Verdict::Remove);
    assert_eq!(node.removed(), std::slice::from_ref(&request));
    drop((device, host));
    assert!(swap.wait_over(PATIENCE));
    assert_eq!(swap.wait(PATIENCE).unwrap(), Err(SwapFailed::RolledBack));
    node.assert_free(256, 256);
    // The id again is another life.
    let again = node.lives.open(&request, 1).unwrap();
    assert_ne!(again, life);
    assert_eq!(node.say(&request, life, SchedulerReport::Removed), Verdict::NoOp, "of the life that is over");
    assert_eq!(node.say(&request, again, SchedulerReport::Removed), Verdict::Remove);
    assert_eq!(node.removed(), [request]);
}

#[test]
fn the_handles_may_go_in_the_middle_of_a_swap() {
    let node = node(Progress::Adaptive, 256, Duration::from_secs(5));
    let (request, life, device) = node.active("cmpl-1", 5, 256);
    let host = node.host.take(256).unwrap();
    let swap = node.swap(SwapWay::Out, (&request, life), &device, &host, PATIENCE);
    let Node { removals, lives, device: memory, host: pool, engine, .. } = node;
    drop((swap, removals, lives));
    let since = Instant::now();
    while engine.control_metrics().swaps > 0 {
        assert!(since.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(1));
    }
    drop((device, host));
    assert_eq!(
        (memory.take_within(256, PATIENCE).unwrap().len(), pool.take_within(256, PATIENCE).unwrap().len()),
        (256, 256)
    );
}

/// It begins anew with a snapshot.
#[test]
fn lifecycle_a_full_subscriber_sees_its_lag_and_resyncs() {
    let node = node(Progress::Adaptive, 8, Duration::ZERO);
    let (short, evictions) = (node.lives.removals(2).unwrap(), node.lives.evictions(8).unwrap());
    let ids: Vec<RequestId> = (0..4).map(|number| RequestId::new(&format!("cmpl-{number}")).unwrap()).collect();
    let lives: Vec<u64> = ids.iter().map(|id| node.lives.open(id, 1).unwrap()).collect();
    for at in 0..3 {
        node.say(&ids[at], lives[at], SchedulerReport::Aborted);
    }
    let mut removed = Vec::new();
    assert_eq!((short.take(&mut removed).unwrap().lost, removed.len()), (3, 0));
    assert_eq!(short.resync().unwrap(), [(ids[3].clone(), lives[3])]);
    node.say(&ids[3], lives[3], SchedulerReport::Aborted);
    assert_eq!((short.take(&mut removed).unwrap().lost, removed.len()), (0, 1));
    assert_eq!(node.removed(), ids);

    let (request, life, blocks) = node.active("cmpl-9", 1, 2);
    let found = vec![(11, block_refs(&blocks)[0]), (12, block_refs(&blocks)[1])];
    node.say(&request, life, SchedulerReport::Registered { blocks: found.clone() });
    assert!(node.lives.evict(11, found[0].1, Eviction::Reallocated).unwrap());
    assert!(!node.lives.evict(11, found[0].1, Eviction::Reallocated).unwrap(), "once");
    let mut evicted = Vec::new();
    evictions.take(&mut evicted).unwrap();
    assert_eq!((evicted.len(), evicted[0].hash), (1, 11));
    assert_eq!(evictions.resync().unwrap(), [found[1]]);
}

#[test]
fn what_cannot_be_swapped_is_refused_with_what_is_wrong() {
    let node = node(Progress::Adaptive, 8, Duration::ZERO);
    let (request, life, device) = node.active("cmpl-1", 1, 2);
    let host = node.host.take(2).unwrap();
    let try_swap = |device: &Blocks, host: &Blocks| {
        node.lives.swap(SwapWay::Out, (&request, life), device, host, PATIENCE).map(drop).unwrap_err()
    };
    let crossed = try_swap(&host, &device);
    assert!(matches!(crossed, FlowError::Memory(ForeignMemory::Blocks { .. })), "{crossed}");
    let uneven = try_swap(&device, &node.host.take(1).unwrap());
    assert_eq!(uneven, FlowError::Memory(ForeignMemory::Pairs { device: 2, host: 1 }));
    let others = node.device.take(2).unwrap();
    let not_its = try_swap(&others, &host);
    assert!(
        matches!(&not_its, FlowError::Lifecycle(why) if matches!(**why, LifecycleError::BlockNotHeld { .. })),
        "{not_its}"
    );
    assert_eq!(node.state(&request, life), Request::Active, "nothing has changed");
    drop((others, host, device));
    node.say(&request, life, SchedulerReport::Aborted);
    node.assert_free(8, 8);

    let pool = node.engine.pool(PoolSpec::host(1 << 20).block(4096).label("small")).unwrap();
    let unlike = node.engine.lifecycle(LifecycleSpec::between(&pool, &node.device)).map(drop).unwrap_err();
    assert_eq!(unlike, FlowError::Memory(ForeignMemory::BlockBytes { here: 4096, there: BLOCK }));
    // One layer behind the other: the second one of a block lies in another block.
    let behind = LifecycleSpec::between(&node.host, &node.device).layers(&[(0, 0), (4 * BLOCK, BLOCK / 2)], BLOCK / 2);
    let behind = node.engine.lifecycle(behind).map(drop).unwrap_err();
    assert_eq!(behind, FlowError::Memory(ForeignMemory::Layers { label: "host".to_owned() }));
    let within = LifecycleSpec::between(&node.host, &node.device).layers(&[(0, 0), (BLOCK / 2, BLOCK / 2)], BLOCK / 2);
    drop(node.engine.lifecycle(within).unwrap());
    let folder = Folder::new();
    let other = folder.engine("other", TransportName::Shm, Progress::Adaptive);
    let foreign = other.lifecycle(LifecycleSpec::between(&node.host, &node.device)).map(drop).unwrap_err();
    assert!(matches!(foreign, FlowError::Memory(ForeignMemory::Pool { .. })), "{foreign}");
    let pools = ["one", "other"].map(|label| {
        let spec = PoolSpec::host(8 * BLOCK).block(BLOCK).label(label);
        other.pool(if label == "one" { spec.rights(Rights::READ) } else { spec }).unwrap()
    });
    let alone = other.lifecycle(LifecycleSpec::between(&pools[0], &pools[1])).map(drop).unwrap_err();
    assert!(matches!(&alone, FlowError::Oneself { why } if why.contains("transports.allow")), "{alone}");
    let unwritable = other.lifecycle(LifecycleSpec::between(&pools[1], &pools[0])).map(drop).unwrap_err();
    assert_eq!(unwritable, FlowError::Memory(ForeignMemory::Rights { label: "one".to_owned() }));
    let memory = penstock::HostMemory::from_vec(vec![0; 8192]).unwrap();
    let region = other.register(memory, "caller", Rights::READ_WRITE).unwrap();
    let blockless = other.lifecycle(LifecycleSpec::between(&pools[1], &region)).map(drop).unwrap_err();
    assert_eq!(blockless, FlowError::Memory(ForeignMemory::NoPool { label: "caller".to_owned() }));
}
