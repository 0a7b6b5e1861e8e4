//! The smallest transfer through the C library: a C program of its own, linked with the library beside the measured program.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::baseline::{Baseline, Case, ROUNDS, round};
use super::callgrind;
use super::error::GuardError;
use super::stages::Stage;
use crate::ends::Folder;
use crate::limited;

/// The case of C, and the one of Rust that does the same.
pub(super) const CASES: (&str, &str) = ("one-local-c", "one-local");
/// How much more than Rust a transfer through C may take, in instructions: submitting, looking and releasing.
pub(super) const GOAL: f64 = 100.0;

const SOURCE: &str = include_str!("../../../micro/src/hot_path.c");
const HEADER: &str = include_str!("../../../../ffi/capi/penstock.h");
/// Compiling a hundred lines.
const LIMIT: Duration = Duration::from_secs(60);

/// Counts it, where the library is; where it is not, the baseline says that it is missing.
pub(super) fn add(program: &Path, counted: &mut Baseline) -> Result<(), GuardError> {
    let library = program.with_file_name("libpenstock.so");
    if !library.is_file() {
        return Ok(());
    }
    let failed = |words: String| GuardError::Failed { tool: "cc", words };
    let folder = Folder::create().map_err(|error| failed(error.to_string()))?;
    let at = |name: &str| folder.path().join(name);
    for (name, text) in [("hot_path.c", SOURCE), ("penstock.h", HEADER)] {
        std::fs::write(at(name), text).map_err(|source| GuardError::File { path: at(name), source })?;
    }
    // Programs look for it by its name.
    let named = at("libpenstock.so.0");
    std::os::unix::fs::symlink(&library, &named).map_err(|source| GuardError::File { path: named.clone(), source })?;
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-Wl,-z,now", "-I"])
        .arg(folder.path())
        .arg("-o")
        .arg(at("hot_path"))
        .arg(at("hot_path.c"))
        .arg(&named);
    cc.arg(format!("-Wl,-rpath,{}", folder.path().display()));
    let ended = limited::run(&mut cc, LIMIT).map_err(|source| GuardError::Tool { package: "gcc", source })?;
    if !ended.status.success() {
        return Err(failed(ended.complaints));
    }
    let (_, costs) = callgrind::run(&at("hot_path"), CASES.1, ROUNDS)?;
    let total = round(costs.sum() as f64 / ROUNDS as f64);
    let stages = BTreeMap::from([(Stage::Other, total)]);
    counted.cases.insert(CASES.0.to_owned(), Case { total, stages, copy: 0.0 });
    Ok(())
}
