//! A lab: the instructions of the hot path are what the baseline says, and one branch more a block is noticed.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use penstock_lab::limited;

/// A build of the engine from nothing, on a slow machine.
const BUILD: Duration = Duration::from_secs(900);
/// Six cases under callgrind.
const COUNT: Duration = Duration::from_secs(300);
/// What the deliberate mistake is.
const PATCH: &str = "bench/baselines/extra-branch.patch";

/// Reports why this test cannot run here, if it cannot.
fn is_skipped(test: &str) -> bool {
    let has = |tool: &str| {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|folder| folder.join(tool).is_file())
    };
    let reason = match std::env::var("PENSTOCK_LABS") {
        Ok(value) if value == "1" => match ["valgrind", "addr2line"].into_iter().find(|tool| !has(tool)) {
            Some(tool) => format!("needs command:{tool}"),
            None => return false,
        },
        _ => "labs run when PENSTOCK_LABS=1 is set".to_owned(),
    };
    if let Some(notes) = std::env::var_os("PENSTOCK_SKIPS") {
        use std::io::Write;
        let mut notes = std::fs::OpenOptions::new().create(true).append(true).open(notes).unwrap();
        writeln!(notes, "{test}: {reason}").unwrap();
    }
    true
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap()
}

/// Builds the measured program of the sources in `tree`, and answers where it is.
fn build(tree: &Path, target: &Path, packages: &[&str]) -> PathBuf {
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    cargo.current_dir(tree).env("CARGO_TARGET_DIR", target);
    cargo.args(["build", "--quiet", "--release", "--locked"]).args(packages.iter().flat_map(|package| ["-p", package]));
    let built = limited::run(&mut cargo, BUILD).unwrap();
    assert!(built.status.success(), "{}", built.complaints);
    target.join("release/penstock-hot-path")
}

fn guard(program: &Path) -> Output {
    let mut guard = Command::new(env!("CARGO_BIN_EXE_penstock-lab"));
    guard.arg("guard").arg("--program").arg(program);
    guard.arg("--baseline").arg(root().join("bench/baselines/m14.json"));
    let ended = limited::run(&mut guard, COUNT).unwrap();
    Output { status: ended.status, stdout: ended.output.into(), stderr: ended.complaints.into() }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn the_hot_path_executes_as_many_instructions_as_the_baseline_says() {
    if is_skipped("the_hot_path_executes_as_many_instructions_as_the_baseline_says") {
        return;
    }
    // With the C library, of which a case is: beside other programs of a release, most of it is built.
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let judged = guard(&build(root(), target, &["penstock-micro", "penstock-capi"]));
    assert!(judged.status.success(), "{}{}", text(&judged.stdout), text(&judged.stderr));
}

#[test]
fn one_branch_more_for_each_block_fails_and_the_stage_is_named() {
    if is_skipped("one_branch_more_for_each_block_fails_and_the_stage_is_named") {
        return;
    }
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("extra-branch");
    let tree = place.join("tree");
    copy_sources(&tree);
    let mut patch = Command::new("git");
    // The copy lies inside a repository that does not know it: git is not to look for that one.
    patch.current_dir(&tree).env("GIT_CEILING_DIRECTORIES", &place).args(["apply", PATCH]);
    let patched = limited::run(&mut patch, COUNT).unwrap();
    assert!(patched.status.success(), "{PATCH} has to be made anew for these sources: {}", patched.complaints);
    let judged = guard(&build(&tree, &place.join("target"), &["penstock-micro"]));
    std::fs::remove_dir_all(&tree).unwrap();
    let (found, words) = (text(&judged.stdout), text(&judged.stderr));
    assert_eq!(judged.status.code(), Some(1), "{found}{words}");
    let is_blamed = |line: &&str| line.starts_with("FAILED words-") && line.contains("by stage: bounds +");
    assert_eq!(words.lines().filter(is_blamed).count(), 2, "{found}{words}");
}

/// Every file that git knows or would add, as it is now.
fn copy_sources(tree: &Path) {
    if tree.exists() {
        std::fs::remove_dir_all(tree).unwrap(); // Left by a run that was ended.
    }
    let mut git = Command::new("git");
    git.current_dir(root()).args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let listed = limited::run(&mut git, COUNT).unwrap();
    assert!(listed.status.success(), "{}", listed.complaints);
    for name in listed.output.split('\0').filter(|name| !name.is_empty() && root().join(name).is_file()) {
        let to = tree.join(name);
        std::fs::create_dir_all(to.parent().unwrap()).unwrap();
        std::fs::copy(root().join(name), to).unwrap();
    }
}
