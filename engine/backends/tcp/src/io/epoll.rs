//! Readiness by epoll: one call a turn. It also stands for a ring where somebody sleeps.

use std::io::Result;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{Timespec, epoll};

use super::table::Table;
use super::{Readiness, Report};

/// Streams heard of in one turn. More come with the next.
const EVENTS_MAX: usize = 64;

/// Edges of both directions: which of them matters is decided when one comes, so that waiting for room costs no call.
const EDGES: epoll::EventFlags =
    epoll::EventFlags::IN.union(epoll::EventFlags::OUT).union(epoll::EventFlags::RDHUP).union(epoll::EventFlags::ET);

pub(super) struct Epoll {
    set: OwnedFd,
}

// SAFETY: what is not `Send` by itself are the places for the kernel's events, whose data could be pointers; here it
// is always numbers, and nothing else names that memory.
unsafe impl Send for Epoll {}

impl Epoll {
    pub(super) fn open() -> Result<Self> {
        Ok(Self { set: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    pub(super) fn watch(&self, fd: BorrowedFd<'_>, number: u64) -> Result<()> {
        Ok(epoll::add(&self.set, fd, epoll::EventData::new_u64(number), EDGES)?)
    }

    pub(super) fn unwatch(&self, fd: BorrowedFd<'_>) {
        // It fails only for what is not in the set, and then there is nothing to take out.
        let _ = epoll::delete(&self.set, fd);
    }

    /// The set becomes readable, for whoever polls it, when `other` does.
    pub(super) fn stand_for(&self, other: BorrowedFd<'_>) -> Result<()> {
        Ok(epoll::add(&self.set, other, epoll::EventData::new_u64(u64::MAX), epoll::EventFlags::IN)?)
    }

    pub(super) fn turn(&self, table: &mut Table, report: Report<'_>) -> bool {
        const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        let mut events = [MaybeUninit::uninit(); EVENTS_MAX];
        // Nothing but a signal can refuse it, and then the next turn finds what there is.
        let Ok((events, _)) = epoll::wait(&self.set, &mut events, Some(&NOW)) else { return false };
        let mut any = false;
        for event in events {
            // The kernel's structure is packed: fields are copied before they are looked at.
            let (data, flags) = (event.data, event.flags);
            let Some(watched) = table.get_mut(data.u64()) else { continue };
            any |= Readiness::tell(watched, flags.bits(), report);
        }
        any
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.set.as_fd()
    }
}
