//! Lab: what speaks verbs, on the real stack: in a guest, between devices with a wire between them.

use std::process::ExitCode;
use std::time::Duration;

use penstock_lab_rdma::counters::{Counters, Resources};
use penstock_lab_rdma::lab::{self, Lab, Outcome, Step};
use penstock_lab_rdma::programs;
use penstock_lab_rdma::rails::Side;
use penstock_lab_rdma::suite::Suite;

const RAILS: u8 = 2;

const STEPS: &[Step] = &[Step::new("a_real_card_keeps_what_the_seam_promises", card)];

fn main() -> ExitCode {
    lab::run(env!("CARGO_BIN_EXE_penstock-guest"), RAILS, STEPS)
}

const SOON: Duration = Duration::from_secs(20);

/// The tests of two cards in one process, none of which may leave anything behind.
fn card(lab: &Lab) -> Outcome {
    let program = programs::test_of("penstock-verbs", "engine/backends/verbs", "lab_device")?;
    let guest = lab.guest()?;
    let (resources, before) = (Resources::read(&guest)?, Counters::read(&guest)?);
    lab.suite(&Suite::new(program).variable("PENSTOCK_LABS", "1").within(Duration::from_secs(240)), &[])?;
    let moved = Counters::read(&guest)?.since(&before);
    let sent = moved.sent_bytes(Side::A, 0);
    lab.note(&format!("{sent} bytes and {} packets left side A", moved.sent_packets(Side::A, 0)));
    moved.expect_crossed(Side::A, 0, 1 << 20)?;
    Ok(Resources::wait_until(&guest, &resources, SOON)?)
}
