//! Between two hosts, over byte streams.
//!
//! A session has a channel for each pair of workers, of one or more streams. Each stream is one worker's at either end,
//! so nothing of it is locked. Bytes move inside calls that do not wait, from and to their final places, under the
//! hazard that a copying worker raises: a revocation waits for at most one call, whatever the peer does.
//!
//! Read in this order:
//!
//! - [`transport`]: reaching, offering, joining; [`offer`]: what both sides must agree on
//! - [`wire`]: what goes over a stream, parsed as the untrusted bytes it is
//! - `lane`, `channel`, `stream`: one worker's lane, its channels, and what the messages of a stream mean
//! - `op`, `outgoing`, `group`: what this side has under way, and how it leaves
//! - `incoming`: what arrives; what a peer may do, and the room for its notes, are in [`penstock_transport::mediated`]
//! - `streams`, `hub`, `driver`: streams on their way to their workers, and what a worker asks the kernel for all of them
//! - `io`: what moves bytes between sockets and memory; `retries`: how often the kernel sends what was lost

mod channel;
mod driver;
mod group;
mod hub;
mod incoming;
mod io;
mod lane;
pub mod offer;
mod op;
mod outgoing;
mod retries;
mod stream;
mod streams;
pub mod transport;
pub mod wire;

#[cfg(test)]
mod tests;

pub use retries::bound_retries;
pub use transport::TcpTransport;
