//! Transfers: submitting, looking, waiting, cancelling.

use std::ffi::c_void;

use penstock::{
    Completed, Engine, Fault, NoteId, Notified, Peer, Plan, Priority, RemoteCounter, RemoteQuiesce, Submit, SystemEnv,
    Transfer,
};

use crate::arguments::{Out, Versioned, array, millis, read_sized, write_sized};
use crate::call::call;
use crate::engine::{penstock_engine, penstock_peer, penstock_quarantine};
use crate::failure::{Answer, Failure};
use crate::memory::put_hold;
use crate::objects::{add, find, objects};
use crate::plan::penstock_plan;
use crate::status::penstock_status::{self, *};
use crate::told::penstock_remote_counter;

/// Handle of a transfer.
pub type penstock_transfer = u64;

/// A deadline that never comes.
pub const PENSTOCK_NO_DEADLINE: u64 = u64::MAX;
/// In turns with its like.
pub const PENSTOCK_PRIORITY_BULK: u32 = 0;
/// Before everything else.
pub const PENSTOCK_PRIORITY_URGENT: u32 = 1;

/// How a transfer is submitted. All zeros but the size: nothing but the bytes, by the configured deadline (`transfers.timeout_ms`, 30 s).
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct penstock_submit_options {
    /// `sizeof(penstock_submit_options)`.
    pub size: usize,
    /// The time it may take; 0: as configured; `PENSTOCK_NO_DEADLINE`: for ever.
    pub timeout_ms: u64,
    /// One of `PENSTOCK_PRIORITY_`.
    pub priority: u32,
    /// Not 0: the peer is notified, once, after all bytes. Where it is 0 the fields of the notification are not looked at.
    pub has_note: u32,
    /// The number of the notification, which means what the two sides agree on.
    pub note: u64,
    /// Its upper half. Leave it 0: some of the others are by which a peer hears of transfers by name (`PENSTOCK_RESERVED_NOTE`).
    pub note_high: u64,
    /// What the notification carries; copied.
    pub payload: *const c_void,
    /// How many bytes, at most 4096 (`PENSTOCK_NOTE_TOO_LONG`).
    pub payload_bytes: usize,
    /// A counter of the peer that goes up by one after all bytes; 0: none.
    pub counter: penstock_remote_counter,
}

impl Versioned for penstock_submit_options {
    fn size(&self) -> usize {
        self.size
    }
}

/// Submits a transfer of a plan. `options` may be null. `PENSTOCK_FULL` is no failure: take the ends of some and release them, or wait until workers have taken up what is queued, then submit again. Any thread; an inline
/// engine's own. Never waits.
///
/// # Safety
/// Pointers as their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_submit(
    peer: penstock_peer,
    plan: penstock_plan,
    options: *const penstock_submit_options,
    transfer: *mut penstock_transfer,
) -> penstock_status {
    call(|| {
        // SAFETY: the caller's promise.
        let transfer = unsafe { Out::new(transfer, "transfer") }?;
        let objects = objects();
        let (peer, plan) = (objects.find::<Peer<SystemEnv>>(peer)?, objects.find::<Plan>(plan)?);
        let how = if options.is_null() {
            Submit::new()
        } else {
            // SAFETY: the caller's promise.
            match unsafe { how(options) }? {
                (how, Some((id, payload))) => how.notify(id, payload),
                (how, None) => how,
            }
        };
        transfer.put(objects.add(peer.submit(&plan, how)?)?);
        Ok(PENSTOCK_OK)
    })
}

/// Notifies a peer, and moves nothing. Otherwise as `penstock_submit`; `has_note` has to be set.
///
/// # Safety
/// Pointers as their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_notify(
    peer: penstock_peer,
    options: *const penstock_submit_options,
    transfer: *mut penstock_transfer,
) -> penstock_status {
    call(|| {
        // SAFETY: the caller's promise.
        let transfer = unsafe { Out::new(transfer, "transfer") }?;
        let peer = find::<Peer<SystemEnv>>(peer)?;
        // SAFETY: the caller's promise.
        let (how, note) = unsafe { how(options) }?;
        let (id, payload) = note.ok_or_else(|| Failure::invalid("the options have no notification: set `has_note`"))?;
        transfer.put(add(peer.notify(id, payload, how)?)?);
        Ok(PENSTOCK_OK)
    })
}

type Noted<'a> = (Submit<'a>, Option<(NoteId, &'a [u8])>);

/// # Safety
/// The pointer is null or to options whose `size` is set, and whose payload stays as long as the answer.
unsafe fn how<'a>(options: *const penstock_submit_options) -> Result<Noted<'a>, Box<Failure>> {
    // SAFETY: all zeros is a value of it: numbers and a null pointer.
    let zeros: penstock_submit_options = unsafe { std::mem::zeroed() };
    // SAFETY: the caller's promise.
    let options = unsafe { read_sized(options, zeros) }?;
    let mut how = Submit::new().priority(match options.priority {
        PENSTOCK_PRIORITY_BULK => Priority::Bulk,
        PENSTOCK_PRIORITY_URGENT => Priority::Urgent,
        other => return Err(Failure::invalid(format!("{other} is no priority: use one of PENSTOCK_PRIORITY_"))),
    });
    if options.timeout_ms != 0 {
        how = how.within(millis(options.timeout_ms));
    }
    if options.counter != 0 {
        how = how.count(*find::<RemoteCounter>(options.counter)?);
    }
    if options.has_note == 0 {
        return Ok((how, None));
    }
    let id = NoteId(u128::from(options.note_high) << 64 | u128::from(options.note));
    // SAFETY: the caller's promise.
    let payload = unsafe { array(options.payload.cast::<u8>(), options.payload_bytes, "payload") }?;
    Ok((how, Some((id, payload))))
}

/// What is known of a notification or a counter: none was asked for.
pub const PENSTOCK_NOTIFIED_NOT_ASKED: u32 = 0;
/// The peer was told.
pub const PENSTOCK_NOTIFIED_YES: u32 = 1;
/// The peer was not told, and will not be.
pub const PENSTOCK_NOTIFIED_NO: u32 = 2;
/// The session ended before the peer confirmed it.
pub const PENSTOCK_NOTIFIED_UNKNOWN: u32 = 3;

/// How a transfer ended.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct penstock_result {
    /// Set by the caller: `sizeof(penstock_result)`.
    pub size: usize,
    /// Bytes moved. Which ones is not defined for one that has failed.
    pub bytes: u64,
    /// `PENSTOCK_OK`, or why it failed.
    pub status: penstock_status,
    /// One of `PENSTOCK_NOTIFIED_`.
    pub notified: u32,
}

impl Versioned for penstock_result {
    fn size(&self) -> usize {
        self.size
    }
}

fn fields(ended: &Result<Completed, Fault>) -> (penstock_status, u64, u32) {
    match ended {
        Ok(done) => (PENSTOCK_OK, done.bytes, number(done.notified)),
        Err(fault) => (fault.cause.into(), fault.bytes, number(fault.notified)),
    }
}

fn number(notified: Notified) -> u32 {
    u32::from(notified.code())
}

/// # Safety
/// The pointer is null or to a struct whose `size` is set.
#[inline(always)]
unsafe fn put_end(ended: Result<Completed, Fault>, result: *mut penstock_result) -> Answer {
    if !result.is_null() {
        let (status, bytes, notified) = fields(&ended);
        // SAFETY: the caller's promise.
        unsafe { write_sized(result, penstock_result { size: 0, bytes, status, notified }) }?;
    }
    match ended {
        Ok(_) => Ok(PENSTOCK_OK),
        Err(fault) => Err(fault.into()),
    }
}

/// How a transfer ended, `PENSTOCK_OK` or the cause; `PENSTOCK_PENDING` if it has not. `result` may be null. Makes no progress of an inline engine.
/// Any thread. Never waits.
///
/// # Safety
/// `result` points to a struct whose `size` is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_poll(transfer: penstock_transfer, result: *mut penstock_result) -> penstock_status {
    call(|| match find::<Transfer<SystemEnv>>(transfer)?.poll() {
        None => Ok(PENSTOCK_PENDING),
        // SAFETY: the caller's promise.
        Some(ended) => unsafe { put_end(ended, result) },
    })
}

/// Waits for the end, at most so long: `PENSTOCK_TIMED_OUT` if the time is over first, and the transfer goes on. Any thread.
///
/// # Safety
/// `result` points to a struct whose `size` is set, or is null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_wait(
    transfer: penstock_transfer,
    timeout_ms: u64,
    result: *mut penstock_result,
) -> penstock_status {
    call(|| match find::<Transfer<SystemEnv>>(transfer)?.wait_within(millis(timeout_ms)) {
        None => Ok(PENSTOCK_TIMED_OUT),
        // SAFETY: the caller's promise.
        Some(ended) => unsafe { put_end(ended, result) },
    })
}

/// One of many transfers that has ended.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct penstock_completion {
    /// Its place in the list.
    pub place: usize,
    /// Bytes moved.
    pub bytes: u64,
    /// `PENSTOCK_OK`, or why it failed.
    pub status: penstock_status,
    /// One of `PENSTOCK_NOTIFIED_`.
    pub notified: u32,
}

/// Which of these transfers have ended, and how: at most `count` completions are put into `ended`. A number that is no transfer's has ended
/// with `PENSTOCK_BAD_HANDLE`. An inline engine makes one turn before. Any thread; an inline engine's own. Never waits.
///
/// # Safety
/// `transfers` has `count` handles, and `ended` room for as many completions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_poll_many(
    engine: penstock_engine,
    transfers: *const penstock_transfer,
    count: usize,
    ended: *mut penstock_completion,
    ended_count: *mut usize,
) -> penstock_status {
    call(|| {
        // SAFETY: the caller's promise.
        let (transfers, ended_count) =
            unsafe { (array(transfers, count, "transfers")?, Out::new(ended_count, "ended_count")?) };
        // SAFETY: the caller's promise.
        let _room = if count > 0 { Some(unsafe { Out::new(ended, "ended") }?) } else { None };
        find::<Engine>(engine)?.progress()?;
        let mut found = 0;
        for (place, handle) in transfers.iter().enumerate() {
            let (status, bytes, notified) = match find::<Transfer<SystemEnv>>(*handle) {
                Ok(transfer) => match transfer.poll() {
                    None => continue,
                    Some(ended) => fields(&ended),
                },
                Err(failure) => (failure.status, 0, PENSTOCK_NOTIFIED_NOT_ASKED),
            };
            // SAFETY: there is room for as many as there are transfers.
            unsafe { ended.add(found).write(penstock_completion { place, bytes, status, notified }) };
            found += 1;
        }
        ended_count.put(found);
        Ok(PENSTOCK_OK)
    })
}

/// Nothing of the transfer can touch the memory any more.
pub const PENSTOCK_MEMORY_QUIESCED: u32 = 0;
/// Something might: do not reuse the memory before `penstock_quarantine_look` says so.
pub const PENSTOCK_MEMORY_QUARANTINED: u32 = 1;
/// It cannot be known from here: the session ended without a goodbye.
pub const PENSTOCK_MEMORY_UNKNOWN: u32 = 2;

/// What a cancel answers, once for each owner of memory.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct penstock_cancel_answer {
    /// Set by the caller: `sizeof(penstock_cancel_answer)`.
    pub size: usize,
    /// This engine's memory, one of `PENSTOCK_MEMORY_`.
    pub local: u32,
    /// The peer's memory.
    pub remote: u32,
    /// To be released; 0 if the memory is not quarantined.
    pub local_quarantine: penstock_quarantine,
    /// The same of the peer's.
    pub remote_quarantine: penstock_quarantine,
}

impl Versioned for penstock_cancel_answer {
    fn size(&self) -> usize {
        self.size
    }
}

/// Ends a transfer now, and answers by the timeout whether anything of it can still touch memory; `penstock_poll` may find it pending for a moment more. Any thread; an inline engine's own.
///
/// # Safety
/// `answer` points to a struct whose `size` is set.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_cancel(
    transfer: penstock_transfer,
    timeout_ms: u64,
    answer: *mut penstock_cancel_answer,
) -> penstock_status {
    call(|| {
        let (local_quarantine, remote_quarantine) = (0, 0);
        let mut cancelled =
            penstock_cancel_answer { size: 0, local: 0, remote: 0, local_quarantine, remote_quarantine };
        // SAFETY: the caller's promise. Written once before, so that what cannot be answered is not begun.
        unsafe { write_sized(answer, cancelled) }?;
        let found = find::<Transfer<SystemEnv>>(transfer)?.cancel(millis(timeout_ms));
        // SAFETY: the pointer is to a local.
        if unsafe { put_hold(found.local, &raw mut cancelled.local_quarantine) }? == PENSTOCK_QUARANTINED {
            cancelled.local = PENSTOCK_MEMORY_QUARANTINED;
        }
        match found.remote {
            RemoteQuiesce::Quiesced => {}
            RemoteQuiesce::Unknown => cancelled.remote = PENSTOCK_MEMORY_UNKNOWN,
            RemoteQuiesce::Quarantined(held) => {
                cancelled.remote = PENSTOCK_MEMORY_QUARANTINED;
                cancelled.remote_quarantine = add(held)?;
            }
        }
        // SAFETY: the caller's promise.
        unsafe { write_sized(answer, cancelled) }
    })
}

/// Bytes that a transfer has moved so far. Any thread. Never waits.
///
/// # Safety
/// Pointers as their types say.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn penstock_bytes_moved(transfer: penstock_transfer, bytes: *mut u64) -> penstock_status {
    call(|| {
        // SAFETY: the caller's promise.
        let bytes = unsafe { Out::new(bytes, "bytes") }?;
        bytes.put(find::<Transfer<SystemEnv>>(transfer)?.bytes_moved());
        Ok(PENSTOCK_OK)
    })
}
