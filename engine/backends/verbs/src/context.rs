//! What a lane lends its channels for a call.

use std::time::Instant;

use penstock_transport::host::{Bell, EngineSegments};
use penstock_transport::{CounterRef, RemoteGateLog};

use crate::connecting::Connect;

/// What a lane lends its channels for a call.
pub(crate) struct Context<'a> {
    /// How far this engine's log of withdrawals has come.
    pub(crate) here: u64,
    /// What the peer has told of its own.
    pub(crate) told: &'a RemoteGateLog,
    /// Counters and withdrawals of this engine.
    pub(crate) segments: &'a EngineSegments,
    /// Wakes the application when a counter has gone up.
    pub(crate) application: &'a Bell,
    /// Hears what is proven of the peer's adapter.
    pub(crate) witness: &'a dyn FenceObserver,
    /// Says something to the peer's channel of the same number, over the session's control channel.
    pub(crate) say: &'a dyn Fn(&[u8]),
    /// The CQ forgets the queue of this rail, by its number, which may be another's as soon as it was given back.
    pub(crate) forget: &'a dyn Fn(u8, u32),
    /// Who connects queues again.
    pub(crate) connect: &'a dyn Connect,
    /// When the call is made.
    pub(crate) now: Instant,
}

/// Who keeps account of what can still land in this engine's memory.
pub(crate) trait FenceObserver {
    /// Nothing lands any more over this rail that the peer posted before it knew of this revision of this engine's log.
    fn heard(&self, channel: u16, rail: u8, revision: u64);

    /// Nothing lands any more over this rail that was posted before, and what the peer posts again it has checked against this revision.
    fn reset(&self, channel: u16, rail: u8, revision: u64);
}

impl Context<'_> {
    /// Increments a counter of this engine. False if it does not exist any more.
    pub(crate) fn increment_counter(&self, counter: CounterRef) -> bool {
        self.segments.mailbox.view().increment_counter(counter, self.application)
    }
}
