//! A child that inherits from its parent, and a request whose free was put off.

use penstock_core::Cause;
use penstock_flows::continuation::{Miss, Pin, PinSettings};
use penstock_flows::event::Event;
use penstock_flows::lifecycle::{DeferSite, Request, SchedulerReport, SwapNews, SwapWay, Verdict};

use crate::lives::parents::{Keeper, TTL, parent};
use crate::lives::*;

#[test]
fn scenario_15_a_deferred_request_is_removed_once_at_its_abort() {
    let mut node = Node::new();
    let device = node.active("a", 4);
    let first = node.generations[&id("a")];
    let key = node.lives.swap_begin(&id("a"), first, ask(SwapWay::Out, &device), node.now).unwrap();
    let id_of_move = moved(&node.actions());
    node.pass(WITHIN);
    assert_eq!(node.lives.next_news(), Some(SwapNews::TimedOut { key }));
    let deferred: Vec<_> = node.lives.tracker().deferred().map(|deferral| deferral.site).collect();
    assert_eq!((node.state("a"), deferred), (Request::Dropped, vec![Some(DeferSite::SwapOutTimeout)]));

    // It is computed again, in other blocks, while the old ones are still kept.
    let fresh = node.blocks.take(4);
    assert_eq!(node.say("a", SchedulerReport::Allocated { fresh: fresh.clone(), cached: vec![] }), Verdict::NoOp);
    assert_eq!((node.say("a", SchedulerReport::Active), node.lives.tracker().deferred().count()), (Verdict::NoOp, 0));
    assert_eq!((node.removed(), freed(&node.actions())), (vec![], vec![]));

    assert_eq!(node.say("a", SchedulerReport::Aborted), Verdict::Remove);
    let removed = node.removed();
    assert_eq!((removed.len(), &removed[0].device, removed[0].generation), (1, &fresh, first));
    node.handle(Event::Ended { id: id_of_move, result: Err(Cause::Cancelled), is_open_there: false });
    assert_eq!(freed(&node.actions()), [TARGET, SOURCE]);
    node.blocks.give_back(&device);
    node.blocks.give_back(&fresh);

    node.active("a", 1);
    let second = node.generations[&id("a")];
    assert_eq!(node.say("a", SchedulerReport::Removed), Verdict::Remove);
    let removed = node.removed();
    assert_eq!((removed.len(), removed[0].generation), (1, second), "the id used again has one of its own");
    assert!(second > first && node.lives.is_empty());
}

#[test]
fn scenario_14_688_of_700_are_inherited_and_100_failures_change_no_count() {
    let mut keeper = Keeper::new(PinSettings::default());
    let (pin, ticket) = keeper.pin(parent("a", 700)).unwrap();
    let before = (keeper.pins.metrics().uses, keeper.pins.metrics().bytes, keeper.pins.state(pin));
    for _ in 0..100 {
        // The child's own blocks cannot be had: what it inherited goes back.
        let inherited = keeper.inherit("b", "a", 705).unwrap();
        assert_eq!((inherited.tokens, inherited.groups[0].len()), (688, 43));
        assert_eq!(inherited.groups[0], (0..43).collect::<Vec<u32>>());
        assert!(keeper.pins.give_up(inherited.key));
        assert_eq!((keeper.pins.metrics().uses, keeper.pins.metrics().bytes, keeper.pins.state(pin)), before);
    }
    let inherited = keeper.inherit("b", "a", 705).unwrap();
    assert_eq!(inherited.tokens + 17, 705, "12 of the block that is not whole, and 5 behind it");
    keeper.pass(TTL);
    assert_eq!((keeper.freed(), keeper.pins.state(pin)), (vec![], Some(Pin::Doomed)), "its child still has it");
    assert_eq!(keeper.inherit("c", "a", 705), Err(Miss::Expired));
    keeper.pins.give_up(inherited.key);
    assert_eq!((keeper.freed(), keeper.pins.is_empty()), (vec![ticket], true));
}
