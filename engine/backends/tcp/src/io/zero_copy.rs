//! Sending without a copy: the kernel has the pages until it says that it let go of them.
//!
//! What such a send names is held until then, whatever becomes of the stream or of the ring in the meantime. It pays
//! only where a card reads the pages: where the way stays in one kernel, that copies after all and says so, and the
//! stream is sent on by copying.

use std::io::{Error, ErrorKind};
use std::mem;
use std::os::fd::RawFd;

use penstock_memory::Window;
use penstock_transport::host::PageHold;

use super::pieces::{PiecesRefused, join, range_of};

/// Below this the kernel's bookkeeping costs more than copying.
pub(crate) const ZERO_COPY_BYTES_MIN: usize = 64 << 10;

/// Marks the numbers of sends among those that the kernel gives back.
pub(super) const SEND_MARK: u64 = 1 << 63;

/// A send whose pages the kernel has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ZeroCopyId(u64);

impl ZeroCopyId {
    pub(super) fn number(self) -> u64 {
        self.0
    }
}

/// The kernel has let go of a send's pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SendReleased {
    /// The key of the stream it was sent on.
    pub(crate) key: u64,
    pub(crate) ticket: ZeroCopyId,
    /// It had copied them.
    pub(crate) was_copied: bool,
}

#[cfg(test)]
std::thread_local! {
    /// Streams of this thread send without a copy though the kernel copies: here it always does.
    pub(crate) static ALWAYS: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Whether a stream's large sends go without a copy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum ZeroCopy {
    /// Nobody knows yet whether it pays.
    #[default]
    Untried,
    /// One send is under way that will show it; others copy until then.
    Trying(ZeroCopyId),
    On,
    /// Whatever the kernel says: what it does with its copies is tried by that.
    #[cfg(test)]
    Always,
    /// Not on this stream, for good.
    Off(&'static str),
}

impl ZeroCopy {
    /// How a stream begins.
    pub(crate) fn first() -> Self {
        #[cfg(test)]
        if ALWAYS.get() {
            return Self::Always;
        }
        Self::Untried
    }

    /// Whether a send of so many bytes should go without a copy.
    pub(crate) fn is_for(self, bytes: usize) -> bool {
        bytes >= ZERO_COPY_BYTES_MIN && self.is_open()
    }

    fn is_open(self) -> bool {
        match self {
            Self::Untried | Self::On => true,
            #[cfg(test)]
            Self::Always => true,
            Self::Trying(_) | Self::Off(_) => false,
        }
    }

    /// A send went out without a copy.
    pub(crate) fn sent(&mut self, ticket: ZeroCopyId) {
        if *self == Self::Untried {
            *self = Self::Trying(ticket);
        }
    }

    /// A send was not taken. Returns whether it is to be sent by copying instead.
    pub(crate) fn refused(&mut self, error: &Error) -> bool {
        let why = match error.kind() {
            ErrorKind::OutOfMemory => "memory that may be locked is too little (ulimit -l)",
            ErrorKind::Unsupported => "there is no ring that can",
            _ => return false,
        };
        *self = Self::Off(why);
        true
    }

    /// The kernel let go of a send of this stream.
    pub(crate) fn heard(&mut self, released: &SendReleased) {
        #[cfg(test)]
        if *self == Self::Always {
            return;
        }
        if released.was_copied {
            *self = Self::Off("the kernel copies on this way");
        } else if *self == Self::Trying(released.ticket) {
            *self = Self::On;
        }
    }
}

/// Parts of windows to send without a copy. The windows are held from here on.
pub(crate) struct HeldPieces {
    vectors: Vec<libc::iovec>,
    windows: Vec<Window>,
    bytes: usize,
    /// Whoever wants the memory back waits for this.
    hold: Option<PageHold>,
    /// What the kernel is given; it stays where it is for as long as the kernel may look.
    message: libc::msghdr,
}

// SAFETY: its pointers go into windows that it holds, which are Send and Sync, and into its own list; nobody but the
// kernel follows them.
unsafe impl Send for HeldPieces {}

impl HeldPieces {
    fn new() -> Box<Self> {
        // SAFETY: a plain structure of numbers and pointers, for which zeros mean that there is nothing.
        let message = unsafe { mem::zeroed() };
        Box::new(Self { vectors: Vec::new(), windows: Vec::new(), bytes: 0, hold: None, message })
    }

    /// A part of a window, which is held until the kernel lets go of it.
    pub(crate) fn push_window(&mut self, window: &Window, offset: u64, len: u64) -> Result<(), PiecesRefused> {
        let (base, len) = range_of(window, offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let total = self.bytes.checked_add(len).ok_or(PiecesRefused::Full)?;
        join(&mut self.vectors, base, len)?;
        self.bytes = total;
        // A window over the same range keeps the same range mapped.
        let is_held = |held: &Window| held.base_address() == window.base_address() && held.len() == window.len();
        if !self.windows.last().is_some_and(is_held) {
            self.windows.push(window.clone());
        }
        Ok(())
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The pages are held until the kernel has let go of them.
    pub(crate) fn held_by(&mut self, hold: PageHold) {
        self.hold = Some(hold);
    }

    fn clear(&mut self) {
        self.vectors.clear();
        self.windows.clear();
        self.bytes = 0;
        self.hold = None;
    }

    /// The message as the kernel takes it: good for as long as this box is, and not added to.
    fn message(&mut self) -> *const libc::msghdr {
        self.message.msg_iov = self.vectors.as_mut_ptr();
        self.message.msg_iovlen = self.vectors.len() as _;
        &raw const self.message
    }
}

/// A send under way.
struct ZeroCopySend {
    held: Box<HeldPieces>,
    fd: RawFd,
    /// The stream it was sent on, while that is watched.
    key: Option<u64>,
}

struct Slot {
    generation: u32,
    send: Option<ZeroCopySend>,
}

/// All sends whose pages the kernel has.
#[derive(Default)]
pub(super) struct ZeroCopySends {
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Lists to be used again.
    #[allow(clippy::vec_box, reason = "the kernel is given the address of what is in the box")]
    spare: Vec<Box<HeldPieces>>,
}

impl ZeroCopySends {
    pub(super) fn pieces(&mut self) -> Box<HeldPieces> {
        self.spare.pop().unwrap_or_else(HeldPieces::new)
    }

    /// Takes a list over, and answers what stands for it and what the kernel is to be given.
    pub(super) fn start(&mut self, held: Box<HeldPieces>, fd: RawFd, key: u64) -> (ZeroCopyId, *const libc::msghdr) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, send: None });
            (self.slots.len() - 1) as u32
        });
        let slot = &mut self.slots[place as usize];
        slot.generation = (slot.generation + 1) % (1 << 31);
        let number = SEND_MARK | u64::from(slot.generation) << 32 | u64::from(place);
        let send = slot.send.insert(ZeroCopySend { held, fd, key: Some(key) });
        (ZeroCopyId(number), send.held.message())
    }

    /// The kernel let go, or never took hold. The memory is held no longer.
    pub(super) fn end(&mut self, number: u64, was_copied: bool) -> Option<SendReleased> {
        let slot = self.slots.get_mut(number as u32 as usize)?;
        let is_current = SEND_MARK | u64::from(slot.generation) << 32 == number & !u64::from(u32::MAX);
        let send = slot.send.take_if(|_| is_current)?;
        self.free.push(number as u32);
        self.keep(send.held);
        Some(SendReleased { key: send.key?, ticket: ZeroCopyId(number), was_copied })
    }

    /// The stream is forgotten: nobody wants to hear of its sends. Returns whether there are any.
    pub(super) fn forget(&mut self, fd: RawFd, key: u64) -> bool {
        let sends = self.slots.iter_mut().filter_map(|slot| slot.send.as_mut());
        let of_stream = sends.filter(|send| send.fd == fd && send.key == Some(key));
        of_stream.map(|send| send.key = None).count() > 0
    }

    /// Nobody wants to hear of this one.
    pub(super) fn silence(&mut self, ticket: ZeroCopyId) {
        let slot = self.slots.get_mut(ticket.0 as u32 as usize);
        if let Some(send) = slot.and_then(|slot| slot.send.as_mut()) {
            send.key = None;
        }
    }

    /// The kernel has not taken this one, and will not: nobody has to wait for its memory, which is kept all the same.
    pub(super) fn was_not_sent(&mut self, ticket: ZeroCopyId) {
        let slot = self.slots.get_mut(ticket.0 as u32 as usize);
        if let Some(send) = slot.and_then(|slot| slot.send.as_mut()) {
            send.held.hold = None;
        }
    }

    /// A list that was not sent after all.
    pub(super) fn keep(&mut self, mut held: Box<HeldPieces>) {
        held.clear();
        self.spare.push(held);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.slots.len() == self.free.len()
    }

    /// Gives up hearing of any of them. The memory stays held for ever: the kernel may still read it, and whatever
    /// came to lie there next could go to a peer.
    pub(super) fn give_up(&mut self, mut report: impl FnMut(SendReleased)) {
        let mut bytes = 0;
        for (place, slot) in self.slots.iter_mut().enumerate() {
            let Some(send) = slot.send.take() else { continue };
            bytes += send.held.bytes();
            self.free.push(place as u32);
            let ticket = ZeroCopyId(SEND_MARK | u64::from(slot.generation) << 32 | place as u64);
            if let Some(key) = send.key {
                report(SendReleased { key, ticket, was_copied: false });
            }
            let mut held = send.held;
            held.hold.take().into_iter().for_each(PageHold::lose);
            mem::forget(held);
        }
        if bytes > 0 {
            tracing::warn!(bytes, "the kernel did not say whether it still reads this memory: it is never used again");
        }
    }
}
