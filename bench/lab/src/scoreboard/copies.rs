//! M3, M4 and M6: whole workloads over shm against bare threads with the same kernel.

use penstock::config::Progress;

use super::row::{Goal, Row};
use super::{Effort, Pins};
use crate::error::LabError;
use crate::measure::cores::Stay;
use crate::perf::{self, Options, Report};
use crate::workload::Workload;

fn run(effort: &Effort, workload: &str, progress: Progress, workers: usize) -> Result<Report, LabError> {
    let pins = Pins::choose();
    let mut options = Options::new(Workload::find(workload)?);
    options.progress = progress;
    options.workers = workers;
    options.cores = if workers == 1 { pins.near.clone() } else { pins.both() };
    options.target_cores = pins.far.clone();
    options.limit = effort.limit();
    options.target_program = effort.target_program.clone();
    // The application's thread keeps away from the one copying core.
    let _stay = (workers == 1).then(|| Stay::on(&pins.far));
    perf::run(&options)
}

fn describe(report: &Report, who: &str) -> String {
    let Report { gbps, rounds, min_us, cpu_s_per_gb, .. } = report;
    format!("{who}, {gbps:.2} GB/s, {cpu_s_per_gb:.3} CPU s/GB, {rounds} rounds, min {min_us:.0} us, bytes verified")
}

/// M3.
pub(super) fn one_core(effort: &Effort) -> Result<Vec<Row>, LabError> {
    let mut rows = Vec::new();
    for (progress, who) in [(Progress::Adaptive, "one adaptive worker"), (Progress::Inline, "inline")] {
        let report = run(effort, "kv16", progress, 1)?;
        let samples = &report.samples;
        let figures = (&samples.engine[..], "us", 1e3);
        let note = describe(&report, who);
        let kernel = ("best kernel, one thread", &samples.kernel[..]);
        rows.push(Row::compared("shm", figures, kernel, Goal::RatioAtMost(1.05)).noted(&note));
        let plain = ("memcpy loop, one thread", &samples.plain[..]);
        rows.push(Row::compared("shm", figures, plain, Goal::QuickerBy(1.3)).noted(&note));
    }
    Ok(rows)
}

/// M4.
pub(super) fn two_cores(effort: &Effort) -> Result<Vec<Row>, LabError> {
    let report = run(effort, "kv16", Progress::Adaptive, 2)?;
    let samples = &report.samples;
    let kernel = ("best kernel, two threads", &samples.kernel[..]);
    let row = Row::compared("shm", (&samples.engine, "us", 1e3), kernel, Goal::RatioAtMost(1.05));
    Ok(vec![row.noted(&describe(&report, "two adaptive workers"))])
}

/// M6.
pub(super) fn many_small(effort: &Effort) -> Result<Vec<Row>, LabError> {
    let mut rows = Vec::new();
    for (workers, who, against) in
        [(2, "two adaptive workers", "best kernel, two threads"), (1, "one adaptive worker", "best kernel, one thread")]
    {
        let report = run(effort, "w2", Progress::Adaptive, workers)?;
        if workers == 1 {
            let post = Row::alone("shm", report.post_us_p50 / 1e3, "ms", Goal::AtMost(0.3));
            rows.push(post.noted("submit, claims, expansion and posts to a lane that does not copy, by one thread"));
        }
        let samples = &report.samples;
        let kernel = (against, &samples.kernel[..]);
        let total = Row::compared("shm", (&samples.engine, "ms", 1e6), kernel, Goal::RatioAtMost(1.1));
        rows.push(total.noted(&describe(&report, who)));
    }
    Ok(rows)
}
