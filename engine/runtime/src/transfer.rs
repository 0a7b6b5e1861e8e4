//! The handle of a submitted transfer.

use std::sync::Arc;
use std::time::Duration;

use penstock_core::{Cause, Env, Fault, Notified, Stage, Timestamp};
use penstock_ring::Key;
use penstock_transport::Failure;

use crate::engine_inner::EngineInner;
use crate::peer_state::PeerState;
use crate::quiesce::{CancelOutcome, LocalQuiesce, Quarantined, RemoteQuiesce, RemoteQuiesceState};
use crate::slot::{Slot, TransferOutcome};

/// How long past its own deadline a transfer is waited for: its worker may be descheduled.
pub(crate) const GRACE: Duration = Duration::from_secs(1);

/// A transfer that ended well. Where `Caps::placement` is `AtNotification`, what it wrote is acknowledged, and the peer's memory may
/// see it a moment later: who wants to be sure that the peer sees the bytes tells it by a notification or a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completed {
    /// Bytes of the plan that were moved; all of them on success.
    pub bytes: u64,
    /// Whether the peer was told.
    pub notified: Notified,
}

/// A submitted transfer. Dropping it detaches it: it goes on, and nobody hears how it ended.
#[must_use = "a dropped transfer goes on, but nobody hears how it ends"]
pub struct Transfer<E: Env> {
    inner: Inner<E>,
}

enum Inner<E: Env> {
    /// It ended before `submit` returned.
    Ended(Completed),
    Pending(Pending<E>),
}

struct Pending<E: Env> {
    engine: Arc<EngineInner<E>>,
    peer: Arc<PeerState>,
    key: Key,
    timeout: Duration,
}

impl<E: Env> Transfer<E> {
    #[inline]
    pub(crate) fn ended(completed: Completed) -> Self {
        Self { inner: Inner::Ended(completed) }
    }

    pub(crate) fn pending(engine: Arc<EngineInner<E>>, peer: Arc<PeerState>, key: Key, timeout: Duration) -> Self {
        Self { inner: Inner::Pending(Pending { engine, peer, key, timeout }) }
    }

    /// How it ended, if it has. Costs one load; makes no progress.
    #[inline]
    pub fn poll(&self) -> Option<Result<Completed, Fault>> {
        match &self.inner {
            Inner::Ended(completed) => Some(Ok(*completed)),
            Inner::Pending(pending) => pending.poll(),
        }
    }

    /// Waits for the end, which comes by the transfer's own deadline. Of one that has failed [`Transfer::cancel`] says whether anything can still
    /// touch memory of either side.
    pub fn wait(&self) -> Result<Completed, Fault> {
        match &self.inner {
            Inner::Ended(completed) => Ok(*completed),
            Inner::Pending(pending) => pending.wait(pending.timeout + GRACE),
        }
    }

    /// Waits for the end, but not longer than this. The transfer goes on if the time is over first.
    pub fn wait_within(&self, timeout: Duration) -> Option<Result<Completed, Fault>> {
        match &self.inner {
            Inner::Ended(completed) => Some(Ok(*completed)),
            Inner::Pending(pending) => pending.wait_within(timeout),
        }
    }

    /// Ends it now, and answers by its own deadline whether anything of it can still touch memory,
    /// once for each owner. A transfer that has ended well already is quiesced. One that has not is so when nothing of it lands any more, as
    /// far as the peer's side goes also what was acknowledged before: the peer has to answer for that where a card places its bytes.
    pub fn cancel(&self, timeout: Duration) -> CancelOutcome {
        match &self.inner {
            Inner::Ended(_) => QUIESCED,
            Inner::Pending(pending) => pending.cancel(timeout),
        }
    }

    /// Bytes moved so far.
    pub fn bytes_moved(&self) -> u64 {
        match &self.inner {
            Inner::Ended(completed) => completed.bytes,
            Inner::Pending(pending) => pending.slot().bytes(),
        }
    }
}

const QUIESCED: CancelOutcome = CancelOutcome { local: LocalQuiesce::Quiesced, remote: RemoteQuiesce::Quiesced };

impl<E: Env> Pending<E> {
    fn slot(&self) -> &Slot {
        self.engine.shared.slots.get(self.key).expect("a handle holds its slot")
    }

    #[inline]
    fn poll(&self) -> Option<Result<Completed, Fault>> {
        self.slot().outcome().map(|outcome| self.read(outcome))
    }

    fn read(&self, TransferOutcome { failure, notified }: TransferOutcome) -> Result<Completed, Fault> {
        let bytes = self.slot().bytes();
        match failure {
            None => Ok(Completed { bytes, notified }),
            Some((stage, Failure { cause, rail })) => {
                let fault = Fault::new(stage, cause).with_peer(&self.peer.name);
                let fault = fault.with_notified(notified).with_bytes(bytes);
                let rail = rail.and_then(|rail| self.peer.rails.get(usize::from(rail)));
                Err(match rail {
                    Some(rail) => fault.with_rail(rail),
                    None => fault,
                })
            }
        }
    }

    fn wait(&self, longest: Duration) -> Result<Completed, Fault> {
        self.wait_within(longest).unwrap_or_else(|| {
            // Its worker has not even noticed the deadline: a wrong thread, or a starved machine.
            let cause = match self.engine.progress() {
                Err(cause) => cause,
                Ok(_) => Cause::NotEnded,
            };
            Err(Fault::new(Stage::Queue, cause).with_peer(&self.peer.name).with_notified(Notified::Unknown))
        })
    }

    fn wait_within(&self, within: Duration) -> Option<Result<Completed, Fault>> {
        if self.engine.shared.is_inherited() {
            return Some(Err(Fault::new(Stage::Queue, Cause::Forked).with_peer(&self.peer.name)));
        }
        let env = &self.engine.shared.env;
        let until: Timestamp = env.now() + within;
        let slot = self.slot();
        if self.engine.is_inline() {
            self.engine.wait_until(until, || slot.outcome().is_some());
        } else {
            slot.sleep_until_done(|| env.now(), until);
        }
        self.poll()
    }

    fn cancel(&self, within: Duration) -> CancelOutcome {
        let shared = &self.engine.shared;
        if self.engine.shared.is_inherited() {
            let held = Quarantined::forked(shared.env.now());
            return CancelOutcome { local: LocalQuiesce::Quarantined(held), remote: RemoteQuiesce::Unknown };
        }
        let until = shared.env.now() + within;
        let slot = self.slot();
        match self.cancel_here(slot, until) {
            LocalQuiesce::Quarantined(held) => {
                self.end_unseen(slot);
                CancelOutcome { local: LocalQuiesce::Quarantined(held), remote: self.quarantine_remote() }
            }
            local => CancelOutcome { local, remote: self.settle_remote(until) },
        }
    }

    /// Stops it, and answers whether anything of it can still touch this engine's memory.
    fn cancel_here(&self, slot: &Slot, until: Timestamp) -> LocalQuiesce {
        let shared = &self.engine.shared;
        if slot.outcome().is_some() && !slot.is_busy_here() {
            return LocalQuiesce::Quiesced;
        }
        if shared.stop_transfer(self.key) {
            return LocalQuiesce::Quiesced;
        }
        let is_quiet = || !slot.is_busy_here();
        if !is_quiet() && !self.engine.is_inline() {
            slot.sleep_until_done(|| shared.env.now(), until);
        }
        // One that has ended may have left the kernel with pages, and another worker may be about to learn that there is
        // nothing left to claim.
        if is_quiet() || self.engine.wait_until(until, is_quiet) {
            return LocalQuiesce::Quiesced;
        }
        // A quiet hazard proves nothing here: the worker may be between two batches of its unit.
        let pending = self.held();
        let is_quiet = move || !pending.slot().is_busy_here() && pending.is_over_there();
        LocalQuiesce::Quarantined(self.engine.quarantine_hands(Box::new(is_quiet)))
    }

    /// Whether anything that was given up can still touch the peer's memory: only the peer's own workers could, if
    /// they had begun, or a card.
    fn settle_remote(&self, until: Timestamp) -> RemoteQuiesce {
        let is_over = self.is_over_there() || self.engine.wait_until(until, || self.is_over_there());
        if self.is_quiet_there() {
            return RemoteQuiesce::Quiesced;
        }
        if is_over {
            return RemoteQuiesce::Unknown;
        }
        self.end_unseen(self.slot());
        self.quarantine_remote()
    }

    fn quarantine_remote(&self) -> RemoteQuiesce {
        let pending = self.held();
        let end = Box::new(move || {
            let is_quiet = !pending.slot().is_busy_here() && pending.is_quiet_there();
            match (is_quiet, pending.peer.is_lost()) {
                (true, _) => Some(RemoteQuiesceState::Quiet),
                (false, true) => Some(RemoteQuiesceState::Unknown),
                (false, false) => None,
            }
        });
        RemoteQuiesce::Quarantined(Quarantined::at_peer(&self.peer, self.engine.shared.env.now(), end))
    }

    /// It ends now, although something of it is still under way: whoever asked does not wait for that any longer.
    fn end_unseen(&self, slot: &Slot) {
        slot.force();
        self.engine.shared.workers.iter().for_each(|port| port.bell.ring());
    }

    fn is_quiet_there(&self) -> bool {
        !self.slot().is_remote_pending() || self.peer.has_let_go()
    }

    /// Whether it is, or nobody can say it any more.
    fn is_over_there(&self) -> bool {
        self.is_quiet_there() || self.peer.is_lost()
    }

    /// Another handle, which holds the slot as long as it lives.
    fn held(&self) -> Self {
        self.slot().add_reference();
        Self { engine: Arc::clone(&self.engine), peer: Arc::clone(&self.peer), key: self.key, timeout: self.timeout }
    }
}

impl<E: Env> Drop for Pending<E> {
    fn drop(&mut self) {
        self.engine.shared.release_slot(self.key);
    }
}

impl<E: Env> std::fmt::Debug for Transfer<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transfer").field("bytes_moved", &self.bytes_moved()).field("ended", &self.poll()).finish()
    }
}
