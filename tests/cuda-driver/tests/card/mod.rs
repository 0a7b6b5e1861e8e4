//! The driver as a user of device memory calls it, and the card behind it.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fs;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use penstock::{Engine, LocalRegion, Rights, SystemEnv};
use penstock_cuda_driver::peek;
use penstock_cuda_sys::types::{CUcontext, CUdeviceptr, CUpointer_attribute, CUstream};
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
}

impl Buffer {
    pub(crate) fn new(bytes: u64) -> Self {
        Self::on(0, bytes)
    }

    /// On the device of this number.
    pub(crate) fn on(device: i32, bytes: u64) -> Self {
        let (current, bytes, mut address) = (Current::enter(device), bytes as usize, 0);
        // SAFETY: it writes one value.
        assert_eq!(unsafe { current.driver.cuMemAlloc(&raw mut address, bytes) }, Status::SUCCESS);
        Self { device, address, bytes }
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
        peek::write(self.device, self.address, bytes);
    }

    pub(crate) fn read(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes];
        peek::read(self.device, self.address, &mut bytes);
        bytes
    }

    /// The same where another stream is held.
    pub(crate) fn peek(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.bytes];
        peek::read_beside_held(self.device, self.address, &mut bytes);
        bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let current = Current::enter(self.device);
        // SAFETY: what a lost card does not free is no matter of these tests.
        unsafe {
            let _ = current.driver.cuMemFree(self.address);
        }
    }
}

/// A stream of the program's own, and a word that it can be held by.
pub(crate) struct ProgramStream {
    device: i32,
    stream: CUstream,
    word: *mut AtomicU64,
}

impl ProgramStream {
    /// On the device of this number.
    pub(crate) fn on(device: i32) -> Self {
        let mut stream = null_mut();
        let current = Current::enter(device);
        // SAFETY: it writes one handle. 1: it does not wait for the default stream.
        assert_eq!(unsafe { current.driver.cuStreamCreateWithPriority(&raw mut stream, 1, 0) }, Status::SUCCESS);
        Self::of(device, stream.expose_provenance() as u64)
    }

    /// One that is there already: a default stream, by its name.
    pub(crate) fn of(device: i32, handle: u64) -> Self {
        let current = Current::enter(device);
        let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping, which stays.
        let word = unsafe { libc::mmap(null_mut(), 4096, rights, kind, -1, 0) };
        assert_ne!(word, libc::MAP_FAILED);
        // SAFETY: as above.
        assert_eq!(unsafe { current.driver.cuMemHostRegister(word, 4096, 0) }, Status::SUCCESS);
        let stream = std::ptr::with_exposed_provenance_mut::<c_void>(handle as usize).cast();
        Self { device, stream, word: word.cast() }
    }

    pub(crate) fn handle(&self) -> u64 {
        self.stream.expose_provenance() as u64
    }

    /// It does nothing of what it is given from now on, until [`ProgramStream::release`].
    pub(crate) fn hold(&self) {
        type WaitValue = unsafe extern "C" fn(CUstream, u64, u64, u32) -> u32;
        let _current = Current::enter(self.device);
        // SAFETY: the function has this type; the word is there, and stays. 0: until it is at least so great.
        unsafe {
            (*self.word).store(0, Ordering::Release);
            let wait = std::mem::transmute::<*mut c_void, WaitValue>(function(c"cuStreamWaitValue64", 11_070));
            assert_eq!(wait(self.stream, self.word as u64, 1, 0), 0);
        }
    }

    pub(crate) fn release(&self) {
        // SAFETY: the word is there, and stays.
        unsafe { &*self.word }.store(1, Ordering::Release);
    }

    /// Fills device memory behind what the stream has, as a kernel would.
    pub(crate) fn fill(&self, buffer: &Buffer, bytes: &[u8]) {
        let current = Current::enter(self.device);
        assert_eq!(bytes.len(), buffer.bytes);
        let place = bytes.to_vec().leak().as_mut_ptr().cast::<c_void>();
        // SAFETY: the buffer has room for so many bytes, to which the card has nothing to do; these stay, and so does their registration.
        unsafe {
            assert_eq!(current.driver.cuMemHostRegister(place, buffer.bytes, 0), Status::SUCCESS);
            let given = current.driver.cuMemcpyHtoDAsync(buffer.address, place, buffer.bytes, self.stream);
            assert_eq!(given, Status::SUCCESS);
        }
    }

    /// Begins or ends a capture of its work.
    pub(crate) fn capture(&self, begins: bool) {
        type Begin = unsafe extern "C" fn(CUstream, u32) -> u32;
        type End = unsafe extern "C" fn(CUstream, *mut *mut c_void) -> u32;
        let (_current, mut graph) = (Current::enter(self.device), null_mut());
        // SAFETY: functions of these types.
        let answered = unsafe {
            match begins {
                true => {
                    std::mem::transmute::<*mut c_void, Begin>(function(c"cuStreamBeginCapture", 10_010))(self.stream, 0)
                }
                false => std::mem::transmute::<*mut c_void, End>(function(c"cuStreamEndCapture", 10_000))(
                    self.stream,
                    &raw mut graph,
                ),
            }
        };
        assert_eq!(answered, 0);
    }

    pub(crate) fn destroy(&self) {
        let current = Current::enter(self.device);
        // SAFETY: nobody uses it, but those that are to be refused.
        assert_eq!(unsafe { current.driver.cuStreamDestroy(self.stream) }, Status::SUCCESS);
    }
}

impl Drop for ProgramStream {
    /// A test that fails ends: what gives memory back waits for all streams.
    fn drop(&mut self) {
        self.release();
    }
}

/// A function of the driver's that Penstock does not call.
fn function(name: &CStr, version: c_int) -> *mut c_void {
    type Get = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut u32) -> u32;
    let (mut place, mut became) = (null_mut(), 0);
    // SAFETY: the function has this type, and is given a C string and two places.
    let answered = unsafe {
        let get = std::mem::transmute::<*mut c_void, Get>(own(c"cuGetProcAddress_v2"));
        get(name.as_ptr(), &raw mut place, version, 0, &raw mut became)
    };
    assert_eq!(answered, 0, "{name:?}");
    place
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

/// How often what cards have written was flushed to a device.
pub(crate) fn flushes() -> u64 {
    type Flushes = extern "C" fn() -> u64;
    // SAFETY: the function has this type.
    let flushes = unsafe { std::mem::transmute::<*mut c_void, Flushes>(own(c"penstock_cuda_stand_in_flushes")) };
    flushes()
}

/// A driver that has no memory for some calls, until this is dropped: those of `calls`, a bit for each.
pub(crate) struct Shortage {
    calls: u64,
    before: u64,
}

impl Shortage {
    pub(crate) fn of(calls: u64) -> Self {
        Self { calls, before: Self::tell(calls) }
    }

    fn tell(calls: u64) -> u64 {
        // SAFETY: the function has this type.
        let short = unsafe {
            std::mem::transmute::<*mut c_void, extern "C" fn(u64) -> u64>(own(c"penstock_cuda_stand_in_short"))
        };
        short(calls)
    }

    /// How many calls were refused for it.
    pub(crate) fn refused(&self) -> u64 {
        Self::tell(self.calls) - self.before
    }
}

impl Drop for Shortage {
    fn drop(&mut self) {
        Self::tell(0);
    }
}

fn given() -> u64 {
    // SAFETY: the function has this type.
    let given =
        unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> u64>(own(c"penstock_cuda_stand_in_given")) };
    given()
}

/// What the streams of this process had been given at some time.
pub(crate) struct Given(u64);

impl Given {
    /// Waits until they were given more: what was begun since has come as far as a card, and a little further.
    pub(crate) fn wait_for_more(&self) {
        let end = Instant::now() + PATIENCE;
        while given() == self.0 {
            assert!(Instant::now() < end, "no stream is given anything");
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether synchronous copies of the allocation at this address are done when they return.
pub(crate) fn has_sync_memops(address: u64) -> bool {
    let mut attribute = CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS;
    let mut value = 0_u64;
    let mut place = (&raw mut value).cast::<c_void>();
    // SAFETY: one attribute, and a place of eight bytes.
    let status =
        unsafe { Driver::open().unwrap().cuPointerGetAttributes(1, &raw mut attribute, &raw mut place, address) };
    assert_eq!(status, Status::SUCCESS);
    value & 0xff != 0
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

    /// It does nothing until [`Card::go_on`]. Answers what its streams were given before.
    pub(crate) fn hold(&self) -> Given {
        self.signal(libc::SIGSTOP);
        Given(given())
    }

    pub(crate) fn go_on(&self) {
        self.signal(libc::SIGCONT);
    }

    /// While it is held, it is lost to this process, as if it had fallen off the bus.
    pub(crate) fn lose(&self) {
        type IsLost = extern "C" fn() -> bool;
        // SAFETY: the function has this type.
        let lose = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn()>(own(c"penstock_cuda_stand_in_lose")) };
        // SAFETY: as above.
        let is_lost = unsafe { std::mem::transmute::<*mut c_void, IsLost>(own(c"penstock_cuda_stand_in_is_lost")) };
        // What it hears of that comes before what it has to do.
        lose();
        self.go_on();
        let end = Instant::now() + PATIENCE;
        while !is_lost() {
            assert!(Instant::now() < end, "the card does not hear that it is lost");
            std::thread::sleep(Duration::from_millis(1));
        }
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
