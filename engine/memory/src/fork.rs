//! Knowing what a fork has copied, at the cost of two loads.
//!
//! A child inherits every mapping and none of the threads: whatever it did to an engine would
//! corrupt its parent's. So whatever must not be used in a child remembers its [`Maker`], and every
//! entry point asks [`Maker::is_ancestor`] first. What the child makes itself has the child as its
//! maker and works as anywhere else.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use rustix::mm::{self, Advice, MapFlags, ProtFlags};

/// The word that says which process this is: its number, or zero in a child that has none yet.
static WORD: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());
/// Used where a page that forks wipe cannot be had; zeroed by a fork handler instead.
static HANDLED: AtomicU32 = AtomicU32::new(0);
/// The number that the next process of this family takes. A child goes on from its parent's.
static NEXT: AtomicU32 = AtomicU32::new(1);

/// The process that made something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Maker(u32);

impl Maker {
    pub fn this_process() -> Self {
        let word = word();
        let number = word.load(Ordering::Relaxed);
        if number != 0 {
            return Self(number);
        }
        // Relaxed throughout: a fork is no other thread, and the numbers order nothing else.
        let fresh = NEXT.fetch_add(1, Ordering::Relaxed);
        match word.compare_exchange(0, fresh, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => Self(fresh),
            Err(other_thread) => Self(other_thread),
        }
    }

    /// Whether this process is a forked descendant of the one that made it.
    #[inline]
    pub fn is_ancestor(self) -> bool {
        word().load(Ordering::Relaxed) != self.0
    }
}

/// The process that has started what its children cannot use: a library with threads, as a rule.
#[derive(Debug)]
pub struct Starter(AtomicU32);

impl Starter {
    #[allow(clippy::new_without_default, reason = "a static needs a constant")]
    pub const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    /// Makes this process the one, unless one that it was forked from is. Asked before any lock of what is started, which
    /// a fork may have caught.
    #[must_use]
    pub fn claim(&self) -> bool {
        let Maker(this) = Maker::this_process();
        // Relaxed: a fork is no other thread.
        self.0
            .compare_exchange(0, this, Ordering::Relaxed, Ordering::Relaxed)
            .map_or_else(|other| other == this, |_| true)
    }

    /// Whether this process is the one.
    pub fn is_this_process(&self) -> bool {
        Maker(self.0.load(Ordering::Relaxed)) == Maker::this_process()
    }
}

#[inline]
fn word() -> &'static AtomicU32 {
    let word = WORD.load(Ordering::Acquire); // SYNC fork-word: pairs with find_word()
    if word.is_null() {
        return find_word();
    }
    // SAFETY: WORD only ever holds the static or the page that `wiped_page` leaked.
    unsafe { &*word }
}

/// No lock, which a fork might catch in the hands of another thread.
#[cold]
fn find_word() -> &'static AtomicU32 {
    let found = wiped_page().unwrap_or_else(|| {
        // SAFETY: the handler only stores to a static, which is allowed after fork.
        unsafe { libc::pthread_atfork(None, None, Some(forget_number)) };
        (&raw const HANDLED).cast_mut()
    });
    // SYNC fork-word: pairs with word(). The page of a thread that comes second stays unused.
    let first = WORD.compare_exchange(ptr::null_mut(), found, Ordering::AcqRel, Ordering::Acquire);
    // SAFETY: as in word().
    unsafe { &*first.map_or_else(|first| first, |_| found) }
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
        Some(page.cast::<AtomicU32>())
    }
}

extern "C" fn forget_number() {
    HANDLED.store(0, Ordering::Relaxed);
}

/// A value that each process makes for itself: a child never sees its parent's, nor a lock in it that
/// the fork has caught.
#[derive(Debug)]
pub struct PerProcess<T: 'static>(AtomicPtr<Made<T>>);

#[derive(Debug)]
struct Made<T> {
    maker: Maker,
    value: T,
}

impl<T: Send + Sync> PerProcess<T> {
    #[allow(clippy::new_without_default, reason = "a static needs a constant")]
    pub const fn new() -> Self {
        Self(AtomicPtr::new(ptr::null_mut()))
    }

    /// This process's value, made at its first use. Of several threads that come first one's is kept.
    #[inline]
    pub fn get(&'static self, make: impl FnOnce() -> T) -> &'static T {
        let before = self.0.load(Ordering::Acquire); // SYNC per-process: pairs with the exchange below
        // SAFETY: it is null or a box that was leaked below and is never freed.
        if let Some(made) = unsafe { before.as_ref() }
            && !made.maker.is_ancestor()
        {
            return &made.value;
        }
        self.make(before, make)
    }

    #[cold]
    #[inline(never)]
    fn make(&'static self, before: *mut Made<T>, make: impl FnOnce() -> T) -> &'static T {
        let own = Box::into_raw(Box::new(Made { maker: Maker::this_process(), value: make() }));
        // SYNC per-process: pairs with the load above
        match self.0.compare_exchange(before, own, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: leaked with this; what a parent made before is left alone.
            Ok(_) => unsafe { &(*own).value },
            Err(first) => {
                // SAFETY: it was made above and nobody else has seen it.
                drop(unsafe { Box::from_raw(own) });
                // SAFETY: another thread of this process put it there in the same way.
                unsafe { &(*first).value }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Answers what a forked child answers.
    fn in_a_child(child: impl FnOnce() -> i32) -> i32 {
        // SAFETY: the child makes only calls that need no lock of the parent's, and ends by _exit.
        let id = unsafe { libc::fork() };
        if id == 0 {
            // SAFETY: _exit ends the child without running anything of the parent's.
            unsafe { libc::_exit(child()) };
        }
        let mut status = 0;
        // SAFETY: waits for the child made above and writes its status.
        unsafe { libc::waitpid(id, &raw mut status, 0) };
        assert!(libc::WIFEXITED(status));
        libc::WEXITSTATUS(status)
    }

    #[test]
    fn each_process_of_a_family_is_another_maker() {
        let mine = Maker::this_process();
        assert!(!mine.is_ancestor() && Maker::this_process() == mine);
        let answer = in_a_child(|| {
            let before = mine.is_ancestor();
            let own = Maker::this_process();
            let grandchild = in_a_child(|| i32::from(mine.is_ancestor() && own.is_ancestor()));
            i32::from(before && mine.is_ancestor() && !own.is_ancestor() && grandchild == 1)
        });
        assert_eq!(answer, 1);
        assert!(!mine.is_ancestor());
    }

    #[test]
    fn what_a_process_has_started_is_not_its_childrens() {
        static STARTER: Starter = Starter::new();
        static ANOTHER: Starter = Starter::new();
        assert!(!STARTER.is_this_process() && STARTER.claim() && STARTER.claim() && STARTER.is_this_process());
        let answer = in_a_child(|| {
            let own = ANOTHER.claim() && ANOTHER.is_this_process();
            i32::from(!STARTER.claim() && !STARTER.is_this_process() && own)
        });
        assert_eq!(answer, 1);
        assert!(STARTER.claim() && !ANOTHER.is_this_process());
    }

    #[test]
    fn a_child_makes_its_own_value_though_a_thread_of_the_parent_holds_the_lock() {
        static COUNT: PerProcess<Mutex<u32>> = PerProcess::new();
        let mut held = COUNT.get(Mutex::default).lock().unwrap();
        *held += 1;
        let answer = in_a_child(|| {
            let count = COUNT.get(Mutex::default);
            *count.lock().unwrap() += 5;
            *COUNT.get(Mutex::default).lock().unwrap() as i32
        });
        assert_eq!((answer, *held), (5, 1));
    }
}
