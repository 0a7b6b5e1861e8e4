//! Chunks behind each other, chunks of several engines, and whatever has arrived.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use penstock_core::{EngineName, Env};
use penstock_flows::TransferManager;
pub use penstock_flows::relay::{Announced, Arrival};
use penstock_flows::relay::{JoinKey, RelayStreamKey, Stream as State};
use penstock_session::RequestId;

use super::put::Prepared;
use super::{FlowError, Inner, Put, Relay, RelayFailed, RelayOp, WITHIN};
use crate::peer::Peer;

/// A stream of this engine: its chunks are handed over to each reader in their order, and its end behind them. Dropped before its end it has
/// failed, and its readers are told.
pub struct Stream<E: Env> {
    inner: Arc<Inner<E>>,
    key: RelayStreamKey,
}

/// A wait for a chunk of each of several engines.
pub struct StreamJoin<E: Env> {
    inner: Arc<Inner<E>>,
    key: JoinKey,
}

impl<E: Env> Relay<E> {
    /// Begins a stream of chunks of a request to these readers.
    pub fn stream(&self, request: &RequestId, to: &[&Peer<E>]) -> Result<Stream<E>, FlowError> {
        let readers = self.inner.readers(to)?;
        let key = self.inner.call(|relays, _| relays.stream(request, &readers))?;
        Ok(Stream { inner: Arc::clone(&self.inner), key })
    }

    /// What has arrived for a request, if anything has: streams in the order of their numbers, everything else as it came. Of a request that
    /// was given up, here or elsewhere, or cleaned up here, nothing arrives any more, which is said as [`Ended`](super::RelayError::Ended).
    pub fn try_arrival(&self, request: &RequestId) -> Result<Option<Arrival>, FlowError> {
        self.inner.bring_forward();
        // Who only looks wakes nobody.
        let is_closed = || self.inner.is_closed.load(Ordering::Relaxed);
        if !self.inner.engine.shared.look_at_manager(|manager| is_closed() || has_news(manager, request)) {
            return Ok(None);
        }
        let next = self.inner.call(|relays, now| match relays.next_arrival(request, now) {
            None => relays.may_read(request).map(|()| None),
            found => Ok(found),
        });
        Ok(next?)
    }

    /// What arrives next for a request, at most so long. That its request was given up ends the wait.
    pub fn arrival(&self, request: &RequestId, timeout: Duration) -> Result<Arrival, FlowError> {
        let env = &self.inner.engine.shared.env;
        let until = env.now() + timeout;
        loop {
            let left = until.since(env.now());
            let found = self.inner.wait(left, |manager| has_news(manager, request).then_some(()));
            // Another thread may have been quicker.
            if let Some(arrival) = self.try_arrival(request)? {
                return Ok(arrival);
            }
            if found.is_err() {
                return Err(FlowError::Nothing(timeout));
            }
        }
    }

    /// Waits for a chunk of each of these engines. It ends once: when all are announced, when one has failed, or when its time is over.
    pub fn join(
        &self,
        request: &RequestId,
        sources: &[EngineName],
        timeout: Duration,
    ) -> Result<StreamJoin<E>, FlowError> {
        let key = self.inner.call(|relays, now| relays.join(request, sources, timeout, now))?;
        Ok(StreamJoin { inner: Arc::clone(&self.inner), key })
    }
}

/// Whether something of a request is to be told: what has arrived, or that nothing does any more.
fn has_news(manager: &TransferManager, request: &RequestId) -> bool {
    manager.relays().has_arrival(request) || manager.relays().may_read(request).is_err()
}

impl<E: Env> StreamJoin<E> {
    /// What it came to, if it has ended: the chunks in the order of the sources, each to be given to [`Relay::get`].
    pub fn poll(&self) -> Option<Result<Vec<Announced>, RelayFailed>> {
        self.inner.bring_forward();
        self.inner.engine.shared.look_at_manager(|manager| manager.relays().join_result(self.key).cloned())
    }

    /// The chunks that are there by now, in the order of the sources; none of one that has failed. Each may be fetched before the last source
    /// is there, so that its own has the memory back: sources that put for two joins in different orders may otherwise wait for each other,
    /// each for berths that the other one's join would free. What was fetched so is among what the join comes to all the same.
    pub fn found(&self) -> Vec<Announced> {
        self.inner.bring_forward();
        self.inner.engine.shared.look_at_manager(|manager| manager.relays().join_found(self.key))
    }

    /// Waits until it has ended.
    pub fn wait(&self, timeout: Duration) -> Result<Result<Vec<Announced>, RelayFailed>, FlowError> {
        self.inner.wait(timeout, |manager| manager.relays().join_result(self.key).cloned())
    }
}

impl<E: Env> Drop for StreamJoin<E> {
    fn drop(&mut self) {
        if !self.inner.engine.shared.is_inherited() {
            self.inner.engine.shared.call_manager(|manager, _| manager.relays_mut().let_go_join(self.key));
        }
    }
}

impl<E: Env> Stream<E> {
    /// Hands out the next chunk, as [`Relay::put`] does.
    pub fn put(&self, what: Put<'_, E>) -> Result<RelayOp<E>, FlowError> {
        self.inner.engine.shared.check_usable().map_err(FlowError::Engine)?;
        self.inner.put(what, |relays, Prepared { source, schema, header, within }, now| {
            relays.put_next(self.key, source, schema, header, within, now)
        })
    }

    /// All chunks were put: readers hear of the end behind the last one. It goes on until each has heard, at most so long.
    pub fn finish(&self, timeout: Duration) -> Result<(), FlowError> {
        Ok(self.inner.call(|relays, now| relays.finish(self.key, None, timeout, now))?)
    }

    /// It has failed: readers hear these words at once, and get nothing more of it.
    pub fn fail(&self, words: &str) -> Result<(), FlowError> {
        Ok(self.inner.call(|relays, now| relays.finish(self.key, Some(words), WITHIN, now))?)
    }

    /// How it ended, if it has: all readers have heard of its end, or why not.
    pub fn poll(&self) -> Option<Result<(), RelayFailed>> {
        self.inner.bring_forward();
        self.inner.engine.shared.look_at_manager(|manager| ended(manager, self.key))
    }

    /// Waits until it has ended.
    pub fn wait(&self, timeout: Duration) -> Result<Result<(), RelayFailed>, FlowError> {
        self.inner.wait(timeout, |manager| ended(manager, self.key))
    }
}

fn ended(manager: &TransferManager, key: RelayStreamKey) -> Option<Result<(), RelayFailed>> {
    match manager.relays().stream_state(key)? {
        (State::Done, _) => Some(Ok(())),
        (State::Error, failed) => failed.cloned().map(Err),
        (State::Open | State::Finishing, _) => None,
    }
}

impl<E: Env> Drop for Stream<E> {
    fn drop(&mut self) {
        if !self.inner.engine.shared.is_inherited() {
            self.inner.engine.shared.call_manager(|manager, now| manager.relays_mut().let_go_stream(self.key, now));
        }
    }
}
