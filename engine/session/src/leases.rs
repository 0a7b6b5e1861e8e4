//! Memory that is lent, and for how long.
//!
//! Whoever lends keeps what is lent until its own clock says that nobody has renewed for long enough, or until the
//! reader gives it back; in the first case it waits until that reader is in no copy any more, and only then lets it go.
//! The reader's clock decides nothing: a reader asks at its end whether the lease stood until then, and has read
//! nothing of worth if it did not.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use penstock_core::Timestamp;
use penstock_core::planted::{self, Bug};

use crate::control::LEASES_MAX;
use crate::machine;
use crate::machine::Step;
use crate::transfers::PeerKey;

machine! {
    /// A lease, as its lender sees it.
    pub Lease on LeaseEvent {
        states {
            /// It stands.
            Held,
            /// It has ended, and its reader may still be in a copy that began before.
            Expiring,
        }
        ends {
            /// It has ended by time or with its reader, and nobody reads under it any more.
            Expired,
            /// Its reader has given it back.
            Returned,
        }
        events {
            /// Nobody has renewed it in time.
            Late,
            /// The reader gives it back.
            Returned,
            /// The reader is gone.
            Gone,
            /// The reader is in no copy any more that began before.
            Quiet,
        }
        Held { Late => Expiring, Gone => Expiring, Returned => Returned }
        Expiring { Late => Expiring, Gone => Expiring, Returned => Returned, Quiet => Expired }
    }
}

/// The name of a lease, as its lender counts: never used again in a life.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

/// Why there is no lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum LeaseError {
    /// There are too many.
    #[error("there are {most} leases already, which is the most; wait until readers are done")]
    Full {
        /// How many there may be.
        most: usize,
    },
}

/// What giving a lease back came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GivenBack {
    /// It stood until now: what was read is what was lent. What was lent can be let go.
    InTime,
    /// It had ended before, so what was read is worth nothing. What was lent had not been let go yet, and can be now.
    TooLate,
    /// There is no such lease of this reader: it has ended, and what was lent was let go.
    Unknown,
}

impl GivenBack {
    /// Whether the reader has read what was lent.
    pub const fn is_valid(self) -> bool {
        matches!(self, Self::InTime)
    }

    /// Whether what was lent is to be let go now.
    pub const fn frees(self) -> bool {
        matches!(self, Self::InTime | Self::TooLate)
    }
}

#[derive(Debug, Clone, Copy)]
struct Lent {
    peer: PeerKey,
    ttl: Duration,
    /// When it ends by time, while it stands.
    until: Timestamp,
    state: Lease,
}

/// The leases that this engine has given.
#[derive(Debug)]
pub struct Lender {
    most: usize,
    /// What names begin at: random, so that names of an earlier life mean nothing.
    base: u64,
    given: u64,
    lent: BTreeMap<LeaseId, Lent>,
    due: BTreeSet<(Timestamp, LeaseId)>,
    /// Those that have ended with their reader since the last look.
    ended: Vec<LeaseId>,
}

impl Lender {
    /// None yet, and so many at most. `base` is random.
    pub fn new(most: usize, base: u64) -> Self {
        Self { most, base, given: 0, lent: BTreeMap::new(), due: BTreeSet::new(), ended: Vec::new() }
    }

    /// Lends to this reader, until nobody has renewed it for so long.
    pub fn lend(&mut self, peer: PeerKey, ttl: Duration, now: Timestamp) -> Result<LeaseId, LeaseError> {
        if self.lent.len() >= self.most {
            return Err(LeaseError::Full { most: self.most });
        }
        let id = LeaseId(self.base.wrapping_add(self.given));
        self.given += 1;
        let until = now + ttl;
        self.lent.insert(id, Lent { peer, ttl, until, state: Lease::Held });
        self.due.insert((until, id));
        Ok(id)
    }

    /// The lease of this reader, if there is one.
    fn of(&mut self, peer: PeerKey, id: LeaseId) -> Option<&mut Lent> {
        self.lent.get_mut(&id).filter(|lent| lent.peer == peer)
    }

    /// The reader still reads under these. Adds those that have ended, or never were this reader's, to `over`.
    pub fn renew(&mut self, peer: PeerKey, leases: &[LeaseId], now: Timestamp, over: &mut Vec<LeaseId>) {
        for &id in leases {
            // What is late by this clock has ended, whether or not anybody has looked since.
            let stands = |lent: &&mut Lent| lent.state == Lease::Held && now < lent.until;
            let Some(lent) = self.of(peer, id).filter(stands) else {
                over.push(id);
                continue;
            };
            let (before, until) =
                (lent.until, if planted::is(Bug::LeaseNotRenewed) { lent.until } else { now + lent.ttl });
            lent.until = until;
            self.due.remove(&(before, id));
            self.due.insert((until, id));
        }
    }

    /// The reader is done with it.
    pub fn give_back(&mut self, peer: PeerKey, id: LeaseId, now: Timestamp) -> GivenBack {
        let Some(lent) = self.of(peer, id).map(|lent| *lent) else { return GivenBack::Unknown };
        let is_valid = lent.state == Lease::Held && now < lent.until;
        self.step(id, LeaseEvent::Returned);
        if is_valid { GivenBack::InTime } else { GivenBack::TooLate }
    }

    /// What happens to a lease; at its end nothing is left of it.
    fn step(&mut self, id: LeaseId, event: LeaseEvent) -> Step<Lease> {
        let Some(lent) = self.lent.get_mut(&id) else { return Step::Refused };
        let step = lent.state.step(event);
        if let Step::Go(next) = step {
            lent.state = next;
            let until = lent.until;
            self.due.remove(&(until, id));
            if next.is_end() {
                self.lent.remove(&id);
                self.ended.retain(|other| *other != id);
            } else {
                self.ended.push(id);
            }
        }
        step
    }

    /// The reader is gone: its leases end now, and are told by the next [`Lender::expire`].
    pub fn peer_gone(&mut self, peer: PeerKey) {
        let of_peer: Vec<LeaseId> = self.lent.iter().filter(|(_, lent)| lent.peer == peer).map(|(id, _)| *id).collect();
        for id in of_peer {
            self.step(id, LeaseEvent::Gone);
        }
    }

    /// Ends what is late, and says when the next one is. Adds each that has ended to `out`, once, with its reader: it
    /// is let go when that reader is in no copy any more, which [`Lender::quiet`] is told.
    pub fn expire(&mut self, now: Timestamp, out: &mut Vec<(LeaseId, PeerKey)>) -> Option<Timestamp> {
        while let Some((_, id)) =
            self.due.first().copied().filter(|(until, _)| *until <= now && !planted::is(Bug::LeaseOnTheWrongClock))
        {
            self.step(id, LeaseEvent::Late);
        }
        let with_reader = |id: LeaseId| self.lent.get(&id).map(|lent| (id, lent.peer));
        out.extend(self.ended.drain(..).filter_map(with_reader));
        self.due.first().map(|(until, _)| *until)
    }

    /// When the next one ends by time.
    pub fn deadline(&self) -> Timestamp {
        self.due.first().map_or(Timestamp::NEVER, |(until, _)| *until)
    }

    /// The reader of a lease that has ended is in no copy any more. Says whether what was lent can be let go: once.
    pub fn quiet(&mut self, id: LeaseId) -> bool {
        self.step(id, LeaseEvent::Quiet) == Step::Go(Lease::Expired)
    }

    /// The state of a lease that has not ended for good.
    pub fn state(&self, id: LeaseId) -> Option<Lease> {
        self.lent.get(&id).map(|lent| lent.state)
    }

    /// Whose a lease is.
    pub fn peer(&self, id: LeaseId) -> Option<PeerKey> {
        self.lent.get(&id).map(|lent| lent.peer)
    }

    /// How many there are, those that wait for quiet among them.
    pub fn len(&self) -> usize {
        self.lent.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.lent.is_empty()
    }
}

/// How often a lease is renewed at most, however short it is.
const RENEWAL_MIN: Duration = Duration::from_millis(10);

#[derive(Debug, Clone, Copy)]
struct Borrowed {
    ttl: Duration,
    /// When it was last renewed from here.
    renewed: Timestamp,
    next: Timestamp,
}

impl Borrowed {
    fn renewed(ttl: Duration, now: Timestamp) -> Self {
        Self { ttl, renewed: now, next: now + (ttl / 3).max(RENEWAL_MIN) }
    }

    fn is_over(&self, now: Timestamp) -> bool {
        now >= self.renewed + self.ttl
    }
}

/// The leases under which this engine reads. What it believes of them saves it a read in vain; the lender decides.
#[derive(Debug)]
pub struct Reader {
    most: usize,
    borrowed: BTreeMap<(PeerKey, LeaseId), Borrowed>,
    due: BTreeSet<(Timestamp, PeerKey, LeaseId)>,
}

impl Reader {
    /// None yet, and so many at most.
    pub fn new(most: usize) -> Self {
        Self { most, borrowed: BTreeMap::new(), due: BTreeSet::new() }
    }

    /// This peer lends, for so long after each renewal. Said again it changes nothing: what counts is when it was
    /// renewed.
    pub fn hold(&mut self, peer: PeerKey, id: LeaseId, ttl: Duration, now: Timestamp) -> Result<(), LeaseError> {
        if self.borrowed.contains_key(&(peer, id)) {
            return Ok(());
        }
        if self.borrowed.len() >= self.most {
            return Err(LeaseError::Full { most: self.most });
        }
        let borrowed = Borrowed::renewed(ttl, now);
        self.due.insert((borrowed.next, peer, id));
        self.borrowed.insert((peer, id), borrowed);
        Ok(())
    }

    /// Nothing is read under it any more.
    pub fn let_go(&mut self, peer: PeerKey, id: LeaseId) {
        if let Some(borrowed) = self.borrowed.remove(&(peer, id)) {
            self.due.remove(&(borrowed.next, peer, id));
        }
    }

    /// The lender is gone.
    pub fn peer_gone(&mut self, peer: PeerKey) {
        let of_peer = (peer, LeaseId(0))..=(peer, LeaseId(u64::MAX));
        let gone: Vec<LeaseId> = self.borrowed.range(of_peer).map(|((_, id), _)| *id).collect();
        gone.into_iter().for_each(|id| self.let_go(peer, id));
    }

    /// What is to be renewed now, and when there is something to renew again. When one lease of a peer is due, all of
    /// that peer's are renewed with it, so that a frame carries many. What was not renewed in time is let go and added
    /// to `over`.
    pub fn due(
        &mut self,
        now: Timestamp,
        renew: &mut Vec<(PeerKey, Vec<LeaseId>)>,
        over: &mut Vec<(PeerKey, LeaseId)>,
    ) -> Option<Timestamp> {
        while let Some((_, peer, _)) = self.due.first().copied().filter(|(next, ..)| *next <= now) {
            let of_peer = (peer, LeaseId(0))..=(peer, LeaseId(u64::MAX));
            let all: Vec<(LeaseId, Borrowed)> =
                self.borrowed.range(of_peer).map(|((_, id), borrowed)| (*id, *borrowed)).collect();
            let (late, standing): (Vec<_>, Vec<_>) = all.into_iter().partition(|(_, borrowed)| borrowed.is_over(now));
            for (id, _) in late {
                self.let_go(peer, id);
                over.push((peer, id));
            }
            for (id, borrowed) in &standing {
                let renewed = Borrowed::renewed(borrowed.ttl, now);
                self.due.remove(&(borrowed.next, peer, *id));
                self.due.insert((renewed.next, peer, *id));
                self.borrowed.insert((peer, *id), renewed);
            }
            let frames = standing.chunks(LEASES_MAX).map(|part| (peer, part.iter().map(|(id, _)| *id).collect()));
            renew.extend(frames);
        }
        self.due.first().map(|(next, ..)| *next)
    }

    /// When there is something to renew.
    pub fn deadline(&self) -> Timestamp {
        self.due.first().map_or(Timestamp::NEVER, |(next, ..)| *next)
    }

    /// Whether a read under it should not begin any more: it is not held, or was not renewed for its whole time by this
    /// clock.
    pub fn is_over(&self, peer: PeerKey, id: LeaseId, now: Timestamp) -> bool {
        self.borrowed.get(&(peer, id)).is_none_or(|borrowed| borrowed.is_over(now))
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.borrowed.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.borrowed.is_empty()
    }
}

#[cfg(test)]
mod tests;
