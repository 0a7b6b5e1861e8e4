//! The functions of the model, by name. Rules are those of the other stand-in, as far as engines come to them.
#![allow(non_snake_case, reason = "the driver's names")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use super::streams::{Copy, HostFunction, Work};
use super::{DEVICES, FIRST_ADDRESS, Physical, Range, State, Stream, UNIT, device, with};
use crate::start::{answer, write_text};
use crate::status;

/// The release that it is of.
const VERSION: c_int = 12_080;
/// What stands for the primary context of the first device, and for the first stream.
const CONTEXT_BASE: usize = 0x7000;
const STREAM_BASE: usize = 0x5_0000;
const TOTAL_BYTES: usize = 1 << 30;

fn code(result: Result<(), u32>) -> u32 {
    result.err().unwrap_or(status::SUCCESS)
}

fn known(number: c_int) -> Result<u32, u32> {
    u32::try_from(number).ok().filter(|number| *number < DEVICES).ok_or(status::INVALID_DEVICE)
}

fn number_of(stream: *mut c_void) -> Result<u32, u32> {
    let number = (stream as usize).checked_sub(STREAM_BASE).ok_or(status::INVALID_HANDLE)?;
    u32::try_from(number).map_err(|_| status::INVALID_HANDLE)
}

extern "C" fn cuInit(_flags: c_uint) -> u32 {
    status::SUCCESS
}

/// What no engine calls in a simulation.
extern "C" fn not_supported() -> u32 {
    status::NOT_SUPPORTED
}

/// # Safety
/// The place is one for a number.
unsafe extern "C" fn cuDriverGetVersion(place: *mut c_int) -> u32 {
    // SAFETY: as above.
    unsafe { answer(place, Ok(VERSION)) }
}

/// # Safety
/// The place is one for a number.
unsafe extern "C" fn cuDeviceGetCount(place: *mut c_int) -> u32 {
    // SAFETY: as above.
    unsafe { answer(place, Ok(DEVICES as c_int)) }
}

/// # Safety
/// The place is one for a number.
unsafe extern "C" fn cuDeviceGet(place: *mut c_int, ordinal: c_int) -> u32 {
    // SAFETY: as above.
    unsafe { answer(place, known(ordinal).map(|_| ordinal)) }
}

/// # Safety
/// Room for so many bytes.
unsafe extern "C" fn cuDeviceGetName(place: *mut c_char, len: c_int, _number: c_int) -> u32 {
    // SAFETY: as above.
    unsafe { write_text(place, len, b"a model\0") }
}

/// # Safety
/// Room for so many bytes.
unsafe extern "C" fn cuDeviceGetPCIBusId(place: *mut c_char, len: c_int, number: c_int) -> u32 {
    // SAFETY: as above.
    unsafe { write_text(place, len, format!("0000:{number:02x}:00.0\0").as_bytes()) }
}

/// # Safety
/// Room for 16 bytes.
unsafe extern "C" fn cuDeviceGetUuid(place: *mut [u8; 16], number: c_int) -> u32 {
    // SAFETY: as above.
    unsafe { answer(place, known(number).map(device)) }
}

/// # Safety
/// The place is one for a size.
unsafe extern "C" fn cuDeviceTotalMem(place: *mut usize, number: c_int) -> u32 {
    // SAFETY: as above.
    unsafe { answer(place, known(number).map(|_| TOTAL_BYTES)) }
}

/// # Safety
/// The place is one for a number.
unsafe extern "C" fn cuDeviceGetAttribute(place: *mut c_int, attribute: c_uint, number: c_int) -> u32 {
    // UNIFIED_ADDRESSING, VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED
    let value = c_int::from(matches!(attribute, 41 | 102));
    // SAFETY: as above.
    unsafe { answer(place, known(number).map(|_| value)) }
}

/// # Safety
/// The place is one for an address.
unsafe extern "C" fn cuDevicePrimaryCtxRetain(place: *mut *mut c_void, number: c_int) -> u32 {
    // SAFETY: as above.
    unsafe { answer(place, known(number).map(|number| (CONTEXT_BASE + number as usize) as *mut c_void)) }
}

extern "C" fn cuCtxPushCurrent(context: *mut c_void) -> u32 {
    with(|state| state.current.push((context as usize - CONTEXT_BASE) as u32));
    status::SUCCESS
}

/// # Safety
/// The place is one for an address.
unsafe extern "C" fn cuCtxPopCurrent(place: *mut *mut c_void) -> u32 {
    let popped = with(|state| state.current.pop()).ok_or(status::INVALID_CONTEXT);
    // SAFETY: as above.
    unsafe { answer(place, popped.map(|number| (CONTEXT_BASE + number as usize) as *mut c_void)) }
}

extern "C" fn cuThreadExchangeStreamCaptureMode(_mode: *mut c_uint) -> u32 {
    status::SUCCESS
}

/// # Safety
/// The place is one for a size.
unsafe extern "C" fn cuMemGetAllocationGranularity(place: *mut usize, _: *const c_void, _: c_uint) -> u32 {
    // SAFETY: as above.
    unsafe { answer(place, Ok(UNIT)) }
}

/// # Safety
/// The place is one for a handle, and the properties are `CUmemAllocationProp`.
unsafe extern "C" fn cuMemCreate(place: *mut u64, bytes: usize, properties: *const c_int, _flags: u64) -> u32 {
    // SAFETY: as above: type, handle types, kind of location, and then the number of the device.
    let number = unsafe { properties.add(3).read() };
    let made = known(number).and_then(|device| {
        with(|state| {
            if state.devices[device as usize].is_lost {
                return Err(status::ECC_UNCORRECTABLE);
            }
            state.made += 1;
            state.handles.insert(state.made, Physical { device, bytes });
            Ok(state.made)
        })
    });
    // SAFETY: as above.
    unsafe { answer(place, made) }
}

extern "C" fn cuMemRelease(handle: u64) -> u32 {
    code(with(|state| state.handles.remove(&handle)).map(drop).ok_or(status::INVALID_VALUE))
}

/// # Safety
/// The place is one for an address.
unsafe extern "C" fn cuMemAddressReserve(place: *mut u64, bytes: usize, _: usize, _: u64, _: u64) -> u32 {
    let reserved = with(|state| {
        let used = state.given_back.iter().position(|(_, len)| *len == bytes);
        let behind = || state.ranges.iter().map(|(base, range)| base + range.bytes as u64);
        let all = behind().chain(state.given_back.iter().map(|(base, len)| base + *len as u64));
        let fresh = all.max().unwrap_or(FIRST_ADDRESS);
        let address = used.map_or(fresh, |place| state.given_back.remove(place).0);
        state.ranges.insert(address, Range { bytes, memory: None });
        address
    });
    // SAFETY: as above.
    unsafe { answer(place, Ok(reserved)) }
}

extern "C" fn cuMemAddressFree(address: u64, bytes: usize) -> u32 {
    let freed = with(|state| state.ranges.remove(&address).map(|_| state.given_back.push((address, bytes))));
    code(freed.ok_or(status::INVALID_VALUE))
}

extern "C" fn cuMemMap(address: u64, bytes: usize, _offset: usize, handle: u64, _flags: u64) -> u32 {
    code(with(|state| {
        let of = state.handles.get(&handle).filter(|of| of.bytes == bytes).ok_or(status::INVALID_VALUE)?;
        let range = state.ranges.get_mut(&address).filter(|range| range.bytes == bytes).ok_or(status::INVALID_VALUE)?;
        range.memory = Some((of.device, vec![0; bytes].into()));
        Ok(())
    }))
}

extern "C" fn cuMemSetAccess(_address: u64, _bytes: usize, _: *const c_void, _count: usize) -> u32 {
    status::SUCCESS
}

extern "C" fn cuMemUnmap(address: u64, bytes: usize) -> u32 {
    code(with(|state| {
        state.check_quiet("device memory", address, bytes as u64);
        state.ranges.get_mut(&address).map(|range| range.memory = None).ok_or(status::INVALID_VALUE)
    }))
}

extern "C" fn cuMemHostRegister(address: *mut c_void, bytes: usize, _flags: c_uint) -> u32 {
    code(with(|state| {
        state.current()?;
        let (base, end) = (address as u64, address as u64 + bytes as u64);
        let before = state.host.range(..end).next_back();
        if before.is_some_and(|(other, len)| other + len > base) {
            return Err(status::HOST_MEMORY_ALREADY_REGISTERED);
        }
        state.host.insert(base, bytes as u64);
        Ok(())
    }))
}

extern "C" fn cuMemHostUnregister(address: *mut c_void) -> u32 {
    code(with(|state| {
        let bytes = state.host.get(&(address as u64)).copied().ok_or(status::HOST_MEMORY_NOT_REGISTERED)?;
        // A driver waits for copies here, for as long as they take. Nobody of Penstock may make it wait.
        state.check_quiet("host memory", address as u64, bytes);
        state.host.remove(&(address as u64));
        Ok(())
    }))
}

/// # Safety
/// The place is one for an address.
unsafe extern "C" fn cuStreamCreateWithPriority(place: *mut *mut c_void, _flags: c_uint, _: c_int) -> u32 {
    let made = with(|state| {
        let device = state.current()?;
        let number = state.streams.last_key_value().map_or(0, |(last, _)| last + 1);
        state.streams.insert(number, Stream::new(device));
        Ok((STREAM_BASE + number as usize) as *mut c_void)
    });
    // SAFETY: as above.
    unsafe { answer(place, made) }
}

extern "C" fn cuStreamDestroy(stream: *mut c_void) -> u32 {
    code(with(|state| {
        let number = number_of(stream)?;
        state.stream(number)?.is_destroyed = true;
        state.streams.retain(|_, stream| !stream.is_destroyed || !stream.work.is_empty());
        Ok(())
    }))
}

extern "C" fn cuStreamQuery(stream: *mut c_void) -> u32 {
    code(with(|state| {
        let is_idle = state.stream(number_of(stream)?)?.work.is_empty();
        if is_idle { Ok(()) } else { Err(status::NOT_READY) }
    }))
}

/// Whether both sides are of these kinds.
fn check(state: &mut State, copy: Copy, wants: Option<[bool; 2]>) -> Result<(), u32> {
    let (to, from) = (state.is_device(copy.to, copy.bytes), state.is_device(copy.from, copy.bytes));
    let (Some(to), Some(from)) = (to, from) else { return Err(status::INVALID_VALUE) };
    let is_right = copy.bytes > 0 && wants.is_none_or(|wants| wants == [to, from]);
    if is_right { Ok(()) } else { Err(status::INVALID_VALUE) }
}

fn copy(stream: *mut c_void, copy: Copy, wants: [bool; 2]) -> u32 {
    code(with(|state| {
        check(state, copy, Some(wants))?;
        state.queue(number_of(stream)?, Work::Copies(vec![copy]))
    }))
}

extern "C" fn cuMemcpyHtoDAsync(to: u64, from: u64, bytes: usize, stream: *mut c_void) -> u32 {
    copy(stream, Copy { to, from, bytes }, [true, false])
}

extern "C" fn cuMemcpyDtoHAsync(to: u64, from: u64, bytes: usize, stream: *mut c_void) -> u32 {
    copy(stream, Copy { to, from, bytes }, [false, true])
}

extern "C" fn cuMemcpyDtoDAsync(to: u64, from: u64, bytes: usize, stream: *mut c_void) -> u32 {
    copy(stream, Copy { to, from, bytes }, [true, true])
}

/// # Safety
/// So many values at each of the three places.
unsafe extern "C" fn cuMemcpyBatchAsync(
    to: *const u64,
    from: *const u64,
    bytes: *const usize,
    count: usize,
    _attributes: *const c_void,
    _starts: *const usize,
    _attribute_count: usize,
    _failed: *mut usize,
    stream: *mut c_void,
) -> u32 {
    // SAFETY: as above.
    let copy = |at| unsafe { Copy { to: to.add(at).read(), from: from.add(at).read(), bytes: bytes.add(at).read() } };
    let copies: Vec<Copy> = (0..count).map(copy).collect();
    code(with(|state| {
        copies.iter().try_for_each(|copy| check(state, *copy, None))?;
        state.queue(number_of(stream)?, Work::Copies(copies))
    }))
}

extern "C" fn cuStreamWriteValue64(stream: *mut c_void, to: u64, value: u64, _flags: c_uint) -> u32 {
    code(with(|state| {
        if !to.is_multiple_of(8) || state.is_device(to, 8) != Some(false) {
            return Err(status::INVALID_VALUE);
        }
        state.queue(number_of(stream)?, Work::Word { to, value })
    }))
}

/// # Safety
/// The function may be called once with this argument, by any thread.
unsafe extern "C" fn cuLaunchHostFunc(stream: *mut c_void, function: HostFunction, argument: *mut c_void) -> u32 {
    let work = Work::Call { function, argument: argument as usize };
    code(with(|state| state.queue(number_of(stream)?, work)))
}

macro_rules! table {
    ($name:expr; $($function:ident),* ; else $($other:literal),*) => {
        match $name {
            $(stringify!($function) => $function as *mut c_void,)*
            $($other)|* => not_supported as *mut c_void,
            _ => std::ptr::null_mut(),
        }
    };
}

/// The function of this name.
///
/// # Safety
/// A C string, a place for an address, and null or a place for a number.
pub(super) unsafe extern "C" fn cuGetProcAddress(
    symbol: *const c_char,
    place: *mut *mut c_void,
    _version: c_int,
    _flags: u64,
    became: *mut u32,
) -> u32 {
    // SAFETY: the caller promises a C string.
    let name = unsafe { CStr::from_ptr(symbol) }.to_str().unwrap_or_default();
    let found = table!(name;
        cuInit, cuDriverGetVersion, cuDeviceGetCount, cuDeviceGet, cuDeviceGetName, cuDeviceGetUuid, cuDeviceGetAttribute,
        cuDeviceTotalMem, cuDeviceGetPCIBusId, cuDevicePrimaryCtxRetain, cuCtxPushCurrent, cuCtxPopCurrent,
        cuThreadExchangeStreamCaptureMode, cuMemHostRegister, cuMemHostUnregister, cuStreamCreateWithPriority,
        cuStreamDestroy, cuStreamQuery, cuMemcpyHtoDAsync, cuMemcpyDtoHAsync, cuMemcpyDtoDAsync, cuStreamWriteValue64,
        cuLaunchHostFunc, cuMemGetAllocationGranularity, cuMemCreate, cuMemRelease, cuMemAddressReserve,
        cuMemAddressFree, cuMemMap, cuMemUnmap, cuMemSetAccess, cuMemcpyBatchAsync;
        else "cuDevicePrimaryCtxRelease", "cuCtxGetCurrent", "cuMemAlloc", "cuMemFree", "cuMemGetInfo", "cuMemGetAddressRange",
        "cuPointerGetAttributes", "cuEventCreate", "cuEventDestroy", "cuEventRecord", "cuEventQuery", "cuStreamWaitEvent",
        "cuStreamIsCapturing"
    );
    // SAFETY: the caller promises both places.
    unsafe {
        place.write(found);
        if !became.is_null() {
            became.write(u32::from(found.is_null()));
        }
    }
    if found.is_null() { status::NOT_FOUND } else { status::SUCCESS }
}
