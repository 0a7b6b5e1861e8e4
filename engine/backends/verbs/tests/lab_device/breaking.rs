//! Queues break, are made new, and work again.

use std::time::{Duration, Instant};

use penstock_verbs::adapter::{Adapter, AsyncEvent, Opcode, Wc, WcStatus, WorkCompletion};

use crate::ends::{End, LIMIT, POSTINGS, Pair, RECEIVE_BYTES, near_device, request, run, soft_wire, wire};

/// Waits for an event of an adapter, on its descriptor.
fn next_event(end: &End, wanted: AsyncEvent) {
    let began = Instant::now();
    while began.elapsed() < LIMIT {
        match end.adapter.next_event() {
            Some(event) if event == wanted => return,
            Some(event) => println!("{}: {event:?} before {wanted:?}", end.attr().name),
            None => {
                End::is_woken(&end.adapter.events(), Duration::from_millis(100));
            }
        }
    }
    panic!("{wanted:?} within {LIMIT:?} on {}", end.attr().name)
}

fn failed(status: WcStatus) -> Wc {
    Wc::Failed(status)
}

#[test]
fn a_refused_key_breaks_the_queue_and_a_reset_mends_it() {
    let Some(_wire) = wire("a_refused_key_breaks_the_queue_and_a_reset_mends_it") else { return };
    for posting in POSTINGS {
        let mut pair = Pair::connected(posting);
        let sge = pair.a.sge(0, 64);
        let good = Opcode::Write { address: pair.b.address(0), key: pair.b.key() };
        let bad = Opcode::Write { address: pair.b.address(0), key: pair.b.key() ^ 0x00ff_ff00 };
        pair.a.post(&[request(1, good, 1), request(2, bad, 1), request(3, good, 1)], &[sge, sge, sge]);
        let outcomes: Vec<(u64, Wc)> = pair.a.take(3).iter().map(|done| (done.id, done.result)).collect();
        assert_eq!(outcomes, [(1, Wc::Send), (2, failed(WcStatus::Refused)), (3, failed(WcStatus::Flushed))]);
        // What is posted on a broken queue is given back.
        pair.a.post(&[request(4, good, 1)], &[sge]);
        pair.a.expect(4, failed(WcStatus::Flushed));
        std::thread::sleep(Duration::from_millis(200));
        while let Some(event) = pair.b.adapter.next_event() {
            println!("the refusing side says {event:?}");
        }
        pair.repair();
        pair.works();
        // Beyond its end, and without the right.
        let beyond = Opcode::Write { address: pair.b.address(crate::ends::BYTES as u64 - 32), key: pair.b.key() };
        pair.a.post(&[request(5, beyond, 1)], &[sge]);
        pair.a.expect(5, failed(WcStatus::Refused));
        pair.repair();
        pair.works();
    }
}

/// How a wire is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum How {
    /// The far end is switched off: both ports see that the wire carries nothing.
    FarEnd,
    /// The near end is.
    NearEnd,
    /// Every frame is lost on its way, and nobody sees anything.
    Loss,
}

/// A wire that is cut until this is dropped.
struct Cut {
    how: How,
    routes: String,
}

impl Cut {
    fn make(how: How) -> Self {
        let routes = run("ip", &["route", "show", "table", "all"]);
        match how {
            How::FarEnd => run("ip", &["link", "set", "b0", "down"]),
            How::NearEnd => run("ip", &["link", "set", "a0", "down"]),
            How::Loss => run("tc", &["qdisc", "add", "dev", "a0", "root", "netem", "loss", "100%"]),
        };
        Self { how, routes }
    }
}

impl Drop for Cut {
    fn drop(&mut self) {
        let end = match self.how {
            How::FarEnd => "b0",
            How::NearEnd => "a0",
            How::Loss => {
                run("tc", &["qdisc", "del", "dev", "a0", "root"]);
                return;
            }
        };
        run("ip", &["link", "set", end, "up"]);
        // Routes are forgotten with their link.
        let gone = format!("dev {end} ");
        for route in self.routes.lines().filter(|route| route.contains(&gone) && route.contains("table 2")) {
            let words: Vec<&str> = ["route", "replace"].into_iter().chain(route.split_whitespace()).collect();
            run("ip", &words);
        }
    }
}

#[test]
fn a_wire_that_is_cut_is_told_as_silence_and_can_be_mended() {
    let Some(_wire) = soft_wire("a_wire_that_is_cut_is_told_as_silence_and_can_be_mended") else { return };
    for how in [How::Loss, How::FarEnd, How::NearEnd] {
        let mut pair = Pair::connected(POSTINGS[0]);
        pair.works();
        while pair.a.adapter.next_event().is_some() || pair.b.adapter.next_event().is_some() {}
        let cut = Cut::make(how);
        let sge = pair.a.sge(0, 64);
        let write = Opcode::Write { address: pair.b.address(0), key: pair.b.key() };
        let began = Instant::now();
        pair.a.post(&[request(1, write, 1), request(2, write, 1)], &[sge, sge]);
        let taken = pair.a.take(2);
        println!("{how:?}: told after {:?}: {taken:?}", began.elapsed());
        assert!(began.elapsed() < Duration::from_secs(8), "a card's own patience is short");
        assert_eq!((taken[0].id, taken[1].id), (1, 2));
        assert_eq!(taken[1].result, failed(WcStatus::Flushed));
        if how == How::NearEnd {
            // Soft devices say of what they cannot send at all that it was flushed.
            let said = [WcStatus::Silence, WcStatus::Flushed, WcStatus::Card].map(failed);
            assert!(said.contains(&taken[0].result), "{taken:?}");
        } else {
            assert_eq!(taken[0].result, failed(WcStatus::Silence));
        }
        if how != How::Loss {
            next_event(&pair.a, AsyncEvent::PortDown);
            next_event(&pair.b, AsyncEvent::PortDown);
        }
        drop(cut);
        if how != How::Loss {
            next_event(&pair.a, AsyncEvent::PortUp);
            next_event(&pair.b, AsyncEvent::PortUp);
        }
        pair.repair();
        pair.works();
    }
}

#[test]
fn a_peer_without_a_receive_is_told_within_a_moment() {
    let Some(_wire) = wire("a_peer_without_a_receive_is_told_within_a_moment") else { return };
    let mut pair = Pair::connected(POSTINGS[0]);
    let sge = pair.a.sge(0, 64);
    let began = Instant::now();
    pair.a.post(&[request(1, Opcode::Send, 1)], &[sge]);
    pair.a.expect(1, failed(WcStatus::NoReceive));
    println!("a peer without a receive was told after {:?}", began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(5));
    pair.b.supply(1);
    pair.repair();
    pair.a.post(&[request(2, Opcode::Send, 1)], &[sge]);
    pair.a.expect(2, Wc::Send);
    pair.b.expect(0, Wc::Recv { bytes: 64, immediate: None });
}

#[test]
fn a_receive_that_comes_in_time_is_waited_for() {
    let Some(_wire) = wire("a_receive_that_comes_in_time_is_waited_for") else { return };
    let mut pair = Pair::connected(POSTINGS[0]);
    let sge = pair.a.sge(0, 64);
    pair.a.post(&[request(1, Opcode::Send, 1)], &[sge]);
    std::thread::sleep(Duration::from_millis(5));
    pair.b.supply(1);
    pair.a.expect(1, Wc::Send);
    pair.b.expect(0, Wc::Recv { bytes: 64, immediate: None });
}

#[test]
fn breaking_off_gives_everything_back_and_a_reset_leaves_no_completion_of_requests() {
    let Some(_wire) = wire("breaking_off_gives_everything_back_and_a_reset_leaves_no_completion_of_requests") else {
        return;
    };
    for posting in POSTINGS {
        let mut pair = Pair::connected(posting);
        let sge = pair.a.sge(0, 512 << 10);
        let write = Opcode::Write { address: pair.b.address(0), key: pair.b.key() };
        let requests: Vec<_> = (0..20).map(|id| request(id, write, 1)).collect();
        let sges = vec![sge; 20];
        pair.a.post(&requests, &sges);
        pair.a.queue.set_error().expect("it breaks");
        pair.a.queue.set_error().expect("once more changes nothing");
        let done = pair.a.take(20);
        assert!(done.iter().enumerate().all(|(place, done)| done.id == place as u64), "in order: {done:?}");
        assert!(done.iter().all(|done| matches!(done.result, Wc::Send | Wc::Failed(WcStatus::Flushed))), "{done:?}");
        assert_eq!(done[19].result, failed(WcStatus::Flushed), "it was broken off before it had ended");
        pair.repair();
        pair.works();

        // Nothing of requests is told after a reset, though nobody has polled before.
        pair.a.post(&requests, &sges);
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
    let write = Opcode::Write { address: pair.b.address(0), key: pair.b.key() };
    let sge = pair.a.sge(0, 64 << 10);
    let requests: Vec<_> = (0..60).map(|id| request(id, write, 1)).collect();
    for round in 0..5 {
        pair.a.post(&requests, &vec![sge; 60]);
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
    let sge = pair.a.sge(0, 64);
    pair.a.post(&[request(1, Opcode::Send, 1), request(2, Opcode::Send, 1)], &[sge, sge]);
    pair.a.take(2);
    let number = pair.b.queue.number();
    pair.repair();
    let mut unused = pair.b.take(2);
    unused.sort_by_key(|done| done.id);
    let expected = |id| WorkCompletion { queue: number, id, result: Wc::Unused };
    assert_eq!(unused, [expected(0), expected(1)]);
    // The other two are still there for whoever comes next.
    pair.a.post(&[request(3, Opcode::Send, 1)], &[sge]);
    pair.a.expect(3, Wc::Send);
    pair.b.expect(2, Wc::Recv { bytes: 64, immediate: None });
}

#[test]
fn a_reset_loses_no_more_than_the_receive_of_the_message_that_was_coming() {
    let Some(_wire) = wire("a_reset_loses_no_more_than_the_receive_of_the_message_that_was_coming") else { return };
    let mut pair = Pair::connected(POSTINGS[0]);
    // Messages of many packets: most resets hit one on its way.
    pair.mtu = Some(256);
    pair.repair();
    let (long, short) = (pair.a.sge(0, RECEIVE_BYTES), pair.a.sge(0, 8));
    let mut lost = 0;
    for round in 0..20 {
        pair.b.supply(8);
        pair.a.post(&(0..6).map(|id| request(id, Opcode::Send, 1)).collect::<Vec<_>>(), &[long; 6]);
        std::thread::sleep(Duration::from_micros(400 * round));
        pair.b.queue.reset().expect("b is reset");
        pair.a.queue.reset().expect("a is reset");
        let told = pair.b.poll();
        let mut names: Vec<u64> = told.iter().map(|done| done.id).collect();
        names.sort_unstable();
        names.dedup();
        assert!(names.len() == told.len() && told.iter().all(|done| done.result == Wc::Unused), "{told:?}");
        pair.connect();
        let still_there = 8 - told.len();
        for id in 0..still_there as u64 {
            pair.a.post(&[request(id, Opcode::Send, 1)], &[short]);
            match pair.a.next().result {
                Wc::Send => assert!(matches!(pair.b.next().result, Wc::Recv { bytes: 8, .. })),
                what => {
                    assert_eq!(what, failed(WcStatus::NoReceive));
                    assert_eq!(id as usize + 1, still_there, "at most one is missing");
                    lost += 1;
                    pair.repair();
                }
            }
        }
    }
    println!("{lost} receives were lost in 20 resets while long messages came");
}

#[test]
fn a_queue_is_connected_once_in_each_life() {
    let Some(_wire) = wire("a_queue_is_connected_once_in_each_life") else { return };
    let mut pair = Pair::connected(POSTINGS[0]);
    let there = pair.b.endpoint(1);
    let connecting = penstock_verbs::adapter::ConnectParams {
        there,
        first_packet: 1,
        mtu: 1024,
        reads_there: 1,
        reads_here: 1,
        cm: None,
    };
    pair.a.queue.connect(&connecting).expect_err("it is connected");
    // An attempt that fails can be made again: no adapter takes packets of a byte.
    pair.a.queue.reset().expect("it is reset");
    let tiny = penstock_verbs::adapter::ConnectParams { mtu: 1, ..connecting };
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
        let device = near_device();
        let of_a = told.lines().find(|line| line.contains(&device)).expect("a line about it").to_owned();
        of_a.split_once(&device).expect("its name").1.to_owned()
    };
    let before = counted();
    let mut making = Duration::ZERO;
    for round in 0..20 {
        let mut pair = Pair::connected(POSTINGS[round % 2]);
        pair.b.supply(4);
        let sge = pair.a.sge(0, 64);
        pair.a.post(&[request(1, Opcode::Send, 1)], &[sge]);
        if round % 3 == 0 {
            pair.a.expect(1, Wc::Send);
        }
        // Another queue of the same CQ goes with things under way, and the CQ goes on.
        let began = Instant::now();
        let mut other = pair.a.cq.queue(128).expect("another queue");
        making += began.elapsed();
        other.reset().expect("a queue that was never connected is reset");
        drop(other);
    }
    assert_eq!(counted(), before);
    println!("a queue of 128 requests was made in {:.1?}", making / 20);
}
