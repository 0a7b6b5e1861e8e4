//! Between simulated hosts, over packets that vanish, come twice, late, and in any order.
//!
//! What is between two hosts is a trait, [`Fabric`], which a simulation implements. Upon it stands what a transport
//! promises: bytes land where they belong or are refused by who owns the memory, and a note is told once, behind all bytes
//! of its transfer. No engine has this transport by itself: a test passes it to one.
//!
//! Read in this order:
//!
//! - [`fabric`]: what carries packets, and tells the time
//! - [`packet`]: what is in one, parsed as the untrusted bytes it is
//! - `line`: every message arrives once, whatever becomes of packets
//! - [`transport`]: reaching, offering, joining
//! - `lane`, `outgoing`: one worker's lane, and what this side has under way
//! - `incoming`: what a peer asks; what it may do, and the room for its notes, are in [`penstock_transport::mediated`]
//! - `hub`: ports, and what a worker looks at for all of them

#![forbid(unsafe_code)]

pub mod fabric;
mod hub;
mod incoming;
mod lane;
mod line;
mod outgoing;
pub mod packet;
pub mod transport;

#[cfg(test)]
mod tests;

pub use fabric::Fabric;
pub use transport::SimTransport;
