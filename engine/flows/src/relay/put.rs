//! What this engine hands out.
//!
//! A put takes all berths that it will have at once, or waits for all. What is larger than its berths goes in parts through them: a berth
//! that every reader has answered takes the next part. A berth comes back by the answers of its readers or by the proof that a reader is
//! in no copy any more, and by nothing else: a deadline ends the wait, not the berth.

mod books;
mod machine;
mod parts;

use std::collections::BTreeMap;
use std::time::Duration;

use penstock_core::Timestamp;
use penstock_core::planted::{self, Bug};
use penstock_session::control::{Chunk, ChunkAck, ChunkKind};
use penstock_session::machine::Step;
use penstock_session::purse::{CreditPool, CreditWaiter, Took};
use penstock_session::{PeerKey, RequestId};

pub use self::machine::{Put, PutEvent, PutKey, PutSource, ToFill};
use super::LATE;
use super::berths::{StagingPlace, StagingPool, StagingSlots};
use super::error::{RelayError, RelayFailed};
use super::out::{Alarm, Out};
use crate::FlowCause;
use crate::action::{Action, BlocksRef, WatchId};

/// What a reader means that says that its time was over.
const READER_LATE: &str =
    "the reader had not asked for it while announcements are kept there, or did not fetch it in the time of its get";

#[derive(Debug)]
struct Reader {
    peer: PeerKey,
    /// Parts that it has answered.
    answered: u32,
    failed: Option<FlowCause>,
}

/// A reader may be at a part.
#[derive(Debug)]
struct Hold {
    reader: usize,
    gone: Option<WatchId>,
    quarantined: Option<BlocksRef>,
}

#[derive(Debug)]
struct Part {
    berth: Option<u32>,
    is_filling: bool,
    /// The application has been told where to write, and may be writing.
    is_handed: bool,
    holds: Vec<Hold>,
}

#[derive(Debug)]
enum Memory {
    Berths { count: u32 },
    Extents { extents: Vec<StagingPlace>, keep: BlocksRef, is_ready: bool },
    Nothing,
}

#[derive(Debug)]
pub(super) struct PutOp {
    pub(super) request: RequestId,
    pub(super) stream: Option<(u32, u64)>,
    kind: ChunkKind,
    state: Put,
    memory: Memory,
    bytes: u64,
    part_bytes: u64,
    parts: u32,
    next_part: u32,
    readers: Vec<Reader>,
    out: BTreeMap<u32, Part>,
    schema: Vec<u8>,
    header: Vec<u8>,
    result: Option<Result<(), RelayFailed>>,
    is_let_go: bool,
}

/// What a put is made of, checked already.
pub(super) struct PutOpening {
    pub(super) request: RequestId,
    pub(super) stream: Option<(u32, u64)>,
    pub(super) kind: ChunkKind,
    pub(super) source: PutSource,
    pub(super) readers: Vec<PeerKey>,
    pub(super) schema: Vec<u8>,
    pub(super) header: Vec<u8>,
}

/// A stream that cannot go on, as one of its chunks has failed.
pub(super) struct Torn {
    pub(super) stream: u32,
    pub(super) failed: RelayFailed,
}

#[derive(Debug)]
pub(super) struct Puts {
    ops: BTreeMap<u64, PutOp>,
    next: u64,
    berths: StagingSlots,
    /// Berths, and operations at once.
    purse: CreditPool<2>,
    /// Words that need no memory have credits of their own, so that an end is never behind the bytes of others.
    control: CreditPool<1>,
    each: u32,
    abort: Duration,
    most: usize,
    served: Vec<CreditWaiter>,
    torn: Vec<(u32, RelayFailed)>,
    ended_signals: Vec<(u32, bool)>,
}

impl PutOp {
    fn fire(&mut self, event: PutEvent) {
        match self.state.step(event) {
            Step::Go(next) => self.state = next,
            Step::Stay => {}
            Step::Refused => debug_assert!(false, "{event:?} of a put that is {:?}", self.state),
        }
    }

    fn is_going(&self) -> bool {
        matches!(self.state, Put::Filling | Put::Published)
    }

    fn has_readers(&self) -> bool {
        self.readers.iter().any(|reader| reader.failed.is_none())
    }

    /// It says that a stream has failed.
    pub(super) fn is_bad_news(&self) -> bool {
        self.kind == ChunkKind::Error
    }

    fn has_memory(&self) -> bool {
        !matches!(self.memory, Memory::Nothing)
    }

    fn is_filling(&self) -> bool {
        self.out.values().any(|part| part.is_filling)
    }

    fn len_of(&self, part: u32) -> u64 {
        let from = u64::from(part) * self.part_bytes;
        self.part_bytes.min(self.bytes.saturating_sub(from))
    }

    fn fail(&mut self, failed: RelayFailed) {
        self.result.get_or_insert(Err(failed));
    }

    /// Why it cannot be said to have succeeded.
    fn first_failed(&self) -> Option<RelayFailed> {
        let reader = self.readers.iter().find(|reader| reader.failed.is_some())?;
        let cause = reader.failed?;
        let words = if cause == FlowCause::Deadline { READER_LATE } else { "" };
        Some(RelayFailed::new(cause, Some(reader.peer), words))
    }

    fn frame(&self, op: u64, part: u32, kind: ChunkKind, places: &[StagingPlace], header: &[u8]) -> Chunk {
        let is_first = part == 0;
        let (stream, number) = self.stream.unwrap_or((0, 0));
        Chunk {
            op,
            request: self.request.as_str().to_owned(),
            stream,
            number,
            part,
            parts: self.parts,
            bytes: self.bytes,
            readers: self.readers.len() as u16,
            kind,
            extents: places.iter().map(StagingPlace::extent).collect(),
            schema: if is_first && kind == ChunkKind::Data { self.schema.clone() } else { Vec::new() },
            header: if is_first { header.to_vec() } else { Vec::new() },
        }
    }
}

impl Puts {
    pub(super) fn new(pool: StagingPool, each: u32, control: u32, most: usize, abort: Duration) -> Self {
        Self {
            ops: BTreeMap::new(),
            next: 1,
            berths: StagingSlots::new(pool),
            purse: CreditPool::new([pool.berths.into(), most as u64], most),
            control: CreditPool::new([control.into()], most),
            each: each.clamp(1, pool.berths.max(1)),
            abort,
            most,
            served: Vec::new(),
            torn: Vec::new(),
            ended_signals: Vec::new(),
        }
    }

    pub(super) fn has_berths(&self) -> bool {
        self.purse.limits()[0] > 0 && self.berth_bytes() > 0
    }

    pub(super) fn berth_bytes(&self) -> u64 {
        self.berths.berth_bytes()
    }

    /// Begins one, now or when its credits come.
    pub(super) fn open(
        &mut self,
        opening: PutOpening,
        until: Timestamp,
        now: Timestamp,
        out: &mut Out,
    ) -> Result<u64, RelayError> {
        let full = RelayError::Full { what: "puts", most: self.most };
        let is_signal = opening.kind != ChunkKind::Data;
        if self.ops.values().filter(|op| (op.kind != ChunkKind::Data) == is_signal).count() >= self.most {
            return Err(full);
        }
        let op = self.next;
        let (memory, bytes, part_bytes) = match opening.source {
            PutSource::Berths { bytes: 0 } => (Memory::Nothing, 0, 0),
            PutSource::Berths { bytes } => {
                let needed = bytes.div_ceil(self.berth_bytes().max(1)).min(self.each.into());
                (Memory::Berths { count: needed as u32 }, bytes, self.berth_bytes())
            }
            PutSource::Extents { extents, keep, is_ready } => {
                let bytes = super::berths::bytes_of(&extents).ok_or(RelayError::Extents)?;
                (Memory::Extents { extents, keep, is_ready }, bytes, bytes)
            }
        };
        let parts = match part_bytes {
            0 => u32::from(!is_signal),
            each => bytes.div_ceil(each) as u32,
        };
        let want = if let Memory::Berths { count } = memory { count } else { 0 };
        let took = match is_signal {
            true => self.control.take(CreditWaiter(op), [1]),
            false => self.purse.take(CreditWaiter(op), [want.into(), 1]),
        };
        match took {
            Took::Now | Took::Waits => {}
            Took::Never { .. } => return Err(RelayError::NoBerths),
            Took::Full { .. } => return Err(full),
        }
        self.next += 1;
        let reader = |peer: &PeerKey| Reader { peer: *peer, answered: 0, failed: None };
        let put = PutOp {
            request: opening.request,
            stream: opening.stream,
            kind: opening.kind,
            state: Put::Waiting,
            memory,
            bytes,
            part_bytes,
            parts,
            next_part: 0,
            readers: opening.readers.iter().map(reader).collect(),
            out: BTreeMap::new(),
            schema: opening.schema,
            header: opening.header,
            result: None,
            // Nobody looks at the end of a signal.
            is_let_go: is_signal,
        };
        self.ops.insert(op, put);
        out.arm(Alarm::Put(op), until);
        if took == Took::Now {
            self.begin(op, now, out);
        }
        self.go_on(now, out);
        Ok(op)
    }

    /// The application has written a part, or its own memory is ready.
    pub(super) fn filled(&mut self, op: u64, part: u32, now: Timestamp, out: &mut Out) -> Result<(), RelayError> {
        let put = self.ops.get_mut(&op).ok_or(RelayError::NoSuchOperation)?;
        if !put.out.get(&part).is_some_and(|part| part.is_filling) {
            return Err(RelayError::NotYours(part.into()));
        }
        self.publish(op, part, now, out);
        self.go_on(now, out);
        Ok(())
    }

    /// A reader has a part, or will not have it; whether that makes sense.
    pub(super) fn answered(&mut self, peer: PeerKey, ack: ChunkAck, now: Timestamp, out: &mut Out) -> bool {
        let Some(put) = self.ops.get_mut(&ack.op) else { return false };
        let Some(reader) = put.readers.iter().position(|reader| reader.peer == peer) else { return false };
        let Some(part) = put.out.get_mut(&ack.part) else { return false };
        let Some(hold) = part.holds.iter().position(|hold| hold.reader == reader) else { return false };
        if let Some(ticket) = part.holds.remove(hold).quarantined {
            out.act(Action::Free { ticket });
        }
        if planted::is(Bug::BerthBackAtFirstReader) {
            part.holds.clear();
        }
        if ack.code != 0 {
            put.readers[reader].failed.get_or_insert(FlowCause::of_code(ack.code));
        }
        put.readers[reader].answered += 1;
        self.stop_if_unread(ack.op, now, out);
        self.settle(ack.op, ack.part, now, out);
        self.go_on(now, out);
        true
    }

    /// A session is over: its peer's holds wait for the proof that it is in no copy. Whether there are any.
    pub(super) fn left(&mut self, peer: PeerKey, watch: WatchId, now: Timestamp, out: &mut Out) -> bool {
        let mut is_watched = false;
        for op in self.numbers(|_| true) {
            let Some(put) = self.ops.get_mut(&op) else { continue };
            let Some(place) = put.readers.iter().position(|reader| reader.peer == peer) else { continue };
            put.readers[place].failed.get_or_insert(FlowCause::PeerLost);
            let has_memory = put.has_memory();
            for part in put.out.values_mut() {
                part.holds.retain(|hold| has_memory || hold.reader != place);
                for hold in part.holds.iter_mut().filter(|hold| hold.reader == place && hold.gone.is_none()) {
                    hold.gone = Some(watch);
                    is_watched = true;
                }
            }
            self.stop_if_unread(op, now, out);
            self.settle_all(op, now, out);
        }
        self.go_on(now, out);
        is_watched
    }

    /// The peer of that watch is in no copy any more.
    pub(super) fn quiet(&mut self, watch: WatchId, now: Timestamp, out: &mut Out) {
        for op in self.numbers(|_| true) {
            let Some(put) = self.ops.get_mut(&op) else { continue };
            for part in put.out.values_mut() {
                for hold in
                    part.holds.extract_if(.., |hold| hold.gone == Some(watch) && !planted::is(Bug::BerthsOfTheDeadKept))
                {
                    if let Some(ticket) = hold.quarantined {
                        out.act(Action::Free { ticket });
                    }
                }
            }
            self.settle_all(op, now, out);
        }
        self.go_on(now, out);
    }

    /// Its alarm has gone off.
    pub(super) fn late(&mut self, op: u64, now: Timestamp, out: &mut Out) {
        let Some(put) = self.ops.get_mut(&op) else { return };
        if put.state != Put::Draining {
            self.stop(op, PutEvent::Late, RelayFailed::new(FlowCause::Deadline, None, LATE), true, now, out);
            return self.go_on(now, out);
        }
        put.fire(PutEvent::Late);
        for hold in put.out.values_mut().flat_map(|part| part.holds.iter_mut()) {
            let ticket = BlocksRef(out.number());
            hold.quarantined = Some(ticket);
            out.counts.quarantined += 1;
            let (peers, why) = (vec![put.readers[hold.reader].peer], "a reader has not answered");
            out.act(Action::Quarantine { ticket, peers, why });
        }
    }

    /// Gives those up that still go on or wait.
    pub(super) fn stop_all(
        &mut self,
        which: impl Fn(&PutOp) -> bool,
        failed: &RelayFailed,
        is_said: bool,
        now: Timestamp,
        out: &mut Out,
    ) {
        for op in self.numbers(which) {
            self.stop(op, PutEvent::Abort, failed.clone(), is_said, now, out);
        }
        self.go_on(now, out);
    }

    /// Nobody looks at it any more. What the application was still to write never comes then.
    pub(super) fn let_go(&mut self, op: u64, now: Timestamp, out: &mut Out) {
        let Some(put) = self.ops.get_mut(&op) else { return };
        put.is_let_go = true;
        let is_from_berths = matches!(put.memory, Memory::Berths { .. });
        if put.is_filling() || is_from_berths && (put.state == Put::Waiting || put.next_part < put.parts) {
            let failed =
                RelayFailed::new(FlowCause::Aborted, None, "its application let go of it before all was written");
            self.stop(op, PutEvent::Abort, failed, true, now, out);
        }
        if let Some(put) = self.ops.get_mut(&op) {
            for part in put.out.values_mut() {
                part.is_filling = false;
            }
        }
        self.settle_all(op, now, out);
        if self.ops.get(&op).is_some_and(|put| put.state.is_end()) {
            self.ops.remove(&op);
        }
        self.go_on(now, out);
    }
}
