//! What the proxy and its two processes say to each other: one JSON value a line.

use std::fmt;

use penstock::flows::TransferId;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Which part a process plays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Role {
    /// It has the bytes
    Prefill,
    /// It needs them
    Decode,
}

impl Role {
    pub(crate) const BOTH: [Self; 2] = [Self::Prefill, Self::Decode];

    /// Its word, as on the command line and in events.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Prefill => "prefill",
            Self::Decode => "decode",
        }
    }

    /// The name of its engine, in every life.
    pub(crate) fn engine(self) -> &'static str {
        match self {
            Self::Prefill => "prefill-0",
            Self::Decode => "decode-0",
        }
    }

    pub(crate) fn other(self) -> Self {
        match self {
            Self::Prefill => Self::Decode,
            Self::Decode => Self::Prefill,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What happens in an act.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Scene {
    /// Layers are pushed as they are computed. After this one there is a long pause.
    Push { pause_after: Option<u32> },
    /// The same, lent; the other side reads it.
    Pull,
    /// What one stage has embedded is taken in legs by another one with less room.
    Legs,
    /// The first turn of a conversation: what decode has of it is kept there when it has ended.
    Parent,
    /// The turn behind it: decode asks for what it has not kept.
    Child,
    /// Both are stages that stream chunks to each other, each with room for two berths at a time.
    Relay,
}

/// A part in an act: both sides get the same one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Part {
    /// The act, counted from 1.
    pub(crate) act: u32,
    pub(crate) scene: Scene,
    /// What both sides call it.
    pub(crate) transfer: TransferId,
    /// The request's own name, from which each side makes a name of its own.
    pub(crate) uuid: String,
    pub(crate) tokens: u64,
    /// What the bytes are made from.
    pub(crate) stamp: u64,
    /// One bit of it is to be wrong: sabotage.
    pub(crate) spoil: bool,
}

/// Something a process is told to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Connect to the engine with this card, and forget the one before.
    Meet { card: Vec<u8> },
    /// Play this part.
    Play(Part),
}

/// Something that has happened. Times are of the clock that all processes of a host have in common.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Event {
    pub(crate) t_ns: u64,
    pub(crate) act: u32,
    /// What, in a word that stays what it is.
    pub(crate) event: String,
    /// The same, for people.
    pub(crate) says: String,
    /// And in figures.
    pub(crate) figures: Map<String, Value>,
}

/// What a process says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) enum Said {
    /// It is there, and this is its engine's card.
    Ready { card: Vec<u8> },
    /// The order to connect is done.
    Met { path: String },
    /// Something has happened.
    Event(Event),
    /// Its part is over, and this is the digest of its bytes.
    Done { act: u32, digest: String },
    /// Its part is over because the other side failed: it has said so in an event.
    Survived { act: u32 },
    /// It could not do what it was told, and why.
    Failed { why: String },
}
