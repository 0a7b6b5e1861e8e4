//! Sessions of engines in this process, between hosts and within one: over real transports, stand-ins and doubles.
//!
//! One program, as each is compiled and linked by itself. What counts the process's descriptors is another one beside this.

mod double;
mod drivers;
mod hosts;
mod network;
mod network_tcp;
mod pairs;
mod transports;
