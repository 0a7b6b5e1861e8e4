//! Asking the kernel about addresses that nobody vouches for. Each question is a system call that answers with an error
//! where an access of this process's own would end it.
//!
//! From Linux 6.11 on the map of the process answers for each page in one call of 0.5 µs, and the last page is read,
//! for a mapped file may end before its mapping. Elsewhere all pages are asked whether anything is mapped there (0.2 µs), and
//! the two ends whether they may be written (0.4 µs each) or read (0.1 µs each). No page but the first and the last is
//! faulted in, and none is changed.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::AtomicU32;

use crate::fork::PerProcess;

/// `FUTEX_OP(FUTEX_OP_OR, 0, FUTEX_OP_CMP_EQ, 0)`: or nothing into the word.
const OR_NOTHING: u32 = 2 << 28;
/// `PROCMAP_QUERY`: about the mapping with an address.
const PROCMAP_QUERY: libc::c_ulong = 0xc068_6611;
const READABLE: u64 = 1;
const WRITABLE: u64 = 2;

/// What this process may do with all bytes of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PageAccess {
    Nothing,
    Read,
    Write,
}

/// What may be done with these bytes; who may write may read. `len` is not zero.
pub(crate) fn access(base: usize, len: usize) -> PageAccess {
    access_by_map(base, len).unwrap_or_else(|| access_by_ends(base, len))
}

#[repr(C)]
#[derive(Default)]
struct MapQuery {
    size: u64,
    flags: u64,
    address: u64,
    start: u64,
    end: u64,
    may: u64,
    /// What mapping it is, which is not asked for.
    rest: [u64; 7],
}

/// As the map of the process has it; None if this kernel, or what keeps this process from `/proc`, does not let it be asked.
fn access_by_map(base: usize, len: usize) -> Option<PageAccess> {
    static MAP: PerProcess<Option<File>> = PerProcess::new();
    let map = MAP.get(|| File::open("/proc/self/maps").ok()).as_ref()?;
    let (mut next, end) = (base as u64, (base + len) as u64);
    let mut access = PageAccess::Write;
    while next < end {
        let mut query = MapQuery { size: size_of::<MapQuery>() as u64, address: next, ..MapQuery::default() };
        // SAFETY: the kernel reads and writes no more than the struct has bytes, by its own size.
        if unsafe { libc::ioctl(map.as_raw_fd(), PROCMAP_QUERY, &raw mut query) } != 0 {
            return (errno() == libc::ENOENT).then_some(PageAccess::Nothing);
        }
        access = access.min(match query.may {
            may if may & WRITABLE != 0 => PageAccess::Write,
            may if may & READABLE != 0 => PageAccess::Read,
            _ => PageAccess::Nothing,
        });
        if query.end <= next {
            return None; // Not the map: somebody has closed its descriptor, and another file has the number.
        }
        next = query.end;
    }
    Some(if may_be_read(word_of(base + (len - 1))) { access } else { PageAccess::Nothing })
}

/// As each page being mapped, and its ends, tell. The ends are almost always in one mapping.
fn access_by_ends(base: usize, len: usize) -> PageAccess {
    match () {
        () if !is_mapped(base, len) => PageAccess::Nothing,
        () if ends(base, len).into_iter().all(may_be_written) => PageAccess::Write,
        () if ends(base, len).into_iter().all(may_be_read) => PageAccess::Read,
        () => PageAccess::Nothing,
    }
}

/// The aligned words with the first and the last byte, one of them if both are in one page.
fn ends(base: usize, len: usize) -> impl IntoIterator<Item = usize> {
    let [first, last] = [base, base + (len - 1)].map(word_of);
    let page = |address: usize| address / rustix::param::page_size();
    std::iter::once(first).chain((page(first) != page(last)).then_some(last))
}

/// The aligned word with this byte. Words do not cross pages, so that the bytes beside it are in the same mapping.
fn word_of(address: usize) -> usize {
    address & !(size_of::<u64>() - 1)
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

    /// Both ways of asking, of which the first is not there before Linux 6.11.
    fn both(base: usize, len: usize) -> PageAccess {
        let (by_ends, by_map) = (access_by_ends(base, len), access_by_map(base, len));
        assert!(by_map.is_none_or(|by_map| by_map == by_ends), "{base:#x}, {len} bytes: {by_map:?} and {by_ends:?}");
        assert_eq!(access(base, len), by_ends);
        by_ends
    }

    #[test]
    fn what_is_mapped_answers_and_what_is_not_ends_nobody() {
        let pages = Pages::new();
        let at = pages.0;
        for (base, len) in [(at, 8 * PAGE), (at + 1, 1), (at + PAGE - 1, 2), (at + 8 * PAGE - 1, 1), (at + 3, 5)] {
            assert_eq!(both(base, len), PageAccess::Write, "{len} bytes");
        }
        for (base, len) in [(8, 16), (0, 1), (usize::MAX - 100, 50), (1 << 47, PAGE), (at, 1 << 40)] {
            assert_eq!(both(base, len), PageAccess::Nothing, "{base:#x}, {len} bytes");
        }
        // A hole between.
        // SAFETY: a page of this mapping, to which nobody has a reference.
        unsafe { munmap((at + 3 * PAGE) as *mut _, PAGE) }.unwrap();
        let answers = [(at, 8), (at, 3), (at + 4 * PAGE, 4)].map(|(base, pages)| both(base, pages * PAGE));
        assert_eq!(answers, [PageAccess::Nothing, PageAccess::Write, PageAccess::Write]);
        assert_eq!([both(at + 3 * PAGE - 1, 2), both(at + 4 * PAGE - 1, 2)], [PageAccess::Nothing; 2]);
    }

    #[test]
    fn what_may_only_be_read_is_not_written_and_what_may_not_be_touched_is_neither() {
        let pages = Pages::new();
        let at = pages.0 + 7 * PAGE;
        pages.protect(7, MprotectFlags::READ);
        assert_eq!([both(at + 5, 100), both(pages.0, 8 * PAGE)], [PageAccess::Read; 2]);
        pages.protect(7, MprotectFlags::empty());
        assert_eq!([both(at, 1), both(pages.0, 8 * PAGE)], [PageAccess::Nothing; 2]);
        let text = what_is_mapped_answers_and_what_is_not_ends_nobody as *const () as usize;
        assert_eq!(both(text, 16), PageAccess::Read);
    }

    #[test]
    fn the_map_tells_of_the_pages_between() {
        let pages = Pages::new();
        for (flags, access) in [(MprotectFlags::READ, PageAccess::Read), (MprotectFlags::empty(), PageAccess::Nothing)]
        {
            pages.protect(3, flags);
            assert!(access_by_map(pages.0, 8 * PAGE).is_none_or(|answer| answer == access), "{access:?}");
        }
    }

    #[test]
    fn a_file_that_ends_before_its_mapping_cannot_be_read_there() {
        let file = File::from(rustix::fs::memfd_create("short", rustix::fs::MemfdFlags::CLOEXEC).unwrap());
        file.set_len(PAGE as u64 + 1).unwrap();
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: fresh memory at an address of the kernel's choice, which stays until the process ends.
        let at = unsafe { rustix::mm::mmap(std::ptr::null_mut(), 3 * PAGE, prot, MapFlags::SHARED, &file, 0) }.unwrap();
        let at = at as usize;
        assert_eq!([both(at, 2 * PAGE), both(at, 2 * PAGE + 1)], [PageAccess::Write, PageAccess::Nothing]);
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
                assert_eq!(both(base, 8192), PageAccess::Write);
            }
        });
        assert!(
            words[1..].iter().zip(1..).all(|(word, number)| word.load(std::sync::atomic::Ordering::Relaxed) == number)
        );
    }
}
