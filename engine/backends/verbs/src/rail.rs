//! One rail of a channel: a queue, what is staged for it, what is under way on it, and the count of its messages.

use std::sync::Arc;
use std::time::Instant;

use penstock_transport::CounterRef;

use crate::adapter::{
    AdapterError, ConnectParams, Connected, DeviceAttr, NotDestroyed, Opcode, QueuePair, SendRequest, Token, WR_IDS,
};
use crate::connecting::{Away, Connect, Job, Lost};
use crate::ended::{NO_QUEUE, QueueEnded};
use crate::log::{Log, MessageKind, Say};
use crate::message::{Body, GRANTS_MAX, Head, Immediate, MESSAGE_BYTES_MAX, Says, encode, low_life};
use crate::op::OpId;
use crate::repair::pause;
use crate::slab::RegisteredSlots;
use crate::stage::{Ends, PostingBatch};

/// Requests of a queue that are kept for messages, so that what was heard can always be said.
pub(crate) const REQUESTS_KEPT: usize = 4;

/// Bytes under way on a rail before there is no room for more: enough to fill the way there and back of any network inside a
/// building, and no more than an adapter is through with in a fraction of a millisecond.
const BYTES_UNDER_WAY_MAX: u64 = 4 * 1024 * 1024;

/// Lives that may end for no reason that is known before batches go one by one.
const UNEXPLAINED_MAX: u32 = 2;

/// Requests of one life are numbered in so many bits of their names, and the life in those between and the one that adapters keep to
/// themselves: of more lives nothing is left when their numbers come again.
const NUMBER_BITS: u32 = 48;
const LIVES_NAMED: u32 = (1 << (WR_IDS.trailing_zeros() - NUMBER_BITS)) - 1;

/// One rail of a new channel.
pub(crate) struct RailParts {
    /// Its place among the link's rails; the same number on both sides.
    pub(crate) index: u8,
    /// Made, and not connected.
    pub(crate) queue: Box<dyn QueuePair>,
    /// What its adapter says of itself.
    pub(crate) attr: Arc<DeviceAttr>,
    /// How its queue is connected in its first life.
    pub(crate) connecting: ConnectParams,
    /// Requests that the queue takes.
    pub(crate) requests: usize,
    /// Messages that the peer may send before one is confirmed: receives that the CQ has for this queue. A power of two.
    pub(crate) grants: u32,
    /// Messages that may be sent to the peer before it has confirmed one. A power of two.
    pub(crate) granted: u32,
}

/// What can be done on a rail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Nothing, before it is connected for the first time.
    New,
    /// Nothing: both sides have ended the life before, and it is connected again at this moment.
    Idle(Instant),
    /// Nothing: its adapter is asked to connect it, which may take the adapter a while.
    Connecting,
    /// Nothing: it is being connected since then.
    Meeting(Instant),
    /// It is connected since then, and the peer was not heard yet.
    Greeting(Instant),
    Up,
    /// Nothing: it is broken, seen since then, and what was posted is coming back.
    Breaking(Option<Instant>),
    /// Nothing: it is broken, and its adapter neither makes its queue new nor takes it back. It is asked again then.
    Stuck(Instant),
    /// Nothing: this side has ended its life then, and the peer has not, as far as is known.
    Ended(Instant),
}

/// Where a queue is.
enum Place {
    Here(Box<dyn QueuePair>),
    /// It is being connected.
    Away(Away),
    /// It was lost there.
    Lost,
    /// It was given back to its adapter.
    GivenBack,
}

pub(crate) struct Rail {
    pub(crate) index: u8,
    queue: Place,
    /// The number of the queue.
    pub(crate) number: u32,
    pub(crate) attr: Arc<DeviceAttr>,
    pub(crate) connecting: ConnectParams,
    pub(crate) standing: Standing,
    /// The peer was heard in this life.
    pub(crate) is_greeted: bool,
    /// The session is over, and its queue was not made new: what it has is not proven to have ended.
    pub(crate) is_open: bool,
    /// How often its queue was made new.
    pub(crate) life: u32,
    /// Room of the queue.
    requests: usize,
    stage: PostingBatch,
    /// Requests are numbered from one on in each life: the next one, the last one for which the doorbell was rung, and the last one
    /// that is known to be done. The last one that reads.
    next: u64,
    rung: u64,
    done: u64,
    last_read: u64,
    /// The first request that failed, and the last one that came back.
    failed: Option<u64>,
    came_back: u64,
    /// Looks since something came back last.
    pub(crate) quiet_looks: u32,
    pub(crate) log: Log,
    /// Bytes of batches under way, and with how many there is no room for more.
    bytes: u64,
    bytes_max: u64,
    granted: u32,
    /// Where its messages lie in the outbox.
    first_slot: usize,
    /// Messages that were sent, and that the peer has heard; notes that were sent, and that it has taken.
    sent: u32,
    heard: u32,
    notes_sent: u32,
    notes_taken: u32,
    /// The generations of the counters that were named on this rail, by their places.
    names: Vec<Option<u32>>,
    /// A fence that is to be sent, once this request is done.
    fence: Option<(u64, u64)>,
    /// When something was done last.
    pub(crate) moved: Instant,
    /// Batches under way that nobody wants any more, and since when that is known.
    pub(crate) abandoned: usize,
    pub(crate) abandoned_since: Option<Instant>,
    /// What the peer has said about the end of this life, and of the next, which it may have begun before this side has; and how much
    /// of its log has to be known before one begins.
    pub(crate) peer_ended: Option<QueueEnded>,
    pub(crate) next_ended: Option<QueueEnded>,
    pub(crate) peer_revision: u64,
    pub(crate) waits_for_news: bool,
    /// How far this engine's log had come when the peer was told of an end, and up to where it was vouched that nothing old lands.
    pub(crate) told_revision: u64,
    pub(crate) vouched: u64,
    /// Lives one after the other in which the peer was not heard, but for those that were ended on purpose, as this one will be.
    pub(crate) fruitless: u32,
    pub(crate) is_on_purpose: bool,
    /// Nobody has said why this life ends; and so many before it ended like that, one after the other, in which no batch did.
    pub(crate) is_unexplained: bool,
    unexplained: u32,
    /// Its port is down, or its adapter is gone, or does not do what adapters do.
    pub(crate) is_down: bool,
    pub(crate) is_dead: bool,
    /// It is never connected again: on one side there is no queue for it any more.
    pub(crate) is_out: bool,
}

impl Rail {
    pub(crate) fn new(parts: RailParts, first_slot: usize, now: Instant) -> Self {
        let RailParts { index, queue, attr, connecting, requests, grants, granted } = parts;
        // Numbers go round, and both sides size their memory by these.
        for credits in [grants, granted] {
            assert!(credits.is_power_of_two() && (4..=GRANTS_MAX).contains(&credits), "{credits} credits of a queue");
        }
        Self {
            index,
            number: queue.number(),
            queue: Place::Here(queue),
            attr,
            connecting,
            standing: Standing::New,
            is_greeted: false,
            is_open: false,
            life: 0,
            requests,
            stage: PostingBatch::with_room(requests),
            next: 1,
            rung: 0,
            done: 0,
            last_read: 0,
            failed: None,
            came_back: 0,
            quiet_looks: 0,
            log: Log::with_room(requests + granted as usize),
            bytes: 0,
            bytes_max: BYTES_UNDER_WAY_MAX,
            granted,
            first_slot,
            sent: 0,
            heard: 0,
            notes_sent: 0,
            notes_taken: 0,
            names: Vec::new(),
            fence: None,
            moved: now,
            abandoned: 0,
            abandoned_since: None,
            peer_ended: None,
            next_ended: None,
            peer_revision: 0,
            waits_for_news: false,
            told_revision: 0,
            vouched: 0,
            fruitless: 0,
            is_on_purpose: false,
            is_unexplained: false,
            unexplained: 0,
            is_down: false,
            is_dead: false,
            is_out: false,
        }
    }

    /// Its queue was told to connect.
    pub(crate) fn is_begun(&mut self, connected: Connected, now: Instant) {
        self.standing = match connected {
            Connected::Yes => Standing::Greeting(now),
            Connected::NotYet => Standing::Meeting(now),
        };
    }

    /// Has its queue connected for the life that it is in.
    pub(crate) fn have_connected(&mut self, connect: &dyn Connect) {
        if let Place::Here(queue) = std::mem::replace(&mut self.queue, Place::Lost) {
            let (job, away) = Job::new(queue, self.connecting);
            self.queue = Place::Away(away);
            self.standing = Standing::Connecting;
            // Queues that meet wait for nobody in the call.
            if self.connecting.cm.is_some() { job.run() } else { connect.connect(job) }
        }
    }

    /// Whether its queue is connected by now, if that is known.
    pub(crate) fn is_connected(&mut self) -> Result<Option<Result<Connected, AdapterError>>, Lost> {
        let Place::Away(away) = &self.queue else { return Err(Lost) };
        match away.look() {
            Ok(None) => Ok(None),
            Ok(Some((queue, connected))) => {
                self.queue = Place::Here(queue);
                Ok(Some(connected))
            }
            Err(lost) => {
                self.queue = Place::Lost;
                Err(lost)
            }
        }
    }

    /// The life for which its queue is being connected is over before it has begun: the peer has ended it, or waits to be told how far
    /// this engine's log has come.
    pub(crate) fn is_overtaken(&self) -> bool {
        self.peer_ended.is_some() || self.told_revision < self.vouched
    }

    /// Its queue comes back at once if nobody has begun to connect it. Returns whether it has.
    pub(crate) fn call_back(&mut self) -> bool {
        let Place::Away(away) = &self.queue else { return false };
        let Some(queue) = away.call_back() else { return false };
        self.queue = Place::Here(queue);
        true
    }

    /// It was not to be connected, maybe in part: it is tried again later.
    pub(crate) fn is_refused(&mut self, now: Instant) -> Result<(), AdapterError> {
        let is_new = self.make_queue_new();
        self.standing = Standing::Idle(now + pause(self.fruitless));
        self.fruitless += 1;
        is_new
    }

    /// How far its queue has come that was not connected at once.
    pub(crate) fn met(&mut self) -> Result<Connected, AdapterError> {
        if let Place::Here(queue) = &mut self.queue { queue.cm_state() } else { Ok(Connected::NotYet) }
    }

    /// Who calls with this token is for its queue.
    pub(crate) fn expect(&mut self, token: Token) {
        if let Place::Here(queue) = &mut self.queue {
            queue.expect(token);
        }
    }

    /// Its queue is broken off. One that is being connected has nothing under way.
    pub(crate) fn break_queue(&mut self) -> Result<(), AdapterError> {
        if let Place::Here(queue) = &mut self.queue { queue.set_error() } else { Ok(()) }
    }

    /// Its queue is made new. One that is being connected is given up, and ends when that call has.
    pub(crate) fn make_queue_new(&mut self) -> Result<(), AdapterError> {
        match &mut self.queue {
            Place::Here(queue) => queue.reset(),
            Place::GivenBack => Ok(()),
            Place::Away(_) | Place::Lost => {
                self.queue = Place::Lost;
                Ok(())
            }
        }
    }

    /// Its queue goes back to its adapter, and what it is called by is nobody's any more. One that is being connected is given up.
    pub(crate) fn give_queue_back(&mut self) -> Result<(), AdapterError> {
        let Place::Here(queue) = std::mem::replace(&mut self.queue, Place::GivenBack) else { return Ok(()) };
        queue.destroy().map_err(|NotDestroyed { queue, error }| {
            self.queue = Place::Here(queue);
            error
        })
    }

    /// The number of its queue, if it still has one.
    pub(crate) fn queue_number(&self) -> Option<u32> {
        (!matches!(self.queue, Place::GivenBack)).then_some(self.number)
    }

    /// Room for requests of batches.
    pub(crate) fn room(&self) -> usize {
        (self.requests - self.under_way()).saturating_sub(REQUESTS_KEPT)
    }

    fn under_way(&self) -> usize {
        (self.next - 1 - self.done) as usize
    }

    /// Whether so many bytes may set off.
    pub(crate) fn takes(&self, bytes: u64) -> bool {
        self.standing == Standing::Up && self.room() > 0 && (self.bytes == 0 || self.bytes + bytes <= self.bytes_max)
    }

    /// Whether it may have something on its way to the peer: what a life carried has landed or goes again elsewhere when both sides
    /// have ended it, and in the next nothing is posted before the peer was heard.
    pub(crate) fn may_carry(&self) -> bool {
        match self.standing {
            Standing::Up | Standing::Breaking(_) | Standing::Stuck(_) | Standing::Ended(_) => true,
            Standing::New | Standing::Idle(_) | Standing::Connecting | Standing::Meeting(_) | Standing::Greeting(_) => {
                false
            }
        }
    }

    /// Bytes of batches under way.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Messages that may be sent before the peer has confirmed one.
    pub(crate) fn granted(&self) -> u32 {
        self.granted
    }

    /// How many messages the peer has heard.
    pub(crate) fn heard(&self) -> u32 {
        self.heard
    }

    /// How many more messages may be sent.
    fn window(&self) -> u32 {
        self.granted - self.sent.wrapping_sub(self.heard)
    }

    /// Whether there is room for a message that is no answer. The last one is kept for answers: two sides that wait for each other
    /// both have one.
    pub(crate) fn takes_message(&self) -> bool {
        self.standing == Standing::Up && self.window() > 1 && self.room() > 0
    }

    /// Whether there is room for a proof, for which only the peer of a cancelled transfer waits: one message more is left to others.
    pub(crate) fn takes_proof(&self) -> bool {
        self.takes_message() && self.window() > 2
    }

    /// Whether there is room for a note at the peer.
    pub(crate) fn takes_note(&self) -> bool {
        self.notes_sent.wrapping_sub(self.notes_taken) < self.granted
    }

    /// Whether there is room for an answer.
    pub(crate) fn takes_answer(&self) -> bool {
        self.standing == Standing::Up && self.window() > 0 && self.under_way() < self.requests
    }

    /// Stages spans, as many as there is room for. Returns how many those were, and their bytes.
    pub(crate) fn move_spans(&mut self, ends: &Ends, spans: &[penstock_core::Span]) -> (usize, u64) {
        let (count, bytes, requests) =
            self.stage.move_spans(ends, spans, (self.id(self.next), self.room()), &self.attr);
        self.next += requests as u64;
        (count, bytes)
    }

    /// What was staged just now is this batch.
    pub(crate) fn carry(&mut self, id: OpId, bytes: u64, reads: bool) {
        self.bytes += bytes;
        self.log.push(self.next - 1, MessageKind::Batch(id));
        if reads {
            self.last_read = self.next - 1;
        }
    }

    /// The name of a request: its number in this life of the queue.
    fn id(&self, number: u64) -> u64 {
        u64::from(self.life & LIVES_NAMED) << NUMBER_BITS | number
    }

    /// The number of the request of this name, if it is one of this life.
    pub(crate) fn number_of(&self, id: u64) -> Option<u64> {
        let number = id & ((1 << NUMBER_BITS) - 1);
        (id == self.id(number) && number > self.done && number < self.next).then_some(number)
    }

    /// Says something in a message of its own.
    pub(crate) fn say(
        &mut self,
        say: Say,
        body: &Body<'_>,
        head: Head,
        slab: &RegisteredSlots,
        scratch: &mut [u8; MESSAGE_BYTES_MAX],
    ) {
        let bytes = encode(&head, body, scratch);
        let slot = self.first_slot + (self.sent % self.granted) as usize;
        slab.put(slot, &scratch[..bytes]);
        let sge = slab.sge(usize::from(self.index), slot, bytes);
        let request = SendRequest {
            id: self.id(self.next),
            opcode: Opcode::Send,
            sges: 1,
            signalled: true,
            inline: bytes <= self.attr.inline_max,
        };
        self.stage.push(request, Some(sge));
        self.next += 1;
        self.sent(say);
        if let Body::Notify(notification) = body {
            let takes_room = notification.note.is_some_and(|note| note.lines() > 0);
            self.notes_sent = self.notes_sent.wrapping_add(u32::from(takes_room));
            if let Some(counter) = notification.counter {
                self.name(counter);
            }
        }
    }

    /// Says something without memory: inside of the batch that was staged last, if it may be and there is one, else behind all.
    /// It also tells how many messages were heard.
    pub(crate) fn say_immediately(&mut self, say: Say, says: Says, heard: u32, inside_of: impl FnOnce(OpId) -> bool) {
        let immediate = Immediate::new(self.life, (self.sent, heard), says).encode();
        let last = self.log.last_of(self.next - 1);
        let is_inside = matches!(last, Some(MessageKind::Batch(id)) if self.stage.len() > 0 && inside_of(id));
        match self.stage.last_mut() {
            Some(SendRequest { opcode: kind, .. }) if is_inside && let Opcode::Write { address, key } = *kind => {
                *kind = Opcode::WriteWithImm { address, key, immediate };
            }
            _ => {
                let kind = Opcode::WriteWithImm { address: 0, key: 0, immediate };
                let request =
                    SendRequest { id: self.id(self.next), opcode: kind, sges: 0, signalled: true, inline: false };
                self.stage.push(request, None);
                self.next += 1;
            }
        }
        self.sent(say);
    }

    fn sent(&mut self, say: Say) {
        self.sent = self.sent.wrapping_add(1);
        self.log.push(self.next - 1, MessageKind::Said(say));
    }

    /// The life and the number of the next message.
    pub(crate) fn numbers(&self) -> (u8, u32) {
        (low_life(self.life), self.sent)
    }

    fn name(&mut self, counter: CounterRef) {
        let place = counter.index as usize;
        if self.names.len() <= place {
            self.names.resize((place + 1).next_multiple_of(64), None);
        }
        self.names[place] = Some(counter.generation);
    }

    /// Whether the peer knows this counter by its place alone.
    pub(crate) fn has_named(&self, counter: CounterRef) -> bool {
        self.names.get(counter.index as usize).copied().flatten() == Some(counter.generation)
    }

    /// Rings the doorbell, if there is anything. On an error the queue is to be broken off.
    pub(crate) fn ring(&mut self) -> Result<(), AdapterError> {
        if self.stage.len() == 0 {
            return Ok(());
        }
        let (requests, sges) = self.stage.lists();
        let posted = match &mut self.queue {
            Place::Here(queue) => queue.post(requests, sges),
            // What is staged is staged on a queue that is connected.
            Place::Away(_) | Place::Lost | Place::GivenBack => Ok(()),
        };
        let unposted = match &posted {
            Ok(()) => 0,
            Err(failed) => requests.len().saturating_sub(failed.posted),
        };
        self.rung = self.next - 1 - unposted as u64;
        self.stage.clear();
        posted.map_err(|failed| failed.error)
    }

    /// The adapter has done all requests up to this one. Returns whether that is news: behind one that failed nothing is done.
    pub(crate) fn has_done(&mut self, number: u64, now: Instant) -> bool {
        self.quiet_looks = 0;
        let is_news = self.failed.is_none_or(|failed| number < failed);
        if is_news {
            (self.done, self.moved) = (number, now);
        }
        is_news
    }

    /// A request has come back. Returns whether it is the first: all before it are done.
    pub(crate) fn has_failed(&mut self, number: u64) -> bool {
        self.quiet_looks = 0;
        self.came_back = self.came_back.max(number);
        let is_first = self.failed.is_none();
        self.failed.get_or_insert(number);
        is_first
    }

    /// Whether all that was posted is done or has come back.
    pub(crate) fn is_drained(&self) -> bool {
        self.done.max(self.came_back) >= self.rung
    }

    /// Breaks the queue, if it is connected. What was not posted yet is not posted any more.
    pub(crate) fn break_off(&mut self) {
        if !matches!(self.standing, Standing::Meeting(_) | Standing::Greeting(_) | Standing::Up) {
            return;
        }
        if let Err(error) = self.break_queue() {
            tracing::warn!(%error, "a queue cannot be broken off; its life ends all the same");
        }
        self.standing = Standing::Breaking(None);
        self.quiet_looks = 0;
        self.stage.clear();
    }

    /// Both sides have ended its life: the next begins with what the peer has heard, and with nothing under way.
    pub(crate) fn begin_again(&mut self, ended: &QueueEnded, notes_lost: u32, at: Instant) {
        self.stage.clear();
        (self.next, self.rung, self.done, self.last_read) = (1, 0, 0, 0);
        (self.failed, self.came_back, self.bytes) = (None, 0, 0);
        (self.abandoned, self.abandoned_since) = (0, None);
        self.sent = self.heard;
        self.notes_sent = self.notes_sent.wrapping_sub(notes_lost);
        self.names.clear();
        self.fence = self.fence.map(|(revision, _)| (revision, 0));
        self.life = self.life.wrapping_add(1);
        (self.connecting.there.queue, self.connecting.there.first_packet) = (ended.queue, ended.first_packet);
        if let (Some(cm), Some(token)) = (&mut self.connecting.cm, ended.token) {
            cm.token = token;
        }
        self.is_out |= ended.queue == NO_QUEUE;
        self.peer_revision = self.peer_revision.max(ended.revision);
        self.peer_ended = self.next_ended.take();
        (self.is_greeted, self.is_on_purpose, self.is_unexplained) = (false, false, false);
        self.standing = Standing::Idle(at);
    }

    /// A batch is over.
    pub(crate) fn unload(&mut self, bytes: u64, is_abandoned: bool) {
        self.bytes -= bytes;
        self.abandoned -= usize::from(is_abandoned);
        if self.unexplained > 0 {
            self.is_trusted_again();
        }
    }

    /// One more life has ended and nobody knows why. Answers the batch that was alone under way. After a few of them there is room
    /// for one batch at a time, so that it is seen which one it is.
    pub(crate) fn is_suspicious(&mut self) -> Option<OpId> {
        self.unexplained = self.unexplained.saturating_add(1);
        if self.unexplained >= UNEXPLAINED_MAX {
            self.bytes_max = 0;
        }
        let mut batches = self.log.batches();
        batches.next().filter(|_| batches.next().is_none())
    }

    #[cold]
    fn is_trusted_again(&mut self) {
        (self.unexplained, self.bytes_max) = (0, BYTES_UNDER_WAY_MAX);
    }

    /// The peer has heard and taken so much. Returns how many messages are heard now that were not before, if it can have.
    pub(crate) fn hear(&mut self, heard: u32, taken: Option<u32>) -> Option<u32> {
        let more = heard.wrapping_sub(self.heard);
        let more_taken = taken.map_or(0, |taken| taken.wrapping_sub(self.notes_taken));
        if more > self.sent.wrapping_sub(self.heard) || more_taken > self.notes_sent.wrapping_sub(self.notes_taken) {
            return None;
        }
        (self.heard, self.notes_taken) = (heard, self.notes_taken.wrapping_add(more_taken));
        Some(more)
    }

    /// A fence is to be sent behind all that was posted.
    pub(crate) fn owe_fence(&mut self, revision: u64) {
        let revision = self.fence.map_or(revision, |(before, _)| revision.max(before));
        self.fence = Some((revision, self.last_read));
    }

    /// The fence that is to be sent, if it can be now. What is read may come later than what is said behind it, so reads are waited for.
    pub(crate) fn take_fence(&mut self) -> Option<u64> {
        let (_, after) = self.fence?;
        if after > self.done || !self.takes_message() {
            return None;
        }
        self.fence.take().map(|(revision, _)| revision)
    }
}
