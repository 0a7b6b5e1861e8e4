//! The control loop: the socket, the greetings, the announcements, the goodbyes.
//!
//! Nothing here is on the data path. An engine with threads gives it a thread of its own that
//! sleeps nearly always; an inline engine turns it now and then.
//!
//! - [`connection`]: frames and descriptors over one stream
//! - [`greet`]: from a connection to a session
//! - [`announce`]: what each peer knows of our regions and counters
//! - [`drain`]: how all of them come to rest
//! - [`leave`]: how a session ends
//! - [`life`]: peers that die without a word

mod announce;
mod connection;
mod drain;
mod greet;
mod leave;
mod life;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use penstock_core::env::{Address, Listener, Reactor};
use penstock_core::{Cause, Env, Moment};
use penstock_session::{Card, Frame};

use self::announce::Announced;
use self::connection::{Broken, Connection};
use self::drain::Rest;
use self::greet::Greeter;
use self::leave::Leaving;
use crate::error::ConnectError;
use crate::peer_state::PeerState;
use crate::shared::{ControlCall, Pending, Shared};

const LISTENER: u64 = 0;
/// Connections accepted before anything else is looked at.
const ACCEPTS_PER_TURN: usize = 16;
/// How long past its configured time a stop may take: goodbyes have a time of their own.
const STOP_GRACE: Duration = Duration::from_secs(1);
/// Strangers that may be greeted at once; more are turned away unheard until some are done.
const GREETINGS_MAX: usize = 256;

/// What a connection is about.
enum Phase {
    /// Not yet a session.
    Greeting(Box<Greeter>),
    /// A session.
    Open { peer: Arc<PeerState>, announced: Announced, rest: Rest },
    /// A session that ends.
    Leaving(Box<Leaving>),
}

struct Talk<E: Env> {
    connection: Connection<E::Stream>,
    phase: Phase,
}

/// The control loop of one engine.
pub(crate) struct Control<E: Env> {
    shared: Arc<Shared<E>>,
    reactor: E::Reactor,
    listener: Option<E::Listener>,
    /// By token, so that whoever came first is served first, in every run alike.
    talks: BTreeMap<u64, Talk<E>>,
    next_token: u64,
    /// Revisions of the registry and the counters, and the last deregistration, as announced.
    announced: (u64, u64, u64),
    stopping: bool,
    /// When a stop ends at the latest.
    stop_by: Option<Moment>,
    /// When the peers' lives are looked at next; none while there is nobody to look at.
    look_at: Option<Moment>,
}

impl<E: Env> Control<E> {
    pub(crate) fn new(
        shared: &Arc<Shared<E>>,
        mut reactor: E::Reactor,
        listener: E::Listener,
    ) -> std::io::Result<Self> {
        reactor.watch_listener(&listener, LISTENER)?;
        Ok(Self {
            shared: Arc::clone(shared),
            reactor,
            listener: Some(listener),
            talks: BTreeMap::new(),
            next_token: LISTENER + 1,
            announced: (0, 0, 0),
            stopping: false,
            stop_by: None,
            look_at: None,
        })
    }

    /// The thread's body.
    pub(crate) fn run(mut self) {
        // Until the end of this thread, however it ends.
        let _life = self.shared.live();
        while !self.is_stopped() {
            let now = self.shared.env.now();
            if self.stop_by.is_some_and(|stop_by| stop_by <= now) {
                tracing::warn!("sessions are dropped without a goodbye: a worker does not leave its peer");
                return;
            }
            let deadline = self.next_deadline().into_iter().chain(self.stop_by).chain(self.look_at).min();
            self.turn(deadline.map(|deadline| deadline.since(now)));
        }
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
        self.announce_changes();
        for token in ready {
            match token {
                LISTENER => self.accept(),
                token => self.serve(token),
            }
        }
        self.look_at_lives();
        self.advance_draining();
        // After the sockets: a goodbye heard just now must not wait for the next thing to happen.
        self.advance_leaving();
        self.expire();
        worked
    }

    fn answer(&mut self, call: ControlCall) {
        match call {
            ControlCall::Connect { card, answer } => self.connect(card, answer),
            ControlCall::Announce => self.shared.control.looks_at_changes(),
            ControlCall::Broken { peer, cause } => {
                if let Some(token) = self.token_of(&peer) {
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
            ControlCall::Left => {} // Whoever waits for it is looked at every turn.
            ControlCall::Stop => self.stop(),
        }
    }

    fn stop(&mut self) {
        self.stopping = true;
        self.stop_by = Some(self.shared.env.now() + self.shared.config.session.shutdown_timeout() + STOP_GRACE);
        self.listener = None;
        let tokens: Vec<u64> = self.talks.keys().copied().collect();
        for token in tokens {
            match self.talks.get(&token).map(|talk| &talk.phase) {
                Some(Phase::Open { .. }) => self.leave(token, Cause::EngineClosed, None),
                Some(Phase::Greeting(_)) => self.refuse_closing(token),
                _ => {}
            }
        }
    }

    /// The connection of this very session.
    fn token_of(&self, peer: &Arc<PeerState>) -> Option<u64> {
        let is_theirs = |talk: &Talk<E>| match &talk.phase {
            Phase::Open { peer: theirs, .. } => Arc::ptr_eq(theirs, peer),
            Phase::Leaving(leaving) => Arc::ptr_eq(&leaving.peer, peer),
            Phase::Greeting(_) => false,
        };
        self.talks.iter().find(|(_, talk)| is_theirs(talk)).map(|(&token, _)| token)
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(listener) = &mut self.listener else { return };
            match listener.accept() {
                Ok(_) if self.greetings() >= GREETINGS_MAX => {}
                Ok(stream) => {
                    let greeter = Greeter::listener(&self.shared);
                    self.open(stream, Phase::Greeting(Box::new(greeter)));
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    // Out of descriptors, most likely: let some be closed before trying again.
                    tracing::warn!(%error, "cannot accept a connection");
                    self.shared.env.pause(Duration::from_millis(1));
                    return;
                }
            }
        }
    }

    fn greetings(&self) -> usize {
        self.talks.values().filter(|talk| matches!(talk.phase, Phase::Greeting(_))).count()
    }

    /// Watches a new connection and, if it may talk at all, lets it begin.
    fn open(&mut self, stream: E::Stream, phase: Phase) -> Option<u64> {
        let token = self.next_token;
        if let Err(error) = self.reactor.watch_stream(&stream, token, false) {
            tracing::warn!(%error, "cannot watch a connection");
            return None;
        }
        self.next_token += 1;
        self.talks.insert(token, Talk { connection: Connection::new(stream), phase });
        self.begin(token);
        self.talks.contains_key(&token).then_some(token)
    }

    fn connect(&mut self, card: Card, answer: Arc<Pending>) {
        if let Some(peer) = self.shared.peers.with_epoch(card.epoch) {
            return answer.answer(Ok(peer));
        }
        if self.shared.is_draining() {
            return answer.answer(Err(ConnectError::Call(Cause::Draining)));
        }
        let address = Address::Unix(card.socket.clone().into());
        match self.shared.env.connect(&address) {
            Ok(stream) => match Greeter::caller(&self.shared, &card, Arc::clone(&answer)) {
                Ok(greeter) => drop(self.open(stream, Phase::Greeting(Box::new(greeter)))),
                Err(error) => answer.answer(Err(error)),
            },
            Err(error) => answer.answer(Err(ConnectError::Unreachable {
                name: card.name,
                path: card.socket,
                reason: error.to_string(),
            })),
        }
    }

    /// Reads and writes one connection.
    fn serve(&mut self, token: u64) {
        let Some(talk) = self.talks.get_mut(&token) else { return };
        let read = talk.connection.flush().and_then(|()| talk.connection.read());
        let end = loop {
            let Some(talk) = self.talks.get_mut(&token) else { return };
            match talk.connection.next() {
                Ok(Some((frame, tokens))) => self.handle(token, frame, tokens),
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

    fn handle(&mut self, token: u64, frame: Frame, tokens: Vec<OwnedFd>) {
        let Some(talk) = self.talks.get_mut(&token) else { return };
        match &mut talk.phase {
            Phase::Greeting(_) => self.greet(token, frame, tokens),
            Phase::Open { peer, .. } => {
                let makes_sense = match frame {
                    Frame::Regions(regions) => announce::learn(peer, regions, tokens),
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
                    Frame::Goodbye => return self.heard_goodbye(token),
                    // Optional words that nobody here acts on yet.
                    Frame::Ping { .. } | Frame::Pong { .. } | Frame::Card(_) | Frame::Known(_) => true,
                    Frame::Hello(_) | Frame::Offer(_) | Frame::Refuse { .. } => false,
                };
                if !makes_sense {
                    tracing::warn!("a peer says what makes no sense in a session");
                    self.leave(token, Cause::PeerCorrupt, None);
                }
            }
            Phase::Leaving(_) => {
                if frame == Frame::Goodbye {
                    self.heard_goodbye(token);
                }
            }
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
                if let Some(Talk { phase: Phase::Greeting(greeter), .. }) = self.remove(token) {
                    greeter.lost(&self.shared, &broken.to_string());
                }
            }
            (Some(Phase::Open { peer, .. }), _) => {
                tracing::info!(peer = %peer.name, %broken, "a session is lost");
                let cause = if matches!(broken, Broken::Wire(_)) { Cause::PeerCorrupt } else { Cause::PeerLost };
                self.leave(token, cause, None);
                self.mute(token);
            }
            (Some(Phase::Leaving(_)), _) => self.mute(token),
            (None, _) => {}
        }
    }

    fn deadline_of(phase: &Phase) -> Option<Moment> {
        match phase {
            Phase::Greeting(greeter) => Some(greeter.until()),
            Phase::Leaving(leaving) => leaving.deadline(),
            Phase::Open { .. } => None,
        }
    }

    fn next_deadline(&self) -> Option<Moment> {
        self.talks.values().filter_map(|talk| Self::deadline_of(&talk.phase)).min()
    }

    fn expire(&mut self) {
        if self.next_deadline().is_none_or(|deadline| deadline > self.shared.env.now()) {
            return;
        }
        let now = self.shared.env.now();
        let is_late = |talk: &Talk<E>| Self::deadline_of(&talk.phase).is_some_and(|deadline| deadline <= now);
        let late: Vec<u64> = self.talks.iter().filter(|(_, talk)| is_late(talk)).map(|(&token, _)| token).collect();
        for token in late {
            match self.talks.get(&token).map(|talk| &talk.phase) {
                Some(Phase::Greeting(_)) => self.greeting_expired(token),
                _ => self.leaving_expired(token),
            }
        }
    }
}
