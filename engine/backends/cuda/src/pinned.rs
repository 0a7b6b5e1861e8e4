//! Host memory that devices may reach.

use std::ffi::c_void;
use std::sync::Arc;

use penstock_core::env::{BlockingJob, TransportEnv};
use penstock_memory::{PageRegistration, Window};

use crate::context::Context;
use crate::error::{CudaError, check};

/// It may be used in the contexts of all devices.
const PORTABLE: u32 = 1;

/// A mapping that is registered with the driver.
struct PinnedPages {
    env: Arc<dyn TransportEnv>,
    context: Arc<Context>,
    base: u64,
    bytes: u64,
    is_registered: bool,
}

/// Registers the whole mapping that this window is over, unless it is: from then on devices copy from and to it without the processor. It takes 33 ms
/// a gigabyte, so it is not for a worker.
pub(crate) fn pin(env: &Arc<dyn TransportEnv>, context: &Arc<Context>, window: &Window) -> Result<(), CudaError> {
    let register = |base, bytes| {
        let (env, context) = (Arc::clone(env), Arc::clone(context));
        let mut pages = PinnedPages { env, context, base, bytes, is_registered: false };
        pages.register()?;
        Ok(Box::new(pages) as Box<dyn PageRegistration>)
    };
    window.register_pages(register).unwrap_or(Err(CudaError::NotOurs { base: window.base_address() }))
}

impl PinnedPages {
    fn register(&mut self) -> Result<(), CudaError> {
        let entered = self.context.enter()?;
        let driver = entered.cuda.driver;
        // SAFETY: the mapping is there until this registration has been dropped, or suspended, before.
        let status = unsafe { driver.cuMemHostRegister(self.base as *mut c_void, self.bytes as usize, PORTABLE) };
        check("cuMemHostRegister", status).map_err(|error| CudaError::of_memory(error, self.bytes, "pinned memory"))?;
        self.is_registered = true;
        Ok(())
    }
}

impl PageRegistration for PinnedPages {
    fn suspend(&mut self) {
        if !std::mem::take(&mut self.is_registered) {
            return;
        }
        // A child has no registration: it is its parent's.
        let Ok(entered) = self.context.enter() else { return };
        // SAFETY: it was registered; the call waits for copies that are under way.
        let status = unsafe { entered.cuda.driver.cuMemHostUnregister(self.base as *mut c_void) };
        if let Err(error) = check("cuMemHostUnregister", status) {
            tracing::warn!(%error, "pinned memory stays pinned");
        }
    }

    fn resume(&mut self) -> bool {
        self.register()
            .inspect_err(|error| tracing::warn!(%error, "memory that was renewed could not be pinned again"))
            .is_ok()
    }

    /// Whoever lets go of a mapping last may be a worker, and the driver waits for all copies of the device, and for streams of the program.
    fn end(self: Box<Self>, unmap: BlockingJob) {
        let env = Arc::clone(&self.env);
        let end = move || {
            drop(self);
            unmap.run();
        };
        env.run_blocking(0, BlockingJob::once(end));
    }
}

impl Drop for PinnedPages {
    fn drop(&mut self) {
        self.suspend();
    }
}
