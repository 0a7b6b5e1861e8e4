//! Values on their way between Python and the library: texts, times, answers of unknown length.

use std::ffi::CString;

use pyo3::PyResult;

use crate::error::{Failure, call, invalid};
use crate::library::{Library, PENSTOCK_TRUNCATED, penstock_status};

/// Bytes that an answer is expected to have at most; a longer one takes a second call.
const USUAL_BYTES: usize = 512;

/// A text for the library. `what` names the argument.
pub(crate) fn c_text(text: impl Into<Vec<u8>>, what: &str) -> PyResult<CString> {
    CString::new(text).map_err(|_| invalid(&format!("`{what}` holds a zero character")))
}

/// Seconds as milliseconds, rounded up so that a short time is not none.
pub(crate) fn milliseconds(timeout: f64) -> PyResult<u64> {
    if timeout.is_nan() || timeout < 0.0 {
        return Err(invalid(&format!("a timeout of {timeout} s makes no sense; give seconds, from 0 on")));
    }
    // Saturates: what is longer than the library counts is for ever.
    Ok((timeout * 1000.0).ceil() as u64)
}

/// Reads bytes of which only the answer says how many there are. `read` gets a buffer, its size, and the place for the length.
pub(crate) fn read_bytes(
    mut read: impl FnMut(&'static Library, &mut [u8], &mut usize) -> penstock_status,
) -> Result<Vec<u8>, Box<Failure>> {
    let mut buffer = vec![0; USUAL_BYTES];
    loop {
        let mut length = 0;
        let status = call(|library| read(library, &mut buffer, &mut length))?;
        if status != PENSTOCK_TRUNCATED {
            buffer.truncate(length);
            return Ok(buffer);
        }
        // A text has a zero behind it, which is not counted.
        buffer.resize(length + 1, 0);
    }
}

/// The same for a text.
pub(crate) fn read_text(
    read: impl FnMut(&'static Library, &mut [u8], &mut usize) -> penstock_status,
) -> Result<String, Box<Failure>> {
    read_bytes(read).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}
