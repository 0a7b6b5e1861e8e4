//! The log of the library, handed to Python's `logging`. The engine's threads never take the interpreter's lock: what they say is queued, and
//! whoever calls something next hands it over.

use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::ffi;
use pyo3::prelude::*;

use crate::error::{call, invalid};
use crate::library::{
    PENSTOCK_LOG_DEBUG, PENSTOCK_LOG_ERROR, PENSTOCK_LOG_INFO, PENSTOCK_LOG_OFF, PENSTOCK_LOG_TRACE, PENSTOCK_LOG_WARN,
};

/// Lines that wait for a caller. Of more the oldest are dropped.
const LINES_MAX: usize = 1024;

struct Line {
    level: u32,
    source: String,
    text: String,
}

type Lines = Mutex<VecDeque<Line>>;

/// Made anew in a forked child, whose parent's may be locked for good. Never freed: a thread may be about to use it.
static LINES: AtomicPtr<Lines> = AtomicPtr::new(std::ptr::null_mut());
static HAS_LINES: AtomicBool = AtomicBool::new(false);

fn lines() -> Option<&'static Lines> {
    let lines = LINES.load(Ordering::Acquire);
    // SAFETY: it is null or was leaked by `begin`.
    unsafe { lines.as_ref() }
}

static LEVEL: AtomicU32 = AtomicU32::new(PENSTOCK_LOG_WARN);

/// Begins to queue what the library says, from warnings on. A forked child begins again, at its parent's level.
#[pyfunction(name = "_begin_log")]
pub(crate) fn begin() -> PyResult<()> {
    LINES.store(Box::into_raw(Box::default()), Ordering::Release);
    set(LEVEL.load(Ordering::Relaxed))
}

fn set(level: u32) -> PyResult<()> {
    LEVEL.store(level, Ordering::Relaxed);
    // SAFETY: the hook takes any texts, and is there as long as the program.
    call(|library| unsafe { (library.penstock_log)(level, Some(queue), std::ptr::null_mut()) })?;
    Ok(())
}

/// # Safety
/// The texts end with a zero.
unsafe extern "C" fn queue(_: *mut c_void, level: u32, source: *const c_char, text: *const c_char) {
    // SAFETY: the caller's promise.
    let owned = |text: *const c_char| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
    let Some(Ok(mut lines)) = lines().map(Mutex::lock) else { return };
    if lines.len() == LINES_MAX {
        lines.pop_front();
    }
    lines.push_back(Line { level, source: owned(source), text: owned(text) });
    HAS_LINES.store(true, Ordering::Release);
}

/// From which level on the log of the library goes to Python's `logging`, to loggers below `penstock`: "off", "error", "warning" (to
/// begin with), "info", "debug" or "trace".
///
///     logging.basicConfig(level=logging.INFO)
///     penstock.set_log_level("info")
#[pyfunction]
pub(crate) fn set_log_level(level: &str) -> PyResult<()> {
    set(match level {
        "off" => PENSTOCK_LOG_OFF,
        "error" => PENSTOCK_LOG_ERROR,
        "warning" => PENSTOCK_LOG_WARN,
        "info" => PENSTOCK_LOG_INFO,
        "debug" => PENSTOCK_LOG_DEBUG,
        "trace" => PENSTOCK_LOG_TRACE,
        other => {
            let words = format!("`{other}` is no level: use off, error, warning, info, debug or trace");
            return Err(invalid(&words));
        }
    })
}

/// Gives what is queued to `logging`. A handler that raises has that shown, and keeps nobody from their call.
#[inline]
pub(crate) fn hand_over(py: Python<'_>) {
    if HAS_LINES.load(Ordering::Relaxed) && HAS_LINES.swap(false, Ordering::Acquire) {
        let queued = lines().and_then(|lines| Some(std::mem::take(&mut *lines.lock().ok()?))).unwrap_or_default();
        for line in queued {
            if let Err(error) = log_one(py, &line) {
                not_now(py, error);
            }
        }
    }
}

/// What was raised beside a call is shown, as by a handler of the log. A signal that came meanwhile comes again: it is nobody's to take.
pub(crate) fn not_now(py: Python<'_>, error: PyErr) {
    if error.is_instance_of::<PyKeyboardInterrupt>(py) {
        // SAFETY: the interpreter's lock is held, and the signal is one that Python handles.
        unsafe { ffi::PyErr_SetInterruptEx(libc::SIGINT) };
    } else {
        error.write_unraisable(py, None);
    }
}

fn log_one(py: Python<'_>, line: &Line) -> PyResult<()> {
    let level = match line.level {
        PENSTOCK_LOG_ERROR => 40,
        PENSTOCK_LOG_WARN => 30,
        PENSTOCK_LOG_INFO => 20,
        PENSTOCK_LOG_DEBUG => 10,
        _ => 5,
    };
    let logger = py.import("logging")?.call_method1("getLogger", (line.source.replace("::", "."),))?;
    logger.call_method1("log", (level, "%s", &line.text))?;
    Ok(())
}
