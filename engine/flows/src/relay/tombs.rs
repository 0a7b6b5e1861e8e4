//! What has ended and may still be spoken of: bounded in number and time, the oldest out first.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use penstock_core::Moment;
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
    /// A stream of a peer.
    Stream(PeerKey, u32),
}

#[derive(Debug)]
pub(super) struct Tombs {
    causes: BTreeMap<Grave, (FlowCause, Moment)>,
    order: VecDeque<(Moment, Grave)>,
    most: usize,
    age: Duration,
}

impl Tombs {
    pub(super) fn new(most: usize, age: Duration) -> Self {
        Self { causes: BTreeMap::new(), order: VecDeque::new(), most, age }
    }

    /// Other bounds for what ends from now on.
    pub(super) fn bound(&mut self, most: usize, age: Duration) {
        (self.most, self.age) = (most, age);
        while self.order.len() > most
            && let Some((_, oldest)) = self.order.pop_front()
        {
            self.causes.remove(&oldest);
        }
    }

    /// The first cause stays.
    pub(super) fn bury(&mut self, grave: Grave, cause: FlowCause, now: Moment) {
        if self.most == 0 || self.causes.contains_key(&grave) {
            return;
        }
        if self.order.len() >= self.most
            && let Some((_, oldest)) = self.order.pop_front()
        {
            self.causes.remove(&oldest);
        }
        let until = now + self.age;
        self.causes.insert(grave.clone(), (cause, until));
        self.order.push_back((until, grave));
    }

    pub(super) fn cause(&self, grave: &Grave) -> Option<FlowCause> {
        self.causes.get(grave).map(|(cause, _)| *cause)
    }

    pub(super) fn deadline(&self) -> Option<Moment> {
        self.order.front().map(|(until, _)| *until)
    }

    pub(super) fn expire(&mut self, now: Moment) {
        while let Some((until, _)) = self.order.front()
            && *until <= now
            && let Some((_, grave)) = self.order.pop_front()
        {
            self.causes.remove(&grave);
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
        let mut tombs = Tombs::new(2, Duration::from_nanos(10));
        let grave = |op| Grave::Op(PeerKey { party: 1, epoch: Epoch(1) }, op);
        for op in 0..3 {
            tombs.bury(grave(op), FlowCause::Aborted, Moment::from_ns(op));
        }
        tombs.bury(grave(2), FlowCause::Deadline, Moment::from_ns(9));
        assert_eq!((tombs.cause(&grave(0)), tombs.cause(&grave(2))), (None, Some(FlowCause::Aborted)));
        assert_eq!((tombs.deadline(), tombs.len()), (Some(Moment::from_ns(11)), 2));
        tombs.expire(Moment::from_ns(11));
        assert_eq!((tombs.cause(&grave(1)), tombs.len()), (None, 1));
        tombs.expire(Moment::from_ns(12));
        assert_eq!((tombs.deadline(), tombs.len()), (None, 0));
    }
}
