//! Readiness by io_uring: the kernel writes into memory what is ready, and a worker that spins reads it there.
//!
//! Each stream has one poll that stays in the kernel (multishot). Where the kernel is new enough, its part of the
//! work waits until the worker asks for it, and a bit in shared memory says that there is some: a turn in which nothing
//! happened costs no system call, and nobody interrupts the worker. Such a ring belongs to one thread, so it is made
//! asleep, and the first turn, on the worker's own thread, wakes it.
//!
//! Such a ring does not wake those who poll its descriptor (what is left undone posts no answer). It does write to
//! an event descriptor, which is switched on only for a sleep.

use std::io::{Error, ErrorKind, Result};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{Ordering, fence};
use std::thread::{self, ThreadId};

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use rustix::event::{EventfdFlags, eventfd};

use super::table::Table;
use super::{Readiness, Report};

/// Requests handed over in one call.
const ENTRIES: u32 = 64;

/// Answers for each request for which the kernel has room. What is beyond it keeps aside itself.
const ANSWERS: u32 = 16;

/// Answers looked at in one turn. More come with the next.
const ANSWERS_A_TURN: usize = 256;

/// Stands for requests whose answer says nothing.
const NOBODY: u64 = u64::MAX;

/// Edges of both directions, as epoll has them here.
const EDGES: u32 = (libc::EPOLLIN | libc::EPOLLOUT | libc::EPOLLRDHUP) as u32;

const GETEVENTS: u32 = 1;

/// How the kernel does its part, the best first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Manner {
    /// When the one thread that has the ring asks for it (Linux 6.1).
    Deferred,
    /// At the thread's next call of any kind (Linux 5.19).
    Cooperative,
    /// By interrupting the thread.
    Interrupting,
}

const MANNERS: [Manner; 3] = [Manner::Deferred, Manner::Cooperative, Manner::Interrupting];

/// Why a turn did not come about.
#[derive(Debug)]
pub(super) enum Failed {
    /// The ring belongs to another thread.
    Moved,
    /// The kernel refuses what it allowed before.
    Refused(Error),
}

pub(super) struct Uring {
    ring: IoUring,
    manner: Manner,
    /// Readable when the kernel has something, while `is_awaited`.
    event: OwnedFd,
    /// The kernel writes to `event`.
    is_awaited: bool,
    /// The thread that took the first turn.
    owner: Option<ThreadId>,
    /// Streams whose polls are to be handed over.
    arm: Vec<u64>,
    /// Polls that are to end.
    cancel: Vec<u64>,
}

impl Uring {
    /// Makes a ring in the best manner that works here, which a trial has to show.
    pub(super) fn open() -> Result<Self> {
        let mut refused = Error::from(ErrorKind::Unsupported);
        for manner in MANNERS {
            match Self::in_manner(manner) {
                Ok(uring) => return Ok(uring),
                Err(error) => refused = error,
            }
            // Only an older kernel, which does not know the flags, may like another manner better.
            if refused.raw_os_error() != Some(libc::EINVAL) {
                break;
            }
        }
        Err(refused)
    }

    pub(super) fn in_manner(manner: Manner) -> Result<Self> {
        manner.trial()?;
        let mut ring = manner.build(ENTRIES, true)?;
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        ring.submitter().register_eventfd(event.as_raw_fd())?;
        ring.completion().disable_eventfd();
        Ok(Self { ring, manner, event, is_awaited: false, owner: None, arm: Vec::new(), cancel: Vec::new() })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// The next turn hands the stream's poll to the kernel.
    pub(super) fn watch(&mut self, number: u64) {
        self.arm.push(number);
    }

    /// Ends a stream's poll. The kernel holds the socket as long as it polls it, so on the worker's own thread
    /// this is done at once.
    pub(super) fn unwatch(&mut self, number: u64, table: &mut Table) {
        if let Some(place) = self.arm.iter().position(|armed| *armed == number) {
            self.arm.swap_remove(place);
            return;
        }
        self.cancel.push(number);
        if self.owner == Some(thread::current().id()) {
            // What fails here is found by the next turn.
            let _ = self.hand_over(table);
        }
    }

    /// Tells what is ready.
    pub(super) fn turn(&mut self, table: &mut Table, report: Report<'_>) -> std::result::Result<bool, Failed> {
        if self.is_awaited {
            self.awake();
        }
        self.prepare(table)?;
        if self.has_work() {
            self.enter()?;
        }
        Ok(self.read_answers(table, report))
    }

    /// From now on, until the next turn, the descriptor becomes readable when there is something. Answers whether
    /// there is nothing yet.
    pub(super) fn prepare_to_sleep(&mut self, table: &mut Table) -> std::result::Result<bool, Failed> {
        self.prepare(table)?;
        if !self.is_awaited {
            self.ring.completion().enable_eventfd();
            self.is_awaited = true;
        }
        // SYNC ring-sleep: pairs with the kernel's full barrier between adding to its list of work and looking whether
        // anybody wants to be woken: it sees that, or the call below sees the work. (The bit that says that there is work
        // comes after that barrier, so it would not do.)
        fence(Ordering::SeqCst);
        self.enter()?;
        Ok(self.ring.completion().is_empty())
    }

    fn awake(&mut self) {
        self.ring.completion().disable_eventfd();
        self.is_awaited = false;
        // It does not block: mostly there is nothing, since others wake the worker as well.
        let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
    }

    fn prepare(&mut self, table: &mut Table) -> std::result::Result<(), Failed> {
        if self.owner.is_none() {
            if self.manner == Manner::Deferred {
                self.ring.submitter().register_enable_rings().map_err(Failed::Refused)?;
            }
            self.owner = Some(thread::current().id());
        }
        if self.arm.is_empty() && self.cancel.is_empty() { Ok(()) } else { self.hand_over(table) }
    }

    /// Whether the kernel has something to do, or kept something aside, that a call would bring.
    fn has_work(&mut self) -> bool {
        let requests = self.ring.submission();
        requests.taskrun() || requests.cq_overflow()
    }

    fn hand_over(&mut self, table: &mut Table) -> std::result::Result<(), Failed> {
        while let Some(number) = self.arm.pop() {
            let Some(watched) = table.get_mut(number) else { continue };
            let poll = opcode::PollAdd::new(types::Fd(watched.fd), EDGES).multi(true).build();
            self.push(&poll.user_data(number))?;
        }
        while let Some(number) = self.cancel.pop() {
            self.push(&opcode::PollRemove::new(number).build().user_data(NOBODY))?;
        }
        self.enter()
    }

    fn push(&mut self, request: &squeue::Entry) -> std::result::Result<(), Failed> {
        // SAFETY: polls and their removal name no memory.
        while unsafe { self.ring.submission().push(request) }.is_err() {
            self.enter()?;
        }
        Ok(())
    }

    /// The one system call: hands over what is in the ring, and lets the kernel do its part.
    fn enter(&mut self) -> std::result::Result<(), Failed> {
        loop {
            let pending = self.ring.submission().len() as u32;
            // SAFETY: waits for nothing and passes no argument; the requests were checked when they were pushed.
            let entered = unsafe { self.ring.submitter().enter::<()>(pending, 0, GETEVENTS, None) };
            let Err(error) = entered else { return Ok(()) };
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                // Answers have to be read first, or memory is short for the moment: the next turn tries again.
                Some(libc::EBUSY | libc::EAGAIN) => return Ok(()),
                Some(libc::EEXIST) => return Err(Failed::Moved),
                _ => return Err(Failed::Refused(error)),
            }
        }
    }

    fn read_answers(&mut self, table: &mut Table, report: Report<'_>) -> bool {
        let mut any = false;
        for answer in self.ring.completion().take(ANSWERS_A_TURN) {
            // What nobody watches any more has no stream behind its number.
            let Some(watched) = table.get_mut(answer.user_data()) else { continue };
            if !cqueue::more(answer.flags()) {
                // The poll has ended, though not because we wanted it to.
                self.arm.push(answer.user_data());
            }
            match u32::try_from(answer.result()) {
                Ok(bits) => any |= Readiness::tell(watched, bits, report),
                Err(_) if answer.result() == -libc::ECANCELED => {}
                Err(_) => any |= Readiness::tell(watched, libc::EPOLLERR as u32, report),
            }
        }
        any
    }
}

impl Manner {
    /// A ring. One that waits for its thread does nothing until that has called.
    fn build(self, entries: u32, waits_for_thread: bool) -> Result<IoUring> {
        let mut builder = IoUring::builder();
        builder.dontfork().setup_clamp().setup_cqsize(ANSWERS * entries);
        match self {
            Self::Deferred => {
                builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
                if waits_for_thread {
                    builder.setup_r_disabled();
                }
            }
            Self::Cooperative => {
                builder.setup_coop_taskrun().setup_taskrun_flag();
            }
            Self::Interrupting => {}
        }
        builder.build(entries)
    }

    /// Makes a ring and does nothing with it, once: some places forbid only one of the calls.
    fn trial(self) -> Result<()> {
        let mut ring = self.build(2, false)?;
        let features = ring.params();
        // Of the same version as polls that stay (Linux 5.13), and nothing that was said may be lost.
        if !features.is_feature_resource_tagging() || !features.is_feature_nodrop() {
            return Err(Error::new(ErrorKind::Unsupported, "it is older than Linux 5.13"));
        }
        // SAFETY: a request that names no memory.
        let pushed = unsafe { ring.submission().push(&opcode::Nop::new().build()) };
        pushed.map_err(|_| Error::from(ErrorKind::Unsupported))?;
        ring.submit_and_wait(1)?;
        match ring.completion().next() {
            Some(answer) if answer.result() >= 0 => Ok(()),
            _ => Err(ErrorKind::Unsupported.into()),
        }
    }
}

/// Why there is no ring, in words.
pub(super) fn why_not(refused: &Error) -> String {
    const SETTING: &str = "/proc/sys/kernel/io_uring_disabled";
    let setting = std::fs::read_to_string(SETTING).unwrap_or_default();
    match refused.raw_os_error() {
        Some(libc::EPERM) if !matches!(setting.trim(), "" | "0") => {
            format!("kernel.io_uring_disabled is {}", setting.trim())
        }
        Some(libc::EPERM | libc::EACCES) => "a filter or a security policy forbids io_uring".to_owned(),
        Some(libc::ENOSYS) => "the kernel has no io_uring, or a filter hides it".to_owned(),
        Some(libc::ENOMEM) => "memory that may be locked is too little for io_uring (ulimit -l)".to_owned(),
        _ => format!("io_uring does not work here: {refused}"),
    }
}
