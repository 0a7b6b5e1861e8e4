//! `penstock.Engine`.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_int};
use std::os::fd::RawFd;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::atomic::Ordering::{self, Relaxed};
use std::sync::atomic::{AtomicBool, AtomicPtr};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyTuple};

use crate::arrays::number;
use crate::device;
use crate::error::{Failure, call, invalid, undisturbed};
use crate::library::*;
use crate::log;
use crate::memory::{Memory, MemoryKind};
use crate::packets;
use crate::peer::Peer;
use crate::quarantine::Quarantine;
use crate::region::{Pool, Region, rights_of};
use crate::told::{Notifications, take_notifications};
use crate::transfer::{Transfer, ended_of};
use crate::values::{Handle, c_text, milliseconds, read_bytes, read_handles, read_text};
use crate::waits::{aside, attach_anew, attach_no_more, attached, in_slices};

/// A century, which no wait is longer than.
const EVER_MS: u64 = 100 * 365 * 24 * 3600 * 1000;
/// How long the end of a program, or of an engine that nobody closed, may take.
const EXIT_MS: u64 = 500;

/// Engines of this process that are open, for its exit. Made anew in a forked child, whose parent's may be locked for good.
static OPEN: AtomicPtr<Mutex<Vec<u64>>> = AtomicPtr::new(std::ptr::null_mut());
/// The program ends: threads that still wait are those that Python ends by force.
pub(crate) static IS_EXITING: AtomicBool = AtomicBool::new(false);

fn all_open() -> MutexGuard<'static, Vec<u64>> {
    // SAFETY: `forget_all` has leaked it, which the package calls before it starts an engine.
    let open = unsafe { &*OPEN.load(Ordering::Acquire) };
    open.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How far a close has come.
#[derive(Default)]
enum Close {
    #[default]
    NotBegun,
    UnderWay,
    /// It is over; what is quarantined is for whoever asks first.
    Over(Vec<Quarantine>),
}

/// An engine for as long as anything of it is there.
pub(crate) struct Open {
    handle: u64,
    name: String,
    is_inline: bool,
    /// The process that it is of.
    process: u32,
    close: Mutex<Close>,
    closed: Condvar,
    is_closed: AtomicBool,
    /// Memory of Python objects, by the region that it is registered as.
    kept: Mutex<HashMap<u64, Kept>>,
}

/// Memory of a Python object, and as what it is registered.
struct Kept {
    memory: Arc<Memory>,
    label: Option<String>,
    rights: u32,
}

impl Kept {
    fn is_same_region(&self, other: &Self) -> bool {
        let of = |kept: &Self| (kept.memory.address, kept.memory.bytes, kept.rights);
        of(self) == of(other) && self.label == other.label
    }
}

impl Open {
    pub(crate) fn is_inline(&self) -> bool {
        self.is_inline
    }

    fn keep(&self, region: u64, memory: Kept) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_closed.load(Relaxed) {
            std::mem::forget(memory); // A close came in between, and what it quarantined was told already.
        } else {
            kept.insert(region, memory);
        }
    }

    /// Whether Python says of any of these bytes that nobody may write them.
    pub(crate) fn has_readonly(&self, address: u64, bytes: u64) -> bool {
        let overlaps = |memory: &Memory| {
            let (first, count) = (memory.address as u64, memory.bytes as u64);
            first < address.saturating_add(bytes) && address < first.saturating_add(count)
        };
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.values().any(|kept| kept.memory.is_readonly && overlaps(&kept.memory))
    }

    /// The handles of the region that this is one of: the same memory, label and rights that were registered more than once are one. None
    /// for a region whose memory is not kept.
    pub(crate) fn handles_of(&self, region: u64) -> Vec<u64> {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(this) = kept.get(&region) else { return Vec::new() };
        kept.iter().filter(|(_, other)| other.is_same_region(this)).map(|(&region, _)| region).collect()
    }

    pub(crate) fn let_go(&self, regions: &[u64]) -> Vec<Arc<Memory>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        regions.iter().filter_map(|region| kept.remove(region)).map(|kept| kept.memory).collect()
    }

    fn check(&self) -> PyResult<()> {
        match self.is_closed.load(Relaxed) {
            true => Err(Box::new(Failure::of_status(PENSTOCK_ENGINE_CLOSED)).into()),
            false => Ok(()),
        }
    }

    /// Ends the engine, or waits for another thread that does.
    fn close(&self, timeout_ms: u64) -> Result<(), Box<Failure>> {
        if self.process != std::process::id() {
            return Err(Box::new(Failure::of_status(PENSTOCK_FORKED))); // A lock may be its parent's.
        }
        let mut close = self.close.lock().unwrap_or_else(PoisonError::into_inner);
        if let Close::NotBegun = *close {
            *close = Close::UnderWay;
            drop(close);
            let held = self.close_now(timeout_ms);
            let (held, answer) = held.map_or_else(|failure| (Vec::new(), Err(failure)), |held| (held, Ok(())));
            *self.close.lock().unwrap_or_else(PoisonError::into_inner) = Close::Over(held);
            self.closed.notify_all();
            attached(|py| {
                let loops = py.import("penstock._loop").and_then(|loops| loops.call_method1("closed", (self.handle,)));
                loops.map(drop).unwrap_or_else(|error| log::not_now(py, error));
            });
            return answer;
        }
        let until = Instant::now() + Duration::from_millis(timeout_ms.min(EVER_MS));
        while let Close::UnderWay = *close {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(Box::new(Failure::of_status(PENSTOCK_TIMED_OUT)));
            }
            close = self.closed.wait_timeout(close, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// What a close has quarantined, for whoever asks first.
    fn held(&self) -> Vec<Quarantine> {
        match &mut *self.close.lock().unwrap_or_else(PoisonError::into_inner) {
            Close::Over(held) => std::mem::take(held),
            _ => Vec::new(),
        }
    }

    fn close_now(&self, timeout_ms: u64) -> Result<Vec<Quarantine>, Box<Failure>> {
        let (mut list, mut count) = (vec![0; 4096], 0);
        let (place, room) = (list.as_mut_ptr(), list.len());
        // SAFETY: a list with its room, and the place of a count.
        let closed = call(|library| unsafe {
            (library.penstock_engine_close)(self.handle, timeout_ms, place, room, &raw mut count)
        });
        all_open().retain(|open| *open != self.handle);
        self.is_closed.store(true, Relaxed);
        let kept = std::mem::take(&mut *self.kept.lock().unwrap_or_else(PoisonError::into_inner));
        let kept: Vec<Arc<Memory>> = kept.into_values().map(|kept| kept.memory).collect();
        if closed.is_err() || count > room {
            // Whose memory it is that may still be touched is not known.
            std::mem::forget(kept.clone());
        }
        match closed {
            // The end of the program has closed it.
            Err(failure) if failure.status() == PENSTOCK_BAD_HANDLE => return Ok(Vec::new()),
            closed => closed?,
        };
        let held = list.into_iter().take(count).map(|held| Quarantine::new(Handle::new(held), kept.clone()));
        Ok(held.collect())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        if self.process != std::process::id() {
            // A child's copy: what it keeps is its parent's, whose locks it may hold.
            std::mem::forget(std::mem::take(&mut self.kept));
            return;
        }
        let close = || drop(self.close(EXIT_MS));
        if attached(|py| undisturbed(py, || py.detach(close))).is_none() {
            close();
        }
    }
}

/// Ends what is open when the program ends, all at once and in a short time: called by `atexit`.
#[pyfunction(name = "_close_all")]
pub(crate) fn close_all(py: Python<'_>) {
    let open = std::mem::take(&mut *all_open());
    IS_EXITING.store(true, Relaxed);
    py.detach(|| {
        std::thread::scope(|scope| {
            for engine in open {
                scope.spawn(move || {
                    let (mut count, none) = (0, std::ptr::null_mut());
                    // SAFETY: a list without room, and the place of a count.
                    unsafe { (library().penstock_engine_close)(engine, EXIT_MS, none, 0, &raw mut count) }
                });
            }
        });
        attach_no_more();
    });
    log::hand_over(py);
}

/// A process begins without engines, also a forked child.
#[pyfunction(name = "_forget_all")]
pub(crate) fn forget_all() {
    IS_EXITING.store(false, Relaxed);
    attach_anew();
    OPEN.store(Box::into_raw(Box::default()), Ordering::Release);
}

/// An engine: one instance in this process, with a name, worker threads, and the memory that is registered with it.
///
/// `name` is what peers know it by; without one it is as the configuration says, or made of the program and its process.
/// The configuration is the YAML file `config`, the text `yaml`, or all defaults.
///
///     with penstock.Engine("decode-0") as engine:
///         pool = engine.pool(1 << 30, block=65536, label="kv")
///         card = engine.descriptor()      # send it to the other side
#[pyclass(frozen, module = "penstock", weakref)]
pub(crate) struct Engine {
    open: Arc<Open>,
}

#[pymethods]
impl Engine {
    #[new]
    #[pyo3(signature = (name=None, *, config=None, yaml=None))]
    fn start(py: Python<'_>, name: Option<String>, config: Option<PathBuf>, yaml: Option<String>) -> PyResult<Self> {
        let name = name.map(|name| c_text(name, "name")).transpose()?;
        let config = config.map(|config| c_text(config.into_os_string().into_vec(), "config")).transpose()?;
        let yaml = yaml.map(|yaml| c_text(yaml, "yaml")).transpose()?;
        let started = py.detach(|| {
            let pointer = |text: &Option<_>| text.as_deref().map_or(std::ptr::null(), CStr::as_ptr);
            let options = penstock_engine_options {
                name: pointer(&name),
                config_file: pointer(&config),
                config_yaml: pointer(&yaml),
                ..Default::default()
            };
            let mut handle = 0;
            // SAFETY: texts that end with a zero or are null, and the place of a handle.
            call(|library| unsafe { (library.penstock_engine_start)(&raw const options, &raw mut handle) })?;
            all_open().push(handle);
            // From here on it is closed with this, whatever fails.
            let mut open = Open {
                handle,
                name: String::new(),
                is_inline: false,
                process: std::process::id(),
                close: Mutex::default(),
                closed: Condvar::new(),
                is_closed: AtomicBool::new(false),
                kept: Mutex::default(),
            };
            let mut is_inline: c_int = 0;
            // SAFETY: the place of a number.
            call(|library| unsafe { (library.penstock_engine_is_inline)(handle, &raw mut is_inline) })?;
            open.is_inline = is_inline != 0;
            open.name = read_text(|library, buffer, length| {
                // SAFETY: a buffer with its size, and the place of a length.
                unsafe { (library.penstock_engine_name)(handle, buffer.as_mut_ptr().cast(), buffer.len(), length) }
            })?;
            Ok::<_, Box<Failure>>(Self { open: Arc::new(open) })
        });
        log::hand_over(py);
        Ok(started?)
    }

    /// One engine may have several of these objects.
    fn __eq__(&self, other: &Self) -> bool {
        self.open.handle == other.open.handle
    }

    fn __hash__(&self) -> u64 {
        self.open.handle
    }

    /// What peers know it by.
    #[getter]
    fn name(&self) -> &str {
        &self.open.name
    }

    /// What it is known by in an event loop.
    #[getter]
    fn _number(&self) -> u64 {
        self.open.handle
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.open.is_closed.load(Relaxed)
    }

    /// Whether it makes progress only in calls of the thread that started it (`workers.progress: inline`).
    #[getter]
    fn inline(&self) -> bool {
        self.open.is_inline
    }

    /// Where other hosts reach it, as a list of "host:port".
    #[getter]
    fn addresses(&self) -> PyResult<Vec<String>> {
        let handle = self.handle()?;
        let lines = read_text(|library, buffer, length| {
            // SAFETY: a buffer with its size, and the place of a length.
            unsafe { (library.penstock_engine_addresses)(handle, buffer.as_mut_ptr().cast(), buffer.len(), length) }
        })?;
        Ok(lines.lines().map(str::to_owned).collect())
    }

    /// Bytes by which another engine connects to this one: send them any way you like.
    ///
    ///     card = engine.descriptor()
    fn descriptor<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        let handle = self.handle()?;
        let bytes = read_bytes(|library, buffer, length| {
            // SAFETY: a buffer with its size, and the place of a length.
            unsafe { (library.penstock_engine_descriptor)(handle, buffer.as_mut_ptr().cast(), buffer.len(), length) }
        });
        Ok(PyBytes::new(py, &bytes?))
    }

    /// Connects to another engine, waiting at most `timeout` seconds: by its descriptor, by `address` ("host:port"), or by `name`, which is
    /// tried until there is an engine of that name. One that is connected already is found.
    ///
    ///     peer = engine.connect(card)
    ///     peer = engine.connect(address="10.0.0.7:7400", timeout=2)
    #[pyo3(signature = (descriptor=None, *, address=None, name=None, timeout=10.0))]
    fn connect(
        &self,
        py: Python<'_>,
        descriptor: Option<Vec<u8>>,
        address: Option<String>,
        name: Option<String>,
        timeout: f64,
    ) -> PyResult<Peer> {
        let (engine, timeout) = (self.handle()?, milliseconds(timeout)?);
        let handle = match (descriptor, address, name) {
            (Some(bytes), None, None) => aside(py, &self.open, timeout, move || {
                Handle::of(|library, place| {
                    // SAFETY: bytes with their number, and the place of a handle.
                    unsafe { (library.penstock_connect)(engine, bytes.as_ptr().cast(), bytes.len(), timeout, place) }
                })
            })?,
            (None, Some(address), None) => {
                let address = c_text(address, "address")?;
                aside(py, &self.open, timeout, move || {
                    // SAFETY: a text that ends with a zero, and the place of a handle.
                    let connect = |library: &Library, place| unsafe {
                        (library.penstock_connect_address)(engine, address.as_ptr(), timeout, place)
                    };
                    Handle::of(connect)
                })?
            }
            (None, None, Some(name)) => {
                let name = c_text(name, "name")?;
                aside(py, &self.open, timeout, move || {
                    // SAFETY: a text that ends with a zero, and the place of a handle.
                    let connect = |library: &Library, place| unsafe {
                        (library.penstock_connect_name)(engine, name.as_ptr(), timeout, place)
                    };
                    Handle::of(connect)
                })?
            }
            _ => return Err(invalid("say whom to connect to, in one way: a descriptor, `address` or `name`")),
        };
        Ok(Peer::new(&self.open, handle)?)
    }

    /// Connects again to the engine behind a session that has ended, most likely in its next life, waiting at most `timeout` seconds.
    #[pyo3(signature = (peer, timeout=10.0))]
    fn reconnect(&self, py: Python<'_>, peer: &Peer, timeout: f64) -> PyResult<Peer> {
        let (engine, peer, timeout) = (self.handle()?, peer.handle(), milliseconds(timeout)?);
        let handle = aside(py, &self.open, timeout, move || {
            // SAFETY: the place of a handle.
            Handle::of(|library, place| unsafe { (library.penstock_reconnect)(engine, peer, timeout, place) })
        })?;
        Ok(Peer::new(&self.open, handle)?)
    }

    /// All peers with a standing session, whoever connected.
    #[getter]
    fn peers(&self) -> PyResult<Vec<Peer>> {
        let engine = self.handle()?;
        let peers = read_handles(|library, list, count| {
            // SAFETY: a list with its room, and the place of a count.
            unsafe { (library.penstock_peers)(engine, list.as_mut_ptr(), list.len(), count) }
        })?;
        peers.into_iter().map(|peer| Ok(Peer::new(&self.open, peer)?)).collect()
    }

    /// Makes a pool of memory of the engine's own, which peers on one host map, and announces it to peers under `label`. `rights` is what
    /// peers may do: "r", "w", "rw" or "". `pages` is "auto", "small" or "huge".
    ///
    ///     pool = engine.pool(1 << 30, block=65536, label="kv")
    #[pyo3(signature = (bytes, *, block=0, label=None, rights="rw", pages="auto"))]
    fn pool(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] bytes: u64,
        #[pyo3(from_py_with = number)] block: u64,
        label: Option<String>,
        rights: &str,
        pages: &str,
    ) -> PyResult<Py<Pool>> {
        let (engine, rights) = (self.handle()?, rights_of(rights)?);
        let pages = match pages {
            "auto" => PENSTOCK_PAGES_AUTO,
            "small" => PENSTOCK_PAGES_SMALL,
            "huge" => PENSTOCK_PAGES_HUGE,
            _ => return Err(invalid(&format!("there are no pages `{pages}`: use auto, small or huge"))),
        };
        let text = label.clone().map(|label| c_text(label, "label")).transpose()?;
        let made = py.detach(|| {
            let label = text.as_deref().map_or(std::ptr::null(), CStr::as_ptr);
            let options =
                penstock_pool_options { bytes, block_bytes: block, label, rights, pages, ..Default::default() };
            // SAFETY: options with their size, whose label ends with a zero or is null, and the place of a handle.
            Handle::of(|library, place| unsafe { (library.penstock_pool_create)(engine, &raw const options, place) })
        });
        log::hand_over(py);
        Pool::new(py, &self.open, made?, label)
    }

    /// Registers memory of a Python object, without a copy: a numpy array, a torch tensor on the CPU, anything with the buffer protocol or
    /// DLPack. It is announced to peers under `label`. The object is kept until the region is deregistered, or the engine ends.
    ///
    ///     kv = engine.register(tensor, "kv", rights="r")
    #[pyo3(signature = (memory, label=None, *, rights="rw"))]
    fn register(
        &self,
        py: Python<'_>,
        memory: &Bound<'_, PyAny>,
        label: Option<String>,
        rights: &str,
    ) -> PyResult<Region> {
        self.register_memory(py, MemoryKind::Host, Memory::of(memory)?, label, rights_of(rights)?)
    }

    /// Registers memory by its address. Whoever owns it keeps it mapped as it is until the region is deregistered, or the engine
    /// has ended.
    ///
    ///     region = engine.register_address(tensor.data_ptr(), tensor.nbytes, "kv")
    #[pyo3(signature = (address, bytes, label=None, *, rights="rw"))]
    fn register_address(
        &self,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] address: u64,
        #[pyo3(from_py_with = number)] bytes: u64,
        label: Option<String>,
        rights: &str,
    ) -> PyResult<Region> {
        self.register_at(py, MemoryKind::Host, (address, bytes), label, rights_of(rights)?, None)
    }

    /// Registers memory of a CUDA device, without a copy: a torch tensor, anything with `__cuda_array_interface__` (cupy, numba) or DLPack, or a tuple
    /// (address, bytes), whose owner keeps it. Otherwise as `register`. Nothing is read or waited for; copies of the device begin when all is done that
    /// the stream of the object has now: torch's current stream, `stream` of `__cuda_array_interface__`, or whatever `__dlpack__` puts before the default
    /// stream. `stream` names another one, as for `Region.order_behind`; -1 is none. What a transfer writes is there once it has ended.
    ///
    ///     kv = engine.register_device(tensor, "kv")
    #[pyo3(signature = (memory, label=None, *, rights="rw", stream=None))]
    fn register_device(
        &self,
        py: Python<'_>,
        memory: &Bound<'_, PyAny>,
        label: Option<String>,
        rights: &str,
        stream: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Region> {
        device::register(self, py, memory, label, rights_of(rights)?, stream)
    }

    /// The region of this engine that has these bytes at this address; of several the newest.
    #[pyo3(signature = (address, bytes=1))]
    fn region_at(
        &self,
        #[pyo3(from_py_with = number)] address: u64,
        #[pyo3(from_py_with = number)] bytes: u64,
    ) -> PyResult<Region> {
        let engine = self.handle()?;
        let handle = Handle::of(|library, place| {
            // SAFETY: the place of a handle.
            unsafe { (library.penstock_region_at)(engine, address, bytes, place) }
        })?;
        Region::new(&self.open, handle, None)
    }

    /// Notifications of peers, each once, in the order in which they came. A loop takes those that are there now; `async for` waits for more.
    ///
    ///     for note in engine.notifications():
    ///         print(note.peer, note.id, note.payload)
    fn notifications(slf: Bound<'_, Self>) -> PyResult<Notifications> {
        slf.get().handle()?;
        Ok(Notifications::new(slf.unbind()))
    }

    /// Waits until there is a notification to take: False if none came within `timeout` seconds.
    #[pyo3(signature = (timeout=30.0))]
    fn wait_notification(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let (engine, timeout) = (self.handle()?, milliseconds(timeout)?);
        // SAFETY: any number may be given.
        let wait = |library: &Library, ms| unsafe { (library.penstock_wait_notification)(engine, ms) };
        Ok(in_slices(py, timeout, wait)? == PENSTOCK_OK)
    }

    /// Which of these transfers have ended, and how: a list of (place in the list, `Completed` or the exception).
    ///
    ///     for place, end in engine.poll_many(transfers):
    ///         ...
    fn poll_many<'py>(
        &self,
        py: Python<'py>,
        transfers: Vec<Py<Transfer>>,
    ) -> PyResult<Vec<(usize, Bound<'py, PyAny>)>> {
        let engine = self.handle()?;
        let handles: Vec<u64> = transfers.iter().map(|transfer| transfer.get().handle()).collect();
        let poll = || {
            let (mut ended, mut count) = (vec![penstock_completion::default(); handles.len()], 0);
            let places = ended.as_mut_ptr();
            // SAFETY: so many handles, and as many places.
            call(|library| unsafe {
                (library.penstock_poll_many)(engine, handles.as_ptr(), handles.len(), places, &raw mut count)
            })?;
            ended.truncate(count);
            Ok::<_, Box<Failure>>(ended)
        };
        let ended = if self.open.is_inline { py.detach(poll) } else { poll() };
        log::hand_over(py);
        let ends = ended?.into_iter().map(|end| {
            let transfer = transfers[end.place].get();
            Ok((end.place, ended_of(py, transfer, end.status, end.bytes, end.notified)?))
        });
        ends.collect()
    }

    /// One turn of an inline engine; others work by themselves. Whether anything happened.
    fn progress(&self, py: Python<'_>) -> PyResult<bool> {
        let engine = self.handle()?;
        let turned = py.detach(|| {
            let mut worked: c_int = 0;
            // SAFETY: the place of a number.
            call(|library| unsafe { (library.penstock_progress)(engine, &raw mut worked) }).map(|_| worked != 0)
        });
        log::hand_over(py);
        Ok(turned?)
    }

    /// A descriptor for `select`, `poll` or an event loop, the engine's own: readable when something has happened after `arm`. It is closed with
    /// the engine.
    fn fileno(&self) -> PyResult<RawFd> {
        let (engine, mut fd) = (self.handle()?, -1);
        // SAFETY: the place of a number.
        call(|library| unsafe { (library.penstock_event_fd)(engine, &raw mut fd) })?;
        Ok(fd)
    }

    /// Asks for `fileno()` to become readable, right before sleeping on it. False: something has happened since the last call, so look first.
    /// One user an engine: an event loop that awaits its transfers is one.
    fn arm(&self) -> PyResult<bool> {
        let engine = self.handle()?;
        // SAFETY: any number may be given.
        Ok(call(|library| unsafe { (library.penstock_arm)(engine) })? == PENSTOCK_OK)
    }

    /// Takes nothing new, and waits at most `timeout` seconds until what goes on has ended: False if something has not.
    #[pyo3(signature = (timeout=30.0))]
    fn drain(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let (engine, timeout) = (self.handle()?, milliseconds(timeout)?);
        // SAFETY: any number may be given.
        let drain = |library: &Library, ms| unsafe { (library.penstock_drain)(engine, ms) };
        Ok(in_slices(py, timeout, drain)? == PENSTOCK_OK)
    }

    /// What the workers have done since the start, as a dictionary.
    fn statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (engine, mut found) = (self.handle()?, penstock_statistics::default());
        // SAFETY: a struct with its size.
        call(|library| unsafe { (library.penstock_engine_statistics)(engine, &raw mut found) })?;
        let all = PyDict::new(py);
        for (name, value) in [
            ("transfers_completed", found.transfers_completed),
            ("transfers_failed", found.transfers_failed),
            ("bytes", found.bytes),
            ("notes_sent", found.notes_sent),
            ("notes_received", found.notes_received),
            ("waits_for_room", found.waits_for_room),
            ("quarantines", found.quarantines),
            ("turns", found.turns),
            ("sleeps", found.sleeps),
        ] {
            all.set_item(name, value)?;
        }
        Ok(all)
    }

    /// What has become of packets since the start, of transports that have some of their own ("datagram"), as a dictionary.
    fn packet_statistics<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        packets::of_engine(py, self.handle()?)
    }

    /// All memory of this engine that is quarantined now.
    #[getter]
    fn quarantined(&self) -> PyResult<Vec<Quarantine>> {
        let engine = self.handle()?;
        let held = read_handles(|library, list, count| {
            // SAFETY: a list with its room, and the place of a count.
            unsafe { (library.penstock_quarantined)(engine, list.as_mut_ptr(), list.len(), count) }
        })?;
        // Python objects of it are kept by whoever took the memory back.
        Ok(held.into_iter().map(|held| Quarantine::new(held, Vec::new())).collect())
    }

    /// Ends the engine within `timeout` seconds: transfers have half of that to end, then peers are told goodbye. What a stopped peer might still
    /// touch is answered as a list, and kept until it does not. Closing it again waits for a close that another thread is at, or that was interrupted, and answers what nobody was told. The end of a `with` block closes it
    /// too.
    ///
    ///     held = engine.close(timeout=5)
    #[pyo3(signature = (timeout=1.0))]
    fn close(&self, py: Python<'_>, timeout: f64) -> PyResult<Vec<Quarantine>> {
        let (open, timeout) = (Arc::clone(&self.open), milliseconds(timeout)?);
        aside(py, &self.open, timeout, move || open.close(timeout))?;
        Ok(self.open.held())
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: &Bound<'_, PyTuple>) -> PyResult<()> {
        match self.close(py, 1.0) {
            // A child that leaves its parent's block has nothing to close.
            Err(_) if self.open.process != std::process::id() => Ok(()),
            closed => closed.map(drop),
        }
    }

    fn __repr__(&self) -> String {
        let state = if self.closed() { ", closed" } else { "" };
        format!("<penstock.Engine {:?}{state}>", self.open.name)
    }
}

impl Engine {
    pub(crate) fn handle(&self) -> PyResult<penstock_engine> {
        self.open.check()?;
        Ok(self.open.handle)
    }

    /// The engine that something belongs to, as an object of its own.
    pub(crate) fn of(open: &Arc<Open>) -> Self {
        Self { open: Arc::clone(open) }
    }

    pub(crate) fn register_memory(
        &self,
        py: Python<'_>,
        kind: MemoryKind,
        memory: Memory,
        label: Option<String>,
        rights: u32,
    ) -> PyResult<Region> {
        if memory.is_readonly && rights & PENSTOCK_RIGHTS_WRITE != 0 {
            let words = "the memory is read-only: peers can be given the right to read it (rights=\"r\"), or none (rights=\"\")";
            return Err(Box::new(Failure::with_text(PENSTOCK_NO_RIGHT, words)).into());
        }
        let range = (memory.address as u64, memory.bytes as u64);
        self.register_at(py, kind, range, label, rights, Some(Arc::new(memory)))
    }

    pub(crate) fn register_at(
        &self,
        py: Python<'_>,
        kind: MemoryKind,
        (address, bytes): (u64, u64),
        label: Option<String>,
        rights: u32,
        memory: Option<Arc<Memory>>,
    ) -> PyResult<Region> {
        let engine = self.handle()?;
        let text: Option<CString> = label.clone().map(|label| c_text(label, "label")).transpose()?;
        let made = py.detach(|| {
            let label = text.as_deref().map_or(std::ptr::null(), CStr::as_ptr);
            // SAFETY: memory that is kept below, or as its owner has promised; a label that ends with a zero or is null; the place of a handle.
            Handle::of(|library, place| unsafe {
                match kind {
                    MemoryKind::Host => {
                        (library.penstock_register)(engine, address as *mut _, bytes as usize, label, rights, place)
                    }
                    MemoryKind::Cuda => {
                        (library.penstock_register_device)(engine, address, bytes, label, rights, place)
                    }
                }
            })
        });
        log::hand_over(py);
        let handle = made?;
        if let Some(memory) = memory {
            self.open.keep(handle.number(), Kept { memory, label: label.clone(), rights });
        }
        Region::new(&self.open, handle, label)
    }
}

/// Notifications that are there now, at most so many.
pub(crate) fn notifications_of<'py>(py: Python<'py>, engine: &Engine, most: usize) -> PyResult<Vec<Bound<'py, PyAny>>> {
    let handle = engine.handle()?;
    let taken = take_notifications(py, handle, most);
    log::hand_over(py);
    taken
}
