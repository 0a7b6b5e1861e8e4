//! What goes wrong where block lifecycles are followed by hooks in a scheduler, one test each.

use penstock_core::Cause;
use penstock_flows::event::Event;
use penstock_flows::lifecycle::{
    BlockRef, DeferSite, Evicted, Eviction, LifecycleError, Request, SchedulerReport, Swap, SwapNews, SwapWay, Verdict,
};

use crate::lives::*;

fn allocated(fresh: Vec<BlockRef>) -> SchedulerReport {
    SchedulerReport::Allocated { fresh, cached: vec![] }
}

/// A free that was put off stayed so for ever: nobody owned it.
#[test]
fn defect_002_a_deferral_has_no_owner() {
    let mut node = Node::new();
    for name in ["a", "b"] {
        let blocks = node.active(name, 1);
        assert_eq!(node.say(name, SchedulerReport::Rolled(DeferSite::NoSwapBuffers)), Verdict::Defer);
        node.blocks.give_back(&blocks);
    }
    // The second free of the same request is the same deferral, since the first.
    node.pass(WITHIN);
    assert_eq!(node.say("a", SchedulerReport::Rolled(DeferSite::ScheduleRollback)), Verdict::Defer);
    let owned: Vec<_> = node.lives.tracker().deferred().map(|deferral| (deferral.request, deferral.since)).collect();
    assert_eq!(owned, [(id("a"), at_ms(1)), (id("b"), at_ms(1))]);

    let fresh = node.blocks.take(1);
    node.say("a", allocated(fresh));
    assert_eq!(node.say("b", SchedulerReport::Aborted), Verdict::Remove);
    assert_eq!(node.lives.tracker().deferred().count(), 0, "one was cancelled, one was settled");
    assert_eq!(node.removed().len(), 1);
}

/// All four sites fired the hook, and a set against repetitions then swallowed the end.
#[test]
fn defect_002_a_dedupe_set_swallows_the_true_end() {
    let mut node = Node::new();
    node.open("a", 1);
    for site in [DeferSite::ScheduleRollback, DeferSite::NoSwapBuffers] {
        let fresh = node.blocks.take(2);
        node.say("a", allocated(fresh.clone()));
        assert_eq!(node.say("a", SchedulerReport::Rolled(site)), Verdict::Defer);
        node.blocks.give_back(&fresh);
    }
    for (prepared, site) in [(false, DeferSite::SwapOutTimeout), (true, DeferSite::SwapInTimeout)] {
        let fresh = node.blocks.take(2);
        node.say("a", allocated(fresh.clone()));
        node.say("a", SchedulerReport::SwapOutPrepared);
        if prepared {
            node.say("a", SchedulerReport::SwapOutCommitted);
        }
        assert_eq!(node.say("a", SchedulerReport::Rolled(site)), Verdict::Defer);
        node.blocks.give_back(&fresh);
    }
    assert_eq!(node.removed(), [], "none of the four is an end");
    assert_eq!(node.say("a", SchedulerReport::Removed), Verdict::Remove);
    assert_eq!(node.removed().len(), 1);
}

/// The hook of one sequence removed the request of all.
#[test]
fn defect_002_one_sequence_removes_the_whole_request() {
    let mut node = Node::new();
    node.open("a", 3);
    let fresh = node.blocks.take(3);
    node.say("a", allocated(fresh));
    node.say("a", SchedulerReport::Active);
    assert_eq!(node.say("a", SchedulerReport::SequenceEnded { sequence: 1 }), Verdict::NoOp);
    assert_eq!(
        node.say("a", SchedulerReport::SequenceEnded { sequence: 1 }),
        Verdict::NoOp,
        "again is not another one"
    );
    assert_eq!(node.say("a", SchedulerReport::SequenceForked { sequence: 3 }), Verdict::NoOp);
    assert_eq!(node.say("a", SchedulerReport::SequenceEnded { sequence: 0 }), Verdict::NoOp);
    assert_eq!(node.say("a", SchedulerReport::SequenceEnded { sequence: 2 }), Verdict::NoOp);
    assert_eq!((node.state("a"), node.removed()), (Request::Active, vec![]));
    let refused = node.try_say("a", &SchedulerReport::SequenceEnded { sequence: 9 }).unwrap_err();
    assert_eq!(refused, LifecycleError::NoSuchSequence { request: id("a"), sequence: 9, next: 4 });
    let again = node.try_say("a", &SchedulerReport::SequenceForked { sequence: 1 }).unwrap_err();
    assert_eq!(again, LifecycleError::SequenceOver { request: id("a"), sequence: 1, next: 4 });
    assert_eq!(node.say("a", SchedulerReport::SequenceEnded { sequence: 3 }), Verdict::Remove, "the last one");
    assert_eq!(node.removed().len(), 1);
}

/// The bytes were dropped for want of buffers, and the request was marked as swapped all the same.
#[test]
fn defect_002_dropped_bytes_are_marked_swapped() {
    let mut node = Node::new();
    node.active("a", 2);
    node.say("a", SchedulerReport::SwapOutPrepared);
    assert_eq!(node.say("a", SchedulerReport::Rolled(DeferSite::NoSwapBuffers)), Verdict::Defer);
    assert_eq!(node.state("a"), Request::Dropped);
    for report in
        [SchedulerReport::SwapOutCommitted, SchedulerReport::SwapInPrepared { blocks: vec![] }, SchedulerReport::Active]
    {
        let refused = node.try_say("a", &report);
        assert!(matches!(refused, Err(LifecycleError::Impossible { state: Request::Dropped, .. })), "{refused:?}");
    }
    let fresh = node.blocks.take(2);
    node.say("a", allocated(fresh));
    assert_eq!(node.state("a"), Request::Allocated, "it is computed again");
}

/// A timeout gave blocks back while the copy engine could still write to them.
#[test]
fn defect_002_a_timeout_frees_blocks_under_the_copy() {
    let mut node = Node::new();
    node.swapped("a", 2);
    let (generation, device) = (node.generations[&id("a")], node.blocks.take(2));
    let key = node.lives.swap_begin(&id("a"), generation, ask(SwapWay::In, &device), node.now).unwrap();
    let id_of_move = moved(&node.actions());
    node.pass(WITHIN);
    node.pass(GRACE);
    let mut actions = node.actions();
    assert_eq!((freed(&actions), quarantined(&actions)), (vec![], vec![TARGET, SOURCE]));
    // No time that passes, and no session that ends, is a proof.
    node.pass(WITHIN * 1000);
    node.handle(Event::Left { peer: DEVICE, cause: Cause::PeerLost });
    node.handle(Event::Closed { id: id_of_move });
    actions = node.actions();
    assert_eq!((freed(&actions), node.lives.swap_state(key)), (vec![], Some(Swap::Quarantined)));
    node.handle(Event::Ended { id: id_of_move, result: Err(Cause::PeerLost), is_open_there: true });
    assert_eq!(freed(&node.actions()), []);
    node.handle(Event::Closed { id: id_of_move });
    assert_eq!(freed(&node.actions()), [TARGET, SOURCE]);
    // Said again by whoever else saw it: they are not freed again.
    node.handle(Event::Closed { id: id_of_move });
    node.handle(Event::Ended { id: id_of_move, result: Ok(1), is_open_there: false });
    assert_eq!(node.actions(), []);
}

/// A block was taken from the prefix cache after its request had ended, and nobody heard of it.
#[test]
fn defect_002_eviction_after_free_has_no_hook() {
    let mut node = Node::new();
    let evictions = node.lives.tracker_mut().subscribe_evictions(8).unwrap();
    let blocks = node.active("a", 2);
    node.say("a", SchedulerReport::Registered { blocks: vec![(1, blocks[0]), (2, blocks[1])] });
    node.say("a", SchedulerReport::Removed);
    node.blocks.give_back(&blocks);
    let mut evicted = Vec::new();
    node.lives.tracker_mut().take_evictions(evictions, &mut evicted).unwrap();
    assert_eq!(evicted, [], "freed blocks can still be found");
    node.active("b", 2);
    node.lives.tracker_mut().take_evictions(evictions, &mut evicted).unwrap();
    evicted.sort_by_key(|evicted| evicted.hash);
    let why = Eviction::Reallocated;
    assert_eq!(evicted, [(1, blocks[0]), (2, blocks[1])].map(|(hash, block)| Evicted { hash, block, why }));
}

/// The notification came after the free, so that another request had the blocks already.
#[test]
fn defect_002_notification_comes_after_the_free() {
    let mut node = Node::new();
    let blocks = node.active("a", 2);
    // Whoever gives blocks away first is refused: their holder has not been removed.
    node.blocks.give_back(&blocks);
    let early = node.blocks.take(2);
    node.open("b", 1);
    let refused = node.try_say("b", &allocated(early.clone())).unwrap_err();
    assert!(matches!(refused, LifecycleError::BlockHeld { holders: 1, .. }), "{refused}");
    assert_eq!((node.state("b"), node.removed()), (Request::Queued, vec![]));
    // The report has told everybody when it returns, and only then are they given away.
    assert_eq!(node.say("a", SchedulerReport::Removed), Verdict::Remove);
    assert_eq!(node.removed().len(), 1);
    assert_eq!(node.say("b", allocated(early)), Verdict::NoOp);
}

/// There was no hook for an abort of a request that waits, is deferred or is being swapped.
#[test]
fn defect_002_abort_while_waiting_deferred_or_in_mid_swap_has_no_row() {
    let mut node = Node::new();
    node.open("waiting", 1);
    node.active("deferred", 1);
    node.say("deferred", SchedulerReport::Rolled(DeferSite::NoSwapBuffers));
    node.swapped("swapped", 1);
    for name in ["waiting", "deferred", "swapped"] {
        assert_eq!(node.say(name, SchedulerReport::Aborted), Verdict::Remove, "{name}");
        let removed = node.removed();
        assert_eq!((removed.len(), &removed[0].request), (1, &id(name)));
    }
    for way in [SwapWay::Out, SwapWay::In] {
        let name = format!("{way:?}");
        let device = match way {
            SwapWay::Out => node.active(&name, 2),
            SwapWay::In => {
                node.swapped(&name, 2);
                node.blocks.take(2)
            }
        };
        let generation = node.generations[&id(&name)];
        let key = node.lives.swap_begin(&id(&name), generation, ask(way, &device), node.now).unwrap();
        let id_of_move = moved(&node.actions());
        assert_eq!(node.say(&name, SchedulerReport::Aborted), Verdict::Remove);
        assert_eq!(node.removed()[0].device, [], "a swap is at its blocks: they are not free");
        assert_eq!(freed(&node.actions()), []);
        node.handle(Event::Ended { id: id_of_move, result: Err(Cause::Cancelled), is_open_there: false });
        assert_eq!(freed(&node.actions()), [TARGET, SOURCE], "once the move has ended");
        assert_eq!(node.lives.next_news(), Some(SwapNews::Over { key, kept: None }));
    }
    assert!(node.lives.is_empty());
}

/// Finishing and aborting each removed the request.
#[test]
fn defect_002_remove_fires_twice() {
    let mut node = Node::new();
    node.open("a", 2);
    let reports = [
        SchedulerReport::SequenceEnded { sequence: 0 },
        SchedulerReport::SequenceEnded { sequence: 0 },
        SchedulerReport::SequenceEnded { sequence: 1 },
        SchedulerReport::SequenceEnded { sequence: 1 },
        SchedulerReport::Aborted,
        SchedulerReport::Removed,
        SchedulerReport::Rolled(DeferSite::SwapOutTimeout),
        SchedulerReport::Aborted,
    ];
    let verdicts: Vec<Verdict> = reports.into_iter().map(|report| node.say("a", report)).collect();
    assert_eq!(verdicts.iter().filter(|verdict| **verdict == Verdict::Remove).count(), 1);
    assert_eq!((verdicts[2], node.removed().len()), (Verdict::Remove, 1));
}

/// Freeing a swapped request freed its old blocks of the device, which others had by then.
#[test]
fn defect_002_device_ids_are_stale() {
    let mut node = Node::new();
    let before = node.swapped("a", 3);
    let others = node.active("b", 3);
    let is_again = |block: &BlockRef| others.iter().any(|other| other.index == block.index);
    assert!(before.iter().all(is_again), "the test gives the same blocks out again");
    assert_eq!(node.say("a", SchedulerReport::Aborted), Verdict::Remove);
    let removed = node.removed();
    assert_eq!(removed[0].device, [], "they are another's");
    node.blocks.give_back(&removed[0].device);
    assert_eq!(node.device("b"), others);
    // Whoever still has the old numbers is told so.
    node.open("c", 1);
    let refused = node.try_say("c", &allocated(vec![before[0]])).unwrap_err();
    assert_eq!(refused, LifecycleError::BlockStale { block: before[0], newest: before[0].generation + 1 });
    assert_eq!(node.say("b", SchedulerReport::Removed), Verdict::Remove);
    let removed = node.removed();
    node.blocks.give_back(&removed[0].device);
}
