//! The suite between two processes of one host, with memory on the other side that no pool holds.

use penstock::config::TransportName;
use penstock_conformance::{Memory, Place, Setting, Stage, suite, suite_by_name};

const THERE: Place = Place::Process(env!("CARGO_BIN_EXE_penstock-conformance-peer"));

suite!(one_worker: Setting::adaptive(TransportName::Shm, 1, THERE).with(Memory::Caller));
suite!(inline: Setting::inline(TransportName::Shm, THERE).with(Memory::Caller));
suite!(mixed: Setting::adaptive(TransportName::Shm, 2, THERE).with(Memory::Mixed));
suite_by_name!(by_name: Setting::adaptive(TransportName::Shm, 1, THERE).with(Memory::Caller));

/// Without this the suites above could pass by another way.
#[test]
fn the_suites_take_the_way_that_they_are_named_for() {
    let stage = Stage::open(&Setting::adaptive(TransportName::Shm, 1, THERE).with(Memory::Caller));
    let far = stage.far();
    assert_eq!(far.access_path(), "process_vm", "{}", far.access_reason());
    assert!(far.access_reason().contains("did not allocate"), "{}", far.access_reason());
    assert!(stage.peer().path().contains("process_vm"), "{}", stage.peer().path());
    let stage = Stage::open(&Setting::adaptive(TransportName::Shm, 1, THERE));
    assert_eq!(stage.far().access_path(), "mapped");
}
