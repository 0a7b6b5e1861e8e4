//! A test program of this project, run in a guest: every test of it that passed, failed or did not run, by its name.

use std::time::{Duration, Instant};

use crate::programs::TestProgram;
use crate::{End, Guest, Job, LabError};

/// How one test ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It ran and held.
    Passed,
    /// It ran and did not hold.
    Failed,
    /// It did not run, for this reason.
    Skipped(String),
}

/// What a run of a program came to.
#[derive(Debug, Clone)]
pub struct Report {
    /// Its tests, in the order in which they ended.
    pub tests: Vec<(String, Verdict)>,
    /// Why the run as a whole cannot be believed, if it cannot.
    pub broken: Option<String>,
    /// All that it said.
    pub output: String,
    /// How long it took, by the guest's clock.
    pub took: Duration,
}

/// How a program is to be run.
#[derive(Debug, Clone)]
pub struct Suite {
    program: TestProgram,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    limit: Duration,
    /// Tests run at the same time.
    threads: usize,
}

/// How often it is told how far a program is.
const TELLS_EVERY: Duration = Duration::from_secs(20);

/// Where tests note what they skip.
const NOTES: &str = "/run/penstock-skips";

impl Suite {
    /// All tests of a program, one at a time, within five minutes.
    pub fn new(program: TestProgram) -> Self {
        let (arguments, environment) = (Vec::new(), Vec::new());
        Self { program, arguments, environment, limit: Duration::from_secs(300), threads: 1 }
    }

    /// Adds an argument: part of the names of tests to run, `--skip` and the like.
    #[must_use]
    pub fn argument(mut self, argument: impl Into<String>) -> Self {
        self.arguments.push(argument.into());
        self
    }

    /// Sets a variable of its environment.
    #[must_use]
    pub fn variable(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// How long it may take.
    #[must_use]
    pub fn within(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// How many tests run at the same time.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Runs it in a guest. `progress` is told now and then how far it is, and at once of a test that failed.
    pub fn run(&self, guest: &Guest, progress: &dyn Fn(&str)) -> Result<Report, LabError> {
        guest.check(&Job::new("rm").arguments(["-f", NOTES]))?;
        let folder = self.program.folder.to_string_lossy();
        let mut job = Job::new(self.program.executable.to_string_lossy())
            .argument(format!("--test-threads={}", self.threads))
            .arguments(self.arguments.clone())
            .variable("CARGO_MANIFEST_DIR", folder.clone())
            .variable("PENSTOCK_SKIPS", NOTES)
            .within_folder(folder)
            .within(self.limit);
        for (name, value) in &self.environment {
            job = job.variable(name, value);
        }
        let mut watched = Watched::new(Instant::now());
        let finished = guest.spawn(&job)?.follow(|line| {
            if let Some(words) = watched.see(&line.text, Instant::now()) {
                progress(&words);
            }
        })?;
        let notes = guest.check(&Job::shell(format!("cat {NOTES} 2>/dev/null || true")))?;
        let text = finished.lines.iter().fold(String::new(), |text, line| text + &line.text + "\n");
        Ok(read(text, &notes, &finished.end, finished.took))
    }
}

/// What is told while a program runs.
struct Watched {
    ended: usize,
    told: Instant,
}

impl Watched {
    fn new(now: Instant) -> Self {
        Self { ended: 0, told: now }
    }

    /// A line was said. Answers what is worth telling.
    fn see(&mut self, line: &str, now: Instant) -> Option<String> {
        let (name, verdict) = verdict(line)?;
        self.ended += 1;
        if verdict == Verdict::Failed {
            return Some(format!("{name} FAILED"));
        }
        if now.duration_since(self.told) < TELLS_EVERY {
            return None;
        }
        self.told = now;
        Some(format!("{} tests so far, the last was {name}", self.ended))
    }
}

/// Reads what a program's harness has said.
fn read(output: String, notes: &str, end: &End, took: Duration) -> Report {
    let mut tests: Vec<(String, Verdict)> = output.lines().filter_map(verdict).collect();
    // The harness takes a test that returned for one that ran.
    for (test, reason) in notes.lines().filter_map(|line| line.split_once(": ")) {
        let known = tests.iter_mut().find(|(name, _)| name == test || name.ends_with(&format!("::{test}")));
        match known {
            Some((_, verdict)) => *verdict = Verdict::Skipped(reason.to_owned()),
            None => tests.push((test.to_owned(), Verdict::Skipped(reason.to_owned()))),
        }
    }
    let any_failed = tests.iter().any(|(_, verdict)| *verdict == Verdict::Failed);
    let promised = output.lines().find_map(promised);
    let counted = output.lines().filter_map(verdict).count();
    let broken = match (end, promised) {
        (End::Status(0), _) if any_failed => Some("it says that all is well, yet tests have failed".to_owned()),
        (End::Status(0), Some(promised)) if promised != counted => {
            Some(format!("it was to run {promised} tests and tells of {counted}"))
        }
        (End::Status(0), None) => Some("it did not say how many tests it was to run".to_owned()),
        (End::Status(0), Some(0)) => Some("it ran no test".to_owned()),
        (End::Status(0), Some(_)) => None,
        (End::Status(_), _) if any_failed => None,
        (end, _) => Some(format!("it {end}")),
    };
    Report { tests, broken, output, took }
}

/// The number in `running 12 tests`.
fn promised(line: &str) -> Option<usize> {
    let rest = line.strip_prefix("running ")?;
    rest.strip_suffix(" tests").or_else(|| rest.strip_suffix(" test"))?.parse().ok()
}

/// The verdict in a line like `test a::b ... ok`.
fn verdict(line: &str) -> Option<(String, Verdict)> {
    let (name, word) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let name = name.strip_suffix(" - should panic").unwrap_or(name);
    let verdict = match word {
        "ok" => Verdict::Passed,
        "FAILED" => Verdict::Failed,
        _ => Verdict::Skipped(word.strip_prefix("ignored")?.trim_start_matches([',', ' ']).to_owned()),
    };
    Some((name.to_owned(), verdict))
}

impl Report {
    /// The part of the output that tells why tests failed.
    pub fn failures(&self) -> &str {
        self.output.find("\nfailures:\n").map_or(self.output.as_str(), |from| &self.output[from..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "\nrunning 3 tests\ntest a::b ... ok\ntest c ... ignored, takes an hour\ntest a::d ... ok\n\n\
                        test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out\n";

    fn of(output: &str, notes: &str, end: End) -> Report {
        read(output.to_owned(), notes, &end, Duration::ZERO)
    }

    #[test]
    fn every_test_has_its_verdict() {
        let report = of(GOOD, "d: needs root\n", End::Status(0));
        let skipped = |reason: &str| Verdict::Skipped(reason.to_owned());
        let verdicts: Vec<_> = report.tests.iter().map(|(name, verdict)| (name.as_str(), verdict.clone())).collect();
        let expected = [("a::b", Verdict::Passed), ("c", skipped("takes an hour")), ("a::d", skipped("needs root"))];
        assert_eq!(verdicts, expected);
        assert_eq!(report.broken, None);
    }

    #[test]
    fn a_failure_is_told_at_once_and_other_things_now_and_then() {
        let begun = Instant::now();
        let mut watched = Watched::new(begun);
        assert_eq!(watched.see("running 3 tests", begun + TELLS_EVERY), None);
        assert_eq!(watched.see("test a ... ok", begun), None);
        assert_eq!(watched.see("test b ... FAILED", begun).as_deref(), Some("b FAILED"));
        let told = watched.see("test c ... ok", begun + TELLS_EVERY);
        assert_eq!(told.as_deref(), Some("3 tests so far, the last was c"));
        assert_eq!(watched.see("test d ... ok", begun + TELLS_EVERY), None);
    }

    #[test]
    fn a_run_that_broke_off_is_not_believed() {
        let cut = GOOD.split_once("test a::d").expect("it is there").0;
        assert!(of(cut, "", End::Signal(9)).broken.is_some());
        assert!(of(cut, "", End::TooLate).broken.is_some());
        assert!(of(cut, "", End::Status(0)).broken.is_some(), "a test is missing");
        assert!(of("", "", End::Status(0)).broken.is_some());
        assert!(of("running 0 tests\n", "", End::Status(0)).broken.is_some());
        assert!(of(GOOD, "", End::Status(101)).broken.is_some(), "it failed, and no test did");
        let failed = GOOD.replace("test a::d ... ok", "test a::d ... FAILED");
        assert_eq!(of(&failed, "", End::Status(101)).broken, None);
        assert!(of(&failed, "", End::Status(0)).broken.is_some());
    }
}
