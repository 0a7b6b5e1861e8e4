//! The group that is leaving on a stream: its head and control block, its payload, and how far it has come.

use std::io;
use std::os::fd::BorrowedFd;

use penstock_core::Cause;
use penstock_ring::Hazard;
use penstock_transport::host::{PostsView, still_stands};

use crate::io::{Io, PIECES_MAX, PieceSpace, Pieces};
use crate::op::{Kind, OpId, Ops};
use crate::wire::{CONTROL_BYTES_MAX, HEAD_BYTES, Head, PARTS_MAX, PAYLOAD_BYTES_MAX, TRAILER_BYTES};

/// What goes in place of bytes that may not be touched any more.
static NOTHING: [u8; 16 * 1024] = [0; 16 * 1024];

/// Extents of the payload of one group: with its head and its end they are the pieces of one call.
pub(crate) const EXTENTS_MAX: usize = 1000;

const _: () = assert!(EXTENTS_MAX + 2 <= PIECES_MAX, "a group leaves, and comes, in one call where there is room");

/// What came of a call that sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sent {
    /// The whole group has left.
    All,
    /// All that went into one call: there is more.
    Some,
    /// As much as there was room for.
    Short,
}

/// One group.
pub(crate) struct Group {
    /// Head and control block.
    pub(crate) head: Vec<u8>,
    head_sent: usize,
    /// Operations whose bytes are the payload.
    parts: Vec<OpId>,
    part: usize,
    span: usize,
    within: u64,
    payload: u64,
    extents: usize,
    trailer_sent: usize,
    /// The revision of this engine's log up to which nothing withdrawn concerns it.
    checked: u64,
    is_leaving: bool,
    /// The kernel has met memory that is not there, and did not say where: one range a call from then on.
    is_careful: bool,
}

impl Group {
    /// One with room for the largest: pages that are never touched cost nothing.
    pub(crate) fn new() -> Self {
        Self {
            head: Vec::with_capacity(HEAD_BYTES + CONTROL_BYTES_MAX),
            head_sent: 0,
            parts: Vec::with_capacity(PARTS_MAX),
            part: 0,
            span: 0,
            within: 0,
            payload: 0,
            extents: 0,
            trailer_sent: 0,
            checked: 0,
            is_leaving: false,
            is_careful: false,
        }
    }

    /// Begins an empty one, to be filled at this revision of this engine's log.
    pub(crate) fn begin(&mut self, revision: u64) {
        self.head.clear();
        self.head.resize(HEAD_BYTES, 0);
        self.parts.clear();
        (self.head_sent, self.part, self.span, self.within) = (0, 0, 0, 0);
        (self.payload, self.extents, self.trailer_sent, self.checked) = (0, 0, 0, revision);
        self.is_careful = false;
    }

    /// Bytes of control so far.
    pub(crate) fn control_bytes(&self) -> usize {
        self.head.len() - HEAD_BYTES
    }

    /// Whether so many bytes of so many extents still belong into it.
    pub(crate) fn has_room(&self, bytes: u64, extents: usize) -> bool {
        bytes == 0
            || (self.parts.len() < PARTS_MAX
                && self.payload + bytes <= PAYLOAD_BYTES_MAX
                && self.extents + extents <= EXTENTS_MAX)
    }

    /// The bytes of an operation whose message was just written belong to the payload.
    pub(crate) fn carry(&mut self, id: OpId, bytes: u64, extents: usize) {
        self.parts.push(id);
        self.payload += bytes;
        self.extents += extents;
    }

    /// It is complete, and leaves if it says anything. Answers whether it does.
    pub(crate) fn close(&mut self) -> bool {
        self.is_leaving = self.head.len() > HEAD_BYTES;
        if self.is_leaving {
            let (head, control) = self.head.split_at_mut(HEAD_BYTES);
            head.copy_from_slice(&Head::encode(control, self.payload as u32));
        }
        self.is_leaving
    }

    /// Whether a group is on its way.
    pub(crate) fn is_leaving(&self) -> bool {
        self.is_leaving
    }

    /// Whether bytes of this operation have not left yet.
    pub(crate) fn has_unsent(&self, id: OpId) -> bool {
        self.is_leaving && self.parts[self.part..].contains(&id)
    }

    /// The first own operation whose bytes it carries: nothing from there on can have ended before all of it has left.
    pub(crate) fn first_own(&self, ops: &Ops) -> Option<OpId> {
        let own = self.parts.iter().filter(|_| self.is_leaving);
        own.copied().find(|&id| ops[id].kind != Kind::Answer)
    }

    /// Sends as much as goes in one call. Answers whether the whole group has left.
    pub(crate) fn send(
        &mut self,
        (io, fd): (&mut Io, BorrowedFd<'_>),
        ops: &mut Ops,
        view: &PostsView,
        hazard: &mut Hazard,
        space: &mut PieceSpace,
    ) -> io::Result<Sent> {
        let mut trailer = [0; TRAILER_BYTES];
        hazard.enter(0);
        self.look_again(ops, view);
        trailer.copy_from_slice(&self.spoiled(ops).to_le_bytes());
        let mut pieces = Pieces::new(space);
        let gathered = self.gather(ops, &trailer, &mut pieces);
        let wanted = pieces.bytes();
        let sent = if gathered { io.send(fd, &pieces) } else { Err(io::ErrorKind::InvalidData.into()) };
        hazard.leave();
        match sent {
            Ok(bytes) if self.advance(bytes as u64, ops) => Ok(Sent::All),
            // In the middle of memory it may have stopped at a page that is not there: the next call tells.
            Ok(bytes) => Ok(if bytes < wanted && !self.is_in_memory(ops) { Sent::Short } else { Sent::Some }),
            // The caller's memory is not there any more: its operation ends, not the session.
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) && !self.is_careful => {
                self.is_careful = true;
                Ok(Sent::Some)
            }
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) && self.is_in_payload() => {
                ops[self.parts[self.part]].spoil(Cause::MemoryGone);
                Ok(Sent::Some)
            }
            Err(error) => Err(error),
        }
    }

    fn is_in_payload(&self) -> bool {
        self.head_sent == self.head.len() && self.part < self.parts.len()
    }

    fn is_in_memory(&self, ops: &Ops) -> bool {
        self.is_in_payload() && ops[self.parts[self.part]].memory.is_some()
    }

    /// Memory that was withdrawn since the last look is not touched any more.
    fn look_again(&mut self, ops: &mut Ops, view: &PostsView) {
        let now = view.revision();
        if now == self.checked {
            return;
        }
        for &id in &self.parts[self.part..] {
            let op = &mut ops[id];
            if !op.is_spoiled
                && let Err(withdrawn) = still_stands(view, self.checked, op.key, op.extents())
            {
                op.spoil(withdrawn.ends_here());
            }
        }
        self.checked = now;
    }

    /// The word behind the payload. It is final before its first byte leaves, since all payload has left by then.
    fn spoiled(&self, ops: &Ops) -> u64 {
        let spoiled = self.parts.iter().enumerate().filter(|&(_, &id)| ops[id].is_spoiled);
        spoiled.fold(0, |word, (place, _)| word | 1 << place)
    }

    /// What is left of it, as far as one call takes it. Answers false if an extent leaves its memory, which was checked.
    fn gather<'a>(&'a self, ops: &'a Ops, trailer: &'a [u8; TRAILER_BYTES], pieces: &mut Pieces<'a>) -> bool {
        if pieces.push_bytes(&self.head[self.head_sent..]).is_err() {
            return false;
        }
        if self.is_careful && self.head_sent < self.head.len() {
            return true;
        }
        let (mut first, mut within) = (self.span, self.within);
        for &id in &self.parts[self.part..] {
            let op = &ops[id];
            for span in &op.spans[first..] {
                let (offset, mut left) = (span.local + within, span.len - within);
                within = 0;
                if let Some(memory) = &op.memory {
                    if pieces.is_full() {
                        return true;
                    }
                    if pieces.push_window(memory, offset, left).is_err() {
                        return false;
                    }
                    if self.is_careful {
                        return true;
                    }
                    continue;
                }
                while left > 0 {
                    let bytes = left.min(NOTHING.len() as u64);
                    if pieces.push_bytes(&NOTHING[..bytes as usize]).is_err() {
                        return true; // Full: the rest goes with the next call.
                    }
                    left -= bytes;
                }
                if self.is_careful {
                    return true;
                }
            }
            first = 0;
        }
        if !self.parts.is_empty() && !pieces.is_full() {
            return pieces.push_bytes(&trailer[self.trailer_sent..]).is_ok();
        }
        true
    }

    /// So many bytes have left. Answers whether that was all.
    fn advance(&mut self, mut bytes: u64, ops: &mut Ops) -> bool {
        let head = bytes.min((self.head.len() - self.head_sent) as u64);
        self.head_sent += head as usize;
        bytes -= head;
        while bytes > 0 && self.part < self.parts.len() {
            let op = &mut ops[self.parts[self.part]];
            let left = op.spans[self.span].len - self.within;
            if bytes < left {
                self.within += bytes;
                return false;
            }
            bytes -= left;
            (self.span, self.within) = (self.span + 1, 0);
            if self.span == op.spans.len() {
                (self.part, self.span) = (self.part + 1, 0);
                op.memory = None; // Nothing of it is touched any more.
            }
        }
        self.trailer_sent += bytes as usize;
        let trailer = if self.parts.is_empty() { 0 } else { TRAILER_BYTES };
        let is_whole =
            self.head_sent == self.head.len() && self.part == self.parts.len() && self.trailer_sent == trailer;
        if is_whole {
            for &id in &self.parts {
                if ops[id].kind == Kind::Answer {
                    ops.give_back(id);
                }
            }
            self.is_leaving = false;
        }
        is_whole
    }
}
