//! The suite between two processes over RDMA, by the soft devices of a guest and the wires between them.

use penstock::config::TransportName;
use penstock_conformance::{Memory, Place, Setting, Stage, suite, suite_by_name};

const THERE: Place = Place::Process(env!("CARGO_BIN_EXE_penstock-conformance-peer"));

const fn workers(count: usize, rails: u8) -> Setting {
    Setting::adaptive(TransportName::Verbs, count, THERE).wired(rails)
}

suite!(two_rails_two_workers_caller_memory: workers(2, 2).with(Memory::Caller));
suite!(inline: Setting::inline(TransportName::Verbs, THERE).wired(1));

suite_by_name!(by_name_with_one_worker: workers(1, 1));
suite_by_name!(by_name_with_two_workers: workers(2, 2));
suite_by_name!(by_name_without_threads: Setting::inline(TransportName::Verbs, THERE).wired(1));

/// Without this the suites above could pass by another way.
#[test]
fn the_suites_take_the_way_that_they_are_named_for() {
    for rails in [1, 2] {
        let setting = workers(1, rails);
        if let Some(reason) = setting.why_not() {
            penstock_conformance::skip::report("the_suites_take_the_way_that_they_are_named_for", &reason);
            return;
        }
        let stage = Stage::open(&setting);
        assert_eq!(
            (stage.peer().transport(), stage.far().access_path()),
            ("verbs", "verbs"),
            "{}",
            stage.far().access_reason()
        );
        let path = stage.peer().path();
        for rail in 0..rails {
            assert!(path.contains(&format!("rxe_a{rail}")) && path.contains(&format!("rxe_b{rail}")), "{path}");
        }
    }
}
