//! In which transfers each peer has a part: those that go on without it, or end, when its session is over.

use std::collections::BTreeMap;

use penstock_session::PeerKey;
use penstock_session::transfers::table::EntryKey;

/// The transfers of each peer. Those of a peer whose session stands are kept though they are none: there will be others.
#[derive(Debug, Default)]
pub(super) struct Shares(BTreeMap<PeerKey, Places>);

/// Places in the table of transfers, a bit for each: one is set and cleared for each transfer, and all are looked at once a session.
#[derive(Debug, Default)]
struct Places {
    words: Vec<u64>,
    count: usize,
}

impl Places {
    fn set(&mut self, place: usize, is_in: bool) {
        let (at, bit) = (place / 64, 1 << (place % 64));
        if is_in && at >= self.words.len() {
            self.words.resize(at + 1, 0);
        }
        let Some(word) = self.words.get_mut(at).filter(|word| (**word & bit != 0) != is_in) else { return };
        *word ^= bit;
        self.count = if is_in { self.count + 1 } else { self.count - 1 };
    }

    fn iter(&self) -> impl Iterator<Item = usize> + '_ {
        let bits = |(at, word): (usize, &u64)| {
            let word = *word;
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| at * 64 + bit)
        };
        self.words.iter().enumerate().filter(|(_, word)| **word != 0).flat_map(bits)
    }

    fn shrink(&mut self) {
        let used = self.words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        if used < self.words.capacity() / 8 {
            self.words.truncate(used);
            self.words.shrink_to(used * 2);
        }
    }
}

impl Shares {
    /// A peer has a part in a transfer from now on.
    pub(super) fn add(&mut self, peer: PeerKey, key: EntryKey) {
        self.0.entry(peer).or_default().set(key.place(), true);
    }

    /// It has none any more.
    pub(super) fn remove(&mut self, peer: PeerKey, key: EntryKey) {
        if let Some(places) = self.0.get_mut(&peer) {
            places.set(key.place(), false);
        }
    }

    /// The places of all of a peer, in their order.
    pub(super) fn all(&self, peer: PeerKey) -> Vec<usize> {
        self.0.get(&peer).into_iter().flat_map(Places::iter).collect()
    }

    /// The same; it has none any more.
    pub(super) fn take(&mut self, peer: PeerKey) -> Vec<usize> {
        self.0.remove(&peer).iter().flat_map(Places::iter).collect()
    }

    /// Whether nobody has a part in anything.
    pub(super) fn is_empty(&self) -> bool {
        self.0.values().all(|places| places.count == 0)
    }

    /// Gives back memory that a peak has left behind.
    pub(super) fn shrink(&mut self) {
        self.0.values_mut().for_each(Places::shrink);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn places_are_what_a_plain_set_says(steps in prop::collection::vec((0..700_usize, 0..4_u8), 0..300)) {
            let (mut places, mut plain) = (Places::default(), BTreeSet::new());
            for (place, step) in steps {
                match step {
                    0 | 1 => {
                        places.set(place, true);
                        plain.insert(place);
                    }
                    2 => {
                        places.set(place, false);
                        plain.remove(&place);
                    }
                    _ => places.shrink(),
                }
                prop_assert_eq!(places.iter().collect::<Vec<_>>(), plain.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!(places.count, plain.len());
            }
        }
    }
}
