//! Rails that break, and what becomes of what was under way.

use super::Waits::{ForItsTurn, InTheNetwork};
use super::*;
use crate::model::Losses;

pub(super) const TWO: Shape = Shape { rails: 2, ..SHAPE };
pub(super) const MS: Duration = Duration::from_millis(1);

/// Both sides with memory for writes: a source and a target.
pub(super) fn pools(sides: &mut [Side; 2]) -> (Pool, Pool) {
    (sides[0].pool(pattern(3, 1 << 16)), sides[1].pool(vec![0; 1 << 16]))
}

pub(super) fn block(number: u64) -> Span {
    span(number * 1024, number * 1024, 1024)
}

pub(super) fn has_block(source: &Pool, target: &Pool, number: u64) -> bool {
    let at = number as usize * 1024..(number as usize + 1) * 1024;
    source.bytes()[at.clone()] == target.bytes()[at]
}

#[test]
fn a_refused_batch_ends_with_its_cause_and_its_neighbours_arrive() {
    let network = ModelNetwork::by_hand();
    let mut sides = connected(&network, SHAPE);
    let (source, target) = pools(&mut sides);
    let closed = sides[1].pool_with(vec![0; 4096], AccessFlags { read: true, ..AccessFlags::default() });
    sides[1].counter(1).begin_use(1);
    let counter = Some(CounterRef { index: 1, generation: 1 });
    sides[0].post(WRITE, &source, &target, &[block(0)], (1, 1, 1024)).unwrap();
    sides[0].tell((2, 1, 1024), counter, Some((1, b"one"))).unwrap();
    sides[0].post(WRITE, &source, &closed, &[span(0, 0, 8)], (3, 2, 8)).unwrap();
    sides[0].tell((4, 2, 8), counter, Some((2, b"two"))).unwrap();
    sides[0].post(WRITE, &source, &target, &[block(1)], (5, 3, 1024)).unwrap();
    sides[0].tell((6, 3, 1024), counter, None).unwrap();
    settle(&network, &mut sides);
    assert_eq!(sides[0].result(3), Some(Err(Cause::AccessRefused)));
    assert_eq!(sides[0].result(4), Some(Err(Cause::AccessRefused)), "nothing is told of it");
    assert_eq!([1, 2, 5, 6].map(|token| sides[0].result(token)), [1024, 1, 1024, 1].map(|moved| Some(Ok(moved))));
    assert_eq!(sides[1].got.notes, [(1, b"one".to_vec())]);
    assert_eq!(sides[1].counter(1).value(), 2);
    assert!(has_block(&source, &target, 0) && has_block(&source, &target, 1));
    assert!(closed.bytes().iter().all(|byte| *byte == 0));
    assert_eq!(sides[0].channel.rails[0].life, 1, "one repair");
    assert!(sides.iter().all(|side| side.is_up(0)));
    assert_eq!(sides[0].channel.oldest(), u64::MAX);
}

#[test]
fn wherever_a_queue_breaks_all_is_told_once() {
    for breaks in 0..40 {
        for (side, answers) in [(0, false), (0, true), (1, false)] {
            let network = ModelNetwork::by_hand();
            let mut sides = connected(&network, SHAPE);
            let (source, target) = pools(&mut sides);
            sides[1].counter(1).begin_use(1);
            let counter = Some(CounterRef { index: 1, generation: 1 });
            if answers {
                // Requests happen, and nobody hears it: what landed must not be told again.
                let losses = Losses { answers: true, ..Losses::default() };
                network.lose(&sides[1].adapters[0], &sides[0].adapters[0], losses);
            }
            sides[side].adapters[0].break_after(breaks);
            for number in 0..12 {
                sides[0].post(WRITE, &source, &target, &[block(number)], (number, number, 1024)).unwrap();
                let note = (number % 3 == 0).then_some((u128::from(number), &b"it is there"[..]));
                sides[0].tell((100 + number, number, 1024), counter, note).unwrap();
                if number % 4 == 3 {
                    network.run();
                    sides[1].turn();
                }
            }
            network.run();
            if answers {
                network.mend(&sides[1].adapters[0], &sides[0].adapters[0]);
                sides[0].cut(0);
            }
            pass_time(&network, &mut sides, 20 * MS);
            for number in 0..12 {
                assert_eq!(sides[0].result(number), Some(Ok(1024)));
                assert_eq!(sides[0].result(100 + number), Some(Ok(1)));
                assert!(has_block(&source, &target, number));
            }
            assert_eq!(sides[1].counter(1).value(), 12, "after {breaks} requests");
            let ids: Vec<_> = sides[1].got.notes.iter().map(|(id, _)| *id).collect();
            assert_eq!(ids, [0, 3, 6, 9]);
        }
    }
}

/// Some adapters say of what they find wrong themselves only that it has come back, and not which request it was.
#[test]
fn a_batch_that_breaks_every_queue_ends_and_its_neighbours_arrive() {
    for (rails, delay) in [(1, Duration::ZERO), (1, MS), (2, Duration::ZERO), (2, MS)] {
        let network = ModelNetwork::by_hand();
        let mut sides = connected(&network, Shape { rails, ..SHAPE });
        let (source, target) = pools(&mut sides);
        let cursed = sides[1].pool(vec![0; 4096]);
        for rail in 0..rails {
            sides[0].adapters[rail].break_at(cursed.registrations[rail].remote_key());
            // With a delay the answers of what was posted before it are not back when it breaks the queue.
            network.delay(&sides[0].adapters[rail], &sides[1].adapters[rail], delay);
        }
        sides[1].counter(1).begin_use(1);
        let counter = Some(CounterRef { index: 1, generation: 1 });
        for number in 0..8 {
            let (to, at) = if number == 3 { (&cursed, span(0, 0, 8)) } else { (&target, block(number)) };
            sides[0].post(WRITE, &source, to, &[at], (number, number, at.len)).unwrap();
            sides[0].tell((100 + number, number, at.len), counter, None).unwrap();
        }
        pass_time(&network, &mut sides, Duration::from_secs(2));
        for number in 0..8 {
            let (moved, told) = (sides[0].result(number), sides[0].result(100 + number));
            if number == 3 {
                let refused = Some(Err(Cause::CardRefused));
                assert_eq!((moved, told), (refused, refused), "{rails} rails, {delay:?}");
            } else {
                assert_eq!((moved, told), (Some(Ok(1024)), Some(Ok(1))), "{number}, {rails} rails, {delay:?}");
                assert!(has_block(&source, &target, number));
            }
        }
        assert_eq!(sides[1].counter(1).value(), 7);
        let lives: u32 = sides[0].channel.rails.iter().map(|rail| rail.life).sum();
        assert!((16..64).contains(&lives), "{lives} lives, {rails} rails, {delay:?}");
        // What comes later goes as ever: one at a time over each rail until it is trusted again, then all at once.
        for number in 8..16 {
            let post = |sides: &mut [Side; 2]| {
                sides[0].post(WRITE, &source, &target, &[block(number)], (number, number, 1024))
            };
            if post(&mut sides).is_err() {
                assert!(number < 8 + 2 * rails as u64, "it is still not trusted");
                pass_time(&network, &mut sides, 100 * MS);
                post(&mut sides).unwrap();
            }
        }
        pass_time(&network, &mut sides, 100 * MS);
        assert!((8..16).all(|number| sides[0].result(number) == Some(Ok(1024))));
        assert_eq!(sides[0].channel.rails.iter().map(|rail| rail.life).sum::<u32>(), lives);
    }
}

#[test]
fn what_was_told_is_not_written_again() {
    let network = ModelNetwork::by_hand();
    let mut sides = connected(&network, SHAPE);
    let (source, target) = pools(&mut sides);
    let losses = Losses { answers: true, ..Losses::default() };
    network.lose(&sides[1].adapters[0], &sides[0].adapters[0], losses);
    sides[0].post(WRITE, &source, &target, &[block(0)], (1, 1, 1024)).unwrap();
    sides[0].tell((2, 1, 1024), None, Some((1, b""))).unwrap();
    sides[0].channel.flush();
    network.run();
    sides[1].turn();
    assert_eq!(sides[1].got.notes.len(), 1);
    // Whoever was told uses the memory for something else.
    target.window.fill(0, 1024, 0x77).unwrap();
    network.mend(&sides[1].adapters[0], &sides[0].adapters[0]);
    sides[0].cut(0);
    settle(&network, &mut sides);
    assert_eq!((sides[0].result(1), sides[0].result(2)), (Some(Ok(1024)), Some(Ok(1))));
    assert!(target.bytes()[..1024].iter().all(|byte| *byte == 0x77));
}

#[test]
fn nothing_is_reported_before_the_peer_has_ended_it_too() {
    let network = ModelNetwork::by_hand();
    let mut sides = connected(&network, SHAPE);
    let (source, target) = pools(&mut sides);
    sides[0].adapters[0].break_after(0);
    sides[0].post(WRITE, &source, &target, &[block(0)], (1, 1, 1024)).unwrap();
    sides[0].channel.flush();
    sides[0].channel.cancel_op(1);
    for _ in 0..10 {
        network.run();
        sides[0].turn();
    }
    assert_eq!(sides[0].result(1), None, "it may still land");
    assert_eq!(sides[0].said.borrow().len(), 1);
    assert_eq!(*sides[0].proofs.reset.borrow(), [(0, 0)]);
    settle(&network, &mut sides);
    assert_eq!(sides[0].result(1), Some(Err(Cause::Cancelled)));
    assert_eq!(*sides[1].proofs.reset.borrow(), [(0, 0)]);
    assert!(sides[0].is_up(0) && sides[1].is_up(0));
}

#[test]
fn what_was_withdrawn_meanwhile_does_not_go_again() {
    let network = ModelNetwork::by_hand();
    let mut sides = connected(&network, SHAPE);
    let (source, target) = pools(&mut sides);
    sides[0].adapters[0].break_after(0);
    for number in 0..4 {
        sides[0].post(WRITE, &source, &target, &[block(number)], (number, number, 1024)).unwrap();
        sides[0].tell((10 + number, number, 1024), None, Some((number.into(), b""))).unwrap();
    }
    sides[0].post(WRITE, &source, &target, &[block(4)], (4, 4, 1024)).unwrap();
    sides[0].withdraw(&source, 1100, 10);
    sides[1].withdraw(&target, 2 * 1024 + 7, 1);
    for _ in 0..20 {
        network.run();
        (0..2).for_each(|at| {
            sides[at].turn();
            pass_asides(&mut sides, at);
        });
    }
    assert!(sides[0].got.completed.is_empty(), "the peer has said how far its log is, and it is not known yet");
    assert!(!sides[0].is_up(0), "nothing is posted before it is known either");
    pass_news(&mut sides, 1);
    pass_news(&mut sides, 0);
    settle(&network, &mut sides);
    assert_eq!(sides[0].result(1), Some(Err(Cause::RevokedHere)));
    assert_eq!(sides[0].result(2), Some(Err(Cause::RevokedByPeer)));
    assert_eq!(
        (sides[0].result(11), sides[0].result(12)),
        (Some(Err(Cause::RevokedHere)), Some(Err(Cause::RevokedByPeer)))
    );
    assert_eq!([0, 3, 4].map(|token| sides[0].result(token)), [Some(Ok(1024)); 3]);
    assert_eq!(sides[1].got.notes.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [0, 3]);
    assert_eq!([0, 1, 2, 3, 4].map(|number| has_block(&source, &target, number)), [true, false, false, true, true]);
}

#[test]
fn a_key_that_was_withdrawn_is_said_to_be() {
    let network = ModelNetwork::by_hand();
    let mut sides = connected(&network, SHAPE);
    let (source, mut target) = pools(&mut sides);
    sides[0].post(WRITE, &source, &target, &[block(0)], (1, 1, 1024)).unwrap();
    sides[1].withdraw(&target, 0, u64::MAX);
    target.registrations.clear();
    network.run();
    pass_news(&mut sides, 1);
    settle(&network, &mut sides);
    assert_eq!(sides[0].result(1), Some(Err(Cause::RevokedByPeer)));
}

#[test]
fn what_a_dead_rail_had_goes_over_the_other() {
    for held in [false, true] {
        let network = ModelNetwork::by_hand();
        let mut sides = connected(&network, TWO);
        let (source, target) = (sides[0].pool(pattern(3, 1 << 20)), sides[1].pool(vec![0; 1 << 20]));
        for block in 0..16 {
            let at = block << 16;
            sides[0].post(WRITE, &source, &target, &[span(at, at, 1 << 16)], (block, 7, 1 << 20)).unwrap();
        }
        sides[0].tell((99, 7, 1 << 20), None, Some((9, b"all"))).unwrap();
        sides[0].channel.flush();
        if held {
            sides[1].adapters[0].hold();
        }
        for _ in 0..5 {
            network.step();
        }
        sides[0].adapters[1].set_port(false);
        sides[1].adapters[1].set_port(false);
        settle(&network, &mut sides);
        sides[1].adapters[0].release();
        settle(&network, &mut sides);
        assert_eq!(sides[0].result(99), Some(Ok(1)));
        assert!((0..16).all(|token| sides[0].result(token) == Some(Ok(1 << 16))));
        assert!(target.bytes() == source.bytes());
        assert_eq!(sides[1].got.notes, [(9, b"all".to_vec())]);
        assert!(sides[0].is_up(0) && !sides[0].is_up(1));
        // It stays out as long as it is down, and the session stands.
        pass_time(&network, &mut sides, 6000 * MS);
        assert!(!sides[0].is_up(1));
        let lives = sides[0].channel.rails[1].life;
        assert!((5..30).contains(&lives), "{lives} tries");
        sides.iter().for_each(|side| side.adapters[1].set_port(true));
        pass_time(&network, &mut sides, 1500 * MS);
        assert!(sides[0].is_up(1) && sides[1].is_up(1));
    }
}

#[test]
fn without_any_rail_the_session_ends() {
    let network = ModelNetwork::by_hand();
    let mut sides = connected(&network, SHAPE);
    let (source, target) = pools(&mut sides);
    // Long quiet times are none without a rail.
    pass_time(&network, &mut sides, 7000 * MS);
    sides[0].post(WRITE, &source, &target, &[block(0)], (1, 1, 1024)).unwrap();
    sides[0].adapters[0].set_port(false);
    let begun = sides[0].now;
    while sides[0].fault.is_none() {
        network.advance(10 * MS);
        for at in 0..2 {
            sides[at].now += 10 * MS;
            sides[at].turn();
            pass_asides(&mut sides, at);
        }
        assert!(sides[0].now - begun < 6000 * MS);
    }
    assert_eq!(sides[0].fault, Some(LaneFault(Cause::PeerLost)));
    assert!(sides[0].now - begun > 4900 * MS);
}

#[test]
fn a_peer_that_does_not_answer_for_long_is_lost_although_other_rails_are_up() {
    let network = ModelNetwork::by_hand();
    let mut sides = connected(&network, TWO);
    sides[0].cut(1);
    let begun = sides[0].now;
    while sides[0].fault.is_none() {
        let look = sides[0].channel.next_look().expect("it waits for an answer");
        sides[0].now = sides[0].now.max(look) + MS;
        sides[0].turn();
        assert!(sides[0].now - begun < 6000 * MS);
    }
    assert!(sides[0].is_up(0) && sides[0].now - begun > 4900 * MS);
}

#[test]
fn what_is_given_up_ends_soon_although_the_peers_card_stands_still() {
    let network = ModelNetwork::by_hand();
    let mut sides = connected(&network, SHAPE);
    let (source, target) = pools(&mut sides);
    sides[1].adapters[0].hold();
    sides[0].post(WRITE, &source, &target, &[block(0)], (1, 1, 1024)).unwrap();
    sides[0].tell((2, 1, 1024), None, Some((1, b""))).unwrap();
    sides[0].post(WRITE, &source, &target, &[block(1)], (3, 3, 1024)).unwrap();
    settle(&network, &mut sides);
    assert_eq!(sides[0].channel.next_look(), None);
    for _ in 0..2 {
        assert_eq!(sides[0].channel.cancel_op(1), penstock_transport::lane::CancelledOp::LocalPending);
        assert_eq!(sides[0].channel.cancel_op(2), penstock_transport::lane::CancelledOp::RemotePending);
    }
    assert!(sides[0].channel.next_look().is_some());
    pass_time(&network, &mut sides, 40 * MS);
    assert_eq!(sides[0].result(1), None);
    pass_time(&network, &mut sides, 30 * MS);
    sides[1].adapters[0].release();
    settle(&network, &mut sides);
    assert_eq!((sides[0].result(1), sides[0].result(2)), (Some(Err(Cause::Cancelled)), Some(Err(Cause::Cancelled))));
    assert_eq!(sides[0].result(3), Some(Ok(1024)), "it was innocent");
    assert!(sides[1].got.notes.is_empty() && !has_block(&source, &target, 0) && has_block(&source, &target, 1));
    assert_eq!(sides[0].channel.next_look(), None);
}

#[test]
fn what_waits_to_go_again_is_taken_back_at_once() {
    let network = ModelNetwork::by_hand();
    let mut sides = connected(&network, SHAPE);
    let (source, target) = pools(&mut sides);
    sides[0].adapters[0].break_after(0);
    sides[0].post(WRITE, &source, &target, &[block(0)], (1, 1, 1024)).unwrap();
    sides[0].tell((2, 1, 1024), None, Some((1, b""))).unwrap();
    sides[0].post(WRITE, &source, &target, &[block(1)], (3, 3, 1024)).unwrap();
    sides[0].tell((4, 3, 1024), None, Some((2, b""))).unwrap();
    sides[1].withdraw(&target, 60_000, 1);
    for _ in 0..20 {
        network.run();
        (0..2).for_each(|at| {
            sides[at].turn();
            pass_asides(&mut sides, at);
        });
    }
    assert_eq!(sides[0].channel.cancel_op(1), penstock_transport::lane::CancelledOp::Quiesced);
    assert_eq!(
        sides[0].channel.cancel_op(2),
        penstock_transport::lane::CancelledOp::Quiesced,
        "its transfer is not whole"
    );
    assert_eq!(sides[0].channel.cancel_op(4), penstock_transport::lane::CancelledOp::Quiesced);
    pass_news(&mut sides, 1);
    settle(&network, &mut sides);
    assert_eq!(sides[0].got.completed, [(3, Ok(1024))]);
    assert!(sides[1].got.notes.is_empty() && has_block(&source, &target, 1));
    assert_eq!(sides[0].channel.ops.iter().count(), 0);
}

#[test]
fn nothing_is_told_of_a_transfer_that_failed_on_one_of_its_rails() {
    let network = ModelNetwork::by_hand();
    let mut sides = connected(&network, TWO);
    let (source, target) = (sides[0].pool(pattern(3, 1 << 20)), sides[1].pool(vec![0; 1 << 20]));
    let closed = sides[1].pool_with(vec![0; 1 << 16], AccessFlags::default());
    sides[1].counter(1).begin_use(1);
    let counter = Some(CounterRef { index: 1, generation: 1 });
    for bad in 0..16 {
        let transfer = 100 + bad;
        for block in 0..16 {
            let at = block << 16;
            let (to, place) = if block == bad { (&closed, 0) } else { (&target, at) };
            let token = bad * 100 + block;
            sides[0].post(WRITE, &source, to, &[span(at, place, 1 << 16)], (token, transfer, 1 << 20)).unwrap();
        }
        sides[0].tell((bad * 100 + 99, transfer, 1 << 20), counter, Some((bad.into(), b"all"))).unwrap();
        settle(&network, &mut sides);
        for block in 0..16 {
            let expected = if block == bad { Err(Cause::AccessRefused) } else { Ok(1 << 16) };
            assert_eq!(sides[0].result(bad * 100 + block), Some(expected), "{bad}: {block}");
        }
        assert_eq!(sides[0].result(bad * 100 + 99), Some(Err(Cause::AccessRefused)));
    }
    assert_eq!((sides[1].got.notes.len(), sides[1].counter(1).value()), (0, 0));
    assert_eq!((sides[1].channel.inbox.open(), sides[0].channel.ops.iter().count()), (0, 0), "nothing is left of them");
}

#[test]
fn a_batch_that_breaks_every_rail_it_is_on_is_given_up() {
    let network = ModelNetwork::by_hand();
    let mut sides = connected(&network, SHAPE);
    let (source, target) = pools(&mut sides);
    sides[0].post(WRITE, &source, &target, &[block(0)], (1, 1, 1024)).unwrap();
    for _ in 0..3 {
        sides[0].channel.flush();
        network.cut(&sides[0].adapters[0], &sides[1].adapters[0]);
        network.run();
        network.advance(400 * MS);
        sides.iter_mut().for_each(|side| side.now += 400 * MS);
        sides[0].turn();
        network.mend(&sides[0].adapters[0], &sides[1].adapters[0]);
        for _ in 0..40 {
            // Up to where it would leave again.
            (0..2).for_each(|at| {
                sides[at].turn();
                pass_asides(&mut sides, at);
            });
            if sides[0].is_up(0) && sides[0].channel.lots.is_empty() {
                break;
            }
            network.run();
        }
    }
    settle(&network, &mut sides);
    assert_eq!(sides[0].result(1), Some(Err(Cause::RailLost)));
    assert!(sides[0].is_up(0));
}

#[test]
fn while_a_rail_is_not_connected_nothing_old_lands_and_the_peer_hears_of_what_is_vouched_for() {
    let network = ModelNetwork::by_hand();
    let mut sides = connected(&network, SHAPE);
    let (_, target) = pools(&mut sides);
    sides[1].cut(0);
    for _ in 0..6 {
        sides[1].turn();
    }
    assert_eq!(*sides[1].proofs.reset.borrow(), [(0, 0)]);
    // The peer does not answer; memory is taken back meanwhile.
    sides[1].withdraw(&target, 0, 1);
    sides[1].cut(0);
    assert_eq!(*sides[1].proofs.reset.borrow(), [(0, 0), (0, 1)]);
    for _ in 0..40 {
        network.run();
        (0..2).for_each(|at| {
            sides[at].turn();
            pass_asides(&mut sides, at);
        });
    }
    assert!(!sides[0].is_up(0), "it has to know of that before it posts anything");
    pass_news(&mut sides, 1);
    pass_time(&network, &mut sides, 100 * MS);
    assert!(sides[0].is_up(0) && sides[1].is_up(0));
}

#[test]
fn memory_of_this_side_is_quiet_although_the_peer_does_not_say_what_became_of_a_rail() {
    let network = ModelNetwork::by_hand();
    let mut sides = connected(&network, SHAPE);
    let (source, target) = pools(&mut sides);
    sides[0].adapters[0].break_after(0);
    for number in 0..3 {
        sides[0].post(WRITE, &source, &target, &[block(number)], (number, number, 1024)).unwrap();
    }
    for _ in 0..6 {
        network.run();
        sides[0].turn();
    }
    assert!(matches!(sides[0].channel.rails[0].standing, Standing::Ended(_)));
    sides[0].withdraw(&source, 1024, 8);
    assert_eq!(sides[0].channel.oldest(), 0);
    sides[0].turn();
    assert_eq!(sides[0].channel.oldest(), 1, "no card has it any more");
    assert!(sides[0].got.completed.is_empty(), "at the peer it may still land");
    // The peer answers, and says that there is news of which this side has not heard.
    sides[1].withdraw(&target, 60_000, 1);
    for _ in 0..20 {
        network.run();
        (0..2).for_each(|at| {
            sides[at].turn();
            pass_asides(&mut sides, at);
        });
    }
    assert!(!sides[0].channel.lots.is_empty());
    sides[0].withdraw(&source, 2 * 1024, 8);
    sides[0].turn();
    assert_eq!(sides[0].channel.oldest(), 2, "what waits for the peer's news is not under way either");
    pass_news(&mut sides, 1);
    settle(&network, &mut sides);
    assert_eq!(sides[0].result(0), Some(Ok(1024)));
    assert_eq!([1, 2].map(|token| sides[0].result(token)), [Some(Err(Cause::RevokedHere)); 2]);
    assert_eq!([0, 1, 2].map(|number| has_block(&source, &target, number)), [true, false, false]);
    assert_eq!(sides[0].channel.oldest(), u64::MAX);
}

#[test]
fn lives_may_be_without_end() {
    for life in [(1 << 15) - 1, (1 << 16) - 1, u32::MAX] {
        let network = ModelNetwork::by_hand();
        let mut sides = connected(&network, SHAPE);
        let (source, target) = pools(&mut sides);
        sides.iter_mut().for_each(|side| side.channel.rails[0].life = life);
        for number in 0..3 {
            sides[0].adapters[0].break_after(0);
            sides[0].post(WRITE, &source, &target, &[block(number)], (number, number, 1024)).unwrap();
            settle(&network, &mut sides);
            assert_eq!(sides[0].result(number), Some(Ok(1024)), "life {}", sides[0].channel.rails[0].life);
        }
        assert_eq!(sides[0].channel.rails[0].life, life.wrapping_add(3));
    }
}

#[test]
fn fences_survive_a_repair() {
    let network = ModelNetwork::by_hand();
    let mut sides = connected(&network, TWO);
    let (_, target) = pools(&mut sides);
    sides[1].withdraw(&target, 0, 1);
    pass_news(&mut sides, 1);
    sides[0].adapters[0].break_after(0);
    sides[0].channel.send_fence(1);
    settle(&network, &mut sides);
    let heard = sides[1].proofs.heard.borrow();
    assert!(heard.contains(&(0, 1)) && heard.contains(&(1, 1)) && heard.len() == 2, "{heard:?}");
}

#[test]
fn words_that_make_no_sense_end_the_session() {
    let network = ModelNetwork::by_hand();
    let ended = crate::ended::QueueEnded {
        rail: 0,
        life: 0,
        heard: 0,
        gone: 0,
        revision: 0,
        queue: 1,
        first_packet: 1,
        token: None,
    };
    let bad = [
        crate::ended::QueueEnded { rail: 1, ..ended },
        crate::ended::QueueEnded { life: 1, ..ended },
        // More than was ever said.
        crate::ended::QueueEnded { heard: 7, ..ended },
    ];
    for words in bad.map(|ended| ended.encode().to_vec()).into_iter().chain([vec![], vec![1; 40]]) {
        let mut sides = connected(&network, SHAPE);
        sides[0].hear(&words);
        for _ in 0..10 {
            network.run();
            sides[0].turn();
        }
        assert_eq!(sides[0].fault, Some(LaneFault(Cause::PeerCorrupt)), "{words:?}");
    }
}

/// Both sides' second rail is broken and waits to be connected, on one side, or on both.
pub(super) fn dialing(network: &ModelNetwork, who: &[usize], waits: Waits) -> [Side; 2] {
    let mut sides = connected(network, TWO);
    who.iter().for_each(|&at| sides[at].dialer.waits.set(Some(waits)));
    sides[0].cut(1);
    settle(network, &mut sides);
    for (at, side) in sides.iter().enumerate() {
        let waits = side.channel.rails[1].standing == Standing::Connecting;
        assert_eq!(waits, who.contains(&at), "side {at}");
    }
    sides
}

#[test]
fn a_rail_that_is_being_connected_holds_up_nobody_and_comes_back_whoever_is_first() {
    for who in [&[0][..], &[1], &[0, 1]] {
        let network = ModelNetwork::by_hand();
        let mut sides = dialing(&network, who, InTheNetwork);
        let (source, target) = pools(&mut sides);
        for number in 0..8 {
            sides[0].post(WRITE, &source, &target, &[block(number)], (number, number, 1024)).unwrap();
            sides[0].tell((100 + number, number, 1024), None, Some((number.into(), b""))).unwrap();
            settle(&network, &mut sides);
            assert_eq!((sides[0].result(number), sides[0].result(100 + number)), (Some(Ok(1024)), Some(Ok(1))));
        }
        for &at in who {
            let look = sides[at].channel.next_look().expect("it is looked whether it is connected");
            assert!(look <= sides[at].now + 2 * MS);
            sides[at].dialer.go_on();
            settle(&network, &mut sides);
        }
        assert!(sides.iter().all(|side| side.is_up(0) && side.is_up(1)), "{who:?}");
        assert_eq!(sides[0].channel.rails[1].life, 1, "the greeting of who was first was not lost");
    }
}

#[test]
fn while_a_rail_is_being_connected_memory_is_taken_back_and_the_peer_hears_of_it_first() {
    let network = ModelNetwork::by_hand();
    let mut sides = dialing(&network, &[1], InTheNetwork);
    let (source, target) = pools(&mut sides);
    sides[1].withdraw(&target, 0, 1);
    sides[1].cut(1);
    assert_eq!(sides[1].proofs.reset.borrow().last(), Some(&(1, 1)), "nothing old lands there before it is greeted");
    sides[1].dialer.go_on();
    for _ in 0..40 {
        network.run();
        (0..2).for_each(|at| {
            sides[at].turn();
            pass_asides(&mut sides, at);
        });
    }
    assert!(!sides[0].is_up(1), "it has to know of that before it posts anything there");
    sides[0].post(WRITE, &source, &target, &[block(1)], (1, 1, 1024)).unwrap();
    pass_news(&mut sides, 1);
    pass_time(&network, &mut sides, 100 * MS);
    assert!(sides.iter().all(|side| side.is_up(1)));
    assert_eq!(sides[0].result(1), Some(Ok(1024)));
}

#[test]
fn a_peer_that_ends_a_life_that_has_just_begun_is_followed() {
    let network = ModelNetwork::by_hand();
    let mut sides = dialing(&network, &[1], InTheNetwork);
    // It waits in vain for a greeting, for two seconds.
    pass_time(&network, &mut sides, 2100 * MS);
    assert!(!sides[0].is_up(1) && sides[1].channel.rails[1].peer_ended.is_some());
    sides[1].dialer.go_on();
    pass_time(&network, &mut sides, 100 * MS);
    assert!(sides.iter().all(|side| side.is_up(1) && side.channel.rails[1].life == 2));
}

#[test]
fn a_peer_that_ends_a_life_does_not_wait_for_a_queue_whose_turn_to_be_connected_has_not_come() {
    let network = ModelNetwork::by_hand();
    let mut sides = dialing(&network, &[1], ForItsTurn);
    // The others before it never come to their end; after two seconds the peer gives up to be greeted, and asks what became of it.
    pass_time(&network, &mut sides, 2100 * MS);
    let rail = &sides[1].channel.rails[1];
    assert!(
        rail.life > 1 && rail.peer_ended.is_none(),
        "it was called back, and the peer was told: {:?}",
        rail.standing
    );
    sides[1].dialer.go_on();
    pass_time(&network, &mut sides, 3000 * MS);
    assert!(sides.iter().all(|side| side.is_up(1)));
}

#[test]
fn a_rail_that_cannot_be_connected_is_tried_again_after_a_pause_that_begins_then() {
    let network = ModelNetwork::by_hand();
    let mut sides = dialing(&network, &[1], InTheNetwork);
    // The call has taken longer than any pause.
    pass_time(&network, &mut sides, 1500 * MS);
    sides[1].adapters[1].refuse_connects(1);
    sides[1].dialer.go_on();
    let at = sides[1].now;
    sides[1].turn();
    let Standing::Idle(again) = sides[1].channel.rails[1].standing else { panic!("it is connected") };
    assert!(again > at, "the pause is over before it has begun");
    pass_time(&network, &mut sides, 3000 * MS);
    assert!(sides.iter().all(|side| side.is_up(1)));
}

#[test]
fn a_queue_that_never_comes_back_ends_the_session() {
    let network = ModelNetwork::by_hand();
    let mut sides = dialing(&network, &[1], InTheNetwork);
    sides[1].dialer.begun.take();
    sides[1].turn();
    assert_eq!(sides[1].fault, Some(LaneFault(Cause::CardFailed)));
    assert_eq!(sides[1].adapters[1].counts().queues, 0);
}
