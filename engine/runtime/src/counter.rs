//! Arrival counters: cells in this engine's mailbox that peers count up.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use penstock_core::limits::COUNTERS_MAX;
use penstock_core::{Cause, Env};
use penstock_ring::CounterCell;
use penstock_session::CounterNews;
use penstock_transport::host::MailboxView;
use rustix::thread::futex;

use crate::engine_inner::EngineInner;

/// The longest sleep between two looks at a counter.
const SLEEP_MAX: Duration = Duration::from_millis(100);

/// A cell is used again after so many others: numbers of uses come round the later.
const RESTING: usize = 64;

/// The counters of one engine.
pub(crate) struct CounterBook {
    mailbox: MailboxView,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The label and region of each used cell, by index.
    used: Vec<Option<(String, u32)>>,
    generations: Vec<u32>,
    /// Cells that are not used, those that were used last behind.
    free: VecDeque<u32>,
    /// Arrivals counted by counters that are closed, so that the total never goes down.
    retired: u64,
    /// Goes up with every change, so that the control loop sees it.
    revision: u64,
}

impl CounterBook {
    pub(crate) fn new(mailbox: MailboxView) -> Self {
        Self { mailbox, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cell(&self, index: u32) -> &CounterCell {
        self.mailbox.counter(index).expect("the book only gives out indices of its table")
    }

    fn open(&self, label: &str, region: u32) -> Option<(u32, u32)> {
        let mut state = self.lock();
        let next = state.used.len();
        let is_fresh = next < COUNTERS_MAX && state.free.len() < RESTING;
        let index = if is_fresh { next } else { state.free.pop_front()? as usize };
        if is_fresh {
            state.used.push(None);
            state.generations.push(0);
        }
        state.used[index] = Some((label.to_owned(), region));
        let generation = state.generations[index] % CounterCell::GENERATION_MAX + 1;
        state.generations[index] = generation;
        self.cell(index as u32).begin_use(generation);
        state.revision += 1;
        Some((index as u32, generation))
    }

    fn close(&self, index: u32) {
        let mut state = self.lock();
        // No peer knows use 0: who is late counts for none.
        state.retired = state.retired.wrapping_add(self.cell(index).begin_use(0));
        state.used[index as usize] = None;
        state.free.push_back(index);
        state.revision += 1;
    }

    pub(crate) fn revision(&self) -> u64 {
        self.lock().revision
    }

    /// All counters, as they are announced.
    pub(crate) fn news(&self) -> Vec<CounterNews> {
        let state = self.lock();
        let used = state.used.iter().zip(&state.generations).enumerate();
        used.filter_map(|(index, (used, &generation))| {
            let (label, region) = used.clone()?;
            Some(CounterNews { id: index as u32, generation, region, label })
        })
        .collect()
    }

    /// All arrivals counted by all counters; changes when there is something new.
    pub(crate) fn total(&self) -> u64 {
        let state = self.lock();
        let used = state.used.iter().enumerate().filter(|(_, used)| used.is_some());
        used.map(|(index, _)| self.cell(index as u32).value()).fold(state.retired, u64::wrapping_add)
    }
}

/// An arrival counter of this engine: goes up by one for each transfer that names it, once all its
/// bytes have landed. Closed when dropped.
pub struct Counter<E: Env> {
    engine: Arc<EngineInner<E>>,
    label: String,
    index: u32,
}

impl<E: Env> Counter<E> {
    pub(crate) fn open(engine: &Arc<EngineInner<E>>, label: &str, region: u32) -> Option<Self> {
        let (index, _) = engine.shared.counters.open(label, region)?;
        Some(Self { engine: Arc::clone(engine), label: label.to_owned(), index })
    }

    /// The label peers find it by.
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Arrivals so far. Whoever sees one sees the bytes that came before it.
    #[inline]
    pub fn value(&self) -> u64 {
        self.cell().value()
    }

    /// Waits until at least `count` arrivals were counted. Answers whether they were.
    pub fn wait(&self, count: u64, timeout: Duration) -> bool {
        if self.engine.shared.is_inherited() {
            return self.value() >= count;
        }
        let env = &self.engine.shared.env;
        let until = env.now() + timeout;
        let is_closing = || self.engine.shared.is_closing();
        if self.engine.is_inline() {
            self.engine.wait_until(until, || self.value() >= count || is_closing());
            return self.value() >= count;
        }
        let cell = self.cell();
        loop {
            let ticks = cell.ticks();
            if cell.value() >= count {
                return true;
            }
            let left = until.since(env.now());
            if left.is_zero() || is_closing() {
                return false;
            }
            cell.add_waiter();
            if cell.value() < count {
                // Bounded: a peer that scribbles over the mailbox may silence the wake-up.
                let timeout = futex::Timespec::try_from(left.min(SLEEP_MAX)).ok();
                // Not private: another process wakes us. Returns at once if a tick came in between.
                let _ = futex::wait(cell.futex_word(), futex::Flags::empty(), ticks, timeout.as_ref());
            }
            cell.remove_waiter();
        }
    }

    /// Why it does not go up any more, if so: its engine was closed, or this process is a fork.
    pub fn ended(&self) -> Option<Cause> {
        self.engine.shared.check_usable().err()
    }

    fn cell(&self) -> &CounterCell {
        self.engine.shared.counters.cell(self.index)
    }
}

impl<E: Env> Drop for Counter<E> {
    fn drop(&mut self) {
        if self.engine.shared.is_inherited() {
            return; // The mailbox is the parent's as well, and its counter goes on.
        }
        self.engine.shared.counters.close(self.index);
    }
}

impl<E: Env> std::fmt::Debug for Counter<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Counter").field("label", &self.label).field("value", &self.value()).finish()
    }
}
