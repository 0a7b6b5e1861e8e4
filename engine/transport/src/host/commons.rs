//! What one engine holds in common with its peers on the same host.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use penstock_memory::MemoryError;
use penstock_ring::{ReadyBits, Ringer, Sleeper};
use rustix::event::{EventfdFlags, eventfd};

use super::mail::{Mail, MailView};
use super::posts::{Posts, PostsView};

/// An engine's own side: its posts, its mail and its bells.
pub struct Commons {
    /// What it writes and peers read.
    pub posts: Posts,
    /// What peers write and it reads.
    pub mail: Mail,
    bells: Vec<Arc<OwnedFd>>,
    workers: usize,
}

impl Commons {
    /// Fresh commons for an engine with so many workers.
    pub fn create(workers: usize) -> Result<Arc<Self>, MemoryError> {
        let bell = || -> Result<Arc<OwnedFd>, MemoryError> {
            let made = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
            Ok(Arc::new(made.map_err(no_bell)?))
        };
        let bells = (0..=workers).map(|_| bell()).collect::<Result<_, _>>()?;
        Ok(Arc::new(Self { posts: Posts::create(workers)?, mail: Mail::create(workers)?, bells, workers }))
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
        self.mail.sleeper(bell)
    }

    /// The ringer's side of a bell.
    pub fn ringer(&self, bell: usize) -> Bell {
        Bell { ringer: self.mail.view().ringer(bell), descriptor: Arc::clone(&self.bells[bell]) }
    }

    /// These commons as a peer in the same process sees them.
    pub fn seen_from_inside(&self) -> PeerCommons {
        PeerCommons {
            posts: self.posts.view().clone(),
            mail: self.mail.view().clone(),
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

    /// Rings, if the sleeper sleeps, for who has been through a full barrier since publishing.
    #[inline]
    pub fn ring_after_barrier(&self) {
        if self.ringer.take_flag() {
            self.strike();
        }
    }

    /// Marks a lane ready and rings, if the sleeper sleeps: one barrier for both.
    #[inline]
    pub fn mark_and_ring(&self, ready: &ReadyBits, place: usize) {
        if ready.mark_and_ring(place, &self.ringer) {
            self.strike();
        }
    }

    #[cold]
    fn strike(&self) {
        // The only failure is a full counter, which wakes just as well.
        let _ = rustix::io::write(self.descriptor.as_fd(), &1u64.to_ne_bytes());
    }
}

/// A peer's commons, as this engine sees them.
pub struct PeerCommons {
    /// Its withdrawals and its workers' hazards.
    pub posts: PostsView,
    /// Its ready bits and counters.
    pub mail: MailView,
    bells: Vec<Arc<OwnedFd>>,
    workers: usize,
}

impl PeerCommons {
    /// A peer's commons from what it passed to us.
    pub fn new(posts: PostsView, mail: MailView, bells: Vec<Arc<OwnedFd>>) -> Self {
        let workers = bells.len() - 1;
        Self { posts, mail, bells, workers }
    }

    /// How many workers the peer has.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// The ringer's side of one of its bells.
    pub fn bell(&self, bell: usize) -> Bell {
        Bell { ringer: self.mail.ringer(bell), descriptor: Arc::clone(&self.bells[bell]) }
    }
}
