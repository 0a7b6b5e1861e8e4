//! What engines say to each other of transfers by name, of legs, leases, pins and relays: the bodies of the frames from
//! [`FIRST_KIND`] on.
//!
//! They are all optional kinds, and are said only to peers that have said [`PeerFeatures`]. Each names its transfer, side and rank; what decodes
//! and makes no sense for its transfer is answered by [`Refused`] and changes nothing.

use serde::{Deserialize, Serialize};

use crate::few::Few;
use crate::frame::OPTIONAL_KINDS;
use crate::transfers::id::TransferId;

/// The oldest and the newest version of this conversation that is spoken here.
pub const CONTROL_VERSIONS: (u16, u16) = (1, 1);

/// The first kind of frame that is one of these.
pub const FIRST_KIND: u16 = OPTIONAL_KINDS + 0x50;

/// The most buffers of one layout.
pub const BUFFERS_MAX: usize = 1024;
/// The most blocks of one leg; larger grants are several legs.
pub const BLOCKS_MAX: usize = 32_768;
/// The longest trace context, in bytes.
pub const TRACE_BYTES_MAX: usize = 64;
/// The longest words, in bytes.
pub const WORDS_BYTES_MAX: usize = 256;
/// The most runs of missing blocks of one failure.
pub const MISSING_MAX: usize = 8192;
/// The most leases of one renewal.
pub const LEASES_MAX: usize = 4096;
/// The most extents of one chunk.
pub const EXTENTS_MAX: usize = 256;
/// The longest schema, and the longest header, of a chunk, in bytes.
pub const SCHEMA_BYTES_MAX: usize = 65_536;

/// Which side of a transfer somebody is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Side {
    /// Has the bytes.
    Source,
    /// Needs them.
    Sink,
}

impl Side {
    /// The one that it talks to.
    pub const fn other(self) -> Self {
        match self {
            Self::Source => Self::Sink,
            Self::Sink => Self::Source,
        }
    }
}

/// Who says it, of which transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct TransferHead {
    /// The transfer.
    #[serde(skip)]
    pub transfer: TransferId,
    /// The sender's side.
    pub side: Side,
    /// The sender's rank on its side.
    pub rank: u16,
    /// How many ranks its side has.
    pub ranks: u16,
}

/// The sender speaks of transfers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerFeatures {
    /// The oldest version spoken.
    pub version_min: u16,
    /// The newest version spoken.
    pub version_max: u16,
    /// The upper half of the ids of notes that tell the sender of landed bytes; never zero.
    pub tag: u64,
    /// How many frames of this kind the sender takes before it has answered. Nobody counts them in version 1.
    pub credits: u32,
}

/// How the bytes of one buffer lie in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Form {
    /// One token after the other, of each all rows.
    TokenMajor(Rows),
    /// One row after the other, of each all tokens of the block.
    PlaneMajor(Rows),
    /// So many bytes once for a transfer; they go with the first leg.
    Once(u64),
}

/// Which of how many rows of a token are here: all of them, or those of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Rows {
    /// The first one here.
    pub first: u32,
    /// How many are here.
    pub count: u32,
    /// How many there are on all ranks.
    pub of: u32,
    /// Bytes of one row of one token.
    pub bytes: u32,
}

/// One buffer of a layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Buffer {
    /// The layer it belongs to.
    pub layer: u32,
    /// Where block 0 begins in the region.
    pub base: u64,
    /// Bytes from one block to the next.
    pub stride: u64,
    /// What a block looks like.
    pub form: Form,
}

/// How blocks lie in a region of the sender's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutNews {
    /// Its number and which use of that it is.
    pub number: u32,
    /// Which use of the number this is.
    pub generation: u32,
    /// Its name.
    pub label: String,
    /// The region, and which use of its id.
    pub region: u32,
    /// Which use of the region's id this is.
    pub region_generation: u32,
    /// Tokens of a block.
    pub block_tokens: u32,
    /// How many blocks there are.
    pub blocks: u32,
    /// The sender's rank.
    pub rank: u16,
    /// Of how many.
    pub ranks: u16,
    /// The buffers.
    pub buffers: Vec<Buffer>,
}

/// A layout is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutGone {
    /// Its number.
    pub number: u32,
    /// Which use of the number.
    pub generation: u32,
}

/// A sink has room for so many tokens.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// Who.
    pub head: TransferHead,
    /// The number of the leg, from 0.
    pub leg: u32,
    /// Where the blocks are.
    pub layout: u32,
    /// Which use of that number.
    pub layout_generation: u32,
    /// The first token of the source that goes there.
    pub from: u64,
    /// Tokens of the first block that are there already.
    pub skip: u32,
    /// How many tokens there is room for.
    pub capacity: u64,
    /// The block that takes what goes once for a transfer, if any does.
    pub once: Option<u32>,
    /// It goes on after a session that broke.
    pub resumes: bool,
    /// How urgent it is: 0 is usual.
    pub urgency: u8,
    /// The blocks, in the order of their tokens.
    pub blocks: Few<u32>,
    /// A trace context, as its tool writes it.
    pub trace: Box<[u8]>,
}

/// A source lends what it has, to be read. Said again when there is more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReadOffer {
    /// Who.
    pub head: TransferHead,
    /// Where the blocks are.
    pub layout: u32,
    /// Which use of that number.
    pub layout_generation: u32,
    /// The first token.
    pub from: u64,
    /// How many tokens.
    pub tokens: u64,
    /// How many there are in all, if that is known.
    pub total: Option<u64>,
    /// How many layers can be read.
    pub layers: u32,
    /// There is no more than this.
    pub is_sealed: bool,
    /// The block that has what goes once for a transfer, if any does.
    pub once: Option<u32>,
    /// The lease under which it is read.
    pub lease: u64,
    /// How long that stands without being renewed.
    pub ttl_ms: u32,
    /// The blocks, in the order of their tokens.
    pub blocks: Vec<u32>,
}

/// Rows that a source has sent, of so many buffers of a layout in their order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SentRows {
    /// Of how many buffers.
    pub buffers: u32,
    /// The first row. What goes once for a transfer is its row 0.
    pub first: u32,
    /// How many, zero if it was for somebody else to send them.
    pub count: u32,
}

/// A source has sent everything.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndOfData {
    /// Who.
    pub head: TransferHead,
    /// How many landings that are for this rank.
    pub parts: u64,
    /// How many tokens.
    pub tokens: u64,
    /// In how many legs.
    pub legs: u32,
    /// Which rows of each buffer: what no source has sent is a hole that no count of landings shows.
    pub rows: Few<SentRows>,
}

/// A sink has everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ack {
    /// Who.
    pub head: TransferHead,
    /// The lease that is given back, if it was read under one.
    pub lease: Option<u64>,
}

/// A lender says whether a lease stood to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseVerdict {
    /// Who.
    pub head: TransferHead,
    /// The lease.
    pub lease: u64,
    /// It stood: what was read is what was lent.
    pub is_valid: bool,
}

/// So many blocks of a layer that did not arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Missing {
    /// The layer.
    pub layer: u32,
    /// The place of the first one among the blocks granted.
    pub first: u32,
    /// How many.
    pub count: u32,
}

/// One side has failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fail {
    /// Who.
    pub head: TransferHead,
    /// Why, as a number of the flows.
    pub cause: u16,
    /// Why, in words.
    pub words: String,
    /// What did not arrive. Reserved: empty in version 1.
    pub missing: Vec<Missing>,
}

/// The sender wants its memory back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Abort {
    /// Who.
    pub head: TransferHead,
    /// Its own count, which the answer names.
    pub number: u32,
}

/// The answer to that.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AbortAck {
    /// Who.
    pub head: TransferHead,
    /// The number of the abort.
    pub number: u32,
    /// Nothing can land any more. If not, the same is said again when it is so.
    pub is_drained: bool,
}

/// What was said makes no sense here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Who.
    pub head: TransferHead,
    /// The leg that was named.
    pub leg: u32,
    /// Why, as a number of the flows.
    pub code: u16,
    /// What was expected instead, where that is a number.
    pub expected: u32,
}

/// A reader still reads under these leases.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Renew {
    /// The leases.
    pub leases: Vec<u64>,
}

/// A lease has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseExpired {
    /// The lease.
    pub lease: u64,
    /// Why, as a number of the flows.
    pub cause: u16,
}

/// Asks for blocks of another engine's request that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinAsk {
    /// The sender's own count, which the answer names.
    pub ask: u64,
    /// The request there.
    pub parent: String,
    /// A digest of tenant, adapter, salt and media: who may not know is told that there is no such request.
    pub isolation: [u8; 32],
    /// Tokens of the child.
    pub tokens: u64,
}

/// The answer to that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinAnswer {
    /// The number of the question.
    pub ask: u64,
    /// Zero, or why not, as a number of the flows.
    pub code: u16,
    /// The lease under which it is read.
    pub lease: u64,
    /// How long that stands without being renewed.
    pub ttl_ms: u32,
    /// Where the blocks are.
    pub layout: u32,
    /// Which use of that number.
    pub layout_generation: u32,
    /// How many tokens.
    pub tokens: u64,
    /// The blocks.
    pub blocks: Vec<u32>,
}

/// Bytes of a region: id, generation, offset, length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Extent {
    /// The region.
    pub region: u32,
    /// Which use of its id.
    pub generation: u32,
    /// Where in it.
    pub offset: u64,
    /// How many bytes.
    pub len: u64,
}

/// What a chunk is besides its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum ChunkKind {
    /// Bytes.
    Data,
    /// The stream has ended well, behind all its chunks.
    Done,
    /// The stream has failed; the header says why.
    Error,
}

/// Something is to be fetched.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chunk {
    /// The sender's own count.
    pub op: u64,
    /// The request.
    pub request: String,
    /// The stream, zero if it is of none.
    pub stream: u32,
    /// Its place in the stream.
    pub number: u64,
    /// Which part of the operation, of how many.
    pub part: u32,
    /// How many parts the operation has.
    pub parts: u32,
    /// Bytes of all parts.
    pub bytes: u64,
    /// How many readers there are.
    pub readers: u16,
    /// What it is.
    pub kind: ChunkKind,
    /// Where the bytes of this part are.
    pub extents: Vec<Extent>,
    /// What they are.
    pub schema: Vec<u8>,
    /// Words of the application, which nobody here reads.
    pub header: Vec<u8>,
}

/// A reader has a part, or will not have it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChunkAck {
    /// The operation.
    pub op: u64,
    /// The part.
    pub part: u32,
    /// Zero, or why not, as a number of the flows.
    pub code: u16,
}

/// A request is given up. Whoever has named the sender in it, as a reader, as a source of a join or as what it fetches from, ends it and
/// tells its own peers once; whoever has not ends what the sender has announced of it, and nothing else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RelayAbort {
    /// The request.
    pub request: String,
    /// Why, in words.
    pub words: String,
}

/// A sink will read what a source lends. It is answered by [`ReadOffer`] as soon as there is something to read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PullRequest {
    /// Who.
    pub head: TransferHead,
    /// The first token that is needed.
    pub from: u64,
    /// A trace context, as its tool writes it.
    pub trace: Vec<u8>,
}

/// Everything that can be said of transfers. It is moved from hand to hand, so what is much larger than the rest lies elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControlMessage {
    /// The sender speaks of transfers.
    PeerFeatures(PeerFeatures),
    /// How blocks lie in a region.
    LayoutNews(LayoutNews),
    /// A layout is gone.
    LayoutGone(LayoutGone),
    /// A sink has room.
    Grant(Grant),
    /// A source lends.
    ReadOffer(Box<ReadOffer>),
    /// A source has sent everything.
    EndOfData(EndOfData),
    /// A sink has everything.
    Ack(Ack),
    /// A lender says whether a lease stood to its end.
    LeaseVerdict(LeaseVerdict),
    /// One side has failed.
    Fail(Fail),
    /// The sender wants its memory back.
    Abort(Abort),
    /// The answer to that.
    AbortAck(AbortAck),
    /// What was said makes no sense here.
    Refused(Refused),
    /// A reader still reads.
    Renew(Renew),
    /// A lease has ended.
    LeaseExpired(LeaseExpired),
    /// Asks for blocks of a request that has ended.
    PinAsk(PinAsk),
    /// The answer to that.
    PinAnswer(PinAnswer),
    /// Something is to be fetched.
    Chunk(Box<Chunk>),
    /// A reader has a part.
    ChunkAck(ChunkAck),
    /// A request is given up.
    RelayAbort(RelayAbort),
    /// A sink will read.
    PullRequest(PullRequest),
}

impl From<ReadOffer> for ControlMessage {
    fn from(lend: ReadOffer) -> Self {
        Self::ReadOffer(Box::new(lend))
    }
}

impl From<Chunk> for ControlMessage {
    fn from(chunk: Chunk) -> Self {
        Self::Chunk(Box::new(chunk))
    }
}

/// The head of what has one.
macro_rules! heads {
    ($said:expr, $($borrowed:tt)+) => {
        match $said {
            Self::Grant(Grant { head, .. })
            | Self::EndOfData(EndOfData { head, .. })
            | Self::Ack(Ack { head, .. })
            | Self::LeaseVerdict(LeaseVerdict { head, .. })
            | Self::Fail(Fail { head, .. })
            | Self::Abort(Abort { head, .. })
            | Self::AbortAck(AbortAck { head, .. })
            | Self::Refused(Refused { head, .. })
            | Self::PullRequest(PullRequest { head, .. }) => Some(head),
            Self::ReadOffer(lend) => Some($($borrowed)+ lend.head),
            _ => None,
        }
    };
}

impl ControlMessage {
    /// The number of this kind of frame on the wire.
    pub const fn kind(&self) -> u16 {
        FIRST_KIND
            + match self {
                Self::PeerFeatures(_) => 0,
                Self::LayoutNews(_) => 1,
                Self::LayoutGone(_) => 2,
                Self::Grant(_) => 3,
                Self::ReadOffer(_) => 4,
                Self::EndOfData(_) => 5,
                Self::Ack(_) => 6,
                Self::LeaseVerdict(_) => 7,
                Self::Fail(_) => 8,
                Self::Abort(_) => 9,
                Self::AbortAck(_) => 10,
                Self::Refused(_) => 11,
                Self::Renew(_) => 12,
                Self::LeaseExpired(_) => 13,
                Self::PinAsk(_) => 14,
                Self::PinAnswer(_) => 15,
                Self::Chunk(_) => 16,
                Self::ChunkAck(_) => 17,
                Self::RelayAbort(_) => 18,
                Self::PullRequest(_) => 19,
            }
    }

    /// The transfer that it names, if it names one.
    pub fn head(&self) -> Option<&TransferHead> {
        heads!(self, &)
    }

    /// The same, to be changed.
    pub(crate) fn head_mut(&mut self) -> Option<&mut TransferHead> {
        heads!(self, &mut)
    }
}
