//! What can go wrong, and the mend.

use penstock_cuda_sys::{NotHere, Status};

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
    /// A call of the driver did not go well.
    #[error("{call} failed: {status}")]
    Call { call: &'static str, status: Status },
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
