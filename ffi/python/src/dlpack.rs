//! DLPack: the tensor in a capsule of Python's, as of versions 0 and 1 of its ABI.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use pyo3::exceptions::PyTypeError;
use pyo3::ffi;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::invalid;

/// The device whose memory is the host's own.
pub(crate) const CPU: i64 = 1;
/// A device of CUDA, whose memory no processor touches.
pub(crate) const CUDA: i64 = 2;
/// The version of the structs below.
const VERSION: (u32, u32) = (1, 1);
/// Longer shapes are no tensors.
const DIMENSIONS_MAX: i32 = 64;
/// The memory must not be written.
const READ_ONLY: u64 = 1;
/// Elements of less than a byte have a byte each.
const IS_PADDED: u64 = 4;

#[repr(C)]
struct DlTensor {
    data: *mut c_void,
    device: [i32; 2],
    dimensions: i32,
    code: u8,
    bits: u8,
    lanes: u16,
    shape: *const i64,
    /// In elements. Null is the order of C.
    strides: *const i64,
    byte_offset: u64,
}

#[repr(C)]
pub(crate) struct Unversioned {
    tensor: DlTensor,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
}

#[repr(C)]
pub(crate) struct Versioned {
    version: [u32; 2],
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
    flags: u64,
    tensor: DlTensor,
}

/// The bytes of a tensor.
pub(crate) struct Span {
    pub(crate) address: usize,
    pub(crate) bytes: usize,
    pub(crate) is_readonly: bool,
}

/// A tensor that was taken out of its capsule. Whoever drops it has the interpreter's lock.
pub(crate) enum Tensor {
    Unversioned(NonNull<Unversioned>),
    Versioned(NonNull<Versioned>),
}

// SAFETY: a tensor belongs to no thread, and all that is done with one is to delete it, with the interpreter's lock.
unsafe impl Send for Tensor {}
// SAFETY: as above.
unsafe impl Sync for Tensor {}

/// What `__dlpack__` gives of an object, never a copy if the object knows how to say so. `stream`: of one on a device, what it puts its work before.
pub(crate) fn capsule<'py>(object: &Bound<'py, PyAny>, stream: Option<i64>) -> PyResult<Bound<'py, PyAny>> {
    let py = object.py();
    let method = object.getattr(intern!(py, "__dlpack__"))?;
    let (wanted, older) = (PyDict::new(py), PyDict::new(py));
    if let Some(stream) = stream {
        older.set_item("stream", stream)?;
    }
    wanted.update(older.as_mapping())?;
    wanted.set_item("max_version", VERSION)?;
    wanted.set_item("copy", false)?;
    match method.call((), Some(&wanted)) {
        // One from before the versions.
        Err(error) if error.is_instance_of::<PyTypeError>(py) => method.call((), Some(&older)),
        other => other,
    }
}

impl Tensor {
    /// Takes the tensor out of the capsule, if it is one block of bytes on this device; else it stays in there, and is deleted
    /// with it.
    pub(crate) fn take(
        capsule: &Bound<'_, PyAny>,
        device: i64,
        not_contiguous: impl FnOnce() -> PyErr,
    ) -> PyResult<(Self, Span)> {
        let (tensor, used) = if let Some(tensor) = content::<Versioned>(capsule, c"dltensor_versioned") {
            (Self::Versioned(tensor), c"used_dltensor_versioned")
        } else if let Some(tensor) = content::<Unversioned>(capsule, c"dltensor") {
            (Self::Unversioned(tensor), c"used_dltensor")
        } else {
            return Err(invalid("`__dlpack__` gave no capsule with a tensor in it"));
        };
        // Not its own yet.
        let tensor = std::mem::ManuallyDrop::new(tensor);
        let span = tensor.span(device, not_contiguous)?;
        // SAFETY: a capsule, and a text that ends with a zero and stays.
        if unsafe { ffi::PyCapsule_SetName(capsule.as_ptr(), used.as_ptr()) } != 0 {
            return Err(PyErr::fetch(capsule.py()));
        }
        Ok((std::mem::ManuallyDrop::into_inner(tensor), span))
    }

    fn span(&self, device: i64, not_contiguous: impl FnOnce() -> PyErr) -> PyResult<Span> {
        let (tensor, flags) = match self {
            // SAFETY: the capsule's name says what is in it, and it stays until it is deleted.
            Self::Unversioned(tensor) => (unsafe { &tensor.as_ref().tensor }, 0),
            Self::Versioned(tensor) => {
                // SAFETY: where the version is, no version changes.
                let [major, minor] = unsafe { (&raw const (*tensor.as_ptr()).version).read() };
                if major != VERSION.0 {
                    return Err(invalid(&format!("the tensor is of version {major}.{minor} of DLPack, not of 1")));
                }
                // SAFETY: as above, and of this version the whole struct is as it is here.
                let tensor = unsafe { tensor.as_ref() };
                (&tensor.tensor, tensor.flags)
            }
        };
        if i64::from(tensor.device[0]) != device {
            return Err(invalid("the tensor in the capsule is on another device than `__dlpack_device__` says"));
        }
        let (address, bytes) = tensor.block(flags & IS_PADDED != 0, not_contiguous)?;
        Ok(Span { address, bytes, is_readonly: flags & READ_ONLY != 0 })
    }
}

impl Drop for Tensor {
    fn drop(&mut self) {
        // SAFETY: a tensor that was taken, deleted once, by the function that came with it; the thread has the lock.
        unsafe {
            match self {
                Self::Unversioned(tensor) => {
                    if let Some(deleter) = tensor.as_ref().deleter {
                        deleter(tensor.as_ptr());
                    }
                }
                Self::Versioned(tensor) => {
                    if let Some(deleter) = tensor.as_ref().deleter {
                        deleter(tensor.as_ptr());
                    }
                }
            }
        }
    }
}

impl DlTensor {
    /// Its address, and how many bytes it has from there on.
    fn block(&self, is_padded: bool, not_contiguous: impl FnOnce() -> PyErr) -> PyResult<(usize, usize)> {
        let senseless = || invalid("the tensor in the capsule makes no sense");
        let is_list = self.dimensions == 0 || !self.shape.is_null();
        if !(0..=DIMENSIONS_MAX).contains(&self.dimensions) || !is_list {
            return Err(senseless());
        }
        // SAFETY: the shape, and the strides if there are any, have a number for each dimension.
        let (shape, strides) = unsafe { (self.numbers(self.shape), self.numbers(self.strides)) };
        let count = count(shape).ok_or_else(senseless)?;
        if !self.strides.is_null() && count != 0 && !is_one_block(shape, strides, 1) {
            return Err(not_contiguous());
        }
        let bits = usize::from(self.bits) * usize::from(self.lanes);
        let bits = if is_padded { bits.next_multiple_of(8) } else { bits };
        let bytes = count.checked_mul(bits).ok_or_else(senseless)?.div_ceil(8);
        let offset = usize::try_from(self.byte_offset).map_err(|_| senseless())?;
        let address = self.data.addr().checked_add(offset).ok_or_else(senseless)?;
        if bytes != 0 && (self.data.is_null() || address.checked_add(bytes).is_none()) {
            return Err(senseless());
        }
        Ok((address, bytes))
    }

    /// # Safety
    /// The list is null, or has a number for each dimension.
    unsafe fn numbers(&self, list: *const i64) -> &[i64] {
        if list.is_null() || self.dimensions <= 0 {
            return &[];
        }
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(list, self.dimensions as usize) }
    }
}

/// How many elements a shape has; None: so many are nowhere.
pub(crate) fn count(shape: &[i64]) -> Option<usize> {
    let lengths = shape.iter().map(|&length| usize::try_from(length).ok()).collect::<Option<Vec<_>>>()?;
    if lengths.contains(&0) { Some(0) } else { lengths.into_iter().try_fold(1, usize::checked_mul) }
}

/// Whether elements lie in a row, in the order of C or of Fortran, each `step` behind the one before. No length is 0.
pub(crate) fn is_one_block(shape: &[i64], strides: &[i64], step: i64) -> bool {
    let axes = || shape.iter().copied().zip(strides.iter().copied());
    is_dense(axes().rev(), step) || is_dense(axes(), step)
}

/// The same of axes, of lengths and strides from the innermost on.
fn is_dense(axes: impl Iterator<Item = (i64, i64)>, step: i64) -> bool {
    let mut next = step;
    for (length, stride) in axes {
        if length != 1 {
            if stride != next {
                return false;
            }
            next = next.saturating_mul(length);
        }
    }
    true
}

/// What is in a capsule of this name.
fn content<T>(capsule: &Bound<'_, PyAny>, name: &CStr) -> Option<NonNull<T>> {
    // SAFETY: any object, and a text that ends with a zero.
    unsafe {
        if ffi::PyCapsule_IsValid(capsule.as_ptr(), name.as_ptr()) == 0 {
            return None;
        }
        NonNull::new(ffi::PyCapsule_GetPointer(capsule.as_ptr(), name.as_ptr()).cast())
    }
}
