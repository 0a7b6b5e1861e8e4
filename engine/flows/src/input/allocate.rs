//! For how many tokens a sink asks memory before it knows how many come, and what it does when there is none.

use std::collections::VecDeque;

/// Tokens for which memory is asked when nothing else is known.
pub const DEFAULT_TOKENS: u64 = 8192;
/// How many totals are remembered.
pub const TOTALS_MAX: usize = 256;

/// What is done when there is no memory for the next leg.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MemoryPolicy {
    /// What has come is kept, and memory is asked for again until the deadline.
    #[default]
    Wait,
    /// The transfer fails at once, and both sides are told.
    Fail,
    /// What there is, is granted; more legs follow.
    Shrink,
}

/// The default, and what transfers came to lately.
#[derive(Debug, Clone)]
pub struct Totals {
    default_tokens: u64,
    quantile_percent: u8,
    last: VecDeque<u64>,
}

impl Totals {
    /// With a default, and the percentage of the last totals that a first leg has to have room for; 0 is the default always.
    pub fn new(default_tokens: u64, quantile_percent: u8) -> Self {
        Self {
            default_tokens: default_tokens.max(1),
            quantile_percent: quantile_percent.min(100),
            last: VecDeque::new(),
        }
    }

    /// A transfer came to so many tokens.
    pub fn note(&mut self, tokens: u64) {
        if self.quantile_percent > 0 {
            if self.last.len() == TOTALS_MAX {
                self.last.pop_front();
            }
            self.last.push_back(tokens);
        }
    }

    /// For how many tokens memory is asked for: the least that would have been enough for that percentage.
    pub fn tokens(&self) -> u64 {
        if self.last.is_empty() {
            return self.default_tokens;
        }
        let mut sorted: Vec<u64> = self.last.iter().copied().collect();
        sorted.sort_unstable();
        let place = (sorted.len() * usize::from(self.quantile_percent)).div_ceil(100).max(1) - 1;
        sorted[place].max(1)
    }
}

impl Default for Totals {
    fn default() -> Self {
        Self::new(DEFAULT_TOKENS, 0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_default_is_8192_and_stays_so_unless_asked_otherwise() {
        let mut totals = Totals::default();
        totals.note(5);
        assert_eq!(totals.tokens(), 8192);
        assert!(totals.last.is_empty(), "nothing is kept that nobody reads");
        assert_eq!(Totals::new(0, 90).tokens(), 1, "no leg is for nothing");
    }

    #[test]
    fn a_quantile_of_the_last_256_is_enough_for_so_many_of_them() {
        let mut totals = Totals::new(8192, 90);
        assert_eq!(totals.tokens(), 8192, "nothing is known yet");
        (1..=1000).for_each(|tokens| totals.note(tokens));
        assert_eq!(totals.last.len(), 256);
        assert_eq!(totals.tokens(), 744 + 231, "the last 256 are 745 to 1,000, and 231 are 90 percent of them");
    }

    proptest! {
        #[test]
        fn so_many_percent_would_have_fitted(seen in proptest::collection::vec(1_u64..5000, 1..300), percent in 1_u8..=100) {
            let mut totals = Totals::new(8192, percent);
            seen.iter().for_each(|&tokens| totals.note(tokens));
            let last = &seen[seen.len().saturating_sub(TOTALS_MAX)..];
            let fits = |room: u64| last.iter().filter(|&&tokens| tokens <= room).count() * 100;
            prop_assert!(fits(totals.tokens()) >= last.len() * usize::from(percent));
            prop_assert!(fits(totals.tokens() - 1) < last.len() * usize::from(percent));
        }
    }
}
