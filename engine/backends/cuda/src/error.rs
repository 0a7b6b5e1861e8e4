//! What can go wrong, and the mend.

use penstock_cuda_sys::{Lacking, NotHere, Status};
use penstock_memory::DeviceId;

/// Why something that concerns devices is not to be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// There is no driver that can be used.
    #[error(transparent)]
    NotHere(#[from] NotHere),
    /// The driver has been started by a process that this one was forked from.
    #[error(
        "the process that this one was forked from has started CUDA, which a child cannot use: run a program anew (`exec`, or `spawn` in \
         Python's multiprocessing), or fork before device memory is used"
    )]
    Forked,
    /// The driver does not start.
    #[error("the CUDA driver does not start: {status}{}", mend_of(*.status))]
    Start { status: Status },
    /// It has started, and has no device.
    #[error(
        "the CUDA driver has no device: `nvidia-smi` says which there are, `CUDA_VISIBLE_DEVICES` which of them this process may see"
    )]
    NoDevice,
    /// None of the process's devices has this UUID.
    #[error("this process has no {device}: see `penstock doctor gpu` and `CUDA_VISIBLE_DEVICES`")]
    NoSuchDevice { device: DeviceId },
    /// No memory that the driver knows.
    #[error(
        "the driver knows no memory at {address:#x}: it was freed, is another process's, or is host memory, which is registered as such; register what \
         `cudaMalloc` or a tensor of this process gave"
    )]
    Unknown { address: u64 },
    #[error("{address:#x} is host memory: register it as such")]
    HostMemory { address: u64 },
    #[error(
        "{address:#x} is managed memory, which moves between host and device: allocate with `cudaMalloc` in place of `cudaMallocManaged`"
    )]
    Managed { address: u64 },
    #[error("the device may not both read and write {address:#x}: give it both rights (`cuMemSetAccess`)")]
    NoAccess { address: u64 },
    /// The allocation ends before.
    #[error("{bytes} bytes at {address:#x} leave their allocation, which ends after {reaches} of them")]
    Beyond {
        address: u64,
        bytes: u64,
        /// Bytes that are in it.
        reaches: u64,
    },
    /// A handle that is destroyed crashes a driver as often as it is refused.
    #[error(
        "{device} has no stream {stream:#x}: name one of its primary context that was not destroyed, as `cudaStreamCreate` makes them (1: the default stream, \
         2: that of the calling thread)"
    )]
    NoSuchStream { device: DeviceId, stream: u64 },
    #[error(
        "stream {stream:#x} is being captured, and a capture has no end that copies could begin behind: ask again after it"
    )]
    Captured { stream: u64 },
    /// Host memory that is mapped by somebody else, who may map something else there.
    #[error(
        "the host memory at {base:#x} is not a pool's, and devices copy to and from pools only: make it with `Engine::pool`"
    )]
    NotOurs { base: u64 },
    #[error("{device} cannot be reached by RDMA cards (GPUDirect RDMA): its bytes go through host memory")]
    NoGpuDirect { device: DeviceId },
    /// A peer would be told of bytes that the device does not see yet.
    #[error(
        "{device} does not say when it sees what RDMA cards have written, and its driver cannot have it look: its bytes go through host memory"
    )]
    NoFlush { device: DeviceId },
    /// The driver has a function that is needed in no version.
    #[error("{0}: install a newer driver")]
    Lacks(#[from] Lacking),
    #[error(
        "{device} cannot map memory by itself, which pools are made of: register memory of `cudaMalloc` in place of a pool"
    )]
    NoVmm { device: DeviceId },
    #[error("{bytes} bytes is no size of device memory")]
    Size { bytes: u64 },
    #[error(
        "{bytes} bytes of device memory cannot be had: {free} of {total} are free; make the pool smaller, or see with `nvidia-smi` who has the others"
    )]
    DeviceFull { bytes: u64, free: u64, total: u64 },
    /// There is no memory for the words that devices write.
    #[error("a page for the device to write into cannot be had: {why}")]
    Words { why: String },
    #[error("{bytes} bytes of {what} cannot be had ({status}): {mend}")]
    OutOfMemory { bytes: u64, what: &'static str, status: Status, mend: &'static str },
    /// A call of the driver did not go well.
    #[error("{call} failed: {status}")]
    Call { call: &'static str, status: Status },
}

impl CudaError {
    /// Whether a call was refused only because the driver had no memory for it: it may be made again.
    pub(crate) fn is_shortage(&self) -> bool {
        matches!(self, Self::Call { status: Status::OUT_OF_MEMORY, .. })
    }

    /// What a call that asks for so many bytes has answered.
    pub(crate) fn of_memory(error: Self, bytes: u64, what: &'static str) -> Self {
        match error {
            Self::Call { status: status @ Status::OUT_OF_MEMORY, .. } => {
                let mend = "make pools smaller, or free what others have (`nvidia-smi`, `free`)";
                Self::OutOfMemory { bytes, what, status, mend }
            }
            other => other,
        }
    }
}

/// What to do where the driver does not start.
fn mend_of(status: Status) -> &'static str {
    match status {
        Status::NO_DEVICE => {
            "; `nvidia-smi` says which devices there are, `CUDA_VISIBLE_DEVICES` which of them this process may see; a container is \
             started with `--gpus all`"
        }
        Status::SYSTEM_DRIVER_MISMATCH | Status::COMPAT_NOT_SUPPORTED_ON_DEVICE => {
            "; install libcuda1 of the release that /proc/driver/nvidia/version names"
        }
        Status::SYSTEM_NOT_READY => "; a host with NVSwitch needs nvidia-fabricmanager running",
        _ => "; `penstock doctor gpu` says more",
    }
}

/// A call's answer as a result.
pub(crate) fn check(call: &'static str, status: Status) -> Result<(), CudaError> {
    if status.is_success() { Ok(()) } else { Err(CudaError::Call { call, status }) }
}
