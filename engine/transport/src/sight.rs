//! What this engine can see of a peer's memory matters: its withdrawals, and who of it is copying.
//!
//! Peers on one host show each other words in shared memory. Peers on different hosts only tell each
//! other, so what is known here is as old as the last word that came; then the peer itself checks
//! every operation before it touches a byte, and nothing here has to be proven about it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use penstock_ring::gate::Withdrawals;
use penstock_ring::{Lapped, Life};

use crate::host::{Busy, PeerCommons};
use crate::lane::CounterRef;

/// What this engine can see of a peer.
#[derive(Clone)]
pub enum Sight {
    /// Words of the peer in memory that both map.
    Shared(Arc<PeerCommons>),
    /// Only what it has told. It reaches this engine's memory through this engine's own workers.
    Told(Arc<Told>),
}

/// What a peer on another host has told of its withdrawals.
#[derive(Debug, Default)]
pub struct Told {
    revision: AtomicU64,
}

impl Told {
    /// The peer has said that its log of withdrawn memory has come this far.
    pub fn hear(&self, revision: u64) {
        // Relaxed: an older value only makes the peer refuse what it need not have.
        self.revision.fetch_max(revision, Ordering::Relaxed);
    }

    /// How far its log had come when it was last heard of.
    pub fn revision(&self) -> u64 {
        self.revision.load(Ordering::Relaxed)
    }
}

impl Sight {
    /// The revision of the peer's log of withdrawn memory, as far as it is known here.
    #[inline]
    pub fn revision(&self) -> u64 {
        match self {
            Self::Shared(commons) => commons.posts.revision(),
            Self::Told(told) => told.revision(),
        }
    }

    /// What the peer withdrew after revision `since`, as far as it can be seen from here: who is only told
    /// sees nothing, and is refused by the peer where it matters. It must not count as having looked either: the
    /// peer compares with the revision that a plan was really checked against.
    pub fn withdrawals_since(&self, since: u64) -> Result<Withdrawals, Lapped> {
        match self {
            Self::Shared(commons) => commons.posts.withdrawals_since(since),
            Self::Told(_) => Ok(Withdrawals { revision: since, list: Vec::new() }),
        }
    }

    /// The revision of the peer's last deregistration of a whole region, or renewal of a part of one; zero where
    /// announcements are all that is known.
    pub fn deregistered(&self) -> u64 {
        match self {
            Self::Shared(commons) => commons.posts.deregistered(),
            Self::Told(_) => 0,
        }
    }

    /// How many sessions at this place of its table have ended on the peer's side.
    pub fn departures(&self, party: u32) -> u64 {
        match self {
            Self::Shared(commons) => commons.posts.departures(party),
            Self::Told(_) => 0,
        }
    }

    /// Whether the thread that stands for the peer lives.
    pub fn life(&self) -> Life {
        match self {
            Self::Shared(commons) => commons.posts.life(),
            Self::Told(_) => Life::Unknown,
        }
    }

    /// Whether the peer's own processors can reach this engine's memory.
    pub fn can_write(&self) -> bool {
        matches!(self, Self::Shared(_))
    }

    /// The peer's workers that are copying for `party` at this moment, appended to `busy`.
    pub fn observe(&self, party: u32, busy: &mut Vec<Busy>) {
        if let Self::Shared(commons) = self {
            commons.posts.observe(party, busy);
        }
    }

    /// Whether a worker of the peer that was seen copying has finished what it was copying then.
    pub fn has_settled(&self, busy: &Busy) -> bool {
        match self {
            Self::Shared(commons) => commons.posts.has_settled(busy),
            Self::Told(_) => true,
        }
    }

    /// Whether a counter that was announced still stands, as far as can be known here.
    pub fn counter_stands(&self, counter: CounterRef) -> bool {
        match self {
            Self::Shared(commons) => {
                commons.mail.counter(counter.index).is_some_and(|cell| cell.generation() == counter.generation)
            }
            Self::Told(_) => true,
        }
    }

    /// Takes the peer's word for how far its log has come.
    pub fn hear(&self, revision: u64) {
        if let Self::Told(told) = self {
            told.hear(revision);
        }
    }
}
