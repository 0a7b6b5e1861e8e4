//! What this side has under way on a channel: batches, and what is told of transfers.

use std::sync::Arc;

use penstock_core::limits::SPANS_PER_POST;
use penstock_core::plan::RegionKey;
use penstock_core::{Direction, Generation, NoteId, RegionId, Span};
use penstock_memory::Memory;
use penstock_transport::{Batch, CounterRef, Failure, FlushRequest, Note, NotifyRequest, RdmaMemory};

use crate::pairing::RAILS_MAX;

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
    Tell,
}

/// One operation. Its place and its lists are used again.
pub(crate) struct Op {
    pub(crate) kind: Kind,
    /// What it is reported under.
    pub(crate) completion_id: u64,
    /// The transfer it belongs to.
    pub(crate) transfer: u64,
    /// The rail that it is on.
    pub(crate) rail: usize,
    /// Memory of this engine that it may still touch, by which name, and the local keys to it.
    pub(crate) memory: Option<Memory>,
    pub(crate) key: RegionKey,
    pub(crate) keys: [u32; RAILS_MAX],
    pub(crate) remote: Option<Arc<RdmaMemory>>,
    /// The revisions of both logs up to which nothing withdrawn concerns it: of this engine's and of the peer's.
    pub(crate) here: u64,
    pub(crate) there: u64,
    /// Where its bytes are, and how many.
    pub(crate) spans: Vec<Span>,
    pub(crate) bytes: u64,
    /// What is told: a counter, a note's name, a note.
    pub(crate) counter: Option<CounterRef>,
    pub(crate) note: Option<NoteId>,
    pub(crate) payload: Vec<u8>,
    /// Nothing is told: the peer shall only hear something behind what it was sent.
    pub(crate) is_proof: bool,
    /// The number of the notification, how many marks it waits for, and how many of its messages the peer has not heard.
    pub(crate) number: u16,
    pub(crate) marks: u8,
    pub(crate) unheard: u8,
    /// Its counter was gone.
    pub(crate) is_uncounted: bool,
    /// Nobody wants it any more.
    pub(crate) is_abandoned: bool,
    /// How often it failed for want of an answer.
    pub(crate) tries: u8,
    /// How often its rail broke for no reason that is known, while nothing else was under way on it.
    pub(crate) breaks: u8,
    /// How it ends, once nothing of it can land any more.
    pub(crate) failed: Option<Failure>,
    /// It is told no more, and its end was reported; some of its messages come all the same.
    pub(crate) is_withdrawn: bool,
}

impl Op {
    fn vacant() -> Self {
        Self {
            kind: Kind::Write,
            completion_id: 0,
            transfer: 0,
            rail: 0,
            memory: None,
            key: RegionKey { region: RegionId(0), generation: Generation(0) },
            keys: [0; RAILS_MAX],
            remote: None,
            here: 0,
            there: 0,
            spans: Vec::new(),
            bytes: 0,
            counter: None,
            note: None,
            payload: Vec::new(),
            is_proof: false,
            number: 0,
            marks: 0,
            unheard: 0,
            is_uncounted: false,
            is_abandoned: false,
            tries: 0,
            breaks: 0,
            failed: None,
            is_withdrawn: false,
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

    /// The note that it tells.
    pub(crate) fn said(&self) -> Option<Note<'_>> {
        self.note.map(|id| Note { id, payload: &self.payload })
    }

    /// How it ends if it ends now.
    pub(crate) fn result(&self) -> Result<u64, Failure> {
        match (self.failed, self.kind) {
            (Some(failure), _) => Err(failure),
            (None, Kind::Tell) => Ok(u64::from(!self.is_uncounted)),
            (None, Kind::Write | Kind::Read) => Ok(self.bytes),
        }
    }
}

/// The operations of one channel.
#[derive(Default)]
pub(crate) struct Ops {
    places: Vec<Op>,
    is_taken: Vec<bool>,
    free: Vec<OpId>,
    /// How many batches were checked against which revision of this engine's log, in ascending order.
    revisions: Vec<(u64, usize)>,
    reading: usize,
}

impl Ops {
    /// A place for a batch on a rail, of which so many spans are taken.
    pub(crate) fn take_batch(
        &mut self,
        batch: &Batch<'_>,
        memory: &Arc<RdmaMemory>,
        keys: &[u32],
        (spans, bytes): (usize, u64),
    ) -> OpId {
        let id = self.take(if batch.direction == Direction::Write { Kind::Write } else { Kind::Read });
        let op = &mut self.places[id as usize];
        (op.completion_id, op.transfer, op.bytes) = (batch.completion_id, batch.transfer, bytes);
        (op.memory, op.key) = (Some(batch.local.clone()), batch.local_region);
        op.keys[..keys.len()].copy_from_slice(keys);
        op.remote = Some(Arc::clone(memory));
        (op.here, op.there) = (batch.checked_at.local, batch.checked_at.remote);
        op.spans.extend_from_slice(&batch.spans[..spans]);
        self.count_in(batch.checked_at.local);
        id
    }

    /// A place for what is told of a transfer.
    pub(crate) fn take_tell(&mut self, arrival: &NotifyRequest<'_>) -> OpId {
        let id = self.take(Kind::Tell);
        let op = &mut self.places[id as usize];
        (op.completion_id, op.transfer, op.counter) = (arrival.completion_id, arrival.transfer, arrival.counter);
        if let Some(note) = arrival.note {
            op.note = Some(note.id);
            op.payload.extend_from_slice(note.payload);
        }
        id
    }

    /// A place for what proves that all of a transfer has landed.
    pub(crate) fn take_proof(&mut self, proof: &FlushRequest) -> OpId {
        let id = self.take(Kind::Tell);
        let op = &mut self.places[id as usize];
        (op.completion_id, op.transfer, op.is_proof) = (proof.completion_id, proof.transfer, true);
        id
    }

    fn take(&mut self, kind: Kind) -> OpId {
        let id = self.free.pop().unwrap_or_else(|| self.grow());
        self.is_taken[id as usize] = true;
        self.places[id as usize].kind = kind;
        self.reading += usize::from(kind == Kind::Read);
        id
    }

    #[cold]
    fn grow(&mut self) -> OpId {
        let id = self.places.len() as OpId;
        // Room for the longest list of spans: whatever a place is used for later, it does not allocate.
        self.places.push(Op { spans: Vec::with_capacity(SPANS_PER_POST), ..Op::vacant() });
        self.is_taken.push(false);
        // Room for every place to be free: giving one back never allocates.
        self.free.reserve(self.places.len());
        id
    }

    /// Gives a place back.
    pub(crate) fn give_back(&mut self, id: OpId) {
        let op = &mut self.places[id as usize];
        let (kind, here) = (op.kind, op.here);
        let (mut spans, mut payload) = (std::mem::take(&mut op.spans), std::mem::take(&mut op.payload));
        spans.clear();
        payload.clear();
        *op = Op { spans, payload, ..Op::vacant() };
        self.is_taken[id as usize] = false;
        self.free.push(id);
        self.reading -= usize::from(kind == Kind::Read);
        if kind != Kind::Tell {
            self.count_out(here);
        }
    }

    /// All that are under way.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (OpId, &Op)> {
        let all = (0..).zip(&self.places).zip(&self.is_taken);
        all.filter(|(_, is_taken)| **is_taken).map(|(op, _)| op)
    }

    /// All that are under way.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (OpId, &mut Op)> {
        let all = (0..).zip(&mut self.places).zip(&self.is_taken);
        all.filter(|(_, is_taken)| **is_taken).map(|(op, _)| op)
    }

    /// What is being told of a transfer.
    pub(crate) fn told_of(&self, transfer: u64) -> Option<OpId> {
        let is_it = |op: &Op| op.kind == Kind::Tell && op.transfer == transfer && !op.is_withdrawn && !op.is_proof;
        self.iter().find(|(_, op)| is_it(op)).map(|(id, _)| id)
    }

    /// Nothing withdrawn up to these revisions concerns this batch.
    pub(crate) fn stands(&mut self, id: OpId, here: u64, there: u64) {
        let before = std::mem::replace(&mut self.places[id as usize].here, here);
        self.places[id as usize].there = there;
        self.count_out(before);
        self.count_in(here);
    }

    /// Whether any of a transfer's bytes are being read.
    pub(crate) fn reads(&self, transfer: u64) -> bool {
        self.reading > 0 && self.iter().any(|(_, op)| op.kind == Kind::Read && op.transfer == transfer)
    }

    /// The oldest revision that a batch was checked against.
    pub(crate) fn oldest(&self) -> u64 {
        self.revisions.first().map_or(u64::MAX, |&(revision, _)| revision)
    }

    fn count_in(&mut self, revision: u64) {
        match self.revisions.binary_search_by_key(&revision, |&(revision, _)| revision) {
            Ok(place) => self.revisions[place].1 += 1,
            Err(place) => self.revisions.insert(place, (revision, 1)),
        }
    }

    fn count_out(&mut self, revision: u64) {
        if let Ok(place) = self.revisions.binary_search_by_key(&revision, |&(revision, _)| revision) {
            self.revisions[place].1 -= 1;
            if self.revisions[place].1 == 0 {
                self.revisions.remove(place);
            }
        }
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
