//! Proof that nothing lands any more.
//!
//! Whoever wants memory back withdraws it in this engine's gate and then looks at the hazards of
//! everyone who could be copying: its own workers and each peer's. Who is quiet, or moves on, has
//! seen the withdrawal or will see it before its next copy. Who does neither until the deadline was
//! stopped in the middle of a copy: the memory is quarantined, and the same word moving later, or
//! the death of its process, is the proof that releases it.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use penstock_core::{EngineName, Env, RegionId};
use penstock_memory::Blocks;
use penstock_ring::Withdrawal;
use penstock_transport::host::{Busy, Commons};

use crate::hub::Hub;
use crate::peer_state::PeerState;

/// Whether anything can still touch this engine's memory.
#[derive(Debug)]
#[must_use = "quarantined memory may not be reused"]
pub enum Hold {
    /// Nothing can.
    Quiesced,
    /// A stopped or unreachable party might.
    Quarantined(Quarantined),
}

impl Hold {
    /// Whether nothing can touch the memory any more.
    pub fn is_quiesced(&self) -> bool {
        matches!(self, Self::Quiesced)
    }
}

/// The same about the peer's memory.
#[derive(Debug)]
pub enum RemoteHold {
    /// Nothing of this transfer can land there any more.
    Quiesced,
    /// Something of it might.
    Quarantined(Quarantined),
    /// It cannot be known from here.
    Unknown,
}

/// What a cancel answers, once for each owner of memory.
#[derive(Debug)]
#[must_use = "quarantined memory may not be reused"]
pub struct Answer {
    /// This engine's memory.
    pub local: Hold,
    /// The peer's memory.
    pub remote: RemoteHold,
}

/// Memory that somebody might still touch.
///
/// Blocks of a pool that lie in it are kept out of reuse by themselves; caller memory must be kept
/// by its owner until [`Quarantined::is_released`] says so.
#[derive(Clone)]
pub struct Quarantined(Arc<Entry>);

struct Entry {
    label: String,
    extents: Vec<(u64, u64)>,
    ours: Arc<Commons>,
    witnesses: Vec<Witness>,
    released: AtomicBool,
    kept: Mutex<Vec<Blocks>>,
}

/// Somebody who was seen in the middle of a copy and has not moved since.
struct Witness {
    /// The peer, or none for a worker of this engine.
    peer: Option<Arc<PeerState>>,
    busy: Busy,
}

impl Witness {
    fn has_settled(&self, ours: &Commons) -> bool {
        match &self.peer {
            None => ours.posts.view().has_settled(&self.busy),
            Some(peer) => peer.commons.posts.has_settled(&self.busy) || peer.process.is_dead(),
        }
    }
}

impl Quarantined {
    /// Whether it is proven by now that nothing can touch the memory any more.
    pub fn is_released(&self) -> bool {
        let entry = &self.0;
        // SYNC released: pairs with the store below
        if entry.released.load(Ordering::Acquire) {
            return true;
        }
        if !entry.witnesses.iter().all(|witness| witness.has_settled(&entry.ours)) {
            return false;
        }
        entry.released.store(true, Ordering::Release); // SYNC released: pairs with the load above
        entry.kept.lock().unwrap_or_else(PoisonError::into_inner).clear();
        true
    }

    /// The label of the region.
    pub fn region(&self) -> &str {
        &self.0.label
    }

    /// What is quarantined, as (offset, length) in bytes.
    pub fn extents(&self) -> &[(u64, u64)] {
        &self.0.extents
    }

    /// Who might still touch it; none stands for a worker of this engine.
    pub fn suspects(&self) -> Vec<Option<EngineName>> {
        self.0.witnesses.iter().map(|witness| witness.peer.as_ref().map(|peer| peer.name.clone())).collect()
    }
}

impl fmt::Debug for Quarantined {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Quarantined")
            .field("region", &self.0.label)
            .field("extents", &self.0.extents)
            .field("suspects", &self.suspects())
            .field("released", &self.0.released)
            .finish()
    }
}

/// Everything quarantined in one engine.
#[derive(Default)]
pub(crate) struct Quarantine {
    entries: Mutex<Vec<Quarantined>>,
}

impl Quarantine {
    fn lock(&self) -> MutexGuard<'_, Vec<Quarantined>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, entry: Entry) -> Quarantined {
        let entry = Quarantined(Arc::new(entry));
        self.lock().push(entry.clone());
        entry
    }

    /// What is still quarantined at this moment.
    pub(crate) fn list(&self) -> Vec<Quarantined> {
        let mut entries = self.lock();
        entries.retain(|entry| !entry.is_released());
        entries.clone()
    }
}

/// Whose copying is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Writers {
    /// This engine's workers and every peer's.
    Everyone,
    /// This engine's workers, as far as they work for one peer.
    OursFor(u32),
}

/// What is to become quiet.
pub(crate) struct Subject<'a> {
    pub(crate) label: &'a str,
    pub(crate) extents: &'a [(u64, u64)],
    pub(crate) kept: Vec<Blocks>,
}

impl<E: Env> Hub<E> {
    /// Withdraws ranges of a region from everyone.
    pub(crate) fn withdraw(&self, region: RegionId, generation: u32, extents: &[(u64, u64)]) {
        let withdrawal = |&(offset, len): &(u64, u64)| Withdrawal { region: region.0, generation, offset, len };
        let list: Vec<Withdrawal> = extents.iter().map(withdrawal).collect();
        self.shared.commons.posts.withdraw(&list);
    }

    /// Waits until everyone who was copying has finished what it was copying, at most `within`.
    pub(crate) fn settle(&self, writers: Writers, subject: Subject<'_>, within: Duration) -> Hold {
        let mut witnesses = self.witnesses(writers);
        let ours = &self.shared.commons;
        let settled = |witnesses: &mut Vec<Witness>| {
            witnesses.retain(|witness| !witness.has_settled(ours));
            witnesses.is_empty()
        };
        let until = self.shared.env.now() + within;
        if settled(&mut witnesses) || self.wait_until(until, || settled(&mut witnesses)) {
            return Hold::Quiesced;
        }
        for witness in &witnesses {
            let peer = witness.peer.as_ref().map_or("a worker of this engine", |peer| peer.name.as_str());
            tracing::warn!(region = subject.label, peer, "stopped in the middle of a copy: memory is quarantined");
        }
        Hold::Quarantined(self.shared.quarantine.insert(Entry {
            label: subject.label.to_owned(),
            extents: subject.extents.to_vec(),
            ours: Arc::clone(ours),
            witnesses,
            released: AtomicBool::new(false),
            kept: Mutex::new(subject.kept),
        }))
    }

    fn witnesses(&self, writers: Writers) -> Vec<Witness> {
        let ours = self.shared.commons.posts.view();
        let mut witnesses = Vec::new();
        let mut busy = Vec::new();
        let peers = match writers {
            Writers::Everyone => self.shared.peers.possible_writers(),
            Writers::OursFor(party) => {
                ours.observe(party, &mut busy);
                Vec::new()
            }
        };
        for peer in &peers {
            ours.observe(peer.party, &mut busy);
        }
        witnesses.extend(busy.drain(..).map(|busy| Witness { peer: None, busy }));
        for peer in peers {
            peer.commons.posts.observe(peer.their_party, &mut busy);
            witnesses.extend(busy.drain(..).map(|busy| Witness { peer: Some(Arc::clone(&peer)), busy }));
        }
        witnesses
    }
}
