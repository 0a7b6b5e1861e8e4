//! M3, M4 and M6: whole workloads over shm against bare threads with the same kernel, and against others.

use penstock::config::Progress;

use super::rivals::Rival;
use super::row::{Goal, Row};
use super::{Effort, Pins};
use crate::error::LabError;
use crate::measure::cores::Stay;
use crate::peers::pair::{MOONCAKE, NIXL, NIXL_TUNED, Pair, Way};
use crate::perf::{self, Guest, Options, Report};
use crate::workload::Workload;

/// One measurement, with a turn for every rival in each round.
pub(super) fn run(
    effort: &Effort,
    workload: &str,
    (progress, workers): (Progress, usize),
    rivals: &mut [Rival<Pair>],
) -> Result<Report, LabError> {
    let pins = Pins::choose();
    let mut options = Options::new(Workload::find(workload)?);
    options.progress = progress;
    options.workers = workers;
    options.cores = if workers == 1 { pins.near.clone() } else { pins.both() };
    options.target_cores = pins.far.clone();
    options.limit = if rivals.is_empty() { effort.limit() } else { effort.with_guests(effort.limit()) };
    options.target_program = effort.target_program.clone();
    // The application's thread keeps away from the one copying core.
    let _stay = (workers == 1).then(|| Stay::on(&pins.far));
    let mut turns: Vec<_> = rivals.iter_mut().map(|rival| || rival.turn(Pair::round)).collect();
    let mut guests: Vec<Guest<'_>> = turns.iter_mut().map(|turn| turn as Guest<'_>).collect();
    let report = perf::run_beside(&options, &mut guests)?;
    drop(turns);
    rivals.iter_mut().for_each(Rival::prove);
    Ok(report)
}

/// Pairs of others that move the same sets of the same workload.
fn rivals(effort: &Effort, workload: &str, ways: &[(&Way, Goal)]) -> Result<Vec<Rival<Pair>>, LabError> {
    let spec = Options::new(Workload::find(workload)?).layout();
    Ok(ways.iter().map(|&(way, goal)| Rival::mover(effort, way, goal, &spec)).collect())
}

fn rows_of(rivals: &[Rival<Pair>], report: &Report, unit: (&'static str, f64), who: &str) -> Vec<Row> {
    let figures = (&report.samples.engine[..], unit.0, unit.1);
    let rows = rivals.iter().zip(&report.samples.guests).map(|(rival, times)| rival.row("shm", figures, times));
    rows.map(|row| row.noted(who)).collect()
}

pub(super) fn describe(report: &Report, who: &str) -> String {
    let Report { gbps, gbps_p50, rounds, min_us, cpu_s_per_gb, .. } = report;
    format!(
        "{who}, {gbps_p50:.2} GB/s by the median round, {gbps:.2} by all, {cpu_s_per_gb:.3} CPU s/GB, {rounds} rounds, min {min_us:.0} us, \
         bytes verified"
    )
}

/// M3.
pub(super) fn one_core(effort: &Effort) -> Result<Vec<Row>, LabError> {
    let mut rows = Vec::new();
    let ways = [(&NIXL, Goal::Reported), (&NIXL_TUNED, Goal::QuickerBy(4.5)), (&MOONCAKE, Goal::Reported)];
    let mut rivals = rivals(effort, "kv16", &ways)?;
    for (progress, who) in [(Progress::Adaptive, "one adaptive worker"), (Progress::Inline, "inline")] {
        let report = run(effort, "kv16", (progress, 1), &mut rivals)?;
        let samples = &report.samples;
        let figures = (&samples.engine[..], "us", 1e3);
        let note = describe(&report, who);
        let kernel = ("best kernel, one thread", &samples.kernel[..]);
        rows.push(Row::compared("shm", figures, kernel, Goal::RatioAtMost(1.05)).noted(&note));
        let plain = ("memcpy loop, one thread", &samples.plain[..]);
        rows.push(Row::compared("shm", figures, plain, Goal::QuickerBy(1.3)).noted(&note));
        rows.extend(rows_of(&rivals, &report, ("us", 1e3), who));
        // They have had their rounds.
        rivals.clear();
    }
    Ok(rows)
}

/// M4.
pub(super) fn two_cores(effort: &Effort) -> Result<Vec<Row>, LabError> {
    let ways = [(&NIXL, Goal::Reported), (&NIXL_TUNED, Goal::QuickerBy(8.0)), (&MOONCAKE, Goal::Reported)];
    let mut rivals = rivals(effort, "kv16", &ways)?;
    let who = "two adaptive workers";
    let report = run(effort, "kv16", (Progress::Adaptive, 2), &mut rivals)?;
    let samples = &report.samples;
    let kernel = ("best kernel, two threads", &samples.kernel[..]);
    let row = Row::compared("shm", (&samples.engine, "us", 1e3), kernel, Goal::RatioAtMost(1.05));
    let mut rows = vec![row.noted(&describe(&report, who))];
    rows.extend(rows_of(&rivals, &report, ("us", 1e3), who));
    Ok(rows)
}

/// M6.
pub(super) fn many_small(effort: &Effort) -> Result<Vec<Row>, LabError> {
    let mut rows = Vec::new();
    let mut rivals = rivals(effort, "w2", &[(&NIXL, Goal::Reported), (&NIXL_TUNED, Goal::Reported)])?;
    for (workers, who, against) in
        [(2, "two adaptive workers", "best kernel, two threads"), (1, "one adaptive worker", "best kernel, one thread")]
    {
        let report = run(effort, "w2", (Progress::Adaptive, workers), &mut rivals)?;
        if workers == 1 {
            let post = Row::alone("shm", report.post_us_p50 / 1e3, "ms", Goal::AtMost(0.3));
            rows.push(post.noted("submit, claims, expansion and posts to a lane that does not copy, by one thread"));
        }
        let samples = &report.samples;
        let kernel = (against, &samples.kernel[..]);
        let total = Row::compared("shm", (&samples.engine, "ms", 1e6), kernel, Goal::RatioAtMost(1.1));
        rows.push(total.noted(&describe(&report, who)));
        rows.extend(rows_of(&rivals, &report, ("ms", 1e6), who));
        rivals.clear();
    }
    Ok(rows)
}
