//! A process with an engine forks workers, as Python's multiprocessing does: each inherits everything, tries
//! this and that, drops what it has and ends by `exit`, with everything that runs then. It neither hangs
//! nor disturbs its parent's sessions, transfers and life.
//!
//! A program of its own with a single test, so that the engine's threads are the only others.

use std::time::{Duration, Instant};

use penstock::config::TransportName::Shm;
use penstock::{NoteId, Plan, Span, Submit};
use penstock_conformance::command::{Command, Reply};
use penstock_conformance::stage::{PATIENCE, all_end_well};
use penstock_conformance::{Place, Setting, Stage};

const THERE: Place = Place::Process(env!("CARGO_BIN_EXE_penstock-conformance-peer"));
const WORKERS: u64 = 20;
/// Longer than it takes the peer to look a few times whether this process has died.
const LOOKED_AT: Duration = Duration::from_millis(120);

/// Forks a worker that runs `body` and ends as programs end. Answers its process id.
#[allow(unsafe_code)]
fn fork_worker(body: impl FnOnce()) -> libc::pid_t {
    // SAFETY: what the child runs is guarded by the engine against being run in a child, which is the point of
    // this test, and ends by exit, which runs what the C library has to run. The allocator is usable after fork.
    let id = unsafe { libc::fork() };
    if id == 0 {
        let answer = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body));
        // SAFETY: ends the process, and runs the handlers that were registered for it.
        unsafe { libc::exit(i32::from(answer.is_err())) };
    }
    assert!(id > 0, "cannot fork: {}", std::io::Error::last_os_error());
    id
}

/// Waits until a worker has ended, and expects it to end well.
#[allow(unsafe_code)]
fn expect_end(worker: libc::pid_t) {
    let until = Instant::now() + PATIENCE;
    loop {
        let mut status = 0;
        // SAFETY: asks about the child made above and writes its status.
        let ended = unsafe { libc::waitpid(worker, &raw mut status, libc::WNOHANG) };
        if ended == worker {
            assert!(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0, "a worker ended badly: {status}");
            return;
        }
        if Instant::now() > until {
            // SAFETY: ends our own child, which nobody has waited for yet.
            unsafe { libc::kill(worker, libc::SIGKILL) };
            panic!("a worker hangs");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Drops a copy of what the child has inherited, as the end of a program would.
#[allow(unsafe_code)]
fn drop_inherited<T>(value: &T) {
    // SAFETY: runs in a forked child that never looks at the original again.
    drop(unsafe { std::ptr::read(value) });
}

#[test]
fn forked_workers_neither_hang_nor_disturb_their_parent() {
    for setting in [Setting::adaptive(Shm, 2, THERE), Setting::inline(Shm, THERE)] {
        let mut stage = Stage::sized(&setting, 8 << 20);
        stage.ask(0, Command::Watch { peer: "source".to_owned() });
        let span = Span { local: 0, remote: 0, len: 8 << 20 };
        let far = stage.far();
        let plan = Plan::write(&stage.near, &far).extents(&[span]).build().unwrap();
        let kept = stage.near.take(4).unwrap();
        let mut sent = 0;
        for number in 0..WORKERS {
            let how = Submit::new().notify(NoteId(number.into()), b"parent's");
            let transfers: Vec<_> = (0..4).map(|_| stage.submit(stage.peer(), &plan, how)).collect();
            sent += transfers.len();
            // In the middle of copies, notifications and whatever locks the threads hold.
            let until = Instant::now() + Duration::from_micros(97 * (number % 7));
            while Instant::now() < until {
                stage.turn();
            }
            let worker = fork_worker(|| {
                let (engine, peer) = (&stage.engine, stage.peer());
                assert!(peer.submit(&plan, Submit::new()).is_err() && peer.region("kv").is_err());
                assert!(engine.drain(PATIENCE).is_err() && engine.reconnect(peer, PATIENCE).is_err());
                assert!(!engine.wait_notification(PATIENCE) && engine.notifications(&mut Vec::new()) == 0);
                assert!(!peer.disconnect(PATIENCE) && engine.peers().is_empty() && engine.quarantined().is_empty());
                assert!(Plan::write(&stage.near, &far).extents(&[span]).build().is_err());
                transfers.iter().for_each(drop_inherited);
                drop_inherited(&kept);
                drop_inherited(&plan);
                drop_inherited(&stage.peers);
                drop_inherited(&stage.near);
                drop_inherited(&stage.engine);
            });
            expect_end(worker);
            all_end_well(&transfers);
        }
        let until = Instant::now() + LOOKED_AT;
        while Instant::now() < until {
            stage.turn();
        }
        assert_eq!(stage.peer().ended(), None, "{setting}: the parent lives");
        assert_eq!(stage.ask(0, Command::EndOf { peer: "source".to_owned() }), Reply::Ended(None), "{setting}");
        assert_eq!(stage.take_notes(0, sent, PATIENCE).len(), sent, "{setting}: each once");
        stage.write(Span { local: 0, remote: 0, len: 4096 });
    }
}
