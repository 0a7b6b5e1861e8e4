//! Memory of the library as a buffer of Python's: bytes in a row.

use std::ffi::c_int;

use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

/// Fills a view of `bytes` bytes at `address`, which `owner` keeps: for `__getbuffer__`. What `flags` ask for is given,
/// and nothing is allocated, so there is nothing to do when the view is released but to let go of `owner`, as Python does.
///
/// # Safety
/// `view` is null or the place of a view. The bytes can be read, and written unless `is_readonly`, as long as `owner`
/// lives: neither its close nor anything else unmaps them before.
pub(crate) unsafe fn fill(
    owner: Bound<'_, PyAny>,
    view: *mut ffi::Py_buffer,
    flags: c_int,
    address: usize,
    bytes: usize,
    is_readonly: bool,
) -> PyResult<()> {
    if view.is_null() {
        return Err(PyBufferError::new_err("there is no place for the view"));
    }
    // Python expects this of a view that was refused.
    // SAFETY: the place of a view.
    unsafe { (&raw mut (*view).obj).write(std::ptr::null_mut()) };
    let bytes = ffi::Py_ssize_t::try_from(bytes)
        .map_err(|_| PyBufferError::new_err("the memory is larger than a buffer can be"))?;
    let address = std::ptr::with_exposed_provenance_mut(address);
    // Shape and strides of the view point to the two numbers in itself.
    // SAFETY: the place of a view, an object, which the view takes a reference of its own to, and the caller's promise
    // about the bytes.
    let filled = unsafe { ffi::PyBuffer_FillInfo(view, owner.as_ptr(), address, bytes, is_readonly.into(), flags) };
    if filled == 0 { Ok(()) } else { Err(PyErr::fetch(owner.py())) }
}
