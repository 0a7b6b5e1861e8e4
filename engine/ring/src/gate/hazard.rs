//! What a copying worker does right now, told in one word.

#[cfg(not(loom))]
use crate::error::RingError;
use crate::shared::SharedRef;
#[cfg(not(loom))]
use crate::shared_range::SharedRange;
use crate::sync::{AtomicU64, Ordering, WithBarrier, load_acquire_read_only};

/// Bytes a hazard takes in a place; give it a cache line of its own.
pub const HAZARD_BYTES: usize = 64;

const BUSY: u64 = 1;
const PEER_INDEX_SHIFT: u32 = 1;
const SEQUENCE_SHIFT: u32 = 33;

/// A copying worker's own word: `sequence << 33 | peer index << 1 | busy`.
///
/// The sequence counts sections, so that the word differs from every other of the last 2^31; one
/// that repeats makes an observer wait longer, never less.
#[derive(Debug)]
pub struct Hazard {
    word: SharedRef<AtomicU64>,
    sequence: u64,
}

impl Hazard {
    /// A hazard that only this process observes.
    pub fn heap() -> Self {
        Self::over(SharedRef::heap(AtomicU64::new(0)))
    }

    /// The hazard at `offset` bytes of a place of ours.
    #[cfg(not(loom))]
    pub fn mapped(place: &SharedRange, offset: usize) -> Result<Self, RingError> {
        Ok(Self::over(place.cell(offset)?))
    }

    fn over(word: SharedRef<AtomicU64>) -> Self {
        let sequence = word.load(Ordering::Relaxed) >> SEQUENCE_SHIFT;
        Self { word, sequence }
    }

    /// An observer of this hazard, for threads of this process.
    pub fn view(&self) -> HazardView {
        HazardView { word: self.word.clone() }
    }

    /// Begins a section that may write to the memory of `peer_index`. Load its gate's revision after this,
    /// compare, and copy only when it is the plan's. `peer_index` is 0 for a hazard that serves one peer only.
    #[inline]
    pub fn enter(&mut self, peer_index: u32) {
        self.sequence = self.sequence.wrapping_add(1);
        let word = self.sequence << SEQUENCE_SHIFT | u64::from(peer_index) << PEER_INDEX_SHIFT | BUSY;
        // SYNC quiesce: pairs with the barrier in `GateWriter::withdraw`: the load of the revision
        // that follows cannot pass this store.
        self.word.store_then_barrier(word);
    }

    /// Ends the section. Non-temporal stores have to be fenced by whoever made them, before this.
    #[inline]
    pub fn leave(&mut self) {
        self.sequence = self.sequence.wrapping_add(1);
        let word = self.sequence << SEQUENCE_SHIFT;
        // SYNC leave-section: pairs with `HazardView::observe`.
        self.word.store(word, Ordering::Release);
    }
}

/// What an observer found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Observation {
    /// No section is open. Everything that was copied before is visible.
    Quiet,
    /// A section is open.
    Busy {
        /// Whose memory it may write to.
        peer_index: u32,
        /// The word, for [`HazardView::has_moved_since`].
        word: u64,
    },
}

/// Observes somebody's hazard; the memory may be mapped read-only.
#[derive(Clone, Debug)]
pub struct HazardView {
    word: SharedRef<AtomicU64>,
}

impl HazardView {
    /// The hazard at `offset` bytes of a place that its owner writes.
    #[cfg(not(loom))]
    pub fn mapped(place: &SharedRange, offset: usize) -> Result<Self, RingError> {
        Ok(Self { word: place.readable_cell(offset)? })
    }

    /// What the worker does now. After a withdrawal: call it after `withdraw` returned.
    #[inline]
    pub fn observe(&self) -> Observation {
        // SYNC leave-section: pairs with `Hazard::leave`.
        let word = load_acquire_read_only(&self.word);
        if word & BUSY == 0 {
            return Observation::Quiet;
        }
        Observation::Busy { peer_index: (word >> PEER_INDEX_SHIFT) as u32, word }
    }

    /// Whether the section that was observed has ended, and all it copied is visible.
    #[inline]
    pub fn has_moved_since(&self, observation: Observation) -> bool {
        match observation {
            Observation::Quiet => true,
            // SYNC leave-section: pairs with `Hazard::leave`; a later `enter` is a release too.
            Observation::Busy { word, .. } => load_acquire_read_only(&self.word) != word,
        }
    }
}
