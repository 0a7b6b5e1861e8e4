//! What to measure.

use std::path::PathBuf;
use std::time::Duration;

use penstock::config::{PagesChoice, Progress, TransportName};
use penstock::limits::WORKERS_MAX;

use crate::ends::network::Network;
use crate::ends::on_device::MemoryKind;
use crate::error::LabError;
use crate::layout::LayoutSpec;
use crate::measure::Limit;
use crate::workload::Workload;

/// Which way the bytes go, as the initiator sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Op {
    /// From the initiator's pool to the target's.
    #[default]
    Write,
    /// From the target's pool to the initiator's.
    Read,
}

impl Op {
    /// Its word in reports.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Write => "write",
            Self::Read => "read",
        }
    }
}

/// What to measure, and how.
#[derive(Debug, Clone)]
pub struct Options {
    /// Within this process, or to a process of its own.
    pub transport: TransportName,
    /// What is moved in each round.
    pub workload: Workload,
    /// Which way.
    pub op: Op,
    /// How the initiator makes progress.
    pub progress: Progress,
    /// Workers of the initiator, and threads of the floors.
    pub workers: usize,
    /// The cores of the workers and of the floors' threads, one each; empty: anywhere. An inline engine
    /// runs on the first.
    pub cores: Vec<usize>,
    /// The cores of the target process; empty: anywhere.
    pub target_cores: Vec<usize>,
    /// The most transfers in flight. A workload of fewer transfers is moved as often at the same time, each
    /// time with other blocks.
    pub concurrency: usize,
    /// Pages of both pools.
    pub pages: PagesChoice,
    /// The initiator's memory, and the target's.
    pub memory: [MemoryKind; 2],
    /// Bytes that each pool has at least. Less than several times the last cache measures the cache.
    pub pool_bytes_min: u64,
    /// How many rounds.
    pub limit: Limit,
    /// Whether a round that is still under way at the end of the time is cancelled, once one has ended; to another host also the first one.
    pub is_sharp: bool,
    /// What the shuffles and the pattern begin with.
    pub seed: u64,
    /// Whether to look at every byte at the end.
    pub verify: bool,
    /// Changes one byte that has arrived before it is looked at: proof that the look finds it.
    pub sabotage: bool,
    /// The program that becomes the target process when its first argument is
    /// [`ARGUMENT`](crate::ends::target::ARGUMENT); this one where absent.
    pub target_program: Option<PathBuf>,
    /// What ends need that meet over the network; with a host the target is there.
    pub network: Network,
}

impl Options {
    /// The usual options for a workload: writes over shm, one adaptive worker, pools of 512 MiB of small pages.
    pub fn new(workload: Workload) -> Self {
        Self {
            transport: TransportName::Shm,
            workload,
            op: Op::Write,
            progress: Progress::Adaptive,
            workers: 1,
            cores: Vec::new(),
            target_cores: Vec::new(),
            concurrency: 1,
            pages: PagesChoice::Small,
            memory: [MemoryKind::Host; 2],
            pool_bytes_min: 512 << 20,
            limit: Limit { rounds: 31, within: Duration::from_secs(20) },
            is_sharp: false,
            seed: 1,
            verify: true,
            sabotage: false,
            target_program: None,
            network: Network::default(),
        }
    }

    /// Where the blocks lie.
    pub(crate) fn layout(&self) -> LayoutSpec {
        LayoutSpec {
            workload: self.workload.clone(),
            pool_bytes_min: self.pool_bytes_min,
            concurrency: self.concurrency,
            seed: self.seed,
        }
    }

    /// Whether the options fit together.
    pub(crate) fn check(&self) -> Result<(), LabError> {
        self.workload.check()?;
        let refuse = |option, mend| Err(LabError::Option { option, mend });
        if !(1..=WORKERS_MAX).contains(&self.workers) {
            return refuse("workers", "give 1 to 16");
        }
        if !self.progress.is_threaded() && self.workers != 1 {
            return refuse("workers", "an inline engine has one; give 1, or another kind of progress");
        }
        if !self.cores.is_empty() && self.cores.len() != self.workers {
            return refuse("cores", "name one core for each worker, or none");
        }
        if !(1..=1024).contains(&self.concurrency) {
            return refuse("concurrency", "give 1 to 1024");
        }
        if self.limit.rounds == 0 {
            return refuse("rounds", "at least one must be measured");
        }
        if self.network.host.is_some() && !self.transport.is_between_hosts() {
            return refuse(
                "transport",
                "another host is reached by tcp, datagram or verbs; the others stay on this one",
            );
        }
        if self.sabotage && self.op == Op::Write && self.memory[1] == MemoryKind::Device {
            return refuse("sabotage", "bytes of a device are spoiled by nobody; read, or leave it out");
        }
        if self.network.host.is_some() && self.sabotage && self.op == Op::Write {
            return refuse(
                "sabotage",
                "bytes of another host can only be spoiled there; read, or measure on this host",
            );
        }
        if self.sabotage && !self.verify {
            return refuse("sabotage", "it is only noticed where bytes are verified");
        }
        Ok(())
    }
}
