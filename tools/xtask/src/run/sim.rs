//! `xtask sim` and `xtask planted`: many seeds of the simulation, fixed ones and fresh ones, and the bugs planted in the tree that it has to find.
//!
//! The bugs are hooks in the source (`engine/core/src/planted.rs`), compiled in under `--cfg planted` only. That build has a folder of
//! its own. It is made once and runs everything: with no bug planted a hook is a look at one flag.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::process;
use super::tally::Tally;

/// Seeds within which a planted bug has to be found. The rarest needs 3,560, and each stops at its first.
const SEEDS: u64 = 6000;
/// Seeds that each run adds to the fixed ones, at most as many again. Those that everybody runs find nothing new in a tree that has passed them.
const FRESH_SEEDS: u64 = 1000;
/// Where the first of them lies.
const FRESH_FROM: u64 = 1_000_000_000;
const FRESH_UP_TO: u64 = 1_000_000_000_000;
/// Longest time of one command.
const COMMAND_TIME_MAX: Duration = Duration::from_secs(3600);

/// Runs so many seeds from 0 on, then fresh ones, then the planted bugs; ends with the sum of all.
pub(crate) fn sim(root: &Path, seeds: &str) -> Result<bool, String> {
    let Some(program) = build(root)? else { return conclude(Tally::BROKEN) };
    let mut broken = Vec::new();
    let mut tally = run_seeds(&program, &["--seeds", seeds], &mut broken)?;
    let (base, fresh) = (
        fresh_base(RandomState::new().hash_one(seeds)),
        seeds.parse().unwrap_or(FRESH_SEEDS).min(FRESH_SEEDS).to_string(),
    );
    println!("{fresh} fresh seeds from {base} on; all of them again: penstock-sim --from {base} --seeds {fresh}");
    tally += run_seeds(&program, &["--from", &base.to_string(), "--seeds", &fresh], &mut broken)?;
    tally += find_planted(&program, &[])?;
    // The planted bugs have said much since.
    broken.iter().for_each(|line| println!("{line}"));
    conclude(tally)
}

fn conclude(tally: Tally) -> Result<bool, String> {
    println!("{tally}");
    Ok(tally.is_good())
}

/// Runs the simulation with these options, counts what it says to have run, and keeps what it says of seeds that fail.
fn run_seeds(program: &Path, options: &[&str], broken: &mut Vec<String>) -> Result<Tally, String> {
    let mut tally = Tally::default();
    let ended = process::run(Command::new(program).args(options), COMMAND_TIME_MAX, |line| {
        println!("{line}");
        if line.starts_with("seed ") {
            broken.push(line.to_owned());
        }
        tally += Tally::of_sum(line).unwrap_or_default();
    })?;
    if !ended.is_success() && tally.failed == 0 {
        tally += Tally::BROKEN;
    }
    Ok(tally)
}

/// The first of the fresh seeds. Those from 0 on are run by everybody, so it is far behind them; and short enough to be typed.
fn fresh_base(random: u64) -> u64 {
    FRESH_FROM + random % (FRESH_UP_TO - FRESH_FROM)
}

/// Runs the planted bugs alone: all, or those of these names.
pub(crate) fn planted(root: &Path, names: &[String]) -> Result<bool, String> {
    let Some(program) = build(root)? else { return conclude(Tally::BROKEN) };
    conclude(find_planted(&program, names)?)
}

fn cargo() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// A planted bug, as the simulation lists it.
#[derive(Debug, PartialEq, Eq)]
struct Planted {
    name: String,
    caught_by: String,
}

impl Planted {
    /// A line of the list: the name, and the invariant that has to catch it.
    fn of(line: &str) -> Option<Self> {
        let (name, caught_by) = line.split_once(' ')?;
        Some(Self { name: name.to_owned(), caught_by: caught_by.trim().to_owned() })
    }
}

/// Builds the simulation with its hooks. None where that fails, which has been told.
fn build(root: &Path) -> Result<Option<PathBuf>, String> {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from).join("planted");
    println!("building the simulation with planted bugs");
    let mut build = Command::new(cargo());
    let arguments = ["build", "--quiet", "--locked", "--release", "-p", "penstock-simulation", "--bin", "penstock-sim"];
    build.current_dir(root).args(arguments).env("CARGO_TARGET_DIR", &target).env("RUSTFLAGS", "--cfg planted");
    // Lines are named by nobody, and what runs once is not optimised across crates. Each crate is optimised as it is used: without
    // that each seed takes half as long again.
    build.env("CARGO_PROFILE_RELEASE_DEBUG", "0").env("CARGO_PROFILE_RELEASE_LTO", "off");
    build.env("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16");
    if !process::run(&mut build, COMMAND_TIME_MAX, |line| println!("{line}"))?.is_success() {
        println!("FAILED: the simulation with planted bugs does not build");
        return Ok(None);
    }
    Ok(Some(target.join("release/penstock-sim")))
}

/// Holds every bug, or those of these names, against the invariant that it names.
fn find_planted(program: &Path, names: &[String]) -> Result<Tally, String> {
    let mut bugs = Vec::new();
    process::run(Command::new(program).arg("--planted"), COMMAND_TIME_MAX, |line| bugs.extend(Planted::of(line)))?;
    if bugs.is_empty() {
        println!("FAILED: the simulation lists no planted bugs: was it built with its hooks?");
        return Ok(Tally::BROKEN);
    }
    if let Some(name) = names.iter().find(|name| bugs.iter().all(|bug| bug.name != **name)) {
        return Err(format!("`{name}` is no planted bug: engine/core/src/planted.rs lists them"));
    }
    let chosen = bugs.iter().filter(|bug| names.is_empty() || names.contains(&bug.name));
    let mut tally = Tally::default();
    for bug in chosen {
        let (passed, last, took) = run(program, bug)?;
        let Planted { name, caught_by } = bug;
        let verdict = if passed { "ok" } else { "FAILED" };
        println!("{verdict:6} {name:36} {caught_by:26} {:5.1} s  {last}", took.as_secs_f64());
        (tally.passed, tally.failed) = (tally.passed + usize::from(passed), tally.failed + usize::from(!passed));
    }
    Ok(tally)
}

/// Whether a run with this bug ends as it should, and the last line that it printed.
fn run(program: &Path, bug: &Planted) -> Result<(bool, String, Duration), String> {
    let began = Instant::now();
    let mut command = Command::new(program);
    command.args(["--seeds", &SEEDS.to_string(), "--plant", &bug.name]);
    let mut last = String::new();
    // Progress goes to stderr, and comes in between.
    let ended = process::run(&mut command, COMMAND_TIME_MAX, |line| {
        if !line.contains(" seeds in ") || line.contains("halves") {
            last = line.to_owned();
        }
    })?;
    Ok((ended.is_success(), last, began.elapsed()))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn fresh_seeds_are_none_of_the_fixed_ones_and_others_each_time() {
        for random in [0, 1, FRESH_UP_TO, u64::MAX] {
            assert!((FRESH_FROM..FRESH_UP_TO).contains(&fresh_base(random)), "{random}");
        }
        let bases: BTreeSet<u64> = (0..20).map(|_| fresh_base(RandomState::new().hash_one(""))).collect();
        assert!(bases.len() > 1, "{bases:?}");
    }

    #[test]
    fn a_line_of_the_list_names_a_bug_and_what_catches_it() {
        let bug = Planted::of("double-free freed_once_and_untouched").unwrap();
        assert_eq!((bug.name.as_str(), bug.caught_by.as_str()), ("double-free", "freed_once_and_untouched"));
        assert_eq!(Planted::of("building"), None);
    }
}
