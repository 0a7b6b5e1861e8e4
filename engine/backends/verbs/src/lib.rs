//! Between two hosts with RDMA cards.
//!
//! A session has a channel for each pair of workers, with a queue pair on each rail. Cards move the bytes; what they do not
//! say by themselves (when a target may read, that nothing lands any more) the channels say in messages of their own.
//!
//! Read in this order:
//!
//! - [`card`]: what a card can do, the seam to everything real
//! - [`model`]: a card in this process, for tests
//! - [`message`]: what the two ends of a rail say to each other, parsed as the untrusted bytes it is
//! - `channel`: the rails between two workers; `context`: what their lane lends them
//! - `rail`, `stage`, `log`: one queue, what is staged for it, and what is under way on it
//! - `op`, `stripe`: batches and announcements, and the rails that they take
//! - `inbound`: what the peer says; `slab`: memory for messages
//! - [`ended`], `repair`, `again`: what is said when a queue has broken, how it is mended, and what then goes again

// The lane that joins channels to the engine is what uses most of this.
#![cfg_attr(not(test), allow(dead_code))]

mod again;
pub mod card;
mod channel;
mod context;
pub mod ended;
mod inbound;
mod log;
pub mod message;
#[cfg(any(test, feature = "model"))]
pub mod model;
mod op;
mod rail;
mod repair;
mod slab;
mod stage;
mod stripe;

#[cfg(test)]
mod tests;
