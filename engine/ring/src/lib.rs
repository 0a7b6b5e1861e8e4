//! Lock-free primitives of the data plane, over heap memory or memory shared with other processes.
//!
//! Everything that two threads or two processes touch at once lives in this crate, so that the
//! memory orderings can be read, argued about and modelled in one place (`tests/loom.rs`).
//! No file descriptor, clock or system call appears here: where somebody has to be woken, a
//! method says so and the caller does it.
//!
//! Memory shared with another process is never trusted. It is only touched through atomic words,
//! read once, and checked before use; a peer that scribbles over it can break its own ring and
//! nothing else.
//!
//! Modules, in reading order:
//!
//! | module | what it is |
//! |---|---|
//! | [`error`] | why a ring, a slab or a piece of memory refused |
//! | [`place`] | a piece of shared memory that stays mapped while it is used |
//! | [`shared`] | one atomic overlay, on the heap or in a place |
//! | [`spsc`] | ring of 64-byte lines, one producer, one consumer |
//! | [`mpsc`] | queue of values, many producers, one consumer |
//! | [`slab`] | preconstructed items behind generational keys |
//! | [`handles`] | objects behind numbers that anybody may present, for callers without types |
//! | [`gate`] | hazards and the withdrawal log: how an owner knows that nothing lands any more |
//! | [`published`] | a number that its owner publishes, readable over read-only mappings |
//! | [`bounce`] | a slot in which one side asks, the other does and answers |
//! | [`life`] | a word that the kernel marks when its owner dies |
//! | [`bell`] | wake the other side only when it sleeps |
//! | [`ready`] | bitmap of the lanes that have work |
//! | [`counter`] | arrival counters in shared memory |
//! | [`thread_bound`] | a value that only its own thread may touch |

pub mod bell;
pub mod bounce;
pub mod counter;
pub mod error;
pub mod gate;
pub mod handles;
#[cfg(not(loom))]
pub mod life;
pub mod mpsc;
pub mod published;
pub mod ready;
pub mod shared;
#[cfg(not(loom))]
pub mod shared_range;
pub mod slab;
pub mod spsc;
pub mod thread_bound;

mod sync;

pub use bell::{Ringer, Sleeper};
pub use counter::{CounterCell, CounterTable};
pub use error::{Corrupt, Full, RingError, StaleKey};
pub use gate::{
    GateReader, GateWriter, Hazard, HazardView, LogOverrun, LowWater, LowWaterView, Observation, Withdrawal,
};
#[cfg(not(loom))]
pub use life::{Liveness, LivenessPublisher, LivenessView};
pub use published::{Published, Publisher};
pub use ready::ReadyBits;
pub use shared::SharedRef;
#[cfg(not(loom))]
pub use shared_range::SharedRange;
pub use slab::{Key, Slab};
pub use spsc::RingLine;
pub use thread_bound::{Entered, ThreadBound, ThreadBoundError};
