use std::time::Duration;

use penstock_core::{Epoch, Generation, RegionId, Timestamp};
use penstock_session::{PeerKey, RequestId};

use super::*;
use crate::action::{BlocksRef, MoveId, RegionRef, WatchId};
use crate::lifecycle::{BlockRef, SchedulerReport, SwapPath, SwapWay};
use crate::manager::Settings;

const NOW: Timestamp = Timestamp::from_ns(1);
const LATE: Timestamp = Timestamp::from_ns(2_000_000_000);
const PEER: PeerKey = PeerKey { peer_index: 3, epoch: Epoch(7) };
const BLOCK: BlockRef = BlockRef { index: 5, generation: 1 };
const SOURCE: BlocksRef = BlocksRef(11);
const TARGET: BlocksRef = BlocksRef(22);

struct Node {
    manager: TransferManager,
    device: DeviceKey,
    request: RequestId,
    life: u64,
}

impl Node {
    fn new() -> Self {
        let mut manager = TransferManager::new(Settings::default(), [1, 2, 3]);
        let device = manager.open_device(lifecycle::LifecycleSettings::default()).unwrap();
        let request = RequestId::new("cmpl-1").unwrap();
        let life = manager.call_device(device, |lives| lives.tracker_mut().open(request.clone(), 1)).unwrap();
        let mut node = Self { manager, device, request, life };
        node.report(SchedulerReport::Allocated { fresh: vec![BLOCK], cached: vec![] });
        node.report(SchedulerReport::Active);
        node
    }

    fn report(&mut self, report: SchedulerReport) {
        let Self { manager, device, request, life } = self;
        manager.call_device(*device, |lives| lives.report(request, *life, &report, NOW)).unwrap();
    }

    fn swap_out(&mut self) -> (SwapKey, MoveId) {
        let region = |number| RegionRef { region: RegionId(number), generation: Generation(1) };
        let path = SwapPath {
            peer: PEER,
            host: region(1),
            device: region(2),
            block_bytes: 4096,
            strides: (4096, 4096),
            layers: vec![(0, 0)],
        };
        let pairs = vec![(BLOCK, BlockRef { index: 9, generation: 1 })];
        let within = Duration::from_secs(1);
        let ask = SwapAsk { way: SwapWay::Out, path, pairs, source: SOURCE, target: TARGET, within };
        let key = self.manager.begin_swap(self.device, (&self.request, self.life), ask, NOW).unwrap();
        let moves: Vec<MoveId> = self.actions(|action| match action {
            Action::Move { id, .. } => Some(*id),
            _ => None,
        });
        (key, moves[0])
    }

    fn actions<R>(&mut self, pick: impl Fn(&Action) -> Option<R>) -> Vec<R> {
        std::iter::from_fn(|| self.manager.poll_action()).filter_map(|action| pick(&action)).collect()
    }

    fn freed(&mut self) -> Vec<BlocksRef> {
        self.actions(|action| if let Action::Free { ticket } = action { Some(*ticket) } else { None })
    }

    fn status(&self, key: SwapKey) -> SwapStatus {
        self.manager.swap_status(self.device, key).unwrap()
    }
}

#[test]
fn what_a_swap_moves_finds_its_way_back_and_both_tickets_are_let_go_at_the_commit() {
    let mut node = Node::new();
    let (key, id) = node.swap_out();
    assert_eq!((node.status(key).state, node.manager.metrics().swaps), (Swap::Moving, 1));
    // The same number, of another part: nothing happens.
    for other in [id.0 & ((1 << 62) - 1), (2 << 62) | id.0] {
        node.manager.handle(Event::Ended { id: MoveId(other), result: Ok(4096), is_open_there: false }, NOW);
        node.manager.handle(Event::Quiet { id: WatchId(other) }, NOW);
    }
    assert_eq!(node.status(key).state, Swap::Moving);
    node.manager.handle(Event::Ended { id, result: Ok(4096), is_open_there: false }, NOW);
    assert_eq!(node.status(key).state, Swap::Moved);
    assert_eq!(node.freed(), []);
    node.manager.commit_swap(node.device, key, NOW).unwrap();
    let mut freed = node.freed();
    freed.sort_unstable();
    assert_eq!((freed, node.status(key)), (vec![SOURCE, TARGET], SwapStatus { state: Swap::Committed, failed: None }));
    node.manager.release_swap(node.device, key, NOW);
    assert_eq!(node.manager.swap_status(node.device, key), None);
    node.manager.check_lives().unwrap();
}

#[test]
fn a_swap_that_is_late_is_stopped_then_quarantined_and_freed_once_it_is_quiet() {
    let mut node = Node::new();
    let (key, id) = node.swap_out();
    assert_eq!(node.manager.deadline(), NOW + Duration::from_secs(1));
    node.manager.expire(LATE);
    let stopped = node.actions(|action| if let Action::Stop { id } = action { Some(*id) } else { None });
    assert_eq!((stopped, node.status(key).failed), (vec![id], Some(SwapFailed::TimedOut)));
    node.manager.expire(LATE + Duration::from_secs(1));
    let kept = |action: &Action| if let Action::Quarantine { ticket, .. } = action { Some(*ticket) } else { None };
    assert_eq!(node.actions(kept), [TARGET, SOURCE]);
    assert_eq!((node.manager.metrics().swaps, node.manager.metrics().swaps_quarantined), (1, 1));
    // The handles go, and the device with them once nothing lands any more.
    node.manager.release_swap(node.device, key, LATE);
    node.manager.release_device(node.device, LATE);
    assert!(node.freed().is_empty() && !node.manager.is_empty());
    node.manager.handle(Event::Ended { id, result: Err(Cause::Cancelled), is_open_there: false }, LATE);
    assert_eq!(node.freed(), [TARGET, SOURCE]);
    node.manager.handle(Event::Closed { id }, LATE);
    assert!(node.freed().is_empty() && node.manager.is_empty(), "once");
}

#[test]
fn a_swap_that_is_let_go_is_rolled_back_and_its_source_is_let_go_too() {
    let mut node = Node::new();
    let (key, id) = node.swap_out();
    node.manager.release_swap(node.device, key, NOW);
    node.manager.handle(Event::Ended { id, result: Ok(4096), is_open_there: true }, NOW);
    let watches = node.actions(|action| if let Action::Watch { id, .. } = action { Some(*id) } else { None });
    assert_eq!(watches.len(), 1);
    node.manager.handle(Event::Quiet { id: watches[0] }, NOW);
    assert_eq!(node.freed(), [SOURCE, TARGET]);
    assert_eq!(node.manager.swap_status(node.device, key), None);
    // The request is where it was, and can be swapped again.
    let (again, _) = node.swap_out();
    assert_eq!(node.status(again).state, Swap::Moving);
}

#[test]
fn a_move_that_notices_first_that_time_is_over_drops_the_request_as_the_swap_does() {
    let mut node = Node::new();
    let (key, id) = node.swap_out();
    node.manager.handle(Event::Ended { id, result: Err(Cause::DeadlineExceeded), is_open_there: false }, NOW);
    assert_eq!(node.status(key), SwapStatus { state: Swap::RolledBack, failed: Some(SwapFailed::TimedOut) });
    let tracker = node.manager.device(node.device).unwrap().tracker();
    assert_eq!(tracker.state(&node.request, node.life), Ok(lifecycle::Request::Dropped));
    assert_eq!((tracker.deferred().count(), node.freed()), (1, vec![TARGET, SOURCE]));
    // Where bytes could not be moved for another reason the request keeps them.
    let mut node = Node::new();
    let (key, id) = node.swap_out();
    node.manager.handle(Event::Ended { id, result: Err(Cause::PeerLost), is_open_there: false }, NOW);
    assert_eq!(node.status(key).failed, Some(SwapFailed::Moving(Cause::PeerLost)));
    let tracker = node.manager.device(node.device).unwrap().tracker();
    assert_eq!(tracker.state(&node.request, node.life), Ok(lifecycle::Request::Active));
}

#[test]
fn so_many_devices_have_requests_each_with_names_of_its_own() {
    let mut manager = TransferManager::new(Settings::default(), [1, 2, 3]);
    let keys: Vec<DeviceKey> =
        (0..DEVICES_MAX).map(|_| manager.open_device(lifecycle::LifecycleSettings::default()).unwrap()).collect();
    let full = manager.open_device(lifecycle::LifecycleSettings::default());
    assert_eq!(full, Err(LifecycleError::TooManyDevices { most: DEVICES_MAX }));
    manager.release_device(keys[7], NOW);
    let again = manager.open_device(lifecycle::LifecycleSettings::default()).unwrap();
    assert!(!keys.contains(&again), "a name is not used again");
    let gone = manager.call_device(keys[7], |lives| lives.tracker_mut().open(RequestId::new("a").unwrap(), 1));
    assert_eq!(gone, Err(LifecycleError::NoDevice));
}
