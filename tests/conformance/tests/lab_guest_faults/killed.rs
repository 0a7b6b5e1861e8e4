//! Peers that are killed, and peers that do not look.

use std::time::{Duration, Instant};

use penstock::config::TransportName;
use penstock::{Cause, Plan, Span, Submit};
use penstock_conformance::churn::churn;
use penstock_conformance::command::Command;
use penstock_conformance::stage::{KV, fault_of};
use penstock_conformance::{Setting, Stage};

use crate::traffic::Traffic;
use crate::{THERE, alone, wired, wires};

/// The kernel takes back what a killed process had.
const TAKEN_BACK_WITHIN: Duration = Duration::from_secs(20);
/// How soon a death is known in an emulated machine.
const KNOWN_WITHIN: Duration = Duration::from_secs(5);
/// Peers that come and are killed, and after how many the survivor is looked at first.
const CYCLES: usize = EARLY + 100;
const EARLY: usize = 20;

#[test]
fn a_killed_peer_ends_its_own_transfers_and_nobody_elses() {
    let setting = wired(1);
    let Some(_alone) = alone("a_killed_peer_ends_its_own_transfers_and_nobody_elses", &setting) else { return };
    let before = wires::resources();
    let mut traffic = Traffic::open(&setting);
    let other = traffic.stage.add_target("target-1", penstock_conformance::Options::default());
    let whole = [Span { local: 0, remote: 0, len: 1 << 20 }];
    let plan = |stage: &Stage, number| Plan::write(&stage.near, &stage.region(number, KV)).extents(&whole).build();
    let to_other = plan(&traffic.stage, other).expect("a sound plan");
    let doomed = plan(&traffic.stage, 0).expect("a sound plan");
    // More than the quickest emulator has done before the kill.
    let transfers: Vec<_> =
        (0..64).map(|_| traffic.stage.submit(traffic.stage.peer(), &doomed, Submit::new())).collect();
    let spared: Vec<_> =
        (0..4).map(|_| traffic.stage.submit(&traffic.stage.peers[other], &to_other, Submit::new())).collect();
    traffic.stage.target(0).kill();
    let begun = Instant::now();
    let mut cut = 0;
    for transfer in &transfers {
        if let Err(fault) = transfer.wait() {
            assert_eq!(fault.cause, Cause::PeerLost, "{fault}");
            cut += 1;
        }
    }
    let known = begun.elapsed();
    eprintln!("{cut} of {} transfers were cut off, the last {known:.1?} after the signal", transfers.len());
    assert!(cut > 0 && known < KNOWN_WITHIN, "{cut} after {known:?}");
    for transfer in &spared {
        transfer.wait().expect("the other session has nothing to do with it");
    }
    // Under the same name, so that the next one finds and removes what the killed one left in the folder.
    traffic.stage.replace(0);
    traffic.stage.start_engine(0, "target-0", penstock_conformance::Options::default());
    // Transfers know their plans, and those the memory that is registered.
    drop((transfers, spared, to_other, doomed, traffic));
    wires::wait_for_resources(&before, TAKEN_BACK_WITHIN);
}

#[test]
fn a_hundred_deaths_leave_nothing_behind() {
    let setting = wired(1);
    let Some(_alone) = alone("a_hundred_deaths_leave_nothing_behind", &setting) else { return };
    let before = wires::resources();
    let begun = Instant::now();
    let told = churn(&setting, EARLY, CYCLES);
    eprintln!("{CYCLES} deaths in {:.0?}: {told:?}", begun.elapsed());
    wires::wait_for_resources(&before, TAKEN_BACK_WITHIN);
}

#[test]
fn a_receiver_that_does_not_look_costs_only_what_needs_it() {
    let setting = Setting::inline(TransportName::Verbs, THERE).wired(1);
    let Some(_alone) = alone("a_receiver_that_does_not_look_costs_only_what_needs_it", &setting) else { return };
    let mut traffic = Traffic::open(&setting);
    traffic.write_many(2);
    traffic.stage.order(0, Command::Pause);
    // More notes than the card has receives for: the others wait here, and end by their deadline.
    let within = Duration::from_secs(1);
    let peer = traffic.stage.peer().clone();
    let begun = Instant::now();
    let notes: Vec<_> =
        (0..400).map(|id| traffic.stage.notify(&peer, 1_000 + id, b"", Submit::new().within(within))).collect();
    let late = notes.iter().filter(|note| note.wait().is_err()).count();
    let took = begun.elapsed();
    eprintln!("nobody looks there: {late} of {} notes ended by their deadline, all within {took:.1?}", notes.len());
    assert!(late > 0 && took < within + Duration::from_secs(5), "{late} after {took:?}");
    let refused = wires::counter('b', 0, "send_rnr_err");
    let one = notes.iter().find(|note| note.wait().is_err()).expect("there was one");
    assert_eq!(fault_of(one).cause, Cause::DeadlineExceeded);
    assert_eq!(traffic.stage.peer().ended(), None, "not to look is not to be dead");
    traffic.stage.order(0, Command::Resume);
    let after = traffic.stage.notify(&peer, 7, b"awake", Submit::new());
    after.wait().expect("it looks again");
    eprintln!("{refused} times a receiver was not ready");
}
