//! What is remembered of transfers that have ended: their names, for a while, so that what comes late is known to be
//! late.

use std::collections::VecDeque;
use std::time::Duration;

use penstock_core::Moment;

use super::SidedId;
use super::table::Ended;
use crate::keyed::{Keyed, KeyedMap, shrink};

/// Names of transfers that have ended, bounded in number and age. The oldest goes first.
#[derive(Debug)]
pub struct Tombs {
    most: usize,
    age: Duration,
    ended: KeyedMap<SidedId, (Moment, Ended)>,
    order: VecDeque<(Moment, SidedId)>,
}

impl Tombs {
    /// None yet; so many at most, each for so long.
    pub fn new(most: usize, age: Duration, keyed: Keyed) -> Self {
        Self { most, age, ended: KeyedMap::with_hasher(keyed), order: VecDeque::new() }
    }

    /// This one has ended.
    pub fn put(&mut self, id: SidedId, how: Ended, now: Moment) {
        if self.most == 0 {
            return;
        }
        while self.order.len() >= self.most {
            self.forget_oldest();
        }
        self.ended.insert(id, (now, how));
        self.order.push_back((now, id));
    }

    /// How it ended and how long ago, if that is remembered.
    pub fn ended(&self, id: SidedId, now: Moment) -> Option<(Ended, Duration)> {
        self.ended.get(&id).map(|(ended, how)| (*how, now.since(*ended))).filter(|(_, ago)| *ago < self.age)
    }

    /// Forgets those that are old enough, and says when the next one is.
    pub fn expire(&mut self, now: Moment) -> Option<Moment> {
        while let Some((ended, _)) = self.order.front() {
            let until = *ended + self.age;
            if until > now {
                return Some(until);
            }
            self.forget_oldest();
        }
        None
    }

    fn forget_oldest(&mut self) {
        let Some((ended, id)) = self.order.pop_front() else { return };
        // The same name may have ended again meanwhile; that is remembered in its own right.
        if self.ended.get(&id).is_some_and(|(last, _)| *last == ended) {
            self.ended.remove(&id);
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.order.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Places for them, used or not.
    pub fn places(&self) -> usize {
        self.ended.capacity() + self.order.capacity()
    }

    /// Gives back memory that a peak has left behind.
    pub fn shrink(&mut self) {
        shrink(&mut self.ended);
        if self.order.len() < self.order.capacity() / 8 {
            self.order.shrink_to(self.order.len() * 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Side;
    use crate::transfers::id::TransferId;

    fn id(number: u8) -> SidedId {
        (Side::Sink, TransferId::from_bytes([number; 16]))
    }

    fn tombs(most: usize) -> Tombs {
        Tombs::new(most, Duration::from_nanos(100), Keyed::new((1, 2)))
    }

    #[test]
    fn names_are_remembered_for_their_time_and_side() {
        let mut tombs = tombs(8);
        tombs.put(id(1), Ended::Sent, Moment::from_ns(10));
        tombs.put(id(2), Ended::Failed, Moment::from_ns(60));
        assert_eq!(tombs.ended(id(1), Moment::from_ns(109)), Some((Ended::Sent, Duration::from_nanos(99))));
        assert_eq!(
            tombs.ended(id(2), Moment::from_ns(60)),
            Some((Ended::Failed, Duration::ZERO)),
            "and how they ended"
        );
        assert_eq!(tombs.ended((Side::Source, id(1).1), Moment::from_ns(109)), None);
        assert_eq!(tombs.ended(id(1), Moment::from_ns(110)), None, "whether or not anybody has looked meanwhile");
        assert_eq!(tombs.expire(Moment::from_ns(110)), Some(Moment::from_ns(160)));
        assert_eq!((tombs.len(), tombs.expire(Moment::from_ns(160)), tombs.is_empty()), (1, None, true));
    }

    #[test]
    fn the_oldest_goes_when_there_are_too_many() {
        let mut tombs = tombs(2);
        (1..=3).for_each(|number| tombs.put(id(number), Ended::Sent, Moment::from_ns(u64::from(number))));
        let known = |number| tombs.ended(id(number), Moment::from_ns(4)).is_some();
        assert_eq!([1, 2, 3].map(known), [false, true, true]);
        assert_eq!(tombs.len(), 2);
    }

    #[test]
    fn a_name_that_ended_twice_is_remembered_from_its_second_end() {
        let mut tombs = tombs(2);
        tombs.put(id(1), Ended::Sent, Moment::from_ns(10));
        tombs.put(id(1), Ended::Received, Moment::from_ns(110));
        tombs.expire(Moment::from_ns(115));
        assert_eq!(tombs.ended(id(1), Moment::from_ns(120)), Some((Ended::Received, Duration::from_nanos(10))));
        assert_eq!(tombs.expire(Moment::from_ns(210)), None);
        assert!(tombs.ended.is_empty() && tombs.is_empty());
    }

    #[test]
    fn nothing_is_remembered_where_nothing_may_be() {
        let mut tombs = tombs(0);
        tombs.put(id(1), Ended::Sent, Moment::from_ns(10));
        assert!(tombs.is_empty() && tombs.ended(id(1), Moment::from_ns(10)).is_none());
    }
}
