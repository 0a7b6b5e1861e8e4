//! Lab: what breaks between two hosts with RDMA. Most of it is broken inside one guest, by tests that run there; a host that dies
//! takes two.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use penstock_lab_rdma::counters::{Counters, Resources};
use penstock_lab_rdma::lab::{self, Lab, Outcome, Step};
use penstock_lab_rdma::pair::Pair;
use penstock_lab_rdma::penstock::{Command, Server};
use penstock_lab_rdma::programs;
use penstock_lab_rdma::rails::Side;
use penstock_lab_rdma::suite::Suite;

const RAILS: u8 = 2;

const STEPS: &[Step] = &[
    Step::new("frames_are_lost_and_links_go_down", links),
    Step::new("memory_is_taken_away_while_a_card_writes", refused),
    Step::new("peers_are_killed_or_do_not_look", killed),
    Step::new("a_host_dies_and_the_other_one_is_told_in_time", host_death),
];

fn main() -> ExitCode {
    lab::run(env!("CARGO_BIN_EXE_penstock-guest"), RAILS, STEPS)
}

const SOON: Duration = Duration::from_secs(20);
/// A host that falls silent is given up after five seconds without any rail, or by the heartbeat of five; the rest is what an
/// emulated machine may be late.
const TOLD_WITHIN: Duration = Duration::from_secs(20);

fn links(lab: &Lab) -> Outcome {
    inside(lab, "links::", Duration::from_secs(300))
}

fn refused(lab: &Lab) -> Outcome {
    inside(lab, "refused::", Duration::from_secs(300))
}

/// More than a hundred deaths are among them.
fn killed(lab: &Lab) -> Outcome {
    inside(lab, "killed::", Duration::from_secs(900))
}

fn inside(lab: &Lab, names: &str, limit: Duration) -> Outcome {
    let program = programs::test_of("penstock-conformance", "tests/conformance", "lab_guest_faults")?;
    let guest = lab.guest()?;
    let before = Resources::read(&guest)?;
    let suite = Suite::new(program).argument(names);
    lab.suite(&suite.within(limit), &[])?;
    Ok(Resources::wait_until(&guest, &before, SOON)?)
}

fn host_death(lab: &Lab) -> Outcome {
    let command = Command::build()?;
    let pair = Pair::boot(lab.program(), &lab::note)?;
    let before = Resources::read(&pair.a)?;
    let server = Server::start(&command, &pair.b, 1)?;
    let counters = Counters::read(&pair.a)?;
    let perf = pair.a.spawn(&command.perf(1, 65_536, 16, 1).argument("-t").argument("60"))?;
    let until = Instant::now() + Duration::from_secs(60);
    let moved = loop {
        let moved = Counters::read(&pair.a)?.since(&counters);
        if moved.sent_bytes(Side::A, 0) > 8 << 20 {
            break moved;
        }
        if Instant::now() > until {
            return Err(format!("nothing moves: {moved:?}").into());
        }
    };
    moved.expect_crossed(Side::A, 0, 4 << 20)?;
    let cut = Instant::now();
    pair.b.power_off();
    drop(server);
    let perf = perf.wait()?;
    let told = cut.elapsed();
    let last = perf.lines.iter().rev().find(|line| !line.text.is_empty()).map_or("", |line| line.text.as_str());
    lab.note(&format!("{:.1} s after the host died: {last}", told.as_secs_f64()));
    if perf.end.is_success() || !last.contains("was lost") {
        return Err(format!("it {}, saying {last}", perf.end).into());
    }
    if told > TOLD_WITHIN {
        return Err(format!("it took {told:?} to be told").into());
    }
    Ok(Resources::wait_until(&pair.a, &before, SOON)?)
}
