//! M16: whole workloads between memory of devices, staged over TCP, against the same between pools of the host; and what host memory of the same
//! session pays for what is staged beside it.

use std::time::{Duration, Instant};

use penstock::config::{PagesChoice, Progress, TransportName};
use penstock::device::Cuda;
use penstock::{LocalRegion, Plan, Span, Submit, SystemEnv};

use super::Effort;
use super::copies::describe;
use super::row::{Goal, Row};
use crate::ends::network::Network;
use crate::ends::on_device::MemoryKind::{self, Device, Host};
use crate::ends::{Ends, EndsSpec};
use crate::error::LabError;
use crate::layout::{Layout, LayoutSpec};
use crate::measure::interleave;
use crate::pattern;
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
/// A device that says so has no bytes to look at: what is judged is all that is around its copies.
const MOVES_NOTHING: &str = "move nothing";

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
            let verifies = !device.contains(MOVES_NOTHING);
            rows.push(
                one(effort, Workload::find(name)?, memory, verifies)?.noted(&format!("{name} {words}: {device}")),
            );
        }
    }
    rows.extend(beside(effort)?.map(|row| row.noted(&device)));
    Ok(rows)
}

fn one(effort: &Effort, workload: Workload, memory: [MemoryKind; 2], verifies: bool) -> Result<Row, LabError> {
    let mut options = Options::new(workload);
    options.transport = TransportName::Tcp;
    options.memory = memory;
    options.verify = verifies;
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
    let report = perf::run_beside(&options, &mut [&mut turn])?;
    if let Some(error) = failed {
        return Err(error);
    }
    let (samples, who) = (&report.samples, "one adaptive worker, staged");
    let row = Row::compared(TCP, (&samples.engine, "us", 1e3), ("host memory over tcp", &samples.guests[0]), GOAL);
    Ok(row.noted(&describe(&report, who)))
}

/// Whoever works may run anywhere: cards have no core of their own.
fn open(effort: &Effort, pool_bytes: u64, memory: [MemoryKind; 2]) -> Result<Ends, LabError> {
    Ends::open(&EndsSpec {
        transport: TransportName::Tcp,
        pool_bytes,
        pages: PagesChoice::Small,
        progress: Progress::Adaptive,
        workers: 1,
        cores: Vec::new(),
        target_progress: Progress::Adaptive,
        target_cores: Vec::new(),
        spin: None,
        memory,
        target_program: effort.target_program.clone(),
        network: Network::default(),
    })
}

/// Blocks of 16 KiB that the judged transfer has, and the one beside it, which is under way all the time.
const BLOCKS: [u64; 2] = [1_000, 8_000];
const BLOCK_BYTES: u64 = 16 << 10;
/// So much of its rate it has left, of what it has beside as much between pools: the two share what there is.
const BESIDE_GOAL: Goal = Goal::RateAtLeast(0.8);

/// Blocks from a pool of the host to one: alone, beside others that are staged, and beside others out of a pool, in one session.
fn beside(effort: &Effort) -> Result<[Row; 2], LabError> {
    let [ours, others] = BLOCKS;
    let ends = open(effort, (ours + others) * BLOCK_BYTES, [Device, Host])?;
    pattern::fill(ends.near.pool.window(), 1);
    ends.near.has_filled()?;
    // None lies beside the one before it.
    let spans = |first: u64, count: u64| -> Vec<Span> {
        let at = |block: u64| block * BLOCK_BYTES;
        let span = |block| Span { local: at(first + block), remote: at(first + count - 1 - block), len: BLOCK_BYTES };
        (0..count).map(span).collect()
    };
    let plan = |region: &LocalRegion<SystemEnv>, first, count| {
        let plan = Plan::write(region, &ends.remote).extents(&spans(first, count)).build();
        plan.map_err(LabError::refused("plan blocks"))
    };
    let judged = plan(&ends.near.pool, 0, ours)?;
    let beside = [None, Some(plan(ends.near.region(), ours, others)?), Some(plan(&ends.near.pool, ours, others)?)];
    let submit = |plan: &Plan| {
        let submitted = ends.peer.submit(plan, Submit::new().within(PATIENCE));
        submitted.map_err(LabError::refused("submit blocks"))
    };
    let mut cut_short = 0;
    let times = interleave(effort.limit(), &[0, 1, 2], |which: usize| {
        let other = beside[which].as_ref().map(submit).transpose()?;
        let begun = Instant::now();
        submit(&judged)?.wait()?;
        let nanos = begun.elapsed().as_nanos() as f64;
        if let Some(other) = other {
            cut_short += usize::from(other.poll().is_some());
            other.wait()?;
        }
        Ok::<_, LabError>(nanos)
    })?;
    let row = |against, floor: &Vec<f64>, goal| {
        let row = Row::compared(TCP, (&times[1], "us", 1e3), (against, floor), goal);
        row.noted(&format!(
            "1,000 blocks of 16 KiB between pools, beside 8,000 staged ones; {cut_short} rounds had less beside them"
        ))
    };
    Ok([row("beside as many between pools", &times[2], BESIDE_GOAL), row("the same alone", &times[0], Goal::Reported)])
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
        let ends = open(effort, layout.pool_bytes(), [Host; 2])?;
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
