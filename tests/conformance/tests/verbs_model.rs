//! The suite over RDMA cards, by cards in this process.

use penstock::config::{TransportName, VerbsConnect};
use penstock_conformance::{Manner, Memory, Place, Setting, Stage, suite, suite_by_name};

const fn workers(count: usize) -> Setting {
    Setting::adaptive(TransportName::Verbs, count, Place::Here)
}

const fn no_threads() -> Setting {
    Setting::inline(TransportName::Verbs, Place::Here)
}

suite!(one_rail: workers(1).over(1, Manner::Polled));
suite!(two_rails_two_workers: workers(2).over(2, Manner::Polled));
suite!(inline: no_threads().over(1, Manner::Polled));
suite!(inline_two_rails_late: no_threads().over(2, Manner::Late));
suite!(two_rails_late_caller_memory: workers(1).with(Memory::Caller).over(2, Manner::Late));
suite!(two_rails_by_itself: workers(1).over(2, Manner::Thread));
suite!(two_rails_met: workers(2).over(2, Manner::Polled).connected(VerbsConnect::Cm));
suite_by_name!(one_rail_by_name: workers(1).over(1, Manner::Polled));
suite_by_name!(two_rails_late_by_name: no_threads().over(2, Manner::Late));

/// Without this the suites above could pass by another way.
#[test]
fn the_suites_take_the_way_that_they_are_named_for() {
    for rails in [1, 2] {
        let stage = Stage::open(&workers(1).over(rails, Manner::Polled));
        assert_eq!(
            (stage.peer().transport(), stage.far().access_path()),
            ("verbs", "verbs"),
            "{}",
            stage.far().access_reason()
        );
        let path = stage.peer().path();
        assert!(path.matches("model").count() >= usize::from(rails), "{path}");
        assert!(!path.contains("rdma_cm"), "{path}");
    }
    let stage = Stage::open(&workers(1).over(1, Manner::Polled).connected(VerbsConnect::Cm));
    let path = stage.peer().path();
    assert!(path.contains("connected by rdma_cm") && path.contains("model"), "{path}");
}
