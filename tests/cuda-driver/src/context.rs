//! Contexts, and what a thread has current.
#![allow(non_snake_case, reason = "the driver's names")]

use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicI64, Ordering};

use crate::card::{CONTEXTS, check_short, client};
use crate::forbidden::note;
use crate::start::{answer, device, run};
use crate::status;

/// What stands for the primary context of the first device; those of others come behind.
pub(crate) const PRIMARY: usize = 0x7000;
/// How often that of the first device is held.
static HELD: AtomicI64 = AtomicI64::new(0);

/// What a thread has pushed and not popped.
struct Current(RefCell<Vec<usize>>);

impl Drop for Current {
    /// At the end of the thread.
    fn drop(&mut self) {
        if !self.0.get_mut().is_empty() {
            note("context left current at the end of a thread");
        }
    }
}

impl Current {
    fn top(&self) -> Option<usize> {
        self.0.borrow().last().copied()
    }
}

thread_local! {
    static CURRENT: Current = const { Current(RefCell::new(Vec::new())) };
    static CAPTURE: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

/// Whether this thread has a context that is there, or what is answered otherwise.
pub(crate) fn check_current() -> Result<(), u32> {
    crate::start::check_started()?;
    match CURRENT.with(Current::top) {
        None => Err(status::INVALID_CONTEXT),
        Some(_) if HELD.load(Ordering::Relaxed) == 0 => Err(status::CONTEXT_IS_DESTROYED),
        Some(_) => Ok(()),
    }
}

/// The device of the context that this thread has.
pub(crate) fn current_ordinal() -> u32 {
    CURRENT.with(Current::top).map_or(0, |context| (context - PRIMARY) as u32)
}

/// # Safety
/// The place is one for an address.
pub(crate) unsafe extern "C" fn cuDevicePrimaryCtxRetain(place: *mut *mut c_void, number: c_int) -> u32 {
    let retained = device(number).and_then(|number| {
        client()?;
        HELD.fetch_add(1, Ordering::Relaxed);
        Ok((PRIMARY + number as usize) as *mut c_void)
    });
    // SAFETY: as above.
    unsafe { answer(place, retained) }
}

/// # Safety
/// Nothing is asked of its caller.
pub(crate) unsafe extern "C" fn cuDevicePrimaryCtxRelease(number: c_int) -> u32 {
    let released = device(number).and_then(|_| {
        match HELD.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| (held > 0).then_some(held - 1)) {
            Ok(_) => Ok(()),
            Err(_) => Err(status::INVALID_CONTEXT),
        }
    });
    released.err().unwrap_or(status::SUCCESS)
}

/// # Safety
/// Nothing is asked of its caller.
pub(crate) unsafe extern "C" fn cuCtxPushCurrent(context: *mut c_void) -> u32 {
    run(|| {
        if context.is_null() {
            return Err(status::INVALID_VALUE);
        }
        check_short(CONTEXTS)?;
        CURRENT.with(|current| current.0.borrow_mut().push(context as usize));
        Ok(())
    })
}

/// # Safety
/// A place for an address, or null.
pub(crate) unsafe extern "C" fn cuCtxPopCurrent(place: *mut *mut c_void) -> u32 {
    let pop = || CURRENT.with(|current| current.0.borrow_mut().pop()).ok_or(status::INVALID_CONTEXT);
    let popped = crate::start::check_started().and_then(|()| pop());
    match popped {
        Err(status) => status,
        Ok(_) if place.is_null() => status::SUCCESS,
        // SAFETY: as above.
        Ok(context) => unsafe { answer(place, Ok(context as *mut c_void)) },
    }
}

/// Instead of what the thread has current, so that whoever had made it so has not any more: it is counted as forbidden.
///
/// # Safety
/// Nothing is asked of its caller.
pub(crate) unsafe extern "C" fn cuCtxSetCurrent(context: *mut c_void) -> u32 {
    note("cuCtxSetCurrent");
    run(|| {
        CURRENT.with(|current| {
            let mut stack = current.0.borrow_mut();
            stack.pop();
            stack.extend((!context.is_null()).then_some(context as usize));
        });
        Ok(())
    })
}

/// # Safety
/// The place is one for an address.
pub(crate) unsafe extern "C" fn cuCtxGetCurrent(place: *mut *mut c_void) -> u32 {
    let current = CURRENT.with(Current::top).unwrap_or(0);
    // SAFETY: as above.
    unsafe { answer(place, crate::start::check_started().map(|()| current as *mut c_void)) }
}

/// # Safety
/// The place is one for a number.
pub(crate) unsafe extern "C" fn cuThreadExchangeStreamCaptureMode(mode: *mut u32) -> u32 {
    if mode.is_null() {
        return status::INVALID_VALUE;
    }
    // SAFETY: as above.
    let wanted = unsafe { *mode };
    if wanted > 2 {
        return status::INVALID_VALUE;
    }
    let before = CAPTURE.replace(wanted);
    // SAFETY: as above.
    unsafe { answer(mode, Ok(before)) }
}
