//! Writers that are stopped in the middle of a copy.
//!
//! A writer is a process of its own that writes the same blocks of the owner's pool again and again. The
//! owner stops the process (`SIGSTOP`) and takes the blocks back: if the answer is quarantine, the
//! process was stopped inside a copy. Most stops are; those that are not are tried again.
//!
//! - [`Stopped`]: a process that stands still until told otherwise
//! - [`Stage`]: the owner, its pool and the writer, brought to the moment in which the writer is frozen
//! - [`write_again_and_again`]: the writer

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use penstock::config::{Progress, TransportName};
use penstock::{Blocks, Cause, Engine, LocalQuiesce, Peer, Plan, Pool, PoolSpec, Quarantined, Rights, Submit};
use penstock::{SubmitError, SystemEnv, Transfer};
use penstock_verbs::model::ModelAdapter;
use rustix::process::{Pid, Signal, kill_process};

use crate::child::{Child, from_word, say, to_word};
use crate::folder::Folder;
use crate::pair::{PATIENCE, config, submit};
use crate::rails;
use crate::seed::{Random, Seed};

/// Bytes of a block.
pub const BLOCK_BYTES: u64 = 64 << 10;
/// Blocks that the writer writes.
pub const WRITTEN: usize = 32;
/// Blocks of the pool; those that the writer does not write lie behind.
pub const BLOCKS: usize = 48;
/// What the writer writes.
pub const DATA: u8 = 0x5A;
/// What the owner lays over memory that has been taken back.
pub const CANARY: u8 = 0xC3;
/// What lies in the blocks that nobody writes.
pub const NEIGHBOUR: u8 = 0x77;
/// The time that a revoke has. A copy that is not frozen takes microseconds.
pub const REVOKE_WITHIN: Duration = Duration::from_millis(200);
/// Stops until one comes in the middle of a copy. About nine of ten do on an idle machine.
const STOPS_MAX: u32 = 200;
/// The longest from the first byte to the stop: within it several rounds of the writer begin and end.
const STOP_AFTER_US_MAX: u64 = 2_000;

/// A process that stands still, all its threads, until it is dropped or [killed](Self::kill).
#[derive(Debug)]
pub struct Stopped(Pid);

impl Stopped {
    /// Stops the process with this id, which is a child of ours, and waits until it stands still.
    ///
    /// # Panics
    /// If it does not stop.
    pub fn new(child: &Child) -> Self {
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).expect("process ids are positive");
        kill_process(pid, Signal::STOP).expect("our own child");
        let stopped = Self(pid);
        let start = Instant::now();
        while !stands_still(child.id()) {
            assert!(start.elapsed() < PATIENCE, "child {} does not stop", child.id());
            std::thread::sleep(Duration::from_micros(100));
        }
        stopped
    }

    /// Kills it as it stands.
    pub fn kill(self) {
        let _ = kill_process(self.0, Signal::KILL);
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        // Our own child, whom nobody has waited for yet: its id is still its own.
        let _ = kill_process(self.0, Signal::CONT);
    }
}

/// Whether all threads of a process are stopped.
fn stands_still(pid: u32) -> bool {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    let is_stopped = |task: std::fs::DirEntry| {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        // The state follows the name, which is in brackets and may contain anything.
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    };
    tasks.flatten().all(is_stopped)
}

/// The owner of a pool, and a writer in another process.
pub struct Stage {
    /// The writer. It comes first, to be gone before its engine's folder is.
    pub writer: Child,
    written: Option<Blocks>,
    _neighbours: Blocks,
    /// The pool.
    pub pool: Pool<SystemEnv>,
    /// The owner.
    pub engine: Engine,
    /// Where they meet.
    pub folder: Folder,
    random: Random,
}

impl Stage {
    /// Starts both, in a folder with this label, which is unique in its process.
    ///
    /// # Panics
    /// If they do not start.
    pub fn new(label: &str, program: &str) -> Self {
        let folder = Folder::new(label);
        let config = config(folder.path(), "owner", TransportName::Shm, Progress::Adaptive);
        let engine = Engine::start(config).expect("an engine starts in a fresh folder");
        Self::of(folder, engine, program)
    }

    /// The same with an owner that has cards, and is reached by its address, too.
    ///
    /// # Panics
    /// If they do not start.
    pub fn over_cards(label: &str, program: &str, cards: &[Arc<ModelAdapter>]) -> Self {
        let folder = Folder::new(label);
        let config = config(folder.path(), "owner", TransportName::Tcp, Progress::Adaptive);
        let engine = rails::start(config.transports([TransportName::Shm]), SystemEnv, cards);
        Self::of(folder, engine, program)
    }

    fn of(folder: Folder, engine: Engine, program: &str) -> Self {
        let spec = PoolSpec::host(BLOCKS as u64 * BLOCK_BYTES).block(BLOCK_BYTES).label("board");
        let pool = engine.pool(spec.rights(Rights::READ_WRITE)).expect("there is memory for a small pool");
        let written = pool.take(WRITTEN).expect("the pool is fresh");
        assert_eq!(written.offset(0), Some(0), "a fresh pool gives its blocks in order");
        let neighbours = pool.take(BLOCKS - WRITTEN).expect("the pool has so many");
        pool.window().fill(0, pool.bytes(), NEIGHBOUR).expect("the pool is as long as that");
        let writer = start_writer(&folder, "writer", &engine, program);
        let (written, _neighbours) = (Some(written), neighbours);
        Self { writer, written, _neighbours, pool, engine, folder, random: Random::new(Seed::of_this_run().of_step(0)) }
    }

    /// Stops the writer in the middle of a copy, and takes back what it writes.
    ///
    /// # Panics
    /// If that does not happen in many trials.
    pub fn freeze(&mut self) -> (Stopped, Quarantined) {
        for _ in 0..STOPS_MAX {
            let last = WRITTEN as u64 * BLOCK_BYTES - 8;
            self.pool.window().store_u64(last, 0).expect("the pool is as long as that");
            self.writer.order("write");
            let start = Instant::now();
            while self.pool.window().load_u64(last).expect("as above") == 0 {
                assert!(start.elapsed() < PATIENCE, "the writer does not write");
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_micros(self.random.below(STOP_AFTER_US_MAX)));
            let stopped = Stopped::new(&self.writer);
            match self.revoke() {
                LocalQuiesce::Quarantined(held) => return (stopped, held),
                other => assert!(other.is_quiesced(), "a revoke answers nothing else: {other:?}"),
            }
            drop(stopped);
            assert_eq!(self.end_of_writing(), Cause::RevokedByPeer.text());
        }
        panic!("none of {STOPS_MAX} stops came in the middle of a copy");
    }

    /// Takes back what the writer writes.
    ///
    /// # Panics
    /// If the answer is late, or an error.
    pub fn revoke(&self) -> LocalQuiesce {
        let start = Instant::now();
        let hold = self.pool.revoke(&[written_extent()], REVOKE_WITHIN).expect("the pool stands");
        let took = start.elapsed();
        assert!(took < REVOKE_WITHIN + PATIENCE / 4, "a revoke of {REVOKE_WITHIN:?} answered after {took:?}");
        hold
    }

    /// The blocks that the writer writes, which are now the caller's to give back.
    ///
    /// # Panics
    /// If they were given back already.
    pub fn take_written(&mut self) -> Blocks {
        self.written.take().expect("the blocks are the stage's")
    }

    /// Keeps these blocks for the writer.
    pub fn keep_written(&mut self, blocks: Blocks) {
        self.written = Some(blocks);
    }

    /// How the writer's last transfer ended, once it has.
    pub fn end_of_writing(&mut self) -> String {
        self.writer.order("end");
        self.writer.answer(2 * PATIENCE)
    }

    /// Lays the canary over what the writer writes.
    ///
    /// # Panics
    /// If the pool is too small.
    pub fn lay(&self) {
        let (offset, len) = written_extent();
        self.pool.window().fill(offset, len, CANARY).expect("the pool is as long as that");
    }

    /// How many bytes of the canary are gone; the writer's must be in their place.
    ///
    /// # Panics
    /// If anything else is there, or a neighbour has changed.
    pub fn landed(&self) -> u64 {
        let mut found = vec![0; (WRITTEN as u64 * BLOCK_BYTES) as usize];
        self.pool.window().read_into(0, &mut found).expect("the pool is as long as that");
        assert!(found.iter().all(|&byte| byte == CANARY || byte == DATA), "something landed that nobody wrote");
        let landed = found.iter().filter(|&&byte| byte == DATA).count() as u64;
        let mut found = vec![0; ((BLOCKS - WRITTEN) as u64 * BLOCK_BYTES) as usize];
        self.pool.window().read_into(WRITTEN as u64 * BLOCK_BYTES, &mut found).expect("as above");
        assert!(found.iter().all(|&byte| byte == NEIGHBOUR), "a block changed that nobody writes");
        landed
    }
}

/// Starts a writer of this engine's pool.
///
/// # Panics
/// If it does not start.
pub fn start_writer(folder: &Folder, name: &str, engine: &Engine, program: &str) -> Child {
    let path = folder.path().to_str().expect("folders for temporary files have plain names");
    let mut writer = Child::start(program, &["write", path, name, &to_word(&engine.descriptor())]);
    assert_eq!(writer.answer(PATIENCE), "ready");
    writer
}

/// What the writer writes, as (offset, length).
pub fn written_extent() -> (u64, u64) {
    (0, WRITTEN as u64 * BLOCK_BYTES)
}

/// Looks until `done`. Answers whether it was in time.
pub fn wait_until(mut done: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !done() {
        if start.elapsed() > PATIENCE {
            return false;
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    true
}

/// A child that writes. It does as it is told in one line:
///
/// | order | does | answers |
/// |---|---|---|
/// | `write` | gets the region, builds a plan, writes it again and again until a transfer fails | nothing |
/// | `end` | waits for that failure | its cause, in words |
/// | `once` | gets the region, builds a plan, writes it once | `done`, or why not |
/// | `beside` | as `once`, into the last of the blocks that nobody else writes; keeps the plan | `done`, or why not |
/// | `old` | submits the plan of the last `write` or `beside` once more | `done`, or why not |
/// | `rebuild` | builds a plan from the region as it was got last | `built`, or why not |
///
/// # Panics
/// If it cannot.
pub fn write_again_and_again(folder: &Path, name: &str, card: &str) {
    let config = config(folder, name, TransportName::Shm, Progress::Adaptive).workers(1);
    let engine = Engine::start(config).expect("an engine starts in a fresh folder");
    let spec = PoolSpec::host(WRITTEN as u64 * BLOCK_BYTES).block(BLOCK_BYTES).label("data");
    let data = engine.pool(spec).expect("there is memory for a small pool");
    data.window().fill(0, data.bytes(), DATA).expect("the pool is as long as that");
    let card = from_word(card).expect("the test gave its descriptor");
    let peer = engine.connect(&card, PATIENCE).expect("the test's engine runs");
    let board = peer.region("board").expect("it was there before the peers met");
    let mut writer = Writer { peer, data, board, plan: None, end: None };
    say("ready");
    for_each_order(|order| writer.obey(order));
}

/// As [`obey`](crate::child::obey), but some orders have no answer.
fn for_each_order(mut answer: impl FnMut(&str) -> Option<String>) {
    for order in std::io::stdin().lines().map_while(Result::ok) {
        if let Some(line) = answer(&order) {
            say(&line);
        }
    }
}

struct Writer {
    peer: Peer<SystemEnv>,
    data: Pool<SystemEnv>,
    board: penstock::RemoteRegion<SystemEnv>,
    plan: Option<Plan>,
    end: Option<Receiver<String>>,
}

impl Writer {
    fn obey(&mut self, order: &str) -> Option<String> {
        match order {
            "write" => {
                self.board = self.peer.wait_region("board", PATIENCE).expect("the owner keeps its pool");
                let plan = self.build().expect("the blocks lie inside the regions");
                self.plan = Some(plan.clone());
                let (sender, end) = channel();
                self.end = Some(end);
                let peer = self.peer.clone();
                // Ends with the first failure: the owner takes back what is written here.
                std::thread::spawn(move || sender.send(write_until_it_fails(&peer, &plan)));
                None
            }
            "end" => {
                let end = self.end.take().expect("it was told to write");
                Some(end.recv_timeout(PATIENCE).unwrap_or_else(|_| "still writing".to_owned()))
            }
            "once" => {
                self.board = self.peer.wait_region("board", PATIENCE).expect("the owner keeps its pool");
                Some(match self.build() {
                    Ok(plan) => end_of(&submit(&self.peer, &plan, Submit::new())),
                    Err(refused) => refused.to_string(),
                })
            }
            "beside" => {
                let last = (0, BLOCKS as u32 - 1);
                let plan = Plan::write(&self.data, &self.board).blocks(&[last]).build();
                self.plan = Some(plan.expect("the blocks lie inside the regions"));
                self.obey("old")
            }
            "old" => {
                let plan = self.plan.as_ref().expect("it was told to write");
                Some(end_of(&submit(&self.peer, plan, Submit::new())))
            }
            "rebuild" => Some(self.build().map_or_else(|refused| refused.to_string(), |_| "built".to_owned())),
            _ => panic!("no such order: {order}"),
        }
    }

    fn build(&self) -> Result<Plan, penstock::PlanError> {
        let blocks: Vec<(u32, u32)> = (0..WRITTEN as u32).map(|block| (block, block)).collect();
        Plan::write(&self.data, &self.board).blocks(&blocks).block_bytes(BLOCK_BYTES).build()
    }
}

fn write_until_it_fails(peer: &Peer<SystemEnv>, plan: &Plan) -> String {
    loop {
        match peer.submit(plan, Submit::new()).as_ref().map(end_of) {
            Ok(end) if end == "done" => {}
            Ok(end) => return end,
            Err(SubmitError::Full { .. }) => std::thread::yield_now(),
            Err(refused) => return refused.to_string(), // The owner's engine has ended.
        }
    }
}

fn end_of(transfer: &Transfer<SystemEnv>) -> String {
    match transfer.wait_within(PATIENCE) {
        Some(Ok(_)) => "done".to_owned(),
        Some(Err(fault)) => fault.cause.text().to_owned(),
        None => "not ended".to_owned(),
    }
}
