//! `penstock.Quarantine`.

use std::sync::Arc;

use pyo3::prelude::*;

use crate::error::call;
use crate::library::{PENSTOCK_OK, library, penstock_range};
use crate::memory::Memory;
use crate::values::{Handle, read_list, read_text};

/// Memory that must not be reused yet: a peer that was stopped, or is not reached, might still touch it.
///
/// The Python objects that it is of are kept until it is released, even if this object goes first.
///
///     held = region.deregister()
///     while held is not None and not held.released:
///         time.sleep(0.1)
#[pyclass(frozen, module = "penstock")]
pub(crate) struct Quarantine {
    handle: Handle,
    /// Taken by the drop.
    kept: Vec<Arc<Memory>>,
}

impl Quarantine {
    pub(crate) fn new(handle: Handle, kept: Vec<Arc<Memory>>) -> Self {
        Self { handle, kept }
    }

    pub(crate) fn handle(&self) -> u64 {
        self.handle.number()
    }

    fn is_released(&self) -> bool {
        // SAFETY: any number may be looked at.
        unsafe { (library().penstock_quarantine_look)(self.handle.number()) == PENSTOCK_OK }
    }
}

#[pymethods]
impl Quarantine {
    /// Whether nothing can touch the memory any more, for good. Of a peer's memory `PeerLost` is raised where that is not known: its session ended
    /// without a goodbye.
    #[getter]
    fn released(&self) -> PyResult<bool> {
        let handle = self.handle.number();
        // SAFETY: any number may be looked at.
        Ok(call(|library| unsafe { (library.penstock_quarantine_look)(handle) })? == PENSTOCK_OK)
    }

    /// The memory, as a list of (address, bytes).
    #[getter]
    fn ranges(&self) -> PyResult<Vec<(u64, u64)>> {
        let handle = self.handle.number();
        let ranges = read_list(|library, list: &mut [penstock_range], count| {
            // SAFETY: a list with its room, and the place of a count.
            unsafe { (library.penstock_quarantine_ranges)(handle, list.as_mut_ptr(), list.len(), count) }
        });
        Ok(ranges?.into_iter().map(|range| (range.offset, range.bytes)).collect())
    }

    /// Who might still touch it: names of engines, "this engine" for a worker of its own.
    #[getter]
    fn suspects(&self) -> PyResult<Vec<String>> {
        let handle = self.handle.number();
        let names = read_text(|library, buffer, length| {
            // SAFETY: a buffer with its size, and the place of a length.
            unsafe { (library.penstock_quarantine_suspects)(handle, buffer.as_mut_ptr().cast(), buffer.len(), length) }
        })?;
        Ok(names.lines().map(str::to_owned).collect())
    }

    fn __repr__(&self) -> String {
        let state = if self.is_released() { "released" } else { "held" };
        format!("<penstock.Quarantine {state}>")
    }
}

impl Drop for Quarantine {
    fn drop(&mut self) {
        if !self.is_released() {
            // Better never freed than freed under a writer.
            std::mem::forget(std::mem::take(&mut self.kept));
        }
    }
}
