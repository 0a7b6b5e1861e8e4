//! One measurement: a workload between two ends of this host, its floor in the same run, and a proof
//! that the bytes arrived.
//!
//! - [`options`]: what to measure; [`report`]: what came out
//! - `drive`: pools, plans and rounds; `post`: the engine's own part of a round
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
pub mod options;
mod post;
pub mod report;

use std::time::Duration;

use self::drive::Bench;
pub use self::options::{Op, Options};
pub use self::report::{Report, Samples};
pub use crate::ends::target::{ARGUMENT as TARGET_ARGUMENT, main as target_main};
pub use crate::error::LabError as PerfError;
use crate::floor::{Crew, Means};
use crate::measure::cores::Stay;
use crate::measure::interleave;

/// Measures. The rounds of the engine and of its floors take turns; with [`Options::verify`] every byte is
/// looked at in the end.
pub fn run(options: &Options) -> Result<Report, PerfError> {
    run_beside(options, &mut [])
}

/// Measures as [`run`] does, and gives guests their turn in each round. What a guest answers stands in
/// [`Samples::guests`] in its place.
pub fn run_beside(options: &Options, guests: &mut [Guest<'_>]) -> Result<Report, PerfError> {
    options.check()?;
    let _stay = (!options.progress.is_threaded()).then(|| Stay::on(&options.cores));
    let mut bench = Bench::prepare(options)?;
    let target_cpu = bench.ends.target_cpu()?;
    let samples = measure(&mut bench, options, guests)?;
    // The warm-up's CPU time is counted as well: one round more than there are samples.
    let rounds = samples.engine.len() as u32;
    let cpu = (bench.cpu + bench.ends.target_cpu()? - target_cpu) * rounds / (rounds + 1);
    let verified = options.verify && bench.verify(options.sabotage)? > 0;
    Ok(Report::new(options, bench.sets_per_round() as u64, &bench.ends, verified).with_samples(samples, cpu))
}

/// Somebody else who moves the same workload once when asked, in nanoseconds.
pub type Guest<'a> = &'a mut dyn FnMut() -> f64;

/// A pause before each turn: an adaptive worker has fallen asleep by then and takes nothing from a floor's
/// thread on its core.
const SETTLE: Duration = Duration::from_micros(300);

/// What takes turns in a measurement.
#[derive(Debug, Clone, Copy)]
enum Turn {
    Engine,
    Floor(Means),
    Post,
    Guest(usize),
}

fn measure(bench: &mut Bench, options: &Options, guests: &mut [Guest<'_>]) -> Result<Samples, PerfError> {
    let mut crew = Crew::new(options.workers, &options.cores);
    let is_here = bench.ends.is_here();
    let mut submit = Vec::new();
    let invited = (0..guests.len()).map(Turn::Guest);
    let mut take = |turn: Turn| {
        std::thread::sleep(SETTLE);
        match turn {
            Turn::Engine => {
                let round = bench.engine_round()?;
                submit.push(round.submit_ns);
                Ok(round.total_ns)
            }
            Turn::Floor(means) => {
                let work = bench.floor_work();
                work.iter().try_fold(0.0, |sum, work| Ok(sum + crew.copy(work, means)?))
            }
            Turn::Post => Ok(bench.post_round()),
            Turn::Guest(index) => Ok(guests[index]()),
        }
    };
    // What bare threads copy must be in their reach.
    let floors = if is_here { &[Turn::Floor(Means::Kernel), Turn::Floor(Means::Plain)][..] } else { &[] };
    let own = [Turn::Engine, Turn::Post];
    let turns: Vec<Turn> = own.iter().chain(floors).copied().chain(invited).collect();
    let mut times = interleave::<PerfError, _>(options.limit, &turns, &mut take)?;
    let guests = times.split_off(own.len() + floors.len());
    let mut times = times.into_iter();
    let mut next = || times.next().unwrap_or_default();
    let (engine, post, kernel, plain) = (next(), next(), next(), next());
    // The first was the warm-up's.
    submit.remove(0);
    Ok(Samples { engine, kernel, plain, submit, post, guests })
}
