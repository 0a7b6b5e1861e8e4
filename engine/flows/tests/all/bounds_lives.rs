//! What is refused of requests and swaps, and that a refusal changes nothing.

use penstock_core::Cause;
use penstock_flows::action::Action;
use penstock_flows::event::Event;
use penstock_flows::lifecycle::{
    BlockRef, Lifecycle, LifecycleError, LifecycleSettings, Request, SchedulerReport, SubscribeError, Swap, SwapNews,
    SwapWay, Tracker,
};
use penstock_session::control::BLOCKS_MAX;

use crate::lives::*;

fn allocated(fresh: Vec<BlockRef>) -> SchedulerReport {
    SchedulerReport::Allocated { fresh, cached: vec![] }
}

fn block(index: u32, generation: u32) -> BlockRef {
    BlockRef { index, generation }
}

#[test]
fn so_many_requests_and_sequences_and_no_more() {
    let mut tracker = Tracker::new(LifecycleSettings { requests: 2, sequences: 3, ..LifecycleSettings::default() });
    for asked in [0, 4] {
        assert_eq!(tracker.open(id("a"), asked), Err(LifecycleError::Sequences { asked, most: 3 }));
    }
    let first = tracker.open(id("a"), 3).unwrap();
    tracker.open(id("b"), 1).unwrap();
    assert_eq!(tracker.open(id("c"), 1), Err(LifecycleError::Full { most: 2 }));
    let fork = SchedulerReport::SequenceForked { sequence: 3 };
    let crowded = tracker.report(&id("a"), first, &fork, at_ms(1));
    assert_eq!(crowded, Err(LifecycleError::Sequences { asked: 4, most: 3 }));
    tracker.report(&id("a"), first, &SchedulerReport::SequenceEnded { sequence: 0 }, at_ms(1)).unwrap();
    tracker.report(&id("a"), first, &fork, at_ms(1)).unwrap();
    tracker.report(&id("a"), first, &SchedulerReport::Aborted, at_ms(1)).unwrap();
    assert!(tracker.open(id("c"), 1).is_ok());
    assert_eq!((tracker.metrics().refused, tracker.metrics().live), (1, 2));
}

#[test]
fn blocks_that_cannot_be_are_refused_and_nothing_changes() {
    let mut node = Node::new();
    node.open("a", 1);
    let outside = node.try_say("a", &allocated(vec![block(3, 1), block(64, 1)]));
    assert_eq!(outside, Err(LifecycleError::NoSuchBlock { block: block(64, 1), blocks: 64 }));
    let twice = node.try_say("a", &SchedulerReport::Allocated { fresh: vec![block(3, 1)], cached: vec![block(3, 1)] });
    assert_eq!(twice, Err(LifecycleError::BlockTwice { block: block(3, 1) }));
    assert_eq!((node.state("a"), node.device("a")), (Request::Queued, vec![]));
    node.say("a", allocated(vec![block(3, 1)]));
    let again = node.try_say("a", &SchedulerReport::Grown { blocks: vec![block(3, 1)] });
    assert_eq!(again, Err(LifecycleError::BlockHeld { block: block(3, 1), holders: 1 }));
    node.open("b", 1);
    let cached = node.try_say("b", &SchedulerReport::Allocated { fresh: vec![], cached: vec![block(3, 2)] });
    assert_eq!(cached, Err(LifecycleError::BlockHeld { block: block(3, 2), holders: 1 }), "another use of it");
    assert_eq!((node.state("b"), node.device("a")), (Request::Queued, vec![block(3, 1)]));
}

#[test]
fn numbers_of_uses_wrap() {
    let mut node = Node::new();
    for (name, generation) in [("a", u32::MAX), ("b", 0), ("c", 1)] {
        node.open(name, 1);
        node.say(name, allocated(vec![block(5, generation)]));
        node.say(name, SchedulerReport::Removed);
    }
    node.open("d", 1);
    let stale = node.try_say("d", &allocated(vec![block(5, u32::MAX)]));
    assert_eq!(stale, Err(LifecycleError::BlockStale { block: block(5, u32::MAX), newest: 1 }));
}

#[test]
fn swaps_that_make_no_sense_are_refused_and_nothing_changes() {
    let mut node = Node::new();
    let device = node.active("a", 3);
    let generation = node.generations[&id("a")];
    let good = ask(SwapWay::Out, &device);
    let mut cases = Vec::new();
    let mut twice = good.clone();
    twice.pairs[1].1 = twice.pairs[0].1;
    cases.push((twice, LifecycleError::HostBlockTwice { block: 100 }));
    let mut twice = good.clone();
    twice.pairs[1].0 = twice.pairs[0].0;
    cases.push((twice, LifecycleError::BlockTwice { block: device[0] }));
    let mut stranger = good.clone();
    stranger.pairs[1].0.generation += 1;
    cases.push((stranger.clone(), LifecycleError::BlockNotHeld { block: stranger.pairs[1].0 }));
    let mut part = good.clone();
    part.pairs.pop();
    cases.push((part, LifecycleError::PartOfRequest { request: id("a"), asked: 2, has: 3 }));
    let mut nothing = good.clone();
    nothing.pairs.clear();
    cases.push((nothing, LifecycleError::NothingToSwap));
    let mut nothing = good.clone();
    nothing.path.layers.clear();
    cases.push((nothing, LifecycleError::NothingToSwap));
    let mut huge = good.clone();
    huge.pairs = vec![huge.pairs[0]; BLOCKS_MAX + 1];
    cases.push((huge, LifecycleError::SwapTooLarge { asked: BLOCKS_MAX + 1 }));
    for (ask, error) in cases {
        assert_eq!(node.lives.swap_begin(&id("a"), generation, ask, node.now), Err(error));
        assert_eq!((node.state("a"), node.lives.swaps(), node.actions()), (Request::Active, (0, 0), vec![]));
    }
    let into = node.blocks.take(1);
    let swapped_in = node.lives.swap_begin(&id("a"), generation, ask(SwapWay::In, &into), node.now);
    assert!(matches!(swapped_in, Err(LifecycleError::Impossible { .. })), "{swapped_in:?}");
    node.say("a", SchedulerReport::Aborted);
    let over = node.lives.swap_begin(&id("a"), generation, good, node.now);
    assert_eq!(over, Err(LifecycleError::LifeOver { request: id("a"), generation }));
}

/// Of what its scheduler has swapped by itself only the number is known, and of what was swapped here also where it went.
#[test]
fn what_is_swapped_in_is_what_was_swapped_out() {
    let mut node = Node::new();
    node.swapped("a", 3);
    let generation = node.generations[&id("a")];
    let begin = |node: &mut Node, ask| node.lives.swap_begin(&id("a"), generation, ask, node.now);
    let part = |asked: usize| Err(LifecycleError::PartOfRequest { request: id("a"), asked, has: 3 });
    let (two, three, four) = (node.blocks.take(2), node.blocks.take(3), node.blocks.take(4));
    assert_eq!(begin(&mut node, ask(SwapWay::In, &two)), part(2));
    assert_eq!(begin(&mut node, ask(SwapWay::In, &four)), part(4));
    let move_all = |node: &mut Node, ask| {
        let key = begin(node, ask).unwrap();
        let id = moved(&node.actions());
        node.handle(Event::Ended { id, result: Ok(0), is_open_there: false });
        node.lives.swap_commit(key, node.now).unwrap();
        node.actions();
    };
    move_all(&mut node, ask(SwapWay::In, &three));
    move_all(&mut node, ask(SwapWay::Out, &three));
    let mut other = ask(SwapWay::In, &node.blocks.take(3));
    other.pairs[1].1.generation += 1;
    let block = other.pairs[1].1;
    assert_eq!(begin(&mut node, other.clone()), Err(LifecycleError::NotSwappedTo { request: id("a"), block }));
    assert_eq!(node.state("a"), Request::Swapped);
    other.pairs[1].1.generation -= 1;
    move_all(&mut node, other);
    // Its scheduler takes over again: where it went is not known here any more.
    node.say("a", SchedulerReport::SwapOutPrepared);
    node.say("a", SchedulerReport::SwapOutCommitted);
    let mut elsewhere = ask(SwapWay::In, &node.blocks.take(3));
    elsewhere.pairs.iter_mut().for_each(|(_, host)| host.index += 10);
    move_all(&mut node, elsewhere);
}

#[test]
fn so_many_swaps_and_their_news_and_no_more() {
    let mut node = Node::new();
    node.lives =
        Lifecycle::new(LifecycleSettings { blocks: 64, swaps: 2, grace: GRACE, ..LifecycleSettings::default() }, 0);
    let begin = |node: &mut Node, name: &str| {
        let device = node.active(name, 1);
        let generation = node.generations[&id(name)];
        node.lives.swap_begin(&id(name), generation, ask(SwapWay::Out, &device), node.now)
    };
    for name in ["a", "b"] {
        let key = begin(&mut node, name).unwrap();
        let id_of_move = moved(&node.actions());
        node.handle(Event::Ended { id: id_of_move, result: Err(Cause::PeerLost), is_open_there: false });
        assert!(node.lives.swap_state(key).is_none());
    }
    // Four news wait to be fetched, which leaves room for those of one swap.
    begin(&mut node, "c").unwrap();
    assert_eq!(begin(&mut node, "d"), Err(LifecycleError::TooManySwaps { most: 2 }));
    assert_eq!(node.state("d"), Request::Active);
    let news: Vec<SwapNews> = std::iter::from_fn(|| node.lives.next_news()).collect();
    assert_eq!(news.len(), 4, "{news:?}");
    let (device, generation) = (node.device("d"), node.generations[&id("d")]);
    assert!(node.lives.swap_begin(&id("d"), generation, ask(SwapWay::Out, &device), node.now).is_ok());
}

#[test]
fn subscribers_are_bounded_and_told_when_something_can_be_fetched() {
    let mut node = Node::new();
    let tracker = node.lives.tracker_mut();
    assert_eq!(tracker.subscribe_removals(0), Err(SubscribeError::Length { asked: 0 }));
    assert_eq!(tracker.subscribe_removals(1 << 21), Err(SubscribeError::Length { asked: 1 << 21 }));
    let one = tracker.subscribe_evictions(4).unwrap();
    assert_eq!(tracker.subscribers(), (1, 1));
    for _ in 1..LifecycleSettings::default().subscribers {
        tracker.subscribe_evictions(1).unwrap();
    }
    assert_eq!(tracker.subscribe_evictions(1), Err(SubscribeError::TooMany { most: 64 }));
    tracker.unsubscribe_evictions(one);
    assert_eq!(tracker.take_evictions(one, &mut vec![]), Err(SubscribeError::Unknown));
    assert_eq!(tracker.resync_evictions(one), Err(SubscribeError::Unknown));
    assert!(tracker.subscribe_evictions(1).is_ok());

    node.active("a", 1);
    assert_eq!(node.lives.poll_action(), None, "nothing to be fetched");
    node.say("a", SchedulerReport::Removed);
    assert_eq!((node.lives.poll_action(), node.lives.poll_action()), (Some(Action::Tell), None), "once");
}

#[test]
fn blocks_that_a_swap_reads_are_shared_and_ones_that_it_writes_are_not() {
    let mut node = Node::new();
    let out = node.active("a", 1);
    let generation = node.generations[&id("a")];
    node.lives.swap_begin(&id("a"), generation, ask(SwapWay::Out, &out), node.now).unwrap();
    node.open("b", 1);
    node.say("b", SchedulerReport::Allocated { fresh: vec![], cached: out });

    node.swapped("c", 1);
    let (generation, into) = (node.generations[&id("c")], node.blocks.take(1));
    node.lives.swap_begin(&id("c"), generation, ask(SwapWay::In, &into), node.now).unwrap();
    node.open("d", 1);
    let early = node.try_say("d", &SchedulerReport::Allocated { fresh: vec![], cached: into.clone() });
    assert_eq!(early, Err(LifecycleError::BlockUnderSwap { block: into[0] }), "its bytes are not there yet");
}

#[test]
fn an_end_that_is_said_again_is_no_proof() {
    let mut node = Node::new();
    let device = node.active("a", 1);
    let generation = node.generations[&id("a")];
    let key = node.lives.swap_begin(&id("a"), generation, ask(SwapWay::Out, &device), node.now).unwrap();
    let id_of_move = moved(&node.actions());
    node.handle(Event::Ended { id: id_of_move, result: Ok(4096), is_open_there: true });
    let watch = watched(&node.actions());
    node.handle(Event::Ended { id: id_of_move, result: Ok(4096), is_open_there: false });
    assert_eq!((node.lives.swap_state(key), node.lives.next_news()), (Some(Swap::Moving), None));
    node.handle(Event::Quiet { id: watch });
    assert_eq!(node.lives.next_news(), Some(SwapNews::Moved { key }));
    node.handle(Event::Ended { id: id_of_move, result: Err(Cause::PeerLost), is_open_there: true });
    node.handle(Event::Quiet { id: watch });
    assert_eq!((node.lives.swap_state(key), node.actions()), (Some(Swap::Moved), vec![]));
    assert_eq!(node.lives.swap_commit(key, node.now), Ok(TARGET));
}

#[test]
fn a_request_that_ends_leaves_to_its_quarantined_swap_what_that_still_reads() {
    let mut node = Node::new();
    let device = node.active("a", 1);
    let generation = node.generations[&id("a")];
    let key = node.lives.swap_begin(&id("a"), generation, ask(SwapWay::Out, &device), node.now).unwrap();
    let id_of_move = moved(&node.actions());
    node.lives.swap_roll_back(key, node.now).unwrap();
    node.pass(GRACE);
    assert_eq!(quarantined(&node.actions()), [TARGET], "the request still has what is read");
    node.say("a", SchedulerReport::Aborted);
    assert_eq!(node.removed()[0].device, []);
    let actions = node.actions();
    assert_eq!((quarantined(&actions), freed(&actions)), (vec![SOURCE], vec![]));
    node.handle(Event::Ended { id: id_of_move, result: Err(Cause::Cancelled), is_open_there: false });
    assert_eq!(freed(&node.actions()), [TARGET, SOURCE]);
}
