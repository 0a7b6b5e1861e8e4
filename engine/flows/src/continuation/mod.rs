//! Requests that go on from others: a child inherits the blocks that its parent has computed.
//!
//! A parent's blocks are pinned in the call that reports its end, before any of them can be freed. A child then gets whole blocks, of
//! all groups or of none, for as long as it likes; what stands in a block that is not whole is copied into one of its own. There is no
//! promise beyond that: what is not there is a [`Miss`] with a reason, and the child computes it.
//!
//! - [`inherit`]: how much a child can have of whom
//! - [`pins`]: what is kept, for how long, and who has it
//! - [`abroad`]: parents of other engines

use std::collections::BTreeSet;
use std::time::Duration;

use penstock_core::planted::{self, Bug};
use penstock_core::{EngineName, Timestamp};
use penstock_session::RequestId;

use crate::action::BlocksRef;
use crate::held::BlockHeld;
use crate::lifecycle::{BlockRef, Lifecycle, LifecycleError, SchedulerReport, Verdict};

pub mod abroad;
mod blobs;
pub mod inherit;
pub mod pins;

pub use abroad::{Asks, Lent, Terms};
pub use inherit::{CopyTail, Group, Isolation, Miss, whole_tokens};
pub use pins::{Ask, Child, Inherited, Pin, PinKey, Pins, UseKey, WaitKey, Waited};

/// The most groups of one parent.
pub const GROUPS_MAX: usize = 64;
/// The most media of one request.
pub const MEDIA_MAX: usize = 1024;

/// A request that ends and may have children.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parent {
    /// Which.
    pub request: RequestId,
    /// What its children have to agree with.
    pub isolation: Isolation,
    /// Its blocks, of each kind of cache.
    pub groups: Vec<Group>,
    /// Words of its caller, which nobody here reads: its tokens, for one. They are remembered longer than its blocks.
    pub blob: Vec<u8>,
}

/// Where something is kept, so that a child can be placed there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Home {
    /// Which engine.
    pub engine: EngineName,
    /// Its rank.
    pub rank: u16,
}

/// How much may be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PinSettings {
    /// The most pins.
    pub count: usize,
    /// The most bytes of their blocks.
    pub bytes: u64,
    /// The most children that have blocks at once; one that has asked twice counts twice.
    pub uses: usize,
    /// The most of those that other engines may be, so that none of them can keep this engine's own from inheriting.
    pub lent: usize,
    /// The most requests that are known to run.
    pub running: usize,
    /// The most children that wait for one of those.
    pub waiters: usize,
    /// The most blobs.
    pub blobs: usize,
    /// The most bytes of blobs.
    pub blob_bytes: usize,
}

impl Default for PinSettings {
    fn default() -> Self {
        Self {
            count: 1024,
            bytes: 1 << 30,
            uses: 65_536,
            lent: 4096,
            running: 65_536,
            waiters: 4096,
            blobs: 1024,
            blob_bytes: 64 << 20,
        }
    }
}

/// How it is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PinMetrics {
    /// Pins.
    pub pins: usize,
    /// Bytes of their blocks.
    pub bytes: u64,
    /// Children that have blocks, each as often as it has asked.
    pub uses: usize,
    /// Pins that children have blocks of.
    pub used: usize,
    /// Those among them that nobody else gets blocks of.
    pub doomed: usize,
    /// Children that wait for their parent to end.
    pub waiting: usize,
    /// Blobs.
    pub blobs: usize,
    /// Bytes of blobs.
    pub blob_bytes: usize,
    /// Pins that made room for others.
    pub evicted: u64,
    /// Pins whose time was over.
    pub expired: u64,
    /// Children that got blocks.
    pub inherited: u64,
    /// Children that got none.
    pub missed: u64,
    /// Those among them that named a parent of somebody else's.
    pub foreign: u64,
}

/// Why nothing is kept.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PinError {
    /// There is no group, or too many.
    #[error("a parent has 1 to {GROUPS_MAX} groups of blocks, not {found}")]
    Groups {
        /// How many there are.
        found: usize,
    },
    /// There are too many media.
    #[error("a request has at most {MEDIA_MAX} media, not {found}: give a digest of them")]
    Media {
        /// How many there are.
        found: usize,
    },
    /// Blocks of nothing.
    #[error("blocks of group {group} have no tokens or no bytes: give the sizes of the cache")]
    EmptyBlocks {
        /// The group, by its place in `Parent::groups`.
        group: usize,
    },
    /// Tokens without data.
    #[error(
        "group {group} is said to have {computed} tokens computed, and its blocks hold {room}: count only tokens whose data is there"
    )]
    NoDataOf {
        /// The group, by its place in `Parent::groups`.
        group: usize,
        computed: u64,
        /// What there is room for.
        room: u64,
    },
    /// More hashes than blocks.
    #[error("group {group} has {hashes} hashes and only {blocks} blocks: give one for each whole block")]
    Hashes {
        /// The group, by its place in `Parent::groups`.
        group: usize,
        hashes: usize,
        blocks: usize,
    },
    /// A block that no handle holds.
    #[error(
        "block {block} of group {group} is in none of the handles that were given, so it could be another request's by the time that it is inherited: give handles of all blocks that the groups name, of one pool for each group; of inherited ones `Inherited::blocks` gives them"
    )]
    NotHeld {
        /// The group, by its place in `Parent::groups`.
        group: usize,
        /// The block, by its number in its pool.
        block: u32,
    },
    /// Blocks that several of the pools could have.
    #[error(
        "block {block} of group {group} has the same number in several of the pools whose handles were given, and which is meant is not said: give one handle for each group, in the order of the groups; `Blocks::chain` makes one of several"
    )]
    SeveralPools {
        /// The group, by its place in `Parent::groups`.
        group: usize,
        block: u32,
    },
    /// A block that is not the parent's.
    #[error(
        "block {block} of group {group} is not one that request `{request}` has of the device: name the blocks that were reported of it"
    )]
    NotOfParent {
        /// The group, by its place in `Parent::groups`.
        group: usize,
        /// The block, by its number in its pool.
        block: u32,
        /// The request that ends.
        request: RequestId,
    },
    /// One request ends, and another one is to be the parent.
    #[error(
        "request `{request}` ends, and `{parent}` is to be the parent: its parent is the request that ends, so name that"
    )]
    OtherParent {
        /// The request that ends.
        request: RequestId,
        parent: RequestId,
    },
    /// A block that something is being written to.
    #[error(transparent)]
    Held(Box<BlockHeld>),
    /// Blocks of other sizes than the layout's.
    #[error(
        "blocks of group {group} have {found} tokens, and those of the layout {layout}: name the group's layout, or its size"
    )]
    BlockTokens {
        /// The group, by its place in `Parent::groups`.
        group: usize,
        /// Tokens of a block of the group.
        found: u32,
        /// Tokens of a block of the layout.
        layout: u32,
    },
    /// A block that the layout has not.
    #[error("block {block} of group {group} is not one of the {blocks} of the layout: name blocks of this layout")]
    NoSuchBlock {
        /// The group, by its place in `Parent::groups`.
        group: usize,
        /// The block, by its number in its pool.
        block: u32,
        /// How many the layout has.
        blocks: u32,
    },
    /// The blob is too large.
    #[error("a blob of {found} bytes is more than the {most} that all may have")]
    BlobTooLarge {
        /// How large it is.
        found: usize,
        /// How large all may be.
        most: usize,
    },
    /// The blocks are too large.
    #[error("blocks of {bytes} bytes are more than the {most} that all pins may have: raise `PinSettings::bytes`")]
    TooLarge {
        /// How large they are.
        bytes: u64,
        /// How large all may be.
        most: u64,
    },
    /// What is kept is in use.
    #[error(
        "there is no room for {bytes} bytes beside {held} that children have: wait until some have ended, or raise `PinSettings::bytes` or `PinSettings::count`"
    )]
    InUse {
        /// How large they are.
        bytes: u64,
        /// How large those are that cannot go.
        held: u64,
    },
    /// Pins are open already, and otherwise.
    #[error(
        "what this engine keeps was opened before as rank {rank}, or with other settings: give the same, or a clone of what the first call has answered"
    )]
    OpenOtherwise {
        /// The rank that it is opened as.
        rank: u16,
    },
    /// There are enough requests.
    #[error("{most} requests run, which are all that may be known: say which have ended")]
    TooManyRunning {
        /// How many there may be.
        most: usize,
    },
}

/// How a parent ended.
#[derive(Debug, PartialEq, Eq)]
pub struct Finished {
    /// What becomes of an index of requests.
    pub verdict: Verdict,
    /// Its pin, or why there is none; nothing if the report has not ended it.
    pub pin: Option<Result<PinKey, PinError>>,
}

/// What is to be kept of a parent.
#[derive(Debug)]
pub struct Keep {
    /// The parent.
    pub parent: Parent,
    /// Its blocks of the device in the use that is held, of each group; or which of its blocks nobody holds.
    pub blocks: Result<Vec<Vec<BlockRef>>, PinError>,
    /// What holds them.
    pub tickets: Vec<BlocksRef>,
    /// For how long.
    pub ttl: Duration,
}

/// Reports what may be the end of a request, by whatever way it ends, and keeps its blocks before anybody can free them: blocks that it had,
/// and that are held. The notice of its end does not name them, as they are not free. Nothing is kept if the report is refused or ends
/// nothing. If it cannot be kept, the request has ended all the same, and the tickets are the caller's.
pub fn finish(
    lifecycle: &mut Lifecycle,
    pins: &mut Pins,
    end: (&RequestId, u64, &SchedulerReport),
    Keep { parent, blocks, tickets, ttl }: Keep,
    now: Timestamp,
) -> Result<Finished, LifecycleError> {
    let (request, generation, report) = end;
    let tracker = lifecycle.tracker();
    let ends = tracker.ends(request, generation, report);
    let has = tracker.device_blocks(request, generation);
    let checked = blocks.and_then(|blocks| match not_of(has, &blocks) {
        _ if *request != parent.request => {
            Err(PinError::OtherParent { request: request.clone(), parent: parent.request.clone() })
        }
        Some((group, block)) => Err(PinError::NotOfParent { group, block, request: request.clone() }),
        None => Ok(blocks),
    });
    let checked = match checked {
        Err(_) if planted::is(Bug::PinOfBlocksNotHeld) => Ok(Vec::new()),
        checked => checked,
    };
    let pin = ends.then(|| checked.and_then(|blocks| Ok((pins.pin(parent, tickets, ttl, now)?, blocks))));
    match &pin {
        Some(Ok((_, blocks))) => lifecycle.keep_from_removal(generation, blocks.iter().flatten()),
        Some(Err(_)) => pins.ended(request, now),
        None => {}
    }
    let verdict = lifecycle.report(request, generation, report, now)?;
    Ok(Finished { verdict, pin: pin.map(|pin| pin.map(|(key, _)| key)) })
}

/// A block among these that a request has not.
fn not_of(has: &[BlockRef], blocks: &[Vec<BlockRef>]) -> Option<(usize, u32)> {
    let has: BTreeSet<&BlockRef> = has.iter().collect();
    let other = |blocks: &Vec<BlockRef>| blocks.iter().find(|block| !has.contains(block)).map(|block| block.index);
    blocks.iter().enumerate().find_map(|(group, blocks)| Some((group, other(blocks)?)))
}
