//! A reliable one-sided protocol over packets that vanish, double, overtake and rot: writes, reads and notifications between two
//! workers. It has no socket, clock, thread or memory of its own: packets and moments go in, packets and a deadline come out,
//! bytes are placed and gathered by the caller.
//!
//! Read in this order:
//!
//! - [`wire`]: the layout of packets, parsed as the untrusted bytes they are; [`keys`], [`siphash`]: who made them
//! - [`connection`]: one worker's connection to one of the peer's: packets in, packets out
//! - [`initiator`]: this side's operations; [`target`]: the peer's
//! - [`in_flight`], [`receive_window`]: which packets have arrived, here and there
//! - [`congestion`], [`credit`]: how much may be under way, for the network and for the receiver

#![forbid(unsafe_code)]

pub mod checksum;
pub mod congestion;
pub mod connection;
pub mod credit;
pub mod in_flight;
pub mod initiator;
pub mod keys;
pub mod receive_window;
pub mod siphash;
pub mod target;
pub mod wire;

#[cfg(test)]
mod tests;

pub use connection::{
    ConnectionError, ConnectionSettings, DatagramConnection, LentPiece, LocalSide, OutgoingOp, PacketFate, PacketRoom,
    Piece,
};
pub use keys::{ConnectionKeys, HalfKey};
