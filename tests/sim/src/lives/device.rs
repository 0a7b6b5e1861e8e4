//! The device of an engine: its memory, what is reported of its requests, and who is told.

use std::collections::{BTreeMap, VecDeque};

use penstock::flows::{
    BlockRef, Evicted, Eviction, Evictions, Lag, Lifecycle, LifecycleSettings, LifecycleSpec, Removals, Removed,
    RequestId,
};
use penstock::{BlockId, Blocks, Peer, Pool, PoolSpec, Rights};

use super::book::{Found, Gone, Queue};
use super::content::broken;
use super::spec::Devices;
use crate::env::SimEnv;
use crate::ledger::{Ground, Ledger};
use crate::oracle::{Invariant, Violated};
use crate::world::Node;

/// As many notices as nobody leaves lying who looks after each step.
const PLENTY: usize = 4096;

/// A device. Fields end in this order.
pub struct Device {
    removals: Listeners<Removals<SimEnv>, Gone>,
    evictions: Listeners<Evictions<SimEnv>, Evicted>,
    pub(super) lives: Lifecycle<SimEnv>,
    /// Blocks of requests that are over, as long as others may find them.
    pub(super) cache: VecDeque<(u64, Blocks)>,
    pub(super) found: Found,
    /// Requests that live, and as which life.
    live: BTreeMap<RequestId, u64>,
    epoch: u64,
    ledger: Ledger,
    memory: Pool<SimEnv>,
    oneself: Peer<SimEnv>,
}

/// One who looks after each step, and one who seldom does, each with what it has to be told.
struct Listeners<S, T> {
    prompt: (S, Queue<T>),
    slow: (S, Queue<T>),
}

impl<S, T: Clone> Listeners<S, T> {
    fn told(&mut self, notice: &T) {
        self.prompt.1.push(notice);
        self.slow.1.push(notice);
    }
}

impl Device {
    /// A device with as much memory, whose blocks are swapped with those of this pool.
    pub fn open(node: &Node, host: &Pool<SimEnv>, devices: &Devices) -> Self {
        let bytes = host.memory().block_bytes();
        let spec = PoolSpec::host(u64::from(devices.blocks) * bytes).block(bytes).label("device");
        let memory = node.pool(spec.rights(Rights::READ_WRITE)).expect("a pool of some kilobytes can be made");
        let settings =
            LifecycleSettings { blocks: devices.blocks, grace: devices.grace, ..LifecycleSettings::default() };
        let mut spec = LifecycleSpec::between(host, &memory).settings(settings);
        if devices.are_fine {
            let bases: Vec<(u64, u64)> = (0..bytes).map(|at| (at, at)).collect();
            spec = spec.layers(&bases, 1);
        }
        let lives = node.lifecycle(spec).expect("both pools have the same blocks");
        let peers = node.peers();
        let oneself = peers.into_iter().find(|peer| peer.epoch() == node.epoch()).expect("swaps go by it");
        let removals = |most| (lives.removals(most).expect("there are few"), Queue::of(most));
        let evictions = |most| (lives.evictions(most).expect("there are few"), Queue::of(most));
        let removals = Listeners { prompt: removals(PLENTY), slow: removals(devices.queue) };
        let evictions = Listeners { prompt: evictions(PLENTY), slow: evictions(devices.queue) };
        let (cache, found, ledger) = (VecDeque::new(), Found::default(), Ledger::default());
        let (live, epoch) = (BTreeMap::new(), node.epoch().0);
        let mut device = Self { removals, evictions, lives, cache, found, live, epoch, ledger, memory, oneself };
        device.look().expect("nothing was given away yet");
        device
    }

    /// Its memory.
    pub(super) fn pool(&self) -> &Pool<SimEnv> {
        &self.memory
    }

    /// Of its engine.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch
    }

    /// A life of a request has begun.
    pub(super) fn opened(&mut self, request: &RequestId, generation: u64) {
        self.live.insert(request.clone(), generation);
    }

    /// The life of this request that has not ended.
    pub(super) fn lives_of(&self, request: &RequestId) -> Option<u64> {
        self.live.get(request).copied()
    }

    /// Takes so many blocks, full of this byte. What nobody but the cache has is given up for it.
    pub(super) fn take(&mut self, count: usize, full_of: u8) -> Result<Option<Blocks>, Violated> {
        loop {
            if let Some(blocks) = self.ledger.take(Ground::of(&self.memory), count, full_of)? {
                return Ok(Some(blocks));
            }
            if !self.give_up_oldest()? {
                return Ok(None);
            }
        }
    }

    /// The block that has been in the cache for longest is found no more. Answers whether there was one.
    pub(super) fn give_up_oldest(&mut self) -> Result<bool, Violated> {
        let Some((hash, block)) = self.cache.pop_front() else { return Ok(false) };
        let its = penstock::flows::block_refs(&block)[0];
        let was_found = self.found.forget(hash, its);
        let said = self.lives.evict(hash, its, Eviction::Reallocated).expect("its engine lives");
        if said != was_found {
            let words =
                format!("hash {hash:x} is evicted from {its:?}, was found there: {was_found}, and it says {said}");
            return Err(broken(Invariant::ToldOnceAfterBytes, "the cache", words));
        }
        if was_found {
            self.evicted(&[Evicted { hash, block: its, why: Eviction::Reallocated }]);
        }
        Ok(true)
    }

    /// A handle of the block that is found by this hash, if it is of the blocks that are in somebody's keeping.
    pub(super) fn find(&self, hash: u64) -> Option<(BlockRef, Blocks)> {
        let block = self.found.block(hash)?;
        let id = BlockId { index: block.index, generation: block.generation };
        let held = self.pool().memory().blocks().share(&[id]).ok()?;
        Some((block, held))
    }

    /// A life is over, and subscribers have to be told so.
    pub(super) fn gone(&mut self, gone: &Gone) {
        self.live.remove(&gone.request);
        self.removals.told(gone);
    }

    /// Subscribers have to be told of blocks that are found no more.
    pub(super) fn evicted(&mut self, evicted: &[Evicted]) {
        evicted.iter().for_each(|evicted| self.evictions.told(evicted));
    }

    /// Looks whether those who look after each step were told what they had to be.
    pub(super) fn check_told(&mut self) -> Result<(), Violated> {
        self.check_removals(false)?;
        self.check_evictions(false).map(drop)
    }

    /// Those who seldom look do so, and begin anew if they have lost something.
    pub(super) fn check_slow(&mut self) -> Result<(), Violated> {
        if self.check_removals(true)?.lost > 0 {
            let said = self.removals.slow.0.resync().expect("it is subscribed");
            self.removals.slow.1.restart();
            let said: BTreeMap<RequestId, u64> = said.into_iter().collect();
            if said != self.live {
                return Err(told(format!("a snapshot says {said:?}, and {:?} live", self.live)));
            }
        }
        if self.check_evictions(true)?.lost > 0 {
            let said = self.evictions.slow.0.resync().expect("it is subscribed");
            self.evictions.slow.1.restart();
            if said != self.found.all() {
                return Err(told(format!("a snapshot says {said:?}, and found are {:?}", self.found.all())));
            }
        }
        Ok(())
    }

    fn check_removals(&mut self, is_slow: bool) -> Result<Lag, Violated> {
        let Listeners { prompt, slow } = &mut self.removals;
        let (who, queue) = if is_slow { slow } else { prompt };
        let mut found: Vec<Removed> = Vec::new();
        let lag = who.take(&mut found).expect("it is subscribed");
        let (right, right_lag) = queue.take();
        let is_told = |(found, right): (&Removed, &Gone)| {
            (&found.request, found.generation) == (&right.request, right.generation) && found.device == right.device
        };
        if lag != right_lag {
            return Err(told(format!("{lag:?} is said of ends, and not {right_lag:?}")));
        }
        if found.len() != right.len() || !found.iter().zip(&right).all(is_told) {
            let words = format!("{found:?} are told of ends, and not {right:?}");
            return Err(Violated::new(Invariant::FreedOnceAndUntouched, words));
        }
        Ok(lag)
    }

    fn check_evictions(&mut self, is_slow: bool) -> Result<Lag, Violated> {
        let Listeners { prompt, slow } = &mut self.evictions;
        let (who, queue) = if is_slow { slow } else { prompt };
        let mut found = Vec::new();
        let lag = who.take(&mut found).expect("it is subscribed");
        let (right, right_lag) = queue.take();
        if (&found, lag) != (&right, right_lag) {
            return Err(told(format!("{found:?} and {lag:?} are told of blocks, and not {right:?} and {right_lag:?}")));
        }
        Ok(lag)
    }

    /// Takes in blocks that have become free.
    pub fn look(&mut self) -> Result<(), Violated> {
        match &self.memory.memory().blocks().free() {
            0 => Ok(()),
            _ => self.ledger.look(Ground::of(&self.memory)),
        }
    }

    /// Looks whether free blocks were touched.
    pub fn check(&self) -> Result<(), Violated> {
        self.ledger.check(Ground::of(&self.memory))
    }

    /// What it has of things that should not be there when all is over.
    pub fn leftovers(&self) -> [(&'static str, usize); 4] {
        let metrics = self.lives.metrics().unwrap_or_default();
        let total = self.pool().memory().blocks().total() as usize;
        [
            ("requests on its device", metrics.live),
            ("frees that are put off", metrics.deferred),
            ("swaps", self.lives.swaps().map_or(0, |(swaps, _)| swaps)),
            ("blocks of its device", total - self.ledger.free()),
        ]
    }

    /// It was noticed that its memory cannot be reached any more.
    pub(super) fn is_unreachable(&self) -> bool {
        self.oneself.ended().is_some()
    }
}

fn told(words: String) -> Violated {
    Violated::new(Invariant::ToldOnceAfterBytes, words)
}
