//! What one worker asks the kernel for all its streams: which have something, and the calls that move bytes.
//!
//! - [`pieces`]: where the bytes of one call come from or go to
//! - [`call`]: sending and receiving without waiting
//! - [`table`]: what is watched
//! - [`epoll`]: readiness by one call a turn
//!
//! Everything unsafe of this crate is in here, behind an interface that is not.

mod call;
mod epoll;
mod pieces;
mod table;
#[cfg(test)]
mod tests;

use std::io::{ErrorKind, Result};
use std::os::fd::{AsRawFd, BorrowedFd};

use penstock_core::config::TcpIo;

use self::epoll::Epoll;
pub(crate) use self::pieces::{PIECES_MAX, PieceSpace, Pieces, Refused};
use self::table::{Table, Watched};

/// Who is told what is ready: the key of a stream, and for what.
type Report<'a> = &'a mut dyn FnMut(u64, Readiness);

/// What a stream is ready for. It may be said once too often, never once too seldom.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Readiness {
    /// Bytes, the stream's end or an error are there to be received.
    pub(crate) readable: bool,
    /// There is room again. Said once after [`Io::want_room`].
    pub(crate) writable: bool,
    /// The peer sends no more, or the stream is broken. What came before can still be received.
    pub(crate) hung_up: bool,
}

impl Readiness {
    /// Tells what the kernel's bits (the same for epoll and io_uring) mean for a stream, if they mean anything.
    fn tell(watched: &mut Watched, bits: u32, report: Report<'_>) -> bool {
        let has = |mask: i32| bits & mask as u32 != 0;
        let hung_up = has(libc::EPOLLRDHUP | libc::EPOLLHUP | libc::EPOLLERR);
        // Whoever waits for room on a broken stream learns it by trying.
        let writable = watched.wants_room && (has(libc::EPOLLOUT) || hung_up);
        let readiness = Self { readable: hung_up || has(libc::EPOLLIN), writable, hung_up };
        if readiness == Self::default() {
            return false;
        }
        watched.wants_room &= !writable;
        report(watched.key, readiness);
        true
    }
}

/// One worker's way to the kernel.
///
/// It is used by one thread at a time. Streams may be watched and forgotten by any thread; [`Io::turn`] is the
/// worker's.
pub(crate) struct Io {
    table: Table,
    epoll: Epoll,
}

impl Io {
    /// Opens the kind that is asked for, or for [`TcpIo::Auto`] the best one that the kernel lets this process have.
    pub(crate) fn open(_choice: TcpIo) -> Result<Self> {
        Ok(Self { table: Table::default(), epoll: Epoll::open()? })
    }

    /// The kind it is.
    pub(crate) fn name(&self) -> &'static str {
        "epoll"
    }

    /// From now on each arrival on the stream is reported under `key`, also what is there already.
    ///
    /// A stream is watched once, and [`Io::unwatch`] is called before its descriptor is closed.
    pub(crate) fn watch(&mut self, fd: BorrowedFd<'_>, key: u64) -> Result<()> {
        let number = self.table.add(fd.as_raw_fd(), key)?;
        let watched = self.epoll.watch(fd, number);
        if watched.is_err() {
            self.table.remove(fd.as_raw_fd(), key);
        }
        watched
    }

    /// Nothing is reported of the stream any more.
    pub(crate) fn unwatch(&mut self, fd: BorrowedFd<'_>, key: u64) {
        if self.table.remove(fd.as_raw_fd(), key).is_some() {
            self.epoll.unwatch(fd);
        }
    }

    /// One report when the stream can be written again. [`Io::send`] asks for it by itself when it could not send
    /// all, so that no moment is missed between the two.
    pub(crate) fn want_room(&mut self, fd: BorrowedFd<'_>, key: u64) -> Result<()> {
        let _ = key;
        if self.table.want_room(fd.as_raw_fd()) { Ok(()) } else { Err(ErrorKind::NotFound.into()) }
    }

    /// Reports what is ready, without waiting. Answers whether anything was.
    pub(crate) fn turn(&mut self, report: Report<'_>) -> bool {
        self.epoll.turn(&mut self.table, report)
    }

    /// Called right before somebody sleeps on [`Io::descriptor`]. Answers whether they may.
    pub(crate) fn prepare_to_sleep(&mut self) -> bool {
        true
    }

    /// Readable while [`Io::turn`] would find something. It is polled, never read, and stays the same.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.descriptor()
    }

    /// Sends as much as there is room for, without waiting: [`ErrorKind::WouldBlock`] where there is none.
    pub(crate) fn send(&mut self, fd: BorrowedFd<'_>, pieces: &Pieces<'_>) -> Result<usize> {
        let sent = call::send(fd, pieces);
        let is_short = match &sent {
            Ok(bytes) => *bytes < pieces.bytes(),
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        };
        if is_short {
            self.table.want_room(fd.as_raw_fd());
        }
        sent
    }

    /// Receives what is there and has room, without waiting: 0 at the stream's end, [`ErrorKind::WouldBlock`] where
    /// nothing is there.
    ///
    /// What is left after a call that filled all the room is not reported again: the caller goes on by itself.
    pub(crate) fn receive(&mut self, fd: BorrowedFd<'_>, pieces: &mut Pieces<'_>) -> Result<usize> {
        call::receive(fd, pieces)
    }
}
