//! The shared segments of one engine: what it and its peers on the same host read and write.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use penstock_memory::MemoryError;
use penstock_ring::{ReadyBits, Ringer, Sleeper};
use rustix::event::{EventfdFlags, eventfd};

use super::mailbox::{Mailbox, MailboxView};
use super::owner_state::{OwnerState, OwnerStateView};

/// An engine's own side: its state, its mailbox and its bells.
pub struct EngineSegments {
    /// What it writes and peers read.
    pub owner_state: OwnerState,
    /// What peers and it write and it reads.
    pub mailbox: Mailbox,
    bells: Vec<Arc<OwnedFd>>,
    workers: usize,
}

impl EngineSegments {
    /// Fresh segments for an engine with so many workers.
    pub fn create(workers: usize) -> Result<Arc<Self>, MemoryError> {
        let bell = || -> Result<Arc<OwnedFd>, MemoryError> {
            let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
            Ok(Arc::new(made.map_err(no_bell)?))
        };
        let bells = (0..=workers).map(|_| bell()).collect::<Result<_, _>>()?;
        Ok(Arc::new(Self {
            owner_state: OwnerState::create(workers)?,
            mailbox: Mailbox::create(workers)?,
            bells,
            workers,
        }))
    }

    /// How many workers the engine has.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// The descriptors that end a sleep: 0 is the application's, `1 + w` worker `w`'s.
    pub fn bells(&self) -> &[Arc<OwnedFd>] {
        &self.bells
    }

    /// The sleeper's side of a bell.
    pub fn sleeper(&self, bell: usize) -> Sleeper {
        self.mailbox.sleeper(bell)
    }

    /// The ringer's side of a bell.
    pub fn ringer(&self, bell: usize) -> Bell {
        Bell { ringer: self.mailbox.view().ringer(bell), descriptor: Arc::clone(&self.bells[bell]) }
    }

    /// These segments as a peer in the same process sees them.
    pub fn as_local_peer(&self) -> PeerSegments {
        PeerSegments {
            owner_state: self.owner_state.view().clone(),
            mailbox: self.mailbox.view().clone(),
            bells: self.bells.clone(),
            workers: self.workers,
        }
    }
}

fn no_bell(error: rustix::io::Errno) -> MemoryError {
    match error {
        rustix::io::Errno::MFILE | rustix::io::Errno::NFILE => MemoryError::NoDescriptor { what: "a bell" },
        other => MemoryError::System { call: "eventfd", what: "a bell", source: other.into() },
    }
}

/// Wakes a sleeper, and costs a system call only if it sleeps.
#[derive(Clone)]
pub struct Bell {
    ringer: Ringer,
    descriptor: Arc<OwnedFd>,
}

impl Bell {
    /// Rings, if the sleeper sleeps. Call after publishing what it should see.
    #[inline]
    pub fn ring(&self) {
        if self.ringer.must_ring() {
            self.strike();
        }
    }

    /// Like [`Bell::ring`], for callers that have already executed a full barrier after publishing.
    #[inline]
    pub fn ring_after_barrier(&self) {
        if self.ringer.take_flag() {
            self.strike();
        }
    }

    /// Marks a lane ready and rings, if the sleeper sleeps: one barrier for both.
    #[inline]
    pub fn mark_and_ring(&self, ready: &ReadyBits, index: usize) {
        if ready.mark_and_ring(index, &self.ringer) {
            self.strike();
        }
    }

    #[cold]
    fn strike(&self) {
        // The only failure is a full counter, which wakes just as well.
        let _ = rustix::io::write(self.descriptor.as_fd(), &1u64.to_ne_bytes());
    }
}

/// A peer's segments, as this engine sees them.
pub struct PeerSegments {
    /// Its withdrawals and its workers' hazards.
    pub owner_state: OwnerStateView,
    /// Its ready bits and counters.
    pub mailbox: MailboxView,
    bells: Vec<Arc<OwnedFd>>,
    workers: usize,
}

impl PeerSegments {
    /// A peer's segments from what it passed to us.
    pub fn new(owner_state: OwnerStateView, mailbox: MailboxView, bells: Vec<Arc<OwnedFd>>) -> Self {
        let workers = bells.len() - 1;
        Self { owner_state, mailbox, bells, workers }
    }

    /// How many workers the peer has.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// The ringer's side of one of its bells.
    pub fn bell(&self, bell: usize) -> Bell {
        Bell { ringer: self.mailbox.ringer(bell), descriptor: Arc::clone(&self.bells[bell]) }
    }
}
