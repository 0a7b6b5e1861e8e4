//! The order of copies behind a program's streams.
//!
//! Each device has an *order stream*, which nothing is copied in. It waits for an event in the program's stream, and then for the next: an event at its
//! end has come when all of them have. Streams that copy wait for that one before the next copy that they are given, whenever they were made.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use penstock_cuda_sys::Status;
use penstock_cuda_sys::types::{CUevent, CUstream};
use penstock_memory::DeviceId;

use crate::context::{Context, CurrentContext};
use crate::driver::Cuda;
use crate::error::{CudaError, check};

/// It does not wait for work of the default stream, nor that for its.
const NON_BLOCKING: u32 = 1;
/// No time is taken, which would make it dearer.
const UNTIMED: u32 = 2;
/// The stream is not captured.
const CAPTURE_NONE: c_int = 0;

/// Orders every copy that an engine of this process gives this device from now on behind all work that the stream has at this moment. It waits for
/// nothing, and may be called before the device is used. The stream is a `CUstream` or `cudaStream_t` in the device's primary context: 0 and 1 name its
/// legacy default stream, 2 the default stream of the calling thread. Orders add up. An event is recorded in the stream, and nothing else is done with it;
/// one that is being captured is refused, and so is one of another device.
///
/// A copy that is held up by the stream cannot be taken back: its transfer ends by its deadline, and its memory is withheld until the stream goes on.
///
/// # Safety
/// The stream is not destroyed before the call returns, and no capture of it begins meanwhile.
pub unsafe fn order_behind(device: DeviceId, stream: u64) -> Result<(), CudaError> {
    let context = Context::of(Cuda::start()?, device)?;
    let entered = context.enter()?;
    // SAFETY: the caller's promise.
    unsafe { context.order.extend(device, stream, &entered) }
}

/// What copies of one device begin behind.
#[derive(Debug, Default)]
pub(crate) struct CopyOrder {
    /// How often it was extended.
    extended: AtomicU64,
    /// How often it was when all of it had come.
    passed: AtomicU64,
    streams: OnceLock<OrderStream>,
    /// Held while it is extended.
    lock: Mutex<()>,
}

/// Made once for a device, for as long as the process is there.
#[derive(Debug)]
struct OrderStream {
    stream: CUstream,
    /// Recorded in the program's stream.
    behind: CUevent,
    /// Recorded at the end of this one.
    end: CUevent,
}

// SAFETY: the driver lets any thread use streams and events.
unsafe impl Send for OrderStream {}
// SAFETY: as for Send.
unsafe impl Sync for OrderStream {}

impl OrderStream {
    fn new(entered: &CurrentContext<'_>) -> Result<Self, CudaError> {
        let driver = entered.cuda.driver;
        let mut made = Self { stream: ptr::null_mut(), behind: ptr::null_mut(), end: ptr::null_mut() };
        // SAFETY: each call writes one handle.
        unsafe {
            let stream = driver.cuStreamCreateWithPriority(&raw mut made.stream, NON_BLOCKING, 0);
            check("cuStreamCreateWithPriority", stream)?;
            for event in [&raw mut made.behind, &raw mut made.end] {
                check("cuEventCreate", driver.cuEventCreate(event, UNTIMED)).inspect_err(|_| made.destroy(entered))?;
            }
        }
        Ok(made)
    }

    /// Gives back what was made, where not all of it could be.
    fn destroy(&self, entered: &CurrentContext<'_>) {
        // SAFETY: nobody uses them. What cannot be given back stays.
        unsafe {
            let _ = entered.cuda.driver.cuStreamDestroy(self.stream);
            if !self.behind.is_null() {
                let _ = entered.cuda.driver.cuEventDestroy(self.behind);
            }
        }
    }
}

impl CopyOrder {
    /// # Safety
    /// As of [`order_behind`].
    unsafe fn extend(&self, device: DeviceId, stream: u64, entered: &CurrentContext<'_>) -> Result<(), CudaError> {
        let driver = entered.cuda.driver;
        let of_program = |call, status| match status {
            Status::INVALID_HANDLE | Status::CONTEXT_IS_DESTROYED => Err(CudaError::NoSuchStream { device, stream }),
            Status::STREAM_CAPTURE_UNSUPPORTED
            | Status::STREAM_CAPTURE_INVALIDATED
            | Status::STREAM_CAPTURE_IMPLICIT => Err(CudaError::Captured { stream }),
            status => check(call, status),
        };
        let handle = ptr::without_provenance_mut::<()>(stream as usize) as CUstream;
        let _extending = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let mut capture = CAPTURE_NONE;
        // An event that is recorded in a capture is a part of the graph, and who waits for it, too.
        // SAFETY: the stream is there, as the caller promises; it writes one number.
        of_program("cuStreamIsCapturing", unsafe { driver.cuStreamIsCapturing(handle, &raw mut capture) })?;
        if capture != CAPTURE_NONE {
            return Err(CudaError::Captured { stream });
        }
        let own = match self.streams.get() {
            Some(own) => own,
            None => {
                let made = OrderStream::new(entered)?;
                self.streams.get_or_init(|| made)
            }
        };
        // Recorded again an event is another one, and who waits for the former goes on waiting for that.
        // SAFETY: the streams and events are there; the program's is one of this context, or is refused.
        unsafe {
            of_program("cuEventRecord", driver.cuEventRecord(own.behind, handle))?;
            check("cuStreamWaitEvent", driver.cuStreamWaitEvent(own.stream, own.behind, 0))?;
            check("cuEventRecord", driver.cuEventRecord(own.end, own.stream))?;
        }
        self.extended.fetch_add(1, Ordering::Release); // SYNC copy-order: pairs with put_before()'s Acquire
        Ok(())
    }

    /// Whether the streams have done what they had.
    pub(crate) fn has_passed(&self, context: &Context) -> Result<bool, CudaError> {
        // SYNC copy-order: pairs with extend()'s Release, as in put_before().
        let extended = self.extended.load(Ordering::Acquire);
        // SYNC order-passed: pairs with the Release below: what the streams had written before is seen.
        if self.passed.load(Ordering::Acquire) >= extended {
            return Ok(true);
        }
        let Some(own) = self.streams.get() else { return Ok(true) };
        let entered = context.enter()?;
        // An event that was recorded again meanwhile has come later, and so all the more of it.
        // SAFETY: the event is there for as long as this.
        match unsafe { entered.cuda.driver.cuEventQuery(own.end) } {
            Status::NOT_READY => Ok(false),
            status => {
                check("cuEventQuery", status)?;
                // SYNC order-passed: pairs with the Acquire above.
                self.passed.fetch_max(extended, Ordering::Release);
                Ok(true)
            }
        }
    }
}

/// What one stream that copies has seen of a device's order.
pub(crate) struct SeenOrder {
    pub(crate) context: Arc<Context>,
    extended: u64,
}

impl SeenOrder {
    pub(crate) fn new(context: &Arc<Context>) -> Self {
        Self { context: Arc::clone(context), extended: 0 }
    }

    /// Has the stream wait for what the device's copies begin behind, unless it does already.
    pub(crate) fn put_before(&mut self, stream: CUstream, entered: &CurrentContext<'_>) -> Result<(), CudaError> {
        let order = &self.context.order;
        // SYNC copy-order: pairs with extend()'s Release: who sees the number sees an event that is recorded behind as many streams.
        let extended = order.extended.load(Ordering::Acquire);
        if extended == self.extended {
            return Ok(());
        }
        if let Some(own) = order.streams.get() {
            // SAFETY: both are there for as long as this.
            check("cuStreamWaitEvent", unsafe { entered.cuda.driver.cuStreamWaitEvent(stream, own.end, 0) })?;
        }
        self.extended = extended;
        Ok(())
    }
}
