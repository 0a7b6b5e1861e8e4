//! Starting, and devices.
#![allow(non_snake_case, reason = "the driver's names")]

use std::ffi::{c_char, c_int, c_uint};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::plan::plan;
use crate::status;

/// The process that has started it. A child of it has not, and cannot.
static STARTED: AtomicU32 = AtomicU32::new(0);

const NAME: &[u8] = b"Penstock stand-in for a GPU\0";
/// The name where copies only take time.
const IDLE_NAME: &[u8] = b"Penstock stand-in for a GPU, whose copies take time and move nothing\0";
pub(crate) const BYTES: usize = 8 << 30;

fn is_started() -> bool {
    STARTED.load(Ordering::Relaxed) == std::process::id()
}

pub(crate) fn check_started() -> Result<(), u32> {
    if is_started() { Ok(()) } else { Err(status::NOT_INITIALIZED) }
}

/// What a function answers that has nothing to say but how it went.
pub(crate) fn run(function: impl FnOnce() -> Result<(), u32>) -> u32 {
    check_started().and_then(|()| function()).err().unwrap_or(status::SUCCESS)
}

/// Whether a process that this one was forked from has started it.
pub(crate) fn is_child() -> bool {
    ![0, std::process::id()].contains(&STARTED.load(Ordering::Relaxed))
}

/// Whether there is a device of this number, or what is answered otherwise.
pub(crate) fn device(number: c_int) -> Result<c_int, u32> {
    match number {
        _ if !is_started() => Err(status::NOT_INITIALIZED),
        number if (0..plan().devices).contains(&number) => Ok(number),
        _ => Err(status::INVALID_DEVICE),
    }
}

/// Writes what was asked for.
///
/// # Safety
/// The place is null or may be written.
pub(crate) unsafe fn answer<T>(place: *mut T, value: Result<T, u32>) -> u32 {
    match value {
        Err(status) => status,
        Ok(_) if place.is_null() => status::INVALID_VALUE,
        Ok(value) => {
            // SAFETY: the caller promises it.
            unsafe { place.write(value) };
            status::SUCCESS
        }
    }
}

/// Writes as much of a text as there is room for, with a zero behind it.
///
/// # Safety
/// There are so many bytes at the place.
pub(crate) unsafe fn write_text(place: *mut c_char, len: c_int, text: &[u8]) -> u32 {
    let room = usize::try_from(len).unwrap_or(0);
    if place.is_null() || room == 0 {
        return status::INVALID_VALUE;
    }
    let bytes = text.len().min(room);
    // SAFETY: the caller promises the room.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), place.cast(), bytes);
        place.add(bytes - 1).write(0);
    }
    status::SUCCESS
}

/// # Safety
/// Nothing is asked of its caller.
pub(crate) unsafe extern "C" fn cuInit(flags: c_uint) -> u32 {
    let this = std::process::id();
    match plan().init {
        _ if flags != 0 => status::INVALID_VALUE,
        0 if plan().devices == 0 => status::NO_DEVICE,
        0 => match STARTED.compare_exchange(0, this, Ordering::Relaxed, Ordering::Relaxed) {
            Err(other) if other != this => status::NOT_INITIALIZED,
            _ => status::SUCCESS,
        },
        refused => refused,
    }
}

/// # Safety
/// The place is one for a number.
pub(crate) unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> u32 {
    let said = if plan().mute == 0 { Ok(plan().version) } else { Err(plan().mute) };
    // SAFETY: as above.
    unsafe { answer(version, said) }
}

/// # Safety
/// The place is one for a number.
pub(crate) unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> u32 {
    let value = if is_started() { Ok(plan().devices) } else { Err(status::NOT_INITIALIZED) };
    // SAFETY: as above.
    unsafe { answer(count, value) }
}

/// # Safety
/// The place is one for a number.
pub(crate) unsafe extern "C" fn cuDeviceGet(place: *mut c_int, ordinal: c_int) -> u32 {
    // SAFETY: as above.
    unsafe { answer(place, device(ordinal)) }
}

/// # Safety
/// Room for so many bytes.
pub(crate) unsafe extern "C" fn cuDeviceGetName(place: *mut c_char, len: c_int, number: c_int) -> u32 {
    match device(number) {
        Err(status) => status,
        // SAFETY: as above.
        Ok(_) => unsafe { write_text(place, len, if plan().bus == 0 { NAME } else { IDLE_NAME }) },
    }
}

/// # Safety
/// Room for 16 bytes.
pub(crate) unsafe extern "C" fn cuDeviceGetUuid(place: *mut [u8; 16], number: c_int) -> u32 {
    let uuid = |number: c_int| {
        let mut uuid = *b"penstock stand-i";
        uuid[15] = number as u8;
        uuid
    };
    // SAFETY: as above.
    unsafe { answer(place, device(number).map(uuid)) }
}

/// # Safety
/// The place is one for a size.
pub(crate) unsafe extern "C" fn cuDeviceTotalMem(place: *mut usize, number: c_int) -> u32 {
    // SAFETY: as above.
    unsafe { answer(place, device(number).map(|_| BYTES)) }
}

/// # Safety
/// Room for so many bytes.
pub(crate) unsafe extern "C" fn cuDeviceGetPCIBusId(place: *mut c_char, len: c_int, number: c_int) -> u32 {
    match device(number) {
        Err(status) => status,
        // SAFETY: as above.
        Ok(number) => unsafe { write_text(place, len, format!("0000:{:02X}:00.0\0", 0x17 + number).as_bytes()) },
    }
}

/// # Safety
/// The place is one for a number.
pub(crate) unsafe extern "C" fn cuDeviceGetAttribute(place: *mut c_int, attribute: c_uint, number: c_int) -> u32 {
    let can = |what: &str| c_int::from(plan().can(what));
    // As an H200 answers them.
    let value = match attribute {
        0 => return status::INVALID_VALUE,
        20 => 2 * (1 - can("compute")), // COMPUTE_MODE
        40 => 3,                        // ASYNC_ENGINE_COUNT
        41 => 1,                        // UNIFIED_ADDRESSING
        75 => 9,                        // COMPUTE_CAPABILITY_MAJOR
        102 => can("vmm"),              // VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED
        103 => can("descriptors"),      // HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
        110 | 116 => can("gpudirect"),  // GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, GPU_DIRECT_RDMA_SUPPORTED
        117 => can("flush"),            // GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS: the host
        118 => plan().writes_ordering,  // GPU_DIRECT_RDMA_WRITES_ORDERING
        124 => can("dma-buf"),          // DMA_BUF_SUPPORTED
        125 => can("ipc"),              // IPC_EVENT_SUPPORTED
        _ => 0,
    };
    // SAFETY: as above.
    unsafe { answer(place, device(number).map(|_| value)) }
}
