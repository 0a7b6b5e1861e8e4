//! What a submitted transfer looks like to a worker.

use std::sync::Arc;
use std::time::Duration;

use penstock_core::{NoteId, Notified, Timestamp};
use penstock_ring::Key;
use penstock_transport::lane::Handle;
use penstock_transport::{CounterRef, Revisions};

use crate::peer_state::PeerState;
use crate::plan::Plan;

/// Which transfers a worker advances first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Priority {
    /// Ahead of bulk transfers: each turn moves at most 64 units of urgent ones, then a few of bulk ones.
    Urgent = 0,
    /// In turns with its like, a unit at a time.
    #[default]
    Bulk = 1,
}

/// Notification and counter increment that the peer gets once all bytes have landed. The payload is kept with the slot.
#[derive(Clone, Default)]
pub(crate) struct NotifySpec {
    pub(crate) counter: Option<CounterRef>,
    pub(crate) note: Option<NoteId>,
    pub(crate) handle: Option<Handle>,
}

impl NotifySpec {
    pub(crate) fn is_empty(&self) -> bool {
        self.counter.is_none() && self.note.is_none()
    }
}

/// A transfer on its way to a worker: a fixed size, moved inline.
pub(crate) struct Command {
    pub(crate) key: Key,
    /// What to move; none for a notification alone.
    pub(crate) plan: Option<Plan>,
    pub(crate) peer: Arc<PeerState>,
    pub(crate) notify: NotifySpec,
    pub(crate) timeout: Duration,
    pub(crate) priority: Priority,
    /// Other workers have it as well.
    pub(crate) is_split: bool,
    /// Another worker had it first.
    pub(crate) is_helper: bool,
}

impl Command {
    pub(crate) fn units(&self) -> u64 {
        self.plan.as_ref().map_or(0, |plan| plan.inner.shape.units())
    }
}

/// A transfer in a worker's hands.
pub(crate) struct Active {
    pub(crate) command: Command,
    /// The state of withdrawn memory it was last checked against.
    pub(crate) expected: Revisions,
    /// Armed when it survives its first turn.
    pub(crate) deadline: Timestamp,
    /// The unit in this worker's hands that its lane had no room for, and how far it came.
    pub(crate) at: Option<PlanPosition>,
    /// Batches of it that this worker's lane has under way.
    pub(crate) in_flight: u32,
    /// It waits for room in its lane, not only for batches under way.
    pub(crate) stalled: bool,
    /// How far this worker has cancelled it.
    pub(crate) cancel_level: CancelLevel,
    /// State of its notification.
    pub(crate) notify_state: NotifyState,
    /// True if the lane reports writes before they are placed. The slot is then `remote_pending` until a notification, a
    /// remote flush or success clears it.
    pub(crate) needs_flush: bool,
}

/// State of a notification that completes asynchronously.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotifyState {
    NotPosted,
    /// Posted behind the batches of its transfer on the same lane, with this completion id.
    PostedOrdered(u64),
    /// Posted with this completion id after all batches of the transfer had ended.
    PostedLast(u64),
    /// Completed, with this result.
    Completed(Notified),
}

impl Active {
    pub(crate) fn new(command: Command, expected: Revisions) -> Self {
        Self {
            command,
            expected,
            deadline: Timestamp::NEVER,
            at: None,
            in_flight: 0,
            stalled: false,
            cancel_level: CancelLevel::None,
            notify_state: NotifyState::NotPosted,
            needs_flush: false,
        }
    }

    /// Whether the peer was notified, if the transfer ends now.
    pub(crate) fn notified(&self) -> Notified {
        match self.notify_state {
            _ if self.command.notify.is_empty() => Notified::NotAsked,
            NotifyState::NotPosted => Notified::No,
            NotifyState::PostedOrdered(_) | NotifyState::PostedLast(_) => Notified::Unknown,
            NotifyState::Completed(notified) => notified,
        }
    }
}

/// How far a transfer with operations in flight was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CancelLevel {
    None,
    /// It ends when all its operations have ended, also those that only the peer still executes.
    WaitForPeer,
    /// It ends now; operations still in flight are detached.
    Immediate,
}

/// A position in a plan: the next span of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PlanPosition {
    pub(crate) unit: u64,
    /// Spans of it that are posted already.
    pub(crate) spans: usize,
}

impl PlanPosition {
    /// Where a unit begins.
    pub(crate) fn start_of(unit: u64) -> Self {
        Self { unit, spans: 0 }
    }
}
