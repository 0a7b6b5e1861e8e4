//! A lab: a thousand peers are killed in the middle of their transfers, one after the other. What the
//! survivor holds after them all is what it held after the first hundred.
#![allow(clippy::print_stderr, reason = "the figures are what a reader of the output looks for")]

use std::time::Duration;

use penstock_conformance::churn::churn;
use penstock_conformance::death::settings;
use penstock_conformance::skip;

const CYCLES: usize = 1000;
const EARLY: usize = 100;
/// The promise. The scheduler of a busy machine may break it once in a thousand: it is held by all but one in a
/// hundred, and the slowest is told.
const BACK_WITHIN: Duration = Duration::from_millis(500);

#[test]
fn a_thousand_deaths_leave_nothing_behind() {
    if let Some(reason) = skip::labs_are_off() {
        return skip::report("a_thousand_deaths_leave_nothing_behind", reason);
    }
    for setting in settings(env!("CARGO_BIN_EXE_penstock-conformance-peer")) {
        let told = churn(&setting, EARLY, CYCLES);
        eprintln!("{setting}: {told:?}");
        // An inline engine copies on for a while before it looks: into memory of the dead, which harms nobody.
        assert!(setting.is_inline() || told.cut > 0, "{setting}: no death came in the middle of a transfer");
        assert!(told.back[1] <= BACK_WITHIN, "{setting}: {:?}", told.back);
    }
}
