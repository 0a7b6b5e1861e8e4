//! What wakes a worker when a stream has come to a place.

use std::ffi::c_void;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use penstock_cuda_sys::types::CUstream;
use rustix::event::{EventfdFlags, eventfd};

use crate::context::CurrentContext;
use crate::error::{CudaError, check};

#[derive(Debug)]
pub(crate) struct StreamBell {
    descriptor: OwnedFd,
    is_rung: AtomicBool,
}

impl StreamBell {
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let descriptor = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Arc::new(Self { descriptor, is_rung: AtomicBool::new(false) }))
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// Rings once the stream has done what it was given so far; on a device that is lost it never does.
    pub(crate) fn ring_behind(
        self: &Arc<Self>,
        stream: CUstream,
        entered: &CurrentContext<'_>,
    ) -> Result<(), CudaError> {
        let bell = Arc::into_raw(Arc::clone(self));
        // SAFETY: the function is called once at most, with this reference count as its own.
        let status = unsafe { entered.cuda.driver.cuLaunchHostFunc(stream, Some(ring), bell.cast_mut().cast()) };
        check("cuLaunchHostFunc", status).inspect_err(|_| {
            // SAFETY: it will not be called.
            drop(unsafe { Arc::from_raw(bell) });
        })
    }

    /// It is silent afterwards, until it rings again.
    pub(crate) fn silence(&self) {
        // The descriptor tells by itself; this saves a call of the kernel in every turn.
        if self.is_rung.load(Ordering::Relaxed) && self.is_rung.swap(false, Ordering::Relaxed) {
            let _ = rustix::io::read(&self.descriptor, &mut [0; 8]);
        }
    }
}

/// Called on a thread of the driver's, where none of its functions may be called.
///
/// # Safety
/// The bell is a reference count that is given away to this call.
unsafe extern "C" fn ring(bell: *mut c_void) {
    // SAFETY: `ring_behind` gave this reference count away, to this one call.
    let bell = unsafe { Arc::from_raw(bell.cast::<StreamBell>().cast_const()) };
    // The only failure is a full counter, which wakes just as well.
    let _ = rustix::io::write(&bell.descriptor, &1_u64.to_ne_bytes());
    // Behind it: who found this set before would find nothing to read, and never look again.
    bell.is_rung.store(true, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;

    #[test]
    fn who_silences_it_while_it_rings_finds_it_silent_in_the_end() {
        let bell = StreamBell::new().unwrap();
        for _ in 0..2_000 {
            let ringing = Arc::clone(&bell);
            // SAFETY: this reference count is given away.
            let driver = std::thread::spawn(move || unsafe { ring(Arc::into_raw(ringing).cast_mut().cast()) });
            while !driver.is_finished() {
                bell.silence();
            }
            driver.join().unwrap();
            bell.silence();
            let now = Timespec { tv_sec: 0, tv_nsec: 0 };
            let descriptor = bell.descriptor();
            let readable = poll(&mut [PollFd::new(&descriptor, PollFlags::IN)], Some(&now)).unwrap();
            assert_eq!(readable, 0, "a worker would never sleep again");
        }
    }
}
