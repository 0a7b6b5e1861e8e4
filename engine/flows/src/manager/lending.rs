//! Leases, in both directions: what this engine has lent, to whom and for what, and under which leases it reads.
//!
//! There is one [`Lender`] and one [`Reader`] for everything that is lent; what a lease is for is beside them.

use std::collections::BTreeMap;
use std::time::Duration;

use penstock_core::Timestamp;
use penstock_session::control::{Ack, LeaseExpired, LeaseVerdict, Renew, TransferHead};
use penstock_session::leases::{LeaseError, LeaseId, Lender, Reader};
use penstock_session::transfers::table::EntryKey;
use penstock_session::{ControlMessage, PeerKey};

use super::TransferManager;
use super::flow::Flow;
use crate::action::{Action, WatchId};
use crate::cause::FlowCause;
use crate::continuation::Miss;

/// What is lent under a lease of this engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeasedItem {
    /// Blocks of a transfer, to this rank of its sink.
    Rank { key: EntryKey, rank: u16 },
    /// Blocks of a request that has ended, to this engine.
    Pin { peer: PeerKey },
}

/// What is read under a lease of a peer's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Borrowed {
    /// Blocks of a transfer, of this rank of its source.
    Rank { key: EntryKey, rank: u16 },
    /// Blocks of a request that has ended there.
    Pin,
}

/// Everything that is lent and borrowed.
#[derive(Debug)]
pub(super) struct Lending {
    lender: Lender,
    lent: BTreeMap<LeaseId, LeasedItem>,
    reader: Reader,
    borrowed: BTreeMap<(PeerKey, LeaseId), Borrowed>,
    /// Leases that have ended, whose readers are to be proven quiet.
    watches: BTreeMap<WatchId, LeaseId>,
}

impl Lending {
    /// Nothing yet; so many leases at most in each direction. `base` is random.
    pub(super) fn new(most: usize, base: u64) -> Self {
        Self {
            lender: Lender::new(most, base),
            lent: BTreeMap::new(),
            reader: Reader::new(most),
            borrowed: BTreeMap::new(),
            watches: BTreeMap::new(),
        }
    }

    /// How many leases this engine has given.
    pub(super) fn lent(&self) -> usize {
        self.lent.len()
    }

    /// Under how many it reads.
    pub(super) fn borrowed(&self) -> usize {
        self.borrowed.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lent.is_empty() && self.borrowed.is_empty() && self.watches.is_empty()
    }

    /// When something has to be done though nothing happens.
    pub(super) fn deadline(&self) -> Timestamp {
        self.lender.deadline().min(self.reader.deadline())
    }

    /// Whether this engine reads under this lease.
    pub(super) fn is_borrowed(&self, peer: PeerKey, lease: LeaseId) -> bool {
        self.borrowed.contains_key(&(peer, lease))
    }

    /// Whether a read under a lease of a peer's should not begin any more, by this engine's clock.
    pub(super) fn is_over(&self, peer: PeerKey, lease: LeaseId, now: Timestamp) -> bool {
        self.reader.is_over(peer, lease, now)
    }
}

impl TransferManager {
    /// Lends something to a peer.
    pub(super) fn lend(
        &mut self,
        peer: PeerKey,
        what: LeasedItem,
        ttl: Duration,
        now: Timestamp,
    ) -> Result<LeaseId, LeaseError> {
        let lease = self.lending.lender.lend(peer, ttl, now)?;
        self.lending.lent.insert(lease, what);
        Ok(lease)
    }

    /// What was to be lent is not.
    pub(super) fn end_lending(&mut self, peer: PeerKey, lease: LeaseId, now: Timestamp) {
        self.lending.lender.give_back(peer, lease, now);
        self.lending.lent.remove(&lease);
    }

    /// Reads under a lease of a peer's from now on, and renews it.
    pub(super) fn borrow(
        &mut self,
        peer: PeerKey,
        lease: LeaseId,
        what: Borrowed,
        ttl: Duration,
        now: Timestamp,
    ) -> Result<(), LeaseError> {
        self.lending.reader.hold(peer, lease, ttl, now)?;
        self.lending.borrowed.insert((peer, lease), what);
        Ok(())
    }

    /// Reads under it no more.
    pub(super) fn end_borrowing(&mut self, peer: PeerKey, lease: LeaseId) {
        self.lending.reader.let_go(peer, lease);
        self.lending.borrowed.remove(&(peer, lease));
    }

    /// A reader gives a lease back, and is told whether it stood until now.
    pub(super) fn hear_given_back(&mut self, peer: PeerKey, ack: &Ack, lease: LeaseId, now: Timestamp) {
        let how = self.lending.lender.give_back(peer, lease, now);
        let acked =
            |head| ControlMessage::LeaseVerdict(LeaseVerdict { head, lease: lease.0, is_valid: how.is_valid() });
        let what = if how.frees() { self.lending.lent.remove(&lease) } else { None };
        match what {
            Some(LeasedItem::Rank { key, rank }) => {
                if let Some(Flow::Lent(lent)) = self.flow_mut(key) {
                    let (head, taken) = (*lent.loans.head(), lent.loans.given_back(rank, lease, how));
                    self.refused += u64::from(taken.is_err());
                    self.say(peer, acked(head));
                }
                self.carry(key, now);
            }
            what => {
                self.say(peer, acked(TransferHead { side: ack.head.side.other(), ..ack.head }));
                if let Some(LeasedItem::Pin { peer }) = what {
                    self.pin_is_back(peer, lease);
                }
            }
        }
    }

    /// A reader still reads under these. What is lent in a transfer that has ended is not renewed: its reader was told, and has as long as its
    /// lease stands to come to its end.
    pub(super) fn hear_renew(&mut self, peer: PeerKey, renew: &Renew, now: Timestamp) {
        let has_ended = |lease: &LeaseId| match self.lending.lent.get(lease) {
            Some(&LeasedItem::Rank { key, .. }) => self.flow(key).is_none_or(|flow| flow.status().is_end()),
            _ => false,
        };
        let leases: Vec<LeaseId> =
            renew.leases.iter().copied().map(LeaseId).filter(|lease| !has_ended(lease)).collect();
        let mut over = Vec::new();
        self.lending.lender.renew(peer, &leases, now, &mut over);
        over.into_iter().for_each(|lease| self.say_over(peer, lease));
    }

    fn say_over(&mut self, peer: PeerKey, lease: LeaseId) {
        let over = LeaseExpired { lease: lease.0, cause: FlowCause::Expired.code() };
        self.say(peer, ControlMessage::LeaseExpired(over));
    }

    /// A lender says that a lease has ended.
    pub(super) fn hear_lease_over(&mut self, peer: PeerKey, over: &LeaseExpired, now: Timestamp) {
        self.borrowed_is_over(peer, LeaseId(over.lease), FlowCause::of_code(over.cause), now);
    }

    /// What is read under it is worth nothing. A lease that was given back meanwhile concerns nobody.
    pub(super) fn borrowed_is_over(&mut self, peer: PeerKey, lease: LeaseId, cause: FlowCause, now: Timestamp) {
        let what = self.lending.borrowed.remove(&(peer, lease));
        self.lending.reader.let_go(peer, lease);
        match what {
            Some(Borrowed::Rank { key, rank }) => {
                if let Some(Flow::Pull(pulled)) = self.flow_mut(key) {
                    // It was one of its ranks when it lent.
                    let _ = pulled.pull.over(rank, cause, now);
                }
                self.carry(key, now);
            }
            Some(Borrowed::Pin) => {
                let miss = if cause == FlowCause::PeerLost { Miss::PeerLost } else { Miss::Expired };
                self.parent_is_over(peer, lease, Err(miss));
            }
            None => {}
        }
    }

    /// Ends the leases that are late, and renews those that are read under.
    pub(super) fn expire_leases(&mut self, now: Timestamp) {
        let mut ended = Vec::new();
        self.lending.lender.expire(now, &mut ended);
        for (lease, peer) in ended {
            self.last_watch += 1;
            let id = WatchId(self.last_watch);
            self.lending.watches.insert(id, lease);
            self.actions.push_back(Action::Watch { id, peer });
            self.say_over(peer, lease);
            match self.lending.lent.get(&lease).copied() {
                Some(LeasedItem::Rank { key, rank }) => {
                    if let Some(Flow::Lent(lent)) = self.flow_mut(key) {
                        // It was one of its ranks when it was lent.
                        let _ = lent.loans.expired(rank);
                    }
                    self.carry(key, now);
                }
                // Its blocks stay until its reader is quiet.
                Some(LeasedItem::Pin { .. }) | None => {}
            }
        }
        let (mut renew, mut over) = (Vec::new(), Vec::new());
        self.lending.reader.due(now, &mut renew, &mut over);
        for (peer, leases) in renew {
            let leases = leases.into_iter().map(|lease| lease.0).collect();
            self.say(peer, ControlMessage::Renew(Renew { leases }));
        }
        over.into_iter().for_each(|(peer, lease)| self.borrowed_is_over(peer, lease, FlowCause::Expired, now));
    }

    /// A peer is gone, with all that it reads, and with all that it has lent.
    pub(super) fn lose_leases(&mut self, peer: PeerKey, now: Timestamp) {
        self.lending.lender.peer_gone(peer);
        self.lending.reader.peer_gone(peer);
        let of_peer = (peer, LeaseId(0))..=(peer, LeaseId(u64::MAX));
        let gone: Vec<LeaseId> = self.lending.borrowed.range(of_peer).map(|((_, lease), _)| *lease).collect();
        gone.into_iter().for_each(|lease| self.borrowed_is_over(peer, lease, FlowCause::PeerLost, now));
        self.expire_leases(now);
    }

    /// The reader of a lease that has ended is in no copy any more. Says whether the watch was of a lease.
    pub(super) fn lease_is_quiet(&mut self, id: WatchId, now: Timestamp) -> bool {
        let Some(lease) = self.lending.watches.remove(&id) else { return false };
        if !self.lending.lender.quiet(lease) {
            // It was given back meanwhile.
            return true;
        }
        match self.lending.lent.remove(&lease) {
            Some(LeasedItem::Rank { key, rank }) => {
                if let Some(Flow::Lent(lent)) = self.flow_mut(key) {
                    // It was one of its ranks when it was lent.
                    let _ = lent.loans.quiet(rank);
                }
                self.carry(key, now);
            }
            Some(LeasedItem::Pin { peer }) => self.pin_is_back(peer, lease),
            None => {}
        }
        true
    }
}
