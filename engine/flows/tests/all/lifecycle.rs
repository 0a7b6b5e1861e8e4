//! Each event of a scheduler's tables, with the state it leads to and what becomes of an index of requests.

use penstock_core::Cause;
use penstock_flows::event::Event;
use penstock_flows::lifecycle::{
    BlockRef, DeferSite, Evicted, Eviction, LifecycleError, LifecycleSettings, Removed, Request, RequestEvent,
    SchedulerReport, Swap, SwapNews, SwapWay, Tracker, Verdict,
};

use crate::lives::*;

fn allocated(fresh: Vec<BlockRef>) -> SchedulerReport {
    SchedulerReport::Allocated { fresh, cached: vec![] }
}

#[test]
fn lifecycle_serving_01_request_enters_queues() {
    let mut node = Node::new();
    node.open("a", 1);
    assert_eq!(node.say("a", SchedulerReport::Queued), Verdict::NoOp);
    assert_eq!((node.state("a"), node.device("a")), (Request::Queued, vec![]));
    assert_eq!(node.removed(), []);
}

#[test]
fn lifecycle_serving_02_prompt_allocation() {
    let mut node = Node::new();
    node.open("a", 1);
    let fresh = node.blocks.take(4);
    assert_eq!(node.say("a", allocated(fresh.clone())), Verdict::NoOp);
    assert_eq!((node.state("a"), node.device("a")), (Request::Allocated, fresh));
}

#[test]
fn lifecycle_serving_03_growth() {
    let mut node = Node::new();
    let mut blocks = node.allocated("a", 4);
    for _ in 0..2 {
        let more = node.blocks.take(1);
        assert_eq!(node.say("a", SchedulerReport::Grown { blocks: more.clone() }), Verdict::NoOp);
        blocks.extend(more);
        assert_eq!((node.state("a"), node.device("a")), (Request::Active, blocks.clone()));
    }
}

#[test]
fn lifecycle_serving_04_preemption_swap_out() {
    let mut node = Node::new();
    node.active("a", 4);
    assert_eq!(node.say("a", SchedulerReport::SwapOutPrepared), Verdict::NoOp);
    assert_eq!(node.say("a", SchedulerReport::SwapOutCommitted), Verdict::NoOp);
    assert_eq!((node.state("a"), node.device("a")), (Request::Swapped, vec![]));
    assert_eq!(node.removed(), [], "it can be resumed");
}

#[test]
fn lifecycle_serving_05_swap_in_resume() {
    let mut node = Node::new();
    node.swapped("a", 4);
    let blocks = node.blocks.take(4);
    assert_eq!(node.say("a", SchedulerReport::SwapInPrepared { blocks: blocks.clone() }), Verdict::NoOp);
    assert_eq!(node.say("a", SchedulerReport::SwapInCommitted), Verdict::NoOp);
    assert_eq!((node.state("a"), node.device("a")), (Request::Active, blocks));
}

#[test]
fn lifecycle_serving_06_completion_observed() {
    let mut node = Node::new();
    let blocks = node.active("a", 4);
    assert_eq!(node.say("a", SchedulerReport::Finished), Verdict::NoOp);
    assert_eq!((node.state("a"), node.device("a")), (Request::Active, blocks));
    assert_eq!(node.removed(), [], "seen is not freed");
}

#[test]
fn lifecycle_serving_07_terminal_free_on_completion() {
    let mut node = Node::new();
    let device = node.active("a", 4);
    node.say("a", SchedulerReport::Finished);
    assert_eq!(node.say("a", SchedulerReport::SequenceEnded { sequence: 0 }), Verdict::Remove);
    assert_eq!(node.state("a"), Request::Freed);
    let generation = node.generations[&id("a")];
    assert_eq!(node.removed(), [Removed { request: id("a"), generation, device }]);
}

#[test]
fn lifecycle_serving_08_terminal_free_on_abort() {
    let mut node = Node::new();
    let device = node.active("a", 4);
    // Nobody saw it finish: there is no call back for an abort.
    assert_eq!(node.say("a", SchedulerReport::Aborted), Verdict::Remove);
    assert_eq!((node.state("a"), node.removed()[0].device.clone()), (Request::Freed, device));

    node.swapped("b", 4);
    assert_eq!(node.say("b", SchedulerReport::Aborted), Verdict::Remove);
    assert_eq!((node.state("b"), node.removed()[0].device.clone()), (Request::Freed, vec![]));
}

#[test]
fn lifecycle_native_01_prefix_lookup_and_fresh_allocation() {
    let mut node = Node::new();
    let cached = node.active("a", 2);
    node.say("a", SchedulerReport::Registered { blocks: vec![(1, cached[0]), (2, cached[1])] });
    node.open("b", 1);
    let fresh = node.blocks.take(3);
    let report = SchedulerReport::Allocated { fresh: fresh.clone(), cached: cached.clone() };
    assert_eq!(node.say("b", report), Verdict::NoOp);
    assert_eq!((node.state("b"), node.device("b")), (Request::Allocated, [cached.clone(), fresh].concat()));

    // The one that had them first ends, and the other one still has them.
    node.say("a", SchedulerReport::Removed);
    node.say("b", SchedulerReport::Active);
    node.say("b", SchedulerReport::Registered { blocks: vec![(1, cached[0])] });
    assert_eq!(node.say("b", SchedulerReport::Removed), Verdict::Remove);
}

#[test]
fn lifecycle_native_02_enters_running() {
    let mut node = Node::new();
    node.allocated("a", 1);
    assert_eq!((node.say("a", SchedulerReport::Active), node.state("a")), (Verdict::NoOp, Request::Active));
    assert_eq!((node.say("a", SchedulerReport::Active), node.state("a")), (Verdict::NoOp, Request::Active));
}

#[test]
fn lifecycle_native_03_swap_out_prepare_commit() {
    let mut node = Node::new();
    let device = node.active("a", 3);
    let generation = node.generations[&id("a")];
    let key = node.lives.swap_begin(&id("a"), generation, ask(SwapWay::Out, &device), node.now).unwrap();
    assert_eq!((node.state("a"), node.lives.swap_state(key)), (Request::SwappingOut, Some(Swap::Moving)));
    let early = node.lives.swap_commit(key, node.now).unwrap_err();
    assert_eq!(early, LifecycleError::NotMoved { state: Swap::Moving });

    let actions = node.actions();
    let id_of_move = moved(&actions);
    assert_eq!(actions.len(), 1, "nothing is freed before it has moved: {actions:?}");
    node.handle(Event::Ended { id: id_of_move, result: Ok(12_288), is_open_there: false });
    assert_eq!(node.lives.next_news(), Some(SwapNews::Moved { key }));
    assert_eq!((node.state("a"), freed(&node.actions())), (Request::SwappingOut, vec![]));
    assert_eq!(node.lives.swap_commit(key, node.now), Ok(TARGET));
    assert_eq!((node.state("a"), node.device("a")), (Request::Swapped, vec![]));
    assert_eq!(freed(&node.actions()), [SOURCE], "the device's blocks, and once");
    assert_eq!(node.lives.swap_commit(key, node.now), Err(LifecycleError::NoSuchSwap));
    assert_eq!((node.lives.swaps(), node.removed()), ((0, 0), vec![]));
}

#[test]
fn lifecycle_native_04_swap_in_prepare_commit() {
    let mut node = Node::new();
    node.swapped("a", 3);
    let (generation, device) = (node.generations[&id("a")], node.blocks.take(3));
    let key = node.lives.swap_begin(&id("a"), generation, ask(SwapWay::In, &device), node.now).unwrap();
    assert_eq!(node.state("a"), Request::SwappingIn);
    let id_of_move = moved(&node.actions());
    // The device says that all is there, and may still be at it: it is not there yet.
    node.handle(Event::Ended { id: id_of_move, result: Ok(12_288), is_open_there: true });
    let watch = watched(&node.actions());
    assert_eq!((node.lives.swap_state(key), node.lives.next_news()), (Some(Swap::Moving), None));
    node.handle(Event::Quiet { id: watch });
    assert_eq!(node.lives.next_news(), Some(SwapNews::Moved { key }));
    assert_eq!(node.lives.swap_commit(key, node.now), Ok(TARGET));
    assert_eq!((node.state("a"), node.device("a")), (Request::Active, device));
    assert_eq!(freed(&node.actions()), [SOURCE], "the host's blocks, and once");
}

#[test]
fn lifecycle_native_05_registered_in_prefix_cache() {
    let mut node = Node::new();
    let blocks = node.active("a", 2);
    let evictions = node.lives.tracker_mut().subscribe_evictions(8).unwrap();
    let registered = vec![(7, blocks[0]), (8, blocks[1])];
    assert_eq!(node.say("a", SchedulerReport::Registered { blocks: registered.clone() }), Verdict::NoOp);
    assert_eq!((node.state("a"), node.device("a")), (Request::Active, blocks));
    node.say("a", SchedulerReport::Removed);
    let found = node.lives.tracker_mut().resync_evictions(evictions).unwrap();
    assert_eq!(found, registered, "it can be found after its request has ended");
    let stranger = BlockRef { index: 60, generation: 1 };
    node.active("b", 1);
    let refused = node.try_say("b", &SchedulerReport::Registered { blocks: vec![(9, stranger)] });
    assert_eq!(refused, Err(LifecycleError::BlockNotHeld { block: stranger }));
}

#[test]
fn lifecycle_native_06_terminal_free_on_finish_or_abort() {
    let mut node = Node::new();
    node.active("a", 2);
    // Aborting goes through finishing: both are reported.
    assert_eq!(node.say("a", SchedulerReport::Aborted), Verdict::Remove);
    assert_eq!(node.say("a", SchedulerReport::Removed), Verdict::NoOp);
    assert_eq!((node.state("a"), node.removed().len()), (Request::Freed, 1));
}

/// What is freed at one of the four sites is put off, belongs to the tracker, and is settled by the end.
fn is_deferred(node: &mut Node, name: &str, site: DeferSite) {
    assert_eq!(node.say(name, SchedulerReport::Rolled(site)), Verdict::Defer);
    is_put_off(node, name, site);
}

fn is_put_off(node: &mut Node, name: &str, site: DeferSite) {
    assert_eq!((node.state(name), node.device(name), node.removed()), (Request::Dropped, vec![], vec![]));
    let deferred: Vec<_> = node.lives.tracker().deferred().collect();
    assert_eq!(deferred.len(), 1);
    assert_eq!((&deferred[0].request, deferred[0].site, deferred[0].since), (&id(name), Some(site), node.now));
    assert_eq!(node.say(name, SchedulerReport::Queued), Verdict::NoOp, "it waits again");
    assert_eq!(node.state(name), Request::Dropped);
}

#[test]
fn lifecycle_native_07_schedule_rollback() {
    let mut node = Node::new();
    node.allocated("a", 2);
    is_deferred(&mut node, "a", DeferSite::ScheduleRollback);
    let fresh = node.blocks.take(2);
    assert_eq!(node.say("a", allocated(fresh)), Verdict::NoOp);
    assert_eq!(node.lives.tracker().deferred().count(), 0, "allocating again cancels it");
}

#[test]
fn lifecycle_native_08_swap_buffers_unavailable() {
    let mut node = Node::new();
    node.active("a", 2);
    is_deferred(&mut node, "a", DeferSite::NoSwapBuffers);
    let early = node.try_say("a", &SchedulerReport::SwapInPrepared { blocks: vec![] }).unwrap_err();
    let (state, event) = (Request::Dropped, RequestEvent::SwapInPrepare);
    let generation = node.generations[&id("a")];
    assert_eq!(early, LifecycleError::Impossible { request: id("a"), generation, state, event }, "it is not swapped");
}

#[test]
fn lifecycle_native_09_swap_out_timeout() {
    let mut node = Node::new();
    let device = node.active("a", 2);
    let generation = node.generations[&id("a")];
    let key = node.lives.swap_begin(&id("a"), generation, ask(SwapWay::Out, &device), node.now).unwrap();
    let id_of_move = moved(&node.actions());
    assert_eq!(node.lives.deadline(), Some(node.now + WITHIN));
    node.pass(WITHIN);
    assert_eq!(node.lives.next_news(), Some(SwapNews::TimedOut { key }));
    is_put_off(&mut node, "a", DeferSite::SwapOutTimeout);
    let actions = node.actions();
    assert_eq!((actions.len(), freed(&actions)), (1, vec![]), "it is stopped, and nothing is freed: {actions:?}");
    node.pass(GRACE);
    assert_eq!(node.lives.next_news(), Some(SwapNews::Quarantined { key }));
    let actions = node.actions();
    assert_eq!((quarantined(&actions), freed(&actions)), (vec![TARGET, SOURCE], vec![]));
    assert_eq!((node.lives.swaps(), node.lives.deadline()), ((1, 1), None));
    // Its end comes late, and its peer may be in a copy: that is no proof.
    node.handle(Event::Ended { id: id_of_move, result: Err(Cause::Cancelled), is_open_there: true });
    let actions = node.actions();
    let watch = watched(&actions);
    assert_eq!(freed(&actions), []);
    node.handle(Event::Quiet { id: watch });
    assert_eq!(freed(&node.actions()), [TARGET, SOURCE]);
    assert_eq!(node.lives.next_news(), Some(SwapNews::Over { key, kept: None }));
    assert_eq!(node.lives.swaps(), (0, 0));
}

#[test]
fn lifecycle_native_10_swap_in_timeout() {
    let mut node = Node::new();
    node.swapped("a", 2);
    let (generation, device) = (node.generations[&id("a")], node.blocks.take(2));
    let key = node.lives.swap_begin(&id("a"), generation, ask(SwapWay::In, &device), node.now).unwrap();
    let id_of_move = moved(&node.actions());
    node.pass(WITHIN);
    assert_eq!(node.lives.next_news(), Some(SwapNews::TimedOut { key }));
    is_put_off(&mut node, "a", DeferSite::SwapInTimeout);
    assert_eq!(freed(&node.actions()), []);
    // While it may land, its blocks are nobody's, in whatever use.
    let early = BlockRef { index: device[0].index, generation: device[0].generation + 1 };
    let refused = node.try_say("a", &allocated(vec![early])).unwrap_err();
    assert_eq!(refused, LifecycleError::BlockUnderSwap { block: early });
    node.handle(Event::Ended { id: id_of_move, result: Err(Cause::Cancelled), is_open_there: false });
    assert_eq!(freed(&node.actions()), [TARGET, SOURCE]);
    assert_eq!(node.say("a", allocated(vec![early])), Verdict::NoOp);
}

#[test]
fn lifecycle_swap_out_rolled_back() {
    let mut node = Node::new();
    let device = node.active("a", 2);
    let generation = node.generations[&id("a")];
    let key = node.lives.swap_begin(&id("a"), generation, ask(SwapWay::Out, &device), node.now).unwrap();
    let id_of_move = moved(&node.actions());
    node.lives.swap_roll_back(key, node.now).unwrap();
    assert_eq!((node.state("a"), node.device("a")), (Request::Active, device.clone()));
    assert_eq!((node.lives.swap_state(key), freed(&node.actions())), (Some(Swap::Stopping), vec![]));
    node.lives.swap_roll_back(key, node.now).unwrap();
    assert_eq!(node.actions(), [], "once is enough");
    node.handle(Event::Ended { id: id_of_move, result: Ok(8192), is_open_there: false });
    assert_eq!(freed(&node.actions()), [TARGET], "what was read is the request's, as before");
    assert_eq!(node.lives.next_news(), Some(SwapNews::Over { key, kept: Some(SOURCE) }));

    // Reported by a scheduler that moves its bytes itself.
    node.say("a", SchedulerReport::SwapOutPrepared);
    assert_eq!(node.say("a", SchedulerReport::SwapOutRolledBack { is_lost: false }), Verdict::NoOp);
    assert_eq!((node.state("a"), node.device("a")), (Request::Active, device));
    node.say("a", SchedulerReport::SwapOutPrepared);
    assert_eq!(node.say("a", SchedulerReport::SwapOutRolledBack { is_lost: true }), Verdict::Defer);
    assert_eq!((node.state("a"), node.device("a")), (Request::Dropped, vec![]));
}

#[test]
fn lifecycle_swap_in_rolled_back() {
    let mut node = Node::new();
    node.swapped("a", 2);
    let (generation, device) = (node.generations[&id("a")], node.blocks.take(2));
    let key = node.lives.swap_begin(&id("a"), generation, ask(SwapWay::In, &device), node.now).unwrap();
    let id_of_move = moved(&node.actions());
    let by_hand = node.try_say("a", &SchedulerReport::SwapInCommitted).unwrap_err();
    assert_eq!(by_hand, LifecycleError::SwapOfOurs { request: id("a") });
    node.handle(Event::Ended { id: id_of_move, result: Err(Cause::PeerLost), is_open_there: false });
    assert_eq!(node.lives.next_news(), Some(SwapNews::Failed { key, cause: Cause::PeerLost }));
    assert_eq!(node.lives.next_news(), Some(SwapNews::Over { key, kept: Some(SOURCE) }));
    assert_eq!((node.state("a"), node.device("a")), (Request::Swapped, vec![]), "the host still has it");
    assert_eq!(freed(&node.actions()), [TARGET]);
    node.blocks.give_back(&device);

    let blocks = node.blocks.take(2);
    node.say("a", SchedulerReport::SwapInPrepared { blocks });
    assert_eq!(node.say("a", SchedulerReport::SwapInRolledBack { is_lost: true }), Verdict::Defer);
    assert_eq!((node.state("a"), node.device("a")), (Request::Dropped, vec![]));
}

#[test]
fn lifecycle_evicted_by_reallocation() {
    let mut node = Node::new();
    let evictions = node.lives.tracker_mut().subscribe_evictions(8).unwrap();
    let blocks = node.active("a", 1);
    node.say("a", SchedulerReport::Registered { blocks: vec![(7, blocks[0])] });
    node.say("a", SchedulerReport::Removed);
    node.blocks.give_back(&blocks);
    let again = node.active("b", 1);
    assert_eq!(again[0].index, blocks[0].index, "the test gives the same block out again");
    let mut evicted = Vec::new();
    node.lives.tracker_mut().take_evictions(evictions, &mut evicted).unwrap();
    assert_eq!(evicted, [Evicted { hash: 7, block: blocks[0], why: Eviction::Reallocated }]);
    assert_eq!(node.removed().len(), 1, "the end of its request was told long before, in a stream of its own");
    assert!(!node.lives.tracker_mut().evict(7, blocks[0], Eviction::Reallocated), "once");
}

#[test]
fn lifecycle_evicted_by_hash_replacement() {
    let mut node = Node::new();
    let evictions = node.lives.tracker_mut().subscribe_evictions(8).unwrap();
    let blocks = node.active("a", 2);
    node.say("a", SchedulerReport::Registered { blocks: vec![(7, blocks[0])] });
    node.say("a", SchedulerReport::Registered { blocks: vec![(7, blocks[0])] });
    node.say("a", SchedulerReport::Registered { blocks: vec![(7, blocks[1])] });
    let mut evicted = Vec::new();
    node.lives.tracker_mut().take_evictions(evictions, &mut evicted).unwrap();
    assert_eq!(evicted, [Evicted { hash: 7, block: blocks[0], why: Eviction::Replaced }]);
    assert_eq!(node.lives.tracker_mut().resync_evictions(evictions), Ok(vec![(7, blocks[1])]));
    assert!(node.lives.tracker_mut().evict(7, blocks[1], Eviction::Replaced));
    evicted.clear();
    node.lives.tracker_mut().take_evictions(evictions, &mut evicted).unwrap();
    assert_eq!(evicted, [Evicted { hash: 7, block: blocks[1], why: Eviction::Replaced }]);
}

#[test]
fn lifecycle_removed_without_blocks() {
    let mut node = Node::new();
    node.open("a", 1);
    assert_eq!(node.say("a", SchedulerReport::Removed), Verdict::Remove);
    let generation = node.generations[&id("a")];
    assert_eq!(node.removed(), [Removed { request: id("a"), generation, device: vec![] }]);
}

#[test]
fn lifecycle_finish_and_abort_race() {
    for is_abort_first in [true, false] {
        let mut node = Node::new();
        node.active("a", 2);
        let mut reports = [SchedulerReport::SequenceEnded { sequence: 0 }, SchedulerReport::Aborted];
        if is_abort_first {
            reports.reverse();
        }
        let verdicts = reports.map(|report| node.say("a", report));
        assert_eq!(verdicts, [Verdict::Remove, Verdict::NoOp]);
        assert_eq!((node.removed().len(), node.lives.tracker().metrics().late), (1, 1));
    }
}

#[test]
fn lifecycle_reused_id_is_a_new_generation() {
    let mut node = Node::new();
    node.active("a", 1);
    let first = node.generations[&id("a")];
    let taken = node.lives.tracker_mut().open(id("a"), 1);
    assert_eq!(taken, Err(LifecycleError::StillLives { request: id("a"), generation: first }));
    node.say("a", SchedulerReport::Removed);
    let second = node.open("a", 1);
    assert!(second > first);
    // What is still said of the first life does not touch the second.
    let late = node.lives.report(&id("a"), first, &SchedulerReport::Aborted, node.now);
    assert_eq!((late, node.state("a")), (Ok(Verdict::NoOp), Request::Queued));
    let never = node.lives.report(&id("a"), second + 1, &SchedulerReport::Aborted, node.now);
    assert_eq!(never, Err(LifecycleError::NoSuchLife { request: id("a"), generation: second + 1 }));
    assert_eq!(node.say("a", SchedulerReport::Aborted), Verdict::Remove);
    let generations: Vec<u64> = node.removed().iter().map(|removed| removed.generation).collect();
    assert_eq!(generations, [first, second], "each life has a removal of its own");
}

#[test]
fn lifecycle_a_full_subscriber_sees_its_lag_and_resyncs() {
    let mut tracker = Tracker::new(LifecycleSettings { requests: 8, ..LifecycleSettings::default() });
    let (slow, quick) = (tracker.subscribe_removals(2).unwrap(), tracker.subscribe_removals(8).unwrap());
    let mut ended = Vec::new();
    for name in ["a", "b", "c", "d"] {
        let generation = tracker.open(id(name), 1).unwrap();
        if name != "d" {
            tracker.report(&id(name), generation, &SchedulerReport::Removed, at_ms(1)).unwrap();
        }
        ended.push((id(name), generation));
    }
    let lives = ended.pop().unwrap();
    let mut out = Vec::new();
    assert_eq!(tracker.take_removals(quick, &mut out).unwrap().lost, 0, "one that keeps up loses nothing by another");
    assert_eq!(out.drain(..).map(|r| (r.request, r.generation)).collect::<Vec<_>>(), ended);
    assert_eq!((tracker.take_removals(slow, &mut out).unwrap().lost, out.len()), (3, 0));
    assert_eq!(tracker.take_removals(slow, &mut out).unwrap().lost, 3, "looking does not mend it");
    assert_eq!(tracker.resync_removals(slow), Ok(vec![lives.clone()]), "whoever is not in it has ended");
    tracker.report(&lives.0, lives.1, &SchedulerReport::Removed, at_ms(2)).unwrap();
    assert_eq!((tracker.take_removals(slow, &mut out).unwrap().lost, out.len()), (0, 1));
}
