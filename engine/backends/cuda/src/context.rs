//! A device's primary context, and being in it for a call.

use std::marker::PhantomData;
use std::ptr;
use std::sync::{Arc, Mutex, PoisonError};

use penstock_cuda_sys::types::{CUcontext, CUdevice, CUstreamCaptureMode};
use penstock_memory::DeviceId;

use crate::driver::Cuda;
use crate::error::{CudaError, check};
use crate::order::CopyOrder;

/// The primary context of a device, which all of a process shares. It is kept until the process ends: making it again takes longer than most transfers.
#[derive(Debug)]
pub(crate) struct Context {
    cuda: Cuda,
    pub(crate) device: DeviceId,
    handle: CUcontext,
    pub(crate) order: CopyOrder,
}

// SAFETY: the driver lets any thread push a context that is retained, several at a time.
unsafe impl Send for Context {}
// SAFETY: as for Send.
unsafe impl Sync for Context {}

impl Context {
    /// The context of this device, which the driver may have to make: for whoever makes or registers memory, and not for a worker.
    pub(crate) fn of(cuda: Cuda, device: DeviceId) -> Result<Arc<Self>, CudaError> {
        static ALL: Mutex<Vec<Arc<Context>>> = Mutex::new(Vec::new());
        // A child may have caught the lock.
        cuda.check_process()?;
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(context) = all.iter().find(|context| context.device == device) {
            return Ok(Arc::clone(context));
        }
        let ordinal = cuda.devices()?.into_iter().find(|other| other.id == device).map(|found| found.ordinal);
        let ordinal = ordinal.ok_or(CudaError::NoSuchDevice { device })?;
        let (mut number, mut handle): (CUdevice, CUcontext) = (0, ptr::null_mut());
        // SAFETY: the driver runs; each call writes one value of its type.
        unsafe {
            check("cuDeviceGet", cuda.driver.cuDeviceGet(&raw mut number, ordinal))?;
            check("cuDevicePrimaryCtxRetain", cuda.driver.cuDevicePrimaryCtxRetain(&raw mut handle, number))?;
        }
        let context = Arc::new(Self { cuda, device, handle, order: CopyOrder::default() });
        all.push(Arc::clone(&context));
        Ok(context)
    }

    /// Makes it current for this thread until the answer is dropped, and leaves a capture of the caller's streams alone.
    pub(crate) fn enter(&self) -> Result<CurrentContext<'_>, CudaError> {
        self.cuda.check_process()?;
        let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the context is retained; the mode is read and written.
        unsafe {
            check("cuCtxPushCurrent", self.cuda.driver.cuCtxPushCurrent(self.handle))?;
            // Without it a capture that goes on would be spoiled by our calls. Nothing is lost where it fails.
            let _ = self.cuda.driver.cuThreadExchangeStreamCaptureMode(&raw mut mode);
        }
        Ok(CurrentContext { cuda: self.cuda, mode, _of_this_thread: PhantomData, _context: self })
    }
}

/// A thread that has a context current.
pub(crate) struct CurrentContext<'a> {
    pub(crate) cuda: Cuda,
    /// The thread's own.
    mode: CUstreamCaptureMode,
    _of_this_thread: PhantomData<*const ()>,
    _context: &'a Context,
}

impl Drop for CurrentContext<'_> {
    fn drop(&mut self) {
        let mut popped = ptr::null_mut();
        // SAFETY: undoes what `enter` did, in the same thread.
        unsafe {
            let _ = self.cuda.driver.cuThreadExchangeStreamCaptureMode(&raw mut self.mode);
            let _ = self.cuda.driver.cuCtxPopCurrent(&raw mut popped);
        }
    }
}
