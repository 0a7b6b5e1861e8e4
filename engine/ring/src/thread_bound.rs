//! [`ThreadBound`]: a value that can be passed around freely and touched by one thread only.

use std::cell::{Cell, UnsafeCell};
use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU64, Ordering};

/// Why a [`ThreadBound`] value could not be touched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadBoundError {
    /// The calling thread did not create it.
    WrongThread,
    /// The calling thread is inside `with` already.
    Reentered,
}

impl Display for ThreadBoundError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::WrongThread => "bound to another thread: call from the thread that created it",
            Self::Reentered => "already in use further up this stack: return from there first",
        })
    }
}

impl Error for ThreadBoundError {}

/// Holds a `T` that is usable only on the thread that created it, at a few nanoseconds a check.
/// May be dropped anywhere, and there is no way to bind it anew.
pub struct ThreadBound<T> {
    owner: u64,
    /// Touched by the owner only.
    entered: Cell<bool>,
    value: UnsafeCell<T>,
}

// SAFETY: moving it moves a `T: Send`; the flag is plain data.
unsafe impl<T: Send> Send for ThreadBound<T> {}
// SAFETY: through `&self` the value and the flag are touched by the owning thread only, which
// `with` checks first. A `T: Send` may be dropped by another thread.
unsafe impl<T: Send> Sync for ThreadBound<T> {}

impl<T> ThreadBound<T> {
    /// Binds `value` to the calling thread.
    pub fn new(value: T) -> Self {
        Self { owner: thread_number(), entered: Cell::new(false), value: UnsafeCell::new(value) }
    }

    /// Borrows the value, when called by its thread and while it is not borrowed.
    #[inline(always)]
    pub fn enter(&self) -> Result<Entered<'_, T>, ThreadBoundError> {
        if self.owner != thread_number() {
            return Err(ThreadBoundError::WrongThread);
        }
        if self.entered.replace(true) {
            return Err(ThreadBoundError::Reentered);
        }
        // SAFETY: this is the owning thread, and the flag was clear, so no other reference exists
        // until the drop of this one clears it.
        Ok(Entered { entered: &self.entered, value: unsafe { &mut *self.value.get() } })
    }

    /// Runs `f` on the value, when called by its thread and not from within another `with`.
    #[inline(always)]
    pub fn with<R>(&self, f: impl FnOnce(&mut T) -> R) -> Result<R, ThreadBoundError> {
        Ok(f(&mut *self.enter()?))
    }

    /// Whether the calling thread is the one that created it.
    #[inline]
    pub fn is_mine(&self) -> bool {
        self.owner == thread_number()
    }

    /// The value, by whoever owns the whole.
    pub fn into_inner(self) -> T {
        self.value.into_inner()
    }
}

impl<T> fmt::Debug for ThreadBound<T> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThreadBound").field("owner", &self.owner).finish_non_exhaustive()
    }
}

/// The value of a [`ThreadBound`], borrowed. It stays on its thread, as the flag's reference does.
pub struct Entered<'a, T> {
    entered: &'a Cell<bool>,
    value: &'a mut T,
}

impl<T> Deref for Entered<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        self.value
    }
}

impl<T> DerefMut for Entered<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        self.value
    }
}

impl<T> Drop for Entered<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.entered.set(false);
    }
}

/// A number no other thread of this process has or ever had: thread ids and addresses of thread
/// locals are used again after a thread ended, this is not.
#[inline]
fn thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        // No destructor, so it is there until the very end of the thread.
        static NUMBER: Cell<u64> = const { Cell::new(0) };
    }
    NUMBER.with(|number| match number.get() {
        0 => {
            let fresh = NEXT.fetch_add(1, Ordering::Relaxed);
            number.set(fresh);
            fresh
        }
        known => known,
    })
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::thread;

    #[test]
    fn only_its_thread_gets_in() {
        let bound = ThreadBound::new(5);
        assert_eq!(bound.with(|value| *value + 1), Ok(6));
        assert!(bound.is_mine());
        thread::scope(|scope| {
            let other = scope.spawn(|| (bound.with(|_| ()), bound.is_mine()));
            assert_eq!(other.join().unwrap(), (Err(ThreadBoundError::WrongThread), false));
        });
    }

    #[test]
    fn a_later_thread_is_never_taken_for_the_owner() {
        let bound = thread::spawn(|| ThreadBound::new(1)).join().unwrap();
        for _ in 0..50 {
            thread::scope(|scope| {
                let answer = scope.spawn(|| bound.with(|_| ())).join().unwrap();
                assert_eq!(answer, Err(ThreadBoundError::WrongThread));
            });
        }
        assert_eq!(bound.into_inner(), 1);
    }

    #[test]
    fn nested_calls_are_refused_and_a_panic_lets_go() {
        let bound = ThreadBound::new(String::new());
        let inner = bound.with(|text| {
            text.push('a');
            bound.with(|_| ())
        });
        assert_eq!(inner, Ok(Err(ThreadBoundError::Reentered)));
        let panicked = catch_unwind(AssertUnwindSafe(|| bound.with(|_| panic!("test"))));
        assert!(panicked.is_err());
        assert_eq!(bound.with(|text| text.len()), Ok(1));
    }
}
