//! A lab: a process with 8 GiB of its own is killed. The kernel takes up to a second to free them, and its
//! peers know of the death in a tenth of that.
#![allow(clippy::print_stderr, reason = "the figures are what a reader of the output looks for")]

use std::time::Duration;

use penstock_conformance::death::{die, settings};
use penstock_conformance::skip;

const HOARD: u64 = 8 << 30;
/// What has to be free for it, in KiB as the kernel counts.
const NEEDED_KIB: u64 = 10 << 20;
/// Deaths of a peer with threads, and of one without: giving a process so much memory takes long.
const DEATHS: [usize; 2] = [12, 3];
/// The promise, at most.
const KNOWN_WITHIN: Duration = Duration::from_millis(100);

fn available_kib() -> u64 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}

#[test]
fn the_death_of_a_large_process_is_known_within_100_ms() {
    let name = "the_death_of_a_large_process_is_known_within_100_ms";
    if let Some(reason) = skip::labs_are_off() {
        return skip::report(name, reason);
    }
    if available_kib() < NEEDED_KIB {
        return skip::report(name, "needs 10 GiB of free memory");
    }
    for (setting, deaths) in settings(env!("CARGO_BIN_EXE_penstock-conformance-peer")).into_iter().zip(DEATHS) {
        let mut deaths: Vec<_> = (0..deaths).map(|_| die(&setting, HOARD)).collect();
        deaths.sort_by_key(|death| death.known);
        for death in &deaths {
            eprintln!(
                "{setting}: known after {:.1} ms, gone after {:.0} ms, {}",
                death.known.as_secs_f64() * 1e3,
                death.gone.as_secs_f64() * 1e3,
                if death.quarantined { "quarantined until then" } else { "not in a copy" }
            );
        }
        let slowest = deaths.last().expect("there were some").known;
        assert!(slowest <= KNOWN_WITHIN, "{setting}: {slowest:?}");
        assert!(deaths.iter().any(|death| death.quarantined), "{setting}: none died in the middle of a copy");
    }
}
