//! What is expected, and the judgement.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use penstock_micro::hot::CASES;
use serde::{Deserialize, Serialize};

use super::error::GuardError;
use super::stages::{self, Stage};
use super::{GuardError as Error, callgrind, library};

/// Rounds that are counted: enough that what happens once in many turns has its share.
pub(super) const ROUNDS: u64 = 32;
/// What is wanted of a block, in instructions.
const GOAL: f64 = 60.0;
/// How much more is let pass, in per cent.
const TOLERANCE_PERCENT: f64 = 2.0;

/// Counts of every case, and what they were taken with. This is also the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Baseline {
    /// What the figures are.
    pub what: String,
    /// What they were taken with.
    pub conditions: Conditions,
    /// How much more is let pass, in per cent.
    pub tolerance_percent: f64,
    /// Each case.
    pub cases: BTreeMap<String, Case>,
}

/// What changes the counts without anybody having touched the engine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conditions {
    /// The compiler, as it signs its programs.
    pub rustc: String,
    /// The copy kernels that were chosen. Valgrind shows its programs a processor of its own: without AVX-512.
    pub kernels: String,
    /// Only said: another valgrind counts the same.
    pub valgrind: String,
    /// Rounds that were counted.
    pub rounds: u64,
}

/// One case, in instructions a block.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// All stages but the copy.
    pub total: f64,
    /// Each of them.
    pub stages: BTreeMap<Stage, f64>,
    /// The copy, which is not in the total.
    pub copy: f64,
}

/// What the counts of now come to against a baseline.
#[derive(Debug, Clone, PartialEq)]
pub struct Judgement {
    /// Cases that grew by more than the tolerance, or are gone or new.
    pub failures: Vec<String>,
    /// What to do although nothing failed.
    pub hints: Vec<String>,
}

impl Baseline {
    /// Counts every case of a program.
    pub fn measure(program: &Path) -> Result<Self, GuardError> {
        let valgrind = callgrind::version()?;
        let mut kernels = String::new();
        let mut cases = BTreeMap::new();
        for case in CASES {
            let (said, costs) = callgrind::run(program, case.name, ROUNDS)?;
            kernels = said.kernels;
            let blocks = (said.blocks * ROUNDS) as f64;
            let mut stages: BTreeMap<Stage, f64> = stages::split(program, &costs)?
                .into_iter()
                .map(|(stage, cost)| (stage, round(cost as f64 / blocks)))
                .collect();
            let copy = stages.remove(&Stage::Copy).unwrap_or(0.0);
            let total = round(stages.values().sum());
            cases.insert(case.name.to_owned(), Case { total, stages, copy });
        }
        Ok(Self {
            what: "M14: instructions a block on the hot path, the copy left out, inline engine, one thread".to_owned(),
            conditions: Conditions { rustc: compiler_of(program)?, kernels, valgrind, rounds: ROUNDS },
            tolerance_percent: TOLERANCE_PERCENT,
            cases,
        })
    }

    /// Reads a baseline.
    pub fn read(path: &Path) -> Result<Self, GuardError> {
        let text = std::fs::read_to_string(path).map_err(|source| Error::File { path: path.to_owned(), source })?;
        serde_json::from_str(&text).map_err(|source| Error::Baseline { path: path.to_owned(), source })
    }

    /// Writes this down as the baseline.
    pub fn write(&self, path: &Path) -> Result<(), GuardError> {
        let text =
            serde_json::to_string_pretty(self).map_err(|source| Error::Baseline { path: path.to_owned(), source })?;
        std::fs::write(path, text + "\n").map_err(|source| Error::File { path: path.to_owned(), source })
    }

    /// Holds the counts of now against this baseline.
    pub fn judge(&self, now: &Self) -> Result<Judgement, GuardError> {
        let say = |Conditions { rustc, kernels, rounds, .. }: &Conditions| {
            format!("{rustc}, the {kernels} kernels and {rounds} rounds")
        };
        let (then, current) = (say(&self.conditions), say(&now.conditions));
        if then != current {
            return Err(Error::OtherConditions { then, now: current });
        }
        let mut judgement = Judgement { failures: Vec::new(), hints: Vec::new() };
        for (name, case) in &now.cases {
            let Some(before) = self.cases.get(name) else {
                judgement.failures.push(format!("{name}: not in the baseline; take it anew with --update"));
                continue;
            };
            let change = 100.0 * (case.total / before.total - 1.0);
            let words =
                format!("{name}: {} instead of {} instructions a block, {change:+.1} %", case.total, before.total);
            if change > self.tolerance_percent {
                judgement.failures.push(format!("{words}; {}", grown(before, case)));
            } else if change < -self.tolerance_percent {
                judgement.hints.push(format!("{words}: better! Keep it: guard --update, and commit the baseline"));
            }
        }
        let gone = self.cases.keys().filter(|name| !now.cases.contains_key(*name));
        judgement.failures.extend(gone.map(|name| format!("{name}: in the baseline and not measured any more")));
        Ok(judgement)
    }

    /// A table for people.
    pub fn render(&self) -> String {
        let mut text = format!("{}\n{:<12}  {:>8}", self.what, "case", "total");
        let stages = [Stage::Expansion, Stage::Bounds, Stage::Post, Stage::Worker, Stage::Notify, Stage::Other];
        for stage in stages {
            let _ = write!(text, "  {:>9}", name_of(stage));
        }
        text.push_str("   (copy, not counted)\n");
        for (name, case) in &self.cases {
            let _ = write!(text, "{name:<12}  {:>8}", case.total);
            for stage in stages {
                let _ = write!(text, "  {:>9}", case.stages.get(&stage).copied().unwrap_or(0.0));
            }
            let _ = writeln!(text, "   {}", case.copy);
        }
        // What a call costs is no cost of a block.
        let of_blocks =
            self.cases.iter().filter(|(name, _)| ![library::CASES.0, library::CASES.1].contains(&name.as_str()));
        let (met, missed): (Vec<_>, Vec<_>) = of_blocks.partition(|(_, case)| case.total <= GOAL);
        for (word, cases) in [("met", met), ("MISSED", missed)] {
            let names: Vec<&str> = cases.into_iter().map(|(name, _)| name.as_str()).collect();
            if !names.is_empty() {
                let _ = writeln!(text, "goal <= {GOAL}: {word} by {}", names.join(", "));
            }
        }
        if let (Some(c), Some(rust)) = (self.cases.get(library::CASES.0), self.cases.get(library::CASES.1)) {
            let more = c.total - rust.total - rust.copy;
            let word = if more <= library::GOAL { "met" } else { "MISSED" };
            let _ = writeln!(text, "goal <= {} more through C, released as well: {word} with {more:.0}", library::GOAL);
        }
        text
    }
}

/// The stages that grew, the worst first.
fn grown(before: &Case, now: &Case) -> String {
    let at = |case: &Case, stage| case.stages.get(&stage).copied().unwrap_or(0.0);
    let mut stages: Vec<(f64, Stage)> = now
        .stages
        .keys()
        .map(|&stage| (at(now, stage) - at(before, stage), stage))
        .filter(|(more, _)| *more > 0.005)
        .collect();
    stages.sort_by(|a, b| b.0.total_cmp(&a.0));
    let words = stages.into_iter().map(|(more, stage)| format!("{} {more:+.2}", name_of(stage)));
    format!("by stage: {}", words.collect::<Vec<_>>().join(", "))
}

fn name_of(stage: Stage) -> &'static str {
    match stage {
        Stage::Expansion => "expansion",
        Stage::Bounds => "bounds",
        Stage::Post => "post",
        Stage::Worker => "worker",
        Stage::Notify => "notify",
        Stage::Other => "other",
        Stage::Copy => "copy",
    }
}

/// Thousandths of an instruction.
pub(super) fn round(figure: f64) -> f64 {
    (figure * 1e3).round() / 1e3
}

/// How the compiler signed a program: `rustc version 1.95.0 (…)`.
fn compiler_of(program: &Path) -> Result<String, GuardError> {
    const SIGNATURE: &[u8] = b"rustc version ";
    let bytes = std::fs::read(program).map_err(|source| Error::File { path: program.to_owned(), source })?;
    let at = bytes.windows(SIGNATURE.len()).position(|window| window == SIGNATURE);
    let signature = at.and_then(|at| bytes[at..].split(|&byte| byte == 0).next());
    let words = signature.map(|signature| String::from_utf8_lossy(signature).replace(" version", ""));
    Ok(words.unwrap_or_else(|| "an unknown compiler".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(bounds: f64, worker: f64) -> Baseline {
        let stages = BTreeMap::from([(Stage::Bounds, bounds), (Stage::Worker, worker)]);
        let case = Case { total: bounds + worker, stages, copy: 16.0 };
        Baseline {
            what: String::new(),
            conditions: Conditions {
                rustc: "rustc 1".to_owned(),
                kernels: "avx2".to_owned(),
                valgrind: "3".to_owned(),
                rounds: 1,
            },
            tolerance_percent: 2.0,
            cases: BTreeMap::from([("words-shm".to_owned(), case)]),
        }
    }

    #[test]
    fn more_than_the_tolerance_fails_and_names_the_stage() {
        let judgement = with(20.0, 10.0).judge(&with(20.7, 10.0)).unwrap();
        assert_eq!(judgement.failures.len(), 1);
        let words = &judgement.failures[0];
        assert!(words.contains("words-shm") && words.contains("+2.3 %") && words.contains("bounds +0.70"), "{words}");
        assert!(!words.contains("worker"), "{words}");
    }

    #[test]
    fn up_to_the_tolerance_passes_in_silence() {
        let same = Judgement { failures: Vec::new(), hints: Vec::new() };
        assert_eq!(with(20.0, 10.0).judge(&with(20.0, 10.0)).unwrap(), same);
        assert_eq!(with(20.0, 10.0).judge(&with(20.5, 10.0)).unwrap(), same);
    }

    #[test]
    fn better_passes_and_asks_for_a_new_baseline() {
        let judgement = with(20.0, 10.0).judge(&with(15.0, 10.0)).unwrap();
        assert!(judgement.failures.is_empty() && judgement.hints[0].contains("--update"));
    }

    #[test]
    fn cases_that_come_and_go_are_noticed() {
        let mut without = with(20.0, 10.0);
        without.cases.clear();
        assert_eq!(without.judge(&with(20.0, 10.0)).unwrap().failures.len(), 1);
        assert_eq!(with(20.0, 10.0).judge(&without).unwrap().failures.len(), 1);
    }

    #[test]
    fn another_compiler_or_kernel_is_not_compared() {
        let mut other = with(20.0, 10.0);
        other.conditions.kernels = "portable".to_owned();
        let words = with(20.0, 10.0).judge(&other).unwrap_err().to_string();
        assert!(words.contains("portable") && words.contains("avx2") && words.contains("--update"), "{words}");
        let mut other = with(20.0, 10.0);
        other.conditions.valgrind = "4".to_owned();
        assert!(with(20.0, 10.0).judge(&other).is_ok());
    }

    #[test]
    fn the_table_says_which_cases_miss_the_goal() {
        assert!(with(20.0, 10.0).render().contains("goal <= 60: met by words-shm"));
        assert!(with(50.0, 10.1).render().contains("goal <= 60: MISSED by words-shm"));
    }

    #[test]
    fn a_baseline_survives_its_file() {
        let written = serde_json::to_string(&with(20.0, 10.0)).unwrap();
        assert!(written.contains("\"bounds\":20.0"), "{written}");
        assert_eq!(serde_json::from_str::<Baseline>(&written).unwrap(), with(20.0, 10.0));
    }
}
