//! What comes before its transfer is known here. Both engines are told of a transfer at the same time, so the words of
//! one reach the other before its own scheduler has spoken as often as not: they wait here, and are delivered in their
//! order when it has.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use penstock_core::Timestamp;
use penstock_core::planted::{self, Bug};

use super::{PeerKey, SidedId};
use crate::control::{ControlMessage, Missing};
use crate::keyed::{Keyed, KeyedMap, shrink};
use crate::landing::ArrivalNote;

/// How much is kept of what comes early.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EarlyBounds {
    /// The most messages.
    pub messages: usize,
    /// The most bytes of them.
    pub bytes: usize,
    /// For how long.
    pub age: Duration,
}

/// What came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum EarlyBody {
    /// A frame.
    Said(ControlMessage),
    /// A landing.
    Landing(ArrivalNote),
}

/// Something that came before its transfer was known here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EarlyMessage {
    /// From whom.
    pub from: PeerKey,
    /// What.
    pub body: EarlyBody,
    /// When.
    pub came: Timestamp,
}

/// Why something early was not kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EarlyDrop {
    /// There are too many already.
    #[error(
        "this peer has {held} messages here for transfers that nobody has begun, and room for {free} is left; \
        begin them on both sides at once, or raise `control.early_messages`"
    )]
    Messages { held: usize, free: usize },
    /// They are too long.
    #[error(
        "this peer has {held} bytes here for transfers that nobody has begun, and room for {free} is left; \
        begin them on both sides at once, or raise `control.early_bytes`"
    )]
    Bytes { held: usize, free: usize },
}

impl EarlyBody {
    /// What it takes to keep it, in bytes.
    pub fn bytes(&self) -> usize {
        let list = |blocks: &[u32]| size_of_val(blocks);
        let apart = match self {
            Self::Landing(_) => 0,
            Self::Said(ControlMessage::Grant(grant)) => list(&grant.blocks) + grant.trace.len(),
            Self::Said(ControlMessage::ReadOffer(lend)) => list(&lend.blocks),
            Self::Said(ControlMessage::PullRequest(claim)) => claim.trace.len(),
            Self::Said(ControlMessage::Fail(fail)) => fail.words.len() + fail.missing.len() * size_of::<Missing>(),
            Self::Said(ControlMessage::LayoutNews(news)) => news.label.len() + size_of_val(news.buffers.as_slice()),
            Self::Said(ControlMessage::Renew(renew)) => size_of_val(renew.leases.as_slice()),
            Self::Said(ControlMessage::PinAsk(ask)) => ask.parent.len(),
            Self::Said(ControlMessage::PinAnswer(answer)) => list(&answer.blocks),
            Self::Said(ControlMessage::Chunk(chunk)) => {
                let lists = size_of_val(chunk.extents.as_slice()) + chunk.schema.len() + chunk.header.len();
                chunk.request.len() + lists
            }
            Self::Said(ControlMessage::RelayAbort(abort)) => abort.request.len() + abort.words.len(),
            Self::Said(_) => 0,
        };
        size_of::<EarlyMessage>() + apart
    }
}

/// What one peer has here.
#[derive(Debug, Default)]
struct Share {
    numbers: BTreeSet<u64>,
    bytes: usize,
}

/// What has come early, within three bounds.
///
/// A peer may have as much here as is left for all: so one that floods leaves half of the room to the others, and two
/// leave a third.
#[derive(Debug)]
pub struct Early {
    bounds: EarlyBounds,
    next: u64,
    /// In the order in which they came.
    kept: BTreeMap<u64, (SidedId, EarlyMessage)>,
    by_name: KeyedMap<SidedId, Vec<u64>>,
    by_peer: BTreeMap<PeerKey, Share>,
    bytes: usize,
    delivered: u64,
    dropped: u64,
    /// What was too old, and from whom. No more of them than of messages.
    unwanted: VecDeque<(SidedId, PeerKey)>,
}

impl Early {
    /// Nothing yet.
    pub fn new(bounds: EarlyBounds, keyed: Keyed) -> Self {
        Self {
            bounds,
            next: 0,
            kept: BTreeMap::new(),
            by_name: KeyedMap::with_hasher(keyed),
            by_peer: BTreeMap::new(),
            bytes: 0,
            delivered: 0,
            dropped: 0,
            unwanted: VecDeque::new(),
        }
    }

    /// Keeps this, if there is room.
    pub fn keep(&mut self, id: SidedId, message: EarlyMessage) -> Result<(), EarlyDrop> {
        if planted::is(Bug::EarlyArrivalDropped) {
            return Ok(());
        }
        let bytes = message.body.bytes();
        self.make_room(message.from, bytes).inspect_err(|_| self.dropped += 1)?;
        let share = self.by_peer.entry(message.from).or_default();
        share.numbers.insert(self.next);
        share.bytes += bytes;
        self.by_name.entry(id).or_default().push(self.next);
        self.kept.insert(self.next, (id, message));
        self.bytes += bytes;
        self.next += 1;
        Ok(())
    }

    fn make_room(&self, from: PeerKey, bytes: usize) -> Result<(), EarlyDrop> {
        let held = self.by_peer.get(&from).map_or((0, 0), |share| (share.numbers.len(), share.bytes));
        let free = self.bounds.messages.saturating_sub(self.kept.len());
        if held.0 >= free {
            return Err(EarlyDrop::Messages { held: held.0, free });
        }
        let free = self.bounds.bytes.saturating_sub(self.bytes);
        if held.1 + bytes > free { Err(EarlyDrop::Bytes { held: held.1, free }) } else { Ok(()) }
    }

    /// What has come for this one, in its order: once.
    pub fn deliver(&mut self, id: SidedId) -> Vec<EarlyMessage> {
        if self.kept.is_empty() {
            return Vec::new();
        }
        let numbers = self.by_name.remove(&id).unwrap_or_default();
        self.delivered += numbers.len() as u64;
        numbers.into_iter().filter_map(|number| self.unlist(number)).map(|(_, message)| message).collect()
    }

    /// Takes one out of everything but the list of its name.
    fn unlist(&mut self, number: u64) -> Option<(SidedId, EarlyMessage)> {
        let (id, message) = self.kept.remove(&number)?;
        let bytes = message.body.bytes();
        self.bytes -= bytes;
        if let Some(share) = self.by_peer.get_mut(&message.from) {
            share.numbers.remove(&number);
            share.bytes -= bytes;
            if share.numbers.is_empty() {
                self.by_peer.remove(&message.from);
            }
        }
        Some((id, message))
    }

    fn drop_one(&mut self, number: u64) {
        let Some((id, _)) = self.unlist(number) else { return };
        self.dropped += 1;
        let Some(numbers) = self.by_name.get_mut(&id) else { return };
        numbers.retain(|other| *other != number);
        if numbers.is_empty() {
            self.by_name.remove(&id);
        }
    }

    /// Drops what this peer has said: its session is over.
    pub fn forget(&mut self, peer: PeerKey) {
        let numbers = self.by_peer.get(&peer).map(|share| share.numbers.clone());
        numbers.into_iter().flatten().for_each(|number| self.drop_one(number));
    }

    /// Drops what this peer has said of one transfer.
    pub fn forget_of(&mut self, id: SidedId, peer: PeerKey) {
        let numbers = self.by_name.get(&id).cloned().unwrap_or_default();
        let is_its = |number: &u64| self.kept.get(number).is_some_and(|(_, message)| message.from == peer);
        let its: Vec<u64> = numbers.into_iter().filter(is_its).collect();
        its.into_iter().for_each(|number| self.drop_one(number));
    }

    /// Drops what is old enough, and says when the next is.
    pub fn expire(&mut self, now: Timestamp) -> Option<Timestamp> {
        while let Some((&number, (id, message))) = self.kept.first_key_value() {
            let until = message.came + self.bounds.age;
            if until > now {
                return Some(until);
            }
            if self.unwanted.len() >= self.bounds.messages {
                self.unwanted.pop_front();
            }
            self.unwanted.push_back((*id, message.from));
            self.drop_one(number);
        }
        None
    }

    /// What was too old since the last call, and from whom; each once.
    pub fn take_unwanted(&mut self) -> Vec<(SidedId, PeerKey)> {
        let unwanted: BTreeSet<(SidedId, PeerKey)> = self.unwanted.drain(..).collect();
        unwanted.into_iter().collect()
    }

    /// How many messages there are.
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Bytes of them.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many have been delivered.
    pub fn delivered(&self) -> u64 {
        self.delivered
    }

    /// How many have been dropped: for want of room, with their peer, or because nobody wanted them in time.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Places for names, used or not.
    pub fn places(&self) -> usize {
        self.by_name.capacity() + self.unwanted.capacity()
    }

    /// Gives back memory that a peak has left behind.
    pub fn shrink(&mut self) {
        shrink(&mut self.by_name);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use penstock_core::Epoch;

    use super::*;
    use crate::control::{Renew, Side};
    use crate::transfers::id::TransferId;

    fn id(number: u8) -> SidedId {
        (Side::Sink, TransferId::from_bytes([number; 16]))
    }

    fn peer(peer_index: u32) -> PeerKey {
        PeerKey { peer_index, epoch: Epoch(7) }
    }

    /// One that is told from others by its leg.
    pub(crate) fn landing(leg: u32) -> ArrivalNote {
        let transfer = TransferId::from_bytes([1; 16]);
        let (source, rank, number, layer, total) = (0, 0, 0, None, None);
        ArrivalNote {
            transfer,
            source,
            rank,
            number,
            leg,
            layer,
            leg_from: 0,
            leg_tokens: 1,
            from: 0,
            tokens: 1,
            total,
        }
    }

    fn message(from: u32, number: u8, came: u64) -> EarlyMessage {
        EarlyMessage {
            from: peer(from),
            body: EarlyBody::Landing(landing(number.into())),
            came: Timestamp::from_ns(came),
        }
    }

    fn early(messages: usize, bytes: usize) -> Early {
        let age = Duration::from_nanos(100);
        Early::new(EarlyBounds { messages, bytes, age }, Keyed::new((1, 2)))
    }

    #[test]
    fn what_came_is_delivered_once_and_in_its_order() {
        let mut early = early(100, 100_000);
        for (number, peer_index) in [(1, 1), (2, 2), (3, 1)] {
            early.keep(id(1), message(peer_index, number, u64::from(number))).unwrap();
        }
        early.keep(id(2), message(1, 9, 4)).unwrap();
        assert_eq!(early.deliver(id(1)), [message(1, 1, 1), message(2, 2, 2), message(1, 3, 3)]);
        assert_eq!(early.deliver(id(1)), []);
        assert_eq!((early.len(), early.delivered(), early.dropped()), (1, 3, 0));
        assert_eq!(early.deliver(id(2)).len(), 1);
        assert!(early.is_empty() && early.bytes() == 0 && early.by_name.is_empty() && early.by_peer.is_empty());
    }

    #[test]
    fn one_peer_that_floods_leaves_room_for_others() {
        let mut early = early(8, 1 << 20);
        let flood = (0..100).filter(|number| early.keep(id(*number), message(1, *number, 0)).is_ok()).count();
        assert_eq!(flood, 4);
        assert!(early.keep(id(200), message(2, 0, 0)).is_ok());
        assert_eq!(
            early.keep(id(201), message(1, 0, 0)),
            Err(EarlyDrop::Messages { held: 4, free: 3 }),
            "whoever floods gets nothing while others come"
        );
        assert_eq!(early.dropped(), 97);
    }

    #[test]
    fn long_messages_count_by_their_bytes() {
        let one = message(1, 0, 0).body.bytes();
        let mut early = early(100, 2 * one + 10);
        let renew = EarlyBody::Said(ControlMessage::Renew(Renew { leases: vec![0; 1000] }));
        assert!(renew.bytes() >= 8000);
        let long = EarlyMessage { body: renew, ..message(1, 0, 0) };
        assert_eq!(early.keep(id(1), long), Err(EarlyDrop::Bytes { held: 0, free: 2 * one + 10 }));
        assert_eq!(early.keep(id(1), message(1, 0, 0)), Ok(()));
        assert_eq!(early.keep(id(1), message(1, 0, 0)), Err(EarlyDrop::Bytes { held: one, free: one + 10 }));
        assert_eq!(early.keep(id(1), message(2, 0, 0)), Ok(()));
    }

    #[test]
    fn what_nobody_wants_is_dropped_in_time_and_what_a_lost_peer_said_at_once() {
        let mut early = early(100, 100_000);
        early.keep(id(1), message(1, 1, 0)).unwrap();
        early.keep(id(1), message(2, 2, 50)).unwrap();
        early.keep(id(2), message(3, 3, 60)).unwrap();
        assert_eq!(early.expire(Timestamp::from_ns(99)), Some(Timestamp::from_ns(100)));
        assert_eq!((early.expire(Timestamp::from_ns(100)), early.len()), (Some(Timestamp::from_ns(150)), 2));
        assert_eq!((early.take_unwanted(), early.take_unwanted()), (vec![(id(1), peer(1))], vec![]));
        early.forget(peer(2));
        assert_eq!((early.deliver(id(1)), early.len(), early.dropped()), (Vec::new(), 1, 2));
        early.forget(peer(9));
        early.keep(id(2), message(3, 4, 60)).unwrap();
        assert_eq!((early.expire(Timestamp::from_ns(160)), early.dropped()), (None, 4));
        assert_eq!(early.take_unwanted(), [(id(2), peer(3))], "who has said two things is told once");
        assert!(early.is_empty() && early.bytes() == 0 && early.by_name.is_empty() && early.by_peer.is_empty());
    }
}
