//! Descriptors that peers have passed and nothing has mapped yet.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use penstock_core::budget::{BudgetShare, PeerBudget};

/// Descriptors that count for as long as they are kept.
#[derive(Debug)]
pub(crate) struct KeptFds {
    fds: Vec<OwnedFd>,
    _taken: BudgetShare,
}

impl KeptFds {
    /// Counts and keeps these; none: there is no room for them, and they are closed.
    pub(crate) fn keep(fds: Vec<OwnedFd>, budget: &Arc<PeerBudget>) -> Option<Self> {
        let taken = budget.take(fds.len() as u64)?;
        Some(Self { fds, _taken: taken })
    }

    pub(crate) fn fds(&self) -> &[OwnedFd] {
        &self.fds
    }
}
