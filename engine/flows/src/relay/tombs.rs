//! What has ended and may still be spoken of: bounded in number and time, the oldest out first.

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
}

#[derive(Debug)]
pub(super) struct RelayTombs {
    causes: BTreeMap<Grave, (FlowCause, Timestamp)>,
    order: VecDeque<(Timestamp, Grave)>,
    /// How many lost chunks are among them.
    lost: usize,
    most: usize,
    age: Duration,
}

impl RelayTombs {
    pub(super) fn new(most: usize, age: Duration) -> Self {
        Self { causes: BTreeMap::new(), order: VecDeque::new(), lost: 0, most, age }
    }

    /// Other bounds for what ends from now on.
    pub(super) fn bound(&mut self, most: usize, age: Duration) {
        (self.most, self.age) = (most, age);
        while self.order.len() > most
            && let Some((_, oldest)) = self.order.pop_front()
        {
            self.forget(&oldest);
        }
    }

    fn forget(&mut self, grave: &Grave) -> Option<FlowCause> {
        let (cause, _) = self.causes.remove(grave)?;
        self.lost -= usize::from(matches!(grave, Grave::Lost(..)));
        Some(cause)
    }

    /// The first cause stays. Lost chunks, of which a peer says as many as it likes, have a quarter of the room and drive out nothing else.
    pub(super) fn bury(&mut self, grave: Grave, cause: FlowCause, now: Timestamp) {
        let is_lost = matches!(grave, Grave::Lost(..));
        if self.most == 0 || self.causes.contains_key(&grave) || is_lost && self.lost >= self.most.div_ceil(4) {
            return;
        }
        self.lost += usize::from(is_lost);
        if self.order.len() >= self.most
            && let Some((_, oldest)) = self.order.pop_front()
        {
            self.forget(&oldest);
        }
        let until = now + self.age;
        self.causes.insert(grave.clone(), (cause, until));
        self.order.push_back((until, grave));
    }

    pub(super) fn cause(&self, grave: &Grave) -> Option<FlowCause> {
        self.causes.get(grave).map(|(cause, _)| *cause)
    }

    /// The oldest chunk of a request that is lost with this peer, if its number there is below this one. It is told once.
    pub(super) fn take_lost(&mut self, peer: PeerKey, request: &RequestId, below: u64) -> Option<FlowCause> {
        let all = Grave::Lost(peer, request.clone(), 0)..Grave::Lost(peer, request.clone(), below);
        let first = self.causes.range(all).next()?.0.clone();
        // Its place in the order goes when its time comes.
        self.forget(&first)
    }

    pub(super) fn deadline(&self) -> Option<Timestamp> {
        self.order.front().map(|(until, _)| *until)
    }

    pub(super) fn expire(&mut self, now: Timestamp) {
        while let Some((until, _)) = self.order.front()
            && *until <= now
            && let Some((_, grave)) = self.order.pop_front()
        {
            self.forget(&grave);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.order.len()
    }
}

#[cfg(test)]
mod tests {
    use penstock_core::Epoch;

    use super::*;

    #[test]
    fn the_oldest_goes_first_and_none_outlives_its_time() {
        let mut tombs = RelayTombs::new(2, Duration::from_nanos(10));
        let grave = |op| Grave::Op(PeerKey { peer_index: 1, epoch: Epoch(1) }, op);
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
    fn lost_chunks_have_a_quarter_of_the_room_and_each_is_told_once_in_the_order_of_their_numbers() {
        let mut tombs = RelayTombs::new(8, Duration::from_nanos(10));
        let (peer, request) = (PeerKey { peer_index: 1, epoch: Epoch(1) }, RequestId::new("r").unwrap());
        let now = Timestamp::from_ns(1);
        for op in [7, 5, 6] {
            tombs.bury(Grave::Lost(peer, request.clone(), op), FlowCause::NoMemory, now);
        }
        assert_eq!((tombs.lost, tombs.len()), (2, 2), "the third has no room");
        assert_eq!(tombs.take_lost(peer, &request, 5), None, "an older one is here");
        assert_eq!(tombs.take_lost(peer, &request, 7), Some(FlowCause::NoMemory));
        assert_eq!(tombs.take_lost(peer, &request, 7), None);
        tombs.bury(Grave::Lost(peer, request.clone(), 6), FlowCause::Deadline, now);
        assert_eq!(tombs.lost, 2, "there is room again");
        tombs.expire(Timestamp::from_ns(11));
        assert_eq!((tombs.lost, tombs.len(), tombs.causes.len()), (0, 0, 0));
    }
}
