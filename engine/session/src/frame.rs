//! What two engines can say to each other on the bootstrap channel.
//!
//! Versions: every frame carries the version of its encoding. A `Hello` names the range its sender
//! speaks and is itself always encoded in version 1, so that any two releases can at least refuse
//! each other in words. The session then uses the highest version both speak. A frame kind this
//! release does not know is an error below [`OPTIONAL_KINDS`] and skipped from there on: so a new kind gets
//! a number from there, and is said only where it does no harm that nobody hears it. A kind's body never
//! changes; what has to be said differently gets a new kind. Codes of refusals are written by their place in
//! [`RefusalCode`]: new ones go to its end. A release that does not know a code cannot read that refusal, and
//! ends the session, as a refusal would have.

use serde::{Deserialize, Serialize};

use crate::control::ControlMessage;

/// The oldest version this release speaks.
pub const VERSION_MIN: u16 = 1;
/// The newest version this release speaks.
pub const VERSION_MAX: u16 = 1;
/// Kinds from here on may be skipped by a release that does not know them.
pub const OPTIONAL_KINDS: u16 = 0x8000;

pub(crate) const DRAINING: u16 = OPTIONAL_KINDS + 0x10;
pub(crate) const SETTLED: u16 = OPTIONAL_KINDS + 0x11;
pub(crate) const RESTED: u16 = OPTIONAL_KINDS + 0x12;
pub(crate) const PING: u16 = OPTIONAL_KINDS + 0x20;
pub(crate) const PONG: u16 = OPTIONAL_KINDS + 0x21;
pub(crate) const DESCRIPTOR: u16 = OPTIONAL_KINDS + 0x30;
pub(crate) const KNOWN: u16 = OPTIONAL_KINDS + 0x31;
pub(crate) const WITHDRAWN: u16 = OPTIONAL_KINDS + 0x40;
pub(crate) const TRANSPORT_MESSAGE: u16 = OPTIONAL_KINDS + 0x41;

/// The longest message of one [`Frame::TransportMessage`], in bytes.
pub const TRANSPORT_MESSAGE_BYTES_MAX: usize = 4096;

/// The longest words of a refusal, in bytes.
pub const REFUSAL_BYTES_MAX: usize = 4096;

/// The most descriptors of one frame.
pub const CARDS_MAX: usize = 64;

/// The longest label of a region or counter, in bytes.
pub const LABEL_BYTES_MAX: usize = 128;

/// The first frame of each side.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The oldest version spoken.
    pub version_min: u16,
    /// The newest version spoken.
    pub version_max: u16,
    /// The engine's name.
    pub name: String,
    /// The engine's epoch.
    pub epoch: u64,
    /// The epoch the sender expects to talk to; zero if it does not care.
    pub expects: u64,
    /// Which host the sender runs on (a digest of the kernel's boot id).
    pub host: u64,
    /// Which process the sender runs in (random, made once a process).
    pub process: u64,
    /// How many workers the sender has, and so how many rings it will fill.
    pub workers: u16,
    /// The place in the sender's table of peers that this session takes.
    pub peer_index: u32,
    /// The transports the sender allows, best first.
    pub transports: Vec<String>,
}

/// What one side of a transport needs from the other. Descriptors ride with the frame.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offer {
    /// The transport that both sides will use.
    pub transport: String,
    /// The transport's own words.
    pub blob: Vec<u8>,
}

/// A region that the sender offers to its peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionNews {
    /// Its id.
    pub id: u32,
    /// Its generation.
    pub generation: u32,
    /// Its label.
    pub label: String,
    /// Its length in bytes.
    pub bytes: u64,
    /// Where the owner sees it; a number, never dereferenced by others.
    pub base: u64,
    /// The rights given to peers, as bits (1 read, 2 write).
    pub rights: u8,
    /// Bytes of one block, zero if the region is not made of blocks.
    pub block_bytes: u64,
    /// How the region can be reached: the transport's own words.
    pub path: Vec<u8>,
    /// Which of the frame's descriptors is the region's memory.
    pub token: Option<u8>,
}

/// New regions, and how recent the news is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionsAdvertised {
    /// The revision of the sender's log of withdrawn memory that this and all earlier frames reflect.
    pub revision: u64,
    /// The regions.
    pub news: Vec<RegionNews>,
}

/// Regions that are gone, and how recent the news is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RegionsGone {
    /// The revision of the sender's log of withdrawn memory that this and all earlier frames reflect.
    pub revision: u64,
    /// Which, as (id, generation).
    pub gone: Vec<(u32, u32)>,
}

/// The next part of the sender's log of withdrawn memory, for peers that cannot look into it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WithdrawnRanges {
    /// The revision after which the list begins.
    pub since: u64,
    /// One of each revision after that, as (region, generation, offset, length).
    pub list: Vec<(u32, u32, u64, u64)>,
}

/// An arrival counter that the sender offers to its peer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct CounterNews {
    /// Its place in the owner's table.
    pub id: u32,
    /// Which use of that place this is; 0: what was there is gone, and the rest says nothing.
    pub generation: u32,
    /// The region it was made for.
    pub region: u32,
    /// Its label.
    pub label: String,
}

/// Why one engine does not want to talk to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RefusalCode {
    /// No version that both speak.
    Version,
    /// The caller expected another epoch: the engine was restarted.
    Epoch,
    /// No transport that both allow reaches from one to the other.
    NoTransport,
    /// The operating system says the caller is another user.
    ForeignUser,
    /// The engine has as many peers as it may have.
    Full,
    /// What was said was not understood.
    Malformed,
    /// The offered descriptors are not what they must be.
    BadOffer,
    /// The engine is shutting down.
    Closing,
    /// Another live engine of the caller's name has a session here.
    NameTaken,
    /// The caller has not shown that it belongs to the group.
    Unauthenticated,
}

impl RefusalCode {
    /// What to do about it.
    pub const fn advice(self) -> &'static str {
        match self {
            Self::Version => "the two releases have no protocol version in common; upgrade the older one",
            Self::Epoch => "the engine was restarted since its descriptor was made; fetch its descriptor again",
            Self::NoTransport => "no transport allowed on both sides joins these two engines; see `transports.allow`",
            Self::ForeignUser => "the other engine runs as another user; run both as the same user",
            Self::Full => "the engine has as many peers as it may have; disconnect one",
            Self::Malformed => "the engine did not understand what it was sent",
            Self::BadOffer => "the engine refused the memory it was offered",
            Self::Closing => "the engine is shutting down",
            Self::NameTaken => "another live engine of this name has a session here; give one of them another name",
            Self::Unauthenticated => {
                "the engine takes only callers that share its secret; copy one host's secret file to the other"
            }
        }
    }
}

/// Everything that can be said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Frame {
    /// The first frame of each side.
    Hello(Hello),
    /// The last frame of a side that will not talk.
    Refuse {
        /// Why.
        code: RefusalCode,
        /// Why, in words.
        text: String,
    },
    /// What the transport needs.
    Offer(Offer),
    /// Regions that can be used from now on.
    Regions(RegionsAdvertised),
    /// Regions that are gone.
    RegionsGone(RegionsGone),
    /// Counters that can be used from now on, and places whose counter is gone.
    Counters(Vec<CounterNews>),
    /// The sender submits nothing new to the receiver, takes nothing new from it, and leaves when what runs
    /// has ended on both sides. Optional: a release that does not know it goes on until the goodbye.
    Draining,
    /// Nothing of the sender's runs any more that touches the receiver, and all it had to tell is told: said by
    /// both sides once one of them drains. Optional.
    Settled,
    /// The sender has taken in all that the receiver had told it when that said `Settled`. Optional.
    Rested,
    /// The sender wants to hear a `Pong` with the same number. Optional: no answer says nothing of a release
    /// that does not know it.
    Ping {
        /// The sender's own count.
        number: u64,
    },
    /// The answer to a `Ping`. Optional.
    Pong {
        /// The number of the ping.
        number: u64,
    },
    /// The sender's own descriptor, as bytes of [`crate::descriptor`]: a receiver may ignore them. Optional.
    Descriptor(Vec<u8>),
    /// Cards of engines that the sender knows. Optional.
    Known(Vec<Vec<u8>>),
    /// What the sender has withdrawn. Optional: who does not hear it is refused later, when it matters.
    Withdrawn(WithdrawnRanges),
    /// Words of the transport of this session, from its lanes there to those here: they are read by them. Optional, and
    /// said only by transports that have such words on both sides.
    TransportMessage(Vec<u8>),
    /// Something of transfers by name. Optional, and said only to peers that have said that they speak of them.
    Control(ControlMessage),
    /// The sender has stopped touching the receiver's memory and is leaving.
    Goodbye,
}

impl Frame {
    /// A refusal whose words fit into a frame, whatever was to be said.
    pub fn refuse(code: RefusalCode, text: &str) -> Self {
        Self::Refuse { code, text: text[..text.floor_char_boundary(REFUSAL_BYTES_MAX)].to_owned() }
    }

    /// The number of this kind of frame on the wire.
    pub const fn kind(&self) -> u16 {
        match self {
            Self::Hello(_) => 1,
            Self::Refuse { .. } => 2,
            Self::Offer(_) => 3,
            Self::Regions(_) => 4,
            Self::RegionsGone(_) => 5,
            Self::Counters(_) => 6,
            Self::Goodbye => 7,
            Self::Draining => DRAINING,
            Self::Settled => SETTLED,
            Self::Rested => RESTED,
            Self::Ping { .. } => PING,
            Self::Pong { .. } => PONG,
            Self::Descriptor(_) => DESCRIPTOR,
            Self::Known(_) => KNOWN,
            Self::Withdrawn(_) => WITHDRAWN,
            Self::TransportMessage(_) => TRANSPORT_MESSAGE,
            Self::Control(said) => said.kind(),
        }
    }
}
