//! Rules of contexts, memory and streams.

pub(crate) mod batch;
pub(crate) mod failures;
pub(crate) mod forbidden;
pub(crate) mod gpudirect;
pub(crate) mod order;
pub(crate) mod vmm;

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use penstock_cuda_sys::types::{CUcontext, CUdeviceptr, CUevent, CUpointer_attribute, CUstream};
use penstock_cuda_sys::{Driver, Status};

const MIB: usize = 1 << 20;
/// The flag that memory is registered with which the card only reads.
const READ_ONLY: u32 = 8;
/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(20);

/// A driver with a context, which is current in this thread.
struct Current {
    driver: &'static Driver,
    context: CUcontext,
}

impl Current {
    fn begin() -> Self {
        let driver = Driver::open().unwrap();
        let mut context = null_mut();
        // SAFETY: each call writes one value, and the device is there.
        unsafe {
            assert_eq!(driver.cuInit(0), Status::SUCCESS);
            assert_eq!(driver.cuDevicePrimaryCtxRetain(&raw mut context, 0), Status::SUCCESS);
            assert_eq!(driver.cuCtxPushCurrent(context), Status::SUCCESS);
        }
        Self { driver, context }
    }

    fn memory(&self, bytes: usize) -> CUdeviceptr {
        let mut address = 0;
        // SAFETY: it writes one address.
        assert_eq!(unsafe { self.driver.cuMemAlloc(&raw mut address, bytes) }, Status::SUCCESS);
        address
    }

    fn stream(&self) -> CUstream {
        let mut stream = null_mut();
        // SAFETY: it writes one handle. 1: it does not wait for the default stream.
        assert_eq!(unsafe { self.driver.cuStreamCreateWithPriority(&raw mut stream, 1, 0) }, Status::SUCCESS);
        stream
    }

    fn event(&self) -> CUevent {
        let mut event = null_mut();
        // SAFETY: it writes one handle. 2: no time is taken.
        assert_eq!(unsafe { self.driver.cuEventCreate(&raw mut event, 2) }, Status::SUCCESS);
        event
    }

    /// Host memory of this process alone, which the card may reach.
    fn pinned(&self, bytes: usize) -> *mut u8 {
        let place = anonymous(bytes);
        // SAFETY: it is mapped, and stays.
        assert_eq!(unsafe { self.driver.cuMemHostRegister(place.cast(), bytes, 0) }, Status::SUCCESS);
        place
    }

    fn wait(&self, stream: CUstream) {
        // SAFETY: it is a stream.
        until(|| match unsafe { self.driver.cuStreamQuery(stream) } {
            Status::NOT_READY => false,
            status => {
                assert_eq!(status, Status::SUCCESS);
                true
            }
        });
    }

    /// Memory type, base, bytes and buffer id, as the driver has them of a pointer.
    fn attributes(&self, address: CUdeviceptr) -> [u64; 4] {
        use CUpointer_attribute::*;
        let mut attributes = [
            CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
            CU_POINTER_ATTRIBUTE_RANGE_SIZE,
            CU_POINTER_ATTRIBUTE_BUFFER_ID,
        ];
        let mut values = [0u64; 4];
        let mut places = values.each_mut().map(|value| (&raw mut *value).cast::<c_void>());
        // SAFETY: four attributes, and a place of eight bytes for each.
        let status =
            unsafe { self.driver.cuPointerGetAttributes(4, attributes.as_mut_ptr(), places.as_mut_ptr(), address) };
        assert_eq!(status, Status::SUCCESS);
        values
    }
}

fn until(mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < end, "it never was");
        std::thread::sleep(Duration::from_micros(50));
    }
}

fn anonymous(bytes: usize) -> *mut u8 {
    let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a fresh mapping at a place of the kernel's choice.
    let place = unsafe { libc::mmap(null_mut(), bytes, rights, kind, -1, 0) };
    assert_ne!(place, libc::MAP_FAILED);
    place.cast()
}

fn fill(place: *mut u8, bytes: usize, seed: u64) {
    // SAFETY: the caller has so many bytes there, to which the card has nothing to do.
    let all = unsafe { std::slice::from_raw_parts_mut(place, bytes) };
    for (at, byte) in all.iter_mut().enumerate() {
        *byte = (at as u64 ^ (at as u64 >> 8) ^ seed.wrapping_mul(31)) as u8;
    }
}

fn bytes_at(place: *mut u8, bytes: usize) -> Vec<u8> {
    // SAFETY: as in `fill`.
    unsafe { std::slice::from_raw_parts(place, bytes) }.to_vec()
}

pub(crate) fn without_a_context() {
    let driver = Driver::open().unwrap();
    let (mut address, mut bytes, mut handle) = (0, 0, null_mut());
    let host = anonymous(4096);
    // SAFETY: each call writes what there is room for.
    unsafe {
        assert_eq!(driver.cuInit(0), Status::SUCCESS);
        let mut context = null_mut();
        assert_eq!(driver.cuDevicePrimaryCtxRetain(&raw mut context, 0), Status::SUCCESS);
        assert_eq!(driver.cuMemAlloc(&raw mut address, 4096), Status::INVALID_CONTEXT);
        assert_eq!(driver.cuMemGetInfo(&raw mut bytes, &raw mut bytes), Status::INVALID_CONTEXT);
        assert_eq!(driver.cuMemHostRegister(host.cast(), 4096, 0), Status::INVALID_CONTEXT);
        assert_eq!(driver.cuMemGetAddressRange(&raw mut address, &raw mut bytes, 4096), Status::INVALID_CONTEXT);
        assert_eq!(driver.cuStreamCreateWithPriority(&raw mut handle, 1, 0), Status::INVALID_CONTEXT);
        assert_eq!(driver.cuEventCreate((&raw mut handle).cast(), 2), Status::INVALID_CONTEXT);
        assert_eq!(driver.cuCtxPopCurrent(&raw mut context), Status::INVALID_CONTEXT);
    }
}

pub(crate) fn contexts() {
    let Current { driver, context } = Current::begin();
    let (mut other, mut address) = (null_mut(), 0);
    // SAFETY: each call writes one value.
    unsafe {
        assert_eq!((driver.cuCtxGetCurrent(&raw mut other), other), (Status::SUCCESS, context));
        assert_eq!((driver.cuDevicePrimaryCtxRetain(&raw mut other, 0), other), (Status::SUCCESS, context));
        assert_eq!(driver.cuDevicePrimaryCtxRelease(0), Status::SUCCESS);
        // Another thread has its own.
        std::thread::spawn(move || {
            let mut current = std::ptr::dangling_mut();
            assert_eq!((driver.cuCtxGetCurrent(&raw mut current), current), (Status::SUCCESS, null_mut()));
        })
        .join()
        .unwrap();
        assert_eq!(driver.cuMemAlloc(&raw mut address, 4096), Status::SUCCESS);
        assert_eq!(driver.cuDevicePrimaryCtxRelease(0), Status::SUCCESS);
        assert_eq!(driver.cuMemAlloc(&raw mut address, 4096), Status::CONTEXT_IS_DESTROYED);
        assert_eq!(driver.cuDevicePrimaryCtxRelease(0), Status::INVALID_CONTEXT);
        assert_eq!((driver.cuCtxPopCurrent(&raw mut other), other), (Status::SUCCESS, context));
        assert_eq!((driver.cuCtxGetCurrent(&raw mut other), other), (Status::SUCCESS, null_mut()));
    }
}

pub(crate) fn pointers() {
    let current = Current::begin();
    let driver = current.driver;
    let first = current.memory(4 * MIB);
    let [kind, base, bytes, id] = current.attributes(first);
    assert_eq!((kind, base, bytes), (2, first, 4 * MIB as u64));
    assert_eq!(current.attributes(first + 4 * MIB as u64 - 1), [kind, base, bytes, id], "any offset tells the same");
    let (mut found, mut length) = (0, 0);
    // SAFETY: it writes an address and a length.
    assert_eq!(unsafe { driver.cuMemGetAddressRange(&raw mut found, &raw mut length, first + 5) }, Status::SUCCESS);
    assert_eq!((found, length), (first, 4 * MIB));
    let local = 7u64;
    assert_eq!(current.attributes(&raw const local as u64)[0], 0, "nothing is known of memory that nobody registered");
    // SAFETY: nobody uses it.
    unsafe {
        assert_eq!(driver.cuMemFree(first + 4096), Status::INVALID_VALUE);
        assert_eq!(driver.cuMemFree(first), Status::SUCCESS);
        assert_eq!(driver.cuMemFree(first), Status::INVALID_VALUE);
        assert_eq!(driver.cuMemGetAddressRange(&raw mut found, &raw mut length, first), Status::NOT_FOUND);
    }
    assert_eq!(current.attributes(first)[0], 0);
    let second = current.memory(4 * MIB);
    assert!(current.attributes(second)[3] > id, "ids only grow, also where the address is the same");
    let mut address = 0;
    // SAFETY: it writes one address.
    unsafe {
        assert_eq!(driver.cuMemAlloc(&raw mut address, 1 << 50), Status::OUT_OF_MEMORY);
        assert_eq!(driver.cuMemAlloc(&raw mut address, 0), Status::INVALID_VALUE);
    }
    assert_eq!(current.attributes(second)[0], 2, "the context is well");
}

pub(crate) fn pinned_memory() {
    let current = Current::begin();
    let driver = current.driver;
    let place = anonymous(64 << 10);
    let at = |offset: usize| place.wrapping_add(offset).cast::<c_void>();
    let device = current.memory(MIB);
    // SAFETY: it is mapped, and stays; the other addresses are refused.
    unsafe {
        assert_eq!(driver.cuMemHostRegister(at(4096), 32 << 10, 0), Status::SUCCESS);
        for (offset, bytes) in [(4096, 32 << 10), (8192, 4096), (0, 64 << 10), (0, 8192), (32 << 10, 16 << 10)] {
            let again = driver.cuMemHostRegister(at(offset), bytes, 0);
            assert_eq!(again, Status::HOST_MEMORY_ALREADY_REGISTERED, "{offset}, {bytes}");
        }
        assert_eq!(driver.cuMemHostRegister(at(36 << 10), 4096, 0), Status::SUCCESS, "right behind");
        assert_eq!(driver.cuMemHostRegister(at(48 << 10), 0, 0), Status::INVALID_VALUE);
        assert_eq!(driver.cuMemHostRegister(null_mut(), 4096, 0), Status::INVALID_VALUE);
        assert_eq!(driver.cuMemHostRegister(device as *mut c_void, 4096, 0), Status::INVALID_VALUE);
        let read_only = anonymous(8192).cast::<c_void>();
        libc::mprotect(read_only, 4096, libc::PROT_READ);
        libc::munmap(read_only.byte_add(4096), 4096);
        assert_eq!(driver.cuMemHostRegister(read_only, 4096, 0), Status::INVALID_VALUE, "a mapping to be read only");
        assert_eq!(driver.cuMemHostRegister(read_only, 8192, READ_ONLY), Status::INVALID_VALUE, "beyond the mapping");
        assert_eq!(driver.cuMemHostRegister(read_only, 4096, READ_ONLY), Status::SUCCESS);
        let stream = current.stream();
        assert_eq!(driver.cuMemcpyHtoDAsync(device, read_only, 4096, stream), Status::SUCCESS);
        assert_eq!(driver.cuMemcpyDtoHAsync(read_only, device, 4096, stream), Status::INVALID_VALUE);
        current.wait(stream);
        assert_eq!(driver.cuMemHostUnregister(at(8192)), Status::INVALID_VALUE);
        assert_eq!(driver.cuMemHostUnregister(at(56 << 10)), Status::HOST_MEMORY_NOT_REGISTERED);
    }
    let [kind, base, bytes, _] = current.attributes(at(5000) as u64);
    assert_eq!((kind, base, bytes), (1, at(4096) as u64, 32 << 10));
    // SAFETY: as above.
    unsafe {
        assert_eq!(driver.cuMemHostUnregister(at(4096)), Status::SUCCESS);
        assert_eq!(driver.cuMemHostRegister(at(0), 16 << 10, 0), Status::SUCCESS);
    }
}

pub(crate) fn copies() {
    const BYTES: usize = 3 * MIB + 4096;
    let current = Current::begin();
    let driver = current.driver;
    let (one, other, back) = (current.pinned(BYTES), current.pinned(BYTES), current.pinned(BYTES));
    let (first, second) = (current.memory(BYTES), current.memory(BYTES));
    let words = current.pinned(4096).cast::<u64>();
    let streams = [current.stream(), current.stream()];
    for round in 1..=20 {
        fill(one, BYTES, round);
        fill(other, BYTES, round + 100);
        // SAFETY: all ranges are there until the words have come.
        unsafe {
            assert_eq!(driver.cuMemcpyHtoDAsync(first, one.cast(), BYTES, streams[0]), Status::SUCCESS);
            assert_eq!(driver.cuMemcpyDtoDAsync(second, first, BYTES, streams[0]), Status::SUCCESS);
            assert_eq!(driver.cuMemcpyDtoHAsync(back.cast(), second, BYTES, streams[0]), Status::SUCCESS);
            assert_eq!(driver.cuStreamWriteValue64(streams[0], words as u64, round, 0), Status::SUCCESS);
            assert_eq!(driver.cuStreamWriteValue64(streams[1], words.add(1) as u64, round, 0), Status::SUCCESS);
        }
        // SAFETY: words that the card writes whole.
        let [word, aside] = [0, 1].map(|at| unsafe { &*words.add(at).cast::<AtomicU64>() });
        until(|| word.load(Ordering::Acquire) == round);
        assert!(
            bytes_at(back, BYTES) == bytes_at(one, BYTES),
            "round {round}: what comes before a word is there with it"
        );
        until(|| aside.load(Ordering::Acquire) == round);
        // SAFETY: as above.
        unsafe {
            // Into the middle, from another place.
            let part = driver.cuMemcpyHtoDAsync(second + 5, other.add(7).cast(), MIB, streams[1]);
            assert_eq!(part, Status::SUCCESS);
            current.wait(streams[1]);
            assert_eq!(driver.cuMemcpyDtoHAsync(back.cast(), second, BYTES, streams[0]), Status::SUCCESS);
        }
        current.wait(streams[0]);
        let mut expected = bytes_at(one, BYTES);
        expected[5..5 + MIB].copy_from_slice(&bytes_at(other, BYTES)[7..7 + MIB]);
        assert!(bytes_at(back, BYTES) == expected, "round {round}");
    }
}

pub(crate) fn refusals() {
    let current = Current::begin();
    let driver = current.driver;
    let (host, device, gone) = (current.pinned(64 << 10), current.memory(2 * MIB), current.memory(2 * MIB));
    let (stream, word) = (current.stream(), host as u64);
    // SAFETY: what is wrong is refused at the call.
    unsafe {
        assert_eq!(driver.cuMemFree(gone), Status::SUCCESS);
        let beyond = device + 2 * MIB as u64 - 4096;
        assert_eq!(driver.cuMemcpyHtoDAsync(beyond, host.cast(), 8192, stream), Status::INVALID_VALUE);
        assert_eq!(driver.cuMemcpyDtoHAsync(host.cast(), beyond, 8192, stream), Status::INVALID_VALUE);
        assert_eq!(driver.cuMemcpyHtoDAsync(gone, host.cast(), 4096, stream), Status::INVALID_VALUE);
        let end = host.add((64 << 10) - 4096);
        assert_eq!(driver.cuMemcpyHtoDAsync(device, end.cast(), 8192, stream), Status::INVALID_VALUE);
        assert_eq!(driver.cuStreamWriteValue64(stream, word + 4, 1, 0), Status::INVALID_VALUE, "misaligned");
        assert_eq!(driver.cuStreamWriteValue64(stream, word, 1, 1), Status::INVALID_VALUE, "without a barrier");
        assert_eq!(driver.cuStreamWriteValue64(stream, gone, 1, 0), Status::INVALID_VALUE);
        // None of it is sticky.
        fill(host, 4096, 9);
        assert_eq!(driver.cuMemcpyHtoDAsync(device, host.cast(), 4096, stream), Status::SUCCESS);
        assert_eq!(driver.cuMemcpyDtoHAsync(host.add(8192).cast(), device, 4096, stream), Status::SUCCESS);
    }
    current.wait(stream);
    assert!(bytes_at(host.wrapping_add(8192), 4096) == bytes_at(host, 4096));
}

pub(crate) fn events() {
    const BYTES: usize = 8 * MIB;
    let current = Current::begin();
    let driver = current.driver;
    let (host, device) = (current.pinned(BYTES), current.memory(BYTES));
    let word = current.pinned(4096).cast::<AtomicU64>();
    // SAFETY: a word that the card writes whole.
    let seen = unsafe { &*word };
    let (one, other, event) = (current.stream(), current.stream(), current.event());
    // SAFETY: it is an event.
    assert_eq!(unsafe { driver.cuEventQuery(event) }, Status::SUCCESS, "one that was never recorded has come");
    for round in 1..=10 {
        // SAFETY: all is there until it has passed.
        unsafe {
            for _ in 0..4 {
                assert_eq!(driver.cuMemcpyHtoDAsync(device, host.cast(), BYTES, one), Status::SUCCESS);
            }
            assert_eq!(driver.cuEventRecord(event, one), Status::SUCCESS);
            assert_eq!(driver.cuStreamWaitEvent(other, event, 0), Status::SUCCESS);
            assert_eq!(driver.cuStreamWriteValue64(other, word as u64, round, 0), Status::SUCCESS);
        }
        until(|| {
            let has_come = seen.load(Ordering::Acquire) == round;
            // SAFETY: it is an event.
            let of_event = unsafe { driver.cuEventQuery(event) };
            assert!(!has_come || of_event == Status::SUCCESS, "the other stream has waited");
            has_come
        });
    }
    // What was destroyed does what it has to do all the same.
    // SAFETY: all else is there until it has passed.
    unsafe {
        for _ in 0..4 {
            assert_eq!(driver.cuMemcpyHtoDAsync(device, host.cast(), BYTES, one), Status::SUCCESS);
        }
        assert_eq!(driver.cuEventRecord(event, one), Status::SUCCESS);
        assert_eq!(driver.cuStreamWaitEvent(other, event, 0), Status::SUCCESS);
        assert_eq!(driver.cuStreamWriteValue64(other, word as u64, 11, 0), Status::SUCCESS);
        assert_eq!(driver.cuEventDestroy(event), Status::SUCCESS);
        for stream in [one, other] {
            assert_eq!(driver.cuStreamDestroy(stream), Status::SUCCESS);
        }
        let next = current.event();
        assert_eq!(driver.cuEventQuery(next), Status::SUCCESS, "a new one has come");
    }
    until(|| seen.load(Ordering::Acquire) == 11);
}

static CALLED: AtomicU32 = AtomicU32::new(0);

/// Counts by its argument, which is a number.
///
/// # Safety
/// It asks for nothing.
unsafe extern "C" fn count(argument: *mut c_void) {
    CALLED.fetch_add(argument as u32, Ordering::Relaxed);
}

pub(crate) fn functions() {
    let current = Current::begin();
    let stream = current.stream();
    for step in 1..=5usize {
        // SAFETY: a function of this type, and a number for it.
        let status = unsafe { current.driver.cuLaunchHostFunc(stream, Some(count), step as *mut c_void) };
        assert_eq!(status, Status::SUCCESS);
    }
    until(|| CALLED.load(Ordering::Relaxed) == 15);
}

/// A processor that touches device memory dies, and reads nothing.
pub(crate) fn a_stray_access() {
    let current = Current::begin();
    let device = current.memory(MIB);
    // SAFETY: the child only reads, and ends.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: what is not allowed here ends the child.
        unsafe {
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            libc::_exit(i32::from((device as *const u8).read_volatile()));
        }
    }
    let mut status = 0;
    // SAFETY: waits for the child made above and writes its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "{status}");
}

/// What a stopped process has queued is done: the card is no thread of it.
pub(crate) fn a_stopped_client() {
    const COPIES: usize = 200;
    const BYTES: usize = MIB;
    let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED);
    // SAFETY: a file in memory that both processes map; the second process is a child that ends by _exit.
    unsafe {
        let file = libc::memfd_create(c"shared".as_ptr(), 0);
        assert!(file >= 0 && libc::ftruncate(file, BYTES as libc::off_t) == 0);
        let shared = libc::mmap(null_mut(), BYTES, rights, kind, file, 0).cast::<u8>();
        let child = libc::fork();
        if child == 0 {
            let current = Current::begin();
            let driver = current.driver;
            assert_eq!(driver.cuMemHostRegister(shared.cast(), BYTES, 0), Status::SUCCESS);
            let (source, device, stream) = (current.pinned(BYTES), current.memory(BYTES), current.stream());
            // In each round another value, the last one being COPIES.
            for value in 1..=COPIES {
                std::ptr::write_bytes(source, value as u8, BYTES);
                assert_eq!(driver.cuMemcpyHtoDAsync(device, source.cast(), BYTES, stream), Status::SUCCESS);
                current.wait(stream);
            }
            std::ptr::write_bytes(source, 0x5a, BYTES);
            for _ in 0..COPIES {
                assert_eq!(driver.cuMemcpyHtoDAsync(device, source.cast(), BYTES, stream), Status::SUCCESS);
                assert_eq!(driver.cuMemcpyDtoHAsync(shared.cast(), device, BYTES, stream), Status::SUCCESS);
            }
            libc::raise(libc::SIGSTOP);
            libc::_exit(0);
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(child, &raw mut status, libc::WUNTRACED), child);
        assert!(libc::WIFSTOPPED(status), "{status}");
        until(|| bytes_at(shared, BYTES).iter().all(|&byte| byte == 0x5a));
        libc::kill(child, libc::SIGKILL);
        assert_eq!(libc::waitpid(child, &raw mut status, 0), child);
    }
}

/// Words do not come, functions are not called, and who asks hears it.
pub(crate) fn a_lost_card(lose: *mut c_void) {
    let current = Current::begin();
    let driver = current.driver;
    let (host, device, stream, event) = (current.pinned(8192), current.memory(MIB), current.stream(), current.event());
    // SAFETY: a function of this type.
    unsafe { std::mem::transmute::<*mut c_void, extern "C" fn()>(lose)() };
    // SAFETY: it is there. The card hears of it a moment later.
    until(|| unsafe { driver.cuStreamQuery(stream) } == Status::ECC_UNCORRECTABLE);
    let before = CALLED.load(Ordering::Relaxed);
    // SAFETY: all is there.
    unsafe {
        assert_eq!(driver.cuStreamQuery(stream), Status::ECC_UNCORRECTABLE);
        assert_eq!(driver.cuEventQuery(event), Status::ECC_UNCORRECTABLE);
        assert_eq!(driver.cuStreamWriteValue64(stream, host as u64, 7, 0), Status::ECC_UNCORRECTABLE);
        assert_eq!(driver.cuMemcpyHtoDAsync(device, host.cast(), 4096, stream), Status::ECC_UNCORRECTABLE);
        assert_eq!(driver.cuLaunchHostFunc(stream, Some(count), std::ptr::dangling_mut()), Status::ECC_UNCORRECTABLE);
    }
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!((bytes_at(host, 8), CALLED.load(Ordering::Relaxed)), (vec![0; 8], before));
}

pub(crate) fn too_little_memory() {
    let current = Current::begin();
    let driver = current.driver;
    let first = current.memory(2 * MIB);
    let (mut address, mut free, mut total) = (0, 0, 0);
    let host = anonymous(128 << 10);
    // SAFETY: each call writes what there is room for.
    unsafe {
        assert_eq!(driver.cuMemGetInfo(&raw mut free, &raw mut total), Status::SUCCESS);
        assert_eq!((free, total), (2 * MIB, 4 * MIB));
        assert_eq!(driver.cuMemAlloc(&raw mut address, 2 * MIB + 1), Status::OUT_OF_MEMORY);
        assert_eq!(driver.cuMemFree(first), Status::SUCCESS);
        assert_eq!(driver.cuMemAlloc(&raw mut address, 2 * MIB + 1), Status::SUCCESS);
        assert_eq!(driver.cuMemHostRegister(host.cast(), 128 << 10, 0), Status::OUT_OF_MEMORY);
        assert_eq!(driver.cuMemHostRegister(host.cast(), 64 << 10, 0), Status::SUCCESS);
    }
}
