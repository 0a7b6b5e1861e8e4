//! A peer: where plans go.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use penstock_core::{Cause, EngineName, Env, Epoch, NoteId, Notified, Rights};
use penstock_transport::lane::Handle;
use penstock_transport::{Caps, CounterRef, Note, NotifyPosted, NotifyRequest, PeerPackets, Posted};

use crate::engine_inner::{EngineInner, Inline};
use crate::error::{RegionError, SubmitError};
use crate::manager::has_tag;
use crate::peer_state::{PeerState, RemoteEntry};
use crate::plan::{Plan, PlanInner};
use crate::shared::{ControlCall, Echo, Latch};
use crate::submit::Submission;
use crate::transfer::{Completed, Transfer};
use crate::worker::{PlanPosition, Priority, SyncTracker, lane_entry, move_units};

/// Another engine, with a standing session.
pub struct Peer<E: Env> {
    pub(crate) engine: Arc<EngineInner<E>>,
    pub(crate) state: Arc<PeerState>,
}

impl<E: Env> Clone for Peer<E> {
    fn clone(&self) -> Self {
        Self { engine: Arc::clone(&self.engine), state: Arc::clone(&self.state) }
    }
}

/// A region of a peer.
pub struct RemoteRegion<E: Env> {
    pub(crate) peer: Arc<PeerState>,
    pub(crate) entry: Arc<RemoteEntry>,
    _env: std::marker::PhantomData<fn() -> E>,
}

impl<E: Env> Clone for RemoteRegion<E> {
    fn clone(&self) -> Self {
        Self { peer: Arc::clone(&self.peer), entry: Arc::clone(&self.entry), _env: std::marker::PhantomData }
    }
}

impl<E: Env> RemoteRegion<E> {
    /// The label its owner gave it; unique among the owner's regions.
    pub fn label(&self) -> &str {
        &self.entry.news.label
    }

    /// Its length in bytes.
    pub fn bytes(&self) -> u64 {
        self.entry.news.bytes
    }

    /// What this engine may do to it.
    pub fn rights(&self) -> Rights {
        self.entry.rights()
    }

    /// The way its bytes take from and to here: `mapped`, `process_vm`, `bounce` by the peer's own workers, `tcp`, `verbs`, or `none`.
    pub fn access_path(&self) -> &'static str {
        self.peer.access_path(&self.entry).name
    }

    /// Why that way, in words: where a better one is missing, what would bring it back.
    pub fn access_reason(&self) -> String {
        self.peer.access_path(&self.entry).reason
    }

    /// Where its owner sees it: a number to pass on, never to be dereferenced here.
    pub fn base(&self) -> u64 {
        self.entry.news.base
    }
}

/// An arrival counter of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteCounter {
    pub(crate) counter: CounterRef,
    /// The life of the engine that has it.
    owner: Epoch,
}

/// How a transfer is submitted: what the peer shall hear, by when it must have ended, who goes first.
#[derive(Clone, Copy, Default)]
pub struct Submit<'a> {
    counter: Option<RemoteCounter>,
    note: Option<Note<'a>>,
    within: Option<Duration>,
    priority: Priority,
}

impl<'a> Submit<'a> {
    /// Nothing but the bytes, by the configured deadline.
    pub fn new() -> Self {
        Self::default()
    }

    /// A notification, delivered once after all bytes.
    #[must_use]
    pub fn notify(mut self, id: NoteId, payload: &'a [u8]) -> Self {
        self.note = Some(Note { id, payload });
        self
    }

    /// A counter of the peer that goes up by one after all bytes.
    #[must_use]
    pub fn count(mut self, counter: RemoteCounter) -> Self {
        self.counter = Some(counter);
        self
    }

    /// The time the transfer may take, from when a worker takes it up: in its next turn, whatever the peer does.
    #[must_use]
    pub fn within(mut self, timeout: Duration) -> Self {
        self.within = Some(timeout);
        self
    }

    /// Sets whether it goes ahead of bulk transfers.
    #[must_use]
    pub fn priority(mut self, priority: Priority) -> Self {
        self.priority = priority;
        self
    }
}

impl<E: Env> Peer<E> {
    /// The peer engine's name, as its descriptor has it.
    pub fn name(&self) -> &EngineName {
        &self.state.name
    }

    /// The life of it that this session is with.
    pub fn epoch(&self) -> Epoch {
        self.state.epoch
    }

    /// The other end of the channel to it, if that goes over the network.
    pub fn address(&self) -> Option<SocketAddr> {
        self.state.address
    }

    /// Asks it for a sign of life and waits for it at most so long: how long a word to its control loop and back takes.
    pub fn ping(&self, timeout: Duration) -> Result<Duration, Cause> {
        self.engine.shared.check_usable()?;
        let echo = Echo::new();
        self.engine.shared.control.call(ControlCall::Ping { peer: Arc::clone(&self.state), echo: Arc::clone(&echo) });
        self.engine.wait_latch(&echo.latch, timeout);
        echo.after().ok_or_else(|| self.state.ended().unwrap_or(Cause::DeadlineExceeded))
    }

    /// The transport that reaches it.
    pub fn transport(&self) -> &'static str {
        self.state.transport
    }

    /// Why that transport, in words.
    pub fn path(&self) -> &str {
        &self.state.path
    }

    /// What has become of the packets to it and from it, the round trip and the window; none where the transport has no packets of
    /// its own, and after the end of the session.
    pub fn packets(&self) -> Option<PeerPackets> {
        let name = self.state.transport;
        let transport = self.engine.shared.transports.iter().find(|transport| transport.name() == name);
        transport.filter(|_| self.ended().is_none())?.peer_packets(self.state.peer_index)
    }

    /// The names of the rails that it goes over, pairs of cards, where it has any: a [`Fault`](penstock_core::Fault) names
    /// one of them.
    pub fn rails(&self) -> &[String] {
        &self.state.rails
    }

    /// What that transport can do and promises.
    pub fn caps(&self) -> Caps {
        self.state.caps
    }

    /// Why the session ended, if it has. That says nothing of memory: a peer that was stopped in the middle of a copy may go on with it.
    pub fn ended(&self) -> Option<Cause> {
        self.state.ended()
    }

    /// What was seen of it last, if its session ended with `PeerLost` or `NoPath`, in words: for how long there was no answer, how
    /// its connection ended, or between which addresses packets do not pass. None where only a worker saw the end of a lane.
    pub fn loss(&self) -> Option<&str> {
        self.state.loss().filter(|_| matches!(self.state.ended(), Some(Cause::PeerLost | Cause::NoPath)))
    }

    /// Why it takes nothing new although the session stands, if so: this engine drains, or the peer does.
    pub fn draining(&self) -> Option<Cause> {
        self.state.draining()
    }

    /// A region that the peer has announced.
    pub fn region(&self, label: &str) -> Result<RemoteRegion<E>, RegionError> {
        self.engine.shared.refuse_inherited()?;
        match self.state.region(label) {
            Some(entry) if !self.state.is_up_to_date(&entry) => {
                Err(RegionError::NewsUnderWay { peer: self.state.name.clone() })
            }
            Some(entry) => Ok(self.remote(entry)),
            None => Err(match self.engine.shared.check_usable().err().or(self.state.ended()) {
                Some(cause) => RegionError::Call(cause), // Nothing more is announced.
                None => RegionError::Unknown {
                    peer: self.state.name.clone(),
                    label: label.to_owned(),
                    known: self.state.labels().join(", "),
                },
            }),
        }
    }

    /// As [`Peer::region`], waiting for the announcement.
    pub fn wait_region(&self, label: &str, timeout: Duration) -> Result<RemoteRegion<E>, RegionError> {
        self.engine.shared.refuse_inherited()?;
        self.wait_for_news(timeout, || self.state.region(label).is_some_and(|entry| self.state.is_up_to_date(&entry)));
        self.region(label)
    }

    /// All regions that the peer has announced, also after its session has ended.
    pub fn regions(&self) -> Vec<RemoteRegion<E>> {
        if self.engine.shared.is_inherited() {
            return Vec::new();
        }
        self.state.regions().into_iter().map(|entry| self.remote(entry)).collect()
    }

    /// The region of the peer that has these bytes at this address of the peer's; of several the newest.
    pub fn region_at(&self, address: u64, bytes: u64) -> Option<RemoteRegion<E>> {
        self.engine.shared.refuse_inherited().ok()?;
        let entry = self.state.region_at(address, bytes, |entry| covers(entry.range(), address, bytes))?;
        Some(self.remote(entry))
    }

    fn remote(&self, entry: Arc<RemoteEntry>) -> RemoteRegion<E> {
        RemoteRegion { peer: Arc::clone(&self.state), entry, _env: std::marker::PhantomData }
    }

    /// Waits until everything that the peer had registered before this call is known here, at most so long. What its cards take longer for than
    /// some 40 ms comes later: [`Peer::wait_region`] waits for it.
    pub fn refresh(&self, timeout: Duration) -> Result<(), Cause> {
        // A peer announces what is new before it answers.
        self.ping(timeout).map(|_| ())
    }

    /// A counter that the peer has announced.
    pub fn counter(&self, label: &str) -> Option<RemoteCounter> {
        self.engine.shared.refuse_inherited().ok()?;
        let counter = self.state.counter(label)?;
        // Closed since it was announced?
        self.state.peer_view.counter_exists(counter).then_some(RemoteCounter { counter, owner: self.state.epoch })
    }

    /// As [`Peer::counter`], waiting for the announcement.
    pub fn wait_counter(&self, label: &str, timeout: Duration) -> Option<RemoteCounter> {
        self.engine.shared.refuse_inherited().ok()?;
        self.wait_for_news(timeout, || self.counter(label).is_some());
        self.counter(label)
    }

    pub(crate) fn wait_for_news(&self, within: Duration, known: impl Fn() -> bool) -> bool {
        let env = &self.engine.shared.env;
        let until = env.now() + within;
        let done = || known() || self.state.ended().is_some();
        if self.engine.is_inline() {
            return self.engine.wait_until(until, done);
        }
        while !done() {
            let left = until.since(env.now());
            if left.is_zero() {
                return false;
            }
            // Bounded: the news may have come between the look and the sleep.
            self.state.sleep_for_news(left.min(Duration::from_millis(10)));
        }
        true
    }

    /// Ends the session from this side, once nothing here touches the peer's memory any more. Answers whether both sides have left.
    pub fn disconnect(&self, timeout: Duration) -> bool {
        if self.engine.shared.check_usable().is_err() {
            return false; // The session is the parent's, or ends with the engine.
        }
        let left = Latch::new(1);
        self.engine
            .shared
            .control
            .call(ControlCall::Disconnect { peer: Arc::clone(&self.state), left: Arc::clone(&left) });
        self.engine.wait_latch(&left, timeout)
    }

    /// Submits a plan. Refusals change nothing; [`SubmitError::Full`] means "later".
    // Always inlined, with its two ways out of line: what the quick way answers fits into registers.
    #[inline(always)]
    pub fn submit(&self, plan: &Plan, how: Submit<'_>) -> Result<Transfer<E>, SubmitError> {
        if self.engine.is_inline()
            && let AtOnce { bytes, notified: Some(notified) } = self.move_at_once(&plan.inner, &how)
        {
            return Ok(Transfer::ended(Completed { bytes, notified }));
        }
        self.submit_queued(plan, how)
    }

    #[inline(never)]
    fn submit_queued(&self, plan: &Plan, how: Submit<'_>) -> Result<Transfer<E>, SubmitError> {
        self.check(&how)?;
        if !self.made(&plan.inner) {
            return Err(SubmitError::ForeignPlan);
        }
        if let Some(mine) = self.engine.with_inline(|_| ()) {
            mine.map_err(SubmitError::Call)?;
        }
        self.queue(Some(plan), &how, None)
    }

    /// Whether the plan was made for this session, in this engine.
    #[inline]
    fn made(&self, plan: &PlanInner) -> bool {
        Arc::ptr_eq(&plan.peer, &self.state) && plan.engine == self.engine.shared.epoch.0
    }

    /// Sends a notification without any bytes to move.
    pub fn notify(&self, id: NoteId, payload: &[u8], how: Submit<'_>) -> Result<Transfer<E>, SubmitError> {
        let how = Submit { note: Some(Note { id, payload }), ..how };
        self.check(&how)?;
        self.queue(None, &how, None)
    }

    /// Gives a reference-counted handle to a peer of the same process, without any copy.
    pub fn hand_over(
        &self,
        handle: Handle,
        id: NoteId,
        payload: &[u8],
        how: Submit<'_>,
    ) -> Result<Transfer<E>, SubmitError> {
        if !self.state.caps.hand_over {
            return Err(SubmitError::NoHandOver { peer: self.state.name.clone(), transport: self.state.transport });
        }
        let how = Submit { note: Some(Note { id, payload }), ..how };
        self.check(&how)?;
        self.queue(None, &how, Some(handle))
    }

    /// Whether the transfer counts at this peer, if it counts.
    #[inline]
    fn has(&self, counter: Option<RemoteCounter>) -> bool {
        counter.is_none_or(|counter| counter.owner == self.state.epoch)
    }

    #[inline]
    fn check(&self, how: &Submit<'_>) -> Result<(), SubmitError> {
        if !self.has(how.counter) {
            return Err(SubmitError::ForeignCounter { peer: self.state.name.clone() });
        }
        match how.note {
            Some(Note { id, .. })
                if id == NoteId::STAGING || self.state.landing_tag().is_some_and(|tag| has_tag(id, tag)) =>
            {
                Err(SubmitError::ReservedNote { peer: self.state.name.clone() })
            }
            note => self.engine.shared.check_submit(&self.state, note),
        }
    }

    /// An inline engine moves a plan of one unit at once: it needs no slot, no queue and no count
    /// of references. Anything but plain success is left to the ordinary way.
    #[inline(never)]
    fn move_at_once(&self, plan: &PlanInner, how: &Submit<'_>) -> AtOnce {
        let is_simple = plan.shape.units() == 1 && how.note.is_none() && plan.pair.is_synchronous;
        if !is_simple
            || !self.made(plan)
            || !self.has(how.counter)
            || self.engine.shared.is_closing()
            || !self.state.takes_new()
        {
            return AtOnce::NOT;
        }
        // Not in a closure: that costs a call where the compiler keeps it apart.
        let Some(Ok(mut inline)) = self.engine.enter_inline() else { return AtOnce::NOT };
        move_with(&mut inline, plan, how).unwrap_or(AtOnce::NOT)
    }

    fn queue(&self, plan: Option<&Plan>, how: &Submit<'_>, handle: Option<Handle>) -> Result<Transfer<E>, SubmitError> {
        let Submit { counter, note, within, priority } = *how;
        let counter = counter.map(|counter| counter.counter);
        let shared = &self.engine.shared;
        let plan = plan.filter(|plan| plan.inner.shape.units() > 0); // One of no entries only tells.
        let within = within.unwrap_or(shared.config.transfers.timeout());
        let submission = Submission { plan, counter, note, handle, within, priority, is_watched: false };
        let key = shared.submit(&self.state, submission)?;
        Ok(Transfer::pending(Arc::clone(&self.engine), Arc::clone(&self.state), key, within))
    }
}

/// Whether a range has all of these bytes.
pub(crate) fn covers((base, len): (u64, u64), address: u64, bytes: u64) -> bool {
    address.checked_sub(base).and_then(|inside| len.checked_sub(inside)).is_some_and(|left| left >= bytes.max(1))
}

/// What came of the quick way: two words, so that they travel in registers.
struct AtOnce {
    bytes: u64,
    /// None: nothing was done.
    notified: Option<Notified>,
}

impl AtOnce {
    const NOT: Self = Self { bytes: 0, notified: None };
}

/// Moves a plan of one unit and counts its arrival. None: not done; posting again does no harm.
#[inline(always)]
fn move_with<E: Env>(inline: &mut Inline<E>, plan: &PlanInner, how: &Submit<'_>) -> Option<AtOnce> {
    let worker = &mut inline.worker;
    let joined = lane_entry(&mut worker.lanes, &plan.peer)?;
    if let Some(counter) = how.counter {
        joined.lane.prefetch(counter.counter);
    }
    let bytes = match plan.flat_batch() {
        Some(batch) => match joined.lane.post(&batch) {
            Ok(Posted::Moved(bytes)) if plan.check_renewed(batch.checked_at).is_ok() => bytes,
            _ => return None,
        },
        None => {
            let mut expected = plan.revisions();
            let here = worker.shared.segments.owner_state.view();
            let (lane, spans, at) = (joined.lane.as_mut(), &mut worker.spans, PlanPosition::start_of(0));
            let (bytes, _, stop) = move_units(plan, (at, 1), lane, here, &mut expected, spans, &mut SyncTracker);
            if stop.is_some() {
                return None;
            }
            bytes
        }
    };
    let notified = match how.counter {
        None => Notified::NotAsked,
        Some(counter) => {
            let arrival = NotifyRequest { counter: Some(counter.counter), ..NotifyRequest::default() };
            match joined.lane.notify(&arrival).ok()? {
                NotifyPosted::Delivered(true) => Notified::Yes,
                NotifyPosted::Delivered(false) => Notified::No,
                // Only plans that are moved at once come here, and their lanes tell at once.
                NotifyPosted::Accepted => Notified::Unknown,
            }
        }
    };
    worker.count_fast_path(bytes);
    Some(AtOnce { bytes, notified: Some(notified) })
}

impl<E: Env> std::fmt::Debug for Peer<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peer")
            .field("name", &self.state.name)
            .field("transport", &self.state.transport)
            .field("ended", &self.state.ended())
            .finish()
    }
}
