//! Bounded queues to whoever wants to know. A queue that is full loses nothing silently: it says how much it has lost, and gives nothing
//! more until its owner has taken a snapshot.

use penstock_core::planted::{self, Bug};
use std::collections::{BTreeMap, VecDeque};

/// The most that one queue may be asked to hold.
pub const QUEUE_MAX: usize = 1 << 20;

/// Somebody who is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subscriber(u64);

/// How much a subscriber has missed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lag {
    /// So many notices were lost since the last snapshot. While it is not zero nothing is given out: take a snapshot.
    pub lost: u64,
}

/// Why nobody can be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SubscribeError {
    /// There are enough of them.
    #[error("there are {most} subscribers already, which are all there may be: let one go first")]
    TooMany {
        /// How many there may be.
        most: usize,
    },
    /// A queue of this length is no use, or too long.
    #[error("a subscriber's queue holds 1 to {QUEUE_MAX} notices, not {asked}")]
    Length {
        /// What was asked for.
        asked: usize,
    },
    /// It was let go, or never was one.
    #[error("there is no such subscriber: subscribe again, and begin with the snapshot")]
    Unknown,
}

struct Queue<T> {
    most: usize,
    waiting: VecDeque<T>,
    lost: u64,
}

/// A stream of notices to several subscribers.
pub(super) struct Feed<T> {
    most: usize,
    next: u64,
    queues: BTreeMap<Subscriber, Queue<T>>,
    published: u64,
}

impl<T: Clone> Feed<T> {
    pub(super) fn new(most: usize) -> Self {
        Self { most, next: 0, queues: BTreeMap::new(), published: 0 }
    }

    /// Begins to tell somebody. What was before is not told: it is in the snapshot.
    pub(super) fn subscribe(&mut self, most: usize) -> Result<Subscriber, SubscribeError> {
        if !(1..=QUEUE_MAX).contains(&most) {
            return Err(SubscribeError::Length { asked: most });
        }
        if self.queues.len() >= self.most {
            return Err(SubscribeError::TooMany { most: self.most });
        }
        let subscriber = Subscriber(self.next);
        self.next += 1;
        self.queues.insert(subscriber, Queue { most, waiting: VecDeque::new(), lost: 0 });
        Ok(subscriber)
    }

    pub(super) fn unsubscribe(&mut self, subscriber: Subscriber) {
        self.queues.remove(&subscriber);
    }

    pub(super) fn publish(&mut self, notice: &T) {
        self.published += u64::from(!self.queues.is_empty());
        for queue in self.queues.values_mut() {
            if queue.lost > 0 {
                queue.lost += 1;
            } else if queue.waiting.len() < queue.most {
                queue.waiting.push_back(notice.clone());
            } else {
                // What waits is of no use without what follows, and the snapshot says both.
                queue.lost = if planted::is(Bug::LossUnsaid) { 0 } else { queue.waiting.len() as u64 + 1 };
                queue.waiting = VecDeque::new();
            }
        }
    }

    /// Gives out what waits, in its order.
    pub(super) fn take(&mut self, subscriber: Subscriber, out: &mut Vec<T>) -> Result<Lag, SubscribeError> {
        let queue = self.queues.get_mut(&subscriber).ok_or(SubscribeError::Unknown)?;
        out.extend(queue.waiting.drain(..));
        Ok(Lag { lost: queue.lost })
    }

    /// Begins anew: what waits, and what was lost, is in the snapshot that the caller takes now.
    pub(super) fn restart(&mut self, subscriber: Subscriber) -> Result<(), SubscribeError> {
        let queue = self.queues.get_mut(&subscriber).ok_or(SubscribeError::Unknown)?;
        queue.waiting = VecDeque::new();
        queue.lost = 0;
        Ok(())
    }

    /// How many notices there were for somebody.
    pub(super) fn published(&self) -> u64 {
        self.published
    }

    pub(super) fn len(&self) -> usize {
        self.queues.len()
    }
}
