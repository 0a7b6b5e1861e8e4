//! Whether a lease ends when the lender's clock says so: not before its reader was silent for so long, and soon after it was.
//!
//! Nobody says when a lease was renewed last. But a reader that can be heard renews three times in the life of a lease, and one that cannot be
//! heard renews nothing: what the world does to both engines says between which moments a lease has to end.

use std::time::Duration;

use penstock::Timestamp;

use crate::oracle::{Invariant, Violated};

/// What is said is heard within this, where both are awake and the link passes.
const HEARD_WITHIN: Duration = Duration::from_millis(20);
/// A lease has ended so long after it was to end.
const ENDED_WITHIN: Duration = Duration::from_millis(100);

/// How a lender and its reader can talk at a moment.
#[derive(Debug, Clone, Copy)]
pub struct Talk {
    /// The lender does what it has to.
    pub is_lender_awake: bool,
    /// What the reader says gets to the lender.
    pub is_reader_heard: bool,
    /// What the lender says gets to the reader, which does what it has to.
    pub is_lender_heard: bool,
}

/// One lease, as the world sees it.
#[derive(Debug, Clone, Copy)]
pub struct LeaseWatch {
    ttl: Duration,
    /// Since when something is lent.
    lent: Option<Timestamp>,
    /// Since when they talk in both directions without a break.
    talking: Option<Timestamp>,
    /// The last moment of a talk that was long enough for a renewal.
    talked: Option<Timestamp>,
    /// Since when the lender is awake and hears nothing.
    silent: Option<Timestamp>,
}

impl LeaseWatch {
    /// Nothing is lent yet; a lease is going to last so long.
    pub fn new(ttl: Duration) -> Self {
        Self { ttl, lent: None, talking: None, talked: None, silent: None }
    }

    /// Something is lent from now on, if it was not before.
    pub fn lent(&mut self, now: Timestamp) {
        self.lent.get_or_insert(now);
    }

    /// Time has passed, and the lease stands. It may have had to end.
    pub fn stands(&mut self, talk: Talk, now: Timestamp) -> Result<(), Violated> {
        self.talking = match self.talking {
            _ if !(talk.is_lender_awake && talk.is_reader_heard && talk.is_lender_heard) => None,
            None => Some(now),
            since => since,
        };
        // A reader that hears of its lease only now renews it a third of its time later for the first time.
        if self.talking.is_some_and(|since| now.since(since) >= self.ttl / 3 + HEARD_WITHIN) {
            self.talked = Some(now);
        }
        self.silent = match self.silent {
            _ if talk.is_reader_heard || !talk.is_lender_awake => None,
            None => Some(now),
            since => since,
        };
        let (Some(lent), Some(silent)) = (self.lent, self.silent) else { return Ok(()) };
        let due = lent.max(silent) + self.ttl + ENDED_WITHIN + HEARD_WITHIN;
        if now > due {
            let words =
                format!("a lease of {:?} stands since {lent:?}, and nothing renewed it since {silent:?}", self.ttl);
            return Err(Violated::new(Invariant::LeasesEndByTheLender, words));
        }
        Ok(())
    }

    /// It has ended by its time.
    pub fn expired(&self, now: Timestamp) -> Result<(), Violated> {
        // The last renewal that was heard was sent a third of its time before they last talked, at the latest.
        let renewed = self.talked.map(|talked| talked + self.ttl * 2 / 3);
        let earliest = renewed.into_iter().chain(self.lent.map(|lent| lent + self.ttl)).max();
        if earliest.is_some_and(|earliest| now + HEARD_WITHIN < earliest) {
            let words = format!("a lease of {:?} ended at {now:?}, and was to stand until {earliest:?}", self.ttl);
            return Err(Violated::new(Invariant::LeasesEndByTheLender, words));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TTL: Duration = Duration::from_millis(60);
    const TALK: Talk = Talk { is_lender_awake: true, is_reader_heard: true, is_lender_heard: true };
    const SILENCE: Talk = Talk { is_reader_heard: false, ..TALK };

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_ns(ms * 1_000_000)
    }

    /// Lent at the beginning, and silent from then on.
    fn silent_from(ms: u64) -> LeaseWatch {
        let mut watch = LeaseWatch::new(TTL);
        watch.lent(at(0));
        (0..ms).for_each(|ms| watch.stands(TALK, at(ms)).unwrap());
        watch
    }

    #[test]
    fn a_lease_that_nobody_renews_stands_for_its_time_and_no_longer() {
        let mut watch = silent_from(100);
        for ms in 100..=280 {
            watch.stands(SILENCE, at(ms)).unwrap();
        }
        assert_eq!(watch.stands(SILENCE, at(281)).unwrap_err().invariant, Invariant::LeasesEndByTheLender);
    }

    #[test]
    fn a_lease_that_is_renewed_does_not_end() {
        let watch = silent_from(500);
        assert_eq!(watch.expired(at(500)).unwrap_err().invariant, Invariant::LeasesEndByTheLender);
        watch.expired(at(540)).unwrap();
    }

    #[test]
    fn a_lease_that_was_never_renewed_does_not_end_before_its_time() {
        let mut watch = LeaseWatch::new(TTL);
        watch.lent(at(10));
        watch.stands(SILENCE, at(11)).unwrap();
        assert!(watch.expired(at(40)).is_err());
        watch.expired(at(70)).unwrap();
    }

    #[test]
    fn a_lease_of_which_its_reader_heard_late_may_end_before_it_is_renewed() {
        let mut watch = LeaseWatch::new(TTL);
        watch.lent(at(10));
        (10..45).for_each(|ms| watch.stands(Talk { is_lender_heard: false, ..TALK }, at(ms)).unwrap());
        (45..70).for_each(|ms| watch.stands(TALK, at(ms)).unwrap());
        watch.expired(at(70)).unwrap();
    }

    #[test]
    fn a_lender_that_stands_still_ends_nothing_and_is_not_asked_to() {
        let mut watch = silent_from(100);
        watch.stands(Talk { is_lender_awake: false, ..SILENCE }, at(900)).unwrap();
        watch.stands(SILENCE, at(901)).unwrap();
    }
}
