//! Mailbox: what an engine and its peers both write.
//!
//! ```text
//! lines   ready bits: for each worker, one bit for each peer index
//! lines   arrival counters
//! ```
//!
//! It holds no messages: those are in rings of their own. A faulty peer can wake this engine or change its counters, as it
//! could write nonsense into the pools themselves; it cannot hide messages, since each lane is also polled in rotation.

use penstock_core::limits::{COUNTERS_MAX, LINE_BYTES, PEERS_MAX};
use penstock_memory::{MemoryError, Segment};
use penstock_ring::{CounterCell, CounterTable, ReadyBits, SharedRange};

use rustix::thread::futex;

use super::bells::Bell;
use crate::CounterRef;
use crate::link::JoinError;

const READY_BYTES: usize = ReadyBits::bytes_for(PEERS_MAX);

struct Layout {
    counters: usize,
    end: usize,
}

const fn layout(workers: usize) -> Layout {
    let counters = (workers * READY_BYTES).next_multiple_of(LINE_BYTES);
    Layout { counters, end: counters + CounterTable::bytes_for(COUNTERS_MAX) }
}

/// Bytes of the mailbox of an engine with so many workers.
pub const fn mailbox_bytes(workers: usize) -> usize {
    layout(workers).end
}

/// This engine's own mailbox.
pub struct Mailbox {
    segment: Segment,
    view: MailboxView,
}

impl Mailbox {
    /// A fresh mailbox for an engine with so many workers.
    pub fn create(workers: usize) -> Result<Self, MemoryError> {
        let segment = Segment::create("penstock-mailbox", mailbox_bytes(workers) as u64)?;
        let view = MailboxView::over(segment.range(), workers).expect("this is our own, whole mailbox");
        Ok(Self { segment, view })
    }

    /// The segment, to be passed to peers.
    pub fn segment(&self) -> &Segment {
        &self.segment
    }

    /// The mailbox as peers see it.
    pub fn view(&self) -> &MailboxView {
        &self.view
    }
}

/// An engine's mailbox as its peers see it.
#[derive(Clone)]
pub struct MailboxView {
    range: SharedRange,
    counters: CounterTable,
}

impl MailboxView {
    /// Looks at the mailbox of an engine with so many workers.
    pub fn over(range: SharedRange, workers: usize) -> Result<Self, JoinError> {
        let layout = layout(workers);
        if range.len() < layout.end {
            return Err(JoinError::Malformed("its mailbox is too small for its workers"));
        }
        let counters = range.slice(layout.counters, CounterTable::bytes_for(COUNTERS_MAX));
        let counters = counters.and_then(|range| CounterTable::mapped(&range, COUNTERS_MAX).ok());
        let counters = counters.ok_or(JoinError::Malformed("its mailbox holds no counters"))?;
        Ok(Self { range, counters })
    }

    /// The ready bits of a worker.
    pub fn ready(&self, worker: usize) -> ReadyBits {
        ReadyBits::mapped(&self.range, worker * READY_BYTES, PEERS_MAX).expect("ready bits are bounded by the workers")
    }

    /// An arrival counter's cell.
    #[inline]
    pub fn counter(&self, index: u32) -> Option<&CounterCell> {
        self.counters.cell(index as usize)
    }

    /// Increments a counter and wakes who waits for it or, by the application's bell, for anything. False if the counter does not
    /// exist any more.
    #[inline]
    pub fn increment_counter(&self, counter: CounterRef, application: &Bell) -> bool {
        let Some(cell) = self.counter(counter.index) else { return false };
        // A counter that is gone, or whose index has a new use, is not touched.
        let Some(has_waiters) = cell.count(counter.generation) else { return false };
        if has_waiters {
            // Not private: the waiter may be another process. Fails only if nobody waits any more.
            let _ = futex::wake(cell.futex_word(), futex::Flags::empty(), i32::MAX as u32);
        }
        application.ring_after_barrier();
        true
    }
}
