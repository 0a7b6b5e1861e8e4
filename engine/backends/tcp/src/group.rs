//! The group that is leaving on a stream: its head and control block, its payload, and how far it has come.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use penstock_core::Cause;
use penstock_transport::host::{HeldPages, OwnerStateView, check_withdrawals};
use penstock_transport::mediated::Touch;

use crate::io::{HeldPieces, Io, IoPieces, PIECES_MAX, PieceSpace, ZeroCopy, ZeroCopyId};
use crate::op::{Kind, OpId, Ops};
use crate::wire::{CONTROL_BYTES_MAX, HEAD_BYTES, Head, PARTS_MAX, PAYLOAD_BYTES_MAX, TRAILER_BYTES, Trailer};

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

/// How a group gets to its stream.
pub(crate) struct StreamPath<'a> {
    pub(crate) io: &'a mut Io,
    pub(crate) fd: BorrowedFd<'a>,
    pub(crate) key: u64,
    pub(crate) zero_copy: &'a mut ZeroCopy,
}

pub(crate) struct FrameGroup {
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
    /// Own operations with bytes in sends whose pages the kernel has, of groups that left before as well.
    pub(crate) pages: Vec<(ZeroCopyId, OpId)>,
    /// The kernel has met memory that is not there, and did not say where: one range a call from then on.
    is_careful: bool,
}

impl FrameGroup {
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
            pages: Vec::new(),
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

    /// It is complete, and leaves if it says anything. Returns whether it does.
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

    /// Sends as much as goes in one call.
    pub(crate) fn send(
        &mut self,
        way: StreamPath<'_>,
        ops: &mut Ops,
        view: &OwnerStateView,
        (touch, pages): (&mut Touch, &Arc<HeldPages>),
        space: &mut PieceSpace,
    ) -> io::Result<Sent> {
        touch.enter();
        self.look_again(ops, view);
        let held = self.take_pages(way.io, *way.zero_copy, ops, pages);
        let sent = match held {
            Some(held) if self.head_sent == self.head.len() => self.send_pages(way, held, ops),
            held => {
                let is_next = held.is_some();
                held.into_iter().for_each(|held| way.io.keep(held));
                self.send_copied(way, is_next, ops, space)
            }
        };
        touch.leave();
        match sent {
            // The caller's memory is not there any more: its operation ends, not the session.
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) && !self.is_careful => {
                self.is_careful = true;
                Ok(Sent::Some)
            }
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) && self.is_in_payload() => {
                ops[self.parts[self.part]].spoil(Cause::MemoryGone);
                Ok(Sent::Some)
            }
            sent => sent,
        }
    }

    /// Sends by copying: all that is left, or only what comes before the payload.
    fn send_copied(
        &mut self,
        way: StreamPath<'_>,
        only_head: bool,
        ops: &mut Ops,
        space: &mut PieceSpace,
    ) -> io::Result<Sent> {
        let trailer = Trailer { spoiled: self.spoiled(ops), revision: self.checked }.to_bytes();
        let mut pieces = IoPieces::new(space);
        let gathered = if only_head {
            pieces.more_follows();
            pieces.push_bytes(&self.head[self.head_sent..]).is_ok()
        } else {
            self.gather(ops, &trailer, &mut pieces)
        };
        if !gathered {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let bytes = way.io.send(way.fd, &pieces)?;
        let is_short = bytes < pieces.bytes();
        Ok(match self.advance(bytes as u64, ops) {
            true => Sent::All,
            // In the middle of memory it may have stopped at a page that is not there: the next call tells.
            false if is_short && !self.is_in_memory(ops) => Sent::Short,
            false => Sent::Some,
        })
    }

    /// The payload that comes next, if it is to be sent without a copy.
    fn take_pages(
        &self,
        io: &mut Io,
        zero_copy: ZeroCopy,
        ops: &Ops,
        pages: &Arc<HeldPages>,
    ) -> Option<Box<HeldPieces>> {
        let may = !self.is_careful && zero_copy.is_for(self.payload as usize);
        if !may || !zero_copy.is_for(self.bytes_in_memory(ops) as usize) {
            return None;
        }
        let parts = self.parts[self.part..].iter().map(|&id| &ops[id]).take_while(|op| op.memory.is_some());
        let keys = parts.map(|op| op.key);
        if !keys.clone().all(|key| pages.may_hold(self.checked, key)) {
            return None;
        }
        let mut held = io.held_pieces()?;
        let (mut first, mut within) = (self.span, self.within);
        'parts: for &id in &self.parts[self.part..] {
            let op = &ops[id];
            let Some(memory) = &op.memory else { break };
            for span in &op.spans[first..] {
                if held.push_window(memory, span.local + within, span.len - within).is_err() {
                    break 'parts; // Whatever it is, the other way finds it as well.
                }
                within = 0;
            }
            first = 0;
        }
        held.held_by(pages.hold(self.checked, keys));
        Some(held)
    }

    /// Bytes of the payload up to the first that may not be touched.
    fn bytes_in_memory(&self, ops: &Ops) -> u64 {
        let parts = self.parts[self.part..].iter().map(|&id| &ops[id]);
        let all: u64 = parts.take_while(|op| op.memory.is_some()).map(|op| op.bytes).sum();
        let begun = self.parts.get(self.part).map_or(0, |&id| {
            let before = ops[id].spans[..self.span].iter().map(|span| span.len);
            before.sum::<u64>() + self.within
        });
        all.saturating_sub(begun)
    }

    /// Sends payload without a copy. Its operations do not end before the kernel has let go.
    fn send_pages(&mut self, way: StreamPath<'_>, held: Box<HeldPieces>, ops: &mut Ops) -> io::Result<Sent> {
        let wanted = held.bytes();
        let (bytes, ticket) = match way.io.send_without_copy(way.fd, way.key, held) {
            Ok(sent) => sent,
            // By copying, then.
            Err(error) if way.zero_copy.refused(&error) => return Ok(Sent::Some),
            Err(error) => return Err(error),
        };
        way.zero_copy.sent(ticket);
        let first = self.part;
        self.advance(bytes as u64, ops);
        let is_begun = (self.span, self.within) != (0, 0);
        for &id in &self.parts[first..self.part + usize::from(is_begun)] {
            // An answer is nobody's here; of it only the held pages speak.
            if ops[id].kind == Kind::Write {
                ops[id].in_kernel += 1;
                self.pages.push((ticket, id));
            }
        }
        // As by copying: in the middle of memory the next call tells why.
        Ok(if bytes < wanted && !self.is_in_memory(ops) { Sent::Short } else { Sent::Some })
    }

    fn is_in_payload(&self) -> bool {
        self.head_sent == self.head.len() && self.part < self.parts.len()
    }

    fn is_in_memory(&self, ops: &Ops) -> bool {
        self.is_in_payload() && ops[self.parts[self.part]].memory.is_some()
    }

    /// Memory that was withdrawn since the last look is not touched any more. Behind the payload there is nothing to look at:
    /// what the trailer says stays as it is while it leaves.
    fn look_again(&mut self, ops: &mut Ops, view: &OwnerStateView) {
        let now = view.revision();
        if now == self.checked || self.part == self.parts.len() {
            return;
        }
        for &id in &self.parts[self.part..] {
            let op = &mut ops[id];
            if !op.is_spoiled
                && let Err(withdrawn) = check_withdrawals(view, self.checked, op.key, op.extents())
            {
                op.spoil(withdrawn.cause_for_local());
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
    fn gather<'a>(&'a self, ops: &'a Ops, trailer: &'a [u8; TRAILER_BYTES], pieces: &mut IoPieces<'a>) -> bool {
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

    /// So many bytes have left. Returns whether that was all.
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
