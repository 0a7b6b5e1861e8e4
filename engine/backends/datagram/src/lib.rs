//! Between hosts, over packets: the protocol of [`penstock_datagram`], and what carries it.
//!
//! A worker has one port for all its peers, and a connection for each of their workers. Bytes are copied from their memory into
//! packets and from packets to their final places, under the hazard that a copying worker raises.
//!
//! Read in this order:
//!
//! - [`transport`]: reaching, offering, joining; [`offer`]: what both sides must agree on
//! - [`port`]: what carries packets; [`udp`]: a socket that does; [`dpdk`]: a queue of a device that does
//! - `lane`: one worker's lane; `side`: the memory that its connections move bytes from and to
//! - `no_path`: what the two sides say to each other where packets do not pass
//! - `hub`, `driver`: a worker's port and connections, and what is looked at for all of them once a turn

pub mod dpdk;
mod driver;
mod hub;
mod lane;
mod no_path;
pub mod offer;
pub mod port;
mod side;
pub mod transport;
pub mod udp;

#[cfg(test)]
mod tests;

pub use hub::OpenPort;
pub use port::Port;
pub use transport::{DatagramOptions, DatagramTransport};
