//! The compact, validated description of one scatter-gather move.
//!
//! A [`Shape`] says which bytes of which regions go where, in numbers only: region ids, offsets
//! and lengths. It is checked once, when it is built (bounds, rights, overflow, overlapping
//! destinations), and then cannot be wrong, so nothing on the hot path checks again.
//!
//! It stays as small as what the caller said: 80 layers of 1,024 blocks are 80 + 1,024 entries.
//! A [`Section`] holds the *rows* (one base on either side for each layer) and the *runs* that
//! every row repeats; neighbours that are contiguous on both sides are one run. The spans appear
//! only when a worker asks for them, [`SPANS_PER_POST`](crate::limits::SPANS_PER_POST) at a time.
//!
//! Work is handed out in [`Unit`]s of at most [`UNIT_BYTES`](crate::limits::UNIT_BYTES): several
//! workers may share one transfer by claiming unit numbers from a counter.
//!
//! Read in this order: `builder` (what callers say), `lower` (how it becomes sections), `overlap`
//! (why destinations are disjoint), `shape` (what remains), `units` (how it is handed out);
//! [`Addressed`] makes a shape of addresses instead.
//!
//! ```
//! use penstock_core::plan::{Direction, RegionBounds, Shape, Span};
//! use penstock_core::{Generation, RegionId, Rights};
//!
//! let mine = RegionBounds::local(RegionId(1), Generation(0), 1 << 20).with_block_bytes(4096);
//! let theirs = RegionBounds::remote(RegionId(7), Generation(2), 1 << 20, Rights::WRITE).with_block_bytes(4096);
//! let shape = Shape::builder(Direction::Write)
//!     .between(mine, theirs)
//!     .layers(&[(0, 0), (512 * 1024, 512 * 1024)])
//!     .blocks(&[(3, 9), (4, 10), (8, 2)])
//!     .build()?;
//! assert_eq!((shape.bytes(), shape.blocks(), shape.pieces()), (6 * 4096, 6, 4));
//!
//! let mut spans = [Span::default(); 64];
//! let mut number = 0;
//! while let Some(unit) = shape.unit(number) {
//!     let filled = unit.fill(0, &mut spans);
//!     assert_eq!(filled, unit.spans());
//!     number += 1;
//! }
//! # Ok::<(), penstock_core::plan::PlanError>(())
//! ```

mod addressed;
mod builder;
mod error;
mod lower;
mod overlap;
mod shape;
mod units;

#[cfg(test)]
mod tests;

use std::fmt;

pub use addressed::{Addressed, Found, Unplaced};
pub use builder::{Builder, RegionBounds, Strided};
pub use error::{Item, Place, PlanError, Side};
pub use shape::{PlanRows, RegionKey, Section, Shape};
pub use units::{UNIT_SPANS_MAX, Unit};

/// Which way the bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// From this engine's memory to the peer's.
    Write,
    /// From the peer's memory to this engine's.
    Read,
}

impl Direction {
    /// The side whose bytes are changed.
    pub const fn destination(self) -> Side {
        match self {
            Self::Write => Side::Remote,
            Self::Read => Side::Local,
        }
    }
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Write => "write",
            Self::Read => "read",
        })
    }
}

/// One contiguous piece of a move: offsets into the local and the remote region.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(C)]
pub struct Span {
    /// Offset into the local region, in bytes.
    pub local: u64,
    /// Offset into the remote region, in bytes.
    pub remote: u64,
    /// Length in bytes, never zero.
    pub len: u64,
}

impl Span {
    /// Where this span starts on that side, in bytes.
    pub(crate) const fn start(&self, side: Side) -> u64 {
        match side {
            Side::Local => self.local,
            Side::Remote => self.remote,
        }
    }
}
