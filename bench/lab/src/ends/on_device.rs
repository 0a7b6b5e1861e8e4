//! The memory of an end in a device, and the pool of the host by which it is filled and looked at.

use std::time::Duration;

use penstock::device::Cuda;
use penstock::region::Pool;
use penstock::{DevicePool, Engine, Plan, PoolSpec, Span, Submit, SystemEnv};
use serde::{Deserialize, Serialize};

use super::CONNECT;
use super::end::LABEL;
use crate::error::LabError;

/// How long all of it may take to be copied.
const COPIED: Duration = Duration::from_secs(60);

/// Whose memory bytes come from or go to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemoryKind {
    /// The host's.
    #[default]
    Host,
    /// That of the first GPU.
    Device,
}

/// A pool in the memory of the first GPU, as long as another one of the host's.
pub struct OnDevice {
    /// The pool that plans name and peers find.
    pub pool: DevicePool<SystemEnv>,
    /// What the device is called.
    pub device: String,
    to_device: Plan,
    from_device: Plan,
    oneself: penstock::Peer<SystemEnv>,
}

impl OnDevice {
    /// Beside the host's, in an engine that has a session with itself.
    pub(super) fn beside(host: &Pool<SystemEnv>, engine: &Engine) -> Result<Self, LabError> {
        let device = Cuda::start().and_then(|cuda| Ok(cuda.devices()?.swap_remove(0)));
        let device = device.map_err(LabError::refused("find a GPU"))?;
        let spec = PoolSpec::device(device.id, host.bytes()).block(host.memory().block_bytes()).label(LABEL);
        let pool = engine.device_pool(spec).map_err(LabError::refused("make a pool in the memory of a GPU"))?;
        let oneself = engine.connect(&engine.descriptor(), CONNECT);
        let oneself = oneself.map_err(LabError::refused("reach the GPU of this engine"))?;
        let there = oneself.wait_region(LABEL, CONNECT).map_err(LabError::refused("find the GPU's pool"))?;
        let whole = [Span { local: 0, remote: 0, len: host.bytes() }];
        let [to_device, from_device] = [Plan::write(&**host, &there), Plan::read(&**host, &there)]
            .map(|plan| plan.extents(&whole).build().map_err(LabError::refused("plan copies of the GPU's pool")));
        Ok(Self { pool, device: device.attr.name, to_device: to_device?, from_device: from_device?, oneself })
    }

    /// Copies all of the host's pool to the device's.
    pub fn fill(&self) -> Result<(), LabError> {
        self.copy(&self.to_device)
    }

    /// Copies all of the device's pool to the host's.
    pub fn fetch(&self) -> Result<(), LabError> {
        self.copy(&self.from_device)
    }

    fn copy(&self, plan: &Plan) -> Result<(), LabError> {
        let copied = self.oneself.submit(plan, Submit::new().within(COPIED));
        copied.map_err(LabError::refused("copy the GPU's pool"))?.wait()?;
        Ok(())
    }
}
