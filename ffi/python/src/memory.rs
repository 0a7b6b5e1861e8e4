//! Memory of Python objects: where it is, and what keeps it there. That of CUDA devices is an address like any other here, and `device` finds it.
//!
//! Nothing is ever copied, and neither torch nor numpy is imported. What cannot be guarded against, and is the program's
//! to leave alone: `ctypes.resize`, numpy's `resize(…, refcheck=False)`, and `untyped_storage().resize_()` of a tensor
//! on a GPU, or where torch runs without numpy.

use std::mem::ManuallyDrop;

use pyo3::exceptions::PyException;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;

use crate::buffer::{View, has_buffer};
use crate::dlpack::{self, Tensor};
use crate::error::{invalid, undisturbed, unsupported};
use crate::waits::attached;

/// Memory of one kind, and the method of an engine that takes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MemoryKind {
    /// `register`.
    Host,
    /// `register_device`.
    Cuda,
}

impl MemoryKind {
    fn of_torch(device: &str) -> Option<Self> {
        match device {
            "cpu" => Some(Self::Host),
            "cuda" => Some(Self::Cuda),
            _ => None,
        }
    }

    fn of_dlpack(device: i64) -> Option<Self> {
        match device {
            dlpack::CPU => Some(Self::Host),
            dlpack::CUDA => Some(Self::Cuda),
            _ => None,
        }
    }
}

/// Memory of a Python object, which stays where it is as long as this lives.
pub(crate) struct Memory {
    pub(crate) address: usize,
    pub(crate) bytes: usize,
    pub(crate) is_readonly: bool,
    keeper: ManuallyDrop<Keeper>,
}

/// What keeps memory in its place; dropped with the interpreter's lock.
pub(crate) enum Keeper {
    Buffer {
        _view: View,
    },
    /// A second tensor over the same storage, and numpy's array over that if there is a numpy.
    Tensor {
        _alias: Py<PyAny>,
        _array: Option<Py<PyAny>>,
    },
    Dlpack {
        _tensor: Tensor,
    },
    /// What was registered, where it cannot be borrowed: its owner may not be dropped before the region is.
    Object {
        _object: Py<PyAny>,
    },
}

impl Memory {
    /// The memory of a torch tensor, of an object with the buffer protocol, or of one with DLPack.
    pub(crate) fn of(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let memory = if is_torch_tensor(object) {
            Self::of_torch_tensor(object, MemoryKind::Host)?
        } else if has_buffer(object) {
            Self::of_buffer(object)?
        } else if object.hasattr(intern!(object.py(), "__dlpack__"))? {
            Self::of_dlpack(object, MemoryKind::Host, None)?
        } else if object.hasattr(intern!(object.py(), "__cuda_array_interface__"))? {
            return Err(elsewhere(&format!("the `{}` is on a CUDA device", type_name(object)), Some(MemoryKind::Cuda)));
        } else {
            return Err(invalid(&format!(
                "`{}` has no memory to use; give an object with the buffer protocol (bytearray, array, mmap, memoryview, \
                 ctypes, numpy.ndarray), a torch tensor on the CPU, or an object with `__dlpack__`",
                type_name(object)
            )));
        };
        memory.not_empty(object)
    }

    pub(crate) fn not_empty(self, object: &Bound<'_, PyAny>) -> PyResult<Self> {
        match self.bytes {
            0 => Err(invalid(&format!("the `{}` is empty: it has no bytes", type_name(object)))),
            _ => Ok(self),
        }
    }

    pub(crate) fn new(address: usize, bytes: usize, is_readonly: bool, keeper: Keeper) -> Self {
        Self { address, bytes, is_readonly, keeper: ManuallyDrop::new(keeper) }
    }

    fn of_buffer(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        // Without a format: numpy has types that it can give no format of.
        let view = match View::of(object, ffi::PyBUF_STRIDES | ffi::PyBUF_WRITABLE) {
            Err(error) if is_exception(&error, object.py()) => View::of(object, ffi::PyBUF_STRIDES),
            other => other,
        };
        let view = view.map_err(|error| {
            refused(object.py(), error, |why| format!("the `{}` does not give its memory: {why}", type_name(object)))
        })?;
        if !view.is_contiguous() {
            return Err(not_contiguous(object, "numpy.ascontiguousarray() copies"));
        }
        let dtype = object.getattr_opt(intern!(object.py(), "dtype"))?;
        let has_objects = dtype.and_then(|dtype| dtype.getattr("hasobject").ok()?.extract::<bool>().ok());
        if has_objects == Some(true) {
            return Err(invalid(
                "an array of Python objects holds references, and no bytes that others may write or read",
            ));
        }
        let raw = view.raw();
        Ok(Self::new(raw.buf.addr(), raw.len.unsigned_abs(), raw.readonly != 0, Keeper::Buffer { _view: view }))
    }

    pub(crate) fn of_torch_tensor(tensor: &Bound<'_, PyAny>, wanted: MemoryKind) -> PyResult<Self> {
        let py = tensor.py();
        let device = tensor.getattr(intern!(py, "device"))?;
        let kind = MemoryKind::of_torch(&device.getattr(intern!(py, "type"))?.extract::<String>()?);
        if kind != Some(wanted) {
            return Err(elsewhere(&format!("the tensor is on device `{device}`"), kind));
        }
        let layout = tensor.getattr(intern!(py, "layout"))?.str()?;
        if layout != "torch.strided" {
            return Err(invalid(&format!("the tensor has layout `{layout}`: it is not one array in memory")));
        }
        if !tensor.call_method0(intern!(py, "is_contiguous"))?.is_truthy()? {
            return Err(not_contiguous(tensor, ".contiguous() copies"));
        }
        let memory = || {
            // It keeps the storage, also if the tensor itself is given another one by `set_` or by `.data`.
            let alias = tensor.call_method0(intern!(py, "detach"))?;
            let array = if wanted == MemoryKind::Host { fixed_array(&alias).ok() } else { None };
            let address: usize = alias.call_method0(intern!(py, "data_ptr"))?.extract()?;
            let count: usize = alias.call_method0(intern!(py, "numel"))?.extract()?;
            let size: usize = alias.call_method0(intern!(py, "element_size"))?.extract()?;
            let keeper = Keeper::Tensor { _alias: alias.unbind(), _array: array.map(Bound::unbind) };
            Ok(Self::new(address, count.saturating_mul(size), false, keeper))
        };
        memory().map_err(|error| refused(py, error, |why| format!("the tensor does not give its memory: {why}")))
    }

    /// `stream`: of a device, what the object puts its work before; -1 is none.
    pub(crate) fn of_dlpack(object: &Bound<'_, PyAny>, wanted: MemoryKind, stream: Option<i64>) -> PyResult<Self> {
        let py = object.py();
        let (device, number): (i64, i64) = object.call_method0(intern!(py, "__dlpack_device__"))?.extract()?;
        let kind = MemoryKind::of_dlpack(device);
        if kind != Some(wanted) {
            let words = format!("the `{}` is on DLPack's device ({device}, {number})", type_name(object));
            return Err(elsewhere(&words, kind));
        }
        let capsule = dlpack::capsule(object, stream).map_err(|error| {
            refused(py, error, |why| format!("the `{}` does not give its memory: {why}", type_name(object)))
        })?;
        let (tensor, span) = Tensor::take(&capsule, device, || not_contiguous(object, "a contiguous one is a copy"))?;
        Ok(Self::new(span.address, span.bytes, span.is_readonly, Keeper::Dlpack { _tensor: tensor }))
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: it is not used again.
        let keeper = ManuallyDrop::new(unsafe { ManuallyDrop::take(&mut self.keeper) });
        // Without an interpreter nobody can take it back: it stays.
        let _ = attached(|py| undisturbed(py, || drop(ManuallyDrop::into_inner(keeper))));
    }
}

/// numpy's array over a tensor's bytes: torch refuses to resize a storage, from then on, of which it has given one.
fn fixed_array<'py>(tensor: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    let py = tensor.py();
    let torch = py.import(intern!(py, "sys"))?.getattr(intern!(py, "modules"))?.get_item(intern!(py, "torch"))?;
    let bytes = tensor.call_method1(intern!(py, "view"), (-1,))?;
    let bytes = bytes.call_method1(intern!(py, "view"), (torch.getattr(intern!(py, "uint8"))?,))?;
    bytes.call_method0(intern!(py, "numpy"))
}

/// Whether it is a tensor of torch, or of a class that is made from it.
pub(crate) fn is_torch_tensor(object: &Bound<'_, PyAny>) -> bool {
    let is_tensor = |kind: Bound<'_, PyAny>| {
        let kind = kind.cast_into::<pyo3::types::PyType>().ok()?;
        let is_named = kind.name().ok()? == "Tensor";
        Some(is_named && kind.getattr(intern!(kind.py(), "__module__")).ok()?.eq("torch").ok()?)
    };
    object.get_type().mro().iter().any(|kind| is_tensor(kind) == Some(true))
}

/// As `numpy.ndarray`.
pub(crate) fn type_name(object: &Bound<'_, PyAny>) -> String {
    object.get_type().fully_qualified_name().map_or_else(|_| "object".into(), |name| name.to_string())
}

/// `InvalidArgument` in these words, with the exception as its cause; what is no error (as Ctrl-C) stays as it is.
pub(crate) fn refused(py: Python<'_>, error: PyErr, words: impl FnOnce(&str) -> String) -> PyErr {
    if !is_exception(&error, py) {
        return error;
    }
    let refused = invalid(&words(&error.value(py).to_string()));
    refused.set_cause(py, Some(error));
    refused
}

fn is_exception(error: &PyErr, py: Python<'_>) -> bool {
    error.is_instance_of::<PyException>(py)
}

/// Memory that another method takes, or none does.
pub(crate) fn elsewhere(words: &str, kind: Option<MemoryKind>) -> PyErr {
    match kind {
        Some(MemoryKind::Host) => invalid(&format!("{words}: `register` takes its memory")),
        Some(MemoryKind::Cuda) => invalid(&format!("{words}: `register_device` takes its memory")),
        None => unsupported(&format!("{words}: only memory of the host and of CUDA devices can be registered")),
    }
}

pub(crate) fn not_contiguous(object: &Bound<'_, PyAny>, copy: &str) -> PyErr {
    invalid(&format!(
        "the `{}` is not contiguous: its bytes are not one block. Penstock does not copy it; {copy}, and transfers use \
         that copy then",
        type_name(object)
    ))
}
