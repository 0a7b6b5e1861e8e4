//! Queues break, are made new, and work again.

use std::time::{Duration, Instant};

use penstock_verbs::card::{Card, Done, Event, Kind, Outcome, Trouble};

use crate::ends::{End, LIMIT, POSTINGS, Pair, request, run, wire};

/// The next event of a card, other than the news that a queue is broken.
fn next_event(end: &End, wanted: Event) -> Duration {
    let began = Instant::now();
    while began.elapsed() < LIMIT {
        match end.card.next_event() {
            Some(event) if event == wanted => return began.elapsed(),
            Some(event) => println!("{}: {event:?} before {wanted:?}", end.facts().name),
            None => {
                End::is_woken(&end.card.events(), Duration::from_millis(100));
            }
        }
    }
    panic!("{wanted:?} within {LIMIT:?} on {}", end.facts().name)
}

fn failed(trouble: Trouble) -> Outcome {
    Outcome::Failed(trouble)
}

#[test]
fn a_refused_key_breaks_the_queue_and_a_reset_mends_it() {
    let Some(_wire) = wire("a_refused_key_breaks_the_queue_and_a_reset_mends_it") else { return };
    for posting in POSTINGS {
        let mut pair = Pair::connected(posting);
        let piece = pair.a.piece(0, 64);
        let good = Kind::Write { address: pair.b.address(0), key: pair.b.key() };
        let bad = Kind::Write { address: pair.b.address(0), key: pair.b.key() ^ 0x00ff_ff00 };
        pair.a.post(&[request(1, good, 1), request(2, bad, 1), request(3, good, 1)], &[piece, piece, piece]);
        let outcomes: Vec<(u64, Outcome)> = pair.a.take(3).iter().map(|done| (done.id, done.what)).collect();
        assert_eq!(outcomes, [(1, Outcome::Did), (2, failed(Trouble::Refused)), (3, failed(Trouble::Flushed))]);
        // What is posted on a broken queue is given back.
        pair.a.post(&[request(4, good, 1)], &[piece]);
        pair.a.expect(4, failed(Trouble::Flushed));
        std::thread::sleep(Duration::from_millis(200));
        while let Some(event) = pair.b.card.next_event() {
            println!("the refusing side says {event:?}");
        }
        pair.repair();
        pair.works();
        // Beyond its end, and without the right.
        let beyond = Kind::Write { address: pair.b.address(crate::ends::BYTES as u64 - 32), key: pair.b.key() };
        pair.a.post(&[request(5, beyond, 1)], &[piece]);
        pair.a.expect(5, failed(Trouble::Refused));
        pair.repair();
        pair.works();
    }
}

#[test]
fn a_wire_that_is_cut_is_told_as_silence_and_by_events_and_can_be_mended() {
    let Some(_wire) = wire("a_wire_that_is_cut_is_told_as_silence_and_by_events_and_can_be_mended") else { return };
    let mut pair = Pair::connected(POSTINGS[0]);
    assert!(pair.b.card.next_event().is_none() || pair.b.card.next_event().is_none());
    let routes = run("ip", &["route", "show", "table", "all"]);
    // The far end goes down: this end's frames go nowhere.
    run("ip", &["link", "set", "b0", "down"]);
    let piece = pair.a.piece(0, 64);
    let write = Kind::Write { address: pair.b.address(0), key: pair.b.key() };
    let began = Instant::now();
    pair.a.post(&[request(1, write, 1), request(2, write, 1)], &[piece, piece]);
    let taken: Vec<(u64, Outcome)> = pair.a.take(2).iter().map(|done| (done.id, done.what)).collect();
    println!("silence was told after {:?}", began.elapsed());
    assert_eq!(taken, [(1, failed(Trouble::Silence)), (2, failed(Trouble::Flushed))]);
    assert!(began.elapsed() < Duration::from_secs(8), "a card's own patience is short");
    println!("down was told {:?} after that", next_event(&pair.b, Event::PortDown));

    run("ip", &["link", "set", "b0", "up"]);
    next_event(&pair.b, Event::PortUp);
    for route in routes.lines().filter(|route| route.contains("dev b0") && route.contains("table 2")) {
        let words: Vec<&str> = ["route", "replace"].into_iter().chain(route.split_whitespace()).collect();
        run("ip", &words);
    }
    pair.repair();
    pair.works();
}

#[test]
fn a_peer_without_a_receive_is_told_within_a_moment() {
    let Some(_wire) = wire("a_peer_without_a_receive_is_told_within_a_moment") else { return };
    let mut pair = Pair::connected(POSTINGS[0]);
    let piece = pair.a.piece(0, 64);
    let began = Instant::now();
    pair.a.post(&[request(1, Kind::Send, 1)], &[piece]);
    pair.a.expect(1, failed(Trouble::NoReceive));
    println!("a peer without a receive was told after {:?}", began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(5));
    pair.b.supply(1);
    pair.repair();
    pair.a.post(&[request(2, Kind::Send, 1)], &[piece]);
    pair.a.expect(2, Outcome::Did);
    pair.b.expect(0, Outcome::Came { bytes: 64, immediate: None });
}

#[test]
fn a_receive_that_comes_in_time_is_waited_for() {
    let Some(_wire) = wire("a_receive_that_comes_in_time_is_waited_for") else { return };
    let mut pair = Pair::connected(POSTINGS[0]);
    let piece = pair.a.piece(0, 64);
    pair.a.post(&[request(1, Kind::Send, 1)], &[piece]);
    std::thread::sleep(Duration::from_millis(5));
    pair.b.supply(1);
    pair.a.expect(1, Outcome::Did);
    pair.b.expect(0, Outcome::Came { bytes: 64, immediate: None });
}

#[test]
fn breaking_off_gives_everything_back_and_a_reset_leaves_no_completion_of_requests() {
    let Some(_wire) = wire("breaking_off_gives_everything_back_and_a_reset_leaves_no_completion_of_requests") else {
        return;
    };
    for posting in POSTINGS {
        let mut pair = Pair::connected(posting);
        let piece = pair.a.piece(0, 64 << 10);
        let write = Kind::Write { address: pair.b.address(0), key: pair.b.key() };
        let requests: Vec<_> = (0..20).map(|id| request(id, write, 1)).collect();
        let pieces = vec![piece; 20];
        pair.a.post(&requests, &pieces);
        pair.a.queue.break_off().expect("it breaks");
        pair.a.queue.break_off().expect("once more changes nothing");
        let done = pair.a.take(20);
        assert!(done.iter().enumerate().all(|(place, done)| done.id == place as u64), "in order: {done:?}");
        assert!(done.iter().all(|done| matches!(done.what, Outcome::Did | Outcome::Failed(Trouble::Flushed))), "{done:?}");
        assert_eq!(done[19].what, failed(Trouble::Flushed), "it was broken off before it had ended");
        pair.repair();
        pair.works();

        // Nothing of requests is told after a reset, though nobody has polled before.
        pair.a.post(&requests, &pieces);
        pair.a.queue.reset().expect("it is reset");
        std::thread::sleep(Duration::from_millis(300));
        assert_eq!(pair.a.poll(), []);
        pair.b.queue.reset().expect("b too");
        pair.connect();
        pair.works();
    }
}

#[test]
fn after_a_reset_nothing_lands_any_more() {
    let Some(_wire) = wire("after_a_reset_nothing_lands_any_more") else { return };
    let mut pair = Pair::connected(POSTINGS[0]);
    pair.a.fill(0, &[0x5a; 64 << 10]);
    let write = Kind::Write { address: pair.b.address(0), key: pair.b.key() };
    let piece = pair.a.piece(0, 64 << 10);
    let requests: Vec<_> = (0..60).map(|id| request(id, write, 1)).collect();
    for round in 0..5 {
        pair.a.post(&requests, &vec![piece; 60]);
        std::thread::sleep(Duration::from_millis(3 * round));
        // The target cuts itself off while its peer goes on writing.
        pair.b.queue.reset().expect("it is reset");
        pair.b.fill(0, &[0; 64 << 10]);
        std::thread::sleep(Duration::from_millis(100));
        assert!(pair.b.bytes(0, 64 << 10).iter().all(|byte| *byte == 0), "nothing lands after the reset");
        pair.repair();
        pair.works();
    }
}

#[test]
fn messages_that_nobody_took_come_back_as_unused_receives() {
    let Some(_wire) = wire("messages_that_nobody_took_come_back_as_unused_receives") else { return };
    let mut pair = Pair::connected(POSTINGS[0]);
    pair.b.supply(4);
    let piece = pair.a.piece(0, 64);
    pair.a.post(&[request(1, Kind::Send, 1), request(2, Kind::Send, 1)], &[piece, piece]);
    pair.a.take(2);
    let number = pair.b.queue.number();
    pair.repair();
    let mut unused = pair.b.take(2);
    unused.sort_by_key(|done| done.id);
    let expected = |id| Done { queue: number, id, what: Outcome::Unused };
    assert_eq!(unused, [expected(0), expected(1)]);
    // The other two are still there for whoever comes next.
    pair.a.post(&[request(3, Kind::Send, 1)], &[piece]);
    pair.a.expect(3, Outcome::Did);
    pair.b.expect(2, Outcome::Came { bytes: 64, immediate: None });
}

#[test]
fn a_queue_is_connected_once_in_each_life() {
    let Some(_wire) = wire("a_queue_is_connected_once_in_each_life") else { return };
    let mut pair = Pair::connected(POSTINGS[0]);
    let there = pair.b.endpoint(1);
    let connecting =
        penstock_verbs::card::Connecting { there, first_packet: 1, mtu: 1024, reads_there: 1, reads_here: 1 };
    pair.a.queue.connect(&connecting).expect_err("it is connected");
    // An attempt that fails can be made again: no card takes packets of a byte.
    pair.a.queue.reset().expect("it is reset");
    let tiny = penstock_verbs::card::Connecting { mtu: 1, ..connecting };
    pair.a.queue.connect(&tiny).expect_err("no packets are so small");
    pair.b.queue.reset().expect("b too");
    pair.connect();
    pair.works();
}

#[test]
fn queues_that_come_and_go_leave_nothing_behind() {
    let Some(_wire) = wire("queues_that_come_and_go_leave_nothing_behind") else { return };
    let counted = || {
        let told = run("rdma", &["resource"]);
        let of_a = told.lines().find(|line| line.contains("rxe_a0")).expect("a line about it").to_owned();
        of_a.split_once("rxe_a0").expect("its name").1.to_owned()
    };
    let before = counted();
    for round in 0..20 {
        let mut pair = Pair::connected(POSTINGS[round % 2]);
        pair.b.supply(4);
        let piece = pair.a.piece(0, 64);
        pair.a.post(&[request(1, Kind::Send, 1)], &[piece]);
        if round % 3 == 0 {
            pair.a.expect(1, Outcome::Did);
        }
        // Another queue of the same desk goes with things under way, and the desk goes on.
        let mut other = pair.a.desk.queue(4).expect("another queue");
        other.reset().expect("a queue that was never connected is reset");
        drop(other);
    }
    assert_eq!(counted(), before);
}
