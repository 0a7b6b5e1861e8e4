//! Labs: two network namespaces joined by a wire that loses, delays, damages and is cut. Transfers end in time, bytes
//! arrive as they were sent, and who comes back is taken back.
#![allow(clippy::print_stderr, reason = "the figures are what a reader of the output looks for")]

use std::sync::{Mutex, MutexGuard, PoisonError};

use penstock_conformance::skip;
use penstock_wire::TwoHosts;

#[path = "lab_tcp_wire/cut.rs"]
mod cut;
#[path = "lab_tcp_wire/hosts.rs"]
mod hosts;
#[path = "lab_tcp_wire/workloads.rs"]
mod workloads;

const PEER: &str = env!("CARGO_BIN_EXE_penstock-conformance-peer");

static ALONE: Mutex<()> = Mutex::new(());

/// These measure, and a wire takes a processor: one at a time. None where they cannot run.
fn alone(test: &str) -> Option<MutexGuard<'static, ()>> {
    let reason = skip::lab_reason().map(str::to_owned).or_else(TwoHosts::why_not);
    if let Some(reason) = reason {
        skip::report(test, &reason);
        return None;
    }
    Some(ALONE.lock().unwrap_or_else(PoisonError::into_inner))
}
