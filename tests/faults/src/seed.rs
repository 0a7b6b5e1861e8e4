//! Seeds: one number from which a whole run is drawn, and drawn again when it failed.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io::Write;

/// The variable that holds the seed of a run to be repeated.
const VARIABLE: &str = "PENSTOCK_SEED";

/// A stream of numbers that looks random and is the same for the same seed (SplitMix64).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The stream of a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    /// A number below `end`, which is not zero. The bias of the remainder does not matter here.
    pub fn below(&mut self, end: u64) -> u64 {
        self.draw() % end
    }

    /// A number from `first` to `last`, both included.
    pub fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last - first + 1)
    }

    /// True once in so many times.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of several.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.below(choices.len() as u64) as usize]
    }

    /// Puts a list into another order.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

/// The seed of this run: that of `PENSTOCK_SEED` (decimal, or hexadecimal after `0x`), else a fresh
/// one. It is printed when the test fails.
#[derive(Debug)]
pub struct Seed {
    value: u64,
    /// The step that the run has come to, for the message.
    step: u64,
}

impl Seed {
    /// Reads or makes the seed.
    ///
    /// # Panics
    /// If the variable is set and holds no number.
    pub fn of_this_run() -> Self {
        let value = match std::env::var(VARIABLE) {
            Ok(text) => parse(&text).expect("PENSTOCK_SEED is a number, decimal or hexadecimal after 0x"),
            Err(_) => RandomState::new().hash_one(std::process::id()),
        };
        Self { value, step: 0 }
    }

    /// The seed of a step, which does not depend on how many numbers the steps before it drew.
    pub fn of_step(&mut self, step: u64) -> u64 {
        self.step = step;
        Random::new(self.value ^ Random::new(step).draw()).draw()
    }
}

impl Drop for Seed {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { value, step } = self;
            let _ = writeln!(std::io::stderr(), "failed at step {step}; to repeat the run: {VARIABLE}={value:#x}");
        }
    }
}

fn parse(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_draws_the_same_again() {
        let (mut one, mut other) = (Random::new(7), Random::new(7));
        assert!((0..100).all(|_| one.draw() == other.draw()));
        assert_ne!(Random::new(7).draw(), Random::new(8).draw());
    }

    #[test]
    fn seeds_are_read_in_both_notations() {
        assert_eq!(parse("0xff"), Some(255));
        assert_eq!(parse("255"), Some(255));
        assert_eq!(parse("many"), None);
    }

    #[test]
    fn a_shuffle_loses_nothing() {
        let mut list: Vec<u32> = (0..50).collect();
        Random::new(1).shuffle(&mut list);
        assert_ne!(list, (0..50).collect::<Vec<_>>());
        list.sort_unstable();
        assert_eq!(list, (0..50).collect::<Vec<_>>());
    }
}
