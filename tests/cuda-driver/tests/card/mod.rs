//! The driver as a user of device memory calls it, and the card behind it.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs;
use std::ptr::null_mut;
use std::time::{Duration, Instant};

use penstock::{Engine, LocalRegion, Rights, SystemEnv};
use penstock_cuda_sys::types::{CUcontext, CUdeviceptr, CUstream};
use penstock_cuda_sys::{Driver, Status};

use crate::engines::PATIENCE;

/// The context of a device, current for as long as this is there.
struct Current {
    driver: &'static Driver,
}

impl Current {
    fn enter(device: i32) -> Self {
        let driver = Driver::open().unwrap();
        let mut context: CUcontext = null_mut();
        // SAFETY: each call writes one value, and the device is there.
        unsafe {
            assert_eq!(driver.cuInit(0), Status::SUCCESS);
            assert_eq!(driver.cuDevicePrimaryCtxRetain(&raw mut context, device), Status::SUCCESS);
            assert_eq!(driver.cuCtxPushCurrent(context), Status::SUCCESS);
        }
        Self { driver }
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        let mut context = null_mut();
        // SAFETY: it is this thread's.
        let popped = unsafe { self.driver.cuCtxPopCurrent(&raw mut context) };
        assert_eq!(popped, Status::SUCCESS);
    }
}

/// Whether this thread has a context current.
pub(crate) fn has_context() -> bool {
    let mut context = null_mut();
    // SAFETY: it writes one handle.
    assert_eq!(unsafe { Driver::open().unwrap().cuCtxGetCurrent(&raw mut context) }, Status::SUCCESS);
    !context.is_null()
}

/// Device memory that a program has allocated itself.
pub(crate) struct Buffer {
    device: i32,
    address: CUdeviceptr,
    bytes: usize,
    /// Host memory of as many bytes that the card may reach.
    scratch: *mut u8,
    stream: CUstream,
}

impl Buffer {
    pub(crate) fn new(bytes: u64) -> Self {
        Self::on(0, bytes)
    }

    /// On the device of this number.
    pub(crate) fn on(device: i32, bytes: u64) -> Self {
        let (current, bytes) = (Current::enter(device), bytes as usize);
        let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let (mut address, mut stream) = (0, null_mut());
        // The device's memory first: it may have the place of memory that was freed.
        // SAFETY: the driver's calls write one value each; a fresh mapping at a place of the kernel's choice. 1: it does not wait for the default stream.
        let scratch = unsafe {
            assert_eq!(current.driver.cuMemAlloc(&raw mut address, bytes), Status::SUCCESS);
            assert_eq!(current.driver.cuStreamCreateWithPriority(&raw mut stream, 1, 0), Status::SUCCESS);
            let scratch = libc::mmap(null_mut(), bytes, rights, kind, -1, 0);
            assert_ne!(scratch, libc::MAP_FAILED);
            scratch
        };
        Self { device, address, bytes, scratch: scratch.cast(), stream }
    }

    pub(crate) fn address(&self) -> u64 {
        self.address
    }

    pub(crate) fn register(&self, engine: &Engine<SystemEnv>, label: &str) -> LocalRegion<SystemEnv> {
        // SAFETY: tests keep it for as long as engines use it, or look at what happens otherwise.
        let memory = unsafe { penstock::device::adopt(self.address, self.bytes as u64) }.unwrap();
        engine.register_device(memory, label, Rights::READ_WRITE).unwrap()
    }

    pub(crate) fn write(&self, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.bytes);
        // SAFETY: it has so many bytes, to which the card has nothing to do now.
        unsafe { self.scratch.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        // SAFETY: both have so many bytes.
        self.copy(|driver, stream| unsafe {
            driver.cuMemcpyHtoDAsync(self.address, self.scratch.cast(), self.bytes, stream)
        });
    }

    pub(crate) fn read(&self) -> Vec<u8> {
        // SAFETY: both have so many bytes.
        self.copy(|driver, stream| unsafe {
            driver.cuMemcpyDtoHAsync(self.scratch.cast(), self.address, self.bytes, stream)
        });
        // SAFETY: the copy is over.
        unsafe { std::slice::from_raw_parts(self.scratch, self.bytes) }.to_vec()
    }

    fn copy(&self, copy: impl FnOnce(&Driver, CUstream) -> Status) {
        let Current { driver } = &Current::enter(self.device);
        // SAFETY: it is mapped until it is unregistered.
        let registered = unsafe { driver.cuMemHostRegister(self.scratch.cast(), self.bytes, 0) };
        assert_eq!(registered, Status::SUCCESS);
        assert_eq!(copy(driver, self.stream), Status::SUCCESS);
        let end = Instant::now() + PATIENCE;
        // SAFETY: it is a stream.
        while unsafe { driver.cuStreamQuery(self.stream) } != Status::SUCCESS {
            assert!(Instant::now() < end, "the copy does not pass");
            std::thread::sleep(Duration::from_micros(50));
        }
        // SAFETY: nothing uses it.
        assert_eq!(unsafe { driver.cuMemHostUnregister(self.scratch.cast()) }, Status::SUCCESS);
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let current = Current::enter(self.device);
        // SAFETY: what a lost card does not free is no matter of these tests.
        unsafe {
            let _ = current.driver.cuMemFree(self.address);
            let _ = current.driver.cuStreamDestroy(self.stream);
            libc::munmap(self.scratch.cast::<c_void>(), self.bytes);
        }
    }
}

/// A function of the stand-in's own: of the library that the driver was opened from, not of this program's copy of it.
fn own(name: &CStr) -> *mut c_void {
    let path = CString::new(std::env::var(penstock::device::PATH_VARIABLE).unwrap()).unwrap();
    // SAFETY: the library is open already; both are C strings.
    let function =
        unsafe { libc::dlsym(libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD), name.as_ptr()) };
    assert!(!function.is_null());
    function
}

/// Calls that nothing of Penstock may make, with how often each was made.
pub(crate) fn forbidden() -> String {
    type Forbidden = extern "C" fn(*mut c_char, c_int) -> u32;
    // SAFETY: the function has this type.
    let forbidden = unsafe { std::mem::transmute::<*mut c_void, Forbidden>(own(c"penstock_cuda_stand_in_forbidden")) };
    let mut text = [0_u8; 4096];
    let count = forbidden(text.as_mut_ptr().cast(), text.len() as c_int);
    let words = CStr::from_bytes_until_nul(&text).unwrap().to_str().unwrap().to_owned();
    assert_eq!(count == 0, words.is_empty(), "{count}: {words}");
    words
}

/// The process that executes what streams were given.
pub(crate) struct Card(libc::pid_t);

impl Card {
    pub(crate) fn of_this_process() -> Self {
        let end = Instant::now() + PATIENCE;
        loop {
            // The system may leave out some while others end.
            let tasks = fs::read_dir("/proc/self/task").unwrap().flatten();
            let lines = tasks.filter_map(|task| fs::read_to_string(task.path().join("children")).ok());
            let children: Vec<libc::pid_t> = lines
                .flat_map(|line| line.split_whitespace().map(|pid| pid.parse().unwrap()).collect::<Vec<_>>())
                .collect();
            let is_card = |pid: &&libc::pid_t| {
                fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.starts_with("penstock-cuda"))
            };
            if let Some(&card) = children.iter().find(is_card) {
                return Self(card);
            }
            assert!(Instant::now() < end, "the card does not run");
        }
    }

    /// It does nothing until [`Card::go_on`].
    pub(crate) fn hold(&self) {
        self.signal(libc::SIGSTOP);
    }

    pub(crate) fn go_on(&self) {
        self.signal(libc::SIGCONT);
    }

    /// While it is held, it is lost to this process, as if it had fallen off the bus.
    pub(crate) fn lose(&self) {
        // SAFETY: the function has this type.
        let lose = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn()>(own(c"penstock_cuda_stand_in_lose")) };
        // It says that it is, so it has to run again; what it hears of that comes before what it has to do.
        std::thread::scope(|scope| {
            scope.spawn(move || lose());
            std::thread::sleep(Duration::from_millis(30));
            self.go_on();
        });
    }

    fn signal(&self, signal: c_int) {
        // SAFETY: it is a child of this process.
        assert_eq!(unsafe { libc::kill(self.0, signal) }, 0);
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        self.go_on();
    }
}
