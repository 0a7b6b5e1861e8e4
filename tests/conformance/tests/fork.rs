//! After a fork every call in the child is a typed error, and the parent does not notice.
//!
//! What a child makes by itself works as anywhere else. A program of its own, so that few threads can hold a lock of the C library or
//! of the standard library while it forks.
#![allow(clippy::print_stderr, reason = "a child has no other way to say what went wrong")]

mod child;

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use penstock::config::TransportName::{self, Local, Shm};
use penstock::{HostMemory, NoteId, Plan, PoolSpec, Rights, Submit};
use penstock_conformance::command::{Command, Reply};
use penstock_conformance::stage::PATIENCE;
use penstock_conformance::{Place, Setting, Stage};

use child::in_a_child;

const THERE: Place = Place::Process(env!("CARGO_BIN_EXE_penstock-conformance-peer"));

fn says_forked<T, E: Display>(result: Result<T, E>) -> bool {
    result.map(drop).is_err_and(|error| error.to_string().contains("this process is a fork"))
}

#[test]
fn every_call_in_a_forked_child_is_a_typed_error() {
    for setting in [Setting::adaptive(Shm, 2, THERE), Setting::inline(Shm, THERE)] {
        let mut stage = Stage::open(&setting);
        stage.order(0, Command::Counter { region: "kv".to_owned(), label: "arrivals".to_owned() });
        let counter = stage.peer().wait_counter("arrivals", PATIENCE).unwrap();
        let own = stage.near.counter("own").unwrap();
        let plan = Plan::write(&stage.near, &stage.far()).blocks(&[(0, 1)]).build().unwrap();
        let how = || Submit::new().count(counter);
        stage.submit(stage.peer(), &plan, how()).wait().unwrap();
        let answer = in_a_child(|| {
            let (engine, peer, near) = (&stage.engine, stage.peer(), &stage.near);
            let memory = HostMemory::from_vec(vec![0; 64]).expect("64 bytes");
            let card = engine.descriptor();
            let calls = [
                says_forked(engine.pool(PoolSpec::host(4096).label("child's"))),
                says_forked(engine.register(memory, "child's", Rights::NONE)),
                says_forked(engine.connect_begin(&card)),
                says_forked(engine.arm()),
                says_forked(peer.submit(&plan, how())),
                says_forked(peer.notify(NoteId(1), b"", how())),
                says_forked(near.revoke(&[(0, 4096)], PATIENCE)),
                says_forked(near.deregister(PATIENCE)),
                says_forked(near.counter("child's")),
                setting.is_inline() <= says_forked(engine.progress()),
                setting.is_inline() <= says_forked(engine.progress_all()),
            ];
            calls.iter().position(|&refused| !refused).map_or(0, |call| call as u8 + 1)
        });
        assert_eq!(answer, 0, "{setting}: the number of the first call that did not say it (or that it panicked)");
        let socket = stage.folder.path().join("source.sock");
        assert!(socket.exists());
        // Dropping what it inherited must not reach the parent either.
        assert_eq!(in_a_child(|| drop_all(&own, &stage.engine)), 0);
        assert!(socket.exists(), "{setting}: the child has removed its parent's socket");
        stage.submit(stage.peer(), &plan, how()).wait().unwrap();
        let value = Command::WaitCounter { label: "arrivals".to_owned(), count: 2, within_ms: 2000 };
        assert_eq!(stage.ask(0, value), Reply::Value(2), "each of the parent's transfers, and none of the child's");
        let connect = Command::Connect { descriptor: stage.engine.descriptor() };
        stage.order(0, connect);
        stage.order(0, Command::Stop);
        stage.start_engine(0, "target-0", penstock_conformance::Options::default());
        stage.wait_until("the old session is over", || stage.engine.peers().is_empty());
        stage.order(0, Command::Connect { descriptor: stage.engine.descriptor() });
        stage.wait_until("the parent's socket still works", || stage.engine.peers().len() == 1);
    }
}

/// What a child does with engines of its own: two that meet in its process, and one of them writes to a target in another.
fn use_own_engines(
    setting: &Setting,
    folder: &std::path::Path,
    target: &[u8],
    inherited: &Stage,
) -> Result<(), String> {
    let fail = |what: &dyn Display| what.to_string();
    let start = |name: &str, transport: &[TransportName]| {
        let spec = setting.spec(folder, name);
        let config = spec.config().transports(transport.iter().copied());
        penstock::Engine::start(config).map_err(|error| fail(&error))
    };
    let (one, two) = (start("child-one", &[Local, Shm])?, start("child-two", &[Local])?);
    let pool = |engine: &penstock::Engine| {
        let spec = PoolSpec::host(1 << 20).block(4096).label("kv").rights(Rights::READ_WRITE);
        engine.pool(spec).map_err(|error| fail(&error))
    };
    let (near, far) = (pool(&one)?, pool(&two)?);
    near.window().fill(0, 8192, 0x77).map_err(|error| fail(&error))?;
    for (card, expected) in [(two.descriptor(), "local"), (target.to_vec(), "shm")] {
        let connecting = one.connect_begin(&card).map_err(|error| fail(&error))?;
        let until = Instant::now() + PATIENCE;
        let peer = loop {
            if let Some(peer) = connecting.poll() {
                break peer.map_err(|error| fail(&error))?;
            }
            for engine in [&one, &two] {
                engine.progress_all().map_err(|cause| fail(&cause))?;
            }
            if Instant::now() > until {
                return Err("no session".to_owned());
            }
        };
        if peer.transport() != expected {
            return Err(format!("{} in place of {expected}", peer.transport()));
        }
        let remote = peer.wait_region("kv", PATIENCE).map_err(|error| fail(&error))?;
        let plan =
            Plan::write(&near, &remote).blocks(&[(1, 5)]).block_bytes(4096).build().map_err(|error| fail(&error))?;
        let sent = peer.submit(&plan, Submit::new()).map_err(|error| fail(&error))?;
        sent.wait().map_err(|fault| fail(&fault))?;
    }
    let mut found = [0; 4096];
    far.window().read_into(5 * 4096, &mut found).map_err(|error| fail(&error))?;
    if found != [0x77; 4096] {
        return Err("the bytes are not there".to_owned());
    }
    if !says_forked(inherited.engine.arm()) {
        return Err("the parent's engine is still the parent's alone".to_owned());
    }
    // An inline engine's peer in the same thread hears no goodbye.
    drop((near, far));
    let held = [one.close(Duration::from_millis(400)), two.close(Duration::from_millis(400))].concat();
    if held.is_empty() { Ok(()) } else { Err(format!("{held:?}")) }
}

/// Tells a thread beside a test to end, also where the test fails: else the scope would wait for it for ever.
struct StopsWhenDropped<'a>(&'a AtomicBool);

impl Drop for StopsWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn a_forked_child_starts_engines_of_its_own_though_its_parent_has_some() {
    for setting in [Setting::adaptive(Shm, 1, THERE), Setting::inline(Shm, THERE)] {
        let mut stage = Stage::open(&setting);
        let target = stage.descriptor(0);
        // Meanwhile the parent meets in its own process again and again: a fork may catch any of its locks.
        let stop = AtomicBool::new(false);
        let folder = stage.folder.path().to_owned();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let start = |name: &str| {
                    let config = Setting::adaptive(Local, 1, Place::Here).spec(&folder, name).config();
                    penstock::Engine::start(config).expect("an engine of the parent")
                };
                let (one, two) = (start("parent-one"), start("parent-two"));
                while !stop.load(Ordering::Relaxed) {
                    let peer = one.connect(&two.descriptor(), PATIENCE).expect("they meet");
                    peer.disconnect(PATIENCE);
                }
            });
            let _stops = StopsWhenDropped(&stop);
            for round in 0..8 {
                let answer = in_a_child(|| match use_own_engines(&setting, &folder, &target, &stage) {
                    Ok(()) => 0,
                    Err(what) => {
                        eprintln!("{setting}, round {round}: {what}");
                        1
                    }
                });
                assert_eq!(answer, 0, "{setting}, round {round}");
            }
        });
        let mut far = stage.models().1;
        far[5 * 4096..6 * 4096].fill(0x77);
        stage.assert_far(0, "kv", &far);
    }
}

/// Drops copies of what the child has inherited, as its own end would.
#[allow(unsafe_code)]
fn drop_all<A, B>(first: &A, second: &B) -> u8 {
    // SAFETY: runs in a forked child that ends right afterwards and never looks at the originals again.
    unsafe {
        drop(std::ptr::read(first));
        drop(std::ptr::read(second));
    }
    0
}
