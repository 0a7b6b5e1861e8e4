//! What is known of the names of transfers: who has one, and for a while how the one that had it has ended, so that what comes late is
//! known to be late. A word that comes for a name asks here, and nowhere else.

use std::collections::VecDeque;
use std::collections::hash_map::Entry;
use std::time::Duration;

use penstock_core::Moment;

use super::SidedId;
use super::table::Ended;
use crate::keyed::{Keyed, KeyedMap, shrink};

/// What is known of one name; never nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Known {
    /// The place of who has it: a live transfer, or an ended one of which something is left.
    holder: Option<u32>,
    /// Its tombstone.
    ended: Option<(Moment, Ended)>,
}

/// Names that somebody has, and those of transfers that have ended. The latter are bounded in number and age; the oldest goes first.
#[derive(Debug)]
pub struct Names {
    most: usize,
    age: Duration,
    known: KeyedMap<SidedId, Known>,
    /// Tombstones as they were set. One whose name was taken again meanwhile, or has ended again, is none any more.
    order: VecDeque<(Moment, SidedId)>,
}

impl Names {
    /// None yet; so many tombstones at most, each for so long.
    pub fn new(most: usize, age: Duration, keyed: Keyed) -> Self {
        Self { most, age, known: KeyedMap::with_hasher(keyed), order: VecDeque::new() }
    }

    /// Who has it.
    pub fn holder(&self, id: SidedId) -> Option<u32> {
        self.known.get(&id)?.holder
    }

    /// Who has it; if nobody has, how it ended and how long ago, if that is remembered.
    pub fn look(&self, id: SidedId, now: Moment) -> (Option<u32>, Option<(Ended, Duration)>) {
        let Some(known) = self.known.get(&id) else { return (None, None) };
        let ended = known.ended.map(|(ended, how)| (how, now.since(ended)));
        (known.holder, ended.filter(|(_, ago)| *ago < self.age))
    }

    /// Somebody has it from now on, and nobody had.
    pub fn take(&mut self, id: SidedId, holder: u32) {
        self.known.insert(id, Known { holder: Some(holder), ended: None });
    }

    /// The one that has it has ended, and has it still.
    pub fn end(&mut self, id: SidedId, how: Ended, now: Moment) {
        if self.most == 0 {
            return;
        }
        while self.order.len() >= self.most {
            self.forget_oldest();
        }
        if let Some(known) = self.known.get_mut(&id) {
            known.ended = Some((now, how));
            self.order.push_back((now, id));
        }
    }

    /// Nobody has it any more.
    pub fn leave(&mut self, id: SidedId) {
        let Entry::Occupied(mut known) = self.known.entry(id) else { return };
        known.get_mut().holder = None;
        if known.get().ended.is_none() {
            known.remove();
        }
    }

    /// Forgets tombstones that are old enough, and says when the next one is.
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
        let Some((moment, id)) = self.order.pop_front() else { return };
        let Entry::Occupied(mut known) = self.known.entry(id) else { return };
        // The same name may have ended again meanwhile; that is remembered in its own right.
        if known.get().ended.is_some_and(|(last, _)| last == moment) {
            known.get_mut().ended = None;
            if known.get().holder.is_none() {
                known.remove();
            }
        }
    }

    /// How many tombstones there are.
    pub fn tombs(&self) -> usize {
        self.order.len()
    }

    /// How many names somebody has. It looks at every one.
    pub fn held(&self) -> usize {
        self.known.values().filter(|known| known.holder.is_some()).count()
    }

    /// Places for all of that, used or not.
    pub fn places(&self) -> usize {
        self.known.capacity() + self.order.capacity()
    }

    /// Gives back memory that a peak has left behind.
    pub fn shrink(&mut self) {
        shrink(&mut self.known);
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

    fn names(most: usize) -> Names {
        Names::new(most, Duration::from_nanos(100), Keyed::new((1, 2)))
    }

    /// It is taken, ends at this moment, and is let go.
    fn ends(names: &mut Names, number: u8, how: Ended, now: u64) {
        names.take(id(number), number.into());
        names.end(id(number), how, Moment::from_ns(now));
        names.leave(id(number));
    }

    fn ended(names: &Names, id: SidedId, now: u64) -> Option<(Ended, u64)> {
        let (holder, ended) = names.look(id, Moment::from_ns(now));
        assert_eq!(holder, None);
        ended.map(|(how, ago)| (how, ago.as_nanos() as u64))
    }

    #[test]
    fn names_are_remembered_for_their_time_and_side() {
        let mut names = names(8);
        ends(&mut names, 1, Ended::Sent, 10);
        ends(&mut names, 2, Ended::Failed, 60);
        assert_eq!(ended(&names, id(1), 109), Some((Ended::Sent, 99)));
        assert_eq!(ended(&names, id(2), 60), Some((Ended::Failed, 0)), "and how they ended");
        assert_eq!(ended(&names, (Side::Source, id(1).1), 109), None);
        assert_eq!(ended(&names, id(1), 110), None, "whether or not anybody has looked meanwhile");
        assert_eq!(names.expire(Moment::from_ns(110)), Some(Moment::from_ns(160)));
        assert_eq!((names.tombs(), names.expire(Moment::from_ns(160)), names.tombs()), (1, None, 0));
        assert!(names.known.is_empty());
    }

    #[test]
    fn one_that_has_ended_has_its_name_until_it_leaves() {
        let mut names = names(8);
        names.take(id(1), 7);
        names.end(id(1), Ended::Sent, Moment::from_ns(10));
        assert_eq!((names.holder(id(1)), names.held()), (Some(7), 1));
        assert_eq!(names.look(id(1), Moment::from_ns(10)), (Some(7), Some((Ended::Sent, Duration::ZERO))));
        names.expire(Moment::from_ns(110));
        assert_eq!(names.look(id(1), Moment::from_ns(110)), (Some(7), None), "which may outlast its tombstone");
        names.leave(id(1));
        assert!(names.known.is_empty() && names.held() == 0);
    }

    #[test]
    fn the_oldest_goes_when_there_are_too_many() {
        let mut names = names(2);
        (1..=3).for_each(|number| ends(&mut names, number, Ended::Sent, number.into()));
        let known = |number| ended(&names, id(number), 4).is_some();
        assert_eq!([1, 2, 3].map(known), [false, true, true]);
        assert_eq!((names.tombs(), names.known.len()), (2, 2));
    }

    #[test]
    fn a_name_that_ended_twice_is_remembered_from_its_second_end() {
        let mut names = names(2);
        ends(&mut names, 1, Ended::Sent, 10);
        ends(&mut names, 1, Ended::Received, 110);
        names.expire(Moment::from_ns(115));
        assert_eq!(ended(&names, id(1), 120), Some((Ended::Received, 10)));
        assert_eq!(names.expire(Moment::from_ns(210)), None);
        assert!(names.known.is_empty() && names.tombs() == 0);
    }

    #[test]
    fn who_takes_a_name_again_has_it_when_the_old_tombstone_goes() {
        let mut names = names(8);
        ends(&mut names, 1, Ended::Sent, 10);
        names.take(id(1), 9);
        assert_eq!(names.expire(Moment::from_ns(110)), None);
        assert_eq!(names.look(id(1), Moment::from_ns(110)), (Some(9), None));
    }

    #[test]
    fn nothing_is_remembered_where_nothing_may_be() {
        let mut names = names(0);
        ends(&mut names, 1, Ended::Sent, 10);
        assert!(names.tombs() == 0 && names.known.is_empty());
    }
}
