//! Why no two items of a plan write the same byte.
//!
//! What the forms guarantee by themselves is used first. Blocks with different indices are apart
//! when their stride is at least their length; layers are apart when whole layers do not meet, or
//! when they interleave within one stride. That leaves a few *hulls*, ranges whose inside is
//! proven, and sorting them proves the rest: O(layers + blocks) and a sort of the layers. Only
//! where hulls meet are the pieces behind them written out and sorted.

use super::builder::{PlanForm, PlanPart, Strided};
use super::lower::Draft;
use super::shape::{PlanRows, Section};
use super::{Item, Place, PlanError, RegionKey, Side};

/// How many pieces are written out at most where hulls meet: 64 MiB of working memory.
pub(super) const TANGLED_PIECES_MAX: u64 = 4 << 20;

/// Bits of the index bitmap for each block; above, indices are sorted instead.
const BITS_PER_BLOCK_MAX: usize = 256;

/// Where a section writes, as far as its form tells.
#[derive(Debug)]
pub(super) enum Footprint {
    /// Every run of its one row by itself.
    Solid,
    /// Pieces of `len` bytes at `base + index * stride`, for every base of its rows and for the
    /// same indices at each, which lie between `lowest` and `highest` (both are among them).
    Grid {
        stride: u64,
        len: u64,
        lowest: u64,
        highest: u64,
        /// An index that occurs twice.
        repeated: Option<u32>,
    },
}

/// A range that a section writes into, nowhere twice.
#[derive(Debug, Clone, Copy)]
struct Hull {
    start: u64,
    end: u64,
    section: usize,
    /// Whether it writes every byte of the range.
    solid: bool,
}

/// What looking at the hulls of one region tells.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Survey {
    /// No byte is written twice.
    Apart,
    /// This byte is written twice.
    Clash(u64),
    /// Only writing out the pieces of these sections can tell.
    Tangled(Vec<usize>),
}

/// Refuses a draft that writes a byte twice.
pub(super) fn refuse(draft: &Draft, parts: &[PlanPart<'_>], side: Side) -> Result<(), PlanError> {
    let key = |&section: &usize| draft.sections[section].key(side);
    let mut order: Vec<usize> = (0..draft.sections.len()).collect();
    order.sort_by_key(key);
    for group in order.chunk_by(|a, b| key(a) == key(b)) {
        let clash = match survey(draft, group, side) {
            Survey::Apart => None,
            Survey::Clash(offset) => Some(offset),
            Survey::Tangled(sections) => write_out(draft, &sections, side)?,
        };
        if let Some(offset) = clash {
            return Err(name(parts, side, key(&group[0]), offset));
        }
    }
    Ok(())
}

/// Looks at the hulls of sections that write one region.
pub(super) fn survey(draft: &Draft, group: &[usize], side: Side) -> Survey {
    let mut hulls = Vec::new();
    for &section in group {
        if let Some(offset) = add_hulls(&mut hulls, section, draft, side) {
            return Survey::Clash(offset);
        }
    }
    hulls.sort_unstable_by_key(|hull| hull.start);
    let mut tangled = Vec::new();
    let mut far = hulls[0];
    for &hull in &hulls[1..] {
        if hull.start < far.end {
            if hull.solid && far.solid {
                return Survey::Clash(hull.start);
            }
            tangled.extend([far.section, hull.section]);
        }
        if hull.end > far.end {
            far = hull;
        }
    }
    tangled.sort_unstable();
    tangled.dedup();
    if tangled.is_empty() { Survey::Apart } else { Survey::Tangled(tangled) }
}

/// Adds the hulls of one section, or finds a byte that it writes twice.
fn add_hulls(hulls: &mut Vec<Hull>, index: usize, draft: &Draft, side: Side) -> Option<u64> {
    let section = &draft.sections[index];
    let Footprint::Grid { stride, len, lowest, highest, repeated } = draft.footprints[index] else {
        hulls.extend(section.runs().iter().map(|run| {
            let start = run.start(side);
            Hull { start, end: start + run.len, section: index, solid: true }
        }));
        return None;
    };
    let mut bases: Vec<u64> = match section.rows() {
        PlanRows::List(rows) => rows.iter().map(|&bases| side.of(bases)).collect(),
        PlanRows::Strided { first, .. } => vec![side.of(*first)],
    };
    bases.sort_unstable();
    if let Some(twice) = repeated {
        return Some(bases[0] + u64::from(twice) * stride);
    }
    if stride < len && highest > lowest {
        return Some(bases[0] + stride); // Only strided runs come here, and they have every index.
    }
    let hull = |first: u64, last: u64| {
        let (start, end) = (first + lowest * stride, last + highest * stride + len);
        Hull { start, end, section: index, solid: end - start == len }
    };
    let (mut first, mut last) = (bases[0], bases[0]);
    for &base in &bases[1..] {
        if base - last < len {
            return Some(base + lowest * stride);
        }
        // Within one stride, the same index of all these bases comes before the next index of any.
        if base - first > stride.saturating_sub(len) {
            hulls.push(hull(first, last));
            first = base;
        }
        last = base;
    }
    hulls.push(hull(first, last));
    None
}

/// Writes out all pieces of some sections and looks for a byte that is written twice.
fn write_out(draft: &Draft, sections: &[usize], side: Side) -> Result<Option<u64>, PlanError> {
    let sections = || sections.iter().map(|&index| &draft.sections[index]);
    let pieces = sections().map(Section::pieces).fold(0, u64::saturating_add);
    if pieces > TANGLED_PIECES_MAX {
        let region = sections().next().expect("two sections or two layers meet").key(side).region;
        return Err(PlanError::TooTangled { side, region, pieces, pieces_max: TANGLED_PIECES_MAX });
    }
    let mut written = Vec::with_capacity(usize::try_from(pieces).unwrap_or_default());
    written.extend(sections().flat_map(Section::spans).map(|span| (span.start(side), span.start(side) + span.len)));
    written.sort_unstable();
    Ok(written.windows(2).find(|pair| pair[1].0 < pair[0].1).map(|pair| pair[1].0))
}

/// An index that occurs twice. A bitmap, or a sort if the indices lie far apart.
pub(super) fn repeated(
    indices: impl Iterator<Item = u32> + Clone,
    count: usize,
    lowest: u32,
    highest: u32,
) -> Option<u32> {
    let range = (highest - lowest) as usize + 1;
    if range / BITS_PER_BLOCK_MAX > count {
        let mut sorted: Vec<u32> = indices.collect();
        sorted.sort_unstable();
        return sorted.windows(2).find(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
    }
    let mut seen = vec![0_u64; range.div_ceil(64)];
    for index in indices {
        let at = (index - lowest) as usize;
        let (word, bit) = (&mut seen[at / 64], 1 << (at % 64));
        if *word & bit != 0 {
            return Some(index);
        }
        *word |= bit;
    }
    None
}

/// Makes the error for a byte that is written twice. All items are in bounds by now.
#[cold]
fn name(parts: &[PlanPart<'_>], side: Side, key: RegionKey, offset: u64) -> PlanError {
    let mut found = Vec::new();
    for (number, part) in parts.iter().enumerate() {
        if part.bounds_of(side).key() == key {
            let items = places(part, side, offset).into_iter();
            found.extend(items.map(|place| Item { part: number, place }));
        }
    }
    let &[first, second, ..] = &found[..] else {
        unreachable!("a byte that is written twice belongs to two items");
    };
    PlanError::Overlap { first, second, side, region: key.region, offset }
}

/// The first items of a part that write a byte, two of them if there are two.
fn places(part: &PlanPart<'_>, side: Side, offset: u64) -> Vec<Place> {
    match part.form {
        PlanForm::Grid(grid) => {
            let stride = side.of(grid.strides);
            let layers = grid.layers.iter().enumerate().filter_map(|(layer, &bases)| {
                let within = offset.checked_sub(side.of(bases))?;
                (within % stride < grid.block_bytes).then_some((layer, within / stride))
            });
            let blocks = |(layer, index): (usize, u64)| {
                let writes = move |&(_, &pair): &(usize, &(u32, u32))| u64::from(side.of(pair)) == index;
                grid.blocks.iter().enumerate().filter(writes).map(move |(block, _)| Place::Block { layer, block })
            };
            layers.flat_map(blocks).take(2).collect()
        }
        PlanForm::Strided(runs) => {
            let steps = |(run, strided): (usize, &Strided)| {
                steps_at(strided, side, offset).take(2).map(move |step| Place::Step { run, step })
            };
            runs.iter().enumerate().flat_map(steps).take(2).collect()
        }
        PlanForm::Extents(spans) => {
            let writes = spans
                .iter()
                .enumerate()
                .filter(|(_, span)| offset.checked_sub(span.start(side)).is_some_and(|within| within < span.len));
            writes.map(|(index, _)| Place::Extent(index)).take(2).collect()
        }
    }
}

/// The steps of a strided run that write a byte.
fn steps_at(run: &Strided, side: Side, offset: u64) -> std::ops::Range<u64> {
    let Some(within) = offset.checked_sub(side.of((run.local, run.remote))) else { return 0..0 };
    let stride = side.of((run.local_stride, run.remote_stride));
    if stride == 0 {
        return if within < run.len { 0..run.count } else { 0..0 };
    }
    let first = if within < run.len { 0 } else { (within - run.len) / stride + 1 };
    first..(within / stride + 1).min(run.count)
}
