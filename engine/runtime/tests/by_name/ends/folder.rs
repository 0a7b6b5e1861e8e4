//! A folder of one test's own, in which its engines meet and which holds the secret that they share.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use penstock::config::{Progress, TransportName};
use penstock::{Config, Engine};

/// The only file that may be left in it.
const SECRET: &str = "secret";
const LOOPBACK: &str = "127.0.0.1:0";
/// A guest is emulated: an engine takes a second there to start.
const EMULATED: Duration = Duration::from_secs(10);

/// It is removed with this value, when engines must have left nothing in it.
pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    /// How many engines were started in it.
    engines: AtomicU32,
}

impl Folder {
    pub(crate) fn new() -> Self {
        static LAST: AtomicU32 = AtomicU32::new(0);
        let last = LAST.fetch_add(1, Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("penstock-ends-{}-{last}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let secret = path.join(SECRET);
        std::fs::write(&secret, "5a".repeat(32)).unwrap();
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
        Self { path, engines: AtomicU32::new(0) }
    }

    /// Starts an engine that meets the others of this folder, over this transport. The first one has the device at one end of the wire
    /// of an RDMA guest, where that is the way, and all others the one at its other end.
    pub(crate) fn engine(&self, name: &str, transport: TransportName, progress: Progress) -> Engine {
        self.engine_with(name, transport, progress, |config| config)
    }

    /// The same, with a configuration that is changed before it starts.
    pub(crate) fn engine_with(
        &self,
        name: &str,
        transport: TransportName,
        progress: Progress,
        change: impl FnOnce(Config) -> Config,
    ) -> Engine {
        let config = Config::default()
            .named(name)
            .directory(&self.path)
            .transports([transport])
            .progress(progress)
            .secret_file(self.path.join(SECRET))
            .heartbeat(Duration::from_secs(2));
        let is_first = self.engines.fetch_add(1, Ordering::Relaxed) == 0;
        let config = match transport {
            TransportName::Tcp => config.listen([LOOPBACK]),
            TransportName::Verbs => config
                .listen([LOOPBACK])
                .verbs_devices([if is_first { "rxe_a0" } else { "rxe_b0" }])
                .heartbeat(EMULATED)
                .greeting_timeout(EMULATED),
            _ => config,
        };
        Engine::start(change(config)).unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let files = std::fs::read_dir(&self.path).into_iter().flatten().flatten();
        let left: Vec<_> = files.map(|file| file.file_name()).filter(|name| name != SECRET).collect();
        // The assertion says more than a failure to remove it would.
        let _ = std::fs::remove_dir_all(&self.path);
        if !std::thread::panicking() {
            assert!(left.is_empty(), "engines leave nothing behind: {left:?}");
        }
    }
}
