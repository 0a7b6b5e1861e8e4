//! Events, and streams whose work is captured.
//!
//! An event is a place in a stream: recorded again it is another one, and whoever waits for the first goes on waiting for that. A captured stream
//! does nothing: there are no graphs here.
#![allow(non_snake_case, reason = "the driver's names")]

use std::ffi::{c_int, c_uint, c_void};

use crate::card::client;
use crate::context::{check_current, current_ordinal};
use crate::protocol::Kind;
use crate::start::{answer, is_child, run};
use crate::status;
use crate::stream::number_of_any;

/// Handles begin here, far from addresses that a program has.
const EVENT_BASE: usize = 0x60_0000;
/// What stands for the graph that a capture ends with.
const GRAPH: usize = 0x8_0000;
/// Whether a stream is captured, as the driver numbers it.
const CAPTURE_NONE: c_int = 0;
const CAPTURE_ACTIVE: c_int = 1;

fn event_of(event: *mut c_void) -> Result<u64, u32> {
    (event as usize).checked_sub(EVENT_BASE).map(|number| number as u64).ok_or(status::INVALID_HANDLE)
}

/// # Safety
/// The place is one for an address.
pub(crate) unsafe extern "C" fn cuEventCreate(place: *mut *mut c_void, _flags: c_uint) -> u32 {
    let made = check_current().and_then(|()| {
        let event = client()?.lock().add_event(current_ordinal());
        Ok((EVENT_BASE + event as usize) as *mut c_void)
    });
    // SAFETY: as above.
    unsafe { answer(place, made) }
}

/// # Safety
/// Nobody uses it any more.
pub(crate) unsafe extern "C" fn cuEventDestroy(event: *mut c_void) -> u32 {
    run(|| {
        let (client, event) = (client()?, event_of(event)?);
        client.lock().events.remove(&event).map(drop).ok_or(status::INVALID_HANDLE)
    })
}

/// # Safety
/// An event and a stream.
pub(crate) unsafe extern "C" fn cuEventRecord(event: *mut c_void, stream: *mut c_void) -> u32 {
    run(|| {
        let (client, event) = (client()?, event_of(event)?);
        let stream = number_of_any(client, stream)?;
        {
            let state = client.lock();
            let ordinal = state.events.get(&event).ok_or(status::INVALID_HANDLE)?.ordinal;
            if !state.streams.contains_key(&stream) || state.stream_ordinals.get(&stream) != Some(&ordinal) {
                return Err(status::INVALID_HANDLE);
            }
        }
        let count = client.queue_with(stream, Kind::Record, [0; 4], &[])?;
        let mut state = client.lock();
        state.events.get_mut(&event).ok_or(status::INVALID_HANDLE)?.recorded = Some((stream, count));
        Ok(())
    })
}

/// # Safety
/// It is an event that there is.
pub(crate) unsafe extern "C" fn cuEventQuery(event: *mut c_void) -> u32 {
    if is_child() {
        return status::SUCCESS; // As a driver says it in a child, where it is not true.
    }
    run(|| {
        let (client, event) = (client()?, event_of(event)?);
        let recorded = client.lock().events.get(&event).ok_or(status::INVALID_HANDLE)?.recorded;
        let has_come = recorded.is_none_or(|(stream, count)| client.done(stream) >= count);
        if has_come { Ok(()) } else { Err(status::NOT_READY) }
    })
}

/// # Safety
/// A stream and an event.
pub(crate) unsafe extern "C" fn cuStreamWaitEvent(stream: *mut c_void, event: *mut c_void, _flags: c_uint) -> u32 {
    run(|| {
        let (client, event) = (client()?, event_of(event)?);
        let stream = number_of_any(client, stream)?;
        let recorded = client.lock().events.get(&event).ok_or(status::INVALID_HANDLE)?.recorded;
        match recorded {
            Some((other, count)) => client.queue(stream, Kind::Wait, [u64::from(other), count, 0, 0]),
            None => Ok(()),
        }
    })
}

/// # Safety
/// It is a stream that there is.
pub(crate) unsafe extern "C" fn cuStreamBeginCapture(stream: *mut c_void, mode: c_uint) -> u32 {
    run(|| {
        // The default stream cannot be captured, that of a thread can.
        if [0, 1].contains(&(stream as usize)) {
            return Err(status::STREAM_CAPTURE_UNSUPPORTED);
        }
        let client = client()?;
        let stream = number_of_any(client, stream)?;
        let mut state = client.lock();
        match mode {
            0..=2 if !state.streams.contains_key(&stream) => Err(status::INVALID_HANDLE),
            0..=2 if state.captured.insert(stream) => Ok(()),
            0..=2 => Err(status::ILLEGAL_STATE),
            _ => Err(status::INVALID_VALUE),
        }
    })
}

/// # Safety
/// A stream, and a place for an address.
pub(crate) unsafe extern "C" fn cuStreamEndCapture(stream: *mut c_void, graph: *mut *mut c_void) -> u32 {
    let ended = check_current().and_then(|()| {
        let client = client()?;
        let stream = number_of_any(client, stream)?;
        let was_captured = client.lock().captured.remove(&stream);
        if was_captured { Ok(GRAPH as *mut c_void) } else { Err(status::ILLEGAL_STATE) }
    });
    // SAFETY: as above.
    unsafe { answer(graph, ended) }
}

/// # Safety
/// A stream, and a place for a number.
pub(crate) unsafe extern "C" fn cuStreamIsCapturing(stream: *mut c_void, place: *mut c_int) -> u32 {
    let said = crate::start::check_started().and_then(|()| {
        let client = client()?;
        let stream = number_of_any(client, stream)?;
        let state = client.lock();
        if !state.streams.contains_key(&stream) {
            return Err(status::INVALID_HANDLE);
        }
        Ok(if state.captured.contains(&stream) { CAPTURE_ACTIVE } else { CAPTURE_NONE })
    });
    // SAFETY: as above.
    unsafe { answer(place, said) }
}
