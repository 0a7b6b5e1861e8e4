//! Bitmap of the lanes that have work, so that 64 idle peers cost one load.
//!
//! A producer publishes its lines and *then* marks; the consumer takes a word and *then* polls
//! the lanes it names. Marking a bit that is already set costs no write, and that is where a
//! wake-up could be lost: the producer's load of the bit may overtake its own store of the lines,
//! see the bit of an earlier mark, and the consumer, taking that bit in between, polls a lane
//! whose new lines are not visible yet. So both sides have a full barrier between the two:
//!
//! - The consumer's barrier came first: its swap precedes the producer's load, which sees the bit
//!   clear and sets it again; the lane is polled once more.
//! - The producer's barrier came first: its lines precede the consumer's poll, which sees them.

use crate::bell::Ringer;
#[cfg(not(loom))]
use crate::error::RingError;
use crate::shared::SharedRef;
#[cfg(not(loom))]
use crate::shared_range::SharedRange;
use crate::sync::{AtomicU64, Ordering, WithBarrier, full_barrier, glance};

const BITS: usize = u64::BITS as usize;

/// Bits that producers mark and one consumer takes.
#[derive(Clone, Debug)]
pub struct ReadyBits {
    words: SharedRef<[AtomicU64]>,
    bits: usize,
}

impl ReadyBits {
    /// `bits` clear bits inside this process.
    pub fn heap(bits: usize) -> Self {
        let words = (0..bits.div_ceil(BITS)).map(|_| AtomicU64::new(0));
        Self { words: SharedRef::heap_slice(words), bits }
    }

    /// The bits at `offset` bytes of `place`, 64 a word.
    #[cfg(not(loom))]
    pub fn mapped(place: &SharedRange, offset: usize, bits: usize) -> Result<Self, RingError> {
        Ok(Self { words: place.cells(offset, bits.div_ceil(BITS))?, bits })
    }

    /// Bytes that `bits` bits take in a place.
    pub const fn bytes_for(bits: usize) -> usize {
        bits.div_ceil(BITS) * size_of::<u64>()
    }

    pub fn bits(&self) -> usize {
        self.bits
    }

    pub fn words(&self) -> usize {
        self.words.len()
    }

    /// Marks a bit, after its work was published. An index beyond the end marks nothing (and is
    /// caught by debug builds).
    #[inline]
    pub fn mark(&self, index: usize) {
        debug_assert!(index < self.bits, "bit {index} of {}", self.bits);
        let Some(word) = self.words.get(index / BITS) else {
            return;
        };
        let bit = 1u64 << (index % BITS);
        // SYNC ready: pairs with the barrier in `take`, see above.
        full_barrier();
        if glance(word) & bit == 0 {
            // Relaxed: the barrier before it releases the work, the one in `take` acquires it.
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// [`ReadyBits::mark`] and [`Ringer::must_ring`] in one, at the price of one barrier while the
    /// bit is still set. `true`: wake the sleeper.
    ///
    /// The one barrier lies between the work and both loads. Whoever set the bit that we find set
    /// has been through a barrier after setting it, so a sleeper that did not see the bit in its
    /// last look was seen asleep by that one, or by us.
    #[inline]
    #[must_use = "the sleeper stays asleep unless it is woken"]
    pub fn mark_and_ring(&self, index: usize, bell: &Ringer) -> bool {
        debug_assert!(index < self.bits, "bit {index} of {}", self.bits);
        let Some(word) = self.words.get(index / BITS) else {
            return false;
        };
        let bit = 1u64 << (index % BITS);
        // SYNC ready: pairs with the barrier in `take`.
        // SYNC sleep: pairs with the barrier in `Sleeper::prepare`.
        full_barrier();
        if glance(word) & bit == 0 {
            // SYNC sleep: pairs with the barrier in `Sleeper::prepare`.
            word.or_then_barrier(bit);
        }
        bell.is_first()
    }

    /// Takes the marked bits of a word; poll what they name *afterwards*. Zero beyond the end.
    #[inline]
    pub fn take(&self, word: usize) -> u64 {
        let Some(bits) = self.words.get(word) else {
            return 0;
        };
        // No write while nothing is marked: the line stays where it is.
        if glance(bits) == 0 {
            return 0;
        }
        // SYNC ready: pairs with the barrier in `mark`.
        bits.swap_then_barrier(0) & self.valid(word)
    }

    /// Takes every word and names each bit that was marked.
    #[inline]
    pub fn take_each(&self, mut visit: impl FnMut(usize)) {
        for word in 0..self.words.len() {
            let mut bits = self.take(word);
            while bits != 0 {
                visit(word * BITS + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
    }

    /// Whether nothing is marked among the first `indexes`.
    #[inline]
    pub fn is_empty_below(&self, indexes: usize) -> bool {
        self.words.iter().take(indexes.div_ceil(BITS)).all(|word| glance(word) == 0)
    }

    /// Whether nothing is marked. For the last look before sleeping.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| glance(word) == 0)
    }

    /// The bits of a word that exist: memory of others may have any bit set.
    #[inline]
    fn valid(&self, word: usize) -> u64 {
        let from = word * BITS;
        if self.bits - from >= BITS { u64::MAX } else { (1 << (self.bits - from)) - 1 }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn taken(ready: &ReadyBits) -> Vec<usize> {
        let mut list = Vec::new();
        ready.take_each(|index| list.push(index));
        list
    }

    #[test]
    fn what_is_marked_is_taken_once() {
        let ready = ReadyBits::heap(130);
        assert_eq!((ready.words(), ready.bits()), (3, 130));
        assert!(ready.is_empty());
        for index in [0, 63, 64, 129, 63] {
            ready.mark(index);
        }
        assert!(!ready.is_empty());
        assert_eq!(taken(&ready), [0, 63, 64, 129]);
        assert!(taken(&ready).is_empty());
        assert_eq!(ready.take(99), 0);
    }

    #[test]
    fn bits_that_do_not_exist_are_ignored() {
        let place = SharedRange::heap(ReadyBits::bytes_for(65));
        let ready = ReadyBits::mapped(&place, 0, 65).unwrap();
        place.atomic_u64(8).unwrap().store(u64::MAX, Ordering::Relaxed);
        assert_eq!(taken(&ready), [64]);
        assert!(ReadyBits::mapped(&place, 0, 129).is_err());
    }

    #[test]
    fn no_mark_is_lost_between_threads() {
        const ROUNDS: u64 = 50_000;
        let ready = ReadyBits::heap(1);
        let work = SharedRef::heap(AtomicU64::new(0));
        let (marker, source) = (ready.clone(), work.clone());
        let thread = std::thread::spawn(move || {
            for round in 1..=ROUNDS {
                source.store(round, Ordering::Relaxed);
                marker.mark(0);
            }
        });
        let mut seen = 0;
        while seen < ROUNDS {
            // Only a mark lets us look: a lost one hangs the test.
            if ready.take(0) != 0 {
                seen = work.load(Ordering::Relaxed);
            } else {
                std::thread::yield_now();
            }
        }
        thread.join().unwrap();
    }
}
