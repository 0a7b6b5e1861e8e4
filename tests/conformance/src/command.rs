//! What the other engine can be told, and what it answers: one line of JSON each.

use serde::{Deserialize, Serialize};

use crate::setting::EngineSpec;

/// What the other side shall do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Command {
    /// Start an engine. Answered by `Started`.
    Start(Box<EngineSpec>),
    /// Make a pool and fill it with the pattern of a seed.
    Pool {
        /// Its label.
        label: String,
        /// Bytes.
        bytes: u64,
        /// Bytes of a block.
        block: u64,
        /// What peers may do, as bits.
        rights: u8,
        /// The seed of its pattern.
        seed: u64,
    },
    /// Register memory that the engine did not allocate, filled with the pattern of a seed.
    Register {
        /// Its label.
        label: String,
        /// Bytes.
        bytes: u64,
        /// What peers may do, as bits.
        rights: u8,
        /// How far its first byte is from a good alignment.
        skew: u64,
        /// The seed of its pattern.
        seed: u64,
    },
    /// Register memory that the engine did not allocate as two regions that adjoin, which peers may read and write:
    /// each half with the pattern as it is in the whole. The second one's label ends with `-2`.
    Halves {
        /// The first one's label.
        label: String,
        /// Bytes of both.
        bytes: u64,
        /// The seed of the pattern.
        seed: u64,
    },
    /// Register and deregister small memory so many times.
    ComeAndGo {
        /// How often.
        times: u64,
    },
    /// Make a pool of so many bytes that no peer may touch.
    Hoard {
        /// Bytes.
        bytes: u64,
    },
    /// Digest every page of a region. Answered by `Digests`.
    Digest {
        /// Its label.
        label: String,
    },
    /// Open an arrival counter.
    Counter {
        /// The region's label.
        region: String,
        /// The counter's label.
        label: String,
    },
    /// Close an arrival counter.
    DropCounter {
        /// Its label.
        label: String,
    },
    /// Wait until a counter has reached a number. Answered by `Value`, whatever it is then.
    WaitCounter {
        /// The counter's label.
        label: String,
        /// The number.
        count: u64,
        /// At most so long.
        within_ms: u64,
    },
    /// Take so many notifications, as long as the time lasts. Answered by `Notes`.
    TakeNotes {
        /// How many.
        count: usize,
        /// At most so long.
        within_ms: u64,
    },
    /// As `TakeNotes`, but sleep on the event fd between them.
    SleepForNotes {
        /// How many.
        count: usize,
        /// At most so long.
        within_ms: u64,
    },
    /// Take so many notifications that each name bytes of a region (see [`Claim`]), check the bytes at
    /// once and answer their sender with a notification of the same id.
    VerifyOnNotes {
        /// The region's label.
        label: String,
        /// How many.
        count: usize,
    },
    /// Revoke parts of a region. Answered by `Quiesced`.
    Revoke {
        /// Its label.
        label: String,
        /// Which parts, as (offset, length).
        extents: Vec<(u64, u64)>,
        /// By when.
        within_ms: u64,
    },
    /// Deregister a region. Answered by `Quiesced`.
    Deregister {
        /// Its label.
        label: String,
        /// By when.
        within_ms: u64,
    },
    /// Fill a region with the pattern of a seed, wait, and look whether parts of it are still that. Answered by `Yes`.
    FillAndWatch {
        /// Its label.
        label: String,
        /// The parts, in whole pages: offset and length.
        extents: Vec<(u64, u64)>,
        /// The seed.
        seed: u64,
        /// How long to wait.
        hold_ms: u64,
    },
    /// Name all peers. Answered by `Names`.
    Peers,
    /// Remember a peer, so that its end can be asked for.
    Watch {
        /// Its name.
        peer: String,
    },
    /// How the session with a remembered peer has ended. Answered by `Ended`.
    EndOf {
        /// Its name.
        peer: String,
    },
    /// End all sessions.
    Disconnect,
    /// Connect to another engine. Answered by `Done` or `Refused`.
    Connect {
        /// Its descriptor.
        descriptor: Vec<u8>,
    },
    /// Say hello to an engine's socket by hand. Answered by `Refusal`.
    Knock {
        /// Its descriptor.
        descriptor: Vec<u8>,
    },
    /// Write a region into a peer's region of the same label, a number of times.
    WriteTo {
        /// The peer's name.
        peer: String,
        /// The label of the region, there and here.
        label: String,
        /// How often.
        times: u64,
    },
    /// Submit so many writes of a region into a peer's region of the same label, one after the other without
    /// waiting, each with a notification; then wait for all that were taken. Answered by `Value`: how many
    /// those were. One that was taken and failed is a refusal.
    Flood {
        /// The peer's name.
        peer: String,
        /// The label of the region, there and here.
        label: String,
        /// How often.
        times: u64,
    },
    /// Drain the engine. Answered by `Drained`.
    Drain {
        /// By when.
        within_ms: u64,
    },
    /// Send a peer so many empty notifications. Answered by `Done` or `Refused`.
    NotifyPeer {
        /// Its name.
        peer: String,
        /// How many.
        count: usize,
    },
    /// An inline engine makes no progress from here on.
    Pause,
    /// It does again.
    Resume,
    /// How many descriptors and threads this process has. Answered by `Footprint`.
    Footprint,
    /// Stop the engine.
    Stop,
    /// End.
    Exit,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reply {
    /// It was done.
    Done,
    /// The engine runs.
    Started {
        /// Its descriptor.
        descriptor: Vec<u8>,
    },
    /// One digest for each page.
    Digests(Vec<u64>),
    /// A number.
    Value(u64),
    /// Yes or no.
    Yes(bool),
    /// What was taken.
    Notes(Vec<TakenNote>),
    /// Names.
    Names(Vec<String>),
    /// The cause of an end in words, or none while it stands.
    Ended(Option<String>),
    /// What a drain left.
    Drained {
        /// Names of the peers whose session still stands.
        peers: Vec<String>,
        /// Transfers that have not ended.
        transfers: usize,
        /// Notifications that wait.
        notifications: usize,
    },
    /// Whether memory is quiesced.
    Quiesced(bool),
    /// What a process holds.
    Footprint {
        /// Open descriptors.
        descriptors: usize,
        /// Threads.
        threads: usize,
        /// Mappings of memory that engines share.
        mappings: usize,
    },
    /// What another engine said when it refused.
    Refusal {
        /// The code, as it is printed.
        code: String,
        /// Its words.
        text: String,
    },
    /// It was refused, in words.
    Refused(String),
}

/// A notification that was taken.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TakenNote {
    /// Who sent it.
    pub peer: String,
    /// Its id, low and high half.
    pub id: (u64, u64),
    /// Its payload.
    pub payload: Vec<u8>,
    /// What was handed over with it, if that was a text.
    pub handed_over: Option<String>,
}

/// The payload of a notification that says which bytes have arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Claim {
    /// The seed of their pattern.
    pub seed: u64,
    /// Where in that pattern they begin.
    pub from: u64,
    /// Where in the region they begin.
    pub to: u64,
    /// How many they are.
    pub len: u64,
}

impl Claim {
    /// As a payload.
    pub fn encode(self) -> Vec<u8> {
        [self.seed, self.from, self.to, self.len].iter().flat_map(|number| number.to_le_bytes()).collect()
    }

    /// From a payload.
    pub fn decode(payload: &[u8]) -> Option<Self> {
        let mut numbers =
            payload.chunks_exact(8).map(|chunk| u64::from_le_bytes(chunk.try_into().expect("eight bytes")));
        let (seed, from, to, len) = (numbers.next()?, numbers.next()?, numbers.next()?, numbers.next()?);
        Some(Self { seed, from, to, len })
    }
}
