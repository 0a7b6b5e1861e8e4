//! What an engine is told: notifications, and counters.

use std::ffi::{CString, c_char, c_void};

use penstock::{Counter, Engine, Notification, Peer, RemoteCounter, SystemEnv};

use crate::arguments::{Out, millis, text};
use crate::call::call;
use crate::engine::{penstock_engine, penstock_peer};
use crate::failure::{Failure, c_text};
use crate::memory::{find_region, penstock_region};
use crate::objects::{add, find};
use crate::status::penstock_status::{self, *};

/// Handle of the payloads of notifications that were taken together.
pub type penstock_batch = u64;
/// Handle of a counter of this engine.
pub type penstock_counter = u64;
/// Handle of a counter of a peer.
pub type penstock_remote_counter = u64;

/// A notification that has arrived, once, after the bytes of its transfer. Its texts and bytes are the batch's.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct penstock_notification {
    /// The name of the engine that sent it.
    pub peer: *const c_char,
    /// Its number.
    pub note: u64,
    /// The upper half of its number.
    pub note_high: u64,
    /// What it carries.
    pub payload: *const c_void,
    /// How many bytes.
    pub payload_bytes: usize,
}

/// What notifications that were taken point to.
pub(crate) struct Batch {
    #[expect(dead_code, reason = "it is kept for those who have pointers into it")]
    taken: Vec<(Notification, CString)>,
}

/// Takes notifications, at most `capacity`, in the order in which they came; `count` says how many. What they point to stays until the batch is
/// released; with none there is no batch, and its handle is 0. Any thread; an inline engine's own. Never waits.
///
/// # Safety
/// `list` has room for `capacity` notifications.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_notifications(
    engine: penstock_engine,
    list: *mut penstock_notification,
    capacity: usize,
    count: *mut usize,
    batch: *mut penstock_batch,
) -> penstock_status {
    call(|| {
        // SAFETY: the caller's promise.
        let (count, batch) = unsafe { (Out::new(count, "count")?, Out::new(batch, "batch")?) };
        if capacity > 0 {
            // SAFETY: the caller's promise; looked at before anything is taken.
            unsafe { Out::new(list, "list") }?;
        }
        let mut taken = Vec::new();
        find::<Engine>(engine)?.notifications_at_most(&mut taken, capacity);
        let named = |notification: Notification| {
            let peer = c_text(notification.peer.as_str());
            (notification, peer)
        };
        let taken: Vec<_> = taken.into_iter().map(named).collect();
        for (at, (Notification { id, payload, .. }, peer)) in taken.iter().enumerate() {
            let told = penstock_notification {
                peer: peer.as_ptr(),
                note: id.0 as u64,
                note_high: (id.0 >> 64) as u64,
                payload: payload.as_ptr().cast(),
                payload_bytes: payload.len(),
            };
            // SAFETY: no more were taken than there is room for.
            unsafe { list.add(at).write(told) };
        }
        count.put(taken.len());
        batch.put(if taken.is_empty() { 0 } else { add(Batch { taken })? });
        Ok(PENSTOCK_OK)
    })
}

/// Waits until there is a notification to take, at most so long: `PENSTOCK_TIMED_OUT` if none came. Any thread; an inline engine's own.
#[unsafe(no_mangle)]
pub extern "C" fn penstock_wait_notification(engine: penstock_engine, timeout_ms: u64) -> penstock_status {
    call(|| {
        let engine = find::<Engine>(engine)?;
        match (engine.wait_notification(millis(timeout_ms)), engine.ended()) {
            (true, _) => Ok(PENSTOCK_OK),
            (false, None) => Ok(PENSTOCK_TIMED_OUT),
            (false, Some(cause)) => Err(cause.into()),
        }
    })
}

/// Makes an arrival counter of a region and announces it to peers by its label. Release it when it is not needed. Any thread.
///
/// # Safety
/// Pointers as their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_counter_create(
    region: penstock_region,
    label: *const c_char,
    counter: *mut penstock_counter,
) -> penstock_status {
    call(|| {
        // SAFETY: the caller's promise.
        let (label, counter) = unsafe { (text(label, "label")?, Out::new(counter, "counter")?) };
        counter.put(add(find_region(region)?.counter(label)?)?);
        Ok(PENSTOCK_OK)
    })
}

/// How many transfers have counted it up. Any thread. Never waits.
///
/// # Safety
/// Pointers as their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_counter_value(counter: penstock_counter, value: *mut u64) -> penstock_status {
    call(|| {
        // SAFETY: the caller's promise.
        let value = unsafe { Out::new(value, "value") }?;
        value.put(find::<Counter<SystemEnv>>(counter)?.value());
        Ok(PENSTOCK_OK)
    })
}

/// Waits until a counter has come to this value, at most so long: `PENSTOCK_TIMED_OUT` if it has not. Any thread; an inline engine's own.
#[unsafe(no_mangle)]
pub extern "C" fn penstock_counter_wait(counter: penstock_counter, value: u64, timeout_ms: u64) -> penstock_status {
    call(|| {
        let counter = find::<Counter<SystemEnv>>(counter)?;
        match (counter.wait(value, millis(timeout_ms)), counter.ended()) {
            (true, _) => Ok(PENSTOCK_OK),
            (false, None) => Ok(PENSTOCK_TIMED_OUT),
            (false, Some(cause)) => Err(cause.into()),
        }
    })
}

/// The counter of this label, waiting at most so long for it to be announced (0: not at all). Any thread.
///
/// # Safety
/// Pointers as their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_peer_counter(
    peer: penstock_peer,
    label: *const c_char,
    timeout_ms: u64,
    counter: *mut penstock_remote_counter,
) -> penstock_status {
    call(|| {
        // SAFETY: the caller's promise.
        let (label, counter) = unsafe { (text(label, "label")?, Out::new(counter, "counter")?) };
        let peer = find::<Peer<SystemEnv>>(peer)?;
        let none = || {
            let words =
                format!("peer `{}` has announced no counter `{label}`; wait for it, or check the label", peer.name());
            Failure::new(PENSTOCK_NO_COUNTER, words).of_peer(peer.name())
        };
        let found: Option<RemoteCounter> = peer.wait_counter(label, millis(timeout_ms));
        match (found, peer.ended()) {
            (Some(found), _) => counter.put(add(found)?),
            (None, Some(cause)) => return Err(Failure::ended(cause, peer.name(), peer.loss())),
            (None, None) => return Err(none()),
        }
        Ok(PENSTOCK_OK)
    })
}
