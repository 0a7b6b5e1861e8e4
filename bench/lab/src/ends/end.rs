//! One engine with its pool and its arrival counter.

use std::cell::OnceCell;
use std::path::PathBuf;
use std::time::Duration;

use penstock::config::{ConfigError, PagesChoice, Progress, TransportName};
use penstock::region::Pool;
use penstock::{Config, Counter, Engine, LocalRegion, Pages, PoolSpec, Rights, SystemEnv, Window};
use serde::{Deserialize, Serialize};

use super::lossy;
use super::network::Network;
use super::on_device::{MemoryKind, OnDevice};
use super::own::Own;
use super::sweep::Making;
use crate::error::LabError;

/// What both ends call their pool.
pub const LABEL: &str = "lab";
/// What they call that of the host beside a device's.
const BESIDE: &str = "lab, host";
/// What both ends call their counter.
pub const ARRIVALS: &str = "arrivals";
/// Where ends meet over the network: any free port that only this host reaches.
const LOOPBACK: &str = "127.0.0.1:0";
/// A round of the largest workload takes seconds where the machine is slow.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(60);

/// What one end should be.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EndSpec {
    /// Its engine's name.
    pub name: String,
    /// Where its socket is.
    pub directory: PathBuf,
    /// The only transport it may use.
    pub transport: TransportName,
    /// How it makes progress.
    pub progress: Progress,
    /// Its workers, if it has threads.
    pub workers: usize,
    /// Their cores; empty: anywhere.
    pub cores: Vec<usize>,
    /// How long they look for work before they sleep, in microseconds; the engine's default where absent.
    pub spin_us: Option<u64>,
    /// Bytes of its pool.
    pub pool_bytes: u64,
    /// Pages of its pool.
    pub pages: PagesChoice,
    /// Where its memory is; what is a device's has a pool of the host's beside it.
    #[serde(default)]
    pub memory: MemoryKind,
    /// What it needs to meet the other end over the network.
    pub network: Network,
}

/// One end, running.
pub struct End {
    /// Counts what arrived here.
    pub arrivals: Counter<SystemEnv>,
    /// What its application allocated itself, once it has.
    pub own: OnceCell<Own>,
    /// Its memory, or what that of a device is filled from and looked at in.
    pub pool: Pool<SystemEnv>,
    /// Its memory, where that is a device's.
    pub device: Option<OnDevice>,
    /// Its engine.
    pub engine: Engine,
}

impl EndSpec {
    /// What it may use: memory of a device is filled and looked at within the process.
    fn transports(&self) -> Vec<TransportName> {
        let within = (self.memory == MemoryKind::Device).then_some(TransportName::Local);
        within.into_iter().filter(|within| *within != self.transport).chain([self.transport]).collect()
    }

    fn config(&self) -> Result<Config, ConfigError> {
        let config = self
            .network
            .base()?
            .named(&self.name)
            .directory(&self.directory)
            .transports(self.transports())
            .transfer_timeout(TRANSFER_TIMEOUT)
            .progress(self.progress);
        let config = match self.transport {
            between if between.is_between_hosts() && self.network.host.is_some() => self.network.apply(config),
            // Both ends are of this host, and so is the secret.
            between if between.is_between_hosts() => {
                self.network.apply(config).listen([LOOPBACK]).secret_file(self.directory.join(super::SECRET))
            }
            _ => config,
        };
        let config = match self.spin_us {
            Some(spin) => config.spin(Duration::from_micros(spin)),
            None => config,
        };
        Ok(if self.progress.is_threaded() {
            config.workers(self.workers).pinned_to(self.cores.iter().copied())
        } else {
            config
        })
    }

    /// Starts the engine and makes its pool and its counter.
    pub fn start(&self) -> Result<End, LabError> {
        let engine = self.start_engine()?;
        self.furnish(engine)
    }

    /// Starts the engine alone, which takes hardly any memory.
    pub fn start_engine(&self) -> Result<Engine, LabError> {
        let config = self.config().map_err(LabError::refused("read a configuration"))?;
        let _making = Making::begin()?;
        let started = match (self.network.loss_ppm, self.network.checksums) {
            (0, false) => Engine::start(config),
            (loss_ppm, checksums) => lossy::start(config, loss_ppm, checksums),
        };
        started.map_err(LabError::refused("start an engine"))
    }

    /// Makes the pool and the counter of an engine that was started alone.
    pub fn furnish(&self, engine: Engine) -> Result<End, LabError> {
        let pages = match self.pages {
            PagesChoice::Auto => Pages::Auto,
            PagesChoice::Small => Pages::Small,
            PagesChoice::Huge => Pages::Huge,
        };
        let label = match self.memory {
            MemoryKind::Host => LABEL,
            MemoryKind::Device => BESIDE,
        };
        // Floors map it, whatever it is for.
        let spec = PoolSpec::host(self.pool_bytes).label(label).pages(pages).rights(Rights::READ_WRITE);
        let pool = engine.pool(spec).map_err(LabError::refused("make a pool"))?;
        let device = match self.memory {
            MemoryKind::Host => None,
            MemoryKind::Device => Some(OnDevice::beside(&pool, &engine)?),
        };
        let counted: &LocalRegion<SystemEnv> = device.as_ref().map_or(&pool, |device| &device.pool);
        let arrivals = counted.counter(ARRIVALS).map_err(LabError::refused("make an arrival counter"))?;
        Ok(End { arrivals, own: OnceCell::new(), pool, device, engine })
    }
}

impl End {
    /// The region that plans name: the device's pool where there is one, else the host's.
    pub fn region(&self) -> &LocalRegion<SystemEnv> {
        self.device.as_ref().map_or(&self.pool, |device| &device.pool)
    }

    /// What was written to the pool of the host is in its memory, wherever that is.
    pub fn has_filled(&self) -> Result<(), LabError> {
        self.device.as_ref().map_or(Ok(()), OnDevice::fill)
    }

    /// The pool of the host, with what is in its memory now.
    pub fn fetched(&self) -> Result<&Window, LabError> {
        self.device.as_ref().map_or(Ok(()), OnDevice::fetch)?;
        Ok(self.pool.window())
    }

    /// Whether the engine works by itself.
    pub fn is_threaded(&self) -> bool {
        self.engine.config().workers.progress.is_threaded()
    }

    /// One turn of an inline engine, its sockets included.
    pub fn turn(&self) -> Result<bool, LabError> {
        self.engine.progress_all().map_err(LabError::refused("turn an inline engine"))
    }
}
