//! The driver, started once in a process.

use std::sync::OnceLock;

use penstock_cuda_sys::{Driver, Lacking, Status, Version};
use penstock_memory::fork::Starter;

use crate::device::Device;
use crate::error::{CudaError, check};

static STARTER: Starter = Starter::new();

/// The driver, which has been started in this process.
#[derive(Debug, Clone, Copy)]
pub struct Cuda {
    pub(crate) driver: &'static Driver,
}

impl Cuda {
    /// Starts the driver, or answers that which runs. It takes a tenth of a second and more the first time, so it is for whoever makes or
    /// registers device memory, and not for a worker. What did not start is tried again at the next call.
    pub fn start() -> Result<Self, CudaError> {
        static RUNNING: OnceLock<Cuda> = OnceLock::new();
        // Opened before: a child may open what its parent has not started.
        let driver = Driver::open()?;
        if !STARTER.claim() {
            return Err(CudaError::Forked);
        }
        if let Some(running) = RUNNING.get() {
            return Ok(*running);
        }
        // SAFETY: it may be called by any thread at any time, also again.
        let status = unsafe { driver.cuInit(0) };
        if !status.is_success() {
            return Err(CudaError::Start { status });
        }
        Ok(*RUNNING.get_or_init(|| Self { driver }))
    }

    /// The release of CUDA that the driver is of.
    pub fn version(self) -> Version {
        self.driver.version()
    }

    /// Functions that the driver lacks, and without which something else is done.
    pub fn lacks(self) -> Vec<Lacking> {
        self.driver.lacks()
    }

    /// Its devices, in the order in which this process has them.
    pub fn devices(self) -> Result<Vec<Device>, CudaError> {
        self.check_process()?;
        let mut count = 0;
        // SAFETY: it writes one number.
        match unsafe { self.driver.cuDeviceGetCount(&raw mut count) } {
            Status::NO_DEVICE => return Err(CudaError::NoDevice),
            status => check("cuDeviceGetCount", status)?,
        }
        if count <= 0 {
            return Err(CudaError::NoDevice);
        }
        (0..count).map(|ordinal| Device::at(self, ordinal)).collect()
    }

    /// A child of the process that has started the driver leaves it alone: there queries say that a stream is done.
    pub(crate) fn check_process(self) -> Result<(), CudaError> {
        if STARTER.is_this_process() { Ok(()) } else { Err(CudaError::Forked) }
    }
}
