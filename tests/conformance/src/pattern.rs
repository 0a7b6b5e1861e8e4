//! Bytes that can be recognised, and digests that say where they differ.

use crate::own::Bytes;

/// Bytes that one digest covers.
pub const PAGE: usize = 4096;

/// Bytes filled or digested at once.
const CHUNK: usize = 1 << 20;

/// A small generator whose sequence its seed replays.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `end`, which is not zero.
    pub fn below(&mut self, end: u64) -> u64 {
        self.number() % end
    }

    /// The numbers from 0 to `count`, in some order.
    pub fn permutation(&mut self, count: u32) -> Vec<u32> {
        let mut numbers: Vec<u32> = (0..count).collect();
        for place in (1..numbers.len()).rev() {
            numbers.swap(place, self.below(place as u64 + 1) as usize);
        }
        numbers
    }
}

fn mix(mut word: u64) -> u64 {
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// `len` bytes of the endless pattern of this seed, from `offset` on.
pub fn bytes(seed: u64, offset: u64, len: usize) -> Vec<u8> {
    let key = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let (first, skip) = (offset / 8, (offset % 8) as usize);
    // Tests fill megabytes, and are built with little optimisation: a plain loop over words.
    let mut whole = vec![0; (skip + len).next_multiple_of(8)];
    for (word, index) in whole.as_chunks_mut::<8>().0.iter_mut().zip(first..) {
        *word = mix(key ^ mix(index)).to_le_bytes();
    }
    whole.truncate(skip + len);
    whole.drain(..skip);
    whole
}

/// Fills memory with the pattern of this seed.
pub fn fill(memory: &impl Bytes, seed: u64) {
    let mut offset = 0;
    while offset < memory.count() {
        let len = (CHUNK as u64).min(memory.count() - offset);
        memory.write(offset, &bytes(seed, offset, len as usize));
        offset += len;
    }
}

/// All bytes that this memory holds now.
pub fn read(memory: &impl Bytes) -> Vec<u8> {
    let mut found = vec![0; memory.count() as usize];
    memory.read(0, &mut found);
    found
}

/// One digest for each page of some bytes.
pub fn digests(bytes: &[u8]) -> Vec<u64> {
    let of_page = |page: &[u8]| {
        let mut sum = page.len() as u64;
        let mut add = |word| sum = (sum ^ u64::from_le_bytes(word)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        let (words, rest) = page.as_chunks();
        for &word in words {
            add(word);
        }
        if !rest.is_empty() {
            let mut word = [0; 8];
            word[..rest.len()].copy_from_slice(rest);
            add(word);
        }
        sum
    };
    bytes.chunks(PAGE).map(of_page).collect()
}

/// One digest for each page of memory.
pub fn memory_digests(memory: &impl Bytes) -> Vec<u64> {
    let mut all = Vec::new();
    let mut chunk = vec![0; CHUNK];
    let mut offset = 0;
    while offset < memory.count() {
        let len = (CHUNK as u64).min(memory.count() - offset);
        let part = &mut chunk[..len as usize];
        memory.read(offset, part);
        all.extend(digests(part));
        offset += len;
    }
    all
}

/// Fails with the first page that differs.
pub fn assert_same(found: &[u64], expected: &[u64], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}: another number of pages");
    let wrong: Vec<usize> = (0..found.len()).filter(|&page| found[page] != expected[page]).collect();
    assert!(
        wrong.is_empty(),
        "{what}: {} of {} pages of {PAGE} bytes are not as expected, the first at byte {}",
        wrong.len(),
        found.len(),
        wrong[0] * PAGE
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_is_the_same_wherever_it_begins() {
        let whole = bytes(7, 0, 1000);
        for (offset, len) in [(0, 1), (3, 5), (8, 8), (13, 987), (999, 1)] {
            assert_eq!(bytes(7, offset as u64, len), whole[offset..offset + len]);
        }
        assert_ne!(bytes(8, 0, 1000), whole);
    }

    #[test]
    fn a_changed_byte_changes_the_digest_of_its_page_only() {
        let mut some = bytes(1, 0, 3 * PAGE + 5);
        let before = digests(&some);
        some[PAGE + 9] ^= 1;
        let after = digests(&some);
        let changed: Vec<_> = (0..before.len()).filter(|&page| before[page] != after[page]).collect();
        assert_eq!((before.len(), changed), (4, vec![1]));
    }
}
