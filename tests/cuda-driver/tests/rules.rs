//! What a driver does, asked of the stand-in always, and of the real one where there is one.
//!
//! Each question runs in a process of its own, since a driver is opened and started once: this program again, told which question.

mod queues;

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::process::Command;

use penstock_cuda::{Cuda, CudaError};
use penstock_cuda_sys::{Driver, Lacking, NotHere, Status, Version};

/// Tells this program, started again, that it is the process of the question.
const ASKED: &str = "PENSTOCK_CUDA_RULE";
const LIBRARY: &str = penstock_cuda_sys::PATH_VARIABLE;
const STAND_IN: &str = "PENSTOCK_CUDA_STAND_IN";
const CALL: Version = Version { number: 12_080 };

/// The stand-in, which was built for these tests.
fn stand_in() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    let path = program.parent().unwrap().join("libpenstock_cuda_driver.so");
    assert!(path.exists(), "{} was built", path.display());
    path
}

/// Runs the rest of a test in a process of its own: true there.
fn apart(test: &str, library: Option<&str>, plan: &str) -> bool {
    if std::env::var(ASKED).is_ok_and(|asked| asked == test) {
        return true;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture"]).env(ASKED, test).env(STAND_IN, plan);
    match library {
        Some(library) => command.env(LIBRARY, library),
        None => command.env_remove(LIBRARY),
    };
    let ran = command.output().unwrap();
    let text = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && text.contains("1 passed"), "{text}{}", String::from_utf8_lossy(&ran.stderr));
    false
}

/// The same on the stand-in.
fn on_stand_in(test: &str, plan: &str) -> bool {
    apart(test, Some(stand_in().to_str().unwrap()), plan)
}

/// Runs the rest of a test on the stand-in of each of these releases: the number of one of them there.
fn on_releases(test: &str, releases: &[&str]) -> Option<i32> {
    if std::env::var(ASKED).is_ok_and(|asked| asked == test) {
        return Some(Driver::open().unwrap().version().number);
    }
    for release in releases {
        on_stand_in(test, &format!("version={release}"));
    }
    None
}

/// What the stand-in has under a name, beside what it is asked for.
fn exported(name: &CStr) -> *mut c_void {
    let path = CString::new(stand_in().to_str().unwrap()).unwrap();
    let named = penstock_loader::Named { soname: Box::leak(path.into_boxed_c_str()), packages: "" };
    let library = penstock_loader::Shared::open(named).unwrap();
    library.find_unversioned(name).expect("it is the stand-in").as_ptr()
}

/// What the stand-in has under a name as a release has it, or the number of why it has not.
fn find(name: &CStr, version: i32) -> Result<*mut c_void, u32> {
    type Get = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut u32) -> u32;
    let (mut place, mut became) = (std::ptr::null_mut::<c_void>(), 0u32);
    let get = exported(c"cuGetProcAddress_v2");
    // SAFETY: a function of this type, a C string, and two places.
    let answered = unsafe {
        std::mem::transmute::<*mut c_void, Get>(get)(name.as_ptr(), &raw mut place, version, 0, &raw mut became)
    };
    assert_eq!(answered == 0, !place.is_null());
    if place.is_null() { Err(became) } else { Ok(place) }
}

#[test]
fn the_stand_in_starts_and_says_what_devices_it_has() {
    if !on_stand_in("the_stand_in_starts_and_says_what_devices_it_has", "devices=3") {
        return;
    }
    let cuda = Cuda::start().unwrap();
    assert_eq!((cuda.version().to_string(), cuda.lacks()), ("13.0".to_owned(), vec![]));
    let devices = cuda.devices().unwrap();
    let seen: Vec<_> = devices.iter().map(|device| (device.ordinal, device.attr.pci.as_str())).collect();
    assert_eq!(seen, [(0, "0000:17:00.0"), (1, "0000:18:00.0"), (2, "0000:19:00.0")]);
    assert_eq!(devices[1].id.to_string(), "GPU-70656e73-746f-636b-2073-74616e642d01");
    let attr = &devices[0].attr;
    assert_eq!((attr.name.as_str(), attr.bytes), ("Penstock stand-in for a GPU", 8 << 30));
    assert!(attr.vmm && attr.vmm_descriptors && attr.unified_addressing && attr.dma_buf && attr.gpudirect);
    assert_eq!((attr.compute_capability, attr.copy_engines, attr.compute_mode), ((9, 0), 3, 0));
    assert!(std::ptr::eq(Driver::open().unwrap(), Driver::open().unwrap()), "it is opened once");
}

#[test]
fn no_driver_is_words() {
    if !apart("no_driver_is_words", Some("/nowhere/libcuda.so.1"), "") {
        return;
    }
    let error = Cuda::start().unwrap_err();
    assert!(matches!(&error, CudaError::NotHere(NotHere::Library { .. })), "{error:?}");
    let words = error.to_string();
    assert!(words.starts_with("/nowhere/libcuda.so.1 cannot be opened (") && words.contains("--gpus all"), "{words}");
}

#[test]
fn a_path_that_depends_on_the_folder_is_refused() {
    if !apart("a_path_that_depends_on_the_folder_is_refused", Some("libcuda.so.1"), "") {
        return;
    }
    let error = Driver::open().unwrap_err();
    assert_eq!(error.to_string(), "`libcuda.so.1` in PENSTOCK_CUDA_DRIVER is not an absolute path");
}

#[test]
fn another_library_is_no_driver() {
    // The C library that this program itself runs with.
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let libc = maps.split_whitespace().find(|word| word.ends_with("/libc.so.6")).expect("this is a program of glibc");
    if !apart("another_library_is_no_driver", Some(libc), "") {
        return;
    }
    assert!(matches!(Driver::open(), Err(NotHere::NoDriver { .. })));
}

#[test]
fn the_stand_in_of_an_older_release_is_refused() {
    if !on_stand_in("the_stand_in_of_an_older_release_is_refused", "version=12010") {
        return;
    }
    let error = Driver::open().unwrap_err();
    let words = "is the driver of CUDA 12.1, and 12.2 is the oldest that is used: install a newer driver";
    assert!(error.to_string().ends_with(words), "{error}");
}

#[test]
fn the_stand_in_of_the_oldest_release_lacks_only_what_has_a_substitute() {
    if !on_stand_in("the_stand_in_of_the_oldest_release_lacks_only_what_has_a_substitute", "version=12020") {
        return;
    }
    let lacking = Lacking { function: "cuMemcpyBatchAsync", since: CALL };
    assert_eq!(Cuda::start().unwrap().lacks(), [lacking]);
    assert_eq!(lacking.to_string(), "the driver lacks cuMemcpyBatchAsync as CUDA 12.8 has it");
    queues::batch::lacking();
}

#[test]
fn a_stand_in_without_a_function_that_has_no_substitute_is_refused() {
    let test = "a_stand_in_without_a_function_that_has_no_substitute_is_refused";
    if !on_stand_in(test, "lacks=cuDeviceGetUuid") {
        return;
    }
    let error = Driver::open().unwrap_err();
    assert!(error.to_string().contains("the driver lacks cuDeviceGetUuid as CUDA 11.4 has it"), "{error}");
}

#[test]
fn a_stand_in_that_does_not_start_says_what_to_do() {
    let test = "a_stand_in_that_does_not_start_says_what_to_do";
    if !on_stand_in(test, "init=803") {
        return;
    }
    for _ in 0..2 {
        let error = Cuda::start().unwrap_err();
        assert_eq!(error, CudaError::Start { status: Status::SYSTEM_DRIVER_MISMATCH });
        assert!(error.to_string().contains("/proc/driver/nvidia/version"), "{error}");
    }
}

#[test]
fn a_stand_in_without_devices_says_so() {
    if !on_stand_in("a_stand_in_without_devices_says_so", "devices=0") {
        return;
    }
    let error = Cuda::start().unwrap_err();
    assert!(error.to_string().contains("CUDA error 100, no device; `nvidia-smi`"), "{error}");
}

#[test]
fn a_stand_in_that_is_told_words_it_does_not_know_ends() {
    const TEST: &str = "a_stand_in_that_is_told_words_it_does_not_know_ends";
    if std::env::var(ASKED).is_ok_and(|asked| asked == TEST) {
        drop(Cuda::start());
        return;
    }
    for word in ["seeds=7", "seed", "seed=x", "devices=-1"] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args([TEST, "--exact"])
            .env(ASKED, TEST)
            .env(STAND_IN, format!("bus=25 {word}"))
            .env(LIBRARY, stand_in());
        let ran = command.output().unwrap();
        let text = String::from_utf8_lossy(&ran.stderr);
        assert!(!ran.status.success() && text.contains(&format!("`{word}`")), "{word}: {text}");
    }
}

#[test]
fn a_code_that_nobody_knows_is_a_number() {
    if !on_stand_in("a_code_that_nobody_knows_is_a_number", "init=4711") {
        return;
    }
    assert_eq!(Cuda::start().unwrap_err(), CudaError::Start { status: Status(4711) });
}

#[test]
fn a_mute_stand_in_is_refused() {
    if !on_stand_in("a_mute_stand_in_is_refused", "mute=999") {
        return;
    }
    assert!(
        Driver::open().unwrap_err().to_string().ends_with("does not say which release it is: CUDA error 999, unknown")
    );
}

/// What the driver answers that this process has: `PENSTOCK_CUDA_DRIVER` or `libcuda.so.1`.
fn before_it_is_started() {
    let driver = Driver::open().unwrap();
    let mut count = 0;
    // SAFETY: it writes one number.
    assert_eq!(unsafe { driver.cuDeviceGetCount(&raw mut count) }, Status::NOT_INITIALIZED);
    // SAFETY: it reads nothing.
    assert_eq!(unsafe { driver.cuInit(1) }, Status::INVALID_VALUE);
}

/// A child is refused before it asks the driver anything, and the parent goes on.
fn in_a_child() {
    let cuda = Cuda::start().unwrap();
    // SAFETY: the child makes only calls that look at words of its own, and ends by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let is_told =
            matches!(Cuda::start(), Err(CudaError::Forked)) && matches!(cuda.devices(), Err(CudaError::Forked));
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(i32::from(!is_told)) };
    }
    let mut status = 0;
    // SAFETY: waits for the child made above and writes its status.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status}");
    assert!(!cuda.devices().unwrap().is_empty());
    // What a child that asks all the same would hear.
    // SAFETY: as above.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut count = 0;
        // SAFETY: it writes one number.
        let answered = unsafe { Driver::open().unwrap().cuDeviceGetCount(&raw mut count) };
        // SAFETY: as above.
        unsafe { libc::_exit(i32::from(answered != Status::NOT_INITIALIZED)) };
    }
    // SAFETY: as above.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "{status}");
}

/// Each rule as two tests: on the stand-in, and on a real driver.
macro_rules! rules {
    ($($rule:path, $stand_in:ident, $real:ident;)*) => { $(
        #[test]
        fn $stand_in() {
            if on_stand_in(stringify!($stand_in), "") {
                $rule();
            }
        }

        #[test]
        fn $real() {
            if let Err(error) = Driver::open() {
                return skip(stringify!($real), &format!("needs a CUDA driver: {error}"));
            }
            if apart(stringify!($real), None, "") {
                $rule();
            }
        }
    )* };
}

rules! {
    before_it_is_started, stand_in_before_it_is_started, a_driver_before_it_is_started;
    in_a_child, stand_in_in_a_child, a_driver_in_a_child;
    queues::without_a_context, stand_in_without_a_context, a_driver_without_a_context;
    queues::contexts, stand_in_contexts, a_driver_contexts;
    queues::pointers, stand_in_pointers, a_driver_pointers;
    queues::pinned_memory, stand_in_pinned_memory, a_driver_pinned_memory;
    queues::copies, stand_in_copies, a_driver_copies;
    queues::refusals, stand_in_refusals, a_driver_refusals;
    queues::events, stand_in_events, a_driver_events;
    queues::functions, stand_in_functions, a_driver_functions;
    queues::order::events, stand_in_events_that_streams_wait_for, a_driver_events_that_streams_wait_for;
    queues::order::chains, stand_in_chains_of_streams, a_driver_chains_of_streams;
    queues::order::default_streams, stand_in_default_streams, a_driver_default_streams;
    queues::order::captures, stand_in_captures, a_driver_captures;
    queues::a_stray_access, stand_in_a_stray_access, a_driver_a_stray_access;
    queues::a_stopped_client, stand_in_a_stopped_client, a_driver_a_stopped_client;
    queues::vmm::memory_by_itself, stand_in_memory_by_itself, a_driver_memory_by_itself;
    queues::vmm::memory_is_back, stand_in_memory_is_back, a_driver_memory_is_back;
    queues::vmm::descriptors, stand_in_descriptors, a_driver_descriptors;
    queues::batch::batches, stand_in_batches, a_driver_batches;
    queues::batch::refusals, stand_in_batch_refusals, a_driver_batch_refusals;
    queues::gpudirect::dma_bufs, stand_in_dma_bufs, a_driver_dma_bufs;
    queues::gpudirect::sync_memops, stand_in_sync_memops, a_driver_sync_memops;
    queues::gpudirect::flushes, stand_in_flushes, a_driver_flushes;
    queues::vmm::without_a_context, stand_in_vmm_without_a_context, a_driver_vmm_without_a_context;
}

/// Rules of the stand-in alone, each with what it is told.
macro_rules! told {
    ($($plan:literal $rule:path, $test:ident;)*) => { $(
        #[test]
        fn $test() {
            if on_stand_in(stringify!($test), $plan) {
                $rule();
            }
        }
    )* };
}

told! {
    "launch-fails=3" queues::failures::a_launch, a_launch_of_the_stand_in_fails_for_good;
    "memory-fails=2" queues::failures::memory, a_stand_in_has_too_little_memory_once;
    "lost-after=5" queues::failures::a_card, a_card_of_the_stand_in_is_lost_while_it_works;
    "events-late=100000" queues::failures::events, an_event_of_the_stand_in_is_late;
    "bus=1" queues::failures::a_slow_bus, copies_of_the_stand_in_may_take_time_and_move_nothing;
    "devices=2" queues::order::two_devices, events_of_a_stand_in_are_of_a_device;
    "" queues::order::refusals, what_was_destroyed_and_what_is_captured_is_refused_by_the_stand_in;
    "" queues::batch::no_order, a_batch_of_the_stand_in_has_no_order;
    "lacks=cuMemcpyBatchAsync" queues::batch::lacking, a_stand_in_without_batches_says_so_at_the_call;
    "" queues::vmm::unmapped_too_early, memory_of_the_stand_in_that_is_unmapped_too_early_is_an_illegal_address;
    "bytes=4194304 pinned=65536" queues::too_little_memory, a_stand_in_has_as_much_memory_as_it_is_told;
}

#[test]
fn events_of_a_driver_are_of_a_device() {
    const TEST: &str = "events_of_a_driver_are_of_a_device";
    if let Err(error) = Driver::open() {
        return skip(TEST, &format!("needs a CUDA driver: {error}"));
    }
    if apart(TEST, None, "") {
        match Cuda::start().unwrap().devices().unwrap().len() {
            1 => skip(TEST, "needs two devices"),
            _ => queues::order::two_devices(),
        }
    }
}

#[test]
fn the_stand_in_counts_forbidden_calls() {
    if on_stand_in("the_stand_in_counts_forbidden_calls", "") {
        let find = |name: &CStr, version| find(name, version).expect("it has forbidden calls too");
        queues::forbidden::calls(exported(c"penstock_cuda_stand_in_forbidden"), &find);
    }
}

#[test]
fn each_release_of_the_stand_in_has_its_functions() {
    const TEST: &str = "each_release_of_the_stand_in_has_its_functions";
    const BATCH: &CStr = c"cuMemcpyBatchAsync";
    let Some(asked) = on_releases(TEST, &["12020", "12080", "13000"]) else { return };
    let has = |version| find(BATCH, version).is_ok();
    // A release has what is older than it; and asked for what is younger, no driver answers.
    assert_eq!([has(12_070), has(12_080), has(13_000)], [false, asked >= 12_080, asked >= 13_000]);
    assert_eq!(find(BATCH, 12_070), Err(2), "there is one, of another release");
    assert_eq!(find(c"cuMemcpyBatchesAsync", 12_020), Err(1));
    assert_eq!(find(c"cuMemCreate", asked), find(c"cuMemCreate", 10_020));
    if asked == 13_000 {
        assert_ne!(find(BATCH, 13_000), find(BATCH, 12_080), "its arguments are others");
    }
    let lacks: Vec<_> = Driver::open().unwrap().lacks().iter().map(|lacking| lacking.function).collect();
    assert_eq!(lacks, if asked < 12_080 { vec!["cuMemcpyBatchAsync"] } else { vec![] });
}

#[test]
fn a_stand_in_without_vmm_refuses_it() {
    if on_stand_in("a_stand_in_without_vmm_refuses_it", "without=vmm") {
        queues::vmm::none(false);
    }
}

#[test]
fn a_stand_in_without_descriptors_refuses_them() {
    if on_stand_in("a_stand_in_without_descriptors_refuses_them", "without=descriptors") {
        queues::vmm::none(true);
    }
}

#[test]
fn a_lost_card_of_the_stand_in_does_nothing_more() {
    if on_stand_in("a_lost_card_of_the_stand_in_does_nothing_more", "") {
        queues::a_lost_card(exported(c"penstock_cuda_stand_in_lose"));
    }
}

/// Reports that a test did not run, and why.
fn skip(test: &str, reason: &str) {
    use std::io::Write;
    if let Some(path) = std::env::var_os("PENSTOCK_SKIPS") {
        let mut file = std::fs::OpenOptions::new().append(true).create(true).open(path).unwrap();
        writeln!(file, "{test}: {reason}").unwrap();
    }
}
