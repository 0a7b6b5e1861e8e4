//! What an engine's lanes are given.

use std::io;
use std::sync::Arc;

use penstock_core::env::TransportEnv;
use penstock_core::limits::UNITS_AT_ONCE;
use penstock_cuda_sys::{Driver as CudaDriver, NotHere};
use penstock_memory::{DeviceId, DeviceWindow, Memory};
use penstock_transport::host::EngineSegments;
use penstock_transport::{CardAccess, DeviceLane, Devices, Driver, ImportError, Pair};

use crate::context::Context;
use crate::driver::Cuda;
use crate::error::CudaError;
use crate::gpudirect;
use crate::hub::{Hub, HubDriver, HubLane};
use crate::pinned::pin;

/// The devices of this process, as one engine uses them.
pub struct CudaDevices {
    env: Arc<dyn TransportEnv>,
    segments: Arc<EngineSegments>,
    /// One for each worker.
    hubs: Vec<Arc<Hub>>,
}

impl CudaDevices {
    /// Opens the driver, and does not start it: that is for the first who needs a device.
    pub fn open(env: &Arc<dyn TransportEnv>, segments: &Arc<EngineSegments>) -> Result<io::Result<Self>, NotHere> {
        CudaDriver::open()?;
        let hubs = (0..segments.workers()).map(|_| Hub::new(Arc::clone(env)).map(Arc::new));
        let hubs = hubs.collect::<io::Result<Vec<_>>>();
        Ok(hubs.map(|hubs| Self { env: Arc::clone(env), segments: Arc::clone(segments), hubs }))
    }

    fn prepare(&self, local: &Memory, remote: &Memory) -> Result<(), CudaError> {
        let cuda = Cuda::start()?;
        let mut first = None;
        for device in [local.device(), remote.device()].into_iter().flatten() {
            let context = Context::of(cuda, device)?;
            self.hubs.iter().try_for_each(|hub| hub.prepare(&context))?;
            first.get_or_insert(context);
        }
        let windows = [local.host(), remote.host()].into_iter().flatten();
        first.map_or(Ok(()), |context| windows.into_iter().try_for_each(|window| pin(&self.env, &context, window)))
    }
}

impl Devices for CudaDevices {
    fn pair(&self, local: &Memory, remote: &Memory) -> Result<Pair, ImportError> {
        self.prepare(local, remote).map_err(|error| ImportError::NoPath(error.to_string()))?;
        // One worker gives a device copies as fast as all of them, and a notification waits for words.
        let units_at_once = UNITS_AT_ONCE;
        Ok(Pair { is_synchronous: false, is_ordered: false, splits: false, units_at_once, is_staged: false })
    }

    fn lane(&self, worker: usize, peer_index: u32) -> Box<dyn DeviceLane> {
        Box::new(HubLane::new(&self.hubs[worker], peer_index))
    }

    fn driver(&self, worker: usize) -> io::Result<Box<dyn Driver>> {
        let ready = self.segments.mailbox.view().ready(worker);
        Ok(Box::new(HubDriver { hub: Arc::clone(&self.hubs[worker]), ready }))
    }

    fn share_with_cards(&self, memory: &DeviceWindow) -> Result<CardAccess, String> {
        let cuda = Cuda::start().map_err(|error| error.to_string())?;
        gpudirect::share_with_cards(cuda, memory).map_err(|error| error.to_string())
    }

    fn flush_card_writes(&self, device: DeviceId) -> Result<(), String> {
        let cuda = Cuda::start().map_err(|error| error.to_string())?;
        gpudirect::flush_card_writes(cuda, device).map_err(|error| error.to_string())
    }

    fn is_in_order(&self, device: DeviceId) -> bool {
        let context = Cuda::start().and_then(|cuda| Context::of(cuda, device));
        // A device that has failed is told by whoever uses it next; one whose driver had no memory for the question is asked again.
        context.and_then(|context| context.order.has_passed(&context)).unwrap_or_else(|error| !error.is_shortage())
    }
}
