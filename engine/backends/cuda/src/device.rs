//! The devices of a driver, and what they can.

use std::ffi::{CStr, c_char, c_int};

use penstock_cuda_sys::types::{CUdevice, CUdevice_attribute, CUuuid};
use penstock_memory::DeviceId;

use crate::driver::Cuda;
use crate::error::{CudaError, check};

/// `CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST`.
const FLUSH_BY_HOST: u32 = 1;

/// A device, as this process has it.
#[derive(Debug, Clone)]
pub struct Device {
    /// Its number in this process, and in no other.
    pub ordinal: c_int,
    /// By which everybody knows it.
    pub id: DeviceId,
    pub attr: DeviceAttr,
}

/// What a device is and can.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceAttr {
    /// As its maker calls it.
    pub name: String,
    /// Its memory in bytes.
    pub bytes: u64,
    /// Where it is on the bus, as in `0000:17:00.0`.
    pub pci: String,
    /// The first and the second number of what it can compute.
    pub compute_capability: (u32, u32),
    /// So many copies go at once beside kernels.
    pub copy_engines: u32,
    /// Whether host memory has the same addresses for it.
    pub unified_addressing: bool,
    /// Whether memory can be made, mapped and passed on by itself, which pools are of.
    pub vmm: bool,
    /// Whether such memory can be passed to another process as a file descriptor.
    pub vmm_descriptors: bool,
    /// Whether memory of `cuMemAlloc` can be passed to another process by a legacy handle (`cuIpcGetMemHandle`).
    pub legacy_ipc: bool,
    /// Whether its memory can be registered with RDMA cards as a dma-buf.
    pub dma_buf: bool,
    /// Whether RDMA cards can reach its memory at all.
    pub gpudirect: bool,
    /// Who sees what a card has written once its completion was seen, without a flush: 0 nobody, 100 the device, 200 all devices.
    pub card_writes_ordering: u32,
    /// Whether the host can have the device see what cards have written.
    pub host_flushes_card_writes: bool,
    /// Whether it is shared with others by time only, alone, or not to be used: the driver's compute mode.
    pub compute_mode: u32,
}

impl Device {
    pub(crate) fn at(cuda: Cuda, ordinal: c_int) -> Result<Self, CudaError> {
        let driver = cuda.driver;
        let (mut device, mut uuid, mut bytes): (CUdevice, _, _) = (0, CUuuid { bytes: [0; 16] }, 0);
        // SAFETY: the driver runs; each call writes one value of its type.
        unsafe {
            check("cuDeviceGet", driver.cuDeviceGet(&raw mut device, ordinal))?;
            check("cuDeviceGetUuid", driver.cuDeviceGetUuid(&raw mut uuid, device))?;
            check("cuDeviceTotalMem", driver.cuDeviceTotalMem(&raw mut bytes, device))?;
        }
        let name = text(|place, len| {
            // SAFETY: there is room for so many bytes at the place.
            check("cuDeviceGetName", unsafe { driver.cuDeviceGetName(place, len, device) })
        })?;
        let pci = text(|place, len| {
            // SAFETY: as above.
            check("cuDeviceGetPCIBusId", unsafe { driver.cuDeviceGetPCIBusId(place, len, device) })
        })?;
        use CUdevice_attribute::*;
        let number = |attribute| {
            let mut value = 0;
            // SAFETY: it writes one number. An attribute that an older driver does not know is none.
            let status = unsafe { driver.cuDeviceGetAttribute(&raw mut value, attribute, device) };
            if status.is_success() { u32::try_from(value).unwrap_or(0) } else { 0 }
        };
        let can = |attribute| number(attribute) != 0;
        let attr = DeviceAttr {
            name,
            bytes: bytes as u64,
            pci: pci.to_ascii_lowercase(),
            compute_capability: (
                number(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
                number(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR),
            ),
            copy_engines: number(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT),
            unified_addressing: can(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING),
            vmm: can(CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED),
            vmm_descriptors: can(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED),
            // The manual names this one for memory, too.
            legacy_ipc: can(CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED),
            dma_buf: can(CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED),
            gpudirect: can(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED),
            card_writes_ordering: number(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING),
            host_flushes_card_writes: number(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS) & FLUSH_BY_HOST
                != 0,
            compute_mode: number(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE),
        };
        Ok(Self { ordinal, id: DeviceId(uuid.bytes.map(|byte| byte as u8)), attr })
    }
}

/// A text that the driver writes.
fn text(write: impl FnOnce(*mut c_char, c_int) -> Result<(), CudaError>) -> Result<String, CudaError> {
    const BYTES_MAX: usize = 256;
    let mut bytes = [0u8; BYTES_MAX];
    // The last byte stays a zero, whatever is written.
    write(bytes.as_mut_ptr().cast(), BYTES_MAX as c_int - 1)?;
    Ok(CStr::from_bytes_until_nul(&bytes).unwrap_or_default().to_string_lossy().into_owned())
}
