//! Where the bytes of a layout's blocks lie in its region, and whose block a byte is.

use penstock_session::control::{Buffer, Form};

use crate::layout::Layout;

/// Blocks of one buffer: `blocks` pieces of `len` bytes, one each `stride` bytes from `base` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardStripe {
    /// Where block 0 begins.
    pub base: u64,
    /// Bytes from one block to the next.
    pub stride: u64,
    /// Bytes of a block.
    pub len: u64,
    /// How many there are.
    pub blocks: u32,
}

/// One byte that two numberings of the same memory give to blocks of different numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clash {
    /// The block in the one.
    pub block: u32,
    /// The block in the other.
    pub other: u32,
}

impl ShardStripe {
    /// Where a block lies: its offset, and its bytes.
    pub fn extent(&self, block: u32) -> Option<(u64, u64)> {
        (block < self.blocks).then(|| (self.base + u64::from(block) * self.stride, self.len))
    }

    /// The block that has this byte, and where that block ends.
    pub fn block_at(&self, offset: u64) -> Option<(u32, u64)> {
        let behind = offset.checked_sub(self.base)?;
        // The stride of a single block is of no account.
        let block = if self.blocks == 1 { 0 } else { u32::try_from(behind / self.stride).ok()? };
        let (begin, len) = self.extent(block)?;
        (offset < begin + len).then_some((block, begin + len))
    }

    /// The blocks that have some of these bytes, as a range: first, and one behind the last.
    pub(crate) fn blocks_in(&self, offset: u64, len: u64) -> std::ops::Range<u32> {
        let end = offset.saturating_add(len);
        if len == 0 || end <= self.base {
            return 0..0;
        }
        if self.blocks == 1 {
            return 0..u32::from(offset < self.base + self.len);
        }
        let behind = offset.saturating_sub(self.base);
        let is_over = behind % self.stride >= self.len;
        let first = behind / self.stride + u64::from(is_over);
        let behind_last = (end - 1 - self.base) / self.stride + 1;
        let within = |block: u64| block.min(u64::from(self.blocks)) as u32;
        within(first)..within(behind_last)
    }

    /// A byte that is of a block of one number here, and of another number there.
    fn clash(&self, other: &Self) -> Option<Clash> {
        match (self.blocks, other.blocks) {
            (1, 1) => None,
            (1, _) => Self { stride: other.stride, ..*self }.clash_in_step(other),
            (_, 1) => self.clash_in_step(&Self { stride: self.stride, ..*other }),
            _ if self.stride == other.stride => self.clash_in_step(other),
            _ => (0..self.blocks).find_map(|block| {
                let (offset, len) = self.extent(block)?;
                let there = other.blocks_in(offset, len).take(2).find(|number| *number != block)?;
                Some(Clash { block, other: there })
            }),
        }
    }

    /// The same where both have one stride: what two blocks have in common depends on how far their numbers are apart, and on nothing else.
    fn clash_in_step(&self, other: &Self) -> Option<Clash> {
        let [here, there, stride] = [self.base, other.base, self.stride].map(i128::from);
        let [len, others_len] = [self.len, other.len].map(i128::from);
        let behind = there - here;
        let first = (-others_len - behind).div_euclid(stride) + 1;
        let last = (len - behind - 1).div_euclid(stride);
        // Numbers that no two blocks have between them are not tried.
        let (first, last) = (first.max(1 - i128::from(self.blocks)), last.min(i128::from(other.blocks) - 1));
        (first..=last).filter(|apart| *apart != 0).find_map(|apart| {
            let block = (-apart).max(0);
            let is_there = block < i128::from(self.blocks) && block + apart < i128::from(other.blocks);
            is_there.then_some(Clash { block: block as u32, other: (block + apart) as u32 })
        })
    }
}

/// A byte to which these numberings of one region give different numbers.
pub fn clash_of(one: &[ShardStripe], other: &[ShardStripe]) -> Option<Clash> {
    one.iter().find_map(|here| other.iter().find_map(|there| here.clash(there)))
}

impl Layout {
    /// Where the blocks of a buffer lie.
    pub fn stripe(&self, buffer: usize) -> Option<ShardStripe> {
        self.buffers().get(buffer).map(|of| self.stripe_of(of))
    }

    /// Where the blocks of all buffers lie.
    pub fn stripes(&self) -> Vec<ShardStripe> {
        self.buffers().iter().map(|of| self.stripe_of(of)).collect()
    }

    fn stripe_of(&self, buffer: &Buffer) -> ShardStripe {
        let len = match buffer.form {
            Form::Once(bytes) => bytes,
            Form::TokenMajor(rows) | Form::PlaneMajor(rows) => {
                u64::from(self.block_tokens()) * u64::from(rows.count) * u64::from(rows.bytes)
            }
        };
        ShardStripe { base: buffer.base, stride: buffer.stride, len, blocks: self.blocks() }
    }

    /// Where a token of a block begins in a buffer, in bytes of the region: its first row. What goes once for a transfer has one place,
    /// that of token 0. Nothing for a buffer, a block or a token that is not there.
    pub fn offset(&self, buffer: usize, block: u32, token: u32) -> Option<u64> {
        let (begin, _) = self.stripe(buffer)?.extent(block)?;
        let token_bytes = match self.buffers().get(buffer)?.form {
            Form::Once(_) => return (token == 0).then_some(begin),
            Form::TokenMajor(rows) => u64::from(rows.count) * u64::from(rows.bytes),
            Form::PlaneMajor(rows) => u64::from(rows.bytes),
        };
        (token < self.block_tokens()).then(|| begin + u64::from(token) * token_bytes)
    }

    /// Bytes from one row of a token to its next row in a buffer: those of a row where a token lies in one piece, those of a plane where
    /// each row of all tokens of a block lies in one. Nothing for what has no rows.
    pub fn row_stride(&self, buffer: usize) -> Option<u64> {
        match self.buffers().get(buffer)?.form {
            Form::Once(_) => None,
            Form::TokenMajor(rows) => Some(u64::from(rows.bytes)),
            Form::PlaneMajor(rows) => Some(u64::from(self.block_tokens()) * u64::from(rows.bytes)),
        }
    }

    /// The block that has this byte of the region, and where its piece there ends; nothing for a byte between blocks.
    pub fn block_at(&self, offset: u64) -> Option<(u32, u64)> {
        self.buffers().iter().find_map(|buffer| self.stripe_of(buffer).block_at(offset))
    }

    /// Whether a block has one of these bytes of the region.
    pub fn has_bytes_in(&self, block: u32, offset: u64, len: u64) -> bool {
        self.buffers().iter().any(|buffer| self.stripe_of(buffer).blocks_in(offset, len).contains(&block))
    }
}

#[cfg(test)]
mod tests {
    use penstock_session::control::{LayoutNews, Rows};
    use proptest::prelude::*;

    use super::*;

    const ROWS: Rows = Rows { first: 0, count: 3, of: 3, bytes: 5 };

    fn layout(form: fn(Rows) -> Form, base: u64, stride: u64) -> Layout {
        let buffer = |layer, base| Buffer { layer, base, stride, form: form(ROWS) };
        let news = LayoutNews {
            number: 1,
            generation: 1,
            label: "kv".into(),
            region: 7,
            region_generation: 3,
            block_tokens: 4,
            blocks: 6,
            rank: 0,
            ranks: 1,
            buffers: vec![
                buffer(0, base),
                buffer(1, base + 6 * stride),
                Buffer { layer: 2, base: 9000, stride: 16, form: Form::Once(7) },
            ],
        };
        Layout::check(news, 1 << 20).unwrap()
    }

    #[test]
    fn a_token_lies_where_its_rows_are_cut() {
        let tokens = layout(Form::TokenMajor, 100, 64);
        assert_eq!(tokens.offset(0, 0, 0), Some(100));
        assert_eq!(tokens.offset(1, 2, 3), Some(100 + 6 * 64 + 2 * 64 + 3 * 15));
        assert_eq!(tokens.row_stride(0), Some(5));
        let planes = layout(Form::PlaneMajor, 100, 64);
        assert_eq!(planes.offset(1, 2, 3), Some(100 + 6 * 64 + 2 * 64 + 3 * 5));
        assert_eq!(planes.row_stride(1), Some(4 * 5));
        // What goes once has no tokens and no rows.
        assert_eq!((planes.offset(2, 5, 0), planes.offset(2, 5, 1), planes.row_stride(2)), (Some(9080), None, None));
        for (buffer, block, token) in [(3, 0, 0), (0, 6, 0), (0, 0, 4)] {
            assert_eq!(planes.offset(buffer, block, token), None, "{buffer} {block} {token}");
        }
        assert_eq!(planes.stripe(1).unwrap().extent(5), Some((100 + 11 * 64, 60)));
        assert_eq!(planes.block_at(100 + 11 * 64 + 59), Some((5, 100 + 11 * 64 + 60)));
        assert_eq!(planes.block_at(100 + 11 * 64 + 60), None, "between two blocks");
    }

    /// It would be tried for a quarter of an hour, number by number.
    #[test]
    fn one_large_block_before_many_small_ones_has_no_byte_of_theirs() {
        let large = ShardStripe { base: 1 << 60, stride: 1, len: 1 << 40, blocks: 1 };
        let small = ShardStripe { base: 0, stride: 1, len: 1, blocks: 64 };
        assert_eq!(clash_of(&[large], &[small]), None);
        assert_eq!(clash_of(&[small], &[large]), None);
    }

    #[test]
    fn one_layer_behind_the_other_is_no_record_of_all_layers() {
        let stripe = |base, stride, len| ShardStripe { base, stride, len, blocks: 64 };
        let pool = [stripe(0, 128, 128)];
        let behind = [stripe(0, 64, 64), stripe(64 * 64, 64, 64)];
        let records = [stripe(0, 128, 64), stripe(64, 128, 64)];
        assert_eq!(clash_of(&pool, &behind), Some(Clash { block: 0, other: 1 }));
        assert_eq!(clash_of(&records, &pool), None);
        assert_eq!(clash_of(&behind, &behind), None);
        assert_eq!(clash_of(&behind[..1], &behind[1..]), None, "they have no byte in common");
    }

    proptest! {
        /// Against the bytes themselves.
        #[test]
        fn a_clash_is_a_byte_of_two_numbers(
            one in (0_u64..60, 1_u64..20, 1_u64..20, 1_u32..6), other in (0_u64..60, 1_u64..20, 1_u64..20, 1_u32..6),
        ) {
            let stripe = |(base, stride, len, blocks): (u64, u64, u64, u32)| ShardStripe {
                base,
                stride,
                len: if blocks == 1 { len } else { len.min(stride) },
                blocks,
            };
            let (one, other) = (stripe(one), stripe(other));
            let numbers = |of: &ShardStripe| {
                let mut owner = vec![None; 300];
                for block in 0..of.blocks {
                    let (offset, len) = of.extent(block).unwrap();
                    (offset..offset + len).for_each(|at| owner[at as usize] = Some(block));
                }
                owner
            };
            let (here, there) = (numbers(&one), numbers(&other));
            let differ = here.iter().zip(&there).any(|(a, b)| a.zip(*b).is_some_and(|(a, b)| a != b));
            let found = clash_of(&[one], &[other]);
            prop_assert_eq!(found.is_some(), differ, "{:?}", found);
            if let Some(Clash { block, other: number }) = found {
                let is_there = here.iter().zip(&there).any(|(a, b)| *a == Some(block) && *b == Some(number));
                prop_assert!(is_there && block != number);
            }
            for at in 0..300 {
                prop_assert_eq!(one.block_at(at).map(|(block, _)| block), here[at as usize]);
                let some = one.blocks_in(at, 7);
                let right: Vec<u32> = (0..one.blocks).filter(|block| here[at as usize..300.min(at as usize + 7)].contains(&Some(*block))).collect();
                prop_assert_eq!(some.collect::<Vec<_>>(), right);
            }
        }
    }
}
