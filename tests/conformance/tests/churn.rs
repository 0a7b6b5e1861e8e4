//! Peers that are killed in the middle of their transfers, one after the other, leave nothing behind, and each
//! is back within 500 ms of its start. Some of them here; `lab_churn` does it a thousand times.
#![allow(clippy::print_stderr, reason = "the figures are what a reader of the output looks for")]

use std::time::Duration;

use penstock_conformance::churn::churn;
use penstock_conformance::death::settings;

/// Deaths in each mode, and after how many the survivor is looked at first.
const CYCLES: usize = 120;
const EARLY: usize = 40;
/// The promise.
const BACK_WITHIN: Duration = Duration::from_millis(500);

#[test]
fn killed_peers_leave_nothing_behind_and_come_back() {
    for setting in settings(env!("CARGO_BIN_EXE_penstock-conformance-peer")) {
        let told = churn(&setting, EARLY, CYCLES);
        eprintln!("{setting}: {told:?}");
        // An inline engine copies on for a while before it looks: into memory of the dead, which harms nobody.
        assert!(setting.is_inline() || told.cut > 0, "{setting}: no death came in the middle of a transfer");
        // The median: a busy machine may hold up any one of them.
        assert!(told.back[0] <= BACK_WITHIN, "{setting}: {:?}", told.back);
    }
}
