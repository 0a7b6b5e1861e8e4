//! Why something cannot be begun.

use std::time::Duration;

use penstock_core::EngineName;
use penstock_session::control::{EXTENTS_MAX, SCHEMA_BYTES_MAX};
use penstock_session::{PeerKey, RequestId};

use super::metadata::MetadataError;
use crate::FlowCause;
use crate::cause::Words;
use crate::partners::Silence;

/// Why a call of a relay was refused; nothing has changed then.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RelayError {
    /// The session with this peer is over.
    #[error("peer {} of epoch {} {}", .0.peer_index, .0.epoch, Silence::Gone)]
    PeerLost(PeerKey),
    /// The session with this peer is not complete.
    #[error("peer {} of epoch {} {}", .0.peer_index, .0.epoch, Silence::NotYet)]
    NotYet(PeerKey),
    /// There is no session with this engine.
    #[error("there is no session with {0}, which has the bytes: connect to it first")]
    Unknown(EngineName),
    /// The engine has been restarted since.
    #[error("{0} has been restarted since it gave this metadata, and what it had is gone: let it put again")]
    Restarted(EngineName),
    /// The peer does not speak of transfers by name, and so of no chunks.
    #[error("peer {} of epoch {} {}", .0.peer_index, .0.epoch, Silence::NotSpoken)]
    NotSpoken(PeerKey),
    /// A put without readers.
    #[error("a put has at least one reader and at most {most}, and this has {found}")]
    Readers {
        /// How many were named.
        found: usize,
        /// How many there may be.
        most: usize,
    },
    /// A reader is named twice.
    #[error("peer {} is named as a reader twice: name each reader once", .0.peer_index)]
    ReaderTwice(PeerKey),
    /// Too many bytes.
    #[error(
        "a put of {asked} bytes is larger than the {most} that fit in its parts: put it in several, or set larger berths"
    )]
    TooLarge {
        /// How many were asked for.
        asked: u64,
        /// How many are possible.
        most: u64,
    },
    /// There are no berths at all.
    #[error("this engine has no berths for that: set `RelaySpec::berths` to at least one of each")]
    NoBerths,
    /// Too many extents, an empty one, or bytes that cannot be counted.
    #[error("memory is named in at most {EXTENTS_MAX} extents, none of them empty or beyond all memory")]
    Extents,
    /// The destination has another size.
    #[error("{bytes} bytes are to be fetched into {room}: give exactly as many")]
    Destination {
        /// How many there are.
        bytes: u64,
        room: u64,
    },
    /// A schema or header is too long.
    #[error("a {what} has at most {SCHEMA_BYTES_MAX} bytes and this has {bytes}: put it among the items")]
    TooLong {
        what: &'static str,
        /// How many bytes it has.
        bytes: usize,
    },
    /// A bound is reached.
    #[error("there are {most} {what} at once, which is all there may be: let some end")]
    Full {
        what: &'static str,
        /// How many there may be.
        most: usize,
    },
    /// The request has ended here.
    #[error("request {request} has ended here: {cause}; a retry has a name of its own")]
    Ended {
        request: RequestId,
        /// How it has ended.
        cause: FlowCause,
    },
    /// What has been put has ended here.
    #[error("this was fetched or given up here already: a retry is another put")]
    Over,
    /// What has been put was announced here, and nobody asked for it in time.
    #[error(
        "this was announced here, and nobody asked for it within the {} ms for which announcements are kept, so it was \
         refused: let it put again and ask sooner, or keep them for longer with `RelaySpec::early`", .0.as_millis()
    )]
    TooLate(Duration),
    /// Somebody fetches it already.
    #[error("this is being fetched here already: one get reads it for all of this engine")]
    Claimed,
    /// There is no such operation.
    #[error("there is no such operation here: it was let go of")]
    NoSuchOperation,
    /// The part is not this caller's to fill or take.
    #[error("part {0} is not with the caller: it was given back already, or was never handed out")]
    NotYours(u64),
    /// The stream has ended.
    #[error("stream {0} has ended: begin another one")]
    StreamEnded(u32),
    /// What was handed over as metadata is none.
    #[error(transparent)]
    Metadata(#[from] MetadataError),
    /// A source is named twice, or none at all.
    #[error("a join has at least one source, each named once, and at most {0}")]
    Sources(usize),
    /// It was closed.
    #[error("this relay is closed: open another one with `Engine::relay`")]
    Closed,
    /// There is one already.
    #[error("this engine has a relay that is open: use its handle, which can be cloned, or close it")]
    Open,
    /// The one before has not everything back.
    #[error("peers may still be at memory of the relay before: wait until its `close` says that nobody is")]
    Closing,
}

/// How an operation failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{cause}{}", Words(.words))]
pub struct RelayFailed {
    /// Why.
    pub cause: FlowCause,
    /// With whom, if it was with somebody.
    pub peer: Option<PeerKey>,
    /// What was said about it.
    pub words: String,
}

impl RelayFailed {
    pub(super) fn new(cause: FlowCause, peer: Option<PeerKey>, words: &str) -> Self {
        Self { cause, peer, words: words.to_owned() }
    }
}
