//! What is known of the adapters that touch this engine's memory for one session: up to which revision of this engine's log
//! nothing old can land any more.
//!
//! ```text
//! own adapters     each lane's low water: the oldest revision under which anything under way was posted
//! peer's adapters  for each rail of each channel, the newest revision behind which nothing older comes: what the peer's
//!               fence said on that very rail, or what the peer was told when the rail was made new
//! ```

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use penstock_ring::gate::NOTHING;
use penstock_ring::{LowWaterView, ReadyBits};
use penstock_transport::Fence;
use penstock_transport::host::Bell;

use crate::context::FenceObserver;

/// One session's fence. Its words are written by the lanes and read by whoever waits for quiet.
pub(crate) struct LaneFence {
    /// Of each worker's lane.
    own: Vec<LowWaterView>,
    /// Of each rail of each channel, the rails of a channel side by side.
    heard: Vec<AtomicU64>,
    rails: usize,
    /// Rails that have not come so far are to be cut off.
    forced: AtomicU64,
    workers: Vec<FenceWaker>,
    /// A lane is gone whose queues a card has neither made new nor taken back.
    is_unproven: AtomicBool,
}

/// How a worker is told to look at its lane.
pub(crate) struct FenceWaker {
    pub(crate) bell: Bell,
    pub(crate) ready: ReadyBits,
    /// The place of the lane among the worker's.
    pub(crate) peer_index: u32,
}

impl FenceWaker {
    pub(crate) fn wake(&self) {
        self.bell.mark_and_ring(&self.ready, self.peer_index as usize);
    }
}

impl LaneFence {
    /// The fence of a session in which nothing was posted yet, when this engine's log is at `here`: what the peer will post is not
    /// older, because it does not know of older memory.
    pub(crate) fn new(
        own: Vec<LowWaterView>,
        channels: usize,
        rails: usize,
        here: u64,
        workers: Vec<FenceWaker>,
    ) -> Self {
        let heard = (0..channels * rails).map(|_| AtomicU64::new(here)).collect();
        Self { own, heard, rails, forced: AtomicU64::new(0), workers, is_unproven: AtomicBool::new(false) }
    }

    /// Nothing older than this revision comes over a rail any more.
    fn passes(&self, channel: u16, rail: u8, revision: u64) {
        if let Some(word) = self.heard.get(usize::from(channel) * self.rails + usize::from(rail)) {
            // SYNC fence-heard: pairs with rail_has_passed()'s Acquire: what landed before is visible to who sees it.
            word.fetch_max(revision, Ordering::Release);
        }
    }

    /// All of these channels are gone, and nothing of them can touch memory.
    pub(crate) fn ended(&self, channels: impl Iterator<Item = u16>) {
        for channel in channels {
            (0..self.rails).for_each(|rail| self.passes(channel, rail as u8, NOTHING));
        }
    }

    /// These channels are gone, and a card may go on with what they had.
    pub(crate) fn left_unproven(&self) {
        self.is_unproven.store(true, Ordering::Release); // SYNC unproven: pairs with is_unproven()'s Acquire.
    }

    /// Whether nothing older than `revision` can come over this rail.
    pub(crate) fn rail_has_passed(&self, channel: u16, rail: u8, revision: u64) -> bool {
        let word = &self.heard[usize::from(channel) * self.rails + usize::from(rail)];
        word.load(Ordering::Acquire) >= revision // SYNC fence-heard: pairs with heard()'s Release.
    }

    /// Up to which revision who has not passed is to be cut off.
    #[inline]
    pub(crate) fn forced(&self) -> u64 {
        // Relaxed: lanes look again when they are woken, which is behind a barrier.
        self.forced.load(Ordering::Relaxed)
    }

    pub(crate) fn wake_all(&self) {
        self.workers.iter().for_each(FenceWaker::wake);
    }
}

impl Fence for LaneFence {
    fn has_passed(&self, revision: u64) -> bool {
        let heard = |word: &AtomicU64| word.load(Ordering::Acquire) >= revision; // SYNC fence-heard: pairs with heard().
        self.own.iter().all(|own| own.has_passed(revision)) && self.heard.iter().all(heard)
    }

    fn force(&self, revision: u64) {
        if self.forced.fetch_max(revision, Ordering::Relaxed) < revision {
            self.wake_all();
        }
    }

    fn on_withdrawals(&self) {
        self.wake_all();
    }

    fn is_unproven(&self) -> bool {
        self.is_unproven.load(Ordering::Acquire) // SYNC unproven: pairs with left_unproven()'s Release.
    }
}

impl FenceObserver for LaneFence {
    fn heard(&self, channel: u16, rail: u8, revision: u64) {
        self.passes(channel, rail, revision);
    }

    fn reset(&self, channel: u16, rail: u8, revision: u64) {
        // What is posted again is no older: the peer was told the revision with the word of the reset, and looks first.
        self.passes(channel, rail, revision);
    }
}
