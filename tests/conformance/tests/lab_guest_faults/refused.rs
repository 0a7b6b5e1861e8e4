//! Memory that is taken back while a card writes into it.

use std::time::Duration;

use penstock::{Cause, Plan, Rights, Span, Submit};
use penstock_conformance::command::{Command, Reply};

use crate::traffic::Traffic;
use crate::{alone, wired};

const BYTES: u64 = 1 << 20;
/// Transfers into it at once: more than the quickest emulator has done before the other process was asked to take its memory away. All that are
/// left then are refused at once.
const DOOMED: usize = 64;
/// One of so many has a neighbour with nothing to do with it.
const PER_SPARED: usize = 8;
const DEREGISTERED_WITHIN: Duration = Duration::from_secs(10);

#[test]
fn memory_that_is_taken_away_fails_who_writes_there_and_spares_all_others() {
    let setting = wired(2);
    let test = "memory_that_is_taken_away_fails_who_writes_there_and_spares_all_others";
    let Some(_alone) = alone(test, &setting) else { return };
    let mut traffic = Traffic::open(&setting);
    let mut refused = 0;
    for round in 0..4 {
        let label = format!("leased-{round}");
        traffic.stage.make_pool(0, &label, BYTES, 4096, Rights::READ_WRITE);
        let leased = traffic.stage.region(0, &label);
        let whole = [Span { local: 0, remote: 0, len: BYTES }];
        let plan = Plan::write(&traffic.stage.near, &leased).extents(&whole).build().expect("a sound plan");
        let mut doomed = Vec::new();
        let mut spared = Vec::new();
        for place in 0..DOOMED {
            doomed.push(traffic.stage.submit(traffic.stage.peer(), &plan, Submit::new()));
            if place % PER_SPARED == 0 {
                spared.push(traffic.write());
            }
        }
        let within_ms = DEREGISTERED_WITHIN.as_millis() as u64;
        let answer = traffic.stage.ask(0, Command::Deregister { label, within_ms });
        assert_eq!(answer, Reply::Quiesced(true), "the owner knows that nothing lands any more");
        for transfer in &doomed {
            if let Err(fault) = transfer.wait() {
                assert_eq!(fault.cause, Cause::RevokedByPeer, "{fault}");
                refused += 1;
            }
        }
        for transfer in &spared {
            transfer.wait().expect("it has nothing to do with the memory that went");
        }
    }
    eprintln!("{refused} transfers into memory that was taken away were refused");
    assert!(refused > 0, "all was over before the memory went");
    traffic.verify();
}
