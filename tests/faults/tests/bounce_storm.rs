//! The storm over memory that only its owner may touch: the owner's own workers move the bytes, and
//! still nothing lands after `Quiesced`, whoever asked.
#![allow(clippy::print_stderr, reason = "the figures are what a reader of the output looks for")]

use penstock::config::{Progress, TransportName};
use penstock_faults::cores::Cores;
use penstock_faults::storm::{Setting, apart, board::Way, rage, tally::Tally};

/// At least so many of the stops with threads must have come with a part of the bytes landed.
const PARTIAL_SHARE_MIN: f64 = 0.1;

const CHILD: &str = env!("CARGO_BIN_EXE_penstock-faults-child");

fn storm(label: &'static str, initiator: Progress, owner: Progress, cores: Cores, stops: u64) -> Tally {
    let transport = TransportName::Shm;
    let tally = rage(Setting { label, transport, way: Way::Bounce, initiator, owner, cores, stops });
    eprintln!("{label}: {tally}");
    tally
}

/// One test, so that the storms come one after the other and do not take each other's cores.
#[test]
fn nothing_lands_after_quiesced_where_only_the_owner_may_copy() {
    let (inline, threads) = (Progress::Inline, Progress::Adaptive);
    let own = Cores::of_their_own();
    let mixed = storm("bounce-inline-mixed", inline, threads, own, 4_000);
    let together = storm("bounce-threaded", threads, threads, own, 4_000);
    let spread = storm("bounce-threaded-spread", threads, threads, Cores::default(), 4_000);
    let apart = apart::rage_apart("bounce-apart", CHILD, Way::Bounce, 4_000);
    eprintln!("bounce-apart: {apart}");
    let sum = mixed.plus(together).plus(spread).plus(apart);
    assert_eq!(sum.stops, 16_000);
    if own.copying.is_some() {
        assert!(sum.partial_share() >= PARTIAL_SHARE_MIN, "too few stops came midway: {sum}");
    }
}
