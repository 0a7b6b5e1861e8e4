//! Device memory that is allocated here: physical memory mapped at addresses of its own, so that it can be passed on.

use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::{mem, ptr};

use penstock_cuda_sys::types::*;
use penstock_memory::{DeviceId, DeviceMemory};

use crate::context::{Context, CurrentContext};
use crate::driver::Cuda;
use crate::error::{CudaError, check};

/// Memory of a device, until the last window over it is gone.
#[derive(Debug)]
pub struct Allocation {
    context: Arc<Context>,
    address: u64,
    bytes: usize,
    is_mapped: bool,
    descriptor: Option<OwnedFd>,
}

/// Allocates so many bytes on a device, rounded up to what the device makes memory of, and maps them to be read and written by it. The first use of a device takes
/// a tenth of a second.
pub fn allocate(device: DeviceId, bytes: u64) -> Result<DeviceMemory, CudaError> {
    let cuda = Cuda::start()?;
    let found = cuda.devices()?.into_iter().find(|found| found.id == device);
    let found = found.ok_or(CudaError::NoSuchDevice { device })?;
    if !found.attr.vmm {
        return Err(CudaError::NoVmm { device });
    }
    let context = Context::of(cuda, device)?;
    let entered = context.enter()?;
    let driver = entered.cuda.driver;
    let location = CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: found.ordinal };
    // SAFETY: a structure of numbers and enumerations that all have a zero.
    let mut properties: CUmemAllocationProp = unsafe { mem::zeroed() };
    properties.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = location;
    if found.attr.vmm_descriptors {
        properties.requestedHandleTypes = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    }
    properties.allocFlags.gpuDirectRDMACapable = u8::from(found.attr.gpudirect);
    let mut unit = 0;
    let least = CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
    // SAFETY: it writes a size.
    let status = unsafe { driver.cuMemGetAllocationGranularity(&raw mut unit, &raw const properties, least)? };
    check("cuMemGetAllocationGranularity", status)?;
    let whole = usize::try_from(bytes).ok().and_then(|bytes| bytes.checked_next_multiple_of(unit.max(1)));
    let whole = whole.filter(|&whole| whole > 0).ok_or(CudaError::Size { bytes })?;
    let no_room = |error| no_room(error, bytes, &entered);
    let (mut handle, mut address) = (0, 0);
    // SAFETY: it writes a handle.
    let status = unsafe { driver.cuMemCreate(&raw mut handle, whole, &raw const properties, 0)? };
    check("cuMemCreate", status).map_err(no_room)?;
    let held = Handle { entered: &entered, handle };
    // SAFETY: it writes an address.
    let status = unsafe { driver.cuMemAddressReserve(&raw mut address, whole, 0, 0, 0)? };
    check("cuMemAddressReserve", status).map_err(no_room)?;
    // From here on it is undone by its drop.
    let mut made =
        Allocation { context: Arc::clone(&context), address, bytes: whole, is_mapped: false, descriptor: None };
    let access = CUmemAccessDesc { location, flags: CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    // SAFETY: the addresses are this allocation's own, and the handle has as many bytes.
    unsafe {
        check("cuMemMap", driver.cuMemMap(address, whole, 0, handle, 0)?)?;
        made.is_mapped = true;
        check("cuMemSetAccess", driver.cuMemSetAccess(address, whole, &raw const access, 1)?)?;
    }
    if found.attr.vmm_descriptors {
        made.descriptor = Some(held.export()?);
    }
    drop(held);
    drop(entered);
    let bytes = whole as u64;
    // SAFETY: it is mapped until the last window is gone, which keeps this.
    unsafe { DeviceMemory::kept(device, (address, bytes), Arc::new(made)) }.map_err(|_| CudaError::Size { bytes })
}

/// What is said of memory that is not to be had: with what is free.
fn no_room(error: CudaError, bytes: u64, entered: &CurrentContext<'_>) -> CudaError {
    let (mut free, mut total) = (0, 0);
    // SAFETY: it writes two sizes.
    let asked = unsafe { entered.cuda.driver.cuMemGetInfo(&raw mut free, &raw mut total) };
    match CudaError::of_memory(error, bytes, "device memory") {
        CudaError::OutOfMemory { bytes, .. } if asked.is_success() => {
            CudaError::DeviceFull { bytes, free: free as u64, total: total as u64 }
        }
        other => other,
    }
}

/// Physical memory by itself: once it is mapped the mapping keeps it.
struct Handle<'a, 'b> {
    entered: &'a CurrentContext<'b>,
    handle: CUmemGenericAllocationHandle,
}

impl Handle<'_, '_> {
    /// A descriptor by which another process can map it. The first takes a millisecond, so it is made once.
    fn export(&self) -> Result<OwnedFd, CudaError> {
        let mut number: i32 = -1;
        let kind = CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        // SAFETY: of this kind it writes a descriptor.
        let status = unsafe {
            let place = ptr::from_mut(&mut number).cast();
            self.entered.cuda.driver.cuMemExportToShareableHandle(place, self.handle, kind, 0)?
        };
        check("cuMemExportToShareableHandle", status)?;
        // SAFETY: it is nobody else's.
        Ok(unsafe { OwnedFd::from_raw_fd(number) })
    }
}

impl Drop for Handle<'_, '_> {
    fn drop(&mut self) {
        // SAFETY: it was created, and is released once.
        let _ = unsafe { self.entered.cuda.driver.cuMemRelease(self.handle) };
    }
}

impl Allocation {
    /// By which another process can map it, where the device can do that.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map(AsFd::as_fd)
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // A child has none of it.
        let Ok(entered) = self.context.enter() else { return };
        let driver = entered.cuda.driver;
        // SAFETY: no window is over it any more, and copies keep the windows they are of. Neither call waits for anything.
        unsafe {
            if self.is_mapped {
                let _ = driver.cuMemUnmap(self.address, self.bytes);
            }
            let _ = driver.cuMemAddressFree(self.address, self.bytes);
        }
    }
}
