//! What has ended and may still be spoken of: bounded in number and time, the oldest out first; what peers alone decide has a share.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use penstock_core::Timestamp;
use penstock_session::{PeerKey, RequestId};

use crate::FlowCause;

/// What has ended here.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Grave {
    /// Everything of a request.
    Request(RequestId),
    /// What was to be read of a request.
    Cleaned(RequestId),
    /// What a peer calls by this number.
    Op(PeerKey, u64),
    /// The same, of which nobody has asked for in time.
    Unasked(PeerKey, u64),
    /// A stream of a peer.
    Stream(PeerKey, u32),
    /// A chunk of this request that a peer calls by this number: a join that begins later would wait for it.
    Lost(PeerKey, RequestId, u64),
    /// A request that this peer has given up, which has no part in it here: of others it goes on.
    GivenUp(PeerKey, RequestId),
}

impl Grave {
    /// The peer, of graves that a peer digs by saying something, as many as it likes: they have a share of their own.
    fn digger(&self) -> Option<PeerKey> {
        match self {
            Self::Request(_) | Self::Cleaned(_) => None,
            Self::Op(peer, _) | Self::Unasked(peer, _) | Self::Stream(peer, _) => Some(*peer),
            Self::Lost(peer, ..) | Self::GivenUp(peer, _) => Some(*peer),
        }
    }
}

#[derive(Debug)]
pub(super) struct RelayTombs {
    causes: BTreeMap<Grave, (FlowCause, Timestamp)>,
    order: VecDeque<(Timestamp, Grave)>,
    /// Those that peers dig: at most half of all. A peer's drives out its own.
    order_dug: VecDeque<(Timestamp, Grave)>,
    /// How many of those each peer has.
    dug: BTreeMap<PeerKey, usize>,
    most: usize,
    age: Duration,
}

impl RelayTombs {
    pub(super) fn new(most: usize, age: Duration) -> Self {
        let (causes, dug) = (BTreeMap::new(), BTreeMap::new());
        Self { causes, order: VecDeque::new(), order_dug: VecDeque::new(), dug, most, age }
    }

    /// Other bounds for what ends from now on.
    pub(super) fn bound(&mut self, most: usize, age: Duration) {
        (self.most, self.age) = (most, age);
        while self.order.len() > most - self.share()
            && let Some((_, oldest)) = self.order.pop_front()
        {
            self.forget(&oldest);
        }
        while self.order_dug.len() > self.share()
            && let Some((_, oldest)) = self.order_dug.pop_front()
        {
            self.forget(&oldest);
        }
    }

    /// How many may be such as peers dig.
    fn share(&self) -> usize {
        self.most.div_ceil(2)
    }

    fn forget(&mut self, grave: &Grave) -> Option<FlowCause> {
        let (cause, _) = self.causes.remove(grave)?;
        if let Some(peer) = grave.digger()
            && let Some(its) = self.dug.get_mut(&peer)
        {
            *its -= 1;
            if *its == 0 {
                self.dug.remove(&peer);
            }
        }
        Some(cause)
    }

    /// A peer may have as many as are left for all: so one that floods leaves half of the share to the others.
    fn has_room(&self, peer: PeerKey) -> bool {
        self.dug.get(&peer).copied().unwrap_or_default() < self.share().saturating_sub(self.order_dug.len())
    }

    /// The first cause stays.
    pub(super) fn bury(&mut self, grave: Grave, cause: FlowCause, now: Timestamp) {
        if self.most == 0 || self.causes.contains_key(&grave) {
            return;
        }
        let until = now + self.age;
        if let Some(peer) = grave.digger() {
            if !self.has_room(peer) {
                let own = |(_, grave): &(Timestamp, Grave)| grave.digger() == Some(peer);
                let Some(oldest) = self.order_dug.iter().position(own).and_then(|at| self.order_dug.remove(at)) else {
                    return;
                };
                self.forget(&oldest.1);
            }
            *self.dug.entry(peer).or_default() += 1;
            self.order_dug.push_back((until, grave.clone()));
        } else {
            if self.order.len() >= self.most - self.share()
                && let Some((_, oldest)) = self.order.pop_front()
            {
                self.forget(&oldest);
            }
            self.order.push_back((until, grave.clone()));
        }
        self.causes.insert(grave, (cause, until));
    }

    pub(super) fn cause(&self, grave: &Grave) -> Option<FlowCause> {
        self.causes.get(grave).map(|(cause, _)| *cause)
    }

    /// The oldest chunk of a request that is lost with this peer, if its number there is below this one. It is told once.
    pub(super) fn take_lost(&mut self, peer: PeerKey, request: &RequestId, below: u64) -> Option<FlowCause> {
        let all = Grave::Lost(peer, request.clone(), 0)..Grave::Lost(peer, request.clone(), below);
        let first = self.causes.range(all).next()?.0.clone();
        self.order_dug.retain(|(_, grave)| *grave != first);
        self.forget(&first)
    }

    pub(super) fn deadline(&self) -> Option<Timestamp> {
        [&self.order, &self.order_dug].into_iter().filter_map(|order| order.front()).map(|(until, _)| *until).min()
    }

    pub(super) fn expire(&mut self, now: Timestamp) {
        while let Some(grave) = pop_due(&mut self.order, now).or_else(|| pop_due(&mut self.order_dug, now)) {
            self.forget(&grave);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.causes.len()
    }
}

/// The oldest, if its time is over.
fn pop_due(order: &mut VecDeque<(Timestamp, Grave)>, now: Timestamp) -> Option<Grave> {
    order.pop_front_if(|(until, _)| *until <= now).map(|(_, grave)| grave)
}

#[cfg(test)]
mod tests {
    use penstock_core::Epoch;

    use super::*;

    fn peer(peer_index: u32) -> PeerKey {
        PeerKey { peer_index, epoch: Epoch(1) }
    }

    fn given_up(of: u32, number: usize) -> Grave {
        Grave::GivenUp(peer(of), RequestId::new(&format!("r{number}")).unwrap())
    }

    #[test]
    fn the_oldest_goes_first_and_none_outlives_its_time() {
        let mut tombs = RelayTombs::new(4, Duration::from_nanos(10));
        let grave = |number: u64| Grave::Request(RequestId::new(&format!("r{number}")).unwrap());
        for op in 0..3 {
            tombs.bury(grave(op), FlowCause::Aborted, Timestamp::from_ns(op));
        }
        tombs.bury(grave(2), FlowCause::Deadline, Timestamp::from_ns(9));
        assert_eq!((tombs.cause(&grave(0)), tombs.cause(&grave(2))), (None, Some(FlowCause::Aborted)));
        assert_eq!((tombs.deadline(), tombs.len()), (Some(Timestamp::from_ns(11)), 2));
        tombs.expire(Timestamp::from_ns(11));
        assert_eq!((tombs.cause(&grave(1)), tombs.len()), (None, 1));
        tombs.expire(Timestamp::from_ns(12));
        assert_eq!((tombs.deadline(), tombs.len()), (None, 0));
    }

    #[test]
    fn lost_chunks_are_told_once_in_the_order_of_their_numbers() {
        let mut tombs = RelayTombs::new(16, Duration::from_nanos(10));
        let (peer, request) = (peer(1), RequestId::new("r").unwrap());
        let now = Timestamp::from_ns(1);
        for op in [7, 5, 6] {
            tombs.bury(Grave::Lost(peer, request.clone(), op), FlowCause::NoMemory, now);
        }
        assert_eq!((tombs.dug[&peer], tombs.len()), (3, 3));
        assert_eq!(tombs.take_lost(peer, &request, 5), None, "an older one is here");
        assert_eq!(tombs.take_lost(peer, &request, 7), Some(FlowCause::NoMemory));
        assert_eq!(tombs.take_lost(peer, &request, 7), Some(FlowCause::NoMemory));
        assert_eq!(tombs.take_lost(peer, &request, 7), None);
        tombs.bury(Grave::Lost(peer, request.clone(), 6), FlowCause::Deadline, now);
        assert_eq!(tombs.dug[&peer], 2);
        tombs.expire(Timestamp::from_ns(11));
        assert_eq!((tombs.dug.len(), tombs.len(), tombs.order_dug.len()), (0, 0, 0));
    }

    #[test]
    fn what_a_peer_digs_drives_out_its_own_and_leaves_as_much_as_it_has_to_others() {
        let mut tombs = RelayTombs::new(64, Duration::from_nanos(10));
        let now = Timestamp::from_ns(1);
        let cleaned = |number: usize| Grave::Cleaned(RequestId::new(&format!("s{number}")).unwrap());
        for number in 0..100 {
            tombs.bury(cleaned(number), FlowCause::Aborted, now);
            tombs.bury(given_up(1, number), FlowCause::Aborted, now);
            tombs.bury(Grave::Op(peer(1), number as u64), FlowCause::Aborted, now);
        }
        assert_eq!((tombs.dug[&peer(1)], tombs.order.len()), (16, 32), "half of a half");
        for number in 0..100 {
            tombs.bury(given_up(2, number), FlowCause::Aborted, now);
        }
        assert_eq!((tombs.dug[&peer(1)], tombs.dug[&peer(2)]), (16, 8), "and half of what is left of it");
        // The newest of each are there.
        for grave in
            [given_up(1, 99), Grave::Op(peer(1), 99), given_up(2, 99), given_up(2, 92), cleaned(99), cleaned(68)]
        {
            assert_eq!(tombs.cause(&grave), Some(FlowCause::Aborted), "{grave:?}");
        }
        for grave in [given_up(1, 91), given_up(2, 91), cleaned(67)] {
            assert_eq!(tombs.cause(&grave), None, "{grave:?}");
        }
        tombs.bound(8, Duration::from_nanos(10));
        assert_eq!((tombs.order.len(), tombs.order_dug.len(), tombs.len()), (4, 4, 8));
    }
}
