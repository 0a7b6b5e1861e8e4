//! Memory that is made, mapped and passed on by itself (VMM). None of it needs a context.
#![allow(non_snake_case, reason = "the driver's names")]

use std::ffi::{c_int, c_uint, c_void};
use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use crate::card::{Client, Handle, Range, State, client};
use crate::memory::{GRANULARITY, make, release_addresses, reserve};
use crate::plan::plan;
use crate::protocol::{FILE_NAME, Kind};
use crate::start::{answer, check_started, device};
use crate::status;

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR` and `CU_MEM_HANDLE_TYPE_FABRIC`.
const DESCRIPTOR: c_uint = 1;
const FABRIC: c_uint = 8;
/// `CU_MEM_LOCATION_TYPE_DEVICE`, and `CU_MEM_ALLOCATION_TYPE_PINNED`.
const DEVICE: c_uint = 1;
const PINNED: c_uint = 1;

#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Location {
    kind: c_uint,
    number: c_int,
}

/// `CUmemAllocationProp`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Properties {
    kind: c_uint,
    handle_kinds: c_uint,
    location: Location,
    _windows: *mut c_void,
    _compression: u8,
    gpudirect: u8,
    _usage: [u8; 6],
}

/// `CUmemAccessDesc`.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Access {
    location: Location,
    rights: c_uint,
}

/// Does something where there is such memory, with what is known of it locked.
fn vmm<T>(does: impl FnOnce(&'static Client, &mut State) -> Result<T, u32>) -> Result<T, u32> {
    check_started()?;
    if !plan().can("vmm") {
        return Err(status::NOT_SUPPORTED);
    }
    let client = client()?;
    does(client, &mut client.lock())
}

fn code(result: Result<(), u32>) -> u32 {
    result.err().unwrap_or(status::SUCCESS)
}

fn check(is_right: bool) -> Result<(), u32> {
    if is_right { Ok(()) } else { Err(status::INVALID_VALUE) }
}

fn is_whole(bytes: usize) -> bool {
    bytes > 0 && (bytes as u64).is_multiple_of(GRANULARITY)
}

impl Location {
    fn check(self) -> Result<(), u32> {
        check(self.kind == DEVICE)?;
        device(self.number).map(|_| ())
    }
}

/// # Safety
/// A place for a size, and properties.
pub(crate) unsafe extern "C" fn cuMemGetAllocationGranularity(
    place: *mut usize,
    wanted: *const Properties,
    option: c_uint,
) -> u32 {
    // SAFETY: as above.
    let wanted = unsafe { wanted.as_ref() };
    let said = vmm(|_, _| {
        let wanted = wanted.ok_or(status::INVALID_VALUE)?;
        check(option <= 1 && wanted.kind == PINNED)?;
        wanted.location.check()?;
        Ok(GRANULARITY as usize)
    });
    // SAFETY: as above.
    unsafe { answer(place, said) }
}

/// # Safety
/// A place for a handle, and properties.
pub(crate) unsafe extern "C" fn cuMemCreate(
    place: *mut u64,
    bytes: usize,
    wanted: *const Properties,
    flags: u64,
) -> u32 {
    // SAFETY: as above.
    let wanted = unsafe { wanted.as_ref() };
    let made = vmm(|client, state| {
        let wanted = wanted.ok_or(status::INVALID_VALUE)?;
        check(flags == 0 && wanted.kind == PINNED && is_whole(bytes))?;
        wanted.location.check()?;
        let (exports, gpudirect) = (wanted.handle_kinds & DESCRIPTOR != 0, wanted.gpudirect != 0);
        match wanted.handle_kinds {
            kinds if kinds & FABRIC != 0 => return Err(status::NOT_PERMITTED),
            kinds => check(kinds & !DESCRIPTOR == 0)?,
        }
        if (exports && !plan().can("descriptors")) || (gpudirect && !plan().can("gpudirect")) {
            return Err(status::NOT_SUPPORTED);
        }
        let (file, number) = make(client, bytes as u64)?;
        let bytes = bytes as u64;
        let ordinal = wanted.location.number as u32;
        Ok(state.add_handle(Handle { holds: 1, mappings: 0, file, number, bytes, exports, gpudirect, ordinal }))
    });
    // SAFETY: as above.
    unsafe { answer(place, made) }
}

/// # Safety
/// It is not used any more.
pub(crate) unsafe extern "C" fn cuMemRelease(handle: u64) -> u32 {
    code(vmm(|client, state| {
        let of = state.handle(handle)?;
        of.holds -= 1;
        if of.holds == 0 {
            // Where it is mapped it stays.
            client.tell(Kind::Free, [of.number, 0, 0, 0], None)?;
            state.drop_unused(handle);
        }
        Ok(())
    }))
}

/// # Safety
/// The place is one for an address.
pub(crate) unsafe extern "C" fn cuMemAddressReserve(
    place: *mut u64,
    bytes: usize,
    alignment: usize,
    _hint: u64,
    flags: u64,
) -> u32 {
    let reserved = vmm(|_, state| {
        check(flags == 0 && is_whole(bytes) && (alignment == 0 || alignment.is_power_of_two()))?;
        let address = reserve(bytes as u64, GRANULARITY.max(alignment as u64))?;
        state.reserved.insert(address, bytes as u64);
        Ok(address)
    });
    // SAFETY: as above.
    unsafe { answer(place, reserved) }
}

/// # Safety
/// It is not used any more.
pub(crate) unsafe extern "C" fn cuMemAddressFree(address: u64, bytes: usize) -> u32 {
    code(vmm(|_, state| {
        check(state.reserved.get(&address) == Some(&(bytes as u64)))?;
        check(state.device.range(address..address + bytes as u64).next().is_none())?;
        state.reserved.remove(&address);
        release_addresses(address, bytes as u64);
        Ok(())
    }))
}

/// # Safety
/// Nothing is asked of its caller.
pub(crate) unsafe extern "C" fn cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, flags: u64) -> u32 {
    code(vmm(|client, state| {
        let bytes = bytes as u64;
        let &mut Handle { number, bytes: all, ordinal, .. } = state.handle(handle)?;
        // A handle is mapped whole.
        if offset != 0 || bytes != all {
            return Err(status::NOT_SUPPORTED);
        }
        check(flags == 0 && address.is_multiple_of(GRANULARITY))?;
        check(state.reservation(address).is_some_and(|(base, length)| address + bytes <= base + length))?;
        check(state.device.range(address..address + bytes).next().is_none())?;
        check(State::find(&state.device, address, 1).is_none())?;
        client.tell(Kind::Map, [address, number, 0, 0], None)?;
        state.handle(handle)?.mappings += 1;
        let id = state.fresh_id();
        let (handle, file) = (Some(handle), None);
        state.device.insert(address, Range { bytes, id, number, rights: 0, handle, ordinal, file, sync_memops: false });
        Ok(())
    }))
}

/// The addresses of the mappings that make up a range; a part of one is none.
fn mappings(state: &State, address: u64, bytes: usize) -> Result<Vec<u64>, u32> {
    let (end, mut at) = (address.checked_add(bytes as u64).ok_or(status::INVALID_VALUE)?, address);
    let mut found = Vec::new();
    while at < end {
        let range = state.device.get(&at).filter(|range| range.handle.is_some()).ok_or(status::INVALID_VALUE)?;
        found.push(at);
        at += range.bytes;
    }
    check(at == end && bytes > 0)?;
    Ok(found)
}

/// It does not wait for what streams have to do there.
///
/// # Safety
/// No stream has anything to do there any more.
pub(crate) unsafe extern "C" fn cuMemUnmap(address: u64, bytes: usize) -> u32 {
    code(vmm(|client, state| {
        for mapping in mappings(state, address, bytes)? {
            client.tell(Kind::Unmap, [mapping, 0, 0, 0], None)?;
            let Some(handle) = state.device.remove(&mapping).and_then(|range| range.handle) else { continue };
            state.handles.entry(handle).and_modify(|of| of.mappings -= 1);
            state.drop_unused(handle);
        }
        Ok(())
    }))
}

/// # Safety
/// As many descriptions as `count` says, or null.
pub(crate) unsafe extern "C" fn cuMemSetAccess(address: u64, bytes: usize, wanted: *const Access, count: usize) -> u32 {
    if wanted.is_null() || count == 0 {
        return status::INVALID_VALUE;
    }
    // SAFETY: as above.
    let wanted = unsafe { std::slice::from_raw_parts(wanted, count) };
    code(vmm(|_, state| {
        let mappings = mappings(state, address, bytes)?;
        for access in wanted {
            access.location.check()?;
            check(matches!(access.rights, 0 | 1 | 3))?;
            for mapping in &mappings {
                state.device.get_mut(mapping).ok_or(status::INVALID_VALUE)?.rights = access.rights;
            }
        }
        Ok(())
    }))
}

/// # Safety
/// A place for properties.
pub(crate) unsafe extern "C" fn cuMemGetAllocationPropertiesFromHandle(place: *mut Properties, handle: u64) -> u32 {
    let found = vmm(|_, state| {
        let of = state.handle(handle)?;
        Ok(Properties {
            kind: PINNED,
            handle_kinds: if of.exports { DESCRIPTOR } else { 0 },
            location: Location { kind: DEVICE, number: 0 },
            _windows: std::ptr::null_mut(),
            _compression: 0,
            gpudirect: u8::from(of.gpudirect),
            _usage: [0; 6],
        })
    });
    // SAFETY: as above.
    unsafe { answer(place, found) }
}

/// One more hold of the handle that is mapped at an address.
///
/// # Safety
/// A place for a handle.
pub(crate) unsafe extern "C" fn cuMemRetainAllocationHandle(place: *mut u64, address: *mut c_void) -> u32 {
    let retained = vmm(|client, state| {
        let mapping = State::find(&state.device, address as u64, 1);
        let handle = mapping.and_then(|(_, range)| range.handle).ok_or(status::INVALID_VALUE)?;
        let of = state.handles.get_mut(&handle).ok_or(status::INVALID_VALUE)?;
        if of.holds == 0 {
            client.tell_memory(&of.file)?;
        }
        of.holds += 1;
        Ok(handle)
    });
    // SAFETY: as above.
    unsafe { answer(place, retained) }
}

/// # Safety
/// A place for a descriptor.
pub(crate) unsafe extern "C" fn cuMemExportToShareableHandle(
    place: *mut c_int,
    handle: u64,
    kind: c_uint,
    flags: u64,
) -> u32 {
    let exported = vmm(|_, state| {
        let of = state.handle(handle)?;
        // What was imported is not passed on.
        check(of.exports && kind == DESCRIPTOR && flags == 0)?;
        // SAFETY: the copy is the caller's.
        match unsafe { libc::fcntl(of.file.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 0) } {
            copy if copy < 0 => Err(status::UNKNOWN),
            copy => Ok(copy),
        }
    });
    // SAFETY: as above.
    unsafe { answer(place, exported) }
}

/// # Safety
/// A place for a handle; the descriptor is the address itself, and stays the caller's.
pub(crate) unsafe extern "C" fn cuMemImportFromShareableHandle(
    place: *mut u64,
    descriptor: *mut c_void,
    kind: c_uint,
) -> u32 {
    let imported = vmm(|client, state| {
        check(kind == DESCRIPTOR)?;
        let file = file_of(descriptor as RawFd).ok_or(status::UNKNOWN)?;
        let (number, bytes) = client.tell_memory(&file)?;
        let (holds, mappings, exports, gpudirect) = (1, 0, false, false);
        Ok(state.add_handle(Handle { holds, mappings, file, number, bytes, exports, gpudirect, ordinal: 0 }))
    });
    // SAFETY: as above.
    unsafe { answer(place, imported) }
}

/// The memory that a descriptor is of, if it is of such.
fn file_of(descriptor: RawFd) -> Option<OwnedFd> {
    let link = fs::read_link(format!("/proc/self/fd/{descriptor}")).ok()?;
    let is_it = link.to_str() == Some(&format!("/memfd:{} (deleted)", FILE_NAME.to_str().ok()?));
    // SAFETY: it is open now, and borrowed for this copy alone.
    is_it.then(|| unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned().ok())?
}
