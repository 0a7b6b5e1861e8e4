//! What the control loop keeps of connections between hosts, and how it takes them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use penstock_core::Env;
use penstock_core::Timestamp;
use penstock_core::env::{Listener, Reactor, Stream};
use penstock_session::{OpeningCode, Refusal, StreamKey};
use penstock_transport::Streams;

use super::greet::Greeter;
use super::limits::ClientAddress;
use super::opening::OpeningConnection;
use super::{Control, GREETINGS_MAX, LISTENER, Phase, Talk};

/// Connections accepted before anything else is looked at.
const ACCEPTS_PER_TURN: usize = 16;
/// Strangers from one source that may be heard at once, beside the streams that sessions with it expect.
const OPENINGS_PER_SOURCE_MAX: usize = 64;
/// How long nobody is accepted once the system has nothing left to accept with.
const ACCEPT_AGAIN: Duration = Duration::from_millis(20);

/// One control channel between hosts.
pub(super) struct NetworkConnection {
    pub(super) remote: SocketAddr,
    /// When something was heard last.
    pub(super) heard: Timestamp,
    /// When a sign of life was asked for since then.
    pub(super) asked: Option<Timestamp>,
    /// Makes and judges the tokens of the session's streams.
    pub(super) key: Option<StreamKey>,
    /// Takes the session's streams.
    pub(super) streams: Option<Arc<dyn Streams>>,
    /// Streams that have not come yet, and by when they must have.
    pub(super) missing: usize,
    pub(super) streams_by: Option<Timestamp>,
    /// Which of them this side has not begun to open.
    pub(super) to_dial: std::ops::Range<u16>,
}

impl NetworkConnection {
    pub(super) fn new(remote: SocketAddr, now: Timestamp) -> Self {
        Self { remote, heard: now, asked: None, key: None, streams: None, missing: 0, streams_by: None, to_dial: 0..0 }
    }

    pub(super) fn source(&self) -> ClientAddress {
        ClientAddress::of(self.remote.ip())
    }
}

impl<E: Env> Control<E> {
    /// Takes connections at the listener of this token.
    pub(super) fn accept(&mut self, token: u64) {
        for _ in 0..ACCEPTS_PER_TURN {
            let Some(listener) = self.listeners.get_mut((token - LISTENER) as usize) else { return };
            match listener.accept() {
                Ok(stream) => match stream.remote() {
                    Some(remote) => self.accept_network(stream, remote),
                    None if self.greetings() >= GREETINGS_MAX => {}
                    None => {
                        let greeter = Greeter::listener(&self.shared, penstock_transport::Scope::Host);
                        self.open(stream, Phase::Greeting(Box::new(greeter)), None, None);
                    }
                },
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                // Whoever it was has gone already.
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionAborted => {}
                Err(error) => {
                    // Out of descriptors, most likely: let some be closed before trying again.
                    tracing::warn!(%error, "cannot accept a connection");
                    return self.stop_accepting();
                }
            }
        }
    }

    fn stop_accepting(&mut self) {
        if self.accept_again.is_none() {
            for listener in &self.listeners {
                let _ = self.reactor.unwatch_listener(listener);
            }
        }
        self.accept_again = Some(self.shared.env.now() + ACCEPT_AGAIN);
    }

    /// Accepts again, if it is time.
    pub(super) fn accept_again(&mut self) {
        if self.accept_again.is_none_or(|again| again > self.shared.env.now()) {
            return;
        }
        self.accept_again = None;
        for (listener, token) in self.listeners.iter().zip(LISTENER..) {
            if let Err(error) = self.reactor.watch_listener(listener, token) {
                tracing::error!(%error, "cannot watch a listening socket any more");
            }
        }
    }

    fn accept_network(&mut self, stream: E::Stream, remote: SocketAddr) {
        let now = self.shared.env.now();
        let line = NetworkConnection::new(remote, now);
        let source = line.source();
        self.shared.knocks.accepted.add(1);
        let is_limited = !self.limits.take(source, now);
        self.make_room(source);
        let _ = stream.bound_silence(self.shared.heartbeat());
        let until = now + self.shared.config.session.greeting_timeout();
        self.open(stream, Phase::Opening(Box::new(OpeningConnection::new(until, is_limited))), Some(line), None);
    }

    /// Ends the strangers that are one too many: of this source its oldest, of all the oldest of the source that has most. They
    /// are told to try again.
    fn make_room(&mut self, source: ClientAddress) {
        let openings: Vec<(u64, ClientAddress)> = self.openings().collect();
        let count = |of: ClientAddress| openings.iter().filter(|(_, source)| *source == of).count();
        // A session that stands must not lose its streams to calls that come at the same time.
        let expected = |of: &dyn Fn(ClientAddress) -> bool| -> usize {
            let lines = self.talks.values().filter_map(|talk| talk.line.as_ref());
            lines.filter(|line| line.streams.is_some() && of(line.source())).map(|line| line.missing).sum()
        };
        let loudest = if count(source) >= OPENINGS_PER_SOURCE_MAX + expected(&|of| of == source) {
            Some(source)
        } else if openings.len() >= GREETINGS_MAX + expected(&|_| true) {
            // Of sources that are equally loud the one that came first, never whoever came just now.
            openings.iter().rev().map(|&(_, source)| source).max_by_key(|&source| count(source))
        } else {
            None
        };
        if let Some(loudest) = loudest
            && let Some(&(oldest, _)) = openings.iter().find(|(_, source)| *source == loudest)
        {
            self.shared.knocks.crowded.add(1);
            let text = format!("{} connections from its address have not shown yet whose they are", count(loudest));
            self.send_away(oldest, &text, Some(Refusal::new(OpeningCode::Busy, text.as_str())));
        }
    }

    /// Connections of strangers, the oldest first.
    fn openings(&self) -> impl Iterator<Item = (u64, ClientAddress)> {
        let of = |(&token, talk): (&u64, &Talk<E>)| match (&talk.phase, &talk.line) {
            (Phase::Opening(_), Some(line)) => Some((token, line.source())),
            _ => None,
        };
        self.talks.iter().filter_map(of)
    }
}
