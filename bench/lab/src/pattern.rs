//! Bytes that tell where they came from: each word of a source pool follows from its offset.

use std::fmt;

use penstock::memory::Window;
use serde::{Deserialize, Serialize};

/// Bytes that are written or looked at in one go.
const PIECE_BYTES: usize = 64 << 10;
/// What a wiped destination holds; no run of it is a piece of the pattern.
const WIPED: u8 = 0xa5;

const INSIDE: &str = "the layout made the pool large enough";

/// A byte that is not what was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mismatch {
    /// Where in the destination pool, in bytes: the word that is wrong.
    pub offset: u64,
    /// Where in the source pool it should have come from, in bytes.
    pub source: u64,
    /// What should be there.
    pub expected: u64,
    /// What is there.
    pub found: u64,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { offset, source, expected, found } = self;
        write!(f, "at byte {offset} of the destination there is {found:#018x} instead of {expected:#018x}, ")?;
        write!(f, "which is at byte {source} of the source")
    }
}

#[inline]
fn word(seed: u64, offset: u64) -> u64 {
    let mixed = (offset / 8).wrapping_add(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 32)
}

fn write_words(seed: u64, offset: u64, bytes: &mut [u8]) {
    for (index, place) in bytes.chunks_exact_mut(8).enumerate() {
        place.copy_from_slice(&word(seed, offset + 8 * index as u64).to_ne_bytes());
    }
}

/// Writes the pattern over a whole pool.
pub fn fill(pool: &Window, seed: u64) {
    let mut piece = vec![0; PIECE_BYTES];
    let mut offset = 0;
    while offset < pool.len() {
        let bytes = &mut piece[..(pool.len() - offset).min(PIECE_BYTES as u64) as usize];
        write_words(seed, offset, bytes);
        pool.write_from(offset, bytes).expect(INSIDE);
        offset += bytes.len() as u64;
    }
}

/// Overwrites a whole pool.
pub fn wipe(pool: &Window) {
    pool.fill(0, pool.len(), WIPED).expect(INSIDE);
}

/// Looks at what arrived in a pool.
pub struct Reader<'a> {
    pool: &'a Window,
    seed: u64,
    bytes: u64,
    expected: Vec<u8>,
    found: Vec<u8>,
}

impl<'a> Reader<'a> {
    /// Will look at this pool for the pattern with this seed.
    pub fn new(pool: &'a Window, seed: u64) -> Self {
        Self { pool, seed, bytes: 0, expected: vec![0; PIECE_BYTES], found: vec![0; PIECE_BYTES] }
    }

    /// Bytes looked at so far.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether `len` bytes at `to` are what the source had at `from`.
    pub fn check(&mut self, from: u64, to: u64, len: u64) -> Result<(), Mismatch> {
        let mut done = 0;
        while done < len {
            let count = (len - done).min(PIECE_BYTES as u64) as usize;
            let (expected, found) = (&mut self.expected[..count], &mut self.found[..count]);
            write_words(self.seed, from + done, expected);
            self.pool.read_into(to + done, found).expect(INSIDE);
            if expected != found {
                return Err(first_difference(from + done, to + done, expected, found));
            }
            done += count as u64;
        }
        self.bytes += len;
        Ok(())
    }
}

fn first_difference(from: u64, to: u64, expected: &[u8], found: &[u8]) -> Mismatch {
    let number = |word: &[u8]| u64::from_ne_bytes(word.try_into().expect("chunks_exact(8) gives 8 bytes"));
    let mut words = expected.chunks_exact(8).map(number).zip(found.chunks_exact(8).map(number)).enumerate();
    let (index, (expected, found)) =
        words.find(|(_, (expected, found))| expected != found).expect("the pieces differ, and lengths divide by 8");
    let at = 8 * index as u64;
    Mismatch { offset: to + at, source: from + at, expected, found }
}
