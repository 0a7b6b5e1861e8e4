//! `penstock.Engine`.

use std::ffi::CStr;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error::{Failure, call};
use crate::library::{PENSTOCK_BAD_HANDLE, PENSTOCK_ENGINE_CLOSED, library, penstock_engine, penstock_engine_options};
use crate::values::{c_text, milliseconds, read_bytes, read_text};

/// An engine: one instance in this process, with a name, worker threads, and the memory that is registered with it.
///
/// `name` is what peers know it by; without one it is as the configuration says, or made of the program and its process.
/// The configuration is the YAML file `config`, the text `yaml`, or all defaults.
///
///     with penstock.Engine("decode-0", yaml="workers: {count: 1}") as engine:
///         print(engine.name, len(engine.descriptor()))
#[pyclass(frozen, module = "penstock")]
pub(crate) struct Engine {
    /// 0 when it is closed.
    handle: AtomicU64,
    name: String,
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
            // From here on it is released with this object, whatever fails.
            let mut engine = Self { handle: handle.into(), name: String::new() };
            engine.name = read_text(|library, buffer, length| {
                // SAFETY: a buffer with its size, and the place of a length.
                unsafe { (library.penstock_engine_name)(handle, buffer.as_mut_ptr().cast(), buffer.len(), length) }
            })?;
            Ok::<_, Box<Failure>>(engine)
        });
        Ok(started?)
    }

    /// What peers know it by.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Whether it was closed.
    #[getter]
    fn closed(&self) -> bool {
        self.handle.load(Relaxed) == 0
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

    /// Ends the engine within `timeout` seconds: transfers have half of that to end, then peers are told goodbye.
    /// Closing it again does nothing. The end of a `with` block closes it too.
    ///
    ///     engine.close(timeout=5)
    #[pyo3(signature = (timeout=1.0))]
    fn close(&self, py: Python<'_>, timeout: f64) -> PyResult<()> {
        let timeout = milliseconds(timeout)?;
        let handle = self.handle.load(Relaxed);
        if handle == 0 {
            return Ok(());
        }
        let closed = py.detach(|| {
            // Nothing can be held: an engine of this module has no memory that a peer could touch.
            let (list, mut held) = (std::ptr::null_mut(), 0);
            // SAFETY: a list without room, and the place of its length.
            call(|library| unsafe { (library.penstock_engine_close)(handle, timeout, list, 0, &raw mut held) })
        });
        match closed {
            Err(failure) if failure.status() != PENSTOCK_BAD_HANDLE => Err(failure.into()),
            // Another thread may have closed it meanwhile.
            _ => {
                self.handle.store(0, Relaxed);
                Ok(())
            }
        }
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    #[pyo3(signature = (*_raised))]
    fn __exit__(&self, py: Python<'_>, _raised: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<()> {
        self.close(py, 1.0)
    }

    fn __repr__(&self) -> String {
        let state = if self.closed() { ", closed" } else { "" };
        format!("<penstock.Engine {:?}{state}>", self.name)
    }
}

impl Engine {
    /// The handle of an engine that is open.
    fn handle(&self) -> Result<penstock_engine, Box<Failure>> {
        match self.handle.load(Relaxed) {
            0 => Err(Failure::of_status(PENSTOCK_ENGINE_CLOSED).into()),
            handle => Ok(handle),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let handle = *self.handle.get_mut();
        if handle == 0 {
            return;
        }
        // It waits until peers are told, at most for `session.shutdown_timeout_ms`.
        // SAFETY: any number may be released.
        let release = || unsafe { (library().penstock_release)(handle) };
        if Python::try_attach(|py| py.detach(release)).is_none() {
            release();
        }
    }
}
