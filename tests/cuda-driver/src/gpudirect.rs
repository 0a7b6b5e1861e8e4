//! Memory that cards of other makers reach, and the order of what they write. There is none here: a descriptor is of the memory's file, and whoever maps it
//! is such a card.
#![allow(non_snake_case, reason = "the driver's names")]

use std::ffi::{c_int, c_uint, c_void};
use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom};
use std::os::fd::{AsRawFd, IntoRawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::card::{State, client};
use crate::context::check_current;
use crate::memory::GRANULARITY;
use crate::plan::plan;
use crate::start::{answer, run};
use crate::status;

/// Both ends of a dma-buf are ends of such pages.
const PAGE_BYTES: u64 = 4096;
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`, and `CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE`.
const DMA_BUF: c_uint = 1;
const OVER_PCIE: u64 = 1;
/// `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS`.
const SYNC_MEMOPS: c_uint = 6;

/// How often it was flushed.
static FLUSHES: AtomicU64 = AtomicU64::new(0);

/// For tests: how often what cards have written was flushed.
// SAFETY: nothing else in a program has this name.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn penstock_cuda_stand_in_flushes() -> u64 {
    FLUSHES.load(Ordering::Acquire)
}

/// A descriptor of the memory's file, at whose position the range begins: a file has no other beginning to give away. It can be mapped, as a driver's cannot.
///
/// # Safety
/// A place for a descriptor.
pub(crate) unsafe extern "C" fn cuMemGetHandleForAddressRange(
    place: *mut c_void,
    address: u64,
    bytes: usize,
    kind: c_uint,
    flags: u64,
) -> u32 {
    let made = check_current().and_then(|()| {
        let is_whole = |number: u64| number.is_multiple_of(PAGE_BYTES);
        match (kind, flags) {
            _ if !plan().can("dma-buf") => return Err(status::NOT_SUPPORTED),
            (DMA_BUF, OVER_PCIE) => return Err(status::NOT_SUPPORTED),
            (DMA_BUF, 0) if bytes > 0 && is_whole(address) && is_whole(bytes as u64) => {}
            _ => return Err(status::INVALID_VALUE),
        }
        open_range(&client()?.lock(), address, bytes as u64)
    });
    // SAFETY: as above.
    unsafe { answer(place.cast::<c_int>(), made) }
}

fn open_range(state: &State, address: u64, bytes: u64) -> Result<c_int, u32> {
    let (base, range) = State::find(&state.device, address, 1).ok_or(status::INVALID_VALUE)?;
    // An allocation has whole blocks, and so it has the rest of its last page. Memory of several handles is of several files, and is refused here.
    let ends = base + range.bytes.next_multiple_of(GRANULARITY);
    let handle = range.handle.and_then(|handle| state.handles.get(&handle));
    let file = handle.map(|of| &of.file).or(range.file.as_ref()).ok_or(status::INVALID_VALUE)?;
    if address.checked_add(bytes).is_none_or(|end| end > ends) {
        return Err(status::INVALID_VALUE);
    }
    // Opened anew it has a position of its own.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let mut opened = OpenOptions::new().read(true).write(true).open(path).map_err(|_| status::UNKNOWN)?;
    opened.seek(SeekFrom::Start(address - base)).map_err(|_| status::UNKNOWN)?;
    Ok(opened.into_raw_fd())
}

/// # Safety
/// The value is as wide as the attribute.
pub(crate) unsafe extern "C" fn cuPointerSetAttribute(value: *const c_void, attribute: c_uint, address: u64) -> u32 {
    run(|| {
        if value.is_null() || attribute != SYNC_MEMOPS {
            return Err(status::INVALID_VALUE);
        }
        // SAFETY: as above.
        let is_set = unsafe { value.cast::<c_uint>().read() } != 0;
        let mut state = client()?.lock();
        let (base, range) = State::find(&state.device, address, 1).ok_or(status::INVALID_VALUE)?;
        if range.handle.is_some() {
            return Err(status::NOT_SUPPORTED);
        }
        state.device.entry(base).and_modify(|range| range.sync_memops = is_set);
        Ok(())
    })
}

/// # Safety
/// Nothing is asked of its caller.
pub(crate) unsafe extern "C" fn cuFlushGPUDirectRDMAWrites(target: c_uint, scope: c_uint) -> u32 {
    run(|| {
        check_current()?;
        match (target, scope) {
            _ if !plan().can("flush") => Err(status::NOT_SUPPORTED),
            (0, 100 | 200) => {
                FLUSHES.fetch_add(1, Ordering::Release);
                Ok(())
            }
            _ => Err(status::INVALID_VALUE),
        }
    })
}
