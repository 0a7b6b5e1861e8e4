//! Asking the kernel about addresses that nobody vouches for. Each question is a system call that answers `EFAULT`
//! or `ENOMEM` where an access of this process's own would end it.
//!
//! All pages of a range are asked whether anything is mapped there; whether it may be read or written is
//! asked at its two ends, which are almost always in one mapping: 0.2 µs for the range, then 0.1 µs an
//! end for reading and 0.4 µs for writing. No page but the first and the last is faulted in, and none is changed.

use std::sync::atomic::AtomicU32;

/// `FUTEX_OP(FUTEX_OP_OR, 0, FUTEX_OP_CMP_EQ, 0)`: or nothing into the word.
const OR_NOTHING: u32 = 2 << 28;

/// Whether these bytes are mapped and may be read, as far as their ends tell. `len` is not zero.
pub(crate) fn is_readable(base: usize, len: usize) -> bool {
    is_mapped(base, len) && ends(base, len).into_iter().all(may_be_read)
}

/// Whether these bytes, which are mapped, may be written, as far as their ends tell.
pub(crate) fn is_writable(base: usize, len: usize) -> bool {
    ends(base, len).into_iter().all(may_be_written)
}

/// The aligned words with the first and the last byte, one of them if both are in one page. Words do not cross pages, so that the
/// bytes beside are in the same mapping.
fn ends(base: usize, len: usize) -> impl IntoIterator<Item = usize> {
    let [first, last] = [base, base + (len - 1)].map(|address| address & !(size_of::<u64>() - 1));
    let page = |address: usize| address / rustix::param::page_size();
    std::iter::once(first).chain((page(first) != page(last)).then_some(last))
}

fn is_mapped(base: usize, len: usize) -> bool {
    let page = rustix::param::page_size();
    let first = base & !(page - 1);
    // SAFETY: writes nothing: since Linux 2.6.19 an asynchronous msync only looks for holes.
    unsafe { libc::msync(first as *mut libc::c_void, len + (base - first), libc::MS_ASYNC) == 0 }
}

fn may_be_read(word: usize) -> bool {
    const NO_SUCH_CHANGE: libc::c_int = -1;
    // SAFETY: the kernel reads a set of signals at the word before it finds that it is to do nothing with it.
    let answer = unsafe {
        let (none, bytes) = (std::ptr::null_mut::<libc::c_void>(), size_of::<u64>());
        libc::syscall(libc::SYS_rt_sigprocmask, NO_SUCH_CHANGE, word, none, bytes)
    };
    debug_assert_eq!(answer, -1, "there is no such change");
    errno() != libc::EFAULT
}

fn may_be_written(word: usize) -> bool {
    let nobody = AtomicU32::new(0);
    // SAFETY: the kernel changes no bit of the word, atomically, and wakes one who sleeps on it at most, who has to expect that.
    let answer = unsafe {
        let (operation, none) = (libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG, 0_usize);
        libc::syscall(libc::SYS_futex, nobody.as_ptr(), operation, none, none, word, OR_NOTHING)
    };
    answer >= 0
}

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

    use super::*;

    const PAGE: usize = 4096;

    /// Eight pages of which the fourth can be changed.
    struct Pages(usize);

    impl Pages {
        fn new() -> Self {
            let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
            // SAFETY: fresh memory at an address of the kernel's choice.
            Self(unsafe { mmap_anonymous(std::ptr::null_mut(), 8 * PAGE, prot, flags) }.unwrap() as usize)
        }

        fn protect(&self, page: usize, flags: MprotectFlags) {
            // SAFETY: a page of this mapping, to which nobody has a reference.
            unsafe { mprotect((self.0 + page * PAGE) as *mut _, PAGE, flags) }.unwrap();
        }
    }

    impl Drop for Pages {
        fn drop(&mut self) {
            // SAFETY: the mapping is the test's own.
            unsafe { munmap(self.0 as *mut _, 8 * PAGE) }.unwrap();
        }
    }

    #[test]
    fn what_is_mapped_answers_and_what_is_not_ends_nobody() {
        let pages = Pages::new();
        let at = pages.0;
        for (base, len) in [(at, 8 * PAGE), (at + 1, 1), (at + PAGE - 1, 2), (at + 8 * PAGE - 1, 1), (at + 3, 5)] {
            assert!(is_readable(base, len) && is_writable(base, len), "{len} bytes");
        }
        for (base, len) in [(8, 16), (0, 1), (usize::MAX - 100, 50), (1 << 47, PAGE)] {
            assert!(!is_readable(base, len) && !is_writable(base, len), "{base:#x}, {len} bytes");
        }
        assert!(!is_readable(at, 1 << 40), "too long");
        // A hole between.
        // SAFETY: a page of this mapping, to which nobody has a reference.
        unsafe { munmap((at + 3 * PAGE) as *mut _, PAGE) }.unwrap();
        assert!(!is_readable(at, 8 * PAGE) && is_readable(at, 3 * PAGE) && is_readable(at + 4 * PAGE, 4 * PAGE));
        assert!(!is_readable(at + 3 * PAGE - 1, 2) && !is_writable(at + 4 * PAGE - 1, 2));
    }

    #[test]
    fn what_may_only_be_read_is_not_writable_and_what_may_not_be_touched_is_neither() {
        let pages = Pages::new();
        let at = pages.0 + 7 * PAGE;
        pages.protect(7, MprotectFlags::READ);
        assert!(is_readable(at + 5, 100) && !is_writable(at + 5, 100));
        assert!(is_readable(pages.0, 8 * PAGE) && !is_writable(pages.0, 8 * PAGE), "its end tells");
        pages.protect(7, MprotectFlags::empty());
        assert!(!is_readable(at, 1) && !is_writable(at, 1));
        let text = what_is_mapped_answers_and_what_is_not_ends_nobody as *const () as usize;
        assert!(is_readable(text, 16) && !is_writable(text, 16));
    }

    #[test]
    fn asking_changes_nothing_while_another_thread_writes() {
        let words: Vec<AtomicU32> = (0..2048).map(AtomicU32::new).collect();
        let base = words.as_ptr() as usize;
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                for round in 1..2000_u32 {
                    words[0].store(round, std::sync::atomic::Ordering::Relaxed);
                    assert_eq!(words[0].load(std::sync::atomic::Ordering::Relaxed), round, "somebody wrote it back");
                }
            });
            while !writer.is_finished() {
                assert!(is_readable(base, 8192) && is_writable(base, 8192));
            }
        });
        assert!(
            words[1..].iter().zip(1..).all(|(word, number)| word.load(std::sync::atomic::Ordering::Relaxed) == number)
        );
    }
}
