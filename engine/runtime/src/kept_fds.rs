//! Descriptors that peers have passed and nothing has mapped yet: so many for all of them, and for one no more than it leaves.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What all peers may have kept here, and what they have.
#[derive(Debug)]
pub(crate) struct FdBudget {
    most: usize,
    kept: AtomicUsize,
}

/// One peer's part of it.
#[derive(Debug)]
pub(crate) struct PeerFdBudget {
    of_all: Arc<FdBudget>,
    kept: AtomicUsize,
}

/// Descriptors that count for as long as they are kept.
#[derive(Debug)]
pub(crate) struct KeptFds {
    fds: Vec<OwnedFd>,
    budget: Arc<PeerFdBudget>,
}

impl FdBudget {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, kept: AtomicUsize::new(0) })
    }

    pub(crate) fn peer(self: &Arc<Self>) -> Arc<PeerFdBudget> {
        Arc::new(PeerFdBudget { of_all: Arc::clone(self), kept: AtomicUsize::new(0) })
    }
}

impl PeerFdBudget {
    /// Counts and keeps these; none: there is no room for them, and they are closed. Called by the control loop only, so that the count does
    /// not rise between the look and the step.
    pub(crate) fn keep(self: &Arc<Self>, fds: Vec<OwnedFd>) -> Option<KeptFds> {
        if fds.is_empty() {
            return Some(KeptFds { fds, budget: Arc::clone(self) });
        }
        let left = self.of_all.most.checked_sub(self.of_all.kept.load(Ordering::Relaxed) + fds.len())?;
        if self.kept.load(Ordering::Relaxed) + fds.len() > left {
            return None;
        }
        self.kept.fetch_add(fds.len(), Ordering::Relaxed);
        self.of_all.kept.fetch_add(fds.len(), Ordering::Relaxed);
        Some(KeptFds { fds, budget: Arc::clone(self) })
    }
}

impl KeptFds {
    pub(crate) fn fds(&self) -> &[OwnedFd] {
        &self.fds
    }
}

impl Drop for KeptFds {
    fn drop(&mut self) {
        self.budget.kept.fetch_sub(self.fds.len(), Ordering::Relaxed);
        self.budget.of_all.kept.fetch_sub(self.fds.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fds(count: usize) -> Vec<OwnedFd> {
        (0..count).map(|_| std::fs::File::open("/dev/null").unwrap().into()).collect()
    }

    #[test]
    fn a_peer_has_no_more_than_it_leaves_and_gives_back_what_it_had() {
        let all = FdBudget::new(10);
        let (greedy, modest) = (all.peer(), all.peer());
        let first = greedy.keep(fds(3)).unwrap();
        let second = greedy.keep(fds(2)).unwrap();
        assert_eq!((first.fds().len(), second.fds().len()), (3, 2));
        assert!(greedy.keep(fds(1)).is_none(), "it leaves 4 and would have 6");
        let other = modest.keep(fds(2)).unwrap();
        assert!(modest.keep(fds(1)).is_none());
        drop(first);
        assert!(greedy.keep(fds(1)).is_some() && modest.keep(fds(1)).is_some(), "what is not kept is counted no more");
        assert!(modest.keep(Vec::new()).is_some(), "who passes none needs no room");
        drop((second, other));
        assert!(all.peer().keep(fds(11)).is_none());
        assert_eq!((all.kept.load(Ordering::Relaxed), greedy.kept.load(Ordering::Relaxed)), (0, 0));
    }
}
