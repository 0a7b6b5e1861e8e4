//! One submitted transfer, as its handle and its workers share it.
//!
//! Several workers claim units of one plan from one word; whoever brings it to its end finishes the transfer,
//! exactly once. Stopping takes the same word: once the stop bit is up and no unit is in anybody's
//! hands, no byte of this transfer moves any more, and that moment is the transfer's quiescence.
//!
//! A claim is *remote* when what it holds was given up and only the peer may still be at it: it keeps the
//! transfer from ending, but nothing of this engine's memory is touched for it.
//!
//! ```text
//! claims   stop 1 | finished 1 | claims 13 | remote claims 13 | next unit 36
//! ```

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use penstock_core::limits::{IN_FLIGHT_PER_LANE_MAX, WORKERS_MAX};
use penstock_core::{Cause, Notified, Stage, Timestamp};
use penstock_transport::Failure;
use rustix::thread::futex;

const STOP: u64 = 1 << 63;
const FINISHED: u64 = 1 << 62;
const IN_FLIGHT: u64 = 1 << 49;
const IN_FLIGHT_MASK: u64 = (FINISHED - 1) & !(IN_FLIGHT - 1);
const REMOTE: u64 = 1 << 36;
const REMOTES_MASK: u64 = (IN_FLIGHT - 1) & !(REMOTE - 1);
const NEXT_MASK: u64 = REMOTE - 1;

const _: () = assert!(
    WORKERS_MAX * (2 + IN_FLIGHT_PER_LANE_MAX) < (IN_FLIGHT_MASK / IN_FLIGHT) as usize,
    "each worker has a unit, another claim and a lane's batches in hand at most"
);

/// Somebody sleeps on the state.
const AWAITED: u32 = 1 << 31;

/// Where a transfer stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u32)]
pub(crate) enum Phase {
    Queued = 1,
    Moving = 2,
    Notifying = 3,
    Done = 4,
}

/// How a transfer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TransferOutcome {
    pub(crate) failure: Option<(Stage, Failure)>,
    pub(crate) notified: Notified,
}

impl TransferOutcome {
    fn pack(self) -> u64 {
        let [stage, cause, rail] = self.failure.map_or([0; 3], |(stage, failure)| pack(stage, failure));
        u64::from_le_bytes([stage, cause, rail, self.notified.code(), 0, 0, 0, 0])
    }

    fn unpack(word: u64) -> Self {
        let [stage, cause, rail, notified, ..] = word.to_le_bytes();
        Self {
            failure: unpack([stage, cause, rail]),
            notified: Notified::from_code(notified).unwrap_or(Notified::Unknown),
        }
    }
}

/// Where and why something ended, in three bytes; the last is zero where it was on no rail.
fn pack(stage: Stage, Failure { cause, rail }: Failure) -> [u8; 3] {
    [stage.code(), cause.code(), rail.and_then(|rail| rail.checked_add(1)).unwrap_or(0)]
}

fn unpack([stage, cause, rail]: [u8; 3]) -> Option<(Stage, Failure)> {
    Some((Stage::from_code(stage)?, Failure { cause: Cause::from_code(cause)?, rail: rail.checked_sub(1) }))
}

/// What a worker got when it asked for a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ClaimResult {
    /// So many units from the first one on are in its hands now, as one.
    Units(u64, u64),
    /// There is nothing more to claim, and others finish the transfer.
    Nothing,
    /// There is nothing more to claim, and the caller finishes the transfer.
    Finish,
}

/// One transfer's shared words.
pub(crate) struct Slot {
    state: AtomicU32,
    holders: AtomicU32,
    stop: AtomicU32,
    claims: AtomicU64,
    bytes: AtomicU64,
    outcome: AtomicU64,
    /// Batches that were given up while the peer was, or may have been, at them; and workers whose lane has acknowledged bytes that may
    /// not be placed yet.
    remote_pending: AtomicU32,
    /// Batches that the transfer did not wait for although they may still touch this engine's memory.
    local_pending: AtomicU32,
    /// The transfer is to end although the peer may still be at something.
    forced: AtomicBool,
    /// The control loop hears of its end.
    watched: AtomicBool,
    payload: Mutex<Vec<u8>>,
}

impl Slot {
    pub(crate) fn new() -> Self {
        Self {
            state: AtomicU32::new(Phase::Done as u32),
            holders: AtomicU32::new(0),
            stop: AtomicU32::new(0),
            claims: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            outcome: AtomicU64::new(0),
            remote_pending: AtomicU32::new(0),
            local_pending: AtomicU32::new(0),
            forced: AtomicBool::new(false),
            watched: AtomicBool::new(false),
            payload: Mutex::new(Vec::new()),
        }
    }

    /// Makes a claimed slot ready for a new transfer with so many holders (its handle and workers).
    pub(crate) fn begin(&self, holders: u32, payload: Option<&[u8]>, is_watched: bool) {
        if let Some(payload) = payload {
            let mut kept = self.payload();
            kept.clear();
            kept.extend_from_slice(payload);
        }
        self.holders.store(holders, Ordering::Relaxed);
        self.stop.store(0, Ordering::Relaxed);
        self.claims.store(0, Ordering::Relaxed);
        self.bytes.store(0, Ordering::Relaxed);
        self.remote_pending.store(0, Ordering::Relaxed);
        self.local_pending.store(0, Ordering::Relaxed);
        self.forced.store(false, Ordering::Relaxed);
        self.watched.store(is_watched, Ordering::Relaxed);
        self.state.store(Phase::Queued as u32, Ordering::Release); // SYNC begin: pairs with phase()'s Acquire
    }

    /// Whether the control loop is to hear of its end. Asked by who holds it.
    #[inline]
    pub(crate) fn is_watched(&self) -> bool {
        self.watched.load(Ordering::Relaxed) // Does not change while it is held.
    }

    /// The notification's bytes; kept with the slot so that a steady state allocates nothing.
    pub(crate) fn payload(&self) -> MutexGuard<'_, Vec<u8>> {
        self.payload.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One holder more; the caller holds it already.
    pub(crate) fn add_reference(&self) {
        self.holders.fetch_add(1, Ordering::Relaxed);
    }

    /// One holder less. Returns whether it was the last.
    pub(crate) fn release_reference(&self) -> bool {
        // SYNC holders: the last holder sees what all others did.
        self.holders.fetch_sub(1, Ordering::AcqRel) == 1
    }

    pub(crate) fn phase(&self) -> Phase {
        // SYNC finish: pairs with finish()'s swap: who sees Done sees the outcome and the bytes.
        match self.state.load(Ordering::Acquire) & !AWAITED {
            1 => Phase::Queued,
            2 => Phase::Moving,
            3 => Phase::Notifying,
            _ => Phase::Done,
        }
    }

    /// How many of `units` units nobody has claimed yet.
    pub(crate) fn unclaimed(&self, units: u64) -> u64 {
        units.saturating_sub(self.claims.load(Ordering::Relaxed) & NEXT_MASK)
    }

    /// Takes the next of `units` units into the caller's hands, at least one and at most `most` of them.
    pub(crate) fn claim(&self, units: u64, most: u64) -> ClaimResult {
        // SYNC claims: pairs with stop()'s fetch_or: either this claim sees the stop bit or the
        // stopper sees this claim.
        let before = self.claims.fetch_add(IN_FLIGHT + most, Ordering::AcqRel);
        let next = before & NEXT_MASK;
        if before & (STOP | FINISHED) == 0 && next < units {
            if next == 0 {
                self.advance_to(Phase::Moving);
            }
            return ClaimResult::Units(next, most.min(units - next));
        }
        if self.release(units) { ClaimResult::Finish } else { ClaimResult::Nothing }
    }

    /// A claim ends, and has moved so many bytes. Returns whether it was the last: the caller then finishes the transfer.
    pub(crate) fn release_claim(&self, bytes: u64, units: u64) -> bool {
        self.bytes.fetch_add(bytes, Ordering::Relaxed); // Ordered by the release of the claim below.
        self.release(units)
    }

    /// So many bytes more, of a unit that stays in the caller's hands.
    pub(crate) fn add_bytes(&self, bytes: u64) {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// One claim more, for a batch that goes on by itself; the caller has one already.
    pub(crate) fn take_op_claim(&self) {
        self.claims.fetch_add(IN_FLIGHT, Ordering::Relaxed); // Released with the caller's own.
    }

    /// A batch was cancelled that the peer may still execute: its claim becomes a remote one.
    pub(crate) fn mark_claim_remote_pending(&self) {
        self.remote_pending.fetch_add(1, Ordering::Relaxed); // Released with the word.
        self.claims.fetch_add(REMOTE, Ordering::Release); // SYNC claims: pairs with is_busy_here()
    }

    /// Bytes were posted on a lane that completes writes before they are placed: they may still land until [`Self::end_remote_pending`]. The caller
    /// has a claim of the transfer.
    pub(crate) fn mark_remote_pending(&self) {
        self.remote_pending.fetch_add(1, Ordering::Relaxed); // Released with the claim.
    }

    /// The peer has ended a cancelled batch, and has moved so many bytes. Returns whether the caller finishes the transfer.
    pub(crate) fn release_claim_clearing_remote(&self, bytes: u64, units: u64) -> bool {
        self.bytes.fetch_add(bytes, Ordering::Relaxed); // Ordered by the release of the claim below.
        self.clear_remote_pending();
        self.release_in_flight(IN_FLIGHT + REMOTE, units)
    }

    /// The transfer no longer waits for a cancelled batch, whatever the peer does. Returns whether the caller finishes it.
    pub(crate) fn release_claim_keeping_remote(&self, units: u64) -> bool {
        self.release_in_flight(IN_FLIGHT + REMOTE, units)
    }

    /// Asks for the end although the peer may still execute something.
    pub(crate) fn force(&self) {
        self.forced.store(true, Ordering::Release); // SYNC forced: pairs with is_forced()
    }

    /// Whether the end was asked for although the peer may still be at something.
    pub(crate) fn is_cancel_forced(&self) -> bool {
        self.forced.load(Ordering::Acquire) // SYNC forced: pairs with force()
    }

    /// The peer has ended it, or all of it is placed.
    pub(crate) fn clear_remote_pending(&self) {
        self.remote_pending.fetch_sub(1, Ordering::Release); // SYNC remote-pending: pairs with is_remote_pending()
    }

    /// The transfer no longer waits for a batch that may still touch this engine's memory and the peer's. Returns whether
    /// the caller finishes it.
    pub(crate) fn release_claim_keeping_local(&self, units: u64) -> bool {
        self.remote_pending.fetch_add(1, Ordering::Relaxed); // Released with the claim.
        self.local_pending.fetch_add(1, Ordering::Relaxed); // As above.
        self.release_in_flight(IN_FLIGHT, units)
    }

    /// A detached batch no longer touches this engine's memory.
    pub(crate) fn end_local_pending(&self) {
        self.local_pending.fetch_sub(1, Ordering::Release); // SYNC local-pending: pairs with is_busy_here()
    }

    /// Whether the peer may still execute a cancelled batch. Asked after the transfer has ended, or when no worker has any of
    /// it.
    pub(crate) fn is_remote_pending(&self) -> bool {
        self.remote_pending.load(Ordering::Acquire) != 0 // SYNC remote-pending: pairs with end_remote_pending()
    }

    fn release(&self, units: u64) -> bool {
        self.release_in_flight(IN_FLIGHT, units)
    }

    #[inline]
    fn release_in_flight(&self, hand: u64, units: u64) -> bool {
        // SYNC claims: what this worker moved is seen by whoever finishes.
        let before = self.claims.fetch_sub(hand, Ordering::AcqRel);
        let last_hand = before & IN_FLIGHT_MASK == IN_FLIGHT;
        let at_end = before & STOP != 0 || before & NEXT_MASK >= units;
        last_hand && at_end && self.take_finish()
    }

    fn take_finish(&self) -> bool {
        // SYNC claims: exactly one caller sees the bit clear.
        self.claims.fetch_or(FINISHED, Ordering::AcqRel) & FINISHED == 0
    }

    /// Asks for the end, for this reason; the first reason stays. Returns whether the caller
    /// finishes the transfer, because no unit was in anybody's hands.
    pub(crate) fn stop(&self, stage: Stage, failure: impl Into<Failure>) -> bool {
        self.keep_reason(stage, failure.into());
        // SYNC claims: pairs with claim()'s fetch_add.
        let before = self.claims.fetch_or(STOP, Ordering::AcqRel);
        before & (IN_FLIGHT_MASK | FINISHED) == 0 && self.take_finish()
    }

    /// The same, if nobody has claimed anything of it and nobody has asked for its end; else it goes on as it does.
    pub(crate) fn stop_unclaimed(&self, stage: Stage, failure: impl Into<Failure>) -> bool {
        // SYNC claims: pairs with claim()'s fetch_add: who claims behind this sees the stop bit, and with this claim is not the last.
        if self.claims.compare_exchange(0, IN_FLIGHT | STOP, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return false;
        }
        self.keep_reason(stage, failure.into());
        self.release(0)
    }

    fn keep_reason(&self, stage: Stage, failure: Failure) {
        let [stage, cause, rail] = pack(stage, failure);
        let reason = u32::from_le_bytes([stage, cause, rail, 0]);
        // SYNC stop: pairs with stop_reason()'s Acquire.
        let _ = self.stop.compare_exchange(0, reason, Ordering::AcqRel, Ordering::Acquire);
    }

    /// Why the transfer was asked to end, if it was.
    pub(crate) fn stop_reason(&self) -> Option<(Stage, Failure)> {
        let reason = self.stop.load(Ordering::Acquire); // SYNC stop: pairs with stop()
        let [stage, cause, rail, _] = reason.to_le_bytes();
        unpack([stage, cause, rail])
    }

    /// Whether somebody has something of it in hand that touches this engine's memory.
    pub(crate) fn is_busy_here(&self) -> bool {
        let claims = self.claims.load(Ordering::Acquire); // SYNC claims: pairs with release_in_flight() and leave_to_peer()
        // SYNC local-pending: pairs with end_local_pending()
        (claims & IN_FLIGHT_MASK) / IN_FLIGHT != (claims & REMOTES_MASK) / REMOTE
            || self.local_pending.load(Ordering::Acquire) != 0
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Moves on to a later phase, keeping the mark of a sleeper.
    pub(crate) fn advance_to(&self, phase: Phase) {
        // Only the phase changes, and never backwards.
        // SYNC finish: as in finish().
        let _ = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, |state| {
            (state & !AWAITED < phase as u32).then_some(state & AWAITED | phase as u32)
        });
    }

    /// Publishes how the transfer ended, and wakes whoever sleeps on it.
    pub(crate) fn finish(&self, outcome: TransferOutcome) {
        self.outcome.store(outcome.pack(), Ordering::Relaxed);
        // SYNC finish: pairs with phase()'s Acquire and with the mark in sleep_until_done().
        let before = self.state.swap(Phase::Done as u32, Ordering::AcqRel);
        if before & AWAITED != 0 {
            // Fails only if nobody sleeps any more.
            let _ = futex::wake(&self.state, futex::Flags::PRIVATE, i32::MAX as u32);
        }
    }

    /// How it ended, once it is done.
    pub(crate) fn outcome(&self) -> Option<TransferOutcome> {
        (self.phase() == Phase::Done).then(|| TransferOutcome::unpack(self.outcome.load(Ordering::Relaxed)))
    }

    /// Sleeps until the transfer is done or `until` has come. Returns whether it is done.
    pub(crate) fn sleep_until_done(&self, now: impl Fn() -> Timestamp, until: Timestamp) -> bool {
        loop {
            let state = self.state.load(Ordering::Acquire); // SYNC finish: pairs with finish()
            if state & !AWAITED == Phase::Done as u32 {
                return true;
            }
            let left = until.since(now());
            if left == Duration::ZERO {
                return false;
            }
            let awaited = state | AWAITED;
            // SYNC finish: the finisher's swap sees the mark, or this exchange fails.
            let marked = self.state.compare_exchange(state, awaited, Ordering::AcqRel, Ordering::Acquire);
            if marked.is_ok() {
                let timeout = futex::Timespec::try_from(left).ok();
                let _ = futex::wait(&self.state, futex::Flags::PRIVATE, awaited, timeout.as_ref());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_claimed_once_and_finished_once() {
        let slot = Slot::new();
        slot.begin(1, None, false);
        assert_eq!(slot.claim(2, 1), ClaimResult::Units(0, 1));
        assert_eq!(slot.claim(2, 1), ClaimResult::Units(1, 1));
        assert_eq!(slot.claim(2, 1), ClaimResult::Nothing, "two units are still in hands");
        assert!(!slot.release_claim(10, 2));
        assert!(slot.release_claim(20, 2), "the last hand finishes");
        assert_eq!(slot.claim(2, 1), ClaimResult::Nothing, "nobody finishes twice");
        assert_eq!(slot.bytes(), 30);
    }

    #[test]
    fn several_units_are_one_hand_and_never_more_than_there_are() {
        let slot = Slot::new();
        slot.begin(1, None, false);
        assert_eq!(slot.claim(10, 8), ClaimResult::Units(0, 8));
        assert_eq!(slot.unclaimed(10), 2);
        assert_eq!(slot.claim(10, 8), ClaimResult::Units(8, 2));
        assert_eq!(slot.unclaimed(10), 0);
        assert!(!slot.release_claim(8, 10));
        assert!(slot.release_claim(2, 10), "the last hand finishes");
        assert_eq!(slot.claim(10, 8), ClaimResult::Nothing);
    }

    #[test]
    fn stopping_an_idle_transfer_finishes_it_at_once() {
        let slot = Slot::new();
        slot.begin(1, None, false);
        assert!(slot.stop(Stage::Queue, Cause::Cancelled));
        assert!(!slot.stop(Stage::Queue, Cause::DeadlineExceeded), "finished once");
        assert_eq!(slot.stop_reason(), Some((Stage::Queue, Cause::Cancelled.into())), "the first reason stays");
        assert_eq!(slot.claim(5, 3), ClaimResult::Nothing);
    }

    #[test]
    fn the_rail_of_the_first_reason_is_kept() {
        let slot = Slot::new();
        slot.begin(1, None, false);
        assert_eq!(slot.claim(5, 1), ClaimResult::Units(0, 1));
        slot.stop(Stage::Move, Failure::on(3, Cause::PeerLost));
        slot.stop(Stage::Move, Failure::on(1, Cause::NoPath));
        assert_eq!(slot.stop_reason(), Some((Stage::Move, Failure::on(3, Cause::PeerLost))));
    }

    #[test]
    fn stopping_waits_for_the_unit_in_hands() {
        let slot = Slot::new();
        slot.begin(1, None, false);
        assert_eq!(slot.claim(5, 1), ClaimResult::Units(0, 1));
        assert!(!slot.stop(Stage::Move, Cause::Cancelled));
        assert!(slot.is_busy_here());
        assert!(slot.release_claim(7, 5), "the hand that was left finishes");
        assert!(!slot.is_busy_here());
    }

    #[test]
    fn a_batch_under_way_holds_the_end_up() {
        let slot = Slot::new();
        slot.begin(1, None, false);
        assert_eq!(slot.claim(1, 1), ClaimResult::Units(0, 1));
        slot.take_op_claim();
        slot.take_op_claim();
        assert!(!slot.release_claim(0, 1), "two batches are under way");
        assert!(!slot.stop(Stage::Move, Cause::Cancelled), "they are in hands");
        slot.mark_claim_remote_pending();
        assert!(slot.is_busy_here(), "the other one is not given up");
        assert!(!slot.release_claim(64, 1));
        assert!(!slot.is_busy_here() && slot.is_remote_pending(), "only the peer may be at it");
        assert!(slot.release_claim_clearing_remote(8, 1), "the last batch finishes");
        assert_eq!((slot.is_remote_pending(), slot.bytes()), (false, 72));
    }

    #[test]
    fn a_transfer_may_end_while_the_peer_is_at_it_and_says_so() {
        let slot = Slot::new();
        slot.begin(1, None, false);
        assert_eq!(slot.claim(1, 1), ClaimResult::Units(0, 1));
        slot.take_op_claim();
        assert!(!slot.release_claim(0, 1) && !slot.stop(Stage::Move, Cause::Cancelled));
        slot.mark_claim_remote_pending();
        assert!(!slot.is_cancel_forced());
        slot.force();
        assert!(slot.is_cancel_forced());
        assert!(slot.release_claim_keeping_remote(1), "nobody has anything in hand any more");
        assert!(slot.is_remote_pending() && !slot.is_busy_here());
        slot.clear_remote_pending();
        assert!(!slot.is_remote_pending());
    }

    #[test]
    fn what_nobody_has_begun_is_stopped_and_what_somebody_has_goes_on() {
        let slot = Slot::new();
        slot.begin(3, None, false);
        assert!(slot.stop_unclaimed(Stage::Queue, Cause::PeerDraining), "nobody else finishes it");
        assert_eq!(slot.claim(4, 1), ClaimResult::Nothing);
        assert_eq!(slot.stop_reason(), Some((Stage::Queue, Cause::PeerDraining.into())));
        assert!(!slot.stop_unclaimed(Stage::Queue, Cause::PeerDraining), "once");
        slot.begin(3, None, false);
        assert_eq!(slot.claim(4, 3), ClaimResult::Units(0, 3));
        assert!(!slot.stop_unclaimed(Stage::Queue, Cause::PeerDraining));
        assert_eq!((slot.stop_reason(), slot.release_claim(300, 4)), (None, false));
        assert_eq!(
            slot.claim(4, 3),
            ClaimResult::Units(3, 1),
            "who has begun it carries on, also with nothing in hand"
        );
        assert!(slot.release_claim(100, 4));
        slot.begin(3, None, false);
        assert!(slot.stop(Stage::Move, Cause::Cancelled));
        assert!(!slot.stop_unclaimed(Stage::Queue, Cause::PeerDraining), "it has an end already");
        assert_eq!(slot.stop_reason(), Some((Stage::Move, Cause::Cancelled.into())));
    }

    #[test]
    fn a_transfer_that_one_refuses_while_another_takes_it_up_is_finished_once() {
        for round in 0..2000 {
            let slot = Slot::new();
            slot.begin(3, None, false);
            let finishers = AtomicU32::new(0);
            let finish = |finishes: bool| finishers.fetch_add(u32::from(finishes), Ordering::Relaxed);
            std::thread::scope(|scope| {
                scope.spawn(|| finish(slot.stop_unclaimed(Stage::Queue, Cause::PeerDraining)));
                scope.spawn(|| {
                    loop {
                        match slot.claim(20, 7) {
                            ClaimResult::Units(_, count) => finish(slot.release_claim(count, 20)),
                            ClaimResult::Finish => break finish(true),
                            ClaimResult::Nothing => break 0,
                        };
                    }
                });
            });
            let is_stopped = slot.stop_reason().is_some();
            assert_eq!(finishers.load(Ordering::Relaxed), 1, "round {round}");
            assert_eq!(slot.bytes(), if is_stopped { 0 } else { 20 }, "round {round}: all of it or nothing");
        }
    }

    #[test]
    fn outcomes_survive_their_word() {
        let rails = [Failure::from(Cause::PeerLost), Failure::on(0, Cause::PeerLost), Failure::on(254, Cause::NoPath)];
        for failure in rails.map(|failure| Some((Stage::Move, failure))).into_iter().chain([None]) {
            for &notified in Notified::ALL {
                let outcome = TransferOutcome { failure, notified };
                assert_eq!(TransferOutcome::unpack(outcome.pack()), outcome);
            }
        }
    }

    #[test]
    fn many_threads_split_one_transfer() {
        let slot = Slot::new();
        slot.begin(1, None, false);
        let finishers = AtomicU32::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    loop {
                        let finishes = match slot.claim(10_000, 7) {
                            ClaimResult::Units(_, count) => slot.release_claim(count, 10_000),
                            ClaimResult::Finish => true,
                            ClaimResult::Nothing if slot.claims.load(Ordering::Acquire) & FINISHED != 0 => break,
                            ClaimResult::Nothing => false,
                        };
                        if finishes {
                            finishers.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        assert_eq!((slot.bytes(), finishers.into_inner()), (10_000, 1));
    }
}
