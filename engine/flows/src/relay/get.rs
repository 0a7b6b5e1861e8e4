//! What this engine fetches.
//!
//! A get reads what its putter has announced: into berths of its own, one piece a berth, or straight into the application's memory. Berths
//! of gets are no berths of puts, so two stages that hand to each other never wait for what the other holds. A get has at most one place in
//! the line for berths and needs no second one to give one back.

mod books;
mod machine;
mod pieces;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use penstock_core::{Cause, Timestamp};
use penstock_session::machine::Step;
use penstock_session::purse::{CreditPool, CreditWaiter};
use penstock_session::{PeerKey, RequestId};

pub use self::machine::{Destination, Get, GetEvent, GetKey, GetPiece};
use super::LATE;
use super::berths::{StagingPlace, StagingPool, StagingSlots, bytes_of, slice};
use super::early::{OfferKey, RelayFrame};
use super::error::{RelayError, RelayFailed};
use super::out::{Alarm, Out};
use crate::FlowCause;
use crate::action::{Action, BlocksRef, MoveId};

/// A part that is announced, and what of it is to be read. It is cut into pieces as berths come, however large it is said to be.
#[derive(Debug)]
struct Todo {
    part: u32,
    from: u64,
    done: u64,
    len: u64,
    there: Vec<StagingPlace>,
}

/// What is read at once.
struct Cut {
    part: u32,
    from: u64,
    len: u64,
    there: Vec<StagingPlace>,
}

#[derive(Debug)]
struct Running {
    part: u32,
    from: u64,
    len: u64,
    berth: Option<u32>,
    moves: BTreeSet<MoveId>,
    quarantined: Option<BlocksRef>,
}

/// A move, and the piece of the get that it is for.
#[derive(Debug)]
struct UnderWay {
    get: u64,
    piece: u64,
    bytes: u64,
    /// It has ended here and not there.
    is_open: bool,
}

#[derive(Debug)]
struct Ready {
    from: u64,
    len: u64,
    berth: u32,
    /// The application has been told where it lies, and may be copying.
    is_handed: bool,
}

#[derive(Debug)]
pub(super) struct GetOp {
    pub(super) from: OfferKey,
    pub(super) request: RequestId,
    state: Get,
    bytes: u64,
    parts: u32,
    /// Of each part but the last, as the first one that came has said.
    part_bytes: Option<u64>,
    memory: Option<(Vec<StagingPlace>, BlocksRef)>,
    schema: Vec<u8>,
    header: Vec<u8>,
    seen: BTreeSet<u32>,
    parts_done: u32,
    /// Announced parts that are not answered yet, and how many bytes of each are missing.
    unanswered: BTreeMap<u32, u64>,
    todo: VecDeque<Todo>,
    is_in_line: bool,
    running: BTreeMap<u64, Running>,
    ready: BTreeMap<u64, Ready>,
    result: Option<Result<(), RelayFailed>>,
    until: Timestamp,
    is_peer_gone: bool,
    is_let_go: bool,
}

#[derive(Debug)]
pub(super) struct Gets {
    ops: BTreeMap<u64, GetOp>,
    by_offer: BTreeMap<OfferKey, u64>,
    moves: BTreeMap<MoveId, UnderWay>,
    next: u64,
    piece: u64,
    berths: StagingSlots,
    purse: CreditPool<1>,
    abort: Duration,
    most: usize,
    served: Vec<CreditWaiter>,
    over: Vec<(OfferKey, Option<FlowCause>)>,
}

impl GetOp {
    fn fire(&mut self, event: GetEvent) {
        match self.state.step(event) {
            Step::Go(next) => self.state = next,
            Step::Stay => {}
            Step::Refused => debug_assert!(false, "{event:?} of a get that is {:?}", self.state),
        }
    }

    fn is_going(&self) -> bool {
        matches!(self.state, Get::Waiting | Get::Announced | Get::Reading)
    }

    /// Nothing of one that has failed is handed out.
    fn hands_out(&self) -> bool {
        !matches!(self.result, Some(Err(_)))
    }

    /// The next bytes to be read, at most so many.
    fn cut(&mut self, most: u64) -> Option<Cut> {
        let todo = self.todo.front_mut()?;
        let len = most.min(todo.len - todo.done);
        let cut = Cut { part: todo.part, from: todo.from + todo.done, len, there: slice(&todo.there, todo.done, len) };
        todo.done += len;
        if todo.done == todo.len {
            self.todo.pop_front();
        }
        Some(cut)
    }

    fn answer(&self, part: u32, cause: Option<FlowCause>, out: &mut Out) {
        if !self.is_peer_gone {
            out.answer(self.from.0, self.from.1, part, cause);
        }
    }
}

impl Gets {
    pub(super) fn new(pool: StagingPool, most: usize, abort: Duration) -> Self {
        Self {
            ops: BTreeMap::new(),
            by_offer: BTreeMap::new(),
            moves: BTreeMap::new(),
            next: 1,
            piece: 1,
            berths: StagingSlots::new(pool),
            purse: CreditPool::new([pool.berths.into()], most),
            abort,
            most,
            served: Vec::new(),
            over: Vec::new(),
        }
    }

    pub(super) fn open(
        &mut self,
        from: OfferKey,
        request: RequestId,
        size: (u64, u32),
        into: Destination,
        until: Timestamp,
        out: &mut Out,
    ) -> Result<u64, RelayError> {
        if self.by_offer.contains_key(&from) {
            return Err(RelayError::Claimed);
        }
        if self.ops.len() >= self.most {
            return Err(RelayError::Full { what: "gets", most: self.most });
        }
        let (bytes, parts) = size;
        let memory = match into {
            Destination::Berths if bytes > 0 && (self.purse.limits() == [0] || self.berths.berth_bytes() == 0) => {
                return Err(RelayError::NoBerths);
            }
            Destination::Berths => None,
            Destination::Extents { extents, keep } => {
                let room = bytes_of(&extents).ok_or(RelayError::Extents)?;
                if room != bytes {
                    return Err(RelayError::Destination { bytes, room });
                }
                Some((extents, keep))
            }
        };
        let number = self.next;
        self.next += 1;
        let get = GetOp {
            from,
            request,
            state: Get::Waiting,
            bytes,
            parts,
            part_bytes: None,
            memory,
            schema: Vec::new(),
            header: Vec::new(),
            seen: BTreeSet::new(),
            parts_done: 0,
            unanswered: BTreeMap::new(),
            todo: VecDeque::new(),
            is_in_line: false,
            running: BTreeMap::new(),
            ready: BTreeMap::new(),
            result: None,
            until,
            is_peer_gone: false,
            is_let_go: false,
        };
        self.ops.insert(number, get);
        self.by_offer.insert(from, number);
        out.arm(Alarm::Get(number), until);
        Ok(number)
    }

    /// The get that goes on for this operation of a peer.
    pub(super) fn of_offer(&self, from: OfferKey) -> Option<u64> {
        self.by_offer.get(&from).copied()
    }

    /// It is announced in another session with the same engine than the one in which it was waited for.
    pub(super) fn goes_on_from(&mut self, number: u64, from: OfferKey) {
        if let Some(get) = self.ops.get_mut(&number) {
            self.by_offer.remove(&std::mem::replace(&mut get.from, from));
            self.by_offer.insert(from, number);
        }
    }

    /// A part is announced, checked already by itself; whether it makes sense for this get.
    pub(super) fn chunk(
        &mut self,
        number: u64,
        size: (u64, u32),
        part_bytes: u64,
        frame: RelayFrame,
        now: Timestamp,
        out: &mut Out,
    ) -> bool {
        let Some(get) = self.ops.get_mut(&number) else { return false };
        let unlike = if (get.bytes, get.parts) != size {
            Some("it announces other sizes than its metadata says")
        } else {
            // Parts of two lengths would leave a gap between them, or lie on one another.
            let known = *get.part_bytes.get_or_insert(part_bytes);
            (known != part_bytes).then_some("its parts but the last are not of one length")
        };
        if let Some(words) = unlike {
            get.unanswered.insert(frame.part, 0);
            let failed = RelayFailed::new(FlowCause::Refused, Some(get.from.0), words);
            self.stop(number, GetEvent::Fault, failed, now, out);
            return false;
        }
        if !get.seen.insert(frame.part) {
            return false;
        }
        if frame.part == 0 {
            (get.schema, get.header) = (frame.schema, frame.header);
        }
        get.fire(GetEvent::Chunk);
        out.tell();
        let len: u64 = frame.places.iter().map(|place| place.len).sum();
        get.unanswered.insert(frame.part, len);
        if len > 0 {
            let from = part_bytes * u64::from(frame.part);
            get.todo.push_back(Todo { part: frame.part, from, done: 0, len, there: frame.places });
        }
        if len == 0 {
            self.part_is_here(number, frame.part, out);
        }
        self.advance(number, now, out);
        self.go_on(now, out);
        true
    }

    /// A move has ended.
    pub(super) fn ended(
        &mut self,
        id: MoveId,
        result: Result<u64, Cause>,
        is_open: bool,
        now: Timestamp,
        out: &mut Out,
    ) -> bool {
        let Some(under_way) = self.moves.get_mut(&id).filter(|under_way| !under_way.is_open) else { return false };
        under_way.is_open = true;
        let (number, expected) = (under_way.get, under_way.bytes);
        let failed = match result {
            Ok(bytes) if bytes == expected => None,
            Ok(_) => Some(FlowCause::Refused),
            Err(cause) => Some(FlowCause::Moving(cause)),
        };
        if let Some(cause) = failed {
            let peer = self.ops.get(&number).map(|get| get.from.0);
            self.stop(number, GetEvent::Fault, RelayFailed::new(cause, peer, ""), now, out);
        }
        if !is_open {
            self.closed(id, now, out);
        }
        true
    }

    /// Nothing of a move can land any more.
    pub(super) fn closed(&mut self, id: MoveId, now: Timestamp, out: &mut Out) -> bool {
        if self.moves.get(&id).is_none_or(|under_way| !under_way.is_open) {
            return false;
        }
        let Some(UnderWay { get: number, piece, .. }) = self.moves.remove(&id) else { return false };
        let Some(get) = self.ops.get_mut(&number) else { return true };
        let Some(running) = get.running.get_mut(&piece) else { return true };
        running.moves.remove(&id);
        if running.moves.is_empty()
            && let Some(running) = get.running.remove(&piece)
        {
            self.piece_is_over(number, piece, running, out);
        }
        self.advance(number, now, out);
        self.go_on(now, out);
        true
    }

    /// The application has copied a piece out.
    pub(super) fn taken(&mut self, number: u64, piece: u64, now: Timestamp, out: &mut Out) -> Result<(), RelayError> {
        let get = self.ops.get_mut(&number).ok_or(RelayError::NoSuchOperation)?;
        let ready = get.ready.remove(&piece).ok_or(RelayError::NotYours(piece))?;
        self.give_back(ready.berth);
        self.go_on(now, out);
        Ok(())
    }

    pub(super) fn late(&mut self, number: u64, now: Timestamp, out: &mut Out) {
        let Some(get) = self.ops.get_mut(&number) else { return };
        if get.is_going() {
            return self.stop(number, GetEvent::Late, RelayFailed::new(FlowCause::Deadline, None, LATE), now, out);
        }
        get.fire(GetEvent::Late);
        for running in get.running.values_mut() {
            let ticket = BlocksRef(out.number());
            running.quarantined = Some(ticket);
            out.counts.quarantined += 1;
            out.act(Action::Quarantine { ticket, peers: vec![get.from.0], why: "a read has not ended" });
        }
    }

    /// Gives those up that still go on.
    pub(super) fn stop_all(
        &mut self,
        which: impl Fn(&GetOp) -> bool,
        failed: &RelayFailed,
        now: Timestamp,
        out: &mut Out,
    ) {
        let going = self.ops.iter().filter(|(_, get)| get.is_going() && which(get));
        for number in going.map(|(number, _)| *number).collect::<Vec<_>>() {
            self.stop(number, GetEvent::Abort, failed.clone(), now, out);
        }
    }

    /// A session is over: its moves end by themselves, and nobody hears answers.
    pub(super) fn left(&mut self, peer: PeerKey, now: Timestamp, out: &mut Out) {
        for get in self.ops.values_mut().filter(|get| get.from.0 == peer) {
            get.is_peer_gone = true;
        }
        self.stop_all(|get| get.from.0 == peer, &RelayFailed::new(FlowCause::PeerLost, Some(peer), ""), now, out);
    }

    pub(super) fn let_go(&mut self, number: u64, now: Timestamp, out: &mut Out) {
        let Some(get) = self.ops.get_mut(&number) else { return };
        get.is_let_go = true;
        for ready in std::mem::take(&mut get.ready).into_values() {
            self.give_back(ready.berth);
        }
        self.stop(
            number,
            GetEvent::Abort,
            RelayFailed::new(FlowCause::Aborted, None, "its reader let go of it"),
            now,
            out,
        );
        if self.ops.get(&number).is_some_and(|get| get.state.is_end()) {
            self.ops.remove(&number);
        }
        self.go_on(now, out);
    }

    pub(super) fn stop(&mut self, number: u64, event: GetEvent, failed: RelayFailed, now: Timestamp, out: &mut Out) {
        let Some(get) = self.ops.get_mut(&number).filter(|get| get.is_going()) else { return };
        get.fire(event);
        let cause = failed.cause;
        get.result = Some(Err(failed));
        get.todo.clear();
        out.tell();
        let was_in_line = std::mem::take(&mut get.is_in_line);
        let is_read_of = |part: &u32| get.running.values().any(|running| running.part == *part);
        let (kept, free): (Vec<u32>, Vec<u32>) = get.unanswered.keys().copied().partition(is_read_of);
        for part in free {
            get.unanswered.remove(&part);
            get.answer(part, Some(cause), out);
        }
        for id in get.running.values().flat_map(|running| running.moves.iter()) {
            out.act(Action::Stop { id: *id });
        }
        self.by_offer.remove(&get.from);
        self.over.push((get.from, Some(cause)));
        // A berth that may be being copied out comes back from whoever copies.
        let unseen: Vec<Ready> =
            get.ready.extract_if(.., |_, ready| !ready.is_handed).map(|(_, ready)| ready).collect();
        unseen.into_iter().for_each(|ready| self.give_back(ready.berth));
        if was_in_line {
            self.leave_line(number);
        }
        if kept.is_empty() {
            self.forget(number, out);
        } else {
            out.arm(Alarm::Get(number), now + self.abort);
        }
        self.go_on(now, out);
    }
}
