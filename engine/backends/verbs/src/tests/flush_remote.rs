//! What adapters have completed, and the peer's memory may not have.

use super::*;
use crate::model::{Options, Pace};

const BLOCK: u64 = 64 << 10;
const HALF: u64 = 1 << 20;
const WHOLE: u64 = 2 << 20;

fn late() -> ModelNetwork {
    ModelNetwork::new(Options { pace: Pace::ByHand, places_late: true, ..Options::default() })
}

/// Has the adapters carry what is under way, a step at a time, until this is so. Nothing is placed for want of anything else to do.
fn step_until(network: &ModelNetwork, sides: &mut [Side; 2], is_so: impl Fn(&[Side; 2]) -> bool) {
    for _ in 0..1000 {
        for side in sides.iter_mut() {
            side.turn();
        }
        if is_so(sides) {
            return;
        }
        if !network.is_idle() {
            network.step();
        }
    }
    panic!("it does not come");
}

#[test]
fn what_cards_have_completed_is_there_when_its_proof_is() {
    for rails in [1, 2] {
        let network = late();
        let mut sides = connected(&network, Shape { rails, ..SHAPE });
        let (source, target) = (sides[0].pool(pattern(2, HALF as usize)), sides[1].pool(vec![0; HALF as usize]));
        for block in 0..16 {
            let at = block * BLOCK;
            sides[0].post(WRITE, &source, &target, &[span(at, at, BLOCK)], (block, 7, WHOLE)).unwrap();
        }
        sides[0].channel.flush();
        step_until(&network, &mut sides, |sides| (0..16).all(|block| sides[0].result(block) == Some(Ok(BLOCK))));
        assert!(target.bytes() != source.bytes(), "the cards have it, and its memory has not");
        let proof = FlushRequest { transfer: 7, transfer_bytes: WHOLE, completion_id: 99 };
        assert_eq!(sides[0].channel.flush_remote(&proof), Ok(NotifyPosted::Accepted));
        assert_eq!(sides[0].result(99), None);
        step_until(&network, &mut sides, |sides| sides[0].result(99).is_some());
        assert_eq!(sides[0].result(99), Some(Ok(1)));
        assert!(target.bytes() == source.bytes(), "proven over {rails} rails before it was there");
        assert_eq!((sides[1].got.notes.len(), sides[1].channel.inbox.open()), (0, 0), "nobody is told anything");
        settle(&network, &mut sides);
        assert_eq!(sides[0].channel.ops.iter().count(), 0);
    }
}

#[test]
fn a_proof_waits_for_room_and_for_what_goes_again() {
    let network = late();
    let mut sides = connected(&network, SHAPE);
    let (source, target) = (sides[0].pool(pattern(2, HALF as usize)), sides[1].pool(vec![0; HALF as usize]));
    sides[0].post(WRITE, &source, &target, &[span(0, 0, BLOCK)], (1, 1, WHOLE)).unwrap();
    let proof = FlushRequest { transfer: 1, transfer_bytes: WHOLE, completion_id: 99 };
    let notes = (100..).take_while(|note| sides[0].tell((*note, *note, 0), None, Some((1, b""))).is_ok()).count();
    assert!(notes > 16);
    assert_eq!(sides[0].channel.flush_remote(&proof), Err(PostError::Full), "the last message is kept for answers");
    sides[0].cut(0);
    let mut is_seen = false;
    for _ in 0..100 {
        network.run();
        for at in 0..2 {
            sides[at].turn();
            pass_asides(&mut sides, at);
        }
        if !sides[0].channel.lots.is_empty() {
            is_seen = true;
            assert_eq!(
                sides[0].channel.flush_remote(&proof),
                Err(PostError::Full),
                "the batch is on no rail, and will be"
            );
        }
    }
    assert!(is_seen && sides[0].is_up(0) && sides[0].channel.rails[0].life == 1);
    assert_eq!(sides[0].result(1), Some(Ok(BLOCK)), "it went again");
    assert_eq!(sides[0].channel.flush_remote(&proof), Ok(NotifyPosted::Accepted));
    // The rail breaks before the peer has heard it: it is said again.
    sides[0].cut(0);
    assert_eq!(
        sides[0].channel.flush_remote(&FlushRequest { completion_id: 98, ..proof }),
        Err(PostError::Full),
        "the rail is out"
    );
    settle(&network, &mut sides);
    assert_eq!((sides[0].result(99), sides[0].channel.rails[0].life), (Some(Ok(1)), 2));
    assert!(target.bytes()[..BLOCK as usize] == source.bytes()[..BLOCK as usize]);
}

#[test]
fn proofs_leave_room_for_what_is_told() {
    let network = late();
    let mut sides = connected(&network, SHAPE);
    let (source, target) = (sides[0].pool(pattern(2, HALF as usize)), sides[1].pool(vec![0; HALF as usize]));
    sides[0].post(WRITE, &source, &target, &[span(0, 0, BLOCK)], (1, 1, WHOLE)).unwrap();
    let prove = |token: &u64| FlushRequest { transfer: 1, transfer_bytes: WHOLE, completion_id: *token };
    let proofs = (1000..).take_while(|token| sides[0].channel.flush_remote(&prove(token)).is_ok()).count();
    assert!(proofs > 16);
    sides[0].tell((500, 500, 0), None, Some((1, b"told"))).expect("one message more is left to it");
    assert_eq!(sides[0].channel.flush_remote(&prove(&99)), Err(PostError::Full));
    settle(&network, &mut sides);
    let all = (1000..).take(proofs).chain([500]);
    assert!(all.into_iter().all(|token| sides[0].result(token).is_some_and(|result| result.is_ok())));
    assert_eq!(sides[0].channel.flush_remote(&prove(&99)), Ok(NotifyPosted::Accepted));
}

#[test]
fn the_end_of_a_rail_proves_what_it_carried() {
    let network = late();
    let mut sides = connected(&network, SHAPE);
    let (source, target) = (sides[0].pool(pattern(2, HALF as usize)), sides[1].pool(vec![0; HALF as usize]));
    sides[0].post(WRITE, &source, &target, &[span(0, 0, BLOCK)], (1, 1, BLOCK)).unwrap();
    sides[0].channel.flush();
    step_until(&network, &mut sides, |sides| sides[0].result(1).is_some());
    sides[0].cut(0);
    settle(&network, &mut sides);
    let proof = FlushRequest { transfer: 1, transfer_bytes: BLOCK, completion_id: 99 };
    assert_eq!(sides[0].channel.flush_remote(&proof), Ok(NotifyPosted::Delivered(true)));
}

#[test]
fn a_proof_stands_although_a_batch_before_it_fails() {
    let network = late();
    let mut sides = connected(&network, SHAPE);
    let source = sides[0].pool(pattern(2, HALF as usize));
    let (target, closed) = (
        sides[1].pool(vec![0; HALF as usize]),
        sides[1].pool_with(vec![0; 4096], AccessFlags { read: true, ..AccessFlags::default() }),
    );
    sides[0].post(WRITE, &source, &target, &[span(0, 0, BLOCK)], (1, 1, WHOLE)).unwrap();
    sides[0].post(WRITE, &source, &closed, &[span(0, 0, 8)], (2, 1, WHOLE)).unwrap();
    assert_eq!(
        sides[0].channel.flush_remote(&FlushRequest { transfer: 1, transfer_bytes: WHOLE, completion_id: 99 }),
        Ok(NotifyPosted::Accepted)
    );
    settle(&network, &mut sides);
    assert_eq!((sides[0].result(1), sides[0].result(2)), (Some(Ok(BLOCK)), Some(Err(Cause::AccessRefused))));
    assert_eq!(sides[0].result(99), Some(Ok(1)));
    assert_eq!(sides[0].channel.ops.iter().count(), 0);
}
