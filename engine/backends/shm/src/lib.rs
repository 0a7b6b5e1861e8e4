//! Between two processes of one user on one host.
//!
//! Pools are sealed memory files. A peer maps one once, when a plan first needs it, and from then on a
//! move is one copy to the final address. Memory that Penstock did not allocate is reached by the kernel's own
//! copy between processes, where a trial at the session's start shows that it is allowed, and else through
//! its owner, by bounce slots.
//!
//! - [`transport`]: reaching, offering, joining
//! - [`offer`]: what one engine passes to the other, checked before it is used
//! - [`bells`]: where peers ring, and what they are given for it
//! - [`registrar`]: the ways to a peer's memory

#![forbid(unsafe_code)]

pub mod bells;
pub mod offer;
pub mod registrar;
pub mod transport;

pub use transport::ShmTransport;
