//! Counts of tests, read from what the test harness prints.

use std::fmt;
use std::ops::AddAssign;

/// How many passed, failed and were skipped.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    /// Tests that ran and held.
    pub(crate) passed: usize,
    /// Tests that ran and did not hold, and programs that broke.
    pub(crate) failed: usize,
    /// Tests that did not run.
    pub(crate) skipped: usize,
}

impl Tally {
    /// A thing that broke before it could count anything.
    pub(crate) const BROKEN: Self = Self { passed: 0, failed: 1, skipped: 0 };

    /// Whether something ran or was skipped for a reason, and nothing failed.
    pub(crate) fn is_good(&self) -> bool {
        self.failed == 0 && self.passed + self.skipped > 0
    }

    /// The counts of one `test result:` line, wherever in the line it begins.
    pub(crate) fn of_line(line: &str) -> Option<Self> {
        let (_, result) = line.split_once("test result: ")?;
        let (_, counts) = result.split_once(". ")?;
        let count = |what: &str| {
            let part = counts.split(';').map(str::trim).find(|part| part.ends_with(what))?;
            part.split(' ').next()?.parse().ok()
        };
        Some(Self { passed: count(" passed")?, failed: count(" failed")?, skipped: count(" ignored")? })
    }

    /// The counts of a line that is a sum, as this is shown.
    pub(crate) fn of_sum(line: &str) -> Option<Self> {
        let mut counts = line.split(", ");
        let mut count = |what: &str| counts.next()?.strip_suffix(what)?.parse().ok();
        let sum = Self { passed: count(" passed")?, failed: count(" failed")?, skipped: count(" skipped")? };
        counts.next().is_none().then_some(sum)
    }

    /// Moves `count` tests from passed to skipped: the harness saw them end without a complaint.
    pub(crate) fn skip(&mut self, count: usize) {
        let moved = count.min(self.passed);
        self.passed -= moved;
        self.skipped += moved;
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sum_is_read_as_it_is_shown_and_nothing_else_is() {
        let tally = Tally { passed: 9_998, failed: 2, skipped: 1 };
        assert_eq!(Tally::of_sum(&tally.to_string()), Some(tally));
        for line in [
            "",
            "5 passed",
            "5 passed, 1 failed",
            "5 passed, 1 failed, 0 skipped, 2 lost",
            "x passed, 1 failed, 0 skipped",
        ] {
            assert_eq!(Tally::of_sum(line), None, "{line}");
        }
    }

    #[test]
    fn result_lines_are_counted_and_others_are_not() {
        let line = "test result: FAILED. 34 passed; 2 failed; 1 ignored; 0 measured; 5 filtered out; finished in 0.08s";
        assert_eq!(Tally::of_line(line), Some(Tally { passed: 34, failed: 2, skipped: 1 }));
        assert_eq!(Tally::of_line(&format!("left over output{line}")), Tally::of_line(line));
        for other in
            ["", "test a ... ok", "test result: who knows", "test result: ok. many passed; 0 failed; 0 ignored"]
        {
            assert_eq!(Tally::of_line(other), None, "{other}");
        }
    }

    #[test]
    fn nothing_run_is_not_good() {
        assert!(!Tally::default().is_good());
        assert!(!Tally::BROKEN.is_good());
        assert!(!Tally { passed: 9, failed: 1, skipped: 0 }.is_good());
        assert!(Tally { passed: 1, failed: 0, skipped: 0 }.is_good());
        assert!(Tally { passed: 0, failed: 0, skipped: 1 }.is_good());
    }

    #[test]
    fn a_skip_was_counted_as_a_pass_before() {
        let mut tally = Tally { passed: 2, failed: 1, skipped: 0 };
        tally.skip(1);
        assert_eq!(tally, Tally { passed: 1, failed: 1, skipped: 1 });
    }
}
