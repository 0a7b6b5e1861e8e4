//! Peers that are killed in the middle of everything, and come back.

use std::time::Duration;

use penstock_conformance::churn::churn;
use penstock_conformance::death::{die_far, far_settings};

use super::{PEER, alone};

/// Deaths in each mode.
const DEATHS: usize = 4;
/// The promise where the pools are small.
const KNOWN_WITHIN: Duration = Duration::from_millis(100);
/// The promise in any case: what a silent peer is given.
const KNOWN_AT_LAST: Duration = Duration::from_secs(5);
/// Restarts in each mode, and after how many the survivor is looked at first.
const CYCLES: usize = 30;
const EARLY: usize = 10;
/// The promise.
const BACK_WITHIN: Duration = Duration::from_millis(500);

#[test]
fn a_killed_peer_ends_all_that_is_under_way_within_100_ms() {
    let _alone = alone();
    for setting in far_settings(PEER) {
        let deaths: Vec<_> = (0..DEATHS).map(|_| die_far(&setting)).collect();
        for death in &deaths {
            eprintln!("{setting}: {death:?}");
        }
        // A busy machine may hold up one of them: the lab judges each.
        let quickest = deaths.iter().map(|death| death.ended).min().expect("there were some");
        assert!(quickest <= KNOWN_WITHIN, "{setting}: {deaths:?}");
        assert!(deaths.iter().all(|death| death.ended <= KNOWN_AT_LAST), "{setting}: {deaths:?}");
        assert!(deaths.iter().all(|death| death.cut > 0), "{setting}: all was over before the peer died: {deaths:?}");
    }
}

#[test]
fn killed_peers_come_back_under_their_name_and_leave_nothing_behind() {
    let _alone = alone();
    for setting in far_settings(PEER) {
        let told = churn(&setting, EARLY, CYCLES);
        eprintln!("{setting}: {told:?}");
        // The median: a busy machine may hold up any one of them.
        assert!(told.back[0] <= BACK_WITHIN, "{setting}: {:?}", told.back);
    }
}
