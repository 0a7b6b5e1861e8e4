//! Engines of several processes, each with a card of its own: some are killed, and some are stopped, in the middle of what is staged.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use penstock::config::TransportName;
use penstock::{Cause, Config, Engine, Peer, Plan, RemoteRegion, Span, Submit, SystemEnv};

use crate::MIB;
use crate::card::{self, Buffer};
use crate::engines::{PATIENCE, pattern};
use crate::staged::{Kind, OVER, Side, few_slots, wait_until};

/// What this program, started once more, is to be: `serve` or `drive`, its name, its transport and its folder.
const ROLE: &str = "PENSTOCK_CUDA_ROLE";

const BYTES: u64 = 4 * MIB;

/// A process with an engine and memory of a card.
struct Process {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
    descriptor: PathBuf,
}

impl Process {
    fn start(role: &str, name: &str, transport: TransportName, folder: &Path) -> Self {
        let descriptor = folder.join(format!("{name}.descriptor"));
        let _ = std::fs::remove_file(&descriptor);
        let test = std::env::var(crate::ASKED).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([&test, "--exact", "--nocapture"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.env(ROLE, format!("{role} {name} {transport} {}", folder.display()));
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines, descriptor }
    }

    fn descriptor(&self) -> Vec<u8> {
        wait_until(|| self.descriptor.exists());
        std::fs::read(&self.descriptor).unwrap()
    }

    /// Waits until it has written this.
    fn wait_for(&mut self, word: &str) {
        for line in self.lines.by_ref() {
            if line.unwrap() == word {
                return;
            }
        }
        panic!("it has ended, and not said `{word}`");
    }

    fn signal(&self, signal: i32) {
        // SAFETY: it is a child of this process, and was not waited for.
        assert_eq!(unsafe { libc::kill(self.child.id() as i32, signal) }, 0);
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn config(name: &str, transport: TransportName, folder: &Path) -> Config {
    let mut config = few_slots(Config::default().named(name).directory(folder).transports([transport]));
    if transport != TransportName::Shm {
        config.session.listen = vec!["127.0.0.1:0".to_owned()];
        config.session.secret_file = Some(folder.join("secret"));
    }
    config
}

fn folder(transport: TransportName) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let folder = std::env::temp_dir().join(format!("penstock-apart-{}-{transport}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("secret"), "5e".repeat(32)).unwrap();
    std::fs::set_permissions(folder.join("secret"), std::fs::Permissions::from_mode(0o600)).unwrap();
    folder
}

/// In a process that was started for it, does what that is to do, and never comes back.
fn play_role() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut words = role.splitn(4, ' ');
    let mut word = || words.next().unwrap();
    let (role, name, transport, folder) = (word(), word(), word(), PathBuf::from(word()));
    let transport = OVER.into_iter().find(|each| each.as_str() == transport).unwrap();
    let engine = Engine::start(config(name, transport, &folder)).unwrap();
    let side = Side::new(Kind::Device, &engine, "memory", BYTES);
    if role == "serve" {
        let half = folder.join(format!("{name}.half"));
        std::fs::write(&half, engine.descriptor()).unwrap();
        std::fs::rename(half, folder.join(format!("{name}.descriptor"))).unwrap();
        // Until the other end is closed.
        let _ = std::io::stdin().lines().count();
        std::process::exit(0);
    }
    let owner = std::fs::read(folder.join("owner.descriptor")).unwrap();
    let peer = engine.connect(&owner, PATIENCE).unwrap();
    let region = peer.wait_region("owner", PATIENCE).unwrap();
    for round in 0u64.. {
        let len = BYTES / 4;
        let spans = [Span { local: round % 4 * len, remote: round % 3 * len, len }];
        let plan = if round.is_multiple_of(2) {
            Plan::write(side.region(), &region)
        } else {
            Plan::read(side.region(), &region)
        };
        let plan = plan.extents(&spans).build().unwrap();
        std::io::stdout().write_all(b"asks\n").unwrap();
        assert_eq!(peer.submit(&plan, Submit::new().within(PATIENCE)).unwrap().wait().unwrap().bytes, len);
        let word: &[u8] = if round < 8 { b"some\n" } else { b"many\n" };
        std::io::stdout().write_all(word).unwrap();
    }
}

/// A peer with a card, and what is moved to it and from it.
struct Met {
    process: Process,
    peer: Peer<SystemEnv>,
    region: RemoteRegion<SystemEnv>,
}

impl Met {
    fn new(engine: &Engine<SystemEnv>, name: &str, transport: TransportName, folder: &Path) -> Self {
        let process = Process::start("serve", name, transport, folder);
        let peer = engine.connect(&process.descriptor(), PATIENCE).unwrap();
        let region = peer.wait_region("memory", PATIENCE).unwrap();
        assert_eq!(region.access_path(), "staged", "{}", region.access_reason());
        Self { process, peer, region }
    }

    fn plan(&self, side: &Side, is_write: bool) -> Plan {
        let plan =
            if is_write { Plan::write(side.region(), &self.region) } else { Plan::read(side.region(), &self.region) };
        plan.extents(&[Span { local: 0, remote: 0, len: BYTES }]).build().unwrap()
    }

    /// There and back, and what has come back is what went.
    fn works(&self, side: &Side, seed: u64) {
        side.write(&pattern(BYTES, seed));
        for is_write in [true, false] {
            let moved = self.peer.submit(&self.plan(side, is_write), Submit::new().within(PATIENCE)).unwrap().wait();
            assert_eq!(moved.unwrap().bytes, BYTES);
            if is_write {
                side.write(&pattern(BYTES, seed + 1));
            }
        }
        assert!(side.read() == pattern(BYTES, seed), "wrong bytes came back");
    }
}

/// The owner of the memory dies, or is stopped, while bytes are on their way: every transfer ends, memory here is free, and another peer, which has to do
/// with the same slots, is not held up.
pub(crate) fn owners_end_or_stop() {
    play_role();
    for transport in OVER {
        let folder = folder(transport);
        let near = Engine::start(config("near", transport, &folder)).unwrap();
        let steady = Met::new(&near, "steady", transport, &folder);
        for (round, kind) in [Kind::Host, Kind::Device].into_iter().enumerate() {
            let side = Side::new(kind, &near, "near", BYTES);
            let own = Side::new(Kind::Host, &near, "own", BYTES);
            let mut met = Met::new(&near, &format!("far-{round}"), transport, &folder);
            met.works(&side, 3);
            met.process.signal(libc::SIGSTOP);
            let begun = Instant::now();
            let within = |millis| Submit::new().within(Duration::from_millis(millis));
            // More than there are slots, all given up one after another.
            let submit = |met: &Met, step: usize, millis| {
                met.peer.submit(&met.plan(&side, step.is_multiple_of(2)), within(millis)).unwrap()
            };
            let stopped: Vec<_> = (0..6).map(|step| submit(&met, step, 200)).collect();
            steady.works(&own, 5);
            for transfer in stopped {
                assert_eq!(transfer.wait().unwrap_err().cause, Cause::DeadlineExceeded, "{transport}, {kind:?}");
            }
            assert!(begun.elapsed() < PATIENCE / 2);
            steady.works(&own, 7);
            met.process.signal(libc::SIGCONT);
            wait_until(|| near.quarantined().is_empty());
            met.works(&side, 9);
            for _ in 0..3 {
                let transfers = [0, 1].map(|step| submit(&met, step, 10_000));
                thread::sleep(Duration::from_micros(700));
                met.process.kill();
                for transfer in transfers {
                    if let Err(fault) = transfer.wait() {
                        let is_its = [Cause::PeerLost, Cause::DeadlineExceeded].contains(&fault.cause);
                        assert!(is_its, "{transport}, {kind:?}: {fault:?}");
                    }
                }
                wait_until(|| near.quarantined().is_empty());
                steady.works(&own, 11);
                met = Met::new(&near, &format!("far-{round}"), transport, &folder);
                met.works(&side, 13);
            }
        }
        drop(steady);
        assert_eq!(card::forbidden(), "");
        let _ = std::fs::remove_dir_all(folder);
    }
}

/// Who moves bytes to memory here and from it dies, or is stopped: its slots come back, and memory is quiet when it is taken back.
pub(crate) fn initiators_end_or_stop() {
    play_role();
    for transport in OVER {
        let folder = folder(transport);
        let owner = Engine::start(config("owner", transport, &folder)).unwrap();
        std::fs::write(folder.join("owner.descriptor"), owner.descriptor()).unwrap();
        let buffer = Buffer::new(BYTES);
        let region = buffer.register(&owner, "owner");
        let start = |name: &str| Process::start("drive", name, transport, &folder);
        let mut stopped = start("stopped");
        stopped.wait_for("some");
        stopped.signal(libc::SIGSTOP);
        // Each has a fifth of what is left at most: if theirs did not come back, the last ones would find none.
        for step in 0..12 {
            let mut drives = start(&format!("drives-{step}"));
            drives.wait_for(if step % 4 == 3 { "many" } else { "some" });
            drives.kill();
        }
        assert!(region.deregister(PATIENCE).unwrap().is_quiesced(), "{transport}");
        buffer.write(&pattern(BYTES, 1));
        stopped.signal(libc::SIGCONT);
        thread::sleep(Duration::from_millis(100));
        assert!(buffer.read() == pattern(BYTES, 1), "{transport}: bytes landed in memory that was taken back");
        stopped.kill();
        let _ = std::fs::remove_dir_all(folder);
    }
    assert_eq!(card::forbidden(), "");
}

/// Slots of the dead are for whoever waits for some, and not only when its lane is looked at because nobody has marked it, a second later.
pub(crate) fn the_dead_leave_slots() {
    play_role();
    let folder = folder(TransportName::Shm);
    let owner = Engine::start(config("owner", TransportName::Shm, &folder)).unwrap();
    std::fs::write(folder.join("owner.descriptor"), owner.descriptor()).unwrap();
    let buffer = Buffer::new(BYTES);
    let _region = buffer.register(&owner, "owner");
    let (mut stopped, mut waits) = (VecDeque::new(), Vec::new());
    let mut started = 0;
    // Each that is stopped keeps what it has, until one finds none.
    while waits.len() < 4 {
        assert!(started < 40, "somebody waits");
        started += 1;
        let mut drives = Process::start("drive", &format!("drives-{started}"), TransportName::Shm, &folder);
        drives.wait_for("asks");
        let (moved, moves) = channel();
        let reads = thread::spawn(move || {
            drives.wait_for("some");
            let _ = moved.send(Instant::now());
            drives.signal(libc::SIGSTOP);
            drives
        });
        if moves.recv_timeout(Duration::from_millis(400)).is_err() {
            waits.push(loop {
                let mut first: Process = stopped.pop_front().unwrap();
                let begun = Instant::now();
                first.kill();
                // Some have none: they gave theirs back before.
                if let Ok(at) = moves.recv_timeout(Duration::from_secs(3)) {
                    break at.duration_since(begun);
                }
            });
        }
        stopped.push_back(reads.join().unwrap());
    }
    // Somebody else may have woken the owner's worker, or kept it from its core.
    assert!(waits.iter().filter(|wait| **wait < Duration::from_millis(500)).count() >= 3, "{waits:?}");
    drop(stopped);
    let _ = std::fs::remove_dir_all(folder);
    assert_eq!(card::forbidden(), "");
}
