//! Lab: what speaks verbs, on the real stack: in a guest, between devices with a wire between them.

use std::process::ExitCode;
use std::time::Duration;

use penstock_lab_rdma::counters::{Counters, Resources};
use penstock_lab_rdma::lab::{self, Lab, Outcome, Step};
use penstock_lab_rdma::programs::{self, TestProgram};
use penstock_lab_rdma::rails::Side;
use penstock_lab_rdma::suite::Suite;
use penstock_lab_rdma::{Guest, LabError};

const RAILS: u8 = 2;

const STEPS: &[Step] = &[
    Step::new("a_real_card_keeps_what_the_seam_promises", card),
    Step::new("the_suites_go_by_the_cards_they_are_named_for", by_name),
    Step::new("the_suite_holds_over_two_rails", two_rails),
    Step::new("the_suite_holds_without_threads", inline),
    Step::new("transfers_by_name_are_whole_over_cards", named),
    Step::new("pulls_continuations_and_relays_go_over_cards", whole_engines),
    Step::new("queues_meet_by_the_connection_manager", met),
];

fn main() -> ExitCode {
    lab::run(env!("CARGO_BIN_EXE_penstock-guest"), RAILS, STEPS)
}

/// How long the kernel may take to take back what processes had.
const SOON: Duration = Duration::from_secs(20);

fn card(lab: &Lab) -> Outcome {
    let program = programs::test_of("penstock-verbs", "engine/backends/verbs", "lab_device")?;
    let guest = lab.guest()?;
    over_the_wire(lab, &guest, 1 << 20, &[0], || {
        lab.suite(&Suite::new(program).variable("PENSTOCK_LABS", "1").within(Duration::from_secs(300)), &[])
    })
}

fn by_name(lab: &Lab) -> Outcome {
    lab.suite(&Suite::new(suites()?).argument("the_suites_take_the_way_that_they_are_named_for"), &[])
}

fn two_rails(lab: &Lab) -> Outcome {
    conformance(lab, &["two_rails_two_workers_caller_memory::".to_owned()], &[0, 1])
}

/// One rail: with threads it carries what meets by the connection manager, below. What does not depend on who turns the engine
/// is left to the suite over two rails.
fn inline(lab: &Lab) -> Outcome {
    let subjects = ["bytes", "ends", "waiting", "withdrawal"].map(|subject| format!("inline::{subject}::"));
    conformance(lab, &subjects, &[0])
}

/// Transfers by name between two engines: with one rail, with two rails and workers, and without threads.
fn named(lab: &Lab) -> Outcome {
    let suite = ["::named::", "::defects::"].into_iter().fold(Suite::new(suites()?), Suite::argument);
    let suite = suite.within(Duration::from_secs(600));
    let guest = lab.guest()?;
    over_the_wire(lab, &guest, 1 << 20, &[0, 1], || lab.suite(&suite, &[]))
}

/// Tests of whole engines that are ignored where there are no cards: what `by name` has not, and handing over.
fn whole_engines(lab: &Lab) -> Outcome {
    let guest = lab.guest()?;
    let program = programs::test_of("penstock", "engine/runtime", "by_name")?;
    for subject in ["flows::", "pull::", "continuation::", "relay::over_cards::"] {
        let suite = Suite::new(program.clone()).argument(subject).argument("--ignored");
        over_the_wire(lab, &guest, 64 << 10, &[0], || lab.suite(&suite, &[]))?;
    }
    Ok(())
}

/// Two processes that connect by rdma_cm: what concerns sessions and bytes, and what crosses rails.
fn met(lab: &Lab) -> Outcome {
    let program = programs::test_of("penstock-conformance", "tests/conformance", "lab_guest_met")?;
    let filters = ["one_rail::sessions::", "one_rail::bytes::", "two_rails_two_workers::notes::", "named_for"];
    let suite = filters.into_iter().fold(Suite::new(program), Suite::argument);
    let guest = lab.guest()?;
    over_the_wire(lab, &guest, 1 << 20, &[0, 1], || lab.suite(&suite.within(Duration::from_secs(300)), &[]))
}

fn suites() -> Result<TestProgram, LabError> {
    programs::test_of("penstock-conformance", "tests/conformance", "lab_guest_verbs")
}

/// What these names begin of the suite; the largest case of bytes alone moves 64 MiB.
fn conformance(lab: &Lab, names: &[String], rails: &[u8]) -> Outcome {
    let suite = names.iter().fold(Suite::new(suites()?), Suite::argument).within(Duration::from_secs(900));
    let guest = lab.guest()?;
    over_the_wire(lab, &guest, 64 << 20, rails, || lab.suite(&suite, &[]))
}

/// Runs something that moves at least so many bytes over these rails together, each of which has to carry a part, and leaves
/// no resource behind.
fn over_the_wire(lab: &Lab, guest: &Guest, bytes: u64, rails: &[u8], run: impl FnOnce() -> Outcome) -> Outcome {
    let (resources, before) = (Resources::read(guest)?, Counters::read(guest)?);
    run()?;
    let moved = Counters::read(guest)?.since(&before);
    for &rail in rails {
        let (sent, packets) = (moved.sent_bytes(Side::A, rail), moved.sent_packets(Side::A, rail));
        lab.note(&format!("{sent} bytes and {packets} packets left side A by rail {rail}"));
        moved.expect_crossed(Side::A, rail, bytes / rails.len() as u64 / 4)?;
    }
    let together: u64 = rails.iter().map(|&rail| moved.sent_bytes(Side::A, rail)).sum();
    if together < bytes {
        return Err(format!("{together} bytes crossed the wire where at least {bytes} were to").into());
    }
    Ok(Resources::wait_until(guest, &resources, SOON)?)
}
