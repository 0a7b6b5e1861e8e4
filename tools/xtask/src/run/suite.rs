//! `xtask test`: every suite that needs neither root nor a prepared machine.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::binaries::{self, Outcome};
use super::failures::Failure;
use super::process;
use super::tally::Tally;
use crate::tree;

/// Longest time that all documentation tests together may take.
const DOC_LIMIT: Duration = Duration::from_secs(900);

/// How many times loom lets one thread be interrupted; three find nearly every bug and end in seconds.
const LOOM_PREEMPTIONS: &str = "3";

/// What turns the release profile into one that compiles soon: of everything that loom brings
/// along only loom itself and its coroutines have work to do.
const LOOM_PROFILE: [&str; 7] = [
    "profile.release.lto=\"off\"",
    "profile.release.debug=\"none\"",
    "profile.release.codegen-units=16",
    "profile.release.debug-assertions=true",
    "profile.release.package.\"*\".opt-level=0",
    "profile.release.package.loom.opt-level=3",
    "profile.release.package.generator.opt-level=3",
];

/// A step's name, what it is, and how it is run.
struct Step {
    name: &'static str,
    what: &'static str,
    run: fn(&Path) -> Result<Outcome, String>,
}

const STEPS: [Step; 3] = [
    Step { name: "unit", what: "unit and integration tests of all crates", run: unit },
    Step { name: "loom", what: "concurrency models, every interleaving", run: loom },
    Step { name: "docs", what: "examples in the documentation", run: docs },
];

/// Runs the named steps, or all; true if nothing failed and something ran.
pub(crate) fn test(root: &Path, names: &[String]) -> Result<bool, String> {
    if let Some(unknown) = names.iter().find(|name| STEPS.iter().all(|step| step.name != name.as_str())) {
        let known: Vec<&str> = STEPS.iter().map(|step| step.name).collect();
        return Err(format!("there is no step {unknown}; the steps are: {}", known.join(" ")));
    }
    let chosen = STEPS.iter().filter(|step| names.is_empty() || names.iter().any(|name| name == step.name));
    let mut total = Outcome::default();
    for step in chosen {
        println!("{}: {}", step.name, step.what);
        let started = Instant::now();
        let outcome = (step.run)(root).unwrap_or_else(|message| {
            println!("{message}");
            let said: Vec<String> = message.lines().map(str::to_owned).collect();
            let failures = vec![Failure::broken(step.name, "it did not come to its end", &said)];
            Outcome { tally: Tally::BROKEN, failures, ..Outcome::default() }
        });
        println!("{}: {} in {:.0} s\n", step.name, outcome.tally, started.elapsed().as_secs_f64());
        total.add(outcome);
    }
    Ok(super::conclude(total, false))
}

/// What a build from nothing takes of the disk. Where it is full a linker dies of a signal, and nothing says why.
const BUILD_BYTES: u64 = 8 << 30;

fn unit(root: &Path) -> Result<Outcome, String> {
    let started = Instant::now();
    if let Some(free) = free_bytes(root).filter(|&free| free < BUILD_BYTES) {
        let (free, needed) = (free as f64 / 1e9, BUILD_BYTES as f64 / 1e9);
        println!(
            "  only {free:.1} GB are free for {}, and all of it takes up to {needed:.0}: see `cargo clean`",
            root.display()
        );
    }
    let programs = binaries::build(&mut binaries::cargo(root), &["--workspace"])?;
    println!("  built in {:.0} s", started.elapsed().as_secs_f64());
    let outcome = run_all(programs.iter().filter(|program| !program.is_lab()), &notes_file(root)?, &[])?;
    not_empty(outcome)
}

/// What the file system has left, if `df` says it.
fn free_bytes(root: &Path) -> Option<u64> {
    let said = Command::new("df").args(["--output=avail", "--block-size=1"]).arg(root).output().ok()?;
    String::from_utf8(said.stdout).ok()?.lines().nth(1)?.trim().parse().ok()
}

/// Refuses a step that ran nothing: it would stay green for ever.
fn not_empty(outcome: Outcome) -> Result<Outcome, String> {
    if outcome.tally == Tally::default() { Err("no test was found".into()) } else { Ok(outcome) }
}

/// Runs programs one after the other, and beside them, one after the other too, those that mostly wait.
pub(super) fn run_all<'a>(
    programs: impl Iterator<Item = &'a binaries::Binary>,
    notes: &Path,
    environment: &[(&str, &str)],
) -> Result<Outcome, String> {
    let (waiting, working): (Vec<_>, Vec<_>) = programs.partition(|program| program.mostly_waits());
    let run_each = |programs: &[&binaries::Binary], notes: &Path| {
        let mut total = Outcome::default();
        for program in programs {
            total.add(binaries::run(program, notes, environment)?);
        }
        Ok::<_, String>(total)
    };
    std::thread::scope(|scope| {
        let beside = scope.spawn(|| run_each(&waiting, &notes.with_extension("beside")));
        let total = run_each(&working, notes);
        let beside = beside.join().map_err(|_| "what runs test programs has panicked".to_owned())?;
        let mut total = total?;
        total.add(beside?);
        Ok(total)
    })
}

/// Models of the crates that depend on loom. They are compiled with `--cfg loom`, so they get a
/// target folder of their own, and optimised, since they run a body tens of thousands of times.
fn loom(root: &Path) -> Result<Outcome, String> {
    let metadata = tree::metadata(root, &["--no-deps"])?;
    let manifests = tree::manifests(&metadata, root)?;
    let modelled = manifests.iter().filter(|manifest| manifest.dependencies.iter().any(|other| other.name == "loom"));
    let packages: Vec<&str> = modelled.flat_map(|manifest| ["-p", manifest.name.as_str()]).collect();
    if packages.is_empty() {
        return Err("no crate depends on loom, so there is nothing to model".into());
    }
    let quick = LOOM_PROFILE.iter().flat_map(|setting| ["--config", setting]).collect::<Vec<_>>();
    let arguments = [&["--release"], quick.as_slice(), packages.as_slice()].concat();
    let folder = target_folder(&metadata)?.join("loom");
    let mut cargo = binaries::cargo(root);
    cargo.env("CARGO_TARGET_DIR", folder).env("RUSTFLAGS", "--cfg loom");
    let started = Instant::now();
    let programs = binaries::build(&mut cargo, &arguments)?;
    println!("  built in {:.0} s", started.elapsed().as_secs_f64());
    let preemptions = std::env::var("LOOM_MAX_PREEMPTIONS").unwrap_or_else(|_| LOOM_PREEMPTIONS.into());
    not_empty(run_all(programs.iter(), &notes_file(root)?, &[("LOOM_MAX_PREEMPTIONS", &preemptions)])?)
}

/// Examples in doc comments; Cargo runs these, their output is kept for a failure.
fn docs(root: &Path) -> Result<Outcome, String> {
    let mut command: Command = binaries::cargo(root);
    command.args(["test", "--workspace", "--doc"]);
    let (mut tally, mut output) = (Tally::default(), Vec::new());
    let ended = process::run(&mut command, DOC_LIMIT, |line| {
        tally += Tally::of_line(line).unwrap_or_default();
        output.push(line.to_string());
    })?;
    if !ended.is_success() && tally.failed == 0 {
        tally += Tally::BROKEN;
    }
    if tally.failed > 0 {
        println!("{}", output.join("\n"));
    }
    let skips = output.iter().filter_map(|line| super::skips::parse_ignored(line)).collect();
    Ok(Outcome { tally, skips, failures: super::failures::parse(&output) })
}

/// The file in which a test program notes what it skips.
pub(super) fn notes_file(root: &Path) -> Result<PathBuf, String> {
    let folder = target_folder(&tree::metadata(root, &["--no-deps"])?)?;
    Ok(folder.join(format!("skips-{}.txt", std::process::id())))
}

fn target_folder(metadata: &serde_json::Value) -> Result<PathBuf, String> {
    metadata["target_directory"].as_str().map(PathBuf::from).ok_or_else(|| "cargo names no target folder".into())
}
