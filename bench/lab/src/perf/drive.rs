//! Everything prepared for the rounds of one measurement, and the rounds themselves.

use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock::config::{Progress, TransportName};
use penstock::memory::copy::hint_for;
use penstock::{Direction, Plan, RemoteCounter, RemoteRegion, Span, SystemEnv};

use super::SETTLE;
use super::mover::{Halt, Line, Mover};
use super::options::{Op, Options};
use super::pace::{Cutter, Pace};
use super::post;
use super::watch::Meter;
use crate::ends::end::End;
use crate::ends::wire::{Command, Reply};
use crate::ends::{Ends, EndsSpec};
use crate::error::LabError;
use crate::floor::Work;
use crate::layout::{Destination, Layout, LayoutSpec, Stretch};
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
    spec: LayoutSpec,
    layout: Layout,
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
                let missing = || LabError::Target { why: "it announced no counter".to_owned() };
                Some(counter.ok_or_else(|| LabError::lost(&ends.peer).unwrap_or_else(missing))?)
            }
            false => None,
        };
        let batches = layout.batches();
        let sets = layout.sets().iter().map(|pairs| prepare_set(&ends, options, &batches, pairs));
        let sets = sets.collect::<Result<Vec<_>, LabError>>().map_err(|error| error.or_loss_of(&ends.peer))?;
        // The destination is fresh memory, in which no word is one of the pattern.
        match options.op {
            Op::Write => {
                layout.fill(ends.near.pool.window());
                ends.near.has_filled()?;
            }
            Op::Read => expect_done(ends.ask(&Command::Fill(spec.clone()))?)?,
        }
        let (op, concurrency, cpu) = (options.op, options.concurrency, Duration::ZERO);
        Ok(Self { ends, op, concurrency, spec, layout, sets, arrivals, next: 0, cpu })
    }

    /// Sets that a round moves: at least as many as make up the concurrency.
    pub(super) fn sets_per_round(&self) -> usize {
        self.concurrency.div_ceil(self.spec.workload.batches as usize)
    }

    /// Bytes that a round moves.
    pub(super) fn bytes_per_round(&self) -> u64 {
        self.sets_per_round() as u64 * self.spec.workload.bytes()
    }

    /// Whether bytes go through staging memory, of either side.
    pub(super) fn is_staged(&self) -> bool {
        self.sets.iter().flat_map(|set| &set.plans).any(Plan::is_staged)
    }

    /// One round of the engine.
    pub(super) fn engine_round(&mut self, meter: &mut Meter<'_, '_>) -> Result<Round, Halt> {
        let sets = self.take_sets();
        let cpu = clock::process_cpu();
        meter.turn_begins();
        let (near, peer, ..) = self.ends.parts();
        let mut line = Line { near, peer, served: None, arrivals: self.arrivals };
        let mut mover = Mover::new(&mut line, meter);
        let plans = sets.iter().flat_map(|&set| &self.sets[set].plans);
        let moved = move_whole(&mut mover, plans, self.concurrency);
        if moved.is_err() {
            mover.cancel();
        }
        meter.turn_ends();
        meter.pulse(None);
        // The kernel counts a thread's time when it sleeps or at a tick, not at the moment of asking.
        std::thread::sleep(SETTLE);
        self.cpu += clock::process_cpu() - cpu;
        meter.rounds += u64::from(moved.is_ok());
        moved
    }

    /// Rounds to another host, one right after the other, until the time is over. Answers where the bytes stand that landed well, and
    /// why it ended before its time, if it did.
    pub(super) fn rounds_there(
        &mut self,
        most: u64,
        meter: &mut Meter<'_, '_>,
        mut ended: impl FnMut(Round),
    ) -> (Stretch, Option<Halt>) {
        let (mut pace, mut begun_bytes, mut in_order) = (Pace::new(), 0, 0);
        meter.turn_begins();
        let halt = loop {
            if meter.rounds >= most || meter.is_over() {
                break None;
            }
            let (sets, bytes, begun) = (self.take_sets(), self.bytes_per_round(), Instant::now());
            let (near, peer, remote, served) = self.ends.parts();
            let mut line = Line { near, peer, served, arrivals: self.arrivals };
            let mut mover = Mover::new(&mut line, meter);
            let moved = if pace.is_whole() {
                let plans = sets.iter().flat_map(|&set| &self.sets[set].plans);
                move_whole(&mut mover, plans, self.concurrency)
            } else {
                let spans = sets.iter().flat_map(|&set| self.layout.spans(set));
                let plan = Slicer { near, remote, op: self.op };
                move_sliced(&mut mover, Cutter::new(spans), &plan, self.concurrency, &mut pace)
            };
            if moved.is_err() {
                mover.cancel();
            }
            (begun_bytes, in_order) = (begun_bytes + mover.begun, in_order + mover.in_order);
            let halted = match moved {
                Ok(round) => {
                    ended(round);
                    pace.round_ended(bytes, begun.elapsed());
                    mover.meter.rounds += 1;
                    mover.pulse().err()
                }
                Err(halt) => Some(halt),
            };
            if halted.is_some() {
                break halted;
            }
        };
        meter.turn_ends();
        (self.layout.standing(in_order, begun_bytes), halt)
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
            Op::Write => expect_done(self.ends.ask(&Command::Wipe(self.spec.clone()))?),
            Op::Read => {
                self.layout.wipe(self.ends.near.pool.window());
                self.ends.near.has_filled()
            }
        }
    }

    /// Wipes the destination, has the engine move every set once more, and has every byte looked at
    /// by whoever's memory it is in: the floors wrote the same places before. Answers how many; none where it was interrupted.
    pub(super) fn verify(&mut self, sabotage: bool, meter: &mut Meter<'_, '_>) -> Result<Option<u64>, LabError> {
        self.wipe()?;
        let (near, peer, ..) = self.ends.parts();
        let mut line = Line { near, peer, served: None, arrivals: self.arrivals };
        for set in &self.sets {
            let moved = move_whole(&mut Mover::new(&mut line, meter), &set.plans, self.concurrency);
            match moved {
                Ok(_) => {}
                Err(Halt::Cut) => return Ok(None),
                Err(Halt::Failed(error)) => return Err(error),
            }
        }
        if self.op == Op::Read {
            self.ends.near.fetched()?;
        }
        if sabotage {
            self.spoil_one_byte()?;
        }
        match self.op {
            Op::Write => match self.ends.ask(&Command::Check(self.spec.clone()))? {
                Reply::Checked { bytes } => Ok(Some(bytes)),
                other => Err(other.unexpected()),
            },
            Op::Read => {
                let looked = self.layout.check(self.ends.near.pool.window(), Destination::Local);
                looked.map(Some).map_err(LabError::Corrupt)
            }
        }
    }

    /// Has the bytes looked at that measured rounds have brought to where they are, or from there. Answers how many; none where
    /// `is_over` said so before.
    pub(super) fn verify_there(
        &mut self,
        stands: Stretch,
        sabotage: bool,
        is_over: &dyn Fn() -> bool,
    ) -> Result<Option<u64>, LabError> {
        if self.op == Op::Read {
            self.ends.near.fetched()?;
        }
        if sabotage {
            self.spoil_one_byte()?;
        }
        match self.op {
            Op::Read => {
                let window = self.ends.near.pool.window();
                let looked = self.layout.check_stretch(window, Destination::Local, stands, is_over);
                looked
                    .map(|bytes| (bytes == stands.bytes.min(self.layout.bytes())).then_some(bytes))
                    .map_err(LabError::Corrupt)
            }
            Op::Write => {
                let (near, _, _, served) = self.ends.parts();
                let Some(served) = served else { return Ok(None) };
                served.check(near, &self.spec, stands, is_over)
            }
        }
    }

    fn spoil_one_byte(&self) -> Result<(), LabError> {
        // The first: a measurement that is cut off may not have come to the last.
        let span = self.layout.spans(0).next().expect("a layout has at least one set, and that a block");
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
        memory: options.memory,
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
            Op::Write => Plan::write(ends.near.region(), &ends.remote),
            Op::Read => Plan::read(ends.near.region(), &ends.remote),
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
fn move_whole<'p>(
    mover: &mut Mover<'_, '_, '_, '_, '_>,
    plans: impl IntoIterator<Item = &'p Plan>,
    concurrency: usize,
) -> Result<Round, Halt> {
    let (start, submitting) = (Instant::now(), mover.submitting);
    for plan in plans {
        if mover.flying() == concurrency {
            mover.land()?;
        }
        mover.submit(plan)?;
    }
    mover.land_all()?;
    let submit_ns = (mover.submitting - submitting).as_nanos() as f64;
    Ok(Round { total_ns: start.elapsed().as_nanos() as f64, submit_ns })
}

/// Makes plans of slices.
struct Slicer<'a> {
    near: &'a End,
    remote: &'a RemoteRegion<SystemEnv>,
    op: Op,
}

impl Slicer<'_> {
    fn plan(&self, spans: &[Span]) -> Result<Plan, LabError> {
        let builder = match self.op {
            Op::Write => Plan::write(self.near.region(), self.remote),
            Op::Read => Plan::read(self.near.region(), self.remote),
        };
        builder.extents(spans).build().map_err(LabError::refused("plan a slice"))
    }
}

/// Moves spans in slices. When the time is over no slice begins, and what is under way is waited for.
fn move_sliced(
    mover: &mut Mover<'_, '_, '_, '_, '_>,
    mut cutter: Cutter<impl Iterator<Item = Span>>,
    slicer: &Slicer<'_>,
    concurrency: usize,
    pace: &mut Pace,
) -> Result<Round, Halt> {
    let start = Instant::now();
    loop {
        let at_once = pace.at_once(concurrency);
        while mover.flying() >= at_once {
            if let Some(landed) = mover.land()? {
                pace.landed(landed, Instant::now());
            }
        }
        if mover.meter.is_over() {
            mover.land_all()?;
            return Err(Halt::Cut);
        }
        let slice = cutter.next(pace.slice_bytes(at_once));
        if slice.is_empty() {
            break;
        }
        mover.submit(&slicer.plan(&slice)?)?;
        mover.pulse()?;
    }
    mover.land_all()?;
    Ok(Round { total_ns: start.elapsed().as_nanos() as f64, submit_ns: mover.submitting.as_nanos() as f64 })
}
