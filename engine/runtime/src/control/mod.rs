//! The control loop: the socket, the greetings, the announcements, the goodbyes.
//!
//! Nothing here is on the data path. An engine with threads gives it a thread of its own that
//! sleeps nearly always; an inline engine turns it now and then.
//!
//! - [`connection`]: frames and descriptors over one stream
//! - [`call`]: calling an engine, at one address after the other
//! - [`network`], [`opening`], [`limits`]: connections of strangers, and how many are heard; [`away`]: those that come to nothing
//! - [`greet`]: from a connection to a session; [`names`]: those whose name is taken
//! - [`streams`]: the data streams of sessions between hosts
//! - [`advertise`]: what each peer knows of our regions and counters; [`introduce`]: when a session is complete
//! - [`transport_messages`]: messages between lanes over the control channel
//! - [`drain`]: how all of them come to rest
//! - [`leave`]: how a session ends; [`lost`]: how all do when the loop panics
//! - [`life`]: peers that die without a word; [`heartbeat`]: peers on other hosts that say nothing any more
//! - [`known`]: what engines tell each other about where they are
//! - [`manager`]: transfers by name: what their transfer manager hears, and what it wants carried out; [`held_up`]: moves that wait

mod advertise;
mod away;
mod call;
mod connection;
mod drain;
mod greet;
mod heartbeat;
mod held_up;
mod introduce;
mod known;
mod leave;
mod life;
mod limits;
mod lost;
mod manager;
mod names;
mod network;
mod opening;
mod preparing;
mod streams;
mod transport_messages;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use penstock_core::env::Reactor;
use penstock_core::{Cause, Env, Timestamp};
use penstock_session::{Frame, Role, SecureChannel};
use penstock_transport::TransportMessages;

use self::advertise::Advertised;
use self::away::AwayLog;
use self::call::Later;
pub(crate) use self::call::Wanted;
use self::connection::{Broken, Connection, FrameFds};
use self::drain::DrainProgress;
use self::greet::Greeter;
use self::heartbeat::Probe;
use self::leave::Leaving;
use self::limits::Limits;
use self::manager::ActiveMoves;
use self::network::NetworkConnection;
use self::opening::OpeningConnection;
use self::streams::Dialing;
use crate::error::ConnectError;
use crate::peer_state::{PeerState, Unlearned};
use crate::shared::{ControlCall, Shared};

/// The token of the first listener; those of the others follow.
const LISTENER: u64 = 0;
/// Strangers that may be greeted at once; more are turned away unheard until some are done, between hosts in favour
/// of the latest.
const GREETINGS_MAX: usize = 256;

/// What a connection is about.
enum Phase {
    /// Not yet known whose.
    Opening(Box<OpeningConnection>),
    /// A data stream that this side opens.
    Dialing(Box<Dialing>),
    /// Not yet a session.
    Greeting(Box<Greeter>),
    Open {
        peer: Arc<PeerState>,
        announced: Advertised,
        rest: DrainProgress,
        transport_messages: Option<Arc<dyn TransportMessages>>,
    },
    /// A session that ends.
    Leaving(Box<Leaving>),
}

struct Talk<E: Env> {
    connection: Connection<E::Stream>,
    phase: Phase,
    /// What there is to know of a connection between hosts.
    line: Option<Box<NetworkConnection>>,
}

impl<E: Env> Talk<E> {
    fn new(shared: &Shared<E>, stream: E::Stream, phase: Phase, line: Option<NetworkConnection>) -> Self {
        let connection = Connection::new(stream, shared.config.session.unsent_bytes);
        Self { connection, phase, line: line.map(Box::new) }
    }

    /// Whether it is a session, or about to be one, in which the peer called this engine.
    fn peer_called(&self) -> bool {
        match &self.phase {
            Phase::Opening(_) | Phase::Dialing(_) => false,
            Phase::Greeting(greeter) => greeter.greeting.role() == Role::Listener,
            Phase::Open { peer, .. } => !peer.was_called(),
            Phase::Leaving(leaving) => !leaving.peer.was_called(),
        }
    }
}

/// Somebody waits for an answer.
struct Question {
    token: u64,
    number: u64,
    asked: Timestamp,
}

/// The control loop of one engine.
pub(crate) struct Control<E: Env> {
    shared: Arc<Shared<E>>,
    reactor: E::Reactor,
    listeners: Vec<E::Listener>,
    /// How many there were: tokens below are theirs.
    listeners_made: usize,
    /// When connections are taken again; none while they are.
    accept_again: Option<Timestamp>,
    limits: Limits,
    away_log: AwayLog,
    /// Calls that were told to try again.
    later: Later,
    probes: Vec<Probe>,
    last_probe: u64,
    /// Those that are not answered yet.
    questions: Vec<Question>,
    /// By token, so that whoever came first is served first, in every run alike.
    talks: BTreeMap<u64, Talk<E>>,
    next_completion_id: u64,
    /// Revisions of the registry and the counters, and the last deregistration, as announced.
    announced: (u64, u64, u64),
    /// The revision of the log of withdrawn memory, as told to peers on other hosts.
    told: u64,
    stopping: bool,
    /// When a stop ends at the latest.
    stop_by: Option<Timestamp>,
    /// When the peers' lives are looked at next; none while there is nobody to look at.
    look_at: Option<Timestamp>,
    /// When to look whether peers are dead that have left slots behind.
    slots_at: Option<Timestamp>,
    /// What is under way for the transfer manager.
    under_way: ActiveMoves,
}

impl<E: Env> Control<E> {
    pub(crate) fn new(
        shared: &Arc<Shared<E>>,
        mut reactor: E::Reactor,
        listeners: Vec<E::Listener>,
    ) -> std::io::Result<Self> {
        for (listener, token) in listeners.iter().zip(LISTENER..) {
            reactor.watch_listener(listener, token)?;
        }
        Ok(Self {
            shared: Arc::clone(shared),
            reactor,
            next_completion_id: LISTENER + listeners.len() as u64,
            listeners_made: listeners.len(),
            listeners,
            accept_again: None,
            limits: Limits::new(shared.config.session.accepts_per_second),
            away_log: AwayLog::default(),
            later: Later::default(),
            probes: Vec::new(),
            last_probe: 0,
            questions: Vec::new(),
            talks: BTreeMap::new(),
            announced: (0, 0, 0),
            told: 0,
            stopping: false,
            stop_by: None,
            look_at: None,
            slots_at: None,
            under_way: ActiveMoves::default(),
        })
    }

    pub(crate) fn run(self) {
        let shared = Arc::clone(&self.shared);
        // Until the end of this thread, however it ends.
        let _life = shared.live();
        // The loop goes with what it has: of what a panic has left of it nothing is looked at. Peers hear that their connections close.
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.turns())) {
            shared.lose_control();
            resume_unwind(panic);
        }
    }

    fn turns(mut self) {
        while !self.is_stopped() {
            let now = self.shared.env.now();
            if self.stop_by.is_some_and(|stop_by| stop_by <= now) {
                tracing::warn!("sessions are dropped without a goodbye: a worker does not leave its peer");
                return;
            }
            self.turn(self.next_turn().map(|moment| moment.since(now)));
        }
    }

    /// When it is to be turned although nobody says anything.
    fn next_turn(&self) -> Option<Timestamp> {
        let looks = (!self.questions.is_empty()).then(|| self.shared.env.now() + manager::LOOKS);
        let others = [
            looks,
            self.stop_by,
            self.look_at,
            self.slots_at,
            self.accept_again,
            self.later.deadline(),
            self.manager_deadline(),
        ];
        self.next_deadline().into_iter().chain(others.into_iter().flatten()).min()
    }

    /// Makes the reactor's descriptor readable when this moment has come, or the next turn of this loop.
    pub(crate) fn wake_at(&mut self, moment: Timestamp) -> std::io::Result<()> {
        self.reactor.wake_at(self.next_turn().map_or(moment, |turn| turn.min(moment)))
    }

    /// Whether all goodbyes are said.
    pub(crate) fn is_stopped(&self) -> bool {
        self.stopping && self.talks.is_empty()
    }

    /// Whether somebody asked for something.
    pub(crate) fn is_called(&self) -> bool {
        !self.shared.control.calls.is_empty()
    }

    /// One turn, waiting at most so long for something to happen. Answers whether something did.
    pub(crate) fn turn(&mut self, timeout: Option<Duration>) -> bool {
        let mut ready = Vec::new();
        if let Err(error) = self.reactor.wait(timeout, &mut ready) {
            tracing::error!(%error, "cannot wait for the sockets");
            self.shared.env.pause(Duration::from_millis(10));
        }
        let mut worked = !ready.is_empty();
        while let Some(call) = self.shared.control.calls.pop() {
            worked = true;
            self.answer(call);
        }
        self.advertise_changes();
        let first_talk = LISTENER + self.listeners_made as u64;
        for token in ready {
            if token < first_talk {
                self.accept(token);
            } else {
                self.serve(token);
            }
        }
        self.turn_manager();
        self.answer_questions();
        self.accept_again();
        self.call_again();
        self.look_at_lives();
        self.advance_draining();
        // After the sockets: a goodbye heard just now must not wait for the next thing to happen.
        self.advance_leaving();
        self.take_back_slots();
        self.expire();
        worked
    }

    fn answer(&mut self, call: ControlCall) {
        match call {
            ControlCall::Connect { wanted, answer } => self.connect(wanted, answer),
            ControlCall::Ping { peer, echo } => self.measure(&peer, echo),
            ControlCall::TransportMessage { peer, words } => self.send_transport_message(&peer, words),
            ControlCall::Prepared { token } => self.prepared(token),
            ControlCall::Announce => self.shared.control.looks_at_changes(),
            ControlCall::Broken { peer, cause } => {
                if let Some(token) = self.token_of(&peer) {
                    if life::is_loss(cause) {
                        self.hear_out(token);
                    }
                    self.leave(token, cause, None);
                    if cause == Cause::PeerLost {
                        self.mute(token); // The dead say no goodbye.
                    }
                }
            }
            ControlCall::Disconnect { peer, left } => match self.token_of(&peer) {
                Some(token) => self.leave(token, Cause::PeerClosed, Some(left)),
                None => left.arrive(),
            },
            ControlCall::Drain => self.drain(),
            ControlCall::Ended(key) => {
                self.hear_before_failure(key);
                self.move_ended(key);
            }
            ControlCall::Landing { peer, payload } => self.landed(&peer, payload),
            ControlCall::Manager => {}      // It is turned in every turn.
            ControlCall::LatchArrived => {} // Whoever waits for it is looked at every turn.
            ControlCall::Stop { until } => self.stop(until),
            #[cfg(test)]
            ControlCall::Panic => panic!("as a test wants it"),
        }
    }

    fn stop(&mut self, until: Timestamp) {
        self.stopping = true;
        self.stop_by = Some(until);
        self.listeners.clear();
        self.accept_again = None;
        self.give_up_later();
        let tokens: Vec<u64> = self.talks.keys().copied().collect();
        for token in tokens {
            match self.talks.get(&token).map(|talk| &talk.phase) {
                Some(Phase::Open { .. }) => self.leave(token, Cause::EngineClosed, None),
                Some(Phase::Greeting(_)) => self.refuse_closing(token),
                Some(Phase::Opening(_) | Phase::Dialing(_)) => drop(self.remove(token)),
                _ => {}
            }
        }
    }

    /// The connection of this very session.
    fn token_of(&self, peer: &Arc<PeerState>) -> Option<u64> {
        let is_theirs = |talk: &Talk<E>| match &talk.phase {
            Phase::Open { peer: theirs, .. } => Arc::ptr_eq(theirs, peer),
            Phase::Leaving(leaving) => Arc::ptr_eq(&leaving.peer, peer),
            Phase::Greeting(_) | Phase::Opening(_) | Phase::Dialing(_) => false,
        };
        self.talks.iter().find(|(_, talk)| is_theirs(talk)).map(|(&token, _)| token)
    }

    fn greetings(&self) -> usize {
        self.talks.values().filter(|talk| matches!(talk.phase, Phase::Greeting(_))).count()
    }

    /// Watches a new connection and, if it may talk at all, lets it begin.
    fn open(
        &mut self,
        stream: E::Stream,
        phase: Phase,
        line: Option<NetworkConnection>,
        channel: Option<SecureChannel>,
    ) {
        let token = self.next_completion_id;
        if let Err(error) = self.reactor.watch_stream(&stream, token, false) {
            tracing::warn!(%error, "cannot watch a connection");
            if let Phase::Greeting(greeter) = phase {
                let text = format!("this engine cannot watch the connection: {error}");
                self.greeting_failed(*greeter, |name| ConnectError::RefusedHere { name, text });
            }
            return;
        }
        self.next_completion_id += 1;
        let mut talk = Talk::new(&self.shared, stream, phase, line);
        if let Some(channel) = channel {
            talk.connection.seal(channel);
        }
        self.talks.insert(token, talk);
        self.begin(token);
    }

    /// Reads and writes one connection.
    fn serve(&mut self, token: u64) {
        let Some(talk) = self.talks.get_mut(&token) else { return };
        match &talk.phase {
            Phase::Opening(_) => return self.serve_opening(token),
            Phase::Dialing(_) => return self.serve_dialing(token),
            _ => {}
        }
        let read = talk.connection.flush().and_then(|()| talk.connection.read());
        self.serve_read(token, read);
    }

    /// Handles what was read, and then how the reading ended.
    fn serve_read(&mut self, token: u64, read: Result<(), Broken>) {
        self.note_life(token);
        let end = loop {
            let Some(talk) = self.talks.get_mut(&token) else { return };
            match talk.connection.next() {
                Ok(Some((frame, fds))) => self.handle(token, frame, fds),
                Ok(None) => break read,
                Err(broken) => break Err(broken),
            }
        };
        if let Err(broken) = end {
            return self.broke(token, &broken);
        }
        self.rewatch(token);
    }

    /// Asks to be told when a connection can be written exactly while there is something to write.
    fn rewatch(&mut self, token: u64) {
        let Some(talk) = self.talks.get_mut(&token) else { return };
        let wants = talk.connection.has_unsent();
        if wants != talk.connection.watches_writing
            && self.reactor.rewatch_stream(&talk.connection.stream, token, wants).is_ok()
        {
            talk.connection.watches_writing = wants;
        }
    }

    fn handle(&mut self, token: u64, frame: Frame, fds: FrameFds) {
        let Some(talk) = self.talks.get_mut(&token) else { return };
        match &mut talk.phase {
            Phase::Greeting(_) => self.greet(token, frame, fds),
            Phase::Open { peer, .. } => {
                let makes_sense = match frame {
                    Frame::Regions(regions) => {
                        let learned = advertise::learn(peer, regions, fds, &self.shared.knocks.regions_without_fds);
                        self.heard_regions(token);
                        match learned {
                            Ok(()) => true,
                            Err(Unlearned::Nonsense) => false,
                            Err(Unlearned::TooMuch) => {
                                self.shared.knocks.announced_too_much.add(1);
                                self.log_end(token, "it announces more than `session.announced_bytes_per_peer`");
                                return self.leave(token, Cause::PeerCorrupt, None);
                            }
                        }
                    }
                    Frame::RegionsGone(gone) => {
                        peer.forget_regions(gone.revision, &gone.gone);
                        true
                    }
                    Frame::Counters(counters) => peer.learn_counters(counters),
                    Frame::Refuse { code, text } if peer.refuse(code, text.clone()) => {
                        // Who refused our offer never gave its workers a lane: nothing of it is under way.
                        return self.heard_goodbye(token);
                    }
                    Frame::Draining => self.heard_draining(token),
                    Frame::Settled => self.heard_settled(token),
                    Frame::Rested => self.heard_rested(token),
                    Frame::Ping { number } => {
                        self.questions.push(Question { token, number, asked: self.shared.env.now() });
                        true
                    }
                    Frame::Pong { number } => {
                        self.heard_pong(token, number);
                        true
                    }
                    Frame::Descriptor(card) => {
                        self.learn_card(token, &card);
                        true
                    }
                    Frame::Known(cards) => {
                        self.learn_known(token, &cards);
                        true
                    }
                    Frame::Withdrawn(withdrawn) => advertise::learn_withdrawn(peer, withdrawn),
                    Frame::TransportMessage(words) => return self.on_transport_message(token, &words),
                    Frame::Control(said) => {
                        self.heard_said(token, said);
                        true
                    }
                    Frame::Goodbye => return self.heard_goodbye(token),
                    Frame::Hello(_) | Frame::Offer(_) | Frame::Refuse { .. } => false,
                };
                if !makes_sense {
                    self.log_end(token, "it says what makes no sense in a session");
                    self.shared.knocks.garbled.add(1);
                    self.leave(token, Cause::PeerCorrupt, None);
                }
            }
            Phase::Leaving(_) => {
                if frame == Frame::Goodbye {
                    self.heard_goodbye(token);
                }
            }
            Phase::Opening(_) | Phase::Dialing(_) => {}
        }
    }

    fn remove(&mut self, token: u64) -> Option<Talk<E>> {
        let talk = self.talks.remove(&token)?;
        // Closing the stream ends the watch as well.
        let _ = self.reactor.unwatch_stream(&talk.connection.stream);
        Some(talk)
    }

    /// A connection is over, without a goodbye.
    fn broke(&mut self, token: u64, broken: &Broken) {
        match (self.talks.get(&token).map(|talk| &talk.phase), broken) {
            (Some(Phase::Greeting(_)), Broken::Wire(error)) => self.greeting_garbled(token, error.to_string()),
            (Some(Phase::Greeting(_)), _) => {
                if let Some(Talk { phase: Phase::Greeting(greeter), connection, .. }) = self.remove(token) {
                    let error = greeter.why_lost(connection.was_heard(), broken);
                    self.greeting_failed(*greeter, error);
                }
            }
            (Some(Phase::Opening(_) | Phase::Dialing(_)), _) => drop(self.remove(token)),
            (Some(Phase::Open { peer, .. }), _) => {
                peer.note_loss(|| broken.to_string());
                tracing::info!(peer = %peer.name, %broken, "a session is lost");
                let cause = if matches!(broken, Broken::Wire(_) | Broken::Sealed(_)) {
                    self.shared.knocks.garbled.add(1);
                    Cause::PeerCorrupt
                } else {
                    self.shared.knocks.unread.add(u64::from(matches!(broken, Broken::Unread)));
                    Cause::PeerLost
                };
                self.leave(token, cause, None);
                self.mute(token);
            }
            (Some(Phase::Leaving(_)), _) => self.mute(token),
            (None, _) => {}
        }
    }

    fn deadline_of(&self, talk: &Talk<E>) -> Option<Timestamp> {
        match (&talk.phase, &talk.line) {
            (Phase::Opening(opening), _) => Some(opening.until),
            (Phase::Dialing(dialing), _) => Some(dialing.until),
            (Phase::Greeting(greeter), _) => Some(greeter.until()),
            (Phase::Leaving(leaving), _) => leaving.deadline(),
            (Phase::Open { announced, .. }, None) => announced.introduced_by,
            (Phase::Open { announced, .. }, Some(line)) => {
                let pulse = heartbeat::deadline(line, self.shared.heartbeat());
                [line.streams_by, announced.introduced_by].into_iter().flatten().chain([pulse]).min()
            }
        }
    }

    fn next_deadline(&self) -> Option<Timestamp> {
        self.talks.values().filter_map(|talk| self.deadline_of(talk)).min()
    }

    fn expire(&mut self) {
        if self.next_deadline().is_none_or(|deadline| deadline > self.shared.env.now()) {
            return;
        }
        let now = self.shared.env.now();
        let is_late = |talk: &Talk<E>| self.deadline_of(talk).is_some_and(|deadline| deadline <= now);
        let late: Vec<u64> = self.talks.iter().filter(|(_, talk)| is_late(talk)).map(|(&token, _)| token).collect();
        for token in late {
            let Some(talk) = self.talks.get(&token) else { continue };
            match &talk.phase {
                Phase::Opening(_) => self.opening_expired(token),
                Phase::Dialing(_) => self.dialing_expired(token),
                Phase::Greeting(greeter) if greeter.is_held_no_longer(now) => self.give_up_namesake(token),
                Phase::Greeting(_) => self.greeting_expired(token),
                Phase::Leaving(_) => self.leaving_expired(token),
                Phase::Open { announced, .. } if announced.introduced_by.is_some_and(|by| by <= now) => {
                    self.introduction_expired(token);
                }
                Phase::Open { .. } => match &talk.line {
                    Some(line) if line.streams_by.is_some_and(|by| by <= now) => self.streams_expired(token),
                    _ => self.pulse(token),
                },
            }
        }
    }
}
