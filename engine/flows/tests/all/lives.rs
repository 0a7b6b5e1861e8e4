//! A scheduler with one device, for tests: says what it does as a scheduler would, and hands out blocks as an allocator would.

pub(crate) mod parents;

use std::collections::BTreeMap;
use std::time::Duration;

use penstock_core::{Epoch, Generation, RegionId, Timestamp};
use penstock_flows::action::{Action, BlocksRef, MoveId, RegionRef, WatchId};
use penstock_flows::event::Event;
use penstock_flows::lifecycle::{
    BlockRef, Lifecycle, LifecycleError, LifecycleSettings, Removed, Request, SchedulerReport, Subscriber, SwapAsk,
    SwapPath, SwapWay, Verdict,
};
use penstock_session::{PeerKey, RequestId};

pub(crate) const GRACE: Duration = Duration::from_millis(500);
pub(crate) const WITHIN: Duration = Duration::from_secs(1);
pub(crate) const DEVICE: PeerKey = PeerKey { peer_index: 3, epoch: Epoch(77) };

pub(crate) fn at_ms(ms: u64) -> Timestamp {
    Timestamp::from_ns(ms * 1_000_000)
}

pub(crate) fn id(name: &str) -> RequestId {
    RequestId::new(name).unwrap()
}

/// Hands out blocks of the device, the least index first, each time in a later use.
pub(crate) struct Allocator {
    pub(crate) generations: Vec<u32>,
    pub(crate) free: Vec<u32>,
}

impl Allocator {
    pub(crate) fn new(blocks: u32) -> Self {
        Self { generations: vec![0; blocks as usize], free: (0..blocks).rev().collect() }
    }

    pub(crate) fn take(&mut self, count: usize) -> Vec<BlockRef> {
        (0..count)
            .map(|_| {
                let index = self.free.pop().expect("the test has blocks enough");
                self.generations[index as usize] += 1;
                BlockRef { index, generation: self.generations[index as usize] }
            })
            .collect()
    }

    pub(crate) fn give_back(&mut self, blocks: &[BlockRef]) {
        for block in blocks {
            assert_eq!(self.generations[block.index as usize], block.generation, "{block:?} is somebody else's");
            assert!(!self.free.contains(&block.index), "{block:?} was free already");
            self.free.push(block.index);
        }
    }
}

pub(crate) struct Node {
    pub(crate) lives: Lifecycle,
    pub(crate) blocks: Allocator,
    pub(crate) removals: Subscriber,
    pub(crate) now: Timestamp,
    pub(crate) generations: BTreeMap<RequestId, u64>,
}

impl Node {
    pub(crate) fn new() -> Self {
        let settings = LifecycleSettings { blocks: 64, grace: GRACE, ..LifecycleSettings::default() };
        let mut lives = Lifecycle::new(settings, 1000);
        let removals = lives.tracker_mut().subscribe_removals(1024).unwrap();
        Self { lives, blocks: Allocator::new(64), removals, now: at_ms(1), generations: BTreeMap::new() }
    }

    pub(crate) fn open(&mut self, name: &str, sequences: u32) -> u64 {
        let generation = self.lives.tracker_mut().open(id(name), sequences).unwrap();
        self.generations.insert(id(name), generation);
        generation
    }

    pub(crate) fn try_say(&mut self, name: &str, report: &SchedulerReport) -> Result<Verdict, LifecycleError> {
        let answer = self.lives.report(&id(name), self.generations[&id(name)], report, self.now);
        self.lives.check().unwrap();
        answer
    }

    pub(crate) fn say(&mut self, name: &str, report: SchedulerReport) -> Verdict {
        self.try_say(name, &report).unwrap_or_else(|error| panic!("{error}"))
    }

    pub(crate) fn state(&self, name: &str) -> Request {
        self.lives.tracker().state(&id(name), self.generations[&id(name)]).unwrap()
    }

    pub(crate) fn device(&self, name: &str) -> Vec<BlockRef> {
        self.lives.tracker().device_blocks(&id(name), self.generations[&id(name)]).to_vec()
    }

    /// Opens a request and allocates so many blocks to it.
    pub(crate) fn allocated(&mut self, name: &str, count: usize) -> Vec<BlockRef> {
        self.open(name, 1);
        let fresh = self.blocks.take(count);
        assert_eq!(self.say(name, SchedulerReport::Allocated { fresh: fresh.clone(), cached: vec![] }), Verdict::NoOp);
        fresh
    }

    pub(crate) fn active(&mut self, name: &str, count: usize) -> Vec<BlockRef> {
        let fresh = self.allocated(name, count);
        assert_eq!(self.say(name, SchedulerReport::Active), Verdict::NoOp);
        fresh
    }

    /// A request whose bytes are on the host, as its scheduler says; its blocks are free.
    pub(crate) fn swapped(&mut self, name: &str, count: usize) -> Vec<BlockRef> {
        let blocks = self.active(name, count);
        self.say(name, SchedulerReport::SwapOutPrepared);
        self.say(name, SchedulerReport::SwapOutCommitted);
        self.blocks.give_back(&blocks);
        blocks
    }

    /// What is to be forgotten, since the last look.
    pub(crate) fn removed(&mut self) -> Vec<Removed> {
        let mut out = Vec::new();
        assert_eq!(self.lives.tracker_mut().take_removals(self.removals, &mut out).unwrap().lost, 0);
        out
    }

    pub(crate) fn actions(&mut self) -> Vec<Action> {
        std::iter::from_fn(|| self.lives.poll_action()).filter(|action| *action != Action::Tell).collect()
    }

    pub(crate) fn handle(&mut self, event: Event) {
        self.lives.handle(&event, self.now);
        self.lives.check().unwrap();
    }

    pub(crate) fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        self.lives.expire(self.now);
        self.lives.check().unwrap();
    }
}

pub(crate) fn region(number: u32) -> RegionRef {
    RegionRef { region: RegionId(number), generation: Generation(1) }
}

pub(crate) const SOURCE: BlocksRef = BlocksRef(11);
pub(crate) const TARGET: BlocksRef = BlocksRef(22);

/// A swap of these blocks of the device, against blocks of the host from 100 on.
pub(crate) fn ask(way: SwapWay, device: &[BlockRef]) -> SwapAsk {
    let path = SwapPath {
        peer: DEVICE,
        host: region(1),
        device: region(2),
        block_bytes: 4096,
        strides: (4096, 4096),
        layers: vec![(0, 0)],
    };
    let pairs = device.iter().zip(100..).map(|(block, index)| (*block, BlockRef { index, generation: 1 })).collect();
    SwapAsk { way, path, pairs, source: SOURCE, target: TARGET, within: WITHIN }
}

/// The move among these actions.
pub(crate) fn moved(actions: &[Action]) -> MoveId {
    let moves: Vec<MoveId> =
        actions.iter().filter_map(|a| if let Action::Move { id, .. } = a { Some(*id) } else { None }).collect();
    assert_eq!(moves.len(), 1, "{actions:?}");
    moves[0]
}

/// The watch among these actions.
pub(crate) fn watched(actions: &[Action]) -> WatchId {
    let watches: Vec<WatchId> =
        actions.iter().filter_map(|a| if let Action::Watch { id, .. } = a { Some(*id) } else { None }).collect();
    assert_eq!(watches.len(), 1, "{actions:?}");
    watches[0]
}

pub(crate) fn freed(actions: &[Action]) -> Vec<BlocksRef> {
    actions.iter().filter_map(|a| if let Action::Free { ticket } = a { Some(*ticket) } else { None }).collect()
}

pub(crate) fn quarantined(actions: &[Action]) -> Vec<BlocksRef> {
    let ticket = |a: &Action| if let Action::Quarantine { ticket, .. } = a { Some(*ticket) } else { None };
    actions.iter().filter_map(ticket).collect()
}
