//! Notifications that arrived, until the application takes them.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use penstock_core::{EngineName, NoteId};
use penstock_transport::lane::Handle;

use crate::peer_state::PeerState;

/// A notification that arrived, after all bytes of its transfer.
pub struct Notification {
    /// Name of the engine that sent it.
    pub peer: EngineName,
    /// The sender's id for it.
    pub id: NoteId,
    /// Up to 4 KiB.
    pub payload: Vec<u8>,
    /// What a peer of the same process handed over, if anything.
    pub handle: Option<Handle>,
}

impl std::fmt::Debug for Notification {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Notification")
            .field("peer", &self.peer)
            .field("id", &self.id)
            .field("bytes", &self.payload.len())
            .field("handed_over", &self.handle.is_some())
            .finish()
    }
}

struct Held {
    notification: Notification,
    sender: Arc<PeerState>,
}

/// Arrived notifications, in the order in which the workers saw them.
///
/// Each peer has its own credits for it, so that a peer that floods it makes only itself wait.
#[derive(Default)]
pub(crate) struct Inbox {
    held: Mutex<VecDeque<Held>>,
    arrived: Condvar,
    /// Notifications ever put in; changes when there is something new.
    total: AtomicU64,
}

impl Inbox {
    fn lock(&self) -> MutexGuard<'_, VecDeque<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts one in. The caller has taken one of the sender's credits for it.
    pub(crate) fn put(&self, sender: &Arc<PeerState>, id: NoteId, payload: &[u8], handle: Option<Handle>) {
        let notification = Notification { peer: sender.name.clone(), id, payload: payload.to_vec(), handle };
        self.lock().push_back(Held { notification, sender: Arc::clone(sender) });
        self.total.fetch_add(1, Ordering::Release); // SYNC inbox: pairs with total()
        self.arrived.notify_one();
    }

    /// How many were ever put in.
    pub(crate) fn total(&self) -> u64 {
        self.total.load(Ordering::Acquire) // SYNC inbox: pairs with put()
    }

    /// Appends all that are there to `taken` and gives their credits back. Calls `starved` for a
    /// sender that may have been waiting for them.
    pub(crate) fn take(
        &self,
        taken: &mut Vec<Notification>,
        most: usize,
        mut starved: impl FnMut(&PeerState),
    ) -> usize {
        let mut held = self.lock();
        let count = held.len().min(most);
        for Held { notification, sender } in held.drain(..count) {
            taken.push(notification);
            let was_short = sender.inbox_credits.available() == 0;
            sender.inbox_credits.give_back(1).expect("a credit was taken when the notification was put in");
            if was_short {
                starved(&sender);
            }
        }
        count
    }

    /// Sleeps until there is a notification or the time is over. Answers whether there is one.
    pub(crate) fn sleep(&self, within: Duration, is_over: impl Fn() -> bool) -> bool {
        let held = self.lock();
        let (held, _) = self
            .arrived
            .wait_timeout_while(held, within, |held| held.is_empty() && !is_over())
            .unwrap_or_else(PoisonError::into_inner);
        !held.is_empty()
    }

    /// Wakes all who sleep.
    pub(crate) fn wake_all(&self) {
        // Whoever is about to sleep has the lock until it does.
        drop(self.lock());
        self.arrived.notify_all();
    }

    pub(crate) fn len(&self) -> usize {
        self.lock().len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }
}
