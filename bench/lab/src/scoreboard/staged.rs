//! M16: whole workloads between memory of devices, staged over TCP, against the same between pools of the host.

use std::time::{Duration, Instant};

use penstock::config::{PagesChoice, Progress, TransportName};
use penstock::device::Cuda;
use penstock::{Plan, Submit};

use super::copies::describe;
use super::row::{Goal, Row};
use super::{Effort, Pins};
use crate::ends::network::Network;
use crate::ends::on_device::MemoryKind::{self, Device, Host};
use crate::ends::{Ends, EndsSpec};
use crate::error::LabError;
use crate::layout::{Layout, LayoutSpec};
use crate::measure::cores::Stay;
use crate::perf::{self, Options};
use crate::workload::Workload;

const TCP: &str = "tcp";
const WORKLOADS: [&str; 2] = ["kv16", "w5"];
/// As much of the rate between pools of the host is wanted.
const GOAL: Goal = Goal::RateAtLeast(0.9);
/// Where the bytes come from and go to, and in words.
const WAYS: [([MemoryKind; 2], &str); 3] = [
    ([Device, Host], "from a device to the host"),
    ([Host, Device], "from the host to a device"),
    ([Device, Device], "from a device to a device"),
];
/// How long one batch may take: longer than any does on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

pub(super) fn measure(effort: &Effort) -> Result<Vec<Row>, LabError> {
    let device = match Cuda::start().and_then(|cuda| Ok(cuda.devices()?.swap_remove(0))) {
        Ok(device) => device.attr.name,
        Err(why) => {
            let row = Row::unreached(TCP, ("us", 1e3), ("host memory over tcp", &[]), GOAL);
            return Ok(vec![row.noted(&format!("not measured: {why}"))]);
        }
    };
    let mut rows = Vec::new();
    for name in WORKLOADS {
        for (memory, words) in WAYS {
            rows.push(one(effort, Workload::find(name)?, memory)?.noted(&format!("{name} {words}: {device}")));
        }
    }
    Ok(rows)
}

fn one(effort: &Effort, workload: Workload, memory: [MemoryKind; 2]) -> Result<Row, LabError> {
    let pins = Pins::choose();
    let mut options = Options::new(workload);
    options.transport = TransportName::Tcp;
    options.memory = memory;
    options.limit = effort.with_guests(effort.limit());
    options.target_program = effort.target_program.clone();
    let mut host = BetweenPools::open(effort, &options.layout())?;
    let mut failed = None;
    let mut turn = || match host.turn() {
        Ok(nanos) => nanos,
        Err(error) => {
            failed.get_or_insert(error);
            f64::NAN
        }
    };
    let _stay = Stay::on(&pins.far);
    let report = perf::run_beside(&options, &mut [&mut turn])?;
    if let Some(error) = failed {
        return Err(error);
    }
    let (samples, who) = (&report.samples, "one adaptive worker, staged");
    let row = Row::compared(TCP, (&samples.engine, "us", 1e3), ("host memory over tcp", &samples.guests[0]), GOAL);
    Ok(row.noted(&describe(&report, who)))
}

/// The same workload between pools of the host.
struct BetweenPools {
    ends: Ends,
    /// The batches of each set.
    sets: Vec<Vec<Plan>>,
    next: usize,
}

impl BetweenPools {
    fn open(effort: &Effort, spec: &LayoutSpec) -> Result<Self, LabError> {
        let layout = Layout::new(spec);
        let ends = Ends::open(&EndsSpec {
            transport: TransportName::Tcp,
            pool_bytes: layout.pool_bytes(),
            pages: PagesChoice::Small,
            progress: Progress::Adaptive,
            workers: 1,
            cores: Vec::new(),
            target_progress: Progress::Adaptive,
            target_cores: Vec::new(),
            spin: None,
            memory: [Host; 2],
            target_program: effort.target_program.clone(),
            network: Network::default(),
        })?;
        layout.fill(ends.near.pool.window());
        let (bytes, stride) = (spec.workload.block_bytes, spec.workload.stride_bytes());
        let plan = |bases: &Vec<(u64, u64)>, pairs: &[(u32, u32)]| {
            let plan = Plan::write(&ends.near.pool, &ends.remote).layers(bases).blocks(pairs);
            let plan = plan.block_bytes(bytes).strides(stride, stride).build();
            plan.map_err(LabError::refused("plan a batch"))
        };
        let bases = layout.batches();
        let set = |pairs: &Vec<(u32, u32)>| bases.iter().map(|bases| plan(bases, pairs)).collect();
        let sets = layout.sets().iter().map(set).collect::<Result<_, LabError>>()?;
        Ok(Self { ends, sets, next: 0 })
    }

    /// Moves one set. Answers nanoseconds.
    fn turn(&mut self) -> Result<f64, LabError> {
        let set = &self.sets[self.next % self.sets.len()];
        self.next += 1;
        let begun = Instant::now();
        for plan in set {
            let transfer = self.ends.peer.submit(plan, Submit::new().within(PATIENCE));
            transfer.map_err(LabError::refused("submit a batch"))?.wait()?;
        }
        Ok(begun.elapsed().as_nanos() as f64)
    }
}
