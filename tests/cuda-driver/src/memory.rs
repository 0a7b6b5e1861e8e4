//! Device memory, host memory that the card may reach, and what is known of a pointer.
#![allow(non_snake_case, reason = "the driver's names")]

use std::collections::BTreeMap;
use std::ffi::{c_uint, c_void};
use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;

use crate::card::{Client, Range, State, client};
use crate::context::check_current;
use crate::plan::plan;
use crate::protocol::{Kind, Message, memory_file};
use crate::start::{BYTES, answer, check_started, run};
use crate::status;

/// The least that memory is made of.
const GRANULARITY: u64 = 2 << 20;

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
    let used: u64 = state.device.values().map(|range| range.bytes.next_multiple_of(GRANULARITY)).sum();
    if used + whole > plan().bytes.min(BYTES as u64) {
        return Err(status::OUT_OF_MEMORY);
    }
    let file = memory_file(whole as usize).map_err(|_| status::OUT_OF_MEMORY)?;
    let address = reserve(&file, whole)?;
    client.send(Message { kind: Kind::Memory, stream: 0, numbers: [address, whole, 0, 0] }, Some(&file))?;
    let id = state.fresh_id();
    state.device.insert(address, Range { bytes, id });
    Ok(address)
}

/// An address that nobody else has, and at which a processor may do nothing.
fn reserve(file: &OwnedFd, bytes: u64) -> Result<u64, u32> {
    // SAFETY: a fresh mapping at a place of the kernel's choice.
    let place = unsafe {
        libc::mmap(std::ptr::null_mut(), bytes as usize, libc::PROT_NONE, libc::MAP_SHARED, file.as_raw_fd(), 0)
    };
    if place == libc::MAP_FAILED { Err(status::OUT_OF_MEMORY) } else { Ok(place as u64) }
}

/// Waits until no stream has anything to do, as a free does.
fn wait_for_all(client: &Client) {
    let is_busy = || {
        let state = client.lock();
        let done = |stream: u32| client.progress().done[stream as usize].load(std::sync::atomic::Ordering::Acquire);
        !client.is_lost() && state.streams.iter().any(|(&stream, &given)| done(stream) < given)
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
        if !client.lock().device.contains_key(&address) {
            return Err(status::INVALID_VALUE);
        }
        wait_for_all(client);
        let range = client.lock().device.remove(&address).ok_or(status::INVALID_VALUE)?;
        // SAFETY: it was mapped by `reserve`.
        unsafe { libc::munmap(address as *mut c_void, range.bytes.next_multiple_of(GRANULARITY) as usize) };
        client.send(Message { kind: Kind::Free, stream: 0, numbers: [address, 0, 0, 0] }, None)
    })
}

/// # Safety
/// Places for an address and a size, or null.
pub(crate) unsafe extern "C" fn cuMemGetAddressRange(base: *mut u64, bytes: *mut usize, address: u64) -> u32 {
    let found = check_current().and_then(|()| {
        let state = client()?.lock();
        let find =
            |ranges: &BTreeMap<u64, Range>| State::find(ranges, address, 1).map(|(base, range)| (base, range.bytes));
        find(&state.device).or_else(|| find(&state.host)).ok_or(status::NOT_FOUND)
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
    let used = check_current().and_then(|()| {
        let state = client()?.lock();
        Ok(state.device.values().map(|range| range.bytes.next_multiple_of(GRANULARITY)).sum::<u64>())
    });
    let has = plan().bytes.min(BYTES as u64);
    // SAFETY: as above.
    unsafe {
        match answer(free, used.map(|used| (has - used) as usize)) {
            status::SUCCESS => answer(total, Ok(has as usize)),
            refused => refused,
        }
    }
}

/// The file that a range of this process is shared from, as this process has it open, and the offset in it; none: it is of no such file, and
/// the card asks this process.
fn file_of(address: u64, bytes: u64) -> Option<(OwnedFd, u64)> {
    let maps = fs::read_to_string("/proc/self/maps").ok()?;
    let (inode, offset) = maps.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let (range, rights, offset) = (words.next()?, words.next()?, words.next()?);
        let inode: u64 = words.nth(1)?.parse().ok()?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let (start, end) = range.split_once('-')?;
        let (start, end, offset) = (number(start)?, number(end)?, number(offset)?);
        let is_it = rights.ends_with('s') && inode != 0 && start <= address && address + bytes <= end;
        is_it.then(|| (inode, offset + (address - start)))
    })?;
    let numbers =
        fs::read_dir("/proc/self/fd").ok()?.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_it = |number: &RawFd| fs::metadata(format!("/proc/self/fd/{number}")).is_ok_and(|file| file.ino() == inode);
    let number = numbers.into_iter().find(is_it)?;
    // SAFETY: the copy is owned by nobody else.
    let copy = unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 0) };
    // SAFETY: as above.
    (copy >= 0).then(|| (unsafe { OwnedFd::from_raw_fd(copy) }, offset))
}

/// # Safety
/// So many bytes are mapped there, for as long as they are registered.
pub(crate) unsafe extern "C" fn cuMemHostRegister(address: *mut c_void, bytes: usize, flags: c_uint) -> u32 {
    let registered = check_current().and_then(|()| {
        let (client, address, bytes) = (client()?, address as u64, bytes as u64);
        if bytes == 0 || address == 0 || flags & !0xf != 0 {
            return Err(status::INVALID_VALUE);
        }
        let mut state = client.lock();
        let meets = |(&base, range): (&u64, &Range)| base < address + bytes && address < base + range.bytes;
        if state.device.iter().any(meets) {
            return Err(status::INVALID_VALUE);
        }
        if state.host.iter().any(meets) {
            return Err(status::HOST_MEMORY_ALREADY_REGISTERED);
        }
        let pinned: u64 = state.host.values().map(|range| range.bytes).sum();
        if pinned + bytes > plan().pinned {
            return Err(status::OUT_OF_MEMORY);
        }
        let file = file_of(address, bytes);
        let offset = file.as_ref().map_or(0, |(_, offset)| *offset);
        let numbers = [address, bytes, offset, 0];
        client.send(Message { kind: Kind::Pin, stream: 0, numbers }, file.as_ref().map(|(file, _)| file))?;
        let id = state.fresh_id();
        state.host.insert(address, Range { bytes, id });
        Ok(())
    });
    registered.err().unwrap_or(status::SUCCESS)
}

/// # Safety
/// Nobody uses it any more.
pub(crate) unsafe extern "C" fn cuMemHostUnregister(address: *mut c_void) -> u32 {
    run(|| {
        let (client, address) = (client()?, address as u64);
        let is_inside = {
            let state = client.lock();
            let is_whole = state.host.contains_key(&address);
            (!is_whole).then(|| State::find(&state.host, address, 1).is_some())
        };
        match is_inside {
            Some(true) => return Err(status::INVALID_VALUE),
            Some(false) => return Err(status::HOST_MEMORY_NOT_REGISTERED),
            None => {}
        }
        wait_for_all(client);
        client.lock().host.remove(&address);
        client.send(Message { kind: Kind::Unpin, stream: 0, numbers: [address, 0, 0, 0] }, None)
    })
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
    let Ok(client) = client() else { return status::UNKNOWN };
    let state = client.lock();
    let (device, host) = (State::find(&state.device, address, 1), State::find(&state.host, address, 1));
    let found = device.or(host);
    for at in 0..count as usize {
        // SAFETY: as above.
        let (attribute, place) = unsafe { (*attributes.add(at), *places.add(at)) };
        let value = match (attribute, found) {
            (_, None) => 0,
            (2, _) => {
                if device.is_some() {
                    2
                } else {
                    1
                }
            } // MEMORY_TYPE
            (4, _) if host.is_some() => address,    // HOST_POINTER
            (7, Some((_, range))) => range.id,      // BUFFER_ID
            (10, _) => u64::from(device.is_some()), // IS_LEGACY_CUDA_IPC_CAPABLE
            (11, Some((base, _))) => base,          // RANGE_START_ADDR
            (12, Some((_, range))) => range.bytes,  // RANGE_SIZE
            (13, _) => 1,                           // MAPPED
            (15, _) => u64::from(device.is_some()), // IS_GPU_DIRECT_RDMA_CAPABLE
            (16, _) => 3,                           // ACCESS_FLAGS
            _ => 0,
        };
        // Numbers of four bytes and of eight.
        let is_wide = matches!(attribute, 1 | 3 | 4 | 7 | 11 | 12 | 14 | 17);
        // SAFETY: as above.
        unsafe { if is_wide { place.cast::<u64>().write(value) } else { place.cast::<u32>().write(value as u32) } }
    }
    status::SUCCESS
}
