//! Memory between devices and what carries a session, in slots of one post each.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use penstock_core::Rights;
use penstock_core::limits::UNIT_BYTES;
use penstock_core::plan::RegionKey;
use penstock_memory::{Memory, Pool, PoolSpec, Region, Registry};

use crate::host::EngineSegments;
use crate::remote::RemoteMemory;

/// What one post carries at most.
pub(super) const SLOT_BYTES: u64 = UNIT_BYTES;

/// A lane leaves so many times as much as it has, so that a dozen slow ones leave something, and all lanes of a session together as much as they have.
const LEAVES: usize = 4;

/// Whether nothing of a session reaches this engine's memory any more.
pub type IsOver = Arc<dyn Fn() -> bool + Send + Sync>;

/// The slots for one direction: of one worker, or for peers.
pub(super) struct Slots {
    /// All of them, as each side of a copy names it.
    pub(super) memory: Memory,
    pub(super) mapped: RemoteMemory,
    pub(super) key: RegionKey,
    pub(super) region: Arc<Region>,
    state: Mutex<State>,
    segments: Arc<EngineSegments>,
}

#[derive(Default)]
struct State {
    free: Vec<u32>,
    /// How many each session has, by the index of its peer.
    held: Vec<usize>,
    /// Lanes that have found none: worker, and index of the peer.
    without: Vec<(usize, u32)>,
    /// Those of sessions that have ended, whose peers may write into them until nothing of the session reaches this engine any more.
    left: Vec<(IsOver, Vec<u32>)>,
}

impl State {
    /// Whether a lane of this session that has so many gets one more.
    fn may_take(&self, peer_index: u32, has: usize) -> bool {
        let held = self.held.get(peer_index as usize).copied().unwrap_or(0);
        LEAVES * has < self.free.len() && held < self.free.len()
    }

    /// Those of sessions that are over by now are free. Returns whether there were any.
    fn take_back_left(&mut self) -> bool {
        let Self { free, left, .. } = self;
        let before = free.len();
        left.retain(|(is_over, slots)| {
            let stays = !is_over();
            free.extend(slots.iter().filter(|_| !stays));
            stays
        });
        free.len() > before
    }
}

impl Slots {
    /// As many as these bytes hold, at least one. Peers may do with them what these rights say.
    pub(super) fn new(
        bytes: u64,
        rights: Rights,
        registry: &Registry,
        segments: &Arc<EngineSegments>,
    ) -> Result<Self, String> {
        let count = (bytes / SLOT_BYTES).max(1);
        let spec = PoolSpec::host(count * SLOT_BYTES).label("staging memory").rights(rights);
        let pool = Pool::create(spec).map_err(|error| error.to_string())?;
        let region = registry.register_staging(Arc::new(pool)).map_err(|error| error.to_string())?;
        Ok(Self::over(region, count as u32, segments))
    }

    fn over(region: Arc<Region>, count: u32, segments: &Arc<EngineSegments>) -> Self {
        let memory = region.memory().clone();
        let mapped = region.host().expect("it is a pool of host memory").clone().into();
        let key = RegionKey { region: region.id(), generation: region.generation() };
        let state = State { free: (0..count).collect(), without: Vec::with_capacity(8), ..State::default() };
        Self { memory, mapped, key, region, state: Mutex::new(state), segments: Arc::clone(segments) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A slot for a worker's lane that has so many; none: that lane is marked ready when one comes back. A lane gets no more than a part of what
    /// it leaves, so that a peer that is slow does not keep the others from theirs.
    pub(super) fn take(self: &Arc<Self>, (worker, peer_index): (usize, u32), has: usize) -> Option<StagingSlot> {
        let mut state = self.lock();
        if !state.may_take(peer_index, has) && state.take_back_left() {
            self.wake(&mut state);
        }
        if !state.may_take(peer_index, has) {
            if !state.without.contains(&(worker, peer_index)) {
                state.without.push((worker, peer_index));
            }
            return None;
        }
        let place = state.free.pop()?;
        let index = peer_index as usize;
        if state.held.len() <= index {
            state.held.resize(index + 1, 0);
        }
        state.held[index] += 1;
        Some(StagingSlot { slots: Some(Arc::clone(self)), peer_index, place })
    }

    /// Marks all lanes ready that have found none.
    fn wake(&self, state: &mut State) {
        let segments = &self.segments;
        for (worker, peer_index) in state.without.drain(..) {
            segments.ringer(1 + worker).mark_and_ring(&segments.mailbox.view().ready(worker), peer_index as usize);
        }
    }

    /// Takes back what peers had whose sessions are over by now. Returns whether there is more, of sessions that are not.
    pub(super) fn take_back_left(&self) -> bool {
        let mut state = self.lock();
        if state.take_back_left() {
            self.wake(&mut state);
        }
        !state.left.is_empty()
    }

    /// Whether somebody has found none, and waits.
    pub(super) fn are_wanted(&self) -> bool {
        !self.lock().without.is_empty()
    }

    /// The session of a peer that had these has ended.
    pub(super) fn leave(&self, slots: impl Iterator<Item = StagingSlot>, is_over: &IsOver) {
        let slots: Vec<u32> = slots.map(StagingSlot::keep).collect();
        if !slots.is_empty() {
            self.lock().left.push((Arc::clone(is_over), slots));
        }
    }
}

/// A slot that somebody has. It is given back when this is dropped: nothing may touch it any more then.
pub(super) struct StagingSlot {
    /// None: it is not given back.
    slots: Option<Arc<Slots>>,
    /// Whose session has it.
    peer_index: u32,
    place: u32,
}

impl StagingSlot {
    /// Where it begins among all.
    pub(super) fn offset(&self) -> u64 {
        u64::from(self.place) * SLOT_BYTES
    }

    /// Its number among all.
    pub(super) fn place(&self) -> u32 {
        self.place
    }

    /// A device that has failed may write to it for as long as it likes: nobody gets it again, and its memory stays.
    pub(super) fn withhold(self) {
        // For good, with its memory.
        std::mem::forget(self.slots.clone());
        self.keep();
    }

    /// It is not its session's any more, and not free. Answers its number.
    fn keep(mut self) -> u32 {
        if let Some(slots) = self.slots.take() {
            slots.lock().held[self.peer_index as usize] -= 1;
        }
        self.place
    }
}

impl Drop for StagingSlot {
    fn drop(&mut self) {
        let Some(slots) = &self.slots else { return };
        let mut state = slots.lock();
        state.free.push(self.place);
        state.held[self.peer_index as usize] -= 1;
        slots.wake(&mut state);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn slots(count: u64) -> Arc<Slots> {
        let segments = EngineSegments::create(16).unwrap();
        Arc::new(Slots::new(count * SLOT_BYTES, Rights::NONE, &Registry::new(), &segments).unwrap())
    }

    #[test]
    fn lanes_that_give_nothing_back_leave_some_to_others() {
        let slots = slots(16);
        let mut taken = Vec::new();
        let shares: Vec<usize> = (0..10)
            .map(|lane| {
                let before = taken.len();
                while let Some(slot) = slots.take((0, lane), taken.len() - before) {
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
    fn a_session_of_many_workers_leaves_as_much_as_it_has() {
        let slots = slots(256);
        let mut taken = Vec::new();
        let mut take_all = |peer_index: u32, workers: usize| {
            let before = taken.len();
            for worker in 0..workers {
                let first = taken.len();
                while let Some(slot) = slots.take((worker, peer_index), taken.len() - first) {
                    taken.push(slot);
                }
            }
            taken.len() - before
        };
        assert_eq!([take_all(3, 16), take_all(3, 16), take_all(1, 1), take_all(2, 16)], [128, 0, 26, 51]);
        assert_eq!(slots.lock().held, [0, 26, 51, 128]);
        // Of those that stay with a device, or with a peer whose session has ended, the next one with that index has none.
        taken.pop().unwrap().withhold();
        slots.leave(taken.drain(..100), &(Arc::new(|| false) as IsOver));
        assert_eq!(slots.lock().held, [0, 26, 50, 28]);
        drop(taken);
        let state = slots.lock();
        assert_eq!((&state.held[..], state.free.len()), (&[0; 4][..], 155));
    }

    #[test]
    fn who_has_found_none_is_marked_when_there_is_one() {
        let slots = slots(2);
        let ready = slots.segments.mailbox.view().ready(0);
        let one = slots.take((0, 3), 0).unwrap();
        assert!(slots.take((0, 3), 1).is_none(), "the other one is for others");
        ready.take_each(|_| panic!("nothing has come back"));
        let two = slots.take((0, 4), 0).unwrap();
        assert_ne!(one.offset(), two.offset());
        assert!(slots.take((0, 5), 0).is_none() && slots.take((0, 5), 0).is_none());
        assert!(ready.is_empty_below(64));
        let offset = one.offset();
        drop(one);
        let mut marked = Vec::new();
        ready.take_each(|peer_index| marked.push(peer_index));
        assert_eq!(marked, [3, 5]);
        assert_eq!(slots.take((0, 5), 0).unwrap().offset(), offset);
        two.withhold();
        let again = slots.take((0, 5), 0).unwrap();
        assert_eq!(again.offset(), offset);
        assert!(slots.take((0, 5), 0).is_none(), "the other one is nobody's");
    }

    #[test]
    fn slots_of_a_peer_are_nobody_else_s_until_its_session_is_over() {
        let (slots, over) = (slots(2), Arc::new(AtomicBool::new(false)));
        let seen = Arc::clone(&over);
        let is_over: IsOver = Arc::new(move || seen.load(Ordering::Relaxed));
        let one = slots.take((0, 1), 0).unwrap();
        slots.leave([one].into_iter(), &is_over);
        let _two = slots.take((0, 2), 0).unwrap();
        assert!(slots.take((0, 3), 0).is_none());
        assert!(slots.take_back_left(), "there is one to be looked at again");
        let ready = slots.segments.mailbox.view().ready(0);
        assert!(ready.is_empty_below(64));
        over.store(true, Ordering::Relaxed);
        assert!(!slots.take_back_left());
        let mut marked = Vec::new();
        ready.take_each(|peer_index| marked.push(peer_index));
        assert_eq!(marked, [3], "it has found none before");
        assert!(slots.take((0, 3), 0).is_some());
    }
}
