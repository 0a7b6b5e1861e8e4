//! Transfers that are interrupted while they move.
//!
//! On a busy machine whoever interrupts may wait for a core longer than a transfer lasts, each time. So a round in which nothing was
//! interrupted is followed by one in which twice as many transfers are under way.

use std::time::Instant;

use crate::Transfer;
use crate::stage::{PATIENCE, Stage};

/// How often it is tried.
const ROUNDS_MAX: usize = 30;
/// How often it is done, at least.
const ROUNDS_MIN: usize = 3;
/// The most transfers that are under way at once.
const AT_ONCE_MAX: usize = 16;

/// Runs rounds until some have interrupted something: each is told how many transfers it is to begin, and says whether one was interrupted.
pub fn rounds(of: &str, mut round: impl FnMut(usize) -> bool) {
    let (mut caught, mut at_once) = (0, 1);
    for number in 0..ROUNDS_MAX {
        if caught > 0 && number >= ROUNDS_MIN {
            return;
        }
        match round(at_once) {
            true => caught += 1,
            false => at_once = (at_once * 2).min(AT_ONCE_MAX),
        }
    }
    assert!(caught > 0, "every transfer was faster than {of}");
}

/// Begins so many transfers, and waits until the first of them has begun to move.
pub fn begin(stage: &Stage, at_once: usize, submit: impl FnMut() -> Transfer) -> Vec<Transfer> {
    let transfers: Vec<Transfer> = std::iter::repeat_with(submit).take(at_once).collect();
    let since = Instant::now();
    while transfers[0].bytes_moved() == 0 && since.elapsed() < PATIENCE {
        stage.engine.progress().unwrap();
    }
    transfers
}
