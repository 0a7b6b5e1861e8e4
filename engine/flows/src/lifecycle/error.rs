//! Why a report changes nothing.

use penstock_session::RequestId;
use penstock_session::control::BLOCKS_MAX;

use super::BlockRef;
use super::request::{Request, RequestEvent};
use super::swap::Swap;
use crate::held::BlockHeld;

/// Why a report changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LifecycleError {
    /// The id is in use.
    #[error("request `{request}` lives already, as generation {generation}: report its end before it is opened again")]
    StillLives { request: RequestId, generation: u64 },
    /// There are enough requests.
    #[error("{most} requests live, which are all there may be: report the end of some")]
    Full {
        /// How many there may be.
        most: usize,
    },
    /// A request has at least one sequence, and not too many.
    #[error("a request has 1 to {most} sequences that live at once, not {asked}")]
    Sequences {
        /// What was asked for.
        asked: u32,
        /// How many there may be.
        most: u32,
    },
    /// There was no such life.
    #[error(
        "request `{request}` has had no life {generation}: open it, and report under the generation that this gives"
    )]
    NoSuchLife { request: RequestId, generation: u64 },
    /// It has ended.
    #[error("life {generation} of request `{request}` is over: open it again for another one")]
    LifeOver { request: RequestId, generation: u64 },
    /// There was no such sequence.
    #[error(
        "request `{request}` has had no sequence {sequence}, only ones below {next}: report where it was forked first"
    )]
    NoSuchSequence { request: RequestId, sequence: u32, next: u32 },
    /// A sequence of this number has ended, or could have.
    #[error("sequence {sequence} of request `{request}` may have ended before: number a fork {next} or higher")]
    SequenceOver { request: RequestId, sequence: u32, next: u32 },
    /// This cannot happen in its state.
    #[error(
        "request `{request}` (generation {generation}) is {state:?}, where {event:?} cannot happen: report what came between"
    )]
    Impossible { request: RequestId, generation: u64, state: Request, event: RequestEvent },
    /// There is no such block.
    #[error("there is no block {} of the device, which has {blocks}", block.index)]
    NoSuchBlock {
        block: BlockRef,
        /// How many there are.
        blocks: u32,
    },
    /// A block is named twice.
    #[error("block {} of the device is named twice in one report", block.index)]
    BlockTwice { block: BlockRef },
    /// A block was given to somebody else since.
    #[error("use {} of block {} is over, it is in use {newest} now: look the block up again", block.generation, block.index)]
    BlockStale { block: BlockRef, newest: u32 },
    /// A block was given away before its holders were removed.
    #[error("block {} is still held by {holders} requests: report their end, or their swap, before it is given out again", block.index)]
    BlockHeld { block: BlockRef, holders: u32 },
    /// A block is not the request's.
    #[error("use {} of block {} is not the request's: report its blocks first", block.generation, block.index)]
    BlockNotHeld { block: BlockRef },
    /// A swap may still be at a block.
    #[error("a swap may still be at block {} of the device: use it again once that swap is over", block.index)]
    BlockUnderSwap { block: BlockRef },
    /// What is swapped is not what the request has.
    #[error(
        "{asked} of the {has} blocks of request `{request}` were given, and a swap takes all of them or none, in either direction: give one handle of them all, as `Blocks::chain` makes it of several, or report that the request has dropped its blocks"
    )]
    PartOfRequest {
        /// The request that was to be swapped.
        request: RequestId,
        /// How many were given.
        asked: usize,
        /// How many it has, of the device or, swapped out, of the host.
        has: usize,
    },
    /// The request is not in this block of the host.
    #[error(
        "use {} of block {} of the host is not what request `{request}` was swapped out to: keep those blocks until it is swapped in, and give them", block.generation, block.index
    )]
    NotSwappedTo {
        /// The request that was to be swapped.
        request: RequestId,
        /// The block of the host.
        block: BlockRef,
    },
    /// A block of the host is named twice.
    #[error("block {block} of the host is named twice in one swap")]
    HostBlockTwice { block: u32 },
    /// There are enough swaps.
    #[error(
        "{most} swaps are under way or their news were not fetched, which is all there may be: fetch the news, or wait"
    )]
    TooManySwaps {
        /// How many there may be.
        most: usize,
    },
    /// There is nothing in it.
    #[error("a swap names at least one block and one layer")]
    NothingToSwap,
    /// There is too much in it.
    #[error("a swap of {asked} blocks is more than the {} that one may have: swap in parts", BLOCKS_MAX)]
    SwapTooLarge { asked: usize },
    /// A transfer by name, or another swap, has a block of the host's.
    #[error(transparent)]
    Held(#[from] Box<BlockHeld>),
    /// The engine carries out the request's swap.
    #[error("the swap of request `{request}` is this engine's: commit it or roll it back by its key")]
    SwapOfOurs {
        /// The request that the call named.
        request: RequestId,
    },
    /// There are enough devices.
    #[error("requests of {most} devices are tracked, which are all there may be: let one go first")]
    TooManyDevices {
        /// How many there may be.
        most: usize,
    },
    /// Its requests are tracked no more.
    #[error("the requests of this device are tracked no more: open it again")]
    NoDevice,
    /// A swap is over, or never was.
    #[error("there is no such swap any more: its news say how it ended")]
    NoSuchSwap,
    /// Its bytes are not there.
    #[error("the swap is {state:?} and cannot be committed: commit it once its news say that it has moved")]
    NotMoved { state: Swap },
}
