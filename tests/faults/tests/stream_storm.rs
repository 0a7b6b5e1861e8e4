//! The storm over byte streams, as between two hosts: whoever stops a transfer owns its memory from the answer on.
#![allow(clippy::print_stderr, reason = "the figures are what a reader of the output looks for")]

use penstock::config::{Progress, TcpIo, TransportName};
use penstock_faults::cores::Cores;
use penstock_faults::storm::{Setting, board::Way, rage, tally::Tally};

/// At least so many of the stops must have come with a part of the bytes landed.
const PARTIAL_SHARE_MIN: f64 = 0.02;
/// Stops of each storm.
const STOPS: u64 = 800;

fn storm(label: &'static str, initiator: Progress, io: TcpIo, way: Way) -> Tally {
    let (transport, owner) = (TransportName::Tcp, Progress::Adaptive);
    let tally = rage(Setting { label, transport, io, way, initiator, owner, cores: Cores::default(), stops: STOPS });
    eprintln!("{label}: {tally}");
    tally
}

/// One test, so that the storms come one after the other and do not take each other's cores.
#[test]
fn nothing_lands_after_quiesced_over_streams() {
    let (inline, threads) = (Progress::Inline, Progress::Adaptive);
    let sum = storm("uring-inline", inline, TcpIo::IoUring, Way::Mapped)
        .plus(storm("epoll-inline", inline, TcpIo::Epoll, Way::Bounce))
        .plus(storm("uring-threaded", threads, TcpIo::IoUring, Way::Bounce))
        .plus(storm("epoll-threaded", threads, TcpIo::Epoll, Way::Mapped));
    assert_eq!(sum.stops, 4 * STOPS);
    assert!(sum.partial_share() >= PARTIAL_SHARE_MIN, "too few stops came midway: {sum}");
}
