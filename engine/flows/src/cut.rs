//! Any range of tokens of one layout, as pieces of the other.
//!
//! Tokens are walked in stretches that lie in one block on both sides. That is all there is to legs, whose ranges end in the middle of a
//! block, to unequal sizes of blocks, to unequal ranks, and to position planes.

use std::ops::Range;

use penstock_core::Span;
use penstock_core::planted::{self, Bug};

use crate::shards::{Lies, ShardMatch, ShardPair, SharedBuffer};

/// The most pieces of one cut. What would be more is moved in parts.
pub const CUT_SPANS_MAX: usize = 1 << 20;

/// Blocks in the order of their tokens, and how many tokens of them come before those that are meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run<'a> {
    /// The blocks.
    pub blocks: &'a [u32],
    /// The first token meant, counted from the first one of the first block.
    pub first: u64,
}

/// What is to be cut.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut<'a> {
    /// Of which layers.
    pub layers: Range<u32>,
    /// Where the tokens are here.
    pub here: Run<'a>,
    /// Where they are there.
    pub there: Run<'a>,
    /// How many tokens.
    pub tokens: u64,
    /// The blocks, here and there, of what goes once for a transfer, if it goes now.
    pub once: Option<(u32, u32)>,
}

/// Why there are no pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CutError {
    /// A block is not in the layout.
    #[error("block {block} is named {}, where there are {blocks}", place(*is_here))]
    NoSuchBlock {
        /// On this engine's side.
        is_here: bool,
        block: u32,
        /// How many there are.
        blocks: u32,
    },
    /// There are more tokens than blocks for them.
    #[error("the blocks {} hold {room} tokens, and token {needed} is asked for", place(*is_here))]
    TooShort {
        /// On this engine's side.
        is_here: bool,
        /// Tokens for which there is room; the greatest number if that cannot be counted.
        room: u64,
        /// How many are needed.
        needed: u64,
    },
    /// It would be too many pieces.
    #[error("this is more than {CUT_SPANS_MAX} pieces: move it in parts")]
    TooManySpans,
}

fn place(is_here: bool) -> &'static str {
    if is_here { "here" } else { "there" }
}

impl ShardPair {
    /// Adds the pieces of a range of tokens to `out`, and says how many bytes they are. An error adds none.
    pub fn cut(&self, cut: &Cut<'_>, out: &mut Vec<Span>) -> Result<u64, CutError> {
        self.check(cut)?;
        let begin = out.len();
        let mut pieces = Pieces { out, begin, bytes: 0 };
        for shared in self.shared.iter().filter(|shared| cut.layers.contains(&shared.layer)) {
            let done = match shared.what {
                ShardMatch::Rows { count, bytes, .. } => self.cut_rows(shared, count, bytes, cut, &mut pieces),
                ShardMatch::Once { bytes } => match cut.once {
                    Some((here, there)) => pieces.put(shared.here.block(here), shared.there.block(there), bytes),
                    None => Ok(()),
                },
            };
            if let Err(error) = done {
                pieces.out.truncate(begin);
                return Err(error);
            }
        }
        Ok(pieces.bytes)
    }

    /// Bytes of one token in these layers.
    pub fn token_bytes(&self, layers: &Range<u32>) -> u64 {
        let of_layers = self.shared.iter().filter(|shared| layers.contains(&shared.layer));
        of_layers.map(|shared| shared.token_bytes()).sum()
    }

    /// Bytes in these layers of what goes once for a transfer.
    pub fn once_bytes(&self, layers: &Range<u32>) -> u64 {
        let of_layers = self.shared.iter().filter(|shared| layers.contains(&shared.layer));
        of_layers.map(|shared| if let ShardMatch::Once { bytes } = shared.what { bytes } else { 0 }).sum()
    }

    /// The most pieces that one token, and what goes once with it, can be.
    pub fn token_spans(&self) -> u64 {
        self.shared.iter().map(SharedBuffer::token_spans).sum()
    }

    /// The most tokens of a part that has at most so many bytes and can be cut at once; at least one, as a token is never cut.
    pub fn part_tokens(&self, layers: &Range<u32>, bytes: u64) -> u64 {
        let by_bytes = bytes / self.token_bytes(layers).max(1);
        let by_spans = CUT_SPANS_MAX as u64 / self.token_spans().max(1);
        by_bytes.min(by_spans).max(1)
    }

    /// The most pieces that so many tokens in so many stretches can be: a stretch is what lies in one block on both sides.
    pub fn spans_most(&self, tokens: u64, stretches: u64) -> u64 {
        self.shared.iter().fold(0, |sum, shared| sum.saturating_add(shared.spans_most(tokens, stretches)))
    }

    fn check(&self, cut: &Cut<'_>) -> Result<(), CutError> {
        for (is_here, side, run, once) in [
            (true, &self.here, &cut.here, cut.once.map(|once| once.0)),
            (false, &self.there, &cut.there, cut.once.map(|once| once.1)),
        ] {
            let room = run.blocks.len() as u64 * u64::from(side.block_tokens);
            let needed = run.first.saturating_add(cut.tokens);
            if needed > room {
                return Err(CutError::TooShort { is_here, room, needed });
            }
            let (first, end) = if cut.tokens == 0 {
                (0, 0)
            } else {
                (run.first / u64::from(side.block_tokens), needed.div_ceil(u64::from(side.block_tokens)))
            };
            let used = run.blocks[first as usize..end as usize].iter().copied().chain(once);
            if let Some(block) = used.into_iter().find(|&block| block >= side.blocks) {
                return Err(CutError::NoSuchBlock { is_here, block, blocks: side.blocks });
            }
        }
        Ok(())
    }

    fn cut_rows(
        &self,
        shared: &SharedBuffer,
        count: u32,
        bytes: u64,
        cut: &Cut<'_>,
        pieces: &mut Pieces<'_>,
    ) -> Result<(), CutError> {
        let inner = shared.inner();
        let mut done = 0;
        while done < cut.tokens - u64::from(planted::is(Bug::ToldBeforeBytes) && cut.tokens > 1) {
            let (here, here_token) = at(&cut.here, self.here.block_tokens, done);
            let (there, there_token) = at(&cut.there, self.there.block_tokens, done);
            let left_here = u64::from(self.here.block_tokens) - here_token;
            let left_there = u64::from(self.there.block_tokens) - there_token;
            let tokens = left_here.min(left_there).min(cut.tokens - done);
            let from = shared.here.block(here) + here_token * shared.here.token;
            let to = shared.there.block(there) + there_token * shared.there.token;
            let mut put = |token: u64, row: u64, len: u64| {
                let here = from + token * shared.here.token + row * shared.here.row;
                pieces.put(
                    here,
                    to + token * shared.there.token
                        + row * if planted::is(Bug::WrongPlaneCut) { shared.here.row } else { shared.there.row },
                    len,
                )
            };
            let rows = u64::from(count);
            match inner {
                Inner::Rows => (0..tokens).try_for_each(|token| put(token, 0, rows * bytes))?,
                Inner::Tokens => (0..rows).try_for_each(|row| put(0, row, tokens * bytes))?,
                Inner::Nothing => {
                    (0..tokens * rows).try_for_each(|place| put(place / rows, place % rows, bytes))?;
                }
            }
            done += tokens;
        }
        Ok(())
    }
}

/// How many tokens a part has that begins there, so that it ends with a block of the sink if it is not the last one anyway.
pub(crate) fn at_a_block(first: u64, tokens: u64, left: u64, block_tokens: u64) -> u64 {
    let end = (first + tokens) / block_tokens * block_tokens;
    if tokens == left || end <= first { tokens } else { end - first }
}

/// The block and the token in it that comes so many tokens behind a run's first.
fn at(run: &Run<'_>, block_tokens: u32, done: u64) -> (u32, u64) {
    let (token, block_tokens) = (run.first + done, u64::from(block_tokens));
    (run.blocks[(token / block_tokens) as usize], token % block_tokens)
}

/// What lies without a gap on both sides.
#[derive(Clone, Copy)]
enum Inner {
    /// The rows of a token.
    Rows,
    /// The tokens of a row.
    Tokens,
    /// Neither: each row of each token is a piece.
    Nothing,
}

impl SharedBuffer {
    fn inner(&self) -> Inner {
        let ShardMatch::Rows { count, bytes, .. } = self.what else { return Inner::Nothing };
        let both = |is: fn(&Lies, u64) -> bool| is(&self.here, bytes) && is(&self.there, bytes);
        if count == 1 && both(|lies, bytes| lies.token == bytes) {
            Inner::Tokens
        } else if count == 1 || both(|lies, bytes| lies.row == bytes) {
            Inner::Rows
        } else if both(|lies, bytes| lies.token == bytes) {
            Inner::Tokens
        } else {
            Inner::Nothing
        }
    }

    fn token_bytes(&self) -> u64 {
        match self.what {
            ShardMatch::Rows { count, bytes, .. } => u64::from(count) * bytes,
            ShardMatch::Once { .. } => 0,
        }
    }

    fn token_spans(&self) -> u64 {
        self.spans_most(1, 1)
    }

    fn spans_most(&self, tokens: u64, stretches: u64) -> u64 {
        match (self.what, self.inner()) {
            (ShardMatch::Once { .. }, _) => 1,
            (ShardMatch::Rows { .. }, Inner::Rows) => tokens,
            (ShardMatch::Rows { count, .. }, Inner::Tokens) => stretches.saturating_mul(count.into()),
            (ShardMatch::Rows { count, .. }, Inner::Nothing) => tokens.saturating_mul(count.into()),
        }
    }
}

impl Lies {
    fn block(&self, block: u32) -> u64 {
        self.base + u64::from(block) * self.stride
    }
}

/// Pieces as they come, joined with their neighbours.
struct Pieces<'a> {
    out: &'a mut Vec<Span>,
    begin: usize,
    bytes: u64,
}

impl Pieces<'_> {
    fn put(&mut self, local: u64, remote: u64, len: u64) -> Result<(), CutError> {
        self.bytes += len;
        let continues = |last: &&mut Span| (last.local + last.len, last.remote + last.len) == (local, remote);
        if let Some(last) = self.out[self.begin..].last_mut().filter(continues) {
            last.len += len;
            return Ok(());
        }
        if self.out.len() - self.begin == CUT_SPANS_MAX {
            return Err(CutError::TooManySpans);
        }
        self.out.push(Span { local, remote, len });
        Ok(())
    }
}

#[cfg(test)]
mod tests;
