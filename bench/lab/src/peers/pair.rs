//! Two processes of a peer that move a workload when they are told. Between their turns they are stopped, as
//! some of them keep a core busy while they wait, which would be measured in everybody else's turns. Our own sleep by themselves, as
//! they do in the same turns when they are driven from Rust.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use super::Peer;
use super::error::{PeerError, last_words};
use super::store::{Installed, Store};
use super::wheel;
use crate::ends::Folder;
use crate::layout::{Layout, LayoutSpec};
use crate::pattern::Mismatch;

/// The drivers: each runs one peer's own Python package as its users run it.
const DRIVERS: &[(&str, &str)] = &[
    ("common.py", include_str!("../../peers/common.py")),
    ("nixl_driver.py", include_str!("../../peers/nixl_driver.py")),
    ("mooncake_driver.py", include_str!("../../peers/mooncake_driver.py")),
    ("penstock_driver.py", include_str!("../../peers/penstock_driver.py")),
];

/// Starting, filling, looking at every byte.
const PATIENCE: Duration = Duration::from_secs(120);
/// One round of the largest workload on a busy machine.
const ROUND: Duration = Duration::from_secs(30);
/// How long a driver may take to end once its input is closed.
const FAREWELL: Duration = Duration::from_secs(3);

/// A peer with its settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way {
    /// What rows call it.
    pub title: &'static str,
    /// Which peer.
    pub peer: &'static str,
    driver: &'static str,
    /// Words for the driver: what its package's own functions are told.
    words: &'static [&'static str],
    /// Its settings: environment variables.
    pub settings: &'static [(&'static str, &'static str)],
    /// Whether it is Penstock's own wheel that is driven.
    is_ours: bool,
}

/// NIXL as it comes.
pub const NIXL: Way =
    Way { title: "NIXL, default", peer: "nixl", driver: "nixl_driver.py", words: &[], settings: &[], is_ours: false };
/// NIXL with shared memory allowed in spite of its missing error handling.
pub const NIXL_TUNED: Way = Way { title: "NIXL, tuned", settings: &[("UCX_POSIX_ERROR_HANDLING", "y")], ..NIXL };
/// NIXL without its progress threads, where both sides poll anyway: on two cores the threads would take turns with
/// those that poll, and a word would take milliseconds.
pub const NIXL_POLLED: Way = Way { words: &["polled"], ..NIXL };
/// The same, tuned.
pub const NIXL_TUNED_POLLED: Way = Way { words: &["polled"], ..NIXL_TUNED };
/// NIXL over TCP, as between hosts that have nothing else.
pub const NIXL_TCP: Way = Way { title: "NIXL, tcp", settings: &[("UCX_TLS", "tcp,self")], ..NIXL };
/// Mooncake over TCP: the only way of its wheel between two processes without RDMA.
pub const MOONCAKE: Way = Way { title: "Mooncake, tcp", peer: "mooncake", driver: "mooncake_driver.py", ..NIXL };
/// Penstock's own wheel, with one adaptive worker.
pub const PENSTOCK: Way = Way {
    title: "Penstock, from Python",
    peer: "python",
    driver: "penstock_driver.py",
    words: &["adaptive"],
    settings: &[],
    is_ours: true,
};
/// The same with an inline engine.
pub const PENSTOCK_INLINE: Way = Way { words: &["inline"], ..PENSTOCK };

/// All of them but our own.
pub const WAYS: &[Way] = &[NIXL, NIXL_TUNED, NIXL_POLLED, NIXL_TUNED_POLLED, NIXL_TCP, MOONCAKE];

impl Way {
    /// Its settings in words.
    pub fn settings_in_words(&self) -> String {
        let variables = self.settings.iter().map(|(name, value)| format!("{name}={value}"));
        let words = self.words.iter().map(|&word| match word {
            "polled" => "no progress thread as both sides poll".to_owned(),
            other => other.to_owned(),
        });
        let all: Vec<String> = variables.chain(words).collect();
        if all.is_empty() { "as it comes".to_owned() } else { all.join(", ") }
    }
}

/// Both processes.
pub struct Pair {
    near: Driver,
    far: Driver,
    version: String,
    /// CPU time of both processes in all rounds so far, and how many those were.
    cpu: (Duration, u32),
    is_ours: bool,
    /// Removed last: the drivers are read from it and write what else they say into it.
    _folder: Folder,
}

impl Pair {
    /// Starts both with so much memory each and makes them known to each other. Untouched memory costs
    /// addresses only.
    pub fn open(store: &Store, way: &Way, memory_bytes: u64, touch: bool) -> Result<Self, PeerError> {
        let installed = store.find(Peer::find(way.peer)?)?;
        let folder = Folder::create().map_err(|error| PeerError::Refused {
            peer: way.peer,
            doing: "be given a folder".to_owned(),
            words: error.to_string(),
        })?;
        for (name, text) in DRIVERS {
            let path = folder.path().join(name);
            std::fs::write(&path, text).map_err(PeerError::file("write", &path))?;
        }
        let mut version = installed.version().to_owned();
        if way.is_ours {
            version = wheel::unpack(&installed, folder.path())?;
        }
        let mut near = Driver::start(&installed, way, &folder, "near")?;
        let mut far = Driver::start(&installed, way, &folder, "far")?;
        let open = json!({"do": "open", "length": memory_bytes, "touch": touch});
        near.tell(&open)?;
        far.tell(&open)?;
        let (here, there) = (near.hear("open", PATIENCE)?, far.hear("open", PATIENCE)?);
        near.ask(&json!({"do": "meet", "address": there["address"]}), PATIENCE)?;
        far.ask(&json!({"do": "meet", "address": here["address"]}), PATIENCE)?;
        Ok(Self { near, far, version, cpu: (Duration::ZERO, 0), is_ours: way.is_ours, _folder: folder })
    }

    /// Its version.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Both learn where the blocks lie; the source has the pattern, the destination is wiped, and every
    /// request is made that can be made before bytes move.
    pub fn deal(&mut self, spec: &LayoutSpec) -> Result<(), PeerError> {
        self.deal_alone(spec)?;
        self.near.ask(&json!({"do": "fill"}), PATIENCE)?;
        self.far.ask(&json!({"do": "wipe"}), PATIENCE)?;
        self.near.ask(&json!({"do": "prepare"}), PATIENCE).map(drop)
    }

    /// Both learn where the blocks lie, and nothing else happens.
    pub fn deal_alone(&mut self, spec: &LayoutSpec) -> Result<(), PeerError> {
        let deal = deal(spec);
        self.near.ask(&deal, PATIENCE)?;
        self.far.ask(&deal, PATIENCE).map(drop)
    }

    /// Moves the next set. Answers the time by the initiator's clock, in nanoseconds.
    pub fn round(&mut self) -> Result<f64, PeerError> {
        self.awake(|pair| {
            // Asked beside the round and not in it.
            let before = pair.cpu_until_now()?;
            let taken = nanos(&pair.near.ask(&json!({"do": "round"}), ROUND)?, "ns")?;
            let after = pair.cpu_until_now()?;
            pair.cpu = (pair.cpu.0 + after.saturating_sub(before), pair.cpu.1 + 1);
            Ok(taken)
        })
    }

    /// CPU time of both processes in one round, waiting for each other included; absent before the first.
    pub fn cpu_per_round(&self) -> Option<Duration> {
        let (cpu, rounds) = self.cpu;
        cpu.checked_div(rounds)
    }

    /// 8 bytes with a notification over and back, so many times; the target looks at each word. Answers the time
    /// of one way, in nanoseconds.
    pub fn rally(&mut self, rounds: u64) -> Result<f64, PeerError> {
        self.awake(|pair| {
            pair.far.tell(&json!({"do": "rally", "rounds": rounds, "first": false}))?;
            let all = pair.near.ask(&json!({"do": "rally", "rounds": rounds, "first": true}), ROUND)?;
            pair.far.hear("end the rally", ROUND)?;
            Ok(nanos(&all, "ns")? / (2 * rounds) as f64)
        })
    }

    /// Has the initiator do something alone. Answers the times that it tells, in nanoseconds.
    pub fn alone<const N: usize>(&mut self, request: &Value, times: [&str; N]) -> Result<[f64; N], PeerError> {
        self.awake(|pair| {
            let answer = pair.near.ask(request, PATIENCE)?;
            let mut told = [0.0; N];
            for (place, name) in told.iter_mut().zip(times) {
                *place = nanos(&answer, name)?;
            }
            Ok(told)
        })
    }

    /// Wipes the destination, moves every set once more, and has the target look at every byte.
    /// Answers how many it looked at. `spoil` changes one that arrived before it looks.
    pub fn verify(&mut self, spoil: bool) -> Result<u64, PeerError> {
        self.awake(|pair| {
            pair.far.ask(&json!({"do": "wipe"}), PATIENCE)?;
            pair.near.ask(&json!({"do": "all"}), PATIENCE)?;
            if spoil {
                pair.far.ask(&json!({"do": "spoil"}), PATIENCE)?;
            }
            judge(pair.far.peer, &pair.far.ask(&json!({"do": "check"}), PATIENCE)?)
        })
    }

    /// Stops both until their next turn.
    pub fn rest(&self) {
        if !self.is_ours {
            self.near.signal(Signal::STOP);
            self.far.signal(Signal::STOP);
        }
    }

    fn awake<T>(&mut self, act: impl FnOnce(&mut Self) -> Result<T, PeerError>) -> Result<T, PeerError> {
        self.near.signal(Signal::CONT);
        self.far.signal(Signal::CONT);
        // They have run a little before anything is timed: their threads and their memory are back.
        self.cpu_until_now()?;
        let done = act(self);
        self.rest();
        done
    }

    fn cpu_until_now(&mut self) -> Result<Duration, PeerError> {
        let mut sum = 0.0;
        for driver in [&mut self.near, &mut self.far] {
            sum += nanos(&driver.ask(&json!({"do": "cpu"}), PATIENCE)?, "ns")?;
        }
        Ok(Duration::from_nanos(sum as u64))
    }
}

/// The layout as drivers read it.
fn deal(spec: &LayoutSpec) -> Value {
    let layout = Layout::new(spec);
    json!({
        "do": "deal",
        "seed": spec.seed,
        "block_bytes": spec.workload.block_bytes,
        "stride_bytes": spec.workload.stride_bytes(),
        "bases": layout.batches().concat(),
        "sets": layout.sets(),
    })
}

fn nanos(answer: &Value, name: &str) -> Result<f64, PeerError> {
    answer[name].as_f64().filter(|&nanos| nanos > 0.0).ok_or_else(|| PeerError::Unreadable {
        program: "a driver",
        wanted: "time",
        words: answer.to_string(),
    })
}

/// What the target's look at its memory came to.
fn judge(peer: &'static str, answer: &Value) -> Result<u64, PeerError> {
    if let Ok(mismatch) = serde_json::from_value::<Mismatch>(answer["wrong"].clone()) {
        return Err(PeerError::Corrupt { peer, mismatch });
    }
    answer["bytes"].as_u64().filter(|&bytes| bytes > 0).ok_or_else(|| PeerError::Unreadable {
        program: "a driver",
        wanted: "count of bytes that it looked at",
        words: answer.to_string(),
    })
}

/// One process.
struct Driver {
    peer: &'static str,
    child: Child,
    pid: Pid,
    /// Closed to tell it to end.
    requests: Option<ChildStdin>,
    answers: Receiver<String>,
    log: std::path::PathBuf,
}

impl Driver {
    fn start(installed: &Installed, way: &Way, folder: &Folder, role: &str) -> Result<Self, PeerError> {
        let mut command = installed.python();
        command.arg(folder.path().join(way.driver)).arg(role).args(way.words).envs(way.settings.iter().copied());
        Self::run(way.peer, command, folder.path().join(format!("{role}.log")))
    }

    fn run(peer: &'static str, mut command: Command, log: std::path::PathBuf) -> Result<Self, PeerError> {
        let words = File::create(&log).map_err(PeerError::file("make", &log))?;
        let program = std::path::PathBuf::from(command.get_program());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(words);
        let mut child = command.spawn().map_err(PeerError::file("start", &program))?;
        let pid = Pid::from_child(&child);
        let requests = child.stdin.take();
        let output = child.stdout.take().expect("its output was asked to be a pipe");
        let (sender, answers) = channel();
        // Ends with the driver's output, at the latest when the driver is ended.
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                let Ok(line) = line else { return };
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self { peer, child, pid, requests, answers, log })
    }

    fn ask(&mut self, request: &Value, within: Duration) -> Result<Value, PeerError> {
        self.tell(request)?;
        self.hear(request["do"].as_str().unwrap_or("answer"), within)
    }

    fn tell(&mut self, request: &Value) -> Result<(), PeerError> {
        let line = format!("{request}\n");
        let sent = self.requests.as_mut().map(|requests| requests.write_all(line.as_bytes()));
        match sent {
            Some(Ok(())) => Ok(()),
            _ => Err(self.silent("listen", Duration::ZERO)),
        }
    }

    fn hear(&mut self, doing: &str, within: Duration) -> Result<Value, PeerError> {
        let line = match self.answers.recv_timeout(within) {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Err(self.silent(doing, within)),
        };
        let refused =
            |words: &str| PeerError::Refused { peer: self.peer, doing: doing.to_owned(), words: last_words(words) };
        let answer: Value = serde_json::from_str(&line).map_err(|error| refused(&format!("{line}: {error}")))?;
        match answer["error"].as_str() {
            Some(words) => Err(refused(words)),
            None => Ok(answer),
        }
    }

    fn silent(&self, doing: &str, waited: Duration) -> PeerError {
        let said = std::fs::read(&self.log).unwrap_or_default();
        let words = last_words(&String::from_utf8_lossy(&said));
        PeerError::Silent { peer: self.peer, doing: doing.to_owned(), waited, words }
    }

    fn signal(&self, signal: Signal) {
        // It is our child and not yet waited for, so the number is still its; if it has ended, it hears nothing.
        let _ = kill_process(self.pid, signal);
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.signal(Signal::CONT);
        self.requests = None;
        let start = Instant::now();
        while start.elapsed() < FAREWELL {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(2)),
                _ => return,
            }
        }
        // It may have ended by itself in this moment; either way it is waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::child;
    use super::*;
    use crate::workload::Workload;

    /// A driver of the test's own, in a language that is there everywhere.
    fn driver(folder: &Folder, script: &str) -> Driver {
        let mut command = child::command(Path::new("/bin/sh"), "");
        command.args(["-c", script]);
        Driver::run("nixl", command, folder.path().join("log")).unwrap()
    }

    #[test]
    fn a_driver_is_asked_and_answers_line_by_line() {
        let folder = Folder::create().unwrap();
        let mut driver = driver(&folder, "while read line; do echo '{\"ns\": 5}'; done");
        for _ in 0..2 {
            let answer = driver.ask(&json!({"do": "round"}), ROUND).unwrap();
            assert_eq!(nanos(&answer, "ns").unwrap(), 5.0);
            assert!(matches!(nanos(&answer, "more_ns"), Err(PeerError::Unreadable { .. })));
        }
    }

    #[test]
    fn a_stopped_driver_answers_once_it_goes_on() {
        let folder = Folder::create().unwrap();
        let mut driver = driver(&folder, "while read line; do echo '{}'; done");
        driver.signal(Signal::STOP);
        driver.tell(&json!({"do": "cpu"})).unwrap();
        assert!(driver.answers.recv_timeout(Duration::from_millis(200)).is_err());
        driver.signal(Signal::CONT);
        assert_eq!(driver.hear("go on", ROUND).unwrap(), json!({}));
    }

    #[test]
    fn a_driver_that_refuses_dies_or_stays_silent_is_a_typed_error_with_its_words() {
        let folder = Folder::create().unwrap();
        let mut refusing = driver(&folder, "read line; echo '{\"error\": \"RuntimeError: no such agent\"}'; read line");
        let error = refusing.ask(&json!({"do": "meet"}), ROUND).unwrap_err();
        assert_eq!(error.to_string(), "nixl could not meet: RuntimeError: no such agent");
        let mut chatting = driver(&folder, "read line; echo hello; read line");
        assert!(matches!(chatting.ask(&json!({"do": "meet"}), ROUND), Err(PeerError::Refused { .. })));
        let mut dying = driver(&folder, "read line; echo out of luck >&2");
        let error = dying.ask(&json!({"do": "open"}), ROUND).unwrap_err();
        assert!(matches!(&error, PeerError::Silent { words, .. } if words.contains("out of luck")), "{error}");
        let mut silent = driver(&folder, "read line; exec sleep 60");
        let error = silent.ask(&json!({"do": "round"}), Duration::from_millis(50)).unwrap_err();
        assert!(matches!(error, PeerError::Silent { .. }), "{error}");
        silent.child.kill().unwrap();
    }

    #[test]
    fn what_a_target_found_is_believed_only_when_it_says_how_much_it_looked_at() {
        assert_eq!(judge("nixl", &json!({"bytes": 4096})).unwrap(), 4096);
        for nothing in [json!({}), json!({"bytes": 0}), json!({"bytes": "many"})] {
            assert!(matches!(judge("nixl", &nothing), Err(PeerError::Unreadable { .. })), "{nothing}");
        }
        let wrong = json!({"wrong": {"offset": 8, "source": 16, "expected": u64::MAX, "found": 1}});
        let error = judge("nixl", &wrong).unwrap_err();
        assert!(matches!(error, PeerError::Corrupt { .. }));
        assert!(error.to_string().contains("0xffffffffffffffff"), "{error}");
    }

    #[test]
    fn drivers_are_dealt_the_sets_that_the_engine_moves() {
        let workload = Workload::parse("{name: x, what: y, block_bytes: 64, blocks: 5, layers: 3}", "a test").unwrap();
        let spec = LayoutSpec { workload, pool_bytes_min: 4096, concurrency: 1, seed: 3 };
        let (dealt, layout) = (deal(&spec), Layout::new(&spec));
        assert_eq!(dealt["sets"].as_array().unwrap().len(), layout.sets().len());
        assert_eq!(dealt["sets"][1][4], json!([layout.sets()[1][4].0, layout.sets()[1][4].1]));
        assert_eq!(dealt["bases"].as_array().unwrap().len(), 3);
        assert_eq!(
            (&dealt["block_bytes"], &dealt["stride_bytes"], &dealt["seed"]),
            (&json!(64), &json!(64), &json!(3))
        );
    }

    #[test]
    fn ways_say_their_settings() {
        assert_eq!(NIXL.settings_in_words(), "as it comes");
        assert_eq!(NIXL_TUNED.settings_in_words(), "UCX_POSIX_ERROR_HANDLING=y");
        assert_eq!(NIXL_TCP.settings_in_words(), "UCX_TLS=tcp,self");
        assert_eq!(NIXL_POLLED.settings_in_words(), "no progress thread as both sides poll");
        assert_eq!((NIXL_TUNED.peer, MOONCAKE.peer), ("nixl", "mooncake"));
    }
}
