//! Chunks that came before anybody asked for them: kept within three bounds, and answered if they cannot be.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use penstock_core::Timestamp;
use penstock_session::{PeerKey, RequestId};

use super::berths::StagingPlace;

/// How much is kept of what nobody has asked for yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EarlyFrameBounds {
    /// The most frames; of one peer, at most as many as there is room left for.
    pub messages: usize,
    /// The most bytes of their words, of one peer likewise.
    pub bytes: usize,
    /// How long one is kept.
    pub age: Duration,
}

/// A put of a peer, as far as it has been announced.
#[derive(Debug, Clone)]
pub(super) struct EarlyOffer {
    pub(super) request: RequestId,
    pub(super) stream: u32,
    pub(super) number: u64,
    pub(super) bytes: u64,
    pub(super) parts: u32,
    /// Of each part but the last.
    pub(super) part_bytes: u64,
    pub(super) schema: Vec<u8>,
    pub(super) header: Vec<u8>,
    /// Parts, and where the peer has them.
    pub(super) frames: BTreeMap<u32, Vec<StagingPlace>>,
    /// The application or a join knows of it.
    pub(super) is_taken: bool,
    came: u64,
    cost: usize,
}

impl EarlyOffer {
    pub(super) fn new(request: RequestId, stream: (u32, u64), size: (u64, u32), part_bytes: u64) -> Self {
        let ((stream, number), (bytes, parts)) = (stream, size);
        let (schema, header, frames) = (Vec::new(), Vec::new(), BTreeMap::new());
        let (is_taken, came, cost) = (false, 0, 0);
        Self { request, stream, number, bytes, parts, part_bytes, schema, header, frames, is_taken, came, cost }
    }

    /// The first part has come, and with it what the application may know.
    pub(super) fn is_known(&self) -> bool {
        self.frames.contains_key(&0)
    }
}

/// What one frame brings.
pub(super) struct RelayFrame {
    pub(super) part: u32,
    pub(super) places: Vec<StagingPlace>,
    pub(super) schema: Vec<u8>,
    pub(super) header: Vec<u8>,
}

/// What came of keeping a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum KeptFrame {
    Yes,
    /// There is no room.
    Full,
    /// It differs from what came before, or has come before.
    Senseless,
}

/// A peer's operation.
pub(super) type OfferKey = (PeerKey, u64);

#[derive(Debug)]
pub(super) struct EarlyFrames {
    offers: BTreeMap<OfferKey, EarlyOffer>,
    by_request: BTreeMap<(RequestId, u64), OfferKey>,
    order: VecDeque<(Timestamp, OfferKey, u64)>,
    bounds: EarlyFrameBounds,
    /// What each peer has here: frames and bytes.
    by_peer: BTreeMap<PeerKey, (usize, usize)>,
    frames: usize,
    bytes: usize,
    came: u64,
}

impl EarlyFrames {
    pub(super) fn new(bounds: EarlyFrameBounds) -> Self {
        let (offers, by_request, order, by_peer) = (BTreeMap::new(), BTreeMap::new(), VecDeque::new(), BTreeMap::new());
        Self { offers, by_request, order, bounds, by_peer, frames: 0, bytes: 0, came: 0 }
    }

    /// Other bounds for what comes from now on.
    pub(super) fn bound(&mut self, bounds: EarlyFrameBounds) {
        self.bounds = bounds;
    }

    /// Keeps a frame of this offer, which is new or must be as the first frame said.
    pub(super) fn keep(&mut self, key: OfferKey, said: EarlyOffer, frame: RelayFrame, now: Timestamp) -> KeptFrame {
        if let Some(known) = self.offers.get(&key) {
            let alike = (&known.request, known.stream, known.number, known.bytes, known.parts, known.part_bytes)
                == (&said.request, said.stream, said.number, said.bytes, said.parts, said.part_bytes);
            if !alike || known.frames.contains_key(&frame.part) {
                return KeptFrame::Senseless;
            }
        }
        let words = frame.schema.len() + frame.header.len() + said.request.as_str().len();
        let cost = words + frame.places.len() * size_of::<StagingPlace>();
        if !self.has_room(key.0, cost) {
            return KeptFrame::Full;
        }
        let offer = self.offers.entry(key).or_insert_with(|| {
            self.came += 1;
            self.by_request.insert((said.request.clone(), self.came), key);
            self.order.push_back((now + self.bounds.age, key, self.came));
            EarlyOffer { came: self.came, ..said }
        });
        if frame.part == 0 {
            (offer.schema, offer.header) = (frame.schema, frame.header);
        }
        offer.frames.insert(frame.part, frame.places);
        offer.cost += cost;
        let share = self.by_peer.entry(key.0).or_default();
        *share = (share.0 + 1, share.1 + cost);
        self.frames += 1;
        self.bytes += cost;
        KeptFrame::Yes
    }

    /// A peer may have as much here as is left for all: so one that floods leaves half of the room to the others.
    fn has_room(&self, peer: PeerKey, cost: usize) -> bool {
        let (frames, bytes) = self.by_peer.get(&peer).copied().unwrap_or_default();
        let left = (self.bounds.messages.saturating_sub(self.frames), self.bounds.bytes.saturating_sub(self.bytes));
        frames < left.0 && bytes + cost <= left.1
    }

    pub(super) fn take(&mut self, key: OfferKey) -> Option<EarlyOffer> {
        let offer = self.offers.remove(&key)?;
        self.by_request.remove(&(offer.request.clone(), offer.came));
        self.frames -= offer.frames.len();
        self.bytes -= offer.cost;
        if let Some(share) = self.by_peer.get_mut(&key.0) {
            *share = (share.0 - offer.frames.len(), share.1 - offer.cost);
            if share.0 == 0 {
                self.by_peer.remove(&key.0);
            }
        }
        // Its place in the order of time goes when it comes to the front, or with many others.
        if self.order.len() > 2 * self.offers.len() + 16 {
            self.order.retain(|(_, key, came)| self.offers.get(key).is_some_and(|offer| offer.came == *came));
        }
        Some(offer)
    }

    pub(super) fn get_mut(&mut self, key: OfferKey) -> Option<&mut EarlyOffer> {
        self.offers.get_mut(&key)
    }

    pub(super) fn get(&self, key: OfferKey) -> Option<&EarlyOffer> {
        self.offers.get(&key)
    }

    /// Those of a request that nobody has taken and whose first part is here, the oldest first.
    pub(super) fn untaken(&self, request: &RequestId) -> impl Iterator<Item = (OfferKey, &EarlyOffer)> {
        let keys = self.by_request.range((request.clone(), 0)..=(request.clone(), u64::MAX)).map(|(_, key)| *key);
        keys.filter_map(|key| Some((key, self.offers.get(&key)?)))
            .filter(|(_, offer)| !offer.is_taken && offer.is_known())
    }

    /// Those for which this is so.
    pub(super) fn keys(&self, which: impl Fn(OfferKey, &EarlyOffer) -> bool) -> Vec<OfferKey> {
        self.offers.iter().filter(|(key, offer)| which(**key, offer)).map(|(key, _)| *key).collect()
    }

    pub(super) fn deadline(&self) -> Option<Timestamp> {
        self.order.front().map(|(until, ..)| *until)
    }

    /// The next one that has been kept for too long.
    pub(super) fn overdue(&mut self, now: Timestamp) -> Option<OfferKey> {
        while let Some(&(until, key, came)) = self.order.front()
            && until <= now
        {
            self.order.pop_front();
            if self.offers.get(&key).is_some_and(|offer| offer.came == came) {
                return Some(key);
            }
        }
        None
    }

    pub(super) fn is_empty(&self) -> bool {
        self.offers.is_empty()
    }

    /// Frames and bytes that are kept.
    pub(super) fn kept(&self) -> (usize, usize) {
        (self.frames, self.bytes)
    }

    pub(super) fn check(&self) -> Result<(), String> {
        let frames: usize = self.offers.values().map(|offer| offer.frames.len()).sum();
        let bytes: usize = self.offers.values().map(|offer| offer.cost).sum();
        if (frames, bytes) != self.kept() || self.by_request.len() != self.offers.len() {
            return Err(format!("{frames} early frames of {bytes} bytes are kept and {:?} counted", self.kept()));
        }
        let mut shares: BTreeMap<PeerKey, (usize, usize)> = BTreeMap::new();
        for ((peer, _), offer) in &self.offers {
            let share = shares.entry(*peer).or_default();
            *share = (share.0 + offer.frames.len(), share.1 + offer.cost);
        }
        if shares != self.by_peer {
            return Err(format!("peers have {shares:?} here, and {:?} is counted", self.by_peer));
        }
        Ok(())
    }
}
