//! After a fork every call in the child is a typed error, and the parent does not notice.
//!
//! A program of its own with a single test, so that few threads can hold a lock while it forks.

use std::fmt::Display;

use penstock::config::TransportName::Shm;
use penstock::{HostMemory, NoteId, Plan, PoolSpec, Rights, Submit};
use penstock_conformance::command::{Command, Reply};
use penstock_conformance::stage::PATIENCE;
use penstock_conformance::{Place, Setting, Stage};

const THERE: Place = Place::Process(env!("CARGO_BIN_EXE_penstock-conformance-peer"));

/// Runs `child` in a forked child and answers what it answered.
#[allow(unsafe_code)]
fn in_a_child(child: impl FnOnce() -> u8) -> i32 {
    // SAFETY: the child runs `child` and ends by _exit, so nothing of the parent's is run or flushed twice. It
    // uses nothing but this thread's data and the allocator, which the C library keeps usable after fork.
    let id = unsafe { libc::fork() };
    if id == 0 {
        let answer = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(u8::MAX);
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(answer.into()) };
    }
    assert!(id > 0, "cannot fork: {}", std::io::Error::last_os_error());
    let mut status = 0;
    // SAFETY: waits for the child made above and writes its status.
    assert_eq!(unsafe { libc::waitpid(id, &raw mut status, 0) }, id);
    assert!(libc::WIFEXITED(status), "the child was killed: {status}");
    libc::WEXITSTATUS(status)
}

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
