//! Bytes and messages over rails that are well.

use super::*;
use crate::model::Losses;

#[test]
fn neighbours_at_the_target_are_one_request() {
    let network = ModelNetwork::by_hand();
    let mut sides = connected(&network, SHAPE);
    let [near, far] = &mut sides;
    let (source, target) = (near.pool(pattern(1, 1 << 16)), far.pool(vec![0; 1 << 16]));
    let before = near.adapters[0].counts();
    // Sixteen blocks from here and there to one extent, and one that stands alone.
    let mut spans: Vec<_> = (0..16).map(|block| span((15 - block) * 1024, 4096 + block * 512, 512)).collect();
    spans.push(span(60_000, 100, 50));
    assert_eq!(near.post(WRITE, &source, &target, &spans, (1, 1, 9000)), Ok(Posted::Accepted(17)));
    assert_eq!(near.channel.oldest(), 0);
    settle(&network, &mut sides);
    let [near, far] = &mut sides;
    let after = near.adapters[0].counts();
    assert_eq!((after.lists - before.lists, after.requests - before.requests), (1, 2), "one doorbell");
    assert_eq!(near.result(1), Some(Ok(16 * 512 + 50)));
    assert_eq!(near.channel.oldest(), u64::MAX);
    let (given, got) = (source.bytes(), target.bytes());
    for span in &spans {
        let (from, to, len) = (span.local as usize, span.remote as usize, span.len as usize);
        assert_eq!(got[to..to + len], given[from..from + len]);
    }
    assert_eq!(got.iter().filter(|byte| **byte != 0).count(), {
        let moved =
            |span: &Span| given[span.local as usize..][..span.len as usize].iter().filter(|byte| **byte != 0).count();
        spans.iter().map(moved).sum::<usize>()
    });
    assert!(far.got.completed.is_empty());
}

#[test]
fn what_is_read_lands_where_it_belongs() {
    let network = ModelNetwork::by_hand();
    let mut sides = connected(&network, Shape { sges_max: 3, ..SHAPE });
    let [near, far] = &mut sides;
    let (target, source) = (near.pool(vec![0; 8192]), far.pool(pattern(2, 8192)));
    let spans: Vec<_> = (0..10).map(|block| span((9 - block) * 512, 1024 + block * 256, 256)).collect();
    assert_eq!(near.post(READ, &target, &source, &spans, (7, 1, 2560)), Ok(Posted::Accepted(10)));
    assert_eq!(near.tell((8, 1, 2560), None, Some((1, b"read"))), Err(PostError::Full), "it is not here yet");
    settle(&network, &mut sides);
    assert_eq!(sides[0].result(7), Some(Ok(2560)));
    let (given, got) = (source.bytes(), target.bytes());
    for span in &spans {
        let (to, from, len) = (span.local as usize, span.remote as usize, span.len as usize);
        assert_eq!(got[to..to + len], given[from..from + len]);
    }
    assert_eq!(sides[0].tell((8, 1, 2560), None, Some((1, b"read"))), Ok(NotifyPosted::Accepted));
    settle(&network, &mut sides);
    assert_eq!(sides[0].result(8), Some(Ok(1)));
    assert_eq!(sides[1].got.notes, [(1, b"read".to_vec())]);
}

#[test]
fn a_counter_that_was_named_once_travels_inside_the_write() {
    let network = ModelNetwork::by_hand();
    let mut sides = connected(&network, SHAPE);
    let (source, target) = (sides[0].pool(pattern(3, 4096)), sides[1].pool(vec![0; 4096]));
    sides[1].counter(9).begin_use(4);
    let counter = Some(CounterRef { index: 9, generation: 4 });
    for round in 1..=3 {
        let before = sides[0].adapters[0].counts().requests;
        let span = span(0, round * 8, 8);
        sides[0].post(WRITE, &source, &target, &[span], (round, round, 8)).unwrap();
        assert_eq!(sides[0].tell((10 + round, round, 8), counter, None), Ok(NotifyPosted::Accepted));
        settle(&network, &mut sides);
        let requests = sides[0].adapters[0].counts().requests - before;
        assert_eq!(requests, if round == 1 { 2 } else { 1 }, "round {round}");
        assert_eq!((sides[0].result(round), sides[0].result(10 + round)), (Some(Ok(8)), Some(Ok(1))));
        assert_eq!(sides[1].counter(9).value(), round);
        assert_eq!(target.bytes()[round as usize * 8..][..8], source.bytes()[..8]);
    }
    // Behind a write that has left already it needs no memory either.
    sides[0].post(WRITE, &source, &target, &[span(0, 0, 8)], (20, 20, 8)).unwrap();
    sides[0].channel.flush();
    sides[0].tell((21, 20, 8), counter, None).unwrap();
    settle(&network, &mut sides);
    assert_eq!((sides[0].result(21), sides[1].counter(9).value()), (Some(Ok(1)), 4));
    // Its place has a new use: nothing is counted, and that is told.
    sides[1].counter(9).begin_use(5);
    sides[0].tell((22, 22, 0), counter, None).unwrap();
    settle(&network, &mut sides);
    assert_eq!((sides[0].result(22), sides[1].counter(9).value()), (Some(Ok(0)), 0));
    let counter = Some(CounterRef { index: 9, generation: 5 });
    sides[0].tell((23, 23, 0), counter, Some((3, b"and a note"))).unwrap();
    settle(&network, &mut sides);
    assert_eq!((sides[0].result(23), sides[1].counter(9).value()), (Some(Ok(1)), 1));
    assert_eq!(sides[1].got.notes, [(3, b"and a note".to_vec())]);
}

#[test]
fn notes_without_room_wait_and_keep_their_order() {
    let network = ModelNetwork::by_hand();
    let mut sides = connected(&network, Shape { grants: 8, inline_max: 64, ..SHAPE });
    sides[1].got.room = 2;
    let mut told = 0;
    let payload = |id: u64| pattern(id, id as usize * 300 % 4097);
    for _ in 0..100 {
        while sides[0].tell((told, told, 0), None, Some((told.into(), &payload(told)))) != Err(PostError::Full) {
            told += 1;
        }
        settle(&network, &mut sides);
    }
    assert_eq!(told, 8 + 2, "as many as were granted wait, and two were taken");
    assert_eq!(sides[0].got.completed.len(), 10, "they are in the peer's keeping");
    // What needs no room at the peer is not held up.
    sides[1].counter(1).begin_use(1);
    sides[0].tell((99, 99, 0), Some(CounterRef { index: 1, generation: 1 }), None).unwrap();
    settle(&network, &mut sides);
    assert_eq!((sides[0].result(99), sides[1].counter(1).value()), (Some(Ok(1)), 1));
    sides[1].got.room = usize::MAX;
    while told < 50 {
        while sides[0].tell((told, told, 0), None, Some((told.into(), &payload(told)))) != Err(PostError::Full) {
            told += 1;
        }
        settle(&network, &mut sides);
    }
    let expected: Vec<_> = (0..told).map(|id| (u128::from(id), payload(id))).collect();
    assert!(sides[1].got.notes == expected, "{} of {told}", sides[1].got.notes.len());
}

#[test]
fn both_sides_full_still_move() {
    let network = ModelNetwork::by_hand();
    let mut sides = connected(&network, Shape { grants: 8, ..SHAPE });
    let mut told = [0u64; 2];
    for round in 0..200 {
        for (side, told) in sides.iter_mut().zip(&mut told) {
            while side.tell((*told, *told, 0), None, Some((u128::from(*told), b"x"))) != Err(PostError::Full) {
                *told += 1;
            }
        }
        // Sometimes only one of them has a turn.
        network.run();
        sides[round % 2].turn();
        if round % 3 == 0 {
            settle(&network, &mut sides);
        }
    }
    settle(&network, &mut sides);
    for (at, side) in sides.iter().enumerate() {
        let ids: Vec<_> = side.got.notes.iter().map(|(id, _)| *id as u64).collect();
        assert_eq!(ids, (0..told[1 - at]).collect::<Vec<_>>());
        assert_eq!(side.got.completed.len() as u64, told[at]);
        assert!(told[at] > 200, "{told:?}");
    }
}

#[test]
fn there_is_no_more_under_way_than_fits() {
    let network = ModelNetwork::by_hand();
    let mut sides = connected(&network, Shape { requests: 16, ..SHAPE });
    let (source, target) = (sides[0].pool(pattern(4, 1 << 20)), sides[1].pool(vec![0; 1 << 20]));
    let scattered: Vec<_> = (0..64).map(|block| span(block * 100, block * 200, 100)).collect();
    let Ok(Posted::Accepted(first)) = sides[0].post(WRITE, &source, &target, &scattered, (1, 1, 6400)) else {
        panic!()
    };
    assert_eq!(first, 12, "four requests are kept for messages");
    assert_eq!(sides[0].post(WRITE, &source, &target, &scattered[first..], (2, 1, 6400)), Err(PostError::Full));
    let (mut at, mut token) = (first, 2);
    while at < 64 {
        settle(&network, &mut sides);
        let posted = sides[0].post(WRITE, &source, &target, &scattered[at..], (token, 1, 6400)).unwrap();
        let Posted::Accepted(count) = posted else { panic!() };
        (at, token) = (at + count, token + 1);
    }
    settle(&network, &mut sides);
    assert!((0..64).all(|block| target.bytes()[block * 200..][..100] == source.bytes()[block * 100..][..100]));
    // Neither in bytes.
    let large = |at: u64| span(0, at * (64 << 10), 64 << 10);
    let mut posted = 0;
    let requests = Shape { requests: 1024, ..SHAPE };
    let mut sides = connected(&network, requests);
    let (source, target) = (sides[0].pool(pattern(4, 64 << 10)), sides[1].pool(vec![0; 8 << 20]));
    while sides[0].post(WRITE, &source, &target, &[large(posted)], (posted, 1, 0)) == Ok(Posted::Accepted(1)) {
        posted += 1;
    }
    assert_eq!(posted, 64, "four megabytes");
    let outside = span(0, 8 << 20, 1);
    settle(&network, &mut sides);
    assert_eq!(sides[0].post(WRITE, &source, &target, &[outside], (99, 1, 0)), Err(PostError::OutOfBounds));
}

#[test]
fn nothing_is_taken_before_the_peer_was_heard() {
    let network = ModelNetwork::by_hand();
    let mut sides = unconnected(&network, SHAPE);
    let (source, target) = (sides[0].pool(vec![1; 64]), sides[1].pool(vec![0; 64]));
    sides[0].connect();
    settle(&network, &mut sides);
    assert_eq!(sides[0].post(WRITE, &source, &target, &[span(0, 0, 8)], (1, 1, 8)), Err(PostError::Full));
    assert_eq!(sides[0].tell((2, 2, 0), None, Some((1, b""))), Err(PostError::Full));
    sides[1].connect();
    settle(&network, &mut sides);
    assert_eq!(sides[0].post(WRITE, &source, &target, &[span(0, 0, 8)], (1, 1, 8)), Ok(Posted::Accepted(1)));
    settle(&network, &mut sides);
    assert_eq!(sides[0].result(1), Some(Ok(8)));
}

#[test]
fn two_sides_that_count_each_other_up_say_nothing_else() {
    const ROUNDS: u64 = 200;
    let network = ModelNetwork::by_hand();
    let mut sides = connected(&network, SHAPE);
    let counter = Some(CounterRef { index: 1, generation: 2 });
    for side in 0..2 {
        sides[1 - side].counter(1).begin_use(2);
        sides[side].tell((1, 1, 0), counter, None).unwrap();
        settle(&network, &mut sides);
    }
    let said = |sides: &[Side; 2]| [0, 1].map(|side: usize| sides[side].channel.rails[0].numbers().1);
    let before = said(&sides);
    for round in 0..ROUNDS {
        let (here, there) = ((round % 2) as usize, 1 - (round % 2) as usize);
        sides[here].tell((2 + round, 2 + round, 0), counter, None).unwrap();
        sides[here].channel.flush();
        let counted = sides[there].counter(1).value() + 1;
        for _ in 0..2 {
            network.run();
            sides[there].turn();
        }
        assert_eq!(sides[there].counter(1).value(), counted, "round {round}");
    }
    settle(&network, &mut sides);
    let each = (ROUNDS / 2) as u32;
    // Only the last one of all is not counted in return.
    assert_eq!(said(&sides), [before[0] + each + 1, before[1] + each]);
    for round in 0..ROUNDS {
        assert_eq!(sides[(round % 2) as usize].result(2 + round), Some(Ok(1)), "round {round}");
    }
}

#[test]
fn what_was_not_counted_is_told_by_an_answer_of_its_own() {
    let network = ModelNetwork::by_hand();
    let mut sides = connected(&network, SHAPE);
    let counter = Some(CounterRef { index: 1, generation: 2 });
    for side in 0..2 {
        sides[1 - side].counter(1).begin_use(2);
        sides[side].tell((1, 1, 0), counter, None).unwrap();
        settle(&network, &mut sides);
    }
    // Its place has a new use on one side, which counts the other side up before it has answered.
    sides[1].counter(1).begin_use(3);
    sides[0].tell((2, 2, 0), counter, None).unwrap();
    sides[0].channel.flush();
    network.run();
    sides[1].turn();
    sides[1].tell((2, 2, 0), counter, None).unwrap();
    settle(&network, &mut sides);
    assert_eq!((sides[0].result(2), sides[1].counter(1).value()), (Some(Ok(0)), 0));
    assert_eq!((sides[1].result(2), sides[0].counter(1).value()), (Some(Ok(1)), 2));
}

#[test]
fn a_fence_follows_all_that_was_posted_and_what_was_read() {
    let network = ModelNetwork::by_hand();
    let mut sides = connected(&network, SHAPE);
    let (mine, theirs) = (sides[0].pool(pattern(5, 4096)), sides[1].pool(vec![0; 4096]));
    sides[1].withdraw(&theirs, 4000, 1);
    let revision = 1;
    sides[0].adapters[0].slow_reads(Duration::from_millis(5));
    sides[0].post(READ, &mine, &theirs, &[span(0, 0, 512)], (1, 1, 512)).unwrap();
    sides[0].post(WRITE, &mine, &theirs, &[span(1024, 1024, 512)], (2, 2, 512)).unwrap();
    sides[0].channel.send_fence(revision);
    settle(&network, &mut sides);
    assert_eq!(sides[0].result(1), None, "the read takes longer");
    assert!(sides[1].proofs.heard.borrow().is_empty());
    network.advance(Duration::from_millis(5));
    settle(&network, &mut sides);
    assert_eq!(sides[0].result(1), Some(Ok(512)));
    assert_eq!(*sides[1].proofs.heard.borrow(), [(0, revision)]);
    // One that nobody can have told.
    sides[0].channel.send_fence(revision + 1);
    network.run();
    for _ in 0..4 {
        network.run();
        sides[0].turn();
        sides[1].turn();
    }
    assert_eq!(sides[1].fault, Some(LaneFault(Cause::PeerCorrupt)));
}

#[test]
fn a_read_whose_answer_was_lost_is_over_before_the_fence_is_heard() {
    for is_repaired in [false, true] {
        let network = ModelNetwork::by_hand();
        let mut sides = connected(&network, SHAPE);
        let old = pattern(7, 4096);
        let (mine, theirs) = (sides[0].pool(vec![0; 4096]), sides[1].pool(old.clone()));
        let losses = Losses { answers: true, ..Losses::default() };
        network.lose(&sides[1].adapters[0], &sides[0].adapters[0], losses);
        sides[0].post(READ, &mine, &theirs, &[span(0, 0, 512)], (1, 1, 512)).unwrap();
        sides[0].channel.flush();
        network.run();
        // Something else is taken back; the read may go on, and its bytes are fetched once more.
        sides[1].withdraw(&theirs, 4000, 1);
        pass_news(&mut sides, 1);
        sides[0].channel.send_fence(1);
        settle(&network, &mut sides);
        assert!(sides[1].proofs.heard.borrow().is_empty(), "the read may still be done again");
        network.mend(&sides[1].adapters[0], &sides[0].adapters[0]);
        if is_repaired {
            sides[0].cut(0);
        }
        for turn in 0.. {
            assert!(turn < 1000, "the fence is not heard");
            if !sides[1].proofs.heard.borrow().is_empty() {
                break;
            }
            network.step();
            (0..2).for_each(|at| {
                sides[at].turn();
                pass_asides(&mut sides, at);
            });
        }
        // From here on the owner may use the memory for something else.
        theirs.window.fill(0, 512, 0x77).unwrap();
        settle(&network, &mut sides);
        assert_eq!(sides[0].result(1), Some(Ok(512)));
        assert!(mine.bytes()[..512] == old[..512], "it has read what came later");
    }
}
