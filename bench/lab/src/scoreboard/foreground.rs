//! M13: small urgent transfers while a large workload goes on beside them.
//!
//! Open loop on both sides: every transfer has a moment at which it is to begin, whatever became of those before it, and
//! its latency counts from that moment. A transfer that had to wait to be submitted is as late as it is.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use penstock::config::{PagesChoice, Progress, TransportName};
use penstock::{Plan, Priority, Span, Submit, SubmitError, SystemEnv, Transfer};

use super::row::{Goal, Row};
use super::{Effort, Pins};
use crate::ends::end::ARRIVALS;
use crate::ends::network::Network;
use crate::ends::on_device::MemoryKind;
use crate::ends::{Ends, EndsSpec};
use crate::error::LabError;
use crate::layout::{Layout, LayoutSpec};
use crate::measure::cores::Stay;
use crate::measure::median;
use crate::workload::Workload;

/// Bytes of a foreground transfer.
const PAGE: u64 = 4096;
/// Different places of them, so that it is not one page in the cache that is measured.
const PAGES: u64 = 256;
/// From one to the next; no multiple of it is near the background's.
const EVERY: Duration = Duration::from_micros(257);
/// Part of what the background could do by itself that it is given to do.
const LOAD: f64 = 0.8;
/// Less than this part, and latencies are those of a machine that is busy with something else.
const LOAD_MIN: f64 = 0.7;
/// Background transfers under way while its speed is measured.
const DEPTH: usize = 2;
/// How long whatever is under way may take to end.
const DRAIN: Duration = Duration::from_secs(10);

/// What one round came to, in nanoseconds.
struct Round {
    p50: f64,
    p999: f64,
    /// Background bytes moved a second.
    moved: f64,
}

/// Both workloads, planned.
struct Bench {
    ends: Ends,
    batches: Vec<Plan>,
    pages: Vec<Plan>,
    arrived: Submit<'static>,
}

pub(super) fn measure(effort: &Effort) -> Result<Vec<Row>, LabError> {
    let modes = [(Progress::Adaptive, "one adaptive worker"), (Progress::Busy, "one busy worker")];
    modes.into_iter().map(|(progress, who)| row(effort, progress, who)).collect()
}

fn row(effort: &Effort, progress: Progress, who: &str) -> Result<Row, LabError> {
    let pins = Pins::choose();
    let (rounds, lasting) = if effort.quick { (2, Duration::from_millis(300)) } else { (5, Duration::from_secs(4)) };
    let _stay = Stay::on(&pins.far);
    let bench = Bench::open(effort, &pins, progress)?;
    let alone = bench.speed_alone(lasting / 4)?;
    let measured = (0..rounds).map(|_| bench.round(lasting, LOAD * alone)).collect::<Result<Vec<Round>, _>>()?;
    let of = |pick: fn(&Round) -> f64| measured.iter().map(pick).collect::<Vec<f64>>();
    let load = median(&of(|round| round.moved)) / alone;
    let (goal, judged) = match load >= LOAD_MIN {
        true => (Goal::RatioAtMost(3.0), ""),
        false => (Goal::Reported, "NOT JUDGED: something else took the cores and the load was not kept; "),
    };
    let row = Row::compared("shm", (&of(|round| round.p999), "us", 1e3), ("its own p50", &of(|round| round.p50)), goal);
    let load = 100.0 * load;
    let cores = match (&pins.near[..], &pins.far[..]) {
        ([near], [far]) => format!("the worker on core {near}; the application and the target's process on core {far}"),
        _ => "everything on one core".to_owned(),
    };
    Ok(row.noted(&format!(
        "{judged}{who}; {rounds} rounds of {:.1} s; one 4 KiB write, urgent, every {} us beside w4 at {load:.0} % of the {:.2} GB/s \
         it reaches alone; {cores}",
        lasting.as_secs_f64(),
        EVERY.as_micros(),
        alone / 1e9,
    )))
}

impl Bench {
    fn open(effort: &Effort, pins: &Pins, progress: Progress) -> Result<Self, LabError> {
        let workload = Workload::find("w4")?;
        let layout =
            Layout::new(&LayoutSpec { workload: workload.clone(), pool_bytes_min: 0, concurrency: 1, seed: 1 });
        let ends = Ends::open(&EndsSpec {
            transport: TransportName::Shm,
            pool_bytes: layout.pool_bytes() + PAGES * PAGE,
            pages: PagesChoice::Auto,
            progress,
            workers: 1,
            cores: pins.near.clone(),
            // The target only has memory: its worker sleeps.
            target_progress: Progress::Adaptive,
            target_cores: pins.far.clone(),
            spin: None,
            memory: [MemoryKind::Host; 2],
            target_program: effort.target_program.clone(),
            network: Network::default(),
        })?;
        let stride = workload.stride_bytes();
        let pairs = layout.sets().first().ok_or(LabError::NoMemory { bytes: layout.pool_bytes() })?;
        let refused = LabError::refused::<penstock::PlanError>;
        let bases = layout.batches();
        let batches = bases.iter().map(|bases| {
            let plan = Plan::write(&ends.near.pool, &ends.remote).layers(bases).blocks(pairs);
            plan.block_bytes(workload.block_bytes).strides(stride, stride).build().map_err(refused("plan a batch"))
        });
        let batches = batches.collect::<Result<_, _>>()?;
        let pages = (0..PAGES).map(|page| {
            let at = layout.pool_bytes() + page * PAGE;
            let span = Span { local: at, remote: at, len: PAGE };
            Plan::write(&ends.near.pool, &ends.remote).extents(&[span]).build().map_err(refused("plan a page"))
        });
        let pages = pages.collect::<Result<_, _>>()?;
        let counter = ends.peer.wait_counter(ARRIVALS, DRAIN);
        let counter = counter.ok_or(LabError::Silent { doing: "announce its counter", waited: DRAIN })?;
        Ok(Self { ends, batches, pages, arrived: Submit::new().count(counter) })
    }

    /// Bytes a second of the background by itself.
    fn speed_alone(&self, lasting: Duration) -> Result<f64, LabError> {
        let (begun, mut flying, mut bytes) = (Instant::now(), VecDeque::new(), 0);
        for batch in self.batches.iter().cycle() {
            if flying.len() == DEPTH
                && let Some(transfer) = flying.pop_front()
            {
                let transfer: Transfer<SystemEnv> = transfer;
                bytes += transfer.wait()?.bytes;
                if begun.elapsed() >= lasting {
                    break;
                }
            }
            flying.push_back(self.ends.peer.submit(batch, self.arrived).map_err(LabError::refused("submit a batch"))?);
        }
        let speed = bytes as f64 / begun.elapsed().as_secs_f64();
        for transfer in flying {
            transfer.wait()?;
        }
        Ok(speed)
    }

    /// One round with the background at so many bytes a second.
    fn round(&self, lasting: Duration, speed: f64) -> Result<Round, LabError> {
        let most = (lasting + 2 * DRAIN).as_nanos() as u64;
        let mut late = Histogram::<u64>::new_with_bounds(1, most, 3).map_err(LabError::refused("make a histogram"))?;
        let batch_every = Duration::from_secs_f64(self.batches[0].bytes() as f64 / speed);
        let mut pages = Stream::new(&self.pages, EVERY, Submit::new().priority(Priority::Urgent));
        let mut batches = Stream::new(&self.batches, batch_every, self.arrived);
        let (begun, mut moved) = (Instant::now(), 0);
        loop {
            let now = begun.elapsed();
            if now < lasting {
                pages.begin_due(&self.ends, now)?;
                batches.begin_due(&self.ends, now)?;
            } else if pages.flying.is_empty() && batches.flying.is_empty() {
                break;
            } else if now > lasting + DRAIN {
                return Err(LabError::Silent { doing: "take what was sent", waited: DRAIN });
            }
            pages.land(|meant, _| {
                let latency = begun.elapsed().saturating_sub(meant);
                late.saturating_record(latency.as_nanos() as u64);
            })?;
            batches.land(|_, bytes| moved += if begun.elapsed() <= lasting { bytes } else { 0 })?;
        }
        let at = |part| late.value_at_quantile(part) as f64;
        Ok(Round { p50: at(0.5), p999: at(0.999), moved: moved as f64 / lasting.as_secs_f64() })
    }
}

/// Transfers that begin at fixed moments.
struct Stream<'a> {
    plans: &'a [Plan],
    every: Duration,
    how: Submit<'a>,
    /// How many have begun.
    begun: u32,
    /// Under way, with the moment at which each was to begin.
    flying: VecDeque<(Duration, Transfer<SystemEnv>)>,
}

impl<'a> Stream<'a> {
    fn new(plans: &'a [Plan], every: Duration, how: Submit<'a>) -> Self {
        Self { plans, every, how, begun: 0, flying: VecDeque::new() }
    }

    /// Submits what is due, as far as there is room. What finds none is tried again, and has begun when it was meant to.
    fn begin_due(&mut self, ends: &Ends, now: Duration) -> Result<(), LabError> {
        while self.every * self.begun <= now {
            let plan = &self.plans[self.begun as usize % self.plans.len()];
            match ends.peer.submit(plan, self.how) {
                Ok(transfer) => self.flying.push_back((self.every * self.begun, transfer)),
                Err(SubmitError::Full { .. }) => break,
                Err(refused) => return Err(LabError::refused("submit a transfer")(refused)),
            }
            self.begun += 1;
        }
        Ok(())
    }

    /// Takes those that have ended: when each was meant to begin, and its bytes.
    fn land(&mut self, mut ended: impl FnMut(Duration, u64)) -> Result<(), LabError> {
        for _ in 0..self.flying.len() {
            let Some((meant, transfer)) = self.flying.pop_front() else { break };
            match transfer.poll() {
                Some(completed) => ended(meant, completed?.bytes),
                None => self.flying.push_back((meant, transfer)),
            }
        }
        Ok(())
    }
}
