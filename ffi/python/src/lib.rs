//! Penstock from Python: a thin extension over the C library that lies beside it.
//!
//! Read `library` for how that is found and opened, `error` for what becomes of a call that failed, `values` for texts and
//! times, `waits` for how they end by Ctrl-C, `stream` for streams of programs, `memory`, `device` and `arrays` for what is read of Python's objects (`buffer` and `dlpack` are their ways to
//! it), `export` for the way back, `log` for the log; the others are the classes, by thing. What Python programs import is the package `penstock/`.

mod arrays;
mod buffer;
mod device;
mod dlpack;
mod engine;
mod error;
mod export;
mod library;
mod log;
mod memory;
mod packets;
mod peer;
mod plan;
mod quarantine;
mod region;
mod stream;
mod told;
mod transfer;
mod values;
mod waits;

use std::ffi::{CStr, c_int};

use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;

use library::library;

/// The release of the library, as "0.1.0".
#[pyfunction]
fn version() -> String {
    // SAFETY: the call takes nothing, and its text lives as long as the program.
    unsafe { CStr::from_ptr((library().penstock_version)()) }.to_string_lossy().into_owned()
}

/// The number of the library's ABI: that of the header with which this extension was built.
#[pyfunction]
fn abi() -> u32 {
    // SAFETY: the call takes nothing.
    unsafe { (library().penstock_abi)() }
}

/// A status in words: `message(102)` says that a deadline passed. It is `Error.code` of what was raised.
#[pyfunction]
fn message(status: c_int) -> String {
    error::message(status)
}

/// The file of the library that is in use: `libpenstock.so.0` of this package, never another one.
#[pyfunction]
fn library_path() -> &'static std::path::Path {
    library::path()
}

/// The extension of the package `penstock`, which exports what is in here.
#[pymodule]
mod _penstock {
    use super::{Bound, PyImportError, PyModule, PyResult};

    #[pymodule_export]
    use super::engine::{Engine, close_all, forget_all};
    #[pymodule_export]
    use super::log::{begin, set_log_level};
    #[pymodule_export]
    use super::peer::Peer;
    #[pymodule_export]
    use super::plan::Plan;
    #[pymodule_export]
    use super::quarantine::Quarantine;
    #[pymodule_export]
    use super::region::{Blocks, Pool, Region, RemoteRegion};
    #[pymodule_export]
    use super::told::{Counter, Notification, Notifications, RemoteCounter};
    #[pymodule_export]
    use super::transfer::{Cancel, Completed, Transfer};
    #[pymodule_export]
    use super::waits::set_main_thread;
    #[pymodule_export]
    use super::{abi, library_path, message, version};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        // SAFETY: the interpreter's lock is held.
        if unsafe { super::ffi::PyInterpreterState_GetID(super::ffi::PyInterpreterState_Get()) } != 0 {
            return Err(PyImportError::new_err("penstock works in the main interpreter only, not in a subinterpreter"));
        }
        super::library::open().map_err(PyImportError::new_err)?;
        super::error::add_classes(module)
    }
}
