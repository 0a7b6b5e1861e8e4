//! Peers that are killed while they write into this process's memory: how soon that is known here, and
//! what is given back when.

use std::time::{Duration, Instant};

use penstock::config::TcpIo;
use penstock::config::TransportName::{Shm, Tcp};
use penstock::{Cause, LocalQuiesce, Plan, Quarantined, Span, Submit};
use rustix::process::{Pid, Signal, kill_process};

use crate::command::{Command, Reply};
use crate::gauge::Gauge;
use crate::setting::Tuning;
use crate::stage::fault_of;
use crate::{Options, Place, Setting, Stage, Transfer};

/// Bytes of the pools of the transfers that are under way.
const BYTES: u64 = 32 << 20;
/// How long a process may take to be given its memory by a busy machine.
const HOARD_WITHIN: Duration = Duration::from_secs(180);
/// How long after the first bytes: most likely in the middle of a later transfer.
const INTO_THE_NEXT: Duration = Duration::from_millis(7);
/// How long the survivor's memory is watched once it is given back.
const WATCHED: Duration = Duration::from_millis(30);

/// What one death was like.
#[derive(Debug, Clone, Copy)]
pub struct Death {
    /// From the signal to the typed end of a transfer that waited.
    pub known: Duration,
    /// How long this machine kept a thread that only slept from running, at the worst, meanwhile.
    pub stalled: Duration,
    /// From the signal to the end of the process, when its memory was free.
    pub gone: Duration,
    /// Whether it was in the middle of a copy, so that memory here was quarantined.
    pub quarantined: bool,
}

/// Kills a process that holds so many bytes nobody else has, while it writes to this one and a
/// notification for it waits.
///
/// # Panics
/// If anything ends otherwise than it must. Bounds of time are the caller's.
pub fn die(setting: &Setting, hoard: u64) -> Death {
    let far = Tuning { notifications_per_peer: Some(1), ..Tuning::default() };
    let mut stage = Stage::with(setting, Options { bytes: BYTES, far, ..Options::default() });
    stage.tell(0, Command::Hoard { bytes: hoard });
    assert_eq!(stage.target(0).hear(HOARD_WITHIN), Reply::Done);
    let waiting = waiting_notification(&stage);
    stage.tell(0, Command::WriteTo { peer: "source".to_owned(), label: "kv".to_owned(), times: u64::MAX });
    wait_for_bytes(&stage);
    std::thread::sleep(INTO_THE_NEXT);
    let process = stage.target(0).process_id().expect("it is a process of its own");
    let id = Pid::from_raw(process as i32).expect("process ids are positive");
    let gauge = Gauge::start();
    let begun = Instant::now();
    kill_process(id, Signal::KILL).expect("our own child can be killed");
    let fault = fault_of(&waiting);
    let known = begun.elapsed();
    let stalled = gauge.stop();
    assert_eq!(fault.cause, Cause::PeerLost, "{fault}");
    let held = stage.near.revoke(&[(0, BYTES)], Duration::ZERO).expect("this engine runs");
    let quarantined = check_quarantine(&stage, held, process);
    let gone = begun.elapsed();
    nothing_lands(&stage);
    stage.target(0).kill();
    let again = stage.add_target("target-0", Options::default());
    let span = Span { local: 0, remote: 0, len: 1 << 20 };
    let plan = Plan::write(&stage.near, &stage.region(again, "kv")).extents(&[span]).build().expect("a sound plan");
    stage.submit(&stage.peers[again], &plan, Submit::new()).wait().expect("life goes on");
    Death { known, stalled, gone, quarantined }
}

/// A notification that finds no room, since the target takes none.
fn waiting_notification(stage: &Stage) -> Transfer {
    stage.more_notes_than_there_is_room().pop().expect("there are some")
}

/// Waits until the target's bytes land here.
fn wait_for_bytes(stage: &Stage) {
    let window = stage.near.window().clone();
    window.fill(0, BYTES, 0).expect("the pool is ours");
    let last = |at: u64| window.load_u64(at).expect("inside the pool");
    stage.wait_until("the target writes", || last(BYTES - 8) != 0 && last(0) != 0);
}

/// Memory that is quarantined is given back when the process is gone, and not before. Answers whether it was.
fn check_quarantine(stage: &Stage, held: LocalQuiesce, process: u32) -> bool {
    let quarantined = match held {
        LocalQuiesce::Quiesced => None,
        LocalQuiesce::Quarantined(quarantined) => Some(quarantined),
        LocalQuiesce::StillRegistered(times) => panic!("nothing was deregistered, yet {times}"),
    };
    if let Some(quarantined) = &quarantined {
        let is_released = |quarantined: &Quarantined| {
            let listed = !stage.engine.quarantined().is_empty();
            let released = quarantined.is_released();
            assert!(listed || released, "what is quarantined is listed");
            released
        };
        assert_eq!(quarantined.suspects()[0].as_ref().map(|name| name.as_str()), Some("target-0"));
        stage.wait_until("the dead process's quarantine ends", || is_released(quarantined));
        assert!(is_ended(process), "released while its process had not ended");
    }
    stage.wait_until("the process has ended", || is_ended(process));
    assert!(stage.engine.quarantined().is_empty());
    quarantined.is_some()
}

/// Whether all threads of our child have ended; it is not waited for yet.
fn is_ended(process: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).expect("it was not waited for");
    let state = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().next()).expect("a state");
    let threads = std::fs::read_dir(format!("/proc/{process}/task")).map_or(0, Iterator::count);
    matches!(state, "Z" | "X") && threads <= 1
}

/// What was given back stays as its owner writes it.
fn nothing_lands(stage: &Stage) {
    let window = stage.near.window();
    window.fill(0, BYTES, 0x5a).expect("the pool is ours");
    std::thread::sleep(WATCHED);
    let mut found = vec![0; BYTES as usize];
    window.read_into(0, &mut found).expect("inside the pool");
    assert!(found.iter().all(|&byte| byte == 0x5a), "a byte of the dead landed in memory that was given back");
}

/// The setting of these tests: everything over shared memory, the target in this program's process.
pub const fn settings(program: &'static str) -> [Setting; 2] {
    [Setting::adaptive(Shm, 1, Place::Process(program)), Setting::inline(Shm, Place::Process(program))]
}

/// The same over the network.
pub const fn far_settings(program: &'static str) -> [Setting; 3] {
    let threads = Setting::adaptive(Tcp, 1, Place::Process(program));
    [threads.by(TcpIo::IoUring), threads.by(TcpIo::Epoll), Setting::inline(Tcp, Place::Process(program))]
}

/// Bytes of the pools where a peer on another host is killed.
const FAR_BYTES: u64 = 8 << 20;
/// Writes and as many reads that are under way then: more than can be moved until it is killed.
const FAR_TRANSFERS: usize = 40;
/// How long they run before.
const FAR_INTO: Duration = Duration::from_millis(15);

/// What the death of a peer on another host was like.
#[derive(Debug, Clone, Copy)]
pub struct FarDeath {
    /// From the signal to the end of the last of all transfers.
    pub ended: Duration,
    /// How long this machine kept a thread that only slept from running, at the worst, meanwhile.
    pub stalled: Duration,
    /// Writes and reads that were cut off.
    pub cut: usize,
    /// From the signal to bytes in the memory of the engine that came in its place.
    pub back: Duration,
}

/// Kills a peer on another host while a notification waits for its room, many writes and reads of all its
/// memory are under way, it writes here, and somebody sleeps in a `wait()`.
///
/// # Panics
/// If anything ends otherwise than it must. Bounds of time are the caller's.
pub fn die_far(setting: &Setting) -> FarDeath {
    let far = Tuning { notifications_per_peer: Some(1), ..Tuning::default() };
    let options = Options { bytes: FAR_BYTES, far, ..Options::default() };
    let mut stage = Stage::with(setting, options);
    let mut under_way = vec![waiting_notification(&stage)];
    stage.tell(0, Command::WriteTo { peer: "source".to_owned(), label: "kv".to_owned(), times: u64::MAX });
    let all = [Span { local: 0, remote: 0, len: FAR_BYTES }];
    let write = Plan::write(&stage.near, &stage.far()).extents(&all).build().expect("a sound plan");
    let read = Plan::read(&stage.near, &stage.far()).extents(&all).build().expect("a sound plan");
    for _ in 0..FAR_TRANSFERS {
        under_way.push(stage.submit(stage.peer(), &write, Submit::new()));
        under_way.push(stage.submit(stage.peer(), &read, Submit::new()));
    }
    let process = stage.target(0).process_id().expect("it is a process of its own");
    let id = Pid::from_raw(process as i32).expect("process ids are positive");
    let gauge = Gauge::start();
    let killer = std::thread::spawn(move || {
        std::thread::sleep(FAR_INTO);
        let begun = Instant::now();
        kill_process(id, Signal::KILL).expect("our own child can be killed");
        begun
    });
    // The first waits for room until the end.
    let ends: Vec<_> = under_way.iter().map(Transfer::wait).collect();
    let ended = Instant::now();
    let begun = killer.join().expect("it only sleeps and kills");
    let (ended, stalled) = (ended.saturating_duration_since(begun), gauge.stop());
    let faults: Vec<_> = ends.iter().filter_map(|end| end.as_ref().err()).collect();
    assert!(ends[0].is_err(), "a notification was taken by nobody");
    assert!(faults.iter().all(|fault| fault.cause == Cause::PeerLost), "{faults:?}");
    let cut = faults.len() - 1;
    // Bytes move inside calls of this process only: nothing has to be waited for.
    assert!(stage.near.revoke(&[(0, FAR_BYTES)], Duration::ZERO).expect("this engine runs").is_quiesced());
    stage.target(0).kill();
    stage.wait_until("the session has ended", || stage.peer().ended().is_some());
    assert_eq!(stage.peer().ended(), Some(Cause::PeerLost));
    let again = Instant::now();
    let number = stage.add_target("target-0", Options { far: Tuning::default(), ..options });
    let fresh = Plan::read(&stage.near, &stage.region(number, "kv")).extents(&all).build().expect("a sound plan");
    stage.submit(&stage.peers[number], &fresh, Submit::new()).wait().expect("life goes on");
    FarDeath { ended, stalled, cut, back: again.elapsed() }
}
