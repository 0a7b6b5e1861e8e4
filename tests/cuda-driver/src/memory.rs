//! Device memory, and what is known of a pointer.
#![allow(non_snake_case, reason = "the driver's names")]

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_void};
use std::os::fd::OwnedFd;

use crate::card::{Client, Range, State, client, client_of_failed};
use crate::context::{PRIMARY, check_current, current_ordinal};
use crate::plan::plan;
use crate::protocol::{Kind, memory_file};
use crate::start::{BYTES, answer, check_started, run};
use crate::status;

/// The least that memory is made of.
pub(crate) const GRANULARITY: u64 = 2 << 20;

/// # Safety
/// The place is one for an address.
pub(crate) unsafe extern "C" fn cuMemAlloc(place: *mut u64, bytes: usize) -> u32 {
    // SAFETY: as above.
    unsafe { answer(place, check_current().and_then(|()| allocate(bytes as u64))) }
}

fn allocate(bytes: u64) -> Result<u64, u32> {
    let client = client()?;
    let whole = bytes.checked_next_multiple_of(GRANULARITY).filter(|&whole| whole > 0).ok_or(status::INVALID_VALUE)?;
    let mut state = client.lock();
    let (file, number) = make(client, whole)?;
    let freed = state.freed.iter().rposition(|&(_, bytes)| bytes == whole);
    let address = match freed {
        Some(place) => state.freed.swap_remove(place).0,
        None => reserve(whole, GRANULARITY)?,
    };
    client.tell(Kind::Map, [address, number, 0, 0], None)?;
    let id = state.fresh_id();
    let (ordinal, file) = (current_ordinal(), Some(file));
    let range = Range { bytes, id, number, rights: 3, handle: None, ordinal, file, sync_memops: false };
    state.device.insert(address, range);
    Ok(address)
}

/// Bytes that a device has.
pub(crate) fn total() -> u64 {
    plan().bytes.min(BYTES as u64)
}

/// Makes memory: its file, and the number of that. The caller holds the lock, so that others do not make as much at once.
pub(crate) fn make(client: &Client, bytes: u64) -> Result<(OwnedFd, u64), u32> {
    client.check_memory()?;
    if client.held()?.checked_add(bytes).is_none_or(|held| held > total()) {
        return Err(status::OUT_OF_MEMORY);
    }
    let file = memory_file(bytes as usize).map_err(|_| status::OUT_OF_MEMORY)?;
    let (number, _) = client.tell_memory(&file)?;
    Ok((file, number))
}

/// Addresses that nobody else has, and at which a processor may do nothing. The alignment is a power of two.
pub(crate) fn reserve(bytes: u64, alignment: u64) -> Result<u64, u32> {
    let all = bytes.checked_add(alignment).ok_or(status::OUT_OF_MEMORY)?;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a fresh mapping at a place of the kernel's choice.
    let place = unsafe { libc::mmap(std::ptr::null_mut(), all as usize, libc::PROT_NONE, kind, -1, 0) };
    if place == libc::MAP_FAILED {
        return Err(status::OUT_OF_MEMORY);
    }
    let address = (place as u64).next_multiple_of(alignment);
    release_addresses(place as u64, address - place as u64);
    release_addresses(address + bytes, place as u64 + all - (address + bytes));
    Ok(address)
}

/// Gives back addresses that were reserved, or a part of them.
pub(crate) fn release_addresses(address: u64, bytes: u64) {
    // SAFETY: they are of a reservation, and of no length they are none, which is refused.
    unsafe { libc::munmap(address as *mut c_void, bytes as usize) };
}

/// Waits until no stream has anything to do, as a free does.
pub(crate) fn wait_for_all(client: &Client) {
    let is_busy = || {
        let state = client.lock();
        let mut all = state.streams.iter().chain(&state.destroyed_streams);
        client.failure() == 0 && all.any(|(&stream, &given)| client.done(stream) < given)
    };
    while is_busy() {
        std::thread::sleep(std::time::Duration::from_micros(50));
    }
}

/// # Safety
/// Nobody uses it any more.
pub(crate) unsafe extern "C" fn cuMemFree(address: u64) -> u32 {
    run(|| {
        let client = client()?;
        if client.lock().device.get(&address).is_none_or(|range| range.handle.is_some()) {
            return Err(status::INVALID_VALUE);
        }
        wait_for_all(client);
        let mut state = client.lock();
        let range = state.device.remove(&address).ok_or(status::INVALID_VALUE)?;
        state.freed.push((address, range.bytes.next_multiple_of(GRANULARITY)));
        client.tell(Kind::Unmap, [address, 0, 0, 0], None)?;
        client.tell(Kind::Free, [range.number, 0, 0, 0], None)
    })
}

/// # Safety
/// Places for an address and a size, or null.
pub(crate) unsafe extern "C" fn cuMemGetAddressRange(base: *mut u64, bytes: *mut usize, address: u64) -> u32 {
    let found = check_current().and_then(|()| {
        let state = client()?.lock();
        let find =
            |ranges: &BTreeMap<u64, Range>| State::find(ranges, address, 1).map(|(base, range)| (base, range.bytes));
        // Without rights nothing is there.
        let device = if state.is_device(address, 1, 1) { find(&state.device) } else { None };
        device.or_else(|| find(&state.host)).ok_or(status::NOT_FOUND)
    });
    match found {
        Err(status) => status,
        Ok((first, length)) => {
            // SAFETY: as above.
            unsafe {
                if !base.is_null() {
                    base.write(first);
                }
                if !bytes.is_null() {
                    bytes.write(length as usize);
                }
            }
            status::SUCCESS
        }
    }
}

/// # Safety
/// Places for two sizes.
pub(crate) unsafe extern "C" fn cuMemGetInfo(free: *mut usize, total: *mut usize) -> u32 {
    let used = check_current().and_then(|()| client()?.held());
    // SAFETY: as above.
    unsafe {
        match answer(free, used.map(|used| self::total().saturating_sub(used) as usize)) {
            status::SUCCESS => answer(total, Ok(self::total() as usize)),
            refused => refused,
        }
    }
}

/// Writes an attribute, which is a number of four bytes or of eight.
///
/// # Safety
/// The place has eight bytes.
unsafe fn write_attribute(place: *mut c_void, attribute: c_uint, value: u64) {
    let is_wide = matches!(attribute, 1 | 3 | 4 | 7 | 11 | 12 | 14 | 17..=20);
    // SAFETY: as above.
    unsafe { if is_wide { place.cast::<u64>().write(value) } else { place.cast::<u32>().write(value as u32) } }
}

/// # Safety
/// The place has eight bytes.
pub(crate) unsafe extern "C" fn cuPointerGetAttribute(place: *mut c_void, attribute: c_uint, address: u64) -> u32 {
    let found = check_started().and_then(|()| {
        let state = client_of_failed()?.lock();
        attribute_of(&state, attribute, address).filter(|_| !place.is_null()).ok_or(status::INVALID_VALUE)
    });
    match found {
        Err(status) => status,
        Ok(value) => {
            // SAFETY: as above.
            unsafe { write_attribute(place, attribute, value) };
            status::SUCCESS
        }
    }
}

/// # Safety
/// So many attributes, and as many places of eight bytes.
pub(crate) unsafe extern "C" fn cuPointerGetAttributes(
    count: c_uint,
    attributes: *const c_uint,
    places: *const *mut c_void,
    address: u64,
) -> u32 {
    if let Err(status) = check_started() {
        return status;
    }
    if attributes.is_null() || places.is_null() {
        return status::INVALID_VALUE;
    }
    let Ok(client) = client_of_failed() else { return status::UNKNOWN };
    let state = client.lock();
    for at in 0..count as usize {
        // SAFETY: as above.
        let (attribute, place) = unsafe { (*attributes.add(at), *places.add(at)) };
        let value = attribute_of(&state, attribute, address).unwrap_or(0);
        // SAFETY: as above.
        unsafe { write_attribute(place, attribute, value) };
    }
    status::SUCCESS
}

/// What is known of a pointer.
fn attribute_of(state: &State, attribute: c_uint, address: u64) -> Option<u64> {
    let device = State::find(&state.device, address, 1);
    let (base, range) = device.or_else(|| State::find(&state.host, address, 1))?;
    let is_allocation = device.is_some() && range.handle.is_none();
    let handle = range.handle.and_then(|handle| state.handles.get(&handle));
    let (first, bytes) = match range.handle {
        Some(_) => state.reservation(address)?,
        None => (base, range.bytes),
    };
    Some(match attribute {
        1 if range.handle.is_none() => PRIMARY as u64, // CONTEXT
        2 if device.is_some() => 2,                    // MEMORY_TYPE
        2 => 1,
        3 => return (range.rights != 0).then_some(address), // DEVICE_POINTER
        4 => return device.is_none().then_some(address),    // HOST_POINTER
        6 => u64::from(range.sync_memops),                  // SYNC_MEMOPS
        7 => range.id,                                      // BUFFER_ID
        9 => u64::from(range.ordinal),                      // DEVICE_ORDINAL
        10 => u64::from(is_allocation),                     // IS_LEGACY_CUDA_IPC_CAPABLE
        11 => first,                                        // RANGE_START_ADDR
        12 => bytes,                                        // RANGE_SIZE
        13 => 1,                                            // MAPPED
        14 => u64::from(handle.is_some_and(|of| of.exports)), // ALLOWED_HANDLE_TYPES
        15 => u64::from(is_allocation || handle.is_some_and(|of| of.gpudirect)), // IS_GPU_DIRECT_RDMA_CAPABLE
        16 => u64::from(range.rights),                      // ACCESS_FLAGS
        18 if is_allocation => range.bytes.next_multiple_of(GRANULARITY), // MAPPING_SIZE
        18 => range.bytes,
        19 => base, // MAPPING_BASE_ADDR
        _ => 0,
    })
}
