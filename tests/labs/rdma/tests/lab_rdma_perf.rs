//! Lab: M10 of the scoreboard. The engine beside perftest and a crate of somebody else's, in turns, over the same devices. Only
//! ratios mean something, since the machine is emulated; a goal that is missed is a result, a figure that is missing a failure.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use penstock_lab_rdma::lab::{self, Lab, Outcome, Step};
use penstock_lab_rdma::penstock::{Command, Server};
use penstock_lab_rdma::{Job, LabError, programs};

const STEPS: &[Step] = &[
    Step::new("the_command_measures_over_verbs", command),
    Step::new("everything_that_m10_compares_has_its_figures", scoreboard),
];

fn main() -> ExitCode {
    lab::run(env!("CARGO_BIN_EXE_penstock-guest"), 1, STEPS)
}

/// As users measure: a server on the one side, a workload from the other.
fn command(lab: &Lab) -> Outcome {
    let (command, guest) = (Command::build()?, lab.guest()?);
    let server = Server::start(&command, &guest, 1)?;
    let job = command.perf(1, 65_536, 64, 1).arguments(["--progress", "inline", "--rounds", "6"]);
    let measured = penstock_lab_rdma::penstock::Measured::parse(&guest.check(&job)?)?;
    server.has_met_verbs()?;
    lab.note(&format!("64 blocks of 64 KiB: {:.1} MB/s by {}", measured.mb_per_s, measured.path));
    Ok(())
}

/// Where the guest keeps what was measured.
const KEPT: &str = "/run/penstock-m10";

/// All rows together; a slow machine takes its time for each program that it begins.
const LIMIT: Duration = Duration::from_secs(900);

fn scoreboard(lab: &Lab) -> Outcome {
    let program = programs::binary_of("penstock-lab")?;
    let other = programs::outside("bench/peers/async-rdma", "peer-async-rdma")?;
    let guest = lab.guest()?;
    guest.check(&Job::new("mkdir").arguments(["-p", KEPT]))?;
    let job = Job::new(program.to_string_lossy()).arguments([
        "scoreboard",
        "--only",
        "M10",
        "--quick",
        "--no-peers",
        "--save",
        KEPT,
    ]);
    let path = format!("{}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", folder_of(&other));
    let running = guest.spawn(&job.variable("PATH", path).within(LIMIT))?;
    let finished = running.follow(|line| lab.note(&line.text))?;
    finished.expect_success("the scoreboard")?;
    let kept = guest.check(&Job::shell(format!("cat {KEPT}/*.json")))?;
    Ok(expect_figures(&kept)?)
}

fn folder_of(program: &Path) -> String {
    program.parent().unwrap_or(program).to_string_lossy().into_owned()
}

/// An error unless there are rows, and each has both of its figures.
fn expect_figures(kept: &str) -> Result<(), LabError> {
    let unreadable = |what: &str, text: String| LabError::Unreadable { what: what.to_owned(), text };
    let record: serde_json::Value =
        serde_json::from_str(kept).map_err(|_| unreadable("what the scoreboard kept", kept.to_owned()))?;
    let rows = record["rows"].as_array().filter(|rows| !rows.is_empty());
    let rows = rows.ok_or_else(|| unreadable("rows of the scoreboard", kept.to_owned()))?;
    let is_missing = |row: &&serde_json::Value| row["figure"].is_null() || row["against_figure"].is_null();
    match rows.iter().find(is_missing) {
        Some(row) => Err(unreadable("both figures of a row", row.to_string())),
        None => Ok(()),
    }
}
