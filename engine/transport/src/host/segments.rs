//! The shared segments of one engine: what it and its peers on the same host read and write.

use std::sync::Arc;

use penstock_memory::{MemoryError, PassedFd};
use penstock_ring::Sleeper;

use super::bells::{Bell, OwnBell};
use super::mailbox::{Mailbox, MailboxView};
use super::owner_state::{OwnerState, OwnerStateView};

/// An engine's own side: its state, its mailbox and its bells.
pub struct EngineSegments {
    /// What it writes and peers read.
    pub owner_state: OwnerState,
    /// What peers and it write and it reads.
    pub mailbox: Mailbox,
    bells: Vec<OwnBell>,
    workers: usize,
}

impl EngineSegments {
    /// Fresh segments for an engine with so many workers.
    pub fn create(workers: usize) -> Result<Arc<Self>, MemoryError> {
        let owner_state = OwnerState::create(workers)?;
        let bell = |bell| OwnBell::new(owner_state.view().ringer(bell));
        let bells = (0..=workers).map(bell).collect::<Result<_, _>>()?;
        Ok(Arc::new(Self { owner_state, mailbox: Mailbox::create(workers)?, bells, workers }))
    }

    /// How many workers the engine has.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// What ends sleeps: 0 is the application's, `1 + w` worker `w`'s.
    pub fn bells(&self) -> &[OwnBell] {
        &self.bells
    }

    /// The sleeper's side of a bell.
    pub fn sleeper(&self, bell: usize) -> Sleeper {
        self.owner_state.sleeper(bell)
    }

    /// A ringer of a bell, for this process.
    pub fn ringer(&self, bell: usize) -> Bell {
        self.bells[bell].ringer()
    }

    /// These segments as a peer in the same process sees them.
    pub fn as_local_peer(&self) -> PeerSegments {
        PeerSegments {
            owner_state: self.owner_state.view().clone(),
            mailbox: self.mailbox.view().clone(),
            bells: self.bells.iter().map(OwnBell::ringer).collect(),
        }
    }
}

/// A peer's segments, as this engine sees them.
pub struct PeerSegments {
    /// Its withdrawals, its workers' hazards, and whether its threads sleep.
    pub owner_state: OwnerStateView,
    /// Its ready bits and counters.
    pub mailbox: MailboxView,
    bells: Vec<Bell>,
}

impl PeerSegments {
    /// A peer's segments from what it passed to us: the sockets are those that lead to the application's bell and to each worker's.
    pub fn new(owner_state: OwnerStateView, mailbox: MailboxView, sockets: Vec<PassedFd>) -> Self {
        let sockets = sockets.into_iter().enumerate();
        let bells = sockets.map(|(bell, socket)| Bell::of_peer(owner_state.ringer(bell), socket)).collect();
        Self { owner_state, mailbox, bells }
    }

    /// How many workers the peer has.
    pub fn workers(&self) -> usize {
        self.bells.len() - 1
    }

    /// The ringer's side of one of its bells.
    pub fn bell(&self, bell: usize) -> Bell {
        self.bells[bell].clone()
    }
}
