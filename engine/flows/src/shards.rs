//! Which layouts fit each other: bytes of the same rows, whatever the size of blocks and however the rows are spread over ranks.

use std::fmt;

use penstock_session::control::{Buffer, Form, Rows, SentRows};

use crate::action::RegionRef;
use crate::cut::CUT_SPANS_MAX;
use crate::layout::Layout;
use crate::ranks::Spread;

/// Two layouts that fit: this engine's and a peer's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShardPair {
    pub(crate) here: ShardSide,
    pub(crate) there: ShardSide,
    pub(crate) shared: Vec<SharedBuffer>,
    /// What a source says of it at the end.
    sent: Vec<SentRows>,
}

/// One side of a pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ShardSide {
    pub(crate) region: RegionRef,
    pub(crate) block_tokens: u32,
    pub(crate) blocks: u32,
}

/// One buffer that both sides have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SharedBuffer {
    pub(crate) layer: u32,
    pub(crate) what: ShardMatch,
    pub(crate) here: Lies,
    pub(crate) there: Lies,
}

/// What the two have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ShardMatch {
    /// So many rows of so many bytes of each token, and the first of them.
    Rows { first: u32, count: u32, bytes: u64 },
    /// So many bytes once for a transfer.
    Once { bytes: u64 },
}

/// Where the bytes are that both have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lies {
    /// Where the first shared row of the first token of block 0 is.
    pub(crate) base: u64,
    /// Bytes from one block to the next.
    pub(crate) stride: u64,
    /// Bytes from one token of a block to the next.
    pub(crate) token: u64,
    /// Bytes from one row of a token to the next.
    pub(crate) row: u64,
}

/// Why two layouts do not fit each other.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("layout {here:?} here and {there:?} there do not fit: {why}")]
pub struct Unfit {
    /// The one of this engine.
    pub here: String,
    /// The peer's.
    pub there: String,
    /// What differs.
    pub why: Difference,
}

impl Unfit {
    /// The same for whoever stands elsewhere: what is meant by "here" and by "there", and what differs first, as words may be cut.
    pub fn between(&self, here: &str, there: &str) -> String {
        format!("{} (layout {:?} {here}, {:?} {there})", self.why.between(here, there), self.here, self.there)
    }
}

/// What differs between two layouts so that nothing can be moved between them. Numbers are first this engine's, then the peer's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Difference {
    /// Their numbers of buffers.
    Buffers(usize, usize),
    /// The layers of a buffer.
    Layers {
        /// Which buffer.
        buffer: usize,
        /// Here.
        here: u32,
        /// There.
        there: u32,
    },
    /// One goes once for a transfer, the other with every token.
    Forms {
        /// Which buffer.
        buffer: usize,
    },
    /// The bytes of what goes once.
    Once {
        /// Which buffer.
        buffer: usize,
        /// Here.
        here: u64,
        /// There.
        there: u64,
    },
    /// Bytes of a row of one token.
    RowBytes {
        /// Which buffer.
        buffer: usize,
        /// Here.
        here: u32,
        /// There.
        there: u32,
    },
    /// Rows on all ranks together.
    RowsInAll {
        /// Which buffer.
        buffer: usize,
        /// Here.
        here: u32,
        /// There.
        there: u32,
    },
    /// No row is on both.
    NothingShared {
        /// Which buffer.
        buffer: usize,
        /// The first row here, and the one behind the last.
        here: (u32, u32),
        /// The same there.
        there: (u32, u32),
    },
    /// No source has a row that is needed.
    Uncovered {
        /// Which buffer.
        buffer: usize,
        /// The row.
        row: u32,
    },
    /// Others of the source send all of it.
    ForOthers,
    /// One token would be too many pieces.
    TooFine {
        /// How many.
        pieces: u64,
    },
}

impl Difference {
    /// What differs, in the words that mean this engine's side and the peer's.
    fn between(&self, ours: &str, theirs: &str) -> String {
        match self {
            Self::Buffers(here, there) => {
                format!(
                    "{here} buffers {ours} and {there} {theirs}: declare the same ones in the same order on both sides"
                )
            }
            Self::Layers { buffer, here, there } => {
                format!("buffer {buffer} is of layer {here} {ours} and of layer {there} {theirs}")
            }
            Self::Forms { buffer } => format!("buffer {buffer} goes once for a transfer on one side only"),
            Self::Once { buffer, here, there } => {
                format!("buffer {buffer} goes once and has {here} bytes {ours} and {there} {theirs}")
            }
            Self::RowBytes { buffer, here, there } => format!(
                "a row of buffer {buffer} has {here} bytes {ours} and {there} {theirs}: both sides need the same element type and size"
            ),
            Self::RowsInAll { buffer, here, there } => {
                format!("buffer {buffer} has {here} rows on all ranks {ours} and {there} {theirs}")
            }
            Self::NothingShared { buffer, here: (first, end), there: (first_there, end_there) } => format!(
                "buffer {buffer} has rows {first} to {end} {ours} and {first_there} to {end_there} {theirs}, none in common: these two ranks \
                 have nothing to say to each other"
            ),
            Self::Uncovered { buffer, row } => {
                format!("row {row} of buffer {buffer} is in none of the sources: name the rank that has it")
            }
            Self::ForOthers => {
                "other ranks of the source send all that these two have in common: do not name this one".to_owned()
            }
            Self::TooFine { pieces } => format!(
                "a token is {pieces} pieces, more than can be moved at once: let one side have its rows as the other has them"
            ),
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.between("here", "there"))
    }
}

impl std::error::Error for Difference {}

impl ShardPair {
    /// Looks whether bytes of a layout of this engine and of one of a peer's are the same rows.
    pub fn of(here: &Layout, there: &Layout) -> Result<Self, Unfit> {
        Self::where_sent(here, there, |_| true, false)
    }

    /// The same, of what this rank of the source sends to that one of the sink: others have the rest.
    pub fn spread(here: &Layout, there: &Layout, spread: &Spread, rank: u16, sink: u16) -> Result<Self, Unfit> {
        let sends = spread.sends(rank, there, sink);
        Self::where_sent(here, there, |buffer| sends.get(buffer).copied().unwrap_or_default(), true)
    }

    fn where_sent(
        here: &Layout,
        there: &Layout,
        is_sent: impl Fn(usize) -> bool,
        has_others: bool,
    ) -> Result<Self, Unfit> {
        let unfit = |why| Unfit { here: here.label().into(), there: there.label().into(), why };
        let (ours, theirs) = (here.buffers(), there.buffers());
        if ours.len() != theirs.len() {
            return Err(unfit(Difference::Buffers(ours.len(), theirs.len())));
        }
        let tokens = (here.block_tokens(), there.block_tokens());
        let (mut shared, mut sent) = (Vec::new(), Vec::new());
        for (buffer, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
            match SharedBuffer::of(buffer, ours, theirs, tokens) {
                Ok(one) if is_sent(buffer) => {
                    sent.push(one.rows());
                    shared.push(one);
                }
                // Somebody else sends it, or has it at all.
                Ok(_) => sent.push((0, 0)),
                Err(Difference::NothingShared { .. }) if has_others => sent.push((0, 0)),
                Err(why) => return Err(unfit(why)),
            }
        }
        if shared.is_empty() {
            return Err(unfit(Difference::ForOthers));
        }
        let sent = sent.chunk_by(|one, other| one == other);
        let sent = sent.map(|run| SentRows { buffers: run.len() as u32, first: run[0].0, count: run[0].1 }).collect();
        let pair = Self { here: ShardSide::of(here), there: ShardSide::of(there), shared, sent };
        let pieces = pair.token_spans();
        if pieces > CUT_SPANS_MAX as u64 {
            return Err(unfit(Difference::TooFine { pieces }));
        }
        Ok(pair)
    }

    /// Looks whether these sources together have every row that a sink needs: what none of them has would never arrive.
    pub fn covers(sink: &Layout, sources: &[&Layout]) -> Result<(), Unfit> {
        for source in sources {
            Self::of(sink, source)?;
        }
        for (buffer, needed) in sink.buffers().iter().enumerate() {
            let Some(needed) = rows_of(needed) else { continue };
            let mut has: Vec<(u32, u32)> = sources
                .iter()
                .filter_map(|source| rows_of(source.buffers().get(buffer)?))
                .map(|rows| (rows.first, rows.first + rows.count))
                .collect();
            has.sort_unstable();
            let end = needed.first + needed.count;
            let row = has.iter().fold(needed.first, |row, &(first, end)| if first <= row { row.max(end) } else { row });
            if row < end {
                let names: Vec<&str> = sources.iter().map(|source| source.label()).collect();
                let why = Difference::Uncovered { buffer, row };
                return Err(Unfit { here: sink.label().into(), there: names.join(", "), why });
            }
        }
        Ok(())
    }

    /// Whether whole blocks can be moved as they are: blocks of both sides are of the same tokens, rows and form.
    pub fn is_even(&self) -> bool {
        let is_alike = |one: &SharedBuffer| match one.what {
            ShardMatch::Once { .. } => true,
            ShardMatch::Rows { count, bytes, .. } => {
                let whole = u64::from(count) * bytes * u64::from(self.here.block_tokens);
                let is_whole = |lies: &Lies| whole == block_bytes(lies, count, bytes, self.here.block_tokens);
                (one.here.token, one.here.row) == (one.there.token, one.there.row) && is_whole(&one.here)
            }
        };
        self.here.block_tokens == self.there.block_tokens && self.shared.iter().all(is_alike)
    }

    /// Which rows go, buffer by buffer.
    pub fn sent(&self) -> &[SentRows] {
        &self.sent
    }

    /// This engine's region, and the peer's.
    pub fn regions(&self) -> (RegionRef, RegionRef) {
        (self.here.region, self.there.region)
    }

    /// Tokens of a block here, and there.
    pub fn block_tokens(&self) -> (u32, u32) {
        (self.here.block_tokens, self.there.block_tokens)
    }

    /// Blocks here, and there.
    pub fn blocks(&self) -> (u32, u32) {
        (self.here.blocks, self.there.blocks)
    }

    /// One more than the greatest layer.
    pub fn layers(&self) -> u32 {
        self.shared.iter().map(|shared| shared.layer.saturating_add(1)).max().unwrap_or(0)
    }

    /// Whether something goes once for a transfer.
    pub fn has_once(&self) -> bool {
        self.shared.iter().any(|shared| matches!(shared.what, ShardMatch::Once { .. }))
    }
}

/// From the first shared byte of a block to behind the last, in the order in which they lie.
fn block_bytes(lies: &Lies, count: u32, bytes: u64, tokens: u32) -> u64 {
    lies.token * u64::from(tokens - 1) + lies.row * u64::from(count - 1) + bytes
}

fn rows_of(buffer: &Buffer) -> Option<Rows> {
    match buffer.form {
        Form::TokenMajor(rows) | Form::PlaneMajor(rows) => Some(rows),
        Form::Once(_) => None,
    }
}

impl ShardSide {
    fn of(layout: &Layout) -> Self {
        Self { region: layout.region(), block_tokens: layout.block_tokens(), blocks: layout.blocks() }
    }
}

impl SharedBuffer {
    /// The first row, and how many; what goes once is one row.
    fn rows(&self) -> (u32, u32) {
        match self.what {
            ShardMatch::Rows { first, count, .. } => (first, count),
            ShardMatch::Once { .. } => (0, 1),
        }
    }

    fn of(buffer: usize, ours: &Buffer, theirs: &Buffer, tokens: (u32, u32)) -> Result<Self, Difference> {
        if ours.layer != theirs.layer {
            return Err(Difference::Layers { buffer, here: ours.layer, there: theirs.layer });
        }
        let once = |buffer: &Buffer| Lies { base: buffer.base, stride: buffer.stride, token: 0, row: 0 };
        let (here, there) = match (ours.form, theirs.form) {
            (Form::Once(here), Form::Once(there)) if here == there => {
                let what = ShardMatch::Once { bytes: here };
                return Ok(Self { layer: ours.layer, what, here: once(ours), there: once(theirs) });
            }
            (Form::Once(here), Form::Once(there)) => return Err(Difference::Once { buffer, here, there }),
            (here, there) => match (Rowed::of(here), Rowed::of(there)) {
                (Some(here), Some(there)) => (here, there),
                _ => return Err(Difference::Forms { buffer }),
            },
        };
        let (a, b) = (here.rows, there.rows);
        if a.bytes != b.bytes {
            return Err(Difference::RowBytes { buffer, here: a.bytes, there: b.bytes });
        }
        if a.of != b.of {
            return Err(Difference::RowsInAll { buffer, here: a.of, there: b.of });
        }
        let (first, end) = (a.first.max(b.first), (a.first + a.count).min(b.first + b.count));
        if first >= end {
            let of = |rows: Rows| (rows.first, rows.first + rows.count);
            return Err(Difference::NothingShared { buffer, here: of(a), there: of(b) });
        }
        Ok(Self {
            layer: ours.layer,
            what: ShardMatch::Rows { first, count: end - first, bytes: u64::from(a.bytes) },
            here: here.lies(ours, tokens.0, first),
            there: there.lies(theirs, tokens.1, first),
        })
    }
}

/// A form that has rows.
#[derive(Clone, Copy)]
struct Rowed {
    rows: Rows,
    is_plane_major: bool,
}

impl Rowed {
    fn of(form: Form) -> Option<Self> {
        match form {
            Form::TokenMajor(rows) => Some(Self { rows, is_plane_major: false }),
            Form::PlaneMajor(rows) => Some(Self { rows, is_plane_major: true }),
            Form::Once(_) => None,
        }
    }

    fn lies(self, buffer: &Buffer, block_tokens: u32, first: u32) -> Lies {
        let bytes = u64::from(self.rows.bytes);
        let (token, row) = if self.is_plane_major {
            (bytes, bytes * u64::from(block_tokens))
        } else {
            (bytes * u64::from(self.rows.count), bytes)
        };
        let base = buffer.base + u64::from(first - self.rows.first) * row;
        Lies { base, stride: buffer.stride, token, row }
    }
}

#[cfg(test)]
mod tests {
    use penstock_session::control::LayoutNews;

    use super::*;

    fn layout(label: &str, block_tokens: u32, forms: &[(u32, Form)]) -> Layout {
        let buffers = forms.iter().enumerate();
        let buffers =
            buffers.map(|(place, &(layer, form))| Buffer { layer, base: place as u64 * 65_536, stride: 16_384, form });
        let news = LayoutNews {
            number: 1,
            generation: 1,
            label: label.into(),
            region: 1,
            region_generation: 1,
            block_tokens,
            blocks: 4,
            rank: 0,
            ranks: 1,
            buffers: buffers.collect(),
        };
        Layout::check(news, 1 << 20).unwrap()
    }

    fn heads(first: u32, count: u32, of: u32) -> Form {
        Form::TokenMajor(Rows { first, count, of, bytes: 8 })
    }

    fn why(here: &[(u32, Form)], there: &[(u32, Form)]) -> Difference {
        ShardPair::of(&layout("ours", 16, here), &layout("theirs", 64, there)).unwrap_err().why
    }

    #[test]
    fn what_differs_is_named_with_both_numbers() {
        let whole = heads(0, 4, 4);
        assert_eq!(why(&[(0, whole)], &[(0, whole), (0, whole)]), Difference::Buffers(1, 2));
        assert_eq!(why(&[(0, whole)], &[(1, whole)]), Difference::Layers { buffer: 0, here: 0, there: 1 });
        assert_eq!(why(&[(0, whole)], &[(0, Form::Once(8))]), Difference::Forms { buffer: 0 });
        let once = Difference::Once { buffer: 0, here: 8, there: 9 };
        assert_eq!(why(&[(0, Form::Once(8))], &[(0, Form::Once(9))]), once);
        let wider = Form::PlaneMajor(Rows { first: 0, count: 4, of: 4, bytes: 16 });
        assert_eq!(why(&[(0, whole)], &[(0, wider)]), Difference::RowBytes { buffer: 0, here: 8, there: 16 });
        assert_eq!(why(&[(0, whole)], &[(0, heads(0, 4, 8))]), Difference::RowsInAll { buffer: 0, here: 4, there: 8 });
        let nothing = Difference::NothingShared { buffer: 0, here: (0, 2), there: (2, 4) };
        assert_eq!(why(&[(0, heads(0, 2, 4))], &[(0, heads(2, 2, 4))]), nothing);
        let said =
            ShardPair::of(&layout("ours", 16, &[(0, heads(0, 2, 4))]), &layout("theirs", 16, &[(0, heads(2, 2, 4))]));
        let said = said.unwrap_err().to_string();
        assert!(said.contains("\"ours\"") && said.contains("\"theirs\"") && said.contains("rows 0 to 2"), "{said}");
    }

    #[test]
    fn a_token_of_more_pieces_than_can_be_moved_is_refused() {
        let buffers = |form: fn(Rows) -> Form| -> Layout {
            let rows = Rows { first: 0, count: 1 << 12, of: 1 << 12, bytes: 1 };
            let buffers =
                (0..300).map(|place| Buffer { layer: 0, base: place * (1 << 14), stride: 0, form: form(rows) });
            let news = layout("kv", 4, &[(0, heads(0, 1, 1))]).news().clone();
            Layout::check(LayoutNews { blocks: 1, buffers: buffers.collect(), ..news }, 1 << 24).unwrap()
        };
        let found = ShardPair::of(&buffers(Form::TokenMajor), &buffers(Form::PlaneMajor)).unwrap_err().why;
        assert_eq!(found, Difference::TooFine { pieces: 300 << 12 });
        ShardPair::of(&buffers(Form::TokenMajor), &buffers(Form::TokenMajor)).unwrap();
    }

    #[test]
    fn only_blocks_that_are_alike_are_even() {
        let whole = layout("a", 16, &[(0, heads(0, 4, 4)), (0, Form::Once(8))]);
        assert!(ShardPair::of(&whole, &whole).unwrap().is_even());
        let half = layout("b", 16, &[(0, heads(0, 2, 4)), (0, Form::Once(8))]);
        assert!(!ShardPair::of(&whole, &half).unwrap().is_even());
        assert!(!ShardPair::of(&half, &whole).unwrap().is_even());
        assert!(ShardPair::of(&half, &half).unwrap().is_even());
        let larger = layout("c", 64, &[(0, heads(0, 4, 4)), (0, Form::Once(8))]);
        assert!(!ShardPair::of(&whole, &larger).unwrap().is_even());
        let planes = Form::PlaneMajor(Rows { first: 0, count: 4, of: 4, bytes: 8 });
        let planes = layout("d", 16, &[(0, planes), (0, Form::Once(8))]);
        assert!(!ShardPair::of(&whole, &planes).unwrap().is_even());
        assert!(ShardPair::of(&planes, &planes).unwrap().is_even());
    }

    #[test]
    fn a_row_that_no_source_has_is_named() {
        let part = |first, count| layout("part", 16, &[(0, heads(first, count, 8))]);
        let sink = layout("sink", 64, &[(0, heads(2, 4, 8))]);
        ShardPair::covers(&sink, &[&part(4, 4), &part(0, 4)]).unwrap();
        let found = ShardPair::covers(&sink, &[&part(0, 4)]).unwrap_err().why;
        assert_eq!(found, Difference::Uncovered { buffer: 0, row: 4 });
        let found = ShardPair::covers(&sink, &[&part(3, 5)]).unwrap_err().why;
        assert_eq!(found, Difference::Uncovered { buffer: 0, row: 2 });
        let found = ShardPair::covers(&sink, &[&part(2, 1), &part(4, 4)]).unwrap_err().why;
        assert_eq!(found, Difference::Uncovered { buffer: 0, row: 3 });
    }
}
