//! Timers of transfers. The control loop asks for the next one in each turn, which must not cost a look at every transfer.
//!
//! Nearly every transfer ends long before its time. Its timer stays where it is then, and goes when it comes up first, or when more than
//! half of them are such: so nothing is looked for among many.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use penstock_core::Timestamp;
use penstock_session::transfers::table::EntryKey;

/// So many that nobody waits for are no loss.
const STALE_MIN: usize = 64;

/// Transfers by the moment that each waits for.
#[derive(Debug, Default)]
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(Timestamp, EntryKey)>>,
    /// How many transfers wait for a moment.
    wanted: usize,
}

impl Timers {
    /// A transfer waits for this moment.
    pub(super) fn arm(&mut self, at: Timestamp, key: EntryKey) {
        self.heap.push(Reverse((at, key)));
        self.wanted += 1;
    }

    /// A transfer does not wait any more for the moment for which it did.
    pub(super) fn disarmed(&mut self) {
        self.wanted -= 1;
    }

    /// The first of all.
    pub(super) fn first(&self) -> Option<(Timestamp, EntryKey)> {
        self.heap.peek().map(|Reverse(first)| *first)
    }

    /// Takes it out.
    pub(super) fn take_first(&mut self) {
        self.heap.pop();
    }

    /// Takes out what nobody waits for, until the first is one that somebody waits for; all of it, if it is more than the others.
    pub(super) fn settle(&mut self, is_wanted: impl Fn(Timestamp, EntryKey) -> bool) {
        while let Some(Reverse((at, key))) = self.heap.peek()
            && !is_wanted(*at, *key)
        {
            self.heap.pop();
        }
        if self.heap.len() > STALE_MIN + 2 * self.wanted {
            self.heap.retain(|Reverse((at, key))| is_wanted(*at, *key));
            if self.heap.len() > self.wanted {
                // Who has waited for one moment, for another and for the first again stands there twice.
                let mut timers = std::mem::take(&mut self.heap).into_sorted_vec();
                timers.dedup();
                self.heap = timers.into();
            }
        }
    }

    /// How many transfers wait for a moment.
    pub(super) fn wanted(&self) -> usize {
        self.wanted
    }

    /// All of them, in no order, and those that nobody waits for.
    pub(super) fn iter(&self) -> impl Iterator<Item = (Timestamp, EntryKey)> + '_ {
        self.heap.iter().map(|Reverse(timer)| *timer)
    }

    /// Gives back memory that a peak has left behind.
    pub(super) fn shrink(&mut self) {
        if self.heap.len() < self.heap.capacity() / 8 {
            self.heap.shrink_to(self.heap.len() * 2);
        }
    }
}

#[cfg(test)]
mod tests;
