//! What an engine is told: `penstock.Notification`, `penstock.Counter`.

use std::ffi::CStr;

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::arrays::number;
use crate::engine::{Engine, notifications_of};
use crate::error::call;
use crate::library::*;
use crate::values::{Handle, milliseconds};
use crate::waits::in_slices;

/// Notifications that are taken at once.
const AT_ONCE: usize = 256;

/// A notification, which arrives once, after the bytes of its transfer.
#[pyclass(frozen, module = "penstock")]
pub(crate) struct Notification {
    /// The name of the engine that sent it.
    #[pyo3(get)]
    peer: String,
    /// Its number, which means what the two sides agree on.
    #[pyo3(get)]
    id: u128,
    /// What it carries.
    #[pyo3(get)]
    payload: Py<PyBytes>,
}

#[pymethods]
impl Notification {
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let payload = self.payload.bind(py).as_bytes().len();
        Ok(format!("<penstock.Notification {} of {:?}, {payload} bytes>", self.id, self.peer))
    }
}

/// Takes notifications that are there, at most so many.
pub(crate) fn take_notifications<'py>(py: Python<'py>, engine: u64, most: usize) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let (mut list, mut count) = (vec![penstock_notification::default(); most.min(AT_ONCE)], 0);
    let (places, room) = (list.as_mut_ptr(), list.len());
    // What they point to goes with the batch.
    let batch = Handle::of(|library, batch| {
        // SAFETY: a list with its room, and the places of a count and a handle.
        unsafe { (library.penstock_notifications)(engine, places, room, &raw mut count, batch) }
    })?;
    let taken = list[..count].iter().map(|told| {
        // SAFETY: a text that ends with a zero, and so many bytes, as long as the batch is there.
        let (peer, payload) = unsafe {
            let bytes = std::slice::from_raw_parts(told.payload.cast::<u8>(), told.payload_bytes);
            (CStr::from_ptr(told.peer).to_string_lossy().into_owned(), PyBytes::new(py, bytes).unbind())
        };
        let id = u128::from(told.note_high) << 64 | u128::from(told.note);
        Ok(Bound::new(py, Notification { peer, id, payload })?.into_any())
    });
    let taken = taken.collect();
    drop(batch);
    taken
}

/// The notifications of an engine: `for` takes those that are there now, `async for` waits for more.
#[pyclass(frozen, module = "penstock")]
pub(crate) struct Notifications {
    engine: Py<Engine>,
}

impl Notifications {
    pub(crate) fn new(engine: Py<Engine>) -> Self {
        Self { engine }
    }
}

#[pymethods]
impl Notifications {
    fn __iter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __aiter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    fn __anext__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        py.import("penstock._loop")?.call_method1("next_notification", (&self.engine,))
    }

    fn __next__(&self, py: Python<'_>) -> PyResult<Option<Py<PyAny>>> {
        // One at a time: those that nobody asks for any more stay with the engine.
        let mut taken = notifications_of(py, self.engine.get(), 1)?;
        Ok(taken.pop().map(Bound::unbind))
    }
}

/// Counts transfers that have arrived, each after its bytes.
///
///     layers = pool.counter("layers")
///     layers.wait(80, timeout=5)
#[pyclass(frozen, module = "penstock")]
pub(crate) struct Counter {
    handle: Handle,
    label: String,
}

impl Counter {
    pub(crate) fn new(handle: Handle, label: String) -> Self {
        Self { handle, label }
    }
}

#[pymethods]
impl Counter {
    /// The name peers find it by.
    #[getter]
    fn label(&self) -> &str {
        &self.label
    }

    /// How many transfers have counted it up.
    #[getter]
    fn value(&self) -> PyResult<u64> {
        let (counter, mut value) = (self.handle.number(), 0);
        // SAFETY: the place of a number.
        call(|library| unsafe { (library.penstock_counter_value)(counter, &raw mut value) })?;
        Ok(value)
    }

    /// Waits until it has come to `value`: False if it has not within `timeout` seconds.
    #[pyo3(signature = (value, timeout=30.0))]
    fn wait(&self, py: Python<'_>, #[pyo3(from_py_with = number)] value: u64, timeout: f64) -> PyResult<bool> {
        let (counter, timeout) = (self.handle.number(), milliseconds(timeout)?);
        // SAFETY: any number may be given.
        let wait = |library: &Library, ms| unsafe { (library.penstock_counter_wait)(counter, value, ms) };
        Ok(in_slices(py, timeout, wait)? == PENSTOCK_OK)
    }

    fn __repr__(&self) -> String {
        format!("<penstock.Counter {:?} at {}>", self.label, self.value().unwrap_or_default())
    }
}

/// A counter of a peer, as `submit(counter=...)` names it.
#[pyclass(frozen, module = "penstock")]
pub(crate) struct RemoteCounter {
    handle: Handle,
    label: String,
}

impl RemoteCounter {
    pub(crate) fn new(handle: Handle, label: String) -> Self {
        Self { handle, label }
    }

    pub(crate) fn handle(&self) -> u64 {
        self.handle.number()
    }
}

#[pymethods]
impl RemoteCounter {
    /// The label by which it was found.
    #[getter]
    fn label(&self) -> &str {
        &self.label
    }

    fn __repr__(&self) -> String {
        format!("<penstock.RemoteCounter {:?}>", self.label)
    }
}
