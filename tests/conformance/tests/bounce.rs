//! The suite between two processes of one host, with memory on the other side that only its owner may touch.

mod forbid;

use forbid::forbid_process_vm;
use penstock::config::TransportName;
use penstock_conformance::{Memory, Place, Setting, Stage, suite, suite_by_name};

const THERE: Place = Place::Process(env!("CARGO_BIN_EXE_penstock-conformance-peer"));

const fn caller(setting: Setting) -> Setting {
    setting.with(Memory::Caller).without_process_vm()
}

suite!(one_worker: caller(Setting::adaptive(TransportName::Shm, 1, THERE)));
suite!(inline: caller(Setting::inline(TransportName::Shm, THERE)));
suite_by_name!(by_name: caller(Setting::adaptive(TransportName::Shm, 1, THERE)));
suite!(mixed: Setting::adaptive(TransportName::Shm, 2, THERE).with(Memory::Mixed).without_process_vm());

// Both engines allow it, and the kernel does not: the filter is this thread's, its engine's and its child's.
suite!(filtered: {
    forbid_process_vm();
    Setting::adaptive(TransportName::Shm, 2, THERE).with(Memory::Caller)
});

/// Without this the suites above could pass by another way.
#[test]
fn the_suites_take_the_way_that_they_are_named_for() {
    let stage = Stage::open(&caller(Setting::adaptive(TransportName::Shm, 1, THERE)));
    let far = stage.far();
    assert_eq!(far.access_path(), "bounce", "{}", far.access_reason());
    assert!(far.access_reason().contains("transports.process_vm is off"), "{}", far.access_reason());
    assert!(stage.peer().path().contains("bounce"), "{}", stage.peer().path());
    drop((far, stage));
    let filtered = std::thread::spawn(|| {
        forbid_process_vm();
        let stage = Stage::open(&Setting::adaptive(TransportName::Shm, 1, THERE).with(Memory::Caller));
        let far = stage.far();
        assert_eq!(far.access_path(), "bounce", "{}", far.access_reason());
        assert!(far.access_reason().contains("seccomp"), "{}", far.access_reason());
    });
    assert!(filtered.join().is_ok(), "see its message above");
}
