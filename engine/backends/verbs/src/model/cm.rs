//! Queues that meet by the connection manager.
//!
//! ```text
//! the one that calls           the one that waits
//! calling --------------------> asked, once somebody connects it
//! answered <------------------- accepted
//! met ------------------------> met
//! ```
//!
//! Each arrow is an event at the adapter that it points to, and each step is taken by whoever looks.

use std::net::SocketAddr;
use std::time::Duration;

use super::refused;
use super::world::{PACKET_MASK, QueueState, State, World};
use crate::adapter::{AdapterError, AsyncEvent, CmError, ConnectParams, Connected, QpAddress, Token};

/// How long a call goes unanswered until it fails.
const ANSWER: Duration = Duration::from_secs(3);
/// How long one waits to be called.
const CALL: Duration = Duration::from_secs(7);

/// A token that is good for one call.
pub(super) struct Expected {
    /// The queue that waits.
    queue: u64,
    /// The one that has called, if one has.
    asked: Option<u64>,
}

/// How far a queue has come.
#[derive(Debug, Clone, Copy)]
pub(super) struct CmConnection {
    since: Duration,
    connecting: ConnectParams,
    step: Step,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    /// It calls there, and was heard or not.
    Calling { at: SocketAddr, token: Token, was_heard: bool },
    /// This queue has accepted its call.
    Answered(u64),
    /// It waits to be called by this.
    Waiting(Token),
    /// It has accepted the call of this queue.
    Accepted(u64),
    /// It has met this queue.
    Met(u64),
    /// It will meet nobody.
    Failed(CmError),
}

impl World {
    /// A queue expects this token from now on, and no other. Who called with another hears that nobody expects him.
    pub(super) fn expect(&mut self, name: u64, token: Option<Token>) {
        let is_its = |(_, expected): &(&Token, &Expected)| expected.queue == name;
        let old: Vec<_> = self.expected.iter().filter(is_its).map(|(token, _)| *token).collect();
        for token in old {
            let asked = self.expected.remove(&token).and_then(|expected| expected.asked);
            if let Some(caller) = asked
                && matches!(self.meets.get(&caller), Some(CmConnection { step: Step::Calling { .. }, .. }))
            {
                self.tell(caller, Step::Failed(CmError::NotExpected));
            }
        }
        if let Some(token) = token {
            self.expected.insert(token, Expected { queue: name, asked: None });
        }
    }

    /// A queue sets out to meet another.
    pub(super) fn begin_cm_connect(&mut self, name: u64, connecting: &ConnectParams) {
        let Some(cm) = connecting.cm else { return };
        let step = match cm.call {
            Some(at) => {
                self.expect(name, None);
                Step::Calling { at, token: cm.token, was_heard: false }
            }
            None => Step::Waiting(cm.token),
        };
        self.meets.insert(name, CmConnection { since: self.now, connecting: *connecting, step });
    }

    /// How far a queue has come.
    pub(super) fn met(&mut self, name: u64) -> Result<Connected, AdapterError> {
        let Some(cm) = self.meets.get(&name).copied() else {
            let is_connected = matches!(self.queue(name).state, State::Connected(_));
            return if is_connected { Ok(Connected::Yes) } else { Err(self.not_met(name, CmError::Ended)) };
        };
        match cm.step {
            Step::Calling { at, token, was_heard } => {
                if !was_heard {
                    self.call(name, at, token);
                }
            }
            Step::Waiting(token) => self.accept(name, token),
            Step::Answered(by) if self.meets.contains_key(&by) => {
                self.connect_with(name, by);
                self.tell(by, Step::Met(name));
                self.tell(name, Step::Met(by));
            }
            // Who has answered has left since, and its word about that was lost.
            Step::Answered(_) => self.tell(name, Step::Failed(CmError::Silence)),
            Step::Accepted(_) | Step::Met(_) | Step::Failed(_) => {}
        }
        let CmConnection { since, step, .. } = self.meets[&name];
        let waits = self.now.saturating_sub(since);
        match step {
            Step::Met(_) => Ok(Connected::Yes),
            Step::Failed(why) => Err(self.not_met(name, why)),
            Step::Calling { .. } if waits >= ANSWER => Err(self.not_met(name, CmError::Silence)),
            Step::Waiting(_) | Step::Accepted(_) if waits >= CALL => Err(self.not_met(name, CmError::Silence)),
            Step::Calling { .. } | Step::Answered(_) | Step::Waiting(_) | Step::Accepted(_) => Ok(Connected::NotYet),
        }
    }

    /// A queue has met nobody, or leaves whom it has met.
    pub(super) fn leave(&mut self, name: u64) {
        let Some(cm) = self.meets.remove(&name) else { return };
        let other = match cm.step {
            Step::Answered(other) | Step::Accepted(other) | Step::Met(other) => Some(other),
            Step::Calling { token, .. } => self.expected.get(&token).map(|expected| expected.queue),
            Step::Waiting(_) | Step::Failed(_) => None,
        };
        let knows_it = |its: &CmConnection| match its.step {
            Step::Answered(of) | Step::Accepted(of) | Step::Met(of) => of == name,
            Step::Calling { .. } | Step::Waiting(_) | Step::Failed(_) => false,
        };
        if let Some(other) = other.filter(|other| self.meets.get(other).is_some_and(knows_it))
            && self.reaches(name, other)
        {
            self.tell(other, Step::Failed(CmError::Ended));
        }
    }

    /// Calls an adapter, unless it is out of reach.
    fn call(&mut self, name: u64, at: SocketAddr, token: Token) {
        let Some(there) =
            self.adapters.iter().position(|adapter| adapter.attr.cm_address == Some(at) && !adapter.is_dead)
        else {
            return self.tell(name, Step::Failed(CmError::NobodyListens));
        };
        if !self.is_way(self.queues[&name].adapter, there) {
            return;
        }
        match self.expected.get_mut(&token) {
            Some(Expected { queue, asked: asked @ None }) if self.queues[queue].adapter == there => {
                *asked = Some(name);
                let waiting = *queue;
                if let Some(CmConnection { step: Step::Calling { was_heard, .. }, .. }) = self.meets.get_mut(&name) {
                    *was_heard = true;
                }
                self.event(there, AsyncEvent::CmProgress(self.queues[&waiting].number));
            }
            _ => self.tell(name, Step::Failed(CmError::NotExpected)),
        }
    }

    /// Accepts the call of whoever has called.
    fn accept(&mut self, name: u64, token: Token) {
        let Some(&Expected { asked: Some(caller), .. }) = self.expected.get(&token) else { return };
        let calls = matches!(self.meets.get(&caller), Some(CmConnection { step: Step::Calling { .. }, .. }));
        if !calls {
            return self.tell(name, Step::Failed(CmError::Ended));
        }
        if self.reaches(name, caller) {
            self.connect_with(name, caller);
            self.tell(name, Step::Accepted(caller));
            self.tell(caller, Step::Answered(name));
        }
    }

    /// Connects a queue with another that it has heard of.
    fn connect_with(&mut self, name: u64, other: u64) {
        let QueueState { number, adapter, .. } = self.queues[&other];
        let first_packet = self.meets[&other].connecting.first_packet;
        let (gid, lid) = (self.adapters[adapter].attr.gid, self.adapters[adapter].attr.lid);
        let there = QpAddress { queue: number, first_packet, gid, lid };
        let connecting = ConnectParams { there, ..self.meets[&name].connecting };
        self.connect(name, &connecting);
    }

    /// A queue is connected.
    pub(super) fn connect(&mut self, name: u64, connecting: &ConnectParams) {
        let queue = self.queue(name);
        queue.state = State::Connected(*connecting);
        queue.packet_out = connecting.first_packet & PACKET_MASK;
        queue.packet_in = connecting.there.first_packet & PACKET_MASK;
    }

    /// A queue has come to this step, of which its adapter hears.
    fn tell(&mut self, name: u64, step: Step) {
        if let Some(cm) = self.meets.get_mut(&name) {
            cm.step = step;
            let QueueState { adapter, number, .. } = self.queues[&name];
            self.event(adapter, AsyncEvent::CmProgress(number));
        }
    }

    fn reaches(&self, name: u64, other: u64) -> bool {
        self.is_way(self.queues[&name].adapter, self.queues[&other].adapter)
    }

    fn is_way(&self, from: usize, to: usize) -> bool {
        let is_lost = self.losses.get(&(from, to)).is_some_and(|losses| losses.requests);
        self.adapters[from].is_up && self.adapters[to].is_up && !is_lost
    }

    fn not_met(&self, name: u64, why: CmError) -> AdapterError {
        let adapter = self.adapters[self.queues[&name].adapter].attr.name.clone();
        let with = match self.meets.get(&name).and_then(|cm| cm.connecting.cm?.call) {
            Some(at) => at.to_string(),
            None => "whoever was to call".to_owned(),
        };
        AdapterError::Cm { adapter, with, why }
    }

    /// Refuses to connect what is connected, or was told to be.
    pub(super) fn is_new(&mut self, name: u64) -> Result<(), AdapterError> {
        if self.queue(name).state == State::New && !self.meets.contains_key(&name) {
            return Ok(());
        }
        let adapter = self.queues[&name].adapter;
        Err(refused("connect", &self.adapters[adapter].attr.name, rustix::io::Errno::INVAL, "reset the queue first"))
    }
}
