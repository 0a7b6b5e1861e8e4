//! A fast hasher for small keys of our own making.

use std::hash::{BuildHasherDefault, Hasher};

/// Builds [`Folded`] hashers for a `HashMap`.
pub(crate) type FastHash = BuildHasherDefault<Folded>;

/// A folded multiply per word. Base addresses are multiples of a page and lengths of a power of
/// two: a plain multiply would leave their low bits, which pick the bucket, all zero.
///
/// Not for keys that an adversary chooses: a peer never names a key of these maps.
#[derive(Default)]
pub(crate) struct Folded(u64);

impl Folded {
    #[inline]
    fn mix(&mut self, word: u64) {
        let product = u128::from(self.0.rotate_left(23) ^ word ^ 0x9e37_79b9_7f4a_7c15) * 0xd6e8_feb8_6659_fd93_u128;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

impl Hasher for Folded {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let mut words = bytes.chunks_exact(8);
        for word in &mut words {
            let word: [u8; 8] = word.try_into().expect("chunks_exact(8) gives 8 bytes");
            self.mix(u64::from_le_bytes(word));
        }
        let rest = words.remainder();
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            self.mix(u64::from_le_bytes(word) ^ (rest.len() as u64) << 56);
        }
    }

    #[inline]
    fn write_u8(&mut self, value: u8) {
        self.mix(u64::from(value));
    }

    #[inline]
    fn write_u64(&mut self, value: u64) {
        self.mix(value);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::Hasher;

    use super::Folded;

    #[test]
    fn page_aligned_keys_spread_over_the_low_and_the_high_bits() {
        let hash = |n: u64| {
            let mut folded = Folded::default();
            folded.write_u64(n << 21);
            folded.finish()
        };
        let low: HashSet<u64> = (0..1_024).map(|n| hash(n) & 1_023).collect();
        let high: HashSet<u64> = (0..1_024).map(|n| hash(n) >> 54).collect();
        // A random function leaves 63 % of 1,024 buckets occupied.
        assert!(low.len() > 580 && high.len() > 580, "{} {}", low.len(), high.len());
    }
}
