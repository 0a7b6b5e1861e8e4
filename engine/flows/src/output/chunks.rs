//! What a source has computed of one transfer so far: chunks, in the order of their tokens.

use penstock_core::planted::{self, Bug};
use penstock_session::few::{Few, FewMap};

use crate::action::BlocksRef;
use crate::layout::Layout;
use crate::part::LegError;
use crate::repeated::repeated;

/// All chunks that were given.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    /// The blocks of all of them, in the order of their tokens; each is named once.
    pub(super) blocks: Few<u32>,
    has: FewMap<u32, ()>,
    pub(super) tokens: u64,
    /// How many tokens there are in all, once the last chunk is there.
    pub(super) total: Option<u64>,
    pub(super) keeps: Few<BlocksRef>,
    /// How many of the first tokens are ready: in each layer, or in all where one entry stands for them.
    pub(super) ready: Few<u64>,
}

impl Chunks {
    /// None yet. Where layers are not said to be ready one by one, whatever is given is.
    pub(super) fn new(is_by_layer: bool, slots: usize) -> Self {
        Self { ready: Few::of(if is_by_layer { 0 } else { u64::MAX }, slots), ..Self::default() }
    }

    /// So many tokens more, and all blocks in which they lie: one that the chunk before has begun and not filled is named again, first.
    /// An error takes neither the blocks nor the ticket.
    pub(super) fn add(
        &mut self,
        layout: &Layout,
        (blocks, tokens): (&[u32], u64),
        is_last: bool,
        keep: BlocksRef,
    ) -> Result<(), LegError> {
        if self.total.is_some() {
            return Err(LegError::AfterLast);
        }
        let fresh =
            if planted::is(Bug::ChunkGoesOnInAFreshBlock) { blocks } else { self.fresh(layout, blocks, tokens)? };
        self.blocks.extend(fresh.iter().copied());
        self.has.extend(fresh.iter().map(|&block| (block, ())));
        self.tokens = self.tokens.saturating_add(tokens);
        self.keeps.push(keep);
        if is_last {
            self.total = Some(self.tokens);
        }
        Ok(())
    }

    /// The blocks of the next chunk that were not named before, if its list is exactly that of the blocks in which its tokens lie.
    fn fresh<'a>(&self, layout: &Layout, blocks: &'a [u32], tokens: u64) -> Result<&'a [u32], LegError> {
        if let Some(&block) = blocks.iter().find(|&&block| block >= layout.blocks()) {
            return Err(LegError::NoSuchBlock { block, blocks: layout.blocks() });
        }
        let block_tokens = u64::from(layout.block_tokens());
        let (inside, begun) = (self.tokens % block_tokens, self.begun(layout).filter(|_| tokens > 0));
        if let Some((expected, &found)) = begun.zip(blocks.first()).filter(|&(expected, &found)| found != expected) {
            return Err(LegError::ChunkBegins { inside, expected, found });
        }
        let needed = if tokens == 0 { 0 } else { inside.saturating_add(tokens).div_ceil(block_tokens) };
        let given = blocks.len() as u64;
        if needed != given {
            return Err(LegError::ChunkBlocks { tokens, inside, needed, given });
        }
        let fresh = &blocks[usize::from(begun.is_some())..];
        let is_given = |block: &&u32| self.has.contains_key(block);
        match repeated(blocks).or_else(|| fresh.iter().find(is_given).copied()) {
            Some(block) => Err(LegError::BlockTwice { block }),
            None => Ok(fresh),
        }
    }

    /// The block in which the next token lies, if tokens that were given lie in it too.
    pub(super) fn begun(&self, layout: &Layout) -> Option<u32> {
        self.blocks.last().copied().filter(|_| !self.tokens.is_multiple_of(u64::from(layout.block_tokens())))
    }

    /// Whether a layer can be said to be ready for the first so many tokens.
    pub(super) fn check_ready(
        &self,
        layout: &Layout,
        is_by_layer: bool,
        (layer, tokens): (u32, u64),
    ) -> Result<(), LegError> {
        let layers = layout.layers();
        if !is_by_layer {
            Err(LegError::NotByLayer)
        } else if layer >= layers {
            Err(LegError::NoSuchLayer { layer, layers })
        } else if tokens > self.tokens {
            Err(LegError::LayerAhead { layer, tokens, given: self.tokens })
        } else {
            Ok(())
        }
    }

    /// A layer is ready for the first so many tokens. Fewer than before change nothing.
    pub(super) fn set_ready(&mut self, layer: u32, tokens: u64) {
        let tokens = if planted::is(Bug::LayerReadyForAllChunks) { u64::MAX } else { tokens };
        if let Some(ready) = self.ready.get_mut(layer as usize) {
            *ready = tokens.max(*ready);
        }
    }

    /// For how many tokens a layer is ready.
    pub(super) fn ready_tokens(&self, layer: u32) -> u64 {
        self.ready.get(layer as usize).copied().unwrap_or(0)
    }
}
