//! Lives of queues: how one ends on both sides, and how the next begins.
//!
//! ```text
//! up -> breaking   a request failed, the peer or the adapter says so, or it is cut off on purpose
//!       breaking -> ended    what was posted has come back; the queue is made new, and the peer is told how much came
//!                   ended -> idle    the peer has told the same: what it has not heard goes again
//!                            idle -> connecting -> greeting -> up    connected again, and the peer was heard
//!                            idle -> connecting -> meeting -> greeting -> up    the same by the connection manager, which takes a while
//! ```
//!
//! An adapter that has failed, or refuses to make a queue new, gets the queue back for good: that ends its life as well. The peer is told that
//! there is no next one, and neither side connects the rail again.
//!
//! Nothing is reported of what a broken rail had under way before both sides have ended its life, because until then something of it
//! may still land.

use std::time::{Duration, Instant};

use penstock_core::Cause;
use penstock_ring::gate::NOTHING;
use penstock_transport::{Failure, LaneEvents, LaneFault};

use crate::adapter::{AdapterError, AsyncEvent, Connected, Token, WcStatus};
use crate::again::Lot;
use crate::channel::Channel;
use crate::connecting::Lost;
use crate::context::Context;
use crate::ended::{NO_QUEUE, QueueEnded, next_first_packet};
use crate::inbound::CORRUPT;
use crate::log::{MessageKind, Say};
use crate::op::Kind;
use crate::rail::{Rail, Standing};

/// A rail on which a batch was given up and nothing is done for so long is cut off: whole batches take a fraction of this on the
/// slowest networks, and somebody waits for the memory.
const STUCK: Duration = Duration::from_millis(50);

/// What was posted on a broken queue comes back at once; an adapter that has not given all of it back by then does not.
const DRAIN: Duration = Duration::from_millis(200);

/// Looks that find nothing more of a broken queue, before it is made new: what an adapter may throw away then was seen before.
const DRAIN_LOOKS: u32 = 2;

/// How often it is looked whether a queue is connected. It takes a fraction of this unless the network is asked for the peer.
const CONNECTED: Duration = Duration::from_millis(1);

/// A peer that was told where to connect to does so at its worker's next turn.
const GREETING: Duration = Duration::from_secs(2);

/// The connection manager looks for address and way and asks, all within this; who waits to be called waits as long.
const MEETING: Duration = Duration::from_secs(7);

/// Pauses between looks at a rail that is being connected: adapters say by an event when it has come further, so this is for what is missed.
const MEETING_LOOKS: Duration = Duration::from_millis(50);

/// Pauses between tries of a rail over which the peer is not heard: the first, and the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(10);
const PAUSE_LONGEST: Duration = Duration::from_secs(1);

/// The pause after a life that was ended on purpose before the peer was heard: each costs both sides some calls of the system.
const PAUSE_ON_PURPOSE: Duration = Duration::from_millis(1);

/// A batch that is the first without an answer so often is not tried any more: perhaps it is what breaks the rails.
const TRIES: u8 = 3;

/// A batch that was alone on a rail so often when that broke for no reason that is known is not tried any more: some adapters say of what
/// they find wrong themselves only that it has come back. More often than what a peer does wrong breaks this side's queues in a row.
const BREAKS: u8 = 16;

impl Channel {
    /// Nothing old is to land over a rail any more: it is broken off on purpose, and repaired.
    pub(crate) fn cut(&mut self, rail: u8, context: &Context<'_>) {
        let its = &mut self.rails[usize::from(rail)];
        match its.standing {
            Standing::Meeting(_) | Standing::Greeting(_) | Standing::Up => {
                its.is_on_purpose = true;
                its.break_off();
            }
            Standing::New | Standing::Breaking(_) | Standing::Stuck(_) => {}
            // Nothing lands before the peer is greeted; and before it is, it is told of all that is vouched for here.
            Standing::Idle(_) | Standing::Connecting | Standing::Ended(_) => {
                its.vouched = its.vouched.max(context.here);
                context.witness.reset(self.number, rail, context.here);
            }
        }
    }

    /// Something has happened to a rail's adapter.
    pub(crate) fn event(&mut self, rail: u8, event: AsyncEvent, context: &Context<'_>) {
        let rail = &mut self.rails[usize::from(rail)];
        match event {
            AsyncEvent::PortDown => {
                rail.is_down = true;
                rail.break_off();
            }
            AsyncEvent::PortUp => {
                (rail.is_down, rail.fruitless) = (false, 0);
                if let Standing::Idle(at) = &mut rail.standing {
                    *at = (*at).min(context.now);
                }
            }
            AsyncEvent::Fatal => {
                rail.is_dead = true;
                rail.break_off();
            }
            AsyncEvent::QueueBroken(number) if number == rail.number => {
                rail.is_unexplained |= rail.standing == Standing::Up;
                rail.break_off();
            }
            AsyncEvent::CmProgress(number) if number == rail.number => {
                // One that has not met yet is looked at by itself.
                if matches!(rail.standing, Standing::Greeting(_) | Standing::Up)
                    && let Err(error) = rail.met()
                {
                    tracing::debug!(%error, "a rail is lost");
                    rail.break_off();
                }
            }
            AsyncEvent::QueueBroken(_) | AsyncEvent::CmProgress(_) | AsyncEvent::Changed => {}
        }
    }

    /// A request has come back.
    pub(crate) fn has_failed(
        &mut self,
        rail: usize,
        number: u64,
        status: WcStatus,
        context: &Context<'_>,
        events: &mut dyn LaneEvents,
    ) {
        if !self.rails[rail].has_failed(number) {
            return;
        }
        self.has_done(rail, number - 1, context, events);
        let its = &mut self.rails[rail];
        its.is_unexplained = status == WcStatus::Flushed && (its.is_unexplained || its.standing == Standing::Up);
        let what = its.log.of(number);
        if status != WcStatus::Flushed {
            tracing::warn!(%status, rail = self.rails[rail].attr.name, ?what, "a request has failed; the rail is repaired");
        }
        if let Some(MessageKind::Batch(id)) = what {
            let op = &mut self.ops[id];
            let (cause, is_its_own) = match status {
                WcStatus::Flushed => (None, false),
                WcStatus::Refused => (Some(Cause::AccessRefused), true),
                WcStatus::Memory => (Some(Cause::MemoryGone), true),
                WcStatus::Invalid => (Some(Cause::CardRefused), true),
                WcStatus::Silence => (Some(Cause::RailLost), false),
                WcStatus::NoReceive => (Some(Cause::ReceiverNotReady), false),
                WcStatus::Card => (Some(Cause::CardFailed), false),
                WcStatus::Other(_) => (Some(Cause::CardRefused), false),
            };
            op.tries += u8::from(cause.is_some());
            if let Some(cause) = cause.filter(|_| is_its_own || op.tries == TRIES) {
                op.failed = Some(Failure::on(rail as u8, cause));
            }
        }
        self.rails[rail].break_off();
    }

    /// A transport message of the peer's channel of the same number.
    pub(crate) fn on_transport_message(&mut self, words: &[u8], context: &Context<'_>) -> Result<(), LaneFault> {
        let ended = QueueEnded::parse(words).map_err(|error| {
            tracing::warn!(%error, "a transport message of the peer makes no sense");
            CORRUPT
        })?;
        let place = usize::from(ended.rail);
        let rail = self.rails.get_mut(place).ok_or(CORRUPT)?;
        // Of two that meet, the one that waits says what it is called by.
        let calls = rail.connecting.cm.is_some_and(|cm| cm.call.is_some());
        if ended.token.is_some() != calls {
            return Err(CORRUPT);
        }
        let is_ahead = rail.peer_ended.is_some();
        if is_ahead && rail.next_ended.is_none() && ended.life == rail.life.wrapping_add(1) {
            if !matches!(rail.standing, Standing::Ended(_)) {
                return Err(CORRUPT); // Nobody begins a life before both have ended the one before.
            }
            rail.next_ended = Some(ended);
            return Ok(());
        }
        if is_ahead || ended.life != rail.life {
            return Err(CORRUPT);
        }
        rail.peer_ended = Some(ended);
        match rail.standing {
            Standing::New => self.end_life(place, context),
            Standing::Meeting(_) | Standing::Greeting(_) | Standing::Up => {
                rail.break_off();
                Ok(())
            }
            // Whatever the peer says, lives follow one another at their pace.
            Standing::Idle(_)
            | Standing::Connecting
            | Standing::Breaking(_)
            | Standing::Stuck(_)
            | Standing::Ended(_) => Ok(()),
        }
    }

    /// Looks after rails that are not well. Returns whether to look again at once.
    pub(crate) fn look_after(&mut self, context: &Context<'_>, events: &mut dyn LaneEvents) -> Result<bool, LaneFault> {
        let now = context.now;
        let mut is_breaking = false;
        for place in 0..self.rails.len() {
            let rail = &mut self.rails[place];
            match rail.standing {
                Standing::New => {}
                Standing::Up => {
                    if rail.abandoned > 0 && rail.moved.max(*rail.abandoned_since.get_or_insert(now)) + STUCK <= now {
                        tracing::warn!(rail = rail.attr.name, "what was given up does not end; the rail is broken off");
                        rail.break_off();
                        is_breaking = true;
                    } else if rail.abandoned == 0 {
                        rail.abandoned_since = None;
                    }
                }
                Standing::Idle(at) if rail.peer_ended.is_some() && at <= now => {
                    self.end_life(place, context)?;
                    is_breaking = true;
                }
                Standing::Idle(_) if rail.peer_ended.is_some() || rail.is_out => {}
                // A life that has not begun, so that the peer is told that none will.
                Standing::Idle(_) if rail.is_dead => {
                    self.end_life(place, context)?;
                    is_breaking = true;
                }
                Standing::Idle(at) => {
                    // What is posted from then on is compared with what the peer had withdrawn when it ended the life before.
                    rail.waits_for_news = rail.peer_revision > context.told.replicated();
                    if at <= now && !rail.waits_for_news {
                        self.try_again(place, context)?;
                    }
                }
                Standing::Connecting => {
                    // The peer waits for a word about this life; if nobody has begun with it, nobody has to wait for that.
                    if (rail.is_overtaken() || rail.is_dead) && rail.call_back() {
                        rail.standing = Standing::Idle(now);
                        is_breaking = true;
                    } else {
                        context.connect.look();
                        is_breaking |= self.look_whether_connected(place, context)?;
                    }
                }
                Standing::Meeting(since) => is_breaking |= self.look_at_cm(place, since, now),
                Standing::Greeting(since) => {
                    if since + GREETING <= now {
                        rail.break_off();
                        is_breaking = true;
                    }
                }
                Standing::Breaking(since) => {
                    let since = since.unwrap_or(now);
                    rail.standing = Standing::Breaking(Some(since));
                    rail.quiet_looks += 1;
                    if (rail.is_drained() && rail.quiet_looks > DRAIN_LOOKS) || since + DRAIN <= now {
                        self.end_life(place, context)?;
                    }
                    is_breaking = true;
                }
                Standing::Stuck(at) => {
                    if at <= now {
                        self.end_life(place, context)?;
                        is_breaking = true;
                    }
                }
                Standing::Ended(since) => {
                    if let Some(ended) = rail.peer_ended {
                        self.settle(place, &ended, context, events)?;
                        is_breaking = true;
                    } else if since + self.patience <= now {
                        tracing::warn!(rail = rail.attr.name, "the peer does not say what became of a broken rail");
                        return Err(LaneFault(Cause::PeerLost));
                    }
                }
            }
        }
        if self.rails.iter().all(|rail| rail.is_out) {
            tracing::warn!("no rail to the peer has a queue on both sides any more");
            let is_own = self.rails.iter().any(|rail| rail.is_dead);
            return Err(LaneFault(if is_own { Cause::CardFailed } else { Cause::PeerLost }));
        }
        if self.rails.iter().any(|rail| rail.standing == Standing::Up) {
            self.cut_off_since = None;
        } else if *self.cut_off_since.get_or_insert(now) + self.patience <= now {
            tracing::warn!("no rail to the peer is left");
            return Err(LaneFault(Cause::PeerLost));
        }
        Ok(is_breaking)
    }

    /// Goes on with a rail that is being connected. Returns whether it is to be looked at again at once.
    fn look_at_cm(&mut self, place: usize, since: Instant, now: Instant) -> bool {
        let rail = &mut self.rails[place];
        let met = match rail.met() {
            Ok(Connected::NotYet) if now < since + MEETING => return false,
            Ok(Connected::NotYet) => {
                tracing::warn!(rail = rail.attr.name, "a rail was not connected in time; it is tried again");
                false
            }
            Ok(Connected::Yes) => {
                rail.standing = if rail.is_greeted { Standing::Up } else { Standing::Greeting(now) };
                let said = self.say_hello(place);
                said.inspect_err(|error| tracing::warn!(%error, "nothing can be said on a new rail")).is_ok()
            }
            Err(error) => {
                tracing::warn!(%error, rail = rail.attr.name, "a rail is not connected; it is tried again");
                false
            }
        };
        if !met {
            self.rails[place].break_off();
        }
        true
    }

    /// Sees to it that nothing of a rail's queue touches memory any more. Returns whether that is so.
    fn quieten(&mut self, place: usize, context: &Context<'_>) -> bool {
        let rail = &mut self.rails[place];
        let Some(number) = rail.queue_number() else { return true };
        if !rail.is_dead {
            match rail.make_queue_new() {
                Ok(()) => {
                    self.made_new.push(rail.index);
                    return true;
                }
                Err(error) => is_given_up(rail, &error),
            }
        }
        self.made_new.retain(|index| *index != rail.index);
        (context.forget)(rail.index, number);
        if let Err(error) = rail.give_queue_back() {
            tracing::error!(%error, "a queue is neither made new nor taken back, so nobody knows what it still does");
            return false;
        }
        rail.is_out = true;
        true
    }

    /// This side ends the life of a queue, and says so.
    fn end_life(&mut self, place: usize, context: &Context<'_>) -> Result<(), LaneFault> {
        if !self.quieten(place, context) {
            // What is under way on it stays so, here and at the peer.
            self.rails[place].standing = Standing::Stuck(context.now + PAUSE_LONGEST);
            return Ok(());
        }
        let rail = &mut self.rails[place];
        // Each life has a token of its own.
        let token = match &mut rail.connecting.cm {
            Some(cm) if cm.call.is_none() => {
                let token = Token::random().map_err(|error| no_token(&error))?;
                cm.token = token;
                rail.expect(token);
                Some(token)
            }
            _ => None,
        };
        rail.connecting.first_packet = next_first_packet(rail.connecting.first_packet);
        rail.standing = Standing::Ended(context.now);
        rail.told_revision = context.here;
        rail.is_on_purpose |= rail.peer_ended.is_some(); // The peer's, or its rail's failure, which counts there.
        rail.vouched = rail.vouched.max(context.here);
        let inbound = &mut self.inbox.rails[place];
        let ended = QueueEnded {
            rail: rail.index,
            life: rail.life,
            heard: inbound.heard(),
            gone: inbound.gone(),
            revision: context.here,
            queue: rail.queue_number().unwrap_or(NO_QUEUE),
            first_packet: rail.connecting.first_packet,
            token,
        };
        inbound.has_told();
        (context.say)(&ended.encode());
        context.witness.reset(self.number, ended.rail, ended.revision);
        Ok(())
    }

    /// Both sides have ended the life of a queue: nothing of it lands any more, and it is known what of it has.
    fn settle(
        &mut self,
        place: usize,
        ended: &QueueEnded,
        context: &Context<'_>,
        events: &mut dyn LaneEvents,
    ) -> Result<(), LaneFault> {
        self.hear(place, (ended.heard, None, ended.gone), events)?;
        // What was posted before a message that was heard has landed; it must not land again, since the peer may have used its
        // memory for something else by now. What was read behind it may be missing.
        let Self { rails, ops, lots, .. } = self;
        let rail = &mut rails[place];
        while let Some(id) = rail.log.next_landed(|id| ops[id].kind == Kind::Write) {
            events.completed(ops[id].completion_id, ops[id].result());
            ops.give_back(id);
        }
        if rail.is_unexplained
            && !(rail.is_on_purpose || rail.is_down || rail.is_dead)
            && let Some(id) = rail.is_suspicious()
        {
            let op = &mut ops[id];
            op.breaks = op.breaks.saturating_add(1);
            if op.breaks == BREAKS {
                tracing::warn!(rail = rail.attr.name, "a batch breaks its rail whenever it is tried; it ends");
                op.failed.get_or_insert(Failure::on(rail.index, Cause::CardRefused));
            }
        }
        let mut items = Vec::new();
        let mut notes_lost = 0;
        let mut fence = None;
        for what in rail.log.take() {
            match what {
                MessageKind::Said(Say::Hello | Say::Answer) => continue,
                MessageKind::Said(Say::Fence(revision)) => {
                    fence = Some(revision);
                    continue;
                }
                MessageKind::Said(Say::Tell(id)) => {
                    notes_lost += u32::from(ops[id].said().is_some_and(|note| note.lines() > 0))
                }
                MessageKind::Batch(_) | MessageKind::Said(Say::Mark(_) | Say::Forget(_)) => {}
            }
            items.push(what);
        }
        // What had begun to go again over this rail goes on behind what of it has to go once more.
        lots.retain_mut(|lot| {
            let is_its = lot.over == Some(place);
            if is_its {
                items.extend(lot.items.drain(..));
            }
            !is_its
        });
        let pause = match rail.fruitless {
            0 if rail.is_greeted && !rail.is_down => Duration::ZERO,
            0 if !rail.is_down => PAUSE_ON_PURPOSE,
            fruitless => pause(fruitless),
        };
        rail.fruitless += u32::from(!rail.is_on_purpose); // Until the peer is heard.
        rail.begin_again(ended, notes_lost, context.now + pause);
        if let Some(revision) = fence {
            rail.owe_fence(revision);
        }
        if rail.is_out {
            context.witness.reset(self.number, rail.index, NOTHING);
        }
        self.stripe.has_landed(place);
        if !items.is_empty() {
            self.lots.push(Lot { items: items.into(), revision: ended.revision, over: None });
        }
        Ok(())
    }

    /// Connects a rail again.
    fn try_again(&mut self, place: usize, context: &Context<'_>) -> Result<(), LaneFault> {
        if self.rails[place].told_revision < self.rails[place].vouched {
            self.rails[place].is_on_purpose = true;
            return self.end_life(place, context); // One that has not begun, so that the peer is told how far the log has come.
        }
        self.rails[place].have_connected(context.connect);
        self.look_whether_connected(place, context).map(drop)
    }

    /// Looks whether a rail that was to be connected again is. Returns whether to look after it at once.
    fn look_whether_connected(&mut self, place: usize, context: &Context<'_>) -> Result<bool, LaneFault> {
        let rail = &mut self.rails[place];
        match rail.is_connected() {
            Ok(None) => return Ok(false),
            Ok(Some(Ok(connected))) => rail.is_begun(connected, context.now),
            Ok(Some(Err(error))) => {
                tracing::warn!(%error, rail = rail.attr.name, "a rail cannot be connected again; it is tried later");
                match rail.is_refused(context.now) {
                    Ok(()) => self.made_new.push(rail.index),
                    Err(error) => is_given_up(rail, &error),
                }
                return Ok(rail.is_dead);
            }
            Err(Lost) => {
                tracing::error!(rail = rail.attr.name, "a queue was lost while it was connected");
                return Err(LaneFault(Cause::CardFailed));
            }
        }
        let is_overtaken = rail.is_overtaken();
        if is_overtaken || rail.is_dead {
            rail.is_on_purpose = is_overtaken;
            rail.break_off();
            return Ok(true);
        }
        if matches!(rail.standing, Standing::Meeting(_)) {
            return Ok(true);
        }
        if rail.is_greeted {
            rail.standing = Standing::Up;
        }
        if let Err(error) = self.say_hello(place) {
            let rail = &mut self.rails[place];
            tracing::warn!(%error, rail = rail.attr.name, "a rail that is connected again takes nothing");
            rail.break_off();
        }
        Ok(true)
    }

    /// When the channel is to be looked at although nothing happens.
    pub(crate) fn next_look(&self) -> Option<Instant> {
        let of_rail = |rail: &Rail| match rail.standing {
            Standing::New => None,
            Standing::Up if rail.abandoned > 0 => {
                Some(rail.abandoned_since.map_or(self.looked_at, |since| rail.moved.max(since) + STUCK))
            }
            Standing::Up => None,
            Standing::Idle(at) if rail.peer_ended.is_some() => Some(at),
            Standing::Idle(_) if rail.is_out => None,
            Standing::Idle(_) if rail.is_dead => Some(self.looked_at),
            Standing::Idle(_) if rail.waits_for_news => None,
            Standing::Idle(at) => Some(at),
            Standing::Connecting => Some(self.looked_at + CONNECTED),
            Standing::Meeting(since) => Some((since + MEETING).min(self.looked_at + MEETING_LOOKS)),
            Standing::Greeting(since) => Some(since + GREETING),
            Standing::Breaking(_) => Some(self.looked_at),
            Standing::Stuck(at) => Some(at),
            Standing::Ended(_) if rail.peer_ended.is_some() => Some(self.looked_at),
            Standing::Ended(since) => Some(since + self.patience),
        };
        let is_up = self.rails.iter().any(|rail| rail.standing == Standing::Up);
        let is_new = self.rails.iter().all(|rail| rail.standing == Standing::New);
        let patience = self.cut_off_since.map_or(self.looked_at, |since| since + self.patience);
        let patience = (!is_up && !is_new).then_some(patience);
        self.rails.iter().filter_map(of_rail).chain(patience).min()
    }
}

/// How long a rail is left alone after so many lives in which the peer was not heard.
pub(crate) fn pause(fruitless: u32) -> Duration {
    PAUSE_LONGEST.min(PAUSE_FIRST * (1 << fruitless.saturating_sub(1).min(10)))
}

/// An adapter that does not make a queue new is of no use to its rail any more.
pub(crate) fn is_given_up(rail: &mut Rail, error: &AdapterError) {
    tracing::error!(%error, rail = rail.attr.name, "a queue cannot be made new: its rail is given up");
    rail.is_dead = true;
}

fn no_token(error: &std::io::Error) -> LaneFault {
    tracing::error!(%error, "the kernel gives no random bytes, so a queue cannot be called by anything");
    LaneFault(Cause::CardFailed)
}
