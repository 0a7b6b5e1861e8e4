//! Calls that nothing of Penstock makes: they work, and the stand-in counts them.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::null_mut;

use penstock_cuda_sys::Status;

use super::{Current, MIB, anonymous, bytes_at, fill};

/// Functions beside those that are asked for, by name and release.
type Find<'a> = &'a dyn Fn(&CStr, i32) -> *mut c_void;

/// How many were made, and a line for each kind.
fn made(exported: *mut c_void) -> (u32, String) {
    type Forbidden = unsafe extern "C" fn(*mut c_char, c_int) -> u32;
    let mut text = [0u8; 512];
    // SAFETY: a function of this type, and room for so many bytes.
    let count = unsafe {
        std::mem::transmute::<*mut c_void, Forbidden>(exported)(text.as_mut_ptr().cast(), text.len() as c_int)
    };
    (count, CStr::from_bytes_until_nul(&text).unwrap().to_str().unwrap().to_owned())
}

pub(crate) fn calls(exported: *mut c_void, find: Find<'_>) {
    type OfHandle = unsafe extern "C" fn(*mut c_void) -> u32;
    type Copy = unsafe extern "C" fn(u64, u64, usize) -> u32;
    let current = Current::begin();
    let driver = current.driver;
    let (host, device, stream, event) = (current.pinned(MIB), current.memory(MIB), current.stream(), current.event());
    // SAFETY: all is there until it has passed.
    unsafe {
        assert_eq!(driver.cuMemcpyHtoDAsync(device, host.cast(), MIB, stream), Status::SUCCESS);
        assert_eq!(driver.cuEventRecord(event, stream), Status::SUCCESS);
    }
    current.wait(stream);
    assert_eq!(made(exported), (0, String::new()));

    let plain = anonymous(2 * 4096);
    let back = plain.wrapping_add(4096);
    fill(plain, 4096, 11);
    // SAFETY: functions of these types; all is there, and they return when it has passed.
    unsafe {
        let of_handle = |name| std::mem::transmute::<*mut c_void, OfHandle>(find(name, 4000));
        let copy = |name| std::mem::transmute::<*mut c_void, Copy>(find(name, 4000));
        assert_eq!(driver.cuMemcpyHtoDAsync(device, host.cast(), MIB, stream), Status::SUCCESS);
        assert_eq!(driver.cuEventRecord(event, stream), Status::SUCCESS);
        assert_eq!(of_handle(c"cuEventSynchronize")(event.cast()), 0);
        assert_eq!(driver.cuEventQuery(event), Status::SUCCESS);
        for _ in 0..2 {
            assert_eq!(driver.cuMemcpyHtoDAsync(device, host.cast(), MIB, stream), Status::SUCCESS);
            assert_eq!(of_handle(c"cuStreamSynchronize")(stream.cast()), 0);
            assert_eq!(driver.cuStreamQuery(stream), Status::SUCCESS);
        }
        assert_eq!(of_handle(c"cuCtxSynchronize")(null_mut()), 0);
        // Memory that nobody registered.
        assert_eq!(copy(c"cuMemcpyHtoD")(device, plain as u64, 4096), 0);
        assert_eq!(copy(c"cuMemcpyDtoD")(device + 8192, device, 4096), 0);
        assert_eq!(copy(c"cuMemcpy")(device + 4096, device + 8192, 4096), 0);
        assert_eq!(copy(c"cuMemcpyDtoH")(back as u64, device + 4096, 4096), 0);
        assert_eq!(driver.cuStreamQuery(null_mut()), Status::INVALID_HANDLE);
    }
    assert!(bytes_at(back, 4096) == bytes_at(plain, 4096));
    let context = current.context as usize;
    // Two threads, of which one leaves what it has pushed.
    for is_left in [false, true] {
        let pushes = move || {
            // SAFETY: the context is there.
            unsafe {
                assert_eq!(driver.cuCtxPushCurrent(context as *mut _), Status::SUCCESS);
                if !is_left {
                    assert_eq!(driver.cuCtxPopCurrent(null_mut()), Status::SUCCESS);
                }
            }
        };
        std::thread::spawn(pushes).join().unwrap();
    }
    // SAFETY: a function of this type, and a context that is there.
    unsafe {
        let set = std::mem::transmute::<*mut c_void, OfHandle>(find(c"cuCtxSetCurrent", 4000));
        assert_eq!(set(current.context.cast()), 0);
    }
    let names = "1 context left current at the end of a thread\n1 cuCtxSetCurrent\n1 cuCtxSynchronize\n1 cuEventSynchronize\n\
                 1 cuMemcpy\n1 cuMemcpyDtoD\n1 cuMemcpyDtoH\n1 cuMemcpyHtoD\n2 cuStreamSynchronize\n1 default stream\n";
    assert_eq!(made(exported), (11, names.to_owned()));
}
