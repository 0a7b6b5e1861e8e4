//! Memory of devices that RDMA cards reach by themselves.

use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr;

use penstock_cuda_sys::types::*;
use penstock_memory::{DeviceId, DeviceWindow};
use penstock_transport::{CardAccess, DmaBuf};

use crate::adopt::Adopted;
use crate::context::{Context, CurrentContext};
use crate::device::Device;
use crate::driver::Cuda;
use crate::error::{CudaError, check};

/// `CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER`: the device itself sees what a card has written when the card's completion was seen.
const ORDERED_FOR_OWNER: u32 = 100;

/// How cards reach this memory. Of memory that the program has allocated, `SYNC_MEMOPS` is set from then on.
pub(crate) fn share_with_cards(cuda: Cuda, memory: &DeviceWindow) -> Result<CardAccess, CudaError> {
    let (device, address) = (memory.device(), memory.base_address());
    let found = cuda.devices()?.into_iter().find(|found| found.id == device);
    let Device { attr, .. } = found.ok_or(CudaError::NoSuchDevice { device })?;
    if !attr.gpudirect && !attr.dma_buf {
        return Err(CudaError::NoGpuDirect { device });
    }
    let needs_flush = attr.card_writes_ordering < ORDERED_FOR_OWNER;
    if needs_flush && !(attr.host_flushes_card_writes && has_flush(cuda)) {
        return Err(CudaError::NoFlush { device });
    }
    let adopted = memory.keep::<Adopted>();
    if adopted.is_some_and(|adopted| !adopted.is_there()) {
        return Err(CudaError::Unknown { address });
    }
    let context = Context::of(cuda, device)?;
    let entered = context.enter()?;
    for at in adopted.into_iter().flat_map(Adopted::addresses) {
        synchronise(&entered, at);
    }
    let dma_buf = match attr.dma_buf {
        true => dma_buf(&entered, memory).map_err(|error| error.to_string()),
        false => Err(format!("the driver gives out no dma-buf of {device}")),
    };
    Ok(CardAccess { dma_buf, needs_flush })
}

fn has_flush(cuda: Cuda) -> bool {
    cuda.lacks().iter().all(|lacking| lacking.function != "cuFlushGPUDirectRDMAWrites")
}

/// The descriptor of the whole pages around this memory. The driver refuses them if they are of several devices, or of several kinds of memory.
fn dma_buf(entered: &CurrentContext<'_>, memory: &DeviceWindow) -> Result<DmaBuf, CudaError> {
    let page = rustix::param::page_size() as u64;
    let (address, bytes) = (memory.base_address(), memory.len());
    let base = address - address % page;
    let whole = (address + bytes).checked_next_multiple_of(page).ok_or(CudaError::Size { bytes })? - base;
    let mut number: i32 = -1;
    let kind = CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD;
    // SAFETY: of this kind it writes a descriptor.
    let status = unsafe {
        let place = ptr::from_mut(&mut number).cast();
        entered.cuda.driver.cuMemGetHandleForAddressRange(place, base, whole as usize, kind, 0)?
    };
    check("cuMemGetHandleForAddressRange", status)?;
    // SAFETY: it is nobody else's.
    Ok(DmaBuf { descriptor: unsafe { OwnedFd::from_raw_fd(number) }, offset: address - base })
}

/// Has synchronous copies of the program in this allocation be done when they return: those within a device are only queued otherwise, and a card reads
/// memory without waiting for any stream. Memory that was mapped by itself has no such setting.
fn synchronise(entered: &CurrentContext<'_>, address: u64) {
    let (yes, attribute) = (1_u32, CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS);
    // SAFETY: the attribute is a number of four bytes.
    let set = unsafe { entered.cuda.driver.cuPointerSetAttribute((&raw const yes).cast(), attribute, address) };
    let set = set.map_err(CudaError::from).and_then(|status| check("cuPointerSetAttribute", status));
    if let Err(error) = set {
        tracing::debug!(%error, address, "SYNC_MEMOPS is not set: a card may read what a copy of the program has not written yet");
    }
}

/// Has the device see what cards have written whose completions were seen.
pub(crate) fn flush_card_writes(cuda: Cuda, device: DeviceId) -> Result<(), CudaError> {
    let context = Context::of(cuda, device)?;
    let entered = context.enter()?;
    let target = CUflushGPUDirectRDMAWritesTarget::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX;
    let scope = CUflushGPUDirectRDMAWritesScope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER;
    // SAFETY: the context is the device's.
    let status = unsafe { entered.cuda.driver.cuFlushGPUDirectRDMAWrites(target, scope)? };
    check("cuFlushGPUDirectRDMAWrites", status)
}
