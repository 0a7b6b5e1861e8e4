//! Calls that Penstock makes nowhere: they wait for a card, or concern what others have current. They work, and are counted.
#![allow(non_snake_case, reason = "the driver's names")]

use std::collections::BTreeMap;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Mutex, PoisonError};

use crate::card::{State, client};
use crate::context::check_current;
use crate::event::cuEventQuery;
use crate::memory::wait_for_all;
use crate::protocol::{FROM_DEVICE, Kind, TO_DEVICE};
use crate::start::{run, write_text};
use crate::status;
use crate::stream::{READS, WRITES, cuStreamQuery, finish, open, place_of};

/// How often each was made.
static MADE: Mutex<BTreeMap<&str, u32>> = Mutex::new(BTreeMap::new());

pub(crate) fn note(what: &'static str) {
    *MADE.lock().unwrap_or_else(PoisonError::into_inner).entry(what).or_default() += 1;
}

/// For tests: how many such calls were made. A line for each kind goes to the place, as in `2 cuStreamSynchronize`, with a zero behind.
///
/// # Safety
/// Room for so many bytes, or none.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn penstock_cuda_stand_in_forbidden(place: *mut c_char, len: c_int) -> u32 {
    let made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut text: String = made.iter().map(|(what, count)| format!("{count} {what}\n")).collect();
    text.push('\0');
    // SAFETY: as above.
    unsafe { write_text(place, len, text.as_bytes()) };
    made.values().sum()
}

/// Asks until it has passed.
fn wait(query: impl Fn() -> u32) -> u32 {
    loop {
        match query() {
            status::NOT_READY => std::thread::sleep(std::time::Duration::from_micros(50)),
            status => return status,
        }
    }
}

/// # Safety
/// Nothing is asked of its caller.
pub(crate) unsafe extern "C" fn cuCtxSynchronize() -> u32 {
    note("cuCtxSynchronize");
    run(|| {
        check_current()?;
        wait_for_all(client()?);
        client().map(|_| ())
    })
}

/// # Safety
/// It is a stream that there is.
pub(crate) unsafe extern "C" fn cuStreamSynchronize(stream: *mut c_void) -> u32 {
    note("cuStreamSynchronize");
    // SAFETY: as above.
    wait(|| unsafe { cuStreamQuery(stream) })
}

/// # Safety
/// It is an event that there is.
pub(crate) unsafe extern "C" fn cuEventSynchronize(event: *mut c_void) -> u32 {
    note("cuEventSynchronize");
    // SAFETY: as above.
    wait(|| unsafe { cuEventQuery(event) })
}

/// Copies, and waits for it. Host memory need not be registered.
fn copy(to: u64, from: u64, bytes: usize) -> u32 {
    run(|| {
        check_current()?;
        let client = client()?;
        if bytes == 0 {
            return Ok(());
        }
        let [to_device, from_device] = {
            let state = client.lock();
            let of = |address, rights| match State::find(&state.device, address, 1) {
                Some(_) => place_of(&state, address, bytes as u64, rights).ok_or(status::INVALID_VALUE),
                None => Ok(false),
            };
            [of(to, WRITES)?, of(from, READS)?]
        };
        let flags = (TO_DEVICE * u64::from(to_device)) | (FROM_DEVICE * u64::from(from_device));
        let stream = open(client)?;
        client.queue(stream, Kind::Copy, [to, from, bytes as u64, flags])?;
        finish(client, stream)?;
        crate::card::client().map(|_| ())
    })
}

/// # Safety
/// So many bytes at both places.
pub(crate) unsafe extern "C" fn cuMemcpy(to: u64, from: u64, bytes: usize) -> u32 {
    note("cuMemcpy");
    copy(to, from, bytes)
}

/// # Safety
/// So many bytes at both places.
pub(crate) unsafe extern "C" fn cuMemcpyHtoD(to: u64, from: *const c_void, bytes: usize) -> u32 {
    note("cuMemcpyHtoD");
    copy(to, from as u64, bytes)
}

/// # Safety
/// So many bytes at both places.
pub(crate) unsafe extern "C" fn cuMemcpyDtoH(to: *mut c_void, from: u64, bytes: usize) -> u32 {
    note("cuMemcpyDtoH");
    copy(to as u64, from, bytes)
}

/// # Safety
/// So many bytes at both places.
pub(crate) unsafe extern "C" fn cuMemcpyDtoD(to: u64, from: u64, bytes: usize) -> u32 {
    note("cuMemcpyDtoD");
    copy(to, from, bytes)
}
