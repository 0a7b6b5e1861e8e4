//! The lives of requests on a device, as their scheduler reports them, and the swaps of their blocks.
//!
//! A scheduler reports what it does; the [`Verdict`] says what becomes of an index that somebody keeps of its requests. A removal is in
//! every subscriber's queue before the report returns that causes it, so the order is *report, then free*.
//!
//! Swaps are transfers between two pools of one engine, either of which may be in the memory of a device, by the session of the engine with
//! itself. Whoever begins one keeps its own handles of the blocks; the swap has further ones, and lets them go when nothing of it can
//! land any more, however it ends. So blocks that are dropped in the middle of a swap are free when that is safe, and not before.
//!
//! ```
//! use std::time::Duration;
//!
//! use penstock::flows::{LifecycleSpec, RequestId, SchedulerReport, SwapWay, Verdict, block_refs};
//! use penstock::{Config, Engine, PoolSpec, Rights};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = std::env::temp_dir().join(format!("penstock-doc-lives-{}", std::process::id()));
//! let soon = Duration::from_secs(5);
//! let engine = Engine::start(Config::default().named("decode-0").directory(&folder))?;
//! let host = engine.pool(PoolSpec::host(1 << 20).block(4096).label("host"))?;
//! // Where there is a GPU: `engine.device_pool(…)`.
//! let device = engine.pool(PoolSpec::host(1 << 20).block(4096).label("device").rights(Rights::READ_WRITE))?;
//! let lives = engine.lifecycle(LifecycleSpec::between(&host, &device))?;
//! let index = lives.removals(1024)?;
//!
//! let request = RequestId::new("cmpl-7")?;
//! let life = lives.open(&request, 1)?;
//! let blocks = device.take(2)?;
//! blocks.window(0).unwrap().write_from(0, b"keys and values")?;
//! lives.report(&request, life, &SchedulerReport::Allocated { fresh: block_refs(&blocks), cached: vec![] })?;
//! lives.report(&request, life, &SchedulerReport::Active)?;
//!
//! // It has to make room: out, and in again into other blocks.
//! let there = host.take(2)?;
//! let swap = lives.swap(SwapWay::Out, (&request, life), &blocks, &there, soon)?;
//! swap.wait(soon)??;
//! swap.commit()?;
//! drop(blocks);
//! let blocks = device.take(2)?;
//! let swap = lives.swap(SwapWay::In, (&request, life), &blocks, &there, soon)?;
//! swap.wait(soon)??;
//! swap.commit()?;
//! let mut found = [0; 15];
//! blocks.window(0).unwrap().read_into(0, &mut found)?;
//! assert_eq!(&found, b"keys and values");
//!
//! // Told first, freed then.
//! assert_eq!(lives.report(&request, life, &SchedulerReport::Aborted)?, Verdict::Remove);
//! let mut removed = Vec::new();
//! index.take(&mut removed)?;
//! assert_eq!(removed[0].request, request);
//! drop(blocks);
//! # drop((swap, lives, device, there, host, engine));
//! # std::fs::remove_dir_all(&folder)?;
//! # Ok(())
//! # }
//! ```

use std::sync::Arc;
use std::time::Duration;

use penstock_core::config::TransportName;
use penstock_core::{Cause, Direction, Env, Rights, Timestamp};
use penstock_flows::action::RegionRef;
use penstock_flows::geometry::{ShardStripe, clash_of};
pub use penstock_flows::lifecycle::{
    BlockRef, DeferSite, Deferral, Evicted, Eviction, Lag, LifecycleSettings, Removed, Request, SchedulerReport,
    SubscribeError, Subscriber, SwapWay, TrackerMetrics, Verdict,
};
use penstock_flows::lifecycle::{Lifecycle as Lives, LifecycleError, SwapPath};
use penstock_flows::manager::{DeviceKey, TransferManager};
use penstock_memory::{BlockAllocator, Blocks};
use penstock_session::RequestId;

use super::swap::Swap;
use super::{FlowError, ForeignMemory};
use crate::engine::Engine;
use crate::engine_inner::EngineInner;
use crate::manager::key_of;
use crate::peer::Peer;
use crate::plan::PlanBuilder;
use crate::region::LocalRegion;

/// How long the session with oneself may take to stand.
const MEET_WITHIN: Duration = Duration::from_secs(5);

/// These blocks in this use of them, as reports name them.
pub fn block_refs(blocks: &Blocks) -> Vec<BlockRef> {
    blocks.ids().map(|id| BlockRef { index: id.index, generation: id.generation }).collect()
}

/// Between which memory requests are swapped, and how much is tracked.
pub struct LifecycleSpec<'a, E: Env> {
    host: &'a LocalRegion<E>,
    device: &'a LocalRegion<E>,
    block_bytes: u64,
    layers: Vec<(u64, u64)>,
    settings: LifecycleSettings,
}

impl<'a, E: Env> LifecycleSpec<'a, E> {
    /// Blocks of the host's pool and of the device's; both have blocks of the same size. Either is a [`Pool`](crate::Pool) or a
    /// [`DevicePool`](crate::DevicePool). Swaps reach the device's as a peer would, so it is made with [`Rights::READ_WRITE`].
    pub fn between(host: &'a LocalRegion<E>, device: &'a LocalRegion<E>) -> Self {
        let blocks = device.region.blocks().map_or(0, |pool| pool.total());
        let settings = LifecycleSettings { blocks, ..LifecycleSettings::default() };
        let block_bytes = host.region.blocks().map_or(0, |pool| pool.block_bytes());
        Self { host, device, block_bytes, layers: vec![(0, 0)], settings }
    }

    /// Where block 0 of each layer begins, of the host and of the device, and the bytes of a layer of a block; where nothing is said a
    /// block lies in one piece. All layers of a block have to lie where its pool has the block: one layer behind the other is refused
    /// ([`ForeignMemory::Layers`]).
    #[must_use]
    pub fn layers(mut self, bases: &[(u64, u64)], bytes: u64) -> Self {
        (self.layers, self.block_bytes) = (bases.to_vec(), bytes);
        self
    }

    /// How much is tracked, and how long a swap that was stopped may take until its blocks are quarantined.
    #[must_use]
    pub fn settings(mut self, settings: LifecycleSettings) -> Self {
        self.settings = settings;
        self
    }
}

/// The lives of the requests of one device. Dropped with its swaps, it is forgotten once nothing of them can land any more.
pub struct Lifecycle<E: Env> {
    pub(super) inner: Arc<LifecycleInner<E>>,
}

/// Fields end in this order.
pub(super) struct LifecycleInner<E: Env> {
    pub(super) engine: Arc<EngineInner<E>>,
    pub(super) key: DeviceKey,
    path: SwapPath,
    host: LocalRegion<E>,
    device: LocalRegion<E>,
}

impl<E: Env> Engine<E> {
    /// Tracks the requests of a device, and swaps their blocks.
    pub fn lifecycle(&self, spec: LifecycleSpec<'_, E>) -> Result<Lifecycle<E>, FlowError> {
        let shared = &self.engine.shared;
        shared.check_usable().map_err(FlowError::Engine)?;
        let LifecycleSpec { host, device, block_bytes, layers, settings } = spec;
        for region in [host, device] {
            if !Arc::ptr_eq(&region.engine, &self.engine) {
                return Err(ForeignMemory::Pool { label: region.label().to_owned() }.into());
            }
        }
        if device.rights() != Rights::READ_WRITE {
            return Err(ForeignMemory::Rights { label: device.label().to_owned() }.into());
        }
        let (ours, theirs) = (blocks_of(host)?, blocks_of(device)?);
        let strides = (ours.block_bytes(), theirs.block_bytes());
        if strides.0 != strides.1 {
            return Err(ForeignMemory::BlockBytes { here: strides.0, there: strides.1 }.into());
        }
        for (region, pool, bases) in [
            (host, ours, layers.iter().map(|(host, _)| *host).collect::<Vec<_>>()),
            (device, theirs, layers.iter().map(|(_, device)| *device).collect()),
        ] {
            let whole = stripes_of(pool, pool.block_bytes(), &[0]);
            if clash_of(&whole, &stripes_of(pool, block_bytes, &bases)).is_some() {
                return Err(ForeignMemory::Layers { label: region.label().to_owned() }.into());
            }
        }
        let oneself = self.session_with_oneself()?;
        let peer = key_of(&oneself.state);
        let [host_at, device_at] = [host, device]
            .map(|region| RegionRef { region: region.region.id(), generation: region.region.generation() });
        // Pools that devices reach are pinned when the first plan is built, and that takes its time: here, and not in the control thread.
        if let Some(entry) = oneself.state.entry_of(device_at.region, device_at.generation) {
            let plan = PlanBuilder::new(Direction::Write).between_parts(shared, &host.region, &oneself.state, &entry);
            plan.blocks(&[(0, 0)]).build().map_err(|why| FlowError::NoWay { why: why.to_string() })?;
        }
        let path = SwapPath { peer, host: host_at, device: device_at, block_bytes, strides, layers };
        let key = shared.call_manager(|manager, _| manager.open_device(settings))?;
        let (engine, host, device) = (Arc::clone(&self.engine), host.clone(), device.clone());
        Ok(Lifecycle { inner: Arc::new(LifecycleInner { engine, key, path, host, device }) })
    }

    /// The session with oneself, in which both pools are announced.
    fn session_with_oneself(&self) -> Result<Peer<E>, FlowError> {
        let no_session = |why: String| FlowError::Oneself { why };
        if !self.engine.shared.config.transports.allow.contains(&TransportName::Local) {
            return Err(no_session("add it to `transports.allow`".to_owned()));
        }
        let connected = self.connect(&self.descriptor(), MEET_WITHIN);
        let peer = connected.map_err(|error| no_session(error.to_string()))?;
        peer.refresh(MEET_WITHIN).map_err(|cause| no_session(cause.to_string()))?;
        Ok(peer)
    }
}

/// What hands out the blocks of a pool.
fn blocks_of<E: Env>(region: &LocalRegion<E>) -> Result<&Arc<BlockAllocator>, FlowError> {
    region.region.blocks().ok_or_else(|| ForeignMemory::NoPool { label: region.label().to_owned() }.into())
}

/// Blocks of a pool, one each as many bytes as the pool has it, of which so many lie behind each of these bases.
fn stripes_of(pool: &BlockAllocator, len: u64, bases: &[u64]) -> Vec<ShardStripe> {
    let (stride, blocks) = (pool.block_bytes(), pool.total());
    bases.iter().map(|&base| ShardStripe { base, stride, len, blocks }).collect()
}

impl<E: Env> LifecycleInner<E> {
    pub(super) fn call<R>(
        &self,
        call: impl FnOnce(&mut TransferManager, DeviceKey, Timestamp) -> R,
    ) -> Result<R, FlowError> {
        let shared = &self.engine.shared;
        shared.check_usable().map_err(FlowError::Engine)?;
        Ok(shared.call_manager(|manager, now| call(manager, self.key, now)))
    }

    /// What the device's blocks are taken from.
    pub(super) fn device_pool(&self) -> &Arc<BlockAllocator> {
        blocks_of(&self.device).expect("it was one when this was made, and stays one")
    }

    /// Refuses a swap where a layout means other bytes by the host's blocks than the swap does.
    fn check_numbers(&self) -> Result<(), FlowError> {
        let SwapPath { host, block_bytes, layers, .. } = &self.path;
        let bases: Vec<u64> = layers.iter().map(|(base, _)| *base).collect();
        let stripes = stripes_of(blocks_of(&self.host)?, *block_bytes, &bases);
        let other =
            self.engine.shared.look_at_manager(|manager| manager.layout_otherwise(*host, &stripes).map(str::to_owned));
        match other {
            Some(layout) => Err(ForeignMemory::OtherNumbers { label: self.host.label().to_owned(), layout }.into()),
            None => Ok(()),
        }
    }

    fn lives<R>(&self, call: impl FnOnce(&mut Lives, Timestamp) -> Result<R, LifecycleError>) -> Result<R, FlowError> {
        Ok(self.call(|manager, key, now| manager.call_device(key, |lives| call(lives, now)))??)
    }

    fn look<R>(&self, look: impl FnOnce(&Lives) -> R) -> Result<R, FlowError> {
        let shared = &self.engine.shared;
        shared.check_usable().map_err(FlowError::Engine)?;
        let looked = shared.look_at_manager(|manager| manager.device(self.key).map(look));
        Ok(looked.ok_or(LifecycleError::NoDevice)?)
    }
}

impl<E: Env> Drop for LifecycleInner<E> {
    fn drop(&mut self) {
        if !self.engine.shared.is_inherited() {
            self.engine.shared.call_manager(|manager, now| manager.release_device(self.key, now));
        }
    }
}

impl<E: Env> Lifecycle<E> {
    /// Begins a life of a request of so many sequences, numbered from 0. Answers its generation, under which it is reported.
    pub fn open(&self, request: &RequestId, sequences: u32) -> Result<u64, FlowError> {
        self.inner.lives(|lives, _| lives.tracker_mut().open(request.clone(), sequences))
    }

    /// Takes in what a scheduler says. When this answers [`Verdict::Remove`], every subscriber has been told: free what the request had
    /// after that, and not before.
    pub fn report(&self, request: &RequestId, life: u64, report: &SchedulerReport) -> Result<Verdict, FlowError> {
        self.inner.lives(|lives, now| lives.report(request, life, report, now))
    }

    /// The state that a request is in.
    pub fn state(&self, request: &RequestId, life: u64) -> Result<Request, FlowError> {
        Ok(self.inner.look(|lives| lives.tracker().state(request, life))??)
    }

    /// Blocks of the device that a request has now.
    pub fn device_blocks(&self, request: &RequestId, life: u64) -> Result<Vec<BlockRef>, FlowError> {
        self.inner.look(|lives| lives.tracker().device_blocks(request, life).to_vec())
    }

    /// Frees that are put off, by the generation of their requests.
    pub fn deferred(&self) -> Result<Vec<Deferral>, FlowError> {
        self.inner.look(|lives| lives.tracker().deferred().collect())
    }

    /// How many live, and what became of the others.
    pub fn metrics(&self) -> Result<TrackerMetrics, FlowError> {
        self.inner.look(|lives| lives.tracker().metrics())
    }

    /// Swaps under way, and how many of them are quarantined.
    pub fn swaps(&self) -> Result<(usize, usize), FlowError> {
        self.inner.look(Lives::swaps)
    }

    /// Begins to move a request's blocks, of the device and of the host in pairs, and reports that to the request. Out, the device's
    /// blocks are all that the request has, in whatever order; in, they are fresh, as many as went out, and the host's are those that went
    /// out to, still held. A part of them is refused ([`LifecycleError::PartOfRequest`]). Of a request that was allocated in several steps, or
    /// shares blocks with others, one handle of all is made by [`Blocks::chain`].
    pub fn swap(
        &self,
        way: SwapWay,
        request: (&RequestId, u64),
        device: &Blocks,
        host: &Blocks,
        timeout: Duration,
    ) -> Result<Swap<E>, FlowError> {
        let LifecycleInner { engine, path, host: ours, device: theirs, .. } = &*self.inner;
        engine.shared.check_usable().map_err(FlowError::Engine)?;
        for (blocks, pool) in [(device, theirs), (host, ours)] {
            if !Arc::ptr_eq(blocks.allocator(), blocks_of(pool)?) {
                return Err(ForeignMemory::Blocks { label: pool.label().to_owned() }.into());
            }
        }
        if device.len() != host.len() {
            return Err(ForeignMemory::Pairs { device: device.len(), host: host.len() }.into());
        }
        self.inner.check_numbers()?;
        Swap::begin(&self.inner, way, request, (device, host), path, timeout)
    }

    /// A block cannot be found by this hash any more. Answers whether it could be.
    pub fn evict(&self, hash: u64, block: BlockRef, why: Eviction) -> Result<bool, FlowError> {
        self.inner.lives(|lives, _| Ok(lives.tracker_mut().evict(hash, block, why)))
    }

    /// Is told of requests that end, in a queue of so many notices.
    pub fn removals(&self, most: usize) -> Result<Removals<E>, FlowError> {
        let who = self.inner.lives(|lives, _| Ok(lives.tracker_mut().subscribe_removals(most)))??;
        Ok(Removals { inner: Arc::clone(&self.inner), who })
    }

    /// Is told of blocks that can be found no more, in a queue of so many notices.
    pub fn evictions(&self, most: usize) -> Result<Evictions<E>, FlowError> {
        let who = self.inner.lives(|lives, _| Ok(lives.tracker_mut().subscribe_evictions(most)))??;
        Ok(Evictions { inner: Arc::clone(&self.inner), who })
    }
}

/// Requests that end. A queue that was full says how much it has lost, and gives nothing more before [`Removals::resync`].
pub struct Removals<E: Env> {
    inner: Arc<LifecycleInner<E>>,
    who: Subscriber,
}

impl<E: Env> Removals<E> {
    /// Adds what has come.
    pub fn take(&self, out: &mut Vec<Removed>) -> Result<Lag, FlowError> {
        Ok(self.inner.lives(|lives, _| Ok(lives.tracker_mut().take_removals(self.who, out)))??)
    }

    /// All that live now, with their generation: whatever is not among them has ended. Removals after this moment are told again.
    pub fn resync(&self) -> Result<Vec<(RequestId, u64)>, FlowError> {
        Ok(self.inner.lives(|lives, _| Ok(lives.tracker_mut().resync_removals(self.who)))??)
    }
}

impl<E: Env> Drop for Removals<E> {
    fn drop(&mut self) {
        // In vain if there is nothing to subscribe to any more.
        let _ = self.inner.lives(|lives, _| {
            lives.tracker_mut().unsubscribe_removals(self.who);
            Ok(())
        });
    }
}

/// Blocks that can be found no more. A queue that was full says how much it has lost, and gives nothing more before
/// [`Evictions::resync`].
pub struct Evictions<E: Env> {
    inner: Arc<LifecycleInner<E>>,
    who: Subscriber,
}

impl<E: Env> Evictions<E> {
    /// Adds what has come.
    pub fn take(&self, out: &mut Vec<Evicted>) -> Result<Lag, FlowError> {
        Ok(self.inner.lives(|lives, _| Ok(lives.tracker_mut().take_evictions(self.who, out)))??)
    }

    /// All blocks that can be found now, by their hash. Evictions after this moment are told again.
    pub fn resync(&self) -> Result<Vec<(u64, BlockRef)>, FlowError> {
        Ok(self.inner.lives(|lives, _| Ok(lives.tracker_mut().resync_evictions(self.who)))??)
    }
}

impl<E: Env> Drop for Evictions<E> {
    fn drop(&mut self) {
        // In vain if there is nothing to subscribe to any more.
        let _ = self.inner.lives(|lives, _| {
            lives.tracker_mut().unsubscribe_evictions(self.who);
            Ok(())
        });
    }
}

impl From<LifecycleError> for FlowError {
    fn from(error: LifecycleError) -> Self {
        match error {
            LifecycleError::NoDevice => Self::Engine(Cause::EngineClosed),
            other => Self::Lifecycle(Box::new(other)),
        }
    }
}
