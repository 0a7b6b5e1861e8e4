//! Peers: sessions with other engines, and what those have.

use std::ffi::c_char;
use std::time::Duration;

use penstock::{Cause, Peer, RemoteRegion, SystemEnv};

use crate::arguments::{Out, millis, put_text, text, write_sized};
use crate::call::call;
use crate::engine::{penstock_peer, put_handles};
use crate::failure::Failure;
use crate::memory::penstock_region_info;
use crate::objects::{add, find};
use crate::status::penstock_status::{self, *};

/// Handle of a region of a peer.
pub type penstock_remote_region = u64;

/// The name of its engine. Any thread.
///
/// # Safety
/// `buffer` has room for `capacity` bytes; `length` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_peer_name(
    peer: penstock_peer,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> penstock_status {
    // SAFETY: the caller's promise.
    call(|| unsafe { put_text(find::<Peer<SystemEnv>>(peer)?.name().as_str(), buffer, capacity, length) })
}

/// The transport that reaches it: "local", "shm", "tcp", "datagram" or "verbs". Any thread.
///
/// # Safety
/// `buffer` has room for `capacity` bytes; `length` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_peer_transport(
    peer: penstock_peer,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> penstock_status {
    // SAFETY: the caller's promise.
    call(|| unsafe { put_text(find::<Peer<SystemEnv>>(peer)?.transport(), buffer, capacity, length) })
}

/// The path to it, and why that one, in words. Any thread.
///
/// # Safety
/// `buffer` has room for `capacity` bytes; `length` may be null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_peer_path(
    peer: penstock_peer,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> penstock_status {
    // SAFETY: the caller's promise.
    call(|| unsafe { put_text(find::<Peer<SystemEnv>>(peer)?.path(), buffer, capacity, length) })
}

/// `PENSTOCK_OK` while the session stands, else why it ended: `PENSTOCK_PEER_LOST` and its like, with words in the last error. It says
/// nothing of memory. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn penstock_peer_state(peer: penstock_peer) -> penstock_status {
    call(|| {
        let peer = find::<Peer<SystemEnv>>(peer)?;
        match (peer.ended(), peer.loss()) {
            (None, _) => Ok(PENSTOCK_OK),
            (Some(cause), loss) => Err(Failure::ended(cause, peer.name(), loss)),
        }
    })
}

/// Asks it for a sign of life, and waits for it at most so long: `PENSTOCK_TIMED_OUT` if none came. `nanoseconds`, which may be null, is the time
/// there and back. Any thread.
///
/// # Safety
/// Pointers as their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_peer_ping(
    peer: penstock_peer,
    timeout_ms: u64,
    nanoseconds: *mut u64,
) -> penstock_status {
    call(|| {
        // SAFETY: the caller's promise.
        let nanoseconds = unsafe { Out::or_none(nanoseconds, "nanoseconds") }?;
        let Some(took) = heard(&*find(peer)?, timeout_ms)? else { return Ok(PENSTOCK_TIMED_OUT) };
        if let Some(nanoseconds) = nanoseconds {
            nanoseconds.put(took.as_nanos() as u64);
        }
        Ok(PENSTOCK_OK)
    })
}

/// How long a word to a peer and back took, if it came back in time.
fn heard(peer: &Peer<SystemEnv>, timeout_ms: u64) -> Result<Option<Duration>, Box<Failure>> {
    match peer.ping(millis(timeout_ms)) {
        Ok(took) => Ok(Some(took)),
        Err(Cause::DeadlineExceeded) => Ok(None),
        Err(cause) => Err(Failure::ended(cause, peer.name(), peer.loss())),
    }
}

/// Waits until everything that the peer had registered before this call is known here, at most so long: `PENSTOCK_TIMED_OUT` if the peer has not
/// answered by then. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn penstock_peer_refresh(peer: penstock_peer, timeout_ms: u64) -> penstock_status {
    call(|| {
        // A peer announces what is new before it answers.
        let heard = heard(&*find(peer)?, timeout_ms)?;
        Ok(if heard.is_some() { PENSTOCK_OK } else { PENSTOCK_TIMED_OUT })
    })
}

/// The region of this label, waiting at most so long for it to be announced (0: not at all). Any thread.
///
/// # Safety
/// Pointers as their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_peer_region(
    peer: penstock_peer,
    label: *const c_char,
    timeout_ms: u64,
    region: *mut penstock_remote_region,
) -> penstock_status {
    call(|| {
        // SAFETY: the caller's promise.
        let (label, region) = unsafe { (text(label, "label")?, Out::new(region, "region")?) };
        region.put(add(find::<Peer<SystemEnv>>(peer)?.wait_region(label, millis(timeout_ms))?)?);
        Ok(PENSTOCK_OK)
    })
}

/// The region of the peer that has these bytes at this address of the peer's; of several the newest. Any thread.
///
/// # Safety
/// Pointers as their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_peer_region_at(
    peer: penstock_peer,
    address: u64,
    bytes: u64,
    region: *mut penstock_remote_region,
) -> penstock_status {
    call(|| {
        // SAFETY: the caller's promise.
        let region = unsafe { Out::new(region, "region") }?;
        let peer = find::<Peer<SystemEnv>>(peer)?;
        let none = || {
            let words = format!(
                "no region of peer `{}` has {bytes} bytes at {address:#x}; refresh, if they are new",
                peer.name()
            );
            Failure::new(PENSTOCK_NO_REGION, words).of_peer(peer.name())
        };
        region.put(add(peer.region_at(address, bytes).ok_or_else(none)?)?);
        Ok(PENSTOCK_OK)
    })
}

/// All regions that the peer has announced, a fresh handle each. Any thread.
///
/// # Safety
/// `list` has room for `capacity` handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_peer_regions(
    peer: penstock_peer,
    list: *mut penstock_remote_region,
    capacity: usize,
    count: *mut usize,
) -> penstock_status {
    // SAFETY: the caller's promise.
    call(|| unsafe { put_handles(find::<Peer<SystemEnv>>(peer)?.regions(), list, capacity, count) })
}

/// Where a region of a peer is. Any thread.
///
/// # Safety
/// `info` points to a struct whose `size` is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_remote_region_look(
    region: penstock_remote_region,
    info: *mut penstock_region_info,
) -> penstock_status {
    call(|| {
        let region = find::<RemoteRegion<SystemEnv>>(region)?;
        let (base, bytes, rights) = (region.base(), region.bytes(), u32::from(u8::from(region.rights())));
        // SAFETY: the caller's promise.
        unsafe { write_sized(info, penstock_region_info { size: 0, base, bytes, block_bytes: 0, rights }) }
    })
}

/// Ends the session, and waits at most so long until both sides have left it: `PENSTOCK_TIMED_OUT` if the other has not. A session that has ended is
/// left already. Any thread.
#[unsafe(no_mangle)]
pub extern "C" fn penstock_disconnect(peer: penstock_peer, timeout_ms: u64) -> penstock_status {
    call(|| {
        let peer = find::<Peer<SystemEnv>>(peer)?;
        match (peer.disconnect(millis(timeout_ms)), peer.ended()) {
            (true, _) => Ok(PENSTOCK_OK),
            (false, Some(cause @ (Cause::EngineClosed | Cause::Forked))) => Err(cause.into()),
            (false, _) => Ok(PENSTOCK_TIMED_OUT),
        }
    })
}
