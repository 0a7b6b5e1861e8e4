//! Memory of another process that nobody mapped here, moved by the kernel (`process_vm_readv`,
//! `process_vm_writev`).
//!
//! - [`probe_words`]: two words by which a process lets others prove that they can reach it
//! - [`trial`]: whether they can
//! - [`why`]: why they cannot, if they cannot
//! - `calls`: the system calls and their lists
//!
//! The calls name a process by its id, and an id can mean another process later, or the same process can
//! run another program. So every move looks at the probe words first, and at the pidfd before and after
//! every call: while the pidfd says that the process lives, the id is still its own. What is left is the
//! time between the look and the kernel's: within it the process would have to end, be waited for, and all other
//! ids be used up.

mod calls;
pub mod probe_words;
pub mod trial;
pub mod why;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use penstock_core::{Direction, Span};

use self::calls::VmCall;
pub use self::probe_words::ProbeWords;
pub use self::trial::Trial;
pub use self::why::WhyNot;
use crate::copy::CopyError;
use crate::process::{ProcessWatch, Unseen};
use crate::window::Window;

/// A call for a process that has been under way for so long keeps others from being made behind it.
const STALLED_AFTER: Duration = Duration::from_millis(500);

/// Another process whose memory this one has been seen to reach, in both directions.
#[derive(Debug)]
pub struct ForeignProcess {
    pid: i32,
    watch: Arc<ProcessWatch>,
    probe_words: ProbeWords,
    has_stalled: AtomicBool,
}

impl ForeignProcess {
    /// Tries to read the probe of the process that offered these words and to write its scratch word; if both
    /// succeed, its memory can be reached.
    pub fn reach(watch: &Arc<ProcessWatch>, probe_words: ProbeWords) -> Result<Arc<Self>, WhyNot> {
        if probe_words == ProbeWords::NONE {
            return Err(WhyNot::SwitchedOffThere);
        }
        let pid = match &**watch {
            ProcessWatch::Ourselves => std::process::id(),
            ProcessWatch::Other { pid, .. } => *pid,
            ProcessWatch::Unseen(Unseen::OtherPidNamespace) => return Err(WhyNot::OtherPidNamespace),
            ProcessWatch::Unseen(Unseen::NotOpened) => return Err(WhyNot::Gone),
        };
        let pid = i32::try_from(pid).map_err(|_| WhyNot::Gone)?;
        let explain = |errno| why::explain(pid, errno);
        // The value first: nothing is written to a process that is not the right one.
        if calls::read_word(pid, probe_words.probe).map_err(explain)? != probe_words.value {
            return Err(WhyNot::OtherProcess);
        }
        calls::write_word(pid, probe_words.scratch, probe_words.value).map_err(explain)?;
        // Still alive after both: the id was its own all the time.
        if watch.is_dead() {
            return Err(WhyNot::Gone);
        }
        Ok(Arc::new(Self { pid, watch: Arc::clone(watch), probe_words, has_stalled: AtomicBool::new(false) }))
    }

    /// Whether the process has not ended.
    pub fn is_alive(&self) -> bool {
        !self.watch.is_dead()
    }

    /// A call on its memory had not come back when it had to: none is made any more that could be made by its owner.
    pub fn stall(&self) {
        // SYNC process-stalled: pairs with is_stalled(), which needs no more than to see it some time.
        if !self.has_stalled.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                pid = self.pid,
                "the memory of a process does not answer: its owner is asked to copy from now on"
            );
        }
    }

    /// Whether a call on its memory has not come back when it had to.
    pub fn has_stalled(&self) -> bool {
        // SYNC process-stalled: pairs with stall().
        self.has_stalled.load(Ordering::Relaxed)
    }

    /// The same, or one that is under way keeps others waiting now.
    pub fn is_stalled(&self) -> bool {
        self.has_stalled() || self.watch.blocking().is_stuck(STALLED_AFTER)
    }

    /// Whether the id still means the process, and the process still runs the program that made the offer.
    fn check(&self) -> Result<(), ProcessVmError> {
        if !self.is_alive() {
            return Err(ProcessVmError::Gone { moved: 0 });
        }
        match calls::read_word(self.pid, self.probe_words.probe) {
            Ok(value) if value == self.probe_words.value => Ok(()),
            Ok(_) | Err(libc::EFAULT | libc::ESRCH) => Err(ProcessVmError::Gone { moved: 0 }),
            Err(errno) => Err(ProcessVmError::from_errno(errno, 0)),
        }
    }
}

/// Memory of another process, reached by system calls.
#[derive(Debug, Clone)]
pub struct ProcessVmMemory {
    process: Arc<ForeignProcess>,
    base: u64,
    bytes: u64,
    writable: bool,
}

impl ProcessVmMemory {
    /// Names `bytes` bytes at `base` of `process`, as its owner announced them; None if there is no such
    /// range of addresses.
    pub fn new(process: &Arc<ForeignProcess>, base: u64, bytes: u64, writable: bool) -> Option<Self> {
        // An address or length beyond isize belongs to no user's memory, and the kernel refuses the whole call.
        let end = base.checked_add(bytes)?;
        i64::try_from(end).ok()?;
        Some(Self { process: Arc::clone(process), base, bytes, writable })
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether its owner lets others write it.
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// Whether the other is the very same memory.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.process, &other.process)
            && (self.base, self.bytes, self.writable) == (other.base, other.bytes, other.writable)
    }

    /// The process that it belongs to.
    pub fn process(&self) -> &Arc<ForeignProcess> {
        &self.process
    }
}

/// Why bytes were not moved, or not all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ProcessVmError {
    /// A span is out of bounds, or the destination may not be written. Nothing was moved.
    #[error(transparent)]
    Refused(#[from] CopyError),
    /// The process is gone, or runs another program now.
    #[error("the process is gone after {moved} B were moved; connect again if it is restarted")]
    Gone { moved: u64 },
    /// Some of the memory is not mapped, or not with the rights that were announced.
    #[error(
        "memory is missing after {moved} B were moved: its owner has unmapped or protected it; \
         deregister memory before it is freed"
    )]
    NotThere { moved: u64 },
    /// Access was granted before and is refused now.
    #[error(
        "the system refuses access after {moved} B were moved (error {errno}): rights or filters have changed; connect again \
         to learn why"
    )]
    NotPermitted {
        moved: u64,
        /// What the system answered.
        errno: i32,
    },
    /// The system had no memory for the call, or failed for a reason that has no better name.
    #[error("the system failed after {moved} B were moved (error {errno})")]
    System {
        moved: u64,
        /// What the system answered.
        errno: i32,
    },
}

impl ProcessVmError {
    fn from_errno(errno: i32, moved: u64) -> Self {
        match errno {
            libc::ESRCH => Self::Gone { moved },
            libc::EFAULT => Self::NotThere { moved },
            libc::EPERM | libc::EACCES | libc::ENOSYS => Self::NotPermitted { moved, errno },
            errno => Self::System { moved, errno },
        }
    }
}

/// Moves `spans` between memory of this process and of another one; answers the bytes moved.
///
/// All bounds are checked before the first byte moves. When it returns, every byte is ordered before whatever
/// this thread publishes next with a release store. After an error some of the bytes may have moved.
pub fn scatter(
    local: &Window,
    remote: &ProcessVmMemory,
    direction: Direction,
    spans: &[Span],
) -> Result<u64, ProcessVmError> {
    let writable = match direction {
        Direction::Write => remote.writable,
        Direction::Read => local.is_writable(),
    };
    if !writable {
        return Err(CopyError::ReadOnly.into());
    }
    crate::copy::check_bounds(spans, local.len(), remote.bytes)?;
    remote.process.check()?;
    let (mut call, mut moved) = (VmCall::new(), 0);
    for span in spans.iter().filter(|span| span.len > 0) {
        // SAFETY: the span lies inside the window, which is kept mapped by `local` longer than `call` lives,
        // and was just found writable if the call writes here; windows have no references.
        unsafe { call.push(local.as_ptr().add(span.local as usize), remote.base + span.remote, span.len as usize) };
        if call.is_full() {
            moved = empty(&mut call, &remote.process, direction, moved)?;
        }
    }
    empty(&mut call, &remote.process, direction, moved)
}

/// Repeats a call until all of it is moved. Answers the bytes moved so far, counted from `moved`.
fn empty(
    call: &mut VmCall,
    process: &ForeignProcess,
    direction: Direction,
    mut moved: u64,
) -> Result<u64, ProcessVmError> {
    while call.bytes() > 0 {
        // The first call of a move was checked by whoever makes it; between two the process may have begun another program.
        let alive = if moved == 0 { process.is_alive() } else { process.check().is_ok() };
        if !alive {
            return Err(ProcessVmError::Gone { moved });
        }
        let made = call.make(process.pid, direction);
        // Bytes that moved while it died may have gone to whoever has its id now.
        if !process.is_alive() {
            return Err(ProcessVmError::Gone { moved });
        }
        match made {
            // Nothing of something: the kernel stopped before the first byte.
            Ok(0) => return Err(ProcessVmError::NotThere { moved }),
            Ok(bytes) => moved += bytes as u64,
            Err(libc::EINTR) => {}
            Err(errno) => return Err(ProcessVmError::from_errno(errno, moved)),
        }
    }
    call.clear();
    Ok(moved)
}

#[cfg(test)]
mod tests;
