//! What a source has computed of one transfer so far: chunks, in the order of their tokens.

use penstock_session::few::{Few, FewMap};

use crate::action::Ticket;
use crate::layout::Layout;
use crate::part::LegError;
use crate::repeated::repeated;

/// All chunks that were given.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    /// The blocks of all of them, in the order of their tokens.
    pub(super) blocks: Few<u32>,
    has: FewMap<u32, ()>,
    pub(super) tokens: u64,
    /// How many tokens there are in all, once the last chunk is there.
    pub(super) total: Option<u64>,
    pub(super) keeps: Few<Ticket>,
}

impl Chunks {
    /// So many tokens more, and the blocks that they need beyond those given before. An error takes neither the blocks nor the ticket.
    pub(super) fn add(
        &mut self,
        layout: &Layout,
        (blocks, tokens): (&[u32], u64),
        is_last: bool,
        keep: Ticket,
    ) -> Result<(), LegError> {
        if self.total.is_some() {
            return Err(LegError::AfterLast);
        }
        if let Some(&block) = blocks.iter().find(|&&block| block >= layout.blocks()) {
            return Err(LegError::NoSuchBlock { block, blocks: layout.blocks() });
        }
        let is_given = |block: &&u32| self.has.contains_key(block);
        if let Some(block) = repeated(blocks).or_else(|| blocks.iter().find(is_given).copied()) {
            return Err(LegError::BlockTwice { block });
        }
        let room = (self.blocks.len() + blocks.len()) as u64 * u64::from(layout.block_tokens());
        let all = self.tokens.saturating_add(tokens);
        if all > room {
            return Err(LegError::ChunkBlocks { tokens: all, room });
        }
        self.blocks.extend(blocks.iter().copied());
        self.has.extend(blocks.iter().map(|&block| (block, ())));
        self.tokens = all;
        self.keeps.push(keep);
        if is_last {
            self.total = Some(all);
        }
        Ok(())
    }
}
