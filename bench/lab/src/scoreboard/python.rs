//! P1: what it costs to drive the engine from Python, by its wheel, and what others take that are driven so.

use std::time::Instant;

use penstock::config::{PagesChoice, Progress, TransportName};
use penstock::{Plan, Span, Submit};
use serde_json::json;

use super::copies::run;
use super::rivals::Rival;
use super::row::{Goal, Row};
use super::{Effort, Pins};
use crate::ends::network::Network;
use crate::ends::on_device::MemoryKind;
use crate::ends::{Ends, EndsSpec};
use crate::error::LabError;
use crate::measure::cores::Stay;
use crate::measure::{interleave, least, ratio};
use crate::peers::pair::{MOONCAKE, NIXL_TUNED, PENSTOCK, PENSTOCK_INLINE, Pair, Way};
use crate::perf::Options;
use crate::workload::Workload;

const WORKLOAD: &str = "kv16";
/// The page that the driver moves too.
const PAGE: Span = Span { local: 8192, remote: 64 << 10, len: 4096 };
/// How often both begin anew: by which pages a pool is given its time differs by a tenth and more.
const TIMES: u64 = 8;
const RUST: Goal = Goal::RatioAtMost(1.05);
/// Microseconds over the same from Rust.
const PAGE_OVER: Goal = Goal::OverAtMost(3.0);

/// From where the page is moved: each has its turn in every round.
#[derive(Debug, Clone, Copy)]
enum Turn {
    Rust,
    Python,
}

pub(super) fn measure(effort: &Effort) -> Result<Vec<Row>, LabError> {
    let spec = Options::new(Workload::find(WORKLOAD)?).layout();
    let open = |way: &Way, goal| Rival::mover(effort, way, goal, &spec);
    let mut others = vec![open(&NIXL_TUNED, Goal::QuickerBy(4.5)), open(&MOONCAKE, Goal::Reported)];
    let mut rows = Vec::new();
    for (way, progress, who) in
        [(&PENSTOCK, Progress::Adaptive, "one adaptive worker"), (&PENSTOCK_INLINE, Progress::Inline, "inline")]
    {
        let [mut ours, mut rust, mut ratios] = [const { Vec::new() }; 3];
        let mut python = open(way, Goal::Reported);
        for time in 0..effort.repeat(TIMES) {
            if time > 0 {
                python = open(way, Goal::Reported);
            }
            let mut rivals = vec![python];
            // Engines of others have their rounds once.
            rivals.append(&mut others);
            let report = run(effort, WORKLOAD, (progress, 1), &mut rivals)?;
            let [python_times, others_times @ ..] = &report.samples.guests[..] else { unreachable!("it was a guest") };
            for (rival, times) in rivals[1..].iter().zip(others_times) {
                // Without ours there is nothing to compare.
                let ours = if rivals[0].is_there() { &python_times[..] } else { &[] };
                let row = rival.row("shm", (ours, "us", 1e3), times);
                rows.push(row.noted(&format!("{WORKLOAD}, {who}, both from Python")));
            }
            ratios.push(ratio(python_times, &report.samples.engine));
            ours.extend_from_slice(python_times);
            rust.extend_from_slice(&report.samples.engine);
            python = rivals.swap_remove(0);
        }
        let apart = format!(
            "{WORKLOAD}, {who}; {} times with new processes and memory, ratios {:.3} to {:.3}",
            ratios.len(),
            least(&ratios),
            ratios.iter().copied().fold(f64::NAN, f64::max)
        );
        rows.push(row(&python, ("us", 1e3), (&ours, &rust), RUST).noted(&apart));
        let [rust, ours] = pages(effort, progress, &mut python)?;
        let page = format!("4 KiB, submit and wait, {who}");
        rows.push(row(&python, ("us", 1e3), (&ours, &rust), PAGE_OVER).noted(&page));
    }
    Ok(rows)
}

/// The times from Python against those from Rust.
fn row(python: &Rival<Pair>, (unit, per): (&str, f64), (ours, rust): (&[f64], &[f64]), goal: Goal) -> Row {
    let against = ("the same from Rust", rust);
    match python.about() {
        Ok(about) => Row::compared("shm", (ours, unit, per), against, goal).noted(about),
        Err(why) => Row::unreached("shm", (unit, per), against, goal).noted(&why),
    }
}

/// One page between two processes, submitted and waited for: from Rust, and from Python.
fn pages(effort: &Effort, progress: Progress, python: &mut Rival<Pair>) -> Result<[Vec<f64>; 2], LabError> {
    let pins = Pins::choose();
    let _stay = Stay::on(if progress.is_threaded() { &pins.far } else { &pins.near });
    let ends = Ends::open(&EndsSpec {
        transport: TransportName::Shm,
        pool_bytes: 1 << 20,
        pages: PagesChoice::Small,
        progress,
        workers: 1,
        cores: pins.near.clone(),
        target_progress: Progress::Adaptive,
        target_cores: pins.far.clone(),
        spin: None,
        memory: [MemoryKind::Host; 2],
        target_program: effort.target_program.clone(),
        network: Network::default(),
    })?;
    let plan = Plan::write(&ends.near.pool, &ends.remote).extents(&[PAGE]).build();
    let plan = plan.map_err(LabError::refused("plan a page"))?;
    let repeats = effort.repeat(1_000);
    let times = interleave(effort.with_guests(effort.limit()), &[Turn::Rust, Turn::Python], |turn| match turn {
        Turn::Rust => {
            let start = Instant::now();
            for _ in 0..repeats {
                let transfer = ends.peer.submit(&plan, Submit::new()).map_err(LabError::refused("submit a page"))?;
                transfer.wait()?;
            }
            Ok::<_, LabError>(start.elapsed().as_nanos() as f64 / repeats as f64)
        }
        Turn::Python => Ok(python.turn(|pair| {
            let [nanos] = pair.alone(&json!({"do": "pages", "repeats": repeats}), ["ns"])?;
            Ok(nanos)
        })),
    })?;
    let [rust, python] = <[Vec<f64>; 2]>::try_from(times).expect("two take turns");
    Ok([rust, python])
}
