//! `xtask labs`: tests that need root, other users, devices or packages.
//!
//! A lab is an integration test of `tests/conformance` named `lab_…`. It is told to run by
//! `PENSTOCK_LABS=1` and says what it misses as a skip.

use std::path::Path;

use super::binaries;
use super::skips;
use super::suite::{notes_file, run_all};

/// The crate whose integration tests hold the labs.
const HOME: &str = "penstock-conformance";

/// Runs every lab.
pub(crate) fn labs(root: &Path) -> Result<bool, String> {
    if !skips::is_root() {
        println!("labs: not running as root; labs that need it will be skipped");
        println!("      to run them all: sudo env \"PATH=$PATH\" \"HOME=$HOME\" make labs");
    }
    let programs = binaries::build(&mut binaries::cargo(root), &["-p", HOME, "--tests"])?;
    let labs = programs.iter().filter(|program| program.is_lab());
    let outcome = run_all(labs, &notes_file(root)?, &[("PENSTOCK_LABS", "1")])?;
    Ok(super::conclude(outcome, true))
}
