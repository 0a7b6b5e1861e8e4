//! A stream: on one host a Unix one that carries descriptors, between hosts a TCP one.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use penstock_core::env::{Address, Credentials, Stream};
use penstock_core::limits::FRAME_TOKENS_MAX;
use penstock_memory::process::socket_credentials;
use penstock_memory::{BlockingCalls, PassedFd};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, recvmsg, sendmsg, shutdown,
    socket_with,
};

use super::tcp;

/// A non-blocking stream to another engine.
#[derive(Debug)]
pub struct SystemStream {
    kind: Kind,
    /// As [`Stream::has_lost_fds`].
    has_lost_fds: bool,
}

#[derive(Debug)]
enum Kind {
    Local(LocalStream),
    Network { stream: TcpStream, remote: SocketAddr },
}

/// A Unix stream. What nobody has read of it may hold descriptors, which are closed with it; the other side hears the end at once.
#[derive(Debug)]
struct LocalStream(PassedFd);

impl Drop for LocalStream {
    fn drop(&mut self) {
        if !self.0.is_inherited() {
            let _ = shutdown(&self.0, Shutdown::Both);
        }
    }
}

impl AsFd for LocalStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl SystemStream {
    fn of(kind: Kind) -> Self {
        Self { kind, has_lost_fds: false }
    }

    pub(super) fn local(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let process = socket_credentials(stream.as_fd()).map_or(0, |(_, pid)| pid);
        Ok(Self::of(Kind::Local(LocalStream(PassedFd::new(stream.into(), &BlockingCalls::of(process))))))
    }

    pub(super) fn network(stream: TcpStream, remote: SocketAddr) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self::of(Kind::Network { stream, remote }))
    }

    pub(super) fn connect(address: &Address) -> io::Result<Self> {
        match address {
            Address::Unix(path) => Self::connect_local(path),
            Address::Tcp(remote) => Self::network(tcp::connect(*remote)?, *remote),
        }
    }

    fn connect_local(path: &Path) -> io::Result<Self> {
        // Not std's connect: that one sleeps while the listener's queue is full, for ever if it is stopped.
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
            Ok(()) => Self::local(UnixStream::from(socket)),
            Err(rustix::io::Errno::AGAIN) => Err(io::Error::new(
                io::ErrorKind::WouldBlock,
                "its queue of connections is full: it is stopped, or inline and makes no progress",
            )),
            Err(error) => Err(error.into()),
        }
    }
}

/// Descriptors that one message may carry.
const SCM_FDS_MAX: usize = 253;

impl AsFd for SystemStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.kind {
            Kind::Local(stream) => stream.as_fd(),
            Kind::Network { stream, .. } => stream.as_fd(),
        }
    }
}

impl Stream for SystemStream {
    fn send(&mut self, bytes: &[u8], tokens: &[BorrowedFd<'_>]) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FRAME_TOKENS_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !tokens.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(tokens)) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors for one frame"));
        }
        Ok(sendmsg(&*self, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?)
    }

    fn receive(&mut self, bytes: &mut [u8], tokens: &mut Vec<OwnedFd>) -> io::Result<usize> {
        // Room for all that Linux lets anybody pass at once: what finds none is closed right here, however long that takes.
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SCM_FDS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let message = recvmsg(&*self, &mut [IoSliceMut::new(bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        let before = tokens.len();
        for part in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = part {
                tokens.extend(rights);
            }
        }
        // One call answers with the descriptors of one that was made to send.
        self.has_lost_fds = message.flags.contains(ReturnFlags::CTRUNC);
        if tokens.len() - before > FRAME_TOKENS_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "more descriptors came than one frame may carry"));
        }
        Ok(message.bytes)
    }

    fn has_lost_fds(&mut self) -> bool {
        std::mem::take(&mut self.has_lost_fds)
    }

    fn credentials(&self) -> io::Result<Credentials> {
        let Kind::Local(stream) = &self.kind else {
            return Err(io::Error::new(io::ErrorKind::Unsupported, "nobody knows the user on another host"));
        };
        let (uid, pid) = socket_credentials(stream.as_fd())?;
        Ok(Credentials { uid, pid })
    }

    fn end_of_process(&self) -> io::Result<Option<OwnedFd>> {
        let Kind::Local(stream) = &self.kind else { return Ok(None) };
        penstock_memory::process::socket_process(stream.as_fd())
    }

    fn remote(&self) -> Option<SocketAddr> {
        match &self.kind {
            Kind::Local(_) => None,
            Kind::Network { remote, .. } => Some(*remote),
        }
    }

    fn bound_silence(&self, bound: Duration) -> io::Result<()> {
        match &self.kind {
            Kind::Local(_) => Ok(()),
            Kind::Network { stream, .. } => tcp::bound_silence(stream, bound),
        }
    }

    fn into_descriptor(self) -> Option<OwnedFd> {
        match self.kind {
            Kind::Local(_) => None,
            Kind::Network { stream, .. } => Some(stream.into()),
        }
    }
}
