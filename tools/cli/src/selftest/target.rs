//! The side that offers memory and is written to, read from and told.

use std::collections::HashMap;
use std::io::{BufRead, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use penstock::counter::Counter;
use penstock::{Config, Engine, NoteId, Pool, PoolSpec, Submit, SystemEnv};

use penstock_lab::ends::memif::{self, Memif};

use super::errand::{Answer, Errand, Note};
use super::flaw::Flaw;
use super::layout::{BLOCK_BYTES, Layout};
use super::pattern::{self, Content, Wrong};
use crate::arguments::Transport;
use crate::folder::SECRET;

/// The labels under which the initiator finds what it needs.
pub(crate) const POOL: &str = "kv";
pub(crate) const COUNTER: &str = "arrivals";

/// How long anything may take that should take far less than a second.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// How long one looks for what should not come.
const LINGER: Duration = Duration::from_millis(10);

/// The engine that is the target, its pool and its counter.
pub(crate) struct Target {
    counter: Counter<SystemEnv>,
    pool: Pool<SystemEnv>,
    engine: Engine,
    /// For each block of this side that is written, the block it comes from.
    sources: HashMap<u32, u32>,
}

impl Target {
    pub(crate) fn start(directory: &Path, transport: Transport, layout: Layout) -> Result<Self, Flaw> {
        let engine = Engine::start(engine_config(directory, "target", transport))?;
        let pool = engine.pool(PoolSpec::host(layout.bytes()).block(BLOCK_BYTES).label(POOL))?;
        let counter = pool.counter(COUNTER)?;
        let sources = layout.pairs().into_iter().map(|(near, far)| (far, near)).collect();
        Ok(Self { engine, pool, counter, sources })
    }

    /// Does what it is asked.
    pub(crate) fn run(&self, errand: Errand) -> Result<Answer, Flaw> {
        let window = self.pool.window();
        match errand {
            Errand::Card => return Ok(Answer::Card(self.engine.descriptor())),
            Errand::Fill(stamp) => pattern::fill(window, stamp)?,
            Errand::Clear => window.fill(0, window.len(), 0)?,
            Errand::CheckWritten(stamp) => {
                let content = |far| self.sources.get(&far).map_or(Content::Clear, |&near| Content::Of(stamp, near));
                return Ok(checked(pattern::first_wrong(window, content)?));
            }
            Errand::CheckClear => {
                // Whatever is still on its way has this long to show itself.
                std::thread::sleep(LINGER);
                return Ok(checked(pattern::first_wrong(window, |_| Content::Clear)?));
            }
            Errand::CheckBlockClear(block) => {
                std::thread::sleep(LINGER);
                return Ok(checked(pattern::first_set(window, block)?));
            }
            Errand::Flip(block) => pattern::flip(window, block)?,
            Errand::Count(least) => return Ok(Answer::Count(self.count(least))),
            Errand::Notes(count) => return Ok(Answer::Notes(self.notes(count))),
            Errand::Notify(payload) => return self.notify(&payload),
            Errand::Revoke(block) => {
                let extent = (u64::from(block) * BLOCK_BYTES, BLOCK_BYTES);
                if !self.pool.revoke(&[extent], PATIENCE)?.is_quiesced() {
                    return Err(Flaw::NotQuiesced { what: "memory that was taken back" });
                }
            }
            Errand::SeeOff => return Ok(self.see_off()),
            Errand::Crash => return Err(Flaw::CompanionEnded { how: "it was asked to".to_owned() }),
        }
        Ok(Answer::Done)
    }

    fn count(&self, least: u64) -> u64 {
        self.counter.wait(least, PATIENCE);
        // One too many would be as wrong as one too few.
        self.counter.wait(least + 1, LINGER);
        self.counter.value()
    }

    fn notes(&self, count: usize) -> Vec<Note> {
        let mut taken = Vec::new();
        let until = Instant::now() + PATIENCE;
        while taken.len() < count && Instant::now() < until {
            self.engine.wait_notification(LINGER);
            self.engine.notifications(&mut taken);
        }
        self.engine.wait_notification(LINGER);
        self.engine.notifications(&mut taken);
        taken.into_iter().map(Note::from).collect()
    }

    fn notify(&self, payload: &[u8]) -> Result<Answer, Flaw> {
        let peers = self.engine.peers();
        let [peer] = peers.as_slice() else {
            return Ok(Answer::Failed(format!("it has {} peers instead of one", peers.len())));
        };
        peer.notify(NoteId(payload.len() as u128), payload, Submit::new())?.wait()?;
        Ok(Answer::Done)
    }

    fn see_off(&self) -> Answer {
        let until = Instant::now() + PATIENCE;
        while !self.engine.peers().is_empty() {
            if Instant::now() > until {
                return Answer::Failed("its peer has left, and it has not noticed".to_owned());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        match self.engine.quarantined().len() {
            0 => Answer::Done,
            held => Answer::Failed(format!("{held} pieces of its memory stay quarantined")),
        }
    }
}

fn checked(wrong: Option<Wrong>) -> Answer {
    wrong.map_or(Answer::Done, Answer::Wrong)
}

/// The engine here; the other one is the target.
pub(crate) const SOURCE: &str = "source";

/// Both engines are as a user's would be, but for the one transport and the folder of their own.
pub(crate) fn engine_config(directory: &Path, name: &str, transport: Transport) -> Config {
    let config = Config::default().named(name).directory(directory).transports([transport.name()]);
    match transport {
        Transport::Local | Transport::Shm => config,
        // Any free port that only this host reaches, and a secret that only these two know.
        Transport::Verbs | Transport::Tcp | Transport::Datagram => {
            config.listen(["127.0.0.1:0"]).secret_file(directory.join(SECRET))
        }
        Transport::Dpdk => {
            let socket = directory.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
            let memif = Memif { socket, frame_bytes: memif::FRAME_BYTES, is_server: name == SOURCE };
            let config = Config { dpdk: memif.section(), ..config };
            config.listen(["127.0.0.1:0"]).secret_file(directory.join(SECRET))
        }
    }
}

/// The whole life of the other process: an errand a line on standard input, an answer a line on standard output,
/// until the input ends. It ends with whoever holds its other end, however that ends.
pub(crate) fn serve(directory: &Path, transport: Transport, layout: Layout) -> Result<(), Flaw> {
    let target = Target::start(directory, transport, layout)?;
    let mut out = std::io::stdout().lock();
    for line in std::io::stdin().lock().lines() {
        let line = line.map_err(Flaw::Companion)?;
        let answer = match serde_json::from_str(&line) {
            Ok(Errand::Crash) => std::process::exit(CRASHED),
            Ok(errand) => target.run(errand).unwrap_or_else(|flaw| Answer::Failed(flaw.to_string())),
            Err(error) => Answer::Failed(format!("this is no errand: {error}")),
        };
        let text = serde_json::to_string(&answer).expect("answers hold numbers and texts only");
        if writeln!(out, "{text}").and_then(|()| out.flush()).is_err() {
            break; // Whoever asked is gone.
        }
    }
    Ok(())
}

/// The exit status of a target that was asked to crash: none that it would otherwise have.
const CRASHED: i32 = 86;
