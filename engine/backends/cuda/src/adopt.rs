//! Device memory that somebody else allocated.

use std::ffi::c_void;
use std::sync::Arc;

use penstock_cuda_sys::types::{CUdeviceptr, CUpointer_attribute};
use penstock_memory::{DeviceId, DeviceMemory};

use crate::context::Context;
use crate::driver::Cuda;
use crate::error::{CudaError, check};

/// As the driver numbers kinds of memory.
const DEVICE: u64 = 2;
const HOST: u64 = 1;
/// May be read and written.
const BOTH: u64 = 3;

/// Takes in `bytes` of device memory at an address of this process without owning them: what `cudaMalloc` gave, memory of a pool of the driver's, or memory that
/// was mapped by itself, from any offset. The driver is asked whose it is and how far it reaches.
///
/// # Safety
/// As of [`DeviceMemory::from_raw`], from this call on, for what is there now.
pub unsafe fn adopt(address: u64, bytes: u64) -> Result<DeviceMemory, CudaError> {
    let cuda = Cuda::start()?;
    cuda.check_process()?;
    if bytes == 0 {
        return Err(CudaError::Size { bytes });
    }
    let outside = |reaches| CudaError::Beyond { address, bytes, reaches };
    let first = ask(cuda, address)?;
    let (ordinal, device) = (first.ordinal, first.device(cuda, address)?);
    let end = address.checked_add(bytes).ok_or_else(|| outside(0))?;
    let context = Context::of(cuda, device)?;
    let entered = context.enter()?;
    let (mut at, mut mappings) = (address, Vec::new());
    while at < end {
        let known = ask(cuda, at)?;
        if known.kind != DEVICE || known.ordinal != ordinal {
            return Err(outside(at - address));
        }
        if known.access != BOTH {
            return Err(CudaError::NoAccess { address: at });
        }
        // Of memory that was mapped by itself this is one mapping, and the next may lie right behind it.
        let (mut base, mut len): (CUdeviceptr, usize) = (0, 0);
        // SAFETY: it writes an address and a size.
        let status = unsafe { entered.cuda.driver.cuMemGetAddressRange(&raw mut base, &raw mut len, at) };
        check("cuMemGetAddressRange", status).map_err(|_| outside(at - address))?;
        mappings.push((at, known.buffer));
        at = base + len as u64;
    }
    drop(entered);
    let (number, adopted) = (first.buffer, Arc::new(Adopted { cuda, mappings }));
    // SAFETY: it is memory of that device, as the driver says; the caller promises that it stays.
    let memory = unsafe { DeviceMemory::kept(device, (address, bytes), adopted) };
    memory.map(|memory| memory.numbered(number)).map_err(|_| outside(0))
}

/// The device that has memory of this process at this address.
pub fn device_of(address: u64) -> Result<DeviceId, CudaError> {
    let cuda = Cuda::start()?;
    cuda.check_process()?;
    ask(cuda, address)?.device(cuda, address)
}

/// What an adopted range was when it was taken in: the first address of each mapping in it, and the number of that, which no other ever gets.
pub(crate) struct Adopted {
    cuda: Cuda,
    mappings: Vec<(u64, u64)>,
}

impl Adopted {
    /// Whether all of it is what it was. Freed memory looks like host memory to some calls, and what was allocated in its place has its address.
    pub(crate) fn is_there(&self) -> bool {
        self.mappings.iter().all(|&(at, buffer)| ask(self.cuda, at).is_ok_and(|known| known.buffer == buffer))
    }

    /// An address in each of its mappings.
    pub(crate) fn addresses(&self) -> impl Iterator<Item = u64> {
        self.mappings.iter().map(|&(at, _)| at)
    }
}

/// What the driver knows of an address.
#[derive(Debug, Clone, Copy)]
struct Known {
    /// None is 0.
    kind: u64,
    is_managed: bool,
    ordinal: i32,
    access: u64,
    /// The driver's number of this allocation or mapping.
    buffer: u64,
}

impl Known {
    /// The device of this address, if that is what it is of.
    fn device(self, cuda: Cuda, address: u64) -> Result<DeviceId, CudaError> {
        match self {
            Self { kind: HOST, .. } => return Err(CudaError::HostMemory { address }),
            Self { kind: DEVICE, is_managed: true, .. } => return Err(CudaError::Managed { address }),
            Self { kind: DEVICE, .. } => {}
            _ => return Err(CudaError::Unknown { address }),
        }
        let device = cuda.devices()?.into_iter().find(|device| device.ordinal == self.ordinal);
        Ok(device.ok_or(CudaError::Unknown { address })?.id)
    }
}

fn ask(cuda: Cuda, address: u64) -> Result<Known, CudaError> {
    use CUpointer_attribute::*;
    let mut attributes = [
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        CU_POINTER_ATTRIBUTE_IS_MANAGED,
        CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CU_POINTER_ATTRIBUTE_ACCESS_FLAGS,
        CU_POINTER_ATTRIBUTE_BUFFER_ID,
    ];
    let mut values = [0_u64; 5];
    let mut places = values.each_mut().map(|value| std::ptr::from_mut(value).cast::<c_void>());
    // SAFETY: as many attributes as places, each of eight bytes, which is the most that one has. It answers for any address.
    let status = unsafe {
        let (attributes, places) = (attributes.as_mut_ptr(), places.as_mut_ptr());
        cuda.driver.cuPointerGetAttributes(5, attributes, places, address)
    };
    check("cuPointerGetAttributes", status)?;
    let [kind, is_managed, ordinal, access, buffer] = values;
    Ok(Known { kind, is_managed: is_managed & 0xff != 0, ordinal: ordinal as i32, access, buffer })
}
