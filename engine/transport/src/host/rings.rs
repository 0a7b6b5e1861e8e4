//! The rings of one session: for each worker of the sender one ring, all in memory of the receiver.

use penstock_core::limits::RING_LINES;
use penstock_ring::SharedRange;
use penstock_ring::spsc::{Consumer, MappedStorage, Producer};

use crate::link::JoinError;

/// One ring that this engine fills.
pub type OutboundRing = Producer<MappedStorage>;

const fn ring_bytes() -> usize {
    MappedStorage::bytes_for(RING_LINES)
}

/// Bytes of the segment in which a sender with so many workers leaves its notes.
pub const fn ring_segment_bytes(senders: usize) -> usize {
    ring_bytes() * senders
}

fn storage(range: &SharedRange, sender: usize) -> Result<MappedStorage, JoinError> {
    let part = range.slice(sender * ring_bytes(), ring_bytes());
    let part = part.ok_or(JoinError::Malformed("its rings are too small"))?;
    MappedStorage::new(part, RING_LINES).map_err(|_| JoinError::Malformed("its rings have another shape"))
}

/// The rings a peer fills and this engine empties.
pub struct InboundRings(Vec<Consumer<MappedStorage>>);

impl InboundRings {
    /// The receiver's ends, one for each of the peer's workers.
    pub fn over(range: &SharedRange, senders: usize) -> Result<Self, JoinError> {
        let rings = (0..senders).map(|sender| Ok(Consumer::attach(storage(range, sender)?)));
        Ok(Self(rings.collect::<Result<_, JoinError>>()?))
    }

    /// Deals the rings out to `workers` receivers: sender `s` goes to receiver `s % workers`.
    pub fn deal(self, workers: usize) -> Vec<Vec<(usize, Consumer<MappedStorage>)>> {
        let mut dealt: Vec<Vec<_>> = (0..workers).map(|_| Vec::new()).collect();
        for (sender, ring) in self.0.into_iter().enumerate() {
            dealt[sender % workers].push((sender, ring));
        }
        dealt
    }
}

/// The sender's end of ring `sender`.
pub(super) fn outbound(range: &SharedRange, sender: usize) -> Result<OutboundRing, JoinError> {
    Producer::attach(storage(range, sender)?).map_err(|_| JoinError::Malformed("its rings are in use already"))
}
