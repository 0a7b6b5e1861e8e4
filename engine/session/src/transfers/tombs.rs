//! How transfers of these names have ended, remembered for a while, so that what comes late is known to be late.
//!
//! There are many more of them than of transfers that live, and each is set once, hardly ever asked for, and forgotten. So they stand in a
//! queue in the order of their moments, and are found by an index that has four bytes of each and no name: that it has none of a name is
//! seen without looking at any.

use std::collections::VecDeque;
use std::time::Duration;

use penstock_core::Timestamp;

use super::SidedId;
use super::table::Ended;
use crate::index::Index;
use crate::keyed::Keyed;

/// How one has ended.
#[derive(Debug, Clone, Copy)]
struct Tomb {
    id: SidedId,
    how: Ended,
    /// Half of what its name sums up to, so that it is forgotten without summing again.
    sum: u32,
    at: Timestamp,
}

/// When there are too many, so large a part of them is forgotten at once: looks into a table that no cache holds, of which none waits for another.
const BATCHES: usize = 1024;

/// Names of transfers that have ended, bounded in number and age; the oldest goes first.
#[derive(Debug)]
pub struct Tombs {
    most: usize,
    age: Duration,
    keyed: Keyed,
    /// In the order in which they were set. One whose name has ended again is none any more.
    order: VecDeque<Tomb>,
    /// The number of the first of those; each has one more than the one before, and is named by its lower half.
    first: u32,
    /// The newest of each name, by their numbers.
    index: Index,
}

impl Tombs {
    /// None yet; so many at most, each for so long.
    pub fn new(most: usize, age: Duration, keyed: Keyed) -> Self {
        Self { most, age, keyed, order: VecDeque::new(), first: 0, index: Index::new() }
    }

    /// How the last one of this name has ended and how long ago, if that is remembered.
    pub fn look(&self, id: SidedId, now: Timestamp) -> Option<(Ended, Duration)> {
        let sum = spread(self.half_sum(&id));
        let number = self.index.find(sum, |number| self.at(number).is_some_and(|tomb| tomb.id == id))?;
        let tomb = self.at(number)?;
        Some((tomb.how, now.since(tomb.at))).filter(|(_, ago)| *ago < self.age)
    }

    fn half_sum(&self, id: &SidedId) -> u32 {
        self.keyed.of_name(id) as u32
    }

    /// The one of this number, whose place is how far it is behind the first.
    fn at(&self, number: u32) -> Option<&Tomb> {
        self.order.get(number.wrapping_sub(self.first) as usize)
    }

    /// The one of this name has ended.
    pub fn set(&mut self, id: SidedId, how: Ended, now: Timestamp) {
        if self.most == 0 {
            return;
        }
        if self.order.len() >= self.most {
            (0..=self.most / BATCHES).for_each(|_| self.forget_oldest());
        }
        let half = self.half_sum(&id);
        let sum = spread(half);
        if let Some(before) = self.index.find(sum, |number| self.at(number).is_some_and(|tomb| tomb.id == id)) {
            self.index.remove(sum, before);
        }
        let Self { order, first, index, .. } = self;
        let number = first.wrapping_add(order.len() as u32);
        order.push_back(Tomb { id, how, sum: half, at: now });
        index.insert(sum, number, |number| sum_at(order, number.wrapping_sub(*first)));
    }

    /// Forgets those that are old enough, and says when the next one is.
    pub fn expire(&mut self, now: Timestamp) -> Option<Timestamp> {
        while let Some(tomb) = self.order.front() {
            let until = tomb.at + self.age;
            if until > now {
                return Some(until);
            }
            self.forget_oldest();
        }
        None
    }

    fn forget_oldest(&mut self) {
        let Some(tomb) = self.order.pop_front() else { return };
        // One of the same name may have ended again meanwhile; that is remembered in its own right.
        self.index.remove(spread(tomb.sum), self.first);
        self.first = self.first.wrapping_add(1);
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Places for all of that, used or not.
    pub fn places(&self) -> usize {
        self.index.capacity() + self.order.capacity()
    }

    /// Gives back memory that a peak has left behind.
    pub fn shrink(&mut self) {
        if self.order.len() < self.order.capacity() / 8 {
            self.order.shrink_to(self.order.len() * 2);
        }
        let Self { order, first, index, .. } = self;
        index.shrink(|number| sum_at(order, number.wrapping_sub(*first)));
    }
}

/// The sum of the name that so many come before; all that are asked for are there.
fn sum_at(order: &VecDeque<Tomb>, place: u32) -> u64 {
    order.get(place as usize).map_or(0, |tomb| spread(tomb.sum))
}

/// A whole sum of a half: an index looks at its highest bits and at its lowest.
const fn spread(half: u32) -> u64 {
    (half as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::control::Side;
    use crate::transfers::id::TransferId;

    fn id(number: u8) -> SidedId {
        (Side::Sink, TransferId::from_bytes([number; 16]))
    }

    fn tombs(most: usize) -> Tombs {
        Tombs::new(most, Duration::from_nanos(100), Keyed::new((1, 2)))
    }

    fn set(tombs: &mut Tombs, number: u8, how: Ended, now: u64) {
        tombs.set(id(number), how, Timestamp::from_ns(now));
    }

    fn ended(tombs: &Tombs, id: SidedId, now: u64) -> Option<(Ended, u64)> {
        tombs.look(id, Timestamp::from_ns(now)).map(|(how, ago)| (how, ago.as_nanos() as u64))
    }

    #[test]
    fn names_are_remembered_for_their_time_and_side() {
        let mut tombs = tombs(8);
        set(&mut tombs, 1, Ended::Sent, 10);
        set(&mut tombs, 2, Ended::Failed, 60);
        assert_eq!(ended(&tombs, id(1), 109), Some((Ended::Sent, 99)));
        assert_eq!(ended(&tombs, id(2), 60), Some((Ended::Failed, 0)), "and how they ended");
        assert_eq!(ended(&tombs, (Side::Source, id(1).1), 109), None);
        assert_eq!(ended(&tombs, id(1), 110), None, "whether or not anybody has looked meanwhile");
        assert_eq!(tombs.expire(Timestamp::from_ns(110)), Some(Timestamp::from_ns(160)));
        assert_eq!((tombs.len(), tombs.expire(Timestamp::from_ns(160)), tombs.is_empty()), (1, None, true));
        assert!(tombs.index.is_empty());
    }

    #[test]
    fn the_oldest_goes_when_there_are_too_many() {
        let mut tombs = tombs(2);
        (1..=3).for_each(|number| set(&mut tombs, number, Ended::Sent, number.into()));
        let known = |number| ended(&tombs, id(number), 4).is_some();
        assert_eq!([1, 2, 3].map(known), [false, true, true]);
        assert_eq!((tombs.len(), tombs.index.len()), (2, 2));
    }

    #[test]
    fn a_name_that_ended_twice_is_remembered_from_its_second_end() {
        let mut tombs = tombs(2);
        set(&mut tombs, 1, Ended::Sent, 10);
        set(&mut tombs, 1, Ended::Received, 110);
        assert_eq!((tombs.len(), tombs.index.len()), (2, 1));
        tombs.expire(Timestamp::from_ns(115));
        assert_eq!(ended(&tombs, id(1), 120), Some((Ended::Received, 10)));
        assert_eq!(tombs.expire(Timestamp::from_ns(210)), None);
        assert!(tombs.index.is_empty() && tombs.is_empty());
    }

    #[test]
    fn nothing_is_remembered_where_nothing_may_be() {
        let mut tombs = tombs(0);
        set(&mut tombs, 1, Ended::Sent, 10);
        assert!(tombs.is_empty() && tombs.index.is_empty());
    }

    proptest! {
        /// Numbers go round, and the table moves as it grows and shrinks.
        #[test]
        fn what_is_remembered_is_what_a_plain_list_says(
            most in 0..40_usize,
            first in prop_oneof![Just(0), Just(u32::MAX - 20)],
            steps in prop::collection::vec((0..60_u8, 0..30_u64, any::<bool>()), 0..400),
        ) {
            let mut tombs = Tombs { first, ..tombs(most) };
            let mut plain: Vec<(u8, u64)> = Vec::new();
            let mut now = 0;
            for (number, later, shrinks) in steps {
                now += later;
                set(&mut tombs, number, Ended::Sent, now);
                plain.push((number, now));
                plain.drain(..plain.len().saturating_sub(most));
                tombs.expire(Timestamp::from_ns(now));
                plain.retain(|(_, at)| at + 100 > now);
                if shrinks {
                    tombs.shrink();
                }
                for number in 0..60 {
                    let last = plain.iter().rfind(|(name, _)| *name == number).map(|(_, at)| (Ended::Sent, now - at));
                    prop_assert_eq!(ended(&tombs, id(number), now), last);
                }
                prop_assert_eq!(tombs.len(), plain.len());
            }
        }
    }
}
