//! `xtask labs`: tests that need root, other users, devices or packages.
//!
//! A lab is an integration test of `tests/conformance`, `bench/lab`, `tests/wire` or `ffi` named `lab_…`. It is told to run by
//! `PENSTOCK_LABS=1` and says what it misses as a skip. What it needs of packages is installed first, as root.

use std::path::Path;

use super::suite::{notes_file, run_all};
use super::{binaries, packages, skips};

/// The crates whose integration tests hold the labs.
const HOMES: [&str; 4] = ["penstock-conformance", "penstock-lab", "penstock-wire", "penstock-verbs-sys"];

/// Runs every lab.
pub(crate) fn labs(root: &Path) -> Result<bool, String> {
    if !skips::is_root() {
        println!("labs: not running as root; labs that need it will be skipped");
        println!("      to run them all: sudo env \"PATH=$PATH\" \"HOME=$HOME\" make labs");
    }
    packages::provide();
    let homes = HOMES.iter().flat_map(|home| ["-p", home]);
    let arguments: Vec<&str> = homes.chain(["--tests"]).collect();
    let programs = binaries::build(&mut binaries::cargo(root), &arguments)?;
    let labs = programs.iter().filter(|program| program.is_lab());
    let outcome = run_all(labs, &notes_file(root)?, &[("PENSTOCK_LABS", "1")])?;
    Ok(super::conclude(outcome, true))
}
