//! Rules of memory that is made, mapped and passed on by itself.

use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::ptr::null_mut;

use penstock_cuda_sys::types::*;
use penstock_cuda_sys::{Driver, Status};

use super::{Current, MIB, bytes_at, fill};

const GRANULE: usize = 2 * MIB;
const DESCRIPTOR: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
const NO_HANDLE: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE;
const FABRIC: CUmemAllocationHandleType = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_FABRIC;
const HERE: CUmemLocation = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: 0 };

fn properties(kind: CUmemAllocationHandleType, gpudirect: bool) -> CUmemAllocationProp {
    // SAFETY: all zeros are such properties.
    let mut properties: CUmemAllocationProp = unsafe { zeroed() };
    properties.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    (properties.requestedHandleTypes, properties.location) = (kind, HERE);
    properties.allocFlags.gpuDirectRDMACapable = u8::from(gpudirect);
    properties
}

/// The calls, of which each is there.
struct Calls(&'static Driver);

impl Calls {
    fn granularity(&self, properties: &CUmemAllocationProp, option: CUmemAllocationGranularity_flags) -> usize {
        let mut bytes = 0;
        // SAFETY: it writes one size.
        let status = unsafe { self.0.cuMemGetAllocationGranularity(&raw mut bytes, properties, option) };
        assert_eq!(status, Ok(Status::SUCCESS));
        bytes
    }

    fn create(&self, bytes: usize, properties: &CUmemAllocationProp) -> Result<CUmemGenericAllocationHandle, Status> {
        let mut handle = 0;
        // SAFETY: it writes one handle.
        match unsafe { self.0.cuMemCreate(&raw mut handle, bytes, properties, 0) }.unwrap() {
            Status::SUCCESS => Ok(handle),
            status => Err(status),
        }
    }

    fn reserve(&self, bytes: usize) -> CUdeviceptr {
        let mut address = 0;
        // SAFETY: it writes one address.
        let status = unsafe { self.0.cuMemAddressReserve(&raw mut address, bytes, 0, 0, 0) };
        assert_eq!(status, Ok(Status::SUCCESS));
        address
    }

    fn release_addresses(&self, address: CUdeviceptr, bytes: usize) -> Status {
        // SAFETY: nothing uses them any more.
        unsafe { self.0.cuMemAddressFree(address, bytes) }.unwrap()
    }

    fn map(&self, address: CUdeviceptr, bytes: usize, offset: usize, handle: CUmemGenericAllocationHandle) -> Status {
        // SAFETY: what is wrong is refused.
        unsafe { self.0.cuMemMap(address, bytes, offset, handle, 0) }.unwrap()
    }

    fn unmap(&self, address: CUdeviceptr, bytes: usize) -> Status {
        // SAFETY: no stream uses it, or the test is about one that does.
        unsafe { self.0.cuMemUnmap(address, bytes) }.unwrap()
    }

    fn allow(&self, address: CUdeviceptr, bytes: usize, flags: CUmemAccess_flags) -> Status {
        let access = CUmemAccessDesc { location: HERE, flags };
        // SAFETY: one description.
        unsafe { self.0.cuMemSetAccess(address, bytes, &raw const access, 1) }.unwrap()
    }

    fn allow_all(&self, address: CUdeviceptr, bytes: usize) {
        let all = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        assert_eq!(self.allow(address, bytes, all), Status::SUCCESS);
    }

    fn release(&self, handle: CUmemGenericAllocationHandle) -> Status {
        // SAFETY: it is not used any more.
        unsafe { self.0.cuMemRelease(handle) }.unwrap()
    }

    /// One more hold of the handle that is mapped there.
    fn retain(&self, address: CUdeviceptr) -> Result<CUmemGenericAllocationHandle, Status> {
        let mut handle = 0;
        // SAFETY: it writes one handle.
        match unsafe { self.0.cuMemRetainAllocationHandle(&raw mut handle, address as *mut c_void) }.unwrap() {
            Status::SUCCESS => Ok(handle),
            status => Err(status),
        }
    }

    fn export(&self, handle: CUmemGenericAllocationHandle) -> Result<c_int, Status> {
        let mut file: c_int = -1;
        // SAFETY: it writes one descriptor.
        match unsafe { self.0.cuMemExportToShareableHandle((&raw mut file).cast(), handle, DESCRIPTOR, 0) }.unwrap() {
            Status::SUCCESS => Ok(file),
            status => Err(status),
        }
    }

    fn import(&self, file: c_int) -> Result<CUmemGenericAllocationHandle, Status> {
        let mut handle = 0;
        let shareable = file as usize as *mut c_void;
        // SAFETY: it writes one handle.
        match unsafe { self.0.cuMemImportFromShareableHandle(&raw mut handle, shareable, DESCRIPTOR) }.unwrap() {
            Status::SUCCESS => Ok(handle),
            status => Err(status),
        }
    }

    /// Memory at an address of its own, with all rights. The handle stays the caller's.
    fn mapped(&self, bytes: usize) -> (CUdeviceptr, CUmemGenericAllocationHandle) {
        let (handle, address) = (self.create(bytes, &properties(DESCRIPTOR, true)).unwrap(), self.reserve(bytes));
        assert_eq!(self.map(address, bytes, 0, handle), Status::SUCCESS);
        self.allow_all(address, bytes);
        (address, handle)
    }
}

/// Free memory, as the driver has it.
fn free_bytes(current: &Current) -> usize {
    let (mut free, mut total) = (0, 0);
    // SAFETY: it writes two sizes.
    assert_eq!(unsafe { current.driver.cuMemGetInfo(&raw mut free, &raw mut total) }, Status::SUCCESS);
    free
}

/// Writes to one address and reads from another, which are of the same memory.
fn check_same(current: &Current, to: CUdeviceptr, from: CUdeviceptr, bytes: usize, seed: u64) {
    let (one, back, stream) = (current.pinned(bytes), current.pinned(bytes), current.stream());
    fill(one, bytes, seed);
    // SAFETY: all is there until it has passed.
    unsafe {
        assert_eq!(current.driver.cuMemcpyHtoDAsync(to, one.cast(), bytes, stream), Status::SUCCESS);
        assert_eq!(current.driver.cuMemcpyDtoHAsync(back.cast(), from, bytes, stream), Status::SUCCESS);
    }
    current.wait(stream);
    assert!(bytes_at(back, bytes) == bytes_at(one, bytes));
}

pub(crate) fn memory_by_itself() {
    use CUmemAllocationGranularity_flags::*;
    let current = Current::begin();
    let calls = Calls(current.driver);
    let plain = properties(NO_HANDLE, false);
    for option in [CU_MEM_ALLOC_GRANULARITY_MINIMUM, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED] {
        assert_eq!(calls.granularity(&plain, option), GRANULE);
        assert_eq!(calls.granularity(&properties(DESCRIPTOR, true), option), GRANULE);
    }
    assert_eq!(calls.create(MIB, &plain), Err(Status::INVALID_VALUE));
    assert_eq!(calls.create(0, &plain), Err(Status::INVALID_VALUE));
    assert_eq!(calls.create(1 << 42, &plain), Err(Status::OUT_OF_MEMORY));
    assert_eq!(calls.create(GRANULE, &properties(FABRIC, false)), Err(Status::NOT_PERMITTED));
    let wide = calls.reserve(1 << 40);
    assert_eq!(calls.release_addresses(wide, 1 << 40), Status::SUCCESS);

    // A handle is mapped whole.
    let (base, handle) = (calls.reserve(8 * MIB), calls.create(4 * MIB, &properties(DESCRIPTOR, true)).unwrap());
    let high = base + 4 * MIB as u64;
    assert!(base.is_multiple_of(GRANULE as u64));
    assert_eq!(calls.map(base, 2 * MIB, 2 * MIB, handle), Status::NOT_SUPPORTED);
    assert_eq!(calls.map(base, 2 * MIB, 0, handle), Status::NOT_SUPPORTED);
    assert_eq!(calls.map(base, 8 * MIB, 0, handle), Status::NOT_SUPPORTED);
    assert_eq!(calls.map(base, 4 * MIB, 0, handle), Status::SUCCESS);

    // Without rights it is memory that cannot be used.
    let (host, stream) = (current.pinned(4096), current.stream());
    let (mut first, mut bytes) = (0, 0);
    assert_eq!(current.attributes(base)[..3], [2, base, 8 * MIB as u64], "the range is the reservation");
    // SAFETY: it writes an address and a length; what is wrong is refused.
    unsafe {
        assert_eq!(current.driver.cuMemcpyHtoDAsync(base, host.cast(), 4096, stream), Status::INVALID_VALUE);
        let range = current.driver.cuMemGetAddressRange(&raw mut first, &raw mut bytes, base);
        assert_eq!(range, Status::NOT_FOUND);
    }
    let all = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    assert_eq!(calls.allow(base, 2 * MIB, all), Status::INVALID_VALUE, "a half");
    calls.allow_all(base, 4 * MIB);
    // SAFETY: as above.
    let range = unsafe { current.driver.cuMemGetAddressRange(&raw mut first, &raw mut bytes, base + 5) };
    assert_eq!((range, first, bytes), (Status::SUCCESS, base, 4 * MIB), "one mapping");

    // The same memory at a second address, to be read only.
    assert_eq!(calls.map(high, 4 * MIB, 0, handle), Status::SUCCESS);
    assert_eq!(calls.allow(high, 4 * MIB, CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ), Status::SUCCESS);
    check_same(&current, base, high, 4 * MIB, 1);
    // SAFETY: what is wrong is refused.
    let written = unsafe { current.driver.cuMemcpyHtoDAsync(high, host.cast(), 4096, stream) };
    assert_eq!(written, Status::INVALID_VALUE);
    assert!(current.attributes(high)[3] > current.attributes(base)[3], "each mapping has an id of its own");
    // Rights to both at once, and copies over the seam.
    calls.allow_all(base, 8 * MIB);
    check_same(&current, high - 4096, high - 4096, 8192, 2);

    assert_eq!(calls.unmap(base, 2 * MIB), Status::INVALID_VALUE, "a half");
    assert_eq!(calls.release(handle), Status::SUCCESS);
    check_same(&current, base, high, 4 * MIB, 3);
    let id = current.attributes(high)[3];
    assert_eq!(calls.unmap(base, 8 * MIB), Status::SUCCESS);
    assert_eq!(current.attributes(base)[0], 0);
    assert_eq!(calls.release_addresses(base, 8 * MIB), Status::SUCCESS);
    assert!(current.attributes(calls.mapped(GRANULE).0)[3] > id);
}

pub(crate) fn memory_is_back() {
    const BYTES: usize = 64 * MIB;
    let current = Current::begin();
    let calls = Calls(current.driver);
    let before = free_bytes(&current);
    for _ in 0..3 {
        let memory = current.memory(BYTES);
        assert_eq!(calls.retain(memory), Err(Status::INVALID_VALUE), "it is not of a handle");
        assert_eq!(before - free_bytes(&current), BYTES);
        // SAFETY: nothing uses it.
        assert_eq!(unsafe { current.driver.cuMemFree(memory) }, Status::SUCCESS);
        assert_eq!(free_bytes(&current), before);

        // Held by its handle, then by its mappings, by a handle of one of these, and gone with the last.
        let (address, handle) = calls.mapped(BYTES);
        let other = calls.reserve(BYTES);
        assert_eq!(calls.map(other, BYTES, 0, handle), Status::SUCCESS);
        assert_eq!(before - free_bytes(&current), BYTES);
        assert_eq!(calls.unmap(address, BYTES), Status::SUCCESS);
        assert_eq!(calls.release(handle), Status::SUCCESS);
        let retained = calls.retain(other + 5).unwrap();
        assert_eq!(calls.unmap(other, BYTES), Status::SUCCESS);
        assert_eq!(before - free_bytes(&current), BYTES);
        assert_eq!(calls.release(retained), Status::SUCCESS);
        assert_eq!(free_bytes(&current), before);
        for reserved in [address, other] {
            assert_eq!(calls.release_addresses(reserved, BYTES), Status::SUCCESS);
        }
    }
}

pub(crate) fn descriptors() {
    let current = Current::begin();
    let calls = Calls(current.driver);
    let (address, handle) = calls.mapped(4 * MIB);
    let plain = calls.create(GRANULE, &properties(NO_HANDLE, false)).unwrap();
    assert_eq!(calls.export(plain), Err(Status::INVALID_VALUE), "it was not asked for when it was made");
    let file = calls.export(handle).unwrap();
    let (one, other) = (calls.import(file).unwrap(), calls.import(file).unwrap());
    assert_ne!(one, other);
    // SAFETY: nothing uses it any more.
    unsafe { libc::close(file) };
    assert_eq!(calls.export(one), Err(Status::INVALID_VALUE), "what was imported");
    let view = calls.reserve(8 * MIB);
    assert_eq!(calls.map(view, 8 * MIB, 0, one), Status::NOT_SUPPORTED);
    assert_eq!(calls.map(view, 4 * MIB, 0, one), Status::SUCCESS);
    calls.allow_all(view, 4 * MIB);
    check_same(&current, address, view, 4 * MIB, 4);
    // It outlives who made it.
    assert_eq!(calls.unmap(address, 4 * MIB), Status::SUCCESS);
    assert_eq!(calls.release(handle), Status::SUCCESS);
    check_same(&current, view, view, 4 * MIB, 5);
    // SAFETY: a file in memory.
    let no_memory = unsafe { libc::memfd_create(c"something".as_ptr(), 0) };
    assert_eq!(calls.import(no_memory), Err(Status::UNKNOWN));
}

/// None of it needs a context.
pub(crate) fn without_a_context() {
    let driver = Driver::open().unwrap();
    let calls = Calls(driver);
    // SAFETY: it may be called at any time.
    assert_eq!(unsafe { driver.cuInit(0) }, Status::SUCCESS);
    let mut context = null_mut();
    // SAFETY: it writes one address.
    assert_eq!(unsafe { driver.cuDevicePrimaryCtxRetain(&raw mut context, 0) }, Status::SUCCESS);
    let (address, handle) = calls.mapped(GRANULE);
    let file = calls.export(handle).unwrap();
    assert_eq!(calls.unmap(address, GRANULE), Status::SUCCESS);
    assert_eq!(calls.release(handle), Status::SUCCESS);
    assert_eq!(calls.release_addresses(address, GRANULE), Status::SUCCESS);
    // SAFETY: nothing uses it any more.
    unsafe { libc::close(file) };
}

/// A device without such memory, or without descriptors of it.
pub(crate) fn none(has_memory: bool) {
    let current = Current::begin();
    let calls = Calls(current.driver);
    let plain = calls.create(GRANULE, &properties(NO_HANDLE, false));
    assert_eq!(plain.is_ok(), has_memory);
    assert_eq!(calls.create(GRANULE, &properties(DESCRIPTOR, false)), Err(Status::NOT_SUPPORTED));
}

/// Unmapping waits for nothing: what streams have to do there fails, and with it everything.
pub(crate) fn unmapped_too_early() {
    const BYTES: usize = 64 * MIB;
    let current = Current::begin();
    let calls = Calls(current.driver);
    let (address, _) = calls.mapped(GRANULE);
    let (host, device, stream) = (current.pinned(BYTES), current.memory(BYTES), current.stream());
    let driver = current.driver;
    // SAFETY: all is there but what the test takes away.
    unsafe {
        for _ in 0..8 {
            assert_eq!(driver.cuMemcpyHtoDAsync(device, host.cast(), BYTES, stream), Status::SUCCESS);
        }
        assert_eq!(driver.cuMemcpyHtoDAsync(address, host.cast(), GRANULE, stream), Status::SUCCESS);
    }
    assert_eq!(calls.unmap(address, GRANULE), Status::SUCCESS);
    // SAFETY: it is a stream.
    super::until(|| unsafe { driver.cuStreamQuery(stream) } != Status::NOT_READY);
    let mut memory = 0;
    // SAFETY: as above, and it writes one address.
    unsafe {
        assert_eq!(driver.cuStreamQuery(stream), Status::ILLEGAL_ADDRESS);
        assert_eq!(driver.cuMemAlloc(&raw mut memory, MIB), Status::ILLEGAL_ADDRESS);
    }
    assert_eq!(current.attributes(device)[0], 2, "attributes are told all the same");
}
