//! 100,000 transfers are cancelled, revoked and timed out at random moments, and nothing lands
//! after `Quiesced`.
#![allow(clippy::print_stderr, reason = "the figures are what a reader of the output looks for")]

use penstock::config::{Progress, TcpIo, TransportName};
use penstock_faults::cores::Cores;
use penstock_faults::storm::{Setting, apart, board::Way, rage, tally::Tally};

/// At least so many of all stops must have come with a part of the bytes landed: fewer test too little. A machine that does other work
/// too leaves the stopper and the worker fewer moments in which both run, and so does one that copies quickly: 0.4 were usual on one, 0.07 on another.
const PARTIAL_SHARE_MIN: f64 = 0.02;

const CHILD: &str = env!("CARGO_BIN_EXE_penstock-faults-child");

fn told(label: &str, tally: Tally) -> Tally {
    eprintln!("{label}: {tally}");
    tally
}

fn storm(label: &'static str, transport: TransportName, initiator: Progress, owner: Progress, stops: u64) -> Tally {
    let cores = Cores::of_their_own();
    told(label, rage(Setting { label, transport, io: TcpIo::Auto, way: Way::Mapped, initiator, owner, cores, stops }))
}

/// Two workers, who run wherever the machine lets them: beside each other, mostly.
fn spread(label: &'static str, transport: TransportName, stops: u64) -> Tally {
    let (initiator, owner) = (Progress::Adaptive, Progress::Adaptive);
    told(
        label,
        rage(Setting {
            label,
            transport,
            io: TcpIo::Auto,
            way: Way::Mapped,
            initiator,
            owner,
            cores: Cores::default(),
            stops,
        }),
    )
}

/// One test, so that the storms come one after the other: beside each other they would take each
/// other's cores, and most stops would come when a transfer is long over.
#[test]
fn nothing_lands_after_quiesced() {
    let (inline, threads) = (Progress::Inline, Progress::Adaptive);
    let (local, shm) = (TransportName::Local, TransportName::Shm);

    let alone = storm("inline-local", local, inline, inline, 20_000);
    let alone = alone.plus(storm("inline-shm", shm, inline, inline, 20_000));
    // The owner revokes in a thread of its own while the inline initiator copies.
    let alone = alone.plus(storm("inline-shm-mixed", shm, inline, threads, 10_000));

    let together = storm("threaded-local", local, threads, threads, 15_000);
    let together = together.plus(spread("threaded-local-spread", local, 5_000));
    let together = together.plus(storm("threaded-shm", shm, threads, threads, 15_000));
    let together = together.plus(spread("threaded-shm-spread", shm, 5_000));
    let together =
        together.plus(told("threaded-shm-apart", apart::rage_apart("threaded-shm-apart", CHILD, Way::Mapped, 10_000)));

    let sum = told("all", told("inline", alone).plus(told("threaded", together)));
    assert_eq!((alone.stops, together.stops), (50_000, 50_000));
    assert!(sum.partial_share() >= PARTIAL_SHARE_MIN, "too few stops came midway: {sum}");
    if Cores::of_their_own().copying.is_some() {
        // On one core nobody can stop a worker but when its time is over.
        assert!(together.partial_share() >= PARTIAL_SHARE_MIN, "too few stops came midway: {together}");
    }
}
