//! Pages of this engine's memory that the kernel keeps behind a call, by region.
//!
//! A hazard tells of one call. What a call leaves with the kernel (a send without a copy, on its way for as long as the network likes) is
//! counted here, for the observers in this process, which are the only ones there can be. Each send holds its regions until the kernel's last word,
//! also when its lane is gone by then, and whoever takes back another region waits for none of them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::owner_state::HazardOf;

/// What one lane has left with the kernel.
#[derive(Debug)]
pub struct HeldPages {
    peer_index: u32,
    worker: usize,
    /// The hazard under which it is left.
    whose: HazardOf,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// How many sends have pages of a region.
    regions: Vec<(u32, usize)>,
    sends: usize,
    /// Of these nobody will ever hear.
    lost: usize,
    /// The revision of this engine's log that the first of them found.
    since: u64,
    /// Goes up with each that is the first.
    era: u64,
}

impl HeldPages {
    pub(super) fn new((peer_index, worker): (u32, usize), whose: HazardOf) -> Arc<Self> {
        Arc::new(Self { peer_index, worker, whose, state: Mutex::default() })
    }

    pub(super) fn peer_index(&self) -> u32 {
        self.peer_index
    }

    pub(super) fn is_of(&self, (peer_index, worker): (u32, usize), whose: HazardOf) -> bool {
        (self.peer_index, self.worker, self.whose) == (peer_index, worker, whose)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a call that found this revision may leave pages with the kernel. Once something was withdrawn, somebody may wait for
    /// those that it has: their number only falls then.
    pub fn may_hold(&self, revision: u64) -> bool {
        let state = self.state();
        state.sends == 0 || state.since == revision
    }

    /// A call that found this revision leaves the kernel with pages of these regions, until the answer is dropped. Asked for before the call
    /// is over: whoever saw its hazard sees this afterwards.
    pub fn hold(self: &Arc<Self>, revision: u64, regions: impl Iterator<Item = u32>) -> PageHold {
        let mut state = self.state();
        if state.sends == 0 {
            (state.since, state.era) = (revision, state.era + 1);
        }
        state.sends += 1;
        let mut hold = PageHold { pages: Arc::clone(self), first: None, others: Vec::new() };
        for region in regions {
            if hold.regions().any(|held| held == region) {
                continue;
            }
            match hold.first {
                None => hold.first = Some(region),
                Some(_) => hold.others.push(region),
            }
            match state.regions.iter_mut().find(|(held, _)| *held == region) {
                Some((_, sends)) => *sends += 1,
                None => state.regions.push((region, 1)),
            }
        }
        hold
    }

    /// Whether any were left and did not come back.
    pub fn has_any(&self) -> bool {
        self.state().sends > 0
    }

    /// Whether the kernel has any that it will let go of, as far as anybody hears of it.
    pub fn is_held(&self) -> bool {
        let state = self.state();
        state.sends > state.lost
    }

    /// What there is of a region (none: of any), or comes by a call that is under way, and is older than this revision.
    pub(super) fn older(self: &Arc<Self>, region: Option<u32>, revision: u64, is_busy: bool) -> Option<OlderPages> {
        let last_era = self.state().era + u64::from(is_busy);
        let older = OlderPages { pages: Arc::clone(self), region, revision, last_era };
        (is_busy || !older.are_back()).then_some(older)
    }
}

/// One send's pages.
#[derive(Debug)]
#[must_use = "the pages count as given back as soon as it is dropped"]
pub struct PageHold {
    pages: Arc<HeldPages>,
    first: Option<u32>,
    others: Vec<u32>,
}

impl PageHold {
    /// Nobody will hear whether the kernel has let go: whoever takes the memory back waits for ever, and nobody else does.
    pub fn lose(self) {
        self.pages.state().lost += 1;
        std::mem::forget(self);
    }

    fn regions(&self) -> impl Iterator<Item = u32> {
        self.first.iter().chain(&self.others).copied()
    }
}

impl Drop for PageHold {
    fn drop(&mut self) {
        let mut state = self.pages.state();
        state.sends -= 1;
        for region in self.regions() {
            if let Some(place) = state.regions.iter().position(|(held, _)| *held == region) {
                state.regions[place].1 -= 1;
                if state.regions[place].1 == 0 {
                    state.regions.swap_remove(place);
                }
            }
        }
    }
}

/// Pages of a region that the kernel has from before a revision.
#[derive(Debug, Clone)]
pub struct OlderPages {
    pages: Arc<HeldPages>,
    region: Option<u32>,
    revision: u64,
    /// Those that were there, or came with the call under way then, are of this era at most.
    last_era: u64,
}

impl OlderPages {
    /// Whether the kernel has none of them any more.
    pub fn are_back(&self) -> bool {
        let state = self.pages.state();
        let has_any = match self.region {
            None => state.sends > 0,
            Some(region) => state.regions.iter().any(|(held, _)| *held == region),
        };
        !has_any || state.since >= self.revision || state.era > self.last_era
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_region_is_held_by_its_own_sends() {
        let pages = HeldPages::new((3, 1), HazardOf::Lane);
        assert!(pages.older(None, 8, false).is_none() && pages.may_hold(7));
        let first = pages.hold(7, [1, 2, 1].into_iter());
        let second = pages.hold(7, [2].into_iter());
        assert!(pages.may_hold(7) && !pages.may_hold(8));
        assert!(pages.older(Some(3), 8, false).is_none(), "another region");
        let (one, two) = (pages.older(Some(1), 8, false).unwrap(), pages.older(Some(2), 8, false).unwrap());
        let all = pages.older(None, u64::MAX, false).unwrap();
        drop(first);
        assert!(one.are_back() && !two.are_back() && !all.are_back());
        drop(second);
        assert!(two.are_back() && all.are_back());
    }

    #[test]
    fn what_has_seen_the_withdrawal_keeps_nobody_waiting() {
        let pages = HeldPages::new((0, 0), HazardOf::Lane);
        let held = pages.hold(8, [1].into_iter());
        assert!(pages.older(Some(1), 8, false).is_none());
        let all = pages.older(None, u64::MAX, false).unwrap();
        drop(held);
        let _later = pages.hold(9, [1].into_iter());
        assert!(all.are_back(), "others came since");
    }

    #[test]
    fn a_call_that_is_under_way_may_still_leave_some() {
        let pages = HeldPages::new((0, 0), HazardOf::Lane);
        let seen = [Some(1), None].map(|region| pages.older(region, 8, true).unwrap());
        let held = pages.hold(7, [1].into_iter());
        assert!(seen.iter().all(|seen| !seen.are_back()));
        drop(held);
        assert!(seen.iter().all(OlderPages::are_back));
    }
}
