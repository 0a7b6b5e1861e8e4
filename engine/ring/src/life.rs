//! Whether the thread that stands for an engine still lives, by a word that the kernel marks.
//!
//! The owner holds a robust lock in memory that its peers can read. When the thread that holds it ends
//! without letting go, the kernel sets a bit in the lock's word before it frees any of the
//! process's memory. Peers only read.
//!
//! ```text
//! line 0     where the lock's word lies, in bytes from here; zero while nobody holds it
//! line 1     the lock, as the C library lays it out
//! ```

use std::sync::atomic::AtomicU32;

use crate::error::RingError;
use crate::published::{Published, Publisher};
use crate::shared::SharedRef;
use crate::shared_range::SharedRange;
use crate::spsc::RingLine;
use crate::sync::Ordering;

const LINE_BYTES: usize = size_of::<RingLine>();
/// Bytes that a life takes in shared memory.
pub const LIFE_BYTES: usize = 2 * LINE_BYTES;
/// Where the lock begins in them.
pub const LOCK_OFFSET: usize = LINE_BYTES;
/// Bytes there are for the lock.
pub const LOCK_BYTES: usize = LIFE_BYTES - LOCK_OFFSET;

/// The bit that the kernel sets (`FUTEX_OWNER_DIED`).
const OWNER_DIED: u32 = 0x4000_0000;

/// What a look at a life tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Liveness {
    /// The lock is held.
    Lives,
    /// Its holder ended without letting go. It says nothing about other threads of that process: they may
    /// be in the middle of a copy.
    Died,
    /// Nothing can be told from here: the lock is not held, or not of a kind that is understood.
    Unknown,
}

/// The owner's end of the first line: where the word is.
#[derive(Debug)]
pub struct LivenessPublisher {
    at: Publisher,
}

impl LivenessPublisher {
    /// The life at `offset` bytes of a place that this process writes.
    pub fn mapped(place: &SharedRange, offset: usize) -> Result<Self, RingError> {
        Ok(Self { at: Publisher::mapped(place, offset)? })
    }

    /// The lock is held, and the kernel will mark the word that lies so many bytes into the lock.
    pub fn holds(&self, word: usize) {
        self.at.publish((LOCK_OFFSET + word) as u64);
    }

    /// The lock is about to be let go.
    pub fn lets_go(&self) {
        self.at.publish(0);
    }
}

#[derive(Clone, Debug)]
pub struct LivenessView {
    at: Published,
    words: SharedRef<[AtomicU32]>,
}

impl LivenessView {
    /// The life at `offset` bytes of a place that its owner writes.
    pub fn mapped(place: &SharedRange, offset: usize) -> Result<Self, RingError> {
        Ok(Self {
            at: Published::mapped(place, offset)?,
            words: place.readable_cells(offset, LIFE_BYTES / size_of::<AtomicU32>())?,
        })
    }

    pub fn look(&self) -> Liveness {
        let Ok(at) = usize::try_from(self.at.read()) else { return Liveness::Unknown };
        if at < LOCK_OFFSET || !at.is_multiple_of(size_of::<AtomicU32>()) {
            return Liveness::Unknown;
        }
        match self.words.get(at / size_of::<AtomicU32>()) {
            Some(word) if word.load(Ordering::Relaxed) & OWNER_DIED != 0 => Liveness::Died,
            Some(_) => Liveness::Lives,
            None => Liveness::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_marked_word_means_death_and_nonsense_means_nothing() {
        let place = SharedRange::heap(LIFE_BYTES);
        let view = LivenessView::mapped(&place.without_writing(), 0).unwrap();
        assert_eq!(view.look(), Liveness::Unknown);
        let owner = LivenessPublisher::mapped(&place, 0).unwrap();
        owner.holds(8);
        assert_eq!(view.look(), Liveness::Lives);
        place.atomic_u32(LOCK_OFFSET + 8).unwrap().store(OWNER_DIED, Ordering::Relaxed);
        assert_eq!(view.look(), Liveness::Died);
        owner.lets_go();
        assert_eq!(view.look(), Liveness::Unknown);
        for nonsense in [1, LOCK_OFFSET as u64 - 4, LOCK_OFFSET as u64 + 2, LIFE_BYTES as u64, u64::MAX] {
            place.atomic_u64(0).unwrap().store(nonsense, Ordering::Relaxed);
            assert_eq!(view.look(), Liveness::Unknown, "{nonsense}");
        }
    }
}
