//! One stop, drawn from a seed: what is on its way, what stops it, and when.

use std::time::Duration;

use penstock::{Cause, Direction, Span};

use crate::seed::Random;

/// Bytes of one arena: the most that one transfer of a storm reaches over.
pub const ARENA_BYTES: u64 = 512 << 10;
/// The least that a transfer reaches over: several units, so that it can be caught between two.
const REACH_BYTES_MIN: u64 = 192 << 10;
/// Bytes from one piece to the next.
const STRIDES: [u64; 5] = [1 << 10, 2 << 10, 4 << 10, 16 << 10, 72 << 10];
/// Bytes that a piece is shorter than its stride, so that pieces do not all merge or align.
const GAPS: [u64; 4] = [0, 0, 8, 72];

/// What stops a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stop {
    /// Who submitted it cancels it.
    Cancel,
    /// The owner of the destination takes it back.
    Revoke,
    /// Both at the same time.
    Both,
    /// Its deadline.
    Deadline(Duration),
}

impl Stop {
    /// Whether the owner of the destination takes part.
    pub fn revokes(self) -> bool {
        matches!(self, Self::Revoke | Self::Both)
    }

    /// Whether a transfer that goes this way may end so when it was stopped like this.
    pub fn may_cause(self, direction: Direction, cause: Cause) -> bool {
        let revoked = match direction {
            Direction::Write => Cause::RevokedByPeer,
            Direction::Read => Cause::RevokedHere,
        };
        match self {
            Self::Cancel => cause == Cause::Cancelled,
            Self::Revoke => cause == revoked,
            Self::Both => cause == Cause::Cancelled || cause == revoked,
            Self::Deadline(_) => cause == Cause::DeadlineExceeded,
        }
    }
}

/// When to stop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cue {
    /// As soon as this piece has arrived.
    Piece(usize),
    /// So long after submitting.
    After(Duration),
}

/// One piece of a transfer, as offsets into the data and into the arena.
#[derive(Debug, Clone, Copy)]
pub struct Piece {
    /// Where its bytes come from.
    pub from: u64,
    /// Where they go.
    pub to: u64,
    /// How many bytes.
    pub len: u64,
}

/// One stop.
#[derive(Debug)]
pub struct Case {
    /// Which way the bytes go, as the initiator sees it.
    pub direction: Direction,
    /// What is moved, in this order.
    pub pieces: Vec<Piece>,
    /// Bytes of all pieces.
    pub bytes: u64,
    /// What stops it.
    pub stop: Stop,
    /// When.
    pub cue: Cue,
    /// When, where the caller turns the engine: after so many turns.
    pub turns: u64,
    /// What a revoke takes back, as extents of the arena.
    pub extents: Vec<(u64, u64)>,
}

impl Case {
    /// Draws a case, or a write only.
    pub fn draw(random: &mut Random, writes_only: bool) -> Self {
        let reach = random.between(REACH_BYTES_MIN, ARENA_BYTES);
        let stride = random.pick(&STRIDES);
        let len = stride - random.pick(&GAPS);
        let mut from: Vec<u64> = (0..reach / stride).map(|place| place * stride).collect();
        let mut to = from.clone();
        if !random.one_in(4) {
            random.shuffle(&mut from);
            random.shuffle(&mut to);
        }
        let pieces: Vec<Piece> = from.iter().zip(&to).map(|(&from, &to)| Piece { from, to, len }).collect();
        let direction = if writes_only || !random.one_in(3) { Direction::Write } else { Direction::Read };
        let bytes = len * pieces.len() as u64;
        let stop = match random.below(8) {
            0..3 => Stop::Cancel,
            3..6 => Stop::Revoke,
            6 => Stop::Both,
            _ => Stop::Deadline(Duration::from_micros(random.below(100))),
        };
        let cue = match random.one_in(8) {
            true => Cue::After(Duration::from_micros(random.below(100))),
            // Seldom the last ones: what was stopped too late says nothing.
            false => Cue::Piece(random.below(1 + pieces.len() as u64 * 5 / 8) as usize),
        };
        let turns = random.below(bytes / penstock::limits::UNIT_BYTES + 2);
        let extents = draw_extents(random, reach);
        Self { direction, pieces, bytes, stop, cue, turns, extents }
    }

    /// The pieces as spans of a plan, for data at its region's beginning and an arena at `base`.
    pub fn spans(&self, base: u64) -> Vec<Span> {
        let span = |&Piece { from, to, len }: &Piece| match self.direction {
            Direction::Write => Span { local: from, remote: base + to, len },
            Direction::Read => Span { local: base + to, remote: from, len },
        };
        self.pieces.iter().map(span).collect()
    }

    /// Whether a revoke takes the whole arena.
    pub fn takes_all(&self) -> bool {
        self.extents.iter().map(|&(_, len)| len).sum::<u64>() == ARENA_BYTES
    }
}

/// The whole arena, the same in several extents, or a part that the transfer reaches.
fn draw_extents(random: &mut Random, reach: u64) -> Vec<(u64, u64)> {
    match random.below(4) {
        0 => {
            let offset = random.below(reach);
            vec![(offset, random.between(1, reach - offset))]
        }
        1 => {
            let cut = random.between(1, ARENA_BYTES - 1);
            vec![(cut, ARENA_BYTES - cut), (0, cut)]
        }
        _ => vec![(0, ARENA_BYTES)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_stay_inside_their_arena_and_touch_no_byte_twice() {
        let mut random = Random::new(3);
        for _ in 0..2000 {
            let case = Case::draw(&mut random, false);
            let mut pieces = case.pieces.clone();
            pieces.sort_unstable_by_key(|piece| piece.to);
            let mut end = 0;
            for piece in &pieces {
                assert!(piece.to >= end && piece.len % 8 == 0 && piece.to % 8 == 0);
                end = piece.to + piece.len;
            }
            assert!(end <= ARENA_BYTES && case.bytes <= end);
            assert!(case.extents.iter().all(|&(offset, len)| len > 0 && offset + len <= ARENA_BYTES));
            if let Cue::Piece(piece) = case.cue {
                assert!(piece < case.pieces.len());
            }
        }
    }
}
