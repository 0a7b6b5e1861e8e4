//! Maps whose keys come from outside.
//!
//! The usual hasher asks the operating system for randomness, which nothing here may. This one takes two words from
//! whoever makes the map, so that nobody outside knows which keys collide, and a run with the same words is the same
//! run. The order of such a map means nothing: it is never shown.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, Hasher};

/// A map that is hashed with a key of its own.
pub type KeyedMap<K, V> = HashMap<K, V, Keyed>;

/// The key of a map.
#[derive(Debug, Clone, Copy)]
pub struct Keyed {
    first: u64,
    second: u64,
}

impl Keyed {
    /// Of two random words.
    pub const fn new(words: (u64, u64)) -> Self {
        // An odd factor loses nothing of what it multiplies. A small one would hardly spread it, whoever chose the words.
        Self { first: spread(words.0), second: spread(words.1) | 1 }
    }
}

impl Keyed {
    /// The sum of a name, for tables that keep it elsewhere.
    pub fn of_name<N: Hash + ?Sized>(self, name: &N) -> u64 {
        self.hash_one(name)
    }
}

/// A word whose every bit depends on every bit of this one.
const fn spread(word: u64) -> u64 {
    let word = word.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ (word >> 31)
}

impl BuildHasher for Keyed {
    type Hasher = KeyedHasher;

    fn build_hasher(&self) -> KeyedHasher {
        KeyedHasher { sum: self.first, key: *self }
    }
}

/// Gives back memory that a peak has left behind: a map that is used for less than an eighth.
pub fn shrink<K: Eq + Hash, V>(map: &mut KeyedMap<K, V>) {
    if map.len() < map.capacity() / 8 {
        map.shrink_to(map.len() * 2);
    }
}

/// Multiplies each word into twice its width and folds that.
#[derive(Debug, Clone)]
pub struct KeyedHasher {
    sum: u64,
    key: Keyed,
}

/// Both halves of a product, as one word.
const fn fold(left: u64, right: u64) -> u64 {
    let product = left as u128 * right as u128;
    product as u64 ^ (product >> 64) as u64
}

impl KeyedHasher {
    fn add(&mut self, word: u64) {
        // A factor that an attacker brings to zero would forget what came before: what is added afterwards keeps it.
        self.sum = fold(self.sum ^ word, self.key.second).wrapping_add(self.sum.rotate_left(23));
    }
}

impl Hasher for KeyedHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.add(u64::from_le_bytes(*word)));
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            self.add(u64::from_le_bytes(last));
            self.add(rest.len() as u64);
        }
    }

    fn write_u8(&mut self, number: u8) {
        self.add(number.into());
    }

    fn write_u32(&mut self, number: u32) {
        self.add(number.into());
    }

    fn write_u64(&mut self, number: u64) {
        self.add(number);
    }

    fn write_usize(&mut self, number: usize) {
        self.add(number as u64);
    }

    fn write_isize(&mut self, number: isize) {
        self.add(number as u64);
    }

    fn finish(&self) -> u64 {
        fold(self.sum ^ self.key.first.rotate_left(32), self.key.second)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::transfers::id::TransferId;

    #[test]
    fn the_same_words_give_the_same_sums_and_others_others() {
        let sum = |words, text: &str| Keyed::new(words).hash_one(text);
        assert_eq!(sum((1, 2), "cmpl-1"), sum((1, 2), "cmpl-1"));
        assert_ne!(sum((1, 2), "cmpl-1"), sum((3, 2), "cmpl-1"));
        assert_ne!(sum((1, 2), "cmpl-1"), sum((1, 4), "cmpl-1"));
        assert_ne!(sum((1, 2), "cmpl-1"), sum((1, 2), "cmpl-2"));
        assert_ne!(sum((1, 2), "a\0"), sum((1, 2), "a"), "a zero at the end counts");
    }

    #[test]
    fn names_that_differ_in_few_bits_fall_into_different_places() {
        for words in [(0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210), (1, 2), (0, 0)] {
            fall_into_different_places(Keyed::new(words));
        }
    }

    fn fall_into_different_places(keyed: Keyed) {
        let mut low = BTreeSet::new();
        let mut high = BTreeSet::new();
        for number in 0..10_000_u128 {
            let sum = keyed.hash_one(TransferId::from_bytes((number << (number % 96)).to_le_bytes()));
            low.insert(sum & 0xffff);
            high.insert(sum >> 57);
        }
        // Of 65,536 places, random sums of the (about 9,900 different) names would take about 9,200.
        assert!(low.len() > 8500, "{} places", low.len());
        assert_eq!(high.len(), 128, "a map tells entries apart by their highest bits first");
        // Numbers behind each other, at whichever end.
        let sums: [BTreeSet<u64>; 2] = [u128::to_le_bytes, u128::to_be_bytes].map(|bytes| {
            let sum = |number: u128| keyed.hash_one(TransferId::from_bytes(bytes(number))) & 0xffff;
            (0..10_000).map(sum).collect()
        });
        assert!(sums.iter().all(|low| low.len() > 8500), "{} and {} places", sums[0].len(), sums[1].len());
    }

    #[test]
    fn a_word_that_makes_a_factor_zero_does_not_forget_the_words_before() {
        let keyed = Keyed::new((7, 9));
        let sum = |first: u64| {
            let mut hasher = keyed.build_hasher();
            hasher.write_u64(first);
            let zero = hasher.sum;
            hasher.write_u64(zero);
            hasher.finish()
        };
        assert_ne!(sum(1), sum(2));
    }
}
