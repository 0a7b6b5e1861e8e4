//! Wake the other side only when it sleeps.
//!
//! One flag: set by who is about to sleep, taken by who brings work. The work itself lies
//! elsewhere (a ring, a queue, a bitmap), so both sides put a full barrier between their store
//! and their load: either the sleeper sees the work, or the ringer sees the flag.
//!
//! ```text
//! sleeper                          ringer
//! prepare()                        push the work
//! look for work; found: awake()    must_ring(): yes → write the eventfd
//! sleep on the eventfd
//! awake()
//! ```

#[cfg(not(loom))]
use crate::error::RingError;
use crate::shared::SharedRef;
#[cfg(not(loom))]
use crate::shared_range::SharedRange;
use crate::sync::{AtomicU32, Ordering, WithBarrier, full_barrier};

const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;

/// Bytes a bell takes in a place; give it a cache line of its own.
pub const BELL_BYTES: usize = 64;

/// The side that sleeps.
#[derive(Debug)]
pub struct Sleeper {
    flag: SharedRef<AtomicU32>,
}

/// A side that brings work.
#[derive(Clone, Debug)]
pub struct Ringer {
    flag: SharedRef<AtomicU32>,
}

/// A bell inside this process.
pub fn pair() -> (Sleeper, Ringer) {
    let sleeper = Sleeper { flag: SharedRef::heap(AtomicU32::new(AWAKE)) };
    let ringer = sleeper.ringer();
    (sleeper, ringer)
}

impl Sleeper {
    /// The bell at `offset` bytes of `place`.
    #[cfg(not(loom))]
    pub fn mapped(place: &SharedRange, offset: usize) -> Result<Self, RingError> {
        Ok(Self { flag: place.cell(offset)? })
    }

    /// A ringer of this bell, for threads of this process.
    pub fn ringer(&self) -> Ringer {
        Ringer { flag: self.flag.clone() }
    }

    /// Announces that this side is about to sleep. Look for work once more after it, and sleep
    /// only when there is none.
    #[inline]
    pub fn prepare(&self) {
        // SYNC sleep: pairs with the barrier in `Ringer::must_ring`.
        self.flag.store_then_barrier(ASLEEP);
    }

    /// Awake again, or not asleep after all. A ringer that took the flag before may still ring
    /// once for nothing.
    #[inline]
    pub fn awake(&self) {
        self.flag.store(AWAKE, Ordering::Relaxed);
    }
}

impl Ringer {
    /// The bell at `offset` bytes of `place`.
    #[cfg(not(loom))]
    pub fn mapped(place: &SharedRange, offset: usize) -> Result<Self, RingError> {
        Ok(Self { flag: place.cell(offset)? })
    }

    /// Call after the work is published. `true` tells exactly one ringer to wake the sleeper.
    #[inline]
    #[must_use = "the sleeper stays asleep unless it is woken"]
    pub fn must_ring(&self) -> bool {
        // SYNC sleep: pairs with the barrier in `Sleeper::prepare`.
        full_barrier();
        self.take_flag()
    }

    /// The second half of [`Ringer::must_ring`], for who has just been through a full barrier after
    /// publishing, as [`crate::CounterCell::count`] goes through one.
    #[inline]
    #[must_use = "the sleeper stays asleep unless it is woken"]
    pub fn take_flag(&self) -> bool {
        // The load keeps the line shared while the other side is awake, which is the usual case.
        self.flag.load(Ordering::Relaxed) != AWAKE && self.flag.swap(AWAKE, Ordering::Relaxed) != AWAKE
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
        sleeper.prepare();
        sleeper.awake();
        assert!(!ringer.must_ring());
    }

    #[test]
    fn the_two_sides_meet_in_a_place() {
        let place = SharedRange::heap(2 * BELL_BYTES);
        let sleeper = Sleeper::mapped(&place, BELL_BYTES).unwrap();
        let ringer = Ringer::mapped(&place, BELL_BYTES).unwrap();
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
