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
//! - [`directory`]: who is where, as a file says and as peers tell
//! - [`opening`]: what the first bytes of a connection between hosts say
//! - [`channel`]: the sealed stream of bytes between hosts, in which the frames travel
//! - [`secret`]: what the hosts of one group share
//! - [`transfers`]: transfers by name, above that conversation
//! - [`control`]: what is said of them
//! - [`landing`]: what goes behind bytes, to say that they have landed
//! - [`leases`]: memory that is lent, and for how long
//! - [`purse`]: credits of several stocks, taken together or not at all
//! - [`machine`]: state machines as tables
//! - [`keyed`]: maps whose keys come from outside
//! - [`index`]: places of a list by names that stand in the list only
//! - [`few`]: lists, queues and maps that have one entry nearly always

#![forbid(unsafe_code)]

pub mod channel;
pub mod codec;
pub mod control;
pub mod descriptor;
pub mod directory;
pub mod few;
pub mod frame;
pub mod greeting;
pub mod index;
pub mod keyed;
pub mod landing;
pub mod leases;
pub mod machine;
pub mod opening;
pub mod purse;
pub mod secret;
pub mod transfers;

pub use channel::{ChannelError, SecureChannel};
pub use codec::{Decoder, WireError};
pub use control::{ControlMessage, Side};
pub use descriptor::EngineDescriptor;
pub use directory::{Directory, DirectoryError, PeerBook};
pub use frame::{
    CounterNews, Frame, Hello, Offer, RefusalCode, RegionNews, RegionsAdvertised, RegionsGone, WithdrawnRanges,
};
pub use greeting::{Greeting, HelloOutcome, Role};
pub use opening::{Opening, OpeningCode, OpeningDecoder, OpeningError, Refusal, RefusalError, StreamKey, StreamToken};
pub use secret::{Secret, SecretError};
pub use transfers::PeerKey;
pub use transfers::id::{IdError, RequestId, TransferId};
