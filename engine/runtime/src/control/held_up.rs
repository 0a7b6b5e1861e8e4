//! Moves that could not begin yet. They wait in their order and begin as there is room: what waits behind others is not planned before
//! they have begun, so a turn of the control loop costs as much as begins in it, however many wait.

use std::collections::BTreeMap;
use std::ops::Bound;

use penstock_flows::MoveId;
use penstock_session::PeerKey;

/// What a move waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waits {
    /// As many transfers are under way as there may be: until then nobody else can begin either.
    Room,
    /// Its peer has a region of which this engine has not heard yet.
    News,
    /// Memory of its peer is being mapped.
    Mapping,
}

/// Where one stands: urgent ones first, then in the order in which they came. Names say nothing of that.
type Place = (bool, u64);

/// Those that wait, and what each of them is.
#[derive(Debug)]
pub(super) struct HeldUp<T> {
    waiting: BTreeMap<Place, (MoveId, PeerKey, T)>,
    places: BTreeMap<MoveId, Place>,
    came: u64,
    is_full: bool,
}

impl<T> HeldUp<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether some wait for room: who comes now waits behind them.
    pub(super) fn is_full(&self) -> bool {
        self.is_full
    }

    /// One has to wait.
    pub(super) fn hold(&mut self, id: MoveId, is_urgent: bool, peer: PeerKey, what: T, waits: Waits) {
        self.is_full |= waits == Waits::Room;
        let place = (!is_urgent, self.came);
        self.came += 1;
        self.places.insert(id, place);
        self.waiting.insert(place, (id, peer, what));
    }

    /// One is not wanted any more. Answers whether it was waiting.
    pub(super) fn stop(&mut self, id: MoveId) -> bool {
        let stopped = self.places.remove(&id).and_then(|place| self.waiting.remove(&place));
        self.is_full &= !self.waiting.is_empty();
        stopped.is_some()
    }

    /// Begins what can begin, in its order: up to the first for which there is no room, and of a peer up to the first that waits for
    /// news of it, or for its memory.
    pub(super) fn begin(&mut self, mut begin: impl FnMut(MoveId, PeerKey, &T) -> Result<(), Waits>) {
        self.is_full = false;
        let mut waited_for: Vec<PeerKey> = Vec::new();
        let mut from = Bound::Unbounded;
        while let Some((&place, (id, peer, what))) = self.waiting.range((from, Bound::Unbounded)).next() {
            from = Bound::Excluded(place);
            if waited_for.contains(peer) {
                continue;
            }
            match begin(*id, *peer, what) {
                Ok(()) => {
                    self.places.remove(id);
                    self.waiting.remove(&place);
                }
                Err(Waits::News | Waits::Mapping) => waited_for.push(*peer),
                Err(Waits::Room) => return self.is_full = true,
            }
        }
    }
}

impl<T> Default for HeldUp<T> {
    fn default() -> Self {
        Self { waiting: BTreeMap::new(), places: BTreeMap::new(), came: 0, is_full: false }
    }
}

#[cfg(test)]
mod tests {
    use penstock_core::Epoch;

    use super::*;

    const fn peer(peer_index: u32) -> PeerKey {
        PeerKey { peer_index, epoch: Epoch(1) }
    }

    /// So many of one peer, each its own number.
    fn held(count: u64) -> HeldUp<u64> {
        let mut held = HeldUp::default();
        (0..count).for_each(|id| held.hold(MoveId(id), false, peer(1), id, Waits::Room));
        held
    }

    #[test]
    fn a_turn_costs_what_begins_in_it_and_all_begin_in_their_order() {
        const ALL: u64 = 10_000;
        let mut held = held(ALL);
        let (mut begun, mut tried) = (Vec::new(), 0);
        while !held.is_empty() {
            assert!(held.is_full(), "who comes now waits behind them");
            let mut room = 3;
            held.begin(|id, _, _| {
                tried += 1;
                room -= 1;
                if room < 0 {
                    return Err(Waits::Room);
                }
                begun.push(id.0);
                Ok(())
            });
        }
        assert!(begun.iter().copied().eq(0..ALL) && !held.is_full());
        assert!(tried <= ALL + ALL / 3 + 1, "{tried} were planned");
    }

    #[test]
    fn names_that_begin_anew_do_not_overtake() {
        let mut held = HeldUp::default();
        let names = [7, 9, 0, 3];
        names.iter().for_each(|&id| held.hold(MoveId(id), false, peer(1), id, Waits::Room));
        assert!(held.stop(MoveId(9)) && !held.stop(MoveId(9)));
        let mut begun = Vec::new();
        held.begin(|id, _, _| {
            begun.push(id.0);
            Ok(())
        });
        assert_eq!((begun, held.is_empty(), held.places.len()), (vec![7, 0, 3], true, 0));
    }

    #[test]
    fn urgent_ones_go_first_and_one_that_is_stopped_does_not_go() {
        let mut held = held(3);
        held.hold(MoveId(7), true, peer(1), 7, Waits::Room);
        assert!(held.stop(MoveId(1)) && !held.stop(MoveId(1)));
        let mut begun = Vec::new();
        held.begin(|id, _, what| {
            assert_eq!(id.0, *what);
            begun.push(id.0);
            Ok(())
        });
        assert_eq!((begun, held.is_empty(), held.is_full()), (vec![7, 0, 2], true, false));
        held.hold(MoveId(9), false, peer(1), 9, Waits::Room);
        assert!(held.stop(MoveId(9)) && !held.is_full(), "nobody waits for room any more");
    }

    #[test]
    fn who_waits_for_news_holds_up_its_own_peer_only() {
        let mut held = HeldUp::default();
        for (id, peer_index) in [(1, 1), (2, 2), (3, 1), (4, 2)] {
            held.hold(MoveId(id), false, peer(peer_index), (), Waits::News);
        }
        assert!(!held.is_full());
        let mut tried = Vec::new();
        held.begin(|id, of, ()| {
            tried.push(id.0);
            if of == peer(1) { Err(Waits::News) } else { Ok(()) }
        });
        assert_eq!(tried, [1, 2, 4]);
        tried.clear();
        held.begin(|id, _, ()| {
            tried.push(id.0);
            Ok(())
        });
        assert_eq!((tried, held.is_empty()), (vec![1, 3], true));
    }
}
