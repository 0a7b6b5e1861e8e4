//! Which registered range an address lies in.
//!
//! Ranges may overlap, repeat and nest. They are kept in classes of similar length (each twice the
//! one before), so a range that covers an address begins at most two class lengths before it: one
//! ordered look-up for each class in use, and as many steps as ranges overlap there.

use std::collections::BTreeMap;

/// Ranges by address, each with an item.
///
/// Insert, remove and find are O(log n) for each class of lengths in use, plus the number of ranges
/// of similar length that lie over the address.
#[derive(Debug)]
pub struct AddressIndex<T> {
    /// By (base, id), one map for each power of two that lengths begin with.
    classes: [BTreeMap<(u64, u32), Range<T>>; u64::BITS as usize],
    /// A bit for each class that is not empty.
    used: u64,
    /// Given to the next range: the newest has the highest.
    next_age: u64,
}

#[derive(Debug)]
struct Range<T> {
    len: u64,
    age: u64,
    item: T,
}

impl<T> Default for AddressIndex<T> {
    fn default() -> Self {
        Self { classes: std::array::from_fn(|_| BTreeMap::new()), used: 0, next_age: 0 }
    }
}

/// The class of a length, which is not zero.
fn class_of(len: u64) -> usize {
    len.ilog2() as usize
}

impl<T> AddressIndex<T> {
    /// Adds `len` bytes at `base`, newer than all others. `id` tells it from others at the same base.
    /// A range of no bytes covers nothing and is not kept.
    pub fn insert(&mut self, (base, len): (u64, u64), id: u32, item: T) {
        if len == 0 {
            return;
        }
        let class = class_of(len);
        self.classes[class].insert((base, id), Range { len, age: self.next_age, item });
        self.used |= 1 << class;
        self.next_age += 1;
    }

    /// Removes what was inserted with the same range and id.
    pub fn remove(&mut self, (base, len): (u64, u64), id: u32) -> Option<T> {
        if len == 0 {
            return None;
        }
        let class = class_of(len);
        let removed = self.classes[class].remove(&(base, id))?;
        if self.classes[class].is_empty() {
            self.used &= !(1 << class);
        }
        Some(removed.item)
    }

    /// The range to use for `bytes` at `address`, among those that will do: the newest that covers all of
    /// them, else the one that covers most of them from `address` on.
    pub fn find(&self, address: u64, bytes: u64, will_do: impl Fn(&T) -> bool) -> Option<&T> {
        let mut best: Option<((bool, u64, u64), &T)> = None;
        for class in self.used_classes() {
            // A length of this class has no bit above the class's own.
            let farthest = address.saturating_sub(u64::MAX >> (63 - class));
            for (&(base, _), range) in self.classes[class].range((farthest, 0)..=(address, u32::MAX)) {
                let inside = address - base;
                if inside >= range.len {
                    continue;
                }
                let covered = range.len - inside;
                let rank = if covered >= bytes { (true, range.age, 0) } else { (false, covered, range.age) };
                if best.is_none_or(|(other, _)| rank > other) && will_do(&range.item) {
                    best = Some((rank, &range.item));
                }
            }
        }
        best.map(|(_, item)| item)
    }

    /// The range closest to an address that none covers. Behind it, in each class, that is the next one; before it one that ends last, of
    /// which none begins more than a class's length before the last.
    pub fn nearest(&self, address: u64) -> Option<&T> {
        let mut best: Option<(u64, &T)> = None;
        for class in self.used_classes() {
            let ranges = &self.classes[class];
            let last = ranges.range(..=(address, u32::MAX)).next_back().map(|(&(base, _), _)| base);
            let before = last.map(|last| ranges.range((last.saturating_sub(1 << class), 0)..=(address, u32::MAX)));
            let after = ranges.range((address, u32::MAX)..).next();
            for (&(base, _), range) in before.into_iter().flatten().chain(after) {
                let distance = match address.checked_sub(base) {
                    Some(inside) => inside.saturating_sub(range.len - 1),
                    None => base - address,
                };
                if best.is_none_or(|(other, _)| distance < other) {
                    best = Some((distance, &range.item));
                }
            }
        }
        best.map(|(_, item)| item)
    }

    fn used_classes(&self) -> impl Iterator<Item = usize> {
        let mut left = self.used;
        std::iter::from_fn(move || {
            let class = (left != 0).then(|| left.trailing_zeros() as usize)?;
            left &= left - 1;
            Some(class)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// What [`AddressIndex::find`] promises, looked up in a list of (base, len, item), the newest last.
    fn naive(list: &[(u64, u64, u32)], address: u64, bytes: u64, will_do: impl Fn(u32) -> bool) -> Option<u32> {
        let over = |&&(base, len, _): &&(u64, u64, u32)| base <= address && address - base < len;
        let good: Vec<_> = list.iter().filter(over).filter(|range| will_do(range.2)).collect();
        let whole = good.iter().rev().find(|range| range.1 - (address - range.0) >= bytes);
        let most = good.iter().enumerate().max_by_key(|(age, range)| (range.1 - (address - range.0), *age));
        whole.or(most.map(|(_, range)| range)).map(|range| range.2)
    }

    /// Bases and lengths close to each other, and some at the end of the address space.
    fn range() -> impl Strategy<Value = (u64, u64)> {
        let base = prop_oneof![0..64_u64, (u64::MAX - 40)..=u64::MAX];
        let len = prop_oneof![1..40_u64, (u64::MAX - 5)..=u64::MAX];
        (base, len)
    }

    proptest! {
        #[test]
        fn the_same_range_is_found_as_in_a_list(
            steps in prop::collection::vec((range(), any::<bool>(), any::<prop::sample::Index>()), 1..40),
            asked in prop::collection::vec((prop_oneof![0..110_u64, (u64::MAX - 50)..=u64::MAX], 1..60_u64), 20),
        ) {
            let (mut index, mut list) = (AddressIndex::default(), Vec::new());
            for (id, ((base, len), removes, which)) in (0..).zip(steps) {
                if removes && !list.is_empty() {
                    let (base, len, id) = list.remove(which.index(list.len()));
                    prop_assert_eq!(index.remove((base, len), id), Some(id));
                    prop_assert_eq!(index.remove((base, len), id), None);
                } else {
                    index.insert((base, len), id, id);
                    list.push((base, len, id));
                }
            }
            for (address, bytes) in asked {
                for odd in [false, true] {
                    let will_do = |id: u32| !odd || id % 2 == 1;
                    let found = index.find(address, bytes, |&id| will_do(id)).copied();
                    prop_assert_eq!(found, naive(&list, address, bytes, will_do));
                }
                let distance = |(base, len, _): &(u64, u64, u32)| match address.checked_sub(*base) {
                    Some(inside) => inside.saturating_sub(len - 1),
                    None => base - address,
                };
                let nearest = index.nearest(address).map(|id| list.iter().find(|range| range.2 == *id).map(distance));
                prop_assert_eq!(nearest.flatten(), list.iter().map(distance).min());
            }
        }
    }

    #[test]
    fn the_nearest_range_is_the_one_that_ends_or_begins_closest() {
        let mut index = AddressIndex::default();
        assert_eq!(index.nearest(5), None);
        for (id, range) in [(100, 50), (200, 10), (1000, 4000)].into_iter().enumerate() {
            index.insert(range, id as u32, id);
        }
        for (address, nearest) in [(0, 0), (160, 0), (190, 1), (300, 1), (900, 2), (9000, 2), (u64::MAX, 2)] {
            assert_eq!(index.nearest(address), Some(&nearest), "of {address}");
        }
    }

    #[test]
    fn a_range_without_bytes_is_nowhere() {
        let mut index = AddressIndex::default();
        index.insert((8, 0), 1, ());
        assert_eq!((index.find(8, 1, |()| true), index.nearest(8)), (None, None));
        assert_eq!(index.remove((8, 0), 1), None);
    }
}
