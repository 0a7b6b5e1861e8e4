//! What happens on demand.

use std::time::Duration;

use super::super::{Losses, Options, Pace};
use super::*;
use crate::adapter::AdapterError;

const MS: Duration = Duration::from_millis(1);

#[test]
fn a_cut_is_silence_after_a_while_and_nothing_if_it_is_mended_before() {
    let (network, mut one, mut other) = pair();
    one.fill(0, &vec![9; BYTES]);
    one.post(1, other.write_to(0), &[one.sge(0, BYTES as u32)]);
    network.step();
    network.cut(&one.adapter, &other.adapter);
    network.run();
    network.advance(MS * 299);
    assert_eq!(one.done(), []);
    network.mend(&one.adapter, &other.adapter);
    network.run();
    assert_eq!((one.done(), other.holds(0, BYTES)), (vec![(1, DID)], vec![9; BYTES]));
    network.cut(&one.adapter, &other.adapter);
    one.post(2, other.write_to(0), &[one.sge(0, 1)]);
    one.post(3, other.write_to(0), &[one.sge(0, 1)]);
    network.run();
    network.advance(MS * 300);
    assert_eq!(one.done(), [(2, failed(WcStatus::Silence)), (3, FLUSHED)]);
    assert_eq!((other.done(), other.adapter.next_event()), (vec![], None));
}

#[test]
fn where_only_answers_are_lost_everything_has_happened() {
    let (network, mut one, other) = pair();
    network.lose(&other.adapter, &one.adapter, Losses { requests: false, answers: true });
    one.fill(0, &[9; 20]);
    one.post(1, other.write_to(0), &[one.sge(0, 10)]);
    one.post(2, other.write_to(10), &[one.sge(0, 10)]);
    network.run();
    assert_eq!((one.done(), other.holds(0, 20)), (vec![], vec![9; 20]));
    network.mend(&other.adapter, &one.adapter);
    network.run();
    assert_eq!(one.done(), [(1, DID), (2, DID)], "asked for again, they are answered");
    network.lose(&other.adapter, &one.adapter, Losses { requests: false, answers: true });
    one.post(3, other.write_to(0), &[one.sge(0, 10)]);
    network.run();
    network.advance(MS * 300);
    assert_eq!(one.done(), [(3, failed(WcStatus::Silence))]);
}

#[test]
fn a_port_that_is_down_says_so_and_carries_nothing() {
    let (network, mut one, other) = pair();
    other.adapter.set_port(false);
    assert_eq!((other.adapter.next_event(), other.adapter.next_event()), (Some(AsyncEvent::PortDown), None));
    one.post(1, other.write_to(0), &[]);
    network.run();
    assert_eq!(one.done(), []);
    other.adapter.set_port(true);
    assert_eq!(other.adapter.next_event(), Some(AsyncEvent::PortUp));
    network.run();
    assert_eq!(one.done(), [(1, DID)]);
}

#[test]
fn events_make_their_descriptor_readable_until_all_are_taken() {
    let (_network, one, _other) = pair();
    let readable = || {
        let mut fds = [rustix::event::PollFd::new(one.adapter.as_ref(), rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut fds, Some(&rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() == 1
    };
    assert!(!readable());
    one.adapter.raise(AsyncEvent::Changed);
    one.adapter.raise(AsyncEvent::Fatal);
    assert!(readable());
    assert_eq!(one.adapter.next_event(), Some(AsyncEvent::Changed));
    assert!(readable());
    assert_eq!(one.adapter.next_event(), Some(AsyncEvent::Fatal));
    assert!(!readable());
}

impl std::os::fd::AsFd for ModelAdapter {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.events()
    }
}

#[test]
fn a_queue_is_broken_at_once_or_after_so_many_requests() {
    let (network, mut one, other) = pair();
    one.post(1, other.write_to(0), &[]);
    assert!(one.adapter.break_queue(one.queue.number()) && !one.adapter.break_queue(9999));
    assert_eq!(one.done(), [(1, FLUSHED)]);
    assert_eq!(one.adapter.next_event(), Some(AsyncEvent::QueueBroken(one.queue.number())));
    let (network_two, mut one, other) = pair();
    drop(network);
    one.adapter.break_after(2);
    for id in 1..5 {
        one.post(id, other.write_to(0), &[one.sge(0, BYTES as u32)]);
    }
    network_two.run();
    assert_eq!(one.done(), [(1, DID), (2, DID), (3, FLUSHED), (4, FLUSHED)]);
    assert_eq!(one.adapter.next_event(), Some(AsyncEvent::QueueBroken(one.queue.number())));
}

#[test]
fn what_is_held_stands_still_without_losing_patience() {
    let (network, mut one, mut other) = pair();
    for is_near in [true, false] {
        let held = if is_near { one.adapter.clone() } else { other.adapter.clone() };
        held.hold();
        one.post(1, other.write_to(0), &[one.sge(0, 10)]);
        network.advance(MS * 10_000);
        assert_eq!(one.done(), []);
        held.release();
        network.run();
        assert_eq!(one.done(), [(1, DID)]);
    }
    one.adapter.hold();
    one.post(1, other.write_to(0), &[]);
    one.queue.set_error().unwrap();
    assert_eq!((one.done(), other.done()), (vec![(1, FLUSHED)], vec![]), "it can be broken off all the same");
}

#[test]
fn a_delay_is_there_and_back() {
    let (network, mut one, mut other) = pair();
    network.delay(&one.adapter, &other.adapter, MS * 5);
    other.supply(0, 1);
    one.post(1, Opcode::Send, &[one.sge(0, 1)]);
    network.advance(MS * 4);
    assert_eq!(other.done(), []);
    network.advance(MS);
    assert_eq!((one.done(), other.done()), (vec![], vec![(0, came(1))]));
    network.advance(MS * 5);
    assert_eq!(one.done(), [(1, DID)]);
}

#[test]
fn a_slow_read_is_overtaken_in_deed_but_not_in_completions() {
    let (network, mut one, mut other) = pair();
    one.adapter.slow_reads(MS * 5);
    other.fill(0, b"old");
    other.supply(0, 1);
    one.fill(0, b"new");
    one.post(1, other.read_from(0), &[one.sge(100, 3)]);
    one.post(2, other.write_to(0), &[one.sge(0, 3)]);
    one.post(3, Opcode::Send, &[one.sge(0, 1)]);
    network.run();
    assert_eq!((other.done(), other.holds(0, 3)), (vec![(0, came(1))], b"new".to_vec()));
    assert_eq!((one.done(), one.holds(100, 3)), (vec![], vec![0; 3]));
    network.advance(MS * 5);
    assert_eq!(one.done(), [(1, DID), (2, DID), (3, DID)]);
    assert_eq!(one.holds(100, 3), b"new", "a card that asks twice gets what is there then");
}

#[test]
fn what_a_card_is_told_to_refuse_it_refuses_so_often() {
    let (_network, mut one, mut other) = pair();
    one.adapter.refuse_registrations(1);
    let refused = one.adapter.register(&one.window, ALL).err().unwrap();
    assert!(matches!(refused, AdapterError::Refused { .. }) && refused.to_string().contains("ulimit -l"));
    assert!(one.adapter.register(&one.window, ALL).is_ok());
    one.adapter.refuse_cqs(1);
    assert!(matches!(one.adapter.worker_cq(1, 1), Err(AdapterError::NoRoom { has: 0, .. })));
    assert!(one.adapter.worker_cq(1, 1).is_ok());
    one.adapter.refuse_queues(1);
    assert!(matches!(one.cq.queue(1), Err(AdapterError::NoRoom { has: 0, .. })));
    assert!(one.cq.queue(1).is_ok());
    one.queue.reset().unwrap();
    one.adapter.refuse_connects(1);
    let there = connecting(other.endpoint(1), 2);
    assert!(one.queue.connect(&there).is_err());
    one.queue.connect(&there).unwrap();
    other.queue.reset().unwrap();
}

#[test]
fn keys_of_memory_can_be_refused_and_fresh_ones_hold() {
    let (network, mut one, other) = pair();
    let elsewhere = window(16);
    let spared = other.adapter.register(&elsewhere, ALL).unwrap();
    other.adapter.refuse_keys(&other.window.slice(100, 1).unwrap());
    let fresh = other.adapter.register(&other.window, ALL).unwrap();
    for (address, key) in [(&elsewhere, &spared), (&other.window, &fresh)].map(|(at, key)| (at.base_address(), key)) {
        one.post(1, Opcode::Write { address, key: key.remote_key() }, &[one.sge(0, 1)]);
    }
    one.post(2, other.write_to(0), &[one.sge(0, 1)]);
    network.run();
    assert_eq!(one.done(), [(1, DID), (1, DID), (2, failed(WcStatus::Refused))]);
}

#[test]
fn a_card_that_has_failed_breaks_its_queues_and_refuses_every_call() {
    let (network, mut one, mut other) = pair();
    one.post(1, other.write_to(0), &[]);
    other.post(2, one.write_to(0), &[]);
    one.adapter.fail();
    assert_eq!(one.done(), [(1, failed(WcStatus::Card))]);
    assert_eq!(one.adapter.next_event(), Some(AsyncEvent::Fatal));
    assert!(one.adapter.register(&one.window, ALL).is_err() && one.adapter.worker_cq(1, 1).is_err());
    assert!(one.cq.queue(1).is_err() && one.cq.arm().is_err() && one.cq.post_recv(&[]).is_err());
    assert!(one.queue.post(&[], &[]).is_err());
    network.run();
    network.advance(MS * 300);
    assert_eq!(other.done(), [(2, failed(WcStatus::Silence))]);
}

#[test]
fn with_a_seed_queues_take_turns_at_random_and_the_same_seed_does_the_same() {
    let order = |seed| {
        let network = ModelNetwork::new(Options { pace: Pace::ByHand, seed, ..Options::default() });
        let (mut one, mut other) = (Side::new(&network), Side::new(&network));
        let mut queues = Vec::new();
        for nth in 0..4 {
            let (mut near, mut far) = (one.cq.queue(8).unwrap(), other.cq.queue(8).unwrap());
            let to = QpAddress { queue: far.number(), ..other.endpoint(1) };
            let from = QpAddress { queue: near.number(), ..one.endpoint(1) };
            near.connect(&connecting(to, 1)).unwrap();
            far.connect(&connecting(from, 1)).unwrap();
            for id in 0..4 {
                near.post(&[request(nth * 10 + id, other.write_to(0), 0)], &[]).unwrap();
            }
            queues.push((near, far));
        }
        network.run();
        let order: Vec<_> = one.done().iter().map(|done| done.0).collect();
        for nth in 0..4 {
            let its: Vec<_> = order.iter().filter(|id| **id / 10 == nth).copied().collect();
            assert_eq!(its, [nth * 10, nth * 10 + 1, nth * 10 + 2, nth * 10 + 3], "order holds within a queue");
        }
        order
    };
    assert_eq!(order(Some(1)), order(Some(1)));
    assert!((2..10).any(|seed| order(Some(seed)) != order(Some(1))));
    assert_ne!(order(None), order(Some(1)));
}

#[test]
fn what_sessions_leave_behind_is_counted() {
    let (network, one, other) = pair();
    assert_eq!((one.adapter.counts().queues, one.adapter.counts().registrations), (1, 1));
    let Side { adapter, cq, queue, memory, .. } = one;
    drop(cq);
    assert_eq!(network.hub.lock().cqs.len(), 2, "a desk stays while a queue is on it");
    drop(queue);
    drop(memory);
    assert_eq!((adapter.counts().queues, adapter.counts().registrations), (0, 0));
    assert_eq!(network.hub.lock().cqs.len(), 1);
    drop(other);
    let world = network.hub.lock();
    assert!(world.cqs.is_empty() && world.queues.is_empty() && world.numbers.is_empty());
}
