//! Peers in processes of their own that do next to nothing: they sleep, or take what they are sent.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use penstock::config::{Progress, TransportName};
use penstock::{Engine, NoteId, Peer, PoolSpec, Rights, Submit, SystemEnv};

use crate::child::{from_word, obey, say};
use crate::pair::{PATIENCE, config};

/// The pool that a receiver offers.
pub const RECEIVER_POOL: &str = "kv";
/// Bytes of that pool.
pub const RECEIVER_BYTES: u64 = 1 << 20;

/// The longest that the receiver does not look whether it shall end.
const LOOK_WITHIN: Duration = Duration::from_millis(20);

fn start(folder: &Path, name: &str) -> Engine {
    let config = config(folder, name, TransportName::Shm, Progress::Adaptive);
    Engine::start(config).expect("an engine starts in a fresh folder")
}

fn meet(engine: &Engine, card: &str) -> Peer<SystemEnv> {
    let card = from_word(card).expect("the test gave its descriptor");
    engine.connect(&card, PATIENCE).expect("the test's engine runs")
}

/// A child that sleeps. It does as it is told in one line, and answers in one:
///
/// | order | does | answers |
/// |---|---|---|
/// | `connect <card>` | connects to this engine | `connected` |
/// | `notify <id>` | sends a notification to it | `notified` |
/// | `turns` | nothing | the turns of its worker so far |
///
/// # Panics
/// If it cannot.
pub fn sleep_among_peers(folder: &Path, name: &str) {
    let engine = start(folder, name);
    let mut peer = None;
    say("ready");
    obey(|order| match order.split_once(' ').unwrap_or((order, "")) {
        ("connect", card) => {
            peer = Some(meet(&engine, card));
            "connected".to_owned()
        }
        ("notify", id) => {
            let id = NoteId(id.parse().expect("ids are numbers"));
            let peer = peer.as_ref().expect("it was told to connect first");
            let sent = peer.notify(id, b"still here", Submit::new()).expect("the session stands");
            sent.wait().expect("the peer takes notifications");
            "notified".to_owned()
        }
        ("turns", _) => engine.statistics().turns.to_string(),
        _ => panic!("no such order: {order}"),
    });
}

/// A child that takes notifications and throws them away. Whatever it is told, it answers with how
/// many it has taken.
///
/// # Panics
/// If it cannot.
pub fn receive(folder: &Path, card: &str) {
    let engine = start(folder, "receiver");
    let spec = PoolSpec::host(RECEIVER_BYTES).label(RECEIVER_POOL).rights(Rights::READ_WRITE);
    let _pool = engine.pool(spec).expect("there is memory for a small pool");
    let _peer = meet(&engine, card);
    let (taken, ending) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut notes = Vec::new();
            while !ending.load(Ordering::Relaxed) {
                engine.wait_notification(LOOK_WITHIN);
                taken.fetch_add(engine.notifications(&mut notes) as u64, Ordering::Relaxed);
                notes.clear();
            }
        });
        say("ready");
        obey(|_| taken.load(Ordering::Relaxed).to_string());
        ending.store(true, Ordering::Relaxed);
    });
}
