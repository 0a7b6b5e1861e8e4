//! Transfers by name: two schedulers know the same bytes by names of their own, and a third name that both share joins
//! them.
//!
//! - [`id`]: the names
//! - [`table`]: where the two names of each are joined, and the one way in and out
//! - [`early`]: what comes before its transfer is known here
//! - [`places`]: the ranks that read from one source
//! - [`tombs`]: what is remembered of those that have ended

pub mod early;
pub mod id;
pub mod places;
pub mod table;
pub mod tombs;

use penstock_core::Epoch;

/// A peer in one of its lives: its place in this engine's table of peers, and the epoch of the engine that had it then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerKey {
    /// The place.
    pub peer_index: u32,
    /// The epoch.
    pub epoch: Epoch,
}

/// A transfer as one of the two sides of this engine knows it.
pub type SidedId = (crate::control::Side, id::TransferId);
