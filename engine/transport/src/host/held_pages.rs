//! Pages of this engine's memory that were left with the kernel or with devices behind a call, by region.
//!
//! A hazard tells of one call. What a call leaves with the kernel (a send without a copy, on its way for as long as the network likes) or with a device is
//! counted here, for the observers in this process, which are the only ones there can be. Each send or copy holds its regions until the last word about it,
//! also when its lane is gone by then, and whoever takes back another region waits for none of them.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use penstock_core::plan::RegionKey;

use super::owner_state::HazardOf;

/// What one lane has left there.
#[derive(Debug)]
pub struct HeldPages {
    peer_index: u32,
    worker: usize,
    /// The hazard under which it is left; none: that of a peer in this process, whose lane it is.
    whose: Option<HazardOf>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    regions: Vec<HeldRegion>,
    /// Goes up with each hold that is the first of a region.
    era: u64,
}

#[derive(Debug)]
struct HeldRegion {
    /// One use of its id, between two renewals.
    key: RegionKey,
    holds: usize,
    /// The revision of this engine's log that the first of them found.
    since: u64,
    era: u64,
    /// The least such revision of those of which nobody will ever hear.
    lost_since: Option<u64>,
}

impl State {
    fn find(&mut self, key: RegionKey) -> Option<&mut HeldRegion> {
        self.regions.iter_mut().find(|held| held.key == key)
    }

    fn release(&mut self, key: RegionKey, is_lost: bool) {
        let Some(held) = self.find(key) else { return };
        held.holds -= 1;
        if is_lost {
            held.lost_since = Some(held.lost_since.map_or(held.since, |since| since.min(held.since)));
        }
        self.regions.retain(|held| held.holds > 0 || held.lost_since.is_some());
    }
}

impl HeldPages {
    pub(super) fn new((peer_index, worker): (u32, usize), whose: Option<HazardOf>) -> Arc<Self> {
        Arc::new(Self { peer_index, worker, whose, state: Mutex::default() })
    }

    pub(super) fn peer_index(&self) -> u32 {
        self.peer_index
    }

    pub(super) fn is_of(&self, (peer_index, worker): (u32, usize), whose: Option<HazardOf>) -> bool {
        (self.peer_index, self.worker, self.whose) == (peer_index, worker, whose)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a call that found this revision may leave pages of this region. Once something was withdrawn, somebody may wait for
    /// those that were left: their number only falls then.
    pub fn may_hold(&self, revision: u64, key: RegionKey) -> bool {
        self.state().find(key).is_none_or(|held| held.holds == 0 || held.since == revision)
    }

    /// A call that found this revision leaves pages of these regions, until the answer is dropped. Asked for before the call
    /// is over: whoever saw its hazard sees this afterwards.
    pub fn hold(self: &Arc<Self>, revision: u64, keys: impl Iterator<Item = RegionKey>) -> PageHold {
        let mut state = self.state();
        let era = state.era + 1;
        let mut hold = PageHold { pages: Arc::clone(self), first: None, others: Vec::new() };
        for key in keys {
            if hold.keys().any(|held| held == key) {
                continue;
            }
            match hold.first {
                None => hold.first = Some(key),
                Some(_) => hold.others.push(key),
            }
            match state.find(key) {
                Some(held) if held.holds > 0 => held.holds += 1,
                Some(held) => (held.holds, held.since, held.era) = (1, revision, era),
                None => state.regions.push(HeldRegion { key, holds: 1, since: revision, era, lost_since: None }),
            }
            state.era = era;
        }
        hold
    }

    /// Whether any were left and did not come back.
    pub fn has_any(&self) -> bool {
        !self.state().regions.is_empty()
    }

    /// Whether there are any that will come back, as far as anybody hears of it.
    pub fn is_held(&self) -> bool {
        self.state().regions.iter().any(|held| held.holds > 0)
    }

    /// What there is of a region since it was registered with that key (none: of any), or comes by a call that is under way, and is older than this revision.
    pub(super) fn older(
        self: &Arc<Self>,
        region: Option<RegionKey>,
        revision: u64,
        is_busy: bool,
    ) -> Option<OlderPages> {
        let last_era = self.state().era + u64::from(is_busy);
        let older = OlderPages { pages: Arc::clone(self), region, revision, last_era };
        (is_busy || !older.are_back()).then_some(older)
    }
}

/// The pages of one send or copy.
#[derive(Debug)]
#[must_use = "the pages count as given back as soon as it is dropped"]
pub struct PageHold {
    pages: Arc<HeldPages>,
    first: Option<RegionKey>,
    others: Vec<RegionKey>,
}

impl PageHold {
    /// Nobody will hear whether they were let go of: whoever takes the memory back waits for ever, and nobody else does.
    pub fn lose(self) {
        let mut state = self.pages.state();
        self.keys().for_each(|key| state.release(key, true));
        drop(state);
        std::mem::forget(self);
    }

    fn keys(&self) -> impl Iterator<Item = RegionKey> {
        self.first.iter().chain(&self.others).copied()
    }
}

impl Drop for PageHold {
    fn drop(&mut self) {
        let mut state = self.pages.state();
        self.keys().for_each(|key| state.release(key, false));
    }
}

/// Pages of a region that were left before a revision.
#[derive(Debug, Clone)]
pub struct OlderPages {
    pages: Arc<HeldPages>,
    region: Option<RegionKey>,
    revision: u64,
    /// Those that were there, or came with the call under way then, are of this era at most.
    last_era: u64,
}

impl OlderPages {
    pub(super) fn are_of_peer(&self) -> bool {
        self.pages.whose.is_none()
    }

    /// Whether nobody has any of them any more.
    pub fn are_back(&self) -> bool {
        let are_back = |held: &HeldRegion| {
            let are_others = held.holds == 0 || held.since >= self.revision || held.era > self.last_era;
            are_others && held.lost_since.is_none_or(|since| since >= self.revision)
        };
        // Renewals have raised its generation since.
        let is_of = |held: &HeldRegion, first: RegionKey| {
            held.key.region == first.region && held.key.generation >= first.generation
        };
        let is_asked = |held: &&HeldRegion| self.region.is_none_or(|first| is_of(held, first));
        self.pages.state().regions.iter().filter(is_asked).all(are_back)
    }
}

#[cfg(test)]
mod tests {
    use penstock_core::{Generation, RegionId};

    use super::*;

    /// A region as it was registered.
    fn key(region: u32) -> RegionKey {
        RegionKey { region: RegionId(region), generation: Generation(5) }
    }

    fn keys<const N: usize>(regions: [u32; N]) -> impl Iterator<Item = RegionKey> {
        regions.into_iter().map(key)
    }

    #[test]
    fn each_region_is_held_by_its_own_sends() {
        let pages = HeldPages::new((3, 1), Some(HazardOf::Lane));
        assert!(pages.older(None, 8, false).is_none() && pages.may_hold(7, key(1)));
        let first = pages.hold(7, keys([1, 2, 1]));
        let second = pages.hold(7, keys([2]));
        assert!(pages.may_hold(7, key(1)) && !pages.may_hold(8, key(1)));
        assert!(pages.may_hold(8, key(3)), "another region");
        assert!(pages.older(Some(key(3)), 8, false).is_none(), "another region");
        let (one, two) = (pages.older(Some(key(1)), 8, false).unwrap(), pages.older(Some(key(2)), 8, false).unwrap());
        let all = pages.older(None, u64::MAX, false).unwrap();
        drop(first);
        assert!(one.are_back() && !two.are_back() && !all.are_back());
        drop(second);
        assert!(two.are_back() && all.are_back());
    }

    #[test]
    fn what_has_seen_the_withdrawal_keeps_nobody_waiting() {
        let pages = HeldPages::new((0, 0), Some(HazardOf::Lane));
        let held = pages.hold(8, keys([1]));
        assert!(pages.older(Some(key(1)), 8, false).is_none());
        let all = pages.older(None, u64::MAX, false).unwrap();
        drop(held);
        let _later = pages.hold(9, keys([1]));
        assert!(all.are_back(), "others came since");
    }

    #[test]
    fn a_call_that_is_under_way_may_still_leave_some() {
        let pages = HeldPages::new((0, 0), Some(HazardOf::Lane));
        let seen = [Some(key(1)), None].map(|region| pages.older(region, 8, true).unwrap());
        let held = pages.hold(7, keys([1]));
        assert!(seen.iter().all(|seen| !seen.are_back()));
        drop(held);
        assert!(seen.iter().all(OlderPages::are_back));
    }

    #[test]
    fn what_is_lost_keeps_who_takes_that_region_back_and_nobody_else() {
        let pages = HeldPages::new((0, 0), None);
        let (lost, other) = (pages.hold(7, keys([1])), pages.hold(7, keys([2])));
        lost.lose();
        assert!(pages.has_any() && pages.is_held() && pages.may_hold(9, key(1)), "nobody waits for what never comes");
        let (one, two) = (pages.older(Some(key(1)), 8, false).unwrap(), pages.older(Some(key(2)), 8, false).unwrap());
        drop(other);
        assert!(two.are_back() && !pages.is_held());
        drop(pages.hold(9, keys([1])));
        assert!(!one.are_back() && pages.older(None, u64::MAX, false).is_some());
        assert!(pages.older(Some(key(1)), 7, false).is_none(), "it was withdrawn before");
    }

    #[test]
    fn what_was_held_of_a_region_is_of_all_its_renewals_and_of_no_later_use_of_its_id() {
        let pages = HeldPages::new((0, 0), None);
        let renewed = RegionKey { generation: Generation(6), ..key(1) };
        let later = RegionKey { generation: Generation(7), ..key(1) };
        pages.hold(7, keys([1])).lose();
        let held = pages.hold(8, [renewed].into_iter());
        assert!(pages.older(Some(key(1)), 8, false).is_some(), "lost before it was renewed");
        assert!(pages.older(Some(renewed), 9, false).is_some_and(|older| !older.are_back()));
        assert!(pages.may_hold(9, later) && pages.older(Some(later), 9, false).is_none(), "it is another region");
        drop(held);
    }
}
