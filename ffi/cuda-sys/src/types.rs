//! Types of the driver's arguments. An enumeration among them goes to the driver only: what it answers is read as a number.

pub use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUflushGPUDirectRDMAWritesScope,
    CUflushGPUDirectRDMAWritesTarget, CUhostFn, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationGranularity_flags,
    CUmemAllocationHandleType, CUmemAllocationProp, CUmemAllocationType, CUmemGenericAllocationHandle, CUmemLocation,
    CUmemLocationType, CUmemRangeHandleType, CUmemcpyAttributes, CUmemcpySrcAccessOrder, CUpointer_attribute, CUstream,
    CUstreamCaptureMode, CUuuid,
};
