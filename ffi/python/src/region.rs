//! Memory of an engine: `penstock.Region`, `penstock.Pool` and `penstock.Blocks`.

use std::ffi::c_int;
use std::sync::Arc;

use pyo3::exceptions::{PyBufferError, PyIndexError};
use pyo3::ffi;
use pyo3::prelude::*;

use crate::arrays::{number, rows};
use crate::engine::Open;
use crate::error::{Failure, call, invalid};
use crate::export;
use crate::library::*;
use crate::quarantine::Quarantine;
use crate::stream::Behind;
use crate::told::Counter;
use crate::values::{Handle, c_text, milliseconds, read_list};
use crate::waits::{aside, attached};

/// Rights in letters.
pub(crate) fn rights_of(letters: &str) -> PyResult<u32> {
    match letters {
        "" => Ok(PENSTOCK_RIGHTS_NONE),
        "r" => Ok(PENSTOCK_RIGHTS_READ),
        "w" => Ok(PENSTOCK_RIGHTS_WRITE),
        "rw" | "wr" => Ok(PENSTOCK_RIGHTS_READ | PENSTOCK_RIGHTS_WRITE),
        _ => Err(invalid(&format!("`{letters}` are no rights: use \"r\", \"w\", \"rw\" or \"\""))),
    }
}

fn letters_of(rights: u32) -> &'static str {
    match (rights & PENSTOCK_RIGHTS_READ != 0, rights & PENSTOCK_RIGHTS_WRITE != 0) {
        (true, true) => "rw",
        (true, false) => "r",
        (false, true) => "w",
        (false, false) => "",
    }
}

/// Registered memory of this engine: what plans move from and to, and what peers find by its label.
///
///     kv = engine.register(array, "kv")
///     ...
///     held = kv.deregister()      # None: nothing touches it any more
#[pyclass(frozen, subclass, module = "penstock", weakref)]
pub(crate) struct Region {
    open: Arc<Open>,
    handle: Handle,
    label: Option<String>,
    info: penstock_region_info,
}

impl Region {
    pub(crate) fn new(open: &Arc<Open>, handle: Handle, label: Option<String>) -> PyResult<Self> {
        let mut info = penstock_region_info::default();
        // SAFETY: a struct with its size.
        call(|library| unsafe { (library.penstock_region_look)(handle.number(), &raw mut info) })?;
        Ok(Self { open: Arc::clone(open), handle, label, info })
    }

    pub(crate) fn handle(&self) -> u64 {
        self.handle.number()
    }

    /// A child has none of its parent's memory.
    fn check(&self) -> PyResult<()> {
        let (region, mut info) = (self.handle(), penstock_region_info::default());
        // SAFETY: a struct with its size.
        call(|library| unsafe { (library.penstock_region_look)(region, &raw mut info) })?;
        Ok(())
    }

    /// Refuses to read into what Python says nobody may write.
    pub(crate) fn check_writable(&self) -> PyResult<()> {
        match self.open.has_readonly(self.info.base, self.info.bytes) {
            true => Err(Box::new(Failure::with_text(PENSTOCK_NO_RIGHT, READ_ONLY)).into()),
            false => Ok(()),
        }
    }
}

/// Why a read is refused.
pub(crate) const READ_ONLY: &str = "the memory here is read-only: read into other memory";

impl Drop for Region {
    fn drop(&mut self) {
        // The last handle of a pool unmaps it, which takes its time.
        let mut handle = Some(std::mem::replace(&mut self.handle, Handle::new(0)));
        attached(|py| py.detach(|| drop(handle.take())));
    }
}

#[pymethods]
impl Region {
    /// The name peers find it by, None where it was not given here.
    #[getter]
    fn label(&self) -> Option<&str> {
        self.label.as_deref()
    }

    /// Its first address.
    #[getter]
    fn address(&self) -> u64 {
        self.info.base
    }

    /// Bytes it has.
    #[getter]
    fn bytes(&self) -> u64 {
        self.info.bytes
    }

    /// What peers may do: "r", "w", "rw" or "".
    #[getter]
    fn rights(&self) -> &'static str {
        letters_of(self.info.rights)
    }

    /// Makes an arrival counter of this region, which peers find by its label: transfers that name it count it up after their bytes.
    ///
    ///     layers = pool.counter("layers")
    ///     layers.wait(80)
    fn counter(&self, label: String) -> PyResult<Counter> {
        let text = c_text(label.clone(), "label")?;
        let region = self.handle();
        let handle = Handle::of(|library, place| {
            // SAFETY: a text that ends with a zero, and the place of a handle.
            unsafe { (library.penstock_counter_create)(region, text.as_ptr(), place) }
        })?;
        Ok(Counter::new(handle, label))
    }

    /// Takes the memory back from peers, waiting at most `timeout` seconds for whoever is touching it. None: nothing touches it any more. Else a
    /// `Quarantine`, which keeps the memory until nothing does. The same memory, label and rights that were registered more than once are one region: until the
    /// last deregistration None says only that this one has ended. If it is interrupted it is carried out all the same, and the memory is kept until the engine ends.
    #[pyo3(signature = (timeout=1.0))]
    fn deregister(&self, py: Python<'_>, timeout: f64) -> PyResult<Option<Quarantine>> {
        let (region, timeout) = (self.handle(), milliseconds(timeout)?);
        // Those of now: what is registered meanwhile is another region, or this one stands.
        let all = self.open.handles_of(region);
        let (held, status) = aside(py, &self.open, timeout, move || {
            // SAFETY: the place of a handle.
            Handle::with_status(|library, place| unsafe { (library.penstock_deregister)(region, timeout, place) })
        })?;
        // Of a region that was registered more than once the memory is kept until the last of them.
        let kept = if status == PENSTOCK_STILL_REGISTERED { Vec::new() } else { self.open.let_go(&all) };
        Ok((status == PENSTOCK_QUARANTINED).then(|| Quarantine::new(held, kept)))
    }

    /// Takes ranges back from all peers while the region stands: rows of (offset, bytes). Answers as `deregister`.
    #[pyo3(signature = (ranges, timeout=1.0))]
    fn revoke(&self, py: Python<'_>, ranges: &Bound<'_, PyAny>, timeout: f64) -> PyResult<Option<Quarantine>> {
        let ranges = rows::<2>(ranges, "ranges")?;
        let ranges: Vec<_> = ranges.into_iter().map(|[offset, bytes]| penstock_range { offset, bytes }).collect();
        let (region, timeout) = (self.handle(), milliseconds(timeout)?);
        let (held, status) = aside(py, &self.open, timeout, move || {
            Handle::with_status(|library, place| {
                // SAFETY: so many ranges, and the place of a handle.
                unsafe { (library.penstock_revoke)(region, ranges.as_ptr(), ranges.len(), timeout, place) }
            })
        })?;
        // The region stands, and with it what keeps its memory.
        Ok((status == PENSTOCK_QUARANTINED).then(|| Quarantine::new(held, Vec::new())))
    }

    /// Orders copies behind work of a CUDA stream: every copy that an engine of this process gives the device of this region from now on begins when all is
    /// done that the stream has at this moment. Nothing waits for it but the device. `stream` is one of torch or cupy, an object with
    /// `__cuda_stream__`, or a handle: 1 is the default stream, 2 that of this thread.
    ///
    ///     kernel(tensor)
    ///     kv.order_behind(torch.cuda.current_stream())
    ///     peer.submit(plan)
    fn order_behind(&self, py: Python<'_>, stream: &Bound<'_, PyAny>) -> PyResult<()> {
        self.check()?;
        Behind::of(stream)?.order(py, self.info.base)
    }

    fn __len__(&self) -> usize {
        self.info.bytes as usize
    }

    fn __repr__(&self) -> String {
        let label = self.label.as_ref().map_or(String::new(), |label| format!(" {label:?}"));
        format!("<penstock.Region{label}, {} bytes at {:#x}>", self.info.bytes, self.info.base)
    }
}

/// Memory that the engine owns, cut into blocks. It is a region, and its bytes are the storage of `memoryview(pool)`, `pool.numpy()` and
/// `pool.torch()`: nothing is copied.
///
///     pool = engine.pool(1 << 30, block=65536, label="kv")
///     blocks = pool.take(8)
///     blocks[0][:5] = b"hello"
#[pyclass(frozen, extends = Region, module = "penstock", weakref)]
pub(crate) struct Pool;

impl Pool {
    pub(crate) fn new(py: Python<'_>, open: &Arc<Open>, handle: Handle, label: Option<String>) -> PyResult<Py<Self>> {
        Py::new(py, PyClassInitializer::from(Region::new(open, handle, label)?).add_subclass(Self))
    }
}

#[pymethods]
impl Pool {
    /// Bytes of a block.
    #[getter]
    fn block_bytes(slf: PyRef<'_, Self>) -> u64 {
        slf.as_super().info.block_bytes
    }

    /// Takes `count` blocks, waiting at most `timeout` seconds for them. They go back to the pool with the object.
    #[pyo3(signature = (count, timeout=0.0))]
    fn take(
        slf: Bound<'_, Self>,
        py: Python<'_>,
        #[pyo3(from_py_with = number)] count: u64,
        timeout: f64,
    ) -> PyResult<Blocks> {
        let (timeout, pool, count) = (milliseconds(timeout)?, slf.as_super().get(), count as usize);
        let handle = pool.handle();
        let taken = aside(py, &pool.open, timeout, move || {
            // SAFETY: the place of a handle.
            let blocks =
                Handle::of(|library, place| unsafe { (library.penstock_pool_take)(handle, count, timeout, place) })?;
            let indices = read_list(|library, list: &mut [u32], count| {
                // SAFETY: a list with its room, and the place of a count.
                unsafe { (library.penstock_blocks_indices)(blocks.number(), list.as_mut_ptr(), list.len(), count) }
            })?;
            Ok((blocks, indices))
        })?;
        Ok(Blocks { handle: taken.0, indices: taken.1, pool: slf.unbind() })
    }

    /// Gives quarantined blocks of this pool fresh memory, so that they can be used again while a stopped peer has the old.
    #[pyo3(signature = (quarantine, timeout=1.0))]
    fn renew(slf: Bound<'_, Self>, py: Python<'_>, quarantine: &Quarantine, timeout: f64) -> PyResult<()> {
        let (timeout, pool) = (milliseconds(timeout)?, slf.as_super().get());
        let (handle, held) = (pool.handle(), quarantine.handle());
        aside(py, &pool.open, timeout, move || {
            // SAFETY: any numbers may be given.
            call(|library| unsafe { (library.penstock_renew)(handle, held, timeout) }).map(drop)
        })
    }

    /// The pool as a numpy array with the pool as its storage, one-dimensional or of a shape.
    #[pyo3(signature = (dtype=None, shape=None), text_signature = "(self, dtype='uint8', shape=None)")]
    fn numpy<'py>(
        slf: Bound<'py, Self>,
        dtype: Option<Bound<'py, PyAny>>,
        shape: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let numpy = slf.py().import("numpy")?;
        let dtype = dtype.map_or_else(|| numpy.getattr("uint8"), Ok)?;
        let array = numpy.call_method1("frombuffer", (&slf, dtype))?;
        shape.map_or(Ok(array.clone()), |shape| array.call_method1("reshape", (shape,)))
    }

    /// The pool as a torch tensor with the pool as its storage, one-dimensional or of a shape. `dtype` is one of torch's, uint8 if it is left
    /// out.
    #[pyo3(signature = (dtype=None, shape=None))]
    fn torch<'py>(
        slf: Bound<'py, Self>,
        dtype: Option<Bound<'py, PyAny>>,
        shape: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let torch = slf.py().import("torch")?;
        let dtype = dtype.map_or_else(|| torch.getattr("uint8"), Ok)?;
        let named = pyo3::types::PyDict::new(slf.py());
        named.set_item("dtype", dtype)?;
        let tensor = torch.call_method("frombuffer", (&slf,), Some(&named))?;
        shape.map_or(Ok(tensor.clone()), |shape| tensor.call_method1("reshape", (shape,)))
    }

    /// # Safety
    /// Called by Python with a view to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let region = slf.as_super().get();
        region.check()?;
        let (address, bytes) = (region.info.base as usize, region.info.bytes as usize);
        // SAFETY: memory of the pool is there as long as its handle, which this object has.
        unsafe { export::fill(slf.into_any(), view, flags, address, bytes, false) }
    }

    fn __repr__(slf: PyRef<'_, Self>) -> String {
        let region = slf.as_super();
        let label = region.label.as_ref().map_or(String::new(), |label| format!(" {label:?}"));
        let blocks = region.info.bytes / region.info.block_bytes.max(1);
        format!("<penstock.Pool{label}, {blocks} blocks of {} bytes>", region.info.block_bytes)
    }
}

/// Blocks of a pool. They go back when this object, and the plans that keep it, are gone.
///
///     blocks = pool.take(8)
///     plan = peer.write_plan(pool, "kv", blocks=[(index, 0) for index in blocks.indices], keep=[blocks])
#[pyclass(frozen, sequence, module = "penstock")]
pub(crate) struct Blocks {
    handle: Handle,
    indices: Vec<u32>,
    pool: Py<Pool>,
}

impl Blocks {
    pub(crate) fn handle(&self) -> u64 {
        self.handle.number()
    }
}

#[pymethods]
impl Blocks {
    /// Their numbers in the pool: block `i` begins `i * pool.block_bytes` bytes into it.
    #[getter]
    fn indices(&self) -> Vec<u32> {
        self.indices.clone()
    }

    fn __len__(&self) -> usize {
        self.indices.len()
    }

    /// The bytes of a block, as a memoryview.
    fn __getitem__<'py>(slf: Bound<'py, Self>, place: isize) -> PyResult<Bound<'py, PyAny>> {
        let count = slf.get().indices.len() as isize;
        let from_start = if place < 0 { place + count } else { place };
        if !(0..count).contains(&from_start) {
            return Err(PyIndexError::new_err(format!("there are {count} blocks and none at {place}")));
        }
        let block = Py::new(slf.py(), Block { place: from_start as usize, blocks: slf.clone().unbind() })?;
        pyo3::types::PyMemoryView::from(block.bind(slf.py())).map(Bound::into_any)
    }

    fn __repr__(&self) -> String {
        format!("<penstock.Blocks {:?}>", self.indices)
    }
}

/// What a view of one block is of. It keeps the blocks, so that a view of one that went back cannot be had.
#[pyclass(frozen, module = "penstock")]
pub(crate) struct Block {
    place: usize,
    blocks: Py<Blocks>,
}

#[pymethods]
impl Block {
    /// # Safety
    /// Called by Python with a view to fill.
    unsafe fn __getbuffer__(slf: Bound<'_, Self>, view: *mut ffi::Py_buffer, flags: c_int) -> PyResult<()> {
        let block = slf.get();
        let blocks = block.blocks.get();
        let region = blocks.pool.bind(slf.py()).as_super().get();
        region.check()?;
        let info = region.info;
        let first = u64::from(blocks.indices[block.place]) * info.block_bytes;
        let bytes =
            info.block_bytes.min(info.bytes.checked_sub(first).ok_or_else(|| PyBufferError::new_err("no such block"))?);
        // SAFETY: the block lies within the pool, which the blocks keep.
        unsafe { export::fill(slf.into_any(), view, flags, (info.base + first) as usize, bytes as usize, false) }
    }
}

/// Memory of a peer, as plans name it.
#[pyclass(frozen, module = "penstock")]
pub(crate) struct RemoteRegion {
    handle: Handle,
    label: Option<String>,
    info: penstock_region_info,
}

impl RemoteRegion {
    pub(crate) fn new(handle: Handle, label: Option<String>) -> PyResult<Self> {
        let mut info = penstock_region_info::default();
        // SAFETY: a struct with its size.
        call(|library| unsafe { (library.penstock_remote_region_look)(handle.number(), &raw mut info) })?;
        Ok(Self { handle, label, info })
    }

    pub(crate) fn handle(&self) -> u64 {
        self.handle.number()
    }
}

#[pymethods]
impl RemoteRegion {
    /// The label by which it was found, None where it was found in another way.
    #[getter]
    fn label(&self) -> Option<&str> {
        self.label.as_deref()
    }

    /// Its first address in the memory of the peer.
    #[getter]
    fn address(&self) -> u64 {
        self.info.base
    }

    /// Bytes it has.
    #[getter]
    fn bytes(&self) -> u64 {
        self.info.bytes
    }

    /// What this engine may do: "r", "w", "rw" or "".
    #[getter]
    fn rights(&self) -> &'static str {
        letters_of(self.info.rights)
    }

    fn __len__(&self) -> usize {
        self.info.bytes as usize
    }

    fn __repr__(&self) -> String {
        let label = self.label.as_ref().map_or(String::new(), |label| format!(" {label:?}"));
        format!("<penstock.RemoteRegion{label}, {} bytes at {:#x}>", self.info.bytes, self.info.base)
    }
}
