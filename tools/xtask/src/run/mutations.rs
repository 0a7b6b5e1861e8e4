//! `xtask sim` and `xtask mutations`: many seeds of the simulation, and broken variants of the tree that it has to find.
//!
//! A variant is a patch in `tests/sim/mutations`. Its header names the invariant by which it has to be found. All of them are applied
//! to one copy of the tree, behind a switch that only this copy has, so that it is built once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::process;
use super::tally::Tally;

/// Where the patches are. The first one makes the switch.
const PATCHES: &str = "tests/sim/mutations";
/// What a header says before the name of an invariant.
const CAUGHT_BY: &str = "caught-by: ";
/// Seeds within which a variant has to be found, and that the tree without one has to pass.
const SEEDS: u64 = 2000;
/// Which variant a run is of.
const SWITCH: &str = "PENSTOCK_MUTATION";
/// Longest time of one command.
const PATIENCE: Duration = Duration::from_secs(3600);

/// Runs so many seeds, then the broken variants; ends with the sum of both.
pub(crate) fn sim(root: &Path, seeds: &str) -> Result<bool, String> {
    let mut tally = Tally::default();
    let arguments = ["run", "--quiet", "--locked", "--release", "-p", "penstock-simulation", "--bin", "penstock-sim"];
    let mut command = Command::new(cargo());
    command.current_dir(root).args(arguments).args(["--", "--seeds", seeds]);
    let ended = process::run(&mut command, PATIENCE, |line| {
        println!("{line}");
        tally += Tally::of_sum(line).unwrap_or_default();
    })?;
    if !ended.is_success() && tally.failed == 0 {
        tally += Tally::BROKEN;
    }
    tally += find(root)?;
    println!("{tally}");
    Ok(tally.is_good())
}

/// Runs the broken variants alone.
pub(crate) fn mutations(root: &Path) -> Result<bool, String> {
    let tally = find(root)?;
    println!("{tally}");
    Ok(tally.is_good())
}

fn cargo() -> std::ffi::OsString {
    std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into())
}

/// A broken variant.
#[derive(Debug, PartialEq, Eq)]
struct Mutation {
    number: u32,
    name: String,
    caught_by: String,
    patch: PathBuf,
}

impl Mutation {
    fn read(patch: &Path) -> Result<Self, String> {
        let text = fs::read_to_string(patch).map_err(|error| format!("{}: {error}", patch.display()))?;
        let stem = patch.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        Self::of(&stem, &text).map(|mutation| Self { patch: patch.to_owned(), ..mutation })
    }

    fn of(stem: &str, text: &str) -> Result<Self, String> {
        let (number, name) = stem.split_once('-').ok_or(format!("`{stem}` is not NUMBER-NAME"))?;
        let number = number.parse().map_err(|_| format!("`{stem}` does not begin with a number"))?;
        let caught_by =
            text.lines().take_while(|line| !line.starts_with("diff ")).find_map(|line| line.strip_prefix(CAUGHT_BY));
        let caught_by = match (number, caught_by) {
            (0, _) => String::new(),
            (_, Some(invariant)) => invariant.trim().to_owned(),
            (_, None) => return Err(format!("`{stem}` has no line `{CAUGHT_BY}INVARIANT` above its first file")),
        };
        Ok(Self { number, name: name.to_owned(), caught_by, patch: PathBuf::new() })
    }
}

/// Builds the copy, and holds every variant against what its header says.
fn find(root: &Path) -> Result<Tally, String> {
    let mutations = all(&root.join(PATCHES))?;
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    let scratch = target.join("mutations");
    let tree = scratch.join("tree");
    copy(root, &scratch.join("fresh"), &tree, &mutations)?;
    println!("building the tree with {} broken variants", mutations.len() - 1);
    let mut build = Command::new(cargo());
    let arguments = ["build", "--quiet", "--locked", "--release", "-p", "penstock-simulation", "--bin", "penstock-sim"];
    build.current_dir(&tree).args(arguments).env("CARGO_TARGET_DIR", scratch.join("target"));
    // It is built again whenever a patched crate changes, and runs for seconds.
    for (setting, value) in [("LTO", "off"), ("DEBUG", "0"), ("CODEGEN_UNITS", "16")] {
        build.env(format!("CARGO_PROFILE_RELEASE_{setting}"), value);
    }
    if !process::run(&mut build, PATIENCE, |line| println!("{line}"))?.is_success() {
        println!("FAILED: the tree with all broken variants does not build");
        return Ok(Tally::BROKEN);
    }
    let program = scratch.join("target/release/penstock-sim");
    let mut tally = Tally::default();
    for mutation in &mutations {
        let (passed, said, took) = run(&program, mutation)?;
        let verdict = if passed { "ok" } else { "FAILED" };
        println!(
            "{verdict:6} {:2} {:32} {:26} {:5.1} s  {said}",
            mutation.number,
            mutation.name,
            mutation.caught_by,
            took.as_secs_f64()
        );
        (tally.passed, tally.failed) = (tally.passed + usize::from(passed), tally.failed + usize::from(!passed));
    }
    Ok(tally)
}

/// Whether a variant ends as it should, and what was said last of it.
fn run(program: &Path, mutation: &Mutation) -> Result<(bool, String, Duration), String> {
    let began = Instant::now();
    let mut command = Command::new(program);
    command.args(["--seeds", &SEEDS.to_string()]).env_remove(SWITCH);
    if mutation.number > 0 {
        command.args(["--expect", &mutation.caught_by]).env(SWITCH, mutation.number.to_string());
    }
    let mut said = String::new();
    // How far it is goes to the errors, which come in between.
    let ended = process::run(&mut command, PATIENCE, |line| {
        if !line.contains(" seeds in ") || line.contains("halves") {
            said = line.to_owned();
        }
    })?;
    Ok((ended.is_success(), said, began.elapsed()))
}

/// All variants, by their numbers: the switch is the first, and no number is missing.
fn all(folder: &Path) -> Result<Vec<Mutation>, String> {
    let entries = fs::read_dir(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let paths = entries.filter_map(Result::ok).map(|entry| entry.path());
    let patches: BTreeSet<PathBuf> = paths.filter(|path| path.extension().is_some_and(|end| end == "patch")).collect();
    let mutations: Vec<Mutation> = patches.iter().map(|patch| Mutation::read(patch)).collect::<Result<_, _>>()?;
    match (0..).zip(&mutations).find(|(number, mutation)| *number != mutation.number) {
        None if !mutations.is_empty() => Ok(mutations),
        Some((number, _)) => Err(format!("{PATCHES}: there is no patch {number:02}, or there are two")),
        None => Err(format!("{PATCHES} has no patches")),
    }
}

/// Makes the copy: what is tracked, with all patches. What is the same as the last time keeps its time, so that it is not built again.
fn copy(root: &Path, fresh: &Path, tree: &Path, mutations: &[Mutation]) -> Result<(), String> {
    let _ = fs::remove_dir_all(fresh);
    let listed = Command::new("git").current_dir(root).args(["ls-files", "-z"]).output();
    let listed = listed.map_err(|error| format!("git ls-files: {error}"))?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let names: Vec<&str> = listed.split('\0').filter(|name| !name.is_empty()).collect();
    for name in &names {
        // What was removed and is not committed yet is not there.
        let Ok(bytes) = fs::read(root.join(name)) else { continue };
        let to = fresh.join(name);
        fs::create_dir_all(to.parent().unwrap_or(fresh)).map_err(|error| said(&to, &error))?;
        fs::write(&to, bytes).map_err(|error| said(&to, &error))?;
    }
    for mutation in mutations {
        let mut apply = Command::new("git");
        apply.current_dir(fresh).arg("apply").arg(&mutation.patch);
        // The copy is in the folder of a repository, whose it is not.
        apply.env("GIT_CEILING_DIRECTORIES", fresh.parent().unwrap_or(fresh));
        let mut words = Vec::new();
        let ended = process::run(&mut apply, PATIENCE, |line| words.push(line.to_owned()))?;
        if !ended.is_success() {
            return Err(format!("patch {:02}-{} does not apply: {}", mutation.number, mutation.name, words.join("; ")));
        }
    }
    let (before, now) = (files(tree, tree), files(fresh, fresh));
    for name in before.keys().filter(|name| !now.contains_key(*name)) {
        let _ = fs::remove_file(tree.join(name));
    }
    for (name, from) in &now {
        let to = tree.join(name);
        let bytes = fs::read(from).map_err(|error| said(from, &error))?;
        if fs::read(&to).is_ok_and(|there| there == bytes) {
            continue;
        }
        fs::create_dir_all(to.parent().unwrap_or(tree)).map_err(|error| said(&to, &error))?;
        fs::write(&to, bytes).map_err(|error| said(&to, &error))?;
    }
    Ok(())
}

fn said(path: &Path, error: &std::io::Error) -> String {
    format!("{}: {error}", path.display())
}

/// All files below a folder, by their names in it.
fn files(root: &Path, folder: &Path) -> BTreeMap<PathBuf, PathBuf> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok) {
        let path = entry.path();
        if path.is_dir() {
            found.append(&mut files(root, &path));
        } else if let Ok(name) = path.strip_prefix(root) {
            found.insert(name.to_owned(), path.clone());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_says_which_variant_it_is_and_by_what_it_is_caught() {
        let text = "Freed twice.\n\ncaught-by: freed_once_and_untouched\ndiff --git a/x b/x\ncaught-by: nothing\n";
        let mutation = Mutation::of("02-double-free", text).unwrap();
        assert_eq!((mutation.number, mutation.name.as_str()), (2, "double-free"));
        assert_eq!(mutation.caught_by, "freed_once_and_untouched");
        assert!(Mutation::of("02-double-free", "diff --git a/x b/x\ncaught-by: nothing\n").is_err());
        assert!(Mutation::of("two", text).is_err() && Mutation::of("x-two", text).is_err());
        assert_eq!(Mutation::of("00-switch", "diff --git a/x b/x\n").unwrap().caught_by, "");
    }

    #[test]
    fn the_variants_of_this_tree_are_numbered_without_a_gap() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap();
        let mutations = all(&root.join(PATCHES)).unwrap();
        assert!(mutations.len() > 12, "{}", mutations.len());
    }
}
