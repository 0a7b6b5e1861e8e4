//! Between two hosts with RDMA adapters.
//!
//! A session has a channel for each pair of workers, with a queue pair on each rail. Adapters move the bytes; what they do not
//! say by themselves (when a target may read, that nothing lands any more) the channels say in messages of their own.
//!
//! Read in this order:
//!
//! - [`adapter`]: what an adapter can do, the seam to everything real
//! - [`device`]: real adapters, and which of them are used
//! - [`model`]: an adapter in this process, for tests
//! - [`transport`]: reaching, offering, joining; [`offer`]: what both sides must agree on; [`pairing`]: which rails are joined
//! - [`registrar`], `regions`: the way to a peer's memory, and what is registered with which adapter
//! - `hub`, `receives`, `driver`: what a worker asks its adapters for all its lanes
//! - `lane`, `fence`, `transport_messages`: one worker's lane, what is proven of the adapters that touch this engine's memory, words beside the rails
//! - [`message`]: what the two ends of a rail say to each other, parsed as the untrusted bytes it is
//! - `channel`: the rails between two workers; `context`: what their lane lends them; `close`: its end
//! - `rail`, `stage`, `log`: one queue, what is staged for it, and what is under way on it
//! - `op`, `stripe`: batches and notifications, and the rails that they take
//! - `flush_remote`: proof that what adapters have completed has landed
//! - `inbound`: what the peer says; `slab`: memory for messages
//! - `connecting`: the threads in which queues are connected again
//! - [`ended`], `repair`, `again`: what is said when a queue has broken, how it is mended, and what then goes again

pub mod adapter;
mod again;
mod channel;
mod close;
mod connecting;
mod context;
pub mod device;
mod driver;
pub mod ended;
mod fence;
mod flush_remote;
mod hub;
mod inbound;
mod lane;
mod log;
pub mod message;
#[cfg(any(test, feature = "model"))]
pub mod model;
pub mod offer;
mod op;
pub mod pairing;
mod rail;
mod receives;
mod regions;
pub mod registrar;
mod repair;
mod slab;
mod stage;
mod stripe;
pub mod transport;
mod transport_messages;

#[cfg(test)]
mod tests;

pub use regions::RegistrationKind;
pub use transport::{VerbsOptions, VerbsTransport};
