//! What breaks between two RDMA devices, by the soft devices of a guest: frames that are lost, links that go down, peers that
//! are killed or do not look, keys that are refused. A guest of the RDMA labs runs this, as its root.
#![allow(clippy::print_stderr, reason = "the figures are what a reader of the output looks for")]

use std::sync::{Mutex, MutexGuard, PoisonError};

use penstock::config::TransportName;
use penstock_conformance::{Place, Setting, skip};

#[path = "lab_guest_faults/killed.rs"]
mod killed;
#[path = "lab_guest_faults/links.rs"]
mod links;
#[path = "lab_guest_faults/refused.rs"]
mod refused;
#[path = "lab_guest_faults/traffic.rs"]
mod traffic;
#[path = "lab_guest_faults/wires.rs"]
mod wires;

const THERE: Place = Place::Process(env!("CARGO_BIN_EXE_penstock-conformance-peer"));

static ALONE: Mutex<()> = Mutex::new(());

/// One worker on each side, and so many wires.
const fn wired(rails: u8) -> Setting {
    Setting::adaptive(TransportName::Verbs, 1, THERE).wired(rails)
}

/// They break wires that all of them use: one at a time. None where there are none.
fn alone(test: &str, setting: &Setting) -> Option<MutexGuard<'static, ()>> {
    if let Some(reason) = setting.why_not() {
        skip::report(test, &reason);
        return None;
    }
    let guard = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    wires::mend(2);
    Some(guard)
}
