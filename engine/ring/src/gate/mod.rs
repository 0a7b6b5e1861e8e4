//! How the owner of memory knows that nothing lands in it any more.
//!
//! Every copying worker has a [`Hazard`], a word that it alone writes and others read. Every owner
//! has a gate: a log of the ranges it withdrew, with a revision that counts them
//! ([`GateWriter`], [`GateReader`]).
//!
//! ```text
//! copier                                 owner
//! hazard.enter(owner)                    gate.withdraw(ranges)
//! if gate.revision() == the plan's:      for each hazard: observe(); while it is busy with us
//!     copy (and fence what needs it)         and has not moved since: wait
//! hazard.leave()                         nothing lands any more
//! ```
//!
//! Both sides store first and load second, with a full barrier between (Dekker's handshake). In
//! the one order of all barriers, either the copier's comes first, and the owner finds it busy
//! and waits for it; or the owner's comes first, and the copier finds a new revision and copies
//! nothing. A copier that moved on since it was seen busy may be busy again: it entered after the
//! withdrawal, so it has seen the new revision. Leaving releases and observing acquires, so all
//! that was copied is visible to the owner who waited.
//!
//! What ends by itself later, as requests to a card do, is told by a [`LowWater`] instead: the oldest revision under which
//! anything under way was begun. The handshake is the same.
//!
//! When the revision changed, [`GateReader::withdrawals_since`] tells what was withdrawn, so that
//! plans over other ranges go on.

mod hazard;
mod log;
mod low_water;
#[cfg(all(test, not(loom)))]
mod tests;

pub use hazard::{HAZARD_BYTES, Hazard, HazardView, Observation};
pub use log::{GATE_ENTRIES, GateReader, GateWriter, LogOverrun, Withdrawal, Withdrawals};
pub use low_water::{LowWater, LowWaterView, NOTHING};
