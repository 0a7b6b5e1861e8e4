//! The rings of one session: for each worker of the sender two rings, all in memory of the receiver. Notes go through one, and through the other what
//! lanes say to each other, which does not wait behind notes that nobody takes.

use penstock_core::limits::RING_LINES;
use penstock_ring::SharedRange;
use penstock_ring::spsc::{Consumer, MappedStorage, Producer};

use crate::link::JoinError;

/// One ring that this engine fills.
pub type OutboundRing = Producer<MappedStorage>;

/// What goes through a ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RingOf {
    Notes = 0,
    LaneMessages = 1,
}

const RINGS: usize = 2;

const fn ring_bytes() -> usize {
    MappedStorage::bytes_for(RING_LINES)
}

/// Bytes of the segment in which a sender with so many workers leaves its notes.
pub const fn ring_segment_bytes(senders: usize) -> usize {
    RINGS * ring_bytes() * senders
}

fn storage(range: &SharedRange, sender: usize, of: RingOf) -> Result<MappedStorage, JoinError> {
    let part = range.slice((RINGS * sender + of as usize) * ring_bytes(), ring_bytes());
    let part = part.ok_or(JoinError::Malformed("its rings are too small"))?;
    MappedStorage::new(part, RING_LINES).map_err(|_| JoinError::Malformed("its rings have another shape"))
}

/// The rings a peer fills and this engine empties.
pub struct InboundRings(Vec<[Consumer<MappedStorage>; RINGS]>);

impl InboundRings {
    /// The receiver's ends, one for each of the peer's workers.
    pub fn over(range: &SharedRange, senders: usize) -> Result<Self, JoinError> {
        let ring = |sender, of| storage(range, sender, of).map(Consumer::attach);
        let rings = (0..senders).map(|sender| Ok([ring(sender, RingOf::Notes)?, ring(sender, RingOf::LaneMessages)?]));
        Ok(Self(rings.collect::<Result<_, JoinError>>()?))
    }

    /// Deals the rings out to `workers` receivers: sender `s` goes to receiver `s % workers`.
    pub(super) fn deal(self, workers: usize) -> Vec<Vec<(usize, [Consumer<MappedStorage>; RINGS])>> {
        let mut dealt: Vec<Vec<_>> = (0..workers).map(|_| Vec::new()).collect();
        for (sender, rings) in self.0.into_iter().enumerate() {
            dealt[sender % workers].push((sender, rings));
        }
        dealt
    }
}

/// The sender's ends of the rings of `sender`.
pub(super) fn outbound(range: &SharedRange, sender: usize) -> Result<[OutboundRing; RINGS], JoinError> {
    let ring = |of| {
        let ring = Producer::attach(storage(range, sender, of)?);
        ring.map_err(|_| JoinError::Malformed("its rings are in use already"))
    };
    Ok([ring(RingOf::Notes)?, ring(RingOf::LaneMessages)?])
}
