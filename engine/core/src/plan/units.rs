//! How a plan is handed out: units of bounded cost, found by number, expanded span by span.

use super::Span;
use super::shape::{PlanRows, Section};
use crate::limits::{SPANS_PER_POST, UNIT_BYTES};

/// The most spans of a unit. Tiny blocks cost by the piece and not by the byte: 64 KiB of them
/// would keep a worker for a quarter of a millisecond.
pub const UNIT_SPANS_MAX: usize = 8 * SPANS_PER_POST;

/// Long runs are cut at multiples of this many bytes.
const CUT_BYTES: u64 = 4096;

const _: () = assert!(UNIT_BYTES.is_multiple_of(CUT_BYTES), "a cut piece must not be longer than a unit");

/// How the rows of a section are cut into units.
#[derive(Debug)]
pub(super) enum Cuts {
    /// So many whole rows are one unit.
    Rows(u64),
    /// Every row is cut in the same way, at these places; the last one is the row's end.
    Within(Box<[UnitCut]>),
}

/// A place within a row where a unit begins.
#[derive(Debug, Clone, Copy)]
pub(super) struct UnitCut {
    /// The number of that unit within the row.
    unit: u64,
    /// The run it begins with. If the next cut's unit is not the next unit, this run alone is cut
    /// into all of the units between.
    run: usize,
    /// Bytes of the row before it.
    bytes: u64,
}

impl Cuts {
    pub(super) fn new(runs: &[Span], row_bytes: u64) -> Self {
        let rows = (UNIT_BYTES / row_bytes).min((UNIT_SPANS_MAX / runs.len()) as u64);
        if rows > 0 {
            return Self::Rows(rows);
        }
        let mut cuts = Vec::new();
        let mut open = UnitCut { unit: 0, run: 0, bytes: 0 };
        let mut bytes = 0;
        for (run, span) in runs.iter().enumerate() {
            let full = bytes - open.bytes + span.len > UNIT_BYTES || run - open.run == UNIT_SPANS_MAX;
            if full && run > open.run {
                cuts.push(open);
                open = UnitCut { unit: open.unit + 1, run, bytes };
            }
            bytes += span.len;
            if span.len > UNIT_BYTES {
                cuts.push(open);
                open = UnitCut { unit: open.unit + span.len.div_ceil(UNIT_BYTES), run: run + 1, bytes };
            }
        }
        if open.run < runs.len() {
            cuts.push(open);
            open = UnitCut { unit: open.unit + 1, run: runs.len(), bytes };
        }
        cuts.push(open);
        Self::Within(cuts.into())
    }

    /// Units of so many rows; None if they cannot be counted.
    pub(super) fn units(&self, rows: u64) -> Option<u64> {
        match self {
            Self::Rows(each) => Some(rows.div_ceil(*each)),
            Self::Within(cuts) => rows.checked_mul(cuts[cuts.len() - 1].unit),
        }
    }

    pub(super) fn heap_bytes(&self) -> usize {
        match self {
            Self::Rows(_) => 0,
            Self::Within(cuts) => size_of_val(&**cuts),
        }
    }
}

/// Bytes of each piece of a run that is longer than a unit. There are as many pieces as full units
/// would make, of a length as equal as pages allow: 72 KiB are two halves and not 64 and 8.
fn cut_bytes(len: u64) -> u64 {
    len.div_ceil(len.div_ceil(UNIT_BYTES)).next_multiple_of(CUT_BYTES)
}

/// The index of the cut whose units include this one.
#[inline]
fn find(cuts: &[UnitCut], unit: u64) -> usize {
    // Rows of blocks of one length have as many units after every cut, so a proportion is right at once.
    let last = cuts.len() - 1;
    let guess = ((unit.wrapping_mul(last as u64) / cuts[last].unit) as usize).min(last - 1);
    if cuts[guess].unit <= unit && unit < cuts[guess + 1].unit {
        return guess;
    }
    cuts.partition_point(|cut| cut.unit <= unit) - 1
}

/// A part of a plan that one worker moves in one go: at most
/// [`UNIT_BYTES`](crate::limits::UNIT_BYTES) in at most [`UNIT_SPANS_MAX`] spans of one section, or several
/// such that lie side by side.
#[derive(Debug, Clone, Copy)]
pub struct Unit<'a> {
    section: usize,
    rows: &'a PlanRows,
    first_row: u64,
    row_count: u64,
    /// The runs of each of the rows.
    runs: &'a [Span],
    /// Bytes of the first run that belong to units before this one.
    skip: u64,
    bytes: u64,
}

impl<'a> Unit<'a> {
    /// The units of a section from this number on, which is less than the section's units, as far as they lie
    /// side by side in one row or are whole rows, at most `most` of them, as one; and how many they are.
    // A call of its own costs two instructions a block of 16 KiB: whether it is one must not depend on what else its callers hold.
    #[inline(always)]
    pub(super) fn range(section: &'a Section, index: usize, number: u64, most: u64) -> (Self, u64) {
        let rows = section.rows();
        match &section.cuts {
            Cuts::Rows(each) => {
                let first_row = number * each;
                let row_count = (rows.count() - first_row).min(*each * most);
                let bytes = row_count * section.row_bytes();
                let unit = Self { section: index, rows, first_row, row_count, runs: section.runs(), skip: 0, bytes };
                (unit, row_count.div_ceil(*each))
            }
            Cuts::Within(cuts) => {
                let units = cuts[cuts.len() - 1].unit;
                let (row, unit) = if rows.count() == 1 { (0, number) } else { (number / units, number % units) };
                let at = find(cuts, unit);
                let (cut, mut to) = (cuts[at], at + 1);
                let mut count = cuts[to].unit - cut.unit;
                let is_cut_run = count > 1;
                // Units that are whole runs: so many cuts on, so many units on.
                if let Some(far) = cuts.get(at + most as usize)
                    && far.unit - cut.unit == most
                {
                    (to, count) = (at + most as usize, most);
                }
                while !is_cut_run && count < most && cuts.get(to + 1).is_some_and(|next| next.unit - cuts[to].unit == 1)
                {
                    (to, count) = (to + 1, count + 1);
                }
                let next = cuts[to];
                let runs = &section.runs()[cut.run..next.run];
                let mut whole = Self {
                    section: index,
                    rows,
                    first_row: row,
                    row_count: 1,
                    runs,
                    skip: 0,
                    bytes: next.bytes - cut.bytes,
                };
                if is_cut_run {
                    let each = cut_bytes(whole.bytes);
                    whole.skip = (unit - cut.unit) * each;
                    count = (next.unit - unit).min(most);
                    whole.bytes = (whole.bytes - whole.skip).min(each * count);
                }
                (whole, count)
            }
        }
    }

    /// The index of the section that this is a part of.
    #[inline]
    pub const fn section(&self) -> usize {
        self.section
    }

    #[inline]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many spans there are, at most [`UNIT_SPANS_MAX`] for each of its units.
    #[inline]
    pub const fn spans(&self) -> usize {
        self.row_count as usize * self.runs.len()
    }

    /// Writes the spans from the `from`-th on into `out`, and tells how many: as many as there
    /// are, or as `out` has room for.
    ///
    /// The unit keeps no position, so that a caller whose lane took only some of the spans goes
    /// on with `from` advanced by what was taken.
    #[inline]
    pub fn fill(&self, from: usize, out: &mut [Span]) -> usize {
        if from >= self.spans() {
            return 0;
        }
        match self.runs {
            [run] => self.fill_column(run, from, out),
            _ => self.fill_rows(from, out),
        }
    }

    /// One run a row, which may be cut.
    fn fill_column(&self, run: &Span, from: usize, out: &mut [Span]) -> usize {
        let place = |(local, remote): (u64, u64)| Span {
            local: local + run.local + self.skip,
            remote: remote + run.remote + self.skip,
            len: run.len.min(self.bytes),
        };
        let row = self.first_row + from as u64;
        let count = (self.row_count as usize - from).min(out.len());
        let out = &mut out[..count];
        match self.rows {
            PlanRows::List(rows) => {
                for (slot, &bases) in out.iter_mut().zip(&rows[row as usize..]) {
                    *slot = place(bases);
                }
            }
            PlanRows::Strided { strides, .. } => {
                let Span { mut local, mut remote, len } = place(self.rows.base(row));
                for slot in out {
                    *slot = Span { local, remote, len };
                    local = local.wrapping_add(strides.0);
                    remote = remote.wrapping_add(strides.1);
                }
            }
        }
        count
    }

    /// Several whole runs a row.
    fn fill_rows(&self, from: usize, out: &mut [Span]) -> usize {
        let (mut row, mut first) = match self.row_count {
            1 => (0, from),
            _ => ((from / self.runs.len()) as u64, from % self.runs.len()),
        };
        let mut filled = 0;
        while filled < out.len() && row < self.row_count {
            let (local, remote) = self.rows.base(self.first_row + row);
            let (runs, free) = (&self.runs[first..], &mut out[filled..]);
            for (slot, run) in free.iter_mut().zip(runs) {
                *slot = Span { local: local + run.local, remote: remote + run.remote, len: run.len };
            }
            filled += runs.len().min(free.len());
            (row, first) = (row + 1, 0);
        }
        filled
    }
}
