//! M8: whole workloads over TCP against bare blocking calls that carry the same blocks, and against others.

use penstock::config::{PagesChoice, Progress, TransportName};

use super::copies::describe;
use super::rivals::Rival;
use super::row::{Goal, Row};
use super::{Effort, Pins};
use crate::ends::network::Network;
use crate::ends::on_device::MemoryKind;
use crate::ends::stream::{Stream, TUNINGS, Tuning};
use crate::ends::wire::{Command, Reply};
use crate::ends::{Ends, EndsSpec};
use crate::error::LabError;
use crate::layout::{Layout, LayoutSpec};
use crate::measure::cores::Stay;
use crate::measure::{interleave, median};
use crate::peers::pair::{MOONCAKE, NIXL_TCP, Pair};
use crate::peers::tools::{IPERF3, Meter};
use crate::perf::{self, Guest, Options, Report};
use crate::workload::Workload;

const WORKLOADS: [&str; 2] = ["kv16", "w5"];
const TCP: &str = "tcp";
const LOOP: &str = "sendmsg and recvmsg, blocking";
/// As much of the bare calls' rate is wanted.
const GOAL: Goal = Goal::RateAtLeast(0.95);
/// How many times quicker than engines of others.
const OTHERS: Goal = Goal::QuickerBy(4.0);
/// What one run of iperf3 moves: some tenths of a second.
const IPERF3_BYTES: u64 = 512 << 20;
/// Rounds by which a way to use the socket is chosen.
const TRIAL_ROUNDS: usize = 7;

pub(super) fn measure(effort: &Effort) -> Result<Vec<Row>, LabError> {
    let rows = WORKLOADS.map(|name| Workload::find(name).map_err(LabError::from).and_then(|it| one(effort, it)));
    rows.into_iter().collect::<Result<Vec<_>, _>>().map(|rows| rows.concat())
}

/// Everything that one workload is held against, in the same rounds.
fn one(effort: &Effort, workload: Workload) -> Result<Vec<Row>, LabError> {
    let pins = Pins::choose();
    let mut options = Options::new(workload);
    options.transport = TransportName::Tcp;
    options.cores = pins.near.clone();
    options.target_cores = pins.far.clone();
    options.limit = effort.with_guests(effort.limit());
    options.target_program = effort.target_program.clone();
    let spec = options.layout();
    let mut others = Others::open(effort, &pins, &spec)?;
    let mut rows = Vec::new();
    for (progress, who) in [(Progress::Adaptive, "one adaptive worker"), (Progress::Inline, "inline")] {
        options.progress = progress;
        // The application's thread keeps away from the worker that sends.
        let _stay = progress.is_threaded().then(|| Stay::on(&pins.far));
        let measured = others.beside(&options)?;
        rows.extend(others.rows(&measured, who, progress.is_threaded()));
        // Engines of others have had their rounds.
        others.dismiss();
    }
    others.bare.prove()?;
    Ok(rows)
}

/// What one measurement came to.
struct Measured {
    /// Ours, or why there is none.
    engine: Result<Report, LabError>,
    /// The bare calls', the pairs' and iperf3's times, in this order.
    others: Vec<Vec<f64>>,
}

/// Everybody but us.
struct Others {
    bare: Bare,
    pairs: Vec<Rival<Pair>>,
    meters: Vec<Rival<Meter>>,
    workload: Workload,
}

impl Others {
    fn open(effort: &Effort, pins: &Pins, spec: &LayoutSpec) -> Result<Self, LabError> {
        let pairs = [NIXL_TCP, MOONCAKE].map(|way| Rival::mover(effort, &way, OTHERS, spec));
        let meters = vec![Rival::meter(effort, &IPERF3, Goal::Reported, pins)];
        let bare = Bare::open(effort, pins, spec)?;
        Ok(Self { bare, pairs: pairs.into(), meters, workload: spec.workload.clone() })
    }

    /// All of them in the rounds of the engine; where that cannot be measured, in rounds of their own.
    fn beside(&mut self, options: &Options) -> Result<Measured, LabError> {
        let bytes = self.workload.bytes();
        let Self { bare, pairs, meters, .. } = self;
        let mut bare = || bare.turn();
        let mut pairs: Vec<_> = pairs.iter_mut().map(|rival| || rival.move_set(bytes)).collect();
        let mut meters: Vec<_> = meters.iter_mut().map(|rival| || rival.measure(IPERF3_BYTES) * bytes as f64).collect();
        let mut guests: Vec<Guest<'_>> = vec![&mut bare];
        guests.extend(pairs.iter_mut().map(|turn| turn as Guest<'_>));
        guests.extend(meters.iter_mut().map(|turn| turn as Guest<'_>));
        let engine = perf::run_beside(options, &mut guests);
        let others = match &engine {
            Ok(report) => report.samples.guests.clone(),
            Err(_) => {
                let turns: Vec<usize> = (0..guests.len()).collect();
                interleave(options.limit, &turns, |index| Ok::<_, LabError>(guests[index]()))?
            }
        };
        Ok(Measured { engine, others })
    }

    fn rows(&mut self, measured: &Measured, who: &str, is_judged: bool) -> Vec<Row> {
        self.pairs.iter_mut().for_each(Rival::prove);
        let (figures, note, cpu) = match &measured.engine {
            Ok(report) => (&report.samples.engine[..], describe(report, who), Some(report.cpu_s_per_gb)),
            Err(error) => (&[][..], format!("{who}: the engine was not measured: {error}"), None),
        };
        let figures = (figures, "us", 1e3);
        let name = &self.workload.name;
        let mut times = measured.others.iter().map(Vec::as_slice);
        let of_bare = times.next().unwrap_or_default();
        let row = match figures.0.is_empty() {
            true => Row::unreached(TCP, (figures.1, figures.2), (LOOP, of_bare), GOAL),
            false => Row::compared(TCP, figures, (LOOP, of_bare), GOAL),
        };
        let row = row.noted(&self.bare.in_words(of_bare)).costing(cpu, self.bare.cpu_s_per_gb());
        let mut rows = vec![if is_judged { row } else { row.unjudged() }];
        for (rival, times) in self.pairs.iter().zip(&mut times) {
            rows.push(rival.row(TCP, figures, times).costing(cpu, rival.cpu_s_per_gb()));
        }
        for (rival, times) in self.meters.iter().zip(&mut times) {
            let row = rival.row(TCP, figures, times).costing(cpu, rival.cpu_s_per_gb());
            rows.push(row.noted("the time of as many bytes in one stream between small buffers"));
        }
        rows.into_iter().map(|row| row.noted(&format!("{name}, {note}"))).collect()
    }

    fn dismiss(&mut self) {
        self.pairs.clear();
        self.meters.clear();
    }
}

/// Bare calls between two pools of their own that are like the engine's.
struct Bare {
    ends: Ends,
    spec: LayoutSpec,
    stream: Stream,
    tuning: Tuning,
    near: Vec<usize>,
    /// CPU time of both sides, round by round, in seconds.
    cpu: Vec<f64>,
    failed: Option<LabError>,
}

impl Bare {
    /// Tries the ways to use the socket, and stays with the quickest.
    fn open(effort: &Effort, pins: &Pins, spec: &LayoutSpec) -> Result<Self, LabError> {
        let layout = Layout::new(spec);
        let mut ends = Ends::open(&EndsSpec {
            // Only its pools and its processes take part; engines that meet in shared memory sleep meanwhile.
            transport: TransportName::Shm,
            pool_bytes: layout.pool_bytes(),
            pages: PagesChoice::Small,
            progress: Progress::Adaptive,
            workers: 1,
            cores: Vec::new(),
            target_progress: Progress::Adaptive,
            target_cores: pins.far.clone(),
            spin: None,
            memory: [MemoryKind::Host; 2],
            target_program: effort.target_program.clone(),
            network: Network::default(),
        })?;
        layout.fill(ends.near.pool.window());
        let _stay = Stay::on(&pins.near);
        let mut tried = Vec::new();
        for tuning in TUNINGS {
            let mut stream = open_stream(&mut ends, tuning, spec)?;
            let mut times = Vec::new();
            let rounds = if effort.quick { 1 } else { TRIAL_ROUNDS };
            for _ in 0..=rounds {
                times.push(stream.round(&mut ends)?.nanos);
            }
            // The first warmed it up.
            tried.push((median(&times[1..]), tuning));
        }
        let best = tried.into_iter().min_by(|a, b| a.0.total_cmp(&b.0));
        let (_, tuning) = best.ok_or(LabError::Option { option: "tuning", mend: "try at least one" })?;
        let stream = open_stream(&mut ends, tuning, spec)?;
        let (near, spec) = (pins.near.clone(), spec.clone());
        Ok(Self { ends, spec, stream, tuning, near, cpu: Vec::new(), failed: None })
    }

    /// Its turn. Once it has failed it has no more turns, and [`Bare::prove`] tells why.
    fn turn(&mut self) -> f64 {
        if self.failed.is_some() {
            return f64::NAN;
        }
        let _stay = Stay::on(&self.near);
        match self.stream.round(&mut self.ends) {
            Ok(streamed) => {
                self.cpu.push(streamed.cpu.as_secs_f64());
                streamed.nanos
            }
            Err(error) => {
                self.failed = Some(error);
                f64::NAN
            }
        }
    }

    fn cpu_s_per_gb(&self) -> Option<f64> {
        let bytes = self.spec.workload.bytes() as f64;
        (!self.cpu.is_empty()).then(|| median(&self.cpu) * 1e9 / bytes)
    }

    fn in_words(&self, times: &[f64]) -> String {
        let rate = self.spec.workload.bytes() as f64 / median(times);
        format!("the calls alone {rate:.2} GB/s with {}, bytes verified", self.tuning.in_words())
    }

    /// Wipes the target's pool, moves every set, and has the target look at every byte. A floor that moved wrong
    /// ones is none.
    fn prove(&mut self) -> Result<u64, LabError> {
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        match self.ends.ask(&Command::Wipe(self.spec.clone()))? {
            Reply::Done => {}
            other => return Err(other.unexpected()),
        }
        self.stream.all(&mut self.ends)?;
        match self.ends.ask(&Command::Check(self.spec.clone()))? {
            Reply::Checked { bytes } => Ok(bytes),
            other => Err(other.unexpected()),
        }
    }
}

fn open_stream(ends: &mut Ends, tuning: Tuning, spec: &LayoutSpec) -> Result<Stream, LabError> {
    let mut stream = Stream::open(ends, tuning)?;
    stream.deal(ends, spec)?;
    Ok(stream)
}
