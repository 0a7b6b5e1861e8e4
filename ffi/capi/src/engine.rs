//! Engines: starting, closing, connecting, turning.

use std::ffi::{c_char, c_int, c_void};
use std::os::fd::AsRawFd;

use penstock::config::Progress;
use penstock::{Armed, Config, Connecting, Engine, Peer, Statistics, SystemEnv};

use crate::arguments::{
    Out, Versioned, array, millis, put_list, put_text, read_sized, text, text_or_none, write_sized,
};
use crate::call::call;
use crate::failure::{Answer, Failure};
use crate::objects::{add, find, release};
use crate::status::penstock_status::{self, *};

/// Handle of an engine.
pub type penstock_engine = u64;
/// Handle of a connect that is under way.
pub type penstock_connecting = u64;
/// Handle of a peer: a session with another engine.
pub type penstock_peer = u64;
/// Handle of memory that must not be reused yet.
pub type penstock_quarantine = u64;

/// The number of the ABI: calls and structs of one number stay as they are, and are only added to.
pub const PENSTOCK_ABI: u32 = 0;

/// The number of the ABI of the library that is loaded: to be compared with `PENSTOCK_ABI`. Any thread, also after a fork.
#[unsafe(no_mangle)]
pub extern "C" fn penstock_abi() -> u32 {
    PENSTOCK_ABI
}

/// The release of the library, as "0.1.0". Lives as long as the program. Any thread, also after a fork.
#[unsafe(no_mangle)]
pub extern "C" fn penstock_version() -> *const c_char {
    const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), "\0");
    VERSION.as_ptr().cast()
}

/// How an engine starts. All zeros but the size is an engine with the default configuration.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct penstock_engine_options {
    /// `sizeof(penstock_engine_options)`.
    pub size: usize,
    /// Its name; null: as the configuration says, else one made of the program and its process, for one engine of it.
    pub name: *const c_char,
    /// A file of the configuration, in YAML; null: none.
    pub config_file: *const c_char,
    /// The configuration itself, in YAML; null: none. Not both.
    pub config_yaml: *const c_char,
}

impl Versioned for penstock_engine_options {
    fn size(&self) -> usize {
        self.size
    }
}

/// Starts an engine. `options` may be null. An inline engine (`workers.progress: inline`) belongs to the calling thread.
/// Release it by `penstock_engine_close`.
///
/// # Safety
/// Pointers as their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_engine_start(
    options: *const penstock_engine_options,
    engine: *mut penstock_engine,
) -> penstock_status {
    call(|| {
        let none = std::ptr::null();
        let zeros = penstock_engine_options { size: 0, name: none, config_file: none, config_yaml: none };
        // SAFETY: the caller's promise.
        let (options, engine) = unsafe { (read_sized(options, zeros)?, Out::new(engine, "engine")?) };
        // SAFETY: the caller's promise.
        let (name, file, yaml) = unsafe {
            (
                text_or_none(options.name, "name")?,
                text_or_none(options.config_file, "config_file")?,
                text_or_none(options.config_yaml, "config_yaml")?,
            )
        };
        let config = match (file, yaml) {
            (Some(_), Some(_)) => return Err(Failure::invalid("a configuration is a file or a text, not both")),
            (Some(file), None) => Config::load(file),
            (None, Some(yaml)) => Config::parse(yaml, "config_yaml"),
            (None, None) => Ok(Config::default()),
        };
        let config = config.map_err(|error| Failure::new(PENSTOCK_BAD_CONFIG, error))?;
        let config = match name {
            Some(name) => config.named(name),
            None => config,
        };
        engine.put(add(Engine::start(config)?)?);
        Ok(PENSTOCK_OK)
    })
}

/// Ends an engine by the timeout, and releases its handle: lets transfers end for half of the time, says goodbye, takes its memory back. Calls
/// that other threads wait in end. Memory that a stopped peer might still touch is put into `list`, a quarantine each, as far as
/// `capacity` goes, and how many there are into `count`: do not reuse such memory before `penstock_quarantine_look` says so. Of those that did not fit
/// (`PENSTOCK_TRUNCATED`) the memory is never known to be free. An argument that makes no sense ends nothing. Any thread.
///
/// # Safety
/// Pointers as their types say; `list` has room for `capacity` handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_engine_close(
    engine: penstock_engine,
    timeout_ms: u64,
    list: *mut penstock_quarantine,
    capacity: usize,
    count: *mut usize,
) -> penstock_status {
    call(|| {
        let found = find::<Engine>(engine)?;
        // SAFETY: the caller's promise. Looked at before anything ends.
        unsafe { put_list(Vec::new(), list, capacity, count) }?;
        let held = found.close(millis(timeout_ms));
        drop(found);
        // Of several threads that close it one releases it.
        let _ = release(engine);
        // SAFETY: the caller's promise.
        unsafe { put_handles(held, list, capacity, count) }
    })
}

/// Puts handles of as many objects into a caller's array as go there, and how many there are.
///
/// # Safety
/// As of [`put_list`].
pub(crate) unsafe fn put_handles<T: crate::objects::Kind>(
    objects: Vec<T>,
    list: *mut u64,
    capacity: usize,
    count: *mut usize,
) -> Answer {
    let all = objects.len();
    let handles = objects.into_iter().take(capacity).map(add).collect::<Result<Vec<u64>, _>>()?;
    // SAFETY: the caller's promise.
    let answer = unsafe { put_list(handles, list, capacity, count) }?;
    if all > capacity {
        // SAFETY: it was written just now.
        unsafe { count.write(all) };
        return Ok(PENSTOCK_TRUNCATED);
    }
    Ok(answer)
}

/// Its name, as text. Any thread.
///
/// # Safety
/// `buffer` has room for `capacity` bytes; `length` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_engine_name(
    engine: penstock_engine,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> penstock_status {
    // SAFETY: the caller's promise.
    call(|| unsafe { put_text(find::<Engine>(engine)?.name().as_str(), buffer, capacity, length) })
}

/// Whether it is inline (`workers.progress: inline`): the thread that started it turns it, in calls that wait and by `penstock_progress`. `is_inline` is 1
/// or 0. Any thread.
///
/// # Safety
/// Pointers as their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_engine_is_inline(engine: penstock_engine, is_inline: *mut c_int) -> penstock_status {
    call(|| {
        // SAFETY: the caller's promise.
        let is_inline = unsafe { Out::new(is_inline, "is_inline") }?;
        is_inline.put(c_int::from(find::<Engine>(engine)?.config().workers.progress == Progress::Inline));
        Ok(PENSTOCK_OK)
    })
}

/// Its descriptor: bytes that any means may carry to whoever wants to connect. `length` says how many there are. Any thread.
///
/// # Safety
/// `buffer` has room for `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_engine_descriptor(
    engine: penstock_engine,
    buffer: *mut c_void,
    capacity: usize,
    length: *mut usize,
) -> penstock_status {
    // SAFETY: the caller's promise.
    call(|| unsafe { put_list(find::<Engine>(engine)?.descriptor(), buffer.cast::<u8>(), capacity, length) })
}

/// The addresses at which other hosts reach it, `host:port`, a line each. Any thread.
///
/// # Safety
/// `buffer` has room for `capacity` bytes; `length` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_engine_addresses(
    engine: penstock_engine,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> penstock_status {
    call(|| {
        let addresses: Vec<String> = find::<Engine>(engine)?.addresses().iter().map(ToString::to_string).collect();
        // SAFETY: the caller's promise.
        unsafe { put_text(&addresses.join("\n"), buffer, capacity, length) }
    })
}

/// Connects to the engine of this descriptor. One that is connected already is found. Any thread; waits at most so long.
///
/// # Safety
/// `descriptor` has so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_connect(
    engine: penstock_engine,
    descriptor: *const c_void,
    descriptor_bytes: usize,
    timeout_ms: u64,
    peer: *mut penstock_peer,
) -> penstock_status {
    call(|| {
        // SAFETY: the caller's promise.
        let bytes = unsafe { array(descriptor.cast::<u8>(), descriptor_bytes, "descriptor") }?;
        // SAFETY: the caller's promise.
        let peer = unsafe { Out::new(peer, "peer") }?;
        peer.put(add(find::<Engine>(engine)?.connect(bytes, millis(timeout_ms))?)?);
        Ok(PENSTOCK_OK)
    })
}

/// Connects to whichever engine listens at this address, `host:port`. Any thread; waits at most so long.
///
/// # Safety
/// Pointers as their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_connect_address(
    engine: penstock_engine,
    address: *const c_char,
    timeout_ms: u64,
    peer: *mut penstock_peer,
) -> penstock_status {
    call(|| {
        // SAFETY: the caller's promise.
        let (address, peer) = unsafe { (text(address, "address")?, Out::new(peer, "peer")?) };
        peer.put(add(find::<Engine>(engine)?.connect_address(address, millis(timeout_ms))?)?);
        Ok(PENSTOCK_OK)
    })
}

/// Connects to whichever engine has this name, and tries again until there is one. Any thread; waits at most so long.
///
/// # Safety
/// Pointers as their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_connect_name(
    engine: penstock_engine,
    name: *const c_char,
    timeout_ms: u64,
    peer: *mut penstock_peer,
) -> penstock_status {
    call(|| {
        // SAFETY: the caller's promise.
        let (name, peer) = unsafe { (text(name, "name")?, Out::new(peer, "peer")?) };
        peer.put(add(find::<Engine>(engine)?.connect_name(name, millis(timeout_ms))?)?);
        Ok(PENSTOCK_OK)
    })
}

/// Begins to connect to the engine of this descriptor. Any thread. Never waits.
///
/// # Safety
/// `descriptor` has so many bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_connect_begin(
    engine: penstock_engine,
    descriptor: *const c_void,
    descriptor_bytes: usize,
    connecting: *mut penstock_connecting,
) -> penstock_status {
    call(|| {
        // SAFETY: the caller's promise.
        let bytes = unsafe { array(descriptor.cast::<u8>(), descriptor_bytes, "descriptor") }?;
        // SAFETY: the caller's promise.
        let connecting = unsafe { Out::new(connecting, "connecting") }?;
        connecting.put(add(find::<Engine>(engine)?.connect_begin(bytes)?)?);
        Ok(PENSTOCK_OK)
    })
}

/// The peer, once it is there; `PENSTOCK_PENDING` before. Release the connect afterwards. Any thread. Never waits.
///
/// # Safety
/// Pointers as their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_connect_poll(
    connecting: penstock_connecting,
    peer: *mut penstock_peer,
) -> penstock_status {
    call(|| {
        // SAFETY: the caller's promise.
        let peer = unsafe { Out::new(peer, "peer") }?;
        let Some(connected) = find::<Connecting<SystemEnv>>(connecting)?.poll() else { return Ok(PENSTOCK_PENDING) };
        peer.put(add(connected?)?);
        Ok(PENSTOCK_OK)
    })
}

/// Connects again to the engine behind a session that has ended, most likely in its next life. If a session with it stands, or does so as far as is known
/// here, that is the answer: see `penstock_peer_state` first. Any thread; waits at most so long.
///
/// # Safety
/// Pointers as their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_reconnect(
    engine: penstock_engine,
    ended: penstock_peer,
    timeout_ms: u64,
    peer: *mut penstock_peer,
) -> penstock_status {
    call(|| {
        // SAFETY: the caller's promise.
        let peer = unsafe { Out::new(peer, "peer") }?;
        let ended = find::<Peer<SystemEnv>>(ended)?;
        peer.put(add(find::<Engine>(engine)?.reconnect(&ended, millis(timeout_ms))?)?);
        Ok(PENSTOCK_OK)
    })
}

/// All peers with a standing session, whoever connected, each as a fresh handle. Any thread.
///
/// # Safety
/// `list` has room for `capacity` handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_peers(
    engine: penstock_engine,
    list: *mut penstock_peer,
    capacity: usize,
    count: *mut usize,
) -> penstock_status {
    // SAFETY: the caller's promise.
    call(|| unsafe { put_handles(find::<Engine>(engine)?.peers(), list, capacity, count) })
}

/// One turn of an inline engine; others work by themselves. `worked`, which may be null, is 1 if anything happened. The engine's own thread.
///
/// # Safety
/// Pointers as their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_progress(engine: penstock_engine, worked: *mut c_int) -> penstock_status {
    call(|| {
        // SAFETY: the caller's promise.
        let worked = unsafe { Out::or_none(worked, "worked") }?;
        let has_worked = find::<Engine>(engine)?.progress()?;
        if let Some(worked) = worked {
            worked.put(c_int::from(has_worked));
        }
        Ok(PENSTOCK_OK)
    })
}

/// A descriptor for `poll` or `epoll`, the engine's own: readable when something has happened after `penstock_arm`, which also resets it, so there is
/// nothing to read. A close does not ring it, and it is closed with the last handle of anything of the engine: have nobody sleep on it then. Any
/// thread.
///
/// # Safety
/// Pointers as their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_event_fd(engine: penstock_engine, fd: *mut c_int) -> penstock_status {
    call(|| {
        // SAFETY: the caller's promise.
        let fd = unsafe { Out::new(fd, "fd") }?;
        fd.put(find::<Engine>(engine)?.event_fd().as_raw_fd());
        Ok(PENSTOCK_OK)
    })
}

/// Asks for the event fd to be rung, right before sleeping on it. `PENSTOCK_BUSY`: transfers ended, notifications arrived or counters went
/// up since the last call: look at them first. One thread at a time.
#[unsafe(no_mangle)]
pub extern "C" fn penstock_arm(engine: penstock_engine) -> penstock_status {
    call(|| match find::<Engine>(engine)?.arm()? {
        Armed::Armed => Ok(PENSTOCK_OK),
        Armed::Busy => Ok(PENSTOCK_BUSY),
    })
}

/// Takes nothing new from now on, for good, and waits at most so long until what goes on has ended and every session is closed: `PENSTOCK_TIMED_OUT`
/// if something goes on or a session stands. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn penstock_drain(engine: penstock_engine, timeout_ms: u64) -> penstock_status {
    call(|| {
        let drained = find::<Engine>(engine)?.drain(millis(timeout_ms))?;
        Ok(if drained.is_complete() { PENSTOCK_OK } else { PENSTOCK_TIMED_OUT })
    })
}

/// What the workers of an engine have done since it started.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct penstock_statistics {
    /// Set by the caller: `sizeof(penstock_statistics)`.
    pub size: usize,
    /// Transfers that ended well.
    pub transfers_completed: u64,
    /// Transfers that ended with a fault.
    pub transfers_failed: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// Notifications sent.
    pub notes_sent: u64,
    /// Notifications received.
    pub notes_received: u64,
    /// Times a receiver had no room and a notification had to wait.
    pub waits_for_room: u64,
    /// Times memory was quarantined.
    pub quarantines: u64,
    /// Turns of the polling loop.
    pub turns: u64,
    /// Times a worker went to sleep.
    pub sleeps: u64,
}

impl Versioned for penstock_statistics {
    fn size(&self) -> usize {
        self.size
    }
}

/// What the workers have done. Any thread.
///
/// # Safety
/// `statistics` points to a struct whose `size` is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_engine_statistics(
    engine: penstock_engine,
    statistics: *mut penstock_statistics,
) -> penstock_status {
    call(|| {
        let Statistics {
            transfers_completed,
            transfers_failed,
            bytes,
            notes_sent,
            notes_received,
            waits_for_room,
            quarantines,
            turns,
            sleeps,
            ..
        } = find::<Engine>(engine)?.statistics();
        let found = penstock_statistics {
            size: 0,
            transfers_completed,
            transfers_failed,
            bytes,
            notes_sent,
            notes_received,
            waits_for_room,
            quarantines,
            turns,
            sleeps,
        };
        // SAFETY: the caller's promise.
        unsafe { write_sized(statistics, found) }
    })
}
