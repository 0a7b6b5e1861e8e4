//! A test that cannot run here says so.

use std::io::Write;

/// Reports that the test of this name did not run, and why, where `PENSTOCK_SKIPS` asks for it.
pub fn report(test: &str, reason: &str) {
    let Some(path) = std::env::var_os("PENSTOCK_SKIPS") else { return };
    let opened = std::fs::OpenOptions::new().create(true).append(true).open(path);
    let mut notes = opened.expect("the file that PENSTOCK_SKIPS names can be written");
    writeln!(notes, "{test}: {reason}").expect("the file that PENSTOCK_SKIPS names can be written");
}

/// Why a lab that any user may run cannot run here, if it cannot.
pub fn lab_reason_for_anybody() -> Option<&'static str> {
    let is_set = std::env::var_os("PENSTOCK_LABS").is_some_and(|value| value == "1");
    (!is_set).then_some("labs run when PENSTOCK_LABS=1 is set")
}

/// Why a lab that needs root cannot run here, if it cannot.
pub fn lab_reason() -> Option<&'static str> {
    if let Some(reason) = lab_reason_for_anybody() {
        return Some(reason);
    }
    (!rustix::process::geteuid().is_root()).then_some("needs root")
}
