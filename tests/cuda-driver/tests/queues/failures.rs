//! What goes wrong where the stand-in is told so.

use std::ptr::null_mut;
use std::time::{Duration, Instant};

use penstock_cuda_sys::Status;
use penstock_cuda_sys::types::CUstream;

use super::{Current, MIB, anonymous, bytes_at, until};

/// Gives a stream a word to write.
fn write(current: &Current, stream: CUstream, host: *mut u8, value: u64) -> Status {
    // SAFETY: the word is there until it has passed.
    unsafe { current.driver.cuStreamWriteValue64(stream, host as u64, value, 0) }
}

fn word(host: *mut u8) -> u64 {
    u64::from_ne_bytes(bytes_at(host, 8).try_into().unwrap())
}

/// The third launch fails: nothing is done any more, and everything says so but attributes and contexts.
pub(crate) fn a_launch() {
    let current = Current::begin();
    let driver = current.driver;
    let (host, device, stream, event) = (current.pinned(4096), current.memory(MIB), current.stream(), current.event());
    for value in 1..=2 {
        assert_eq!(write(&current, stream, host, value), Status::SUCCESS);
    }
    current.wait(stream);
    assert_eq!(write(&current, stream, host, 3), Status::LAUNCH_FAILED);
    let (mut address, mut context, mut free, mut total) = (0, null_mut(), 0, 0);
    // SAFETY: each call writes what there is room for.
    unsafe {
        assert_eq!(write(&current, stream, host, 4), Status::LAUNCH_FAILED);
        assert_eq!(driver.cuStreamQuery(stream), Status::LAUNCH_FAILED);
        assert_eq!(driver.cuEventQuery(event), Status::LAUNCH_FAILED);
        assert_eq!(driver.cuMemAlloc(&raw mut address, MIB), Status::LAUNCH_FAILED);
        assert_eq!(driver.cuMemGetInfo(&raw mut free, &raw mut total), Status::LAUNCH_FAILED);
        assert_eq!(driver.cuMemFree(device), Status::LAUNCH_FAILED);
        assert_eq!(driver.cuMemHostRegister(anonymous(4096).cast(), 4096, 0), Status::LAUNCH_FAILED);
        assert_eq!(driver.cuMemHostUnregister(host.cast()), Status::LAUNCH_FAILED);
        assert_eq!(driver.cuEventDestroy(event), Status::LAUNCH_FAILED);
        assert_eq!(driver.cuStreamDestroy(stream), Status::LAUNCH_FAILED);
        assert_eq!(current.attributes(device)[0], 2);
        assert_eq!(driver.cuCtxPopCurrent(&raw mut context), Status::SUCCESS);
        assert_eq!(driver.cuDevicePrimaryCtxRelease(0), Status::SUCCESS);
        // For the whole life of the process.
        assert_eq!(driver.cuDevicePrimaryCtxRetain(&raw mut context, 0), Status::LAUNCH_FAILED);
    }
    assert_eq!(word(host), 2);
}

/// There is too little memory the second time, and enough again the third.
pub(crate) fn memory() {
    let current = Current::begin();
    let mut address = current.memory(MIB);
    // SAFETY: it writes one address.
    assert_eq!(unsafe { current.driver.cuMemAlloc(&raw mut address, MIB) }, Status::OUT_OF_MEMORY);
    current.memory(MIB);
}

/// The card is lost behind the fifth piece of work.
pub(crate) fn a_card() {
    let current = Current::begin();
    let (host, stream) = (current.pinned(4096), current.stream());
    for value in 1..=8 {
        // Those behind may be refused already.
        let _ = write(&current, stream, host, value);
    }
    // SAFETY: it is a stream.
    let query = || unsafe { current.driver.cuStreamQuery(stream) };
    until(|| query() != Status::NOT_READY);
    assert_eq!((query(), word(host)), (Status::ECC_UNCORRECTABLE, 5));
}

/// An event comes a tenth of a second after what was before it, and what is behind it after that.
pub(crate) fn events() {
    const LATE: Duration = Duration::from_millis(100);
    let current = Current::begin();
    let (host, stream, event) = (current.pinned(4096), current.stream(), current.event());
    let before = Instant::now();
    assert_eq!(write(&current, stream, host, 1), Status::SUCCESS);
    // SAFETY: an event and a stream.
    assert_eq!(unsafe { current.driver.cuEventRecord(event, stream) }, Status::SUCCESS);
    assert_eq!(write(&current, stream, host.wrapping_add(8), 1), Status::SUCCESS);
    until(|| word(host) == 1);
    // SAFETY: it is an event.
    let query = || unsafe { current.driver.cuEventQuery(event) };
    assert!(query() == Status::NOT_READY || before.elapsed() >= LATE);
    until(|| query() == Status::SUCCESS);
    assert!(before.elapsed() >= LATE);
    until(|| word(host.wrapping_add(8)) == 1);
}

/// Copies take a millisecond a megabyte, one behind the other, and move nothing; what is behind them is done.
pub(crate) fn a_slow_bus() {
    const BYTES: usize = 8 * MIB;
    let current = Current::begin();
    let (host, words, stream) = (current.pinned(BYTES), current.pinned(4096), current.stream());
    let device = current.memory(BYTES);
    super::fill(host, BYTES, 7);
    let (expected, begun) = (bytes_at(host, BYTES), Instant::now());
    for value in 1..=2 {
        // SAFETY: both ranges are there until the words have come.
        let copied = unsafe { current.driver.cuMemcpyDtoHAsync(host.cast(), device, BYTES, stream) };
        assert_eq!((copied, write(&current, stream, words, value)), (Status::SUCCESS, Status::SUCCESS));
    }
    until(|| word(words) == 2);
    assert!(begun.elapsed() >= Duration::from_nanos(2 * BYTES as u64), "{:?}", begun.elapsed());
    assert!(bytes_at(host, BYTES) == expected);
}
