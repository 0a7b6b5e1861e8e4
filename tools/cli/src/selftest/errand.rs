//! What the target is asked to do, and its answers: one JSON value a line between two processes.

use penstock::Notification;
use serde::{Deserialize, Serialize};

use super::pattern::{Stamp, Wrong};

/// Something the target is asked to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Errand {
    /// Give the descriptor.
    Card,
    /// Fill the whole pool.
    Fill(Stamp),
    /// Set the whole pool to zeros.
    Clear,
    /// Look at the whole pool: everything written has arrived, and nothing else has changed.
    CheckWritten(Stamp),
    /// Look at the whole pool: nothing has arrived.
    CheckClear,
    /// Look at one block: nothing has arrived in it.
    CheckBlockClear(u32),
    /// Change one byte of a block: sabotage.
    Flip(u32),
    /// Say how many arrivals were counted, once there are as many as this.
    Count(u64),
    /// Hand over the notifications, once there are as many as this.
    Notes(usize),
    /// Send a notification with this payload to the one peer.
    Notify(Vec<u8>),
    /// Take a block back from everyone.
    Revoke(u32),
    /// Wait until no peer is left.
    SeeOff,
    /// End at once, without a word: sabotage.
    Crash,
}

/// What the target answers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// Done, and well.
    Done,
    /// The descriptor.
    Card(Vec<u8>),
    /// The first wrong byte.
    Wrong(Wrong),
    /// Arrivals so far.
    Count(u64),
    /// Notifications, in the order in which they came.
    Notes(Vec<Note>),
    /// Not done, and why.
    Failed(String),
}

/// A notification as it arrived.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Note {
    pub(crate) id: u64,
    pub(crate) payload: Vec<u8>,
}

impl From<Notification> for Note {
    fn from(arrived: Notification) -> Self {
        // The test's own ids are small; another one is wrong whatever is left of it.
        Self { id: u64::try_from(arrived.id.0).unwrap_or(u64::MAX), payload: arrived.payload }
    }
}
