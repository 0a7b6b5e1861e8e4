//! Why a ring, a slab or a piece of memory refused. Written by hand: the crate has no dependency.

use std::error::Error;
use std::fmt::{self, Display, Formatter};

/// A ring or a mapped structure could not be set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RingError {
    /// The memory is shorter than the structure.
    TooSmall {
        /// Bytes the structure ends at, counted from the start of the place.
        needed: usize,
        /// Bytes the place has.
        given: usize,
    },
    /// The memory does not begin at a multiple of the alignment.
    Misaligned {
        /// The offset that was asked for, bytes from the start of the place.
        offset: usize,
        /// The alignment that is needed, bytes.
        align: usize,
    },
    /// A capacity that no ring can have.
    Capacity {
        /// What was asked for.
        asked: usize,
        largest: usize,
    },
    /// A writer was asked for over memory that is mapped read-only.
    ReadOnly,
    /// The indices found in the memory cannot belong to this ring.
    Corrupt(Corrupt),
}

impl Display for RingError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooSmall { needed, given } => {
                write!(f, "{given} bytes of memory where {needed} are needed: map a larger piece")
            }
            Self::Misaligned { offset, align } => {
                write!(f, "offset {offset} is not at a multiple of {align} bytes: place it at one")
            }
            Self::Capacity { asked, largest } => {
                write!(f, "a capacity of {asked} is not possible: use a power of two from 1 to {largest}")
            }
            Self::ReadOnly => f.write_str("the memory is mapped read-only: only its owner may write here"),
            Self::Corrupt(corrupt) => corrupt.fmt(f),
        }
    }
}

impl Error for RingError {}

impl From<Corrupt> for RingError {
    fn from(corrupt: Corrupt) -> Self {
        Self::Corrupt(corrupt)
    }
}

/// The other side of a ring published an index that is impossible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Corrupt {
    /// Lines consumed since the ring began, as seen by the one who reports.
    pub head: u64,
    /// Lines produced since the ring began, as seen by the one who reports.
    pub tail: u64,
    /// Lines the ring can hold.
    pub capacity: u64,
}

impl Display for Corrupt {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "ring indices are impossible (head {}, tail {}, capacity {}): the other side is \
             faulty, close this ring",
            self.head, self.tail, self.capacity
        )
    }
}

impl Error for Corrupt {}

/// There is no room now; try again after the other side made progress. Carries what was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full<T = ()>(pub T);

impl<T> Display for Full<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("full: try again after the other side made progress")
    }
}

impl<T: fmt::Debug> Error for Full<T> {}

/// A slab key whose item was released before, or that never came from this slab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StaleKey {
    /// The index in the key.
    pub index: u32,
    /// The generation in the key.
    pub generation: u32,
}

impl Display for StaleKey {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "key {}#{} is not in use: it was released before, or belongs to another slab",
            self.index, self.generation
        )
    }
}

impl Error for StaleKey {}
