//! What both sides of a transfer in legs say of it: parts that have landed, and what can be wrong with a leg.

use penstock_session::control::{BLOCKS_MAX, WORDS_BYTES_MAX};

use crate::cause::FlowCause;
use crate::cut::CutError;

/// A part has landed: what its source says behind its bytes.
///
/// It says everything that a sink needs to place it, as landings and frames come in any order to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartLanded {
    /// The landing's number for this rank, counted from 0; each is given once.
    pub number: u64,
    /// The leg.
    pub leg: u32,
    /// The first token of the leg, counted from the first one of the source. A leg that another rank had less room for began the next one
    /// earlier than was granted.
    pub leg_from: u64,
    /// How many tokens the leg takes, unless the source has fewer left: the least that a rank has granted.
    pub leg_tokens: u64,
    /// The layer, if it is of one only.
    pub layer: Option<u32>,
    /// The first token of the part.
    pub from: u64,
    /// How many tokens.
    pub tokens: u64,
    /// How many tokens the source has in all, if that is known.
    pub total: Option<u64>,
}

/// What was said of a leg that makes no sense for it. It changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LegError {
    /// A leg out of its order.
    #[error("leg {found} is out of order: leg {expected} is the next one")]
    Order {
        expected: u32,
        /// The one that was named.
        found: u32,
    },
    /// The same leg again, but otherwise.
    #[error("leg {leg} was granted before with other blocks, which stay granted: use the next number")]
    Differs { leg: u32 },
    /// A grant of nothing.
    #[error("a leg without a block has no room for a token: grant at least one block")]
    NoBlocks,
    /// A grant of too much.
    #[error("a leg has at most {BLOCKS_MAX} blocks, not {0}: grant several legs")]
    TooManyBlocks(usize),
    /// A block that is not there.
    #[error("block {block} is not in the layout, which has {blocks}")]
    NoSuchBlock {
        block: u32,
        /// How many there are.
        blocks: u32,
    },
    /// A block that is granted already.
    #[error("block {block} is granted already, and two tokens would land in one place")]
    BlockTwice { block: u32 },
    /// More is skipped than a block has.
    #[error("{skip} tokens are to be skipped, and the first block has {block_tokens}")]
    Skip {
        skip: u32,
        /// Tokens of a block.
        block_tokens: u32,
    },
    /// A first grant that writes over tokens that are here already, or leaves a gap behind them.
    #[error(
        "the first grant skips {said} tokens, and {expected} of those that were inherited are in its first block: grant with \
         `Inherited::skip_in`, or begin with `Receive::begin` where the blocks are no continuation"
    )]
    Tail {
        /// How many are there.
        expected: u32,
        /// How many are to be skipped.
        said: u32,
    },
    /// A first grant that begins with another block than the one into which tokens were copied.
    #[error(
        "the first grant begins with block {found}, and the last tokens that were copied are in block {expected}: grant that one \
         first, of the child's own blocks the one at `Inherited::full_in`"
    )]
    TailBlock {
        /// In which they are.
        expected: u32,
        /// Which was granted first.
        found: u32,
    },
    /// A block that what was copied has filled.
    #[error(
        "block {block} is full of tokens that were copied of a parent: grant the child's own blocks from the one at \
         `Inherited::full_in` on"
    )]
    TailFull { block: u32 },
    /// A room that the blocks do not have.
    #[error("the blocks of leg {leg} have room for {room} tokens, not for {said}")]
    Capacity {
        leg: u32,
        /// Room of the blocks.
        room: u64,
        said: u64,
    },
    /// Something goes once, and there is no place for it.
    #[error("the layout has a buffer that goes once for a transfer: name a block for it with the first leg")]
    OnceMissing,
    /// No source, or one twice.
    #[error("name at least one rank of the other side, and each once")]
    Sources,
    /// Ranks that begin at different tokens.
    #[error("the first leg begins at token {said}, where other ranks begin at {expected}")]
    Begin {
        /// Where the others begin.
        expected: u64,
        /// Where this one does.
        said: u64,
    },
    /// Too many legs ahead.
    #[error("{most} legs are granted and not let go: take what they brought first")]
    TooManyAhead { most: u32 },
    /// A leg that was never granted.
    #[error("leg {leg} was never granted: leg {next} is the next one")]
    NoSuchLeg { leg: u32, next: u32 },
    /// A leg whose bytes are not all there.
    #[error("leg {leg} has not landed: its bytes cannot be taken yet")]
    NotLanded { leg: u32 },
    /// A leg whose blocks are gone.
    #[error("the blocks of leg {leg} were let go, so nothing can be read from them")]
    Freed { leg: u32 },
    /// Room for fewer tokens than there are.
    #[error("there is room for {room} tokens, and token {needed} is to be placed")]
    Room {
        room: u64,
        /// How many are needed.
        needed: u64,
    },
    /// A rank that is none of this transfer.
    #[error("rank {rank} has no part in this transfer")]
    NoSuchRank { rank: u16 },
    /// A layer that is not there.
    #[error("layer {layer} is not one of {layers}, counted from 0")]
    NoSuchLayer {
        layer: u32,
        /// How many there are.
        layers: u32,
    },
    /// A part that lies outside its leg.
    #[error("{tokens} tokens from {from} do not lie in leg {leg}")]
    OutOfLeg { leg: u32, from: u64, tokens: u64 },
    /// A part that was there in part.
    #[error("{tokens} tokens from {from} of leg {leg} have landed in part before")]
    Overlaps { leg: u32, from: u64, tokens: u64 },
    /// Sources that disagree about a leg, or one with itself.
    #[error(
        "leg {leg} has {said} tokens from {said_from} by one landing, which does not agree with what was said or granted before"
    )]
    Disagrees { leg: u32, said_from: u64, said: u64 },
    /// Another total.
    #[error("{said} tokens in all, where {known} were there or were said before")]
    Total { known: u64, said: u64 },
    /// A landing behind the last one.
    #[error("landing {number} is behind the {parts} that were sealed")]
    Sealed {
        number: u64,
        /// How many there are.
        parts: u64,
    },
    /// Landings in an order that nobody sends.
    #[error("landings come too scattered to be kept")]
    Scattered,
    /// The number of an abort that was never said.
    #[error("abort {number} was never asked for")]
    NoSuchAbort { number: u32 },
    /// A chunk behind the last one.
    #[error("the last chunk was given before: a transfer has no tokens behind it")]
    AfterLast,
    /// A chunk with other blocks than those in which its tokens lie.
    #[error(
        "a chunk of {tokens} tokens that begins {inside} tokens into a block lies in {needed} blocks, and {given} were named: name exactly \
         those, and a block that the chunk before has not filled again, first"
    )]
    ChunkBlocks {
        /// Tokens of the chunk.
        tokens: u64,
        /// Tokens of chunks before it in its first block.
        inside: u64,
        /// In how many blocks it lies.
        needed: u64,
        /// How many were named.
        given: u64,
    },
    /// A chunk that goes on in a block that the one before has not filled, and does not name it.
    #[error(
        "a chunk begins {inside} tokens into block {expected}, which the chunk before has not filled, and block {found} was named first: \
         name block {expected} again, before the others"
    )]
    ChunkBegins {
        /// Tokens of chunks before it in its first block.
        inside: u64,
        /// The block in which it begins.
        expected: u32,
        /// The block that was named first.
        found: u32,
    },
    /// Too much is lent.
    #[error("at most {most} blocks are lent in one transfer: use larger blocks, or several transfers")]
    TooManyLent { most: usize },
    /// What is lent now does not go with what was lent before.
    #[error("what is lent from token {from} on does not go with what was lent before, or lies outside its layout")]
    Lent {
        /// The first token that was named.
        from: u64,
    },
    /// A layer that does not go by itself.
    #[error("layers of this transfer do not go by themselves, but with their chunk: produce it with `Send::by_layer`")]
    NotByLayer,
    /// A layer that is said to be ready beyond what chunks have given.
    #[error(
        "layer {layer} cannot be ready for the first {tokens} tokens, as chunks have given {given}: give the chunk first, then say that its \
         layers are ready"
    )]
    LayerAhead {
        layer: u32,
        /// For how many tokens it was said to be ready.
        tokens: u64,
        /// How many tokens chunks have given.
        given: u64,
    },
    /// Too much is said to be there.
    #[error("rank {rank} cannot have everything: not all of it was moved")]
    AckEarly { rank: u16 },
    /// A rank whose session broke, and that has not said that it goes on.
    #[error("the session of rank {rank} broke: it goes on by grants that say so, and by no others")]
    Broken { rank: u16 },
    /// A rank that waits for no other session.
    #[error("rank {rank} waits for no other session: its own stands, or the transfer is not one that may be resumed")]
    NotBroken { rank: u16 },
    /// It cannot be cut.
    #[error(transparent)]
    Cut(#[from] CutError),
    /// The transfer has ended.
    #[error("the transfer has ended: {0}")]
    Ended(FlowCause),
    /// The transfer has succeeded.
    #[error("the transfer has everything already")]
    Done,
}

impl LegError {
    /// The number that was expected, where that is one: what the other side is told.
    pub const fn expected(&self) -> u32 {
        match self {
            Self::Order { expected, .. } => *expected,
            Self::NoSuchLeg { next, .. } => *next,
            _ => 0,
        }
    }
}

/// Words that fit where words are said.
pub(crate) fn bounded(mut words: String) -> String {
    let bound = (0..=WORDS_BYTES_MAX.min(words.len())).rev().find(|&at| words.is_char_boundary(at));
    words.truncate(bound.unwrap_or(0));
    words
}
