//! What one worker does for all its lanes of a transport at once.
//!
//! Lanes inside a host are marked ready by their peers. Where the kernel or a card is between, somebody has
//! to ask it which lanes have something: the driver, once a turn, for all of them.

use std::io;
use std::os::fd::BorrowedFd;

use penstock_core::Timestamp;

/// Whether a worker may sleep: the answer of [`Driver::rest`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// No: [`Driver::turn`] would find something.
    Busy,
    /// Until something comes, and not longer than until this moment; [`Timestamp::NEVER`] sets no end.
    Until(Timestamp),
}

/// One worker's side of a transport: it stays with its worker, while lanes come and go.
pub trait Driver: Send {
    /// Called once on the worker's own thread, before anything else there. The engine does not start if it fails.
    fn begin(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Looks, without waiting, which lanes have something to poll, and marks them in the worker's ready bits
    /// ([`MailboxView::ready`](crate::host::MailboxView::ready)), each at its peer's index. Costs no system call
    /// where nothing has happened, as far as the kernel allows that. Returns whether anything had.
    fn turn(&mut self) -> bool;

    /// Called right before the worker sleeps on [`Driver::fd`]. What comes from now on makes it readable.
    fn rest(&mut self, now: Timestamp) -> Rest;

    /// Becomes readable when [`Driver::turn`] would find something. It is polled, never read.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Called on the worker's own thread when it ends and has waited for its lanes: what only this hears for them will not be heard.
    fn give_up(&mut self) {}

    /// Called once on the worker's own thread, after its last lane was dropped.
    fn end(&mut self) {}
}
