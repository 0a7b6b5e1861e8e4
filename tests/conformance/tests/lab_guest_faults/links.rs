//! Frames that are lost or overtaken, and links that go down.

use std::time::{Duration, Instant};

use penstock::{Cause, Plan, Span, Submit};
use penstock_conformance::stage::{PATIENCE, fault_of};

use crate::traffic::Traffic;
use crate::wires::{self, Whole};
use crate::{alone, wired};

/// A session whose last rail is gone for five seconds is given up; the rest is what an emulated machine may be late.
const GIVEN_UP_WITHIN: Duration = Duration::from_secs(15);
/// How soon a rail carries bytes again when its link is up: pauses between attempts grow to seconds.
const BACK_WITHIN: Duration = Duration::from_secs(20);
const WRITES: usize = 16;
/// What so many small writes may take by one rail while the other is down: they do not wait for it.
const BY_ONE_RAIL_WITHIN: Duration = Duration::from_secs(15);

#[test]
fn loss_and_reordering_cost_time_and_nothing_else() {
    let setting = wired(1);
    let Some(_alone) = alone("loss_and_reordering_cost_time_and_nothing_else", &setting) else { return };
    let _whole = Whole;
    let mut traffic = Traffic::open(&setting);
    for side in ['a', 'b'] {
        wires::faults(side, 0, "delay 300us reorder 25% loss 1%");
    }
    let begun = Instant::now();
    let mut rounds = 0;
    // Chance decides when something is lost.
    while (wires::lost('a', 0) == 0 || rounds < 2) && rounds < 40 {
        traffic.write_many(WRITES);
        rounds += 1;
    }
    traffic.verify();
    let (there, back) = (wires::lost('a', 0), wires::lost('b', 0));
    let disordered = wires::counter('b', 0, "out_of_seq_request");
    let (writes, took) = (traffic.count, begun.elapsed());
    eprintln!("{writes} writes in {took:.1?}; {there} and {back} frames lost, {disordered} seen out of order");
    assert!(there > 0 && disordered > 0, "no fault was felt");
}

#[test]
fn a_link_that_is_down_for_a_moment_is_waited_for() {
    let setting = wired(1);
    let Some(_alone) = alone("a_link_that_is_down_for_a_moment_is_waited_for", &setting) else { return };
    let _whole = Whole;
    let mut traffic = Traffic::open(&setting);
    traffic.write_many(2);
    for side in ['a', 'b'] {
        let transfers = traffic.break_amid(move || wires::down(side, 0));
        std::thread::sleep(Duration::from_secs(1));
        wires::up(side, 0);
        let begun = Instant::now();
        for transfer in &transfers {
            transfer.wait().expect("what waits for the link ends well");
        }
        let count = transfers.len();
        eprintln!("{side}0 was down for a second; {count} transfers waited, and {:.1?} more", begun.elapsed());
    }
    traffic.write_many(2);
    traffic.verify();
}

#[test]
fn a_link_that_stays_down_ends_the_session_in_time() {
    let setting = wired(1);
    let test = "a_link_that_stays_down_ends_the_session_in_time";
    let Some(_alone) = alone(test, &setting) else { return };
    let _whole = Whole;
    ends_in_time(|| wires::down('a', 0));
}

#[test]
fn retries_that_are_used_up_end_the_session_in_time() {
    let setting = wired(1);
    let Some(_alone) = alone("retries_that_are_used_up_end_the_session_in_time", &setting) else { return };
    let _whole = Whole;
    let before = wires::counter('a', 0, "retry_exceeded_err");
    wires::faults('a', 0, "loss 0%");
    ends_in_time(|| wires::change('a', 0, "loss 100%"));
    let exceeded = wires::counter('a', 0, "retry_exceeded_err") - before;
    eprintln!("{exceeded} times the card gave up");
    assert!(exceeded > 0, "the card has not used up its retries");
}

/// Breaks the only wire for good in the middle of transfers, which end in time; mends it, and meets the same peer again.
fn ends_in_time(break_it: impl FnOnce() + Send + 'static) {
    let mut traffic = Traffic::open(&wired(1));
    traffic.write_many(2);
    let transfers = traffic.break_amid(break_it);
    let begun = Instant::now();
    let mut lost = 0;
    for transfer in &transfers {
        if let Err(fault) = transfer.wait() {
            assert_eq!(fault.cause, Cause::PeerLost, "{fault}");
            if lost == 0 {
                eprintln!("after {:.1?}: {fault}", begun.elapsed());
            }
            lost += 1;
        }
    }
    assert!(lost > 0, "nothing was lost");
    assert!(begun.elapsed() <= GIVEN_UP_WITHIN, "the transfers ended after {:?}", begun.elapsed());
    let stage = &mut traffic.stage;
    stage.wait_until("the session has ended here", || stage.peer().ended().is_some());
    assert_eq!(stage.peer().ended(), Some(Cause::PeerLost));
    let quiesced = stage.near.revoke(&[(0, 4096)], PATIENCE).expect("this engine runs");
    assert!(quiesced.is_quiesced(), "nobody writes here any more");
    wires::mend(1);
    let again = stage.engine.reconnect(stage.peer(), PATIENCE).expect("the wire is whole");
    stage.peers[0] = again;
    let span = Span { local: 0, remote: 0, len: 65_536 };
    stage.write(span);
}

#[test]
fn one_of_two_rails_goes_down_in_the_middle_and_the_other_carries_all() {
    let setting = wired(2);
    let test = "one_of_two_rails_goes_down_in_the_middle_and_the_other_carries_all";
    let Some(_alone) = alone(test, &setting) else { return };
    let _whole = Whole;
    let mut traffic = Traffic::open(&setting);
    let sent = || [wires::sent('a', 0), wires::sent('a', 1)];
    let (before, begun) = (sent(), Instant::now());
    // A rail carries as soon as both sides have greeted each other there, and one is enough to begin with.
    loop {
        traffic.write_many(WRITES);
        let both = sent();
        if both[0] > before[0] + 16 && both[1] > before[1] + 16 {
            break;
        }
        assert!(begun.elapsed() < BACK_WITHIN, "both rails carry: {before:?}, {both:?}");
    }
    eprintln!("both rails carried {:.1?} after the session began", begun.elapsed());
    let transfers = traffic.break_amid(|| wires::down('a', 0));
    let begun = Instant::now();
    for transfer in &transfers {
        transfer.wait().expect("what was on the rail goes by the other");
    }
    let (count, took) = (transfers.len(), begun.elapsed());
    eprintln!("{count} transfers under way ended within {took:.1?} after one of two rails went down");
    let (alone, begun) = (sent(), Instant::now());
    traffic.write_many(WRITES);
    let later = sent();
    let by_one_rail = begun.elapsed();
    eprintln!("{WRITES} small ones more by one rail in {by_one_rail:.1?}");
    assert!(later[1] > alone[1], "the other rail carries them");
    traffic.verify();
    wires::up('a', 0);
    let begun = Instant::now();
    loop {
        let before = wires::sent('a', 0);
        let how = Submit::new().within(PATIENCE);
        let plan = Plan::write(&traffic.stage.near, &traffic.stage.far());
        let span = Span { local: 0, remote: 0, len: crate::traffic::BYTES };
        let plan = plan.extents(&[span]).build().expect("a sound plan");
        traffic.stage.submit(traffic.stage.peer(), &plan, how).wait().expect("the transfer ends well");
        // More than what tries whether the rail is there.
        if wires::sent('a', 0) > before + 16 {
            break;
        }
        assert!(begun.elapsed() < BACK_WITHIN, "the rail is not used again");
        std::thread::sleep(Duration::from_millis(100));
    }
    eprintln!("the rail was used again {:.1?} after its link was up", begun.elapsed());
    assert!(by_one_rail <= BY_ONE_RAIL_WITHIN, "{WRITES} small writes by the rail that is whole took {by_one_rail:?}");
    assert_eq!(traffic.stage.peer().ended(), None);
}

#[test]
fn a_deadline_is_kept_while_nothing_passes() {
    let setting = wired(1);
    let Some(_alone) = alone("a_deadline_is_kept_while_nothing_passes", &setting) else { return };
    let _whole = Whole;
    let mut traffic = Traffic::open(&setting);
    traffic.write_many(1);
    wires::faults('a', 0, "loss 100%");
    let within = Duration::from_millis(500);
    let plan = Plan::write(&traffic.stage.near, &traffic.stage.far());
    let span = Span { local: 0, remote: 0, len: 65_536 };
    let plan = plan.extents(&[span]).build().expect("a sound plan");
    let begun = Instant::now();
    let transfer = traffic.stage.submit(traffic.stage.peer(), &plan, Submit::new().within(within));
    let fault = fault_of(&transfer);
    let took = begun.elapsed();
    eprintln!("a write within {within:?} over a wire that is cut ends after {took:.1?}: {fault}");
    assert_eq!(fault.cause, Cause::DeadlineExceeded, "{fault}");
    assert!(took < within + Duration::from_secs(5), "{took:?}");
    // Nothing of it can land any more, and whoever asks is told so by his own deadline.
    let quiesced = traffic.stage.near.revoke(&[(0, 65_536)], PATIENCE).expect("this engine runs");
    assert!(quiesced.is_quiesced());
}
