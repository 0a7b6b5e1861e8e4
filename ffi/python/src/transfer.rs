//! `penstock.Transfer`, and how one is submitted and ends.

use std::sync::{Arc, OnceLock};

use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::engine::{Engine, Open};
use crate::error::{Failure, call, invalid};
use crate::library::*;
use crate::log;
use crate::quarantine::Quarantine;
use crate::told::RemoteCounter;
use crate::values::{Handle, milliseconds};
use crate::waits::{aside, in_slices};

/// The id of a notification.
pub(crate) fn id_of(id: &Bound<'_, PyAny>) -> PyResult<u128> {
    id.extract().map_err(|_| invalid("an id is a number from 0 on, of at most 128 bits"))
}

/// How a transfer is submitted.
pub(crate) struct Submit {
    notice: Option<(u128, Vec<u8>)>,
    counter: u64,
    timeout_ms: u64,
    priority: u32,
}

impl Submit {
    pub(crate) fn of(
        notify: Option<&Bound<'_, PyAny>>,
        counter: Option<&RemoteCounter>,
        timeout: Option<f64>,
        urgent: bool,
    ) -> PyResult<Self> {
        let notice = match notify {
            None => None,
            Some(notify) => Some(
                match notify.cast::<PyTuple>() {
                    Ok(both) => both.extract::<(u128, Vec<u8>)>(),
                    Err(_) => notify.extract::<u128>().map(|id| (id, Vec::new())),
                }
                .map_err(|_| {
                    invalid("`notify` is a number from 0 on of at most 128 bits, or a tuple of one and bytes")
                })?,
            ),
        };
        let timeout_ms = match timeout {
            None => 0,
            // Of a transfer none is too short; 0 would be the configured one.
            Some(timeout) => milliseconds(timeout)?.max(1),
        };
        let priority = if urgent { PENSTOCK_PRIORITY_URGENT } else { PENSTOCK_PRIORITY_BULK };
        Ok(Self { notice, counter: counter.map_or(0, RemoteCounter::handle), timeout_ms, priority })
    }

    pub(crate) fn notice(
        id: u128,
        payload: Vec<u8>,
        counter: Option<&RemoteCounter>,
        timeout: Option<f64>,
        urgent: bool,
    ) -> PyResult<Self> {
        Ok(Self { notice: Some((id, payload)), ..Self::of(None, counter, timeout, urgent)? })
    }

    fn options(&self) -> penstock_submit_options {
        let mut options = penstock_submit_options {
            timeout_ms: self.timeout_ms,
            priority: self.priority,
            counter: self.counter,
            ..Default::default()
        };
        if let Some((id, payload)) = &self.notice {
            options.has_note = 1;
            (options.note, options.note_high) = (*id as u64, (*id >> 64) as u64);
            (options.payload, options.payload_bytes) = (payload.as_ptr().cast(), payload.len());
        }
        options
    }

    pub(crate) fn plan(self, py: Python<'_>, open: &Arc<Open>, peer: u64, plan: u64) -> PyResult<Transfer> {
        self.submitted(py, open, move |library, options, place| {
            // SAFETY: options with their size, and the place of a handle.
            unsafe { (library.penstock_submit)(peer, plan, options, place) }
        })
    }

    pub(crate) fn notify(self, py: Python<'_>, open: &Arc<Open>, peer: u64) -> PyResult<Transfer> {
        self.submitted(py, open, move |library, options, place| {
            // SAFETY: options with their size, and the place of a handle.
            unsafe { (library.penstock_notify)(peer, options, place) }
        })
    }

    fn submitted(
        &self,
        py: Python<'_>,
        open: &Arc<Open>,
        submit: impl FnOnce(&'static Library, *const penstock_submit_options, *mut u64) -> penstock_status + Send,
    ) -> PyResult<Transfer> {
        let make = || {
            let options = self.options();
            Handle::of(|library, place| submit(library, &raw const options, place))
        };
        // An inline engine may copy in this call.
        let made = if open.is_inline() { py.detach(make) } else { make() };
        log::hand_over(py);
        Ok(Transfer { open: Arc::clone(open), handle: made?, cancelled: OnceLock::new() })
    }
}

/// A transfer on its way. Who drops it lets it go on, and does not hear how it ends.
///
///     transfer = peer.submit(plan)
///     print(transfer.wait().bytes)        # or: (await transfer).bytes
///
/// A task that awaits it and is cancelled, or runs into `asyncio.timeout`, cancels it; `cancelled` has the answer.
#[pyclass(frozen, module = "penstock", weakref)]
pub(crate) struct Transfer {
    open: Arc<Open>,
    handle: Handle,
    cancelled: OnceLock<Py<Cancel>>,
}

impl Transfer {
    pub(crate) fn handle(&self) -> u64 {
        self.handle.number()
    }
}

/// How a transfer ended well.
#[pyclass(frozen, module = "penstock")]
pub(crate) struct Completed {
    /// Bytes moved.
    #[pyo3(get)]
    bytes: u64,
    notified: u32,
}

#[pymethods]
impl Completed {
    /// What is known of the notification or the counter: "not asked", "yes", "no" or "unknown".
    #[getter]
    fn notified(&self) -> &'static str {
        match self.notified {
            PENSTOCK_NOTIFIED_NOT_ASKED => "not asked",
            PENSTOCK_NOTIFIED_YES => "yes",
            PENSTOCK_NOTIFIED_NO => "no",
            _ => "unknown",
        }
    }

    fn __repr__(&self) -> String {
        format!("<penstock.Completed {} bytes, notified: {}>", self.bytes, self.notified())
    }
}

/// What a cancel answers, once for each owner of memory: "quiesced", nothing of the transfer can touch it any more; "quarantined", something
/// might, and the quarantine says when it cannot; "unknown", the session ended without a goodbye.
#[pyclass(frozen, module = "penstock")]
pub(crate) struct Cancel {
    local: u32,
    remote: u32,
    /// This engine's memory that may still be touched, or None.
    #[pyo3(get)]
    local_quarantine: Option<Py<Quarantine>>,
    /// The peer's memory that may still be touched, or None.
    #[pyo3(get)]
    remote_quarantine: Option<Py<Quarantine>>,
}

fn memory_word(memory: u32) -> &'static str {
    match memory {
        PENSTOCK_MEMORY_QUIESCED => "quiesced",
        PENSTOCK_MEMORY_QUARANTINED => "quarantined",
        _ => "unknown",
    }
}

#[pymethods]
impl Cancel {
    /// This engine's memory.
    #[getter]
    fn local(&self) -> &'static str {
        memory_word(self.local)
    }

    /// The peer's memory.
    #[getter]
    fn remote(&self) -> &'static str {
        memory_word(self.remote)
    }

    fn __repr__(&self) -> String {
        format!("<penstock.Cancel local: {}, remote: {}>", self.local(), self.remote())
    }
}

/// How one of many transfers ended: `Completed`, or the exception.
pub(crate) fn ended_of<'py>(
    py: Python<'py>,
    transfer: &Transfer,
    status: penstock_status,
    bytes: u64,
    notified: u32,
) -> PyResult<Bound<'py, PyAny>> {
    if status == PENSTOCK_OK {
        return Ok(Bound::new(py, Completed { bytes, notified })?.into_any());
    }
    // Asked once more: the words of the failure are the thread's last error only then.
    match transfer.end() {
        Err(failure) => failure.exception(py),
        Ok(_) => Failure::of_status(status).exception(py),
    }
}

impl Transfer {
    /// How it ended, if it has.
    fn end(&self) -> Result<Option<Completed>, Box<Failure>> {
        let mut result = penstock_result::default();
        let handle = self.handle();
        // SAFETY: a struct with its size.
        let status = call(|library| unsafe { (library.penstock_poll)(handle, &raw mut result) })?;
        Ok((status == PENSTOCK_OK).then_some(Completed { bytes: result.bytes, notified: result.notified }))
    }
}

#[pymethods]
impl Transfer {
    /// How it ended, None if it has not. A failure is raised. Makes no progress of an inline engine.
    fn poll(&self, py: Python<'_>) -> PyResult<Option<Completed>> {
        let ended = self.end();
        log::hand_over(py);
        Ok(ended?)
    }

    /// Whether it has ended, well or not.
    #[getter]
    fn done(&self) -> PyResult<bool> {
        match self.end() {
            Ok(ended) => Ok(ended.is_some()),
            Err(failure) if failure.status() == PENSTOCK_FORKED => Err(failure.into()),
            Err(_) => Ok(true),
        }
    }

    /// Waits for the end, at most `timeout` seconds if it is given; then the transfer goes on, and `TimedOut` is raised. A failure is raised.
    ///
    ///     transfer.wait(5).bytes
    #[pyo3(signature = (timeout=None))]
    fn wait(&self, py: Python<'_>, timeout: Option<f64>) -> PyResult<Completed> {
        let timeout = timeout.map_or(Ok(u64::MAX), milliseconds)?;
        if let Some(ended) = self.end()? {
            return Ok(ended);
        }
        let handle = self.handle();
        // SAFETY: no struct for the answer, which is looked at below.
        let wait = |library: &Library, ms| unsafe { (library.penstock_wait)(handle, ms, std::ptr::null_mut()) };
        match in_slices(py, timeout, wait)? {
            PENSTOCK_OK => self.end()?.ok_or_else(|| Box::new(Failure::internal("an end that is none")).into()),
            status => Err(Box::new(Failure::of_status(status)).into()),
        }
    }

    /// Ends it now, and answers within `timeout` seconds whether anything of it can still touch memory.
    #[pyo3(signature = (timeout=1.0))]
    fn cancel(&self, py: Python<'_>, timeout: f64) -> PyResult<Py<Cancel>> {
        let (handle, timeout) = (self.handle(), milliseconds(timeout)?);
        let cancel = move || {
            let mut answer = penstock_cancel_answer::default();
            // SAFETY: a struct with its size.
            call(|library| unsafe { (library.penstock_cancel)(handle, timeout, &raw mut answer) })?;
            let held = [answer.local_quarantine, answer.remote_quarantine].map(Handle::new);
            let [here, there] = held;
            Ok((answer.local, answer.remote, here, there))
        };
        let (local, remote, held_here, held_there) = aside(py, &self.open, timeout, cancel)?;
        let quarantine = |held: Handle| match held.number() {
            0 => Ok(None),
            // Python objects of it are kept by their region.
            _ => Py::new(py, Quarantine::new(held, Vec::new())).map(Some),
        };
        let (local_quarantine, remote_quarantine) = (quarantine(held_here)?, quarantine(held_there)?);
        let answer = Py::new(py, Cancel { local, remote, local_quarantine, remote_quarantine })?;
        let _ = self.cancelled.set(answer.clone_ref(py)); // The first answer stands.
        Ok(answer)
    }

    /// What the first cancel answered, also that of a task which awaited it and was cancelled; None if it was not.
    #[getter]
    fn cancelled(&self, py: Python<'_>) -> Option<Py<Cancel>> {
        self.cancelled.get().map(|answer| answer.clone_ref(py))
    }

    /// The engine that it is of.
    #[getter]
    fn engine(&self) -> Engine {
        Engine::of(&self.open)
    }

    fn __await__<'py>(slf: Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        slf.py().import("penstock._loop")?.call_method1("ended", (slf,))?.call_method0("__await__")
    }

    /// Bytes that it has moved so far.
    #[getter]
    fn bytes_moved(&self) -> PyResult<u64> {
        let (handle, mut bytes) = (self.handle(), 0);
        // SAFETY: the place of a number.
        call(|library| unsafe { (library.penstock_bytes_moved)(handle, &raw mut bytes) })?;
        Ok(bytes)
    }

    fn __repr__(&self) -> String {
        let state = match self.end() {
            Ok(Some(_)) => "ended",
            Ok(None) => "under way",
            Err(_) => "failed",
        };
        format!("<penstock.Transfer {state}>")
    }
}
