//! Streams, and what they are given: copies, words, functions.
#![allow(non_snake_case, reason = "the driver's names")]

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::card::{Client, State, client};
use crate::context::{check_current, current_ordinal};
use crate::forbidden::note;
use crate::protocol::{FROM_DEVICE, Kind, TO_DEVICE};
use crate::start::{answer, is_child, run};
use crate::status;

/// Handles begin here, far from addresses that a program has.
const STREAM_BASE: usize = 0x5_0000;
/// The default stream by its names: that of all threads, and that of the calling one.
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;
const DEFAULT: [usize; 3] = [0, LEGACY, PER_THREAD];
/// Rights to device memory, as the driver numbers them.
pub(crate) const READS: u32 = 1;
pub(crate) const WRITES: u32 = 3;

static THREADS: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The number of this thread.
    static THREAD: u64 = THREADS.fetch_add(1, Ordering::Relaxed);
}

pub(crate) fn number_of(stream: *mut c_void) -> Result<u32, u32> {
    // Copies, words and functions in the default stream are nobody's here: they are refused and counted, where a card would have done them.
    if DEFAULT.contains(&(stream as usize)) {
        note("default stream");
    }
    (stream as usize).checked_sub(STREAM_BASE).map(|number| number as u32).ok_or(status::INVALID_HANDLE)
}

/// The same where a default stream may be named, too.
pub(crate) fn number_of_any(client: &Client, stream: *mut c_void) -> Result<u32, u32> {
    let thread = match stream as usize {
        0 | LEGACY => None,
        PER_THREAD => Some(THREAD.with(|number| *number)),
        _ => return number_of(stream),
    };
    check_current()?;
    let key = (current_ordinal(), thread);
    if let Some(&number) = client.lock().default_streams.get(&key) {
        return Ok(number);
    }
    let number = open(client)?;
    Ok(*client.lock().default_streams.entry(key).or_insert(number))
}

/// # Safety
/// The place is one for an address.
pub(crate) unsafe extern "C" fn cuStreamCreateWithPriority(place: *mut *mut c_void, flags: c_uint, _: c_int) -> u32 {
    let made = check_current().and_then(|()| {
        if flags > 1 {
            return Err(status::INVALID_VALUE);
        }
        Ok((STREAM_BASE + open(client()?)? as usize) as *mut c_void)
    });
    // SAFETY: as above.
    unsafe { answer(place, made) }
}

/// # Safety
/// The place is one for an address.
pub(crate) unsafe extern "C" fn cuStreamCreate(place: *mut *mut c_void, flags: c_uint) -> u32 {
    // SAFETY: as above.
    unsafe { cuStreamCreateWithPriority(place, flags, 0) }
}

pub(crate) fn open(client: &Client) -> Result<u32, u32> {
    let mut state = client.lock();
    state.destroyed_streams.retain(|&stream, &mut given| client.done(stream) < given);
    let stream = state.free_stream().ok_or(status::OUT_OF_MEMORY)?;
    state.streams.insert(stream, client.done(stream));
    state.stream_ordinals.insert(stream, current_ordinal());
    Ok(stream)
}

/// What it has to do is done all the same, and its place is used again after that.
fn destroy(client: &Client, stream: u32) -> Result<(), u32> {
    let mut state = client.lock();
    let given = state.streams.remove(&stream).ok_or(status::INVALID_HANDLE)?;
    state.captured.remove(&stream);
    state.destroyed_streams.insert(stream, given);
    Ok(())
}

/// Waits for what a stream has to do, and destroys it.
pub(crate) fn finish(client: &Client, stream: u32) -> Result<(), u32> {
    let given = *client.lock().streams.get(&stream).ok_or(status::INVALID_HANDLE)?;
    while client.failure() == 0 && client.done(stream) < given {
        std::thread::sleep(std::time::Duration::from_micros(50));
    }
    destroy(client, stream)
}

/// # Safety
/// Nobody uses it any more.
pub(crate) unsafe extern "C" fn cuStreamDestroy(stream: *mut c_void) -> u32 {
    run(|| destroy(client()?, number_of(stream)?))
}

/// # Safety
/// It is a stream that there is.
pub(crate) unsafe extern "C" fn cuStreamQuery(stream: *mut c_void) -> u32 {
    if is_child() {
        return status::SUCCESS; // As a driver says it in a child, where it is not true.
    }
    run(|| {
        let (client, stream) = (client()?, number_of(stream)?);
        let given = *client.lock().streams.get(&stream).ok_or(status::INVALID_HANDLE)?;
        if client.done(stream) == given { Ok(()) } else { Err(status::NOT_READY) }
    })
}

/// Whether a range is all of it device memory with these rights, or may be the host's; none: it leaves what it begins in.
pub(crate) fn place_of(state: &State, address: u64, bytes: u64, rights: u32) -> Option<bool> {
    if State::find(&state.device, address, 1).is_some() {
        return state.is_device(address, bytes, rights).then_some(true);
    }
    let (_, range) = State::find(&state.host, address, bytes)?;
    (range.rights & rights == rights).then_some(false)
}

fn copy(stream: *mut c_void, to: u64, from: u64, bytes: usize, wants: [bool; 2]) -> u32 {
    run(|| {
        let (client, stream) = (client()?, number_of(stream)?);
        if bytes == 0 {
            return Ok(());
        }
        let places = {
            let state = client.lock();
            [(to, WRITES), (from, READS)].map(|(address, rights)| place_of(&state, address, bytes as u64, rights))
        };
        // Host memory that is not registered is not given to a driver by anybody here.
        let are_right = places.iter().zip(wants).all(|(place, wanted)| *place == Some(wanted));
        if !are_right {
            return Err(status::INVALID_VALUE);
        }
        let flags = (TO_DEVICE * u64::from(wants[0])) | (FROM_DEVICE * u64::from(wants[1]));
        client.queue(stream, Kind::Copy, [to, from, bytes as u64, flags])
    })
}

/// # Safety
/// So many bytes at both places, until the copy has passed.
pub(crate) unsafe extern "C" fn cuMemcpyHtoDAsync(
    to: u64,
    from: *const c_void,
    bytes: usize,
    stream: *mut c_void,
) -> u32 {
    copy(stream, to, from as u64, bytes, [true, false])
}

/// # Safety
/// As in the function before.
pub(crate) unsafe extern "C" fn cuMemcpyDtoHAsync(
    to: *mut c_void,
    from: u64,
    bytes: usize,
    stream: *mut c_void,
) -> u32 {
    copy(stream, to as u64, from, bytes, [false, true])
}

/// # Safety
/// As in the function before.
pub(crate) unsafe extern "C" fn cuMemcpyDtoDAsync(to: u64, from: u64, bytes: usize, stream: *mut c_void) -> u32 {
    copy(stream, to, from, bytes, [true, true])
}

/// # Safety
/// A place for eight bytes that the card may reach, until it has passed.
pub(crate) unsafe extern "C" fn cuStreamWriteValue64(stream: *mut c_void, to: u64, value: u64, flags: c_uint) -> u32 {
    run(|| {
        let (client, stream) = (client()?, number_of(stream)?);
        if flags != 0 || !to.is_multiple_of(8) {
            return Err(status::INVALID_VALUE);
        }
        let is_device = place_of(&client.lock(), to, 8, WRITES).ok_or(status::INVALID_VALUE)?;
        client.queue(stream, Kind::Word, [to, value, 0, TO_DEVICE * u64::from(is_device)])
    })
}

/// # Safety
/// A place of eight bytes that the card may reach, until the value has come.
pub(crate) unsafe extern "C" fn cuStreamWaitValue64(stream: *mut c_void, at: u64, value: u64, flags: c_uint) -> u32 {
    run(|| {
        let client = client()?;
        let stream = number_of_any(client, stream)?;
        // 0: until it is at least so great. Nobody here waits otherwise.
        if flags != 0 || !at.is_multiple_of(8) {
            return Err(status::INVALID_VALUE);
        }
        let is_device = place_of(&client.lock(), at, 8, READS).ok_or(status::INVALID_VALUE)?;
        client.queue(stream, Kind::WaitWord, [at, value, 0, FROM_DEVICE * u64::from(is_device)])
    })
}

/// # Safety
/// A function of this type, and what it takes.
pub(crate) unsafe extern "C" fn cuLaunchHostFunc(
    stream: *mut c_void,
    function: *const c_void,
    argument: *mut c_void,
) -> u32 {
    run(|| {
        let (client, stream) = (client()?, number_of(stream)?);
        if function.is_null() {
            return Err(status::INVALID_VALUE);
        }
        client.queue(stream, Kind::Call, [function as u64, argument as u64, 0, 0])
    })
}
