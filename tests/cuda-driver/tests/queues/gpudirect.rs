//! Rules of memory that RDMA cards reach.

use std::ffi::c_void;
use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::null_mut;

use penstock_cuda_sys::Status;
use penstock_cuda_sys::types::*;

use super::{Current, MIB};

const PAGE: usize = 4096;

fn dma_buf(current: &Current, address: CUdeviceptr, bytes: usize, flags: u64) -> Result<OwnedFd, Status> {
    let (mut number, kind) = (-1_i32, CUmemRangeHandleType::CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);
    // SAFETY: of this kind it writes a descriptor.
    let status = unsafe {
        current.driver.cuMemGetHandleForAddressRange((&raw mut number).cast(), address, bytes, kind, flags).unwrap()
    };
    // SAFETY: it is nobody else's.
    if status == Status::SUCCESS { Ok(unsafe { OwnedFd::from_raw_fd(number) }) } else { Err(status) }
}

/// Both ends of a dma-buf are ends of pages; it is of the device's memory, and needs a context.
pub(crate) fn dma_bufs() {
    let current = Current::begin();
    let memory = current.memory(MIB);
    let refused = |address, bytes, flags| dma_buf(&current, address, bytes, flags).err();
    let whole = dma_buf(&current, memory, MIB, 0).unwrap();
    dma_buf(&current, memory + PAGE as u64, PAGE, 0).unwrap();
    for (address, bytes) in [(memory + 512, PAGE), (memory, 512), (memory, 0)] {
        assert_eq!(refused(address, bytes, 0), Some(Status::INVALID_VALUE), "{address:#x}, {bytes}");
    }
    assert_eq!(refused(memory, PAGE, 1), Some(Status::NOT_SUPPORTED), "over the bus of a processor that has several");
    assert_eq!(refused(memory, PAGE, 2), Some(Status::INVALID_VALUE));
    let host = current.pinned(MIB);
    assert_eq!(refused(host as u64, MIB, 0), Some(Status::INVALID_VALUE));
    let mut context = null_mut();
    // SAFETY: it is this thread's; what the call frees nothing uses.
    unsafe {
        assert_eq!(current.driver.cuCtxPopCurrent(&raw mut context), Status::SUCCESS);
        assert_eq!(refused(memory, PAGE, 0), Some(Status::INVALID_CONTEXT));
        assert_eq!(current.driver.cuCtxPushCurrent(context), Status::SUCCESS);
        assert_eq!(current.driver.cuMemFree(memory), Status::SUCCESS);
    }
    assert_eq!(refused(memory, MIB, 0), Some(Status::INVALID_VALUE));
    drop(whole);
}

/// Synchronous copies of an allocation are done when they return, once that was asked for.
pub(crate) fn sync_memops() {
    let current = Current::begin();
    let (memory, other) = (current.memory(MIB), current.memory(MIB));
    let attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
    let set = |address| {
        let value = 1_u32;
        // SAFETY: the attribute is as wide as the value.
        unsafe { current.driver.cuPointerSetAttribute((&raw const value).cast(), attribute, address).unwrap() }
    };
    let get = |address| {
        let (mut attribute, mut value) = (attribute, 0_u64);
        let mut place = (&raw mut value).cast::<c_void>();
        // SAFETY: one attribute, and a place of eight bytes.
        let status = unsafe { current.driver.cuPointerGetAttributes(1, &raw mut attribute, &raw mut place, address) };
        assert_eq!(status, Status::SUCCESS);
        value & 0xff
    };
    assert_eq!(get(memory), 0);
    assert_eq!(set(memory + 4096), Status::SUCCESS);
    assert_eq!((get(memory), get(other)), (1, 0));
    let plain = Box::new([0_u8; 64]);
    assert_eq!(set(plain.as_ptr() as u64), Status::INVALID_VALUE);
}

/// What cards have written is flushed to the device, or to all, in a context.
pub(crate) fn flushes() {
    let current = Current::begin();
    let flush = |scope| {
        let target = CUflushGPUDirectRDMAWritesTarget::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX;
        // SAFETY: it takes two numbers.
        unsafe { current.driver.cuFlushGPUDirectRDMAWrites(target, scope).unwrap() }
    };
    use CUflushGPUDirectRDMAWritesScope::*;
    for scope in [CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES] {
        assert_eq!(flush(scope), Status::SUCCESS);
    }
    let mut context = null_mut();
    // SAFETY: it is this thread's.
    unsafe { assert_eq!(current.driver.cuCtxPopCurrent(&raw mut context), Status::SUCCESS) };
    assert_eq!(flush(CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER), Status::INVALID_CONTEXT);
}
