//! Bugs planted on purpose, so that the simulation can prove that it would find them.
//!
//! A hook is `if planted::is(Bug::Name) { the wrong thing }` beside the line it breaks. It exists only in builds with
//! `RUSTFLAGS="--cfg planted"`, which `make sim` makes in a folder of its own; everywhere else [`is`] is the constant `false` and the
//! branch is compiled away. One process has at most one planted bug, chosen before the first engine starts.
//!
//! To plant another one: a line in the table below with the invariant of `tests/sim` that has to catch it and the family of scripts in
//! which it does (`penstock-sim --plant BUG --family all` says at which seed), and a hook. `make sim` runs every bug of the table
//! over seeds of its family and fails unless each is caught by the invariant that it names.

#[cfg(planted)]
use std::sync::atomic::{AtomicUsize, Ordering};

/// Defines [`Bug`] and its table.
macro_rules! bugs {
    ($($(#[$doc:meta])* $variant:ident = $name:literal, caught by $invariant:ident in $family:ident;)*) => {
        /// A bug that can be planted.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum Bug {
            $($(#[$doc])* $variant,)*
        }

        impl Bug {
            /// All of them, in the order of the table.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// The name by which it is chosen.
            pub fn name(self) -> &'static str {
                match self { $(Self::$variant => $name),* }
            }

            /// The invariant of the simulation that has to catch it.
            pub fn caught_by(self) -> &'static str {
                match self { $(Self::$variant => stringify!($invariant)),* }
            }

            /// The family of scripts in which it has to.
            pub fn found_in(self) -> &'static str {
                match self { $(Self::$variant => stringify!($family)),* }
            }

            /// The bug of this name.
            pub fn named(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|bug| bug.name() == name)
            }
        }
    };
}

bugs! {
    /// A source says that nothing can land any more while parts are still under way.
    LateWriteAfterCancel = "late-write-after-cancel", caught by freed_once_and_untouched in Aborts;
    /// What a leg brought is let go when it is taken, and once more.
    DoubleFree = "double-free", caught by freed_once_and_untouched in FanOut;
    /// Now and then what says that bytes are there is dropped.
    LostNotification = "lost-notification", caught by answers_come_in_time in FanIn;
    /// A part counts for as many tokens again behind it, so that a leg is told of with a hole.
    LegCountedTwice = "leg-counted-twice", caught by told_once_after_bytes in FanIn;
    /// A part that has ended keeps its place among those that are under way.
    CreditLeak = "credit-leak", caught by credits_are_conserved in FanOut;
    /// Rows lie as far from each other there as they do here.
    WrongPlaneCut = "wrong-plane-cut", caught by bytes_are_their_own in Legs;
    /// What comes before its transfer is known is dropped.
    EarlyArrivalDropped = "early-arrival-dropped", caught by answers_come_in_time in FanIn;
    /// Whoever drops a sink that has ended keeps what had landed and was not taken.
    LandedKeptByNobody = "landed-kept-by-nobody", caught by nothing_is_left in Lives;
    /// What is lent to several ranks is let go when the first of them is done.
    FanOutFreedAtFirstReader = "fan-out-freed-at-first-reader", caught by freed_once_and_untouched in FanOut;
    /// What is said to be there is a token more than what was moved.
    ToldBeforeBytes = "told-before-bytes", caught by told_once_after_bytes in FanIn;
    /// A request that has failed is given out twice.
    FinishedTwice = "finished-twice", caught by one_end_each in FanOut;
    /// What the second rank of a sink says that it has is not counted.
    DroppedAckRank = "dropped-ack-rank", caught by answers_come_in_time in FanOut;
    /// Whoever is called under the epoch of a former life of an engine is taken for it.
    StaleEpochAccepted = "stale-epoch-accepted", caught by bytes_are_their_own in Faults;
    /// A lease ends when its reader says that its time is over, and not by the lender's clock.
    LeaseOnTheWrongClock = "lease-on-the-wrong-clock", caught by leases_end_by_the_lender in Patience;
    /// Blocks to which no answer came in time are handed out again: nothing will land there any more.
    QuarantineReleasedByHope = "quarantine-released-by-hope", caught by freed_once_and_untouched in Patience;
    /// A lease that is renewed ends as if it had not been.
    LeaseNotRenewed = "lease-not-renewed", caught by leases_end_by_the_lender in Faults;
    /// A push is done when the first of its ranks has everything.
    DoneAtTheFirstAck = "done-at-the-first-ack", caught by one_end_each in Breaks;
    /// A source that fails tells nobody.
    FailureKeptToItself = "failure-kept-to-itself", caught by answers_come_in_time in Aborts;
    /// A source goes on with what it moves although its sink has given it up.
    AbortHeardTooLate = "abort-heard-too-late", caught by freed_once_and_untouched in Turns;
    /// A transfer goes on with an engine that was started anew under the old name.
    ResumedWithAnotherLife = "resumed-with-another-life", caught by bytes_are_their_own in Breaks;
    /// What of a leg has come is granted again in the next session, and so are legs that are whole.
    WholeLegGrantedAgain = "whole-leg-granted-again", caught by answers_come_in_time in Breaks;
    /// A sink that has everything does not say so again in the next session.
    LastWordNotSaidAgain = "last-word-not-said-again", caught by answers_come_in_time in Breaks;
    /// A source goes on behind what has come last, over the gaps before it.
    GapSkipped = "gap-skipped", caught by told_once_after_bytes in Breaks;
    /// A berth comes back when the first of its readers has answered.
    BerthBackAtFirstReader = "berth-back-at-first-reader", caught by bytes_are_their_own in Streams;
    /// A reader that is gone keeps its berths although it is proven that it is in no copy.
    BerthsOfTheDeadKept = "berths-of-the-dead-kept", caught by nothing_is_left in Relays;
    /// A get waits for its chunk in the first session with the engine that puts it, and in no other.
    GetWaitsInAnotherSession = "get-waits-in-another-session", caught by answers_come_in_time in Relays;
    /// A pin whose time is over frees its blocks although another engine reads them under a lease.
    PinFreedUnderALease = "pin-freed-under-a-lease", caught by freed_once_and_untouched in Turns;
    /// Whoever names a parent gets its blocks, whoever's it is.
    ParentOfAnybody = "parent-of-anybody", caught by bytes_are_their_own in Turns;
    /// What the parent has of a block that is not whole is said to be copied, and is not.
    TailNotCopied = "tail-not-copied", caught by told_once_after_bytes in Turns;
    /// A child that waits for its parent does not hear that it has ended.
    ParentEndsUnheard = "parent-ends-unheard", caught by answers_come_in_time in Turns;
    /// What another engine had of a pin stays its own when its lease is over.
    PartOfALeaseKept = "part-of-a-lease-kept", caught by nothing_is_left in Turns;
    /// A berth of a get comes back, and the credit for it does not.
    RelayCreditLeak = "relay-credit-leak", caught by credits_are_conserved in Relays;
    /// What has come is copied out only while puts have left a berth, as if both took theirs from one purse.
    OnePurseForPutsAndGets = "one-purse-for-puts-and-gets", caught by answers_come_in_time in Streams;
    /// A chunk of a stream is handed over although one before it is missing.
    ChunkBeforeAMissingOne = "chunk-before-a-missing-one", caught by told_once_after_bytes in Streams;
    /// Whoever gives a request up tells one engine of it, and no other.
    AbortToldToOne = "abort-told-to-one", caught by answers_come_in_time in Streams;
    /// A join is done when the first of its sources is there.
    JoinDoneAtTheFirst = "join-done-at-the-first", caught by told_once_after_bytes in Streams;
    /// An end that is said of a life that is over ends the one that the request has begun since.
    EndOfAFormerLife = "end-of-a-former-life", caught by freed_once_and_untouched in Lives;
    /// A free that was put off stays so although the request is allocated again.
    DeferralOutlivesItsEnd = "deferral-outlives-its-end", caught by freed_once_and_untouched in Lives;
    /// A swap can be committed as soon as it has begun.
    SwapMovedBeforeItsBytes = "swap-moved-before-its-bytes", caught by told_once_after_bytes in Lives;
    /// What a swap writes to is free as soon as it is given up, while it is copied.
    FreedUnderARolledBackSwap = "freed-under-a-rolled-back-swap", caught by freed_once_and_untouched in Lives;
    /// What a swap has read of a request that is over meanwhile stays taken.
    SourceOfTheDeadKept = "source-of-the-dead-kept", caught by nothing_is_left in Lives;
    /// The end of a request names blocks as free that a swap is still at.
    RemovalNamesBlocksUnderASwap = "removal-names-blocks-under-a-swap", caught by freed_once_and_untouched in Lives;
    /// Blocks of a swap that does not end in time are free, and not quarantined.
    NoQuarantineForALateSwap = "no-quarantine-for-a-late-swap", caught by freed_once_and_untouched in Lives;
    /// Nobody is told of a block that is found no more as it was given to somebody else.
    EvictionKeptToItself = "eviction-kept-to-itself", caught by told_once_after_bytes in Lives;
    /// A request that has failed is named at once, while its bytes may still land.
    FailedBeforeQuiet = "failed-before-quiet", caught by freed_once_and_untouched in Patience;
    /// A block for what goes once is not kept while it may be written.
    OnceBlockNotHeld = "once-block-not-held", caught by freed_once_and_untouched in Legs;
    /// A block that one transfer writes is granted to another.
    GrantedTwice = "granted-twice", caught by bytes_are_their_own in Faults;
    /// A layer that is ready for the tokens of one chunk is taken to be ready for those of all that follow.
    LayerReadyForAllChunks = "layer-ready-for-all-chunks", caught by bytes_are_their_own in FanIn;
    /// A fence in front of a layer that was ready for some tokens before is taken to be open.
    FenceIgnoredAfterFirstChunk = "fence-ignored-after-first-chunk", caught by bytes_are_their_own in Everything;
    /// A chunk that begins inside a block goes on there whatever blocks it names, which are all taken to be further ones.
    ChunkGoesOnInAFreshBlock = "chunk-goes-on-in-a-fresh-block", caught by bytes_are_their_own in FanOut;
    /// A put keeps the blocks that the pool has at its bytes, and not those of the layout that was named.
    PutHoldsOtherBlocks = "put-holds-other-blocks", caught by bytes_are_their_own in Streams;
    /// Blocks of which nobody gave a handle are pinned, and so lent.
    PinOfBlocksNotHeld = "pin-of-blocks-not-held", caught by bytes_are_their_own in Turns;
    /// A part of a request's blocks is swapped, and the request is said to be swapped.
    PartOfARequestSwapped = "part-of-a-request-swapped", caught by bytes_are_their_own in Lives;
    /// The first grant of a continuation may skip any number of tokens of its first block, whatever was copied there.
    TailOverwritten = "tail-overwritten", caught by bytes_are_their_own in Turns;
    /// The first grant of a continuation may begin with any block, whichever the last tokens were copied into, and grants may name those
    /// that were filled.
    TailElsewhere = "tail-elsewhere", caught by bytes_are_their_own in Turns;
    /// A subscriber whose queue was full is not told that it has lost something.
    LossUnsaid = "loss-unsaid", caught by told_once_after_bytes in Lives;
    /// A session is said to be complete before the peer has said what it can do.
    ConnectedBeforeAble = "connected-before-able", caught by answers_come_in_time in FanOut;
    /// A source that refuses what a rank of its sink can never mend goes on waiting for it.
    OwnRefusalUnheard = "own-refusal-unheard", caught by answers_come_in_time in Aborts;
    /// What of a datagram operation comes before an earlier operation has finished counts as placed, and is not.
    FinishedBeforePlaced = "finished-before-placed", caught by told_once_after_bytes in FanOut;
    /// A packet of a datagram operation that has ended is placed once more, over whatever is there by now.
    LatePacketPlaced = "late-packet-placed", caught by freed_once_and_untouched in Turns;
    /// The tag of a datagram does not cover where its bytes belong.
    ExtentsUntagged = "extents-untagged", caught by bytes_are_their_own in FanIn;
    /// A datagram connection grants again what it has granted and what was not used yet.
    CreditGrantedTwice = "credit-granted-twice", caught by credits_are_conserved in Everything;
    /// A datagram operation that is given up counts as ended at once, and is sent and repeated like any other.
    RepeatedAfterGivenUp = "repeated-after-given-up", caught by freed_once_and_untouched in Aborts;
    /// A notification is delivered when one of the datagram operations that it names has ended.
    NotifiedAtTheFirst = "notified-at-the-first", caught by told_once_after_bytes in Turns;
    /// Copies that a device's stream was given count as done before the stream has passed them.
    CompletedBeforeTheStreamPassed = "completed-before-the-stream-passed", caught by told_once_after_bytes in Copies;
    /// A lane does not show that a device copies for it, so that memory is said to be quiet, and freed, under the copy.
    FreedUnderACopy = "freed-under-a-copy", caught by freed_once_and_untouched in Copies;
    /// A slot of staging memory is free again as soon as a device was given the copy out of it.
    SlotReusedBeforeCopy = "slot-reused-before-copy", caught by bytes_are_their_own in Copies;
}

/// The bug of this process: its place in [`Bug::ALL`] plus one, 0 for none.
#[cfg(planted)]
static PLANTED: AtomicUsize = AtomicUsize::new(0);

/// Whether this build has hooks at all.
pub const HAS_HOOKS: bool = cfg!(planted);

/// Plants a bug in this process, for all engines that it starts from now on. Without hooks it does nothing.
pub fn plant(bug: Bug) {
    #[cfg(planted)]
    PLANTED.store(bug as usize + 1, Ordering::Relaxed);
    #[cfg(not(planted))]
    let _ = bug;
}

/// Whether this bug is planted. A constant in builds without hooks.
#[inline(always)]
pub fn is(bug: Bug) -> bool {
    #[cfg(planted)]
    return PLANTED.load(Ordering::Relaxed) == bug as usize + 1;
    #[cfg(not(planted))]
    {
        let _ = bug;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bug_has_a_name_of_its_own() {
        for (place, bug) in Bug::ALL.iter().enumerate() {
            assert_eq!(Bug::named(bug.name()), Some(*bug), "bug {place} shares the name {}", bug.name());
            assert_eq!(*bug as usize, place);
        }
        assert_eq!(Bug::named("no-such-bug"), None);
    }

    #[test]
    fn only_builds_with_hooks_have_bugs() {
        assert!(!is(Bug::ALL[0]));
        plant(Bug::ALL[0]);
        assert_eq!(is(Bug::ALL[0]), HAS_HOOKS);
    }
}
