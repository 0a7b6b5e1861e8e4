//! The request to a memory's owner: its encoding, and its parser for untrusted words.
//!
//! ```text
//! word 0   spans 32 | reserved 30 | past the cache 1 | read 1
//! word 1   generation 32 | region 32
//! word 2   the revision of the owner's gate that the plan was checked against
//! words    for each span: offset, length
//! ```

use penstock_core::limits::SPANS_PER_POST;
use penstock_core::plan::RegionKey;
use penstock_core::{Direction, Generation, RegionId, Span};
use penstock_memory::copy::Hint;

use super::SLOT_BYTES;

const HEAD_WORDS: usize = 3;
const READ: u64 = 1;
const STREAMING: u64 = 2;
const RESERVED: u64 = (1 << 32) - 4;

/// Words of the longest request.
pub const REQUEST_WORDS: usize = HEAD_WORDS + 2 * SPANS_PER_POST;

/// What the owner is to do with a slot's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BounceRequest {
    /// Which way, as the initiator sees it: a write fills the owner's region.
    pub direction: Direction,
    /// Whether the whole transfer is too large to be worth caching.
    pub hint: Hint,
    pub key: RegionKey,
    /// The revision of the owner's gate that the plan was checked against.
    pub revision: u64,
}

/// Why words are not a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BounceRequestError {
    /// Bits that nobody sets.
    #[error("a request has the unknown bits {0:#x}")]
    Reserved(u64),
    /// No spans, or more than fit.
    #[error("a request of {0} spans; there are 1 to {SPANS_PER_POST}")]
    Spans(u64),
    /// A span without bytes, past the end of numbers, or more bytes than a slot has.
    #[error("span {0} of a request is empty, wraps around, or does not fit its slot")]
    Span(usize),
}

impl BounceRequest {
    /// Encodes it with its spans, of which the remote offsets are the owner's.
    pub fn encode<'a>(&self, spans: &[Span], words: &'a mut [u64; REQUEST_WORDS]) -> &'a [u64] {
        debug_assert!(spans.len() <= SPANS_PER_POST, "a batch has at most so many spans");
        let read = if self.direction == Direction::Read { READ } else { 0 };
        let streaming = if self.hint == Hint::Streaming { STREAMING } else { 0 };
        words[0] = (spans.len() as u64) << 32 | streaming | read;
        words[1] = u64::from(self.key.generation.0) << 32 | u64::from(self.key.region.0);
        words[2] = self.revision;
        for (pair, span) in words[HEAD_WORDS..].chunks_exact_mut(2).zip(spans) {
            pair.copy_from_slice(&[span.remote, span.len]);
        }
        &words[..HEAD_WORDS + 2 * spans.len()]
    }

    /// Parses any words: the request and its number of spans, or why it is none. The spans' local
    /// offsets are the owner's region's, the remote ones the slot's.
    pub fn parse(
        words: &[u64; REQUEST_WORDS],
        spans: &mut [Span; SPANS_PER_POST],
    ) -> Result<(Self, usize), BounceRequestError> {
        if words[0] & RESERVED != 0 {
            return Err(BounceRequestError::Reserved(words[0] & RESERVED));
        }
        let count = words[0] >> 32;
        if count == 0 || count > SPANS_PER_POST as u64 {
            return Err(BounceRequestError::Spans(count));
        }
        let count = count as usize;
        let mut at = 0;
        let pairs = words[HEAD_WORDS..].chunks_exact(2).zip(spans.iter_mut()).take(count);
        for (index, (pair, span)) in pairs.enumerate() {
            let (offset, len) = (pair[0], pair[1]);
            if len == 0 || len > SLOT_BYTES - at || offset.checked_add(len).is_none() {
                return Err(BounceRequestError::Span(index));
            }
            *span = Span { local: offset, remote: at, len };
            at += len;
        }
        let request = Self {
            direction: if words[0] & READ == 0 { Direction::Write } else { Direction::Read },
            hint: if words[0] & STREAMING == 0 { Hint::Cached } else { Hint::Streaming },
            key: RegionKey { region: RegionId(words[1] as u32), generation: Generation((words[1] >> 32) as u32) },
            revision: words[2],
        };
        Ok((request, count))
    }
}
