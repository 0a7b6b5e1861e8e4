//! Types of the driver's arguments. An enumeration among them goes to the driver only: what it answers is read as a number.

pub use cudarc::driver::sys::{
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUevent, CUhostFn, CUmemRangeHandleType, CUmemcpyAttributes,
    CUpointer_attribute, CUstream, CUstreamCaptureMode, CUuuid,
};
