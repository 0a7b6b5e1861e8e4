//! One engine with its pool and its arrival counter.

use std::cell::OnceCell;
use std::path::PathBuf;
use std::time::Duration;

use penstock::config::{ConfigError, PagesChoice, Progress, TransportName};
use penstock::region::Pool;
use penstock::{Config, Counter, Engine, Pages, PoolSpec, Rights, SystemEnv};
use serde::{Deserialize, Serialize};

use super::lossy;
use super::network::Network;
use super::own::Own;
use super::sweep::Making;
use crate::error::LabError;

/// What both ends call their pool.
pub const LABEL: &str = "lab";
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
    /// What it needs to meet the other end over the network.
    pub network: Network,
}

/// One end, running.
pub struct End {
    /// Counts what arrived here.
    pub arrivals: Counter<SystemEnv>,
    /// What its application allocated itself, once it has.
    pub own: OnceCell<Own>,
    /// Its memory.
    pub pool: Pool<SystemEnv>,
    /// Its engine.
    pub engine: Engine,
}

impl EndSpec {
    fn config(&self) -> Result<Config, ConfigError> {
        let config = self
            .network
            .base()?
            .named(&self.name)
            .directory(&self.directory)
            .transports([self.transport])
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
        let spec = PoolSpec::host(self.pool_bytes).label(LABEL).pages(pages).rights(Rights::READ_WRITE);
        let pool = engine.pool(spec).map_err(LabError::refused("make a pool"))?;
        let arrivals = pool.counter(ARRIVALS).map_err(LabError::refused("make an arrival counter"))?;
        Ok(End { arrivals, own: OnceCell::new(), pool, engine })
    }
}

impl End {
    /// Whether the engine works by itself.
    pub fn is_threaded(&self) -> bool {
        self.engine.config().workers.progress.is_threaded()
    }

    /// One turn of an inline engine, its sockets included.
    pub fn turn(&self) -> Result<bool, LabError> {
        self.engine.progress_all().map_err(LabError::refused("turn an inline engine"))
    }
}
