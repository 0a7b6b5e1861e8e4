//! Labs: what happens to sessions in datagrams over DPDK: peers that are killed, stopped and started again, links that go down, and
//! somebody who sends to the device what it likes. Everything ends in time and with its cause, no byte is wrong, and nothing is left.
#![allow(clippy::print_stderr, reason = "the figures are what a reader of the output looks for")]

#[path = "lab_datagram_wire/arena.rs"]
mod arena;
mod child;
#[path = "lab_dpdk_faults/frames.rs"]
mod frames;
#[path = "lab_dpdk_faults/hostile.rs"]
mod hostile;
#[path = "lab_datagram_wire/injector.rs"]
mod injector;
#[path = "lab_dpdk_faults/links.rs"]
mod links;
#[path = "lab_dpdk_faults/losses.rs"]
mod losses;
#[path = "lab_dpdk_faults/processes.rs"]
mod processes;
#[path = "lab_dpdk_faults/restarts.rs"]
mod restarts;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use penstock::config::TransportName;
use penstock::{Cause, Plan, Span, Submit};
use penstock_conformance::setting::Tuning;
use penstock_conformance::{Carrier, Options, Place, Setting, Stage, Transfer, dpdk, skip};

const THERE: Place = Place::Process(env!("CARGO_BIN_EXE_penstock-conformance-peer"));
/// So much is under way when something happens.
const TRANSFERS: usize = 8;
/// How long it is under way before.
const INTO: Duration = Duration::from_millis(15);
/// How long after its time anything may end.
const LATE: Duration = Duration::from_millis(500);

/// Longer than all of a window is lost by chance.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// These measure: one at a time. None where they cannot run.
fn alone(test: &str, carrier: Carrier) -> Option<MutexGuard<'static, ()>> {
    static ALONE: Mutex<()> = Mutex::new(());
    if let Some(reason) = dpdk::why_not(carrier) {
        skip::report(test, &reason);
        return None;
    }
    Some(ALONE.lock().unwrap_or_else(PoisonError::into_inner))
}

fn carried(carrier: Carrier, place: Place) -> Setting {
    Setting::adaptive(TransportName::Datagram, 1, place).carried(carrier)
}

/// Engines on a bridge with so many bytes each.
fn on_a_bridge(bytes: u64, heartbeat: Duration) -> Stage {
    let tuning = Tuning { heartbeat_ms: Some(heartbeat.as_millis() as u64), ..Tuning::default() };
    let options = Options { bytes, near: tuning, far: tuning, ..Options::default() };
    Stage::with(&carried(Carrier::Bridge, THERE), options)
}

/// All of an engine's memory.
fn all(stage: &Stage) -> Span {
    Span { local: 0, remote: 0, len: stage.near.bytes() }
}

fn plan(stage: &Stage, is_write: bool) -> Plan {
    let far = stage.far();
    let plan = if is_write { Plan::write(&stage.near, &far) } else { Plan::read(&stage.near, &far) };
    plan.extents(&[all(stage)]).build().expect("a sound plan")
}

/// Writes and reads of all of it, without a deadline.
fn busy(stage: &Stage) -> Vec<Transfer> {
    let plans = [true, false].map(|is_write| plan(stage, is_write));
    (0..TRANSFERS).map(|number| stage.submit(stage.peer(), &plans[number % 2], Submit::new())).collect()
}

/// All of them end because the peer is gone, those apart that were through before.
fn all_are_lost(transfers: &[Transfer]) {
    let faults: Vec<_> = transfers.iter().filter_map(|transfer| transfer.wait().err()).collect();
    assert!(!faults.is_empty(), "all was through before");
    assert!(faults.iter().all(|fault| fault.cause == Cause::PeerLost), "{faults:?}");
}

/// The longest that a silent peer is waited for: the question that tells may be asked a third of the heartbeat later, and a twelfth late.
fn known_within(heartbeat: Duration) -> Duration {
    heartbeat + heartbeat / 3 + heartbeat / 12 + LATE
}
