//! Between two hosts with RDMA cards.
//!
//! A session has a channel for each pair of workers, with a queue pair on each rail. Cards move the bytes; what they do not
//! say by themselves (when a target may read, that nothing lands any more) the channels say in messages of their own.
//!
//! Read in this order:
//!
//! - [`card`]: what a card can do, the seam to everything real
//! - [`device`]: real cards, and which of them are used
//! - [`model`]: a card in this process, for tests

pub mod card;
pub mod device;
#[cfg(any(test, feature = "model"))]
pub mod model;
