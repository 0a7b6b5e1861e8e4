//! The one credit type: the right, granted by a receiver, to use so many of its slots or bytes.
//!
//! Notifications, bytes in flight, relay slots and receive queues all count with it. The rule it
//! keeps is conservation: at every moment `available + outstanding == limit`, and neither is ever
//! below zero. Taking is all or nothing, so two parties that need several credits each can never
//! hold half of what both are waiting for.

use std::sync::atomic::{AtomicU64, Ordering};

/// A stock of credits that many threads may take from and give back to.
#[derive(Debug)]
pub struct Credits {
    available: AtomicU64,
    limit: u64,
}

/// Fewer credits are left than were asked for. Not a failure: try again when some came back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{asked} credits were asked for and {available} are left; wait for the receiver to give some back")]
pub struct Short {
    /// How many were asked for.
    pub asked: u64,
    /// How many were there.
    pub available: u64,
}

/// More credits were given back than are outstanding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{given} credits were given back but only {outstanding} are outstanding")]
pub struct Overflow {
    /// How many were given back.
    pub given: u64,
    /// How many were outstanding.
    pub outstanding: u64,
}

impl Credits {
    pub const fn new(limit: u64) -> Self {
        Self { available: AtomicU64::new(limit), limit }
    }

    /// The size of the stock.
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// How many can be taken now.
    pub fn available(&self) -> u64 {
        self.available.load(Ordering::Acquire) // SYNC credit: pairs with give_back()'s AcqRel
    }

    /// How many are taken now.
    pub fn outstanding(&self) -> u64 {
        self.limit - self.available()
    }

    /// Takes `count` credits, or none.
    pub fn take(&self, count: u64) -> Result<(), Short> {
        self.available
            // SYNC credit: pairs with give_back(): what the giver released before giving is seen.
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |available| available.checked_sub(count))
            .map(drop)
            .map_err(|available| Short { asked: count, available })
    }

    /// Gives `count` credits back, or changes nothing if that many are not outstanding.
    pub fn give_back(&self, count: u64) -> Result<(), Overflow> {
        self.available
            // SYNC credit: pairs with take()'s AcqRel.
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |available| {
                available.checked_add(count).filter(|&sum| sum <= self.limit)
            })
            .map(drop)
            .map_err(|available| Overflow { given: count, outstanding: self.limit - available })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Whatever is taken and given back, in whatever order, nothing appears or disappears.
        #[test]
        fn credits_are_conserved(limit in 0u64..1_000, steps in prop::collection::vec((any::<bool>(), 0u64..400), 0..200)) {
            let credits = Credits::new(limit);
            let mut held = 0u64;
            for (take, count) in steps {
                if take {
                    let could = held + count <= limit;
                    prop_assert_eq!(credits.take(count).is_ok(), could);
                    held += if could { count } else { 0 };
                } else {
                    let could = count <= held;
                    prop_assert_eq!(credits.give_back(count).is_ok(), could);
                    held -= if could { count } else { 0 };
                }
                prop_assert_eq!(credits.outstanding(), held);
                prop_assert_eq!(credits.available() + credits.outstanding(), limit);
            }
        }
    }

    #[test]
    fn credits_are_conserved_across_threads() {
        let credits = Credits::new(7);
        std::thread::scope(|scope| {
            for step in 1..=4u64 {
                let credits = &credits;
                scope.spawn(move || {
                    for _ in 0..10_000 {
                        if credits.take(step).is_ok() {
                            assert!(credits.outstanding() <= 7);
                            credits.give_back(step).unwrap();
                        }
                    }
                });
            }
        });
        assert_eq!(credits.available(), 7);
    }
}
