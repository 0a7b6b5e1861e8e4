//! What is in a device's memory, for tests: read and written by way of the driver that the process has opened, as a program of its own does.

use std::io;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use penstock_cuda_sys::types::{CUcontext, CUdeviceptr, CUstream};
use penstock_cuda_sys::{Driver, Status};

/// Longer than any copy takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// Reads what the device of this number has from this address on.
///
/// # Panics
/// If there is no driver, or it does not do so.
pub fn read(device: i32, address: u64, bytes: &mut [u8]) {
    drop(Scratch::holding(device, address, bytes));
}

/// The same where a stream is held, which the end of a registration would wait for: this one stays.
///
/// # Panics
/// As of [`read`].
pub fn read_beside_held(device: i32, address: u64, bytes: &mut [u8]) {
    let scratch = Scratch::holding(device, address, bytes);
    scratch.leave();
    std::mem::forget(scratch);
}

/// Writes these bytes to the memory of the device of this number at this address.
///
/// # Panics
/// As of [`read`].
pub fn write(device: i32, address: u64, bytes: &[u8]) {
    let scratch = Scratch::new(device, bytes.len());
    // SAFETY: as many bytes, which nothing else uses.
    unsafe { scratch.place.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    // SAFETY: both have so many bytes, of which the driver knows.
    scratch.copy(|driver, stream| unsafe {
        driver.cuMemcpyHtoDAsync(address as CUdeviceptr, scratch.place, bytes.len(), stream)
    });
}

/// Host memory that the card may reach, in a context that is current for as long.
struct Scratch {
    driver: &'static Driver,
    place: *mut libc::c_void,
    bytes: usize,
}

impl Scratch {
    /// With what the device has there, which these bytes are then.
    fn holding(device: i32, address: u64, bytes: &mut [u8]) -> Self {
        let scratch = Self::new(device, bytes.len());
        // SAFETY: both have so many bytes, of which the driver knows.
        scratch.copy(|driver, stream| unsafe {
            driver.cuMemcpyDtoHAsync(scratch.place, address as CUdeviceptr, bytes.len(), stream)
        });
        // SAFETY: as many bytes, and the copy is over.
        unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(scratch.place.cast(), bytes.len()) };
        scratch
    }

    fn new(device: i32, bytes: usize) -> Self {
        let driver = Driver::open().expect("there is a driver");
        let mut context: CUcontext = null_mut();
        let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: each call writes one value, and the device is there; a fresh mapping at a place of the kernel's choice.
        unsafe {
            assert_eq!(driver.cuInit(0), Status::SUCCESS);
            assert_eq!(driver.cuDevicePrimaryCtxRetain(&raw mut context, device), Status::SUCCESS);
            assert_eq!(driver.cuCtxPushCurrent(context), Status::SUCCESS);
            let place = libc::mmap(null_mut(), bytes, rights, kind, -1, 0);
            assert_ne!(place, libc::MAP_FAILED, "{}", io::Error::last_os_error());
            assert_eq!(driver.cuMemHostRegister(place, bytes, 0), Status::SUCCESS);
            Self { driver, place, bytes }
        }
    }

    fn copy(&self, copy: impl FnOnce(&Driver, CUstream) -> Status) {
        let (mut stream, end) = (null_mut(), Instant::now() + PATIENCE);
        // SAFETY: it writes one handle, which is used as long as it stands. 1: it does not wait for the default stream.
        unsafe {
            assert_eq!(self.driver.cuStreamCreateWithPriority(&raw mut stream, 1, 0), Status::SUCCESS);
            assert_eq!(copy(self.driver, stream), Status::SUCCESS);
            while self.driver.cuStreamQuery(stream) != Status::SUCCESS {
                assert!(Instant::now() < end, "the copy does not pass");
                std::thread::sleep(Duration::from_micros(20));
            }
            assert_eq!(self.driver.cuStreamDestroy(stream), Status::SUCCESS);
        }
    }
}

impl Scratch {
    fn leave(&self) {
        let mut context = null_mut();
        // SAFETY: the context is this thread's.
        assert_eq!(unsafe { self.driver.cuCtxPopCurrent(&raw mut context) }, Status::SUCCESS);
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: nothing uses it any more.
        let ended = unsafe {
            let ended = self.driver.cuMemHostUnregister(self.place);
            libc::munmap(self.place, self.bytes);
            ended
        };
        assert_eq!(ended, Status::SUCCESS);
        self.leave();
    }
}
