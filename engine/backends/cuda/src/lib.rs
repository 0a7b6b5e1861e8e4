//! Device memory by the CUDA driver. It is no transport: lanes of each are given it, since a session has one transport and device memory has to
//! work in all of them.
//!
//! - [`driver`]: the driver, started once in a process
//! - [`device`]: the devices it has, and what they can
//! - [`error`]: what can go wrong, and the mend

pub mod device;
pub mod driver;
pub mod error;

pub use device::{Device, DeviceAttr};
pub use driver::Cuda;
pub use error::CudaError;
pub use penstock_cuda_sys::PATH_VARIABLE;
