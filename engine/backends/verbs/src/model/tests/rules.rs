//! What always holds.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::super::{Options, Pace};
use super::*;
use crate::adapter::AdapterError;

#[test]
fn pieces_are_written_one_after_the_other_and_read_back_scattered() {
    let (network, mut one, mut other) = pair();
    one.fill(0, b"abcdef");
    one.post(1, other.write_to(10), &[one.sge(4, 2), one.sge(0, 3)]);
    one.post(2, other.read_from(9), &[one.sge(100, 2), one.sge(200, 4)]);
    assert_eq!((one.done(), other.holds(10, 5)), (vec![], vec![0; 5]), "nothing happens but by hand");
    network.run();
    assert_eq!(other.holds(9, 7), b"\0efabc\0");
    assert_eq!((one.holds(100, 3), one.holds(200, 5)), (b"\0e\0".to_vec(), b"fabc\0".to_vec()));
    assert_eq!((one.done(), other.done()), (vec![(1, DID), (2, DID)], vec![]));
}

#[test]
fn receives_are_taken_in_order_by_sends_and_immediates_of_all_queues() {
    let (network, mut one, mut other) = pair();
    let mut second = (one.cq.queue(4).unwrap(), other.cq.queue(4).unwrap());
    let numbers = (second.0.number(), second.1.number());
    let (here, there) = (one.endpoint(5), other.endpoint(6));
    second.0.connect(&connecting(QpAddress { queue: numbers.1, ..there }, 5)).unwrap();
    second.1.connect(&connecting(QpAddress { queue: numbers.0, ..here }, 6)).unwrap();
    other.supply(50, 3);
    one.fill(0, b"hello");
    one.post(1, Opcode::Send, &[one.sge(0, 5)]);
    network.run();
    let sge = one.sge(0, 2);
    second.0.post(&[request(2, other.tell_to(0, 77), 1)], &[sge]).unwrap();
    network.run();
    one.post(3, Opcode::Send, &[one.sge(1, 1)]);
    network.run();
    assert_eq!(other.done(), [(50, came(5)), (51, told(77)), (52, came(1))]);
    assert_eq!(other.holds(BYTES as u64 - 64, 6), b"hello\0");
    assert_eq!(other.holds(BYTES as u64 - 128, 64), [0; 64], "what an immediate takes is not written");
    assert_eq!((other.holds(BYTES as u64 - 192, 2), other.holds(0, 3)), (b"e\0".to_vec(), b"he\0".to_vec()));
    assert_eq!(one.done(), [(1, DID), (2, DID), (3, DID)]);
}

#[test]
fn an_immediate_needs_no_memory_and_comes_behind_its_queues_writes() {
    let (network, mut one, mut other) =
        pair_on(ModelNetwork::new(Options { pace: Pace::ByHand, places_late: true, ..Options::default() }));
    other.supply(1, 1);
    one.fill(0, &[7; 1000]);
    one.post(1, other.write_to(0), &[one.sge(0, 1000)]);
    one.post(2, Opcode::WriteWithImm { address: 0, key: 0, immediate: 9 }, &[]);
    while one.done().is_empty() {
        assert!(network.step());
    }
    assert_eq!(other.holds(0, 1000), [0; 1000], "a completion does not say that bytes are seen");
    while other.done().is_empty() {
        assert!(network.step());
    }
    assert_eq!(other.holds(0, 1000), [7; 1000]);
}

#[test]
fn what_was_placed_late_is_seen_when_the_queue_is_reset_or_the_memory_taken_back() {
    for is_reset in [true, false] {
        let (network, mut one, mut other) =
            pair_on(ModelNetwork::new(Options { pace: Pace::ByHand, places_late: true, ..Options::default() }));
        one.fill(0, &[7; 10]);
        one.post(1, other.write_to(0), &[one.sge(0, 10)]);
        while one.done().is_empty() {
            assert!(network.step());
        }
        assert_eq!(other.holds(0, 10), [0; 10]);
        if is_reset {
            other.queue.reset().unwrap();
        } else {
            other.memory = other.adapter.register(&window(1), ALL).unwrap();
        }
        assert_eq!(other.holds(0, 10), [7; 10]);
        other.fill(0, &[1; 10]);
        network.run();
        assert_eq!(other.holds(0, 10), [1; 10], "afterwards nothing touches it");
    }
}

#[test]
fn unsignalled_requests_complete_silently_unless_they_fail() {
    let (network, mut one, mut other) = pair();
    let silent = |id, kind| SendRequest { signalled: false, ..request(id, kind, 1) };
    let list = [silent(1, other.write_to(0)), request(2, other.write_to(8), 1), silent(3, other.write_to(16))];
    let sges = [one.sge(0, 4); 3];
    one.queue.post(&list, &sges).unwrap();
    network.run();
    assert_eq!(one.done(), [(2, DID)]);
    one.queue.post(&[silent(4, other.write_to(BYTES as u64 - 3)), silent(5, other.write_to(0))], &sges[..2]).unwrap();
    network.run();
    assert_eq!(one.done(), [(4, failed(WcStatus::Refused)), (5, FLUSHED)]);
    assert!(other.done().is_empty());
}

#[test]
fn a_wrong_key_range_or_right_breaks_both_queues_and_leaves_nothing() {
    for wrong in 0..6 {
        let (network, mut one, mut other) = pair();
        let limited = other
            .adapter
            .register(&other.window, AccessFlags { read: wrong == 3, write: wrong == 4, land: true })
            .unwrap();
        let at = other.window.base_address();
        let key = other.memory.remote_key();
        let kind = match wrong {
            0 => Opcode::Write { address: at, key: key ^ 0x55 },
            1 => Opcode::Write { address: at + BYTES as u64 - 99, key },
            2 => Opcode::Write { address: at - 1, key },
            3 => Opcode::Write { address: at, key: limited.remote_key() },
            4 => Opcode::Read { address: at, key: limited.remote_key() },
            _ => Opcode::Write { address: at, key: other.memory.local_key() },
        };
        other.fill(0, &[5; 100]);
        one.fill(0, &[9; 200]);
        one.post(1, other.write_to(300), &[one.sge(0, 100)]);
        one.post(2, kind, &[one.sge(0, 100)]);
        one.post(3, other.write_to(100), &[one.sge(100, 100)]);
        other.post(4, one.write_to(1000), &[other.sge(0, 100)]);
        while one.done().is_empty() {
            assert!(network.step());
        }
        network.run();
        let flushed = other.done();
        assert_eq!(one.done(), [(2, failed(WcStatus::Refused)), (3, FLUSHED)], "{wrong}");
        assert!(matches!(flushed[..], [(4, FLUSHED | DID)]), "{wrong}: {flushed:?}");
        assert_eq!(other.adapter.next_event(), Some(AsyncEvent::QueueBroken(other.queue.number())), "{wrong}");
        assert_eq!((other.holds(0, 101), one.holds(0, 100)), ([&[5; 100][..], &[0]].concat(), vec![9; 100]), "{wrong}");
        assert_eq!(other.holds(300, 100), [9; 100], "what was posted before has happened");
        one.post(5, other.write_to(0), &[one.sge(0, 1)]);
        other.post(6, one.write_to(0), &[other.sge(0, 1)]);
        assert_eq!((one.done(), other.done()), (vec![(5, FLUSHED)], vec![(6, FLUSHED)]), "nothing is taken any more");
    }
}

#[test]
fn dropping_a_registration_refuses_its_keys_on_both_sides() {
    let (network, mut one, other) = pair();
    let (kind, sge) = (other.write_to(0), one.sge(0, 10));
    one.memory = one.adapter.register(&one.window, AccessFlags::default()).unwrap();
    one.post(1, kind, &[sge]);
    network.run();
    assert_eq!(one.done(), [(1, failed(WcStatus::Memory))]);
    assert_eq!((one.adapter.next_event(), other.adapter.next_event()), (None, None), "the peer hears nothing");
    let (network, mut one, mut other) = pair();
    one.post(1, kind, &[one.sge(0, 10)]);
    other.memory = other.adapter.register(&other.window, ALL).unwrap();
    network.run();
    assert_eq!(one.done(), [(1, failed(WcStatus::Refused))]);
    assert_eq!((one.adapter.counts().registrations, other.adapter.counts().registrations), (1, 1));
}

#[test]
fn a_registration_that_is_dropped_in_mid_request_stops_it_there() {
    let (network, mut one, mut other) = pair();
    one.fill(0, &vec![9; BYTES]);
    one.post(1, other.write_to(0), &[one.sge(0, BYTES as u32)]);
    assert!(network.step());
    other.memory = other.adapter.register(&other.window, ALL).unwrap();
    network.run();
    assert_eq!(one.done(), [(1, failed(WcStatus::Refused))]);
    assert_eq!((other.holds(0, 64 << 10), other.holds(64 << 10, 1)), (vec![9; 64 << 10], vec![0]));
}

#[test]
fn reads_land_only_where_they_may() {
    let (network, mut one, other) = pair();
    one.memory = one.adapter.register(&one.window, AccessFlags { land: false, ..ALL }).unwrap();
    one.post(1, other.read_from(0), &[one.sge(0, 10)]);
    network.run();
    assert_eq!(one.done(), [(1, failed(WcStatus::Memory))]);
    let read_only = one.window.read_only();
    assert!(one.adapter.register(&read_only, AccessFlags { read: true, ..AccessFlags::default() }).is_ok());
    for access in
        [AccessFlags { write: true, ..AccessFlags::default() }, AccessFlags { land: true, ..AccessFlags::default() }]
    {
        assert!(matches!(one.adapter.register(&read_only, access), Err(AdapterError::Refused { .. })));
    }
}

#[test]
fn without_a_receive_a_message_waits_and_then_fails_alone() {
    let (network, mut one, mut other) = pair();
    one.post(1, Opcode::Send, &[one.sge(0, 4)]);
    network.advance(Duration::from_millis(99));
    other.supply(1, 1);
    network.run();
    assert_eq!((one.done(), other.done()), (vec![(1, DID)], vec![(1, came(4))]));
    one.post(2, other.tell_to(0, 1), &[one.sge(0, 4)]);
    one.post(3, other.write_to(0), &[one.sge(0, 4)]);
    network.run();
    network.advance(Duration::from_millis(99));
    assert_eq!(one.done(), []);
    network.advance(Duration::from_millis(1));
    assert_eq!(one.done(), [(2, failed(WcStatus::NoReceive)), (3, FLUSHED)]);
    assert_eq!(other.adapter.next_event(), None, "the peer's queue stands");
}

#[test]
fn a_message_that_is_too_long_breaks_both_and_gives_the_receive_back_unused() {
    let (network, mut one, mut other) = pair();
    other.supply(8, 2);
    one.post(1, Opcode::Send, &[one.sge(0, 65)]);
    network.run();
    assert_eq!(one.done(), [(1, failed(WcStatus::Invalid))]);
    assert_eq!(other.done(), [(8, Wc::Unused)]);
    assert_eq!(other.adapter.next_event(), Some(AsyncEvent::QueueBroken(other.queue.number())));
}

#[test]
fn a_message_cut_off_in_the_middle_gives_its_receive_back() {
    let (network, mut one, mut other) = pair();
    let recv = RecvBuffer { id: 3, sge: other.sge(0, 128 << 10) };
    other.cq.post_recv(&[recv]).unwrap();
    one.post(1, Opcode::Send, &[one.sge(0, 128 << 10)]);
    assert!(network.step());
    other.queue.set_error().unwrap();
    assert_eq!(other.done(), [(3, Wc::Unused)]);
    network.run();
    network.advance(Duration::from_millis(300));
    assert_eq!(one.done(), [(1, failed(WcStatus::Silence))]);
}

#[test]
fn inline_bytes_are_taken_at_once_and_need_no_registration() {
    let (network, mut one, other) = pair();
    let unregistered = window(16);
    unregistered.write_from(0, b"now").unwrap();
    let sge = Sge { address: unregistered.base_address(), bytes: 3, key: 0 };
    let inline = SendRequest { inline: true, ..request(1, other.write_to(0), 1) };
    one.queue.post(&[inline], &[sge]).unwrap();
    unregistered.write_from(0, b"too late").unwrap();
    one.fill(0, b"early");
    one.post(2, other.write_to(10), &[one.sge(0, 5)]);
    one.fill(0, b"later");
    network.run();
    assert_eq!((other.holds(0, 4), other.holds(10, 5)), (b"now\0".to_vec(), b"later".to_vec()));
}

/// What a bug of ours is told.
fn caught(bug: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(bug)).expect_err("it was not caught");
    panic.downcast_ref::<String>().cloned().unwrap_or_default()
}

#[test]
fn posting_beyond_a_queues_room_is_caught_until_its_completions_are_polled() {
    let (network, mut one, other) = pair();
    let fill = |one: &mut Side| {
        for id in 0..REQUESTS as u64 {
            let last = id + 1 == REQUESTS as u64;
            let one_of_them = SendRequest { signalled: last, ..request(id, other.write_to(0), 1) };
            let sge = one.sge(0, 1);
            one.queue.post(&[one_of_them], &[sge]).unwrap();
        }
        network.run();
    };
    fill(&mut one);
    assert_eq!(one.done().len(), 1, "one that is polled gives back the room of all before it");
    fill(&mut one);
    assert!(caught(|| one.post(9, other.write_to(0), &[])).contains("have not been polled for"));
    assert!(caught(|| assert_eq!(one.adapter.counts().queues, 1)).contains("caught"), "and every later call says so");
}

#[test]
fn completions_beyond_a_desks_room_are_caught() {
    let network = ModelNetwork::by_hand();
    let (mut one, mut other) = (Side::new(&network), Side::new(&network));
    one.cq = one.adapter.worker_cq(2, 0).unwrap();
    one.queue = one.cq.queue(8).unwrap();
    connect(&mut one, &mut other, (1, 2));
    for id in 0..3 {
        one.post(id, other.write_to(0), &[]);
    }
    assert!(caught(|| assert!(network.run() > 0)).contains("more completions"));
}

type Bug = fn(&Side, &Side) -> (SendRequest, Vec<Sge>);

#[test]
fn requests_that_no_card_takes_are_caught() {
    let bugs: [Bug; 4] = [
        |one, other| (request(1, other.write_to(0), 31), vec![one.sge(0, 1); 31]),
        |one, other| (SendRequest { inline: true, ..request(1, other.write_to(0), 1) }, vec![one.sge(0, 221)]),
        |one, other| (SendRequest { inline: true, ..request(1, other.read_from(0), 1) }, vec![one.sge(0, 1)]),
        |one, other| (request(1, other.write_to(0), 2), vec![one.sge(0, 1)]),
    ];
    for bug in bugs {
        let (_network, mut one, other) = pair();
        let (request, sges) = bug(&one, &other);
        assert!(caught(|| one.queue.post(&[request], &sges).unwrap()).contains("caught a bug"));
    }
}

#[test]
fn room_that_a_card_has_not_got_is_refused() {
    let (_network, mut one, _other) = pair();
    let attr = one.adapter.attr().clone();
    assert!(matches!(one.adapter.worker_cq(attr.completions_max + 1, 0), Err(AdapterError::NoRoom { .. })));
    assert!(matches!(one.adapter.worker_cq(0, attr.receives_max + 1), Err(AdapterError::NoRoom { .. })));
    assert!(matches!(one.cq.queue(attr.requests_max + 1), Err(AdapterError::NoRoom { .. })));
    one.supply(0, 32);
    let recv = RecvBuffer { id: 1, sge: one.sge(0, 1) };
    assert!(matches!(one.cq.post_recv(&[recv]), Err(AdapterError::NoRoom { has: 0, .. })));
}

#[test]
fn breaking_off_flushes_in_order_and_reset_is_proof() {
    let (network, mut one, mut other) = pair();
    one.fill(0, &vec![9; BYTES]);
    for id in 1..4 {
        one.post(id, other.write_to(0), &[one.sge(0, BYTES as u32)]);
    }
    other.post(7, one.write_to(0), &[other.sge(0, BYTES as u32)]);
    network.step();
    network.step();
    one.queue.set_error().unwrap();
    assert_eq!(one.done(), [(1, FLUSHED), (2, FLUSHED), (3, FLUSHED)]);
    one.queue.reset().unwrap();
    other.queue.reset().unwrap();
    let (mine, theirs) = (one.holds(0, BYTES), other.holds(0, BYTES));
    assert!(theirs.contains(&9) && theirs.contains(&0), "it was in the middle");
    network.advance(Duration::from_secs(1));
    assert!(one.holds(0, BYTES) == mine && other.holds(0, BYTES) == theirs);
    assert_eq!(other.done(), [], "nobody says what became of requests of a queue that was reset");
    connect(&mut one, &mut other, (7, 8));
    one.post(4, other.write_to(0), &[one.sge(0, BYTES as u32)]);
    network.run();
    assert_eq!((one.done(), other.holds(0, BYTES)), (vec![(4, DID)], vec![9; BYTES]));
}

#[test]
fn a_reset_takes_completions_away_or_leaves_them_as_the_network_was_made() {
    for reset_cleans in [true, false] {
        let (network, mut one, other) =
            pair_on(ModelNetwork::new(Options { pace: Pace::ByHand, reset_cleans, ..Options::default() }));
        one.post(1, other.write_to(0), &[]);
        network.run();
        one.queue.reset().unwrap();
        assert_eq!(one.done().len(), usize::from(!reset_cleans));
    }
}

#[test]
fn a_queue_takes_posts_only_when_it_is_connected_and_connects_only_when_it_is_new() {
    let network = ModelNetwork::by_hand();
    let (mut one, mut other) = (Side::new(&network), Side::new(&network));
    let kind = other.write_to(0);
    let refused = one.queue.post(&[request(1, kind, 0)], &[]).unwrap_err();
    assert!((refused.posted, refused.error.to_string().contains("connect")) == (0, true));
    connect(&mut one, &mut other, (1, 2));
    let again = connecting(other.endpoint(2), 1);
    assert!(one.queue.connect(&again).is_err());
    one.queue.set_error().unwrap();
    assert!(one.queue.connect(&again).is_err());
    one.queue.reset().unwrap();
    one.queue.connect(&again).unwrap();
}

#[test]
fn packets_of_another_life_are_lost() {
    let (network, mut one, other) = pair();
    one.queue.reset().unwrap();
    one.queue.connect(&connecting(other.endpoint(2), 1)).unwrap();
    one.fill(0, &[9; 10]);
    one.post(1, other.write_to(0), &[one.sge(0, 10)]);
    network.run();
    network.advance(Duration::from_millis(299));
    assert_eq!((one.done(), other.holds(0, 10)), (vec![], vec![0; 10]));
    network.advance(Duration::from_millis(1));
    assert_eq!(one.done(), [(1, failed(WcStatus::Silence))]);
}

#[test]
fn a_queue_that_is_gone_or_not_connected_answers_nothing() {
    for is_gone in [true, false] {
        let (network, mut one, mut other) = pair();
        one.post(1, other.write_to(0), &[one.sge(0, 10)]);
        if is_gone {
            other.queue = other.cq.queue(1).unwrap();
        } else {
            other.queue.reset().unwrap();
        }
        network.run();
        network.advance(Duration::from_millis(300));
        assert_eq!(one.done(), [(1, failed(WcStatus::Silence))]);
    }
}

#[test]
fn what_is_answered_to_somebody_else_has_happened_all_the_same() {
    let (network, mut one, mut other) = pair();
    other.queue.reset().unwrap();
    let elsewhere = QpAddress { queue: 999, ..one.endpoint(100) };
    other.queue.connect(&connecting(elsewhere, 0xff_fffe)).unwrap();
    one.fill(0, &[9; 10]);
    one.post(1, other.write_to(0), &[one.sge(0, 10)]);
    network.run();
    network.advance(Duration::from_millis(300));
    assert_eq!((one.done(), other.holds(0, 10)), (vec![(1, failed(WcStatus::Silence))], vec![9; 10]));
}

#[test]
fn reads_under_way_are_as_many_as_the_connection_allows() {
    let (network, mut one, other) = pair();
    one.adapter.slow_reads(Duration::from_millis(10));
    for id in 0..6 {
        one.post(id, other.read_from(0), &[one.sge(id * 8, 8)]);
    }
    network.run();
    network.advance(Duration::from_millis(10));
    assert_eq!(one.done().len(), 4);
    network.advance(Duration::from_millis(10));
    assert_eq!(one.done().len(), 2);
}

fn is_readable(fd: std::os::fd::BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
}

#[test]
fn an_armed_desk_shows_the_next_completion_and_only_that() {
    let (network, mut one, other) = pair();
    one.post(1, other.write_to(0), &[]);
    network.run();
    one.cq.arm().unwrap();
    assert!(!is_readable(one.cq.descriptor()), "what came before makes no sign");
    assert_eq!(one.done().len(), 1);
    one.post(2, other.write_to(0), &[]);
    assert!(!is_readable(one.cq.descriptor()));
    network.run();
    assert!(is_readable(one.cq.descriptor()));
    one.done();
    one.cq.arm().unwrap();
    assert!(!is_readable(one.cq.descriptor()));
}

#[test]
fn polls_carry_the_work_where_nobody_else_does() {
    let (_network, mut one, mut other) = pair_on(ModelNetwork::new(Options::default()));
    one.fill(0, &vec![9; BYTES]);
    one.post(1, other.write_to(0), &[one.sge(0, BYTES as u32)]);
    other.cq.arm().unwrap();
    assert_eq!(other.holds(0, BYTES), vec![9; BYTES], "arming does all there is");
    one.post(2, other.write_to(0), &[one.sge(0, 1)]);
    other.done();
    assert_eq!(one.done(), [(1, DID), (2, DID)]);
}

#[test]
fn a_thread_carries_the_work_and_ends_with_the_network() {
    let (network, mut one, other) = pair_on(ModelNetwork::new(Options { pace: Pace::Thread, ..Options::default() }));
    one.fill(0, &vec![9; BYTES]);
    one.cq.arm().unwrap();
    one.post(1, other.write_to(0), &[one.sge(0, BYTES as u32)]);
    let shown = one.cq.descriptor();
    assert_eq!(poll(&mut [PollFd::new(&shown, PollFlags::IN)], Some(&Timespec { tv_sec: 10, tv_nsec: 0 })).unwrap(), 1);
    assert_eq!((one.done(), other.holds(0, BYTES)), (vec![(1, DID)], vec![9; BYTES]));
    let shared = Arc::downgrade(&network.hub.shared);
    drop((network, one, other));
    assert_eq!(shared.strong_count(), 0);
}
