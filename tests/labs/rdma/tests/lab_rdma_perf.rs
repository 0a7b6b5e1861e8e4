//! Lab: penstock beside perftest, in turns, over the same devices. Only their ratio means something: the machine is emulated.

use std::process::ExitCode;

use penstock_lab_rdma::lab::{self, Lab, Outcome, Step};
use penstock_lab_rdma::penstock::{Command, Measured, Server};
use penstock_lab_rdma::perftest::{Perftest, Table};
use penstock_lab_rdma::{Guest, Job};

const STEPS: &[Step] = &[
    Step::new("blocks_of_64_kib_go_as_fast_as_perftest_writes_them", bandwidth),
    Step::new("eight_bytes_are_done_as_soon_as_perftest_has_them_done", latency),
];

fn main() -> ExitCode {
    lab::run(env!("CARGO_BIN_EXE_penstock-guest"), 1, STEPS)
}

/// Turns of each.
const ROUNDS: usize = 5;
/// What the median of the turns must not fall below. The ratio itself is printed, and wanders with what else the machine does.
const LEAST: f64 = 0.5;
/// The same for single small writes. Whether the device's own work is done at once or after the next tick of 4 ms decides most of
/// what one takes, where two processors have two pollers to run.
const LEAST_ALONE: f64 = 0.1;

/// Takes turns and gives the median of their ratios: more than one is better.
fn in_turns(
    lab: &Lab,
    theirs: &Perftest,
    ours: impl Fn(&Command) -> Job,
    ratio: impl Fn(&Table, &Measured) -> (f64, String),
) -> Result<f64, Box<dyn std::error::Error>> {
    let command = Command::build()?;
    let guest = lab.guest()?;
    let server = Server::start(&command, &guest, 1)?;
    let mut ratios = Vec::new();
    for _ in 0..ROUNDS {
        let (table, measured) = (theirs.run(&guest)?, measure(&guest, &ours(&command))?);
        let (its, words) = ratio(&table, &measured);
        lab.note(&format!("{words}: {its:.2}"));
        ratios.push(its);
    }
    server.has_met_verbs()?;
    ratios.sort_by(f64::total_cmp);
    Ok(ratios[ROUNDS / 2])
}

fn measure(guest: &Guest, job: &Job) -> Result<Measured, Box<dyn std::error::Error>> {
    Ok(Measured::parse(&guest.check(job)?)?)
}

fn judge(lab: &Lab, what: &str, median: f64, least: f64) -> Outcome {
    lab.note(&format!("{what}: {median:.2} of perftest, the median of {ROUNDS} turns"));
    if median < least { Err(format!("{what}: {median:.2} of perftest is less than {least}").into()) } else { Ok(()) }
}

fn bandwidth(lab: &Lab) -> Outcome {
    let theirs = Perftest::new("ib_write_bw -s 65536 -n 200 -m 4096", 0);
    let ours = |command: &Command| command.perf(1, 65_536, 64, 1).arguments(["--progress", "inline", "--rounds", "6"]);
    let median = in_turns(lab, &theirs, ours, |table, measured| {
        let (theirs, ours) = (table.mb_per_s(), measured.mb_per_s);
        (ours / theirs, format!("64 KiB blocks {ours:.1} MB/s, ib_write_bw {theirs:.1} MB/s"))
    })?;
    judge(lab, "64 KiB blocks", median, LEAST)
}

fn latency(lab: &Lab) -> Outcome {
    // One write at a time, which is over when the card says so.
    let theirs = Perftest::new("ib_write_bw -s 8 -n 1000 -t 1 -m 4096", 0);
    let ours = |command: &Command| command.perf(1, 8, 1, 1).arguments(["--progress", "inline", "--rounds", "300"]);
    let median = in_turns(lab, &theirs, ours, |table, measured| {
        let (theirs, ours) = (table.each_us(), measured.p50_us);
        (theirs / ours, format!("8 bytes in {ours:.0} µs, by ib_write_bw in {theirs:.0} µs"))
    })?;
    judge(lab, "8 bytes", median, LEAST_ALONE)
}
