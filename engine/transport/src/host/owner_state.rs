//! Owner state: what an engine writes and its peers only read.
//!
//! The segment is sealed so that a peer's mapping of it can only be read-only: nobody but the engine that owns it
//! can raise or clear a hazard, withdraw memory, or say whether its threads sleep.
//!
//! ```text
//! line 0     revision of the last deregistration or renewal
//! lines      ended sessions: for each peer index, how many sessions at it have ended here
//! lines      gate: revision and the log of withdrawals
//! lines      liveness lock, which the kernel marks when the engine's thread dies
//! lines      by region, modulo their number: the revision of the last withdrawal of anything of it
//! lines      bells: the sleep of the application and of each worker
//! lines      hazards, one for each (peer index, worker)
//! ```

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use penstock_core::limits::{LINE_BYTES, PEERS_MAX, WITHDRAWALS_KEPT};
use penstock_core::plan::RegionKey;
use penstock_memory::{LivenessError, LivenessLock, MemoryError, Segment};
use penstock_ring::bell::BELL_BYTES;
use penstock_ring::gate::Withdrawals;
use penstock_ring::gate::{GATE_ENTRIES, HAZARD_BYTES};
use penstock_ring::life::LIFE_BYTES;
use penstock_ring::{
    GateReader, GateWriter, Hazard, HazardView, Liveness, LivenessView, LogOverrun, Observation, Published, Publisher,
    Ringer, SharedRange, Sleeper, Withdrawal,
};

use super::held_pages::{HeldPages, OlderPages};
use crate::link::JoinError;

const ENDED_SESSIONS_OFFSET: usize = LINE_BYTES;
const GATE_OFFSET: usize = (ENDED_SESSIONS_OFFSET + PEERS_MAX * 8).next_multiple_of(LINE_BYTES);
const LIVENESS_OFFSET: usize = (GATE_OFFSET + GateWriter::BYTES).next_multiple_of(LINE_BYTES);
const LAST_OFFSET: usize = (LIVENESS_OFFSET + LIFE_BYTES).next_multiple_of(LINE_BYTES);
const BELLS_OFFSET: usize = (LAST_OFFSET + WITHDRAWAL_BUCKETS * 8).next_multiple_of(LINE_BYTES);

const _: () = assert!(GATE_ENTRIES == WITHDRAWALS_KEPT, "the limit is what the log keeps");
const _: () = assert!(BELL_BYTES == LINE_BYTES, "bells are laid out a line each");
const _: () = assert!(HAZARD_BYTES == LINE_BYTES, "hazards are laid out a line each");

/// Entries the owner keeps to send to peers without shared memory. A peer that misses more gets `PlanTooOld` for older plans.
const HISTORY_MAX: usize = 64 * WITHDRAWALS_KEPT;

/// Buckets for the last withdrawals of regions, by region id. A region may seem withdrawn because another one of its bucket was.
pub(crate) const WITHDRAWAL_BUCKETS: usize = 4096;

/// The length of a withdrawal that takes a whole region back for good.
pub const WHOLE_REGION: u64 = u64::MAX;

/// Flag in the length of a withdrawal: the range gets new pages. Plans built after it need the region's next generation.
const RENEWED: u64 = 1 << 63;

/// Whether a withdrawal says that a range gets fresh memory.
pub fn is_renewal(withdrawal: &Withdrawal) -> bool {
    withdrawal.len != WHOLE_REGION && withdrawal.len & RENEWED != 0
}

/// How many bytes a withdrawal takes back.
pub fn withdrawn_bytes(withdrawal: &Withdrawal) -> u64 {
    if is_renewal(withdrawal) { withdrawal.len & !RENEWED } else { withdrawal.len }
}

/// Bytes of the owner state of an engine with so many workers.
pub const fn owner_state_bytes(workers: usize) -> usize {
    hazards_offset(workers) + PEERS_MAX * workers * LINE_BYTES
}

const fn hazards_offset(workers: usize) -> usize {
    BELLS_OFFSET + (1 + workers) * LINE_BYTES
}

fn bell_offset(bell: usize) -> usize {
    BELLS_OFFSET + bell * LINE_BYTES
}

fn ended_sessions_offset(peer_index: u32) -> usize {
    ENDED_SESSIONS_OFFSET + peer_index as usize * 8
}

fn last_offset(region: u32) -> usize {
    LAST_OFFSET + region as usize % WITHDRAWAL_BUCKETS * 8
}

fn hazard_offset(workers: usize, peer_index: u32, worker: usize, whose: HazardOf) -> usize {
    hazards_offset(workers) + (peer_index as usize * workers + worker) * LINE_BYTES + whose as usize
}

/// The hazards of a worker and a peer lie in one line, at these bytes of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HazardOf {
    /// The lane's.
    Lane = 0,
    /// Of copies that the kernel makes for it into and out of a peer's memory: only the peer looks at it, as this engine's own pages are counted.
    Kernel = 16,
    /// Of calls that leave devices with copies into and out of staging memory, which only the owner itself looks at.
    Staging = 32,
}

/// This engine's own state.
pub struct OwnerState {
    segment: Segment,
    range: SharedRange,
    workers: usize,
    gate: Mutex<Gate>,
    last_region_change: Publisher,
    /// What lanes have left with the kernel and with devices; of a lane that is gone until those have let go.
    held_pages: Mutex<Vec<Arc<HeldPages>>>,
    view: OwnerStateView,
}

struct Gate {
    writer: GateWriter,
    /// The newest entries of the log, more than the shared segment holds.
    history: VecDeque<Withdrawal>,
}

impl OwnerState {
    /// Fresh state for an engine with so many workers.
    pub fn create(workers: usize) -> Result<Self, MemoryError> {
        let segment = Segment::create_owner_writes_only("penstock-owner-state", owner_state_bytes(workers) as u64)?;
        let range = segment.range();
        let writer = GateWriter::mapped(&range, GATE_OFFSET).expect("the gate lies inside the segment");
        let last_region_change = Publisher::mapped(&range, 0).expect("the segment has a first word");
        let view = OwnerStateView::over(range.clone(), workers).expect("this is our own, whole state");
        let gate = Mutex::new(Gate { writer, history: VecDeque::new() });
        Ok(Self { segment, range, workers, gate, last_region_change, held_pages: Mutex::default(), view })
    }

    /// The segment, to be passed to peers.
    pub fn segment(&self) -> &Segment {
        &self.segment
    }

    /// The hazard that `worker` raises while it copies for `peer_index`. At most one `Hazard` may exist for the pair at a time.
    pub fn hazard(&self, peer_index: u32, worker: usize) -> Hazard {
        self.hazard_of(peer_index, worker, HazardOf::Lane)
    }

    /// The hazard that is raised while devices are given copies between this engine's memory and staging memory for that lane. As for the other, at most
    /// one may exist.
    pub fn staging_hazard(&self, peer_index: u32, worker: usize) -> Hazard {
        self.hazard_of(peer_index, worker, HazardOf::Staging)
    }

    /// Where a lane counts what it leaves with the kernel.
    pub fn held_pages(&self, peer_index: u32, worker: usize) -> Arc<HeldPages> {
        self.hold_under((peer_index, worker), Some(HazardOf::Lane))
    }

    /// Where it counts what devices have for it, between this engine's memory and staging memory.
    pub fn held_by_staging(&self, peer_index: u32, worker: usize) -> Arc<HeldPages> {
        self.hold_under((peer_index, worker), Some(HazardOf::Staging))
    }

    /// Where a lane of the peer, which is in this process, counts what devices have of this engine's memory for it.
    pub fn held_by_peer(&self, peer_index: u32, worker: usize) -> Arc<HeldPages> {
        self.hold_under((peer_index, worker), None)
    }

    fn hold_under(&self, lane: (u32, usize), whose: Option<HazardOf>) -> Arc<HeldPages> {
        let pages = HeldPages::new(lane, whose);
        let mut all = self.all_held_pages();
        all.retain(|pages| Arc::strong_count(pages) > 1);
        all.push(Arc::clone(&pages));
        pages
    }

    fn all_held_pages(&self) -> MutexGuard<'_, Vec<Arc<HeldPages>>> {
        self.held_pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What may be touching this engine's memory at this moment for these peers: its workers, and the kernel and devices, as far as they have pages from before this
    /// revision of the region that was registered with this key (none: any pages).
    pub fn observe(&self, peers: Range<u32>, region: Option<RegionKey>, revision: u64) -> Vec<OwnActivity> {
        let (mut busy, mut found) = (Vec::new(), Vec::new());
        for peer_index in peers.clone() {
            self.view.observe_each(peer_index, &[HazardOf::Lane, HazardOf::Staging], &mut busy);
        }
        // Looked at behind the hazards: what a call that was not seen has left is here.
        for pages in self.all_held_pages().iter() {
            let is_its = |busy: &&BusyWorker| pages.is_of((busy.peer_index, busy.worker), Some(busy.whose));
            let call = busy.iter().find(is_its);
            if peers.contains(&pages.peer_index())
                && let Some(older) = pages.older(region, revision, call.is_some())
            {
                found.push(OwnActivity { worker: call.copied(), pages: Some(older) });
            }
        }
        found.extend(busy.into_iter().map(|busy| OwnActivity { worker: Some(busy), pages: None }));
        found
    }

    /// What a worker of the peer's that was seen in a call may leave with devices of this engine's memory. Looked at once that call is over.
    pub fn left_by_peer(
        &self,
        peer_index: u32,
        call: &BusyWorker,
        region: Option<RegionKey>,
        revision: u64,
    ) -> Option<OlderPages> {
        let held = self.all_held_pages();
        // Of lanes that had this index before is left what was lost.
        let its = held.iter().rev().find(|pages| pages.is_of((peer_index, call.worker), None))?;
        its.older(region, revision, true)
    }

    /// Whether all of it has come to its end.
    pub fn has_ended(&self, activity: &OwnActivity) -> bool {
        // In this order: what the call has left is seen once it is over.
        activity.worker.as_ref().is_none_or(|worker| self.view.has_finished(worker))
            && activity.pages.as_ref().is_none_or(OlderPages::are_back)
    }

    /// The hazard that is raised while the kernel has the peer's memory for that lane. As for the others, at most one may exist.
    pub fn kernel_hazard(&self, peer_index: u32, worker: usize) -> Hazard {
        self.hazard_of(peer_index, worker, HazardOf::Kernel)
    }

    fn hazard_of(&self, peer_index: u32, worker: usize, whose: HazardOf) -> Hazard {
        let offset = hazard_offset(self.workers, peer_index, worker, whose);
        Hazard::mapped(&self.range, offset).expect("peer index and worker are bounded by their tables")
    }

    /// The sleeper's side of a bell: 0 is the application's, `1 + w` worker `w`'s.
    pub fn sleeper(&self, bell: usize) -> Sleeper {
        Sleeper::mapped(&self.range, bell_offset(bell)).expect("bells are bounded by the workers")
    }

    /// Withdraws memory and returns the new revision. A copy that starts after this call sees that revision.
    pub fn withdraw(&self, withdrawals: &[Withdrawal]) -> u64 {
        self.append_withdrawals(&mut self.gate(), withdrawals)
    }

    /// Publishes the regions' words before the revision: a reader that sees the new revision sees them, too.
    fn append_withdrawals(&self, gate: &mut Gate, withdrawals: &[Withdrawal]) -> u64 {
        for (revision, withdrawal) in (gate.writer.revision() + 1..).zip(withdrawals) {
            let word = Publisher::mapped(&self.range, last_offset(withdrawal.region));
            word.expect("the words lie inside the segment").publish(revision);
            gate.history.push_back(*withdrawal);
        }
        let excess = gate.history.len().saturating_sub(HISTORY_MAX);
        gate.history.drain(..excess);
        gate.writer.withdraw(withdrawals)
    }

    /// What was withdrawn after revision `since`, as the owner remembers it, which is longer than what peers can look up.
    pub fn withdrawals_since(&self, since: u64) -> Result<Withdrawals, LogOverrun> {
        let gate = self.gate();
        let revision = gate.writer.revision();
        let missed = usize::try_from(revision.wrapping_sub(since)).ok().filter(|missed| *missed <= gate.history.len());
        let missed = missed.ok_or(LogOverrun { known: since, found: revision })?;
        Ok(Withdrawals { revision, list: gate.history.range(gate.history.len() - missed..).copied().collect() })
    }

    fn gate(&self) -> MutexGuard<'_, Gate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Withdraws a whole region for good.
    pub fn withdraw_region(&self, region: u32, generation: u32) -> u64 {
        let mut gate = self.gate();
        // Published first: who finds the new revision finds this too, and knows the region is gone.
        self.last_region_change.publish(gate.writer.revision() + 1);
        self.append_withdrawals(&mut gate, &[Withdrawal { region, generation, offset: 0, len: WHOLE_REGION }])
    }

    /// Withdraws ranges, given as (offset, length), that get fresh memory.
    pub fn withdraw_renewed(&self, region: u32, generation: u32, ranges: &[(u64, u64)]) -> u64 {
        let mut gate = self.gate();
        // Published first, as for a whole region: until a plan builder has received the renewed region, this word makes it read
        // the log.
        self.last_region_change.publish(gate.writer.revision() + ranges.len() as u64);
        let withdrawal = |&(offset, len)| Withdrawal { region, generation, offset, len: len | RENEWED };
        self.append_withdrawals(&mut gate, &ranges.iter().map(withdrawal).collect::<Vec<_>>())
    }

    /// All workers have ended the session at this index: none of them copies for it any more.
    pub fn count_session_end(&self, peer_index: u32) {
        let word = Publisher::mapped(&self.range, ended_sessions_offset(peer_index))
            .expect("peer indices are bounded by their table");
        word.publish(word.reader().read().wrapping_add(1));
    }

    /// The calling thread takes the robust liveness lock. If it dies, the kernel marks the lock, and peers see it. Call at
    /// most once.
    pub fn hold_liveness_lock(&self) -> Result<LivenessLock, LivenessError> {
        LivenessLock::take(&self.segment, LIVENESS_OFFSET)
    }

    /// What a peer sees of this state; also how this engine sees its own.
    pub fn view(&self) -> &OwnerStateView {
        &self.view
    }
}

/// An engine's state as its peers see it.
#[derive(Clone)]
pub struct OwnerStateView {
    range: SharedRange,
    workers: usize,
    gate: GateReader,
    last_region_change: Published,
    life: LivenessView,
}

/// A worker that was seen copying between two engines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BusyWorker {
    peer_index: u32,
    worker: usize,
    whose: HazardOf,
    seen: Observation,
}

/// What may be touching this engine's memory: a worker in a call, pages that it has left with others, or both.
#[derive(Debug, Clone)]
pub struct OwnActivity {
    worker: Option<BusyWorker>,
    pages: Option<OlderPages>,
}

impl OwnActivity {
    /// Whether it is what a lane of a peer in this process has left with devices.
    pub fn is_of_peer(&self) -> bool {
        self.pages.as_ref().is_some_and(OlderPages::are_of_peer)
    }
}

impl OwnerStateView {
    /// Looks at the state of an engine with so many workers.
    pub fn over(range: SharedRange, workers: usize) -> Result<Self, JoinError> {
        if range.len() < owner_state_bytes(workers) {
            return Err(JoinError::Malformed("its owner state is too small for its workers"));
        }
        let gate = GateReader::mapped(&range, GATE_OFFSET)
            .map_err(|_| JoinError::Malformed("its owner state holds no gate"))?;
        let last_region_change =
            Published::mapped(&range, 0).map_err(|_| JoinError::Malformed("its owner state is empty"))?;
        let life = LivenessView::mapped(&range, LIVENESS_OFFSET)
            .map_err(|_| JoinError::Malformed("its owner state holds no liveness lock"))?;
        Ok(Self { range, workers, gate, last_region_change, life })
    }

    /// A ringer of a bell, which writes nothing here.
    pub fn ringer(&self, bell: usize) -> Ringer {
        Ringer::mapped(&self.range, bell_offset(bell)).expect("bells are bounded by the workers")
    }

    /// The gate's revision now.
    #[inline]
    pub fn revision(&self) -> u64 {
        self.gate.revision()
    }

    /// What was withdrawn after revision `since`.
    pub fn withdrawals_since(&self, since: u64) -> Result<Withdrawals, LogOverrun> {
        self.gate.withdrawals_since(since)
    }

    /// The revision of the last deregistration of a whole region, or renewal of a part of one.
    pub fn last_region_change(&self) -> u64 {
        self.last_region_change.read()
    }

    /// Whether no withdrawal after revision `since` concerned this region; used where the log does not reach back that far.
    /// May be false without cause: regions whose ids are equal modulo `WITHDRAWAL_BUCKETS` share one entry.
    pub fn not_withdrawn_since(&self, region: u32, since: u64) -> bool {
        Published::mapped(&self.range, last_offset(region)).is_ok_and(|word| word.read() <= since)
    }

    /// Number of sessions at this index that the owner has ended. If it differs from the value at a session's start, the
    /// owner's workers no longer use that session.
    pub fn ended_sessions(&self, peer_index: u32) -> u64 {
        Published::mapped(&self.range, ended_sessions_offset(peer_index)).map_or(0, |word| word.read())
    }

    /// Whether the owner's thread that holds the liveness lock lives. Its death ends the session; it is no
    /// proof that nothing lands any more, since other threads of that process may still copy.
    pub fn liveness(&self) -> Liveness {
        self.life.look()
    }

    /// The workers that are copying for `peer_index` at this moment, or for which the kernel is, appended to `busy`.
    pub fn observe(&self, peer_index: u32, busy: &mut Vec<BusyWorker>) {
        self.observe_each(peer_index, &[HazardOf::Lane, HazardOf::Kernel], busy);
    }

    fn observe_each(&self, peer_index: u32, hazards: &[HazardOf], busy: &mut Vec<BusyWorker>) {
        for worker in 0..self.workers {
            for &whose in hazards {
                let seen = self.hazard(peer_index, worker, whose).observe();
                if !matches!(seen, Observation::Quiet) {
                    busy.push(BusyWorker { peer_index, worker, whose, seen });
                }
            }
        }
    }

    /// Whether a worker that was seen copying has finished what it was copying then.
    pub fn has_finished(&self, busy: &BusyWorker) -> bool {
        self.hazard(busy.peer_index, busy.worker, busy.whose).has_moved_since(busy.seen)
    }

    fn hazard(&self, peer_index: u32, worker: usize, whose: HazardOf) -> HazardView {
        let offset = hazard_offset(self.workers, peer_index, worker, whose);
        HazardView::mapped(&self.range, offset).expect("the view's size was checked")
    }
}
