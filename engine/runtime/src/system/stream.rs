//! A Unix stream that carries descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use penstock_core::env::{Credentials, Stream};
use penstock_core::limits::FRAME_TOKENS_MAX;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recvmsg, sendmsg, socket_with,
};

/// A connected, non-blocking Unix stream.
#[derive(Debug)]
pub struct SystemStream(UnixStream);

impl SystemStream {
    pub(super) fn new(stream: UnixStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self(stream))
    }

    pub(super) fn connect(path: &Path) -> io::Result<Self> {
        // Not std's connect: that one sleeps while the listener's queue is full, for ever if it is stopped.
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        match rustix::net::connect(&socket, &SocketAddrUnix::new(path)?) {
            Ok(()) => Self::new(UnixStream::from(socket)),
            Err(rustix::io::Errno::AGAIN) => Err(io::Error::new(
                io::ErrorKind::WouldBlock,
                "its queue of connections is full: it is stopped, or inline and makes no progress",
            )),
            Err(error) => Err(error.into()),
        }
    }
}

impl AsFd for SystemStream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Stream for SystemStream {
    fn send(&mut self, bytes: &[u8], tokens: &[BorrowedFd<'_>]) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FRAME_TOKENS_MAX))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if !tokens.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(tokens)) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors for one frame"));
        }
        Ok(sendmsg(&self.0, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?)
    }

    fn receive(&mut self, bytes: &mut [u8], tokens: &mut Vec<OwnedFd>) -> io::Result<usize> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FRAME_TOKENS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let message = recvmsg(&self.0, &mut [IoSliceMut::new(bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
        for part in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = part {
                tokens.extend(rights);
            }
        }
        if message.flags.contains(ReturnFlags::CTRUNC) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "more descriptors came than one frame may carry"));
        }
        Ok(message.bytes)
    }

    fn credentials(&self) -> io::Result<Credentials> {
        let (uid, pid) = penstock_memory::process::socket_credentials(self.0.as_fd())?;
        Ok(Credentials { uid, pid })
    }
}
