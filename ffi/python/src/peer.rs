//! `penstock.Peer`.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyString};

use crate::arrays::number;
use crate::arrays::rows;
use crate::engine::Open;
use crate::error::{Failure, call};
use crate::library::*;
use crate::packets;
use crate::plan::{Plan, Shape};
use crate::region::{Blocks, READ_ONLY, Region, RemoteRegion};
use crate::told::RemoteCounter;
use crate::transfer::{Submit, Transfer, id_of};
use crate::values::{Handle, c_text, milliseconds, read_handles, read_text};
use crate::waits::aside;

/// How long a region that is named by its label is waited for: its announcement may be right behind the session.
const LABEL_SECONDS: f64 = 1.0;

type Text = unsafe extern "C" fn(penstock_peer, *mut std::ffi::c_char, usize, *mut usize) -> penstock_status;

/// Another engine, and the session with it.
///
///     peer = engine.connect(card)
///     plan = peer.write_plan(pool, "kv", blocks=[(0, 7), (1, 3)])
///     peer.submit(plan, notify=(1, b"layer 0")).wait()
#[pyclass(frozen, module = "penstock", weakref)]
pub(crate) struct Peer {
    open: Arc<Open>,
    handle: Handle,
    name: String,
}

impl Peer {
    pub(crate) fn new(open: &Arc<Open>, handle: Handle) -> Result<Self, Box<Failure>> {
        let name = text_of(handle.number(), library().penstock_peer_name)?;
        Ok(Self { open: Arc::clone(open), handle, name })
    }

    pub(crate) fn handle(&self) -> u64 {
        self.handle.number()
    }

    /// A region of it, as it is or by its label.
    fn remote(&self, py: Python<'_>, remote: &Bound<'_, PyAny>) -> PyResult<Py<RemoteRegion>> {
        match remote.cast::<PyString>() {
            Ok(label) => Py::new(py, self.region(py, label.to_str()?.to_owned(), LABEL_SECONDS)?),
            Err(_) => Ok(remote.cast::<RemoteRegion>()?.clone().unbind()),
        }
    }
}

fn text_of(peer: u64, read: Text) -> Result<String, Box<Failure>> {
    read_text(|_, buffer, length| {
        // SAFETY: a call of a peer's text, a buffer with its size, and the place of a length.
        unsafe { read(peer, buffer.as_mut_ptr().cast(), buffer.len(), length) }
    })
}

#[pymethods]
impl Peer {
    /// The name of its engine.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// The transport that reaches it: "local", "shm", "tcp", "datagram" or "verbs".
    #[getter]
    fn transport(&self) -> PyResult<String> {
        Ok(text_of(self.handle(), library().penstock_peer_transport)?)
    }

    /// The path to it, and why that one, in words.
    #[getter]
    fn path(&self) -> PyResult<String> {
        Ok(text_of(self.handle(), library().penstock_peer_path)?)
    }

    /// Why the session ended, as the exception that a submit would raise; None while it stands. It says nothing of memory.
    #[getter]
    fn ended<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        let peer = self.handle();
        // SAFETY: any number may be given.
        match call(|library| unsafe { (library.penstock_peer_state)(peer) }) {
            Ok(_) => Ok(None),
            Err(failure) if failure.status() == PENSTOCK_BAD_HANDLE => Err(failure.into()),
            Err(failure) => Ok(Some(failure.exception(py)?)),
        }
    }

    /// What has become of the packets to it and from it, the round trip and the window, as a dictionary: all 0 where the transport has no packets of
    /// its own.
    fn packet_statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        packets::of_peer(py, self.handle())
    }

    /// Asks it for a sign of life, and waits for it at most `timeout` seconds: how many seconds a word there and back takes.
    #[pyo3(signature = (timeout=1.0))]
    fn ping(&self, py: Python<'_>, timeout: f64) -> PyResult<f64> {
        let (peer, timeout) = (self.handle(), milliseconds(timeout)?);
        let nanoseconds = aside(py, &self.open, timeout, move || {
            let mut nanoseconds = 0;
            // SAFETY: the place of a number.
            let status = call(|library| unsafe { (library.penstock_peer_ping)(peer, timeout, &raw mut nanoseconds) })?;
            if status == PENSTOCK_OK { Ok(nanoseconds) } else { Err(Box::new(Failure::of_status(status))) }
        })?;
        Ok(nanoseconds as f64 / 1e9)
    }

    /// Waits until everything that the peer had registered before this call is known here, at most `timeout` seconds.
    #[pyo3(signature = (timeout=1.0))]
    fn refresh(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let (peer, timeout) = (self.handle(), milliseconds(timeout)?);
        aside(py, &self.open, timeout, move || {
            // SAFETY: any number may be given.
            let status = call(|library| unsafe { (library.penstock_peer_refresh)(peer, timeout) })?;
            if status == PENSTOCK_OK { Ok(()) } else { Err(Box::new(Failure::of_status(status))) }
        })
    }

    /// The region of this label, waiting at most `timeout` seconds for it to be announced.
    ///
    ///     kv = peer.region("kv", timeout=5)
    #[pyo3(signature = (label, timeout=0.0))]
    fn region(&self, py: Python<'_>, label: String, timeout: f64) -> PyResult<RemoteRegion> {
        let (text, timeout, peer) = (c_text(label.clone(), "label")?, milliseconds(timeout)?, self.handle());
        let handle = aside(py, &self.open, timeout, move || {
            Handle::of(|library, place| {
                // SAFETY: a text that ends with a zero, and the place of a handle.
                unsafe { (library.penstock_peer_region)(peer, text.as_ptr(), timeout, place) }
            })
        })?;
        RemoteRegion::new(handle, Some(label))
    }

    /// The region of the peer that has these bytes at this address of the peer's; of several the newest.
    #[pyo3(signature = (address, bytes=1))]
    fn region_at(
        &self,
        #[pyo3(from_py_with = number)] address: u64,
        #[pyo3(from_py_with = number)] bytes: u64,
    ) -> PyResult<RemoteRegion> {
        let peer = self.handle();
        let handle = Handle::of(|library, place| {
            // SAFETY: the place of a handle.
            unsafe { (library.penstock_peer_region_at)(peer, address, bytes, place) }
        })?;
        RemoteRegion::new(handle, None)
    }

    /// All regions that the peer has announced.
    #[getter]
    fn regions(&self) -> PyResult<Vec<RemoteRegion>> {
        let peer = self.handle();
        let regions = read_handles(|library, list, count| {
            // SAFETY: a list with its room, and the place of a count.
            unsafe { (library.penstock_peer_regions)(peer, list.as_mut_ptr(), list.len(), count) }
        })?;
        regions.into_iter().map(|region| RemoteRegion::new(region, None)).collect()
    }

    /// The counter of this label, waiting at most `timeout` seconds for it to be announced.
    #[pyo3(signature = (label, timeout=0.0))]
    fn counter(&self, py: Python<'_>, label: String, timeout: f64) -> PyResult<RemoteCounter> {
        let (text, timeout, peer) = (c_text(label.clone(), "label")?, milliseconds(timeout)?, self.handle());
        let handle = aside(py, &self.open, timeout, move || {
            Handle::of(|library, place| {
                // SAFETY: a text that ends with a zero, and the place of a handle.
                unsafe { (library.penstock_peer_counter)(peer, text.as_ptr(), timeout, place) }
            })
        })?;
        Ok(RemoteCounter::new(handle, label))
    }

    /// A plan that writes from `local`, a region or a pool, to `remote`, a region of the peer or its label, which is waited for a second at most. What moves is one of three:
    /// `blocks`, rows of (local index, remote index), in each of `layers`, rows of (local offset, remote offset), if there are any; `strided`, rows of
    /// (local offset, remote offset, bytes, local stride, remote stride, count); or `extents`, rows of (local offset, remote offset, bytes).
    ///
    /// Rows are a two-dimensional integer array, a tuple of columns, or a list of tuples. `block_bytes` and `strides`, (local, remote), are as the
    /// pools have them where they are left out. `keep` are blocks that stay taken as long as the plan is there, or a transfer of it. Everything
    /// is checked now; a plan can be submitted often.
    ///
    ///     plan = peer.write_plan(pool, "kv", layers=bases, blocks=pairs)
    #[pyo3(signature = (local, remote, *, layers=None, blocks=None, block_bytes=0, strides=None, strided=None, extents=None, keep=None))]
    #[allow(clippy::too_many_arguments, reason = "each is one of Python's named arguments")]
    fn write_plan(
        &self,
        py: Python<'_>,
        local: &Region,
        remote: &Bound<'_, PyAny>,
        layers: Option<&Bound<'_, PyAny>>,
        blocks: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = number)] block_bytes: u64,
        strides: Option<(u64, u64)>,
        strided: Option<&Bound<'_, PyAny>>,
        extents: Option<&Bound<'_, PyAny>>,
        keep: Option<Vec<Py<Blocks>>>,
    ) -> PyResult<Plan> {
        let remote = self.remote(py, remote)?;
        let shape = Shape::of(layers, blocks, block_bytes, strides, strided, extents, keep)?;
        shape.plan(py, PENSTOCK_WRITE, local, remote.get())
    }

    /// A plan that reads from `remote` into `local`; otherwise as `write_plan`.
    ///
    ///     plan = peer.read_plan(pool, "kv", extents=[(0, 0, 1 << 20)])
    #[pyo3(signature = (local, remote, *, layers=None, blocks=None, block_bytes=0, strides=None, strided=None, extents=None, keep=None))]
    #[allow(clippy::too_many_arguments, reason = "each is one of Python's named arguments")]
    fn read_plan(
        &self,
        py: Python<'_>,
        local: &Region,
        remote: &Bound<'_, PyAny>,
        layers: Option<&Bound<'_, PyAny>>,
        blocks: Option<&Bound<'_, PyAny>>,
        #[pyo3(from_py_with = number)] block_bytes: u64,
        strides: Option<(u64, u64)>,
        strided: Option<&Bound<'_, PyAny>>,
        extents: Option<&Bound<'_, PyAny>>,
        keep: Option<Vec<Py<Blocks>>>,
    ) -> PyResult<Plan> {
        local.check_writable()?;
        let remote = self.remote(py, remote)?;
        let shape = Shape::of(layers, blocks, block_bytes, strides, strided, extents, keep)?;
        shape.plan(py, PENSTOCK_READ, local, remote.get())
    }

    /// A plan by addresses that writes: rows of (address here, address at the peer, bytes), over any regions of either side.
    ///
    ///     plan = peer.write_addresses((locals, remotes, sizes))      # three arrays
    #[pyo3(signature = (rows, *, keep=None))]
    fn write_addresses(
        &self,
        py: Python<'_>,
        rows: &Bound<'_, PyAny>,
        keep: Option<Vec<Py<Blocks>>>,
    ) -> PyResult<Plan> {
        self.addresses(py, PENSTOCK_WRITE, rows, keep)
    }

    /// A plan by addresses that reads: rows of (address here, address at the peer, bytes).
    #[pyo3(signature = (rows, *, keep=None))]
    fn read_addresses(&self, py: Python<'_>, rows: &Bound<'_, PyAny>, keep: Option<Vec<Py<Blocks>>>) -> PyResult<Plan> {
        self.addresses(py, PENSTOCK_READ, rows, keep)
    }

    /// Submits a plan, and never waits. `notify` is a number, or (number, bytes), that the peer is told once after all bytes; `counter` is one of
    /// the peer's that goes up by one. The transfer ends by `timeout` seconds, 30 unless the configuration says otherwise; `float("inf")`: it has
    /// no deadline. `urgent` ones go before others. `Full`: there is no room now.
    ///
    ///     transfer = peer.submit(plan, notify=(7, b"layer 3"), timeout=0.2)
    ///     transfer.wait()                      # or: await transfer
    #[pyo3(signature = (plan, *, notify=None, counter=None, timeout=None, urgent=false))]
    fn submit(
        &self,
        py: Python<'_>,
        plan: &Plan,
        notify: Option<&Bound<'_, PyAny>>,
        counter: Option<&RemoteCounter>,
        timeout: Option<f64>,
        urgent: bool,
    ) -> PyResult<Transfer> {
        let submit = Submit::of(notify, counter, timeout, urgent)?;
        submit.plan(py, &self.open, self.handle(), plan.handle())
    }

    /// Tells the peer something, and moves nothing: a number of at most 128 bits, and at most 4,096 bytes.
    ///
    ///     peer.notify(9, b"done").wait()
    #[pyo3(signature = (id, payload=b"".to_vec(), *, counter=None, timeout=None, urgent=false))]
    fn notify(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = id_of)] id: u128,
        payload: Vec<u8>,
        counter: Option<&RemoteCounter>,
        timeout: Option<f64>,
        urgent: bool,
    ) -> PyResult<Transfer> {
        let submit = Submit::notice(id, payload, counter, timeout, urgent)?;
        submit.notify(py, &self.open, self.handle())
    }

    /// Ends the session, and waits at most `timeout` seconds until both sides have left it: False if the other has not.
    #[pyo3(signature = (timeout=1.0))]
    fn disconnect(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let (peer, timeout) = (self.handle(), milliseconds(timeout)?);
        let status = aside(py, &self.open, timeout, move || {
            // SAFETY: any number may be given.
            call(|library| unsafe { (library.penstock_disconnect)(peer, timeout) })
        })?;
        Ok(status == PENSTOCK_OK)
    }

    fn __repr__(&self) -> String {
        let transport = self.transport().unwrap_or_default();
        format!("<penstock.Peer {:?} over {transport}>", self.name)
    }
}

impl Peer {
    fn addresses(
        &self,
        py: Python<'_>,
        direction: u32,
        entries: &Bound<'_, PyAny>,
        keep: Option<Vec<Py<Blocks>>>,
    ) -> PyResult<Plan> {
        let entries = rows::<3>(entries, "rows")?;
        if direction == PENSTOCK_READ
            && entries.iter().any(|&[local, _, bytes]| bytes > 0 && self.open.has_readonly(local, bytes))
        {
            return Err(Box::new(Failure::with_text(PENSTOCK_NO_RIGHT, READ_ONLY)).into());
        }
        let entries: Vec<penstock_entry> =
            entries.into_iter().map(|[local, remote, bytes]| penstock_entry { local, remote, bytes }).collect();
        let keep: Vec<u64> = keep.unwrap_or_default().iter().map(|blocks| blocks.get().handle()).collect();
        let peer = self.handle();
        let made = py.detach(|| {
            let (entries, count) = (entries.as_ptr(), entries.len());
            Handle::of(|library, place| {
                // SAFETY: so many entries, so many handles, and the place of a handle.
                unsafe {
                    (library.penstock_plan_addresses)(peer, direction, entries, count, keep.as_ptr(), keep.len(), place)
                }
            })
        });
        Plan::new(made?)
    }
}
