//! Values on their way between Python and the library: texts, times, answers of unknown length.

use std::ffi::CString;

use pyo3::PyResult;

use crate::error::{Failure, call, invalid};
use crate::library::{Library, PENSTOCK_TRUNCATED, library, penstock_status};

/// Bytes that an answer is expected to have at most; a longer one takes a second call.
const USUAL_BYTES: usize = 512;

/// Values that a list is expected to have at most.
const USUAL_COUNT: usize = 64;

/// A handle that is released with its owner. Not an engine's, whose release waits.
#[derive(Debug)]
pub(crate) struct Handle(u64);

impl Handle {
    /// What a call returns, which it writes into a place for a handle.
    pub(crate) fn of(make: impl FnOnce(&'static Library, *mut u64) -> penstock_status) -> Result<Self, Box<Failure>> {
        Self::with_status(make).map(|(handle, _)| handle)
    }

    /// The same, with the status, which is no failure.
    pub(crate) fn with_status(
        make: impl FnOnce(&'static Library, *mut u64) -> penstock_status,
    ) -> Result<(Self, penstock_status), Box<Failure>> {
        let mut handle = 0;
        let status = call(|library| make(library, &raw mut handle))?;
        Ok((Self(handle), status))
    }

    pub(crate) fn new(number: u64) -> Self {
        Self(number)
    }

    pub(crate) fn number(&self) -> u64 {
        self.0
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.0 != 0 {
            // SAFETY: any number may be released.
            unsafe { (library().penstock_release)(self.0) };
        }
    }
}

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

/// The same for a list.
pub(crate) fn read_list<T: Copy + Default>(
    mut read: impl FnMut(&'static Library, &mut [T], &mut usize) -> penstock_status,
) -> Result<Vec<T>, Box<Failure>> {
    let mut list = vec![T::default(); USUAL_COUNT];
    loop {
        let mut count = 0;
        let status = call(|library| read(library, &mut list, &mut count))?;
        if status != PENSTOCK_TRUNCATED {
            list.truncate(count);
            return Ok(list);
        }
        list.resize(2 * count, T::default());
    }
}

/// A list of handles, each of which is released with its owner.
pub(crate) fn read_handles(
    mut read: impl FnMut(&'static Library, &mut [u64], &mut usize) -> penstock_status,
) -> Result<Vec<Handle>, Box<Failure>> {
    let mut room = USUAL_COUNT;
    loop {
        let (mut list, mut count) = (vec![0; room], 0);
        let status = call(|library| read(library, &mut list, &mut count))?;
        let handles = list.into_iter().take(count).map(Handle).collect();
        if status != PENSTOCK_TRUNCATED {
            return Ok(handles);
        }
        room = 2 * count;
    }
}
