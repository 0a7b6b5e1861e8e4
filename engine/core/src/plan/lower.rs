//! From what callers said to sections: every item is checked against its region here, and
//! neighbours that are contiguous on both sides become one run.

use super::builder::{Grid, PlanForm, PlanPart, RegionBounds, Strided};
use super::overlap::{Footprint, repeated};
use super::shape::{PlanRows, Section};
use super::{Item, Place, PlanError, Side, Span};

/// So few steps of a strided run are written out beside plain extents: a section of their own
/// would cost more and end a unit.
const FLAT_STEPS_MAX: u64 = 16;

/// So many steps are written out once when several strided runs share them.
const SHARED_STEPS_MAX: u64 = 64;

/// Sections whose items are in bounds, and what is known of where each of them writes.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) sections: Vec<Section>,
    /// One for each section.
    pub(super) footprints: Vec<Footprint>,
    /// Items as given, before merging.
    pub(super) blocks: u64,
    /// Extents of the pair of regions at hand that have no section yet.
    flat: Vec<Span>,
    destination: Side,
}

impl Draft {
    /// Checks every item of `parts` against its regions and merges neighbours.
    pub(super) fn lower(parts: &[PlanPart<'_>], destination: Side) -> Result<Self, PlanError> {
        let mut draft = Self { sections: Vec::new(), footprints: Vec::new(), blocks: 0, flat: Vec::new(), destination };
        for (number, part) in parts.iter().enumerate() {
            match part.form {
                PlanForm::Grid(grid) => draft.grid(number, part, &grid)?,
                PlanForm::Strided(runs) => draft.strided(number, part, runs)?,
                PlanForm::Extents(spans) => draft.extents(number, part, spans)?,
            }
            // The next part can only share a section of extents if it goes between the same pair.
            if parts.get(number + 1).is_none_or(|next| next.pair != part.pair) {
                draft.flush(part)?;
            }
        }
        Ok(draft)
    }

    fn grid(&mut self, part: usize, at: &PlanPart<'_>, grid: &Grid<'_>) -> Result<(), PlanError> {
        self.flush(at)?;
        let Grid { layers, blocks, block_bytes, strides } = *grid;
        for side in [Side::Local, Side::Remote] {
            let (_, highest) = index_range(blocks, side);
            let farthest = u128::from(side.of(strides)) * u128::from(highest);
            for (layer, &bases) in layers.iter().enumerate() {
                if u128::from(side.of(bases)) + farthest + u128::from(block_bytes) > u128::from(at.bounds_of(side).len)
                {
                    return Err(outside_block(part, at, grid, side, layer));
                }
            }
        }
        // No sum below overflows: the farthest block of every layer lies within its regions.
        let mut runs = Vec::with_capacity(blocks.len());
        for &(local, remote) in blocks {
            let (local, remote) = (u64::from(local) * strides.0, u64::from(remote) * strides.1);
            push_joined(&mut runs, Span { local, remote, len: block_bytes });
        }
        let side = self.destination;
        let (lowest, highest) = index_range(blocks, side);
        let footprint = Footprint::Grid {
            stride: side.of(strides),
            len: block_bytes,
            lowest: lowest.into(),
            highest: highest.into(),
            repeated: repeated(blocks.iter().map(|&pair| side.of(pair)), blocks.len(), lowest, highest),
        };
        self.count(layers.len() as u64, blocks.len() as u64)?;
        self.section(at, PlanRows::List(layers.into()), runs, footprint)
    }

    fn strided(&mut self, part: usize, at: &PlanPart<'_>, runs: &[Strided]) -> Result<(), PlanError> {
        for (run, strided) in runs.iter().enumerate() {
            if strided.count == 0 {
                return Err(PlanError::ZeroCount { part, run });
            }
            for side in [Side::Local, Side::Remote] {
                inside_steps(Item { part, place: Place::Step { run, step: 0 } }, side, at.bounds_of(side), strided)?;
            }
        }
        let alike = |a: &Strided, b: &Strided| {
            (a.len, a.local_stride, a.remote_stride, a.count) == (b.len, b.local_stride, b.remote_stride, b.count)
        };
        for group in runs.chunk_by(alike) {
            let (shape, members) = (group[0], group.len() as u64);
            self.count(members, shape.count)?;
            let contiguous = shape.local_stride == shape.len && shape.remote_stride == shape.len;
            if contiguous {
                for run in group {
                    let len = run.len * run.count;
                    push_joined(&mut self.flat, Span { local: run.local, remote: run.remote, len });
                }
            } else if members.saturating_mul(shape.count) <= FLAT_STEPS_MAX || shape.count == 1 {
                for run in group {
                    steps(run).for_each(|span| push_joined(&mut self.flat, span));
                }
            } else if members > 1 && shape.count <= members.max(SHARED_STEPS_MAX) {
                let rows = group.iter().map(|run| (run.local, run.remote)).collect();
                let once = steps(&Strided { local: 0, remote: 0, ..shape }).collect();
                self.ladders(at, PlanRows::List(rows), once, &shape)?;
            } else {
                for run in group {
                    let (first, strides) = ((run.local, run.remote), (run.local_stride, run.remote_stride));
                    let once = vec![Span { local: 0, remote: 0, len: run.len }];
                    self.ladders(at, PlanRows::Strided { first, strides, count: run.count }, once, run)?;
                }
            }
        }
        Ok(())
    }

    fn extents(&mut self, part: usize, at: &PlanPart<'_>, spans: &[Span]) -> Result<(), PlanError> {
        self.flat.reserve(spans.len());
        for (index, span) in spans.iter().enumerate() {
            let item = Item { part, place: Place::Extent(index) };
            for side in [Side::Local, Side::Remote] {
                inside(item, side, at.bounds_of(side), u128::from(span.start(side)), span.len)?;
            }
            push_joined(&mut self.flat, *span);
        }
        self.count(1, spans.len() as u64)
    }

    /// A section of strided runs that share the steps of `shape`.
    fn ladders(
        &mut self,
        at: &PlanPart<'_>,
        rows: PlanRows,
        runs: Vec<Span>,
        shape: &Strided,
    ) -> Result<(), PlanError> {
        self.flush(at)?;
        let stride = self.destination.of((shape.local_stride, shape.remote_stride));
        let footprint = Footprint::Grid { stride, len: shape.len, lowest: 0, highest: shape.count - 1, repeated: None };
        self.section(at, rows, runs, footprint)
    }

    /// Makes a section of the extents at hand.
    fn flush(&mut self, at: &PlanPart<'_>) -> Result<(), PlanError> {
        if self.flat.is_empty() {
            return Ok(());
        }
        let runs = std::mem::take(&mut self.flat);
        self.section(at, PlanRows::List([(0, 0)].into()), runs, Footprint::Solid)
    }

    fn section(
        &mut self,
        at: &PlanPart<'_>,
        rows: PlanRows,
        runs: Vec<Span>,
        prints: Footprint,
    ) -> Result<(), PlanError> {
        let section = Section::new(at.local.key(), at.remote.key(), rows, runs.into()).ok_or(PlanError::TooLarge)?;
        self.sections.push(section);
        self.footprints.push(prints);
        Ok(())
    }

    fn count(&mut self, times: u64, items: u64) -> Result<(), PlanError> {
        let more = times.checked_mul(items).ok_or(PlanError::TooLarge)?;
        self.blocks = self.blocks.checked_add(more).ok_or(PlanError::TooLarge)?;
        Ok(())
    }
}

/// Adds a span, or makes the last one longer. Both ends are tried: lists of free blocks often
/// come back in falling order.
pub(super) fn push_joined(runs: &mut Vec<Span>, next: Span) {
    if let Some(last) = runs.last_mut() {
        if last.local + last.len == next.local && last.remote + last.len == next.remote {
            last.len += next.len;
            return;
        }
        if next.local + next.len == last.local && next.remote + next.len == last.remote {
            *last = Span { len: last.len + next.len, ..next };
            return;
        }
    }
    runs.push(next);
}

/// The pieces of a strided run, one by one.
fn steps(run: &Strided) -> impl Iterator<Item = Span> {
    let Strided { local, remote, len, local_stride, remote_stride, count } = *run;
    (0..count).map(move |step| Span { local: local + step * local_stride, remote: remote + step * remote_stride, len })
}

fn index_range(blocks: &[(u32, u32)], side: Side) -> (u32, u32) {
    let indices = blocks.iter().map(|&pair| side.of(pair));
    indices.fold((u32::MAX, 0), |(low, high), index| (low.min(index), high.max(index)))
}

/// Checks one item against one region. Offsets are sums of 64-bit products and cannot overflow 128.
fn inside(item: Item, side: Side, reach: &RegionBounds, offset: u128, len: u64) -> Result<(), PlanError> {
    if len == 0 {
        return Err(PlanError::ZeroLength { item });
    }
    if offset + u128::from(len) <= u128::from(reach.len) {
        return Ok(());
    }
    let (region, region_len) = (reach.region, reach.len);
    match u64::try_from(offset) {
        Ok(offset) if offset.checked_add(len).is_some() => {
            Err(PlanError::OutOfBounds { item, side, region, offset, len, region_len })
        }
        _ => Err(PlanError::Overflow { item, side, region, region_len }),
    }
}

/// Checks a strided run against one region, and names its first step that lies outside.
fn inside_steps(item: Item, side: Side, reach: &RegionBounds, run: &Strided) -> Result<(), PlanError> {
    let base = u128::from(side.of((run.local, run.remote)));
    inside(item, side, reach, base, run.len)?;
    let stride = side.of((run.local_stride, run.remote_stride));
    // The first step is inside, so the differences below are not negative.
    let room = reach.len - run.len - side.of((run.local, run.remote));
    match room.checked_div(stride) {
        Some(last) if last < run.count - 1 => {
            let step = last + 1;
            let place = match item.place {
                Place::Step { run, .. } => Place::Step { run, step },
                other => other,
            };
            inside(Item { place, ..item }, side, reach, base + u128::from(step) * u128::from(stride), run.len)
        }
        _ => Ok(()),
    }
}

/// Names the first block of a layer that lies outside; there is one.
#[cold]
fn outside_block(part: usize, at: &PlanPart<'_>, grid: &Grid<'_>, side: Side, layer: usize) -> PlanError {
    let (base, stride) = (u128::from(side.of(grid.layers[layer])), u128::from(side.of(grid.strides)));
    let refusals = grid.blocks.iter().enumerate().filter_map(|(block, &pair)| {
        let item = Item { part, place: Place::Block { layer, block } };
        let offset = base + u128::from(side.of(pair)) * stride;
        inside(item, side, at.bounds_of(side), offset, grid.block_bytes).err()
    });
    refusals.into_iter().next().expect("the caller saw that the farthest block lies outside")
}
