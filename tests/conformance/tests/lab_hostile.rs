//! A lab: one engine serves three honest peers at load, each in a process of its own, while a rogue does to it all that a peer must not do.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use penstock::{Engine, HostMemory, LocalRegion, NoteId, Peer, Plan, Pool, PoolSpec, Rights, Span, Submit, SystemEnv};
use penstock_conformance::folder::Folder;
use penstock_conformance::hostile::{DEADLINE, WORK_BYTES, config, region_for, victim_words};
use penstock_conformance::kernel::{HUGE_PAGES, KernelSetting};
use penstock_conformance::skip;
use penstock_conformance::stage::PATIENCE;
use rustix::process::{Pid, Signal, kill_process};

const PROGRAM: &str = env!("CARGO_BIN_EXE_penstock-conformance-hostile");

/// Three honest peers, and how each reaches the victim.
const HONEST: [(&str, &str); 3] = [("mapped", "shm"), ("bounced", "bounce"), ("streamed", "tcp")];

/// What one act is given.
const ACT: Duration = Duration::from_secs(6);

const ACTS: [&str; 13] = [
    "bells",
    "mail",
    "rings",
    "closing",
    "floods",
    "descriptors",
    "probe",
    "withheld",
    "pools",
    "huge",
    "hazard",
    "words",
    "strangers",
];

/// What a transfer to a rogue may take beyond its deadline, and the room that a busy machine of two processors needs.
const LATE: Duration = Duration::from_millis(100);
const ROOM: Duration = Duration::from_millis(900);

/// What a transfer to a rogue is given.
const SHORT: Duration = Duration::from_millis(400);

struct Honest {
    name: &'static str,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<std::process::ChildStdout>,
}

impl Honest {
    fn start((name, transport): (&'static str, &str), victim: &str, folder: &Path) -> Self {
        let mut command = Command::new(PROGRAM);
        command.args(["honest", name, transport, victim]).arg(folder).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("the lab's own program");
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().expect("piped")));
        let mut honest = Self { name, child, input, output };
        assert_eq!(honest.line(), "ready", "{name}");
        honest
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("text");
        line.trim().to_owned()
    }

    /// Ends it. Answers how many transfers it has moved, and what the slowest took.
    fn end(mut self) -> (u64, Duration) {
        drop(self.input.take());
        let said = self.line();
        assert!(self.child.wait().expect("our own child").success(), "{}: {said}", self.name);
        let figures: Vec<u64> = said.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [moved, worst] = figures[..] else { panic!("{}: {said}", self.name) };
        (moved, Duration::from_millis(worst))
    }
}

impl Drop for Honest {
    fn drop(&mut self) {
        // Where the lab has failed; else it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Writes to an honest peer's memory until told to stop. Answers how often, and what the slowest took.
fn serve(near: &Pool<SystemEnv>, peer: &Peer<SystemEnv>, is_over: &AtomicBool) -> (u64, Duration) {
    let name = peer.name().to_string();
    let far = peer.wait_region(&name, PATIENCE).unwrap();
    let whole = [Span { local: 0, remote: 0, len: WORK_BYTES }];
    let plan = Plan::write(near, &far).extents(&whole).build().unwrap();
    let (mut moved, mut worst) = (0, Duration::ZERO);
    // Relaxed: seen soon enough.
    while !is_over.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let how = Submit::new().within(DEADLINE).notify(NoteId(1), b"from the victim");
        let ended = peer.submit(&plan, how).unwrap().wait();
        ended.unwrap_or_else(|fault| panic!("lost to {name} after {:?}: {fault}", begun.elapsed()));
        (moved, worst) = (moved + 1, worst.max(begun.elapsed()));
    }
    (moved, worst)
}

/// Does what a rogue wants: writes to its memory. Answers how often, and how late the latest end came.
fn fall_for_rogues(victim: &Engine<SystemEnv>, near: &LocalRegion<SystemEnv>, is_over: &AtomicBool) -> (u64, Duration) {
    let (mut tried, mut latest) = (0, Duration::ZERO);
    let is_rogue = |peer: &Peer<SystemEnv>| !HONEST.iter().any(|(name, _)| peer.name().to_string() == *name);
    while !is_over.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(10));
        let mut notes = Vec::new();
        victim.notifications(&mut notes);
        for peer in victim.peers().into_iter().filter(is_rogue) {
            let Ok(far) = peer.region("sink") else { continue };
            let whole = [Span { local: 0, remote: 0, len: 64 << 10 }];
            // It is refused where it is not what it is said to be.
            let Ok(plan) = Plan::write(near, &far).extents(&whole).build() else { continue };
            let begun = Instant::now();
            let Ok(transfer) = peer.submit(&plan, Submit::new().within(SHORT)) else { continue };
            let _ = transfer.wait();
            (tried, latest) = (tried + 1, latest.max(begun.elapsed().saturating_sub(SHORT)));
        }
    }
    (tried, latest)
}

/// Takes memory back all the time, which no rogue was ever given. Answers how often.
fn take_back(victim: &Engine<SystemEnv>, is_over: &AtomicBool) -> u64 {
    let mut taken = 0;
    while !is_over.load(Ordering::Relaxed) {
        let memory = HostMemory::from_vec(vec![0; 4096]).unwrap();
        let region = victim.register(memory, "short-lived", Rights::NONE).unwrap();
        let begun = Instant::now();
        // A rogue that says it is in the middle of a copy has it quarantined, by the deadline.
        drop(region.deregister(LATE).unwrap());
        assert!(begun.elapsed() < LATE + LATE + ROOM, "{:?}", begun.elapsed());
        taken += 1;
        std::thread::sleep(Duration::from_millis(20));
    }
    taken
}

fn rogue(act: &str, victim: &str, folder: &Path, time: Duration) -> Child {
    let mut command = Command::new(PROGRAM);
    command.args(["rogue", act, victim]).arg(folder).arg(time.as_secs().to_string());
    command.spawn().expect("the lab's own program")
}

#[test]
fn a_rogue_stops_nobody() {
    if let Some(reason) = skip::lab_reason() {
        return skip::report("a_rogue_stops_nobody", reason);
    }
    // For the act of that name: there is no other one.
    let Some(_huge_page) = KernelSetting::change(HUGE_PAGES, "1") else {
        return skip::report("a_rogue_stops_nobody", &format!("needs path:{HUGE_PAGES} that can be written"));
    };
    let (folder, begun) = (Folder::fresh(), Instant::now());
    let victim = Engine::start(config(folder.path(), "victim", "both")).unwrap();
    let pool = |label: String| victim.pool(PoolSpec::host(WORK_BYTES).label(label).rights(Rights::READ_WRITE)).unwrap();
    let _pools: Vec<_> = HONEST.iter().map(|(name, _)| pool(region_for(name))).collect();
    let near = pool("near".to_owned());
    near.window().fill(0, WORK_BYTES, 7).unwrap();
    let lent = victim.register(HostMemory::from_vec(vec![7; 64 << 10]).unwrap(), "lent", Rights::NONE).unwrap();
    let words = victim_words(&victim);
    let honest = HONEST.map(|one| Honest::start(one, &words, folder.path()));
    let peer_of = |name: &str| victim.peers().into_iter().find(|peer| peer.name().to_string() == name).unwrap();
    let peers = HONEST.map(|(name, _)| peer_of(name));
    let is_over = AtomicBool::new(false);
    let (served, (tried, latest), taken) = std::thread::scope(|scope| {
        let serving = peers.each_ref().map(|peer| scope.spawn(|| serve(&near, peer, &is_over)));
        let falling = scope.spawn(|| fall_for_rogues(&victim, &lent, &is_over));
        let taking = scope.spawn(|| take_back(&victim, &is_over));
        let acts = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            for act in ACTS {
                let ended = rogue(act, &words, folder.path(), ACT).wait().unwrap();
                assert!(ended.success(), "the act `{act}` was not done");
            }
            // One that stands still while it is written to, and is killed then. It leaves its socket behind.
            let place = folder.path().join("killed");
            std::fs::create_dir(&place).unwrap();
            for _ in 0..4 {
                let mut held = rogue("held", &words, &place, PATIENCE);
                std::thread::sleep(Duration::from_millis(800));
                let id = Pid::from_child(&held);
                kill_process(id, Signal::STOP).unwrap();
                std::thread::sleep(Duration::from_millis(1500));
                kill_process(id, Signal::KILL).unwrap();
                held.wait().unwrap();
            }
            std::fs::remove_dir_all(&place).unwrap();
        }));
        is_over.store(true, Ordering::Relaxed);
        let served = serving.map(|serving| serving.join().expect("no transfer of the victim's was lost"));
        let others = (falling.join().unwrap(), taking.join().unwrap());
        acts.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        (served, others.0, others.1)
    });
    let moved = honest.map(Honest::end);
    for (((name, _), (moved, slowest)), (served, served_slowest)) in HONEST.iter().zip(moved).zip(served) {
        let mut out = std::io::stdout();
        writeln!(
            out,
            "{name}: {moved} transfers, the slowest {slowest:?}; {served} to it, the slowest {served_slowest:?}"
        )
        .unwrap();
        assert!(moved > 100 && served > 100, "{name} was hardly served: {moved}, {served}");
        assert!(slowest.max(served_slowest) < DEADLINE + LATE, "{name}");
    }
    let mut out = std::io::stdout();
    writeln!(
        out,
        "to rogues: {tried} transfers, the latest {latest:?} late; {taken} regions taken back; {:?} in all",
        begun.elapsed()
    )
    .unwrap();
    assert!(tried > 10, "rogues were hardly written to: {tried}");
    assert!(latest < LATE + ROOM, "a transfer to a rogue ended {latest:?} late");
    // It still takes everybody, and ends.
    let late = Engine::start(config(folder.path(), "late", "shm")).unwrap();
    drop(late.connect(&victim.descriptor(), PATIENCE).unwrap());
    drop(late);
    let ending = Instant::now();
    drop((peers, lent, near, _pools));
    drop(victim);
    assert!(ending.elapsed() < PATIENCE, "it took {:?} to end", ending.elapsed());
}
