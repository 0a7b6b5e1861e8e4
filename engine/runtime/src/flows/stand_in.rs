//! Memory in the place of a device's, until there is a backend for devices.
//!
//! A *stand-in* is no device. It is a second engine in this process, with a pool of host memory that plays the device's, reached over
//! `local`: a copy into it is a copy from host memory to host memory. What is true of swaps between a device and its host is true of it
//! all the same: bytes go by a transfer with a deadline, it can be stopped in its middle, and blocks are not used again before nothing
//! can land in them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use penstock_core::config::{Config, Progress, TransportName};
use penstock_core::ids::ENGINE_NAME_BYTES_MAX;
use penstock_core::{EngineName, Env, Rights};
use penstock_flows::action::RegionRef;
use penstock_memory::{Blocks, PoolSpec, TakeError};

use crate::engine::Engine;
use crate::engine_inner::EngineInner;
use crate::error::{ConnectError, RegionError, StartError};
use crate::peer::Peer;
use crate::region::Pool;
use crate::system::SystemEnv;

/// How long the two engines may take to meet, and to part.
const MEET_WITHIN: Duration = Duration::from_secs(5);
/// What its pool is called.
const LABEL: &str = "device";

/// Why there is no stand-in.
#[derive(Debug, thiserror::Error)]
pub enum StandInError {
    /// This engine may not reach engines of its own process.
    #[error("a stand-in is reached over `local`, which this engine does not allow: add it to `transports.allow`")]
    NoLocal,
    /// Its engine does not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// It has no memory.
    #[error(transparent)]
    Memory(#[from] RegionError),
    /// It is not reached.
    #[error(transparent)]
    Connect(#[from] ConnectError),
}

/// A pool that plays a device's memory: an engine of its own in this process. Clones are the same one; the last one ends it.
pub struct StandIn<E: Env = SystemEnv> {
    inner: Arc<Inner<E>>,
}

/// Fields end in this order.
struct Inner<E: Env> {
    peer: Peer<E>,
    pool: Pool<E>,
    engine: Engine<E>,
    region: RegionRef,
}

impl<E: Env> Clone for StandIn<E> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<E: Env> Engine<E> {
    /// Starts an engine in this process whose pool, of so many blocks of so many bytes, plays a device's memory. The owner of an inline
    /// engine turns both with it.
    pub fn stand_in(&self, blocks: u32, block_bytes: u64) -> Result<StandIn<E>, StandInError> {
        let shared = &self.engine.shared;
        shared.check_usable().map_err(RegionError::Call)?;
        if !shared.config.transports.allow.contains(&TransportName::Local) {
            return Err(StandInError::NoLocal);
        }
        let engine = Engine::start_in(shared.env.clone(), config_of(self))?;
        let spec = PoolSpec::host(u64::from(blocks) * block_bytes).block(block_bytes).label(LABEL);
        let pool = engine.pool(spec.rights(Rights::READ_WRITE))?;
        if engine.engine.is_inline() {
            shared.stand_ins.turn(&engine.engine);
        }
        let peer = self.connect(&engine.descriptor(), MEET_WITHIN)?;
        peer.wait_region(LABEL, MEET_WITHIN)?;
        let region = RegionRef { region: pool.region.region.id(), generation: pool.region.region.generation() };
        Ok(StandIn { inner: Arc::new(Inner { peer, pool, engine, region }) })
    }
}

/// How a stand-in of this engine is configured: as it is, with nothing but `local`.
fn config_of<E: Env>(owner: &Engine<E>) -> Config {
    let shared = &owner.engine.shared;
    let suffix = format!("-device{}", shared.stand_ins.number());
    let mut name: String = shared.name.as_str().to_owned();
    name.truncate(ENGINE_NAME_BYTES_MAX - suffix.len());
    let folder = std::path::Path::new(&shared.descriptor.socket).parent().unwrap_or(std::path::Path::new("."));
    // Its workers have nothing to do: bytes are moved by this engine's.
    let progress = if shared.config.workers.progress.is_threaded() { Progress::Adaptive } else { Progress::Inline };
    let config = Config::default().named(name + &suffix).directory(folder).transports([TransportName::Local]);
    config.workers(1).progress(progress).pages(shared.config.memory.pages)
}

impl<E: Env> StandIn<E> {
    /// Takes so many blocks, or none.
    pub fn take(&self, count: usize) -> Result<Blocks, TakeError> {
        self.inner.pool.take(count)
    }

    /// Its pool: what is there in place of a device's memory.
    pub fn pool(&self) -> &Pool<E> {
        &self.inner.pool
    }

    /// What its engine is called.
    pub fn name(&self) -> &EngineName {
        self.inner.engine.name()
    }

    /// Its engine, as the owner sees it.
    pub fn peer(&self) -> &Peer<E> {
        &self.inner.peer
    }

    pub(super) fn region(&self) -> RegionRef {
        self.inner.region
    }
}

impl<E: Env> Drop for Inner<E> {
    fn drop(&mut self) {
        // Said from here, so that an inline owner turns both until it is done.
        if self.peer.ended().is_none() && self.peer.engine.shared.check_usable().is_ok() {
            self.peer.disconnect(MEET_WITHIN);
        }
    }
}

/// The stand-ins of one engine.
pub(crate) struct StandIns<E: Env> {
    made: AtomicU64,
    inline: AtomicU64,
    turned: Mutex<Vec<Weak<EngineInner<E>>>>,
}

impl<E: Env> Default for StandIns<E> {
    fn default() -> Self {
        Self { made: AtomicU64::new(0), inline: AtomicU64::new(0), turned: Mutex::default() }
    }
}

impl<E: Env> StandIns<E> {
    fn lock(&self) -> MutexGuard<'_, Vec<Weak<EngineInner<E>>>> {
        self.turned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn number(&self) -> u64 {
        self.made.fetch_add(1, Ordering::Relaxed)
    }

    /// The owner turns this one from now on.
    fn turn(&self, engine: &Arc<EngineInner<E>>) {
        self.lock().push(Arc::downgrade(engine));
        self.inline.fetch_add(1, Ordering::Relaxed);
    }

    /// One turn of each that needs it. Answers whether anything happened.
    pub(crate) fn progress(&self) -> bool {
        if self.inline.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut turned = self.lock();
        turned.retain(|engine| engine.strong_count() > 0);
        let hubs: Vec<Arc<EngineInner<E>>> = turned.iter().filter_map(Weak::upgrade).collect();
        self.inline.store(turned.len() as u64, Ordering::Relaxed);
        drop(turned);
        hubs.iter().fold(false, |worked, engine| engine.progress_all().unwrap_or(false) | worked)
    }
}
