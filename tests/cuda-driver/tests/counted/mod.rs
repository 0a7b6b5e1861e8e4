//! The allocator of this program, which counts. What the stand-in allocates is its own: a library has its own.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

static IS_COUNTING: AtomicBool = AtomicBool::new(false);
static COUNTED: AtomicU64 = AtomicU64::new(0);

struct Counting;

impl Counting {
    fn count() {
        if IS_COUNTING.load(Ordering::Relaxed) {
            COUNTED.fetch_add(1, Ordering::Relaxed);
        }
    }
}

// SAFETY: every call goes to the system's allocator unchanged, which keeps the contract; counting touches only atomics.
unsafe impl GlobalAlloc for Counting {
    // SAFETY: as for the impl; the caller's promises are passed on.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::count();
        // SAFETY: the caller keeps alloc's contract, which is the system's own.
        unsafe { System.alloc(layout) }
    }

    // SAFETY: as for the impl; the caller's promises are passed on.
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: `at` came from the system's allocator above, with this layout.
        unsafe { System.dealloc(at, layout) }
    }

    // SAFETY: as for the impl; the caller's promises are passed on.
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        Self::count();
        // SAFETY: `at` came from the system's allocator above, with this layout.
        unsafe { System.realloc(at, layout, bytes) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// How many allocations all threads make meanwhile.
fn allocations(body: impl FnOnce()) -> u64 {
    COUNTED.store(0, Ordering::SeqCst);
    IS_COUNTING.store(true, Ordering::SeqCst);
    body();
    IS_COUNTING.store(false, Ordering::SeqCst);
    COUNTED.load(Ordering::SeqCst)
}

/// What is done again and again allocates nothing after a while. A list grows where a thread that had no processor finds more than ever
/// before: twice as long each time, so that comes to its end, and one window of several has none.
pub(crate) fn assert_none_in_the_end(what: &str, round: impl Fn()) {
    (0..100).for_each(|_| round());
    let windows = [(); 4].map(|()| allocations(|| (0..50).for_each(|_| round())));
    assert!(windows.contains(&0), "{what}: {windows:?}");
}
