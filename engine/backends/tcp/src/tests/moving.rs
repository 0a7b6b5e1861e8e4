use penstock_core::limits::{IN_FLIGHT_PER_LANE_MAX, RING_LINES};
use penstock_transport::{AccessPath, CounterRef, Placement, Trust};

use super::*;

#[test]
fn a_write_lands_and_is_announced_behind_it() {
    let mut sides = session(vec![tcp_pair()]);
    let (from, to) = (sides[0].region(pattern(7, 4096), Rights::NONE), sides[1].region(vec![0; 4096], Rights::WRITE));
    let spans = [span(0, 64, 64), span(1000, 2000, 1), span(128, 3000, 1096)];
    assert_eq!(sides[0].post(WRITE, &from, key_of(&to), &spans, (10, 1)), Ok(Posted::Accepted(3)));
    assert_eq!(sides[0].tell(1, 11, 99, b"there"), Ok(NotifyPosted::Accepted));
    until(&mut sides, "the notification has ended", |sides| sides[0].result(11).is_some());
    assert_eq!((sides[0].result(10), sides[0].result(11)), (Some(Ok(1161)), Some(Ok(1))));
    assert_eq!(sides[1].got.notes, [(99, b"there".to_vec())]);
    let (mut expected, source) = (vec![0; 4096], pattern(7, 4096));
    for Span { local, remote, len } in spans {
        let (local, remote, len) = (local as usize, remote as usize, len as usize);
        expected[remote..remote + len].copy_from_slice(&source[local..local + len]);
    }
    assert_eq!(bytes_of(&to), expected);
}

#[test]
fn a_read_fetches() {
    let mut sides = session(vec![tcp_pair()]);
    let (to, from) =
        (sides[0].region(vec![0; 300_000], Rights::NONE), sides[1].region(pattern(9, 300_000), Rights::READ));
    let spans = [span(0, 100_000, 200_000), span(200_000, 0, 100_000)];
    assert_eq!(sides[0].post(READ, &to, key_of(&from), &spans, (1, 1)), Ok(Posted::Accepted(2)));
    until(&mut sides, "it is there", |sides| sides[0].result(1).is_some());
    assert_eq!(sides[0].result(1), Some(Ok(300_000)));
    let source = pattern(9, 300_000);
    assert!(bytes_of(&to) == [&source[100_000..], &source[..100_000]].concat());
}

#[test]
fn both_directions_at_once_get_through_the_narrowest_buffers() {
    let (near, far) = narrow_pair();
    let mut sides = session(vec![(near, far)]);
    const BYTES: usize = 2 << 20;
    let regions: Vec<_> = (0..2).map(|at| sides[at].region(pattern(at as u64, BYTES), Rights::READ_WRITE)).collect();
    let half = BYTES as u64 / 2;
    let pieces: Vec<_> = (0..half / 65536).map(|at| span(at * 65536, half + at * 65536, 65536)).collect();
    for (at, piece) in pieces.iter().enumerate() {
        for side in 0..2 {
            // One writes its first half to the other's second half, and the other the same.
            let posted = sides[side].post(WRITE, &regions[side], key_of(&regions[1 - side]), &[*piece], (at as u64, 1));
            assert_eq!(posted, Ok(Posted::Accepted(1)));
        }
    }
    for side in &mut sides {
        assert_eq!(side.tell(1, 1000, 5, b"all"), Ok(NotifyPosted::Accepted));
    }
    until(&mut sides, "both are told", |sides| sides.iter().all(|side| side.result(1000).is_some()));
    for at in 0..2 {
        assert_eq!(sides[at].got.notes, [(5, b"all".to_vec())]);
        let other = pattern(1 - at as u64, BYTES);
        assert!(bytes_of(&regions[at])[BYTES / 2..] == other[..BYTES / 2]);
    }
}

#[test]
fn a_peer_that_does_not_read_makes_a_lane_full_and_nothing_else() {
    let mut sides = session(vec![tcp_pair()]);
    let (from, to) = (sides[0].region(vec![1; 65536], Rights::NONE), sides[1].region(vec![0; 65536], Rights::WRITE));
    let mut posted = 0;
    let full = loop {
        match sides[0].post(WRITE, &from, key_of(&to), &[span(0, 0, 65536)], (posted, 1)) {
            Ok(_) => posted += 1,
            Err(error) => break error,
        }
        sides[0].turn();
        assert!(posted < 1000, "it grows without bound");
    };
    assert_eq!((full, posted), (PostError::Full, 64), "four megabytes are under way");
    assert_eq!(sides[0].tell(2, 5000, 1, b"still told"), Ok(NotifyPosted::Accepted));
    until(&mut sides, "all are there", |sides| sides[0].got.completed.len() == 65);
    let mut small = 0;
    while sides[0].post(WRITE, &from, key_of(&to), &[span(0, 0, 1)], (10_000 + small, 1)).is_ok() {
        small += 1;
    }
    assert_eq!(small, IN_FLIGHT_PER_LANE_MAX as u64);
    until(&mut sides, "these too", |sides| sides[0].got.completed.len() == 65 + small as usize);
}

#[test]
fn notes_wait_for_room_beside_the_stream() {
    let mut sides = session(vec![tcp_pair()]);
    let (from, to) = (sides[0].region(pattern(1, 100), Rights::NONE), sides[1].region(vec![0; 100], Rights::WRITE));
    sides[1].got.room = 2;
    let (mut told, mut refused) = (0u64, 0);
    while refused < 2 {
        match sides[0].tell(told, told, told.into(), &told.to_le_bytes()) {
            Ok(_) => (told, refused) = (told + 1, 0),
            Err(error) => {
                assert_eq!(error, PostError::Full);
                refused += 1;
                settle(&mut sides);
            }
        }
    }
    assert_eq!(told, RING_LINES as u64 + 2, "a ring's worth, and what was taken and said to be");
    assert_eq!(sides[1].got.notes.len(), 2);
    // Data goes past them.
    sides[0].post(WRITE, &from, key_of(&to), &[span(0, 0, 100)], (90_000, 90_000)).unwrap();
    until(&mut sides, "the bytes are there", |sides| sides[0].result(90_000).is_some());
    assert_eq!(bytes_of(&to), pattern(1, 100));
    sides[1].got.room = usize::MAX;
    sides[1].ready.mark(PARTY as usize);
    until(&mut sides, "all notes are there", |sides| sides[1].got.notes.len() as u64 == told);
    assert!(sides[1].got.notes.iter().enumerate().all(|(at, (id, _))| *id == at as u128), "in their order, once");
    settle(&mut sides);
    assert_eq!(sides[0].tell(1, 95_000, 1, &[]), Ok(NotifyPosted::Accepted));
    until(&mut sides, "there is room again", |sides| sides[0].result(95_000) == Some(Ok(1)));
}

#[test]
fn a_counter_goes_up_once_and_one_that_is_gone_is_said_to_be() {
    let mut sides = session(vec![tcp_pair()]);
    let cell = |side: &Side| side.segments.mailbox.view().counter(7).unwrap().value();
    let generation = sides[1].segments.mailbox.view().counter(7).unwrap().generation();
    for (completion_id, generation, expected) in [(1, generation, Ok(1)), (2, generation + 1, Ok(0))] {
        let counter = Some(CounterRef { index: 7, generation });
        let arrival = NotifyRequest { transfer: completion_id, transfer_bytes: 0, completion_id, counter, note: None };
        assert_eq!(sides[0].lane().notify(&arrival), Ok(NotifyPosted::Accepted));
        until(&mut sides, "it is told", |sides| sides[0].result(completion_id).is_some());
        assert_eq!(sides[0].result(completion_id), Some(expected));
    }
    assert_eq!(cell(&sides[1]), 1);
}

#[test]
fn over_several_streams_nothing_is_announced_before_it_is_there() {
    let mut sides = session((0..4).map(|_| tcp_pair()).collect());
    const BYTES: u64 = 1 << 20;
    let (from, to) = (
        sides[0].region(pattern(3, BYTES as usize), Rights::NONE),
        sides[1].region(vec![0; BYTES as usize], Rights::WRITE),
    );
    for at in 0..16 {
        let piece = span(at * 65536, at * 65536, 65536);
        sides[0].post(WRITE, &from, key_of(&to), &[piece], (at, 1)).unwrap();
    }
    assert_eq!(sides[0].tell(1, 100, 1, b""), Err(PostError::Full), "it is on four streams");
    until(&mut sides, "all have ended", |sides| sides[0].got.completed.len() == 16);
    assert_eq!(sides[0].tell(1, 100, 1, b""), Ok(NotifyPosted::Accepted));
    sides[0].post(WRITE, &from, key_of(&to), &[span(0, 0, 64)], (101, 2)).unwrap();
    assert_eq!(sides[0].tell(2, 102, 2, b""), Ok(NotifyPosted::Accepted), "small ones stay on one stream");
    until(&mut sides, "both are told", |sides| sides[1].got.notes.len() == 2);
    assert!(bytes_of(&to) == pattern(3, BYTES as usize));
}

#[test]
fn engines_with_different_numbers_of_workers_reach_each_other() {
    let (one, two) = (offer_of(1, 1, 3), offer_of(1, 3, 1));
    let (blob_one, blob_two) = (one.offering.blob.clone(), two.offering.blob.clone());
    let (near, far): (Vec<_>, Vec<_>) = (0..3).map(|_| tcp_pair()).unzip();
    let mut sides = join_all(one, &blob_two, near);
    sides.extend(join_all(two, &blob_one, far));
    let from = sides[0].region(pattern(1, 4096), Rights::READ_WRITE);
    let to = sides[1].region(vec![0; 4096], Rights::READ_WRITE);
    // Transfers of the one worker go over all three channels, and those of the three over their own.
    for transfer in 0..3 {
        let piece = [span(transfer * 64, transfer * 64, 64)];
        sides[0].post(WRITE, &from, key_of(&to), &piece, (transfer, transfer)).unwrap();
        sides[0].tell(transfer, 100 + transfer, transfer.into(), b"").unwrap();
    }
    for (worker, side) in sides.iter_mut().enumerate().skip(1) {
        let at = worker as u64 * 1024;
        side.post(READ, &to, key_of(&from), &[span(at, at, 512)], (1, 1)).unwrap();
    }
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while sides.iter().map(|side| side.got.completed.len()).sum::<usize>() < 9 {
        for side in &mut sides {
            side.turn();
            assert_eq!(side.fault, None);
        }
        assert!(std::time::Instant::now() < deadline);
    }
    assert!(sides[1..].iter().all(|side| side.got.notes.len() == 1), "each worker there has one channel");
    let (source, landed) = (pattern(1, 4096), bytes_of(&to));
    assert_eq!(landed[..192], source[..192]);
    assert!((1..4).all(|worker| landed[worker * 1024..][..512] == source[worker * 1024..][..512]));
}

#[test]
fn what_it_says_of_itself() {
    let Offered { transport, offering, .. } = offer(2);
    let caps = transport.caps();
    assert_eq!((caps.trust, caps.placement), (Trust::Checked, Placement::AtCompletion));
    assert!(caps.ordered && !caps.synchronous && !caps.hand_over && caps.remote_caller_memory);
    let link = (offering.join)(&crate::offer::blob(2, 1), Vec::new()).unwrap();
    let streams = link.streams.as_ref().unwrap();
    assert_eq!(streams.count(), 2);
    let (stream, _other) = pair();
    assert!(streams.attach(2, stream.try_clone().unwrap()).is_err());
    streams.attach(1, stream.try_clone().unwrap()).unwrap();
    assert!(streams.attach(1, stream.try_clone().unwrap()).is_err());
    drop(link.lanes);
    assert!(streams.attach(0, stream).is_err(), "the lane is gone");
    assert!(link.path.contains("2 streams"), "{}", link.path);
    let region = |path: &'static [u8]| penstock_transport::AdvertisedRegion {
        epoch: 1,
        id: penstock_core::RegionId(4),
        generation: penstock_core::Generation(5),
        base: 0,
        bytes: 77,
        rights: Rights::READ,
        access_blob: path,
    };
    assert_eq!(link.registrar.import(&region(&[1]), None).unwrap().bytes(), 77);
    assert_eq!(link.registrar.access_path(&region(&[1])).name, AccessPath::TCP);
    assert!(link.registrar.import(&region(&[0]), None).is_err());
    assert!(link.registrar.import(&region(&[]), None).is_err());
    assert_eq!(link.registrar.access_path(&region(&[0])).name, AccessPath::NONE);
}
