//! What has landed in legs belongs in one contiguous piece a buffer: which bytes go where.

use penstock_session::control::Form;

use super::leg::Leg;
use super::legs::SinkLegs;
use crate::action::BlocksRef;
use crate::layout::Layout;
use crate::part::LegError;

/// Bytes of a leg's blocks, and where they belong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AssemblyPiece {
    /// The buffer, by its place in the layout.
    pub buffer: usize,
    /// Where the bytes are in the layout's region.
    pub region_offset: u64,
    /// Where they belong in the assembled buffer.
    pub offset: u64,
    /// How many.
    pub len: u64,
}

impl SinkLegs {
    /// What a leg brought, as pieces of buffers that have room for so many tokens. A token-major buffer is one token behind the other, a
    /// plane-major one has its planes so many tokens apart. The first token of the transfer is token 0.
    ///
    /// Only what has landed and is still there can be assembled; [`SinkLegs::taken`] comes behind the copy. The ticket is that of its blocks.
    pub fn assembly(&self, leg: u32, room_tokens: u64) -> Result<(BlocksRef, Vec<AssemblyPiece>), LegError> {
        if leg >= self.next_leg {
            return Err(LegError::NoSuchLeg { leg, next: self.next_leg });
        }
        let granting = self.granting(leg).filter(|granting| granting.state != Leg::Freed);
        let granting = granting.ok_or(LegError::Freed { leg })?;
        if granting.state != Leg::Landed {
            return Err(LegError::NotLanded { leg });
        }
        let (from, end) = granting.range(self.total);
        let needed = end - self.how.begin;
        if needed > room_tokens {
            return Err(LegError::Room { room: room_tokens, needed });
        }
        let mut pieces = Pieces(Vec::new());
        let layout = &self.how.layout;
        let block_tokens = u64::from(layout.block_tokens());
        for (buffer, lies) in layout.buffers().iter().enumerate() {
            let block = |block: u32| lies.base + u64::from(block) * lies.stride;
            if let Form::Once(bytes) = lies.form {
                if let Some(once) = granting.once.filter(|_| leg == 0) {
                    pieces.put(buffer, block(once), 0, bytes);
                }
                continue;
            }
            let mut done = from;
            while done < end {
                let at = u64::from(granting.skip) + (done - from);
                let (place, token) = ((at / block_tokens) as usize, at % block_tokens);
                let tokens = (block_tokens - token).min(end - done);
                let (start, first) = (block(granting.blocks[place]), done - self.how.begin);
                match lies.form {
                    Form::TokenMajor(rows) => {
                        let width = u64::from(rows.count) * u64::from(rows.bytes);
                        pieces.put(buffer, start + token * width, first * width, tokens * width);
                    }
                    Form::PlaneMajor(rows) => {
                        let width = u64::from(rows.bytes);
                        for row in 0..u64::from(rows.count) {
                            let there = start + (row * block_tokens + token) * width;
                            pieces.put(buffer, there, (row * room_tokens + first) * width, tokens * width);
                        }
                    }
                    Form::Once(_) => {}
                }
                done += tokens;
            }
        }
        Ok((granting.keep, pieces.0))
    }
}

impl Layout {
    /// Bytes of a buffer, by its place, that is assembled with room for so many tokens.
    pub fn assembled_bytes(&self, buffer: usize, room_tokens: u64) -> Option<u64> {
        match self.buffers().get(buffer)?.form {
            Form::Once(bytes) => Some(bytes),
            Form::TokenMajor(rows) | Form::PlaneMajor(rows) => {
                (u64::from(rows.count) * u64::from(rows.bytes)).checked_mul(room_tokens)
            }
        }
    }
}

struct Pieces(Vec<AssemblyPiece>);

impl Pieces {
    fn put(&mut self, buffer: usize, region_offset: u64, offset: u64, len: u64) {
        let continues = |last: &&mut AssemblyPiece| {
            last.buffer == buffer && (last.region_offset + last.len, last.offset + last.len) == (region_offset, offset)
        };
        if let Some(last) = self.0.last_mut().filter(continues) {
            last.len += len;
            return;
        }
        self.0.push(AssemblyPiece { buffer, region_offset, offset, len });
    }
}
