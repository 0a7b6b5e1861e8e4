//! Giving up, and memory that is taken back, at every point of a slot's way.

use penstock_core::limits::WITHDRAWALS_KEPT;
use penstock_ring::Withdrawal;
use penstock_ring::bounce::Responder;

use super::*;

const ONE: [Span; 1] = [Span { local: 0, remote: 0, len: 64 }];

/// The owner's end of a slot, to be stopped wherever the test wants.
fn answerer(two: &Two, slot: usize) -> Responder {
    Responder::mapped(&two.near.slots.segment().range(), Banks::slot_offset(0, slot), REQUEST_WORDS).unwrap()
}

fn withdraw(side: &Side, region: &Region, offset: u64, len: u64) {
    let (region, generation) = (region.id().0, region.generation().0);
    side.segments.owner_state.withdraw(&[Withdrawal { region, generation, offset, len }]);
}

#[test]
fn what_is_given_up_before_it_was_begun_never_lands_and_its_slot_is_free() {
    let mut two = Two::new();
    let near = two.near.register(vec![7; 64], "near", Rights::NONE);
    let far = two.far.register(vec![1; 64], "far", Rights::READ_WRITE);
    for completion_id in 0..40 {
        assert_eq!(two.post(completion_id, Direction::Write, &near, &far, &ONE), Ok(Posted::Accepted(1)));
        assert_eq!(two.near.lane.cancel_op(completion_id), CancelledOp::Quiesced);
        assert_eq!(two.near.lane.cancel_op(completion_id), CancelledOp::Quiesced, "what is not there is quiet");
    }
    two.serve().unwrap();
    assert_eq!(two.collect().unwrap(), []);
    assert_eq!(contents(far.host().unwrap()), vec![1; 64]);
}

#[test]
fn what_the_owner_has_begun_is_open_until_it_answers_and_a_read_of_it_never_lands() {
    let mut two = Two::new();
    let near = two.near.register(vec![7; 64], "near", Rights::NONE);
    let far = two.far.register(vec![1; 64], "far", Rights::READ_WRITE);
    for direction in [Direction::Write, Direction::Read] {
        assert_eq!(two.post(5, direction, &near, &far, &ONE), Ok(Posted::Accepted(1)));
        let owner = answerer(&two, 0);
        let taken = owner.take(&mut [0; REQUEST_WORDS]).expect("it was asked");
        assert_eq!(two.near.lane.cancel_op(5), CancelledOp::RemotePending);
        assert_eq!(two.collect().unwrap(), [], "the owner stands still in the middle");
        two.near.slots.data(0, 0).fill(0, 64, 99).unwrap();
        owner.answer(&taken, [0, 64]);
        let bytes = if direction == Direction::Write { 64 } else { 0 };
        assert_eq!(two.collect().unwrap(), [(5, Ok(bytes))], "reported once, with what was moved after all");
        assert_eq!(contents(near.host().unwrap()), vec![7; 64], "nothing of it lands here");
        assert_eq!(two.collect().unwrap(), []);
    }
}

#[test]
fn a_stopped_owner_keeps_its_own_slots_and_no_others() {
    let mut two = Two::new();
    let near = two.near.register(vec![7; 64], "near", Rights::NONE);
    let far = two.far.register(vec![1; 64], "far", Rights::READ_WRITE);
    for completion_id in 0..SLOTS as u64 {
        assert_eq!(two.post(completion_id, Direction::Write, &near, &far, &ONE), Ok(Posted::Accepted(1)));
    }
    let taken: Vec<_> = (0..3).map(|slot| answerer(&two, slot).take(&mut [0; REQUEST_WORDS]).unwrap()).collect();
    let answers: Vec<_> = (0..SLOTS as u64).map(|completion_id| two.near.lane.cancel_op(completion_id)).collect();
    assert_eq!(answers.iter().filter(|&&answer| answer == CancelledOp::RemotePending).count(), taken.len());
    for completion_id in 0..(SLOTS - taken.len()) as u64 {
        assert_eq!(two.post(100 + completion_id, Direction::Write, &near, &far, &ONE), Ok(Posted::Accepted(1)));
    }
    assert_eq!(two.post(200, Direction::Write, &near, &far, &ONE), Err(PostError::Full));
    for (slot, taken) in taken.iter().enumerate() {
        answerer(&two, slot).answer(taken, [0, 64]);
    }
    assert_eq!(two.collect().unwrap().len(), taken.len());
    assert_eq!(two.post(200, Direction::Write, &near, &far, &ONE), Ok(Posted::Accepted(1)));
}

#[test]
fn memory_taken_back_at_the_owner_after_the_post_is_not_touched() {
    let mut two = Two::new();
    let near = two.near.register(vec![7; 64], "near", Rights::NONE);
    let far = two.far.register(vec![1; 64], "far", Rights::READ_WRITE);
    let other = two.far.register(vec![2; 64], "other", Rights::READ_WRITE);
    two.post(1, Direction::Write, &near, &far, &ONE).unwrap();
    two.post(2, Direction::Read, &near, &far, &ONE).unwrap();
    two.post(3, Direction::Write, &near, &other, &ONE).unwrap();
    withdraw(&two.far, &far, 63, 1);
    two.serve().unwrap();
    let mut reports = two.collect().unwrap();
    reports.sort_by_key(|(completion_id, _)| *completion_id);
    assert_eq!(reports, [(1, Err(Cause::RevokedByPeer)), (2, Err(Cause::RevokedByPeer)), (3, Ok(64))]);
    assert_eq!((contents(far.host().unwrap()), contents(near.host().unwrap())), (vec![1; 64], vec![7; 64]));
    assert_eq!(contents(other.host().unwrap()), vec![7; 64], "what it does not concern goes on");
}

#[test]
fn a_region_deregistered_after_the_post_is_not_touched_and_not_kept() {
    let mut two = Two::new();
    let near = two.near.register(vec![7; 64], "near", Rights::NONE);
    let far = two.far.register(vec![1; 64], "far", Rights::READ_WRITE);
    two.post(1, Direction::Write, &near, &far, &ONE).unwrap();
    two.serve().unwrap();
    assert_eq!(two.collect().unwrap(), [(1, Ok(64))]);
    far.host().unwrap().fill(0, 64, 1).unwrap();
    two.post(2, Direction::Write, &near, &far, &ONE).unwrap();
    two.far.registry.deregister(far.id(), far.generation()).unwrap();
    // Even before the log says so.
    two.serve().unwrap();
    assert_eq!(two.collect().unwrap(), [(2, Err(Cause::RevokedByPeer))]);
    assert_eq!(contents(far.host().unwrap()), vec![1; 64]);
    assert_eq!(Arc::strong_count(&far), 1, "the lane that knew it does not hold it");
    let again = two.far.register(vec![3; 64], "again", Rights::READ_WRITE);
    assert_eq!(again.id(), far.id(), "the id is used again");
    two.post(3, Direction::Write, &near, &far, &ONE).unwrap();
    two.serve().unwrap();
    assert_eq!(two.collect().unwrap(), [(3, Err(Cause::RevokedByPeer))]);
    assert_eq!(contents(again.host().unwrap()), vec![3; 64], "an old name does not reach the new region");
}

#[test]
fn memory_renewed_after_the_post_is_not_touched_under_its_old_name() {
    let mut two = Two::new();
    let near = two.near.register(vec![7; 64], "near", Rights::NONE);
    let far = two.far.register(vec![1; 64], "far", Rights::READ_WRITE);
    let old = RemoteMemory::TargetMediated(TargetMediatedMemory { key: key(&far), bytes: 64 });
    two.post(1, Direction::Write, &near, &far, &ONE).unwrap();
    two.serve().unwrap();
    assert_eq!(two.collect().unwrap(), [(1, Ok(64))], "the lane knows the region now");
    far.host().unwrap().fill(0, 64, 1).unwrap();
    two.post(2, Direction::Write, &near, &far, &ONE).unwrap();
    two.far.registry.renew(far.id(), far.generation()).unwrap();
    two.serve().unwrap();
    assert_eq!(two.collect().unwrap(), [(2, Err(Cause::RevokedByPeer))], "another generation");
    // Whoever claims to have seen everything does not get by with the old name either, and a withdrawal
    // from the new generation concerns the old one.
    for withdrawn in [false, true] {
        let expected = two.revisions();
        let batch = Batch {
            direction: Direction::Write,
            local: near.memory(),
            local_region: key(&near),
            remote_region: key(&near),
            remote: &old,
            spans: &ONE,
            hint: Hint::Cached,
            checked_at: expected,
            completion_id: 3,
            transfer: 0,
            transfer_bytes: 0,
        };
        assert_eq!(two.near.lane.post(&batch), Ok(Posted::Accepted(1)));
        if withdrawn {
            withdraw(&two.far, &far, 0, 64);
        }
        two.serve().unwrap();
        assert_eq!(two.collect().unwrap(), [(3, Err(Cause::RevokedByPeer))]);
    }
    assert_eq!(contents(far.host().unwrap()), vec![1; 64]);
}

#[test]
fn a_question_older_than_the_owners_log_is_refused_if_its_region_was_touched() {
    let mut two = Two::new();
    let near = two.near.register(vec![7; 64], "near", Rights::NONE);
    let far = two.far.register(vec![1; 64], "far", Rights::READ_WRITE);
    let other = two.far.register(vec![2; 64], "other", Rights::READ_WRITE);
    two.post(1, Direction::Write, &near, &far, &ONE).unwrap();
    for _ in 0..=WITHDRAWALS_KEPT {
        withdraw(&two.far, &other, 0, 1);
    }
    two.serve().unwrap();
    assert_eq!(two.collect().unwrap(), [(1, Ok(64))]);
    assert_eq!(contents(far.host().unwrap()), vec![7; 64]);
    two.post(2, Direction::Write, &near, &far, &ONE).unwrap();
    withdraw(&two.far, &far, 0, 1);
    for _ in 0..=WITHDRAWALS_KEPT {
        withdraw(&two.far, &other, 0, 1);
    }
    two.serve().unwrap();
    assert_eq!(two.collect().unwrap(), [(2, Err(Cause::PlanTooOld))]);
}

#[test]
fn a_read_does_not_land_in_memory_that_was_taken_back_here_meanwhile() {
    let mut two = Two::new();
    let near = two.near.register(vec![7; 64], "near", Rights::NONE);
    let spared = two.near.register(vec![8; 64], "spared", Rights::NONE);
    let far = two.far.register(vec![1; 64], "far", Rights::READ_WRITE);
    two.post(1, Direction::Read, &near, &far, &ONE).unwrap();
    two.post(2, Direction::Read, &spared, &far, &ONE).unwrap();
    two.serve().unwrap();
    withdraw(&two.near, &near, 10, 1);
    let mut reports = two.collect().unwrap();
    reports.sort_by_key(|(completion_id, _)| *completion_id);
    assert_eq!(reports, [(1, Err(Cause::RevokedHere)), (2, Ok(64))]);
    assert_eq!((contents(near.host().unwrap()), contents(spared.host().unwrap())), (vec![7; 64], vec![1; 64]));
    // A post that was checked before is sent back to look again.
    let memory = RemoteMemory::TargetMediated(TargetMediatedMemory { key: key(&far), bytes: 64 });
    let now = two.revisions();
    let stale = Batch {
        direction: Direction::Read,
        local: near.memory(),
        local_region: key(&near),
        remote_region: key(&near),
        remote: &memory,
        spans: &ONE,
        hint: Hint::Cached,
        checked_at: Revisions::default(),
        completion_id: 3,
        transfer: 0,
        transfer_bytes: 0,
    };
    assert_eq!(two.near.lane.post(&stale), Err(PostError::StaleRevisions(now)));
}
