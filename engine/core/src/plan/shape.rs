//! What a plan is once it has been checked: sections of rows times runs.

use super::builder::Builder;
use super::units::{Cuts, Unit};
use super::{Direction, Side, Span};
use crate::ids::{Generation, RegionId};

/// One use of a region id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RegionKey {
    pub region: RegionId,
    /// Which use of it.
    pub generation: Generation,
}

impl RegionKey {
    /// Of memory that nobody takes back.
    pub const NOBODYS: Self = Self { region: RegionId(u32::MAX), generation: Generation(0) };
}

/// Where the rows of a section begin, as (local, remote) offsets in bytes.
#[derive(Debug)]
pub enum PlanRows {
    List(Box<[(u64, u64)]>),
    Strided {
        first: (u64, u64),
        /// Bytes from one row to the next.
        strides: (u64, u64),
        count: u64,
    },
}

impl PlanRows {
    /// How many rows there are, at least one.
    pub fn count(&self) -> u64 {
        match self {
            Self::List(rows) => rows.len() as u64,
            Self::Strided { count, .. } => *count,
        }
    }

    /// Where a row begins; `row` is less than [`count`](Self::count).
    #[inline]
    pub(super) fn base(&self, row: u64) -> (u64, u64) {
        match self {
            Self::List(rows) => rows[row as usize],
            Self::Strided { first, strides, .. } => (first.0 + row * strides.0, first.1 + row * strides.1),
        }
    }
}

/// A range within a row, in bytes from the row's base.
#[derive(Debug, Clone, Copy)]
struct Extent {
    start: u64,
    end: u64,
}

/// Part of a plan between one pair of regions: every row repeats the same runs.
#[derive(Debug)]
pub struct Section {
    local: RegionKey,
    remote: RegionKey,
    rows: PlanRows,
    runs: Box<[Span]>,
    /// From the first byte of a row that is touched to past the last, local and remote.
    hulls: (Extent, Extent),
    row_bytes: u64,
    bytes: u64,
    pub(super) cuts: Cuts,
}

impl Section {
    /// A section of checked rows and runs; None if its bytes or pieces cannot be counted.
    pub(super) fn new(local: RegionKey, remote: RegionKey, rows: PlanRows, runs: Box<[Span]>) -> Option<Self> {
        let row_bytes = runs.iter().try_fold(0_u64, |sum, run| sum.checked_add(run.len))?;
        let bytes = row_bytes.checked_mul(rows.count())?;
        rows.count().checked_mul(runs.len() as u64)?;
        let hull = |side: Side| Extent {
            start: runs.iter().map(|run| run.start(side)).min().unwrap_or(0),
            end: runs.iter().map(|run| run.start(side) + run.len).max().unwrap_or(0),
        };
        let hulls = (hull(Side::Local), hull(Side::Remote));
        let cuts = Cuts::new(&runs, row_bytes);
        Some(Self { local, remote, rows, runs, hulls, row_bytes, bytes, cuts })
    }

    /// The region of this engine.
    pub const fn local(&self) -> RegionKey {
        self.local
    }

    /// The region of the peer.
    pub const fn remote(&self) -> RegionKey {
        self.remote
    }

    /// Where the rows begin.
    pub const fn rows(&self) -> &PlanRows {
        &self.rows
    }

    /// What every row moves; offsets count from the row's bases.
    pub const fn runs(&self) -> &[Span] {
        &self.runs
    }

    /// Bytes of all rows.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of one row.
    pub const fn row_bytes(&self) -> u64 {
        self.row_bytes
    }

    /// Spans of all rows, before they are cut into units.
    pub fn pieces(&self) -> u64 {
        self.rows.count() * self.runs.len() as u64
    }

    /// Every span, row by row. For tests and tools; workers use [`Shape::unit`].
    pub fn spans(&self) -> impl Iterator<Item = Span> {
        (0..self.rows.count()).flat_map(|row| {
            let (local, remote) = self.rows.base(row);
            let place = move |run: &Span| Span { local: local + run.local, remote: remote + run.remote, len: run.len };
            self.runs.iter().map(place)
        })
    }

    pub(super) const fn key(&self, side: Side) -> RegionKey {
        match side {
            Side::Local => self.local,
            Side::Remote => self.remote,
        }
    }

    /// Whether any span has a byte from `start` to before `end`.
    fn touches(&self, side: Side, start: u64, end: u64) -> bool {
        let hull = side.of(self.hulls);
        let row_touches = |base: u64| {
            let (first, last) = (base + hull.start, base + hull.end);
            if last <= start || end <= first {
                return false;
            }
            // A range that has the row's first or last byte needs no look at its runs.
            (start <= first) || (last <= end) || {
                self.runs.iter().any(|run| {
                    let at = base + run.start(side);
                    at < end && start < at + run.len
                })
            }
        };
        match &self.rows {
            PlanRows::List(rows) => rows.iter().any(|&bases| row_touches(side.of(bases))),
            PlanRows::Strided { first, strides, count } => {
                // The first row that ends after `start` decides: rows only go up.
                let (base, stride) = (side.of(*first), side.of(*strides));
                let row = match start.checked_sub(base + hull.end) {
                    None => 0,
                    Some(short) if stride > 0 => short / stride + 1,
                    Some(_) => return false,
                };
                row < *count && row_touches(base + row * stride)
            }
        }
    }
}

/// A checked plan: which bytes of which regions go where.
///
/// Immutable and made of numbers only, so it is shared between threads as it is.
#[derive(Debug)]
pub struct Shape {
    direction: Direction,
    sections: Box<[Section]>,
    /// The number of the first unit of each section, and at the end how many there are.
    first_units: Box<[u64]>,
    bytes: u64,
    blocks: u64,
    pieces: u64,
}

impl Shape {
    pub const fn builder<'a>(direction: Direction) -> Builder<'a> {
        Builder::new(direction)
    }

    pub(super) fn new(direction: Direction, sections: Vec<Section>, blocks: u64) -> Option<Self> {
        let mut first_units = Vec::with_capacity(sections.len() + 1);
        let (mut units, mut bytes, mut pieces) = (0_u64, 0_u64, 0_u64);
        for section in &sections {
            first_units.push(units);
            units = units.checked_add(section.cuts.units(section.rows.count())?)?;
            bytes = bytes.checked_add(section.bytes)?;
            pieces = pieces.checked_add(section.pieces())?;
        }
        first_units.push(units);
        Some(Self { direction, sections: sections.into(), first_units: first_units.into(), bytes, blocks, pieces })
    }

    /// Which way the bytes go.
    pub const fn direction(&self) -> Direction {
        self.direction
    }

    /// The sections, in the order in which they are moved.
    pub const fn sections(&self) -> &[Section] {
        &self.sections
    }

    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Items as the caller gave them.
    pub const fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Spans after merging, before they are cut into units.
    pub const fn pieces(&self) -> u64 {
        self.pieces
    }

    /// How many units there are.
    pub fn units(&self) -> u64 {
        self.first_units[self.sections.len()]
    }

    /// A unit by its number; None past the last, so that workers can claim numbers from a counter
    /// until there are no more.
    #[inline]
    pub fn unit(&self, number: u64) -> Option<Unit<'_>> {
        self.unit_range(number, 1).map(|(unit, _)| unit)
    }

    /// As many units from this one on as can be moved as one, at most `most`; and how many they are. Long runs
    /// that were cut into units are whole again as far as they lie in it.
    // As [`Unit::range`].
    #[inline(always)]
    pub fn unit_range(&self, number: u64, most: u64) -> Option<(Unit<'_>, u64)> {
        let index = match self.sections.len() {
            1 => 0,
            _ => self.first_units.partition_point(|&first| first <= number) - 1,
        };
        if number >= self.units() {
            return None;
        }
        Some(Unit::range(&self.sections[index], index, number - self.first_units[index], most.max(1)))
    }

    /// Every span with the index of its section, in order. For tests and tools.
    pub fn spans(&self) -> impl Iterator<Item = (usize, Span)> {
        self.sections.iter().enumerate().flat_map(|(index, section)| section.spans().map(move |span| (index, span)))
    }

    /// Whether any span has a byte of this range of a region of this engine, in this or an earlier use
    /// of its id.
    pub fn touches_local(&self, region: RegionId, generation: Generation, offset: u64, len: u64) -> bool {
        self.touches(Side::Local, RegionKey { region, generation }, offset, len)
    }

    /// Whether any span has a byte of this range of a region of the peer, in this or an earlier use of
    /// its id: what is withdrawn from one use was withdrawn from all before it.
    pub fn touches_remote(&self, region: RegionId, generation: Generation, offset: u64, len: u64) -> bool {
        self.touches(Side::Remote, RegionKey { region, generation }, offset, len)
    }

    fn touches(&self, side: Side, key: RegionKey, offset: u64, len: u64) -> bool {
        let end = offset.saturating_add(len);
        let is_meant = |section: &&Section| {
            let own = section.key(side);
            own.region == key.region && own.generation <= key.generation
        };
        let mut sections = self.sections.iter().filter(is_meant);
        len > 0 && sections.any(|section| section.touches(side, offset, end))
    }

    /// Bytes on the heap, in proportion to what the caller said and not to what it means.
    pub fn heap_bytes(&self) -> usize {
        let section = |section: &Section| {
            let rows = match &section.rows {
                PlanRows::List(rows) => size_of_val(&**rows),
                PlanRows::Strided { .. } => 0,
            };
            rows + size_of_val(&*section.runs) + section.cuts.heap_bytes()
        };
        size_of_val(&*self.sections)
            + size_of_val(&*self.first_units)
            + self.sections.iter().map(section).sum::<usize>()
    }
}
