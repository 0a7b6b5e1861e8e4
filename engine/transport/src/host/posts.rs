//! Posts: what an engine's owner writes and its peers only read.
//!
//! The segment is sealed so that a peer's mapping of it can only be read-only: nobody but its owner
//! can raise or clear a hazard, or withdraw memory.
//!
//! ```text
//! line 0     revision of the last deregistration or renewal; one more than that of the last withdrawal of anything but a whole region
//! lines      departures: for each party, how many sessions at that place have ended here
//! lines      gate: revision and the log of withdrawals
//! lines      life: the lock that the kernel marks when the engine's thread dies
//! lines      hazards, one for each (party, worker)
//! ```

use std::sync::Mutex;

use penstock_core::limits::{LINE_BYTES, PEERS_MAX, WITHDRAWALS_KEPT};
use penstock_memory::{LifeError, LifeLock, MemoryError, Segment};
use penstock_ring::gate::Withdrawals;
use penstock_ring::gate::{GATE_ENTRIES, HAZARD_BYTES};
use penstock_ring::life::LIFE_BYTES;
use penstock_ring::{
    GateReader, GateWriter, Hazard, HazardView, Lapped, Life, LifeView, Observation, Place, Published, Publisher,
    Withdrawal,
};

use crate::link::JoinError;

const REVOKED_OFFSET: usize = 8;
const DEPARTURES_OFFSET: usize = LINE_BYTES;
const GATE_OFFSET: usize = (DEPARTURES_OFFSET + PEERS_MAX * 8).next_multiple_of(LINE_BYTES);
const LIFE_OFFSET: usize = (GATE_OFFSET + GateWriter::BYTES).next_multiple_of(LINE_BYTES);
const HAZARDS_OFFSET: usize = (LIFE_OFFSET + LIFE_BYTES).next_multiple_of(LINE_BYTES);

const _: () = assert!(GATE_ENTRIES == WITHDRAWALS_KEPT, "the limit is what the log keeps");
const _: () = assert!(HAZARD_BYTES == LINE_BYTES, "hazards are laid out a line each");

/// The length of a withdrawal that takes a whole region back for good.
pub const WHOLE_REGION: u64 = u64::MAX;

/// In the length of a withdrawal: the range gets fresh memory, and who builds a plan over the region
/// from now on needs its next generation.
const RENEWED: u64 = 1 << 63;

/// Whether a withdrawal says that a range gets fresh memory.
pub fn is_renewal(withdrawal: &Withdrawal) -> bool {
    withdrawal.len != WHOLE_REGION && withdrawal.len & RENEWED != 0
}

/// How many bytes a withdrawal takes back.
pub fn withdrawn_bytes(withdrawal: &Withdrawal) -> u64 {
    if is_renewal(withdrawal) { withdrawal.len & !RENEWED } else { withdrawal.len }
}

/// Bytes of the posts of an engine with so many workers.
pub const fn posts_bytes(workers: usize) -> usize {
    HAZARDS_OFFSET + PEERS_MAX * workers * LINE_BYTES
}

fn departures_offset(party: u32) -> usize {
    DEPARTURES_OFFSET + party as usize * 8
}

fn hazard_offset(workers: usize, party: u32, worker: usize) -> usize {
    HAZARDS_OFFSET + (party as usize * workers + worker) * LINE_BYTES
}

/// This engine's own posts.
pub struct Posts {
    segment: Segment,
    place: Place,
    workers: usize,
    gate: Mutex<GateWriter>,
    deregistered: Publisher,
    revoked: Publisher,
    view: PostsView,
}

impl Posts {
    /// Fresh posts for an engine with so many workers.
    pub fn create(workers: usize) -> Result<Self, MemoryError> {
        let segment = Segment::create_owner_writes_only("penstock-posts", posts_bytes(workers) as u64)?;
        let place = segment.place();
        let gate = GateWriter::mapped(&place, GATE_OFFSET).expect("the gate lies inside the segment");
        let deregistered = Publisher::mapped(&place, 0).expect("the segment has a first word");
        let revoked = Publisher::mapped(&place, REVOKED_OFFSET).expect("the segment has a first line");
        revoked.publish(1);
        let view = PostsView::over(place.clone(), workers).expect("these are our own, whole posts");
        Ok(Self { segment, place, workers, gate: Mutex::new(gate), deregistered, revoked, view })
    }

    /// The segment, to be passed to peers.
    pub fn segment(&self) -> &Segment {
        &self.segment
    }

    /// The hazard that `worker` raises while it copies for `party`. One owner at a time.
    pub fn hazard(&self, party: u32, worker: usize) -> Hazard {
        let offset = hazard_offset(self.workers, party, worker);
        Hazard::mapped(&self.place, offset).expect("party and worker are bounded by their tables")
    }

    /// Withdraws memory: whoever copies from now on, by the returned revision, will see it.
    pub fn withdraw(&self, withdrawals: &[Withdrawal]) -> u64 {
        let mut gate = self.gate.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        self.revoked.publish(gate.revision() + withdrawals.len() as u64 + 1);
        gate.withdraw(withdrawals)
    }

    /// Withdraws a whole region for good.
    pub fn withdraw_region(&self, region: u32, generation: u32) -> u64 {
        let mut gate = self.gate.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // Published first: who finds the new revision finds this too, and knows the region is gone.
        self.deregistered.publish(gate.revision() + 1);
        gate.withdraw(&[Withdrawal { region, generation, offset: 0, len: WHOLE_REGION }])
    }

    /// Withdraws ranges, given as (offset, length), that get fresh memory.
    pub fn withdraw_renewed(&self, region: u32, generation: u32, ranges: &[(u64, u64)]) -> u64 {
        let mut gate = self.gate.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        // As for a whole region: whoever builds a plan has to look into the log until the news has come.
        let revision = gate.revision() + ranges.len() as u64;
        self.deregistered.publish(revision);
        self.revoked.publish(revision + 1);
        let withdrawal = |&(offset, len)| Withdrawal { region, generation, offset, len: len | RENEWED };
        gate.withdraw(&ranges.iter().map(withdrawal).collect::<Vec<_>>())
    }

    /// All workers have left the session at this place: none of them copies for it any more.
    pub fn depart(&self, party: u32) {
        let word =
            Publisher::mapped(&self.place, departures_offset(party)).expect("parties are bounded by their table");
        word.publish(word.reader().read().wrapping_add(1));
    }

    /// The calling thread stands for this engine from now on, until the lock is dropped: its death is
    /// marked here for peers to see. At most once.
    pub fn live(&self) -> Result<LifeLock, LifeError> {
        LifeLock::take(&self.segment, LIFE_OFFSET)
    }

    /// What a peer sees of these posts; also how this engine sees its own.
    pub fn view(&self) -> &PostsView {
        &self.view
    }
}

/// An engine's posts as others see them.
#[derive(Clone)]
pub struct PostsView {
    place: Place,
    workers: usize,
    gate: GateReader,
    deregistered: Published,
    revoked: Published,
    life: LifeView,
}

/// A worker that was seen copying between two engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Busy {
    party: u32,
    worker: usize,
    seen: Observation,
}

impl PostsView {
    /// Looks at posts of an engine with so many workers.
    pub fn over(place: Place, workers: usize) -> Result<Self, JoinError> {
        if place.len() < posts_bytes(workers) {
            return Err(JoinError::Garbled("its posts are too small for its workers"));
        }
        let gate = GateReader::mapped(&place, GATE_OFFSET).map_err(|_| JoinError::Garbled("its posts hold no gate"))?;
        let deregistered = Published::mapped(&place, 0).map_err(|_| JoinError::Garbled("its posts are empty"))?;
        let revoked =
            Published::mapped(&place, REVOKED_OFFSET).map_err(|_| JoinError::Garbled("its posts are empty"))?;
        let life = LifeView::mapped(&place, LIFE_OFFSET).map_err(|_| JoinError::Garbled("its posts hold no life"))?;
        Ok(Self { place, workers, gate, deregistered, revoked, life })
    }

    /// The gate's revision now.
    #[inline]
    pub fn revision(&self) -> u64 {
        self.gate.revision()
    }

    /// What was withdrawn after revision `since`.
    pub fn withdrawals_since(&self, since: u64) -> Result<Withdrawals, Lapped> {
        self.gate.withdrawals_since(since)
    }

    /// The revision of the last deregistration of a whole region, or renewal of a part of one.
    pub fn deregistered(&self) -> u64 {
        self.deregistered.read()
    }

    /// Whether anything but whole regions may have been withdrawn after revision `since`.
    pub fn has_revoked_since(&self, since: u64) -> bool {
        // Zero: an engine that does not say.
        self.revoked.read().checked_sub(1).is_none_or(|revoked| revoked > since)
    }

    /// How many sessions at this place have ended on the owner's side. Another number than at the
    /// beginning of a session is the proof that the owner's workers have left it.
    pub fn departures(&self, party: u32) -> u64 {
        Published::mapped(&self.place, departures_offset(party)).map_or(0, |word| word.read())
    }

    /// Whether the thread that stands for the owner still lives. Its death ends the session; it is no
    /// proof that nothing lands any more, since other threads of that process may still copy.
    pub fn life(&self) -> Life {
        self.life.look()
    }

    /// The workers that are copying for `party` at this moment, appended to `busy`.
    pub fn observe(&self, party: u32, busy: &mut Vec<Busy>) {
        for worker in 0..self.workers {
            let seen = self.hazard(party, worker).observe();
            if !matches!(seen, Observation::Quiet) {
                busy.push(Busy { party, worker, seen });
            }
        }
    }

    /// Whether a worker that was seen copying has finished what it was copying then.
    pub fn has_settled(&self, busy: &Busy) -> bool {
        self.hazard(busy.party, busy.worker).has_moved_since(busy.seen)
    }

    fn hazard(&self, party: u32, worker: usize) -> HazardView {
        let offset = hazard_offset(self.workers, party, worker);
        HazardView::mapped(&self.place, offset).expect("the view's size was checked")
    }
}
