//! The control loop: the socket, the greetings, the announcements, the goodbyes.
//!
//! Nothing here is on the data path. An engine with threads gives it a thread of its own that
//! sleeps nearly always; an inline engine turns it now and then.
//!
//! - [`connection`]: frames and descriptors over one stream
//! - [`greet`]: from a connection to a session
//! - [`announce`]: what each peer knows of our regions and counters

mod announce;
mod connection;
mod greet;

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use penstock_core::env::{Address, Listener, Reactor};
use penstock_core::{Cause, Env, Moment};
use penstock_session::{Card, Frame};

use self::announce::Announced;
use self::connection::{Broken, Connection};
use self::greet::Greeter;
use crate::error::ConnectError;
use crate::peer_state::PeerState;
use crate::shared::{ControlCall, Latch, Pending, Shared, WorkerCall};

const LISTENER: u64 = 0;
/// Connections accepted before anything else is looked at.
const ACCEPTS_PER_TURN: usize = 16;
/// How long a peer may take to answer a goodbye.
const GOODBYE_WITHIN: Duration = Duration::from_millis(500);
/// How long a session waits for its workers to leave.
const LEAVE_WITHIN: Duration = Duration::from_secs(1);

/// What a connection is about.
enum Phase {
    /// Not yet a session.
    Greeting(Box<Greeter>),
    /// A session.
    Open { peer: Arc<PeerState>, announced: Announced },
    /// Our goodbye is said; theirs is the proof that they touch nothing any more.
    Leaving { peer: Arc<PeerState>, until: Moment, left: Vec<Arc<Latch>> },
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
    announced_regions: u64,
    announced_counters: u64,
    stopping: bool,
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
            announced_regions: 0,
            announced_counters: 0,
            stopping: false,
        })
    }

    /// The thread's body.
    pub(crate) fn run(mut self) {
        while !self.is_stopped() {
            let timeout = self.next_deadline().map(|deadline| deadline.since(self.shared.env.now()));
            self.turn(timeout);
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
        self.expire();
        worked
    }

    fn answer(&mut self, call: ControlCall) {
        match call {
            ControlCall::Connect { card, answer } => self.connect(card, answer),
            ControlCall::Announce => {} // Changes are announced every turn.
            ControlCall::Broken { party, cause } => {
                if let Some(token) = self.token_of(party) {
                    self.leave(token, cause, None);
                }
            }
            ControlCall::Disconnect { party, left } => match self.token_of(party) {
                Some(token) => self.leave(token, Cause::PeerClosed, Some(left)),
                None => left.arrive(),
            },
            ControlCall::Stop => self.stop(),
        }
    }

    fn stop(&mut self) {
        self.stopping = true;
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

    fn token_of(&self, party: u32) -> Option<u64> {
        let of_party = |talk: &Talk<E>| matches!(&talk.phase, Phase::Open { peer, .. } if peer.party == party);
        self.talks.iter().find(|(_, talk)| of_party(talk)).map(|(&token, _)| token)
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(listener) = &mut self.listener else { return };
            match listener.accept() {
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
            Phase::Open { peer, .. } => match frame {
                Frame::Regions(regions) => {
                    if !announce::learn(peer, regions, tokens) {
                        self.leave(token, Cause::PeerCorrupt, None);
                    }
                }
                Frame::RegionsGone(gone) => peer.forget_regions(gone.revision, &gone.gone),
                Frame::Counters(counters) => peer.learn_counters(counters),
                Frame::Goodbye => {
                    self.leave(token, Cause::PeerClosed, None);
                    self.said_goodbye(token);
                }
                frame => {
                    tracing::warn!(peer = %peer.name, kind = frame.kind(), "a frame that does not belong in a session");
                    self.leave(token, Cause::PeerCorrupt, None);
                }
            },
            Phase::Leaving { .. } => {
                if frame == Frame::Goodbye {
                    self.said_goodbye(token);
                }
            }
        }
    }

    /// Ends a session from this side: the workers leave first, then goodbye is said.
    fn leave(&mut self, token: u64, cause: Cause, left: Option<Arc<Latch>>) {
        let Some(Talk { phase: Phase::Open { peer, .. }, .. }) = self.talks.get(&token) else { return };
        let peer = Arc::clone(peer);
        let all_left = self.dismiss_workers(&peer, cause);
        let Some(talk) = self.talks.get_mut(&token) else { return };
        let until = self.shared.env.now() + GOODBYE_WITHIN;
        talk.phase = Phase::Leaving { peer, until, left: left.into_iter().collect() };
        if !all_left {
            // A goodbye would be a lie: the peer must not reuse its memory on our word.
            return self.broke(token, &Broken::Closed);
        }
        match talk.connection.send(&Frame::Goodbye, Vec::new()) {
            Ok(()) => self.rewatch(token),
            Err(broken) => self.broke(token, &broken),
        }
    }

    /// Makes every worker stop what it does for this peer. Answers whether all of them have.
    fn dismiss_workers(&mut self, peer: &Arc<PeerState>, cause: Cause) -> bool {
        peer.end(cause);
        let left = Latch::new(self.shared.ports.len());
        for port in &self.shared.ports {
            port.call(WorkerCall::Leave { party: peer.party, cause, left: Arc::clone(&left) });
        }
        // An inline engine's worker is the caller of this very turn: it leaves at its next turn, and nothing
        // of it copies meanwhile.
        if !self.shared.config.workers.progress.is_threaded() || left.sleep(LEAVE_WITHIN) {
            return true;
        }
        tracing::warn!(peer = %peer.name, "a worker does not leave its peer; is the machine starved?");
        false
    }

    /// The peer has said goodbye: nothing of it touches our memory any more.
    fn said_goodbye(&mut self, token: u64) {
        if let Some(talk) = self.remove(token)
            && let Phase::Leaving { peer, left, .. } = talk.phase
        {
            self.shared.peers.remove(peer.party, true);
            left.iter().for_each(|latch| latch.arrive());
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
        if let (Broken::Wire(error), Some(Talk { phase: Phase::Greeting(_), .. })) = (broken, self.talks.get(&token)) {
            return self.greeting_garbled(token, error.to_string());
        }
        if matches!(self.talks.get(&token), Some(Talk { phase: Phase::Open { .. }, .. })) {
            let Some(Talk { phase: Phase::Open { peer, .. }, .. }) = self.talks.get(&token) else { return };
            let peer = Arc::clone(peer);
            tracing::info!(peer = %peer.name, %broken, "a session is lost");
            let cause = if matches!(broken, Broken::Wire(_)) { Cause::PeerCorrupt } else { Cause::PeerLost };
            self.dismiss_workers(&peer, cause);
            self.remove(token);
            self.shared.peers.remove(peer.party, false);
            return;
        }
        match self.remove(token).map(|talk| talk.phase) {
            Some(Phase::Greeting(greeter)) => greeter.failed(&self.shared, &broken.to_string()),
            Some(Phase::Leaving { peer, left, .. }) => {
                self.shared.peers.remove(peer.party, false);
                left.iter().for_each(|latch| latch.arrive());
            }
            _ => {}
        }
    }

    fn deadline_of(phase: &Phase) -> Option<Moment> {
        match phase {
            Phase::Greeting(greeter) => Some(greeter.until()),
            Phase::Leaving { until, .. } => Some(*until),
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
                _ => self.broke(token, &Broken::Closed),
            }
        }
    }
}
