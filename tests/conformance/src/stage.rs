//! An engine here, engines there, and their sessions.

use std::time::{Duration, Instant};

use penstock::config::TransportName;
use penstock::transport::Placement;
use penstock::{Completed, Fault, NoteId, Notification, Plan, Rights, Span, Submit, SubmitError};

use crate::command::{Command, Reply, TakenNote};
use crate::folder::Folder;
use crate::own::Own;
use crate::pattern;
use crate::remote::Remote;
use crate::setting::{Cards, Carrier, Memory, SOURCE, Setting, Tuning};
use crate::{Engine, Peer, RemoteRegion, Transfer};

/// How long anything may take that is not the point of a case. Generous: the machine may be busy.
pub const PATIENCE: Duration = Duration::from_secs(20);
/// How long bytes that the peer's card has in its keeping may take until they can be seen there.
const SOON: Duration = Duration::from_secs(2);
/// The label of the pool that every engine has.
pub const KV: &str = "kv";
/// The seed of the pattern in the pool here.
pub const NEAR_SEED: u64 = 1;
/// The seed of the pattern in every pool there.
pub const FAR_SEED: u64 = 2;

/// What a case changes about its stage.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Bytes of the pool on either side.
    pub bytes: u64,
    /// Bytes of their blocks.
    pub block: u64,
    /// How many targets there are.
    pub targets: usize,
    /// Settings of the engine here.
    pub near: Tuning,
    /// Settings of the engines there.
    pub far: Tuning,
}

impl Default for Options {
    fn default() -> Self {
        Self { bytes: 1 << 20, block: 4096, targets: 1, near: Tuning::default(), far: Tuning::default() }
    }
}

/// The initiator, its targets and its sessions with them.
pub struct Stage {
    /// What the case is run under.
    pub setting: Setting,
    /// The pool here, filled with the pattern of [`NEAR_SEED`].
    pub near: Own,
    /// A session with each target, in the order they were started.
    pub peers: Vec<Peer>,
    /// The engine here. Dropped before its targets, which answer its goodbye.
    pub engine: Engine,
    targets: Vec<Remote>,
    descriptors: Vec<Vec<u8>>,
    /// Dropped last: by then nothing may be left in it.
    pub folder: Folder,
}

impl Stage {
    /// One target and pools of 1 MiB.
    pub fn open(setting: &Setting) -> Self {
        Self::with(setting, Options::default())
    }

    /// As [`Stage::open`], with pools of so many bytes.
    pub fn sized(setting: &Setting, bytes: u64) -> Self {
        Self::with(setting, Options { bytes, ..Options::default() })
    }

    /// A stage as the case wants it.
    pub fn with(setting: &Setting, options: Options) -> Self {
        let folder = Folder::fresh();
        let (engine, near) = start_here(setting, &folder, options);
        let (peers, targets, descriptors) = (Vec::new(), Vec::new(), Vec::new());
        let mut stage = Self { setting: *setting, near, peers, engine, targets, descriptors, folder };
        for number in 0..options.targets {
            stage.add_target(&format!("target-{number}"), options);
        }
        stage
    }

    /// The engine here ends and is started again; it has a session with each target as it was started last.
    #[must_use]
    pub fn restart_here(self, options: Options) -> Self {
        let Self { setting, near, peers, engine, targets, descriptors, folder } = self;
        drop((near, peers, engine));
        let (engine, near) = start_here(&setting, &folder, options);
        let connect = |descriptor: &Vec<u8>| engine.connect(descriptor, PATIENCE).expect("a session with the target");
        let peers = descriptors.iter().map(connect).collect();
        Self { setting, near, peers, engine, targets, descriptors, folder }
    }

    /// A stage whose target takes no notifications, and the transfers that have filled it up: some have
    /// ended, the others wait for room.
    pub fn choked(setting: &Setting) -> (Self, Vec<Transfer>) {
        let far = Tuning { notifications_per_peer: Some(1), ..Tuning::default() };
        let stage = Self::with(setting, Options { far, ..Options::default() });
        let fill = stage.more_notes_than_there_is_room();
        let sent = || stage.engine.statistics().notes_sent;
        stage.wait_until("the receiver is full", || {
            let (before, since) = (sent(), Instant::now());
            while since.elapsed() < Duration::from_millis(30) {
                stage.turn();
            }
            before > 0 && before == sent()
        });
        (stage, fill)
    }

    /// Notifies a target that takes none. What is told last waits for room.
    pub fn more_notes_than_there_is_room(&self) -> Vec<Transfer> {
        // Two lines each, so that a full ring has no room for a smaller one either.
        let how = || Submit::new().within(PATIENCE);
        let count = 700 * self.setting.workers as u128;
        (0..count).map(|id| self.notify(self.peer(), id, &[1; 90], how())).collect()
    }

    /// Starts one more target with a pool, and connects to it. Answers its number.
    pub fn add_target(&mut self, name: &str, options: Options) -> usize {
        let number = self.targets.len();
        let mut target = Remote::start(self.setting.place);
        if self.setting.carrier == Carrier::Memif {
            target.may_go_with_its_peer(self.folder.path());
        }
        self.targets.push(target);
        self.descriptors.push(Vec::new());
        let descriptor = self.start_engine(number, name, options);
        let peer = self.engine.connect(&descriptor, PATIENCE).expect("a session with the target");
        assert_eq!(peer.transport(), self.setting.transport.as_str());
        self.peers.push(peer);
        self.assert_path(number);
        number
    }

    /// Fails if memory of a device there is reached otherwise than the setting says.
    fn assert_path(&self, number: usize) {
        if self.setting.devices.there() {
            let expected = match (self.setting.transport, self.setting.cards) {
                (TransportName::Local, _) => "device",
                (_, Cards::BesideDevices { gpudirect: true }) => "gpudirect (dma-buf)",
                _ => "staged",
            };
            assert_eq!(self.region(number, KV).access_path(), expected);
        }
    }

    /// Starts an engine with a pool in a target that has none. Answers its descriptor.
    pub fn start_engine(&mut self, number: usize, name: &str, options: Options) -> Vec<u8> {
        let spec = self.setting.spec(self.folder.path(), name).tuned(options.far);
        let descriptor = match self.ask(number, Command::Start(spec.into())) {
            Reply::Started { descriptor } => descriptor,
            other => panic!("the target did not start: {other:?}"),
        };
        self.descriptors[number].clone_from(&descriptor);
        self.make_pool(number, KV, options.bytes, options.block, Rights::READ_WRITE);
        descriptor
    }

    /// The descriptor of the engine that a target started last.
    pub fn descriptor(&self, number: usize) -> Vec<u8> {
        self.descriptors[number].clone()
    }

    /// Makes a region at a target, filled with the pattern of [`FAR_SEED`]: a pool, unless the setting
    /// wants another kind of memory there.
    pub fn make_pool(&mut self, number: usize, label: &str, bytes: u64, block: u64, rights: Rights) {
        let label_here = label.to_owned();
        let command = match (self.setting.memory, label) {
            (Memory::Caller, _) | (Memory::Mixed, KV) => {
                Command::Register { label: label_here, bytes, rights: rights.into(), skew: 3, seed: FAR_SEED }
            }
            _ => Command::Pool { label: label_here, bytes, block, rights: rights.into(), seed: FAR_SEED },
        };
        assert_eq!(self.ask(number, command), Reply::Done);
    }

    /// A pool of the engine here, of the kind of memory that the setting wants here.
    pub fn pool_here(&self, label: &str, bytes: u64) -> Own {
        Own::pool(&self.engine, self.setting.devices.here(), (bytes, 4096), label).expect("there is memory for a pool")
    }

    /// A region of a target, once it is announced.
    pub fn region(&self, number: usize, label: &str) -> RemoteRegion {
        self.peers[number].wait_region(label, PATIENCE).expect("the region is announced")
    }

    /// The pool of the first target.
    pub fn far(&self) -> RemoteRegion {
        self.region(0, KV)
    }

    /// The session with the first target.
    pub fn peer(&self) -> &Peer {
        &self.peers[0]
    }

    /// Gives a target that was killed another process, in which no engine was started yet.
    pub fn replace(&mut self, number: usize) {
        self.targets[number] = Remote::start(self.setting.place);
    }

    /// Tells a target something without waiting for the answer.
    pub fn tell(&mut self, number: usize, command: Command) {
        self.targets[number].tell(command);
    }

    /// Waits for a target's answer; an inline engine here makes progress meanwhile.
    pub fn hear(&mut self, number: usize) -> Reply {
        if !self.setting.is_inline() {
            return self.targets[number].hear(PATIENCE);
        }
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(reply) = self.targets[number].try_hear() {
                return reply;
            }
            assert!(Instant::now() < until, "no answer within {PATIENCE:?}");
            self.turn();
        }
    }

    /// Tells a target something and waits for the answer.
    pub fn ask(&mut self, number: usize, command: Command) -> Reply {
        self.tell(number, command);
        self.hear(number)
    }

    /// As [`Stage::ask`], for what is answered by `Done`.
    pub fn order(&mut self, number: usize, command: Command) {
        assert_eq!(self.ask(number, command), Reply::Done);
    }

    /// Lets a target take notifications.
    pub fn take_notes(&mut self, number: usize, count: usize, within: Duration) -> Vec<TakenNote> {
        match self.ask(number, Command::TakeNotes { count, within_ms: within.as_millis() as u64 }) {
            Reply::Notes(notes) => notes,
            other => panic!("no notifications but {other:?}"),
        }
    }

    /// The target itself, to be killed or replaced.
    pub fn target(&mut self, number: usize) -> &mut Remote {
        &mut self.targets[number]
    }

    /// Ends the session with the first target.
    pub fn disconnect_first(&self) {
        assert!(self.peer().disconnect(PATIENCE), "the session ends");
    }

    /// Lets an inline engine here make progress; for others a moment passes.
    pub fn turn(&self) {
        if !self.setting.is_inline() || !self.engine.progress_all().expect("this thread started the engine") {
            std::thread::sleep(Duration::from_micros(20));
        }
    }

    /// Waits for something to become true.
    pub fn wait_until(&self, what: &str, mut done: impl FnMut() -> bool) {
        let until = Instant::now() + PATIENCE;
        while !done() {
            assert!(Instant::now() < until, "waited {PATIENCE:?} in vain until {what}");
            self.turn();
        }
    }

    /// Waits for notifications here.
    pub fn wait_notes(&self, count: usize) -> Vec<Notification> {
        let mut taken = Vec::new();
        let until = Instant::now() + PATIENCE;
        while taken.len() < count {
            assert!(self.engine.wait_notification(until.saturating_duration_since(Instant::now())), "no notification");
            self.engine.notifications(&mut taken);
        }
        taken
    }

    /// Submits, and tries again as long as the answer is "full".
    pub fn submit(&self, peer: &Peer, plan: &Plan, how: Submit<'_>) -> Transfer {
        self.insist(|| peer.submit(plan, how))
    }

    /// Notifies, and tries again as long as the answer is "full".
    pub fn notify(&self, peer: &Peer, id: u128, payload: &[u8], how: Submit<'_>) -> Transfer {
        self.insist(|| peer.notify(NoteId(id), payload, how))
    }

    fn insist(&self, mut attempt: impl FnMut() -> Result<Transfer, SubmitError>) -> Transfer {
        let until = Instant::now() + PATIENCE;
        loop {
            match attempt() {
                Err(SubmitError::Full { .. }) if Instant::now() < until => self.turn(),
                other => return other.expect("the transfer is taken"),
            }
        }
    }

    /// Writes one extent to the first target and waits for it.
    pub fn write(&self, span: Span) -> Completed {
        let plan = Plan::write(&self.near, &self.far()).extents(&[span]).build().expect("the span is sound");
        self.submit(self.peer(), &plan, Submit::new()).wait().expect("the transfer ends well")
    }

    /// Fails unless a region of a target holds exactly these bytes: at once, or soon where only a notification says that
    /// bytes can be seen.
    pub fn assert_far(&mut self, number: usize, label: &str, expected: &[u8]) {
        let is_soon = |peer: &Peer| peer.caps().placement == Placement::AtNotification;
        let is_soon = self.peers.get(number).is_some_and(is_soon);
        let (since, expected) = (Instant::now(), pattern::digests(expected));
        loop {
            match self.ask(number, Command::Digest { label: label.to_owned() }) {
                Reply::Digests(found) if is_soon && found != expected && since.elapsed() < SOON => {}
                Reply::Digests(found) => return pattern::assert_same(&found, &expected, label),
                other => panic!("no digests but {other:?}"),
            }
        }
    }

    /// Fails unless the pool here holds exactly these bytes.
    pub fn assert_near(&self, expected: &[u8]) {
        pattern::assert_same(&pattern::memory_digests(&*self.near), &pattern::digests(expected), "here");
    }

    /// What the regions hold in the beginning: (here, there). Only a pool grows to whole pages.
    pub fn models(&self) -> (Vec<u8>, Vec<u8>) {
        let there = if self.peers.is_empty() { self.near.bytes() } else { self.far().bytes() };
        (pattern::bytes(NEAR_SEED, 0, self.near.bytes() as usize), pattern::bytes(FAR_SEED, 0, there as usize))
    }
}

/// The engine here and its pool.
fn start_here(setting: &Setting, folder: &Folder, options: Options) -> (Engine, Own) {
    let spec = setting.spec(folder.path(), SOURCE).tuned(options.near);
    let engine = spec.start().expect("the initiator starts");
    let near = Own::pool(&engine, setting.devices.here(), (options.bytes, options.block), KV);
    let near = near.expect("there is memory for a pool");
    pattern::fill(&*near, NEAR_SEED);
    (engine, near)
}

/// What a span does to the bytes of its destination.
pub fn apply(span: Span, source: &[u8], destination: &mut [u8], write: bool) {
    let (from, to) = if write { (span.local, span.remote) } else { (span.remote, span.local) };
    let (from, to, len) = (from as usize, to as usize, span.len as usize);
    destination[to..to + len].copy_from_slice(&source[from..from + len]);
}

/// The fault of a transfer that must not have ended well.
pub fn fault_of(transfer: &Transfer) -> Fault {
    transfer.wait().expect_err("the transfer cannot have ended well")
}

/// Waits for all of them, which must end well.
pub fn all_end_well(transfers: &[Transfer]) {
    for transfer in transfers {
        transfer.wait().expect("the transfer ends well");
    }
}
