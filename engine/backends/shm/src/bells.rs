//! Where peers in other processes ring, and what each of them is given for it.
//!
//! A sleeper hears at a datagram socket that nobody else ever has. It is bound beside the engine's listening socket, so that this user alone
//! can reach it, and its name is taken away at once: from then on it is reached over the descriptor of its file, by this engine (and by whoever
//! may look into this process: more rings do no harm). Each peer is given a socket of its own that is connected to it. A socket that all peers shared would be no better than an eventfd: whoever
//! has it can shut it, shrink its buffer or connect it to something else, for all of them.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use penstock_memory::MemoryError;
use penstock_memory::process::refuse_descriptors;
use penstock_transport::host::{EngineSegments, OwnBell};
use rustix::fs::{Mode, OFlags, fchmod, unlink};
use rustix::io::Errno;
use rustix::net::sockopt::{socket_domain, socket_type};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect, socket_with};

/// The files of the sockets at which this engine's sleepers hear: they have no names any more.
pub struct Doors(Vec<OwnedFd>);

impl Doors {
    /// One for each sleeper, at which it hears from then on. `place` is the path of a file beside the engine's socket, that nothing else uses.
    pub fn open(segments: &EngineSegments, place: &Path) -> io::Result<Self> {
        let open = |bell: &OwnBell| {
            let (hears, door) = bind_without_name(place)?;
            bell.hear_peers_at(hears);
            Ok(door)
        };
        segments.bells().iter().map(open).collect::<io::Result<_>>().map(Self)
    }

    /// A socket for each of them, all for one peer.
    pub fn sockets(&self) -> Result<Vec<OwnedFd>, MemoryError> {
        self.0.iter().map(lead_to).collect::<Result<_, Errno>>().map_err(|error| match error {
            Errno::MFILE | Errno::NFILE => MemoryError::NoDescriptor { what: "a bell" },
            other => MemoryError::System { call: "socket and connect", what: "a bell", source: other.into() },
        })
    }
}

fn datagram_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)
}

/// A socket, and its file.
fn bind_without_name(place: &Path) -> io::Result<(OwnedFd, OwnedFd)> {
    let socket = datagram_socket()?;
    if !refuse_descriptors(socket.as_fd()) {
        tracing::debug!("this kernel lets processes of this user attach descriptors to rings (Linux 6.16 does not)");
    }
    // The file gets its mode from the socket, not by its path afterwards.
    fchmod(&socket, Mode::from_raw_mode(0o600))?;
    let remove = || match unlink(place) {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    };
    remove()?; // Whoever was killed between the next two lines has left one.
    bind(&socket, &SocketAddrUnix::new(place)?)?;
    let door = rustix::fs::open(place, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
    remove()?;
    let door = door?;
    // Whether that is its file, and can be reached: else peers would ring elsewhere, or nobody could.
    rustix::net::send(lead_to(&door)?, b"", SendFlags::DONTWAIT)?;
    match rustix::io::read(&socket, &mut [0]) {
        Ok(_) => Ok((socket, door)),
        Err(_) => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("{} was replaced while the engine started", place.display()),
        )),
    }
}

/// A socket that leads to one of them.
fn lead_to(door: &OwnedFd) -> Result<OwnedFd, Errno> {
    let socket = datagram_socket()?;
    connect(&socket, &SocketAddrUnix::new(format!("/proc/thread-self/fd/{}", door.as_raw_fd()))?)?;
    Ok(socket)
}

/// Whether that is what leads to a peer's bell: a datagram is sent there whenever the peer sleeps, so that any other kind could
/// block, or be a file.
pub(crate) fn is_bell(socket: impl AsFd) -> bool {
    socket_domain(&socket) == Ok(AddressFamily::UNIX) && socket_type(&socket) == Ok(SocketType::DGRAM)
}
