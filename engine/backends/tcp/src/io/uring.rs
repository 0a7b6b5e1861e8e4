//! Readiness by io_uring: the kernel writes into memory what is ready, and a worker that spins reads it there.
//!
//! A stream is polled while nobody reads it: a poll answers once, and the next one is asked for when there was nothing more
//! to read. Where the kernel is new enough, its part of the work waits until the worker asks for it, and a bit in shared memory says that there is some: a turn in which nothing
//! happened costs no system call, and nobody interrupts the worker. Such a ring belongs to one thread, so it is made
//! asleep, and the first turn, on the worker's own thread, wakes it.
//!
//! Such a ring does not wake those who poll its descriptor (what is left undone posts no answer). It does write to
//! an event descriptor, which is switched on only for a sleep.

use std::collections::VecDeque;
use std::io::{Error, ErrorKind, Result};
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{Ordering, fence};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use io_uring::{IoUring, cqueue, opcode, squeue, types};
use penstock_memory::fork::Maker;
use rustix::event::{EventfdFlags, eventfd};

use super::manner::{MANNERS, Manner};
use super::table::{Table, Watched};
use super::zero_copy::{HeldPieces, SEND_MARK, SendReleased, ZeroCopyId, ZeroCopySends};
use super::{Readiness, Report};

/// Requests handed over in one call.
const ENTRIES: u32 = 64;

/// Answers looked at in one turn. More come with the next.
const ANSWERS_A_TURN: usize = 256;

/// Stands for requests whose answer says nothing.
const NOBODY: u64 = u64::MAX;

/// Calls in which a request that does not wait must have been done.
const ASKS_MAX: u32 = 1000;

/// How long pages are waited for that should be back: their streams are closed.
const LAST_WORD: Duration = Duration::from_millis(100);

/// `IORING_SEND_ZC_REPORT_USAGE`: the last answer says whether pages were copied.
const REPORT_USAGE: u16 = 1 << 3;

const WAS_COPIED: u32 = 1 << 31;

/// Marks the numbers of polls for room.
const ROOM_MARK: u64 = 1 << 62;

const GETEVENTS: u32 = 1;

/// Why a turn did not come about.
#[derive(Debug)]
pub(super) enum SubmitFailed {
    /// The ring belongs to another thread.
    Moved,
    /// The kernel refuses what it allowed before.
    Refused(Error),
}

pub(super) struct Uring {
    /// Dropped by hand: a forked child has not got its memory.
    ring: ManuallyDrop<IoUring>,
    manner: Manner,
    /// Readable when the kernel has something, while `is_awaited`.
    event: OwnedFd,
    /// The kernel writes to `event`.
    is_awaited: bool,
    /// The thread that took the first turn.
    owner: Option<ThreadId>,
    maker: Maker,
    /// Polls that are to be handed over.
    arm: Vec<u64>,
    /// Polls that are to end.
    cancel: Vec<u64>,
    /// Answers that were read while another one was looked for.
    aside: VecDeque<cqueue::Entry>,
    sends: ZeroCopySends,
    /// Sends whose pages came back, not yet told.
    released: VecDeque<SendReleased>,
    /// Found broken outside of a turn: the next one says so.
    failed: Option<SubmitFailed>,
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
        Ok(Self {
            ring: ManuallyDrop::new(ring),
            manner,
            event,
            is_awaited: false,
            owner: None,
            maker: Maker::this_process(),
            arm: Vec::new(),
            cancel: Vec::new(),
            aside: VecDeque::new(),
            sends: ZeroCopySends::default(),
            released: VecDeque::new(),
            failed: None,
        })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// From the next turn on the kernel polls the stream, until something comes.
    pub(super) fn listen(&mut self, number: u64, watched: &mut Watched) {
        if !std::mem::replace(&mut watched.is_polled, true) {
            self.arm.push(number);
        }
    }

    /// The same until there is room.
    pub(super) fn listen_for_room(&mut self, number: u64, watched: &mut Watched) {
        if !std::mem::replace(&mut watched.is_polled_for_room, true) {
            self.arm.push(number | ROOM_MARK);
        }
    }

    /// Ends a stream's polls. The kernel holds the socket as long as it polls it, so on the worker's own thread
    /// this is done at once.
    pub(super) fn unwatch(&mut self, number: u64, watched: &Watched, table: &mut Table) {
        for (number, is_polled) in [(number, watched.is_polled), (number | ROOM_MARK, watched.is_polled_for_room)] {
            match self.arm.iter().position(|armed| *armed == number) {
                Some(place) => drop(self.arm.swap_remove(place)),
                None if is_polled => self.cancel.push(number),
                None => {}
            }
        }
        if !self.cancel.is_empty() && self.owner == Some(thread::current().id()) {
            // What fails here is found by the next turn.
            let _ = self.hand_over(table);
        }
    }

    /// Tells what is ready.
    pub(super) fn turn(&mut self, table: &mut Table, report: Report<'_>) -> std::result::Result<bool, SubmitFailed> {
        if self.is_awaited {
            self.awake();
        }
        self.prepare(table)?;
        if self.has_work() {
            self.enter()?;
        }
        let any = self.read_answers(table, report);
        Ok(any || !self.released.is_empty())
    }

    /// From now on, until the next turn, the descriptor becomes readable when there is something. Returns whether
    /// there is nothing yet.
    pub(super) fn prepare_to_sleep(&mut self, table: &mut Table) -> std::result::Result<bool, SubmitFailed> {
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
        Ok(self.ring.completion().is_empty() && self.aside.is_empty() && self.released.is_empty())
    }

    fn awake(&mut self) {
        self.ring.completion().disable_eventfd();
        self.is_awaited = false;
        // It does not block: mostly there is nothing, since others wake the worker as well.
        let _ = rustix::io::read(&self.event, &mut [0u8; 8]);
    }

    fn prepare(&mut self, table: &mut Table) -> std::result::Result<(), SubmitFailed> {
        if let Some(failed) = self.failed.take() {
            return Err(failed);
        }
        if self.owner.is_none() {
            if self.manner == Manner::Deferred {
                self.ring.submitter().register_enable_rings().map_err(SubmitFailed::Refused)?;
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

    fn hand_over(&mut self, table: &mut Table) -> std::result::Result<(), SubmitFailed> {
        while let Some(number) = self.arm.pop() {
            let Some(watched) = table.get_mut(number & !ROOM_MARK) else { continue };
            let wanted = if number & ROOM_MARK == 0 { libc::EPOLLIN | libc::EPOLLRDHUP } else { libc::EPOLLOUT };
            let poll = opcode::PollAdd::new(types::Fd(watched.fd), wanted as u32).build();
            self.push(&poll.user_data(number))?;
        }
        while let Some(number) = self.cancel.pop() {
            self.push(&opcode::PollRemove::new(number).build().user_data(NOBODY))?;
        }
        self.enter()
    }

    fn push(&mut self, request: &squeue::Entry) -> std::result::Result<(), SubmitFailed> {
        // SAFETY: polls and their removal name no memory; what a send names is held until its last answer, or for ever.
        while unsafe { self.ring.submission().push(request) }.is_err() {
            self.enter()?;
        }
        Ok(())
    }

    /// The one system call: hands over what is in the ring, and lets the kernel do its part.
    fn enter(&mut self) -> std::result::Result<(), SubmitFailed> {
        loop {
            let pending = self.ring.submission().len() as u32;
            // SAFETY: waits for nothing and passes no argument; the requests were checked when they were pushed.
            let entered = unsafe { self.ring.submitter().enter::<()>(pending, 0, GETEVENTS, None) };
            let Err(error) = entered else { return Ok(()) };
            match error.raw_os_error() {
                Some(libc::EINTR) => {}
                // Answers have to be read first, or memory is short for the moment: the next turn tries again.
                Some(libc::EBUSY | libc::EAGAIN) => return Ok(()),
                Some(libc::EEXIST) => return Err(SubmitFailed::Moved),
                _ => return Err(SubmitFailed::Refused(error)),
            }
        }
    }

    fn read_answers(&mut self, table: &mut Table, report: Report<'_>) -> bool {
        let mut any = false;
        for _ in 0..ANSWERS_A_TURN {
            let Some(answer) = self.aside.pop_front().or_else(|| self.ring.completion().next()) else { break };
            let number = answer.user_data();
            if number & SEND_MARK != 0 {
                self.hear_of_send(&answer);
                continue;
            }
            // What nobody watches any more has no stream behind its number.
            let Some(watched) = table.get_mut(number & !ROOM_MARK) else { continue };
            if answer.result() == -libc::ECANCELED {
                // It has ended, though not because we wanted it to: the thread that asked for it is gone.
                self.arm.push(number);
                continue;
            }
            if number & ROOM_MARK == 0 {
                watched.is_polled = false;
            } else {
                watched.is_polled_for_room = false;
            }
            match u32::try_from(answer.result()) {
                Ok(bits) => any |= Readiness::tell(watched, bits, report),
                Err(_) => any |= Readiness::tell(watched, libc::EPOLLERR as u32, report),
            }
        }
        any
    }

    /// The last answer about a send says whether its pages were copied.
    fn hear_of_send(&mut self, answer: &cqueue::Entry) {
        if !cqueue::more(answer.flags()) {
            let was_copied = cqueue::notif(answer.flags()) && answer.result() as u32 & WAS_COPIED != 0;
            self.released.extend(self.sends.end(answer.user_data(), was_copied));
        }
    }

    /// Pieces for a send without a copy.
    pub(super) fn held_pieces(&mut self) -> Box<HeldPieces> {
        self.sends.pieces()
    }

    pub(super) fn keep(&mut self, held: Box<HeldPieces>) {
        self.sends.keep(held);
    }

    /// Sends without a copy and without waiting.
    pub(super) fn send_without_copy(
        &mut self,
        fd: RawFd,
        held: Box<HeldPieces>,
        key: u64,
    ) -> Result<(usize, ZeroCopyId)> {
        if self.owner != Some(thread::current().id()) || self.failed.is_some() || held.bytes() == 0 {
            return Err(ErrorKind::Unsupported.into());
        }
        let (ticket, message) = self.sends.start(held, fd, key);
        let flags = (libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL) as u32;
        let send = opcode::SendMsgZc::new(types::Fd(fd), message).flags(flags).ioprio(REPORT_USAGE);
        match self.ask(&send.build().user_data(ticket.number())) {
            Ok(answer) => {
                let last_word = !cqueue::more(answer.flags());
                if last_word {
                    self.released.extend(self.sends.end(ticket.number(), true));
                }
                let sent = usize::try_from(answer.result()).map_err(|_| not_sent(-answer.result()));
                // Of what did not go out only the memory is of interest, until the kernel's last word.
                sent.map(|bytes| (bytes, ticket)).inspect_err(|_| self.silence(ticket))
            }
            Err(failed) => {
                self.silence(ticket);
                // A ring that does not take the request has not sent it. One that took it and does not answer may have.
                let is_lost = matches!(&failed, SubmitFailed::Refused(error) if error.kind() == ErrorKind::TimedOut);
                if !is_lost {
                    self.sends.was_not_sent(ticket);
                }
                // The next turn goes on without this ring, and with it goes what it did not take.
                self.failed = Some(failed);
                Err(if is_lost { ErrorKind::TimedOut } else { ErrorKind::Unsupported }.into())
            }
        }
    }

    /// Nobody wants to hear of this send.
    fn silence(&mut self, ticket: ZeroCopyId) {
        self.released.retain(|released| released.ticket != ticket);
        self.sends.silence(ticket);
    }

    /// Hands a request over that is done within the call, and answers what became of it.
    fn ask(&mut self, request: &squeue::Entry) -> std::result::Result<cqueue::Entry, SubmitFailed> {
        self.push(request)?;
        for _ in 0..ASKS_MAX {
            self.enter()?;
            while let Some(answer) = self.ring.completion().next() {
                if answer.user_data() == request.get_user_data() {
                    return Ok(answer);
                }
                self.aside.push_back(answer);
            }
        }
        Err(SubmitFailed::Refused(ErrorKind::TimedOut.into()))
    }

    pub(super) fn next_released(&mut self) -> Option<SendReleased> {
        self.released.pop_front()
    }

    /// Nobody wants to hear of the stream's sends. Returns whether there are any.
    pub(super) fn forget_sends(&mut self, fd: RawFd, key: u64) -> bool {
        self.released.retain(|released| released.key != key);
        self.sends.forget(fd, key)
    }

    /// What this ring will never say: its sends count as let go of, and their memory is not used again.
    pub(super) fn give_up(&mut self) -> VecDeque<SendReleased> {
        self.sends.give_up(|released| self.released.push_back(released));
        std::mem::take(&mut self.released)
    }
}

impl Uring {
    /// Waits, for a bounded time, until this is so, as far as the kernel's answers about sends can make it so.
    fn hear_until(&mut self, within: Duration, is_so: impl Fn(&ZeroCopySends) -> bool) -> bool {
        let since = Instant::now();
        // A forked child has neither the ring nor its memory.
        let may_ask = self.owner == Some(thread::current().id()) && !self.maker.is_ancestor();
        while !is_so(&self.sends) {
            if !may_ask || since.elapsed() > within || self.enter().is_err() {
                return false;
            }
            let mut answers = std::mem::take(&mut self.aside);
            answers.extend(self.ring.completion());
            for answer in answers {
                match answer.user_data() & SEND_MARK {
                    0 => self.aside.push_back(answer),
                    _ => self.hear_of_send(&answer),
                }
            }
            if !is_so(&self.sends) {
                thread::sleep(Duration::from_micros(100));
            }
        }
        true
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        self.hear_until(LAST_WORD, ZeroCopySends::is_empty);
        self.sends.give_up(|_| {});
        if self.maker.is_ancestor() {
            // Whatever lies where the ring's memory was is the child's own, and not to be unmapped.
            // SAFETY: the descriptor is the ring's own, and the ring is neither used nor dropped afterwards.
            drop(unsafe { OwnedFd::from_raw_fd(self.ring.as_raw_fd()) });
        } else {
            // SAFETY: this is the one place that drops it, and nothing uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.ring) };
        }
    }
}

/// Why a send did not go out. What only this way of sending needs is no fault of the stream's.
fn not_sent(error: i32) -> Error {
    match error {
        libc::ENOMEM | libc::ENOBUFS => ErrorKind::OutOfMemory.into(),
        libc::EINVAL | libc::EOPNOTSUPP | libc::ENOSYS => ErrorKind::Unsupported.into(),
        _ => Error::from_raw_os_error(error),
    }
}
