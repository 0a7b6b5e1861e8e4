//! A robust lock in a segment: held by a thread for as long as its engine lives.
//!
//! When that thread ends without letting go, however it ends, the kernel marks the lock before it frees
//! any of the process's memory. Peers read the mark ([`penstock_ring::life`]).
//!
//! The lock is the C library's own robust mutex, and not an entry in a list of ours: a thread has one
//! such list, and an inline engine's thread belongs to the application, which may use it. Where
//! the mutex keeps the word that the kernel marks is found out from the kernel's view of the list.

use std::error::Error;
use std::fmt;
use std::mem::ManuallyDrop;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU32, Ordering};

use penstock_ring::life::{LIFE_BYTES, LOCK_BYTES, LOCK_OFFSET};
use penstock_ring::{LivenessPublisher, ThreadBound};

use crate::fork::Maker;
use crate::segment::Segment;
use crate::window::Window;

const _: () = assert!(size_of::<libc::pthread_mutex_t>() <= LOCK_BYTES, "the C library's mutex fits its line");

/// The part of a futex word that holds the thread (`FUTEX_TID_MASK`).
const THREAD_MASK: u32 = 0x3fff_ffff;

/// Why no lock can stand for an engine's life here. Peers then learn of its death by its socket alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LivenessError {
    /// The segment has no room for it, or may not be written.
    NoRoom,
    /// The C library has no robust mutex between processes.
    NotRobust,
    /// The kernel would not mark it: the mutex is not in the list that the kernel knows.
    NotListed,
}

impl fmt::Display for LivenessError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoRoom => "the segment has no room for the lock",
            Self::NotRobust => "the C library has no robust mutex between processes",
            Self::NotListed => "the kernel does not know of the C library's robust mutexes",
        })
    }
}

impl Error for LivenessError {}

/// The held lock. Dropping it in its own thread lets go; dropping it in another thread, which cannot let
/// go, keeps the segment mapped for good, since the thread's list leads into it.
#[derive(Debug)]
pub struct LivenessLock {
    /// Keeps the lock mapped.
    window: ManuallyDrop<Window>,
    lock: NonNull<libc::pthread_mutex_t>,
    publisher: LivenessPublisher,
    holder: ThreadBound<()>,
    maker: Maker,
}

// SAFETY: the pointer is used by the holding thread only, which `holder` checks; everything else may
// move between threads by itself.
unsafe impl Send for LivenessLock {}

impl LivenessLock {
    /// Takes the lock at `offset` bytes of a fresh segment for the calling thread, and says so there.
    pub fn take(segment: &Segment, offset: usize) -> Result<Self, LivenessError> {
        let window = segment.window().slice(offset as u64, LIFE_BYTES as u64).ok_or(LivenessError::NoRoom)?;
        if !window.is_writable() {
            return Err(LivenessError::NoRoom);
        }
        let publisher = LivenessPublisher::mapped(&segment.range(), offset).map_err(|_| LivenessError::NoRoom)?;
        // SAFETY: LOCK_OFFSET lies inside the window, which is LIFE_BYTES long.
        let lock = unsafe { window.as_ptr().add(LOCK_OFFSET) }.cast::<libc::pthread_mutex_t>();
        let lock = NonNull::new(lock).filter(|lock| lock.is_aligned()).ok_or(LivenessError::NoRoom)?;
        // SAFETY: the window has LOCK_BYTES there, enough for a mutex and writable, aligned as checked; the
        // segment is fresh, so nobody uses it as a mutex yet.
        if !unsafe { initialise_and_lock(lock) } {
            return Err(LivenessError::NotRobust);
        }
        let window = ManuallyDrop::new(window);
        // From here on the drop below lets go.
        let held = Self { window, lock, publisher, holder: ThreadBound::new(()), maker: Maker::this_process() };
        let word = held.marked_word().ok_or(LivenessError::NotListed)?;
        held.publisher.holds(word);
        Ok(held)
    }

    /// Where in the lock the word lies that the kernel will mark, in bytes: the list that the kernel walks
    /// must name it first, and it must hold this thread.
    fn marked_word(&self) -> Option<usize> {
        let entry = kernels_list()?;
        let word = entry.checked_sub(self.lock.as_ptr() as usize)?;
        if word + size_of::<AtomicU32>() > LOCK_BYTES || !word.is_multiple_of(align_of::<AtomicU32>()) {
            return None;
        }
        // SAFETY: inside the lock's line and aligned, as just checked; an atomic may be read while the C
        // library or the kernel writes it.
        let value = unsafe { &*self.lock.as_ptr().cast::<u8>().add(word).cast::<AtomicU32>() }.load(Ordering::Relaxed);
        (value & THREAD_MASK == thread_id()).then_some(word)
    }
}

impl Drop for LivenessLock {
    fn drop(&mut self) {
        // A forked child holds a copy of this value and nothing of the lock, which is its parent's.
        if self.maker.is_ancestor() || !self.holder.is_mine() {
            return; // The window is not dropped either.
        }
        self.publisher.lets_go();
        // SAFETY: this thread locked it in `take` and has not unlocked it; the memory is still mapped.
        let unlocked = unsafe { libc::pthread_mutex_unlock(self.lock.as_ptr()) };
        if unlocked == 0 {
            // SAFETY: dropped once, here; nothing leads into it any more.
            unsafe { ManuallyDrop::drop(&mut self.window) };
        }
    }
}

/// Makes a robust mutex that processes share, and locks it. Answers whether both went well.
///
/// # Safety
/// `lock` is aligned memory of at least a mutex's size that may be written and that nobody uses yet.
unsafe fn initialise_and_lock(lock: NonNull<libc::pthread_mutex_t>) -> bool {
    let mut attributes = std::mem::MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
    let attributes = attributes.as_mut_ptr();
    // SAFETY: the attributes live on this stack and are initialised before they are used; the caller vouches
    // for the mutex, which is initialised before it is locked.
    unsafe {
        if libc::pthread_mutexattr_init(attributes) != 0 {
            return false;
        }
        let made = libc::pthread_mutexattr_setrobust(attributes, libc::PTHREAD_MUTEX_ROBUST) == 0
            && libc::pthread_mutexattr_setpshared(attributes, libc::PTHREAD_PROCESS_SHARED) == 0
            && libc::pthread_mutex_init(lock.as_ptr(), attributes) == 0;
        libc::pthread_mutexattr_destroy(attributes);
        // Nobody else holds it, so this does not wait.
        made && libc::pthread_mutex_trylock(lock.as_ptr()) == 0
    }
}

/// The head of a thread's list of robust locks, as the kernel reads it.
#[repr(C)]
struct ListHead {
    next: usize,
    word_from_entry: isize,
    pending: usize,
}

/// The address of the word of the lock that this thread took last, as the kernel would find it.
fn kernels_list() -> Option<usize> {
    let (mut head, mut len) = (ptr::null::<ListHead>(), 0usize);
    // SAFETY: asks for this very thread's list; the kernel writes one pointer and one length.
    let asked = unsafe { libc::syscall(libc::SYS_get_robust_list, 0, &raw mut head, &raw mut len) };
    if asked != 0 || head.is_null() || len != size_of::<ListHead>() {
        return None;
    }
    // SAFETY: the C library registered this address for as long as the thread lives, and only this thread
    // writes there.
    let ListHead { next, word_from_entry, .. } = unsafe { head.read() };
    // The lowest bit tells locks with priority inheritance.
    (next & !1).checked_add_signed(word_from_entry)
}

/// This thread's number, as the kernel writes it into locks.
fn thread_id() -> u32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as u32 }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use penstock_ring::{Liveness, LivenessView};

    use super::*;

    fn segment() -> (Segment, LivenessView) {
        let segment = Segment::create_owner_writes_only("life", 4096).unwrap();
        let view = LivenessView::mapped(&segment.range().without_writing(), 128).unwrap();
        (segment, view)
    }

    #[test]
    fn a_thread_that_ends_without_letting_go_is_marked() {
        let (segment, view) = segment();
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let lock = LivenessLock::take(&segment, 128).unwrap();
                assert_eq!(view.look(), Liveness::Lives);
                std::mem::forget(lock);
            });
            // Not before its end: a scope alone waits for what its threads do, not for the threads.
            thread.join().unwrap();
        });
        assert_eq!(view.look(), Liveness::Died);
    }

    #[test]
    fn letting_go_is_no_death() {
        let (segment, view) = segment();
        thread::scope(|scope| {
            scope.spawn(|| drop(LivenessLock::take(&segment, 128).unwrap())).join().unwrap();
        });
        assert_eq!(view.look(), Liveness::Unknown);
    }

    #[test]
    fn several_locks_of_one_thread_are_let_go_in_any_order() {
        let lives: Vec<_> = (0..3).map(|_| segment()).collect();
        let mut locks: Vec<_> = lives.iter().map(|(segment, _)| LivenessLock::take(segment, 128).unwrap()).collect();
        for place in [1, 0, 0] {
            drop(locks.remove(place));
        }
        assert!(lives.iter().all(|(_, view)| view.look() == Liveness::Unknown));
        let (segment, view) = &lives[0];
        assert!(LivenessLock::take(segment, 4096 - 64).is_err(), "beyond the end");
        assert_eq!(view.look(), Liveness::Unknown);
    }

    #[test]
    fn a_lock_dropped_in_another_thread_stays_mapped_until_its_holder_ends() {
        let (segment, view) = segment();
        let (send, receive) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        thread::scope(|scope| {
            let (segment, view) = (&segment, &view);
            let holder = scope.spawn(move || {
                send.send(LivenessLock::take(segment, 128).unwrap()).unwrap();
                let _ = ended.recv();
            });
            drop(receive.recv().unwrap());
            assert_eq!(view.look(), Liveness::Lives, "its holder still lives");
            drop(end);
            holder.join().unwrap();
        });
        assert_eq!(view.look(), Liveness::Died);
    }

    #[test]
    fn a_forked_child_neither_lets_go_nor_leaves_a_mark() {
        let (segment, view) = segment();
        let lock = LivenessLock::take(&segment, 128).unwrap();
        // SAFETY: the child drops its copy, which only loads, and leaves by _exit; the parent waits for it.
        let status = unsafe {
            let child = libc::fork();
            if child == 0 {
                drop(ptr::read(&raw const lock));
                libc::_exit(0);
            }
            let mut status = -1;
            libc::waitpid(child, &raw mut status, 0);
            status
        };
        assert_eq!((status, view.look()), (0, Liveness::Lives));
        drop(lock);
        assert_eq!(view.look(), Liveness::Unknown);
    }
}
