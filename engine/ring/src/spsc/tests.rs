//! Both storages through the same tests, and against a `VecDeque`.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::thread;

use proptest::prelude::*;

use super::*;
use crate::shared_range::SharedRange;

fn line(value: u64) -> RingLine {
    RingLine(std::array::from_fn(|word| value.wrapping_add(word as u64)))
}

fn mapped_in(place: &SharedRange, capacity: usize) -> (Producer<MappedStorage>, Consumer<MappedStorage>) {
    let storage = || MappedStorage::new(place.clone(), capacity).unwrap();
    (Producer::attach(storage()).unwrap(), Consumer::attach(storage()))
}

fn mapped(capacity: usize) -> (Producer<MappedStorage>, Consumer<MappedStorage>) {
    mapped_in(&SharedRange::heap(MappedStorage::bytes_for(capacity)), capacity)
}

#[derive(Clone, Debug)]
enum Step {
    Push(usize),
    Pop(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![(0..12usize).prop_map(Step::Push), (0..12usize).prop_map(Step::Pop)];
    prop::collection::vec(step, 0..200)
}

fn against_a_deque<S: Storage>(
    (mut producer, mut consumer): (Producer<S>, Consumer<S>),
    steps: &[Step],
) -> Result<(), TestCaseError> {
    let mut model = VecDeque::new();
    let mut next = 0;
    for step in steps {
        match *step {
            Step::Push(count) => {
                let lines: Vec<_> = (next..).take(count).map(line).collect();
                let fits = model.len() + count <= producer.capacity();
                prop_assert_eq!(producer.push(&lines).is_ok(), fits);
                if fits {
                    model.extend(lines);
                    next += count as u64;
                }
            }
            Step::Pop(count) => {
                let available = consumer.available().unwrap();
                prop_assert_eq!(available, model.len());
                let count = count.min(available);
                for index in 0..count {
                    prop_assert_eq!(consumer.peek(index), model.pop_front());
                }
                prop_assert!(!consumer.release(count));
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn heap_behaves_like_a_deque(steps in steps(), power in 0u32..5) {
        against_a_deque(pair(1 << power).unwrap(), &steps)?;
    }

    #[test]
    fn mapped_behaves_like_a_deque(steps in steps(), power in 0u32..5) {
        against_a_deque(mapped(1 << power), &steps)?;
    }

    /// Whatever a peer writes, the consumer answers within the capacity or refuses.
    #[test]
    fn scribbled_indices_never_escape(head: u64, tail: u64, flag: u32) {
        let place = SharedRange::heap(MappedStorage::bytes_for(4));
        place.atomic_u64(0).unwrap().store(tail, Ordering::Relaxed);
        place.atomic_u64(128).unwrap().store(head, Ordering::Relaxed);
        place.atomic_u32(256).unwrap().store(flag, Ordering::Relaxed);
        let storage = || MappedStorage::new(place.clone(), 4).unwrap();
        let mut consumer = Consumer::attach(storage());
        match consumer.available() {
            Ok(count) => prop_assert!(count <= 4),
            Err(corrupt) => prop_assert_eq!((corrupt.head, corrupt.tail), (head, tail)),
        }
        let _ = consumer.release(usize::MAX);
        if let Ok(mut producer) = Producer::attach(storage()) {
            let _ = producer.push(&[line(1); 3]);
            prop_assert!(producer.free() <= 4);
        }
    }
}

#[test]
fn a_batch_is_all_or_nothing() {
    let (mut producer, mut consumer) = mapped(4);
    producer.push(&[line(1), line(2), line(3)]).unwrap();
    assert_eq!(producer.push(&[line(4), line(5)]), Err(Full(())));
    assert_eq!(consumer.available(), Ok(3));
    producer.push(&[line(4)]).unwrap();
    assert_eq!(producer.free(), 0);
    assert_eq!(producer.push(&[line(0); 5]), Err(Full(())));
    assert_eq!(producer.push(&[]), Ok(()));
    assert_eq!(consumer.available(), Ok(4));
    assert_eq!(consumer.peek(3), Some(line(4)));
    assert_eq!(consumer.peek(4), None);
}

#[test]
fn nothing_is_readable_before_available_looked() {
    let (mut producer, mut consumer) = pair(2).unwrap();
    producer.push(&[line(1)]).unwrap();
    assert_eq!(consumer.peek(0), None);
    assert!(!consumer.release(1));
    assert_eq!(consumer.available(), Ok(1));
    assert_eq!(consumer.peek(0), Some(line(1)));
}

#[test]
fn a_waiting_producer_is_rung_once() {
    let (mut producer, mut consumer) = mapped(2);
    producer.push(&[line(1), line(2)]).unwrap();
    assert_eq!(producer.mark_waiting(), 0);
    assert_eq!(consumer.available(), Ok(2));
    assert!(consumer.release(1));
    assert!(!consumer.release(1));
    assert_eq!(producer.mark_waiting(), 2);
    producer.clear_waiting();
    assert!(!consumer.take_waiting());
    assert_eq!(producer.mark_waiting(), 2);
    consumer.release_quietly(0);
    assert!(consumer.take_waiting());
}

#[test]
fn an_impossible_head_is_reported_and_not_followed() {
    let place = SharedRange::heap(MappedStorage::bytes_for(2));
    let (mut producer, _consumer) = mapped_in(&place, 2);
    producer.push(&[line(1), line(2)]).unwrap();
    let head = place.atomic_u64(128).unwrap();
    head.store(3, Ordering::Relaxed);
    assert_eq!(producer.free(), 0);
    let corrupt = producer.health().unwrap_err();
    assert_eq!((corrupt.head, corrupt.tail, corrupt.capacity), (3, 2, 2));
    assert!(Producer::attach(MappedStorage::new(place.clone(), 2).unwrap()).is_err());
}

#[test]
fn a_tail_that_goes_back_or_too_far_is_refused() {
    let place = SharedRange::heap(MappedStorage::bytes_for(4));
    let (mut producer, mut consumer) = mapped_in(&place, 4);
    producer.push(&[line(1), line(2)]).unwrap();
    assert_eq!(consumer.available(), Ok(2));
    let tail = place.atomic_u64(0).unwrap();
    for wrong in [1, 5, u64::MAX] {
        tail.store(wrong, Ordering::Relaxed);
        assert_eq!(consumer.available().unwrap_err().tail, wrong);
    }
    assert_eq!(consumer.peek(1), Some(line(2)));
}

#[test]
fn set_up_checks_capacity_size_alignment_and_rights() {
    assert!(matches!(pair(3), Err(RingError::Capacity { asked: 3, .. })));
    assert!(pair(0).is_err() && pair(CAPACITY_MAX * 2).is_err());
    let place = SharedRange::heap(MappedStorage::bytes_for(4) + 8);
    let short = place.slice(0, MappedStorage::bytes_for(4) - 1).unwrap();
    let odd = place.slice(8, MappedStorage::bytes_for(4)).unwrap();
    let error = |place| MappedStorage::new(place, 4).unwrap_err();
    assert!(matches!(error(short), RingError::TooSmall { .. }));
    assert!(matches!(error(odd), RingError::Misaligned { .. }));
    assert_eq!(error(place.without_writing()), RingError::ReadOnly);
}

#[test]
fn indices_wrap_around() {
    let place = SharedRange::heap(MappedStorage::bytes_for(4));
    for at in [0, 128] {
        place.atomic_u64(at).unwrap().store(u64::MAX - 1, Ordering::Relaxed);
    }
    let (mut producer, mut consumer) = mapped_in(&place, 4);
    producer.push(&[line(1), line(2), line(3), line(4)]).unwrap();
    assert_eq!(producer.free(), 0);
    assert_eq!(consumer.available(), Ok(4));
    assert_eq!(consumer.peek(3), Some(line(4)));
    assert!(!consumer.release(4));
    assert_eq!(producer.free(), 4);
}

fn between_threads<S: Storage + 'static>((mut producer, mut consumer): (Producer<S>, Consumer<S>)) {
    const LINES: u64 = 200_000;
    let pusher = thread::spawn(move || {
        let mut next = 0;
        while next < LINES {
            let batch = [line(next), line(next + 1), line(next + 2), line(next + 3)];
            if producer.push(&batch).is_ok() {
                next += 4;
            } else {
                thread::yield_now();
            }
        }
    });
    let mut expected = 0;
    while expected < LINES {
        let count = consumer.available().unwrap();
        for index in 0..count {
            assert_eq!(consumer.peek(index), Some(line(expected)));
            expected += 1;
        }
        assert!(!consumer.release(count));
        if count == 0 {
            thread::yield_now();
        }
    }
    pusher.join().unwrap();
}

#[test]
fn lines_arrive_in_order_between_threads() {
    between_threads(pair(64).unwrap());
    between_threads(mapped(64));
}
