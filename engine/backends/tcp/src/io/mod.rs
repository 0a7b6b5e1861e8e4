//! What one worker asks the kernel for all its streams: which have something, and the calls that move bytes.
//!
//! - [`pieces`]: where the bytes of one call come from or go to
//! - [`call`]: sending and receiving without waiting
//! - [`table`]: what is watched
//! - [`epoll`]: readiness by one call a turn
//! - [`manner`], [`uring`]: readiness without a call while nothing happens, where there may be a ring
//! - [`zero_copy`]: sending without a copy
//!
//! Everything unsafe of this crate is in here, behind an interface that is not.

mod call;
mod epoll;
mod manner;
mod pieces;
mod table;
#[cfg(test)]
mod tests;
mod uring;
mod zero_copy;

use std::collections::VecDeque;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use penstock_core::config::TcpIo;
use rustix::net::sockopt;

use self::epoll::Epoll;
pub(crate) use self::pieces::{IoPieces, PIECES_MAX, PieceSpace};
use self::table::{Table, Watched};
use self::uring::{SubmitFailed, Uring};
#[cfg(test)]
pub(crate) use self::zero_copy::ALWAYS;
pub(crate) use self::zero_copy::{HeldPieces, SendReleased, ZeroCopy, ZeroCopyId};

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

/// How often a ring may be made anew because the one who turns is on another thread now.
const MOVES_MAX: u32 = 8;

/// One worker's way to the kernel.
///
/// It is used by one thread at a time. Streams may be watched and forgotten by any thread; [`Io::turn`] is the
/// worker's. Where that is called from another thread than before (an engine without threads of its own), the ring
/// is made anew, and after some such moves there is none any more.
pub(crate) struct Io {
    table: Table,
    uring: Option<Uring>,
    /// Watches the streams where there is no ring, and else stands for the ring, so that the descriptor stays
    /// the same whatever becomes of it.
    epoll: Epoll,
    why: Option<String>,
    moves: u32,
    /// What a ring that is no more did not get to tell.
    released: VecDeque<SendReleased>,
}

impl Io {
    /// Opens the kind that is asked for, or for [`TcpIo::Auto`] the best one that the kernel lets this process have.
    pub(crate) fn open(choice: TcpIo) -> Result<Self> {
        let uring = match choice {
            TcpIo::Epoll => Err(None),
            TcpIo::Auto => Uring::open().map_err(|refused| Some(manner::why_not(&refused))),
            TcpIo::IoUring => {
                Ok(Uring::open().map_err(|refused| Error::new(refused.kind(), manner::why_not(&refused)))?)
            }
        };
        Self::with(uring)
    }

    fn with(uring: std::result::Result<Uring, Option<String>>) -> Result<Self> {
        let epoll = Epoll::open()?;
        let (uring, why) = match uring {
            Ok(uring) => (Some(uring), None),
            Err(why) => (None, why),
        };
        if let Some(uring) = &uring {
            epoll.stand_for(uring.descriptor())?;
        }
        Ok(Self { table: Table::default(), uring, epoll, why, moves: 0, released: VecDeque::new() })
    }

    /// The kind it is.
    pub(crate) fn name(&self) -> &'static str {
        if self.uring.is_some() { TcpIo::IoUring.as_str() } else { TcpIo::Epoll.as_str() }
    }

    /// Why it is not the best kind, where nobody asked for another.
    pub(crate) fn why(&self) -> Option<&str> {
        self.why.as_deref()
    }

    /// The next arrival on the stream is reported under `key`, also what is there already. Those after it are only
    /// after [`Io::listen`].
    ///
    /// A stream is watched once, and [`Io::unwatch`] is called before its descriptor is closed.
    pub(crate) fn watch(&mut self, fd: BorrowedFd<'_>, key: u64) -> Result<()> {
        let number = self.table.add(fd.as_raw_fd(), key)?;
        if self.uring.is_some() {
            self.listen(fd);
            return Ok(());
        }
        let watched = self.epoll.watch(fd, number);
        if watched.is_err() {
            self.table.remove(fd.as_raw_fd(), key);
        }
        watched
    }

    /// The next arrival on a watched stream is reported again, also what is there already. Who looks at a stream all the
    /// time does not ask for it: each report costs the sender's kernel time while it holds the socket, and the worker a call.
    pub(crate) fn listen(&mut self, fd: BorrowedFd<'_>) {
        // With epoll, which reports each arrival, an edge that nobody needs costs less than a call for one.
        if let Some(uring) = &mut self.uring
            && let Some((number, watched)) = self.table.find(fd.as_raw_fd())
        {
            uring.listen(number, watched);
        }
    }

    /// Nothing is reported of the stream any more.
    ///
    /// Its descriptor can be closed then. From another thread than the worker's the kernel may hold the socket
    /// until the next turn, so who wants the peer to see the end at once shuts it down before closing it.
    pub(crate) fn unwatch(&mut self, fd: BorrowedFd<'_>, key: u64) {
        let Some((number, watched)) = self.table.remove(fd.as_raw_fd(), key) else { return };
        self.released.retain(|released| released.key != key);
        match &mut self.uring {
            Some(uring) => {
                if uring.forget_sends(fd.as_raw_fd(), key) {
                    // Nobody waits for these bytes any more: breaking the connection off takes them, and the pages with
                    // them, from the kernel, also while somebody else holds the descriptor. Where that cannot be asked
                    // for, closing does, and else the pages are held for as long as it takes.
                    let _ = sockopt::set_socket_linger(fd, Some(Duration::ZERO));
                    let _ = rustix::net::connect_unspec(fd);
                }
                uring.unwatch(number, &watched, &mut self.table);
            }
            None => self.epoll.unwatch(fd),
        }
    }

    /// One report when the stream can be written again. [`Io::send`] asks for it by itself when it could not send
    /// all, so that no moment is missed between the two.
    pub(crate) fn want_room(&mut self, fd: BorrowedFd<'_>, key: u64) -> Result<()> {
        let _ = key;
        if self.ask_for_room(fd) { Ok(()) } else { Err(ErrorKind::NotFound.into()) }
    }

    /// Returns whether the stream is watched.
    fn ask_for_room(&mut self, fd: BorrowedFd<'_>) -> bool {
        let Some((number, watched)) = self.table.find(fd.as_raw_fd()) else { return false };
        watched.wants_room = true;
        if let Some(uring) = &mut self.uring {
            uring.listen_for_room(number, watched);
        }
        true
    }

    /// Reports what is ready, without waiting. Returns whether anything was.
    pub(crate) fn turn(&mut self, report: Report<'_>) -> bool {
        let Some(uring) = &mut self.uring else { return self.epoll.turn(&mut self.table, report) };
        match uring.turn(&mut self.table, report) {
            Ok(any) => any,
            Err(failed) => self.recover(&failed),
        }
    }

    /// Called right before somebody sleeps on [`Io::descriptor`]. Returns whether they may.
    pub(crate) fn prepare_to_sleep(&mut self) -> bool {
        // The set of epoll is readable while it has something, so it needs no preparing.
        let Some(uring) = &mut self.uring else { return true };
        match uring.prepare_to_sleep(&mut self.table) {
            Ok(may_sleep) => may_sleep,
            Err(failed) => !self.recover(&failed),
        }
    }

    /// Goes on with a new ring, or without one. All streams are reported that have something by then, so nothing
    /// that the old ring knew is lost. Answers that another turn is due.
    fn recover(&mut self, failed: &SubmitFailed) -> bool {
        // The set must not be woken by a ring that a forked process may keep open.
        if let Some(mut old) = self.uring.take() {
            self.epoll.unwatch(old.descriptor());
            self.released.extend(old.give_up());
        }
        let made = match failed {
            SubmitFailed::Moved if self.moves < MOVES_MAX => Uring::open(),
            SubmitFailed::Moved => Err(Error::other("its calls come from more and more threads")),
            SubmitFailed::Refused(error) => Err(Error::from_raw_os_error(error.raw_os_error().unwrap_or(libc::EIO))),
        };
        self.moves += 1;
        let made = made.and_then(|uring| self.epoll.stand_for(uring.descriptor()).map(|()| uring));
        match made {
            Ok(mut uring) => {
                for (number, watched) in self.table.all() {
                    (watched.is_polled, watched.is_polled_for_room) = (false, false);
                    uring.listen(number, watched);
                    if watched.wants_room {
                        uring.listen_for_room(number, watched);
                    }
                }
                self.uring = Some(uring);
            }
            Err(refused) => self.retreat(manner::why_not(&refused)),
        }
        true
    }

    fn retreat(&mut self, why: String) {
        tracing::info!(why, "io_uring is given up for epoll");
        self.why = Some(why);
        for (number, watched) in self.table.all() {
            // SAFETY: streams are forgotten before their descriptors are closed, so this one is open.
            let fd = unsafe { BorrowedFd::borrow_raw(watched.fd) };
            if let Err(error) = self.epoll.watch(fd, number) {
                tracing::error!(%error, key = watched.key, "a stream cannot be watched any more");
            }
        }
    }

    /// Readable while [`Io::turn`] would find something. It is polled, never read, and stays the same.
    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.descriptor()
    }

    /// Sends as much as there is room for, without waiting: [`ErrorKind::WouldBlock`] where there is none.
    pub(crate) fn send(&mut self, fd: BorrowedFd<'_>, pieces: &IoPieces<'_>) -> Result<usize> {
        let sent = call::send(fd, pieces);
        let is_short = match &sent {
            Ok(bytes) => *bytes < pieces.bytes(),
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        };
        if is_short {
            self.ask_for_room(fd);
        }
        sent
    }

    /// An empty list for [`Io::send_without_copy`], or `None` where there is no ring.
    pub(crate) fn held_pieces(&mut self) -> Option<Box<HeldPieces>> {
        self.uring.as_mut().map(Uring::held_pieces)
    }

    /// Nothing more is heard of what was sent without a copy.
    pub(crate) fn give_up(&mut self) {
        if let Some(uring) = &mut self.uring {
            self.released.extend(uring.give_up());
        }
    }

    /// A list that is not sent after all.
    pub(crate) fn keep(&mut self, held: Box<HeldPieces>) {
        if let Some(uring) = &mut self.uring {
            uring.keep(held);
        }
    }

    /// Sends as [`Io::send`] does, but the kernel reads the pages where they are, until the ticket is released.
    ///
    /// After [`ErrorKind::Unsupported`] and [`ErrorKind::OutOfMemory`] the same bytes are sent by copying.
    pub(crate) fn send_without_copy(
        &mut self,
        fd: BorrowedFd<'_>,
        key: u64,
        held: Box<HeldPieces>,
    ) -> Result<(usize, ZeroCopyId)> {
        let Some(uring) = &mut self.uring else { return Err(ErrorKind::Unsupported.into()) };
        let bytes = held.bytes();
        let sent = uring.send_without_copy(fd.as_raw_fd(), held, key);
        let is_short = match &sent {
            Ok((sent, _)) => *sent < bytes,
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        };
        if is_short {
            self.ask_for_room(fd);
        }
        sent
    }

    /// The next send that the kernel has let go of. Asked for after each turn until there is none.
    pub(crate) fn next_released(&mut self) -> Option<SendReleased> {
        self.released.pop_front().or_else(|| self.uring.as_mut()?.next_released())
    }

    /// Receives what is there and has room, without waiting: 0 at the stream's end, [`ErrorKind::WouldBlock`] where
    /// nothing is there.
    ///
    /// What is left after a call that filled all the room is not reported again: the caller goes on by itself.
    pub(crate) fn receive(&mut self, fd: BorrowedFd<'_>, pieces: &mut IoPieces<'_>) -> Result<usize> {
        call::receive(fd, pieces)
    }
}
