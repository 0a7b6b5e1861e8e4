//! What arrives on a stream: control blocks, and payload that goes straight to where it belongs.
//!
//! One call receives the rest of a group's payload at its final places, the word behind it, and the beginning of the next
//! control block. What of a payload came with its control block is copied from there. Before either, under the hazard that a
//! copying worker raises, it is seen whether the memory was withdrawn meanwhile.

use std::io;
use std::os::fd::BorrowedFd;

use penstock_core::Cause;
use penstock_core::plan::RegionKey;
use penstock_memory::Window;
use penstock_transport::host::{OwnerStateView, WithdrawalConflict, check_withdrawals};
use penstock_transport::mediated::LaneTarget;

use crate::group::EXTENTS_MAX;
use crate::io::{Io, IoPieces, PieceSpace};
use crate::op::OpId;
use crate::wire::{CONTROL_BYTES_MAX, HEAD_BYTES, Head, PARTS_MAX, TRAILER_BYTES, TcpWireError, Trailer};

/// Bytes of the next control block that are received with the end of a payload: what of it is payload again is
/// copied once more, so it is a compromise between calls and copies.
const STAGED_BYTES: usize = 4096;

/// Bytes received into nothing by one call.
pub(crate) const DISCARD_BYTES: usize = 16 * 1024;

/// Where a part of the payload goes.
pub(crate) struct RecvTarget {
    /// Memory of this engine; without it, or with a cause, the bytes go nowhere.
    pub(crate) memory: Option<Window>,
    /// The name of that memory.
    pub(crate) key: RegionKey,
    /// Why it may not be touched.
    pub(crate) refused: Option<Cause>,
    /// The READ that is answered by it; a WRITE of the peer has none.
    pub(crate) read: Option<OpId>,
    first: usize,
    count: usize,
}

/// The parts of one group's payload, in their order.
pub(crate) struct RecvTargets {
    parts: Vec<RecvTarget>,
    extents: Vec<(u64, u64)>,
}

impl RecvTargets {
    /// None, with room for those of a group as this release sends it.
    fn new() -> Self {
        Self { parts: Vec::with_capacity(PARTS_MAX), extents: Vec::with_capacity(EXTENTS_MAX) }
    }

    pub(crate) fn push(
        &mut self,
        memory: Result<Option<Window>, Cause>,
        key: RegionKey,
        read: Option<OpId>,
        extents: impl Iterator<Item = (u64, u64)>,
    ) {
        let first = self.extents.len();
        self.extents.extend(extents);
        let (memory, refused) = match memory {
            Ok(memory) => (memory, None),
            Err(cause) => (None, Some(cause)),
        };
        self.parts.push(RecvTarget { memory, key, refused, read, first, count: self.extents.len() - first });
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        self.parts.len()
    }

    pub(crate) fn part(&self, place: usize) -> Option<&RecvTarget> {
        self.parts.get(place)
    }
}

/// What can be done with what has arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrived {
    /// Nothing before more has.
    Nothing,
    /// A control block is there: see what it says, then go on with [`Incoming::land`].
    Control,
    /// A whole group is there, and these of its parts are nothing.
    Group(Trailer),
}

enum Stage {
    Head,
    Control(Head),
    Payload(Head),
}

/// One stream's incoming side.
pub(crate) struct Incoming {
    staged: Box<[u8; STAGED_BYTES]>,
    start: usize,
    end: usize,
    stage: Stage,
    control: Box<[u8]>,
    control_here: usize,
    landings: RecvTargets,
    part: usize,
    extent: usize,
    within: u64,
    trailer: [u8; TRAILER_BYTES],
    trailer_here: usize,
    /// The revision of this engine's log up to which nothing withdrawn concerns the landings.
    checked: u64,
    /// The kernel has met memory that is not there, and did not say where: one extent a call from then on.
    is_careful: bool,
}

impl Incoming {
    pub(crate) fn new() -> Self {
        Self {
            staged: Box::new([0; STAGED_BYTES]),
            start: 0,
            end: 0,
            stage: Stage::Head,
            control: vec![0; CONTROL_BYTES_MAX].into_boxed_slice(),
            control_here: 0,
            landings: RecvTargets::new(),
            part: 0,
            extent: 0,
            within: 0,
            trailer: [0; TRAILER_BYTES],
            trailer_here: 0,
            checked: 0,
            is_careful: false,
        }
    }

    /// The control block that is there, and where its payload shall go.
    pub(crate) fn control(&mut self) -> Option<(Head, &[u8], &mut RecvTargets)> {
        let (Stage::Control(head) | Stage::Payload(head)) = self.stage else { return None };
        Some((head, &self.control[..head.control as usize], &mut self.landings))
    }

    /// The bytes of this READ go nowhere from now on.
    pub(crate) fn forget(&mut self, read: OpId) {
        for landing in self.landings.parts.iter_mut().filter(|landing| landing.read == Some(read)) {
            landing.memory = None;
        }
    }

    /// All landings are known; nothing withdrawn up to this revision concerns them.
    pub(crate) fn land(&mut self, checked: u64) {
        if let Stage::Control(head) = self.stage {
            self.stage = Stage::Payload(head);
            (self.part, self.extent, self.within, self.trailer_here, self.checked) = (0, 0, 0, 0, checked);
        }
    }

    /// The group has been dealt with.
    pub(crate) fn finish(&mut self) {
        self.landings.parts.clear();
        self.landings.extents.clear();
        (self.part, self.stage, self.is_careful) = (0, Stage::Head, false);
    }

    /// Makes of what has arrived what can be made of it.
    pub(crate) fn digest(&mut self, target: &mut LaneTarget) -> Result<Arrived, TcpWireError> {
        if let Stage::Head = self.stage {
            let Some(head) = self.staged[self.start..self.end].first_chunk::<HEAD_BYTES>() else {
                return Ok(Arrived::Nothing);
            };
            self.stage = Stage::Control(Head::parse(head)?);
            self.start += HEAD_BYTES;
            self.control_here = 0;
        }
        if let Stage::Control(head) = self.stage {
            let room = &mut self.control[self.control_here..head.control as usize];
            let taken = room.len().min(self.end - self.start);
            room[..taken].copy_from_slice(&self.staged[self.start..self.start + taken]);
            self.start += taken;
            self.control_here += taken;
            let is_whole = self.control_here == head.control as usize;
            return Ok(if is_whole { Arrived::Control } else { Arrived::Nothing });
        }
        if self.part < self.landings.parts.len() && self.start < self.end {
            target.touch.enter();
            self.look_again(target.view());
            self.copy_staged();
            target.touch.leave();
        }
        if self.part < self.landings.parts.len() {
            return Ok(Arrived::Nothing);
        }
        if self.landings.parts.is_empty() {
            return Ok(Arrived::Group(Trailer::default()));
        }
        let room = &mut self.trailer[self.trailer_here..];
        let taken = room.len().min(self.end - self.start);
        room[..taken].copy_from_slice(&self.staged[self.start..self.start + taken]);
        self.start += taken;
        self.trailer_here += taken;
        let is_whole = self.trailer_here == TRAILER_BYTES;
        Ok(if is_whole { Arrived::Group(Trailer::of(self.trailer)) } else { Arrived::Nothing })
    }

    /// Memory that was withdrawn since the last look is not touched any more.
    fn look_again(&mut self, view: &OwnerStateView) {
        let now = view.revision();
        if now == self.checked {
            return;
        }
        let RecvTargets { parts, extents } = &mut self.landings;
        for landing in parts.iter_mut().skip(self.part).filter(|landing| landing.memory.is_some()) {
            let its = extents[landing.first..landing.first + landing.count].iter().copied();
            if let Err(withdrawn) = check_withdrawals(view, self.checked, landing.key, its) {
                let ends = if landing.read.is_some() {
                    WithdrawalConflict::cause_for_local
                } else {
                    WithdrawalConflict::cause_for_peer
                };
                landing.refused.get_or_insert(ends(withdrawn));
                landing.memory = None;
            }
        }
        self.checked = now;
    }

    /// Payload that came with its control block.
    fn copy_staged(&mut self) {
        while self.part < self.landings.parts.len() && self.start < self.end {
            let landing = &self.landings.parts[self.part];
            let (offset, len) = self.landings.extents[landing.first + self.extent];
            let taken = ((len - self.within) as usize).min(self.end - self.start);
            let written = landing.memory.as_ref().map_or(Ok(()), |memory| {
                memory.write_from(offset + self.within, &self.staged[self.start..self.start + taken])
            });
            if written.is_err() {
                self.refuse_here(Cause::OutOfBounds); // Checked when it was asked for.
            }
            self.start += taken;
            self.pass(taken as u64);
        }
    }

    /// The part whose bytes come now goes nowhere.
    fn refuse_here(&mut self, cause: Cause) {
        if let Some(landing) = self.landings.parts.get_mut(self.part) {
            landing.refused.get_or_insert(cause);
            landing.memory = None;
        }
    }

    /// So many bytes of payload have come. Answers what is left of them behind the payload.
    fn pass(&mut self, mut bytes: u64) -> u64 {
        while bytes > 0 {
            let Some(landing) = self.landings.parts.get(self.part) else { break };
            let (_, len) = self.landings.extents[landing.first + self.extent];
            let left = len - self.within;
            if bytes < left {
                self.within += bytes;
                return 0;
            }
            bytes -= left;
            (self.extent, self.within) = (self.extent + 1, 0);
            if self.extent == landing.count {
                (self.part, self.extent) = (self.part + 1, 0);
            }
        }
        bytes
    }

    /// Receives what goes in one call. Returns whether nothing more was there.
    pub(crate) fn receive(
        &mut self,
        (io, fd): (&mut Io, BorrowedFd<'_>),
        target: &mut LaneTarget,
        space: &mut PieceSpace,
        discard: &mut [u8],
    ) -> io::Result<bool> {
        self.staged.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        target.touch.enter();
        self.look_again(target.view());
        let mut pieces = IoPieces::new(space);
        let gathered = self.gather(&mut pieces, discard);
        let wanted = pieces.bytes();
        let got = if gathered { io.receive(fd, &mut pieces) } else { Err(io::ErrorKind::InvalidData.into()) };
        target.touch.leave();
        match got {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(bytes) => {
                self.took(bytes);
                Ok(bytes < wanted)
            }
            // The caller's memory is not there any more: its operation ends, not the session.
            Err(error) if error.raw_os_error() == Some(libc::EFAULT) && self.part < self.landings.parts.len() => {
                if self.is_careful {
                    self.refuse_here(Cause::MemoryGone);
                }
                self.is_careful = true;
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Whether payload has come in part.
    pub(crate) fn is_landing(&self) -> bool {
        self.part < self.landings.parts.len()
    }

    /// Room for what comes next. Answers false if an extent leaves its memory, which was checked.
    fn gather<'a>(&'a mut self, pieces: &mut IoPieces<'a>, discard: &'a mut [u8]) -> bool {
        match self.stage {
            Stage::Head => {}
            Stage::Control(head) => {
                let room = &mut self.control[self.control_here..head.control as usize];
                if pieces.push_space(room).is_err() {
                    return false;
                }
            }
            Stage::Payload(_) => {
                let (mut extent, mut within) = (self.extent, self.within);
                for landing in &self.landings.parts[self.part..] {
                    let extents = &self.landings.extents[landing.first + extent..landing.first + landing.count];
                    let Some(memory) = &landing.memory else {
                        let bytes = extents.iter().map(|(_, len)| len).sum::<u64>() - within;
                        let bytes = (discard.len() as u64).min(bytes) as usize;
                        // There is only one place for nothing: what is behind it comes with the next call.
                        return pieces.is_full() || pieces.push_space(&mut discard[..bytes]).is_ok();
                    };
                    for &(offset, len) in extents {
                        if pieces.is_full() {
                            return true;
                        }
                        if pieces.push_window(memory, offset + within, len - within).is_err() {
                            return false;
                        }
                        if self.is_careful {
                            return true;
                        }
                        within = 0;
                    }
                    extent = 0;
                }
                if pieces.is_full() || pieces.push_space(&mut self.trailer[self.trailer_here..]).is_err() {
                    return true;
                }
            }
        }
        let _ = pieces.is_full() || pieces.push_space(&mut self.staged[self.end..]).is_ok();
        true
    }

    /// So many bytes came where [`Incoming::gather`] had made room for them.
    fn took(&mut self, mut bytes: usize) {
        match self.stage {
            Stage::Head => {}
            Stage::Control(head) => {
                let taken = bytes.min(head.control as usize - self.control_here);
                self.control_here += taken;
                bytes -= taken;
            }
            Stage::Payload(_) => {
                bytes = self.pass(bytes as u64) as usize;
                let taken = bytes.min(TRAILER_BYTES - self.trailer_here);
                self.trailer_here += taken;
                bytes -= taken;
            }
        }
        self.end += bytes;
    }
}
