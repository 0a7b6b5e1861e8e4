//! The suite between two processes over RDMA whose queues are connected by rdma_cm, by the soft devices of a guest.

use penstock::config::{TransportName, VerbsConnect};
use penstock_conformance::{Place, Setting, Stage, suite};

const THERE: Place = Place::Process(env!("CARGO_BIN_EXE_penstock-conformance-peer"));

const fn workers(count: usize, rails: u8) -> Setting {
    Setting::adaptive(TransportName::Verbs, count, THERE).wired(rails).connected(VerbsConnect::Cm)
}

suite!(one_rail: workers(1, 1));
suite!(two_rails_two_workers: workers(2, 2));

/// Without this the suites above could pass by another way.
#[test]
fn the_suites_take_the_way_that_they_are_named_for() {
    let setting = workers(1, 1);
    if let Some(reason) = setting.why_not() {
        penstock_conformance::skip::report("the_suites_take_the_way_that_they_are_named_for", &reason);
        return;
    }
    let stage = Stage::open(&setting);
    let path = stage.peer().path();
    assert!(path.contains("connected by rdma_cm") && path.contains("rxe_a0") && path.contains("rxe_b0"), "{path}");
}
