//! Peers that come, are killed in the middle of their transfers, and come again under the same name; and
//! what the survivor holds after many of them.

use std::path::Path;
use std::time::{Duration, Instant};

use penstock::{Cause, Plan, Rights, Span, Submit};

use crate::command::{Command, Reply};
use crate::stage::{KV, PATIENCE};
use crate::target::footprint;
use crate::{Options, Setting, Stage};

/// Bytes of the pools on both sides: some milliseconds of copying.
const BYTES: u64 = 4 << 20;
const ALL: &[Span] = &[Span { local: 0, remote: 0, len: BYTES }];
/// The label under which the peers are known.
const NAME: &str = "target-0";
/// Kernel memory and allocator caches settle at slightly different sizes. One leaked mapping of a peer's
/// mailbox, the smallest of its segments, would be a hundred times this after a hundred cycles.
const SLACK_BYTES: u64 = 4 << 20;

/// What a process holds, and what lies about on the host that it may have made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holding {
    descriptors: usize,
    threads: usize,
    mappings: usize,
    shared_files: usize,
    resident_bytes: u64,
}

impl Holding {
    /// What this process holds now.
    ///
    /// # Panics
    /// If the kernel does not say.
    pub fn now() -> Self {
        let Ok(Reply::Footprint { descriptors, threads, mappings }) = footprint() else { panic!("/proc is there") };
        let status = std::fs::read_to_string("/proc/self/status").expect("/proc is there");
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("every process has some");
        let kib: u64 = resident.split_whitespace().next().and_then(|word| word.parse().ok()).expect("a number");
        Self { descriptors, threads, mappings, shared_files: our_shared_files(), resident_bytes: kib << 10 }
    }

    /// The same with so many more bytes.
    #[must_use]
    pub fn and_bytes(self, more: u64) -> Self {
        Self { resident_bytes: self.resident_bytes + more, ..self }
    }

    /// Whether it holds more than before, but for a little memory.
    pub fn is_more_than(&self, before: &Self) -> bool {
        self.descriptors > before.descriptors
            || self.threads > before.threads
            || self.mappings > before.mappings
            || self.shared_files > before.shared_files
            || self.resident_bytes > before.resident_bytes + SLACK_BYTES
    }
}

/// Files of ours in the folder for shared memory: other programs may put theirs there at any time.
fn our_shared_files() -> usize {
    let entries = std::fs::read_dir(Path::new("/dev/shm")).into_iter().flatten().flatten();
    entries.filter(|entry| entry.file_name().to_string_lossy().contains("penstock")).count()
}

/// How the cycles went.
#[derive(Debug, Clone, Copy)]
pub struct Churn {
    /// What the survivor held after the first cycles, and after all.
    pub early: Holding,
    /// After all of them.
    pub late: Holding,
    /// From telling a fresh process to start its engine to the end of a transfer into it: the median,
    /// what all but one in a hundred took at most, and the slowest.
    pub back: [Duration; 3],
    /// Transfers that were cut off.
    pub cut: u64,
}

/// So many peers come and are killed; the survivor's holding is taken after `early` of them and after all.
///
/// # Panics
/// If anything ends otherwise than it must, or the survivor holds more in the end.
pub fn churn(setting: &Setting, early: usize, cycles: usize) -> Churn {
    let mut stage = Stage::with(setting, Options { bytes: BYTES, ..Options::default() });
    let (mut back, mut cut, mut held) = (Vec::new(), 0, None);
    for cycle in 0..cycles {
        cut += be_cut_off(&mut stage, cycle);
        back.push(come_back(&mut stage));
        if cycle + 1 == early {
            held = Some(settled_holding(&stage, None));
        }
    }
    let early = held.expect("the first look is before the last cycle");
    let late = settled_holding(&stage, Some(early));
    assert!(!late.is_more_than(&early), "{cycles} deaths have left something behind: {early:?}, then {late:?}");
    assert_eq!(stage.ask(0, Command::Stop), Reply::Done);
    back.sort_unstable();
    let last = back.len() - 1;
    Churn { early, late, back: [back[last / 2], back[last * 99 / 100], back[last]], cut }
}

/// Kills the peer while both write to each other. Answers how many transfers were cut off.
fn be_cut_off(stage: &mut Stage, cycle: usize) -> u64 {
    let plan = Plan::write(&stage.near, &stage.far()).extents(ALL).build().expect("a sound plan");
    stage.tell(0, Command::Flood { peer: "source".to_owned(), label: KV.to_owned(), times: 50 });
    let transfers: Vec<_> = (0..8).map(|_| stage.submit(stage.peer(), &plan, Submit::new())).collect();
    // Somewhere in the middle, each time somewhere else.
    let until = Instant::now() + Duration::from_micros(211 * (cycle as u64 % 23));
    while Instant::now() < until {
        stage.turn();
    }
    stage.target(0).kill();
    let mut cut = 0;
    for transfer in &transfers {
        match transfer.wait() {
            Ok(done) => assert_eq!(done.bytes, BYTES),
            Err(fault) => {
                assert_eq!(fault.cause, Cause::PeerLost, "{fault}");
                cut += 1;
            }
        }
    }
    stage.wait_until("the session has ended here", || stage.peer().ended().is_some());
    assert_eq!(stage.peer().ended(), Some(Cause::PeerLost));
    let mut left = Vec::new();
    stage.engine.notifications(&mut left);
    cut
}

/// A fresh process under the same name. Answers how long it took until bytes had landed there.
fn come_back(stage: &mut Stage) -> Duration {
    let (old, epoch) = (stage.peer().clone(), stage.peer().epoch());
    stage.replace(0);
    let spec = stage.setting.spec(stage.folder.path(), NAME);
    let begun = Instant::now();
    stage.tell(0, Command::Start(spec.into()));
    let rights = Rights::READ_WRITE.into();
    stage.tell(0, Command::Pool { label: KV.to_owned(), bytes: BYTES, block: 4096, rights, seed: 2 });
    stage.peers[0] = stage.engine.reconnect(&old, PATIENCE).expect("it comes back");
    assert_ne!(stage.peer().epoch(), epoch, "another life");
    let one = [Span { local: 0, remote: 0, len: 64 << 10 }];
    let plan = Plan::write(&stage.near, &stage.far()).extents(&one).build().expect("a sound plan");
    stage.submit(stage.peer(), &plan, Submit::new()).wait().expect("the fresh session works");
    let took = begun.elapsed();
    assert!(matches!(stage.hear(0), Reply::Started { .. }));
    assert_eq!(stage.hear(0), Reply::Done);
    took
}

/// What is held once the threads that listened to dead children have ended, which takes a moment.
fn settled_holding(stage: &Stage, at_most: Option<Holding>) -> Holding {
    // Looks at everybody who might still write, and lets go of those who cannot.
    assert!(stage.near.revoke(&[(0, 1)], PATIENCE).expect("this engine runs").is_quiesced());
    assert!(stage.engine.quarantined().is_empty());
    let until = Instant::now() + PATIENCE;
    let mut now = Holding::now();
    let mut still = 0;
    while still < 5 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(10));
        let again = Holding::now();
        let is_settled = at_most.is_none_or(|before| !again.is_more_than(&before));
        still = if again == now && is_settled { still + 1 } else { 0 };
        now = again;
    }
    now
}
