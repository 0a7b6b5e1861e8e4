//! What the transports have in common whose target moves the bytes itself: each of its peer's operations is looked up and checked
//! before its first byte, and notes wait here when the inbox has no room.

mod notes;
mod registrar;
mod target;
mod touch;

pub use notes::Notes;
pub use registrar::TargetMediatedRegistrar;
pub use target::{LaneTarget, Poisoned, Wants};
pub use touch::Touch;
