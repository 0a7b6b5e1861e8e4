//! One worker's memory between devices and what carries its sessions, in slots of one post each.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use penstock_core::limits::UNIT_BYTES;
use penstock_memory::{Memory, MemoryError, Segment};
use penstock_ring::ReadyBits;

use crate::remote::RemoteMemory;

/// What one post carries at most.
pub(super) const SLOT_BYTES: u64 = UNIT_BYTES;

/// A lane leaves so many times as much as it has, so that a dozen slow ones leave something.
const LEAVES: usize = 4;

/// The slots of one worker for one direction.
pub(super) struct Slots {
    /// All of them, as each side of a copy names it.
    pub(super) memory: Memory,
    pub(super) mapped: RemoteMemory,
    state: Mutex<State>,
    /// The worker's, by which lanes are marked.
    ready: ReadyBits,
    _segment: Segment,
}

struct State {
    free: Vec<u32>,
    /// Lanes that have found none, by the indices of their peers.
    without: Vec<u32>,
}

impl Slots {
    /// As many as these bytes hold, at least one.
    pub(super) fn new(bytes: u64, ready: ReadyBits) -> Result<Self, MemoryError> {
        let count = (bytes / SLOT_BYTES).max(1);
        let segment = Segment::create("penstock-staging", count * SLOT_BYTES)?;
        let window = segment.window();
        let state = State { free: (0..count as u32).collect(), without: Vec::with_capacity(8) };
        Ok(Self {
            memory: window.clone().into(),
            mapped: window.clone().into(),
            state: Mutex::new(state),
            ready,
            _segment: segment,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A slot for a lane that has so many; none: the lane of this peer is marked ready when one comes back. A lane gets no more than a part of what it
    /// leaves, so that a peer that is slow does not keep the others from theirs.
    pub(super) fn take(self: &Arc<Self>, peer_index: u32, has: usize) -> Option<StagingSlot> {
        let mut state = self.lock();
        let place = if LEAVES * has < state.free.len() { state.free.pop() } else { None };
        if place.is_none() && !state.without.contains(&peer_index) {
            state.without.push(peer_index);
        }
        Some(StagingSlot { slots: Arc::clone(self), place: place? })
    }
}

/// A slot that somebody has. It is given back when this is dropped: nothing may touch it any more then.
pub(super) struct StagingSlot {
    pub(super) slots: Arc<Slots>,
    place: u32,
}

impl StagingSlot {
    /// Where it begins among all.
    pub(super) fn offset(&self) -> u64 {
        u64::from(self.place) * SLOT_BYTES
    }

    /// A device that has failed may write to it for as long as it likes: nobody gets it again.
    pub(super) fn withhold(self) {
        std::mem::forget(self);
    }
}

impl Drop for StagingSlot {
    fn drop(&mut self) {
        let mut state = self.slots.lock();
        state.free.push(self.place);
        state.without.drain(..).for_each(|peer_index| self.slots.ready.mark(peer_index as usize));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lanes_that_give_nothing_back_leave_some_to_others() {
        let slots = Arc::new(Slots::new(16 * SLOT_BYTES, ReadyBits::heap(64)).unwrap());
        let mut taken = Vec::new();
        let shares: Vec<usize> = (0..10)
            .map(|lane| {
                let before = taken.len();
                while let Some(slot) = slots.take(lane, taken.len() - before) {
                    taken.push(slot);
                }
                taken.len() - before
            })
            .collect();
        assert_eq!(shares, [4, 3, 2, 2, 1, 1, 1, 1, 1, 0], "nine lanes have all there is");
        drop(taken);
        assert_eq!(slots.lock().free.len(), 16);
    }

    #[test]
    fn who_has_found_none_is_marked_when_there_is_one() {
        let ready = ReadyBits::heap(64);
        let slots = Arc::new(Slots::new(2 * SLOT_BYTES, ready.clone()).unwrap());
        let one = slots.take(3, 0).unwrap();
        assert!(slots.take(3, 1).is_none(), "the other one is for others");
        ready.take_each(|_| panic!("nothing has come back"));
        let two = slots.take(4, 0).unwrap();
        assert_ne!(one.offset(), two.offset());
        assert!(slots.take(5, 0).is_none() && slots.take(5, 0).is_none());
        assert!(ready.is_empty_below(64));
        let offset = one.offset();
        drop(one);
        let mut marked = Vec::new();
        ready.take_each(|peer_index| marked.push(peer_index));
        assert_eq!(marked, [3, 5]);
        assert_eq!(slots.take(5, 0).unwrap().offset(), offset);
        two.withhold();
        let again = slots.take(5, 0).unwrap();
        assert_eq!(again.offset(), offset);
        assert!(slots.take(5, 0).is_none(), "the other one is nobody's");
    }
}
