//! Failures between hosts, tried over the loopback between processes: peers that are killed, stopped, full, slow on
//! purpose, or back under their name. The labs do it with a wire that can be cut.
#![allow(clippy::print_stderr, reason = "the figures are what a reader of the output looks for")]

use std::sync::{Mutex, MutexGuard, PoisonError};

use penstock_conformance::Place;

#[path = "tcp_faults/dawdlers.rs"]
mod dawdlers;
#[path = "tcp_faults/death.rs"]
mod death;
#[path = "tcp_faults/full.rs"]
mod full;
#[path = "tcp_faults/stopped.rs"]
mod stopped;

const PEER: &str = env!("CARGO_BIN_EXE_penstock-conformance-peer");
const THERE: Place = Place::Process(PEER);

static ALONE: Mutex<()> = Mutex::new(());

/// These tests measure: one at a time.
fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}
