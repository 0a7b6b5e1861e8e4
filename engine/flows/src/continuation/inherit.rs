//! How much of its parent a child can have: whole blocks, of every group.

use blake2::digest::consts::U32;
use blake2::{Blake2s, Digest};
use penstock_core::Cause;
use penstock_session::control::BLOCKS_MAX;

use crate::partners::Silence;

/// What two requests have to agree in before one may have blocks of the other. Digests of the caller's own making.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Isolation {
    /// Whose requests they are. Who is of another tenant learns nothing, not even that there is such a request.
    pub tenant: [u8; 16],
    /// Which adapter of the model computed them.
    pub adapter: [u8; 16],
    /// What keeps users of one tenant apart.
    pub salt: [u8; 16],
    /// What stood between the tokens: images, sound.
    pub media: Vec<[u8; 16]>,
}

impl Isolation {
    /// A digest of all of it, as it goes to other engines.
    pub fn digest(&self) -> [u8; 32] {
        let mut digest = Blake2s::<U32>::new();
        digest.update(b"penstock isolation");
        digest.update(self.tenant);
        digest.update(self.adapter);
        digest.update(self.salt);
        digest.update((self.media.len() as u64).to_le_bytes());
        self.media.iter().for_each(|media| digest.update(media));
        digest.finalize().into()
    }

    /// Why a child of this isolation gets nothing of a parent of that one.
    pub(super) fn differs(&self, parent: &Self) -> Option<Miss> {
        if self.tenant != parent.tenant {
            Some(Miss::NoParent)
        } else if self.adapter != parent.adapter {
            Some(Miss::OtherAdapter)
        } else if self.salt != parent.salt {
            Some(Miss::OtherSalt)
        } else if self.media != parent.media {
            Some(Miss::OtherMedia)
        } else {
            None
        }
    }
}

/// Blocks of one kind of cache of a request: a model may have several, each with blocks of its own.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Group {
    /// Tokens of a block.
    pub block_tokens: u32,
    /// The blocks, in the order of their tokens.
    pub blocks: Vec<u32>,
    /// Tokens whose data is there: of the last token of a request there is none.
    pub computed: u64,
    /// Bytes of a block, all layers together.
    pub block_bytes: u64,
    /// What is hashed of each whole block. If this is given, a child is compared with it.
    pub hashes: Vec<u64>,
}

/// Why there is nothing to be inherited. Whoever asked computes it anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Miss {
    /// There is no such parent, or none that the asker may know of.
    #[error("there is no such parent")]
    NoParent,
    /// It is still running.
    #[error("the parent is still running: ask again when it has ended, or wait for it")]
    Running,
    /// Its blocks made room for others.
    #[error(
        "the parent's blocks made room for others' before they were inherited: raise `PinSettings::bytes` or `PinSettings::count`"
    )]
    Evicted,
    /// Its time was over.
    #[error("the parent's blocks were pinned for a time, which is over: pin them for longer, or ask sooner")]
    Expired,
    /// Another adapter computed it.
    #[error("the parent was computed with another adapter")]
    OtherAdapter,
    /// It has another salt.
    #[error("the parent has another salt")]
    OtherSalt,
    /// Other media stood between its tokens.
    #[error("the parent has other media between its tokens")]
    OtherMedia,
    /// The child's tokens are others.
    #[error("block {block} of group {group} has another hash than the child's: its tokens are others")]
    HashDiffers {
        group: u32,
        /// Which block of it, from 0.
        block: u32,
    },
    /// The parent has hashes, and the child or the parent gave too few of them.
    #[error(
        "the parent is to be compared, and block {block} of group {group} has no hash on one of both sides: give all, or none"
    )]
    HashMissing {
        group: u32,
        /// Which block of it, from 0.
        block: u32,
    },
    /// Not one whole block can be inherited.
    #[error("not one whole block of the parent can be inherited")]
    NothingWhole,
    /// There are enough children.
    #[error("there are as many children, or askers, as there may be: ask again when some have ended")]
    Crowded,
    /// Another engine is asked, and the parent has several groups.
    #[error("the parent has several groups of blocks, which are not lent to other engines")]
    SeveralGroups,
    /// No answer came in time.
    #[error("the other engine has not answered in time")]
    Late,
    /// The session with the other engine is over.
    #[error("the other engine {}", Silence::Gone)]
    PeerLost,
    /// The session with the other engine is not complete.
    #[error("the other engine {}", Silence::NotYet)]
    NotYet,
    /// The other engine does not speak of transfers by name, and so of no parents.
    #[error("the other engine {}", Silence::NotSpoken)]
    NotSpoken,
    /// What it answered makes no sense.
    #[error("what the other engine answered makes no sense: is it of another release?")]
    Senseless,
    /// It was lent, and could not be read.
    #[error("the other engine has lent it, and it could not be read: {0}")]
    Unread(Cause),
    /// A reason that this release does not know.
    #[error("the other engine gave reason {0}, which this release does not know")]
    Other(u16),
}

impl From<Silence> for Miss {
    fn from(silence: Silence) -> Self {
        match silence {
            Silence::Gone => Self::PeerLost,
            Silence::NotYet => Self::NotYet,
            Silence::NotSpoken => Self::NotSpoken,
        }
    }
}

impl Miss {
    /// Those that are said to other engines: none that tells a stranger what somebody else's request is like.
    const SAID: [Self; 7] = [
        Self::NoParent,
        Self::Running,
        Self::Evicted,
        Self::Expired,
        Self::NothingWhole,
        Self::Crowded,
        Self::SeveralGroups,
    ];

    /// Its number on the wire; never zero.
    pub fn code(self) -> u16 {
        if let Self::Other(code) = self {
            return code.max(1);
        }
        1 + Self::SAID.iter().position(|miss| *miss == self).unwrap_or(0) as u16
    }

    /// The one of this number.
    pub fn of_code(code: u16) -> Self {
        let said = code.checked_sub(1).and_then(|place| Self::SAID.get(usize::from(place)));
        said.copied().unwrap_or(Self::Other(code))
    }
}

/// How many tokens of a parent a child of so many tokens can have in whole blocks of every group.
///
/// A child computes at least its last token by itself, and gets only tokens whose data is there:
/// `floor(min(computed, tokens - 1) / block) * block` of one group. Of several groups it is the most that ends a block in all.
///
/// ```
/// use penstock_flows::continuation::{Group, whole_tokens};
///
/// let blocks = (0..44).collect();
/// let parent = Group { block_tokens: 16, blocks, computed: 699, ..Group::default() };
/// assert_eq!(whole_tokens(&[parent], 705), 688);
/// ```
pub fn whole_tokens(groups: &[Group], child_tokens: u64) -> u64 {
    let mut tokens = reach(groups, child_tokens);
    loop {
        let ends = groups.iter().map(|group| tokens - tokens % u64::from(group.block_tokens.max(1)));
        match ends.min() {
            Some(end) if end < tokens => tokens = end,
            _ => return tokens,
        }
    }
}

/// How many tokens there is data of in all groups, that the child does not have to compute itself.
pub(super) fn reach(groups: &[Group], child_tokens: u64) -> u64 {
    let room = |group: &Group| group.blocks.len() as u64 * u64::from(group.block_tokens);
    let computed = groups.iter().map(|group| group.computed.min(room(group))).min().unwrap_or(0);
    computed.min(child_tokens.saturating_sub(1))
}

/// The blocks of these tokens, of each group.
pub(super) fn blocks_of(groups: &[Group], tokens: u64) -> Vec<Vec<u32>> {
    let whole = |group: &Group| tokens / u64::from(group.block_tokens.max(1));
    groups.iter().map(|group| group.blocks.iter().take(whole(group) as usize).copied().collect()).collect()
}

/// Whether the blocks of these tokens are of the same tokens on both sides, as far as the parent has hashes.
pub(super) fn compare(groups: &[Group], tokens: u64, child: Option<&[Vec<u64>]>) -> Result<(), Miss> {
    for (place, group) in groups.iter().enumerate().filter(|(_, group)| !group.hashes.is_empty()) {
        let whole = tokens / u64::from(group.block_tokens.max(1));
        let child = child.and_then(|hashes| hashes.get(place));
        for block in 0..whole {
            let (at, group_at, block_at) = (block as usize, place as u32, block as u32);
            match (group.hashes.get(at), child.and_then(|hashes| hashes.get(at))) {
                (Some(parent), Some(child)) if parent == child => {}
                (Some(_), Some(_)) => return Err(Miss::HashDiffers { group: group_at, block: block_at }),
                _ => return Err(Miss::HashMissing { group: group_at, block: block_at }),
            }
        }
    }
    Ok(())
}

/// A piece of a block that is to be copied, as the rest of the block is the child's own to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyTail {
    /// In which group.
    pub group: u32,
    /// Which block of the parent.
    pub from: u32,
    /// Which of the child's fresh ones.
    pub to: u32,
    /// How many tokens, from the block's beginning.
    pub tokens: u32,
}

/// What is to be copied of the tokens from `whole` to `reach` into blocks that are the child's own: so the child writes into none that
/// is shared. Gives nothing if there are too few fresh blocks in a group; the child computes those tokens then.
pub(super) fn tail(groups: &[Group], whole: u64, reach: u64, fresh: &[Vec<u32>]) -> Option<Vec<CopyTail>> {
    let mut pieces = Vec::new();
    for (place, group) in groups.iter().enumerate() {
        let block_tokens = u64::from(group.block_tokens.max(1));
        let first = whole / block_tokens;
        let last = reach.div_ceil(block_tokens);
        for (nth, block) in (first..last).enumerate() {
            let tokens = block_tokens.min(reach - block * block_tokens) as u32;
            let from = *group.blocks.get(block as usize)?;
            let to = *fresh.get(place)?.get(nth)?;
            pieces.push(CopyTail { group: place as u32, from, to, tokens });
        }
    }
    Some(pieces)
}

/// The most tokens of a group that one answer to another engine can name.
pub(super) fn tokens_sayable(group: &Group) -> u64 {
    BLOCKS_MAX as u64 * u64::from(group.block_tokens)
}
