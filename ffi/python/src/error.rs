//! What failed, as a Python exception: one class for each thing that a program would catch.

use std::ffi::{CStr, c_char};

use pyo3::exceptions::PyException;
use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyType};

use crate::library::*;

/// Does something while an exception may be on its way, as in destructors: it is on its way again afterwards.
pub(crate) fn undisturbed<T>(_py: Python<'_>, act: impl FnOnce() -> T) -> T {
    let (mut kind, mut value, mut trace) = (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
    // SAFETY: places for what is on its way; the interpreter's lock is held.
    unsafe { ffi::PyErr_Fetch(&raw mut kind, &raw mut value, &raw mut trace) };
    let done = act();
    // SAFETY: what was fetched, given back once.
    unsafe { ffi::PyErr_Restore(kind, value, trace) };
    done
}

/// From here on a status is a failure.
const FIRST_FAILURE: penstock_status = 10;

/// A subclass of `penstock.Error`.
struct Class {
    name: &'static str,
    /// The exception of Python's own that it also is: who catches that catches this.
    also: Option<&'static str>,
    /// Its docstring: what has happened, and what a program does about it.
    about: &'static str,
    statuses: &'static [penstock_status],
}

const fn class(
    name: &'static str,
    also: Option<&'static str>,
    about: &'static str,
    statuses: &'static [penstock_status],
) -> Class {
    Class { name, also, about, statuses }
}

/// Which status raises what.
static CLASSES: &[Class] = &[
    class(
        "InvalidArgument",
        Some("ValueError"),
        "An argument makes no sense, or does not fit what it is used with.",
        &[
            PENSTOCK_INVALID_ARGUMENT,
            PENSTOCK_BAD_DESCRIPTOR,
            PENSTOCK_BAD_PLAN,
            PENSTOCK_FOREIGN_PLAN,
            PENSTOCK_NOTE_TOO_LONG,
            PENSTOCK_RESERVED_NOTE,
            PENSTOCK_FOREIGN_COUNTER,
        ],
    ),
    class(
        "BadConfig",
        Some("ValueError"),
        "The configuration, or the secret that it names, cannot be used.",
        &[PENSTOCK_BAD_CONFIG, PENSTOCK_NO_SECRET],
    ),
    class("NotStarted", Some("RuntimeError"), "The engine did not start.", &[PENSTOCK_NOT_STARTED]),
    class(
        "OutOfBounds",
        Some("IndexError"),
        "Bytes lie outside their region.",
        &[PENSTOCK_OUT_OF_BOUNDS, PENSTOCK_PLAN_OUT_OF_BOUNDS],
    ),
    class(
        "AccessDenied",
        Some("PermissionError"),
        "The region does not give that right, or the memory is read-only.",
        &[PENSTOCK_NO_RIGHT, PENSTOCK_ACCESS_REFUSED],
    ),
    class(
        "NotMapped",
        Some("ValueError"),
        "There is no memory at that address, or none any more.",
        &[PENSTOCK_NOT_MAPPED, PENSTOCK_MEMORY_GONE],
    ),
    class(
        "OutOfMemory",
        Some("MemoryError"),
        "Memory could not be allocated, registered or renewed.",
        &[PENSTOCK_NO_MEMORY],
    ),
    class(
        "NotFound",
        Some("LookupError"),
        "The peer has no region or counter of that name or address.",
        &[PENSTOCK_NO_REGION, PENSTOCK_NO_COUNTER],
    ),
    class(
        "Full",
        None,
        "There is no room now: release blocks, or transfers that have ended, then try again.",
        &[PENSTOCK_FULL, PENSTOCK_NO_BLOCKS, PENSTOCK_TOO_MANY_HANDLES],
    ),
    class("NotReady", None, "News of the peer's memory are under way: try again.", &[PENSTOCK_NEWS_UNDER_WAY]),
    class(
        "Revoked",
        None,
        "Memory was taken back or replaced: look the region up again, and make the plan again.",
        &[
            PENSTOCK_STALE_REGION,
            PENSTOCK_REVOKED_BY_PEER,
            PENSTOCK_REVOKED_HERE,
            PENSTOCK_PLAN_TOO_OLD,
            PENSTOCK_MEMORY_RENEWED,
        ],
    ),
    class("Cancelled", None, "The transfer was cancelled by this program.", &[PENSTOCK_CANCELLED]),
    class("Deadline", Some("TimeoutError"), "The transfer ended by its deadline.", &[PENSTOCK_DEADLINE_EXCEEDED]),
    class(
        "TimedOut",
        Some("TimeoutError"),
        "A wait is over, and what was waited for has not happened; a transfer goes on.",
        &[PENSTOCK_TIMED_OUT, PENSTOCK_CONNECT_TIMED_OUT, PENSTOCK_NOT_ENDED],
    ),
    class(
        "Unreachable",
        Some("ConnectionError"),
        "There is no way to the peer, or nothing answers there that is Penstock.",
        &[
            PENSTOCK_UNREACHABLE,
            PENSTOCK_NO_ROUTE,
            PENSTOCK_CONNECTION_LOST,
            PENSTOCK_NOT_PENSTOCK,
            PENSTOCK_UNRESOLVED,
        ],
    ),
    class(
        "Refused",
        Some("ConnectionError"),
        "One side refused the session, or the two do not share a secret.",
        &[PENSTOCK_REFUSED, PENSTOCK_WRONG_SECRET],
    ),
    class("PeerClosed", Some("ConnectionError"), "The peer ended the session.", &[PENSTOCK_PEER_CLOSED]),
    class(
        "PeerLost",
        Some("ConnectionError"),
        "The session broke: the peer died, is not reached any more, or wrote what makes no sense.",
        &[PENSTOCK_PEER_LOST, PENSTOCK_PEER_CORRUPT],
    ),
    class(
        "NetworkFailed",
        Some("ConnectionError"),
        "A rail or a card between the two hosts failed, or bytes came otherwise than they left.",
        &[PENSTOCK_RAIL_LOST, PENSTOCK_RECEIVER_NOT_READY, PENSTOCK_CARD_FAILED, PENSTOCK_PAYLOAD_CORRUPT],
    ),
    class("DeviceFailed", None, "A device failed, here or at the peer.", &[PENSTOCK_DEVICE_FAILED]),
    class(
        "Unsupported",
        None,
        "No transport, no card or no device can do what was asked.",
        &[PENSTOCK_NO_PATH, PENSTOCK_CARD_REFUSED, PENSTOCK_NO_DEVICE],
    ),
    class(
        "Draining",
        None,
        "This engine or the peer drains, and takes nothing new.",
        &[PENSTOCK_DRAINING, PENSTOCK_PEER_DRAINING],
    ),
    class("Closed", None, "The engine or the object was closed.", &[PENSTOCK_ENGINE_CLOSED, PENSTOCK_BAD_HANDLE]),
    class(
        "Forked",
        None,
        "The object was made before this process was forked: start an engine in the child.",
        &[PENSTOCK_FORKED],
    ),
    class(
        "WrongThread",
        Some("RuntimeError"),
        "An inline engine was used by a thread that did not start it, or from inside one of its own calls.",
        &[PENSTOCK_WRONG_THREAD, PENSTOCK_REENTERED],
    ),
    class("Internal", Some("RuntimeError"), "A mistake in Penstock; please report it.", &[PENSTOCK_INTERNAL]),
];

const _: () = {
    let mut at = 0;
    while at < ALL_PENSTOCK_STATUS.len() {
        let (_, status) = ALL_PENSTOCK_STATUS[at];
        let classes = classes_of(status);
        assert!(classes <= 1, "a status of the header has two classes");
        assert!(classes == 1 || status < FIRST_FAILURE, "a failure of the header has no class: give it one above");
        at += 1;
    }
};

/// How many classes name this status.
const fn classes_of(status: penstock_status) -> usize {
    let (mut found, mut class) = (0, 0);
    while class < CLASSES.len() {
        let mut at = 0;
        while at < CLASSES[class].statuses.len() {
            found += (CLASSES[class].statuses[at] == status) as usize;
            at += 1;
        }
        class += 1;
    }
    found
}

/// `penstock.Error` and its subclasses, in the order of the table.
struct Types {
    error: Py<PyType>,
    classes: Vec<Py<PyType>>,
}

static TYPES: PyOnceLock<Types> = PyOnceLock::new();

const ABOUT_ERROR: &str = "What Penstock could not do, in words.

`code` is the status, one of `PENSTOCK_…` in penstock.h; `peer` the other engine, `stage` where a transfer ended,
`cause` why, and `remedy` what to do about it, each None where it is not known.

    try:
        engine = penstock.Engine(config=\"missing.yaml\")
    except penstock.Error as error:
        print(error, error.code, error.remedy)";

fn types(py: Python<'_>) -> PyResult<&Types> {
    TYPES.get_or_try_init(py, || {
        let fields = PyDict::new(py);
        fields.set_item("code", PENSTOCK_OK)?;
        for field in ["peer", "stage", "cause", "remedy"] {
            fields.set_item(field, py.None())?;
        }
        let error = new_type("Error", ABOUT_ERROR, PyTuple::new(py, [py.get_type::<PyException>()])?, &fields)?;
        let builtins = py.import("builtins")?;
        let classes = CLASSES.iter().map(|class| {
            let mut bases = vec![error.clone()];
            if let Some(also) = class.also {
                bases.push(builtins.getattr(also)?.cast_into()?);
            }
            Ok(new_type(class.name, class.about, PyTuple::new(py, bases)?, &PyDict::new(py))?.unbind())
        });
        Ok(Types { classes: classes.collect::<PyResult<_>>()?, error: error.unbind() })
    })
}

fn new_type<'py>(
    name: &str,
    about: &str,
    bases: Bound<'py, PyTuple>,
    fields: &Bound<'py, PyDict>,
) -> PyResult<Bound<'py, PyType>> {
    let py = bases.py();
    fields.set_item("__doc__", about)?;
    fields.set_item("__module__", "penstock")?;
    Ok(py.get_type::<PyType>().call1((name, bases, fields))?.cast_into()?)
}

/// Adds all classes to the module.
pub(crate) fn add_classes(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let types = types(module.py())?;
    module.add("Error", &types.error)?;
    CLASSES.iter().zip(&types.classes).try_for_each(|(class, kind)| module.add(class.name, kind))
}

/// What failed, without anything of Python: it can be made where other Python threads run.
#[derive(Debug)]
pub(crate) struct Failure {
    status: penstock_status,
    text: String,
    peer: String,
    stage: String,
    cause: String,
    remedy: String,
}

/// Makes a call: its status where it has not failed, else what the library knows of the failure.
pub(crate) fn call(body: impl FnOnce(&'static Library) -> penstock_status) -> Result<penstock_status, Box<Failure>> {
    let status = body(library());
    if status < FIRST_FAILURE { Ok(status) } else { Err(Failure::last(status).into()) }
}

/// An argument that was refused before the library saw it.
pub(crate) fn invalid(text: &str) -> PyErr {
    Box::new(Failure::with_text(PENSTOCK_INVALID_ARGUMENT, text)).into()
}

/// Something that Penstock cannot do, refused before the library saw it.
pub(crate) fn unsupported(text: &str) -> PyErr {
    Box::new(Failure::with_text(PENSTOCK_NO_PATH, text)).into()
}

/// A status in words.
pub(crate) fn message(status: penstock_status) -> String {
    // SAFETY: the call takes any number, and its text lives as long as the program.
    unsafe { text((library().penstock_message)(status)) }
}

impl Failure {
    pub(crate) fn status(&self) -> penstock_status {
        self.status
    }

    pub(crate) fn with_text(status: penstock_status, text: &str) -> Self {
        Self { text: text.into(), ..Self::of_status(status) }
    }

    /// A mistake of this module.
    pub(crate) fn internal(text: &str) -> Self {
        Self::with_text(PENSTOCK_INTERNAL, text)
    }

    /// What is known of a status alone.
    pub(crate) fn of_status(status: penstock_status) -> Self {
        let nothing = String::new;
        Self { status, text: message(status), peer: nothing(), stage: nothing(), cause: nothing(), remedy: nothing() }
    }

    /// The call of this thread that has just failed with `status`.
    fn last(status: penstock_status) -> Self {
        let mut last = penstock_error::default();
        // SAFETY: a struct with its size.
        let told = unsafe { (library().penstock_last_error)(&raw mut last) };
        if told != PENSTOCK_OK || last.status != status {
            return Self::of_status(status);
        }
        // SAFETY: the texts are never null, and stay until another call of this thread fails.
        unsafe {
            Self {
                status,
                text: text(last.text),
                peer: text(last.peer),
                stage: text(last.stage),
                cause: text(last.cause),
                remedy: text(last.remedy),
            }
        }
    }

    pub(crate) fn exception<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let types = types(py)?;
        let of_status = CLASSES.iter().zip(&types.classes).find(|(class, _)| class.statuses.contains(&self.status));
        let exception = of_status.map_or(&types.error, |(_, kind)| kind).bind(py).call1((&self.text,))?;
        exception.setattr("code", self.status)?;
        for (field, text) in
            [("peer", &self.peer), ("stage", &self.stage), ("cause", &self.cause), ("remedy", &self.remedy)]
        {
            exception.setattr(field, Some(text).filter(|text| !text.is_empty()))?;
        }
        Ok(exception)
    }
}

impl From<Box<Failure>> for PyErr {
    fn from(failure: Box<Failure>) -> Self {
        Python::attach(|py| failure.exception(py).map_or_else(|error| error, Self::from_value))
    }
}

/// A text of the library.
///
/// # Safety
/// It ends with a zero.
unsafe fn text(text: *const c_char) -> String {
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
