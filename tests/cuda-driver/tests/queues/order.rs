//! Rules of the order between streams: events, default streams, streams that are captured.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use penstock_cuda_sys::types::{CUevent, CUstream};
use penstock_cuda_sys::{Driver, Status};

use super::{Current, until};

/// The default streams, by the names that programs have for them.
const LEGACY: usize = 1;
const PER_THREAD: usize = 2;
/// Longer than an idle device takes.
const A_WHILE: Duration = Duration::from_millis(30);

/// A function of the driver's that Penstock does not call.
fn function(name: &CStr, version: c_int) -> *mut c_void {
    type Get = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut u32) -> u32;
    let library = CString::new(Driver::open().unwrap().library().split(' ').next().unwrap()).unwrap();
    let (mut place, mut became) = (null_mut(), 0);
    // SAFETY: the library is open already; the function has this type, and is given a C string and two places.
    unsafe {
        let get = libc::dlsym(libc::dlopen(library.as_ptr(), libc::RTLD_NOW), c"cuGetProcAddress_v2".as_ptr());
        let get = std::mem::transmute::<*mut c_void, Get>(get);
        assert_eq!(get(name.as_ptr(), &raw mut place, version, 0, &raw mut became), 0, "{name:?}");
    }
    place
}

/// A word that a stream waits for.
struct Held<'a> {
    word: &'a AtomicU64,
}

impl<'a> Held<'a> {
    fn new(current: &'a Current, stream: CUstream) -> Self {
        type WaitValue = unsafe extern "C" fn(CUstream, u64, u64, u32) -> u32;
        let word = current.pinned(4096).cast::<AtomicU64>();
        // SAFETY: the function has this type; the word is there, and stays. 0: until it is at least so great.
        unsafe {
            let wait = std::mem::transmute::<*mut c_void, WaitValue>(function(c"cuStreamWaitValue64", 11_070));
            assert_eq!(wait(stream, word as u64, 1, 0), 0);
            Self { word: &*word }
        }
    }

    fn release(&self) {
        self.word.store(1, Ordering::Release);
    }
}

fn record(current: &Current, event: CUevent, stream: CUstream) {
    // SAFETY: both are there.
    assert_eq!(unsafe { current.driver.cuEventRecord(event, stream) }, Status::SUCCESS);
}

fn wait(current: &Current, stream: CUstream, event: CUevent) {
    // SAFETY: as above.
    assert_eq!(unsafe { current.driver.cuStreamWaitEvent(stream, event, 0) }, Status::SUCCESS);
}

fn is_done(current: &Current, stream: CUstream) -> bool {
    // SAFETY: as above.
    match unsafe { current.driver.cuStreamQuery(stream) } {
        Status::NOT_READY => false,
        status => {
            assert_eq!(status, Status::SUCCESS);
            true
        }
    }
}

fn has_come(current: &Current, event: CUevent) -> bool {
    // SAFETY: as above.
    match unsafe { current.driver.cuEventQuery(event) } {
        Status::NOT_READY => false,
        status => {
            assert_eq!(status, Status::SUCCESS);
            true
        }
    }
}

fn named(name: usize) -> CUstream {
    std::ptr::without_provenance_mut::<c_void>(name).cast()
}

/// Who waits for an event waits for the place that it was recorded at last, whatever becomes of it.
pub(crate) fn events() {
    let current = Current::begin();
    let [held, waits, idle, late] = [(); 4].map(|()| current.stream());
    let (event, fresh) = (current.event(), current.event());
    wait(&current, idle, fresh);
    current.wait(idle);
    let hold = Held::new(&current, held);
    record(&current, event, held);
    wait(&current, waits, event);
    std::thread::sleep(A_WHILE);
    assert!(!has_come(&current, event) && !is_done(&current, waits));
    // At another place it is another one.
    record(&current, event, idle);
    until(|| has_come(&current, event));
    wait(&current, late, event);
    current.wait(late);
    // SAFETY: nobody uses it.
    assert_eq!(unsafe { current.driver.cuEventDestroy(event) }, Status::SUCCESS);
    std::thread::sleep(A_WHILE);
    assert!(!is_done(&current, waits) && !is_done(&current, held), "it waits for where the event was");
    hold.release();
    current.wait(waits);
    current.wait(held);
}

/// A chain of waits, as many streams behind each other.
pub(crate) fn chains() {
    let current = Current::begin();
    let [first, second, chain, last] = [(); 4].map(|()| current.stream());
    let (behind, end) = (current.event(), current.event());
    let holds = [first, second].map(|stream| {
        let hold = Held::new(&current, stream);
        record(&current, behind, stream);
        wait(&current, chain, behind);
        record(&current, end, chain);
        hold
    });
    wait(&current, last, end);
    holds[1].release();
    current.wait(second);
    std::thread::sleep(A_WHILE);
    assert!(!has_come(&current, end) && !is_done(&current, last), "the first is held still");
    holds[0].release();
    current.wait(last);
    assert!(has_come(&current, end));
}

pub(crate) fn default_streams() {
    let current = Current::begin();
    let (event, stream) = (current.event(), current.stream());
    let hold = Held::new(&current, named(PER_THREAD));
    record(&current, event, named(PER_THREAD));
    std::thread::sleep(A_WHILE);
    assert!(!has_come(&current, event));
    // That of another thread is another one.
    std::thread::spawn(|| {
        let current = Current::begin();
        let event = current.event();
        record(&current, event, named(PER_THREAD));
        until(|| has_come(&current, event));
        // SAFETY: it was pushed by this thread.
        assert_eq!(unsafe { current.driver.cuCtxPopCurrent(null_mut()) }, Status::SUCCESS);
    })
    .join()
    .unwrap();
    assert!(!has_come(&current, event));
    hold.release();
    until(|| has_come(&current, event));
    for name in [0, LEGACY] {
        record(&current, event, named(name));
        wait(&current, stream, event);
        current.wait(stream);
        assert!(has_come(&current, event));
    }
}

pub(crate) fn captures() {
    type Begin = unsafe extern "C" fn(CUstream, u32) -> u32;
    type End = unsafe extern "C" fn(CUstream, *mut *mut c_void) -> u32;
    let current = Current::begin();
    let (stream, other, event) = (current.stream(), current.stream(), current.event());
    let capture = |stream| {
        let mut said = 7;
        // SAFETY: a stream, and a place for a number.
        assert_eq!(unsafe { current.driver.cuStreamIsCapturing(stream, &raw mut said) }, Status::SUCCESS);
        said
    };
    assert_eq!([stream, named(LEGACY), named(PER_THREAD)].map(capture), [0; 3]);
    let mut graph = null_mut();
    // SAFETY: functions of these types, and streams that are there. 2: other streams are none of its business.
    unsafe {
        let begin = std::mem::transmute::<*mut c_void, Begin>(function(c"cuStreamBeginCapture", 10_010));
        let end = std::mem::transmute::<*mut c_void, End>(function(c"cuStreamEndCapture", 10_000));
        assert_ne!(begin(named(LEGACY), 2), 0);
        assert_eq!(begin(stream, 2), 0);
        assert_ne!(begin(stream, 2), 0);
        assert_eq!((capture(stream), capture(other)), (1, 0));
        // Other streams go on.
        record(&current, event, other);
        until(|| has_come(&current, event));
        assert_eq!((end(stream, &raw mut graph), graph.is_null()), (0, false));
        assert_eq!(capture(stream), 0);
        assert_ne!(end(stream, &raw mut graph), 0);
    }
    record(&current, event, stream);
    until(|| has_come(&current, event));
}

/// An event is recorded in streams of its own device, and waited for in all.
pub(crate) fn two_devices() {
    let first = Current::begin();
    let (driver, event, waits) = (first.driver, first.event(), first.stream());
    let mut context = null_mut();
    // SAFETY: each call writes one value, and the device is there.
    unsafe {
        assert_eq!(driver.cuDevicePrimaryCtxRetain(&raw mut context, 1), Status::SUCCESS);
        assert_eq!(driver.cuCtxPushCurrent(context), Status::SUCCESS);
    }
    let (there, its) = (first.stream(), first.event());
    // SAFETY: all are there.
    unsafe {
        assert_eq!(driver.cuEventRecord(event, there), Status::INVALID_HANDLE);
        assert_eq!(driver.cuEventRecord(its, waits), Status::INVALID_HANDLE);
    }
    let hold = Held::new(&first, there);
    record(&first, its, there);
    wait(&first, waits, its);
    std::thread::sleep(A_WHILE);
    assert!(!is_done(&first, waits));
    hold.release();
    first.wait(waits);
    // SAFETY: it was pushed above.
    assert_eq!(unsafe { driver.cuCtxPopCurrent(null_mut()) }, Status::SUCCESS);
}

/// What was destroyed is refused, where a driver may crash; and so is work in a capture, which there are no graphs for.
pub(crate) fn refusals() {
    type Begin = unsafe extern "C" fn(CUstream, u32) -> u32;
    let current = Current::begin();
    let driver = current.driver;
    let (gone, captured, event, destroyed) = (current.stream(), current.stream(), current.event(), current.event());
    let mut said = 0;
    // SAFETY: the stand-in looks handles up.
    unsafe {
        assert_eq!(driver.cuStreamDestroy(gone), Status::SUCCESS);
        assert_eq!(driver.cuEventDestroy(destroyed), Status::SUCCESS);
        assert_eq!(driver.cuEventRecord(event, gone), Status::INVALID_HANDLE);
        assert_eq!(driver.cuStreamIsCapturing(gone, &raw mut said), Status::INVALID_HANDLE);
        assert_eq!(driver.cuStreamWaitEvent(captured, destroyed, 0), Status::INVALID_HANDLE);
        assert_eq!(driver.cuEventQuery(destroyed), Status::INVALID_HANDLE);
        let begin = std::mem::transmute::<*mut c_void, Begin>(function(c"cuStreamBeginCapture", 10_010));
        assert_eq!(begin(captured, 0), 0);
        assert_eq!(driver.cuEventRecord(event, captured), Status::NOT_SUPPORTED);
    }
}
