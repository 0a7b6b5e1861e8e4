//! The one door through which time, randomness, threads and sockets enter an engine.
//!
//! The runtime is generic over [`Env`] and statically dispatched: the real one makes system calls,
//! a simulated one answers from a seed. An inline engine under a simulated environment is *this*
//! code on one thread, not a model of it.

use core::net::SocketAddr;
use std::fmt;
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crate::time::Timestamp;

/// Who is at the other end of a stream, as the operating system says, not as the peer says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Credentials {
    pub uid: u32,
    /// Process id, in this process's pid namespace; zero if it cannot be seen from here.
    pub pid: u32,
}

/// Where an engine listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Address {
    /// A Unix socket on this host.
    Unix(PathBuf),
    /// An address and a port that other hosts can reach.
    Tcp(SocketAddr),
}

impl Address {
    /// The path of a Unix address.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Unix(path) => Some(path),
            Self::Tcp(_) => None,
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "{}", path.display()),
            Self::Tcp(address) => write!(f, "{address}"),
        }
    }
}

/// A connected, non-blocking byte stream that can carry descriptors.
pub trait Stream: Send {
    /// Sends some of `bytes`; the descriptors go with the first of them. `WouldBlock` means later.
    fn send(&mut self, bytes: &[u8], tokens: &[BorrowedFd<'_>]) -> io::Result<usize>;

    /// Receives some bytes and the descriptors that came with them. Zero is the end.
    fn receive(&mut self, bytes: &mut [u8], tokens: &mut Vec<OwnedFd>) -> io::Result<usize>;

    /// Whether descriptors that belong behind those that were received last are lost, since this process can have no more.
    fn has_lost_fds(&mut self) -> bool {
        false
    }

    /// Who is at the other end, where the operating system knows.
    fn credentials(&self) -> io::Result<Credentials>;

    /// What becomes readable once the very process at the other end is dead, whatever process has its id then; none where the system cannot
    /// tell. An error says that it is gone.
    fn end_of_process(&self) -> io::Result<Option<OwnedFd>> {
        Ok(None)
    }

    /// The address at the other end of a connection between hosts; none on one host.
    fn remote(&self) -> Option<SocketAddr> {
        None
    }

    /// Makes the system give a connection between hosts up when the other end has answered nothing for so long.
    fn bound_silence(&self, bound: Duration) -> io::Result<()> {
        let _ = bound;
        Ok(())
    }

    /// Hands the stream's descriptor to somebody else, if it has one of its own.
    fn into_descriptor(self) -> Option<OwnedFd>
    where
        Self: Sized,
    {
        None
    }
}

pub trait Listener: Send {
    type Stream: Stream;

    /// The next connection, or `WouldBlock`.
    fn accept(&mut self) -> io::Result<Self::Stream>;

    /// The address that other hosts reach it at, with the port it was given; none on one host.
    fn address(&self) -> Option<SocketAddr> {
        None
    }
}

/// Ends another thread's [`Reactor::wait`].
pub trait Waker: Send + Sync {
    /// Makes the next or current wait return.
    fn wake(&self);
}

/// Waits for several sockets at once.
pub trait Reactor: Send {
    /// The listener it watches.
    type Listener;
    /// The stream it watches.
    type Stream;

    /// Reports `token` whenever `listener` can accept.
    fn watch_listener(&mut self, listener: &Self::Listener, token: u64) -> io::Result<()>;

    /// Stops watching a listener, for a while.
    fn unwatch_listener(&mut self, listener: &Self::Listener) -> io::Result<()>;

    /// Reports `token` whenever `stream` can be read, and, if asked, when it can be written.
    fn watch_stream(&mut self, stream: &Self::Stream, token: u64, writable: bool) -> io::Result<()>;

    /// Changes whether writability of a watched stream is reported.
    fn rewatch_stream(&mut self, stream: &Self::Stream, token: u64, writable: bool) -> io::Result<()>;

    /// Stops watching a stream.
    fn unwatch_stream(&mut self, stream: &Self::Stream) -> io::Result<()>;

    /// Makes a wait return whenever `bell` is rung, which is a descriptor that the wait reads, and nobody else has.
    fn watch_bell(&mut self, bell: BorrowedFd<'_>) -> io::Result<()>;

    /// Makes a wait return whenever this descriptor is readable. It is not read: who owns it makes it quiet again.
    fn watch_driver(&mut self, driver: BorrowedFd<'_>) -> io::Result<()>;

    /// Makes a wait return at this moment, and [`Reactor::descriptor`] readable from then on until the next call; at
    /// [`Timestamp::NEVER`] none does.
    fn wake_at(&mut self, moment: Timestamp) -> io::Result<()>;

    /// Appends the tokens that are ready, waiting at most `timeout` (`None`: until woken).
    fn wait(&mut self, timeout: Option<Duration>, ready: &mut Vec<u64>) -> io::Result<()>;

    /// What ends a wait from another thread.
    fn waker(&self) -> Arc<dyn Waker>;

    /// A descriptor that is readable when [`Reactor::wait`] would return at once, if there is one.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
}

/// What somebody else does who may be kept waiting.
pub enum BlockingJob {
    Once(Box<dyn FnOnce() + Send>),
    /// Asked for again and again, without an allocation for each.
    Again(Arc<dyn Fn() + Send + Sync>),
}

impl BlockingJob {
    pub fn once(job: impl FnOnce() + Send + 'static) -> Self {
        Self::Once(Box::new(job))
    }

    pub fn run(self) {
        match self {
            Self::Once(job) => job(),
            Self::Again(job) => job(),
        }
    }
}

/// Time, randomness, threads and sockets.
pub trait Env: Clone + Send + Sync + 'static {
    type Stream: Stream + 'static;
    type Listener: Listener<Stream = Self::Stream> + 'static;
    type Reactor: Reactor<Listener = Self::Listener, Stream = Self::Stream> + 'static;

    fn now(&self) -> Timestamp;

    /// A fresh random number, not predictable by others.
    fn random(&self) -> u64;

    /// Starts a thread, pinned to `core` if given.
    fn spawn(&self, name: &str, core: Option<usize>, body: Box<dyn FnOnce() + Send>) -> io::Result<JoinHandle<()>>;

    /// Listens at `address`, taking over a socket whose owner is gone.
    fn listen(&self, address: &Address) -> io::Result<Self::Listener>;

    /// Has this done by somebody who may be kept waiting by the process with this id (zero: by one without), for as long as that likes. Nobody else waits.
    fn run_blocking(&self, process: u32, job: BlockingJob);

    /// Where a file may be made for a moment that only this user's processes can open, for the engine that listens at this path.
    fn place_beside(&self, socket: &Path) -> PathBuf {
        socket.with_extension("bell")
    }

    /// Connects to `address` without blocking for longer than a local connect takes. Between hosts the connection
    /// may still be under way: then its first use says whether it came about.
    fn connect(&self, address: &Address) -> io::Result<Self::Stream>;

    /// A reactor of its own.
    fn reactor(&self) -> io::Result<Self::Reactor>;

    /// Lets others run for about this long, which may be zero: the real environment yields its core
    /// or sleeps, a simulated one lets its own time pass.
    fn pause(&self, span: Duration);

    /// Who this process is.
    fn credentials(&self) -> Credentials;

    /// Which host this is: the same number exactly where the same kernel runs.
    fn host(&self) -> u64;

    /// Which process this is: the same number exactly in one address space, never zero.
    fn process(&self) -> u64;

    /// How many descriptors this process may have.
    fn fds_max(&self) -> usize {
        1024
    }
}

/// What a transport takes of its engine's [`Env`]: one that reads no other clock can be simulated.
pub trait TransportEnv: Send + Sync {
    fn now(&self) -> Timestamp;

    /// A fresh random number, not predictable by others.
    fn random(&self) -> u64;

    /// As [`Env::run_blocking`].
    fn run_blocking(&self, process: u32, job: BlockingJob);
}

impl<E: Env> TransportEnv for E {
    fn now(&self) -> Timestamp {
        Env::now(self)
    }

    fn random(&self) -> u64 {
        Env::random(self)
    }

    fn run_blocking(&self, process: u32, job: BlockingJob) {
        Env::run_blocking(self, process, job);
    }
}
