//! The gate in a place, its log, and the whole protocol between threads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use super::*;
use crate::error::RingError;
use crate::shared_range::SharedRange;

fn range(number: u64) -> Withdrawal {
    Withdrawal {
        region: number as u32,
        generation: (number as u32).wrapping_mul(3),
        offset: number << 20,
        len: number + 1,
    }
}

#[test]
fn a_hazard_tells_what_it_does() {
    let place = SharedRange::heap(2 * HAZARD_BYTES);
    let mut hazard = Hazard::mapped(&place, HAZARD_BYTES).unwrap();
    let view = HazardView::mapped(&place.without_writing(), HAZARD_BYTES).unwrap();
    assert_eq!(view.observe(), Observation::Quiet);
    assert!(view.has_moved_since(Observation::Quiet));
    for peer_index in [0, 7, u32::MAX] {
        hazard.enter(peer_index);
        let busy = view.observe();
        assert!(matches!(busy, Observation::Busy { peer_index: who, .. } if who == peer_index));
        assert!(!view.has_moved_since(busy));
        hazard.leave();
        assert_eq!(view.observe(), Observation::Quiet);
        assert!(view.has_moved_since(busy));
        hazard.enter(peer_index);
        assert!(view.has_moved_since(busy));
        hazard.leave();
    }
}

#[test]
fn the_sequence_survives_a_new_owner_and_wraps() {
    let place = SharedRange::heap(HAZARD_BYTES);
    let word = place.atomic_u64(0).unwrap();
    word.store(u64::MAX << 33, Ordering::Relaxed);
    let mut hazard = Hazard::mapped(&place, 0).unwrap();
    hazard.enter(5);
    assert_eq!(word.load(Ordering::Relaxed), 5 << 1 | 1);
    hazard.leave();
    assert_eq!(word.load(Ordering::Relaxed), 1 << 33);
}

#[test]
fn only_the_owner_may_write() {
    let place = SharedRange::heap(GateWriter::BYTES).without_writing();
    assert_eq!(Hazard::mapped(&place, 0).unwrap_err(), RingError::ReadOnly);
    assert_eq!(GateWriter::mapped(&place, 0).unwrap_err(), RingError::ReadOnly);
    assert!(GateReader::mapped(&place, 0).is_ok());
    assert!(GateReader::mapped(&place, 64).is_err());
}

#[test]
fn readers_learn_what_was_withdrawn_since() {
    let place = SharedRange::heap(GateWriter::BYTES);
    let mut writer = GateWriter::mapped(&place, 0).unwrap();
    let reader = GateReader::mapped(&place, 0).unwrap();
    assert_eq!(reader.withdrawals_since(0), Ok(Withdrawals::default()));
    assert_eq!(writer.withdraw(&[range(1), range(2)]), 2);
    assert_eq!(writer.withdraw(&[]), 2);
    assert_eq!(writer.withdraw(&[range(3)]), 3);
    assert_eq!((writer.revision(), reader.revision()), (3, 3));
    let since = |known| reader.withdrawals_since(known).unwrap();
    assert_eq!(since(0).list, [range(1), range(2), range(3)]);
    assert_eq!(since(2).list, [range(3)]);
    assert_eq!((since(3).revision, since(3).list.len()), (3, 0));
    let later = GateWriter::mapped(&place, 0).unwrap();
    assert_eq!(later.revision(), 3);
}

#[test]
fn a_reader_left_behind_is_told() {
    let mut writer = GateWriter::heap(4);
    let reader = writer.reader();
    for number in 1..=6 {
        writer.withdraw(&[range(number)]);
    }
    let lapped = LogOverrun { known: 1, found: 6 };
    assert_eq!(reader.withdrawals_since(1), Err(lapped));
    let list = reader.withdrawals_since(2).unwrap().list;
    assert_eq!(list, [range(3), range(4), range(5), range(6)]);
    // A revision from the future: another gate, or a scribble.
    assert!(reader.withdrawals_since(7).is_err());
    // More ranges at once than the log holds.
    writer.withdraw(&[range(0); 9]);
    assert!(reader.withdrawals_since(6).is_err());
    assert_eq!(reader.withdrawals_since(11).unwrap().list.len(), 4);
}

#[test]
fn a_scribbled_gate_gives_an_answer_or_lapped() {
    let place = SharedRange::heap(GateWriter::BYTES);
    let reader = GateReader::mapped(&place, 0).unwrap();
    for revision in [1, 256, 257, u64::MAX] {
        place.atomic_u64(0).unwrap().store(revision, Ordering::Relaxed);
        assert!(reader.withdrawals_since(0).is_err());
        assert_eq!(reader.withdrawals_since(revision).unwrap().list, []);
    }
}

#[test]
fn readers_never_see_a_torn_entry() {
    const REVISIONS: u64 = 20_000;
    let mut writer = GateWriter::heap(4);
    let reader = writer.reader();
    let thread = thread::spawn(move || {
        for number in 1..=REVISIONS {
            writer.withdraw(&[range(number)]);
        }
    });
    let mut known = 0;
    while known < REVISIONS {
        match reader.withdrawals_since(known) {
            Ok(answer) => {
                for (withdrawal, number) in answer.list.iter().zip(known + 1..) {
                    assert_eq!(*withdrawal, range(number));
                }
                known = answer.revision;
            }
            Err(lapped) => known = lapped.found,
        }
    }
    thread.join().unwrap();
}

#[test]
fn nothing_lands_after_quiescence() {
    const ROUNDS: u64 = 2_000;
    let mut writer = GateWriter::heap(4);
    let gate = writer.reader();
    let mut hazard = Hazard::heap();
    let view = hazard.view();
    let memory = Arc::new(AtomicU64::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let (target, stopped) = (Arc::clone(&memory), Arc::clone(&stop));
    let copier = thread::spawn(move || {
        let mut plan = gate.revision();
        while !stopped.load(Ordering::Relaxed) {
            hazard.enter(1);
            if gate.revision() == plan {
                target.store(plan, Ordering::Relaxed);
            }
            hazard.leave();
            plan = gate.revision();
        }
    });
    for _ in 0..ROUNDS {
        let revision = writer.withdraw(&[range(1)]);
        let seen = view.observe();
        while !view.has_moved_since(seen) {
            thread::yield_now();
        }
        // From here on only plans of this revision may land.
        let marker = u64::MAX - revision;
        let before = memory.swap(marker, Ordering::Relaxed);
        assert!(before <= revision || before == marker + 1);
        let now = memory.load(Ordering::Relaxed);
        assert!(now == marker || now == revision, "{now} after {revision}");
    }
    stop.store(true, Ordering::Relaxed);
    copier.join().unwrap();
}
