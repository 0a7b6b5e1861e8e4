//! What stages stream to each other and join, as it is said before a run begins.

use std::time::Duration;

use penstock::flows::RequestId;

use crate::deed::Script;

/// Chunks behind each other.
#[derive(Debug, Clone)]
pub struct Streaming {
    /// For which request: several streams may be of one.
    pub request: usize,
    /// Who puts them.
    pub from: usize,
    /// Who reads them.
    pub to: Vec<usize>,
    /// How long each of its chunks, and its end, may take.
    pub within: Duration,
}

/// How a player takes in what arrives for a request.
#[derive(Debug, Clone, Copy)]
pub struct Reading {
    /// Which request.
    pub request: usize,
    /// Who.
    pub player: usize,
    /// So many chunks it lets lie, and fetches the newest of them first.
    pub hold: usize,
    /// As long as it lets one lie.
    pub pause: Duration,
    /// It fetches into blocks of its own.
    pub is_into_blocks: bool,
    /// Every third chunk it asks for by its metadata, before it is told of it.
    pub is_ahead: bool,
    /// How long it asks for what arrives.
    pub within: Duration,
}

/// A chunk of each of several players.
#[derive(Debug, Clone)]
pub struct Joining {
    /// Who waits for them.
    pub at: usize,
    /// Who puts one each.
    pub from: Vec<usize>,
    /// How long they have for it.
    pub given_within: Duration,
    /// How long it waits.
    pub within: Duration,
}

/// What a chunk is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Bytes as they are.
    Flat,
    /// Two items, with a schema.
    Items,
    /// Blocks of its putter's pool, which are not copied.
    Blocks,
}

/// A request that can be given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum GivenUp {
    /// The streams of this number.
    Streams(usize),
    /// What this join waits for.
    Join(usize),
}

impl GivenUp {
    /// What it is called.
    pub fn name(self) -> RequestId {
        match self {
            Self::Streams(request) => streamed(request),
            Self::Join(join) => joined(join),
        }
    }
}

/// Something that happens to streams and joins.
#[derive(Debug, Clone, Copy)]
pub enum Step {
    /// A stream begins.
    Open {
        /// Which.
        stream: usize,
    },
    /// Its next chunk is put.
    Next {
        /// Which.
        stream: usize,
        /// How large it is.
        bytes: usize,
        /// What it is made of.
        form: Form,
    },
    /// It has no chunks any more.
    Finish {
        /// Which.
        stream: usize,
    },
    /// Its application says that it has failed.
    Fail {
        /// Which.
        stream: usize,
    },
    /// Its application drops it, and all its chunks.
    Leave {
        /// Which.
        stream: usize,
    },
    /// Somebody begins to ask for what arrives.
    Read {
        /// Which.
        reading: usize,
    },
    /// Somebody wants nothing more of what arrives.
    Stop {
        /// Which.
        reading: usize,
    },
    /// An engine gives up a request.
    Abort {
        /// Which.
        what: GivenUp,
        /// Where.
        player: usize,
    },
    /// A join begins.
    Join {
        /// Which.
        join: usize,
    },
    /// One of its sources puts its chunk.
    Give {
        /// Which.
        join: usize,
        /// The place among its sources.
        source: usize,
        /// How large it is.
        bytes: usize,
    },
    /// One of its sources drops its chunk.
    Withdraw {
        /// Which.
        join: usize,
        /// The place among its sources.
        source: usize,
    },
    /// Its application drops it.
    Unjoin {
        /// Which.
        join: usize,
    },
}

impl Step {
    /// Whether it is nothing but what was to happen, so that everything may still end well.
    pub fn is_course(&self) -> bool {
        matches!(
            self,
            Self::Open { .. }
                | Self::Next { .. }
                | Self::Finish { .. }
                | Self::Read { .. }
                | Self::Join { .. }
                | Self::Give { .. }
        )
    }
}

/// What the streams of this number are called.
pub fn streamed(request: usize) -> RequestId {
    RequestId::new(&format!("stream {request}")).expect("the text is short")
}

/// What a join is called.
pub fn joined(join: usize) -> RequestId {
    RequestId::new(&format!("join {join}")).expect("the text is short")
}

impl Script {
    /// Whether its players hand anything to each other.
    pub fn has_stages(&self) -> bool {
        !self.chunks.is_empty() || !self.streams.is_empty() || !self.joins.is_empty()
    }

    /// Who has to have met whom. Whoever gives up a request tells those it has met, so that all have.
    pub fn pairs_of_stages(&self) -> Vec<(usize, usize)> {
        let chunks =
            self.chunks.iter().flat_map(|chunk| chunk.readers().into_iter().map(|reader| (chunk.from, reader)));
        let mut pairs: Vec<(usize, usize)> = chunks.collect();
        if !self.streams.is_empty() || !self.joins.is_empty() {
            let count = self.players.len();
            pairs.extend((0..count).flat_map(|one| (one + 1..count).map(move |other| (one, other))));
            pairs.extend(self.streams.iter().flat_map(|stream| stream.to.iter().map(|&to| (stream.from, to))));
        }
        pairs
    }
}
