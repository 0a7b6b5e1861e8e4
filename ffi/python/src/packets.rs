//! What became of packets, as dictionaries.

use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::call;
use crate::library::*;

/// What has become of the packets of all peers of an engine.
pub(crate) fn of_engine(py: Python<'_>, engine: penstock_engine) -> PyResult<Bound<'_, PyDict>> {
    // SAFETY: a struct with its size.
    let found = read(|library, place| unsafe { (library.penstock_engine_packet_statistics)(engine, place) })?;
    counts(py, &found)
}

/// The same of one peer, and what the way to it is like.
pub(crate) fn of_peer(py: Python<'_>, peer: penstock_peer) -> PyResult<Bound<'_, PyDict>> {
    // SAFETY: a struct with its size.
    let found = read(|library, place| unsafe { (library.penstock_peer_packet_statistics)(peer, place) })?;
    let all = counts(py, &found)?;
    all.set_item("round_trip_ns", found.round_trip_ns)?;
    all.set_item("window_bytes", found.window_bytes)?;
    Ok(all)
}

fn read(
    ask: impl FnOnce(&'static Library, *mut penstock_packet_statistics) -> penstock_status,
) -> PyResult<penstock_packet_statistics> {
    let mut found = penstock_packet_statistics::default();
    call(|library| ask(library, &raw mut found))?;
    Ok(found)
}

fn counts<'py>(py: Python<'py>, found: &penstock_packet_statistics) -> PyResult<Bound<'py, PyDict>> {
    let all = PyDict::new(py);
    for (name, value) in [
        ("sent", found.sent),
        ("lost", found.lost),
        ("spurious", found.spurious),
        ("repeated", found.repeated),
        ("timeouts", found.timeouts),
        ("received", found.received),
        ("late", found.late),
        ("strangers", found.strangers),
        ("forged", found.forged),
        ("replayed", found.replayed),
        ("corrupt", found.corrupt),
        ("dropped_by_port", found.dropped_by_port),
        ("refused_by_port", found.refused_by_port),
        ("blocked", found.blocked),
    ] {
        all.set_item(name, value)?;
    }
    Ok(all)
}
