//! Buffers of Python objects: Python's own struct, held and released.

use std::ffi::{CStr, c_char, c_int};

use pyo3::ffi;
use pyo3::prelude::*;

/// A view of an object's buffer, released when it is dropped: for that the thread has to have the interpreter's lock.
/// In a box, as exporters may point into it. (pyo3's own refuses views without strides, which those of ctypes are, and
/// always asks for a format, which numpy has not got for all of its types.)
pub(crate) struct View(Box<ffi::Py_buffer>);

// SAFETY: a view belongs to no thread; it is used and released with the interpreter's lock.
unsafe impl Send for View {}
// SAFETY: as above; nothing in it is changed before it is released.
unsafe impl Sync for View {}

impl View {
    /// `flags` have at least `PyBUF_ND`.
    pub(crate) fn of(object: &Bound<'_, PyAny>, flags: c_int) -> PyResult<Self> {
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: an object, and the place of a view.
        match unsafe { ffi::PyObject_GetBuffer(object.as_ptr(), &raw mut *view, flags) } {
            0 => Ok(Self(view)),
            _ => Err(PyErr::fetch(object.py())),
        }
    }

    pub(crate) fn raw(&self) -> &ffi::Py_buffer {
        &self.0
    }

    /// Whether its bytes are one block, in the order of C or of Fortran.
    pub(crate) fn is_contiguous(&self) -> bool {
        // SAFETY: a view that was given.
        unsafe { ffi::PyBuffer_IsContiguous(self.raw(), b'A' as c_char) != 0 }
    }

    /// Its lengths, a dimension each.
    pub(crate) fn shape(&self) -> &[usize] {
        // SAFETY: lengths are from 0 on.
        unsafe { self.list(self.0.shape.cast()) }
    }

    /// Bytes from one item to the next, a dimension each; none stand for the order of C.
    pub(crate) fn strides(&self) -> &[isize] {
        // SAFETY: the view's own strides.
        unsafe { self.list(self.0.strides) }
    }

    /// The format of an item.
    pub(crate) fn format(&self) -> &CStr {
        // SAFETY: a text that stays as long as the view.
        if self.0.format.is_null() { c"B" } else { unsafe { CStr::from_ptr(self.0.format) } }
    }

    /// # Safety
    /// A list of the view: null, or with an item for each dimension.
    unsafe fn list<T>(&self, list: *const T) -> &[T] {
        if list.is_null() || self.0.ndim <= 0 {
            return &[];
        }
        // SAFETY: the caller's promise.
        unsafe { std::slice::from_raw_parts(list, self.0.ndim as usize) }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        // SAFETY: a view that was given, released once; whoever drops it has the lock.
        unsafe { ffi::PyBuffer_Release(&raw mut *self.0) }
    }
}

pub(crate) fn has_buffer(object: &Bound<'_, PyAny>) -> bool {
    // SAFETY: an object.
    unsafe { ffi::PyObject_CheckBuffer(object.as_ptr()) != 0 }
}
