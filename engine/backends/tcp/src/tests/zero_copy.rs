//! Payload that leaves without a copy. Here the kernel copies it in the end, but has the pages until it did.

use std::time::{Duration, Instant};

use penstock_transport::host::OwnActivity;

use super::*;
use crate::io::ALWAYS;

const BYTES: usize = 2 << 20;

/// A session whose large sends all go without a copy, and whether they do here.
fn held_session(streams: Vec<(OwnedFd, OwnedFd)>) -> Option<[Side; 2]> {
    ALWAYS.set(true);
    let sides = session(streams);
    ALWAYS.set(false);
    // Without a ring there is nothing to try.
    sides[0].path.contains("io_uring").then_some(sides)
}

/// A connection whose receiving end takes little before its owner does.
fn slow_pair() -> (OwnedFd, OwnedFd) {
    let (near, far) = tcp_pair();
    sockopt::set_socket_send_buffer_size(&near, 4 << 20).unwrap();
    sockopt::set_socket_recv_buffer_size(&far, 64 << 10).unwrap();
    (near, far)
}

/// Who might touch this side's memory at this moment.
fn busy(side: &Side) -> Vec<OwnActivity> {
    side.segments.owner_state.observe(PARTY..PARTY + 1, None, u64::MAX)
}

/// The same about what was withdrawn of one region.
fn busy_with(side: &Side, region: &Region) -> Vec<OwnActivity> {
    let state = &side.segments.owner_state;
    state.observe(PARTY..PARTY + 1, Some(region.first_key()), state.view().revision())
}

/// One side works, the other does not.
fn turn_one(side: &mut Side, times: usize) {
    for _ in 0..times {
        side.turn();
        assert_eq!(side.fault, None);
    }
}

/// A session of which the kernel has pages of this region, since the peer does not take them.
fn half_sent() -> Option<([Side; 2], Arc<Region>)> {
    let mut sides = held_session(vec![slow_pair()])?;
    let (from, to) = (sides[0].region(vec![1; BYTES], Rights::NONE), sides[1].region(vec![0; BYTES], Rights::WRITE));
    sides[0].post(WRITE, &from, key_of(&to), &[span(0, 0, 500_000)], (1, 1)).unwrap();
    turn_one(&mut sides[0], 10);
    Some((sides, from))
}

#[test]
fn both_directions_arrive_and_end_once() {
    let Some(mut sides) = held_session(vec![slow_pair(), slow_pair()]) else { return };
    let regions: Vec<_> = (0..2).map(|at| sides[at].region(pattern(at as u64, BYTES), Rights::READ_WRITE)).collect();
    let half = BYTES as u64 / 2;
    for at in 0..8 {
        let piece = [
            span(at * 131_072, half + at * 131_072, 70_000),
            span(at * 131_072 + 70_001, half + at * 131_072 + 70_001, 61_071),
        ];
        for side in 0..2 {
            sides[side].post(WRITE, &regions[side], key_of(&regions[1 - side]), &piece, (at, at)).unwrap();
        }
    }
    until(&mut sides, "all have ended", |sides| sides.iter().all(|side| side.got.completed.len() == 8));
    for at in 0..2 {
        assert!((0..8).all(|completion_id| sides[at].result(completion_id) == Some(Ok(131_071))));
        let (other, here) = (pattern(1 - at as u64, BYTES), bytes_of(&regions[at]));
        for at in 0..8 {
            let (from, to) = (at * 131_072, BYTES / 2 + at * 131_072);
            assert!(here[to..to + 70_000] == other[from..from + 70_000]);
            assert!(here[to + 70_001..to + 131_072] == other[from + 70_001..from + 131_072]);
        }
    }
    settle(&mut sides);
    assert!(sides.iter().all(|side| busy(side).is_empty()), "everything came back");
    // What is asked for goes the same way.
    sides[0].post(READ, &regions[0], key_of(&regions[1]), &[span(0, half, half / 2)], (50, 50)).unwrap();
    until(&mut sides, "it is there", |sides| sides[0].result(50).is_some());
    assert_eq!(sides[0].result(50), Some(Ok(half / 2)));
    let (here, there) = (bytes_of(&regions[0]), bytes_of(&regions[1]));
    assert!(here[..BYTES / 4] == there[BYTES / 2..BYTES / 4 * 3]);
    settle(&mut sides);
    assert!(busy(&sides[1]).is_empty());
}

#[test]
fn what_the_kernel_has_is_open_and_seen() {
    let Some(mut sides) = held_session(vec![slow_pair()]) else { return };
    let (from, to) = (sides[0].region(pattern(5, BYTES), Rights::NONE), sides[1].region(vec![0; BYTES], Rights::WRITE));
    let all = [span(0, 0, 500_000)];
    sides[0].post(WRITE, &from, key_of(&to), &all, (1, 1)).unwrap();
    assert!(busy(&sides[0]).is_empty());
    turn_one(&mut sides[0], 10);
    let seen = busy(&sides[0]);
    assert_eq!(seen.len(), 1, "whoever wants memory back sees the kernel");
    assert_eq!(sides[0].lane().cancel_op(1), CancelledOp::LocalPending);
    turn_one(&mut sides[0], 100);
    assert!(sides[0].got.completed.is_empty());
    assert!(!sides[0].segments.owner_state.has_ended(&seen[0]));
    until(&mut sides, "the peer has taken it", |sides| sides[0].result(1).is_some());
    settle(&mut sides);
    assert!(sides[0].segments.owner_state.has_ended(&seen[0]));
    assert!(busy(&sides[0]).is_empty());
    // The stream is in step.
    sides[0].post(WRITE, &from, key_of(&to), &all, (2, 2)).unwrap();
    sides[0].tell(2, 3, 1, b"there").unwrap();
    until(&mut sides, "the next has ended", |sides| sides[0].result(3).is_some());
    assert_eq!((sides[0].result(2), sides[1].got.notes.len()), (Some(Ok(500_000)), 1));
    assert!(bytes_of(&to)[..500_000] == pattern(5, BYTES)[..500_000]);
}

#[test]
fn who_waits_for_memory_does_not_wait_for_ever_while_much_is_sent() {
    let Some(mut sides) = held_session(vec![slow_pair()]) else { return };
    let (from, to) = (sides[0].region(vec![1; BYTES], Rights::NONE), sides[1].region(vec![0; BYTES], Rights::WRITE));
    let other = sides[0].region(vec![2; 4096], Rights::NONE);
    let (mut completion_id, mut seen) = (0, None);
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        // There is always more to send.
        while sides[0].post(WRITE, &from, key_of(&to), &[span(0, 0, 500_000)], (completion_id, completion_id)).is_ok() {
            completion_id += 1;
        }
        for side in &mut sides {
            side.turn();
            assert_eq!(side.fault, None);
        }
        match &seen {
            None if completion_id > 20 && !busy(&sides[0]).is_empty() => {
                let (id, generation) = (other.id().0, other.generation().0);
                sides[0].segments.owner_state.withdraw_region(id, generation);
                sides[0].expected.local = sides[0].segments.owner_state.view().revision();
                assert!(busy_with(&sides[0], &other).is_empty(), "it has another region's pages");
                seen = busy(&sides[0]).pop();
            }
            Some(seen) if sides[0].segments.owner_state.has_ended(seen) => break,
            _ => {}
        }
        assert!(Instant::now() < deadline, "the kernel never had nothing");
    }
    until(&mut sides, "all have ended", |sides| sides[0].got.completed.len() as u64 == completion_id);
}

#[test]
fn after_a_withdrawal_the_kernel_is_left_with_nothing_more() {
    let Some(mut sides) = held_session(vec![slow_pair()]) else { return };
    let (from, to) = (sides[0].region(vec![1; BYTES], Rights::NONE), sides[1].region(vec![0; BYTES], Rights::WRITE));
    let other = sides[0].region(vec![2; 4096], Rights::NONE);
    for completion_id in 0..3 {
        if completion_id == 2 {
            sides[0].segments.owner_state.withdraw_region(other.id().0, other.generation().0);
            sides[0].expected.local = sides[0].segments.owner_state.view().revision();
        }
        sides[0].post(WRITE, &from, key_of(&to), &[span(0, 0, 500_000)], (completion_id, completion_id)).unwrap();
        turn_one(&mut sides[0], 10);
    }
    let answers = [0, 1, 2].map(|completion_id| sides[0].lane().cancel_op(completion_id));
    assert_eq!(answers, [CancelledOp::LocalPending, CancelledOp::LocalPending, CancelledOp::RemotePending]);
    until(&mut sides, "all have ended", |sides| sides[0].got.completed.len() == 3);
}

#[test]
fn a_lane_that_is_dropped_takes_its_pages_back() {
    let Some((mut sides, _)) = half_sent() else { return };
    assert_eq!(busy(&sides[0]).len(), 1);
    let seen = busy(&sides[0]);
    let begun = Instant::now();
    sides[0].lane = None;
    assert!(begun.elapsed() < Duration::from_secs(2), "nobody waits for the kernel");
    assert_eq!(busy(&sides[0]).len(), 1, "it has not said its last word");
    // Who has this place next says nothing for it.
    let mut next = penstock_transport::mediated::Touch::new(sides[0].segments.owner_state.hazard(PARTY, 0));
    (0..3).for_each(|_| {
        next.enter();
        next.leave();
    });
    assert!(!sides[0].segments.owner_state.has_ended(&seen[0]));
    while !sides[0].segments.owner_state.has_ended(&seen[0]) {
        sides[0].driver.turn();
        assert!(begun.elapsed() < Duration::from_secs(10), "the kernel never says it");
    }
    assert!(busy(&sides[0]).is_empty());
}

#[test]
fn a_lane_of_a_session_that_is_over_is_quiet_when_the_kernel_has_let_go() {
    let Some((mut sides, _)) = half_sent() else { return };
    let side = &mut sides[0];
    let (lane, begun) = (side.lane.as_mut().unwrap(), Instant::now());
    assert!(!lane.drain(&mut side.got), "it has not said its last word");
    while !lane.drain(&mut side.got) {
        side.driver.turn();
        assert!(begun.elapsed() < Duration::from_secs(10), "the kernel never says it");
    }
    assert!(busy(side).is_empty());
}

#[test]
fn whoever_takes_a_region_back_waits_for_its_pages_alone() {
    let Some((mut sides, from)) = half_sent() else { return };
    let other = sides[0].region(vec![2; 4096], Rights::NONE);
    for region in [&other, &from] {
        sides[0].segments.owner_state.withdraw_region(region.id().0, region.generation().0);
    }
    assert!(busy_with(&sides[0], &other).is_empty());
    assert_eq!(busy_with(&sides[0], &from).len(), 1);
    until(&mut sides, "the peer has taken it", |sides| sides[0].result(1).is_some());
    settle(&mut sides);
    assert!(busy_with(&sides[0], &from).is_empty());
}

#[test]
fn where_the_kernel_copies_a_stream_finds_out_by_itself() {
    let mut sides = session(vec![tcp_pair()]);
    let (from, to) = (sides[0].region(pattern(2, BYTES), Rights::NONE), sides[1].region(vec![0; BYTES], Rights::WRITE));
    for completion_id in 0..8 {
        sides[0]
            .post(
                WRITE,
                &from,
                key_of(&to),
                &[span(completion_id * 200_000, completion_id * 200_000, 200_000)],
                (completion_id, 1),
            )
            .unwrap();
        until(&mut sides, "it has ended", |sides| sides[0].result(completion_id) == Some(Ok(200_000)));
    }
    settle(&mut sides);
    assert!(bytes_of(&to)[..1_600_000] == pattern(2, BYTES)[..1_600_000]);
    // From now on nothing stays with the kernel, also while the peer takes nothing.
    sides[0].post(WRITE, &from, key_of(&to), &[span(0, 0, 500_000)], (100, 2)).unwrap();
    turn_one(&mut sides[0], 10);
    assert!(busy(&sides[0]).is_empty());
}
