//! The conversation between two engines, without any I/O.
//!
//! Nothing here owns a socket, a thread or a clock: bytes come in, frames come out, and the
//! [`Greeting`] says what to send next. Every parser is total: any bytes give a value or a typed
//! error, never a panic, never an allocation beyond a fixed multiple of the input (the replayed corpora hold it to 132 bytes a byte).
//!
//! Read in this order:
//!
//! - [`frame`]: what can be said, and the versions in which it is said
//! - [`codec`]: frames to bytes and back, from a stream that may cut anywhere
//! - [`greeting`]: who may talk to whom, over which transport
//! - [`card`]: the portable descriptor of an engine

#![forbid(unsafe_code)]

pub mod card;
pub mod codec;
pub mod frame;
pub mod greeting;

pub use card::Card;
pub use codec::{Decoder, WireError};
pub use frame::{CounterNews, Frame, Hello, Offer, RefusalCode, RegionNews, Regions, RegionsGone};
pub use greeting::{Greeting, Outcome, Role};
