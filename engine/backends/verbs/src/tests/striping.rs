//! Transfers over several rails.

use super::*;
use crate::model::Options;

const TWO: Shape = Shape { rails: 2, ..SHAPE };
const BLOCK: u64 = 64 << 10;

fn late() -> ModelNetwork {
    let pace = crate::model::Pace::ByHand;
    ModelNetwork::new(Options { pace, places_late: true, ..Options::default() })
}

#[test]
fn large_transfers_use_all_rails_and_small_ones_take_turns() {
    let network = ModelNetwork::by_hand();
    let mut sides = connected(&network, TWO);
    let (source, target) = (sides[0].pool(pattern(1, 2 << 20)), sides[1].pool(vec![0; 2 << 20]));
    for block in 0..32 {
        let at = block * BLOCK;
        sides[0].post(WRITE, &source, &target, &[span(at, at, BLOCK)], (block, 7, 2 << 20)).unwrap();
    }
    let moved = |side: &Side| [0, 1].map(|rail: usize| side.channel.rails[rail].bytes());
    assert_eq!(moved(&sides[0]), [1 << 20; 2]);
    settle(&network, &mut sides);
    assert!(target.bytes() == source.bytes());
    for (transfer, expected) in [(2, [BLOCK, 0]), (3, [BLOCK, BLOCK]), (4, [2 * BLOCK, BLOCK])] {
        sides[0].post(WRITE, &source, &target, &[span(0, 0, BLOCK)], (100 + transfer, transfer, BLOCK)).unwrap();
        assert_eq!(moved(&sides[0]), expected);
    }
    settle(&network, &mut sides);
}

#[test]
fn a_faster_rail_takes_more() {
    let network = ModelNetwork::by_hand();
    let mut sides = connected(&network, TWO);
    let mut attr = (*sides[0].channel.rails[1].attr).clone();
    attr.bandwidth *= 3;
    sides[0].channel.rails[1].attr = Arc::new(attr);
    let (source, target) = (sides[0].pool(pattern(1, 2 << 20)), sides[1].pool(vec![0; 2 << 20]));
    for block in 0..32 {
        let at = block * BLOCK;
        sides[0].post(WRITE, &source, &target, &[span(at, at, BLOCK)], (block, 7, 2 << 20)).unwrap();
    }
    let moved = [0, 1].map(|rail: usize| sides[0].channel.rails[rail].bytes() / BLOCK);
    assert_eq!(moved, [8, 24]);
    settle(&network, &mut sides);
}

#[test]
fn what_is_announced_over_several_rails_is_there_on_all() {
    let network = late();
    let mut sides = connected(&network, TWO);
    let (source, target) = (sides[0].pool(pattern(2, 1 << 20)), sides[1].pool(vec![0; 1 << 20]));
    sides[1].counter(3).begin_use(1);
    let counter = Some(CounterRef { index: 3, generation: 1 });
    for slow in 0..2 {
        target.window.fill(0, 1 << 20, 0).unwrap();
        let transfer = 10 + slow as u64;
        for block in 0..16 {
            let at = block * BLOCK;
            sides[0].post(WRITE, &source, &target, &[span(at, at, BLOCK)], (block, transfer, 1 << 20)).unwrap();
        }
        sides[0].tell((99, transfer, 1 << 20), counter, Some((5, b"all of it"))).unwrap();
        sides[0].got.completed.clear();
        // One rail is far behind the other: nothing is told before both have come.
        sides[1].adapters[slow].hold();
        settle(&network, &mut sides);
        assert_eq!((sides[1].counter(3).value(), sides[1].got.notes.len()), (slow as u64, slow));
        assert_eq!(sides[0].result(99), None);
        sides[1].adapters[slow].release();
        while sides[1].got.notes.len() == slow {
            network.step();
            sides[1].turn();
        }
        assert!(target.bytes() == source.bytes(), "told before it was there, rail {slow}");
        settle(&network, &mut sides);
        assert_eq!((sides[1].counter(3).value(), sides[0].result(99)), (slow as u64 + 1, Some(Ok(1))));
    }
    // A counter that has gone meanwhile is said to be, whichever message was the last.
    for block in 0..16 {
        let at = block * BLOCK;
        sides[0].post(WRITE, &source, &target, &[span(at, at, BLOCK)], (200 + block, 50, 1 << 20)).unwrap();
    }
    sides[1].counter(3).begin_use(2);
    sides[0].tell((299, 50, 1 << 20), counter, None).unwrap();
    settle(&network, &mut sides);
    assert_eq!((sides[1].counter(3).value(), sides[0].result(299)), (0, Some(Ok(0))));
}

#[test]
fn who_has_forgotten_the_rails_of_a_transfer_marks_all() {
    let network = late();
    let mut sides = connected(&network, TWO);
    let (source, target) = (sides[0].pool(pattern(2, 1 << 20)), sides[1].pool(vec![0; 1 << 20]));
    let (half, whole) = (1 << 19, 1 << 20);
    sides[0].post(WRITE, &source, &target, &[span(0, 0, half)], (1, 1, whole)).unwrap();
    // The same place of the table, in between.
    sides[0].post(WRITE, &source, &target, &[span(0, 0, 8)], (2, 65, 8)).unwrap();
    settle(&network, &mut sides);
    sides[0].post(WRITE, &source, &target, &[span(half, half, half)], (3, 1, whole)).unwrap();
    assert_eq!(sides[0].channel.stripe.carried(1, whole), 0b11);
    sides[0].tell((4, 1, whole), None, Some((1, b""))).unwrap();
    sides[0].channel.flush();
    while sides[1].got.notes.is_empty() {
        network.step();
        sides[1].turn();
    }
    assert!(target.bytes() == source.bytes());
    settle(&network, &mut sides);
    assert_eq!(sides[0].result(4), Some(Ok(1)));
}

#[test]
fn a_rail_that_is_out_is_not_waited_for() {
    let network = ModelNetwork::by_hand();
    let mut sides = connected(&network, TWO);
    let (source, target) = (sides[0].pool(pattern(2, 1 << 20)), sides[1].pool(vec![0; 1 << 20]));
    let (half, whole) = (1 << 19, 1 << 20);
    sides[0].post(WRITE, &source, &target, &[span(0, 0, half)], (1, 1, whole)).unwrap();
    // The same place of the table, in between: nobody remembers where the first half went.
    sides[0].post(WRITE, &source, &target, &[span(0, 0, 8)], (2, 65, 8)).unwrap();
    settle(&network, &mut sides);
    for side in &sides {
        side.adapters[1].set_port(false);
    }
    pass_time(&network, &mut sides, Duration::from_millis(100));
    assert!(sides[0].is_up(0) && !sides[0].is_up(1));
    sides[0].post(WRITE, &source, &target, &[span(half, half, half)], (3, 1, whole)).unwrap();
    assert_eq!(sides[0].channel.stripe.carried(1, whole), 0b11);
    sides[0].tell((4, 1, whole), None, Some((1, b""))).unwrap();
    settle(&network, &mut sides);
    assert!(target.bytes() == source.bytes());
    assert_eq!((sides[0].result(4), sides[1].got.notes.len()), (Some(Ok(1)), 1));
}
