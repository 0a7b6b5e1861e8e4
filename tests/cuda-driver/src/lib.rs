//! A stand-in for the CUDA driver: `libcuda.so.1` as far as Penstock calls it, for machines without a card.
//!
//! It is opened as the real one is (`PENSTOCK_CUDA_DRIVER` names it), so that what is tested is the code that loads and calls the driver. What
//! it does is what a real one did (docs/design/0013-device-facts.md), rule by rule; `tests/rules.rs` asks both alike. It computes nothing.
//!
//! - [`plan`]: what it pretends to be, and what is to go wrong, from the environment
//! - [`table`]: its functions by name and version
//! - [`start`]: starting, and devices; [`context`]: contexts, and what a thread has current
//! - [`memory`]: device memory, and what is known of a pointer; [`vmm`]: device memory that is made, mapped and passed on by itself
//! - [`gpudirect`]: memory that cards of others reach, and the order of what they write
//! - [`host`]: host memory that the card may reach
//! - [`stream`]: what is to be done with it; [`batch`]: many copies at once; [`event`]: places in streams, and streams that are captured
//! - [`forbidden`]: calls that Penstock makes nowhere, which are counted
//! - [`model`]: a driver and devices without any process, for simulations
//! - [`peek`]: what is in a device's memory, for tests of others
//! - [`card`]: the process that does it (`bin/penstock-cuda-card`), so that it goes on while this one is stopped; [`protocol`]: what is said between

mod batch;
mod card;
mod context;
mod event;
mod forbidden;
mod gpudirect;
mod host;
mod memory;
pub mod model;
pub mod peek;
mod plan;
pub mod protocol;
mod start;
mod stream;
mod table;
mod vmm;

use std::ffi::{CStr, c_char, c_int, c_void};

/// Codes that functions answer, as the driver numbers them.
pub(crate) mod status {
    pub(crate) const SUCCESS: u32 = 0;
    pub(crate) const INVALID_VALUE: u32 = 1;
    pub(crate) const OUT_OF_MEMORY: u32 = 2;
    pub(crate) const NOT_INITIALIZED: u32 = 3;
    pub(crate) const NO_DEVICE: u32 = 100;
    pub(crate) const INVALID_DEVICE: u32 = 101;
    pub(crate) const INVALID_CONTEXT: u32 = 201;
    pub(crate) const ECC_UNCORRECTABLE: u32 = 214;
    pub(crate) const INVALID_HANDLE: u32 = 400;
    pub(crate) const ILLEGAL_STATE: u32 = 401;
    pub(crate) const NOT_FOUND: u32 = 500;
    pub(crate) const NOT_READY: u32 = 600;
    pub(crate) const CONTEXT_IS_DESTROYED: u32 = 709;
    pub(crate) const HOST_MEMORY_ALREADY_REGISTERED: u32 = 712;
    pub(crate) const HOST_MEMORY_NOT_REGISTERED: u32 = 713;
    pub(crate) const LAUNCH_FAILED: u32 = 719;
    pub(crate) const NOT_PERMITTED: u32 = 800;
    pub(crate) const NOT_SUPPORTED: u32 = 801;
    pub(crate) const STREAM_CAPTURE_UNSUPPORTED: u32 = 900;
    pub(crate) const UNKNOWN: u32 = 999;
}

/// For tests: the card of this process is lost, before it does anything else. What waits in its streams is never done, and no function is called.
/// Nobody waits until it has heard of that.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn penstock_cuda_stand_in_lose() {
    if let Ok(client) = card::client() {
        client.tell_failure(status::ECC_UNCORRECTABLE);
    }
}

/// For tests: whether it has heard that it is lost.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn penstock_cuda_stand_in_is_lost() -> bool {
    card::client_of_failed().is_ok_and(|client| client.failure() != 0)
}

/// For tests: for these calls there is no memory from now on, of those that give a stream something by the number of their `protocol::Kind` as a bit, and by bit 0
/// of those that make a context current. Answers how often there was none so far.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn penstock_cuda_stand_in_short(calls: u64) -> u64 {
    card::fall_short(calls)
}

/// For tests: how often streams were given something.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub extern "C" fn penstock_cuda_stand_in_given() -> u64 {
    card::client_of_failed().map_or(0, card::Client::given)
}

/// The function of this name, as the release of this number has it.
///
/// # Safety
/// A C string, a place for an address, and null or a place for a number.
// SAFETY: nothing else in a program has this name, but the driver that this stands in for.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetProcAddress_v2(
    symbol: *const c_char,
    place: *mut *mut c_void,
    version: c_int,
    _flags: u64,
    became: *mut u32,
) -> u32 {
    if symbol.is_null() || place.is_null() {
        return status::INVALID_VALUE;
    }
    // SAFETY: the caller promises a C string.
    let name = unsafe { CStr::from_ptr(symbol) }.to_str().unwrap_or_default();
    let (found, what) = match table::find(name, version) {
        Ok(function) => (function, 0),
        Err(why) => (std::ptr::null_mut(), why as u32),
    };
    // SAFETY: the caller promises both places.
    unsafe {
        place.write(found);
        if !became.is_null() {
            became.write(what);
        }
    }
    if found.is_null() { status::NOT_FOUND } else { status::SUCCESS }
}
