//! Types of the driver's arguments. An enumeration among them goes to the driver only: what it answers is read as a number.

pub use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUevent_flags, CUhostFn, CUmemAccess_flags,
    CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemAllocationType, CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType, CUmemRangeHandleType,
    CUmemcpyAttributes, CUmemcpySrcAccessOrder, CUmemoryPool, CUpointer_attribute, CUstream, CUstream_flags,
    CUstreamCaptureMode, CUuuid,
};
