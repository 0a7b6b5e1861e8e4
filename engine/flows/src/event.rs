//! What comes in.

use penstock_core::{Cause, EngineName};
use penstock_session::PeerKey;
use penstock_session::control::ControlMessage;

use crate::action::{MoveId, WatchId};
use crate::manager::GateId;

/// Something has happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A session has begun. What the peer says next, as far as it concerns this layer, is [`PeerFeatures`](penstock_session::control::PeerFeatures), or it is
    /// [`Event::Unable`].
    Joined {
        peer: PeerKey,
        /// What it is called.
        name: EngineName,
    },
    /// A peer has said everything that it says when a session begins, and not that it speaks of transfers: its release is older.
    Unable {
        /// Who.
        peer: PeerKey,
    },
    /// A peer has said something.
    Said {
        /// Who.
        peer: PeerKey,
        /// What.
        said: ControlMessage,
    },
    /// A note behind bytes has come that is the control layer's.
    Landing {
        /// From whom.
        peer: PeerKey,
        /// Its payload.
        bytes: Vec<u8>,
    },
    /// A session is over. That is no proof that nothing of it can land any more.
    Left {
        /// With whom.
        peer: PeerKey,
        /// Why.
        cause: Cause,
    },
    /// What was to be moved has ended: so many bytes, or why not.
    Ended {
        /// Which.
        id: MoveId,
        /// How.
        result: Result<u64, Cause>,
        /// The peer's side may still be at its memory: [`Event::Closed`] follows when it is not.
        is_open_there: bool,
    },
    /// What was open there is not any more.
    Closed {
        /// Which.
        id: MoveId,
    },
    /// A peer is in no copy any more that began before the watch.
    Quiet {
        /// Which watch.
        id: WatchId,
    },
    /// The application's fence in front of layers was opened.
    Gate {
        /// Which.
        gate: GateId,
    },
}
