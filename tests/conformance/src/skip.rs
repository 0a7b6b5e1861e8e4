//! A test that cannot run here says so.

use std::io::Write;

/// Reports that the test of this name did not run, and why, where `PENSTOCK_SKIPS` asks for it.
pub fn report(test: &str, reason: &str) {
    let Some(path) = std::env::var_os("PENSTOCK_SKIPS") else { return };
    let opened = std::fs::OpenOptions::new().create(true).append(true).open(path);
    let mut notes = opened.expect("the file that PENSTOCK_SKIPS names can be written");
    writeln!(notes, "{test}: {reason}").expect("the file that PENSTOCK_SKIPS names can be written");
}

/// Why a lab that needs root cannot run here, if it cannot.
pub fn lab_reason() -> Option<&'static str> {
    labs_are_off().or_else(|| (!rustix::process::geteuid().is_root()).then_some("needs root"))
}

/// Why a lab that needs no root cannot run here, if it cannot.
pub fn labs_are_off() -> Option<&'static str> {
    let are_on = std::env::var_os("PENSTOCK_LABS").is_some_and(|value| value == "1");
    (!are_on).then_some("labs run when PENSTOCK_LABS=1 is set")
}
