//! An engine under attack, and a healthy peer of it that must not notice anything.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use penstock::session::EngineDescriptor;
use penstock::{NoteId, Plan, PoolSpec, Rights, Span, Submit};

use crate::Engine;
use crate::command::{Command, Reply};
use crate::folder::Folder;
use crate::pattern;
use crate::remote::Remote;
use crate::setting::{Place, Setting};
use crate::stage::{KV, PATIENCE};

/// Bytes that the bystander moves there and back in every round.
const BYTES: u64 = 64 << 10;
/// The longest that one round may take while somebody else is under attack or attacks.
const ROUND_MAX: Duration = Duration::from_secs(3);
/// Rounds that must succeed after an attack has begun.
const ROUNDS_MIN: u64 = 3;

/// Rounds after which it rests: each leaves a notification that nobody takes before the end.
const ROUNDS_MAX: u64 = 800;

/// A healthy peer: writes to its peer, reads back, compares, notifies, again and again.
struct Bystander {
    stop: Arc<AtomicBool>,
    rounds: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Bystander {
    fn start(setting: &Setting, folder: &Folder, descriptor: Vec<u8>) -> Self {
        let (stop, rounds) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let config = Setting::adaptive(setting.transport, 1, setting.place).spec(folder.path(), "bystander").config();
        let (stopped, counted) = (Arc::clone(&stop), Arc::clone(&rounds));
        let body = move || {
            let engine = Engine::start(config).expect("the bystander starts");
            while !stopped.load(Ordering::Relaxed) && counted.load(Ordering::Relaxed) < ROUNDS_MAX {
                live(&engine, &descriptor, &stopped, &counted);
            }
        };
        let thread = std::thread::Builder::new().name("bystander".to_owned()).spawn(body);
        Self { stop, rounds, thread: Some(thread.expect("there is room for one more thread")) }
    }
}

/// One session's worth of rounds.
fn live(engine: &Engine, descriptor: &[u8], stop: &AtomicBool, rounds: &AtomicU64) {
    let near = engine.pool(PoolSpec::host(2 * BYTES).block(4096).label("bystander's")).expect("memory for a pool");
    let peer = engine.connect(descriptor, PATIENCE).expect("the bystander connects");
    let remote = peer.wait_region("bystander", PATIENCE).expect("its region is announced");
    let there = Span { local: 0, remote: 0, len: BYTES };
    let back = Span { local: BYTES, remote: 0, len: BYTES };
    let there = Plan::write(&near, &remote).extents(&[there]).build().expect("sound");
    let back = Plan::read(&near, &remote).extents(&[back]).build().expect("sound");
    while !stop.load(Ordering::Relaxed) {
        let round = rounds.load(Ordering::Relaxed);
        let begun = Instant::now();
        let expected = pattern::bytes(1000 + round, 0, BYTES as usize);
        near.window().write_from(0, &expected).expect("inside");
        let how = Submit::new().notify(NoteId(round.into()), b"bystander");
        for (plan, how) in [(&there, how), (&back, Submit::new())] {
            let ended = peer.submit(plan, how).expect("the bystander is not refused").wait();
            assert_eq!(ended.expect("the bystander's transfers end well").bytes, BYTES);
        }
        let mut found = vec![0; BYTES as usize];
        near.window().read_into(BYTES, &mut found).expect("inside");
        assert!(found == expected, "the bystander's bytes are not what it wrote");
        assert!(begun.elapsed() < ROUND_MAX, "the bystander waited {:?}", begun.elapsed());
        rounds.store(round + 1, Ordering::Relaxed);
        std::thread::sleep(Duration::from_millis(3));
        if round + 1 >= ROUNDS_MAX {
            return;
        }
    }
}

/// An engine to be attacked, which has a bystander.
pub struct Arena {
    /// What it runs under.
    pub setting: Setting,
    /// The engine's descriptor, as bytes.
    pub descriptor: Vec<u8>,
    /// The same, decoded.
    pub card: EngineDescriptor,
    victim: Remote,
    bystander: Bystander,
    folder: Folder,
}

impl Arena {
    /// The name of the engine.
    pub const VICTIM: &str = "victim";

    fn open(setting: Setting) -> Self {
        let folder = Folder::fresh();
        let mut victim = Remote::start(Place::Here);
        victim.tell(Command::Start(setting.spec(folder.path(), Self::VICTIM).into()));
        let Reply::Started { descriptor } = victim.hear(PATIENCE) else { panic!("the victim does not start") };
        let card = EngineDescriptor::decode(&descriptor).expect("an engine's own descriptor");
        for (label, seed) in [("bystander", 0), (KV, crate::stage::FAR_SEED)] {
            let rights = Rights::READ_WRITE.into();
            victim.tell(Command::Pool { label: label.to_owned(), bytes: 1 << 20, block: 4096, rights, seed });
            assert_eq!(victim.hear(PATIENCE), Reply::Done);
        }
        let bystander = Bystander::start(&setting, &folder, descriptor.clone());
        let arena = Self { setting, descriptor, card, victim, bystander, folder };
        arena.wait_for_rounds(1);
        arena
    }

    /// Tells the engine something and waits for the answer.
    pub fn ask(&mut self, command: Command) -> Reply {
        self.victim.tell(command);
        self.victim.hear(PATIENCE)
    }

    /// Waits until the engine answers with this.
    pub fn wait_for(&mut self, command: &Command, expected: &Reply) {
        let until = Instant::now() + PATIENCE;
        loop {
            let found = self.ask(command.clone());
            if found == *expected {
                return;
            }
            assert!(Instant::now() < until, "{command:?} answers {found:?} and not {expected:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The engine's socket.
    pub fn socket(&self) -> PathBuf {
        PathBuf::from(&self.card.socket)
    }

    /// Where its socket and those of its peers are.
    pub fn folder(&self) -> &Folder {
        &self.folder
    }

    fn rounds(&self) -> u64 {
        self.bystander.rounds.load(Ordering::Relaxed)
    }

    /// Waits until the bystander has done so many rounds.
    fn wait_for_rounds(&self, count: u64) {
        let until = Instant::now() + PATIENCE;
        while self.rounds() < count {
            let is_alive = self.bystander.thread.as_ref().is_some_and(|thread| !thread.is_finished());
            assert!(is_alive && Instant::now() < until, "the bystander is stuck after {} rounds", self.rounds());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// The bystander goes on, all its notifications came once, and strangers are still welcome.
    fn finish(mut self, rounds_before: u64) {
        self.wait_for_rounds((rounds_before + ROUNDS_MIN).min(ROUNDS_MAX));
        let config = Setting::adaptive(self.setting.transport, 1, Place::Here);
        let config = config.spec(self.folder.path(), "newcomer").config();
        let newcomer = Engine::start(config).expect("the newcomer starts");
        newcomer.connect(&self.descriptor, PATIENCE).expect("newcomers are still welcome");
        self.bystander.stop.store(true, Ordering::Relaxed);
        let ended = self.bystander.thread.take().expect("only this takes it").join();
        assert!(ended.is_ok(), "the bystander has failed; see its message above");
        let (mut ids, until) = (Vec::<u64>::new(), Instant::now() + PATIENCE);
        // Others may have told it something, too.
        while (ids.len() as u64) < self.rounds() && Instant::now() < until {
            let Reply::Notes(notes) = self.ask(Command::TakeNotes { count: 1, within_ms: 1000 }) else {
                panic!("the victim has no notifications")
            };
            ids.extend(notes.iter().filter(|note| note.peer == "bystander").map(|note| note.id.0));
        }
        assert_eq!(ids, (0..self.rounds()).collect::<Vec<_>>(), "the bystander's notifications, each once");
    }
}

/// Runs an attack on a threaded and on an inline engine, each with a bystander that must not notice.
pub fn attack(case: &str, body: fn(&mut Arena)) {
    let transport = penstock::config::TransportName::Shm;
    for setting in [Setting::adaptive(transport, 1, Place::Here), Setting::inline(transport, Place::Here)] {
        let run = std::panic::AssertUnwindSafe(|| {
            let mut arena = Arena::open(setting);
            let rounds = arena.rounds();
            body(&mut arena);
            arena.finish(rounds);
        });
        if let Err(failure) = std::panic::catch_unwind(run) {
            let text = failure.downcast_ref::<String>().cloned();
            let text = text.or_else(|| failure.downcast_ref::<&str>().map(|&text| text.to_owned()));
            panic!("{setting}/{case}: {}", text.unwrap_or_default());
        }
    }
}
