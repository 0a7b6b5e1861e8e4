//! Data streams of sessions between hosts: the side that called opens them, each proves whose it is, and then the
//! transport has them.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use penstock_core::env::{Address, Reactor, Stream};
use penstock_core::{Cause, Env, Timestamp};
use penstock_session::StreamToken;
use penstock_session::opening::STREAM_OPENING_BYTES;

use super::opening::{Awaits, OpeningConnection};
use super::{Control, Phase, Talk};

/// Streams of one session that are being opened at the same time.
const DIALED_AT_ONCE: usize = 8;

/// A stream that this side opens.
pub(super) struct Dialing {
    /// The talk of its session.
    session: u64,
    index: u16,
    token: [u8; STREAM_OPENING_BYTES],
    sent: usize,
    pub(super) until: Timestamp,
}

impl<E: Env> Control<E> {
    /// The session stands: the streams it needs are opened, or waited for.
    pub(super) fn begin_streams(&mut self, token: u64, we_called: bool) {
        let until = self.shared.env.now() + self.shared.config.session.connect_timeout();
        let Some(Talk { line: Some(line), .. }) = self.talks.get_mut(&token) else { return };
        let Some(streams) = &line.streams else { return };
        let count = streams.count();
        line.missing = count;
        line.streams_by = (count > 0).then_some(until);
        if !we_called {
            return self.take_waiting(token);
        }
        line.to_dial = 0..count.min(usize::from(u16::MAX)) as u16;
        for _ in 0..DIALED_AT_ONCE {
            self.dial_next(token);
        }
    }

    /// Opens the next stream of a session that this side has called. Only so many are under way at once: for the listener each
    /// is a stranger until it has read its token, and of those it hears only some.
    fn dial_next(&mut self, token: u64) {
        let Some(Talk { line: Some(line), .. }) = self.talks.get_mut(&token) else { return };
        let (Some(key), Some(until)) = (line.key.clone(), line.streams_by) else { return };
        let Some(index) = line.to_dial.next() else { return };
        let dialing = Dialing { session: token, index, token: key.token(index).encode(), sent: 0, until };
        let remote = line.remote;
        if let Err(error) = self.dial(Address::Tcp(remote), dialing) {
            self.lose_streams(token, &error.to_string());
        }
    }

    fn dial(&mut self, address: Address, dialing: Dialing) -> std::io::Result<()> {
        let stream = self.shared.env.connect(&address)?;
        let _ = stream.bound_silence(self.shared.heartbeat());
        let token = self.next_completion_id;
        self.reactor.watch_stream(&stream, token, true)?;
        self.next_completion_id += 1;
        self.talks.insert(token, Talk::new(&self.shared, stream, Phase::Dialing(Box::new(dialing)), None));
        Ok(())
    }

    /// A stream that this side opens can be written, or has failed.
    pub(super) fn serve_dialing(&mut self, token: u64) {
        loop {
            let Some(Talk { connection, phase: Phase::Dialing(dialing), .. }) = self.talks.get_mut(&token) else {
                return;
            };
            let session = dialing.session;
            match connection.stream.send(&dialing.token[dialing.sent..], &[]) {
                Ok(sent) => dialing.sent += sent,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    self.remove(token);
                    return self.lose_streams(session, &error.to_string());
                }
            }
            if dialing.sent == dialing.token.len() {
                let index = dialing.index;
                return self.hand_over(token, session, index);
            }
        }
    }

    pub(super) fn dialing_expired(&mut self, token: u64) {
        if let Some(Talk { phase: Phase::Dialing(dialing), .. }) = self.remove(token) {
            self.lose_streams(dialing.session, "no answer in time");
        }
    }

    /// The session cannot do without its streams.
    fn lose_streams(&mut self, session: u64, reason: &str) {
        if let Some(Talk { phase: Phase::Open { .. }, .. }) = self.talks.get(&session) {
            self.log_end(session, &format!("a data stream is missing: {reason}"));
            self.leave(session, Cause::PeerLost, None);
        }
    }

    pub(super) fn streams_expired(&mut self, token: u64) {
        self.lose_streams(token, "the other engine has not opened it in time");
    }

    /// Gives a proven stream to the transport.
    fn hand_over(&mut self, token: u64, session: u64, index: u16) {
        let Some(stream) = self.remove(token).and_then(|talk| talk.connection.stream.into_descriptor()) else { return };
        match self.attach(session, index, stream) {
            Ok(()) => self.dial_next(session),
            Err(reason) => self.lose_streams(session, &reason),
        }
    }

    fn attach(&mut self, session: u64, index: u16, stream: OwnedFd) -> Result<(), String> {
        let Some(Talk { line: Some(line), phase: Phase::Open { .. }, .. }) = self.talks.get_mut(&session) else {
            return Err("its session has ended".to_owned());
        };
        let streams = Arc::clone(line.streams.as_ref().ok_or("its session takes no streams")?);
        streams.attach(usize::from(index), stream).map_err(|error| error.to_string())?;
        line.missing = line.missing.saturating_sub(1);
        if line.missing == 0 {
            line.streams_by = None;
            self.announce_to(session);
        }
        Ok(())
    }

    /// A stranger says that it is a stream of a session.
    pub(super) fn claim(&mut self, token: u64, claim: StreamToken) {
        let of_session = |talk: &Talk<E>| {
            let key = talk.line.as_ref().and_then(|line| line.key.as_ref());
            // Of a session with oneself both ends have the key.
            talk.peer_called() && key.is_some_and(|key| key.session_id() == claim.session && key.verify(&claim))
        };
        let found = self.talks.iter().find(|(_, talk)| of_session(talk));
        let Some((session, is_open)) = found.map(|(&token, talk)| (token, matches!(talk.phase, Phase::Open { .. })))
        else {
            self.shared.knocks.stray_streams.add(1);
            return self.turn_away(token, "it is a stream of no session of this engine", None);
        };
        if let Some(Talk { line: Some(line), phase: Phase::Opening(opening), .. }) = self.talks.get(&token)
            && !opening.is_limited
        {
            let source = line.source();
            self.limits.give_back(source);
        }
        if is_open {
            self.take_stream(token, session, claim.index);
        } else {
            self.keep_waiting(token, claim);
        }
    }

    /// A stream whose token is good: who opens one twice loses the second, and nothing else.
    fn take_stream(&mut self, token: u64, session: u64, index: u16) {
        let Some(stream) = self.remove(token).and_then(|talk| talk.connection.stream.into_descriptor()) else { return };
        if let Err(reason) = self.attach(session, index, stream) {
            self.shared.knocks.stray_streams.add(1);
            self.log_away(None, &format!("data stream {index}: {reason}"));
        }
    }

    /// Takes the streams that came before their session stood.
    fn take_waiting(&mut self, session: u64) {
        let key = self.talks.get(&session).and_then(|talk| talk.line.as_ref()?.key.clone());
        let Some(key) = key else { return };
        let waits = |(&token, talk): (&u64, &Talk<E>)| match &talk.phase {
            Phase::Opening(opening) => match &**opening {
                OpeningConnection { awaits: Awaits::Session(claim), .. } if key.session_id() == claim.session => {
                    Some((token, claim.index))
                }
                _ => None,
            },
            _ => None,
        };
        let waiting: Vec<(u64, u16)> = self.talks.iter().filter_map(waits).collect();
        for (token, index) in waiting {
            self.take_stream(token, session, index);
        }
    }

    /// The session of this talk is over: what it was still opening is not needed.
    pub(super) fn drop_dialing(&mut self, session: u64) {
        let of_session = |talk: &Talk<E>| matches!(&talk.phase, Phase::Dialing(dialing) if dialing.session == session);
        let tokens: Vec<u64> =
            self.talks.iter().filter(|(_, talk)| of_session(talk)).map(|(&token, _)| token).collect();
        for token in tokens {
            self.remove(token);
        }
    }
}
