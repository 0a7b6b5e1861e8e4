//! What this side has under way on a channel: its own operations, and its answers to the peer's reads.

use penstock_core::limits::SPANS_PER_POST;
use penstock_core::plan::RegionKey;
use penstock_core::{Cause, Generation, NoteId, RegionId, Span};
use penstock_memory::Window;
use penstock_transport::{CounterRef, Note};

/// The place of an operation in its table.
pub(crate) type OpId = u32;

/// What an operation is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Bytes of ours go into the peer's region.
    Write,
    /// Bytes of the peer's region come into ours.
    Read,
    /// The peer shall hear that a transfer is there.
    Notify,
    /// Bytes of ours that the peer asked for.
    Answer,
}

/// One operation. Its place and its lists are used again.
pub(crate) struct Op {
    pub(crate) kind: Kind,
    /// What it is reported under.
    pub(crate) completion_id: u64,
    /// The transfer it belongs to.
    pub(crate) transfer: u64,
    /// Its number on its stream, once its header leaves; of an answer, the READ's.
    pub(crate) sequence: u64,
    /// Memory of this engine that it may still touch.
    pub(crate) memory: Option<Window>,
    /// The name of that memory.
    pub(crate) key: RegionKey,
    /// The revision of this engine's log up to which nothing withdrawn concerns it.
    pub(crate) checked: u64,
    pub(crate) remote: RegionKey,
    /// The peer's revision that the plan was checked against.
    pub(crate) revision: u64,
    /// Where its bytes are.
    pub(crate) spans: Vec<Span>,
    /// How many they are.
    pub(crate) bytes: u64,
    /// What a notification says: a counter, a note's name, a note.
    pub(crate) counter: Option<CounterRef>,
    pub(crate) note: Option<NoteId>,
    pub(crate) payload: Vec<u8>,
    /// Why it will not end well.
    pub(crate) failed: Option<Cause>,
    /// Not all of its bytes went: the word behind the payload says so.
    pub(crate) is_spoiled: bool,
    /// The counter of a notification was gone.
    pub(crate) is_uncounted: bool,
    /// What a READ asked for is coming in.
    pub(crate) is_landing: bool,
    /// Sends with bytes of it whose pages the kernel has.
    pub(crate) in_kernel: u32,
    /// The peer is done with it.
    pub(crate) is_acknowledged: bool,
    /// It was reported; its number still stands among the others.
    pub(crate) has_ended: bool,
}

impl Op {
    fn vacant() -> Self {
        let nothing = RegionKey { region: RegionId(0), generation: Generation(0) };
        Self {
            kind: Kind::Write,
            completion_id: 0,
            transfer: 0,
            sequence: 0,
            memory: None,
            key: nothing,
            checked: 0,
            remote: nothing,
            revision: 0,
            spans: Vec::new(),
            bytes: 0,
            counter: None,
            note: None,
            payload: Vec::new(),
            failed: None,
            is_spoiled: false,
            is_uncounted: false,
            is_landing: false,
            in_kernel: 0,
            is_acknowledged: false,
            has_ended: false,
        }
    }

    /// Where its bytes are in this engine's region: offset and length.
    pub(crate) fn extents(&self) -> impl ExactSizeIterator<Item = (u64, u64)> + Clone + '_ {
        self.spans.iter().map(|span| (span.local, span.len))
    }

    /// Where they are in the peer's.
    pub(crate) fn remote_extents(&self) -> impl ExactSizeIterator<Item = (u64, u64)> + Clone + '_ {
        self.spans.iter().map(|span| (span.remote, span.len))
    }

    /// The note of a notification.
    pub(crate) fn said(&self) -> Option<Note<'_>> {
        self.note.map(|id| Note { id, payload: &self.payload })
    }

    /// Lines that its note takes of the peer's room.
    pub(crate) fn lines(&self) -> u64 {
        self.said().map_or(0, |note| note.lines() as u64)
    }

    /// It touches this engine's memory no more, and the bytes that did not go yet go as nothing.
    pub(crate) fn spoil(&mut self, cause: Cause) {
        self.is_spoiled = true;
        self.failed.get_or_insert(cause);
        self.memory = None;
    }

    /// How it is reported once the peer is done with it.
    pub(crate) fn result(&self) -> Result<u64, Cause> {
        match (self.failed, self.kind) {
            (Some(cause), _) => Err(cause),
            (None, Kind::Notify) => Ok(u64::from(!self.is_uncounted)),
            (None, _) => Ok(self.bytes),
        }
    }
}

/// The operations of one channel.
#[derive(Default)]
pub(crate) struct Ops {
    places: Vec<Op>,
    free: Vec<OpId>,
    /// Bytes of own operations.
    under_way: u64,
}

impl Ops {
    /// A place for an operation of this kind and of so many bytes.
    pub(crate) fn take(&mut self, kind: Kind, bytes: u64) -> OpId {
        let id = self.free.pop().unwrap_or_else(|| self.grow());
        let op = &mut self.places[id as usize];
        (op.kind, op.bytes) = (kind, bytes);
        if kind != Kind::Answer {
            self.under_way += bytes;
        }
        id
    }

    #[cold]
    fn grow(&mut self) -> OpId {
        let id = self.places.len() as OpId;
        // Room for the longest list of spans: whatever a place is used for later, it does not allocate.
        self.places.push(Op { spans: Vec::with_capacity(SPANS_PER_POST), ..Op::vacant() });
        // Room for every place to be free: giving one back never allocates.
        self.free.reserve(self.places.len());
        id
    }

    /// Gives a place back.
    pub(crate) fn give_back(&mut self, id: OpId) {
        let op = &mut self.places[id as usize];
        if op.kind != Kind::Answer {
            self.under_way -= op.bytes;
        }
        let (mut spans, mut payload) = (std::mem::take(&mut op.spans), std::mem::take(&mut op.payload));
        spans.clear();
        payload.clear();
        *op = Op { spans, payload, ..Op::vacant() };
        self.free.push(id);
    }

    /// Bytes of own operations that have not ended.
    pub(crate) fn bytes_under_way(&self) -> u64 {
        self.under_way
    }
}

impl std::ops::Index<OpId> for Ops {
    type Output = Op;

    fn index(&self, id: OpId) -> &Op {
        &self.places[id as usize]
    }
}

impl std::ops::IndexMut<OpId> for Ops {
    fn index_mut(&mut self, id: OpId) -> &mut Op {
        &mut self.places[id as usize]
    }
}

/// An operation that ended before it left, to be reported at the next look at the lane.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OpEnded {
    pub(crate) completion_id: u64,
    pub(crate) transfer: u64,
    pub(crate) cause: Cause,
    /// Lines of the note that was not sent.
    pub(crate) lines: u64,
}
