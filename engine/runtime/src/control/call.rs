//! Calling an engine: by its socket, or at its addresses one after the other.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use penstock_core::env::{Address, Stream};
use penstock_core::limits::PEERS_MAX;
use penstock_core::{Cause, EngineName, Env, Timestamp};
use penstock_session::{OpeningCode, Secret, SecureChannel};
use penstock_transport::Scope;

use super::greet::Greeter;
use super::network::NetworkConnection;
use super::{Control, Phase};
use crate::error::ConnectError;
use crate::shared::{Pending, Shared};

/// An engine that somebody wants to talk to.
pub(crate) struct Wanted {
    /// What it is called in answers.
    pub(crate) name: String,
    /// The life of it; zero: any.
    pub(crate) epoch: u64,
    /// The name that whoever answers must have, if it was looked up by it.
    pub(crate) must_be: Option<EngineName>,
    /// Its socket on this host.
    pub(crate) socket: Option<String>,
    /// Its addresses, the best first.
    pub(crate) addresses: Vec<SocketAddr>,
    /// What it must share with this engine, if there are addresses.
    pub(crate) secret: Option<Arc<Secret>>,
    /// The time there is; none: as configured.
    pub(crate) within: Option<Duration>,
}

impl Wanted {
    /// An engine of this host, by its socket alone.
    pub(crate) fn here(name: String, epoch: u64, socket: String) -> Self {
        let socket = Some(socket);
        Self { name, epoch, must_be: None, socket, addresses: Vec::new(), secret: None, within: None }
    }
}

/// One way to an engine.
#[derive(Debug, Clone)]
pub(super) enum ConnectTarget {
    Socket(String),
    Network(SocketAddr),
}

impl ConnectTarget {
    pub(super) fn reach(&self) -> Scope {
        match self {
            Self::Socket(_) => Scope::Host,
            Self::Network(_) => Scope::Network,
        }
    }

    pub(super) fn address(&self) -> Address {
        match self {
            Self::Socket(path) => Address::Unix(path.clone().into()),
            Self::Network(address) => Address::Tcp(*address),
        }
    }
}

/// A transport that does not join two engines, and why not.
pub(super) type Apart = (&'static str, String);

/// The shortest and the longest pause before a call is tried again at an engine that has too much to do.
const AGAIN_AFTER: Duration = Duration::from_millis(50);
const AGAIN_AFTER_MAX: Duration = Duration::from_secs(1);

/// Calls that wait, and until when: whoever was called has too much to do for now.
#[derive(Default)]
pub(super) struct Later(Vec<(Timestamp, Call)>);

impl Later {
    /// When the next is tried again.
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        self.0.iter().map(|(at, _)| *at).min()
    }
}

/// Whether the other engine said that it can be called again soon.
fn is_for_later(error: &ConnectError) -> bool {
    match error {
        ConnectError::RateLimited { .. } => true,
        ConnectError::TurnedAway { code, .. } => *code == OpeningCode::Busy,
        _ => false,
    }
}

/// A call that is under way.
pub(super) struct Call {
    pub(super) answer: Arc<Pending>,
    pub(super) name: String,
    pub(super) epoch: u64,
    pub(super) must_be: Option<EngineName>,
    /// The way that is tried now.
    pub(super) way: ConnectTarget,
    ways: VecDeque<ConnectTarget>,
    secret: Option<Arc<Secret>>,
    /// Transports that turned out not to join the two, and why: they are not offered again.
    pub(super) apart: Vec<Apart>,
    until: Timestamp,
    /// How often it was told to try again.
    put_off: u32,
    /// The failure that says most so far.
    failed: Option<ConnectError>,
}

impl Drop for Call {
    /// Whoever waits has an answer, also where the control loop has panicked. The first one counts.
    fn drop(&mut self) {
        self.answer.answer(Err(ConnectError::Call(Cause::EngineClosed)));
    }
}

impl Call {
    /// This transport does not join the two: the same way is tried again without it.
    pub(super) fn go_without(&mut self, transport: &'static str, why: String) {
        tracing::info!(name = self.name, transport, why, "a transport does not join the two; trying the next");
        self.apart.push((transport, why));
        self.ways.push_front(self.way.clone());
    }

    /// An attempt has failed. What the other side has said counts more than that nobody was there.
    fn fail(&mut self, error: ConnectError) {
        let says_little = |error: &ConnectError| {
            matches!(
                error,
                ConnectError::Unreachable { .. } | ConnectError::TimedOut { .. } | ConnectError::Lost { .. }
            )
        };
        if self.failed.as_ref().is_none_or(|error| says_little(error) || is_for_later(error)) {
            self.failed = Some(error);
        }
    }
}

pub(super) fn random_bytes<E: Env>(shared: &Shared<E>) -> impl FnMut(&mut [u8]) {
    |bytes: &mut [u8]| {
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&shared.env.random().to_ne_bytes()[..part.len()]);
        }
    }
}

impl<E: Env> Control<E> {
    pub(super) fn connect(&mut self, wanted: Wanted, answer: Arc<Pending>) {
        if let Some(peer) = self.shared.peers.with_epoch(wanted.epoch, &wanted.name) {
            return answer.answer(Ok(peer));
        }
        if self.shared.is_draining() {
            return answer.answer(Err(ConnectError::Call(Cause::Draining)));
        }
        let configured = self.shared.config.session.connect_timeout();
        // An address that does not answer must leave time for the others, and for saying so.
        let within = wanted.within.filter(|_| !wanted.addresses.is_empty()).map(|within| within - within / 16);
        let mut ways: VecDeque<ConnectTarget> = wanted.socket.into_iter().map(ConnectTarget::Socket).collect();
        ways.extend(wanted.addresses.into_iter().map(ConnectTarget::Network));
        let Some(first) = ways.front().cloned() else {
            return answer
                .answer(Err(ConnectError::OtherHost { name: wanted.name, missing: self.shared.missing_in_words() }));
        };
        let call = Call {
            answer,
            name: wanted.name,
            epoch: wanted.epoch,
            must_be: wanted.must_be,
            way: first,
            ways,
            secret: wanted.secret,
            apart: Vec::new(),
            until: self.shared.env.now() + within.unwrap_or(configured),
            put_off: 0,
            failed: None,
        };
        self.call_next(call);
    }

    /// Tries the next way, and answers if there is none left.
    fn call_next(&mut self, mut call: Call) {
        while let Some(way) = call.ways.pop_front() {
            let now = self.shared.env.now();
            let left = call.until.since(now);
            if left.is_zero() && call.failed.is_some() {
                break;
            }
            let until = now + left / (call.ways.len() as u32 + 1);
            call.way = way;
            match self.shared.env.connect(&call.way.address()) {
                Ok(stream) => return self.call_on(stream, call, until),
                Err(error) => {
                    let (name, path) = (call.name.clone(), call.way.address().to_string());
                    call.fail(ConnectError::Unreachable { name, path, reason: error.to_string() });
                }
            }
        }
        let nowhere = |name| ConnectError::OtherHost { name, missing: self.shared.missing_in_words() };
        let error = call.failed.take().unwrap_or_else(|| nowhere(std::mem::take(&mut call.name)));
        call.answer.answer(Err(error));
    }

    fn call_on(&mut self, stream: E::Stream, call: Call, until: Timestamp) {
        let shared = Arc::clone(&self.shared);
        let (reach, secret) = (call.way.reach(), call.secret.clone());
        let Some(peer_index) = shared.peers.reserve() else {
            let text = format!("this engine has {PEERS_MAX} peers, as many as it may have");
            return call.answer.answer(Err(ConnectError::RefusedHere { name: call.name.clone(), text }));
        };
        let greeter = Greeter::caller(&shared, call, peer_index, until);
        let line = stream.remote().filter(|_| reach == Scope::Network).map(|remote| {
            let _ = stream.bound_silence(shared.heartbeat());
            NetworkConnection::new(remote, shared.env.now())
        });
        let channel = secret.filter(|_| line.is_some());
        let channel = channel.map(|secret| SecureChannel::caller(&secret, &mut random_bytes(&shared)));
        self.open(stream, Phase::Greeting(Box::new(greeter)), line, channel);
    }

    /// A greeting has failed: what it had reserved is given back, and the next way is tried.
    pub(super) fn greeting_failed(&mut self, greeter: Greeter, error: impl FnOnce(String) -> ConnectError) {
        if let Some(mut call) = greeter.give_back(&self.shared) {
            let error = error(call.name.clone());
            if self.stopping {
                call.ways.clear();
            } else if is_for_later(&error)
                && let Some(at) = self.again_at(&call)
            {
                call.fail(error);
                call.put_off += 1;
                call.ways.push_front(call.way.clone());
                return self.later.0.push((at, *call));
            }
            call.fail(error);
            self.call_next(*call);
        }
    }

    /// When a call that was put off is tried again, if there is time: after twice the pause before, half of it by chance, so that
    /// calls that came together do not come together again.
    fn again_at(&self, call: &Call) -> Option<Timestamp> {
        let pause = AGAIN_AFTER.saturating_mul(1 << call.put_off.min(10)).min(AGAIN_AFTER_MAX);
        let part = (self.shared.env.random() % 512) as u32;
        let at = self.shared.env.now() + pause / 2 + pause * part / 1024;
        (at < call.until).then_some(at)
    }

    /// Tries the calls again whose time has come.
    pub(super) fn call_again(&mut self) {
        let now = self.shared.env.now();
        if self.later.deadline().is_none_or(|deadline| deadline > now) {
            return;
        }
        let (due, kept) = std::mem::take(&mut self.later.0).into_iter().partition(|(at, _)| *at <= now);
        self.later.0 = kept;
        let due: Vec<(Timestamp, Call)> = due;
        for (_, call) in due {
            self.call_next(call);
        }
    }

    /// This engine stops: calls that wait are answered with what they were told.
    pub(super) fn give_up_later(&mut self) {
        for (_, mut call) in std::mem::take(&mut self.later.0) {
            call.ways.clear();
            self.call_next(call);
        }
    }
}
