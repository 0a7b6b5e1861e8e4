//! Peers that are stopped (SIGSTOP): what needs them ends by its deadline, or their session by the heartbeat.

use std::time::{Duration, Instant};

use penstock::{Cause, Fault, Plan, Span, Submit};
use penstock_conformance::command::{Command, Reply};
use penstock_conformance::death::far_settings;
use penstock_conformance::gauge::measured;
use penstock_conformance::pattern;
use penstock_conformance::setting::Tuning;
use penstock_conformance::stage::{FAR_SEED, KV, NEAR_SEED, PATIENCE, apply, fault_of};
use penstock_conformance::stopped::Stopped;
use penstock_conformance::{Options, Stage};

use super::{PEER, alone};

/// More than sockets hold.
const BYTES: u64 = 32 << 20;
const ALL: &[Span] = &[Span { local: 0, remote: 0, len: BYTES }];
const WITHIN: Duration = Duration::from_millis(300);
/// How long after its deadline anything may end.
const LATE: Duration = Duration::from_secs(1);
const HEARTBEAT: Duration = Duration::from_millis(600);

fn with_heartbeat(heartbeat: Duration) -> Options {
    let tuning = Tuning { heartbeat_ms: Some(heartbeat.as_millis() as u64), ..Tuning::default() };
    Options { bytes: BYTES, near: tuning, far: tuning, ..Options::default() }
}

fn stop(stage: &mut Stage) -> Stopped {
    Stopped::new(stage.target(0).process_id().expect("it is a process of its own"))
}

/// How long a transfer with that deadline takes that cannot end well.
fn overdue(stage: &Stage, plan: &Plan) -> (Duration, Fault) {
    let mut fault = None;
    let took = measured(WITHIN + LATE, || {
        let begun = Instant::now();
        let transfer = stage.submit(stage.peer(), plan, Submit::new().within(WITHIN));
        fault = Some(fault_of(&transfer));
        begun.elapsed()
    });
    (took, fault.expect("it was measured"))
}

#[test]
fn a_stopped_peer_delays_nothing_beyond_its_deadline_and_goes_on_later() {
    let _alone = alone();
    for setting in far_settings(PEER) {
        let mut stage = Stage::with(&setting, with_heartbeat(Duration::from_secs(60)));
        let (source, mut model) = stage.models();
        let write = Plan::write(&stage.near, &stage.far()).extents(ALL).build().unwrap();
        let read = Plan::read(&stage.near, &stage.far()).extents(&[Span { local: 0, remote: 0, len: 4096 }]).build();
        // Whether a send without a copy pays is tried with the first large one; while the kernel has its pages, no transfer
        // of them ends.
        stage.write(ALL[0]);
        let stopped = stop(&mut stage);
        for (what, plan) in [("write", &write), ("read", &read.unwrap())] {
            let (took, fault) = overdue(&stage, plan);
            eprintln!("{setting}: a {what} to a stopped peer with {WITHIN:?} ends after {took:?}");
            assert_eq!(fault.cause, Cause::DeadlineExceeded, "{setting}: {fault}");
            assert!(took <= WITHIN + LATE, "{setting}: a {what} took {took:?}");
        }
        let cancelled = measured(WITHIN + LATE, || {
            let transfer = stage.submit(stage.peer(), &write, Submit::new());
            let until = Instant::now() + Duration::from_millis(20);
            while Instant::now() < until {
                stage.turn();
            }
            let begun = Instant::now();
            let answer = transfer.cancel(WITHIN);
            let took = begun.elapsed();
            eprintln!("{setting}: a cancel within {WITHIN:?} answers {answer:?} after {took:?}");
            took
        });
        assert!(cancelled <= WITHIN + LATE, "{setting}: {cancelled:?}");
        assert!(stage.near.revoke(&[(0, BYTES)], Duration::ZERO).unwrap().is_quiesced(), "own memory is never held");
        assert_eq!(stage.peer().ended(), None, "{setting}: stopped is not dead");
        // Awake again: nothing is out of step, and every byte is where it should be.
        drop(stopped);
        stage.write(ALL[0]);
        apply(ALL[0], &source, &mut model, true);
        stage.assert_far(0, KV, &model);
        assert_eq!(stage.peer().ended(), None);
    }
}

#[test]
fn a_peer_that_is_stopped_for_longer_than_the_heartbeat_is_lost_and_found_again() {
    let _alone = alone();
    for setting in far_settings(PEER) {
        // They take longer to make than an engine that nobody turns may be silent.
        let [source, mut model] = [NEAR_SEED, FAR_SEED].map(|seed| pattern::bytes(seed, 0, BYTES as usize));
        let mut stage = Stage::with(&setting, with_heartbeat(HEARTBEAT));
        stage.order(0, Command::Watch { peer: "source".to_owned() });
        let write = Plan::write(&stage.near, &stage.far()).extents(ALL).build().unwrap();
        let mut took = Duration::MAX;
        for _ in 0..4 {
            let peer = stage.peer().clone();
            let stopped = stop(&mut stage);
            let begun = Instant::now();
            let write = Plan::write(&stage.near, &stage.far()).extents(ALL).build().unwrap();
            let transfer = stage.submit(&peer, &write, Submit::new());
            let fault = fault_of(&transfer);
            took = took.min(begun.elapsed());
            assert_eq!(fault.cause, Cause::PeerLost, "{setting}: {fault}");
            stage.wait_until("the session has ended", || peer.ended().is_some());
            assert_eq!(peer.ended(), Some(Cause::PeerLost));
            drop(stopped);
            let begun = Instant::now();
            stage.peers[0] = stage.engine.reconnect(&peer, PATIENCE).expect("it is awake");
            eprintln!("{setting}: lost after {took:?}, found again {:?} after it woke", begun.elapsed());
            if took <= HEARTBEAT + LATE {
                break;
            }
        }
        assert!(took <= HEARTBEAT + LATE, "{setting}: {took:?}");
        let until = Instant::now() + PATIENCE;
        let cause = loop {
            match stage.ask(0, Command::EndOf { peer: "source".to_owned() }) {
                Reply::Ended(Some(cause)) => break cause,
                other => {
                    assert!(Instant::now() < until, "{setting}: {other:?}: the other side does not know of the end")
                }
            }
        };
        eprintln!("{setting}: on the other side: {cause}");
        assert!(stage.peer().submit(&write, Submit::new()).is_err(), "plans of the old session stay refused");
        stage.write(ALL[0]);
        apply(ALL[0], &source, &mut model, true);
        stage.assert_far(0, KV, &model);
    }
}

#[test]
fn a_transfer_whose_pages_the_kernel_has_ends_by_its_deadline_and_says_what_is_not_quiet() {
    let _alone = alone();
    for setting in far_settings(PEER) {
        let mut stage = Stage::with(&setting, with_heartbeat(Duration::from_secs(60)));
        let (source, mut model) = stage.models();
        let write = Plan::write(&stage.near, &stage.far()).extents(ALL).build().unwrap();
        let stopped = stop(&mut stage);
        let transfer = stage.submit(stage.peer(), &write, Submit::new().within(WITHIN));
        let begun = Instant::now();
        let fault = fault_of(&transfer);
        let told = begun.elapsed();
        let cancelled = measured(WITHIN + LATE, || {
            let begun = Instant::now();
            let answer = transfer.cancel(WITHIN);
            let took = begun.elapsed();
            eprintln!("{setting}: {:?} after {told:?}; a cancel answers {answer:?} after {took:?}", fault.cause);
            took
        });
        assert_eq!(fault.cause, Cause::DeadlineExceeded, "{setting}: {fault}");
        assert!(told <= WITHIN + LATE, "{setting}: {told:?}");
        assert!(cancelled <= WITHIN + LATE, "{setting}: {cancelled:?}");
        drop(stopped);
        let fault = fault_of(&transfer);
        assert_eq!(fault.cause, Cause::DeadlineExceeded, "{setting}: an end is an end");
        stage.write(ALL[0]);
        apply(ALL[0], &source, &mut model, true);
        stage.assert_far(0, KV, &model);
    }
}
