//! Builds test programs with Cargo and runs them one by one.
//!
//! Running them ourselves, instead of leaving it to `cargo test`, gives each a time limit, a line
//! of progress, a quiet success and a whole output on failure, and tells labs from other tests.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::failures::{self, Failure};
use super::process::{self, Ended};
use super::skips::{self, Skip};
use super::tally::Tally;

/// Longest time that one test program may take.
const LIMIT: Duration = Duration::from_secs(300);

/// The same for a lab, which may build programs of its own and break them, or run whole suites in a guest with an emulated processor.
const LAB_LIMIT: Duration = Duration::from_secs(1800);

/// Longest time that a build may take, on a slow machine and from nothing.
const BUILD_LIMIT: Duration = Duration::from_secs(1800);

/// Folders and names of test programs that leave the processors idle most of the time: they wait for deadlines, and for processes that end.
const WAITERS: [(&str, &str); 4] = [
    ("tests/faults", "ended"),
    ("tests/faults", "cards"),
    ("tests/faults", "flows_kill"),
    ("tests/conformance", "tcp_faults"),
];

/// A program full of tests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Binary {
    /// The name of its target.
    pub(crate) target: String,
    /// `lib`, `bin`, `test` and so on.
    kind: String,
    /// The folder of its package, where it is run.
    pub(crate) folder: PathBuf,
    /// The program.
    executable: PathBuf,
}

impl Binary {
    /// Whether it holds labs: an integration test named `lab_…`.
    pub(crate) fn is_lab(&self) -> bool {
        self.kind == "test" && self.target.starts_with("lab_")
    }

    /// Whether another one may run beside it.
    pub(crate) fn mostly_waits(&self) -> bool {
        WAITERS.iter().any(|(folder, name)| self.folder.ends_with(folder) && self.target == *name)
    }

    /// What a lab has to know to run it elsewhere.
    pub(crate) fn as_json(&self) -> Value {
        serde_json::json!({
            "target": self.target,
            "kind": self.kind,
            "folder": self.folder,
            "executable": self.executable,
        })
    }
}

/// What running some tests came to.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// The counts.
    pub(crate) tally: Tally,
    /// What was skipped, and why.
    pub(crate) skips: Vec<Skip>,
    /// What failed, and why.
    pub(crate) failures: Vec<Failure>,
}

/// How lines begin that are to be seen at once: those of labs with a harness of their own.
const NOTE: &str = "    ";

impl Outcome {
    /// Adds what another run came to.
    pub(crate) fn add(&mut self, other: Self) {
        self.tally += other.tally;
        self.skips.extend(other.skips);
        self.failures.extend(other.failures);
    }
}

/// `cargo`, from the root of the repository.
pub(crate) fn cargo(root: &Path) -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(root);
    command
}

/// Says to tests that the libraries for C and Python are built: in one build with all else, since a build of them alone
/// would choose other features of what they stand on, and compile it all a second time.
pub(super) const LIBRARIES_ARE_BUILT: &str = "PENSTOCK_LIBRARIES_ARE_BUILT";

/// Builds tests and libraries and gives the test programs, or what the compiler said.
pub(crate) fn build(command: &mut Command, arguments: &[&str]) -> Result<Vec<Binary>, String> {
    command.args(["build", "--quiet", "--lib", "--tests", "--message-format=json-render-diagnostics"]).args(arguments);
    let (mut binaries, mut said) = (Vec::new(), Vec::new());
    let ended = process::run(command, BUILD_LIMIT, |line| match serde_json::from_str(line) {
        Ok(message) => binaries.extend(of_message(&message)),
        Err(_) => said.push(line.to_string()),
    })?;
    if ended.is_success() { Ok(binaries) } else { Err(said.join("\n")) }
}

/// The test program that a message of Cargo announces, if it does.
fn of_message(message: &Value) -> Option<Binary> {
    let is_test = message["reason"] == "compiler-artifact" && message["profile"]["test"] == true;
    let executable = message["executable"].as_str().filter(|_| is_test)?;
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?;
    Some(Binary {
        target: message["target"]["name"].as_str()?.into(),
        kind: message["target"]["kind"][0].as_str()?.into(),
        folder: folder.into(),
        executable: executable.into(),
    })
}

/// Runs one program of tests, shows one line about it, and its output if something failed.
pub(crate) fn run(binary: &Binary, notes: &Path, environment: &[(&str, &str)]) -> Result<Outcome, String> {
    std::fs::write(notes, "").map_err(|error| format!("cannot write {}: {error}", notes.display()))?;
    let mut command = Command::new(&binary.executable);
    command.current_dir(&binary.folder).env("CARGO_MANIFEST_DIR", &binary.folder).env("PENSTOCK_SKIPS", notes);
    command.env(LIBRARIES_ARE_BUILT, "1");
    command.envs(environment.iter().copied());
    let started = Instant::now();
    let mut output = Vec::new();
    let limit = if binary.is_lab() { LAB_LIMIT } else { LIMIT };
    let ended = process::run(&mut command, limit, |line| {
        // What a lab writes down while it runs: how far it is, and what it has measured.
        if binary.is_lab() && line.starts_with(NOTE) {
            println!("{line}");
        }
        output.push(line.to_string());
    })?;
    let noted = std::fs::read_to_string(notes).unwrap_or_default();
    let mut outcome = judge(&ended, &output, skips::parse_file(&noted));
    let name = format!("{} ({})", binary.target, binary.kind);
    if outcome.tally.failed > outcome.failures.len() {
        outcome.failures.push(Failure::broken(&name, &end_words(&ended), &output));
    }
    let seconds = started.elapsed().as_secs_f64();
    if outcome.tally == Tally::default() {
        return Ok(outcome);
    }
    println!("  {name:<36} {:<38} {seconds:>6.1} s", outcome.tally.to_string());
    if outcome.tally.failed > 0 {
        println!("  ---- output of {name} ----\n{}\n  ---- {} ----", output.join("\n"), end_words(&ended));
    }
    Ok(outcome)
}

/// What a program's output and end come to. Programs that tests start may print results of their
/// own, so only the last one counts; a program that ends without one has broken.
fn judge(ended: &Ended, output: &[String], noted: Vec<Skip>) -> Outcome {
    let result = output.iter().rev().find_map(|line| Tally::of_line(line));
    let mut tally = result.unwrap_or_default();
    let has_broken = result.is_none() || (!ended.is_success() && tally.failed == 0);
    if has_broken {
        tally += Tally::BROKEN;
    }
    tally.skip(noted.len());
    let ignored = output.iter().filter_map(|line| skips::parse_ignored(line));
    // Programs that tests start may have failed on purpose.
    let failures = if tally.failed > 0 { failures::parse(output) } else { Vec::new() };
    Outcome { tally, skips: ignored.chain(noted).collect(), failures }
}

fn end_words(ended: &Ended) -> String {
    match ended {
        Ended::Itself(status) => format!("ended with {status}"),
        Ended::TooLate(limit) => format!("ended by force after {} s", limit.as_secs()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::ExitStatus;

    use super::*;

    const OK: &str = "test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out";

    fn exit(code: i32) -> Ended {
        Ended::Itself(ExitStatus::from_raw(code << 8))
    }

    fn judged(ended: &Ended, output: &[&str], noted: &str) -> Tally {
        let output: Vec<String> = output.iter().map(ToString::to_string).collect();
        judge(ended, &output, skips::parse_file(noted)).tally
    }

    #[test]
    fn only_the_last_result_counts() {
        let child = "test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 9 filtered out";
        assert_eq!(judged(&exit(0), &[child, OK], ""), Tally { passed: 3, failed: 0, skipped: 1 });
    }

    #[test]
    fn a_program_that_breaks_has_failed() {
        assert_eq!(judged(&exit(0), &["running 3 tests"], "").failed, 1);
        assert_eq!(judged(&exit(101), &[OK], "").failed, 1);
        assert_eq!(judged(&Ended::TooLate(LIMIT), &[], "").failed, 1);
    }

    #[test]
    fn noted_skips_are_not_passes() {
        assert_eq!(judged(&exit(0), &[OK], "a: needs root\n"), Tally { passed: 2, failed: 0, skipped: 2 });
    }

    #[test]
    fn test_programs_are_told_from_other_artifacts() {
        let mut message = serde_json::json!({
            "reason": "compiler-artifact",
            "manifest_path": "/repo/tests/conformance/Cargo.toml",
            "target": { "name": "lab_foreign_user", "kind": ["test"] },
            "profile": { "test": true },
            "executable": "/repo/target/debug/deps/lab_foreign_user-1",
        });
        let binary = of_message(&message).expect("a test program");
        assert!(binary.is_lab());
        assert_eq!(binary.folder, Path::new("/repo/tests/conformance"));
        message["profile"]["test"] = false.into();
        assert_eq!(of_message(&message), None);
    }
}
