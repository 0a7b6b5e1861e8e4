//! A set of numbers that come mostly in their order: which tokens, and which landings, are there.

use std::ops::Range;

use penstock_session::few::Few;

/// The most runs of one set. Numbers that come as scattered as that are nobody's honest order: a source has at most 1,024 parts under way
/// (`legs.parts_ahead`), and so as many gaps.
pub const RUNS_MAX: usize = 2_048;

/// A set of numbers, kept as runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Runs {
    /// In their order, none empty, with a gap between each two.
    runs: Few<Range<u64>>,
    count: u64,
}

/// What became of numbers that were to be added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Added {
    /// They are new.
    New,
    /// All of them were there.
    Known,
    /// Some were there, and nothing was added.
    Straddles,
    /// They would be one run too many, and nothing was added.
    Scattered,
}

impl Runs {
    /// Looks what adding would do.
    pub fn would(&self, range: &Range<u64>) -> Added {
        if range.is_empty() {
            return Added::Known;
        }
        let next = self.runs.partition_point(|run| run.end <= range.start);
        match self.runs.get(next) {
            Some(run) if run.start <= range.start && range.end <= run.end => Added::Known,
            Some(run) if run.start < range.end => Added::Straddles,
            _ if self.runs.len() < RUNS_MAX || self.touches(next, range) => Added::New,
            _ => Added::Scattered,
        }
    }

    /// Adds numbers that are all new.
    pub fn add(&mut self, range: Range<u64>) -> Added {
        let added = self.would(&range);
        if added != Added::New {
            return added;
        }
        self.count += range.end - range.start;
        let next = self.runs.partition_point(|run| run.end <= range.start);
        let joins_before = next > 0 && self.runs[next - 1].end == range.start;
        let joins_behind = self.runs.get(next).is_some_and(|run| run.start == range.end);
        match (joins_before, joins_behind) {
            (true, true) => {
                self.runs[next - 1].end = self.runs[next].end;
                self.runs.remove(next);
            }
            (true, false) => self.runs[next - 1].end = range.end,
            (false, true) => self.runs[next].start = range.start,
            (false, false) => self.runs.insert(next, range),
        }
        added
    }

    /// How many numbers there are.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The first number from there on that is missing.
    pub fn first_missing(&self, from: u64) -> u64 {
        let next = self.runs.partition_point(|run| run.end <= from);
        self.runs.get(next).filter(|run| run.start <= from).map_or(from, |run| run.end)
    }

    /// One more than the greatest number.
    pub fn end(&self) -> u64 {
        self.runs.last().map_or(0, |run| run.end)
    }

    /// Whether all of these are there.
    pub fn has(&self, range: Range<u64>) -> bool {
        range.is_empty() || self.first_missing(range.start) >= range.end
    }

    fn touches(&self, next: usize, range: &Range<u64>) -> bool {
        let before = next > 0 && self.runs[next - 1].end == range.start;
        before || self.runs.get(next).is_some_and(|run| run.start == range.end)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_as_scattered_as_can_be_are_bounded() {
        let mut runs = Runs::default();
        for number in 0..RUNS_MAX as u64 {
            assert_eq!(runs.add(number * 2..number * 2 + 1), Added::New);
        }
        let far = RUNS_MAX as u64 * 2;
        assert_eq!(runs.add(far + 4..far + 5), Added::Scattered);
        assert_eq!(runs.add(1..2), Added::New, "what closes a gap makes it less");
        assert_eq!(runs.add(far + 4..far + 5), Added::New);
        assert_eq!(runs.count(), RUNS_MAX as u64 + 2);
    }

    proptest! {
        /// Against a set that keeps each number by itself.
        #[test]
        fn runs_are_a_set(ranges in proptest::collection::vec((0_u64..60, 0_u64..9), 0..40), asked in 0_u64..70) {
            let (mut runs, mut set) = (Runs::default(), BTreeSet::new());
            for (first, count) in ranges {
                let numbers: Vec<u64> = (first..first + count).collect();
                let known = numbers.iter().filter(|number| set.contains(*number)).count();
                let expected = match known {
                    _ if known == numbers.len() => Added::Known,
                    0 => Added::New,
                    _ => Added::Straddles,
                };
                prop_assert_eq!(runs.add(first..first + count), expected);
                if expected == Added::New {
                    set.extend(numbers);
                }
                prop_assert_eq!(runs.count(), set.len() as u64);
                prop_assert_eq!(runs.end(), set.last().map_or(0, |last| last + 1));
                let missing = (asked..).find(|number| !set.contains(number)).unwrap();
                prop_assert_eq!(runs.first_missing(asked), missing);
                prop_assert_eq!(runs.has(asked..asked + 3), (asked..asked + 3).all(|number| set.contains(&number)));
            }
        }
    }
}
