//! What one worker does for all its lanes of a transport at once.
//!
//! Lanes inside a host are marked ready by their peers. Where the kernel or a card is between, somebody has
//! to ask it which lanes have something: the driver, once a turn, for all of them.

use std::os::fd::BorrowedFd;

/// One worker's side of a transport: it stays with its worker, while lanes come and go.
pub trait Driver: Send {
    /// Looks, without waiting, which lanes have something to poll, and marks them ready. Costs no system call
    /// where nothing has happened, as far as the kernel allows that. Returns whether anything had.
    fn turn(&mut self) -> bool;

    /// Called right before the worker sleeps on [`Driver::descriptor`]. Returns whether it may: false if
    /// [`Driver::turn`] would find something.
    fn prepare_to_sleep(&mut self) -> bool;

    /// Becomes readable when [`Driver::turn`] would find something. It is polled, never read.
    fn fd(&self) -> BorrowedFd<'_>;
}
