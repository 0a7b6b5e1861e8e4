//! A process that has no file descriptors left. One test in a process, whose limit is its own.

use std::fs::File;
use std::time::{Duration, Instant};

use penstock::config::TransportName;
use penstock::{Plan, Rights, Span, Submit};
use penstock_conformance::command::Command;
use penstock_conformance::setting::Tuning;
use penstock_conformance::stage::PATIENCE;
use penstock_conformance::{Options, Place, Setting, Stage};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const SETTING: Setting =
    Setting::adaptive(TransportName::Shm, 1, Place::Process(env!("CARGO_BIN_EXE_penstock-conformance-peer")));
const ONE: Span = Span { local: 0, remote: 0, len: 4096 };

/// Why no plan can be built over a region of the target.
fn refusal(stage: &Stage, label: &str) -> String {
    Plan::write(&stage.near, &stage.region(0, label)).extents(&[ONE]).build().map(drop).unwrap_err().to_string()
}

fn is_written(stage: &Stage, label: &str) {
    let plan = Plan::write(&stage.near, &stage.region(0, label)).extents(&[ONE]).build().unwrap();
    stage.submit(stage.peer(), &plan, Submit::new()).wait().unwrap();
}

/// Leaves this process without any: what is closed elsewhere a moment later is taken, too.
fn take_all() -> Vec<File> {
    let (mut taken, mut last) = (Vec::new(), Instant::now());
    while last.elapsed() < Duration::from_millis(200) {
        match File::open("/dev/null") {
            Ok(file) => {
                taken.push(file);
                last = Instant::now();
            }
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    taken
}

fn make(stage: &mut Stage, label: &str) {
    stage.make_pool(0, label, 4096, 4096, Rights::READ_WRITE);
}

#[test]
fn a_region_whose_descriptor_finds_no_room_is_refused_and_its_session_stands() {
    let far = Tuning::default();
    let near = Tuning { descriptors: Some(40), ..far };
    let mut stage = Stage::with(&SETTING, Options { near, far, ..Options::default() });
    is_written(&stage, "kv");

    // None left in this process.
    let most = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(512), ..most }).unwrap();
    let fill = take_all();
    assert!(fill.len() < 512 && !fill.is_empty());
    make(&mut stage, "late");
    let why = refusal(&stage, "late");
    assert!(why.contains("no file descriptor left") && why.contains("connect again"), "{why}");
    assert_eq!(stage.engine.network_statistics().regions_without_fds, 1);
    is_written(&stage, "kv");
    let halves = Command::Halves { label: "halves".to_owned(), bytes: 8192, seed: 1 };
    stage.order(0, halves);
    is_written(&stage, "halves");
    drop(fill);
    make(&mut stage, "again");
    is_written(&stage, "again");

    // As many as one peer may leave: 20 of 40. Those that are used make room for others.
    let labels: Vec<String> = (0..30).map(|number| format!("pool-{number}")).collect();
    labels.iter().for_each(|label| make(&mut stage, label));
    stage.region(0, "pool-29");
    is_written(&stage, "pool-19");
    let why = refusal(&stage, "pool-20");
    assert!(why.contains("session.descriptors"), "{why}");
    assert_eq!(stage.engine.network_statistics().regions_without_fds, 11);
    labels[..19].iter().for_each(|label| is_written(&stage, label));
    make(&mut stage, "room");
    is_written(&stage, "room");

    // A greeting that finds no room for what is offered ends with words, too: there is one for its socket.
    let descriptor = stage.descriptor(0);
    stage.disconnect_first();
    let mut fill = take_all();
    drop(fill.pop());
    let why = stage.engine.connect(&descriptor, PATIENCE).map(drop).unwrap_err().to_string();
    assert!(why.contains("no file descriptor"), "{why}");
    drop(fill);
    stage.peers[0] = stage.engine.connect(&descriptor, PATIENCE).unwrap();
    is_written(&stage, "kv");
    setrlimit(Resource::Nofile, most).unwrap();
}
