//! What has to hold in every run, and what free blocks look like.

use std::fmt;

/// What is broken when a run fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// Each byte found is of this transfer, epoch and place.
    BytesAreTheirOwn,
    /// Each transfer reaches one terminal state on each living side, and stays there.
    OneEndEach,
    /// Each block is freed once; nothing lands in, or is read from, a block after it.
    FreedOnceAndUntouched,
    /// What is told comes once, and its bytes are there.
    ToldOnceAfterBytes,
    /// What is taken and what is left are all there is, and tables agree.
    CreditsAreConserved,
    /// Tables, early messages, leases, slots and quarantine are empty when all is over.
    NothingIsLeft,
    /// Every wait ends by its deadline, and the other side's failure is known soon.
    AnswersComeInTime,
    /// A lease ends when the lender's clock says so.
    LeasesEndByTheLender,
    /// No engine panics.
    NothingPanics,
}

impl Invariant {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::BytesAreTheirOwn,
        Self::OneEndEach,
        Self::FreedOnceAndUntouched,
        Self::ToldOnceAfterBytes,
        Self::CreditsAreConserved,
        Self::NothingIsLeft,
        Self::AnswersComeInTime,
        Self::LeasesEndByTheLender,
        Self::NothingPanics,
    ];

    /// The name by which it is known everywhere.
    pub fn name(self) -> &'static str {
        match self {
            Self::BytesAreTheirOwn => "bytes_are_their_own",
            Self::OneEndEach => "one_end_each",
            Self::FreedOnceAndUntouched => "freed_once_and_untouched",
            Self::ToldOnceAfterBytes => "told_once_after_bytes",
            Self::CreditsAreConserved => "credits_are_conserved",
            Self::NothingIsLeft => "nothing_is_left",
            Self::AnswersComeInTime => "answers_come_in_time",
            Self::LeasesEndByTheLender => "leases_end_by_the_lender",
            Self::NothingPanics => "nothing_panics",
        }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|invariant| invariant.name() == name)
    }
}

impl fmt::Display for Invariant {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// A run has broken something.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{invariant}: {words}")]
pub struct Violated {
    /// What.
    pub invariant: Invariant,
    /// How.
    pub words: String,
}

impl Violated {
    /// This, so.
    pub fn new(invariant: Invariant, words: impl Into<String>) -> Self {
        Self { invariant, words: words.into() }
    }
}

/// What a free block is full of.
pub const POISON: u8 = 0xd1;
/// What a granted block is full of until something lands in it.
pub const GRANTED: u8 = 0xe7;
/// What a source's block is full of until it is computed.
pub const UNREADY: u8 = 0x5f;
/// What an assembled buffer is full of until something was copied there.
pub const EMPTY: u8 = 0x3b;

/// The byte that belongs there: of this case, by the source of this epoch, in this layer, of this token, row and place.
pub fn byte(case: usize, epoch: u64, layer: usize, token: u64, row: u32, at: u32) -> u8 {
    let place = (case as u64) << 48 ^ (layer as u64) << 40 ^ token << 16 ^ u64::from(row) << 8 ^ u64::from(at);
    let mixed = (place ^ epoch.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 56) as u8
}

/// Which invariant bytes break that are not what they should be.
pub fn blame(found: &[u8]) -> Invariant {
    let is_all = |byte: u8| found.iter().all(|&found| found == byte);
    if is_all(POISON) {
        Invariant::FreedOnceAndUntouched
    } else if is_all(GRANTED) || is_all(EMPTY) {
        Invariant::ToldOnceAfterBytes
    } else {
        Invariant::BytesAreTheirOwn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_invariant_has_a_name_of_its_own() {
        for invariant in Invariant::ALL {
            assert_eq!(Invariant::named(invariant.name()), Some(invariant));
        }
        assert_eq!(Invariant::named("nothing"), None);
    }

    #[test]
    fn bytes_of_neighbours_differ() {
        let row = |case, epoch, layer, token, row| {
            (0..8).map(|at| byte(case, epoch, layer, token, row, at)).collect::<Vec<u8>>()
        };
        let mut rows =
            vec![row(0, 7, 0, 0, 0), row(1, 7, 0, 0, 0), row(0, 8, 0, 0, 0), row(0, 7, 1, 0, 0), row(0, 7, 0, 1, 0)];
        rows.push(row(0, 7, 0, 0, 1));
        rows.extend([POISON, GRANTED, UNREADY, EMPTY].map(|byte| vec![byte; 8]));
        let count = rows.len();
        rows.sort_unstable();
        rows.dedup();
        assert_eq!(rows.len(), count);
    }

    #[test]
    fn bytes_that_are_wrong_say_what_went_wrong() {
        assert_eq!(blame(&[POISON; 8]), Invariant::FreedOnceAndUntouched);
        assert_eq!(blame(&[GRANTED; 8]), Invariant::ToldOnceAfterBytes);
        assert_eq!(blame(&[1, POISON]), Invariant::BytesAreTheirOwn);
    }

    #[test]
    fn every_planted_bug_names_an_invariant_and_a_family() {
        for bug in penstock_core::planted::Bug::ALL {
            assert!(Invariant::named(bug.caught_by()).is_some(), "{} names {}", bug.name(), bug.caught_by());
            assert!(crate::deed::Family::named(bug.found_in()).is_ok(), "{} names {}", bug.name(), bug.found_in());
        }
    }
}
