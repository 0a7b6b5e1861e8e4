//! A run that fails is repeated with parts of its list left out, as long as it fails by the same invariant.

use crate::deed::Script;
use crate::oracle::Violated;
use crate::run::perform;

/// The most runs that are made to shorten one list.
pub const RUNS_MAX: usize = 200;

/// The shortest list that was found, by the places of its deeds in the script's, and how it fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Short {
    /// Which deeds are left.
    pub keep: Vec<usize>,
    /// How they fail.
    pub violated: Violated,
    /// How many runs it took.
    pub runs: usize,
}

/// Shortens the list of a script that fails so.
pub fn shrink(script: &Script, violated: Violated) -> Short {
    shrink_by(script.deeds.len(), violated, |keep| perform(script, keep).err())
}

/// The same, of so many deeds, by what a run of some of them comes to.
fn shrink_by(deeds: usize, violated: Violated, mut run: impl FnMut(&[usize]) -> Option<Violated>) -> Short {
    let mut short = Short { keep: (0..deeds).collect(), violated, runs: 0 };
    let mut part = short.keep.len().div_ceil(2);
    while part > 0 && short.runs < RUNS_MAX {
        let mut from = 0;
        let mut has_shrunk = false;
        while from < short.keep.len() && short.runs < RUNS_MAX {
            let mut rest = short.keep.clone();
            rest.drain(from..(from + part).min(rest.len()));
            short.runs += 1;
            match run(&rest) {
                Some(violated) if violated.invariant == short.violated.invariant => {
                    (short.keep, short.violated, has_shrunk) = (rest, violated, true);
                }
                _ => from += part,
            }
        }
        if part == 1 && !has_shrunk {
            break;
        }
        part = if part == 1 { 1 } else { part.div_ceil(2) };
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oracle::Invariant;

    fn broken(invariant: Invariant) -> Option<Violated> {
        Some(Violated::new(invariant, "so"))
    }

    #[test]
    fn what_is_not_needed_is_left_out_and_another_failure_is_not_followed() {
        let needed = [3, 17, 40];
        let run = |keep: &[usize]| {
            let has = |deed: &usize| keep.contains(deed);
            if needed.iter().all(has) { broken(Invariant::OneEndEach) } else { broken(Invariant::NothingIsLeft) }
        };
        let short = shrink_by(50, broken(Invariant::OneEndEach).unwrap(), run);
        assert_eq!((short.keep.as_slice(), short.violated.invariant), (&needed[..], Invariant::OneEndEach));
        assert!(short.runs <= RUNS_MAX);
    }

    #[test]
    fn it_gives_up_in_time() {
        let mut runs = 0;
        let short = shrink_by(5000, broken(Invariant::OneEndEach).unwrap(), |_| {
            runs += 1;
            None
        });
        assert_eq!((short.keep.len(), short.runs, runs), (5000, RUNS_MAX, RUNS_MAX));
    }
}
