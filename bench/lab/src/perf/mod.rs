//! One measurement: a workload between two ends of this host, its floor in the same run, and a proof
//! that the bytes arrived.
//!
//! - [`options`]: what to measure; [`report`]: what came out
//! - [`watch`]: what is told while it goes on, and how it is cut off
//! - `drive`: pools, plans and rounds; `mover`: plans on their way; `pace`: how much at once to another host
//! - `post`: the engine's own part of a round; `room`: whether there is memory for it
//!
//! A program that calls [`run`] over shm hands the arguments after [`TARGET_ARGUMENT`] to [`target_main`]
//! when that is its first one:
//!
//! ```no_run
//! use std::process::ExitCode;
//! use penstock_lab::perf::{self, Options, PerfError};
//! use penstock_lab::workload::Workload;
//!
//! fn main() -> ExitCode {
//!     let mut arguments = std::env::args().skip(1).peekable();
//!     if arguments.next_if_eq(perf::TARGET_ARGUMENT).is_some() {
//!         return perf::target_main(arguments);
//!     }
//!     let measured = Workload::find("kv16").map_err(PerfError::from).and_then(|kv16| perf::run(&Options::new(kv16)));
//!     match measured {
//!         Ok(report) => println!("{:.2} GB/s", report.gbps),
//!         Err(error) => eprintln!("{error}"),
//!     }
//!     ExitCode::SUCCESS
//! }
//! ```

mod drive;
mod mover;
pub mod options;
mod pace;
mod post;
pub mod report;
pub(crate) mod room;
pub mod watch;

use std::time::{Duration, Instant};

use self::drive::Bench;
use self::mover::Halt;
pub use self::options::{Op, Options};
pub use self::report::{CutOff, DeviceSide, Packets, Report, Samples};
use self::report::{Measured, Thinned};
use self::watch::Meter;
pub use self::watch::{Interval, Progress, Watch};
pub use crate::ends::sweep;
pub use crate::ends::target::{ARGUMENT as TARGET_ARGUMENT, main as target_main};
pub use crate::error::LabError as PerfError;
use crate::floor::{Crew, Means};
use crate::layout::Stretch;
use crate::measure::clock;
use crate::measure::cores::Stay;
use crate::measure::interleave_until;

/// Measures. The rounds of the engine and of its floors take turns; with [`Options::verify`] every byte is
/// looked at in the end.
pub fn run(options: &Options) -> Result<Report, PerfError> {
    run_beside(options, &mut [])
}

/// Measures as [`run`] does, and gives guests their turn in each round. What a guest answers stands in
/// [`Samples::guests`] in its place. Anything that ends it before its time is an error.
pub fn run_beside(options: &Options, guests: &mut [Guest<'_>]) -> Result<Report, PerfError> {
    let mut watch = Watch { is_over: &|| false, interval: None, tell: &mut |_| () };
    let (report, failed) = measure(options, guests, &mut watch)?;
    match failed {
        Some(error) => Err(error),
        None => Ok(report),
    }
}

/// Measures as [`run`] does while somebody looks on. Once it has begun it has a report, however it ends: [`Report::cut_off`] says whether
/// that was before its time. Only wrong bytes have none.
pub fn run_watched(options: &Options, watch: &mut Watch<'_>) -> Result<Report, PerfError> {
    measure(options, &mut [], watch).map(|(report, _)| report)
}

/// Somebody else who moves the same workload once when asked, in nanoseconds.
pub type Guest<'a> = &'a mut dyn FnMut() -> f64;

/// A pause before each turn: an adaptive worker has fallen asleep by then and takes nothing from a floor's
/// thread on its core.
const SETTLE: Duration = Duration::from_micros(300);

/// Rounds of the engine's own part alone, where nothing takes turns with it, and how long they may take.
const POST_ROUNDS: usize = 31;
const POST_WITHIN: Duration = Duration::from_millis(50);

/// How long somebody who has interrupted a measurement waits at most for what had arrived to be looked at.
const LAST_LOOK: Duration = Duration::from_secs(3);

/// What takes turns in a measurement.
#[derive(Debug, Clone, Copy)]
enum Turn {
    Engine,
    Floor(Means),
    Post,
    Guest(usize),
}

/// The report, and what failed in the middle of it.
fn measure(
    options: &Options,
    guests: &mut [Guest<'_>],
    watch: &mut Watch<'_>,
) -> Result<(Report, Option<PerfError>), PerfError> {
    options.check()?;
    room::refuse_too_large(options)?;
    let _stay = (!options.progress.is_threaded()).then(|| Stay::on(&options.cores));
    let mut bench = Bench::prepare(options)?;
    let (measured, halt) = if bench.ends.is_here() {
        measure_here(&mut bench, options, guests, watch)?
    } else {
        measure_there(&mut bench, options, watch)?
    };
    let is_over = watch.is_over;
    let (mut cut_off, mut failed) = match halt {
        None => (None, None),
        Some(Halt::Cut) if !is_over() => (None, None),
        Some(Halt::Cut) => (Some(CutOff::Interrupted), None),
        Some(Halt::Failed(error)) => cut_off_by(error, &bench),
    };
    // What a lost target has nobody can ask, and what was interrupted is not moved a second time.
    let is_looked_at = options.verify && failed.is_none() && (cut_off.is_none() || !bench.ends.is_here());
    let mut verified = None;
    if is_looked_at {
        match verify(&mut bench, options, measured.stands, is_over) {
            Ok(looked_at) => verified = looked_at,
            Err(wrong @ PerfError::Corrupt(_)) => return Err(wrong),
            // What was measured stands all the same.
            Err(error) => (cut_off, failed) = cut_off_by(error, &bench),
        }
        if verified.is_none() && cut_off.is_none() {
            cut_off = Some(CutOff::Interrupted);
        }
    }
    let report = Report::new(options, bench.sets_per_round() as u64, &bench.ends, bench.is_staged());
    let report = report.with(measured, verified, cut_off);
    Ok((report, failed))
}

fn cut_off_by(error: PerfError, bench: &Bench) -> (Option<CutOff>, Option<PerfError>) {
    let error = error.or_loss_of(&bench.ends.peer);
    (Some(CutOff::Failed(error.to_string())), Some(error))
}

/// Has the bytes looked at. Answers how many; none where somebody asked for the end meanwhile. Who had asked for it before waits only
/// a moment.
fn verify(
    bench: &mut Bench,
    options: &Options,
    stands: Stretch,
    is_over: &dyn Fn() -> bool,
) -> Result<Option<u64>, PerfError> {
    let (was_over, begun) = (is_over(), Instant::now());
    let is_over = || if was_over { begun.elapsed() >= LAST_LOOK } else { is_over() };
    if !bench.ends.is_here() {
        return bench.verify_there(stands, options.sabotage, &is_over);
    }
    let mut unheard = |_| ();
    let mut nobody = Watch { is_over: &is_over, interval: None, tell: &mut unheard };
    let mut meter = Meter::begin(&mut nobody, Duration::MAX, false);
    bench.verify(options.sabotage, &mut meter)
}

/// Between two ends of this host: the engine, its floors and guests take turns.
fn measure_here(
    bench: &mut Bench,
    options: &Options,
    guests: &mut [Guest<'_>],
    watch: &mut Watch<'_>,
) -> Result<(Measured, Option<Halt>), PerfError> {
    let target_cpu = bench.ends.target_cpu()?;
    let mut crew = Crew::new(options.workers, &options.cores);
    let (mut submit, mut warmed) = (Vec::new(), None);
    let invited = (0..guests.len()).map(Turn::Guest);
    let mut meter = Meter::begin(watch, options.limit.within, options.is_sharp).with_one_round();
    let mut take = |turn: Turn| {
        if meter.is_interrupted() {
            return Err(Halt::Cut);
        }
        std::thread::sleep(SETTLE);
        match turn {
            Turn::Engine => {
                let round = bench.engine_round(&mut meter)?;
                if warmed.is_none() {
                    warmed = Some(meter.bytes);
                    meter.restart();
                } else {
                    submit.push(round.submit_ns);
                }
                Ok(round.total_ns)
            }
            Turn::Floor(means) => {
                let work = bench.floor_work();
                Ok(work.iter().try_fold(0.0, |sum, work| Ok::<_, PerfError>(sum + crew.copy(work, means)?))?)
            }
            Turn::Post => Ok(bench.post_round()),
            Turn::Guest(index) => Ok(guests[index]()),
        }
    };
    let floors = [Turn::Floor(Means::Kernel), Turn::Floor(Means::Plain)];
    let own = [Turn::Engine, Turn::Post];
    let turns: Vec<Turn> = own.into_iter().chain(floors).chain(invited).collect();
    let (mut times, halt) = interleave_until(options.limit, &turns, &mut take);
    let guests = times.split_off(own.len() + floors.len());
    let mut times = times.into_iter();
    let mut next = || times.next().unwrap_or_default();
    let (engine, post, kernel, plain) = (next(), next(), next(), next());
    let (bytes, rounds, elapsed) = (meter.bytes, meter.rounds, meter.moving);
    // A target that has gone says nothing any more; then nobody knows what it used.
    let cpu = bench.ends.target_cpu().ok().map(|now| bench.cpu + now.saturating_sub(target_cpu));
    let samples = Samples { engine, kernel, plain, submit, post, guests };
    let stands = Stretch { from: 0, bytes: 0 };
    let cpu_bytes = bytes + warmed.unwrap_or(0);
    let measured = Measured { samples, bytes, rounds, elapsed, cpu, cpu_bytes, stands, packets: None };
    Ok((measured, halt))
}

/// To another host: one round right after the other, as what is measured is the way there.
fn measure_there(
    bench: &mut Bench,
    options: &Options,
    watch: &mut Watch<'_>,
) -> Result<(Measured, Option<Halt>), PerfError> {
    charge(bench, 0, false)?;
    let cpu = clock::process_cpu();
    let mut meter = Meter::begin(watch, options.limit.within, options.is_sharp);
    meter.packets = bench.ends.peer.packets();
    let (mut engine, mut submit) = (Thinned::new(), Thinned::new());
    let (stands, halt) = bench.rounds_there(options.limit.rounds as u64, &mut meter, |round| {
        engine.push(round.total_ns);
        submit.push(round.submit_ns);
    });
    let (bytes, rounds, elapsed) = (meter.bytes, meter.rounds, meter.moving);
    let packets = meter.packets.map(Packets::from);
    let cpu = clock::process_cpu() - cpu;
    let is_lost = matches!(halt, Some(Halt::Failed(_)));
    let there = if is_lost { None } else { charge(bench, bytes, true).ok() };
    let mut samples = Samples { engine: engine.into_times(), submit: submit.into_times(), ..Samples::default() };
    let begun = Instant::now();
    while samples.post.len() < POST_ROUNDS && (samples.post.is_empty() || begun.elapsed() < POST_WITHIN) {
        samples.post.push(bench.post_round());
    }
    let cpu = there.map(|there| there + cpu);
    Ok((Measured { samples, bytes, rounds, elapsed, cpu, cpu_bytes: bytes, stands, packets }, halt))
}

fn charge(bench: &mut Bench, moved: u64, is_last: bool) -> Result<Duration, PerfError> {
    let (near, _, _, served) = bench.ends.parts();
    served.map_or(Ok(Duration::ZERO), |served| served.charge(near, moved, is_last))
}
