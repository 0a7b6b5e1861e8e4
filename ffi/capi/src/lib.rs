//! Penstock from C and C++: the data plane as one library.
//!
//! Read `objects` for handles, `call` and `arguments` for the border, `status` and `failure` for what comes back; the others are the
//! calls, by thing. Every call goes through `call::call`, so that no panic leaves; whatever a caller gives is a number, or a pointer that
//! `arguments` reads or writes. `penstock.h` is made from these files.

#![allow(non_camel_case_types, reason = "types have the names of the header")]
#![allow(unreachable_pub, reason = "a library for C exports its calls, and has no other public items")]

mod arguments;
mod call;
pub mod engine;
pub mod failure;
pub mod log;
pub mod memory;
mod objects;
pub mod packets;
pub mod peer;
pub mod plan;
pub mod status;
pub mod told;
pub mod transfer;

pub use status::penstock_status;

#[cfg(test)]
mod hostile;
#[cfg(test)]
mod layout;
