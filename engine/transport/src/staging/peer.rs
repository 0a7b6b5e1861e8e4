//! What one lane has of the peer's slots, and the peer of this side's.

use penstock_core::Direction;

use super::slots::StagingSlot;

/// Slots of the peer that one lane asks for at most: enough to fill the way there and back.
pub(super) const WANTED_MAX: usize = 64;
/// Looks at a lane without operations after which it gives its slots back.
const IDLE_LOOKS: u32 = 200;

/// Slots that the peer has granted, of one direction.
#[derive(Default)]
pub(super) struct Grants {
    free: Vec<u32>,
    /// How many operations have.
    used: usize,
    /// How many were ever asked for, and how many ever came: numbers that only rise, since messages may overtake each other.
    asked: u64,
    came: u64,
    /// How many it would have.
    wanted: usize,
    idle_looks: u32,
}

impl Grants {
    /// One of them; none: the peer is to be asked for what an operation of a transfer of so many posts needs.
    pub(super) fn take(&mut self, posts: u64) -> Option<u32> {
        let wanted = posts.clamp(1, WANTED_MAX as u64) as usize;
        let Some(slot) = self.free.pop() else {
            // Others have those that there are.
            self.wanted = self.wanted.max((self.used + wanted).min(WANTED_MAX));
            return None;
        };
        self.used += 1;
        Some(slot)
    }

    /// An operation does not need it any more.
    pub(super) fn put(&mut self, slot: u32) {
        self.used -= 1;
        self.free.push(slot);
    }

    /// It is not used again: bytes may still come into it.
    pub(super) fn forget(&mut self) {
        self.used -= 1;
    }

    /// These came. Returns whether they were asked for.
    pub(super) fn granted(&mut self, slots: impl ExactSizeIterator<Item = u32>) -> bool {
        self.came += slots.len() as u64;
        self.free.extend(slots);
        self.idle_looks = 0;
        self.came <= self.asked
    }

    pub(super) fn is_at_rest(&self) -> bool {
        self.free.is_empty() && self.to_ask().is_none()
    }

    /// The number that the peer is to be told now as asked for, if any.
    pub(super) fn to_ask(&self) -> Option<u64> {
        let has = self.free.len() + self.used + (self.asked - self.came) as usize;
        (self.wanted > has).then(|| self.asked + (self.wanted - has) as u64)
    }

    pub(super) fn was_asked(&mut self, asked: u64) {
        self.asked = asked;
    }

    /// A look at the lane. Returns those that are to be given back, since nobody has needed any for a while, and whether that is to be looked at
    /// again soon.
    pub(super) fn look(&mut self) -> (&[u32], bool) {
        if self.used > 0 || self.free.is_empty() {
            self.idle_looks = 0;
            return (&[], false);
        }
        self.idle_looks += 1;
        if self.idle_looks <= IDLE_LOOKS {
            return (&[], true);
        }
        self.wanted = 0;
        (&self.free, true)
    }

    /// Those of the last look are the peer's again.
    pub(super) fn were_given_back(&mut self) {
        self.free.clear();
    }
}

/// This side's slots that one worker of the peer has, by direction.
pub(super) struct GrantedTo {
    pub(super) worker: u16,
    pub(super) slots: [Granted; 2],
}

/// Those of one direction.
#[derive(Default)]
pub(super) struct Granted {
    /// By its number: the slot, unless it is in an operation.
    slots: Vec<Option<StagingSlot>>,
    has: usize,
    /// How many it has ever asked for, and ever got.
    asked: u64,
    given: u64,
}

impl Granted {
    pub(super) fn want(&mut self, asked: u64) {
        self.asked = self.asked.max(asked);
    }

    pub(super) fn has(&self) -> usize {
        self.has
    }

    /// How many more it is to have.
    pub(super) fn lacks(&self) -> usize {
        (self.asked - self.given).min((WANTED_MAX - self.has) as u64) as usize
    }

    pub(super) fn add(&mut self, slot: StagingSlot) {
        (self.has, self.given) = (self.has + 1, self.given + 1);
        self.put(slot);
    }

    /// One that was granted, for a copy. None: it was not, or has one.
    pub(super) fn take(&mut self, slot: u32) -> Option<StagingSlot> {
        self.slots.get_mut(slot as usize)?.take()
    }

    /// The copy has ended.
    pub(super) fn put(&mut self, slot: StagingSlot) {
        let place = slot.place() as usize;
        if self.slots.len() <= place {
            self.slots.resize_with(place + 1, || None);
        }
        self.slots[place] = Some(slot);
    }

    /// The copy has ended, and the peer never uses the slot again.
    pub(super) fn forget(&mut self) {
        self.has = self.has.saturating_sub(1);
    }

    /// The peer gives these back. Returns whether it had them.
    pub(super) fn given_back(&mut self, slots: impl Iterator<Item = u32>) -> bool {
        slots.fold(true, |had_all, slot| {
            let had = self.take(slot).is_some();
            self.has -= usize::from(had);
            had_all && had
        })
    }

    /// All that it has, when its session ends.
    pub(super) fn leave(&mut self) -> impl Iterator<Item = StagingSlot> {
        self.has = 0;
        std::mem::take(&mut self.slots).into_iter().flatten()
    }
}

/// In the order of the places that things by direction have.
pub(super) const DIRECTIONS: [Direction; 2] = [Direction::Write, Direction::Read];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_asked_for_once_kept_while_they_are_used_and_given_back() {
        let mut grants = Grants::default();
        assert_eq!((grants.take(3), grants.to_ask()), (None, Some(3)));
        grants.was_asked(3);
        assert_eq!((grants.take(3), grants.to_ask()), (None, None), "they are on their way");
        assert!(grants.granted([8, 9].into_iter()));
        assert_eq!((grants.take(3), grants.take(3), grants.to_ask()), (Some(9), Some(8), None));
        assert_eq!((grants.take(2), grants.to_ask()), (None, Some(4)));
        assert_eq!((grants.take(1000), grants.to_ask()), (None, Some(WANTED_MAX as u64)));
        grants.was_asked(WANTED_MAX as u64);
        assert_eq!(grants.look(), (&[][..], false));
        grants.forget();
        grants.put(8);
        for _ in 0..IDLE_LOOKS {
            assert_eq!(grants.look(), (&[][..], true), "somebody may come");
        }
        assert_eq!(grants.look(), (&[8][..], true));
        grants.were_given_back();
        assert_eq!(grants.look(), (&[][..], false));
        assert_eq!(grants.to_ask(), None);
        // What was asked for still comes, and goes back.
        assert!(grants.granted([5].into_iter()));
        assert!(grants.look().1);
        assert_eq!(grants.take(1), Some(5));
        assert!(!grants.granted(0..WANTED_MAX as u32), "more than was asked for");
    }

    #[test]
    fn a_peer_gets_what_it_has_ever_asked_for_in_whichever_order_it_is_heard() {
        let mut granted = Granted::default();
        granted.want(2);
        granted.want(1);
        assert_eq!((granted.has(), granted.lacks()), (0, 2));
        assert!(!granted.given_back([0].into_iter()), "it has none");
        assert!(granted.take(7).is_none());
        // What it lost with a device it may have anew.
        granted.want(WANTED_MAX as u64 + 2);
        (granted.has, granted.given) = (WANTED_MAX, WANTED_MAX as u64);
        assert_eq!(granted.lacks(), 0);
        granted.forget();
        assert_eq!((granted.has(), granted.lacks()), (WANTED_MAX - 1, 1));
    }
}
