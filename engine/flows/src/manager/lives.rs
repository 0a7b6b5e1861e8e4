//! Lives of requests and the swaps of their blocks, as the transfer manager keeps them.
//!
//! Each device has a [`Lifecycle`] of its own. Its moves and watches have numbers that no other part of the transfer manager has, so what becomes of
//! them finds its way back. What became of a swap is kept until its handle is let go.

use std::collections::{BTreeMap, VecDeque};

use penstock_core::{Cause, Timestamp};
use penstock_session::RequestId;

use super::TransferManager;
use super::book::ground::Ground;
use super::book::{Book, PageId, Writer};
use super::names::{self, IdPart};
use crate::action::Action;
use crate::event::Event;
use crate::geometry::ShardStripe;
use crate::lifecycle::{self, Lifecycle, LifecycleError, Swap, SwapAsk, SwapKey, SwapNews, SwapWay};

/// The most devices whose requests one engine tracks.
pub const DEVICES_MAX: usize = 64;
/// Bits that the names of one device's swaps have for themselves.
const NUMBER_BITS: u32 = 40;
/// Devices that one engine can track in its life.
const DEVICES_EVER: u64 = 1 << 20;

/// The lives of one device's requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceKey(u64);

/// Why a swap has not brought its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SwapFailed {
    /// Bytes could not be moved; the request is where it was before.
    #[error("the swap's bytes could not be moved: {0}; the request is where it was before")]
    Moving(Cause),
    /// It took too long: the request has dropped its bytes, and computes them again.
    #[error("the swap took too long and was stopped; the request is dropped, and has to be computed again")]
    TimedOut,
    /// It was rolled back, or its request has ended.
    #[error("the swap was rolled back, or its request has ended")]
    RolledBack,
}

/// How far a swap is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwapStatus {
    /// Its state.
    pub state: Swap,
    /// Why it has not brought its bytes, if that is so.
    pub failed: Option<SwapFailed>,
}

impl SwapStatus {
    /// Whether nothing of it can land any more, and its blocks were let go.
    pub fn is_over(&self) -> bool {
        self.state.is_end()
    }
}

/// A swap as its handle sees it.
#[derive(Debug)]
struct Seen {
    failed: Option<SwapFailed>,
    /// How it ended, if it has.
    end: Option<Swap>,
    /// Nobody will ask for it any more.
    is_released: bool,
    /// The blocks of the host that it reads or writes, as long as it may.
    host: Option<HostBlocks>,
}

/// Blocks of the host that a swap is at.
#[derive(Debug)]
struct HostBlocks {
    page: PageId,
    way: SwapWay,
    blocks: Vec<u32>,
}

impl HostBlocks {
    fn note(&self, book: &mut Book) {
        let blocks = self.blocks.iter().copied();
        match self.way {
            SwapWay::Out => book.write(self.page, blocks, Writer::Swap),
            SwapWay::In => book.read(self.page, blocks),
        }
    }

    /// Nothing of the swap is there any more.
    fn let_go(self, book: &mut Book) {
        let blocks = self.blocks.into_iter();
        match self.way {
            SwapWay::Out => book.written(self.page, blocks),
            SwapWay::In => book.read_no_more(self.page, blocks),
        }
        book.leave(self.page);
    }
}

/// One device.
struct Device {
    lifecycle: Lifecycle,
    swaps: BTreeMap<SwapKey, Seen>,
    swaps_most: usize,
    is_released: bool,
}

/// All devices.
#[derive(Default)]
pub(super) struct Lives {
    devices: BTreeMap<DeviceKey, Device>,
    last: u64,
}

impl std::fmt::Debug for Lives {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lives").field("devices", &self.devices.len()).finish_non_exhaustive()
    }
}

impl Device {
    /// Takes what a call or an event has brought about.
    fn drain(&mut self, actions: &mut VecDeque<Action>, book: &mut Book) {
        while let Some(news) = self.lifecycle.next_news() {
            let (SwapNews::Moved { key }
            | SwapNews::Failed { key, .. }
            | SwapNews::TimedOut { key }
            | SwapNews::Quarantined { key }
            | SwapNews::Over { key, .. }) = news;
            let Some(seen) = self.swaps.get_mut(&key) else { continue };
            match news {
                SwapNews::Failed { cause, .. } => seen.failed = Some(SwapFailed::Moving(cause)),
                SwapNews::TimedOut { .. } => seen.failed = Some(SwapFailed::TimedOut),
                SwapNews::Over { kept, .. } => {
                    seen.failed = seen.failed.or(Some(SwapFailed::RolledBack));
                    seen.end = Some(Swap::RolledBack);
                    seen.host.take().into_iter().for_each(|host| host.let_go(book));
                    // Whoever began the swap has these blocks besides.
                    actions.extend(kept.map(|ticket| Action::Free { ticket }));
                    if seen.is_released {
                        self.swaps.remove(&key);
                    }
                }
                SwapNews::Moved { .. } | SwapNews::Quarantined { .. } => {}
            }
        }
        actions.extend(std::iter::from_fn(|| self.lifecycle.poll_action()));
    }

    fn status(&self, key: SwapKey) -> Option<SwapStatus> {
        let seen = self.swaps.get(&key)?;
        let state = seen.end.or_else(|| self.lifecycle.swap_state(key))?;
        Some(SwapStatus { state, failed: seen.failed })
    }
}

impl Lives {
    /// The device that this name of a move or a watch belongs to.
    fn of_name(&self, id: u64) -> Option<DeviceKey> {
        let key = DeviceKey(names::rest(id) >> NUMBER_BITS);
        self.devices.contains_key(&key).then_some(key)
    }

    pub(super) fn deadline(&self) -> Timestamp {
        self.devices.values().filter_map(|device| device.lifecycle.deadline()).min().unwrap_or(Timestamp::NEVER)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.devices.is_empty()
    }

    /// Swaps under way, and how many of them are quarantined.
    pub(super) fn swaps(&self) -> (usize, usize) {
        let counts = self.devices.values().map(|device| device.lifecycle.swaps());
        counts.fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1))
    }
}

impl TransferManager {
    /// Begins to track the requests of a device.
    pub fn open_device(&mut self, settings: lifecycle::LifecycleSettings) -> Result<DeviceKey, LifecycleError> {
        let lives = &mut self.lives;
        if lives.devices.len() >= DEVICES_MAX || lives.last >= DEVICES_EVER {
            return Err(LifecycleError::TooManyDevices { most: DEVICES_MAX });
        }
        lives.last += 1;
        let key = DeviceKey(lives.last);
        let lifecycle = Lifecycle::new(settings, names::first(IdPart::Lives) + (key.0 << NUMBER_BITS));
        let swaps_most = settings.swaps;
        lives.devices.insert(key, Device { lifecycle, swaps: BTreeMap::new(), swaps_most, is_released: false });
        Ok(key)
    }

    /// Nobody reports any more. What is under way is stopped, and the device is forgotten when that is over.
    pub fn release_device(&mut self, key: DeviceKey, now: Timestamp) {
        let Some(device) = self.lives.devices.get_mut(&key) else { return };
        device.is_released = true;
        let swaps: Vec<SwapKey> = device.swaps.keys().copied().collect();
        swaps.into_iter().for_each(|swap| self.release_swap(key, swap, now));
        self.drain_device(key);
    }

    /// Calls what tracks a device's requests.
    pub fn call_device<R>(
        &mut self,
        key: DeviceKey,
        call: impl FnOnce(&mut Lifecycle) -> Result<R, LifecycleError>,
    ) -> Result<R, LifecycleError> {
        let device = self.lives.devices.get_mut(&key).ok_or(LifecycleError::NoDevice)?;
        let answer = call(&mut device.lifecycle);
        self.drain_device(key);
        answer
    }

    /// Looks at what tracks a device's requests.
    pub fn device(&self, key: DeviceKey) -> Option<&Lifecycle> {
        self.lives.devices.get(&key).map(|device| &device.lifecycle)
    }

    /// Begins a swap, and keeps what becomes of it until [`TransferManager::release_swap`]. Both tickets are let go by [`Action::Free`], whatever
    /// becomes of it. An error takes neither.
    pub fn begin_swap(
        &mut self,
        key: DeviceKey,
        (request, generation): (&RequestId, u64),
        ask: SwapAsk,
        now: Timestamp,
    ) -> Result<SwapKey, LifecycleError> {
        let device = self.lives.devices.get_mut(&key).ok_or(LifecycleError::NoDevice)?;
        if device.swaps.len() >= device.swaps_most {
            return Err(LifecycleError::TooManySwaps { most: device.swaps_most });
        }
        let (path, way) = (&ask.path, ask.way);
        let stripe = |(base, _): &(u64, u64)| ShardStripe {
            base: *base,
            stride: path.strides.0,
            len: path.block_bytes,
            blocks: u32::MAX,
        };
        let ground = Ground::new(path.host, path.layers.iter().map(stripe));
        let blocks: Vec<u32> = ask.pairs.iter().map(|(_, host)| host.index).collect();
        let page = self.book.join(ground);
        let free = match way {
            SwapWay::Out => self.may_write(page, blocks.iter().copied(), None),
            SwapWay::In => self.may_read(page, blocks.iter().copied()),
        };
        let device = self.lives.devices.get_mut(&key).ok_or(LifecycleError::NoDevice)?;
        let begun = free.map_err(|held| LifecycleError::Held(Box::new(held)));
        let begun = begun.and_then(|()| device.lifecycle.swap_begin(request, generation, ask, now));
        let swap = begun.inspect_err(|_| self.book.leave(page))?;
        let host = HostBlocks { page, way, blocks };
        host.note(&mut self.book);
        device.swaps.insert(swap, Seen { failed: None, end: None, is_released: false, host: Some(host) });
        self.drain_device(key);
        Ok(swap)
    }

    /// Goes on with what a swap has written.
    pub fn commit_swap(&mut self, key: DeviceKey, swap: SwapKey, now: Timestamp) -> Result<(), LifecycleError> {
        let device = self.lives.devices.get_mut(&key).ok_or(LifecycleError::NoDevice)?;
        let ticket = device.lifecycle.swap_commit(swap, now)?;
        if let Some(seen) = device.swaps.get_mut(&swap) {
            seen.end = Some(Swap::Committed);
            seen.host.take().into_iter().for_each(|host| host.let_go(&mut self.book));
        }
        self.drain_device(key);
        // Whoever began the swap has these blocks besides.
        self.actions.push_back(Action::Free { ticket });
        Ok(())
    }

    /// Gives a swap up.
    pub fn roll_back_swap(&mut self, key: DeviceKey, swap: SwapKey, now: Timestamp) -> Result<(), LifecycleError> {
        self.call_device(key, |lifecycle| lifecycle.swap_roll_back(swap, now))
    }

    /// How far a swap is, until it is released.
    pub fn swap_status(&self, key: DeviceKey, swap: SwapKey) -> Option<SwapStatus> {
        self.lives.devices.get(&key)?.status(swap)
    }

    /// Nobody will ask for it any more. One that is not over is given up.
    pub fn release_swap(&mut self, key: DeviceKey, swap: SwapKey, now: Timestamp) {
        let Some(device) = self.lives.devices.get_mut(&key) else { return };
        let Some(seen) = device.swaps.get_mut(&swap) else { return };
        seen.is_released = true;
        if seen.end.is_some() {
            device.swaps.remove(&swap);
        } else {
            // One that is over meanwhile says so by its news.
            let _ = device.lifecycle.swap_roll_back(swap, now);
        }
        self.drain_device(key);
    }

    fn drain_device(&mut self, key: DeviceKey) {
        let Some(device) = self.lives.devices.get_mut(&key) else { return };
        let before = self.actions.len();
        device.drain(&mut self.actions, &mut self.book);
        if device.is_released && device.lifecycle.swaps().0 == 0 {
            self.lives.devices.remove(&key);
        }
        if self.actions.len() > before {
            self.tell();
        }
    }

    /// What does not agree with itself of the devices' requests, in words: nothing, unless there is a mistake here.
    pub fn check_lives(&self) -> Result<(), &'static str> {
        self.lives.devices.values().try_for_each(|device| device.lifecycle.check())
    }

    /// Something has become of a move or a watch of a device's.
    pub(super) fn lives_hear(&mut self, id: u64, event: &Event, now: Timestamp) {
        let Some(key) = self.lives.of_name(id) else { return };
        if let Some(device) = self.lives.devices.get_mut(&key) {
            device.lifecycle.handle(event, now);
        }
        self.drain_device(key);
    }

    /// Time has passed.
    pub(super) fn lives_expire(&mut self, now: Timestamp) {
        let due =
            self.lives.devices.iter().filter(|(_, device)| device.lifecycle.deadline().is_some_and(|at| at <= now));
        let due: Vec<DeviceKey> = due.map(|(key, _)| *key).collect();
        for key in due {
            if let Some(device) = self.lives.devices.get_mut(&key) {
                device.lifecycle.expire(now);
            }
            self.drain_device(key);
        }
    }
}

#[cfg(test)]
mod tests;
