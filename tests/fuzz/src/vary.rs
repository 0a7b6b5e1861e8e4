//! Seeded variations of a corpus.

/// The longest input, in bytes: a little more than the largest note, and many frames.
pub const INPUT_BYTES_MAX: usize = 8 * 1024;
/// Changes made to one input at most.
const CHANGES_MAX: usize = 6;
/// Bytes added or repeated at once at most.
const RUN_BYTES_MAX: usize = 96;

/// SplitMix64.
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number below `bound`, which is not zero.
    pub fn below(&mut self, bound: usize) -> usize {
        (self.next_u64() % bound as u64) as usize
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next_u64() as u8).collect()
    }
}

/// Endless variations of some inputs, the same for the same seed.
#[derive(Debug)]
pub struct Variations<'a> {
    corpus: &'a [Vec<u8>],
    random: Random,
}

impl<'a> Variations<'a> {
    /// Variations of `corpus`, which is not empty.
    pub fn of(corpus: &'a [Vec<u8>], seed: u64) -> Self {
        Self { corpus, random: Random::new(seed) }
    }

    /// The next input.
    pub fn next_input(&mut self) -> Vec<u8> {
        let mut input = self.corpus[self.random.below(self.corpus.len())].clone();
        for _ in 0..1 + self.random.below(CHANGES_MAX) {
            self.change(&mut input);
        }
        input.truncate(INPUT_BYTES_MAX);
        input
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let random = &mut self.random;
        if input.is_empty() {
            let count = 1 + random.below(RUN_BYTES_MAX);
            *input = random.bytes(count);
            return;
        }
        let place = random.below(input.len());
        let run = place..input.len().min(place + 1 + random.below(RUN_BYTES_MAX));
        match random.below(10) {
            0 => input[place] ^= 1 << random.below(8),
            1 => input[place] = [0, 1, 0x7f, 0x80, 0xfe, 0xff][random.below(6)],
            2 => input[place] = random.next_u64() as u8,
            3 => input.truncate(place),
            4 => drop(input.drain(run)),
            5 => {
                let repeated = input[run.clone()].to_vec();
                input.splice(run.end..run.end, repeated);
            }
            6 => {
                let strange = random.bytes(run.len());
                input.splice(place..place, strange);
            }
            7 => {
                let other = &self.corpus[random.below(self.corpus.len())];
                let from = random.below(other.len().max(1)).min(other.len());
                input.splice(place.., other[from..].iter().copied());
            }
            8 => {
                let other = &self.corpus[random.below(self.corpus.len())];
                input.extend_from_slice(other);
            }
            _ => {
                let width = [1, 2, 4, 8][random.below(4)];
                let value = length_like(random, input.len());
                let end = input.len().min(place + width);
                input[place..end].copy_from_slice(&value.to_le_bytes()[..end - place]);
            }
        }
    }
}

/// A number that could be mistaken for a length, or makes arithmetic with one overflow.
fn length_like(random: &mut Random, near: usize) -> u64 {
    let near = near as u64;
    let few = random.next_u64() % 4;
    match random.below(8) {
        0 => few,
        1 => near.wrapping_sub(few),
        2 => near + few,
        3 => u64::MAX - few,
        4 => u64::from(u32::MAX) - few,
        5 => u64::from(u16::MAX) - few,
        6 => (1 << 63) + few,
        _ => 1 << random.below(64),
    }
}
