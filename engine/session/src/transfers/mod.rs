//! Transfers by name: two schedulers know the same bytes by names of their own, and a third name that both share joins
//! them.
//!
//! - [`id`]: the names
//! - [`table`]: where the two names of each are joined, and the one way in and out
//! - [`early`]: what comes before its transfer is known here
//! - [`names`]: who has a name, and what is remembered of those that have ended
//! - [`places`]: the ranks that read from one source

pub mod early;
pub mod id;
pub mod names;
pub mod places;
pub mod table;

use penstock_core::Epoch;

/// A peer in one of its lives: its place in this engine's table of peers, and the epoch of the engine that had it then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerKey {
    /// The place.
    pub party: u32,
    /// The epoch.
    pub epoch: Epoch,
}

/// A transfer as one of the two sides of this engine knows it.
pub type SidedId = (crate::control::Side, id::TransferId);
