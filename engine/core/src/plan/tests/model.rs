//! Plans as a list of every piece, with every check done on every pair of them.

use std::collections::BTreeSet;

use super::super::*;
use crate::ids::{Generation, RegionId};
use crate::rights::Rights;

/// Regions of each engine.
pub(super) const REGIONS: usize = 2;

/// The length of a region, in units of the case.
pub(super) const CELLS: u64 = 256;

/// One piece, and where.
pub(super) type Move = (RegionKey, RegionKey, Span);

#[derive(Debug, Clone)]
pub(super) enum Form {
    Grid { layers: Vec<(u64, u64)>, blocks: Vec<(u32, u32)>, bytes: u64, strides: (u64, u64) },
    Strided(Vec<Strided>),
    Extents(Vec<Span>),
}

#[derive(Debug, Clone)]
pub(super) struct Case {
    pub(super) direction: Direction,
    pub(super) unit: u64,
    pub(super) rights: Rights,
    pub(super) pairs: Vec<(usize, usize, Vec<Form>)>,
}

/// The two engines number their regions alike, so that mixing up the sides would show.
pub(super) fn key(_side: Side, region: usize) -> RegionKey {
    RegionKey { region: RegionId(region as u32), generation: Generation(5) }
}

impl Case {
    fn len(&self) -> u64 {
        CELLS * self.unit
    }

    pub(super) fn build(&self) -> Result<Shape, PlanError> {
        let mut builder = Shape::builder(self.direction);
        for (local, remote, forms) in &self.pairs {
            let (local, remote) = (key(Side::Local, *local), key(Side::Remote, *remote));
            builder = builder.between(
                RegionBounds::local(local.region, local.generation, self.len()),
                RegionBounds::remote(remote.region, remote.generation, self.len(), self.rights),
            );
            for form in forms {
                builder = match form {
                    Form::Grid { layers, blocks, bytes, strides } => {
                        builder.layers(layers).blocks(blocks).block_bytes(*bytes).strides(strides.0, strides.1)
                    }
                    Form::Strided(runs) => builder.strided(runs),
                    Form::Extents(spans) => builder.extents(spans),
                };
            }
        }
        builder.build()
    }
}

/// What is wrong with a plan, without where.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Wrong {
    Rights,
    Zero,
    Bounds,
    Overlap,
}

/// Every piece of a case, with the item it comes from.
pub(super) struct Naive<'a> {
    case: &'a Case,
    pieces: Vec<(Item, usize, usize, Span)>,
    zero_counts: bool,
}

impl<'a> Naive<'a> {
    pub(super) fn of(case: &'a Case) -> Self {
        let (mut pieces, mut zero_counts, mut part) = (Vec::new(), false, 0);
        for (local_region, remote_region, forms) in &case.pairs {
            for form in forms {
                let mut push = |place, local, remote, len| {
                    let span = Span { local, remote, len };
                    pieces.push((Item { part, place }, *local_region, *remote_region, span));
                };
                match form {
                    Form::Grid { layers, blocks, bytes, strides } => {
                        for (layer, base) in layers.iter().enumerate() {
                            for (block, index) in blocks.iter().enumerate() {
                                let local = base.0 + u64::from(index.0) * strides.0;
                                let remote = base.1 + u64::from(index.1) * strides.1;
                                push(Place::Block { layer, block }, local, remote, *bytes);
                            }
                        }
                    }
                    Form::Strided(runs) => {
                        for (run, it) in runs.iter().enumerate() {
                            zero_counts |= it.count == 0;
                            for step in 0..it.count {
                                let (local, remote) = (step * it.local_stride, step * it.remote_stride);
                                push(Place::Step { run, step }, it.local + local, it.remote + remote, it.len);
                            }
                        }
                    }
                    Form::Extents(spans) => {
                        for (index, it) in spans.iter().enumerate() {
                            push(Place::Extent(index), it.local, it.remote, it.len);
                        }
                    }
                }
                part += 1;
            }
        }
        Self { case, pieces, zero_counts }
    }

    fn write(&self, piece: &(Item, usize, usize, Span)) -> (usize, u64, u64) {
        let (region, start) = match self.case.direction {
            Direction::Write => (piece.2, piece.3.remote),
            Direction::Read => (piece.1, piece.3.local),
        };
        (region, start, start + piece.3.len)
    }

    /// Everything that is wrong, each kind once.
    pub(super) fn faults(&self) -> Vec<Wrong> {
        let mut wrong = BTreeSet::new();
        let needed = if self.case.direction == Direction::Write { 2 } else { 1 };
        if u8::from(self.case.rights) & needed == 0 {
            wrong.insert(Wrong::Rights);
        }
        if self.zero_counts || self.pieces.iter().any(|piece| piece.3.len == 0) {
            wrong.insert(Wrong::Zero);
        }
        let end = |piece: &(Item, usize, usize, Span)| piece.3.local.max(piece.3.remote) + piece.3.len;
        if self.pieces.iter().any(|piece| end(piece) > self.case.len()) {
            wrong.insert(Wrong::Bounds);
        }
        for (index, a) in self.pieces.iter().enumerate() {
            for b in &self.pieces[..index] {
                let (a, b) = (self.write(a), self.write(b));
                if a.0 == b.0 && a.1.max(b.1) < a.2.min(b.2) {
                    wrong.insert(Wrong::Overlap);
                }
            }
        }
        wrong.into_iter().collect()
    }

    fn piece(&self, item: &Item) -> &(Item, usize, usize, Span) {
        self.pieces.iter().find(|piece| piece.0 == *item).expect("the error names an item of the plan")
    }

    /// Checks that an error is true, and that it points at what is wrong.
    pub(super) fn confirm(&self, error: &PlanError) {
        let faults = self.faults();
        match error {
            PlanError::NotAllowed { .. } => assert!(faults.contains(&Wrong::Rights)),
            PlanError::ZeroLength { item } => {
                assert!(self.piece(item).3.len == 0);
            }
            PlanError::ZeroCount { .. } => assert!(self.zero_counts),
            PlanError::OutOfBounds { item, side, offset, len, region_len, .. } => {
                let span = self.piece(item).3;
                assert_eq!((span.start(*side), span.len, self.case.len()), (*offset, *len, *region_len));
                assert!(offset + len > *region_len);
            }
            PlanError::Overlap { first, second, side, region, offset } => {
                assert_ne!(first, second);
                assert_eq!(*side, self.case.direction.destination());
                for item in [first, second] {
                    let (at, start, end) = self.write(self.piece(item));
                    assert_eq!(at as u32, region.0);
                    assert!((start..end).contains(offset), "{item} does not write {offset}");
                }
            }
            other => panic!("the model knows no reason for {other:?}, only {faults:?}"),
        }
    }

    pub(super) fn moves(&self) -> Vec<Move> {
        let piece =
            |piece: &(Item, usize, usize, Span)| (key(Side::Local, piece.1), key(Side::Remote, piece.2), piece.3);
        self.pieces.iter().map(piece).collect()
    }

    pub(super) fn copy(&self) -> Vec<Vec<u16>> {
        copy(self.case.direction, self.moves().into_iter())
    }

    pub(super) fn touches(&self, side: Side, region: usize, offset: u64, len: u64) -> bool {
        self.pieces.iter().any(|piece| {
            let at = piece.3.start(side);
            side.of((piece.1, piece.2)) == region
                && (offset..offset + len).any(|byte| (at..at + piece.3.len).contains(&byte))
        })
    }
}

/// What the destination regions hold after these moves; every source byte is different.
pub(super) fn copy(direction: Direction, moves: impl Iterator<Item = Move>) -> Vec<Vec<u16>> {
    let mut target = vec![vec![u16::MAX; CELLS as usize]; REGIONS];
    for (local, remote, span) in moves {
        let (from, to, source, start) = match direction {
            Direction::Write => (local, remote, span.local, span.remote),
            Direction::Read => (remote, local, span.remote, span.local),
        };
        for byte in 0..span.len {
            let value = u64::from(from.region.0) * CELLS + source + byte;
            target[to.region.0 as usize][(start + byte) as usize] = value as u16;
        }
    }
    target
}

/// The same moves in one canonical form: by destination, with all that is contiguous joined.
pub(super) fn normal(direction: Direction, mut moves: Vec<Move>) -> Vec<Move> {
    let side = direction.destination();
    moves.sort_by_key(|&(local, remote, span)| (side.of((local, remote)), span.start(side)));
    let mut joined: Vec<Move> = Vec::new();
    for (local, remote, span) in moves {
        if let Some((l, r, last)) = joined.last_mut()
            && (*l, *r, last.local + last.len, last.remote + last.len) == (local, remote, span.local, span.remote)
        {
            last.len += span.len;
        } else {
            joined.push((local, remote, span));
        }
    }
    joined
}
