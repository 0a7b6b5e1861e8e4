//! Device memory by the CUDA driver. It is no transport: lanes of each are given it, since a session has one transport and device memory has to
//! work in all of them.
//!
//! - [`driver`]: the driver, started once in a process
//! - [`device`]: the devices it has, and what they can
//! - [`adopt`](mod@adopt): device memory that somebody else allocated
//! - [`allocate`](mod@allocate): device memory that is allocated here
//! - `context`: being in a device's context for a call; `pinned`: host memory that devices may reach
//! - [`order`]: copies behind what a program's streams have
//! - `gpudirect`: memory that RDMA cards reach by themselves
//! - [`service`]: what lanes are given; `hub`: one worker's copies; `queue`: those of one device in one direction; `bell`: what wakes a worker
//! - [`error`]: what can go wrong, and the mend

pub mod adopt;
pub mod allocate;
mod bell;
mod context;
pub mod device;
pub mod driver;
pub mod error;
mod gpudirect;
mod hub;
pub mod order;
mod pinned;
mod queue;
pub mod service;

pub use adopt::{adopt, device_of};
pub use allocate::{Allocation, allocate};
pub use device::{Device, DeviceAttr};
pub use driver::Cuda;
pub use error::CudaError;
pub use order::order_behind;
pub use penstock_cuda_sys::PATH_VARIABLE;
pub use service::CudaDevices;
