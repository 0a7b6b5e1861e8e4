//! A swap under way, as its scheduler sees it.

use std::sync::Arc;
use std::time::Duration;

use penstock::flows::{BlockRef, Swap, SwapFailed, SwapState, SwapWay};
use penstock::{Blocks, Timestamp};

use super::content::broken;
use crate::env::SimEnv;
use crate::oracle::{Invariant, Violated};
use crate::run::KNOWN_WITHIN;

/// Within this something may be late by one clock and not by another.
const ABOUT: Duration = Duration::from_millis(1);

/// What has become of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Came {
    /// It is on its way.
    Nothing,
    /// Its bytes are there.
    Moved,
    /// They could not be moved.
    Failed,
    /// It took too long.
    TimedOut,
}

/// A swap.
pub(super) struct Swapping {
    who: String,
    pub(super) way: SwapWay,
    swap: Swap<SimEnv>,
    /// What is written, as long as its request may want it.
    written: Option<Blocks>,
    /// Its blocks of the device.
    pub(super) device: Vec<BlockRef>,
    /// Whether somebody has its blocks, on both sides.
    are_kept: [Box<dyn Fn() -> bool>; 2],
    begun: Timestamp,
    until: Timestamp,
    moved_at: Option<Timestamp>,
    /// Why it has failed, once that is told.
    failed: Option<SwapFailed>,
    /// Since when nobody wants it any more.
    given_up: Option<Timestamp>,
}

impl Swapping {
    pub(super) fn new(
        who: String,
        way: SwapWay,
        swap: Swap<SimEnv>,
        (read, written): (&Blocks, Blocks),
        device: Vec<BlockRef>,
        (begun, within): (Timestamp, Duration),
    ) -> Self {
        let are_kept = [is_kept(read), is_kept(&written)];
        let (written, until) = (Some(written), begun + within);
        Self { who, way, swap, written, device, are_kept, begun, until, moved_at: None, failed: None, given_up: None }
    }

    fn broken(&self, invariant: Invariant, words: impl AsRef<str>) -> Violated {
        broken(invariant, &self.who, words)
    }

    /// What has become of it. What was told once stays so.
    pub(super) fn look(&mut self, now: Timestamp, disturbed: Timestamp, is_cut: bool) -> Result<Came, Violated> {
        match (self.swap.poll(), self.moved_at) {
            (None, None) if now > self.begun.max(disturbed) + KNOWN_WITHIN => {
                Err(self.broken(Invariant::AnswersComeInTime, "nothing hinders it, and it is not over"))
            }
            (None, None) => Ok(Came::Nothing),
            (Some(Ok(())), _) => {
                self.moved_at.get_or_insert(now);
                Ok(Came::Moved)
            }
            (Some(Err(SwapFailed::TimedOut)), None) if now + ABOUT >= self.until => {
                self.is_given_up(Some(SwapFailed::TimedOut), now);
                Ok(Came::TimedOut)
            }
            (Some(Err(failed @ SwapFailed::Moving(_))), None) if is_cut => {
                self.is_given_up(Some(failed), now);
                Ok(Came::Failed)
            }
            (said, moved) => {
                let words = format!("its bytes were there at {moved:?}, and it says {said:?} at {now:?}");
                Err(self.broken(Invariant::OneEndEach, words))
            }
        }
    }

    /// Since when its bytes are there.
    pub(super) fn moved_at(&self, now: Timestamp) -> Timestamp {
        self.moved_at.unwrap_or(now)
    }

    /// Where it writes to.
    pub(super) fn places(&self) -> &[u32] {
        self.written.as_ref().map_or(&[], Blocks::indices)
    }

    /// Goes on with what it has written.
    pub(super) fn commit(mut self) -> Result<Option<Blocks>, Violated> {
        let said = self.swap.commit();
        let status = self.swap.status();
        if said.is_err() || (status.state, status.failed) != (SwapState::Committed, None) {
            let words = format!("its bytes are there, its commit is answered by {said:?}, and it is {status:?}");
            return Err(self.broken(Invariant::OneEndEach, words));
        }
        Ok(self.written.take())
    }

    /// Gives it up.
    pub(super) fn roll_back(&mut self, now: Timestamp) -> Result<(), Violated> {
        let before = self.swap.status();
        let said = self.swap.roll_back(Duration::ZERO);
        let status = self.swap.status();
        let is_well = matches!(status.failed, None | Some(SwapFailed::RolledBack)) && said == Ok(status.is_over());
        if !is_well {
            let words = format!("it was {before:?}, is rolled back as {said:?}, and is {status:?}");
            return Err(self.broken(Invariant::OneEndEach, words));
        }
        self.is_given_up(None, now);
        Ok(())
    }

    /// Its request wants nothing of it any more: what it writes to is the swap's alone.
    pub(super) fn is_given_up(&mut self, failed: Option<SwapFailed>, now: Timestamp) {
        (self.written, self.failed, self.given_up) = (None, failed, Some(now));
    }

    /// Whether nothing of it can land any more.
    pub(super) fn is_over(&self) -> bool {
        self.swap.status().is_over()
    }

    /// Nobody wants it: that is so soon, and stays so.
    pub(super) fn check_over(&self, now: Timestamp, disturbed: Timestamp) -> Result<(), Violated> {
        let (status, since) = (self.swap.status(), self.given_up.unwrap_or(self.begun));
        if self.failed.is_some() && status.failed != self.failed {
            let words = format!("it has failed as {:?}, and is {status:?}", self.failed);
            return Err(self.broken(Invariant::OneEndEach, words));
        }
        if status.state == SwapState::Committed {
            return Err(self.broken(Invariant::OneEndEach, "it was given up, and is committed"));
        }
        if !status.is_over() && !self.are_kept.iter().all(|is_kept| is_kept()) {
            let words = format!("it is {status:?}, and blocks of it are free");
            return Err(self.broken(Invariant::FreedOnceAndUntouched, words));
        }
        if !status.is_over() && now > since.max(disturbed) + KNOWN_WITHIN {
            let words = format!("it was given up at {since:?}, and is {status:?}");
            return Err(self.broken(Invariant::AnswersComeInTime, words));
        }
        Ok(())
    }
}

/// Looks whether these blocks are in the use that they are in now.
fn is_kept(blocks: &Blocks) -> Box<dyn Fn() -> bool> {
    let (allocator, ids) = (Arc::clone(blocks.allocator()), blocks.ids().collect::<Vec<_>>());
    Box::new(move || ids.iter().all(|id| allocator.holders(*id).is_ok()))
}
