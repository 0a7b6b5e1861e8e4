//! Callers that are wrong: any handle and any pointer in any call, by several threads, while objects come and go.

use std::ffi::{CString, c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::engine::*;
use crate::failure::*;
use crate::log::*;
use crate::memory::*;
use crate::objects::*;
use crate::packets::*;
use crate::peer::*;
use crate::plan::*;
use crate::status::penstock_status::{self, *};
use crate::status::*;
use crate::told::*;
use crate::transfer::*;

const BLOCK: u64 = 4096;
const CALLS: u32 = 4000;
/// How many arms the calls below have.
const KINDS: u64 = 64;
/// From here on calls that end engines and sessions are made, too: before, they would leave nothing to do.
const LATE: u32 = CALLS * 9 / 10;

fn engine(name: &str) -> penstock_engine {
    let folder = std::env::temp_dir().join(format!("penstock-hostile-{name}-{}", std::process::id()));
    let yaml = format!("engine: {{ directory: {} }}\ntransports: {{ allow: [local] }}\n", folder.display());
    let (name, yaml) = (CString::new(name).unwrap(), CString::new(yaml).unwrap());
    let size = size_of::<penstock_engine_options>();
    let options =
        penstock_engine_options { size, name: name.as_ptr(), config_file: null(), config_yaml: yaml.as_ptr() };
    let mut engine = 0;
    // SAFETY: the pointers are to locals.
    assert_eq!(unsafe { penstock_engine_start(&options, &mut engine) }, PENSTOCK_OK);
    engine
}

/// A generator of numbers that needs no other crate.
struct Draw<'a> {
    state: u64,
    /// Handles that were given out, released or not.
    handles: &'a Mutex<Vec<u64>>,
    memory: &'a [u8],
}

impl Draw<'_> {
    fn number(&mut self) -> u64 {
        self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.state >> 20
    }

    /// Mostly one that was given out, of any kind.
    fn handle(&mut self) -> u64 {
        let (which, noise) = (self.number(), self.number());
        let handles = self.handles.lock().unwrap();
        match which % 8 {
            0 => noise << 20 ^ which,
            1 => 0,
            // Of the same place, but of another time.
            2 => handles[which as usize / 8 % handles.len()] ^ 1 << (24 + noise % 28),
            _ => handles[which as usize / 8 % handles.len()],
        }
    }

    /// One of these, or null.
    fn or_null<T>(&mut self, pointer: *mut T) -> *mut T {
        if self.number().is_multiple_of(6) { null_mut() } else { pointer }
    }
}

/// A hook for the log that only looks at what it is given.
///
/// # Safety
/// The texts end with a zero.
unsafe extern "C" fn take_line(_: *mut c_void, level: u32, source: *const c_char, text: *const c_char) {
    // SAFETY: texts that end with a zero, as is promised to it.
    let texts = unsafe { [source, text].map(|text| std::ffi::CStr::from_ptr(text).to_bytes().len()) };
    assert!((PENSTOCK_LOG_ERROR..=PENSTOCK_LOG_TRACE).contains(&level) && texts[0] > 0);
}

/// One call with whatever is drawn.
fn call(draw: &mut Draw<'_>, number: u64, is_late: bool) -> penstock_status {
    let (mut out, mut words) = ([0_u64; 64], [0 as c_char; 64]);
    let (mut count, mut int) = (0_usize, 0_i32);
    let label = c"kv".as_ptr();
    let (one, two) = (draw.handle(), draw.handle());
    let (made, text) = (draw.or_null(out.as_mut_ptr()), draw.or_null(words.as_mut_ptr()));
    let count = draw.or_null(&raw mut count);
    let room = draw.number() as usize % 8;
    let (address, bytes) = (draw.memory.as_ptr() as u64, draw.number() % (2 * draw.memory.len() as u64));
    // Sizes that are too small, right, and larger than what this release knows.
    let size = [0, 8, 24, size_of_val(&out)][draw.number() as usize % 4];
    let mut sized = [0_u64; 64];
    sized[0] = size as u64;
    let sized = draw.or_null(sized.as_mut_ptr());
    let entry = penstock_entry { local: address, remote: address + 64, bytes };
    let given_back = [one, two];
    // SAFETY: the pointers are null or to locals that have room for what is written there; memory outlives its engines.
    let status = unsafe {
        match number % KINDS {
            0 => penstock_engine_name(one, text, room, count),
            1 => penstock_engine_descriptor(one, made.cast::<c_void>(), room, count),
            2 => penstock_engine_addresses(one, text, room, count),
            3 => penstock_connect(one, made.cast::<c_void>(), room, 1, made),
            4 => penstock_connect_address(one, text, 1, made),
            5 => penstock_connect_name(one, c"nobody".as_ptr(), 1, made),
            6 => penstock_connect_begin(one, made.cast::<c_void>(), room, made),
            7 => penstock_connect_poll(one, made),
            8 => penstock_reconnect(one, two, 1, made),
            9 => penstock_peers(one, made, room, count),
            10 => penstock_progress(one, draw.or_null(&raw mut int)),
            11 => penstock_event_fd(one, draw.or_null(&raw mut int)),
            12 => penstock_arm(one),
            13 => penstock_engine_statistics(one, sized.cast()),
            14 => penstock_pool_create(one, sized.cast(), made),
            15 => penstock_pool_take(one, room, 0, made),
            16 => penstock_blocks_indices(one, made.cast(), room, count),
            17 => penstock_register(one, address as *mut c_void, bytes as usize, label, 3, made),
            18 => penstock_region_at(one, address, bytes, made),
            19 => penstock_region_look(one, sized.cast()),
            20 => penstock_revoke(one, (&raw const entry).cast(), 1, 1, made),
            21 => penstock_quarantined(one, made, room, count),
            22 => penstock_quarantine_look(one),
            23 => penstock_quarantine_ranges(one, made.cast(), room, count),
            24 => penstock_quarantine_suspects(one, text, room, count),
            25 => penstock_renew(one, two, 1),
            26 => penstock_peer_name(one, text, room, count),
            27 => penstock_peer_transport(one, text, room, count),
            28 => penstock_peer_path(one, text, room, count),
            29 => penstock_peer_state(one),
            30 => penstock_peer_ping(one, 1, made),
            31 => penstock_peer_refresh(one, 1),
            32 => penstock_peer_region(one, label, 0, made),
            33 => penstock_peer_region_at(one, address, bytes, made),
            34 => penstock_peer_regions(one, made, room, count),
            35 => penstock_remote_region_look(one, sized.cast()),
            36 => penstock_plan_create(one, two, sized.cast(), made),
            37 => penstock_plan_addresses(one, room as u32 % 3, &raw const entry, 1, null(), 0, made),
            38 => penstock_plan_bytes(one, made),
            39 => penstock_submit(one, two, null(), made),
            40 => penstock_notify(one, sized.cast(), made),
            41 => penstock_poll(one, sized.cast()),
            42 => penstock_wait(one, 1, sized.cast()),
            43 => penstock_poll_many(one, given_back.as_ptr(), 2, made.cast(), count),
            44 => penstock_cancel(one, 1, sized.cast()),
            45 => penstock_counter_create(one, label, made),
            46 => penstock_counter_wait(one, draw.number() % 3, 1),
            47 => penstock_counter_value(one, made),
            48 => penstock_peer_counter(one, label, 0, made),
            49 => penstock_notifications(
                one,
                made.cast(),
                room.min(8),
                count,
                made.add(usize::from(!made.is_null()) * 60),
            ),
            50 => penstock_wait_notification(one, 1),
            51 => penstock_bytes_moved(one, made),
            52 => penstock_log(room as u32, Some(take_line), draw.or_null(made).cast()),
            53 => penstock_last_error(sized.cast()),
            54 => penstock_submit(one, two, sized.cast(), made),
            55 if is_late => penstock_deregister(one, 1, made),
            56 if is_late => penstock_drain(one, 1),
            57 if is_late => penstock_disconnect(one, 1),
            58 if is_late => penstock_engine_close(one, 1, made, room, count),
            // Host memory, which is refused with a driver and without.
            59 => penstock_register_device(one, address, bytes, label, 3, made),
            62 => penstock_order_behind(address, made.cast()),
            60 => penstock_engine_packet_statistics(one, sized.cast()),
            61 => penstock_peer_packet_statistics(one, sized.cast()),
            _ if is_late => penstock_release_many(given_back.as_ptr(), 2),
            _ if find::<penstock::Engine>(one).is_err() => penstock_release(one),
            _ => PENSTOCK_OK,
        }
    };
    // What was made is used in turn.
    if status == PENSTOCK_OK && !made.is_null() {
        let handles = out.iter().filter(|handle| (1..=13).contains(&(**handle >> 60)));
        draw.handles.lock().unwrap().extend(handles);
    }
    status
}

#[test]
fn any_handle_in_any_call_is_answered() {
    let (here, there) = (engine("here"), engine("there"));
    let (mut bytes, mut descriptor) = (0, [0_u8; 4096]);
    let (mut peer, mut pool, mut remote) = (0, 0, 0);
    let size = size_of::<penstock_pool_options>();
    let label = c"kv".as_ptr();
    let options = penstock_pool_options { size, bytes: 64 * BLOCK, block_bytes: BLOCK, label, rights: 3, pages: 0 };
    // SAFETY: the pointers are to locals.
    unsafe {
        assert_eq!(penstock_pool_create(there, &options, &mut pool), PENSTOCK_OK);
        let into = descriptor.as_mut_ptr().cast();
        assert_eq!(penstock_engine_descriptor(there, into, descriptor.len(), &mut bytes), PENSTOCK_OK);
        assert_eq!(penstock_connect(here, descriptor.as_ptr().cast(), bytes, 10_000, &mut peer), PENSTOCK_OK);
        assert_eq!(penstock_peer_region(peer, label, 10_000, &mut remote), PENSTOCK_OK);
    }
    let handles = Mutex::new(vec![here, there, peer, pool, remote]);
    let memory = vec![0_u8; 1 << 16];
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let mut draw = Draw { state: 77 + thread, handles: &handles, memory: &memory };
            scope.spawn(move || {
                let mut seen = std::collections::BTreeMap::new();
                for made in 0..CALLS {
                    let number = draw.number();
                    let status = call(&mut draw, number, made >= LATE);
                    assert_ne!(status, PENSTOCK_INTERNAL, "call {}", number % KINDS);
                    *seen.entry(status as i32).or_insert(0) += 1;
                }
                let (well, bad) = (seen.get(&0), seen.get(&(PENSTOCK_BAD_HANDLE as i32)));
                assert!(well.is_some() && bad.is_some(), "{seen:?}");
            });
        }
    });
    for engine in [here, there] {
        let mut count = 0;
        // SAFETY: the pointer is to a local.
        let closed = unsafe { penstock_engine_close(engine, 10_000, null_mut(), 0, &mut count) };
        let was_closed = closed == PENSTOCK_BAD_HANDLE;
        assert!(was_closed || (closed, count) == (PENSTOCK_OK, 0), "{closed:?}, {count}");
        assert_eq!(penstock_arm(engine), PENSTOCK_BAD_HANDLE);
    }
    // What is left goes without its engines.
    let handles = handles.into_inner().unwrap();
    // SAFETY: the pointer is to as many.
    let _ = unsafe { penstock_release_many(handles.as_ptr(), handles.len()) };
    assert!(handles.iter().all(|handle| penstock_release(*handle) == PENSTOCK_BAD_HANDLE));
}

#[test]
fn a_close_ends_the_waits_of_other_threads() {
    let engine = engine("waited-for");
    let (mut pool, mut counter) = (0, 0);
    let (size, label) = (size_of::<penstock_pool_options>(), CString::new("l".repeat(129)).unwrap());
    let label = label.as_ptr();
    let mut options = penstock_pool_options { size, bytes: BLOCK, block_bytes: BLOCK, label, rights: 3, pages: 0 };
    // SAFETY: the pointers are to locals.
    unsafe {
        assert_eq!(
            penstock_pool_create(engine, &options, &mut pool),
            PENSTOCK_INVALID_ARGUMENT,
            "peers would not find it"
        );
        options.label = c"kv".as_ptr();
        assert_eq!(penstock_pool_create(engine, &options, &mut pool), PENSTOCK_OK);
        assert_eq!(penstock_counter_create(pool, c"layers".as_ptr(), &mut counter), PENSTOCK_OK);
        let refused = penstock_engine_close(engine, 5_000, null_mut(), 0, null_mut());
        assert_eq!(refused, PENSTOCK_INVALID_ARGUMENT);
    }
    assert_eq!(penstock_wait_notification(engine, 1), PENSTOCK_TIMED_OUT, "what makes no sense ends nothing");
    let waited = std::thread::scope(|scope| {
        let waits = scope.spawn(|| penstock_wait_notification(engine, 60_000));
        let counts = scope.spawn(|| penstock_counter_wait(counter, 1, 60_000));
        std::thread::sleep(Duration::from_millis(50));
        let (began, mut count) = (Instant::now(), 0);
        // SAFETY: the pointer is to a local.
        let closed = unsafe { penstock_engine_close(engine, 5_000, null_mut(), 0, &mut count) };
        assert_eq!(counts.join().unwrap(), PENSTOCK_ENGINE_CLOSED);
        let waited = waits.join().unwrap();
        assert!(closed == PENSTOCK_OK && began.elapsed() < Duration::from_secs(10), "{closed:?}");
        waited
    });
    assert_eq!(waited, PENSTOCK_ENGINE_CLOSED);
}

#[test]
fn the_last_error_is_told_in_fields() {
    let size = size_of::<penstock_error>();
    let none = null();
    let mut error =
        penstock_error { size, status: PENSTOCK_OK, peer: none, stage: none, cause: none, remedy: none, text: none };
    assert_eq!(penstock_arm(42), PENSTOCK_BAD_HANDLE);
    // SAFETY: the pointer is to a local; texts stay until the next failure.
    unsafe {
        assert_eq!(penstock_last_error(&mut error), PENSTOCK_OK);
        let text = std::ffi::CStr::from_ptr(error.text).to_str().unwrap();
        assert!(error.status == PENSTOCK_BAD_HANDLE && text.contains("0x2a is no handle of an engine"), "{text}");
        assert_eq!(std::ffi::CStr::from_ptr(error.peer), c"");
        // A struct of an older release gets what it has room for.
        let mut old = [0_usize; 7];
        (old[0], old[2]) = (16, 99);
        assert_eq!(penstock_last_error((&raw mut old).cast()), PENSTOCK_OK);
        assert_eq!((old[0], old[1] as u32, old[2]), (16, PENSTOCK_BAD_HANDLE as u32, 99));
        assert_eq!(
            std::ffi::CStr::from_ptr(penstock_message(PENSTOCK_BAD_HANDLE as i32)).to_bytes()[..9],
            *b"no object"
        );
    }
    let newer = [64_usize, 0, 0, 0, 1, 0, 0, 0];
    let mut engine = 0;
    // SAFETY: the pointers are to locals.
    let refused = unsafe { penstock_engine_start(newer.as_ptr().cast(), &mut engine) };
    assert_eq!(refused, PENSTOCK_INVALID_ARGUMENT, "a field that this release does not know is not ignored");
}
