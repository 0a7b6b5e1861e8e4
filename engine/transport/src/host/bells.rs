//! Bells: what ends the sleep of a worker, or of an application at the event fd.
//!
//! Whether somebody sleeps stands in the owner state, which peers can only read. The threads of this process ring an eventfd, which is
//! passed to nobody; peers in other processes send an empty datagram to a socket, each over a socket of its own. So what a peer does
//! to its end (fill the queue, shut it, make it block, point it elsewhere) is its own loss, and a full queue has rung.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};

use penstock_memory::{MemoryError, PassedFd};
use penstock_ring::{ReadyBits, Ringer};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::SendFlags;

/// Rings that one look takes away: as many as Linux lets wait at a socket, and some more. What is left ends the next sleep at once.
const RINGS_AT_ONCE: usize = 16;

/// A bell at its sleeper.
pub struct OwnBell {
    own: Arc<OwnedFd>,
    /// Where peers in other processes ring, once there can be any.
    peers: OnceLock<OwnedFd>,
    ringer: Ringer,
}

impl OwnBell {
    /// Made of a ringer for the threads of this process, which ring once for each sleep between them.
    pub(super) fn new(ringer: Ringer) -> Result<Self, MemoryError> {
        let own = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(no_bell)?;
        Ok(Self { own: Arc::new(own), peers: OnceLock::new(), ringer })
    }

    /// Lets peers ring at this socket, which does not block, and which nobody else has. Call at most once, before the first sleep.
    pub fn hear_peers_at(&self, socket: OwnedFd) {
        let is_first = self.peers.set(socket).is_ok();
        debug_assert!(is_first, "one socket hears all peers");
    }

    /// What the threads of this process ring.
    pub fn own(&self) -> BorrowedFd<'_> {
        self.own.as_fd()
    }

    /// What peers in other processes ring.
    pub fn peers(&self) -> Option<BorrowedFd<'_>> {
        self.peers.get().map(AsFd::as_fd)
    }

    /// What ends a sleep: first what this process rings, then what peers ring, where they can.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        std::iter::once(self.own()).chain(self.peers())
    }

    /// A ringer for this process.
    pub fn ringer(&self) -> Bell {
        Bell { ringer: self.ringer.clone(), rope: Rope::Own(Arc::clone(&self.own)) }
    }
}

/// Takes the rings away that wait at one of a bell's descriptors. Neither blocks, as nobody else has them.
pub fn silence(descriptor: impl AsFd) {
    let ring = || rustix::io::read(descriptor.as_fd(), &mut [0u8; 8]);
    let _ = (0..RINGS_AT_ONCE).find(|_| ring().is_err());
}

fn no_bell(error: rustix::io::Errno) -> MemoryError {
    match error {
        rustix::io::Errno::MFILE | rustix::io::Errno::NFILE => MemoryError::NoDescriptor { what: "a bell" },
        other => MemoryError::System { call: "eventfd", what: "a bell", source: other.into() },
    }
}

/// Wakes a sleeper, and costs a system call only if it sleeps. Clones ring once for each sleep between them.
#[derive(Clone)]
pub struct Bell {
    ringer: Ringer,
    rope: Rope,
}

#[derive(Clone)]
enum Rope {
    /// An eventfd that only this process has.
    Own(Arc<OwnedFd>),
    /// A socket that leads to another process's.
    Peer(Arc<PassedFd>),
}

impl Bell {
    pub(super) fn of_peer(ringer: Ringer, socket: PassedFd) -> Self {
        Self { ringer, rope: Rope::Peer(Arc::new(socket)) }
    }

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
        if self.ringer.is_first() {
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

    /// No failure matters: what is full has rung, and who cannot be reached has ended, or made it so.
    #[cold]
    fn strike(&self) {
        let _ = match &self.rope {
            Rope::Own(eventfd) => rustix::io::write(eventfd, &1u64.to_ne_bytes()),
            Rope::Peer(socket) => rustix::net::send(socket, b"", SendFlags::DONTWAIT | SendFlags::NOSIGNAL),
        };
    }
}
