//! Between two hosts, over byte streams.
//!
//! Read in this order:
//!
//! - [`wire`]: what goes over a stream, parsed as the untrusted bytes it is
//! - `io`: what moves bytes between sockets and memory, and what a worker asks the kernel

pub mod wire;

// Nothing but its tests uses it yet.
#[cfg_attr(not(test), allow(dead_code, unused_imports))]
mod io;
