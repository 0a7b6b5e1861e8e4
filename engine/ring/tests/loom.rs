//! Models of every protocol of the crate: all interleavings, and all values that the memory model
//! lets a relaxed load return. Run by
//! `RUSTFLAGS="--cfg loom" cargo test -p penstock-ring --release --test loom`.
#![cfg(loom)]

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use loom::sync::{Arc, Mutex};
use loom::thread;
use penstock_ring::{
    CounterCell, Full, GateWriter, Hazard, LowWater, Observation, ReadyBits, RingLine, SharedRef, Slab, Withdrawal,
    bell, bounce, gate, mpsc, spsc,
};

/// Five find nothing more and take ten times as long; without a bound only the slab's model does
/// not end within a minute.
const PREEMPTIONS: usize = 3;

fn model(body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(body);
}

/// Plain memory: loom fails the model when two accesses are not ordered.
struct Plain<T>(UnsafeCell<T>);

// SAFETY: this is what the models are to prove; loom checks every access.
unsafe impl<T> Sync for Plain<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Plain<T> {}

impl<T: Copy> Plain<T> {
    fn new(value: T) -> Self {
        Self(UnsafeCell::new(value))
    }

    fn read(&self) -> T {
        // SAFETY: loom checks that no write is concurrent.
        self.0.with(|at| unsafe { *at })
    }

    fn write(&self, value: T) {
        // SAFETY: loom checks that no other access is concurrent.
        self.0.with_mut(|at| unsafe { *at = value });
    }
}

fn line(value: u64) -> RingLine {
    RingLine([value; 8])
}

// Rings

#[test]
fn spsc_hands_over_whole_batches() {
    for quietly in [false, true] {
        spsc_batches(quietly);
    }
}

fn spsc_batches(quietly: bool) {
    model(move || {
        let (mut producer, mut consumer) = spsc::pair(2).unwrap();
        let pusher = thread::spawn(move || {
            producer.push(&[line(1), line(2)]).unwrap();
            while producer.push(&[line(3)]).is_err() {
                thread::yield_now();
            }
        });
        let mut expected = 1;
        while expected <= 3 {
            let count = consumer.available().unwrap();
            assert!(expected > 1 || count != 1, "half a batch");
            for index in 0..count {
                assert_eq!(consumer.peek(index), Some(line(expected)));
                expected += 1;
            }
            if quietly {
                consumer.release_quietly(count);
            } else {
                assert!(!consumer.release(count));
            }
            if count == 0 {
                thread::yield_now();
            }
        }
        pusher.join().unwrap();
    });
}

#[test]
fn spsc_never_forgets_a_waiting_producer() {
    for quietly in [false, true] {
        model(move || {
            let (mut producer, mut consumer) = spsc::pair(1).unwrap();
            producer.push(&[line(1)]).unwrap();
            let waiter = thread::spawn(move || {
                let slept = producer.mark_waiting() == 0;
                if !slept {
                    producer.clear_waiting();
                }
                slept
            });
            assert_eq!(consumer.available(), Ok(1));
            let rung = if quietly {
                consumer.release_quietly(1);
                consumer.take_waiting()
            } else {
                consumer.release(1)
            };
            let slept = waiter.join().unwrap();
            assert!(!slept || rung, "the producer sleeps on a ring with space");
        });
    }
}

#[test]
fn mpsc_delivers_every_value_once() {
    model(|| {
        let (sender, mut receiver) = mpsc::channel::<Box<u32>>(2);
        let pushers: Vec<_> = [10, 20]
            .into_iter()
            .map(|from| {
                let sender = sender.clone();
                thread::spawn(move || sender.push(Box::new(from)).unwrap())
            })
            .collect();
        let mut got = Vec::new();
        while got.len() < 2 {
            match receiver.pop() {
                Some(value) => got.push(*value),
                None => thread::yield_now(),
            }
        }
        got.sort_unstable();
        assert_eq!(got, [10, 20]);
        for pusher in pushers {
            pusher.join().unwrap();
        }
    });
}

#[test]
fn mpsc_reuses_slots_and_drops_leftovers() {
    model(|| {
        let (sender, mut receiver) = mpsc::channel::<Arc<u32>>(2);
        let pusher = thread::spawn(move || {
            let mut refused = 0;
            for value in 0..3 {
                if let Err(Full(back)) = sender.push(Arc::new(value)) {
                    assert_eq!(*back, value);
                    refused += 1;
                }
            }
            refused
        });
        let first = receiver.pop();
        assert!(first.is_none_or(|value| *value == 0));
        let refused = pusher.join().unwrap();
        assert!(refused <= 1);
        // What is left is dropped with the receiver: loom fails the model for a leaked Arc.
    });
}

// Slab

#[test]
fn slab_items_have_one_owner() {
    model(|| {
        let slab = Arc::new(Slab::new(2, |_| Plain::new(0u32)));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let slab = Arc::clone(&slab);
                thread::spawn(move || {
                    for _ in 0..2 {
                        let key = slab.claim().expect("two items for two users");
                        let item = slab.get(key).unwrap();
                        item.write(item.read() + 1);
                        slab.release(key).unwrap();
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let total: u32 = slab.items().map(|(_, item)| item.read()).sum();
        assert_eq!(total, 4);
    });
}

#[test]
fn slab_survives_a_head_that_came_back() {
    model(|| {
        let slab = Arc::new(Slab::new(2, |_| Plain::new(0u32)));
        let other = Arc::clone(&slab);
        // Takes both and gives back only the first: the head looks as before, its next does not.
        let thread = thread::spawn(move || {
            let first = other.claim()?;
            let second = other.claim();
            other.release(first).unwrap();
            second
        });
        let mine = slab.claim();
        let theirs = thread.join().unwrap();
        if let (Some(mine), Some(theirs)) = (mine, theirs) {
            assert_ne!(mine.index, theirs.index);
        }
        let held = mine.iter().count() + theirs.iter().count();
        let left = std::iter::from_fn(|| slab.claim()).count();
        assert_eq!(held + left, 2);
    });
}

#[test]
fn slab_releases_once() {
    model(|| {
        let slab = Arc::new(Slab::new(1, |_| ()));
        let key = slab.claim().unwrap();
        let other = Arc::clone(&slab);
        let thread = thread::spawn(move || other.release(key).is_ok());
        let mine = slab.release(key).is_ok();
        assert!(mine ^ thread.join().unwrap());
        assert!(slab.claim().is_some() && slab.claim().is_none());
    });
}

// Gate

fn withdrawal(number: u64) -> Withdrawal {
    Withdrawal { region: number as u32, generation: 1, offset: number, len: number }
}

/// The heart of a revocation: once the owner has seen every hazard quiet or moved, nothing that
/// a copier does reaches the memory, and all that it did is visible.
#[test]
fn gate_nothing_lands_after_quiescence() {
    for sections in [1, 2] {
        model(move || {
            let memory = Arc::new(Plain::new(0u64));
            let mut writer = GateWriter::heap(1);
            let gate = writer.reader();
            let mut hazard = Hazard::heap();
            let view = hazard.view();
            let target = Arc::clone(&memory);
            let copier = thread::spawn(move || {
                for _ in 0..sections {
                    hazard.enter(7);
                    if gate.revision() == 0 {
                        target.write(1);
                    }
                    hazard.leave();
                }
            });
            writer.withdraw(&[withdrawal(1)]);
            let seen = view.observe();
            if let Observation::Busy { peer_index, .. } = seen {
                assert_eq!(peer_index, 7);
            }
            while !view.has_moved_since(seen) {
                thread::yield_now();
            }
            // Loom fails here, or in the copier's write, when the two are not ordered.
            memory.write(2);
            copier.join().unwrap();
            assert_eq!(memory.read(), 2);
        });
    }
}

/// The same for what ends by itself later: once the low water has passed the withdrawal, nothing that was begun before it
/// touches the memory, and all that it did is visible. A second thing begins while the first is under way or after it.
#[test]
fn gate_nothing_lands_after_the_low_water_has_passed() {
    for overlapping in [false, true] {
        model(move || {
            let memory = Arc::new(Plain::new(0u64));
            let mut writer = GateWriter::heap(1);
            let reader = writer.reader();
            let mut low = LowWater::heap();
            let view = low.view();
            let target = Arc::clone(&memory);
            let beginner = thread::spawn(move || {
                low.begin(0);
                let first = reader.revision() == 0;
                if first && !overlapping {
                    target.write(1);
                }
                if !overlapping || !first {
                    low.ended(gate::NOTHING);
                }
                low.begin(0);
                if reader.revision() == 0 {
                    target.write(1);
                }
                low.ended(gate::NOTHING);
            });
            let revision = writer.withdraw(&[withdrawal(1)]);
            while !view.has_passed(revision) {
                thread::yield_now();
            }
            // Loom fails here, or in the beginner's write, when the two are not ordered.
            memory.write(2);
            beginner.join().unwrap();
            assert_eq!(memory.read(), 2);
        });
    }
}

#[test]
fn gate_entries_are_whole_or_lapped() {
    model(|| {
        let mut writer = GateWriter::heap(1);
        let reader = writer.reader();
        let thread = thread::spawn(move || {
            writer.withdraw(&[withdrawal(1)]);
            writer.withdraw(&[withdrawal(2)]);
        });
        if let Ok(answer) = reader.withdrawals_since(0) {
            let expected: Vec<_> = (1..=answer.revision).map(withdrawal).collect();
            assert_eq!(answer.list, expected);
        }
        thread.join().unwrap();
        assert!(reader.withdrawals_since(0).is_err());
        assert_eq!(reader.withdrawals_since(1).unwrap().list, [withdrawal(2)]);
    });
}

// Waking up

#[test]
fn bell_loses_no_wake_up() {
    model(|| {
        let (sleeper, ringer) = bell::pair();
        let work = Arc::new(AtomicU64::new(0));
        let source = Arc::clone(&work);
        let thread = thread::spawn(move || {
            source.store(1, Ordering::Relaxed);
            ringer.must_ring()
        });
        sleeper.prepare();
        let slept = work.load(Ordering::Relaxed) == 0;
        if !slept {
            sleeper.awake();
        }
        let rung = thread.join().unwrap();
        assert!(!slept || rung, "asleep with work to do");
    });
}

#[test]
fn bell_is_rung_by_one_of_two() {
    model(|| {
        let (sleeper, ringer) = bell::pair();
        sleeper.prepare();
        let other = ringer.clone();
        let thread = thread::spawn(move || other.must_ring());
        let mine = ringer.must_ring();
        assert!(mine ^ thread.join().unwrap());
    });
}

/// Ringers that know nothing of each other: whoever has rung for one sleep rings for the next one as well, and none keeps the other quiet.
#[test]
fn bell_is_rung_by_each_for_each_sleep() {
    model(|| {
        let (sleeper, ringer) = bell::pair();
        let work = [Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0))];
        let other = sleeper.ringer();
        let source = Arc::clone(&work[0]);
        let descriptor = Arc::new(AtomicBool::new(false));
        let rung = Arc::clone(&descriptor);
        let thread = thread::spawn(move || {
            for piece in 1..=2 {
                source.store(piece, Ordering::Relaxed);
                if other.must_ring() {
                    rung.store(true, Ordering::Release);
                }
            }
        });
        let mut seen = 0;
        for _ in 0..2 {
            // Silenced behind each sleep.
            descriptor.swap(false, Ordering::AcqRel);
            sleeper.prepare();
            seen = work[0].load(Ordering::Relaxed);
            if seen == 2 {
                sleeper.awake();
                break;
            }
        }
        work[1].store(1, Ordering::Relaxed);
        let mine = ringer.must_ring();
        thread.join().unwrap();
        assert!(mine ^ (seen == 2), "asleep, and not rung by this one");
        assert!(seen == 2 || descriptor.load(Ordering::Acquire), "asleep in the second sleep with work to do");
    });
}

/// Two pieces of work, one bit. Whatever the taker does in between, after the last look either it
/// has seen both, or the bit is still set.
#[test]
fn ready_loses_no_mark() {
    model(|| {
        let ready = ReadyBits::heap(1);
        let work = Arc::new(AtomicU64::new(0));
        let (marker, source) = (ready.clone(), Arc::clone(&work));
        let thread = thread::spawn(move || {
            for piece in 1..=2 {
                source.store(piece, Ordering::Relaxed);
                marker.mark(0);
            }
        });
        let mut seen = 0;
        if ready.take(0) != 0 {
            seen = work.load(Ordering::Relaxed);
            assert!(seen >= 1, "the bit without its work");
        }
        thread.join().unwrap();
        assert!(seen == 2 || ready.take(0) == 1, "work without a bit");
    });
}

/// The bit and the bell behind one barrier, with a worker that takes, looks again and sleeps.
#[test]
fn ready_and_bell_lose_nothing() {
    model(|| {
        let ready = ReadyBits::heap(1);
        let (sleeper, ringer) = bell::pair();
        let work = Arc::new(AtomicU64::new(0));
        let (marker, source) = (ready.clone(), Arc::clone(&work));
        let thread = thread::spawn(move || {
            let mut rung = false;
            for piece in 1..=2 {
                source.store(piece, Ordering::Relaxed);
                rung |= marker.mark_and_ring(0, &ringer);
            }
            rung
        });
        let mut seen = 0;
        if ready.take(0) != 0 {
            seen = work.load(Ordering::Relaxed);
        }
        sleeper.prepare();
        let slept = ready.is_empty();
        let rung = thread.join().unwrap();
        assert!(seen == 2 || !slept || rung, "asleep with work to do");
        assert!(seen == 2 || ready.take(0) == 1, "work without a bit");
    });
}

/// Two markers of one bit: the one that finds it set leaves the ringing to chance no more than
/// the one that set it.
#[test]
fn ready_and_bell_with_two_markers() {
    model(|| {
        let ready = ReadyBits::heap(1);
        let (sleeper, ringer) = bell::pair();
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (marker, ringer) = (ready.clone(), ringer.clone());
                thread::spawn(move || marker.mark_and_ring(0, &ringer))
            })
            .collect();
        sleeper.prepare();
        let slept = ready.is_empty();
        let rung = threads.into_iter().map(|thread| thread.join().unwrap()).filter(|rung| *rung).count();
        assert!(!slept || rung == 1, "asleep with a bit set");
    });
}

// Counter

/// The kernel's part of a futex: compare and sleep, or wake, as one step each.
#[derive(Default)]
struct Futex {
    asleep: Mutex<bool>,
}

#[test]
fn counter_wakes_its_waiter_and_shows_the_bytes() {
    model(|| {
        let cell = SharedRef::heap(CounterCell::default());
        let futex = Arc::new(Futex::default());
        let bytes = Arc::new(Plain::new(0u64));
        let (counted, kernel, target) = (cell.clone(), Arc::clone(&futex), Arc::clone(&bytes));
        let adder = thread::spawn(move || {
            target.write(5);
            if counted.count(0) == Some(true) {
                *kernel.asleep.lock().unwrap() = false;
            }
        });
        cell.add_waiter();
        let tick = cell.ticks();
        let arrived = cell.value() >= 1;
        if arrived {
            assert_eq!(bytes.read(), 5);
        } else {
            let mut asleep = futex.asleep.lock().unwrap();
            *asleep = cell.futex_word().load(Ordering::Relaxed) == tick;
        }
        adder.join().unwrap();
        assert!(!*futex.asleep.lock().unwrap(), "asleep after the arrival");
        cell.remove_waiter();
        assert_eq!(cell.value(), 1);
    });
}

/// Who is late counts for the use that it was for, or for none.
#[test]
fn counter_of_another_use_takes_no_late_count() {
    model(|| {
        let cell = SharedRef::heap(CounterCell::default());
        cell.begin_use(1);
        let late = cell.clone();
        let initiator = thread::spawn(move || late.count(1).is_some());
        let counted = cell.begin_use(0);
        cell.begin_use(2);
        let was_counted = initiator.join().unwrap();
        assert_eq!((counted, cell.value()), (u64::from(was_counted), 0));
    });
}

// Bounce slots

/// The question and the bytes beside it cross in both directions, and a question that is taken back
/// was never begun.
#[test]
fn bounce_is_withdrawn_or_answered_and_never_both() {
    model(|| {
        let (mut requester, responder) = bounce::pair(1);
        let bytes = Arc::new(Plain::new(0u64));
        let theirs = Arc::clone(&bytes);
        bytes.write(10);
        requester.ask(&[1]);
        let owner = thread::spawn(move || {
            let mut question = [0];
            let taken = responder.take(&mut question)?;
            let found = (question[0], theirs.read());
            theirs.write(found.1 + 1);
            responder.answer(&taken, [found.1, 0]);
            Some(found)
        });
        let withdrawn = requester.try_cancel();
        if withdrawn {
            // The bytes are the requester's again, and the owner never touches them: loom would see it.
            bytes.write(77);
            assert_eq!(owner.join().unwrap(), None);
            return;
        }
        loop {
            match requester.look().unwrap() {
                bounce::BounceStage::Done(answer) => {
                    assert_eq!((answer, bytes.read()), ([10, 0], 11));
                    break;
                }
                stage => assert_ne!(stage, bounce::BounceStage::Posted, "withdrawing failed because it was taken"),
            }
            thread::yield_now();
        }
        requester.free();
        assert_eq!(owner.join().unwrap(), Some((1, 10)));
    });
}

/// A slot is used again after a withdrawal: whoever takes sees the second question whole.
#[test]
fn bounce_slots_are_used_again() {
    model(|| {
        let (mut requester, responder) = bounce::pair(2);
        let bytes = Arc::new(Plain::new(0u64));
        let theirs = Arc::clone(&bytes);
        bytes.write(1);
        requester.ask(&[1, 1]);
        let owner = thread::spawn(move || {
            for _ in 0..2 {
                let mut question = [0; 2];
                if let Some(taken) = responder.take(&mut question) {
                    assert_eq!(question, [theirs.read(); 2], "a question and the bytes of another");
                    responder.answer(&taken, question);
                }
            }
        });
        if requester.try_cancel() {
            bytes.write(2);
            requester.ask(&[2, 2]);
            if let bounce::BounceStage::Done(answer) = requester.look().unwrap() {
                assert_eq!(answer, [2, 2]);
            }
        }
        owner.join().unwrap();
    });
}
