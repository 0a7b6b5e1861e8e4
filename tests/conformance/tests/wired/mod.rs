//! What the labs of every transport do between two hosts with a wire in between. Each program has all of it.

use std::sync::{Mutex, MutexGuard, PoisonError};

use penstock_conformance::skip;
use penstock_wire::TwoHosts;

pub(crate) mod breaks;
pub(crate) mod guest;
pub(crate) mod hosts;
pub(crate) mod workloads;

static ALONE: Mutex<()> = Mutex::new(());

/// These measure, and a wire takes a processor: one at a time. None where they cannot run.
pub(crate) fn alone(test: &str) -> Option<MutexGuard<'static, ()>> {
    let reason = skip::lab_reason().map(str::to_owned).or_else(TwoHosts::why_not);
    if let Some(reason) = reason {
        skip::report(test, &reason);
        return None;
    }
    Some(ALONE.lock().unwrap_or_else(PoisonError::into_inner))
}
