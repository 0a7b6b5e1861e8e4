//! A peer in a process of its own that fetches chunks, and stands still or is killed meanwhile.

use std::path::Path;
use std::time::{Duration, Instant};

use penstock::config::{Progress, TransportName};
use penstock::flows::relay::{Destination, Fetch, RelaySpec};
use penstock::{Engine, SystemEnv};

use crate::child::{Child, from_word, obey, say, to_word};
use crate::pair::{PATIENCE, config};

/// The child's side. It has one berth of so many bytes to fetch through, connects, says `ready`, and then answers these orders:
///
/// | order | answers |
/// |---|---|
/// | `begin <metadata>` | `begun`, once its berth is taken; nothing is taken out of it, so what is larger stays in the middle |
/// | `go <metadata>` | `going`, while its bytes come |
///
/// # Panics
/// If it cannot.
pub fn read(folder: &Path, name: &str, card: &str, berth: &str) {
    let config = config(folder, name, TransportName::Shm, Progress::Adaptive);
    let engine = Engine::start(config).expect("an engine starts in the test's folder");
    let berth = berth.parse().expect("a number of bytes");
    let relay = engine.relay(RelaySpec::new().berths(berth, 1, 1)).expect("a fresh engine has room");
    let card = from_word(card).expect("the test gives a descriptor");
    let _peer = engine.connect(&card, PATIENCE).expect("the test's engine listens");
    say("ready");
    let mut fetches: Vec<Fetch<SystemEnv>> = Vec::new();
    obey(|order| match order.split_once(' ') {
        Some((how, metadata)) => {
            let metadata = from_word(metadata).expect("the test gives metadata");
            fetches.push(relay.get(&metadata, Destination::memory()).expect("the test has put it"));
            let start = Instant::now();
            while how == "begin" && engine.control_metrics().relay.gets == 0 {
                assert!(start.elapsed() < PATIENCE, "nothing is announced");
                std::thread::sleep(Duration::from_millis(1));
            }
            if how == "begin" { "begun".to_owned() } else { "going".to_owned() }
        }
        None => panic!("no such order: {order}"),
    });
}

/// A reader, as the test sees it.
#[derive(Debug)]
pub struct Reader {
    child: Child,
}

impl Reader {
    /// Starts one, as a process of `program`, that connects to this engine.
    ///
    /// # Panics
    /// If it does not start.
    pub fn start(program: &str, folder: &Path, name: &str, card: &[u8], berth: u64) -> Self {
        let path = folder.to_str().expect("folders for temporary files have plain names");
        let mut child = Child::start(program, &["read", path, name, &to_word(card), &berth.to_string()]);
        assert_eq!(child.answer(PATIENCE), "ready");
        Self { child }
    }

    /// Has it begin to fetch what stays in the middle.
    ///
    /// # Panics
    /// If it does not.
    pub fn begin(&mut self, metadata: &[u8]) {
        self.child.order(&format!("begin {}", to_word(metadata)));
        assert_eq!(self.child.answer(PATIENCE), "begun");
    }

    /// Has it fetch.
    ///
    /// # Panics
    /// If it does not answer.
    pub fn go(&mut self, metadata: &[u8]) {
        self.child.order(&format!("go {}", to_word(metadata)));
        assert_eq!(self.child.answer(PATIENCE), "going");
    }

    /// The process.
    pub fn process(&self) -> &Child {
        &self.child
    }
}
