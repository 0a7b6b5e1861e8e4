//! Two inline engines of one thread, connected.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use penstock::config::{Progress, TransportName};
use penstock::region::Pool;
use penstock::{Config, Counter, Engine, Peer, PoolSpec, RemoteRegion, Rights, SystemEnv};

use crate::Refusal;

/// How long two engines of one thread may take to greet.
const PATIENCE: Duration = Duration::from_secs(10);
/// What the target calls its pool and its counter.
const LABEL: &str = "micro";

/// An initiator and a target, both turned by this thread.
pub struct Pair {
    /// The initiator's memory.
    pub pool: Pool<SystemEnv>,
    /// The target's, as plans name it.
    pub remote: RemoteRegion<SystemEnv>,
    /// The target, as the initiator sees it.
    pub peer: Peer<SystemEnv>,
    /// Counts what arrived at the target.
    pub arrivals: Counter<SystemEnv>,
    /// The target's memory.
    pub target_pool: Pool<SystemEnv>,
    /// Who submits.
    pub initiator: Engine,
    /// Who receives.
    pub target: Engine,
    /// Removed last, when no engine has a socket in it any more.
    _folder: Folder,
}

impl Pair {
    /// Starts both with pools of so many bytes, and connects them over this transport.
    pub fn connected(transport: TransportName, pool_bytes: u64) -> Result<Self, Refusal> {
        let folder = Folder::create()?;
        let start = |name: &str| {
            let config = Config::default().named(name).directory(folder.path()).transports([transport]);
            Engine::start(config.progress(Progress::Inline))
        };
        let (initiator, target) = (start("initiator")?, start("target")?);
        let spec = || PoolSpec::host(pool_bytes).label(LABEL).rights(Rights::READ_WRITE);
        let (pool, target_pool) = (initiator.pool(spec())?, target.pool(spec())?);
        let arrivals = target_pool.counter(LABEL)?;
        let connecting = initiator.connect_begin(&target.descriptor())?;
        let begun = Instant::now();
        let turn = || -> Result<(), Refusal> {
            target.progress_all()?;
            initiator.progress_all()?;
            if begun.elapsed() > PATIENCE {
                Err("two engines of one thread did not find each other".into())
            } else {
                Ok(())
            }
        };
        let peer = loop {
            turn()?;
            if let Some(answer) = connecting.poll() {
                break answer?;
            }
        };
        let remote = loop {
            match peer.region(LABEL) {
                Ok(remote) if peer.counter(LABEL).is_some() => break remote,
                _ => turn()?,
            }
        };
        Ok(Self { pool, remote, peer, arrivals, target_pool, initiator, target, _folder: folder })
    }

    /// The target's counter, as the initiator names it.
    pub fn remote_counter(&self) -> Result<penstock::RemoteCounter, Refusal> {
        self.peer.counter(LABEL).ok_or_else(|| "the target's counter is gone".into())
    }
}

/// A folder of its own for the sockets.
struct Folder(PathBuf);

impl Folder {
    fn create() -> std::io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("penstock-micro-{}-{number}", std::process::id()));
        std::fs::create_dir_all(&path)?;
        Ok(Self(path))
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A folder that cannot be removed is empty and in the system's folder for such.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
