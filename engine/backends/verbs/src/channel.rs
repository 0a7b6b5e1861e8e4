//! A channel: the rails between one worker here and one worker there.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use penstock_core::limits::SPANS_PER_POST;
use penstock_core::{Cause, Direction};
use penstock_transport::lane::CancelledOp;
use penstock_transport::{
    Batch, Failure, LaneEvents, LaneFault, NotifyPosted, NotifyRequest, PostError, Posted, RdmaMemory,
    TargetMediatedMemory,
};

use crate::adapter::{AdapterError, Connected, Wc, WorkCompletion};
use crate::again::Lot;
use crate::connecting::Connect;
use crate::context::Context;
use crate::inbound::{CORRUPT, Due, InboundMessages};
use crate::log::Say;
use crate::message::{
    Body, Immediate, MESSAGE_BYTES_MAX, MessageError, NotifyMessage, PROOFS, RailHello, Says, low_life, parse,
};
use crate::op::{Kind, Op, OpId, Ops};
use crate::pairing::RAILS_MAX;
use crate::rail::{REQUESTS_KEPT, Rail, RailParts, Standing};
use crate::repair::is_given_up;
use crate::slab::RegisteredSlots;
use crate::stage::{Ends, REQUEST_BYTES_MAX};
use crate::stripe::{Rails, Stripe};

pub(crate) struct Channel {
    pub(crate) number: u16,
    pub(crate) rails: Vec<Rail>,
    pub(crate) inbox: InboundMessages,
    pub(crate) ops: Ops,
    pub(crate) stripe: Stripe,
    outbox: RegisteredSlots,
    scratch: Box<[u8; MESSAGE_BYTES_MAX]>,
    /// Spans of one batch: whatever rail it has to go over later, its queue takes them.
    spans_max: usize,
    /// The number of the next notification that waits for marks.
    pub(crate) next_number: u16,
    /// What has to go again.
    pub(crate) lots: Vec<Lot>,
    /// What has ended and was not reported yet.
    pub(crate) over: Vec<Over>,
    /// Rails whose queue was made new, of which the CQ was not told yet.
    pub(crate) made_new: Vec<u8>,
    /// How long it stands without any rail.
    pub(crate) patience: Duration,
    /// When the channel was looked at last, and since when no rail is up.
    pub(crate) looked_at: Instant,
    pub(crate) cut_off_since: Option<Instant>,
}

/// What has ended and was not reported yet.
pub(crate) struct Over {
    pub(crate) completion_id: u64,
    pub(crate) transfer: u64,
    pub(crate) result: Result<u64, Failure>,
}

/// How often whoever joins a session looks whether a first rail is connected.
const FIRST_LOOKS: Duration = Duration::from_micros(200);

impl Channel {
    /// Of these rails. In the outbox there is a slot for each message that may be under way, registered with the rails' adapters in their order.
    pub(crate) fn new(
        number: u16,
        rails: Vec<RailParts>,
        outbox: RegisteredSlots,
        patience: Duration,
        now: Instant,
    ) -> Self {
        assert!((1..=RAILS_MAX).contains(&rails.len()), "a channel of {} rails", rails.len());
        let inbox = InboundMessages::new(rails.iter().map(|parts| parts.grants));
        let room = rails.iter().map(|parts| parts.requests.saturating_sub(REQUESTS_KEPT)).min().unwrap_or(0);
        assert!(room > 0, "a queue takes a few requests more than are kept for messages");
        let stripe = Stripe::new(rails.len());
        let mut first_slot = 0;
        let rails = rails.into_iter().map(|parts| {
            let granted = parts.granted as usize;
            let rail = Rail::new(parts, first_slot, now);
            first_slot += granted;
            rail
        });
        Self {
            number,
            rails: rails.collect(),
            inbox,
            ops: Ops::default(),
            stripe,
            outbox,
            scratch: Box::new([0; MESSAGE_BYTES_MAX]),
            spans_max: room.min(SPANS_PER_POST),
            next_number: 0,
            lots: Vec::new(),
            over: Vec::new(),
            made_new: Vec::new(),
            looked_at: now,
            patience,
            cut_off_since: None,
        }
    }

    /// Has all rails connected. They take posts once the peer was heard on them.
    pub(crate) fn connect(&mut self, connect: &dyn Connect) {
        self.rails.iter_mut().for_each(|rail| rail.have_connected(connect));
    }

    /// Waits, but not longer than until then, for a rail that is connected; an error if all are refused. Rails that are refused are tried
    /// again, and those that the network lets wait come later.
    pub(crate) fn is_connected(&mut self, until: Instant, connect: &dyn Connect) -> Result<(), AdapterError> {
        let mut refused = None;
        loop {
            connect.look();
            for place in 0..self.rails.len() {
                if self.rails[place].standing == Standing::Connecting {
                    refused = self.is_begun(place).or(refused);
                }
            }
            let stands = |is: fn(&Standing) -> bool| self.rails.iter().any(|rail| is(&rail.standing));
            let is_any = stands(|standing| !matches!(standing, Standing::Connecting | Standing::Idle(_)));
            let is_waited_for = stands(|standing| *standing == Standing::Connecting);
            match refused {
                Some(error) if !is_any && !is_waited_for => return Err(error),
                _ if is_any || !is_waited_for || Instant::now() >= until => return Ok(()),
                _ => thread::sleep(FIRST_LOOKS),
            }
        }
    }

    /// Greets the peer on a rail that is connected now for the first time. Answers why one is not.
    fn is_begun(&mut self, place: usize) -> Option<AdapterError> {
        let rail = &mut self.rails[place];
        // A queue that is lost is told by the next look.
        match rail.is_connected().ok()?? {
            Ok(connected) => {
                rail.is_begun(connected, Instant::now());
                let greeted = if connected == Connected::Yes { self.say_hello(place) } else { Ok(()) };
                greeted.inspect_err(|_| self.rails[place].break_off()).err()
            }
            Err(error) => {
                match rail.is_refused(Instant::now()) {
                    Ok(()) => self.made_new.push(rail.index),
                    Err(error) => is_given_up(rail, &error),
                }
                Some(error)
            }
        }
    }

    /// Says on a rail that is connected who is there.
    pub(crate) fn say_hello(&mut self, rail: usize) -> Result<(), AdapterError> {
        let (channel, grants) = (self.number, self.inbox.rails[rail].grants());
        self.say(rail, Say::Hello, &Body::Hello(RailHello { channel, rail: rail as u8, grants }));
        self.rails[rail].ring()
    }

    /// Takes as many of the spans as there is room for.
    pub(crate) fn post(
        &mut self,
        batch: &Batch<'_>,
        memory: &Arc<RdmaMemory>,
        local_keys: &[u32],
    ) -> Result<Posted, PostError> {
        let (fitting, _) = batch.fitting(REQUEST_BYTES_MAX);
        let spans = &batch.spans[..fitting.min(self.spans_max)];
        batch.check_bounds(spans, &TargetMediatedMemory { key: memory.key, bytes: memory.bytes })?;
        let chosen = self.stripe.choose(&self.rails, batch.transfer, batch.transfer_bytes);
        // What has to go again goes first.
        let Some(rail) = chosen.filter(|_| self.lots.is_empty()) else { return Err(PostError::Full) };
        let bytes = spans.iter().map(|span| span.len).sum();
        if !self.rails[rail].takes(bytes) {
            return Err(PostError::Full);
        }
        let (Some(&local), Some(&remote)) = (local_keys.get(rail), memory.rkeys.get(rail)) else {
            return Err(PostError::Refused(Cause::NoPath));
        };
        let ends = Ends {
            direction: batch.direction,
            local: (batch.local.base_address(), local),
            remote: (memory.iova, remote),
            is_host: batch.local.host().is_some(),
        };
        let (count, bytes) = self.rails[rail].move_spans(&ends, spans);
        let id = self.ops.take_batch(batch, memory, local_keys, (count, bytes));
        self.ops[id].rail = rail;
        self.rails[rail].carry(id, bytes, batch.direction == Direction::Read);
        self.stripe.carries(batch.transfer, rail, bytes);
        Ok(Posted::Accepted(count))
    }

    /// Tells the peer what follows a transfer, behind what was posted of it.
    pub(crate) fn notify(&mut self, arrival: &NotifyRequest<'_>) -> Result<NotifyPosted, PostError> {
        // What is read is here when the adapter says so, which no order of messages says; and of what has failed nothing is told.
        let is_its = |over: &Over| over.transfer == arrival.transfer && over.result.is_err();
        if self.ops.reads(arrival.transfer) || !self.lots.is_empty() || self.over.iter().any(is_its) {
            return Err(PostError::Full);
        }
        let carried = self.carried(arrival.transfer, arrival.transfer_bytes);
        let takes = |&rail: &usize| {
            let rail = &self.rails[rail];
            rail.takes_message() && (arrival.note.is_none_or(|note| note.lines() == 0) || rail.takes_note())
        };
        let carriers = (0..self.rails.len()).filter(|rail| carried & 1 << rail != 0);
        let home = if carried == 0 {
            // Nothing binds it to a rail: one that has room is as good as its own.
            let own = self.stripe.choose(&self.rails, arrival.transfer, 0).ok_or(PostError::Full)?;
            (own..self.rails.len()).chain(0..own).find(takes)
        } else {
            carriers.clone().rev().find(takes)
        };
        let home = home.ok_or(PostError::Full)?;
        let others = carriers.filter(move |rail| *rail != home);
        if !others.clone().all(|rail| self.rails[rail].takes_message()) {
            return Err(PostError::Full);
        }
        let id = self.ops.take_tell(arrival);
        let marks = others.clone().count() as u8;
        let op = &mut self.ops[id];
        (op.rail, op.marks, op.number) = (home, marks, self.next_number);
        if marks > 0 {
            self.next_number = (self.next_number + 1) % PROOFS;
        }
        self.ops[id].unheard = 1 + marks;
        for rail in others {
            self.mark(rail, id);
        }
        self.tell(home, id);
        Ok(NotifyPosted::Accepted)
    }

    /// The rails on which bytes of a transfer of so many may be under way.
    pub(crate) fn carried(&self, transfer: u64, whole: u64) -> Rails {
        // A rail that is out has nothing of it, also if nobody remembers which it used.
        let carry = self.rails.iter().enumerate().filter(|(_, rail)| rail.may_carry());
        let may_carry = carry.fold(0, |rails, (rail, _)| rails | 1 << rail);
        self.stripe.carried(transfer, whole) & may_carry
    }

    /// Says on this rail that a transfer is there.
    pub(crate) fn tell(&mut self, rail: usize, id: OpId) {
        if self.ops[id].is_proof {
            return self.say_for_proof(rail, id);
        }
        let Self { rails, inbox, ops, outbox, scratch, .. } = self;
        let (op, rail_here) = (&ops[id], &mut rails[rail]);
        let by_place = op.counter.filter(|counter| rail_here.has_named(*counter) && op.marks == 0 && op.note.is_none());
        if let Some(counter) = by_place {
            let is_its = |batch: OpId| ops[batch].transfer == op.transfer;
            let heard = inbox.rails[rail].tell_immediately();
            return rail_here.say_immediately(Say::Tell(id), Says::Count(counter.index as u16), heard, is_its);
        }
        let notification = NotifyMessage { number: op.number, marks: op.marks, counter: op.counter, note: op.said() };
        let head = inbox.rails[rail].tell(rail_here.numbers());
        rail_here.say(Say::Tell(id), &Body::Notify(notification), head, outbox, scratch);
    }

    /// Marks on this rail what is told on another.
    pub(crate) fn mark(&mut self, rail: usize, id: OpId) {
        let Self { rails, inbox, ops, .. } = self;
        let op = &ops[id];
        let is_its = |batch: OpId| ops[batch].transfer == op.transfer;
        let heard = inbox.rails[rail].tell_immediately();
        rails[rail].say_immediately(Say::Mark(id), Says::Mark(op.number), heard, is_its);
    }

    pub(crate) fn say(&mut self, rail: usize, say: Say, body: &Body<'_>) {
        let Self { rails, inbox, outbox, scratch, .. } = self;
        let head = inbox.rails[rail].tell(rails[rail].numbers());
        rails[rail].say(say, body, head, outbox, scratch);
    }

    pub(crate) fn flush(&mut self) {
        for rail in &mut self.rails {
            if let Err(error) = rail.ring() {
                tracing::warn!(%error, rail = rail.attr.name, "a card does not take what is posted");
                rail.is_unexplained = true;
                rail.break_off();
            }
        }
    }

    /// One completion of a rail's queue; `message` is what came.
    pub(crate) fn done(
        &mut self,
        rail: u8,
        done: &WorkCompletion,
        message: &[u8],
        context: &Context<'_>,
        events: &mut dyn LaneEvents,
    ) -> Result<(), LaneFault> {
        let rail = usize::from(rail);
        match done.result {
            Wc::Send => {
                if let Some(number) = self.rails[rail].number_of(done.id) {
                    self.has_done(rail, number, context, events);
                }
                Ok(())
            }
            Wc::Recv { immediate, .. } => self.came(rail, immediate, message, context, events),
            Wc::Failed(status) => {
                if let Some(number) = self.rails[rail].number_of(done.id) {
                    self.has_failed(rail, number, status, context, events);
                }
                Ok(())
            }
            Wc::Unused => Ok(()),
        }
    }

    /// The adapter has done all requests up to this one.
    pub(crate) fn has_done(&mut self, rail: usize, number: u64, context: &Context<'_>, events: &mut dyn LaneEvents) {
        if !self.rails[rail].has_done(number, context.now) {
            return;
        }
        while let Some(id) = self.rails[rail].log.next_done(number) {
            let op = &self.ops[id];
            self.rails[rail].unload(op.bytes, op.is_abandoned);
            self.end(id, events);
        }
    }

    fn end(&mut self, id: OpId, events: &mut dyn LaneEvents) {
        events.completed(self.ops[id].completion_id, self.ops[id].result());
        self.ops.give_back(id);
    }

    /// A message has come.
    fn came(
        &mut self,
        rail: usize,
        immediate: Option<u32>,
        message: &[u8],
        context: &Context<'_>,
        events: &mut dyn LaneEvents,
    ) -> Result<(), LaneFault> {
        let life = low_life(self.rails[rail].life);
        let expected = self.inbox.rails[rail].heard();
        // What comes after the peer was told how much came is said again. An adapter that is being connected may take the peer's greeting
        // before the call has returned.
        if matches!(self.rails[rail].standing, Standing::New | Standing::Idle(_) | Standing::Ended(_)) {
            return Ok(());
        }
        let is_greeted = self.rails[rail].is_greeted;
        self.rails[rail].quiet_looks = 0;
        let Some(bits) = immediate else {
            let (head, body) = parse(message).map_err(garbled)?;
            if head.life != life {
                return Ok(()); // Of a life that is over, likewise.
            }
            if head.number != expected || is_greeted == matches!(body, Body::Hello(_)) {
                return Err(CORRUPT);
            }
            self.hear(rail, (head.heard, Some(head.taken), head.gone), events)?;
            return self.take(rail, &body, context, events);
        };
        let immediate = Immediate::parse(bits).map_err(garbled)?;
        if !immediate.has_life(self.rails[rail].life) {
            return Ok(());
        }
        if !immediate.has_number(expected) || !is_greeted {
            return Err(CORRUPT);
        }
        self.hear(rail, (immediate.heard_since(self.rails[rail].heard()), None, 0), events)?;
        let is_gone = match immediate.says {
            Says::Count(place) => !context.increment_counter(self.inbox.rails[rail].named(place).ok_or(CORRUPT)?),
            Says::Mark(number) => self.inbox.mark(number, context, events)?,
        };
        self.inbox.rails[rail].hear(is_gone, true)
    }

    /// What a message says beside its head.
    fn take(
        &mut self,
        rail: usize,
        body: &Body<'_>,
        context: &Context<'_>,
        events: &mut dyn LaneEvents,
    ) -> Result<(), LaneFault> {
        let (is_gone, is_wanted) = match body {
            Body::Hello(hello) => {
                self.greeted(rail, hello)?;
                (false, false)
            }
            Body::Answer => (false, false),
            Body::Notify(notification) => (self.inbox.notify(rail, notification, context, events)?, true),
            Body::Mark(number) => (self.inbox.mark(*number, context, events)?, true),
            Body::Forget(forgotten) => {
                self.inbox.forget(*forgotten, context, events)?;
                (false, true)
            }
            Body::Fence(revision) => {
                if *revision > context.here {
                    return Err(CORRUPT); // Nobody can have told it.
                }
                context.witness.heard(self.number, rail as u8, *revision);
                (false, false)
            }
        };
        self.inbox.rails[rail].hear(is_gone, is_wanted)
    }

    fn greeted(&mut self, rail: usize, hello: &RailHello) -> Result<(), LaneFault> {
        let is_meant = hello.channel == self.number && usize::from(hello.rail) == rail;
        if !is_meant || hello.grants != self.rails[rail].granted() {
            return Err(CORRUPT);
        }
        let rail = &mut self.rails[rail];
        (rail.is_greeted, rail.fruitless) = (true, 0);
        if let Standing::Greeting(_) = rail.standing {
            rail.standing = Standing::Up;
        }
        Ok(())
    }

    /// The peer has heard so many messages and taken so many notes, and these counters were gone.
    pub(crate) fn hear(
        &mut self,
        rail: usize,
        (heard, taken, gone): (u32, Option<u32>, u64),
        events: &mut dyn LaneEvents,
    ) -> Result<(), LaneFault> {
        let more = self.rails[rail].hear(heard, taken).ok_or(CORRUPT)?;
        for behind in (0..more).rev() {
            match self.rails[rail].log.next_heard() {
                Some(Say::Tell(id) | Say::Mark(id)) => self.is_told(id, gone >> behind & 1 == 1, events),
                Some(Say::Hello | Say::Answer | Say::Forget(_) | Say::Fence(_)) | None => {}
            }
        }
        Ok(())
    }

    /// One of the messages was heard that this takes.
    fn is_told(&mut self, id: OpId, is_gone: bool, events: &mut dyn LaneEvents) {
        let op = &mut self.ops[id];
        op.unheard -= 1;
        op.is_uncounted |= is_gone;
        match (op.unheard, op.is_withdrawn) {
            (0, false) => self.end(id, events),
            (0, true) => self.ops.give_back(id),
            _ => {}
        }
    }

    /// Delivers what waits, answers where an answer is waited for, and looks after rails that are not well. Returns whether to look
    /// again at once.
    pub(crate) fn poll(&mut self, context: &Context<'_>, events: &mut dyn LaneEvents) -> Result<bool, LaneFault> {
        self.looked_at = context.now;
        self.inbox.deliver_held(events);
        let mut looks_again = self.look_after(context, events)?;
        self.catch_up(context);
        if !self.lots.is_empty() {
            self.go_again(context);
        }
        let holds_notes = self.inbox.holds_notes();
        for rail in 0..self.rails.len() {
            if let Some(revision) = self.rails[rail].take_fence() {
                self.say(rail, Say::Fence(revision), &Body::Fence(revision));
            }
            match self.inbox.rails[rail].due(holds_notes) {
                Due::No => {}
                Due::Soon => looks_again = true,
                Due::Now if self.rails[rail].takes_answer() => self.say(rail, Say::Answer, &Body::Answer),
                Due::Now => {}
            }
        }
        self.flush();
        for Over { completion_id, result, .. } in self.over.drain(..) {
            events.completed(completion_id, result);
        }
        Ok(looks_again)
    }

    /// Gives up what goes under this token.
    pub(crate) fn cancel_op(&mut self, completion_id: u64) -> CancelledOp {
        if let Some(place) = self.over.iter().position(|over| over.completion_id == completion_id) {
            self.over.remove(place);
            return CancelledOp::Quiesced;
        }
        let is_it = |(_, op): &(OpId, &mut Op)| op.completion_id == completion_id && !op.is_withdrawn;
        let Some((id, op)) = self.ops.iter_mut().find(is_it) else { return CancelledOp::Quiesced };
        // Who asks again hears the same.
        let is_first = !std::mem::replace(&mut op.is_abandoned, true);
        let (kind, rail) = (op.kind, op.rail);
        if self.waits_to_go(id) {
            self.take_back(id);
            return CancelledOp::Quiesced;
        }
        match kind {
            Kind::Tell => CancelledOp::RemotePending,
            Kind::Write | Kind::Read => {
                self.rails[rail].abandoned += usize::from(is_first);
                CancelledOp::LocalPending
            }
        }
    }

    /// A fence of this revision follows all that was posted, on every rail.
    pub(crate) fn send_fence(&mut self, revision: u64) {
        self.rails.iter_mut().for_each(|rail| rail.owe_fence(revision));
    }

    /// The oldest revision of this engine's log that anything under way was posted at.
    pub(crate) fn oldest(&self) -> u64 {
        self.ops.oldest()
    }
}

fn garbled(error: MessageError) -> LaneFault {
    tracing::warn!(%error, "a message of the peer makes no sense");
    CORRUPT
}
