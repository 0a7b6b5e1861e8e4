//! What the tests between hosts have in common: folders, secrets, and a transport that only holds its streams.

#![allow(dead_code, unreachable_pub)] // Each of the files that have it uses a part of it.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use penstock::config::TransportName;
use penstock::memory::{MemoryError, Region};
use penstock::transport::{
    AccessPath, AdvertisedRegion, Batch, Caps, Exported, ImportError, Lane, LaneEvents, LaneFault, Link, LocalEnd,
    Note, NotifyPosted, NotifyRequest, PeerView, Placement, PostError, Posted, Registrar, RemoteEnd, RemoteGateLog,
    RemoteMemory, Scope, Streams, Transport, Trust,
};
use penstock::transport::{lane, link};
use penstock::{Cause, Config, Engine, Peer, SystemEnv};

pub type E = Engine<SystemEnv>;
pub type P = Peer<SystemEnv>;

pub const SECOND: Duration = Duration::from_secs(1);
pub const SOON: Duration = Duration::from_secs(5);
pub const STREAMS: usize = 3;

/// Streams that are attached, over all engines of this process, by the epoch of the engine that has them.
static ATTACHED: Mutex<Vec<(u64, usize)>> = Mutex::new(Vec::new());

/// What engines were told of revisions, by their epochs.
static HEARD: Mutex<Vec<(u64, Arc<RemoteGateLog>)>> = Mutex::new(Vec::new());

struct Kept {
    epoch: u64,
    streams: Mutex<Vec<Option<OwnedFd>>>,
}

impl Streams for Kept {
    fn count(&self) -> usize {
        STREAMS
    }

    fn attach(&self, index: usize, stream: OwnedFd) -> Result<(), link::AttachError> {
        let mut streams = self.streams.lock().unwrap();
        let place = streams.get_mut(index).ok_or(link::AttachError::NoSuchStream(index))?;
        if place.is_some() {
            return Err(link::AttachError::Taken(index));
        }
        *place = Some(stream);
        ATTACHED.lock().unwrap().push((self.epoch, index));
        Ok(())
    }
}

/// Moves nothing; its lanes keep the session's streams open.
struct Idle {
    _streams: Arc<Kept>,
}

impl Lane for Idle {
    fn post(&mut self, _: &Batch<'_>) -> Result<Posted, PostError> {
        Err(PostError::Refused(Cause::NoPath))
    }

    fn notify(&mut self, _: &NotifyRequest<'_>) -> Result<NotifyPosted, PostError> {
        Err(PostError::Refused(Cause::NoPath))
    }

    fn hand_over(&mut self, _: Note<'_>, _: &lane::Handle) -> Result<(), PostError> {
        Err(PostError::Refused(Cause::NoPath))
    }

    fn poll(&mut self, _: &mut dyn LaneEvents) -> Result<bool, LaneFault> {
        Ok(false)
    }
}

struct Nothing;

impl Registrar for Nothing {
    fn export(&self, _: &Arc<Region>) -> Exported {
        Exported::default()
    }

    fn import(&self, _: &AdvertisedRegion<'_>, _: Option<OwnedFd>) -> Result<RemoteMemory, ImportError> {
        Err(ImportError::NoPath("nothing is moved here".to_owned()))
    }

    fn access_path(&self, _: &AdvertisedRegion<'_>) -> AccessPath {
        AccessPath { name: "none", reason: "nothing is moved here".to_owned() }
    }
}

/// Reaches other hosts and moves nothing.
pub struct Far;

impl Transport for Far {
    fn name(&self) -> &'static str {
        "far"
    }

    fn caps(&self) -> Caps {
        Caps {
            trust: Trust::Checked,
            placement: Placement::AtNotification,
            synchronous: false,
            ordered: true,
            multi_worker: true,
            remote_caller_memory: false,
            hand_over: false,
        }
    }

    fn reaches(&self, _: &LocalEnd, _: &RemoteEnd) -> Result<&'static str, &'static str> {
        Ok("for a test")
    }

    fn scope(&self) -> Scope {
        Scope::Network
    }

    fn offer(&self, here: LocalEnd, _: RemoteEnd) -> Result<link::Offering, MemoryError> {
        let join: link::Join = Box::new(move |_, _| {
            let streams = (0..STREAMS).map(|_| None).collect();
            let kept = Arc::new(Kept { epoch: here.epoch, streams: Mutex::new(streams) });
            let told = Arc::new(RemoteGateLog::default());
            HEARD.lock().unwrap().push((here.epoch, Arc::clone(&told)));
            let lane = || Box::new(Idle { _streams: Arc::clone(&kept) }) as Box<dyn Lane>;
            Ok(Link {
                lanes: (0..here.workers).map(|_| lane()).collect(),
                registrar: Arc::new(Nothing),
                peer_view: PeerView::Reported(told),
                streams: Some(kept),
                transport_messages: None,
                rails: Vec::new(),
                path: "for a test".to_owned(),
            })
        });
        Ok(link::Offering { blob: Vec::new(), fds: Vec::new(), join })
    }
}

pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(label: &str) -> Self {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let last = LAST.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("penstock-network-{}-{last}-{label}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// A secret of 32 such bytes.
    pub fn secret(&self, byte: u8) -> PathBuf {
        let path = self.0.join(format!("secret-{byte}"));
        write_secret(&path, &format!("{byte:02x}").repeat(32), 0o600);
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

pub fn write_secret(path: &Path, text: &str, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, text).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Each engine has a folder of its own, as on a host of its own.
pub fn config(folder: &Folder, name: &str) -> Config {
    Config::default()
        .named(name)
        .directory(folder.0.join(name))
        .transports([TransportName::Local])
        .workers(1)
        .secret_file(folder.secret(7))
        .accepts_per_second(100_000)
}

pub fn listening(folder: &Folder, name: &str) -> Config {
    config(folder, name).listen(["127.0.0.1:0"])
}

pub fn start(config: Config) -> E {
    Engine::start_with(SystemEnv, config, vec![Arc::new(Far)]).unwrap()
}

pub fn address(engine: &E) -> SocketAddr {
    engine.addresses()[0]
}

pub fn call(from: &E, to: &E) -> P {
    from.connect_address(&address(to).to_string(), SOON).unwrap()
}

/// Waits until it is so; answers how long that took.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < SOON, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
    begun.elapsed()
}

/// How many streams this engine's sessions were ever given.
pub fn attached(engine: &E) -> usize {
    ATTACHED.lock().unwrap().iter().filter(|(epoch, _)| *epoch == engine.epoch().0).count()
}

/// The last revision that this engine was told by its latest peer.
pub fn heard_revision(engine: &E) -> u64 {
    let heard = HEARD.lock().unwrap();
    heard.iter().rfind(|(epoch, _)| *epoch == engine.epoch().0).map_or(0, |(_, told)| told.revision())
}

pub fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}
