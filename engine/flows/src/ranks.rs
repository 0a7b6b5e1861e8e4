//! Which ranks of both sides have something to say to each other, and which of those that have the same bytes sends them.
//!
//! Rows are *spread* over the ranks of a side if each rank has as many of them (8 rows on 4 ranks), or if each row is on as many ranks (2 rows
//! on 4 ranks). Both sides find the same pairs from the numbers of ranks alone, so that nobody has to be told who waits for whom. What
//! several ranks of the source have is sent by one of them: of a row that is on several ranks, another one for each rank of the sink in
//! turn; of what is whole on every rank, and of what goes once, the first of those that the rank of the sink hears anyway.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use penstock_session::control::{Buffer, Form, Rows, SentRows};

use crate::layout::Layout;

/// This rank, and of how many.
pub type RankOf = (u16, u16);

/// Why nobody can say by the numbers of ranks alone who needs what of whom.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NotSpread {
    /// A rank's rows are others than those of a rank of so many.
    #[error(
        "buffer {buffer} of layout {label:?} has rows {} to {} of {of}, which are not those of rank {rank} of {ranks}: name the ranks of the other side one by one", rows.0, rows.1
    )]
    Rows {
        label: String,
        buffer: usize,
        /// Its first row, and the one behind its last.
        rows: (u32, u32),
        /// How many there are on all ranks.
        of: u32,
        rank: u16,
        ranks: u16,
    },
    /// So many rows are not spread over so many ranks.
    #[error(
        "the {of} rows of buffer {buffer} of layout {label:?} cannot be spread over {ranks} ranks, as neither number divides the other: name the ranks one by one"
    )]
    Ranks {
        label: String,
        buffer: usize,
        /// How many rows there are on all ranks.
        of: u32,
        ranks: u16,
    },
    /// A rank that is none.
    #[error("rank {rank} is not one of {ranks} ranks, which are counted from 0")]
    NoSuchRank { rank: u16, ranks: u16 },
}

/// The rows of one rank of so many, where they are spread.
pub fn rows_of(rank: u16, ranks: u16, of: u32) -> Option<Range<u32>> {
    let (rank, ranks) = (u32::from(rank), u32::from(ranks));
    if ranks == 0 || of == 0 || rank >= ranks {
        None
    } else if of.is_multiple_of(ranks) {
        let each = of / ranks;
        Some(rank * each..(rank + 1) * each)
    } else if ranks.is_multiple_of(of) {
        let row = rank / (ranks / of);
        Some(row..row + 1)
    } else {
        None
    }
}

/// Which rank of a source sends a row to a rank of the sink; the rows are spread over its ranks.
fn sender(row: u32, of: u32, sources: u16, sink: u16) -> u16 {
    let ranks = u32::from(sources);
    let rank = if of >= ranks { row / (of / ranks) } else { row * (ranks / of) + u32::from(sink) % (ranks / of) };
    rank.min(ranks - 1) as u16
}

/// All that send some of these rows, of which there is at least one.
fn senders(rows: &Range<u32>, of: u32, sources: u16, sink: u16) -> Vec<u16> {
    let (first, last) = (sender(rows.start, of, sources, sink), sender(rows.end - 1, of, sources, sink));
    if of >= u32::from(sources) {
        return (first..=last).collect();
    }
    rows.clone().map(|row| sender(row, of, sources, sink)).collect()
}

fn rowed(buffer: &Buffer) -> Option<Rows> {
    match buffer.form {
        Form::TokenMajor(rows) | Form::PlaneMajor(rows) => Some(rows),
        Form::Once(_) => None,
    }
}

/// How the buffers of a source lie on its ranks, known from one of them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spread {
    sources: u16,
    /// Of each buffer how many rows are spread, if they are.
    buffers: Vec<Option<u32>>,
}

impl Spread {
    /// Looks how a rank of a source has its buffers: spread over all ranks, or whole on each.
    pub fn of(layout: &Layout, (rank, ranks): RankOf) -> Result<Self, NotSpread> {
        let buffers = Self::look(layout, (rank, ranks)).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { sources: ranks, buffers })
    }

    /// Whether this layout of a rank of the source is so, of so many.
    pub(crate) fn check(layout: &Layout, rank: RankOf) -> Result<(), NotSpread> {
        Self::look(layout, rank).try_for_each(|of| of.map(drop))
    }

    /// Of each buffer how many rows are spread, if they are.
    fn look(layout: &Layout, (rank, ranks): RankOf) -> impl Iterator<Item = Result<Option<u32>, NotSpread>> {
        let no_such_rank = (rank >= ranks).then_some(Err(NotSpread::NoSuchRank { rank, ranks }));
        let look = move |(buffer, lies): (usize, &Buffer)| {
            let Some(rows) = rowed(lies).filter(|rows| rows.count < rows.of) else { return Ok(None) };
            let found = rows.first..rows.first + rows.count;
            match rows_of(rank, ranks, rows.of) {
                Some(spread) if spread == found => Ok(Some(rows.of)),
                _ => {
                    let (label, rows, of) = (layout.label().to_owned(), (found.start, found.end), rows.of);
                    Err(NotSpread::Rows { label, buffer, rows, of, rank, ranks })
                }
            }
        };
        no_such_rank.into_iter().chain(layout.buffers().iter().enumerate().map(look))
    }

    /// The ranks of the sink, of so many, that the source's rank has something for, if theirs are spread as well where its own are.
    pub fn sinks_of(&self, layout: &Layout, rank: u16, sinks: u16) -> Result<Vec<u16>, NotSpread> {
        let mut all = Vec::new();
        // Buffers of as many rows say the same.
        let by_rows: BTreeMap<u32, usize> = self.spread().map(|(buffer, of)| (of, buffer)).collect();
        for sink in 0..sinks {
            let mut its = BTreeSet::new();
            for (&of, &buffer) in &by_rows {
                let label = || layout.label().to_owned();
                let rows = rows_of(sink, sinks, of);
                let rows = rows.ok_or_else(|| NotSpread::Ranks { label: label(), buffer, of, ranks: sinks })?;
                its.extend(senders(&rows, of, self.sources, sink));
            }
            if self.or_whole(its, sink).contains(&rank) {
                all.push(sink);
            }
        }
        Ok(all)
    }

    /// The ranks of the source that have something for a rank of the sink that has this layout.
    pub fn sources_of(&self, theirs: &Layout, sink: u16) -> BTreeSet<u16> {
        let its = self.spread().filter_map(|(buffer, of)| Some((rowed(theirs.buffers().get(buffer)?)?, of)));
        let its = its.flat_map(|(rows, of)| {
            let first = rows.first.min(of - 1);
            let end = rows.first.saturating_add(rows.count).min(of).max(first + 1);
            senders(&(first..end), of, self.sources, sink)
        });
        self.or_whole(its.collect(), sink)
    }

    /// Of each buffer whether this rank of the source sends what it has of it to a rank of the sink.
    pub(crate) fn sends(&self, rank: u16, theirs: &Layout, sink: u16) -> Vec<bool> {
        let of_whole = self.sources_of(theirs, sink).first().copied();
        let one = |of: &Option<u32>| match *of {
            // Each rank has one row, and others have it too.
            Some(of) if of < u32::from(self.sources) => {
                let each = self.sources / of as u16;
                sender(u32::from(rank / each), of, self.sources, sink) == rank
            }
            Some(_) => true,
            None => of_whole == Some(rank),
        };
        self.buffers.iter().map(one).collect()
    }

    fn spread(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        self.buffers.iter().enumerate().filter_map(|(buffer, of)| Some((buffer, (*of)?)))
    }

    /// Where nothing is spread, every rank has everything: one of them is heard.
    fn or_whole(&self, its: BTreeSet<u16>, sink: u16) -> BTreeSet<u16> {
        if its.is_empty() { BTreeSet::from([sink % self.sources]) } else { its }
    }
}

/// The first row that a sink needs and that no source says it has sent, and its buffer.
pub(crate) fn not_sent(sink: &Layout, sent: &[&[SentRows]]) -> Option<(usize, u32)> {
    let is_short = |(buffer, lies): (usize, &Buffer), has: &[Range<u64>]| {
        let needed = rowed(lies).map_or(0..1, |rows| rows.first..rows.first + rows.count);
        let (begin, end) = (u64::from(needed.start), u64::from(needed.end));
        let row = has.iter().fold(begin, |row, rows| if rows.start <= row { row.max(rows.end) } else { row });
        (row < end).then_some((buffer, row as u32))
    };
    let mut buffers = sink.buffers().iter().enumerate();
    if let [alone] = sent {
        let mut sent = by_buffer(alone);
        return buffers.find_map(|buffer| is_short(buffer, sent.next().as_slice()));
    }
    let mut sent: Vec<_> = sent.iter().map(|runs| by_buffer(runs)).collect();
    buffers.find_map(|buffer| {
        let mut has: Vec<Range<u64>> = sent.iter_mut().filter_map(Iterator::next).collect();
        has.sort_unstable_by_key(|rows| rows.start);
        is_short(buffer, &has)
    })
}

/// Runs, buffer by buffer; whoever says too many is not read to their end.
fn by_buffer(runs: &[SentRows]) -> impl Iterator<Item = Range<u64>> + '_ {
    runs.iter().flat_map(|run| {
        let rows = u64::from(run.first)..u64::from(run.first) + u64::from(run.count);
        std::iter::repeat_n(rows, run.buffers as usize)
    })
}

#[cfg(test)]
mod tests;
