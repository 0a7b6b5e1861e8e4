//! The storm over memory that Penstock did not allocate: where the kernel copies it between processes, and
//! where only its owner may touch it, so that the owner's own workers move the bytes. Nothing lands
//! after `Quiesced`, whoever asked.
#![allow(clippy::print_stderr, reason = "the figures are what a reader of the output looks for")]

use penstock::config::{Progress, TcpIo, TransportName};
use penstock_faults::cores::Cores;
use penstock_faults::storm::{Setting, apart, board::Way, rage, tally::Tally};

/// At least so many of the stops must have come with a part of the bytes landed.
const PARTIAL_SHARE_MIN: f64 = 0.02;
/// Stops of each storm.
const STOPS: u64 = 3_000;

const CHILD: &str = env!("CARGO_BIN_EXE_penstock-faults-child");

fn storm(label: &'static str, way: Way, initiator: Progress, cores: Cores) -> Tally {
    let (transport, owner) = (TransportName::Shm, Progress::Adaptive);
    let tally = rage(Setting { label, transport, io: TcpIo::Auto, way, initiator, owner, cores, stops: STOPS });
    eprintln!("{label}: {tally}");
    tally
}

fn storm_apart(label: &'static str, way: Way) -> Tally {
    let tally = apart::rage_apart(label, CHILD, way, STOPS);
    eprintln!("{label}: {tally}");
    tally
}

/// One test, so that the storms come one after the other and do not take each other's cores.
#[test]
fn nothing_lands_after_quiesced_in_memory_of_the_caller() {
    let (inline, threads) = (Progress::Inline, Progress::Adaptive);
    let own = Cores::of_their_own();
    let sum = storm("bounce-inline-mixed", Way::Bounce, inline, own)
        .plus(storm("bounce-threaded", Way::Bounce, threads, own))
        .plus(storm("bounce-threaded-spread", Way::Bounce, threads, Cores::default()))
        .plus(storm_apart("bounce-apart", Way::Bounce))
        .plus(storm("process-vm-inline-mixed", Way::ProcessVm, inline, own))
        .plus(storm("process-vm-threaded", Way::ProcessVm, threads, own))
        .plus(storm_apart("process-vm-apart", Way::ProcessVm));
    assert_eq!(sum.stops, 7 * STOPS);
    if own.copying.is_some() {
        assert!(sum.partial_share() >= PARTIAL_SHARE_MIN, "too few stops came midway: {sum}");
    }
}
