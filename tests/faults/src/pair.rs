//! Two engines that know each other.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use penstock::config::{Progress, TransportName};
use penstock::{Config, Engine, Env, Peer, Plan, Submit, SubmitError, SystemEnv, Transfer};

use crate::folder::SECRET;

/// How long anything may take that takes microseconds on an idle machine. Generous: a test machine
/// may be busy with something else.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// The configuration of an engine in a test: in this folder, over this transport alone. Between hosts means over the
/// loopback device here, with a secret that lies in the folder too.
///
/// # Panics
/// If the folder cannot be written.
pub fn config(folder: &Path, name: &str, transport: TransportName, progress: Progress) -> Config {
    let config = Config::default().named(name).directory(folder).transports([transport]).progress(progress);
    if transport != TransportName::Tcp {
        return config;
    }
    let secret = folder.join(SECRET);
    // Whoever comes first writes it; it is the same for all.
    let made = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&secret);
    if let Ok(mut file) = made {
        file.write_all(format!("{}\n", "5e".repeat(32)).as_bytes()).expect("the test's folder can be written");
    }
    config.listen(["127.0.0.1:0"]).secret_file(secret)
}

/// Connects two engines of this process; inline ones are turned meanwhile. Answers what `from`
/// sees of `to`.
///
/// # Panics
/// If they do not come together in time.
pub fn connect(from: &Engine, to: &Engine) -> Peer<SystemEnv> {
    let connecting = from.connect_begin(&to.descriptor()).expect("the descriptor is fresh");
    let start = Instant::now();
    loop {
        to.progress_all().expect("this thread made the engine");
        from.progress_all().expect("this thread made the engine");
        if let Some(answer) = connecting.poll() {
            return answer.expect("both are of this process");
        }
        assert!(start.elapsed() < PATIENCE, "two engines of one process do not come together");
        std::thread::yield_now();
    }
}

/// Looks until `done`, turning these engines. Answers whether it was done in time.
pub fn turn_until(engines: &[&Engine], mut done: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while !done() {
        for engine in engines {
            engine.progress_all().expect("this thread made the engine");
        }
        if start.elapsed() > PATIENCE {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

/// Submits a plan. A worker that is not given a core for a while lets its queue run full, which
/// means "later".
///
/// # Panics
/// If the plan is refused for another reason, or for too long.
pub fn submit<E: Env>(peer: &Peer<E>, plan: &Plan, how: Submit<'_>) -> Transfer<E> {
    let start = Instant::now();
    loop {
        match peer.submit(plan, how) {
            Ok(transfer) => return transfer,
            Err(SubmitError::Full { what }) => assert!(start.elapsed() < PATIENCE, "{what} stays full"),
            Err(refused) => panic!("a plan that stands was refused: {refused}"),
        }
        std::thread::yield_now();
    }
}
