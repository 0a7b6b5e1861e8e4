//! From a connection to a session.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use penstock_core::env::Stream;
use penstock_core::limits::PEERS_MAX;
use penstock_core::{EngineName, Env, Epoch, Timestamp};
use penstock_memory::{PassedFd, ProcessWatch, Unseen};
use penstock_session::frame::{RefusalCode, VERSION_MAX, VERSION_MIN};
use penstock_session::greeting::GreetingError;
use penstock_session::{ChannelError, Frame, Greeting, Hello, HelloOutcome, Offer, OpeningCode, Role};
use penstock_transport::link::Offering;
use penstock_transport::{JoinError, Link, LocalEnd, RemoteEnd, Scope, Transport};

use super::advertise::Advertised;
use super::away::cut;
use super::call::{Apart, Call, ConnectTarget};
use super::connection::{Broken, FrameFds};
use super::drain::DrainProgress;
use super::names::HeldName;
use super::transport_messages::sender;
use super::{Control, Phase, Talk};
use crate::error::ConnectError;
use crate::peer_state::{PeerParts, PeerState};
use crate::shared::{Shared, WorkerCall};

/// How many of a caller's transports are named when none of them joins the two.
const TRANSPORTS_NAMED: usize = 8;

/// One greeting and what it has reserved.
pub(super) struct Greeter {
    pub(super) greeting: Greeting,
    until: Timestamp,
    /// Our place for the peer, once one is reserved.
    peer_index: Option<u32>,
    /// Our side of the transport, waiting for theirs.
    offering: Option<(Arc<dyn Transport>, Offering)>,
    /// The process at the other end, watched from before it was trusted.
    process: Arc<ProcessWatch>,
    /// How the two have met, and so what is offered.
    reach: Scope,
    /// The call that this is an attempt of.
    call: Option<Box<Call>>,
    /// It waits until it is known whether its name is taken.
    pub(super) held: Option<HeldName>,
}

/// Why a session does not come about: the code and words for the other side.
struct Refusal(RefusalCode, String);

impl Greeter {
    pub(super) fn listener<E: Env>(shared: &Shared<E>, reach: Scope) -> Self {
        Self::listener_until(shared, reach, shared.env.now() + shared.config.session.greeting_timeout())
    }

    pub(super) fn listener_until<E: Env>(shared: &Shared<E>, reach: Scope, until: Timestamp) -> Self {
        // The place is filled in once the caller has shown that it is one of us.
        Self::new(Greeting::new(Role::Listener, hello(shared, 0, 0, (reach, &[]))), reach, until)
    }

    /// An attempt of this call, with a place reserved for whoever answers.
    pub(super) fn caller<E: Env>(shared: &Shared<E>, call: Call, peer_index: u32, until: Timestamp) -> Self {
        let reach = call.way.reach();
        let ours = hello(shared, peer_index, call.epoch, (reach, &call.apart));
        let mut greeter = Self::new(Greeting::new(Role::Caller, ours), reach, until);
        greeter.peer_index = Some(peer_index);
        greeter.call = Some(Box::new(call));
        greeter
    }

    fn new(greeting: Greeting, reach: Scope, until: Timestamp) -> Self {
        Self { greeting, until, peer_index: None, offering: None, process: unseen(), reach, call: None, held: None }
    }

    pub(super) fn until(&self) -> Timestamp {
        self.held.as_ref().map_or(self.until, |held| held.until.min(self.until))
    }

    /// Whether whoever has its name was asked, and had its time to answer.
    pub(super) fn is_held_no_longer(&self, now: Timestamp) -> bool {
        self.held.as_ref().is_some_and(|held| held.until <= now)
    }

    pub(super) fn reach(&self) -> Scope {
        self.reach
    }

    pub(super) fn theirs(&self) -> Option<&Hello> {
        self.greeting.theirs()
    }

    /// Gives back what was reserved, and the call that this was an attempt of.
    pub(super) fn give_back<E: Env>(self, shared: &Shared<E>) -> Option<Box<Call>> {
        if let Some(peer_index) = self.peer_index {
            shared.peers.release(peer_index);
        }
        self.call
    }

    /// Why there is no session, when the connection has ended.
    pub(super) fn why_lost(&self, was_heard: bool, broken: &Broken) -> impl FnOnce(String) -> ConnectError + use<> {
        let path = self.call.as_ref().map(|call| call.way.address().to_string()).unwrap_or_default();
        let is_io = matches!(broken, Broken::Io(_));
        let reason = match broken {
            Broken::Closed if !was_heard => "it was closed without a word".to_owned(),
            _ => broken.to_string(),
        };
        let sealed = match broken {
            Broken::Sealed(error) => Some(error.clone()),
            _ => None,
        };
        move |name| match sealed {
            Some(ChannelError::WrongSecret) => ConnectError::WrongSecret { name, address: path },
            Some(ChannelError::Refused { code: OpeningCode::WrongSecret, .. }) => {
                ConnectError::WrongSecret { name, address: path }
            }
            Some(ChannelError::Refused { code: OpeningCode::RateLimited, text }) => {
                ConnectError::RateLimited { name, text }
            }
            Some(ChannelError::Refused { code, text }) => ConnectError::TurnedAway { name, code, text },
            Some(ChannelError::EarlyTooLong(_) | ChannelError::TooShort(_)) => {
                ConnectError::NotPenstock { address: path, reason: "it does not speak this protocol".to_owned() }
            }
            _ if is_io && !was_heard => ConnectError::Unreachable { name, path, reason },
            _ => ConnectError::Lost { name, reason },
        }
    }
}

fn reaches_so_far(transport: &Arc<dyn Transport>, reach: Scope) -> bool {
    transport.scope() == reach
}

/// What this engine says first; `apart` are transports that it does not offer this time.
fn hello<E: Env>(shared: &Shared<E>, peer_index: u32, expects: u64, (reach, apart): (Scope, &[Apart])) -> Hello {
    let is_apart = |transport: &Arc<dyn Transport>| apart.iter().any(|(name, _)| *name == transport.name());
    let reaching = shared.transports.iter().filter(|transport| reaches_so_far(transport, reach));
    let offered = reaching.filter(|transport| !is_apart(transport));
    Hello {
        version_min: VERSION_MIN,
        version_max: VERSION_MAX,
        name: shared.name.to_string(),
        epoch: shared.epoch.0,
        expects,
        host: shared.descriptor.host,
        process: shared.process,
        workers: shared.workers.len() as u16,
        peer_index,
        transports: offered.map(|transport| transport.name().to_owned()).collect(),
    }
}

fn sides<E: Env>(
    shared: &Shared<E>,
    peer_index: u32,
    theirs: &Hello,
    address: Option<SocketAddr>,
    process: &Arc<ProcessWatch>,
) -> (LocalEnd, RemoteEnd) {
    let here = LocalEnd {
        host: shared.descriptor.host,
        process: shared.process,
        epoch: shared.epoch.0,
        workers: shared.workers.len(),
        peer_index,
    };
    let there = RemoteEnd {
        host: theirs.host,
        // Anybody can say that it is in our process; the operating system knows.
        process: if matches!(**process, ProcessWatch::Ourselves) { theirs.process } else { 0 },
        epoch: theirs.epoch,
        workers: usize::from(theirs.workers),
        peer_index: theirs.peer_index,
        address,
        watch: Arc::clone(process),
    };
    (here, there)
}

/// Nothing is known of the process at the other end.
fn unseen() -> Arc<ProcessWatch> {
    Arc::new(ProcessWatch::Unseen(Unseen::NotOpened))
}

/// Watches the process at the other end of a stream, whose id is said to be this. Zero is nobody's here.
fn watch_of(stream: &impl Stream, here: u32, there: u32) -> ProcessWatch {
    match (there, stream.end_of_process()) {
        (0, _) => ProcessWatch::Unseen(Unseen::OtherPidNamespace),
        _ if there == here => ProcessWatch::Ourselves,
        (_, Ok(Some(end))) => ProcessWatch::by(there, end),
        (_, Ok(None)) => ProcessWatch::of(there),
        (_, Err(_)) => ProcessWatch::Unseen(Unseen::NotOpened),
    }
}

impl<E: Env> Control<E> {
    /// A new connection: who is it, and does this side speak first?
    pub(super) fn begin(&mut self, token: u64) {
        let Some(Talk { connection, phase: Phase::Greeting(greeter), .. }) = self.talks.get_mut(&token) else { return };
        let checked = match connection.stream.credentials() {
            // Nobody knows the user on another host; the secret is what counts there.
            _ if greeter.reach == Scope::Network => Ok(()),
            Ok(there) => {
                let here = self.shared.env.credentials();
                greeter.process = Arc::new(watch_of(&connection.stream, here.pid, there.pid));
                Greeting::check_user(here, there)
            }
            Err(error) => return self.broke(token, &error.into()),
        };
        if let Err(error) = checked {
            return self.end_greeting(token, error);
        }
        if greeter.call.is_some() {
            let hello = Frame::Hello(greeter.greeting.ours().clone());
            match connection.send(&hello, Vec::new()) {
                Ok(()) => self.rewatch(token),
                Err(broken) => self.broke(token, &broken),
            }
        }
    }

    pub(super) fn greet(&mut self, token: u64, frame: Frame, fds: FrameFds) {
        let Some(Talk { phase: Phase::Greeting(greeter), .. }) = self.talks.get_mut(&token) else { return };
        let stepped = match greeter.greeting.handle(frame) {
            Err(error) => return self.end_greeting(token, error),
            Ok(HelloOutcome::Wait) => Ok(()),
            Ok(HelloOutcome::Choose { candidates }) if self.hold(token, &candidates) => Ok(()),
            Ok(HelloOutcome::Choose { candidates }) => self.choose(token, &candidates),
            Ok(HelloOutcome::JoinAndOffer(offer)) => {
                received(fds).and_then(|fds| self.answer_offer(token, &offer, fds))
            }
            Ok(HelloOutcome::Join(offer)) => received(fds).and_then(|fds| self.join(token, &offer, fds)),
        };
        if let Err(Refusal(code, text)) = stepped {
            self.end_greeting(token, GreetingError::Refuse { code, text });
        }
    }

    pub(super) fn choose_or_refuse(&mut self, token: u64, candidates: &[String]) {
        if let Err(Refusal(code, text)) = self.choose(token, candidates) {
            self.end_greeting(token, GreetingError::Refuse { code, text });
        }
    }

    /// The listener chooses the transport and answers with its hello and its offer.
    fn choose(&mut self, token: u64, candidates: &[String]) -> Result<(), Refusal> {
        let shared = Arc::clone(&self.shared);
        let Some(Talk { connection, phase: Phase::Greeting(greeter), .. }) = self.talks.get_mut(&token) else {
            return Ok(());
        };
        if shared.is_closing() {
            return Err(Refusal(RefusalCode::Closing, "the engine is shutting down".to_owned()));
        }
        if shared.is_draining() {
            return Err(Refusal(RefusalCode::Closing, "the engine is draining".to_owned()));
        }
        let peer_index = shared.peers.reserve().ok_or_else(|| {
            Refusal(RefusalCode::Full, format!("this engine has {PEERS_MAX} peers, as many as it may have"))
        })?;
        greeter.peer_index = Some(peer_index);
        let theirs = greeter.greeting.theirs().expect("its hello was taken just now");
        let (here, there) = sides(&shared, peer_index, theirs, connection.stream.remote(), &greeter.process);
        let mut reasons = vec![allowed_in_words(&theirs.transports)];
        reasons.extend(shared.reports.iter().filter_map(|report| {
            let missing =
                report.missing.as_ref().filter(|_| theirs.transports.iter().any(|name| name == report.name))?;
            Some(format!("{}: this host has it not: {missing}", report.name))
        }));
        let mut code = RefusalCode::NoTransport;
        let offers = |name: &String| {
            let transport = shared.transports.iter().find(|transport| transport.name() == name)?;
            let reached = transport.reaches(&here, &there);
            let refused = match reached.map(|_| offer(&**transport, here, there.clone())) {
                Ok(Ok(offering)) => return Some((Arc::clone(transport), offering)),
                Ok(Err(refusal)) => {
                    code = refusal.0;
                    refusal.1
                }
                Err(reason) => reason.to_owned(),
            };
            reasons.push(format!("{name}: {refused}"));
            None
        };
        let chosen = candidates.iter().find_map(offers);
        let (transport, offering) = chosen.ok_or_else(|| Refusal(code, reasons.join("; ")))?;
        let hello = Frame::Hello(hello(&shared, peer_index, 0, (greeter.reach, &[])));
        let frame = Frame::Offer(Offer { transport: transport.name().to_owned(), blob: offering.blob.clone() });
        let tokens = offering.fds.clone();
        greeter.offering = Some((transport, offering));
        let sent = connection.send(&hello, Vec::new()).and_then(|()| connection.send(&frame, tokens));
        self.settle(token, sent);
        Ok(())
    }

    /// The caller joins with the listener's offer and answers with its own.
    fn answer_offer(&mut self, token: u64, theirs: &Offer, fds: Vec<PassedFd>) -> Result<(), Refusal> {
        let shared = Arc::clone(&self.shared);
        let Some(Talk { connection, phase: Phase::Greeting(greeter), .. }) = self.talks.get_mut(&token) else {
            return Ok(());
        };
        let reach = greeter.reach;
        let ours = &greeter.greeting.ours().transports;
        let offered = |transport: &&Arc<dyn Transport>| ours.iter().any(|name| name == transport.name());
        let mut offered = shared.transports.iter().filter(offered).filter(|transport| reaches_so_far(transport, reach));
        let chosen = offered.find(|transport| transport.name() == theirs.transport);
        let no_transport =
            || Refusal(RefusalCode::NoTransport, format!("transport `{}` is not allowed here", theirs.transport));
        let transport = Arc::clone(chosen.ok_or_else(no_transport)?);
        let peer_index = greeter.peer_index.expect("a caller reserves its place before it calls");
        let theirs_hello = greeter.greeting.theirs().expect("its hello came first");
        let called = greeter.call.as_ref();
        if let Some(must_be) = called.and_then(|call| call.must_be.as_ref())
            && theirs_hello.name != must_be.as_str()
        {
            let text = format!("`{}` answers where `{must_be}` is said to be", theirs_hello.name);
            return Err(Refusal(RefusalCode::Epoch, text));
        }
        if reach == Scope::Network
            && let Some(peer) = shared.peers.with_epoch(theirs_hello.epoch, &theirs_hello.name)
        {
            // It was called by an address, and who answers is connected already.
            self.found_again(token, peer);
            return Ok(());
        }
        // Whether the two have another transport that they can try.
        let is_next = |name: &String| *name != theirs.transport && theirs_hello.transports.contains(name);
        let has_next = ours.iter().any(is_next);
        let (here, there) = sides(&shared, peer_index, theirs_hello, connection.stream.remote(), &greeter.process);
        let reached = transport.reaches(&here, &there);
        reached.map_err(|reason| Refusal(RefusalCode::NoTransport, format!("{}: {reason}", theirs.transport)))?;
        let offering = offer(&*transport, here, there);
        let has_none = offering.is_err();
        let joined = offering.and_then(|Offering { blob, fds: ours, join }| {
            let link = join(&theirs.blob, fds).map_err(bad_offer)?;
            Ok((Frame::Offer(Offer { transport: transport.name().to_owned(), blob }), ours, link))
        });
        let (frame, ours, link) = match joined {
            Ok(joined) => joined,
            Err(Refusal(code, text)) => {
                if has_next && (has_none || code == RefusalCode::NoTransport) {
                    let call = greeter.call.as_mut().expect("a caller's greeting is of a call");
                    call.go_without(transport.name(), text.clone());
                }
                return Err(Refusal(code, text));
            }
        };
        let sent = connection.send(&frame, ours);
        self.establish(token, transport, link);
        self.settle(token, sent);
        Ok(())
    }

    /// Who was called has a session with this engine: that one is the answer.
    fn found_again(&mut self, token: u64, peer: Arc<PeerState>) {
        if let Some(Talk { phase: Phase::Greeting(greeter), .. }) = self.remove(token)
            && let Some(call) = greeter.give_back(&self.shared)
        {
            call.answer.answer(Ok(peer));
        }
    }

    /// The listener joins with the caller's offer.
    fn join(&mut self, token: u64, theirs: &Offer, fds: Vec<PassedFd>) -> Result<(), Refusal> {
        let Some(Talk { phase: Phase::Greeting(greeter), .. }) = self.talks.get_mut(&token) else { return Ok(()) };
        let (transport, offering) = greeter.offering.take().expect("a listener offers before it is answered");
        if theirs.transport != transport.name() {
            let text = format!("`{}` was offered and `{}` answered", transport.name(), theirs.transport);
            return Err(Refusal(RefusalCode::Malformed, text));
        }
        let link = (offering.join)(&theirs.blob, fds).map_err(bad_offer)?;
        self.establish(token, transport, link);
        Ok(())
    }

    /// The session stands: workers get their lanes, the peer hears what we have.
    fn establish(&mut self, token: u64, transport: Arc<dyn Transport>, link: Link) {
        let Some(Talk { phase, line, connection }) = self.talks.get_mut(&token) else { return };
        let Phase::Greeting(greeter) = phase else { return };
        let theirs = greeter.greeting.theirs().expect("its hello came first").clone();
        let name = EngineName::new(&theirs.name).expect("the greeting has checked the name");
        let peer_index = greeter.peer_index.expect("a place is reserved before an offer is made");
        let (link, staged) = self.shared.staging.over(link, peer_index, theirs.workers.into());
        let call = greeter.call.take();
        let socket = match call.as_ref().map(|call| &call.way) {
            Some(ConnectTarget::Socket(path)) => path.clone(),
            _ => self.shared.socket_of(&name),
        };
        let we_called = greeter.greeting.role() == Role::Caller;
        let peer = Arc::new(PeerState::new(PeerParts {
            name,
            socket,
            epoch: Epoch(theirs.epoch),
            peer_index,
            index_at_peer: theirs.peer_index,
            transport: transport.name(),
            caps: transport.caps(),
            path: path_with(link.path, call.as_deref()),
            rails: link.rails,
            peer_view: link.peer_view,
            registrar: link.registrar,
            staged,
            process: std::mem::replace(&mut greeter.process, unseen()),
            we_called,
            address: line.as_ref().map(|line| line.remote),
            inbox_credits: self.shared.config.credits.notifications_per_peer as u64,
            fd_budget: self.shared.fd_budget.of_process(greeter.process.id()),
            announced_bytes_max: self.shared.config.session.announced_bytes_per_peer,
        }));
        tracing::info!(peer = %peer.name, transport = peer.transport, path = peer.path, "a session stands");
        if let Some(line) = line {
            line.key = line.key.take().or_else(|| connection.stream_key());
            line.streams = link.streams;
            line.heard = self.shared.env.now();
            self.shared.sessions_between_hosts.fetch_add(1, Ordering::Relaxed);
        }
        let transport_messages = link.transport_messages;
        // Before there are lanes: they can say something from their first turn on.
        transport_messages.iter().for_each(|transport_messages| transport_messages.start(sender(&self.shared, &peer)));
        *phase = Phase::Open {
            peer: Arc::clone(&peer),
            announced: Advertised::default(),
            rest: DrainProgress::default(),
            transport_messages,
        };
        self.shared.peers.insert(&peer);
        for (port, lane) in self.shared.workers.iter().zip(link.lanes) {
            port.call(WorkerCall::AddLane { peer: Arc::clone(&peer), lane });
        }
        if let Some(call) = call {
            call.answer.answer(Ok(peer));
        }
        if self.stopping {
            self.leave(token, penstock_core::Cause::EngineClosed, None);
        } else {
            self.begin_streams(token, we_called);
            self.announce_to(token);
            self.tell_cards(token);
            if self.shared.is_draining() {
                self.drain_session(token);
            }
        }
    }

    fn settle(&mut self, token: u64, sent: Result<(), Broken>) {
        match sent {
            Ok(()) => self.rewatch(token),
            Err(broken) => self.broke(token, &broken),
        }
    }

    /// A greeting ends without a session: say so, and close.
    pub(super) fn end_greeting(&mut self, token: u64, error: GreetingError) {
        let Some(mut talk) = self.remove(token) else { return };
        let Phase::Greeting(greeter) = talk.phase else { return };
        match error {
            GreetingError::Refused { code, mut text } => {
                if code == RefusalCode::NoTransport {
                    text.push_str(&self.shared.missing_in_words());
                }
                self.greeting_failed(*greeter, |name| ConnectError::Refused { name, code, text });
            }
            GreetingError::Refuse { code, text } => {
                let whom = greeter.theirs().map_or("somebody", |theirs| theirs.name.as_str());
                self.log_away(
                    talk.line.as_ref().map(|line| line.remote),
                    &format!("greeting of {}: {text}", cut(whom)),
                );
                let frame = Frame::refuse(code, &text);
                // Said once, not waited for: a stranger may not even be reading.
                let _ = talk.connection.send(&frame, Vec::new());
                self.greeting_failed(*greeter, |name| ConnectError::RefusedHere { name, text });
            }
        }
    }

    pub(super) fn greeting_expired(&mut self, token: u64) {
        if let Some(Talk { connection, phase: Phase::Greeting(greeter), .. }) = self.talks.get(&token)
            && greeter.reach == Scope::Network
            && !connection.was_heard()
        {
            // What was written went into a connection that stands.
            let words = match connection.has_unsent() {
                true => "no answer came in time",
                false => "it takes connections and says nothing: another program, or one that stands still",
            };
            let broken = Broken::Io(std::io::Error::new(std::io::ErrorKind::TimedOut, words));
            return self.broke(token, &broken);
        }
        let text = "the greeting was not finished in time".to_owned();
        self.end_greeting(token, GreetingError::Refuse { code: RefusalCode::Malformed, text });
    }

    /// What a stranger said is not the protocol.
    pub(super) fn greeting_garbled(&mut self, token: u64, text: String) {
        self.shared.knocks.garbled.add(1);
        self.end_greeting(token, GreetingError::Refuse { code: RefusalCode::Malformed, text });
    }

    pub(super) fn refuse_closing(&mut self, token: u64) {
        let text = "the engine is shutting down".to_owned();
        self.end_greeting(token, GreetingError::Refuse { code: RefusalCode::Closing, text });
    }
}

/// What a caller allows, as far as words need it: it may name as many as it likes.
fn allowed_in_words(transports: &[String]) -> String {
    let (first, rest) = transports.split_at(transports.len().min(TRANSPORTS_NAMED));
    let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
    format!("the caller allows {first:?}{more}")
}

fn offer(transport: &dyn Transport, here: LocalEnd, there: RemoteEnd) -> Result<Offering, Refusal> {
    let offered = transport.offer(here, there);
    offered.map_err(|error| Refusal(RefusalCode::BadOffer, format!("this side cannot make its offer: {error}")))
}

/// The way in words, with what was tried before it.
fn path_with(path: String, call: Option<&Call>) -> String {
    let apart = call.map_or(&[][..], |call| &call.apart);
    apart.iter().fold(path, |path, (transport, why)| format!("{path}; not by {transport}: {why}"))
}

/// What came with an offer, if this process could take all of it.
fn received(fds: FrameFds) -> Result<Vec<PassedFd>, Refusal> {
    let no_room =
        "no file descriptor is left for what was offered: raise the limit (`penstock doctor limits` says how)";
    fds.all().ok_or_else(|| Refusal(RefusalCode::BadOffer, no_room.to_owned()))
}

fn bad_offer(error: JoinError) -> Refusal {
    let code = match error {
        JoinError::NoPath(_) | JoinError::Setting { .. } => RefusalCode::NoTransport,
        _ => RefusalCode::BadOffer,
    };
    Refusal(code, error.to_string())
}
