use penstock_memory::Deregistered;
use penstock_ring::Withdrawal;

use super::*;

fn withdraw(side: &Side, region: &Region, offset: u64, len: u64) -> u64 {
    let (id, generation) = (region.id().0, region.generation().0);
    side.segments.owner_state.withdraw(&[Withdrawal { region: id, generation, offset, len }])
}

#[test]
fn the_target_refuses_what_it_does_not_allow() {
    let mut sides = session(vec![tcp_pair()]);
    let from = sides[0].region(vec![1; 4096], Rights::NONE);
    let readable = sides[1].region(vec![2; 4096], Rights::READ);
    let writable = sides[1].region(vec![3; 4096], Rights::WRITE);
    let gone = sides[1].region(vec![4; 4096], Rights::READ_WRITE);
    assert!(matches!(sides[1].registry.deregister(gone.id(), gone.generation()), Ok(Deregistered::Last(_))));
    let here = [span(0, 0, 4096)];
    let beyond = [span(0, 1, 4096)];
    let wants: [(Direction, &Region, &[Span], Cause); 5] = [
        (WRITE, &readable, &here, Cause::OutOfBounds),
        (READ, &writable, &here, Cause::OutOfBounds),
        (WRITE, &writable, &beyond, Cause::OutOfBounds),
        (READ, &readable, &beyond, Cause::OutOfBounds),
        (WRITE, &gone, &here, Cause::RevokedByPeer),
    ];
    for (completion_id, (direction, region, spans, _)) in wants.iter().enumerate() {
        let posted =
            sides[0].post(*direction, &from, key_of(region), spans, (completion_id as u64, completion_id as u64));
        assert_eq!(posted, Ok(Posted::Accepted(1)));
        let told = sides[0].tell(completion_id as u64, 100 + completion_id as u64, 1, b"never told");
        let expected = if *direction == WRITE { Ok(NotifyPosted::Accepted) } else { Err(PostError::Full) };
        assert_eq!(told, expected, "a read is notified once it has landed");
    }
    until(&mut sides, "all have ended", |sides| sides[0].got.completed.len() == 8);
    for (completion_id, (direction, .., cause)) in wants.iter().enumerate() {
        assert_eq!(sides[0].result(completion_id as u64), Some(Err(*cause)), "operation {completion_id}");
        if *direction == WRITE {
            assert_eq!(sides[0].result(100 + completion_id as u64), Some(Err(*cause)), "its notification");
        }
    }
    assert_eq!(bytes_of(&from), [1; 4096]);
    assert_eq!(bytes_of(&readable), [2; 4096]);
    assert_eq!(bytes_of(&writable), [3; 4096]);
    assert_eq!(bytes_of(&gone), [4; 4096]);
    assert!(sides[1].got.notes.is_empty());
}

#[test]
fn what_was_revoked_since_the_plan_is_refused_and_told() {
    let mut sides = session(vec![tcp_pair()]);
    let (from, to) = (sides[0].region(vec![1; 4096], Rights::NONE), sides[1].region(vec![0; 4096], Rights::WRITE));
    let revision = withdraw(&sides[1], &to, 1024, 1024);
    let post = |sides: &mut [Side; 2], at, completion_id| {
        sides[0].post(WRITE, &from, key_of(&to), &[span(0, at, 512)], (completion_id, completion_id)).unwrap();
        until(sides, "it has ended", |sides| sides[0].result(completion_id).is_some());
        sides[0].result(completion_id).unwrap()
    };
    assert_eq!(post(&mut sides, 1000, 1), Err(Cause::RevokedByPeer));
    assert_eq!(told(&sides[0]), revision);
    assert_eq!(post(&mut sides, 2048, 2), Ok(512), "the rest of it is as it was");
    sides[0].expected.remote = revision;
    assert_eq!(post(&mut sides, 1024, 3), Ok(512), "a plan that was made after it");
    assert_eq!(bytes_of(&to).iter().filter(|&&byte| byte == 1).count(), 1024);
    sides[0].expected.remote = revision + 1;
    sides[0].post(WRITE, &from, key_of(&to), &[span(0, 0, 1)], (4, 4)).unwrap();
    let fault = (0..1000).find_map(|_| {
        for side in &mut sides {
            side.turn();
        }
        sides[1].fault
    });
    assert_eq!(fault, Some(LaneFault(Cause::PeerCorrupt)), "nobody can have told it");
}

#[test]
fn what_was_revoked_since_the_plan_is_not_read_and_told() {
    let mut sides = session(vec![tcp_pair()]);
    let (to, from) = (sides[0].region(vec![0; 4096], Rights::NONE), sides[1].region(vec![1; 4096], Rights::READ));
    let revision = withdraw(&sides[1], &from, 1024, 1024);
    let read = |sides: &mut [Side; 2], completion_id| {
        sides[0].post(READ, &to, key_of(&from), &[span(0, 1000, 512)], (completion_id, completion_id)).unwrap();
        until(sides, "it has ended", |sides| sides[0].result(completion_id).is_some());
        sides[0].result(completion_id).unwrap()
    };
    assert_eq!(read(&mut sides, 1), Err(Cause::RevokedByPeer));
    assert_eq!(told(&sides[0]), revision, "a plan that is built now is refused once more");
    sides[0].expected.remote = revision;
    assert_eq!(read(&mut sides, 2), Ok(512));
}

#[test]
fn a_revocation_in_the_middle_of_a_write_stops_it_at_either_end() {
    for end in 0..2 {
        let (near, far) = narrow_pair();
        let mut sides = session(vec![(near, far)]);
        const BYTES: usize = 512 * 1024;
        let regions = [sides[0].region(vec![1; BYTES], Rights::NONE), sides[1].region(vec![0; BYTES], Rights::WRITE)];
        let spans = [span(0, 0, BYTES as u64)];
        sides[0].post(WRITE, &regions[0], key_of(&regions[1]), &spans, (1, 1)).unwrap();
        sides[0].tell(1, 2, 1, b"never told").unwrap();
        until(&mut sides, "some of it is there", |_| bytes_of(&regions[1])[100] == 1);
        withdraw(&sides[end], &regions[end], 0, 1);
        let before = bytes_of(&regions[1]);
        assert_eq!(before[BYTES - 1], 0, "the test is too late");
        // What is the owner's again it may write: nobody takes it for the peer's bytes.
        regions[end].host().unwrap().fill(0, BYTES as u64, 9).unwrap();
        until(&mut sides, "both have ended", |sides| sides[0].got.completed.len() == 2);
        let cause = [Cause::RevokedHere, Cause::RevokedByPeer][end];
        assert_eq!(sides[0].result(1), Some(Err(cause)));
        assert!(sides[0].result(2).is_some_and(|result| result.is_err()));
        let after = bytes_of(&regions[1]);
        assert!(sides[1].got.notes.is_empty());
        match end {
            0 => assert!(!after.contains(&9), "bytes that were taken back have left"),
            _ => assert!(after.iter().all(|&byte| byte == 9), "bytes landed after they were taken back"),
        }
        // The stream is in step.
        let (from, to) = (sides[0].region(vec![5; 64], Rights::NONE), sides[1].region(vec![0; 64], Rights::WRITE));
        sides[0].expected.local = sides[0].segments.owner_state.view().revision();
        sides[0].post(WRITE, &from, key_of(&to), &[span(0, 0, 64)], (3, 3)).unwrap();
        until(&mut sides, "the next has ended", |sides| sides[0].result(3) == Some(Ok(64)));
        assert_eq!(bytes_of(&to), [5; 64]);
    }
}

#[test]
fn a_revocation_in_the_middle_of_a_read_stops_it_at_either_end() {
    for end in 0..2 {
        let (near, far) = narrow_pair();
        let mut sides = session(vec![(near, far)]);
        const BYTES: usize = 512 * 1024;
        let regions = [sides[0].region(vec![0; BYTES], Rights::NONE), sides[1].region(vec![1; BYTES], Rights::READ)];
        let spans = [span(0, 0, BYTES as u64)];
        sides[0].post(READ, &regions[0], key_of(&regions[1]), &spans, (1, 1)).unwrap();
        until(&mut sides, "some of it is there", |_| bytes_of(&regions[0])[100] == 1);
        let revision = withdraw(&sides[end], &regions[end], 0, 1);
        assert_eq!(bytes_of(&regions[0])[BYTES - 1], 0, "the test is too late");
        regions[end].host().unwrap().fill(0, BYTES as u64, 9).unwrap();
        until(&mut sides, "it has ended", |sides| sides[0].result(1).is_some());
        let cause = [Cause::RevokedHere, Cause::RevokedByPeer][end];
        assert_eq!(sides[0].result(1), Some(Err(cause)));
        let after = bytes_of(&regions[0]);
        match end {
            0 => assert!(after.iter().all(|&byte| byte == 9), "bytes landed after they were taken back"),
            _ => {
                assert!(!after.contains(&9), "bytes that were taken back have left");
                assert_eq!(told(&sides[0]), revision, "a plan that is built now is refused once more");
            }
        }
    }
}

#[test]
fn withdrawn_before_it_left_is_refused_here() {
    let mut sides = session(vec![tcp_pair()]);
    let (from, to) = (sides[0].region(vec![1; 64], Rights::NONE), sides[1].region(vec![0; 64], Rights::WRITE));
    sides[0].post(WRITE, &from, key_of(&to), &[span(0, 0, 64)], (1, 1)).unwrap();
    sides[0].tell(1, 2, 1, b"never told").unwrap();
    let local = withdraw(&sides[0], &from, 0, 64);
    assert_eq!(
        sides[0].post(WRITE, &from, key_of(&to), &[span(0, 0, 64)], (3, 3)),
        Err(PostError::StaleRevisions(Revisions { local, remote: 0 }))
    );
    until(&mut sides, "both have ended", |sides| sides[0].got.completed.len() == 2);
    assert_eq!(
        (sides[0].result(1), sides[0].result(2)),
        (Some(Err(Cause::RevokedHere)), Some(Err(Cause::RevokedHere)))
    );
    settle(&mut sides);
    assert_eq!(bytes_of(&to), [0; 64]);
    assert!(sides[1].got.notes.is_empty());
}

#[test]
fn what_has_not_left_is_taken_back_and_what_has_is_waited_for() {
    let (near, far) = narrow_pair();
    let mut sides = session(vec![(near, far)]);
    const BYTES: usize = 512 * 1024;
    let (from, to) =
        (sides[0].region(vec![1; BYTES], Rights::NONE), sides[1].region(vec![0; BYTES], Rights::READ_WRITE));
    let all = [span(0, 0, BYTES as u64)];
    sides[0].post(WRITE, &from, key_of(&to), &all, (1, 1)).unwrap();
    until(&mut sides, "some of it is there", |_| bytes_of(&to)[0] == 1);
    sides[0].post(READ, &from, key_of(&to), &all, (2, 2)).unwrap();
    sides[0].tell(3, 3, 1, b"never told").unwrap();
    assert_eq!(sides[0].lane().cancel_op(3), CancelledOp::Quiesced);
    assert_eq!(sides[0].lane().cancel_op(2), CancelledOp::Quiesced);
    assert_eq!(sides[0].lane().cancel_op(1), CancelledOp::RemotePending);
    from.host().unwrap().fill(0, BYTES as u64, 9).unwrap();
    until(&mut sides, "the peer is done with it", |sides| sides[0].result(1).is_some());
    settle(&mut sides);
    assert_eq!(sides[0].got.completed.len(), 1, "what was taken back is not reported");
    assert!(!bytes_of(&to).contains(&9), "bytes left after they were given up");
    assert!(sides[1].got.notes.is_empty());

    // A read that is given up while it comes lands no more.
    sides[0].post(READ, &from, key_of(&to), &all, (4, 4)).unwrap();
    to.host().unwrap().fill(0, BYTES as u64, 7).unwrap();
    until(&mut sides, "some of it is there", |_| bytes_of(&from)[0] == 7);
    assert_eq!(sides[0].lane().cancel_op(4), CancelledOp::RemotePending);
    from.host().unwrap().fill(0, BYTES as u64, 8).unwrap();
    until(&mut sides, "it has come", |sides| sides[0].result(4).is_some());
    assert!(bytes_of(&from).iter().all(|&byte| byte == 8));
    assert_eq!(sides[0].lane().cancel_op(4), CancelledOp::Quiesced, "it is over");
}

#[test]
fn a_lane_that_is_dropped_is_an_end_for_the_other() {
    let mut sides = session(vec![tcp_pair()]);
    let (from, to) = (sides[0].region(vec![1; 64], Rights::NONE), sides[1].region(vec![0; 64], Rights::WRITE));
    sides[0].post(WRITE, &from, key_of(&to), &[span(0, 0, 64)], (1, 1)).unwrap();
    sides[0].tell(1, 2, 1, b"last words").unwrap();
    sides[0].lane().ring_doorbell().unwrap();
    sides[0].lane = None;
    let fault = (0..1000).find_map(|_| {
        sides[1].turn();
        sides[1].fault
    });
    assert_eq!(fault, Some(LaneFault(Cause::PeerLost)));
    assert_eq!(bytes_of(&to), [1; 64], "what it said before it went is heard");
    assert_eq!(sides[1].got.notes.len(), 1);
}

/// Memory of the caller, mapped by itself so that it can go while it is registered.
struct Vanishing {
    region: Arc<Region>,
    base: *mut libc::c_void,
}

impl Vanishing {
    const BYTES: usize = 256 * 1024;
    /// What is still there: bytes that come with their control block are copied by this process, not by the kernel.
    const KEPT: usize = 64 * 1024;

    fn new(side: &Side, rights: Rights) -> Self {
        let (read_write, private) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at a place of the kernel's choice touches no other.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), Self::BYTES, read_write, private, -1, 0) };
        assert_ne!(base, libc::MAP_FAILED);
        // SAFETY: the mapping is as long as that; that it goes too early is what the tests are about, and nothing but
        // the kernel, which looks, touches it afterwards.
        let memory = unsafe { HostMemory::from_raw(base.cast(), Self::BYTES) }.unwrap();
        Self { region: side.registry.register_host(memory, "vanishing", rights).unwrap(), base }
    }

    /// What a caller does that frees its memory and says nothing. The place stays taken, so that nothing else of this
    /// process is mapped there.
    fn vanish(&self) {
        // SAFETY: the range lies within the mapping; only the kernel touches it from here on.
        let ended =
            unsafe { libc::mprotect(self.base.byte_add(Self::KEPT), Self::BYTES - Self::KEPT, libc::PROT_NONE) };
        assert_eq!(ended, 0);
    }
}

impl Drop for Vanishing {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's own, and no transfer is under way any more.
        unsafe { libc::munmap(self.base, Self::BYTES) };
    }
}

#[test]
fn memory_that_has_vanished_ends_its_own_operation_only() {
    const LEN: u64 = Vanishing::BYTES as u64;
    for direction in [WRITE, READ] {
        for is_targets in [false, true] {
            let mut sides = session(vec![tcp_pair()]);
            let gone = Vanishing::new(&sides[usize::from(is_targets)], Rights::READ_WRITE);
            let kept = sides[usize::from(!is_targets)].region(vec![1; Vanishing::BYTES], Rights::READ_WRITE);
            gone.vanish();
            let (local, remote) = if is_targets { (&kept, &gone.region) } else { (&gone.region, &kept) };
            sides[0].post(direction, local, key_of(remote), &[span(0, 0, LEN)], (1, 1)).unwrap();
            until(&mut sides, "it has ended", |sides| sides[0].result(1).is_some());
            let cause = sides[0].result(1).unwrap().expect_err("there is no memory");
            let expected = match (direction, is_targets) {
                // Whose memory it is knows what has become of it. Who reads is told only that the owner gave it up.
                (Direction::Read, true) => Cause::RevokedByPeer,
                _ => Cause::MemoryGone,
            };
            assert_eq!(cause, expected, "{direction:?}, the target's: {is_targets}");
            // The session stands, the stream is in step.
            let (from, to) = (sides[0].region(vec![5; 64], Rights::NONE), sides[1].region(vec![0; 64], Rights::WRITE));
            sides[0].post(WRITE, &from, key_of(&to), &[span(0, 0, 64)], (2, 2)).unwrap();
            until(&mut sides, "the next has ended", |sides| sides[0].result(2) == Some(Ok(64)));
            assert_eq!(bytes_of(&to), [5; 64]);
        }
    }
}
