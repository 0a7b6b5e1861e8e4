//! Wake the other side only when it sleeps.
//!
//! One word, which only the sleeper writes: the number of its sleep, odd while it sleeps. Ringers look at it and write nothing there, so
//! that it can lie in memory that they may only read: none of them can make the others believe that the sleeper is awake. Each rings once for
//! each sleep. The work itself lies elsewhere (a ring, a queue, a bitmap), so both sides put a full barrier between their store and their
//! load: either the sleeper sees the work, or the ringer sees that it sleeps.
//!
//! ```text
//! sleeper                          ringer
//! prepare()                        push the work
//! look for work; found: awake()    must_ring(): yes → write to the descriptor
//! sleep on the descriptor
//! awake()
//! ```

#[cfg(not(loom))]
use crate::error::RingError;
use crate::shared::SharedRef;
#[cfg(not(loom))]
use crate::shared_range::SharedRange;
use crate::sync::{AtomicU64, Ordering, WithBarrier, fence, full_barrier};

/// Set in the number of a sleep that has not ended.
const ASLEEP: u64 = 1;

/// Bytes a bell takes in a place; give it a cache line of its own.
pub const BELL_BYTES: usize = 64;

/// The side that sleeps.
#[derive(Debug)]
pub struct Sleeper {
    sleep: SharedRef<AtomicU64>,
}

/// A side that brings work. Its clones ring once for each sleep between them.
#[derive(Clone, Debug)]
pub struct Ringer {
    sleep: SharedRef<AtomicU64>,
    /// The last sleep that this one has rung for.
    rung: SharedRef<AtomicU64>,
}

/// A bell inside this process.
pub fn pair() -> (Sleeper, Ringer) {
    let sleeper = Sleeper { sleep: SharedRef::heap(AtomicU64::new(0)) };
    let ringer = sleeper.ringer();
    (sleeper, ringer)
}

impl Sleeper {
    /// The bell at `offset` bytes of `place`.
    #[cfg(not(loom))]
    pub fn mapped(place: &SharedRange, offset: usize) -> Result<Self, RingError> {
        Ok(Self { sleep: place.cell(offset)? })
    }

    /// A ringer of this bell.
    pub fn ringer(&self) -> Ringer {
        Ringer::of(self.sleep.clone())
    }

    /// Announces that this side is about to sleep. Look for work once more after it, and sleep
    /// only when there is none.
    #[inline]
    pub fn prepare(&self) {
        // SYNC sleep: pairs with the barrier in `Ringer::must_ring`. A sleep that has not ended is followed by a new one: whoever
        // has rung for it rings again.
        self.sleep.step_then_barrier(|last| Some(last + 1 + (last & ASLEEP)));
    }

    /// Awake again, or not asleep after all. A ringer that saw the sleep may still ring once for nothing.
    #[inline]
    pub fn awake(&self) {
        let sleep = self.sleep.load(Ordering::Relaxed);
        if sleep & ASLEEP != 0 {
            // Fails only if another thread prepares for a sleep of its own, which is not ended by this.
            let _ = self.sleep.compare_exchange(sleep, sleep + 1, Ordering::Relaxed, Ordering::Relaxed);
        }
    }
}

impl Ringer {
    /// The bell at `offset` bytes of `place`, which may be read-only.
    #[cfg(not(loom))]
    pub fn mapped(place: &SharedRange, offset: usize) -> Result<Self, RingError> {
        Ok(Self::of(place.readable_cell(offset)?))
    }

    fn of(sleep: SharedRef<AtomicU64>) -> Self {
        Self { sleep, rung: SharedRef::heap(AtomicU64::new(0)) }
    }

    /// Call after the work is published. `true`: wake the sleeper.
    #[inline]
    #[must_use = "the sleeper stays asleep unless it is woken"]
    pub fn must_ring(&self) -> bool {
        // SYNC sleep: pairs with the barrier in `Sleeper::prepare`.
        full_barrier();
        self.is_first()
    }

    /// The second half of [`Ringer::must_ring`], for who has just been through a full barrier after
    /// publishing, as [`crate::CounterCell::count`] goes through one.
    #[inline]
    #[must_use = "the sleeper stays asleep unless it is woken"]
    pub fn is_first(&self) -> bool {
        let sleep = self.sleep.load(Ordering::Relaxed);
        if sleep & ASLEEP == 0 || self.rung.swap(sleep, Ordering::Relaxed) == sleep {
            return false;
        }
        // SYNC silence: pairs with the release in `Sleeper::prepare`. What was silenced before this sleep does not take this ring away.
        fence(Ordering::Acquire);
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn rings_once_per_sleep() {
        let (sleeper, ringer) = pair();
        assert!(!ringer.must_ring());
        sleeper.prepare();
        assert!(ringer.must_ring());
        assert!(!ringer.clone().must_ring());
        assert!(sleeper.ringer().must_ring(), "another one rings by itself");
        sleeper.prepare();
        assert!(ringer.must_ring(), "a new sleep follows at once");
        sleeper.prepare();
        sleeper.awake();
        assert!(!ringer.must_ring());
        sleeper.awake();
        assert!(!ringer.must_ring());
        sleeper.prepare();
        assert!(ringer.must_ring());
    }

    #[test]
    fn the_two_sides_meet_in_a_place() {
        let place = SharedRange::heap(2 * BELL_BYTES);
        let sleeper = Sleeper::mapped(&place, BELL_BYTES).unwrap();
        let ringer = Ringer::mapped(&place.without_writing(), BELL_BYTES).unwrap();
        sleeper.prepare();
        assert!(ringer.must_ring());
        assert!(Ringer::mapped(&place, 2 * BELL_BYTES).is_err());
    }

    #[test]
    fn no_wake_up_is_lost_between_threads() {
        use std::sync::Arc;
        use std::sync::atomic::AtomicU64;
        use std::sync::mpsc::channel;

        const ROUNDS: u64 = 20_000;
        let (sleeper, ringer) = pair();
        let work = Arc::new(AtomicU64::new(0));
        let (eventfd, wakes) = channel();
        let done = Arc::clone(&work);
        let thread = std::thread::spawn(move || {
            loop {
                sleeper.prepare();
                if done.load(Ordering::Relaxed) == ROUNDS {
                    return;
                }
                // Every piece of work may have been seen before; the last one wakes us for sure.
                wakes.recv().unwrap();
                sleeper.awake();
            }
        });
        for round in 1..=ROUNDS {
            work.store(round, Ordering::Relaxed);
            if ringer.must_ring() {
                // The receiver may have finished without us.
                let _ = eventfd.send(());
            }
        }
        thread.join().unwrap();
    }
}
