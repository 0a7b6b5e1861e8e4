//! Waits that end with Ctrl-C: in slices between which the interpreter looks at its signals.

use std::cell::Cell;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicI32, AtomicUsize};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;

use crate::engine::{IS_EXITING, Open};
use crate::error::{Failure, call};
use crate::library::{Library, PENSTOCK_TIMED_OUT, penstock_status};
use crate::log;

/// The longest time between two looks at signals.
const SLICE: Duration = Duration::from_millis(50);
/// How long a thread rests that the end of the program finds waiting.
const REST: Duration = Duration::from_secs(1);

/// Makes a call that waits so many milliseconds and may be made again when they are over, until it answers anything but a time-out.
pub(crate) fn in_slices(
    py: Python<'_>,
    timeout_ms: u64,
    turn: impl Fn(&'static Library, u64) -> penstock_status + Send + Sync,
) -> PyResult<penstock_status> {
    let slice = SLICE.as_millis() as u64;
    let began = Instant::now();
    loop {
        let left = timeout_ms.saturating_sub(began.elapsed().as_millis() as u64);
        let status = py.detach(|| rest_at_exit(call(|library| turn(library, left.min(slice)))))?;
        if status != PENSTOCK_TIMED_OUT || left <= slice {
            log::hand_over(py);
            return Ok(status);
        }
        py.check_signals()?;
        log::hand_over(py);
    }
}

/// Makes a call that cannot be made in slices. In the thread that takes signals it is made by another one; if a signal raises, that
/// one makes it to its end, and what it answers is dropped. An inline engine knows its own thread only, so there it is not interrupted.
pub(crate) fn aside<T: Send + 'static>(
    py: Python<'_>,
    engine: &Open,
    timeout_ms: u64,
    body: impl FnOnce() -> Result<T, Box<Failure>> + Send + 'static,
) -> PyResult<T> {
    let is_direct = timeout_ms == 0 || engine.is_inline() || !takes_signals();
    let answer = if is_direct { py.detach(|| rest_at_exit(body())) } else { by_another_thread(py, body)? };
    log::hand_over(py);
    Ok(answer?)
}

fn by_another_thread<T: Send + 'static>(
    py: Python<'_>,
    body: impl FnOnce() -> Result<T, Box<Failure>> + Send + 'static,
) -> PyResult<Result<T, Box<Failure>>> {
    let (answer, answered) = mpsc::channel();
    let run = move || {
        IS_OWN.set(true);
        // Nobody may be waiting any more.
        let _ = answer.send(body());
    };
    std::thread::Builder::new().name("penstock-wait".into()).spawn(run)?;
    let answered = std::sync::Mutex::new(answered);
    loop {
        let wait = || answered.lock().map_or(Err(RecvTimeoutError::Disconnected), |from| from.recv_timeout(SLICE));
        match py.detach(wait) {
            Ok(answer) => return Ok(answer),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Box::new(Failure::internal("a thread that waited ended")).into());
            }
        }
    }
}

thread_local! {
    /// Whether this thread is one of `by_another_thread`: the interpreter knows nothing of it, and does not wait for it when the program ends.
    static IS_OWN: Cell<bool> = const { Cell::new(false) };
}

/// How many of those threads have the interpreter's lock or wait for it, and `NO_MORE` once the program ends: whoever asks an interpreter for
/// it that is about to go is ended in the middle of its call, and the whole process with it.
static ATTACHED: AtomicUsize = AtomicUsize::new(0);
const NO_MORE: usize = 1 << (usize::BITS - 1);

/// Does something with the interpreter's lock, in any thread. None where there is no interpreter, or soon will be none.
pub(crate) fn attached<T>(act: impl FnOnce(Python<'_>) -> T) -> Option<T> {
    if !IS_OWN.get() {
        return Python::try_attach(act);
    }
    let done = match ATTACHED.fetch_add(1, Acquire) & NO_MORE {
        0 => Python::try_attach(act),
        _ => None,
    };
    ATTACHED.fetch_sub(1, Release);
    done
}

/// From now on no thread of this module asks for the interpreter's lock. The caller does not hold it: who does, or waits for it, goes first.
pub(crate) fn attach_no_more() {
    let until = Instant::now() + REST;
    let mut attached = ATTACHED.fetch_or(NO_MORE, AcqRel) & !NO_MORE;
    while attached > 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
        attached = ATTACHED.load(Acquire) & !NO_MORE;
    }
}

/// A forked child has none of its parent's threads.
pub(crate) fn attach_anew() {
    ATTACHED.store(0, Relaxed);
}

/// Where the program ends, its engines are closed under threads that wait. They would raise that, and the interpreter, which is about to end them,
/// would write it down: they rest for a moment, after which whoever still waits for them hears it.
fn rest_at_exit<T>(answer: T) -> T {
    if IS_EXITING.load(Relaxed) && !takes_signals() {
        std::thread::sleep(REST);
    }
    answer
}

/// The thread in which Python runs handlers of signals.
static MAIN_THREAD: AtomicI32 = AtomicI32::new(0);

/// Python says which thread that is, at import and in a forked child.
#[pyfunction(name = "_set_main_thread")]
pub(crate) fn set_main_thread(number: i32) {
    MAIN_THREAD.store(number, Relaxed);
}

fn takes_signals() -> bool {
    // SAFETY: a call that takes nothing.
    unsafe { libc::gettid() == MAIN_THREAD.load(Relaxed) }
}
