//! One stream: what its messages mean.

use std::io::{Error, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use penstock_core::Cause;
use penstock_core::Span;
use penstock_core::limits::IN_FLIGHT_PER_LANE_MAX;
use penstock_memory::Window;
use penstock_transport::host::{HeldPages, WithdrawalConflict, check_withdrawals};
use penstock_transport::mediated::{LaneTarget, Notes, Poisoned, Wants};
use penstock_transport::{LaneEvents, LaneFault, RemoteGateLog};

use crate::group::{Sent, StreamPath};
use crate::incoming::{Arrived, DISCARD_BYTES, Incoming};
use crate::io::{Io, PieceSpace, Readiness, SendReleased, ZeroCopy};
use crate::op::{Kind, OpEnded, OpId, Ops};
use crate::outgoing::{Acks, Outgoing};
use crate::wire::{Message, Messages, PARTS_MAX, ReadRefusal, Request, TcpWireError, Trailer};

const CORRUPT: LaneFault = LaneFault(Cause::PeerCorrupt);

/// Calls that receive from one stream before the worker looks at anything else.
const RECEIVES_PER_POLL: usize = 8;

/// Looks at a stream, after something has come, that do not wait for the driver: some microseconds' worth.
const TRIES: u32 = 32;

/// Groups sent on one stream before the worker looks at anything else.
const GROUPS_PER_TURN: usize = 8;

/// What all streams of a lane use.
pub(crate) struct Common {
    pub(crate) target: LaneTarget,
    /// What was left with the kernel.
    pub(crate) pages: Arc<HeldPages>,
    pub(crate) told: Arc<RemoteGateLog>,
    pub(crate) space: PieceSpace,
    /// Room for bytes that go nowhere.
    pub(crate) discard: Box<[u8; DISCARD_BYTES]>,
}

/// What all streams of a channel use.
pub(crate) struct Ledger {
    pub(crate) ops: Ops,
    pub(crate) notes: Notes,
    /// Operations that ended before they left.
    pub(crate) ended: Vec<OpEnded>,
}

pub(crate) struct Stream {
    pub(crate) fd: Arc<OwnedFd>,
    /// What the driver knows it by.
    pub(crate) key: u64,
    pub(crate) outgoing: Outgoing,
    pub(crate) incoming: Incoming,
    acks: Acks,
    poisoned: Poisoned,
    zero_copy: ZeroCopy,
    /// The number of the peer's next operation.
    next: u64,
    /// Something may be there.
    is_readable: bool,
    /// The driver will say when something comes.
    is_watched: bool,
    /// How often it is looked at unasked: what comes soon after what came is there before the driver says so.
    tries: u32,
    /// Nothing more will come: to be received up to the end.
    has_hung_up: bool,
    /// There was no room; the driver says when there is.
    is_blocked: bool,
    /// Sending failed: what the peer said before it went is still there.
    is_mute: bool,
}

impl Stream {
    pub(crate) fn new(fd: Arc<OwnedFd>, key: u64) -> Self {
        Self {
            fd,
            key,
            outgoing: Outgoing::new(),
            incoming: Incoming::new(),
            acks: Acks::default(),
            poisoned: Poisoned::default(),
            zero_copy: ZeroCopy::first(),
            next: 1,
            // What came before it was watched may not be reported.
            is_readable: true,
            is_watched: true,
            tries: 0,
            has_hung_up: false,
            is_blocked: false,
            is_mute: false,
        }
    }

    /// The driver says what it is ready for.
    pub(crate) fn hear(&mut self, ready: Readiness) {
        self.is_readable |= ready.readable | ready.hung_up;
        self.is_watched &= !(ready.readable | ready.hung_up);
        self.has_hung_up |= ready.hung_up;
        self.is_blocked &= !ready.writable;
    }

    /// The kernel has let go of a send's pages.
    pub(crate) fn released(&mut self, released: &SendReleased, ops: &mut Ops, events: &mut dyn LaneEvents) {
        self.zero_copy.heard(released);
        self.outgoing.released(released.ticket, ops, events);
    }

    /// Receives a bounded amount and does what it says. Returns whether there may be more.
    pub(crate) fn receive(
        &mut self,
        io: &mut Io,
        common: &mut Common,
        ledger: &mut Ledger,
        events: &mut dyn LaneEvents,
        streams: usize,
    ) -> Result<bool, LaneFault> {
        let more = self.receive_some(io, common, ledger, events, streams)?;
        if !more && !self.is_watched {
            io.listen(self.fd.as_fd());
            self.is_watched = true;
        }
        Ok(more)
    }

    fn receive_some(
        &mut self,
        io: &mut Io,
        common: &mut Common,
        ledger: &mut Ledger,
        events: &mut dyn LaneEvents,
        streams: usize,
    ) -> Result<bool, LaneFault> {
        // Shared by all streams of the lane: others wait for its end.
        for _ in 0..(RECEIVES_PER_POLL / streams).max(1) {
            if !self.is_readable {
                self.acks.looks = self.acks.looks.saturating_add(1);
                if self.tries == 0 {
                    return Ok(false);
                }
                self.tries -= 1;
            }
            let Common { target, space, discard, .. } = &mut *common;
            let way = (&mut *io, self.fd.as_fd());
            match self.incoming.receive(way, target, space, &mut discard[..]) {
                Ok(is_empty) => {
                    self.is_readable = !is_empty || self.has_hung_up;
                    // In the middle of memory it may have stopped at a page that is not there: one more look tells. More would
                    // only be in the way of what is coming.
                    self.tries = if self.incoming.is_landing() { 1 } else { TRIES };
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.is_readable = false;
                    // Sending failed, and nothing more comes: it is gone.
                    return if self.is_mute { Err(LaneFault(Cause::PeerLost)) } else { Ok(self.tries > 0) };
                }
                Err(error) => return Err(lost("received", &error)),
            }
            self.digest(common, ledger, events)?;
            if !self.is_readable {
                break;
            }
        }
        Ok(self.is_readable || self.tries > 0)
    }

    fn digest(
        &mut self,
        common: &mut Common,
        ledger: &mut Ledger,
        events: &mut dyn LaneEvents,
    ) -> Result<(), LaneFault> {
        loop {
            match self.incoming.digest(&mut common.target).map_err(garbled)? {
                Arrived::Nothing => return Ok(()),
                Arrived::Control => self.open(common, ledger, events)?,
                Arrived::Group(trailer) => {
                    self.close(trailer, common, ledger, events)?;
                    self.incoming.finish();
                }
            }
        }
    }

    /// A control block is there: what can be done before its payload is done, and every byte of payload gets its place.
    fn open(&mut self, common: &mut Common, ledger: &mut Ledger, events: &mut dyn LaneEvents) -> Result<(), LaneFault> {
        let Self { incoming, outgoing, acks, next, .. } = self;
        let target = &mut common.target;
        // Before anything is looked up: what is withdrawn from now on is seen when the bytes come.
        let now = target.view().revision();
        let Some((head, control, landings)) = incoming.control() else { return Err(CORRUPT) };
        for message in head.open(control).map_err(garbled)? {
            match message.map_err(garbled)? {
                Message::Write(request) => {
                    number(next, request.sequence, acks)?;
                    let memory = target.admit(Wants::Write, request.key, request.revision, request.extents())?;
                    landings.push(memory.map(Some), request.key, None, request.extents());
                }
                Message::Read(request) => {
                    number(next, request.sequence, acks)?;
                    if outgoing.answers() == IN_FLIGHT_PER_LANE_MAX {
                        return Err(CORRUPT); // It may not have so many under way.
                    }
                    let memory = target.admit(Wants::Read, request.key, request.revision, request.extents())?;
                    outgoing.answer(answer(&request, memory, now, &mut ledger.ops));
                }
                Message::Data { sequence, bytes } => {
                    let id = outgoing.asked(sequence, &ledger.ops)?;
                    let op = &mut ledger.ops[id];
                    match bytes {
                        Err(ReadRefusal { cause, revision }) => {
                            common.told.on_revision(revision);
                            outgoing.answered(id, Err(cause), &mut ledger.ops, events);
                        }
                        Ok(bytes) if u64::from(bytes) == op.bytes => {
                            op.is_landing = true;
                            let stands = check_withdrawals(target.view(), op.checked, op.key, op.extents());
                            let memory =
                                stands.map(|()| op.memory.clone()).map_err(WithdrawalConflict::cause_for_local);
                            landings.push(memory, op.key, Some(id), op.extents());
                        }
                        Ok(_) => return Err(CORRUPT),
                    }
                }
                Message::Notify { sequence, .. } => number(next, sequence, acks)?,
                Message::Done { sequence } => outgoing.done(sequence, &mut ledger.ops, events)?,
                Message::Refused { sequence, cause, revision } => {
                    common.told.on_revision(revision);
                    outgoing.refused(sequence, cause, &mut ledger.ops)?;
                }
                Message::Credit { lines } => ledger.notes.hear(lines)?,
            }
        }
        incoming.land(now);
        Ok(())
    }

    /// The whole group is there: what follows its payload is done, in the order of its messages.
    fn close(
        &mut self,
        Trailer { spoiled, revision: theirs }: Trailer,
        common: &mut Common,
        ledger: &mut Ledger,
        events: &mut dyn LaneEvents,
    ) -> Result<(), LaneFault> {
        let Self { incoming, outgoing, acks, poisoned, .. } = self;
        let Some((_, control, landings)) = incoming.control() else { return Err(CORRUPT) };
        let revision = common.target.view().revision();
        if landings.count() < PARTS_MAX && spoiled >> landings.count() != 0 {
            return Err(CORRUPT);
        }
        if spoiled != 0 {
            common.told.on_revision(theirs);
        }
        let mut part = 0;
        for message in Messages::of(control) {
            let message = message.map_err(garbled)?;
            let is_spoiled = part < PARTS_MAX && spoiled >> part & 1 != 0;
            let landing = landings.part(part).filter(|_| message.payload_bytes() > 0);
            part += usize::from(landing.is_some());
            match (message, landing) {
                (Message::Write(request), Some(landing)) => {
                    if let Some(cause) = landing.refused {
                        acks.refused.push_back((request.sequence, Some(cause), revision));
                    }
                    // Its sender knows what it spoiled, and why.
                    if let Some(cause) = landing.refused.or(is_spoiled.then_some(Cause::RevokedHere)) {
                        poisoned.add(request.sequence, request.transfer, cause);
                    }
                    (acks.done, acks.looks) = (request.sequence, 0);
                    acks.landed += request.bytes;
                }
                (Message::Data { bytes: Ok(bytes), .. }, Some(landing)) => {
                    let Some(id) = landing.read else { return Err(CORRUPT) };
                    let result = match landing.refused {
                        Some(cause) => Err(cause),
                        None if is_spoiled => Err(Cause::RevokedByPeer),
                        // Given up while it came: it is not there.
                        None if landing.memory.is_none() => Err(Cause::Cancelled),
                        None => Ok(u64::from(bytes)),
                    };
                    outgoing.answered(id, result, &mut ledger.ops, events);
                }
                (Message::Read(request), _) => (acks.done, acks.looks) = (request.sequence, 0),
                (Message::Notify { sequence, transfer, counter, note }, _) => {
                    let why = poisoned.why(transfer);
                    if let Some(note) = note {
                        ledger.notes.arrive(note, why.is_none(), events)?;
                    }
                    let is_counted =
                        why.is_some() || counter.is_none_or(|counter| common.target.increment_counter(counter));
                    if why.is_some() || !is_counted {
                        acks.refused.push_back((sequence, why, revision));
                    }
                    (acks.done, acks.looks) = (sequence, 0);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Sends what there is to send, as far as there is room. Returns whether there is more that could go at once.
    pub(crate) fn send(
        &mut self,
        io: &mut Io,
        common: &mut Common,
        ledger: &mut Ledger,
        streams: usize,
    ) -> Result<bool, LaneFault> {
        if self.is_blocked || self.is_mute {
            return Ok(false);
        }
        let Common { target, pages, space, .. } = common;
        let LaneTarget { segments, touch, .. } = target;
        let view = segments.owner_state.view();
        let Ledger { ops, notes, ended } = ledger;
        for _ in 0..(GROUPS_PER_TURN / streams).max(1) {
            if !self.outgoing.is_sending() {
                if !self.outgoing.has_something() && !self.acks.are_urgent() && !notes.is_due() {
                    return Ok(self.acks.are_due());
                }
                if !self.outgoing.form(ops, &mut self.acks, notes.tell(), view, ended) {
                    return Ok(false);
                }
            }
            loop {
                let way = StreamPath { io, fd: self.fd.as_fd(), key: self.key, zero_copy: &mut self.zero_copy };
                match self.outgoing.send(way, ops, view, (touch, pages), space) {
                    Ok(Sent::All) => break,
                    Ok(Sent::Some) => {}
                    Ok(Sent::Short) => return self.wait_for_room(io),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => return self.wait_for_room(io),
                    Err(error) if error.kind() == ErrorKind::InvalidData => return Err(lost("sent", &error)),
                    Err(error) => {
                        tracing::debug!(%error, "a stream takes no more");
                        (self.is_mute, self.is_readable) = (true, true);
                        return Ok(true);
                    }
                }
            }
        }
        Ok(self.outgoing.has_something() || self.acks.are_due())
    }

    fn wait_for_room(&mut self, io: &mut Io) -> Result<bool, LaneFault> {
        self.is_blocked = true;
        io.want_room(self.fd.as_fd(), self.key).map_err(|error| lost("watched", &error))?;
        Ok(false)
    }
}

/// The number of the peer's operation is the next, and within the window that it has.
fn number(next: &mut u64, sequence: u64, acks: &Acks) -> Result<(), LaneFault> {
    if sequence != *next || sequence > acks.window_end() {
        return Err(CORRUPT);
    }
    *next += 1;
    Ok(())
}

/// What answers a READ: its bytes, or why they do not come.
fn answer(request: &Request<'_>, memory: Result<Window, Cause>, checked: u64, ops: &mut Ops) -> OpId {
    let bytes = if memory.is_ok() { request.bytes } else { 0 };
    let id = ops.take(Kind::Answer, bytes);
    let op = &mut ops[id];
    (op.sequence, op.key, op.checked) = (request.sequence, request.key, checked);
    match memory {
        Ok(window) => {
            op.memory = Some(window);
            op.spans.extend(request.extents().map(|(offset, len)| Span { local: offset, remote: offset, len }));
        }
        Err(cause) => op.failed = Some(cause),
    }
    id
}

fn garbled(error: TcpWireError) -> LaneFault {
    tracing::warn!(%error, "a peer's stream makes no sense");
    CORRUPT
}

fn lost(what: &str, error: &Error) -> LaneFault {
    match error.kind() {
        // A place was checked and is wrong all the same: of the two sides, this one may not go on.
        ErrorKind::InvalidData | ErrorKind::InvalidInput => CORRUPT,
        _ => {
            tracing::debug!(%error, "a stream cannot be {what} any more");
            LaneFault(Cause::PeerLost)
        }
    }
}
