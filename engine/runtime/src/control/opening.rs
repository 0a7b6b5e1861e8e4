//! Strangers: connections between hosts that have not shown yet whose they are.

use penstock_core::env::{Reactor, Stream};
use penstock_core::{Env, Timestamp};
use penstock_session::opening::{CHANNEL_OPENING_BYTES, STREAM_OPENING_BYTES};
use penstock_session::{ChannelError, OpeningCode, OpeningDecoder, OpeningError, Refusal, SecureChannel, StreamToken};
use penstock_transport::Scope;

use super::call::random_bytes;
use super::connection::Broken;
use super::greet::Greeter;
use super::{Control, Phase, Talk};

/// A connection, from its first byte until it is known whose it is.
pub(super) struct OpeningConnection {
    pub(super) until: Timestamp,
    pub(super) awaits: Awaits,
    /// Too many came from there: only a stream of a session that stands is taken.
    pub(super) is_limited: bool,
}

pub(super) enum Awaits {
    /// What it is for; so many bytes have come.
    Opening(OpeningDecoder, usize),
    /// That the other side has the keys.
    Confirmation,
    /// That the session which this stream belongs to stands.
    Session(StreamToken),
}

impl OpeningConnection {
    pub(super) fn new(until: Timestamp, is_limited: bool) -> Self {
        Self { until, awaits: Awaits::Opening(OpeningDecoder::new(), 0), is_limited }
    }
}

impl<E: Env> Control<E> {
    /// Hears a stranger, a little at a time.
    pub(super) fn serve_opening(&mut self, token: u64) {
        let Some(Talk { phase: Phase::Opening(opening), .. }) = self.talks.get(&token) else { return };
        match opening.awaits {
            Awaits::Opening(..) => self.read_opening(token),
            Awaits::Confirmation => self.read_confirmation(token),
            Awaits::Session(_) => {}
        }
    }

    fn read_opening(&mut self, token: u64) {
        loop {
            let Some(Talk { connection, phase: Phase::Opening(opening), .. }) = self.talks.get_mut(&token) else {
                return;
            };
            let Awaits::Opening(decoder, taken) = &mut opening.awaits else { return };
            // Never more than the opening itself: what follows that of a stream is for somebody else to read.
            let whole = if *taken < CHANNEL_OPENING_BYTES { CHANNEL_OPENING_BYTES } else { STREAM_OPENING_BYTES };
            let mut bytes = [0; STREAM_OPENING_BYTES];
            let wanted = &mut bytes[..whole.saturating_sub(*taken).max(1)];
            let read = match connection.stream.receive(wanted, &mut Vec::new()) {
                Ok(0) if *taken == 0 => return self.left_silently(token),
                Ok(0) => return self.turn_away(token, "it left before it said what it is", None),
                Ok(read) => read,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(_) if *taken == 0 => return self.left_silently(token),
                Err(_) => return self.turn_away(token, "it left before it said what it is", None),
            };
            *taken += read;
            match decoder.push(&bytes[..read]) {
                Ok(None) => {}
                Ok(Some((penstock_session::Opening::Channel { .. }, _))) if opening.is_limited => {
                    self.shared.knocks.limited.add(1);
                    let most = self.shared.config.session.accepts_per_second;
                    let text = format!("more than {most} connections a second from one address");
                    let refusal = Refusal::new(OpeningCode::RateLimited, text.clone());
                    return self.turn_away(token, &text, Some(refusal));
                }
                Ok(Some((penstock_session::Opening::Channel { .. }, _))) => {
                    return self.begin_handshake(token);
                }
                Ok(Some((penstock_session::Opening::Stream(claim), _))) => return self.claim(token, claim),
                Err(error) => return self.turn_away(token, &error.to_string(), refusal_of(&error)),
            }
        }
    }

    fn begin_handshake(&mut self, token: u64) {
        let shared = std::sync::Arc::clone(&self.shared);
        let secret = match shared.secret() {
            Ok(secret) => secret,
            Err(error) => return self.turn_away(token, &error.to_string(), None),
        };
        let Some(Talk { connection, phase: Phase::Opening(opening), .. }) = self.talks.get_mut(&token) else { return };
        connection.seal(SecureChannel::listener(&secret, &mut random_bytes(&shared)));
        opening.awaits = Awaits::Confirmation;
        self.read_confirmation(token);
    }

    fn read_confirmation(&mut self, token: u64) {
        let Some(talk) = self.talks.get_mut(&token) else { return };
        let read = talk.connection.flush().and_then(|()| talk.connection.read_little());
        if talk.connection.is_confirmed() {
            if let Some(line) = &mut talk.line {
                line.key = talk.connection.stream_key();
            }
            // It has shown that it is no stranger, and has the time of one that is greeted.
            let greeter = Greeter::listener(&self.shared, Scope::Network);
            talk.phase = Phase::Greeting(Box::new(greeter));
            return self.serve_read(token, read);
        }
        match read {
            Ok(()) => self.rewatch(token),
            Err(Broken::Sealed(error)) => {
                let why = match error {
                    ChannelError::WrongSecret => {
                        self.shared.knocks.wrong_secret.add(1);
                        "it does not share this engine's secret".to_owned()
                    }
                    ref other => other.to_string(),
                };
                self.turn_away(token, &why, error.refusal());
            }
            Err(broken) => self.turn_away(token, &broken.to_string(), None),
        }
    }

    /// A stranger's time is over. One of this protocol may try again: either side may have been busy.
    pub(super) fn opening_expired(&mut self, token: u64) {
        let Some(Talk { phase: Phase::Opening(opening), .. }) = self.talks.get(&token) else { return };
        let within = self.shared.config.session.greeting_timeout_ms;
        let why = match opening.awaits {
            Awaits::Opening(_, 0) => format!("it said nothing within {within} ms"),
            Awaits::Opening(..) | Awaits::Confirmation => format!("it did not show within {within} ms who it is"),
            Awaits::Session(_) => format!("its session did not stand within {within} ms"),
        };
        let refusal = Refusal::new(OpeningCode::Busy, format!("the handshake was not finished within {within} ms"));
        self.turn_away(token, &why, Some(refusal));
    }

    /// A stream has come of which its session is not known to stand yet: nothing of it is read until then.
    pub(super) fn keep_waiting(&mut self, token: u64, claim: StreamToken) {
        if let Some(Talk { connection, phase: Phase::Opening(opening), .. }) = self.talks.get_mut(&token) {
            opening.awaits = Awaits::Session(claim);
            // What is sent behind its token would be reported again and again.
            let _ = self.reactor.unwatch_stream(&connection.stream);
        }
    }
}

fn refusal_of(error: &OpeningError) -> Option<Refusal> {
    match error {
        OpeningError::Version(_) => Some(Refusal::new(OpeningCode::Version, error.to_string())),
        // Another program: it would not understand.
        OpeningError::Magic(_) | OpeningError::Reserved => None,
    }
}
