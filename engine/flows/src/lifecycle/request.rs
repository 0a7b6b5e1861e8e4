//! The life of one request: its states, and what a report means in each.

use std::fmt::Write;

use penstock_session::machine::Step;

use super::BlockRef;

penstock_session::machine! {
    /// A request in one of its lives, as far as its blocks are concerned.
    pub Request on RequestEvent {
        states {
            /// It waits and has no blocks.
            Queued,
            /// It has blocks, and nothing in them yet.
            Allocated,
            /// It is computed.
            Active,
            /// Its bytes are on their way from the device to the host.
            SwappingOut,
            /// Its bytes are on the host, and it has no blocks of the device.
            Swapped,
            /// Its bytes are on their way back.
            SwappingIn,
            /// It lives on without its bytes: they have to be computed again.
            Dropped,
        }
        ends {
            /// It is over, and what was known of it is to be removed.
            Freed,
        }
        events {
            /// It was put into a queue.
            Queue,
            /// It got its first blocks, fresh ones and ones with a known prefix.
            Allocate,
            /// It is among those that run.
            Activate,
            /// It got further blocks.
            Grow,
            /// Blocks of it can be found by their hash.
            Register,
            /// Somebody saw that it is finished.
            Observe,
            /// Blocks of the host were set aside for its bytes.
            SwapOutPrepare,
            /// Its bytes are there, and its blocks of the device are free.
            SwapOutCommit,
            /// It stays where it is.
            SwapOutRollBack,
            /// Blocks of the device were set aside for its bytes.
            SwapInPrepare,
            /// Its bytes are there, and its blocks of the host are free.
            SwapInCommit,
            /// It stays on the host.
            SwapInRollBack,
            /// A swap was rolled back and the bytes are gone.
            Lose,
            /// What was scheduled did not fit: its blocks were freed, and it waits again.
            RollSchedule,
            /// There were no blocks to swap to: its own were freed.
            RollNoBuffers,
            /// A swap to the host took too long: its blocks are given up.
            RollSwapOutLate,
            /// A swap to the device took too long: its blocks are given up.
            RollSwapInLate,
            /// Its last sequence has ended, or it was aborted.
            End,
        }
        Queued { Queue => Queued, Observe => Queued, Allocate => Allocated, End => Freed }
        Allocated {
            Activate => Active, Grow => Active, Register => Allocated, Observe => Allocated, SwapOutPrepare => SwappingOut,
            RollSchedule => Dropped, RollNoBuffers => Dropped, End => Freed,
        }
        Active {
            Activate => Active, Grow => Active, Register => Active, Observe => Active, SwapOutPrepare => SwappingOut,
            RollSchedule => Dropped, RollNoBuffers => Dropped, End => Freed,
        }
        SwappingOut {
            Observe => SwappingOut, SwapOutCommit => Swapped, SwapOutRollBack => Active, Lose => Dropped,
            RollNoBuffers => Dropped, RollSwapOutLate => Dropped, End => Freed,
        }
        Swapped {
            Observe => Swapped, SwapInPrepare => SwappingIn, Lose => Dropped, RollSchedule => Dropped,
            RollNoBuffers => Dropped, RollSwapInLate => Dropped, End => Freed,
        }
        SwappingIn {
            Observe => SwappingIn, SwapInCommit => Active, SwapInRollBack => Swapped, Lose => Dropped,
            RollSchedule => Dropped, RollNoBuffers => Dropped, RollSwapInLate => Dropped, End => Freed,
        }
        Dropped {
            Queue => Dropped, Observe => Dropped, Allocate => Allocated, Lose => Dropped, RollSchedule => Dropped,
            RollNoBuffers => Dropped, RollSwapOutLate => Dropped, RollSwapInLate => Dropped, End => Freed,
        }
    }
}

/// What whoever keeps an index of requests does about a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Nothing.
    NoOp,
    /// Nothing yet: blocks were freed, and the request lives on. Allocating again or its end settles it.
    Defer,
    /// Forget the request. Said once in a life, and delivered before the report returns.
    Remove,
}

/// Where blocks are freed of a request that lives on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DeferSite {
    /// What was scheduled did not fit.
    ScheduleRollback,
    /// There were no blocks to swap to.
    NoSwapBuffers,
    /// A swap to the host took too long.
    SwapOutTimeout,
    /// A swap to the device took too long.
    SwapInTimeout,
}

/// What a scheduler says of a request. Blocks are blocks of the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SchedulerReport {
    /// It was put into a queue.
    Queued,
    /// It got its first blocks.
    Allocated {
        /// With nothing in them.
        fresh: Vec<BlockRef>,
        /// With a prefix that was found by its hash; others may have them too.
        cached: Vec<BlockRef>,
    },
    /// It is among those that run.
    Active,
    /// It got further blocks, with nothing in them.
    Grown {
        /// Which.
        blocks: Vec<BlockRef>,
    },
    /// Blocks of the host were set aside for its bytes.
    SwapOutPrepared,
    /// Its bytes are on the host, and its blocks of the device are free.
    SwapOutCommitted,
    /// It stays on the device.
    SwapOutRolledBack {
        /// Its bytes are gone.
        is_lost: bool,
    },
    /// Blocks of the device were set aside for its bytes.
    SwapInPrepared {
        /// Which.
        blocks: Vec<BlockRef>,
    },
    /// Its bytes are on the device, and its blocks of the host are free.
    SwapInCommitted,
    /// It stays on the host, and the blocks that were set aside are free.
    SwapInRolledBack {
        /// Its bytes are gone.
        is_lost: bool,
    },
    /// Blocks of it can be found by these hashes.
    Registered {
        /// Hash and block.
        blocks: Vec<(u64, BlockRef)>,
    },
    /// Somebody saw that it is finished. Its end is another report.
    Finished,
    /// A further sequence came from one of its own. Numbers of sequences rise and are not used again.
    SequenceForked {
        /// Its number.
        sequence: u32,
    },
    /// One of its sequences has ended; the last one ends the request.
    SequenceEnded {
        /// Its number.
        sequence: u32,
    },
    /// Its blocks were freed, and it lives on.
    Rolled(DeferSite),
    /// It has ended well, with all its sequences.
    Removed,
    /// It was aborted, with all its sequences.
    Aborted,
}

impl SchedulerReport {
    /// What it means to the machine. A sequence's report means nothing to it by itself.
    pub(super) fn event(&self) -> Option<RequestEvent> {
        Some(match self {
            Self::Queued => RequestEvent::Queue,
            Self::Allocated { .. } => RequestEvent::Allocate,
            Self::Active => RequestEvent::Activate,
            Self::Grown { .. } => RequestEvent::Grow,
            Self::SwapOutPrepared => RequestEvent::SwapOutPrepare,
            Self::SwapOutCommitted => RequestEvent::SwapOutCommit,
            Self::SwapOutRolledBack { is_lost: false } => RequestEvent::SwapOutRollBack,
            Self::SwapInPrepared { .. } => RequestEvent::SwapInPrepare,
            Self::SwapInCommitted => RequestEvent::SwapInCommit,
            Self::SwapInRolledBack { is_lost: false } => RequestEvent::SwapInRollBack,
            Self::SwapOutRolledBack { is_lost: true } | Self::SwapInRolledBack { is_lost: true } => RequestEvent::Lose,
            Self::Registered { .. } => RequestEvent::Register,
            Self::Finished => RequestEvent::Observe,
            Self::Rolled(DeferSite::ScheduleRollback) => RequestEvent::RollSchedule,
            Self::Rolled(DeferSite::NoSwapBuffers) => RequestEvent::RollNoBuffers,
            Self::Rolled(DeferSite::SwapOutTimeout) => RequestEvent::RollSwapOutLate,
            Self::Rolled(DeferSite::SwapInTimeout) => RequestEvent::RollSwapInLate,
            Self::Removed | Self::Aborted => RequestEvent::End,
            Self::SequenceForked { .. } | Self::SequenceEnded { .. } => return None,
        })
    }

    /// Whether it ends a swap that somebody else carries out.
    pub(super) fn settles_swap(&self) -> bool {
        matches!(
            self,
            Self::SwapOutCommitted
                | Self::SwapOutRolledBack { .. }
                | Self::SwapInCommitted
                | Self::SwapInRolledBack { .. }
        )
    }
}

/// Where an event leads from a state, and the verdict; nothing if it is refused there.
pub fn judge(state: Request, event: RequestEvent) -> Option<(Request, Verdict)> {
    let next = match state.step(event) {
        Step::Go(next) => next,
        Step::Stay => state,
        Step::Refused => return None,
    };
    let frees = matches!(
        event,
        RequestEvent::Lose
            | RequestEvent::RollSchedule
            | RequestEvent::RollNoBuffers
            | RequestEvent::RollSwapOutLate
            | RequestEvent::RollSwapInLate
    );
    let verdict = match next {
        Request::Freed if state != Request::Freed => Verdict::Remove,
        Request::Dropped if frees => Verdict::Defer,
        _ => Verdict::NoOp,
    };
    Some((next, verdict))
}

/// The verdict of every event in every state, as text; `-` where it is refused.
pub fn verdicts() -> String {
    let mut text = format!("{:11}", "Verdict");
    for event in RequestEvent::ALL {
        let _ = write!(text, " | {event:?}");
    }
    for state in Request::ALL {
        let _ = write!(text, "\n{:11}", format!("{state:?}"));
        for event in RequestEvent::ALL {
            let verdict = judge(*state, *event).map_or("-".to_owned(), |(_, verdict)| format!("{verdict:?}"));
            let _ = write!(text, " | {verdict:width$}", width = format!("{event:?}").len());
        }
    }
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}
