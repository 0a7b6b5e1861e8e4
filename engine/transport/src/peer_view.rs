//! What this engine knows of a peer: which memory it has withdrawn, and which of its workers copy.
//!
//! On one host these words are in shared memory. Between hosts they are reported in messages and may lag behind: then
//! the peer's workers check every operation ([`PeerView::Reported`]), or a fence tracks its NICs ([`PeerView::Fenced`]).

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use penstock_core::limits::WITHDRAWALS_KEPT;
use penstock_core::plan::RegionKey;
use penstock_ring::gate::Withdrawals;
use penstock_ring::{Liveness, LogOverrun, Withdrawal};

use crate::host::{
    BusyWorker, PeerSegments, WHOLE_REGION, WITHDRAWAL_BUCKETS, WithdrawalConflict, check_against, check_withdrawals,
    is_renewal,
};
use crate::lane::CounterRef;

/// What this engine can see of a peer.
#[derive(Clone)]
pub enum PeerView {
    /// Words of the peer in memory that both map.
    Shared(Arc<PeerSegments>),
    /// Known only from its messages. Its bytes reach this engine's memory through this engine's own workers.
    Reported(Arc<RemoteGateLog>),
    /// Known only from its messages, while its NIC accesses this engine's memory directly; the fence tracks that.
    Fenced(Arc<RemoteGateLog>, Arc<dyn Fence>),
}

/// What is known of NICs that access memory in one session: whether the peer's RDMA can still reach this engine's, and, the
/// other way round, what the peer needs to know the same.
pub trait Fence: Send + Sync {
    /// Whether every RDMA operation that was posted under a revision of this engine's log older than `revision` has ended.
    fn has_passed(&self, revision: u64) -> bool;

    /// Makes the fence pass soon, whatever the peer does: rails that have not passed `revision` are cut off.
    fn force(&self, revision: u64);

    /// Called when the peer has reported withdrawals: this engine's lanes now post a message behind all earlier operations,
    /// whose arrival lets the peer's own fence pass.
    fn on_withdrawals(&self);

    /// Whether this engine's lanes are gone, and a card has ended for none of them what it may still do: it never passes then.
    fn is_unproven(&self) -> bool {
        false
    }
}

/// The withdrawals that a peer on another host has reported: its newest revision, and a copy of the end of its log.
#[derive(Debug, Default)]
pub struct RemoteGateLog {
    revision: AtomicU64,
    replicated: AtomicU64,
    tail: Mutex<LogTail>,
}

/// The end of a peer's log.
#[derive(Debug, Default)]
struct LogTail {
    entries: VecDeque<Withdrawal>,
    /// The revision of its last deregistration of a whole region, or renewal of a part of one.
    last_region_change: u64,
    /// By region, the revision of the last withdrawal of anything of it.
    last: HashMap<u32, u64>,
    /// Entries up to this revision are missing, of whichever regions.
    missing_until: u64,
}

impl LogTail {
    fn not_withdrawn_since(&self, region: u32, since: u64) -> bool {
        let last = self.last.get(&(region % WITHDRAWAL_BUCKETS as u32)).copied().unwrap_or_default();
        last.max(self.missing_until) <= since
    }
}

impl RemoteGateLog {
    /// The peer has reported this revision as its newest.
    pub fn on_revision(&self, revision: u64) {
        // Relaxed: an operation carries this revision, and the peer checks it against all withdrawals after it. A stale value
        // makes the peer check more, and at worst refuse without need.
        self.revision.fetch_max(revision, Ordering::Relaxed);
    }

    /// The newest revision that the peer has reported; the entries up to it may not be here yet (see [`Self::replicated`]).
    pub fn revision(&self) -> u64 {
        self.revision.load(Ordering::Relaxed)
    }

    /// Appends withdrawals; the first has revision `since + 1`. If `since` is not the newest revision held here, the older
    /// entries are dropped.
    pub fn append(&self, since: u64, list: impl ExactSizeIterator<Item = Withdrawal>) {
        let until = since.saturating_add(list.len() as u64);
        let mut log = self.tail();
        if self.replicated.load(Ordering::Relaxed) != since {
            log.entries.clear();
            log.missing_until = log.missing_until.max(since);
        }
        for (step, withdrawal) in list.enumerate() {
            let revision = since.saturating_add(step as u64 + 1);
            if withdrawal.len == WHOLE_REGION || is_renewal(&withdrawal) {
                // Set before `replicated` below: a reader that sees that value and then takes the lock sees this one, too.
                log.last_region_change = log.last_region_change.max(revision);
            }
            log.last.insert(withdrawal.region % WITHDRAWAL_BUCKETS as u32, revision);
            log.entries.push_back(withdrawal);
        }
        let excess = log.entries.len().saturating_sub(WITHDRAWALS_KEPT);
        log.entries.drain(..excess);
        // Under the lock, under which it is read again.
        self.replicated.store(until, Ordering::Relaxed);
        drop(log);
        self.on_revision(until);
    }

    /// The revision up to which its log is replicated here.
    #[inline]
    pub fn replicated(&self) -> u64 {
        self.replicated.load(Ordering::Relaxed)
    }

    /// Checks that no withdrawal reported after revision `since` overlaps these extents, (offset, length), of a region of
    /// the peer. The error says what kind did, or that the log no longer reaches back far enough.
    pub fn check_withdrawals(
        &self,
        since: u64,
        key: RegionKey,
        extents: impl Iterator<Item = (u64, u64)> + Clone,
    ) -> Result<(), WithdrawalConflict> {
        check_against(
            self.withdrawals_since(since),
            || self.tail().not_withdrawn_since(key.region.0, since),
            key,
            extents,
        )
    }

    fn withdrawals_since(&self, since: u64) -> Result<Withdrawals, LogOverrun> {
        let log = self.tail();
        let until = self.replicated.load(Ordering::Relaxed);
        // If nothing newer was reported, returns an empty list, even if the caller knows a newer revision.
        let missing = until.saturating_sub(since);
        match usize::try_from(missing) {
            Ok(missing) if missing <= log.entries.len() => {
                let list = log.entries.iter().skip(log.entries.len() - missing).copied().collect();
                Ok(Withdrawals { revision: until.max(since), list })
            }
            _ => Err(LogOverrun { known: since, found: until }),
        }
    }

    fn tail(&self) -> MutexGuard<'_, LogTail> {
        self.tail.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PeerView {
    /// The revision of the peer's log of withdrawn memory, as far as it is known here.
    #[inline(always)]
    pub fn revision(&self) -> u64 {
        match self {
            Self::Shared(segments) => segments.owner_state.revision(),
            Self::Reported(log) | Self::Fenced(log, _) => log.revision(),
        }
    }

    /// What the peer withdrew after revision `since`, as far as it is known here. A reported log may lag behind: a peer
    /// whose workers move the bytes then refuses the operation; over RDMA its revocation waits for the fence.
    pub fn withdrawals_since(&self, since: u64) -> Result<Withdrawals, LogOverrun> {
        match self {
            Self::Shared(segments) => segments.owner_state.withdrawals_since(since),
            Self::Reported(log) | Self::Fenced(log, _) => log.withdrawals_since(since),
        }
    }

    /// Checks that nothing that the peer withdrew after revision `since` overlaps these extents, (offset, length), of a region of it, as far as it is
    /// known here. The error says what kind did, or that the log no longer reaches back far enough.
    pub fn check_withdrawals(
        &self,
        since: u64,
        key: RegionKey,
        extents: impl Iterator<Item = (u64, u64)> + Clone,
    ) -> Result<(), WithdrawalConflict> {
        match self {
            Self::Shared(segments) => check_withdrawals(&segments.owner_state, since, key, extents),
            Self::Reported(log) | Self::Fenced(log, _) => log.check_withdrawals(since, key, extents),
        }
    }

    /// The revision of the peer's last deregistration of a whole region, or renewal of a part of one, as far as it is
    /// known here.
    pub fn last_region_change(&self) -> u64 {
        match self {
            Self::Shared(segments) => segments.owner_state.last_region_change(),
            Self::Reported(log) | Self::Fenced(log, _) => log.tail().last_region_change,
        }
    }

    /// Whether no withdrawal after revision `since` concerned this region, as far as it is known here; used where the log
    /// does not reach back that far. May be false without cause: regions equal modulo `WITHDRAWAL_BUCKETS` share one entry.
    pub fn not_withdrawn_since(&self, region: u32, since: u64) -> bool {
        match self {
            Self::Shared(segments) => segments.owner_state.not_withdrawn_since(region, since),
            Self::Reported(log) | Self::Fenced(log, _) => log.tail().not_withdrawn_since(region, since),
        }
    }

    /// How many sessions that had index `peer_index` in the peer's table all of the peer's workers have ended. Always 0
    /// between hosts.
    pub fn ended_sessions(&self, peer_index: u32) -> u64 {
        match self {
            Self::Shared(segments) => segments.owner_state.ended_sessions(peer_index),
            Self::Reported(_) | Self::Fenced(..) => 0,
        }
    }

    /// Whether the peer's liveness thread runs, by the lock that the kernel marks at its death. `Unknown` between hosts.
    pub fn liveness(&self) -> Liveness {
        match self {
            Self::Shared(segments) => segments.owner_state.liveness(),
            Self::Reported(_) | Self::Fenced(..) => Liveness::Unknown,
        }
    }

    /// What is known of the NICs that access this engine's memory, where there are any.
    pub fn fence(&self) -> Option<&Arc<dyn Fence>> {
        match self {
            Self::Fenced(_, fence) => Some(fence),
            Self::Shared(_) | Self::Reported(_) => None,
        }
    }

    /// Whether the peer's processes have this engine's memory mapped, or copy into it by themselves.
    pub fn has_cpu_access(&self) -> bool {
        matches!(self, Self::Shared(_))
    }

    /// The peer's workers that are copying for `peer_index` at this moment, appended to `busy`.
    pub fn observe(&self, peer_index: u32, busy: &mut Vec<BusyWorker>) {
        if let Self::Shared(segments) = self {
            segments.owner_state.observe(peer_index, busy);
        }
    }

    /// Whether a worker of the peer that was seen copying has finished what it was copying then.
    pub fn has_finished(&self, busy: &BusyWorker) -> bool {
        match self {
            Self::Shared(segments) => segments.owner_state.has_finished(busy),
            Self::Reported(_) | Self::Fenced(..) => true,
        }
    }

    /// Whether an advertised counter still exists, as far as is known here.
    pub fn counter_exists(&self, counter: CounterRef) -> bool {
        match self {
            Self::Shared(segments) => {
                segments.mailbox.counter(counter.index).is_some_and(|cell| cell.generation() == counter.generation)
            }
            Self::Reported(_) | Self::Fenced(..) => true,
        }
    }

    /// Appends withdrawals that the peer has reported; nothing to do where its log is in shared memory.
    pub fn on_withdrawals(&self, since: u64, list: impl ExactSizeIterator<Item = Withdrawal>) {
        match self {
            Self::Shared(_) => {}
            Self::Reported(log) => log.append(since, list),
            Self::Fenced(log, fence) => {
                log.append(since, list);
                fence.on_withdrawals();
            }
        }
    }

    /// The peer has reported the newest revision of its log.
    pub fn on_revision(&self, revision: u64) {
        if let Self::Reported(log) | Self::Fenced(log, _) = self {
            log.on_revision(revision);
        }
    }
}

#[cfg(test)]
mod tests {
    use penstock_core::{Generation, RegionId};

    use super::*;

    fn steps(numbers: std::ops::Range<u64>) -> impl ExactSizeIterator<Item = Withdrawal> {
        let step = |number: u64| Withdrawal { region: 1, generation: 0, offset: number, len: 1 };
        numbers.map(step).collect::<Vec<_>>().into_iter()
    }

    #[test]
    fn a_log_that_is_told_reads_like_one_that_is_seen() {
        let log = RemoteGateLog::default();
        log.append(7, steps(0..0));
        assert_eq!((log.revision(), log.replicated()), (7, 7));
        log.append(7, steps(8..11));
        let since = log.withdrawals_since(8).unwrap();
        assert_eq!((since.revision, since.list.iter().map(|step| step.offset).collect::<Vec<_>>()), (10, vec![9, 10]));
        assert_eq!(log.withdrawals_since(10).unwrap().list, []);
        assert_eq!(log.withdrawals_since(12).unwrap().revision, 12, "it knows more than was told");
        assert!(log.withdrawals_since(6).is_err(), "nobody told what came before");
        log.on_revision(20);
        assert_eq!(log.withdrawals_since(10).unwrap().revision, 10, "heard of is not known");
        log.append(30, steps(31..33));
        assert!(log.withdrawals_since(10).is_err(), "a gap is a gap");
        assert_eq!(log.withdrawals_since(31).unwrap().list.len(), 1);
    }

    #[test]
    fn what_ends_a_region_is_known_by_its_revision_and_parts_that_are_taken_back_are_not() {
        let log = Arc::new(RemoteGateLog::default());
        let peer_view = PeerView::Reported(Arc::clone(&log));
        log.append(7, steps(0..3));
        assert_eq!((peer_view.revision(), peer_view.last_region_change()), (10, 0));
        let whole = Withdrawal { region: 1, generation: 0, offset: 0, len: WHOLE_REGION };
        log.append(10, [whole, Withdrawal { len: 1, ..whole }].into_iter());
        assert_eq!((peer_view.revision(), peer_view.last_region_change()), (12, 11));
        let renewed = Withdrawal { len: 4096 | 1 << 63, ..whole };
        assert!(is_renewal(&renewed));
        log.append(12, [Withdrawal { len: 1, ..whole }, renewed].into_iter());
        assert_eq!((peer_view.revision(), peer_view.last_region_change()), (14, 14));
    }

    #[test]
    fn what_was_told_is_compared_with_extents() {
        let log = RemoteGateLog::default();
        log.append(4, [Withdrawal { region: 1, generation: 2, offset: 100, len: 50 }].into_iter());
        let stands = |since, region, generation, offset| {
            let key = RegionKey { region: RegionId(region), generation: Generation(generation) };
            log.check_withdrawals(since, key, [(0, 10), (offset, 10)].into_iter())
        };
        assert_eq!(stands(4, 1, 2, 95), Err(WithdrawalConflict::Revoked));
        assert_eq!((stands(5, 1, 2, 95), stands(9, 1, 2, 95)), (Ok(()), Ok(())), "it was known then");
        assert_eq!((stands(4, 1, 2, 90), stands(4, 1, 2, 150), stands(4, 2, 2, 95)), (Ok(()), Ok(()), Ok(())));
        assert_eq!((stands(4, 1, 3, 95), stands(4, 1, 1, 95)), (Ok(()), Err(WithdrawalConflict::Revoked)));
        assert_eq!(stands(3, 2, 2, 0), Err(WithdrawalConflict::LogOverrun));
    }

    #[test]
    fn only_the_end_of_a_log_is_kept() {
        let log = RemoteGateLog::default();
        let many = WITHDRAWALS_KEPT as u64 * 3;
        for step in 0..many {
            log.append(step, steps(step + 1..step + 2));
        }
        assert_eq!(log.withdrawals_since(many - WITHDRAWALS_KEPT as u64).unwrap().list.len(), WITHDRAWALS_KEPT);
        assert!(log.withdrawals_since(many - WITHDRAWALS_KEPT as u64 - 1).is_err());
    }
}
