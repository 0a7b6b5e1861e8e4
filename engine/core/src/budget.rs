//! So much of something for all peers together, and for one no more than it leaves to the others.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// What all peers may take, and what they have taken.
#[derive(Debug)]
pub struct Budget {
    most: u64,
    taken: Mutex<u64>,
    /// Those of processes that have a part.
    processes: Mutex<BTreeMap<u32, Weak<PeerBudget>>>,
}

/// One peer's part of it.
#[derive(Debug)]
pub struct PeerBudget {
    of_all: Arc<Budget>,
    /// Changes under the lock of all.
    taken: AtomicU64,
}

/// What counts for as long as it is not dropped.
#[derive(Debug)]
#[must_use = "it is given back as soon as it is dropped"]
pub struct BudgetShare {
    amount: u64,
    budget: Arc<PeerBudget>,
}

impl Budget {
    /// So much for all.
    pub fn new(most: u64) -> Arc<Self> {
        Arc::new(Self { most, taken: Mutex::new(0), processes: Mutex::default() })
    }

    /// The part of this process, whatever peers it is; zero: of one more that nobody knows.
    pub fn of_process(self: &Arc<Self>, process: u32) -> Arc<PeerBudget> {
        if process == 0 {
            return self.peer();
        }
        let mut processes = self.processes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = processes.get(&process).and_then(Weak::upgrade) {
            return known;
        }
        processes.retain(|_, budget| budget.strong_count() > 0);
        let budget = self.peer();
        processes.insert(process, Arc::downgrade(&budget));
        budget
    }

    /// The part of one more peer.
    pub fn peer(self: &Arc<Self>) -> Arc<PeerBudget> {
        Arc::new(PeerBudget { of_all: Arc::clone(self), taken: AtomicU64::new(0) })
    }
}

impl PeerBudget {
    /// Takes so much; none: there is no room for it.
    pub fn take(self: &Arc<Self>, amount: u64) -> Option<BudgetShare> {
        let mut of_all = self.of_all.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let after = of_all.checked_add(amount)?;
        let own = self.taken.load(Ordering::Relaxed) + amount;
        if own > self.of_all.most.checked_sub(after)? {
            return None;
        }
        *of_all = after;
        self.taken.store(own, Ordering::Relaxed);
        Some(BudgetShare { amount, budget: Arc::clone(self) })
    }

    /// How much there is for all peers together.
    pub fn most(&self) -> u64 {
        self.of_all.most
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        let PeerBudget { of_all, taken } = &*self.budget;
        let mut of_all = of_all.taken.lock().unwrap_or_else(PoisonError::into_inner);
        *of_all -= self.amount;
        taken.fetch_sub(self.amount, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_no_more_than_it_leaves_and_gives_back_what_it_had() {
        let all = Budget::new(10);
        let (greedy, modest) = (all.peer(), all.peer());
        let (first, second) = (greedy.take(3).unwrap(), greedy.take(2).unwrap());
        assert!(greedy.take(1).is_none(), "it leaves 4 and would have 6");
        let other = modest.take(2).unwrap();
        assert!(modest.take(1).is_none());
        drop(first);
        assert!(greedy.take(1).is_some() && modest.take(1).is_some(), "what was given back is counted no more");
        drop((second, other));
        assert!(all.peer().take(11).is_none() && all.peer().take(u64::MAX).is_none());
        assert_eq!((*all.taken.lock().unwrap(), greedy.taken.load(Ordering::Relaxed)), (0, 0));
        assert!(Budget::new(0).peer().take(0).is_some(), "who takes nothing needs no room");
    }

    #[test]
    fn a_process_has_one_part_whatever_its_peers_are_called() {
        let all = Budget::new(10);
        let (first, second) = (all.of_process(7), all.of_process(7));
        let held = first.take(5).unwrap();
        assert!(second.take(1).is_none());
        drop((first, second));
        assert!(all.of_process(7).take(1).is_none(), "it counts as long as anything does");
        assert!(all.of_process(8).take(2).is_some() && all.of_process(0).take(2).is_some());
        drop(held);
        assert!(all.of_process(7).take(5).is_some());
    }
}
