//! One worker's lane to one peer.
//!
//! The worker expands a plan into batches of spans and posts them; a synchronous lane has moved them
//! when `post` returns, an asynchronous one says so later through [`LaneEvents::completed`]. "Full" is an
//! answer and means "later"; only a [`LaneFault`] ends the session.

use penstock_core::limits::SPANS_PER_POST;
use penstock_core::plan::RegionKey;
use penstock_core::{Cause, Direction, NoteId, Span};
use penstock_memory::copy::Hint;
use penstock_memory::{Memory, Window};

use crate::record::lines_for;
use crate::remote::{RemoteMemory, TargetMediatedMemory};

/// The state of withdrawn memory that a plan was checked against: the revision of this engine's
/// gate and of the peer's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Revisions {
    /// Of this engine's own gate.
    pub local: u64,
    /// Of the peer's gate.
    pub remote: u64,
}

/// Spans between one pair of regions, to be moved now.
#[derive(Clone, Copy)]
pub struct Batch<'a> {
    pub direction: Direction,
    /// The local region's memory.
    pub local: &'a Memory,
    /// Id and generation of the local region: a lane that copies into it later looks up by them whether it was withdrawn.
    pub local_region: RegionKey,
    /// The same of the remote region.
    pub remote_region: RegionKey,
    /// The remote region's memory, as this process reaches it.
    pub remote: &'a RemoteMemory,
    /// What to move, as offsets into both.
    pub spans: &'a [Span],
    /// Whether the whole transfer is too large to be worth caching.
    pub hint: Hint,
    /// The revisions at which the plan was checked against the withdrawals: see [`Lane::post`].
    pub checked_at: Revisions,
    /// Completion id (a `wr_id`) under which [`LaneEvents::completed`] reports accepted spans. Unused where
    /// [`crate::Pair::is_synchronous`].
    pub completion_id: u64,
    /// Which transfer it belongs to: a notification behind it names the same. Zero where the whole plan is synchronous.
    pub transfer: u64,
    /// Bytes of that whole transfer, over all lanes that carry parts of it: a hint of what follows, nothing to be counted up to.
    pub transfer_bytes: u64,
}

impl<'a> Batch<'a> {
    /// The local region's memory, for lanes whose processor touches it.
    #[inline]
    pub fn host(&self) -> Result<&'a Window, PostError> {
        self.local.host().ok_or(PostError::Refused(Cause::NoPath))
    }

    /// The longest prefix of its spans with at most `most` bytes and [`SPANS_PER_POST`] spans: how many spans, and their
    /// bytes. A lane calls it with at least [`UNIT_BYTES`](penstock_core::limits::UNIT_BYTES), the longest span there is: with
    /// less it may be none.
    pub fn fitting(&self, most: u64) -> (usize, u64) {
        let mut bytes = 0;
        for (index, span) in self.spans.iter().enumerate().take(SPANS_PER_POST) {
            if span.len > most - bytes {
                return (index, bytes);
            }
            bytes += span.len;
        }
        (self.spans.len().min(SPANS_PER_POST), bytes)
    }

    /// The initiator's bounds check before it sends a request; the owner of the memory checks again.
    pub fn check_bounds(&self, spans: &[Span], memory: &TargetMediatedMemory) -> Result<(), PostError> {
        let inside = |offset: u64, len: u64, of: u64| offset.checked_add(len).is_some_and(|end| end <= of);
        let fits = |span: &Span| {
            inside(span.local, span.len, self.local.len())
                && inside(span.remote, span.len, memory.bytes)
                && span.len > 0
        };
        let lands = self.direction == Direction::Write || self.local.is_writable();
        if spans.is_empty() || !lands || !spans.iter().all(fits) { Err(PostError::OutOfBounds) } else { Ok(()) }
    }
}

/// What became of a posted batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Posted {
    /// All of it was moved; this many bytes.
    Moved(u64),
    /// The first so many spans, at least one, are under way and will be reported by
    /// [`LaneEvents::completed`], together and exactly once, unless they are cancelled before.
    Accepted(usize),
}

/// What cancelling an accepted operation has achieved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CancelledOp {
    /// It touches no memory of either side any more, and no completion follows. Of a notification: the peer will not get it. One
    /// that the peer may have got is `RemotePending`.
    Quiesced,
    /// It touches this engine's memory no more, but maybe the peer's. A completion with the bytes moved follows.
    RemotePending,
    /// It may still touch this engine's memory. A completion follows once it cannot any more.
    LocalPending,
}

/// Why a lane did not take what it was asked to. [`Lane::post`] may answer any of them; the others only what they say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PostError {
    /// No room now, and nothing of it is under way. The transfer is parked until this lane is polled: a lane that gets room
    /// without a completion marks itself ready.
    Full,
    /// The gates have moved on to these revisions since the plan was checked: something was withdrawn, not necessarily of this
    /// plan. Check it again and post again. Nothing of the batch was moved.
    StaleRevisions(Revisions),
    /// A span reaches outside its window, or the destination may not be written. Nothing was moved.
    OutOfBounds,
    /// The batch cannot be moved: its transfer ends with this cause. The lane is well. Nothing of the batch is under way; only
    /// what a synchronous lane has copied before is moved. If some spans were posted, the answer is [`Posted::Accepted`].
    Refused(Cause),
    /// The lane is broken: the transfer ends with this cause, and every later [`Lane::poll`] must return the same fault, which
    /// ends the session.
    Fault(LaneFault),
}

/// Why spans that were under way have ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Failure {
    pub cause: Cause,
    /// On which of [`crate::Link::rails`], where it was on one.
    pub rail: Option<u8>,
}

impl Failure {
    /// This cause, on this rail.
    pub fn on(rail: u8, cause: Cause) -> Self {
        Self { cause, rail: Some(rail) }
    }
}

impl From<Cause> for Failure {
    fn from(cause: Cause) -> Self {
        Self { cause, rail: None }
    }
}

/// A broken lane. Returned by [`Lane::poll`] or [`Lane::ring_doorbell`] it ends the session with this cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneFault(pub Cause);

/// A counter of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CounterRef {
    /// Its index in the peer's table.
    pub index: u32,
    /// Generation of that entry: a counter that was released and taken again has another one.
    pub generation: u32,
}

/// Notification and counter increment that the peer gets once all bytes of a transfer have landed.
#[derive(Debug, Clone, Copy, Default)]
pub struct NotifyRequest<'a> {
    /// The transfer whose batches come before it.
    pub transfer: u64,
    /// Bytes of that whole transfer, as its batches said.
    pub transfer_bytes: u64,
    /// Completion id of the notification, if it is only accepted.
    pub completion_id: u64,
    /// A counter that goes up by one.
    pub counter: Option<CounterRef>,
    pub note: Option<Note<'a>>,
}

impl NotifyRequest<'_> {
    /// Neither a notification nor a counter was asked for.
    pub fn is_empty(&self) -> bool {
        self.counter.is_none() && self.note.is_none()
    }
}

/// Asks for proof that no write of an ended transfer is still outstanding at the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlushRequest {
    pub transfer: u64,
    /// Bytes of that whole transfer, as its batches said.
    pub transfer_bytes: u64,
    /// Completion id of the flush, if it is only accepted.
    pub completion_id: u64,
}

/// What became of a notification, or of a remote flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotifyPosted {
    /// Done: the peer has it already, behind all bytes before it; if false, without its counter, which does not exist any more.
    /// Never while a batch of the transfer is in flight: then it is `Accepted`. Of a flush: proven, and true.
    Delivered(bool),
    /// It is in flight and will be reported by [`LaneEvents::completed`] like a batch: `Ok(1)` if all of it was
    /// delivered, `Ok(0)` if its counter was gone, a cause if it was not delivered. A flush is reported as `Ok(1)` or not at all.
    Accepted,
}

/// A notification: the caller's id and up to 4 KiB.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Note<'a> {
    /// Chosen by the caller; the receiver gets it with the payload.
    pub id: NoteId,
    pub payload: &'a [u8],
}

impl Note<'_> {
    /// Lines of the receiver's room that it takes. What lanes say to each other waits for nobody's inbox: it is bounded by what they have asked for.
    pub fn lines(&self) -> usize {
        if self.id == NoteId::STAGING { 0 } else { lines_for(self.payload.len()) }
    }
}

/// What a lane reports to its worker while it is polled.
pub trait LaneEvents {
    /// Reserves room for one notification, which must follow; if there is none, the lane keeps it and asks again when it is
    /// polled. Asked only where a notification is waiting: a refusal is counted.
    fn reserve_note(&mut self) -> bool;

    /// A notification of the peer. Takes the room that was reserved.
    fn note(&mut self, note: Note<'_>);

    /// What a peer's lane says to this one, in a note of [`NoteId::STAGING`]: it needs no room. Who stages nothing passes it on to who does ([`crate::StagedSession`]).
    fn lane_message(&mut self, message: &[u8]) {
        let _ = message;
    }

    /// A handle that the peer handed over, with its notification. Takes the room that was reserved.
    fn handed_over(&mut self, note: Note<'_>, handle: Handle);

    /// An accepted operation has ended: a batch with the bytes it moved, the others as [`NotifyPosted::Accepted`] says, or with a
    /// cause. Also with a cause it says that the operation touches no memory of either side any more (the peer's only where the
    /// lane does not complete before placement). One whose fate is not known is not reported: the lane returns a fault instead.
    fn completed(&mut self, completion_id: u64, result: Result<u64, Failure>);

    /// An accepted batch has failed, and nobody knows for how long it touches memory of both sides: nothing more is reported of it, and the lane
    /// never [drains](Lane::drain).
    fn lost(&mut self, completion_id: u64, failure: Failure) {
        self.completed(completion_id, Err(failure));
    }

    /// An accepted batch has failed, and touches nothing here. Nobody knows for how long it touches the peer's memory, and nothing more is reported of
    /// it.
    fn lost_at_peer(&mut self, completion_id: u64, failure: Failure) {
        self.completed(completion_id, Err(failure));
    }
}

/// Something reference counted that one engine gives to another of the same process.
pub type Handle = std::sync::Arc<dyn std::any::Any + Send + Sync>;

/// One worker's private path to one peer. It is dropped once [`Lane::drain`] has said that it may be, and touches no memory any more then.
pub trait Lane: Send {
    /// Moves, or accepts to move, the spans of a batch.
    ///
    /// Memory that was withdrawn after [`Batch::checked_at`] must not be touched. A synchronous lane raises its hazard, compares
    /// both revisions with the gates, and copies before it lowers the hazard. One that accepts compares the local revision with
    /// this engine's gate, and the remote one with [`RemoteGateLog::replicated`](crate::RemoteGateLog::replicated), which must not
    /// be newer. Whenever it touches local memory later it raises the hazard, looks for withdrawals since `checked_at.local`, and
    /// keeps the hazard raised until the copy is over, or the kernel or the NIC has let go ([`crate::mediated::Touch`]); a NIC's
    /// operations are held in check by [`crate::Fence`] and by their completions instead. To a target that checks, it sends
    /// `checked_at.remote`, not a newer revision, which would hide withdrawals that the plan was never checked against.
    fn post(&mut self, batch: &Batch<'_>) -> Result<Posted, PostError>;

    /// Whether this lane takes posts whose local side is this region, which is memory of a device. Where not, what is posted goes through memory of the
    /// host. After [`crate::Registrar::reaches_device`] has said yes of a region the answer stays yes for as long as the region is what it was.
    fn reaches_device(&self, local_region: RegionKey) -> bool {
        let _ = local_region;
        false
    }

    /// A hint: this counter will be counted up once the bytes posted next have landed.
    fn prefetch(&self, counter: CounterRef) {
        let _ = counter;
    }

    /// Notifies the peer that all bytes of a transfer have landed. On an error nothing was sent: [`PostError::Full`], then it is
    /// tried again until the transfer's deadline, or [`PostError::Fault`].
    ///
    /// Where [`crate::Caps::ordered`], batches of that transfer may still be in flight on this lane: the peer is
    /// notified once they have landed, and not at all if one of them fails.
    fn notify(&mut self, request: &NotifyRequest<'_>) -> Result<NotifyPosted, PostError>;

    /// Sends what was accepted and not sent yet (rings the doorbell); waits for no completion. Called when the worker has
    /// nothing more to post for now.
    fn ring_doorbell(&mut self) -> Result<(), LaneFault> {
        Ok(())
    }

    /// Gives a handle to the peer without a copy. Where [`crate::Caps::hand_over`] is false this is
    /// [`PostError::Fault`] with [`Cause::NoPath`].
    fn hand_over(&mut self, note: Note<'_>, handle: &Handle) -> Result<(), PostError>;

    /// Cancels an accepted operation as far as this side can; the answer says what it may still touch. After `LocalPending` it
    /// may be asked again. A lane that accepts operations implements it.
    fn cancel_op(&mut self, completion_id: u64) -> CancelledOp {
        let _ = completion_id;
        CancelledOp::Quiesced
    }

    /// Whether a write may be reported as completed before its bytes are placed at the peer. Only where
    /// [`crate::Placement::AtNotification`].
    fn completes_before_placement(&self) -> bool {
        false
    }

    /// Proves that nothing of a transfer can land at the peer any more: all that was posted is placed or dropped. The
    /// caller posts nothing more of it. `Full` is tried again; after any other error nothing is proven. If it takes a round trip, this is [`NotifyPosted::Accepted`] and [`LaneEvents::completed`]
    /// reports the end. It cannot be cancelled; it ends when it is proven, or with the lane.
    fn flush_remote(&mut self, request: &FlushRequest) -> Result<NotifyPosted, PostError> {
        let _ = request;
        Ok(NotifyPosted::Delivered(true))
    }

    /// Takes a bounded number of notifications and completions, and does a bounded part of what the
    /// peer asks for. Returns whether there may be more; what waits for [`LaneEvents::reserve_note`] does not count.
    fn poll(&mut self, events: &mut dyn LaneEvents) -> Result<bool, LaneFault>;

    /// The session is over, and nothing more is posted: reports what ends meanwhile. Returns whether this lane touches no memory any more; it is dropped then.
    fn drain(&mut self, events: &mut dyn LaneEvents) -> bool {
        let _ = events;
        true
    }

    /// Why it is broken, in words for people, once [`Lane::poll`] or [`Lane::ring_doorbell`] has said that it is.
    fn why_broken(&self) -> Option<String> {
        None
    }
}
