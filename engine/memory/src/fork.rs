//! Knowing that this is a forked child, at the cost of a load.
//!
//! A child inherits every mapping and none of the threads: whatever it did to an engine would
//! corrupt its parent's. So every entry point asks [`in_child`] first.

use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use rustix::mm::{self, Advice, MapFlags, ProtFlags};

const ORIGINAL: u32 = 1;

/// What [`in_child`] reads until [`arm`] was called: always the original.
static UNARMED: AtomicU32 = AtomicU32::new(ORIGINAL);
/// Used where a page that forks wipe cannot be had; reset by a fork handler instead.
static HANDLED: AtomicU32 = AtomicU32::new(ORIGINAL);
static MARK: AtomicPtr<AtomicU32> = AtomicPtr::new((&raw const UNARMED).cast_mut());
static ARMED: OnceLock<()> = OnceLock::new();

/// True in every forked descendant of the process that first called [`arm`]; false before.
#[inline]
pub fn in_child() -> bool {
    // Relaxed is enough: a fork is no other thread, and the mark never moves after arm().
    let mark = MARK.load(Ordering::Relaxed);
    // SAFETY: MARK only ever holds one of the two statics or the page that `wiped_page` leaked.
    unsafe { &*mark }.load(Ordering::Relaxed) != ORIGINAL
}

/// Marks this process as the original. Repeating it, also in a child, changes nothing.
pub fn arm() {
    ARMED.get_or_init(|| {
        let mark = wiped_page().unwrap_or_else(|| {
            // SAFETY: the handler only stores to a static, which is allowed after fork.
            unsafe { libc::pthread_atfork(None, None, Some(mark_child)) };
            (&raw const HANDLED).cast_mut()
        });
        MARK.store(mark, Ordering::Relaxed);
    });
}

/// A page that the kernel zeroes in a child, however the child was made.
fn wiped_page() -> Option<*mut AtomicU32> {
    let len = rustix::param::page_size();
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a fresh anonymous page at an address of the kernel's choice, zeroed and aligned,
    // leaked on success; the advice acts on it alone.
    unsafe {
        let page = mm::mmap_anonymous(ptr::null_mut(), len, prot, flags).ok()?;
        if mm::madvise(page, len, Advice::LinuxWipeOnFork).is_err() {
            let _ = mm::munmap(page, len);
            return None;
        }
        let mark = page.cast::<AtomicU32>();
        (*mark).store(ORIGINAL, Ordering::Relaxed);
        Some(mark)
    }
}

extern "C" fn mark_child() {
    HANDLED.store(0, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_child_sees_itself_as_one() {
        arm();
        arm();
        assert!(!in_child());
        // SAFETY: the child makes only async-signal-safe calls: a load and _exit.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: _exit ends the child without running anything of the parent's.
            unsafe { libc::_exit(i32::from(in_child())) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above and writes its status.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert!(libc::WIFEXITED(status));
        assert_eq!(libc::WEXITSTATUS(status), 1);
        assert!(!in_child());
    }
}
