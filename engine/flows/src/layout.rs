//! How blocks lie in a region, checked: nothing that a layout says leads outside its region, or to two places at once.

use penstock_core::{Generation, RegionId};
use penstock_session::control::{BUFFERS_MAX, Buffer, Form, LayoutNews, Rows};

use crate::action::RegionRef;

/// The most tokens of a block.
pub const BLOCK_TOKENS_MAX: u32 = 1 << 20;
/// The most bytes of what goes once for a transfer: it is never cut.
pub const ONCE_BYTES_MAX: u64 = 1 << 20;

/// A layout that has been checked against its region.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    news: LayoutNews,
}

/// Why a description of blocks is no layout.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the layout {label:?} is refused: {fault}")]
pub struct LayoutError {
    /// Which one.
    pub label: String,
    /// What is wrong with it.
    pub fault: LayoutFault,
}

/// What is wrong with a layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LayoutFault {
    /// It has no buffers.
    #[error("it has no buffers, so nothing could be moved by it: name at least one")]
    NoBuffers,
    /// It has too many.
    #[error("it has {0} buffers, more than the {BUFFERS_MAX} allowed: make several layouts of it")]
    TooManyBuffers(usize),
    /// A block has no tokens, or too many.
    #[error("a block has {0} tokens: it has to be one to {BLOCK_TOKENS_MAX}")]
    BlockTokens(u32),
    /// There are no blocks.
    #[error("it has no blocks")]
    NoBlocks,
    /// The rank is not one of the ranks.
    #[error("rank {rank} is not one of {ranks} ranks, which are counted from 0")]
    Rank { rank: u16, ranks: u16 },
    /// Rows are none, or not among those that there are.
    #[error(
        "buffer {buffer} has rows {first} to {first}+{count} of {of}, each of {bytes} bytes: no number but the first may be zero, and the last row may not be beyond all"
    )]
    Rows {
        buffer: usize,
        first: u32,
        count: u32,
        of: u32,
        /// Bytes of a row of one token.
        bytes: u32,
    },
    /// A layer beyond all.
    #[error("buffer {buffer} is of layer {layer}: layers are counted from 0, and are at most {BUFFERS_MAX}")]
    Layer { buffer: usize, layer: u32 },
    /// What goes once is nothing, or too much.
    #[error("buffer {buffer} goes once and has {bytes} bytes: it has to be one to {ONCE_BYTES_MAX}")]
    Once { buffer: usize, bytes: u64 },
    /// Blocks lie closer than they are long.
    #[error("buffer {buffer} has a block each {stride} bytes, but a block is {least} bytes long")]
    Stride {
        buffer: usize,
        /// Bytes from one block to the next.
        stride: u64,
        /// Bytes of a block.
        least: u64,
    },
    /// The last block ends behind the region.
    #[error("the last block of buffer {buffer} ends at byte {end} of a region that has {region}")]
    OutOfRegion {
        buffer: usize,
        /// Where it ends; the greatest number if that cannot be counted.
        end: u64,
        /// Bytes of the region.
        region: u64,
    },
    /// Two buffers have bytes in common.
    #[error("buffers {first} and {second} have bytes in common")]
    Overlap { first: usize, second: usize },
    /// Two buffers lie between each other with different strides.
    #[error(
        "buffers {first} and {second} lie between each other with different strides: give both the stride of the record that they are parts of"
    )]
    Interleaved { first: usize, second: usize },
}

impl Layout {
    /// Checks a description against a region of so many bytes.
    pub fn check(news: LayoutNews, region_bytes: u64) -> Result<Self, LayoutError> {
        match fault_of(&news, region_bytes) {
            None => Ok(Self { news }),
            Some(fault) => Err(LayoutError { label: news.label, fault }),
        }
    }

    /// What is said of it to peers.
    pub fn news(&self) -> &LayoutNews {
        &self.news
    }

    /// Its name.
    pub fn label(&self) -> &str {
        &self.news.label
    }

    /// The region in which it lies.
    pub fn region(&self) -> RegionRef {
        RegionRef { region: RegionId(self.news.region), generation: Generation(self.news.region_generation) }
    }

    /// Tokens of a block.
    pub fn block_tokens(&self) -> u32 {
        self.news.block_tokens
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> u32 {
        self.news.blocks
    }

    /// Its buffers.
    pub fn buffers(&self) -> &[Buffer] {
        &self.news.buffers
    }

    /// One more than the greatest layer of its buffers.
    pub fn layers(&self) -> u32 {
        self.news.buffers.iter().map(|buffer| buffer.layer.saturating_add(1)).max().unwrap_or(0)
    }

    /// Where these blocks lie in its region, and what goes once in those others, as (offset, length) in ascending order; neighbours are one.
    pub fn extents(&self, blocks: &[u32], once: &[u32]) -> Vec<(u64, u64)> {
        let mut extents = Vec::new();
        for buffer in self.buffers() {
            let (its, len) = match buffer.form {
                Form::Once(bytes) => (once, bytes),
                Form::TokenMajor(rows) | Form::PlaneMajor(rows) => {
                    let row = u64::from(rows.count) * u64::from(rows.bytes);
                    (blocks, row * u64::from(self.news.block_tokens))
                }
            };
            extents.extend(its.iter().map(|&block| (buffer.base + u64::from(block) * buffer.stride, len)));
        }
        extents.sort_unstable();
        extents.dedup_by(|later, before| {
            let meets = later.0 <= before.0 + before.1;
            if meets {
                before.1 = before.1.max(later.0 + later.1 - before.0);
            }
            meets
        });
        extents
    }

    /// Whether one of its buffers goes once for a transfer.
    pub fn has_once(&self) -> bool {
        self.news.buffers.iter().any(|buffer| matches!(buffer.form, Form::Once(_)))
    }
}

fn fault_of(news: &LayoutNews, region: u64) -> Option<LayoutFault> {
    let buffers = &news.buffers;
    if buffers.is_empty() {
        return Some(LayoutFault::NoBuffers);
    }
    if buffers.len() > BUFFERS_MAX {
        return Some(LayoutFault::TooManyBuffers(buffers.len()));
    }
    if !(1..=BLOCK_TOKENS_MAX).contains(&news.block_tokens) {
        return Some(LayoutFault::BlockTokens(news.block_tokens));
    }
    if news.blocks == 0 {
        return Some(LayoutFault::NoBlocks);
    }
    if news.rank >= news.ranks {
        return Some(LayoutFault::Rank { rank: news.rank, ranks: news.ranks });
    }
    let mut lying = Vec::with_capacity(buffers.len());
    for (number, buffer) in buffers.iter().enumerate() {
        match Lying::of(number, buffer, news, region) {
            Ok(one) => lying.push(one),
            Err(fault) => return Some(fault),
        }
    }
    overlap(&mut lying, news.blocks)
}

/// Where one buffer lies, in numbers that have been counted without overflow.
struct Lying {
    number: usize,
    base: u64,
    stride: u64,
    block: u64,
    end: u64,
}

impl Lying {
    fn of(number: usize, buffer: &Buffer, news: &LayoutNews, region: u64) -> Result<Self, LayoutFault> {
        let out = |end| LayoutFault::OutOfRegion { buffer: number, end, region };
        if buffer.layer as usize >= BUFFERS_MAX {
            return Err(LayoutFault::Layer { buffer: number, layer: buffer.layer });
        }
        let block = match buffer.form {
            Form::Once(bytes) if (1..=ONCE_BYTES_MAX).contains(&bytes) => bytes,
            Form::Once(bytes) => return Err(LayoutFault::Once { buffer: number, bytes }),
            Form::TokenMajor(rows) | Form::PlaneMajor(rows) => {
                let Rows { first, count, of, bytes } = rows;
                let is_among = first.checked_add(count).is_some_and(|end| end <= of);
                if count == 0 || bytes == 0 || !is_among {
                    return Err(LayoutFault::Rows { buffer: number, first, count, of, bytes });
                }
                let row = u64::from(count) * u64::from(bytes);
                row.checked_mul(u64::from(news.block_tokens)).ok_or(out(u64::MAX))?
            }
        };
        if news.blocks > 1 && buffer.stride < block {
            return Err(LayoutFault::Stride { buffer: number, stride: buffer.stride, least: block });
        }
        let last = buffer.stride.checked_mul(u64::from(news.blocks - 1)).and_then(|last| last.checked_add(buffer.base));
        let end = last.and_then(|last| last.checked_add(block)).ok_or(out(u64::MAX))?;
        if end > region {
            return Err(out(end));
        }
        Ok(Self { number, base: buffer.base, stride: buffer.stride, block, end })
    }

    /// Whether a block of this one has a byte that a block of another one of the same stride has, which begins later. There are several
    /// blocks, so that the stride is not zero.
    fn meets(&self, later: &Self, blocks: u32) -> bool {
        // Block `k` of the later one begins `apart` bytes behind block 0 of this one, when `k` is 0: only the two blocks of this one around
        // that can meet it, and the same two with every further `k`.
        let apart = later.base - self.base;
        let (whole, rest) = (apart / self.stride, apart % self.stride);
        let is_there = |block: u64| block < u64::from(blocks);
        (is_there(whole) && rest < self.block)
            || (whole.checked_add(1).is_some_and(is_there) && self.stride - rest < later.block)
    }
}

/// Two buffers that have bytes in common, or may have.
fn overlap(lying: &mut [Lying], blocks: u32) -> Option<LayoutFault> {
    lying.sort_by_key(|one| (one.base, one.number));
    for (place, one) in lying.iter().enumerate() {
        for later in lying[place + 1..].iter().take_while(|later| later.base < one.end) {
            let (first, second) = (one.number.min(later.number), one.number.max(later.number));
            if blocks > 1 && one.stride != later.stride {
                return Some(LayoutFault::Interleaved { first, second });
            }
            if blocks == 1 || one.meets(later, blocks) {
                return Some(LayoutFault::Overlap { first, second });
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    pub(super) fn news(block_tokens: u32, blocks: u32, buffers: Vec<Buffer>) -> LayoutNews {
        LayoutNews {
            number: 1,
            generation: 1,
            label: "kv".into(),
            region: 7,
            region_generation: 3,
            block_tokens,
            blocks,
            rank: 0,
            ranks: 1,
            buffers,
        }
    }

    fn rows(count: u32, bytes: u32) -> Rows {
        Rows { first: 0, count, of: count, bytes }
    }

    fn tokens(base: u64, stride: u64, count: u32, bytes: u32) -> Buffer {
        Buffer { layer: 0, base, stride, form: Form::TokenMajor(rows(count, bytes)) }
    }

    #[test]
    fn blocks_lie_where_their_buffers_say_and_neighbours_are_one() {
        let once = Buffer { layer: 0, base: 1000, stride: 10, form: Form::Once(10) };
        // 16 bytes a block: one buffer behind the other, and once for a transfer.
        let layout = Layout::check(news(4, 8, vec![tokens(0, 16, 1, 4), tokens(128, 16, 1, 4), once]), 1080).unwrap();
        assert_eq!(layout.extents(&[3, 1, 2], &[]), [(16, 48), (144, 48)]);
        assert_eq!(layout.extents(&[7, 0], &[5]), [(0, 16), (112, 32), (240, 16), (1050, 10)]);
        assert_eq!(layout.extents(&[], &[]), []);
    }

    fn fault(news: LayoutNews, region: u64) -> LayoutFault {
        Layout::check(news, region).unwrap_err().fault
    }

    #[test]
    fn every_mistake_has_its_name() {
        let one = |form| Buffer { layer: 0, base: 0, stride: 64, form };
        let good = one(Form::TokenMajor(rows(2, 8)));
        assert_eq!(fault(news(4, 2, vec![]), 128), LayoutFault::NoBuffers);
        assert_eq!(fault(news(4, 2, vec![good; 1025]), 128), LayoutFault::TooManyBuffers(1025));
        assert_eq!(fault(news(0, 2, vec![good]), 128), LayoutFault::BlockTokens(0));
        assert_eq!(fault(news(u32::MAX, 2, vec![good]), 128), LayoutFault::BlockTokens(u32::MAX));
        assert_eq!(fault(news(4, 0, vec![good]), 128), LayoutFault::NoBlocks);
        let ranks = LayoutNews { rank: 2, ranks: 2, ..news(4, 2, vec![good]) };
        assert_eq!(fault(ranks, 128), LayoutFault::Rank { rank: 2, ranks: 2 });
        for wrong in [
            Rows { first: 1, count: 2, of: 2, bytes: 8 },
            Rows { first: u32::MAX, count: 2, of: u32::MAX, bytes: 8 },
            rows(0, 8),
            rows(2, 0),
        ] {
            assert!(matches!(fault(news(4, 2, vec![one(Form::PlaneMajor(wrong))]), 128), LayoutFault::Rows { .. }));
        }
        let far = Buffer { layer: 1024, ..good };
        assert_eq!(fault(news(4, 2, vec![far]), 128), LayoutFault::Layer { buffer: 0, layer: 1024 });
        assert_eq!(fault(news(4, 2, vec![one(Form::Once(0))]), 128), LayoutFault::Once { buffer: 0, bytes: 0 });
        let stride = LayoutFault::Stride { buffer: 0, stride: 63, least: 64 };
        assert_eq!(fault(news(4, 2, vec![tokens(0, 63, 2, 8)]), 128), stride);
        let out = |end| LayoutFault::OutOfRegion { buffer: 0, end, region: 127 };
        assert_eq!(fault(news(4, 2, vec![good]), 127), out(128));
        assert_eq!(fault(news(4, 2, vec![tokens(u64::MAX, 64, 2, 8)]), 127), out(u64::MAX));
        assert_eq!(fault(news(4, 9, vec![tokens(0, u64::MAX / 4, 2, 8)]), 127), out(u64::MAX));
        let widest = Buffer { layer: 0, base: 0, stride: u64::MAX, form: Form::TokenMajor(rows(u32::MAX, u32::MAX)) };
        assert_eq!(fault(news(4, 2, vec![widest]), 127), out(u64::MAX));
        let layout = Layout::check(news(4, 2, vec![good]), 128).unwrap();
        assert_eq!((layout.layers(), layout.has_once()), (1, false));
        let said = Layout::check(news(4, 2, vec![good]), 127).unwrap_err().to_string();
        assert!(said.contains("\"kv\"") && said.contains("byte 128") && said.contains("127"), "{said}");
    }

    #[test]
    fn buffers_of_one_record_may_lie_between_each_other_and_may_not_touch() {
        let pair = |second: Buffer| Layout::check(news(4, 3, vec![tokens(0, 100, 1, 10), second]), 1000);
        pair(tokens(40, 100, 1, 15)).unwrap();
        let touching = pair(tokens(39, 100, 1, 15)).unwrap_err().fault;
        assert_eq!(touching, LayoutFault::Overlap { first: 0, second: 1 });
        let wrapping = pair(tokens(41, 100, 1, 15)).unwrap_err().fault;
        assert_eq!(wrapping, LayoutFault::Overlap { first: 0, second: 1 });
        let other = pair(tokens(40, 101, 1, 10)).unwrap_err().fault;
        assert_eq!(other, LayoutFault::Interleaved { first: 0, second: 1 });
        pair(tokens(300, 101, 1, 10)).unwrap();
    }

    proptest! {
        /// Against the bytes themselves: what is let through shares none, what has the same stride and shares none is let through.
        #[test]
        fn overlaps_are_what_the_bytes_say(
            blocks in 1_u32..6, stride in 1_u64..40,
            buffers in proptest::collection::vec((0_u64..120, 1_u32..5, 1_u32..4), 1..5),
        ) {
            let buffers: Vec<Buffer> = buffers.into_iter().map(|(base, count, bytes)| tokens(base, stride, count, bytes)).collect();
            let mut owner = vec![None; 600];
            let mut is_shared = false;
            for (number, buffer) in buffers.iter().enumerate() {
                let Form::TokenMajor(rows) = buffer.form else { unreachable!() };
                for block in 0..u64::from(blocks) {
                    for byte in 0..u64::from(rows.count * rows.bytes * 2) {
                        let at = (buffer.base + block * stride + byte) as usize;
                        is_shared |= owner[at].replace(number).is_some();
                    }
                }
            }
            let checked = Layout::check(news(2, blocks, buffers), 600);
            prop_assert_eq!(checked.is_err(), is_shared, "{:?}", checked);
        }
    }
}
