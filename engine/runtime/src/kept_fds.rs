//! Descriptors that peers have passed and nothing has mapped yet.

use std::sync::Arc;

use penstock_core::budget::PeerBudget;
use penstock_memory::PassedFd;

/// Descriptors that count until they are closed.
#[derive(Debug)]
pub(crate) struct KeptFds(Vec<PassedFd>);

impl KeptFds {
    /// Counts and keeps these; none: there is no room for them, and they are closed.
    pub(crate) fn keep(fds: Vec<PassedFd>, budget: &Arc<PeerBudget>) -> Option<Self> {
        let share = Arc::new(budget.take(fds.len() as u64)?);
        Some(Self(fds.into_iter().map(|fd| fd.counted(Arc::clone(&share))).collect()))
    }

    pub(crate) fn fds(&self) -> &[PassedFd] {
        &self.0
    }
}
