//! How large everything is, what is put, and what arrives.

use std::time::Duration;

use penstock_core::{EngineName, Epoch};
use penstock_session::{PeerKey, RequestId};

use super::{Announced, EarlyFrameBounds, PutSource, RelayFailed, StagingPool};

/// How large everything is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelaySettings {
    /// What this engine is called.
    pub name: EngineName,
    /// Which life of it this is.
    pub epoch: Epoch,
    /// Berths that puts go through.
    pub puts: StagingPool,
    /// Berths that gets go into.
    pub gets: StagingPool,
    /// The most berths of one put: it takes as many as it can use, all at once.
    pub each: u32,
    /// The most ends of streams that are said and not answered.
    pub control: u32,
    /// The most puts, gets, joins, and streams of either direction, at once.
    pub most: usize,
    /// How much is kept that nobody has asked for yet.
    pub early: EarlyFrameBounds,
    /// How many ended requests, chunks and streams are remembered.
    pub tombs: usize,
    /// How long.
    pub tomb: Duration,
    /// How long a peer has to answer for what was given up, before its memory is quarantined.
    pub abort: Duration,
    /// Moves, watches and tickets of this relay are numbered from here.
    pub first_number: u64,
}

/// What is put.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToPut {
    /// For which request.
    pub request: RequestId,
    /// Where the bytes are.
    pub source: PutSource,
    /// Who may fetch them; what was lent comes back after the last of them.
    pub readers: Vec<PeerKey>,
    /// What the bytes are, as [`payload`] writes it, or nothing.
    pub schema: Vec<u8>,
    /// Words for the readers, which nobody here reads.
    pub header: Vec<u8>,
    /// How long all of it may take.
    pub within: Duration,
}

/// Something for the application.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Arrival {
    /// A chunk can be fetched.
    Chunk(Announced),
    /// A stream has ended well: all its chunks were handed over before.
    Done {
        /// Whose.
        peer: PeerKey,
        /// Its number there.
        stream: u32,
    },
    /// A stream has failed: no chunk of it follows.
    Failed {
        /// Whose.
        peer: PeerKey,
        /// Its number there.
        stream: u32,
        /// How.
        failed: RelayFailed,
    },
}
