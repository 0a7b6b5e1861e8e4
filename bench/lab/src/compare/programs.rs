//! Runs two programs in turns.

use std::fmt;
use std::process::Command;
use std::time::Duration;

use super::verdict::{Judge, Pairing, Random};
use super::{Compared, saved};
use crate::limited::{self, RunError};

/// How long one program may take for one round of one measurement.
const LIMIT: Duration = Duration::from_secs(120);

/// What both measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// Micro-benches, by parts of their names.
    Benches(Vec<String>),
    /// Rows of the scoreboard, by their ids.
    Rows(Vec<String>),
}

/// Why two programs could not be compared.
#[derive(Debug)]
#[non_exhaustive]
pub enum CompareError {
    /// A command line says nothing.
    NoProgram,
    /// One could not be run.
    Run(RunError),
    /// One ended with an error.
    Failed {
        /// Its command line.
        program: String,
        /// What it said.
        words: String,
    },
    /// A file could not be read.
    File {
        /// Which.
        path: String,
        /// Why not.
        source: std::io::Error,
    },
    /// What one wrote is no result of a bench or the scoreboard.
    Malformed {
        /// Where it is from.
        from: String,
        /// The line.
        line: String,
    },
    /// The two have nothing in common.
    NothingInCommon,
}

impl fmt::Display for CompareError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoProgram => f.write_str("a command line is empty: name the program of each side"),
            Self::Run(error) => error.fmt(f),
            Self::Failed { program, words } => write!(f, "{program} failed: {}", words.trim()),
            Self::File { path, source } => write!(f, "{path}: {source}"),
            Self::Malformed { from, line } => {
                write!(
                    f,
                    "{from} has a line that is no result: {line:?}; bench --json and scoreboard --json write them"
                )
            }
            Self::NothingInCommon => {
                f.write_str("there is nothing that both sides measured: look at the names on either side")
            }
        }
    }
}

impl std::error::Error for CompareError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Run(error) => Some(error),
            Self::File { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Lets both command lines measure the same for so many rounds. In each round a coin says who begins.
pub fn compare(
    sides: [&str; 2],
    what: &What,
    rounds: usize,
    judge: &Judge,
    mut progress: impl FnMut(usize),
) -> Result<Vec<Compared>, CompareError> {
    for side in sides {
        measure(side, what)?; // Warm, and known to work before time is spent.
    }
    let mut all: [Vec<saved::Measured>; 2] = [Vec::new(), Vec::new()];
    let mut coin = Random(judge.seed);
    for round in 0..rounds {
        let first = (coin.next() >> 63) as usize;
        for side in [first, 1 - first] {
            all[side].extend(measure(sides[side], what)?);
        }
        progress(round + 1);
    }
    let [a, b] = all;
    saved::judge_all(a, b, judge, Pairing::Turns)
}

fn measure(side: &str, what: &What) -> Result<Vec<saved::Measured>, CompareError> {
    let mut words = side.split_whitespace();
    let mut command = Command::new(words.next().ok_or(CompareError::NoProgram)?);
    command.args(words);
    match what {
        What::Benches(names) => command.args(["bench", "--json", "--rounds", "3", "--only", &names.join(",")]),
        What::Rows(ids) => command.args(["scoreboard", "--json", "--quick", "--only", &ids.join(",")]),
    };
    let ended = limited::run(&mut command, LIMIT).map_err(CompareError::Run)?;
    if !ended.status.success() {
        return Err(CompareError::Failed { program: side.to_owned(), words: ended.complaints });
    }
    let mut measured = saved::parse(&ended.output, side)?;
    // One figure of each a round: the runs are what takes turns.
    for one in &mut measured {
        one.figures = vec![crate::measure::median(&one.figures)];
    }
    Ok(measured)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::verdict::Quicker;
    use super::*;
    use crate::ends::Folder;

    /// A command that answers like `penstock-lab bench`, with times from a list of its own. The shell
    /// reads its script: to execute a file just written fails while a child that another test's thread
    /// is starting still has it open for writing.
    fn pretender(folder: &Path, name: &str, times: &[f64]) -> String {
        let (program, list) = (folder.join(name), folder.join(format!("{name}.times")));
        let lines: Vec<String> = times.iter().map(f64::to_string).collect();
        std::fs::write(&list, lines.join("\n") + "\n").unwrap();
        let script = format!(
            "[ \"$1 $2 $5 $6\" = 'bench --json --only x' ] || exit 3\n\
             read -r t < '{0}'; tail -n +2 '{0}' > '{0}.new'; mv '{0}.new' '{0}'\n\
             echo \"{{\\\"bench\\\":\\\"x\\\",\\\"per\\\":\\\"thing\\\",\\\"median_ns\\\":$t,\\\"least_ns\\\":$t,\\\"rounds_ns\\\":[$t]}}\"\n",
            list.display()
        );
        std::fs::write(&program, script).unwrap();
        format!("sh {}", program.display())
    }

    fn compared(a: &[f64], b: &[f64]) -> Compared {
        let folder = Folder::create().unwrap();
        let (a, b) = (pretender(folder.path(), "a", a), pretender(folder.path(), "b", b));
        let what = What::Benches(vec!["x".to_owned()]);
        let mut all = compare([&a, &b], &what, 15, &Judge::default(), |_| {}).unwrap();
        assert_eq!(all.len(), 1);
        all.remove(0)
    }

    /// Sixteen times, the first of which warms up, that go up and down as a machine does.
    fn times(factor: f64, phase: usize) -> Vec<f64> {
        (0..16).map(|round| factor * (100.0 + ((round * 7 + phase) % 5) as f64 - 2.0)).collect()
    }

    #[test]
    fn two_programs_with_the_same_times_do_not_differ() {
        let same = compared(&times(1.0, 0), &times(1.0, 0));
        assert_eq!((same.name.as_str(), same.verdict.quicker), ("x", Quicker::Neither));
        // The same five times in another order: noise, and no difference.
        assert_eq!(compared(&times(1.0, 0), &times(1.0, 2)).verdict.quicker, Quicker::Neither);
    }

    #[test]
    fn the_quicker_program_is_named_whichever_side_it_is_on() {
        assert_eq!(compared(&times(1.0, 0), &times(1.2, 2)).verdict.quicker, Quicker::A);
        assert_eq!(compared(&times(1.2, 0), &times(1.0, 2)).verdict.quicker, Quicker::B);
    }

    #[test]
    fn a_program_that_fails_or_says_nonsense_ends_the_comparison() {
        let what = What::Benches(vec!["x".to_owned()]);
        let run = |side: &str| compare([side, side], &what, 1, &Judge::default(), |_| {}).unwrap_err();
        assert!(matches!(run("false"), CompareError::Failed { .. }));
        assert!(matches!(run("echo"), CompareError::Malformed { .. }));
        assert!(matches!(run(" "), CompareError::NoProgram));
        assert!(matches!(run("no-such-command-anywhere"), CompareError::Run(_)));
    }
}
