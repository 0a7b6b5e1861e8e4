//! The queue on one thread and on several.

use std::sync::Arc;
use std::thread;

use super::*;

#[test]
fn values_come_out_in_order_until_full() {
    let (sender, mut receiver) = channel(3);
    assert_eq!((sender.capacity(), receiver.capacity()), (4, 4));
    assert!(receiver.is_empty());
    for lap in 0..3 {
        for value in 0..4 {
            sender.push(lap * 4 + value).unwrap();
        }
        assert_eq!(sender.push(99), Err(Full(99)));
        for value in 0..4 {
            assert!(!receiver.is_empty());
            assert_eq!(receiver.pop(), Some(lap * 4 + value));
        }
        assert_eq!(receiver.pop(), None);
    }
}

#[test]
fn the_smallest_queue_holds_two() {
    let (sender, mut receiver) = channel(0);
    sender.push('a').unwrap();
    sender.push('b').unwrap();
    assert_eq!(sender.push('c'), Err(Full('c')));
    assert_eq!(receiver.pop(), Some('a'));
    sender.push('c').unwrap();
    assert_eq!(receiver.pop(), Some('b'));
    assert_eq!(receiver.pop(), Some('c'));
}

#[test]
fn leftovers_are_dropped_with_the_last_end() {
    let witness = Arc::new(());
    let (sender, mut receiver) = channel(4);
    for _ in 0..4 {
        sender.push(Arc::clone(&witness)).unwrap();
    }
    drop(receiver.pop());
    drop(receiver.pop());
    sender.push(Arc::clone(&witness)).unwrap();
    assert_eq!(Arc::strong_count(&witness), 4);
    assert!(!sender.is_closed());
    drop(receiver);
    assert!(sender.is_closed());
    drop(sender);
    assert_eq!(Arc::strong_count(&witness), 1);
}

#[test]
fn every_value_arrives_once_and_in_its_senders_order() {
    const SENDERS: usize = 3;
    const EACH: usize = 20_000;
    let (sender, mut receiver) = channel(64);
    let threads: Vec<_> = (0..SENDERS)
        .map(|who| {
            let sender = sender.clone();
            thread::spawn(move || {
                for number in 0..EACH {
                    let mut value = (who, number);
                    while let Err(Full(back)) = sender.push(value) {
                        value = back;
                        thread::yield_now();
                    }
                }
            })
        })
        .collect();
    let mut next = [0; SENDERS];
    while next.iter().sum::<usize>() < SENDERS * EACH {
        match receiver.pop() {
            Some((who, number)) => {
                assert_eq!(number, next[who]);
                next[who] += 1;
            }
            None => thread::yield_now(),
        }
    }
    assert_eq!(receiver.pop(), None);
    for thread in threads {
        thread.join().unwrap();
    }
}
