//! Between two engines of one process.
//!
//! Both engines map the same memory already, so a region is reached by its own window and a move is one
//! copy. A reference-counted handle can change hands without any copy at all.
//!
//! - [`transport`]: reaching, offering, joining
//! - [`registrar`]: regions by their own windows
//! - [`directory`]: how two engines of one process find each other's memory

#![forbid(unsafe_code)]

pub mod directory;
pub mod registrar;
pub mod transport;

pub use transport::LocalTransport;
