//! Everything prepared for the rounds of one measurement, and the rounds themselves.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock::config::{Progress, TransportName};
use penstock::memory::copy::hint_for;
use penstock::{Direction, Plan, RemoteCounter, Span, Submit, SubmitError, SystemEnv, Transfer};

use super::SETTLE;
use super::options::{Op, Options};
use super::post;
use crate::ends::end::End;
use crate::ends::wire::{Command, Reply};
use crate::ends::{Ends, EndsSpec};
use crate::error::LabError;
use crate::floor::Work;
use crate::layout::{Destination, Layout, LayoutSpec};
use crate::measure::clock;
use crate::raw::CheckedSpans;

/// One set of blocks, ready to be moved by anyone.
pub(super) struct Prepared {
    /// One plan for each batch.
    plans: Vec<Plan>,
    /// The same spans for the floors.
    spans: CheckedSpans,
}

/// A measurement that is ready to begin.
pub(super) struct Bench {
    pub(super) ends: Ends,
    op: Op,
    concurrency: usize,
    layout: LayoutSpec,
    sets: Vec<Prepared>,
    arrivals: Option<RemoteCounter>,
    /// The set that is moved next, by whoever is next.
    next: usize,
    /// What the engine's rounds have cost this process.
    pub(super) cpu: Duration,
}

/// What one round of the engine took.
#[derive(Debug, Clone, Copy)]
pub(super) struct Round {
    /// From the first submit to the end of the last transfer, in nanoseconds.
    pub(super) total_ns: f64,
    /// Of that, in submit calls that only queue.
    pub(super) submit_ns: f64,
}

impl Bench {
    /// Makes pools, ends, plans and the pattern.
    pub(super) fn prepare(options: &Options) -> Result<Self, LabError> {
        let spec = options.layout();
        let layout = Layout::new(&spec);
        let mut ends = Ends::open(&ends_spec(options, layout.pool_bytes()))?;
        let arrivals = match options.workload.arrivals {
            true => {
                let counter = ends.peer.wait_counter(&ends.counter, Duration::from_secs(5));
                Some(counter.ok_or(LabError::Target { why: "it announced no counter".to_owned() })?)
            }
            false => None,
        };
        let batches = layout.batches();
        let sets = layout.sets().iter().map(|pairs| prepare_set(&ends, options, &batches, pairs));
        let sets = sets.collect::<Result<Vec<_>, LabError>>()?;
        match options.op {
            Op::Write => layout.fill(ends.near.pool.window()),
            Op::Read => expect_done(ends.ask(&Command::Fill(spec.clone()))?)?,
        }
        let (op, concurrency, cpu) = (options.op, options.concurrency, Duration::ZERO);
        let mut bench = Self { ends, op, concurrency, layout: spec, sets, arrivals, next: 0, cpu };
        bench.wipe()?;
        Ok(bench)
    }

    /// Sets that a round moves: at least as many as make up the concurrency.
    pub(super) fn sets_per_round(&self) -> usize {
        self.concurrency.div_ceil(self.layout.workload.batches as usize)
    }

    /// One round of the engine.
    pub(super) fn engine_round(&mut self) -> Result<Round, LabError> {
        let sets = self.take_sets();
        let cpu = clock::process_cpu();
        let plans = sets.iter().flat_map(|&set| &self.sets[set].plans);
        let round = move_all(&self.ends, plans, self.concurrency, self.arrivals)?;
        // The kernel counts a thread's time when it sleeps or at a tick, not at the moment of asking.
        std::thread::sleep(SETTLE);
        self.cpu += clock::process_cpu() - cpu;
        Ok(round)
    }

    /// What a floor copies in its next round.
    pub(super) fn floor_work(&mut self) -> Vec<Work> {
        let sets = self.take_sets();
        let work = |set: usize| Work {
            local: self.ends.near.pool.window().clone(),
            remote: self.ends.far.clone(),
            direction: self.direction(),
            spans: self.sets[set].spans.clone(),
            hint: hint_for(self.sets[set].plans[0].bytes()),
        };
        sets.into_iter().map(work).collect()
    }

    /// The engine's own work for one round, without the copies, in nanoseconds.
    pub(super) fn post_round(&mut self) -> f64 {
        let sets = self.take_sets();
        let plans = sets.iter().flat_map(|&set| &self.sets[set].plans);
        post::post_all(plans, self.ends.near.pool.window(), &self.ends.far)
    }

    fn take_sets(&mut self) -> Vec<usize> {
        let begin = self.next;
        self.next = (begin + self.sets_per_round()) % self.sets.len();
        (begin..begin + self.sets_per_round()).map(|set| set % self.sets.len()).collect()
    }

    fn direction(&self) -> Direction {
        match self.op {
            Op::Write => Direction::Write,
            Op::Read => Direction::Read,
        }
    }

    fn wipe(&mut self) -> Result<(), LabError> {
        match self.op {
            Op::Write => expect_done(self.ends.ask(&Command::Wipe(self.layout.clone()))?),
            Op::Read => {
                Layout::new(&self.layout).wipe(self.ends.near.pool.window());
                Ok(())
            }
        }
    }

    /// Wipes the destination, has the engine move every set once more, and has every byte looked at
    /// by whoever's memory it is in: the floors wrote the same places before.
    pub(super) fn verify(&mut self, sabotage: bool) -> Result<u64, LabError> {
        self.wipe()?;
        for set in &self.sets {
            move_all(&self.ends, &set.plans, self.concurrency, self.arrivals)?;
        }
        if sabotage {
            self.spoil_one_byte()?;
        }
        match self.op {
            Op::Write => match self.ends.ask(&Command::Check(self.layout.clone()))? {
                Reply::Checked { bytes } => Ok(bytes),
                other => Err(other.unexpected()),
            },
            Op::Read => {
                let layout = Layout::new(&self.layout);
                layout.check(self.ends.near.pool.window(), Destination::Local).map_err(LabError::Corrupt)
            }
        }
    }

    fn spoil_one_byte(&self) -> Result<(), LabError> {
        let last = self.sets.last().and_then(|set| set.spans.spans().last().copied());
        let span = last.expect("a layout has at least one set");
        let (pool, offset) = match self.op {
            Op::Write => (&self.ends.far, span.remote),
            Op::Read => (self.ends.near.pool.window(), span.local),
        };
        let (at, mut byte) = (offset + span.len - 1, [0]);
        let spoil = pool.read_into(at, &mut byte).and_then(|()| pool.write_from(at, &[!byte[0]]));
        spoil.map_err(LabError::refused("spoil a byte"))
    }
}

fn ends_spec(options: &Options, pool_bytes: u64) -> EndsSpec {
    EndsSpec {
        transport: options.transport,
        pool_bytes,
        pages: options.pages,
        progress: options.progress,
        workers: options.workers,
        cores: options.cores.clone(),
        // Inline ends of one process are turned by one thread.
        target_progress: match options.transport {
            TransportName::Local => options.progress,
            _ => Progress::Adaptive,
        },
        target_cores: options.target_cores.clone(),
        spin: None,
        target_program: options.target_program.clone(),
        network: options.network.clone(),
    }
}

fn prepare_set(
    ends: &Ends,
    options: &Options,
    batches: &[Vec<(u64, u64)>],
    pairs: &[(u32, u32)],
) -> Result<Prepared, LabError> {
    let workload = &options.workload;
    let plan = |bases: &Vec<(u64, u64)>| {
        let builder = match options.op {
            Op::Write => Plan::write(&ends.near.pool, &ends.remote),
            Op::Read => Plan::read(&ends.near.pool, &ends.remote),
        };
        let stride = workload.stride_bytes();
        let builder = builder.layers(bases).blocks(pairs).block_bytes(workload.block_bytes).strides(stride, stride);
        builder.build().map_err(LabError::refused("plan a batch"))
    };
    let plans = batches.iter().map(plan).collect::<Result<Vec<_>, _>>()?;
    let spans: Arc<[Span]> = plans.iter().flat_map(|plan| plan.shape().spans().map(|(_, span)| span)).collect();
    Ok(Prepared { plans, spans: CheckedSpans::new(spans) })
}

fn expect_done(reply: Reply) -> Result<(), LabError> {
    match reply {
        Reply::Done => Ok(()),
        other => Err(other.unexpected()),
    }
}

/// Moves all plans with so many of them in flight.
fn move_all<'a>(
    ends: &Ends,
    plans: impl IntoIterator<Item = &'a Plan>,
    concurrency: usize,
    arrivals: Option<RemoteCounter>,
) -> Result<Round, LabError> {
    let mut how = Submit::new();
    if let Some(counter) = arrivals {
        how = how.count(counter);
    }
    let mut flying: VecDeque<Transfer<SystemEnv>> = VecDeque::with_capacity(concurrency);
    let mut submitting = Duration::ZERO;
    let start = Instant::now();
    for plan in plans {
        if flying.len() == concurrency {
            land(&ends.near, flying.pop_front())?;
        }
        let begun = Instant::now();
        let transfer = loop {
            match ends.peer.submit(plan, how) {
                Ok(transfer) => break transfer,
                Err(SubmitError::Full { .. }) => land(&ends.near, flying.pop_front())?,
                Err(refused) => return Err(LabError::refused("submit a plan")(refused)),
            }
        };
        // An inline engine that has moved it already did more than submit.
        if transfer.poll().is_none() || ends.near.is_threaded() {
            submitting += begun.elapsed();
        }
        flying.push_back(transfer);
    }
    while !flying.is_empty() {
        land(&ends.near, flying.pop_front())?;
    }
    Ok(Round { total_ns: start.elapsed().as_nanos() as f64, submit_ns: submitting.as_nanos() as f64 })
}

/// Waits for the end of a transfer, as an application of that kind of engine does it.
fn land(near: &End, transfer: Option<Transfer<SystemEnv>>) -> Result<(), LabError> {
    let Some(transfer) = transfer else {
        near.turn()?;
        return Ok(());
    };
    if near.is_threaded() {
        transfer.wait()?;
        return Ok(());
    }
    loop {
        if let Some(ended) = transfer.poll() {
            ended?;
            return Ok(());
        }
        near.engine.progress().map_err(LabError::refused("turn an inline engine"))?;
    }
}
