//! Adapters that fail for good, or do not do what adapters do.

use penstock_ring::gate::NOTHING;
use penstock_transport::lane::CancelledOp;

use super::repair::{MS, TWO, block, dialing, has_block, pools};
use super::*;

/// The second rail is out on both sides, nothing lands over it any more, and nobody does anything about it. The first one carries.
fn is_given_up(network: &ModelNetwork, sides: &mut [Side; 2], (source, target): (&Pool, &Pool)) {
    let resets = |sides: &[Side; 2]| [0, 1].map(|at: usize| sides[at].adapters[1].counts().resets);
    let lives = |sides: &[Side; 2]| [0, 1].map(|at: usize| sides[at].channel.rails[1].life);
    let before = (resets(sides), lives(sides));
    for side in sides.iter() {
        assert!(side.channel.rails[1].is_out && side.is_up(0) && !side.is_up(1));
        assert!(side.proofs.reset.borrow().contains(&(1, NOTHING)), "{:?}", side.proofs.reset);
        assert_eq!(side.channel.next_look(), None);
    }
    pass_time(network, sides, 7000 * MS);
    assert_eq!((resets(sides), lives(sides)), before);
    for number in 0..8 {
        sides[0].post(WRITE, source, target, &[block(number)], (9000 + number, number, 1024)).unwrap();
        settle(network, sides);
        assert_eq!(sides[0].result(9000 + number), Some(Ok(1024)));
    }
}

/// Posts small batches of 16 transfers, which take turns on the rails.
fn post_sixteen(side: &mut Side, source: &Pool, target: &Pool) {
    for number in 0..16 {
        side.post(WRITE, source, target, &[block(number)], (number, number, 1024)).unwrap();
        side.tell((100 + number, number, 1024), None, Some((number.into(), b""))).unwrap();
    }
    side.channel.flush();
}

fn sixteen_are_there(sides: &[Side; 2], source: &Pool, target: &Pool) {
    for number in 0..16 {
        assert_eq!((sides[0].result(number), sides[0].result(100 + number)), (Some(Ok(1024)), Some(Ok(1))));
        assert!(has_block(source, target, number));
    }
    let mut notes: Vec<_> = sides[1].got.notes.iter().map(|(id, _)| *id).collect();
    notes.sort_unstable();
    assert_eq!(notes, (0..16).collect::<Vec<_>>());
}

#[test]
fn what_a_failed_card_had_goes_over_the_other_rail_however_they_are_connected() {
    for (failing, is_managed) in [(0, false), (1, false), (0, true), (1, true)] {
        let network = ModelNetwork::by_hand();
        let mut sides = connected(&network, Shape { is_managed, ..TWO });
        let (source, target) = pools(&mut sides);
        post_sixteen(&mut sides[0], &source, &target);
        for _ in 0..6 {
            network.step();
        }
        sides[failing].adapters[1].fail();
        pass_time(&network, &mut sides, 1000 * MS);
        sixteen_are_there(&sides, &source, &target);
        assert_eq!(sides[failing].adapters[1].counts().queues, 0);
        is_given_up(&network, &mut sides, (&source, &target));
    }
}

#[test]
fn a_queue_that_is_not_made_new_is_given_back() {
    for failing in 0..2 {
        let network = ModelNetwork::by_hand();
        let mut sides = connected(&network, TWO);
        let (source, target) = pools(&mut sides);
        post_sixteen(&mut sides[0], &source, &target);
        sides[failing].adapters[1].refuse_resets(1);
        sides[1 - failing].cut(1);
        pass_time(&network, &mut sides, 1000 * MS);
        sixteen_are_there(&sides, &source, &target);
        assert_eq!(sides[failing].adapters[1].counts().queues, 0);
        is_given_up(&network, &mut sides, (&source, &target));
    }
}

#[test]
fn what_is_on_a_queue_that_is_neither_made_new_nor_taken_back_stays_open_until_it_is() {
    let network = ModelNetwork::by_hand();
    let mut sides = connected(&network, TWO);
    let (source, target) = pools(&mut sides);
    sides[0].adapters[1].break_after(0);
    sides[0].adapters[1].refuse_resets(u64::MAX);
    sides[0].adapters[1].refuse_to_take_back(3);
    post_sixteen(&mut sides[0], &source, &target);
    pass_time(&network, &mut sides, 500 * MS);
    assert!(matches!(sides[0].channel.rails[1].standing, Standing::Stuck(_)));
    let is_open: Vec<_> = (0..16).filter(|token| sides[0].result(*token).is_none()).collect();
    assert_eq!(is_open, [1, 3, 5, 7, 9, 11, 13, 15], "those of the other rail are over");
    assert!(is_open.iter().all(|token| !has_block(&source, &target, *token)));
    sides[0].withdraw(&source, 40_000, 8);
    sides[0].cut(1);
    sides[0].turn();
    assert_eq!(sides[0].channel.oldest(), 0, "its card may still have it");
    assert_eq!(*sides[0].proofs.reset.borrow(), [], "nothing is proven");
    assert_eq!(sides[0].channel.cancel_op(15), CancelledOp::LocalPending);
    // Whoever asks again once in a while gets it in the end.
    let look = sides[0].channel.next_look().expect("the card is asked again");
    assert!(look > sides[0].now && look <= sides[0].now + 1000 * MS);
    pass_news(&mut sides, 0);
    pass_time(&network, &mut sides, 3500 * MS);
    assert_eq!((sides[0].result(15), sides[0].result(115)), (Some(Err(Cause::Cancelled)), Some(Err(Cause::Cancelled))));
    assert!(is_open[..7].iter().all(|token| sides[0].result(*token) == Some(Ok(1024))));
    assert!((0..15).all(|number| has_block(&source, &target, number)) && !has_block(&source, &target, 15));
    assert_eq!(sides[0].channel.oldest(), u64::MAX);
    is_given_up(&network, &mut sides, (&source, &target));
}

#[test]
fn a_card_that_fails_while_its_rail_is_away_is_given_up_too() {
    for failing in 0..2 {
        // While its port is down.
        let network = ModelNetwork::by_hand();
        let mut sides = connected(&network, TWO);
        let (source, target) = pools(&mut sides);
        sides.iter().for_each(|side| side.adapters[1].set_port(false));
        pass_time(&network, &mut sides, 500 * MS);
        sides[failing].adapters[1].fail();
        pass_time(&network, &mut sides, 5000 * MS);
        is_given_up(&network, &mut sides, (&source, &target));
        // While it is being connected.
        let network = ModelNetwork::by_hand();
        let mut sides = dialing(&network, &[1], Waits::InTheNetwork);
        let (source, target) = pools(&mut sides);
        sides[failing].adapters[1].fail();
        pass_time(&network, &mut sides, 500 * MS);
        sides[1].dialer.go_on();
        pass_time(&network, &mut sides, 5000 * MS);
        is_given_up(&network, &mut sides, (&source, &target));
    }
    // Where it cannot be connected, and what is connected in part cannot be taken back.
    let network = ModelNetwork::by_hand();
    let mut sides = dialing(&network, &[1], Waits::InTheNetwork);
    let (source, target) = pools(&mut sides);
    sides[1].adapters[1].refuse_connects(1);
    sides[1].adapters[1].refuse_resets(1);
    sides[1].dialer.go_on();
    pass_time(&network, &mut sides, 3000 * MS);
    is_given_up(&network, &mut sides, (&source, &target));
}

#[test]
fn a_card_that_fails_before_its_rail_is_connected_is_given_up_too() {
    for failing in 0..2 {
        let network = ModelNetwork::by_hand();
        let mut sides = unconnected(&network, TWO);
        let (source, target) = pools(&mut sides);
        sides[failing].adapters[1].fail();
        sides.iter_mut().for_each(|side| side.connect());
        pass_time(&network, &mut sides, 3000 * MS);
        is_given_up(&network, &mut sides, (&source, &target));
    }
}

#[test]
fn both_cards_of_a_rail_may_fail() {
    let network = ModelNetwork::by_hand();
    let mut sides = connected(&network, TWO);
    let (source, target) = pools(&mut sides);
    post_sixteen(&mut sides[0], &source, &target);
    sides.iter().for_each(|side| side.adapters[1].fail());
    pass_time(&network, &mut sides, 1000 * MS);
    sixteen_are_there(&sides, &source, &target);
    is_given_up(&network, &mut sides, (&source, &target));
}

#[test]
fn a_peer_that_has_no_queue_any_more_cannot_have_another_one() {
    let network = ModelNetwork::by_hand();
    let mut sides = connected(&network, TWO);
    let number = sides[1].channel.rails[1].number;
    sides[1].adapters[1].fail();
    pass_time(&network, &mut sides, 500 * MS);
    assert!(sides[0].proofs.reset.borrow().contains(&(1, NOTHING)));
    let ended = crate::ended::QueueEnded {
        rail: 1,
        life: sides[0].channel.rails[1].life,
        heard: sides[0].channel.rails[1].heard(),
        gone: 0,
        revision: 0,
        queue: number,
        first_packet: 1,
        token: None,
    };
    sides[0].hear(&ended.encode());
    for _ in 0..100 {
        sides[0].now += 10 * MS;
        sides[0].turn();
    }
    assert_eq!((sides[0].fault, sides[0].channel.rails[1].standing == Standing::Up), (None, false));
    assert!(matches!(sides[0].channel.rails[1].standing, Standing::Idle(_)), "it is not connected");
}

#[test]
fn where_no_rail_has_a_queue_any_more_the_session_ends_at_once_and_says_whose_card_it_was() {
    let network = ModelNetwork::by_hand();
    let mut sides = connected(&network, TWO);
    sides[0].adapters.iter().for_each(|adapter| adapter.fail());
    let begun = sides[0].now;
    while sides.iter().any(|side| side.fault.is_none()) {
        network.advance(10 * MS);
        for at in 0..2 {
            sides[at].now += 10 * MS;
            sides[at].turn();
            pass_asides(&mut sides, at);
        }
        assert!(sides[0].now - begun < 1000 * MS);
    }
    assert_eq!(sides.map(|side| side.fault), [Cause::CardFailed, Cause::PeerLost].map(|cause| Some(LaneFault(cause))));
}
