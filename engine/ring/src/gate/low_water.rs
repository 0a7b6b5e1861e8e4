//! The oldest revision under which something that is still under way was begun, told in one word.
//!
//! For who begins things that end by themselves, such as requests to a card. A [`super::Hazard`] is raised for a
//! moment; this word stays as long as anything does.

use crate::shared::SharedRef;
use crate::sync::{AtomicU64, Ordering, WithBarrier, load_acquire_read_only};

/// A beginner's own word. Nothing is under way at first.
#[derive(Debug)]
pub struct LowWater {
    word: SharedRef<AtomicU64>,
    /// What the word says.
    told: u64,
}

#[derive(Clone, Debug)]
pub struct LowWaterView {
    word: SharedRef<AtomicU64>,
}

/// What the word says when nothing is under way: newer than every revision.
pub const NOTHING: u64 = u64::MAX;

impl LowWater {
    /// A word that only this process reads.
    pub fn heap() -> Self {
        Self { word: SharedRef::heap(AtomicU64::new(NOTHING)), told: NOTHING }
    }

    /// A reader of this word, for threads of this process.
    pub fn view(&self) -> LowWaterView {
        LowWaterView { word: self.word.clone() }
    }

    /// Something that was checked against `revision` is about to begin. Load the gate's revision after this, and begin
    /// only if it is still that one; if not, [`LowWater::ended`].
    #[inline]
    pub fn begin(&mut self, revision: u64) {
        // A word that is as low already has been followed by a barrier: who missed it withdrew before, and is seen.
        if revision < self.told {
            self.told = revision;
            // SYNC low-water: pairs with the barrier in `GateWriter::withdraw`: the load of the revision that follows
            // cannot pass this store.
            self.word.store_then_barrier(revision);
        }
    }

    /// Things have ended: the oldest of those under way was begun under `oldest`, [`NOTHING`] if there is none. A value that
    /// is lower than the word is not told: only [`LowWater::begin`] may say that.
    #[inline]
    pub fn ended(&mut self, oldest: u64) {
        if oldest > self.told {
            self.told = oldest;
            // SYNC low-water-up: pairs with `LowWaterView::has_passed`: what has ended is visible to who reads this.
            self.word.store(oldest, Ordering::Release);
        }
    }
}

impl LowWaterView {
    /// Whether everything that was begun before the gate had come to `revision` has ended, and all it did is visible. After a
    /// withdrawal: call it after `withdraw` returned.
    #[inline]
    pub fn has_passed(&self, revision: u64) -> bool {
        // SYNC low-water-up: pairs with `LowWater::ended`; a `begin` in between is a release too.
        load_acquire_read_only(&self.word) >= revision
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_word_goes_down_with_what_begins_and_up_with_what_ends() {
        let mut low = LowWater::heap();
        let view = low.view();
        assert!(view.has_passed(NOTHING));
        low.begin(4);
        assert!(view.has_passed(4) && !view.has_passed(5));
        low.begin(6);
        assert!(!view.has_passed(5), "the older is still under way");
        low.ended(6);
        assert!(view.has_passed(6) && !view.has_passed(7));
        low.ended(5);
        assert!(view.has_passed(6), "what ends cannot make it older");
        low.ended(NOTHING);
        assert!(view.has_passed(7));
    }
}
