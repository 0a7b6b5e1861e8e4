//! Two engines of this process that know each other.

use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock::config::{Progress, TransportName};
use penstock::transport::Transport;
use penstock::{Armed, Config, Engine, Peer, SystemEnv};
use penstock_core::env::TransportEnv;
use penstock_cuda::CudaDevices;
use penstock_verbs::adapter::Adapter;
use penstock_verbs::model::ModelAdapter;
use penstock_verbs::{VerbsOptions, VerbsTransport};

/// Longer than anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Pair {
    pub(crate) near: Engine<SystemEnv>,
    pub(crate) far: Engine<SystemEnv>,
    pub(crate) peer: Peer<SystemEnv>,
    folder: PathBuf,
}

impl Pair {
    pub(crate) fn start(configured: impl Fn(Config) -> Config) -> Self {
        let folder = std::env::temp_dir().join(format!("penstock-copies-{}", std::process::id()));
        let engine = |name: &str| Engine::start(configured(Config::default().named(name).directory(&folder))).unwrap();
        let (near, far) = (engine("near"), engine("far"));
        let peer = near.connect(&far.descriptor(), PATIENCE).unwrap();
        assert_eq!(peer.transport(), "local");
        Self { near, far, peer, folder }
    }

    /// Both have this transport only.
    pub(crate) fn over(transport: TransportName, configured: impl Fn(Config) -> Config) -> Self {
        let folder = std::env::temp_dir().join(format!("penstock-copies-{}-{transport}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let secret = folder.join("secret");
        std::fs::write(&secret, "5e".repeat(32)).unwrap();
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
        let config = |name: &str| {
            let mut config = Config::default().named(name).directory(&folder).transports([transport]);
            if transport != TransportName::Shm {
                config.session.listen = vec!["127.0.0.1:0".to_owned()];
                config.session.secret_file = Some(secret.clone());
            }
            configured(config)
        };
        let (near, far) = (Engine::start(config("near")).unwrap(), Engine::start(config("far")).unwrap());
        let peer = near.connect(&far.descriptor(), PATIENCE).unwrap();
        assert_eq!(peer.transport(), transport.as_str());
        Self { near, far, peer, folder }
    }

    /// Over a card each in this process, which reach memory of devices.
    pub(crate) fn over_cards(cards: &[Arc<ModelAdapter>; 2], configured: impl Fn(Config) -> Config) -> Self {
        let folder = std::env::temp_dir().join(format!("penstock-copies-{}-cards", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let secret = folder.join("secret");
        std::fs::write(&secret, "5e".repeat(32)).unwrap();
        std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o600)).unwrap();
        let engine = |name: &str, card: &Arc<ModelAdapter>| {
            // With one of its own the engine has its devices, and stages.
            let allowed = [TransportName::Verbs, TransportName::Tcp];
            let mut config = Config::default().named(name).directory(&folder).transports(allowed);
            config.session.listen = vec!["127.0.0.1:0".to_owned()];
            config.session.secret_file = Some(secret.clone());
            let card = Arc::clone(card) as Arc<dyn Adapter>;
            let started = Engine::start_making(SystemEnv, configured(config), |segments, registry| {
                let env: Arc<dyn TransportEnv> = Arc::new(SystemEnv);
                let devices = CudaDevices::open(&env, segments).map_err(std::io::Error::other)??;
                let (segments, registry) = (Arc::clone(segments), Arc::clone(registry));
                let made = VerbsTransport::new(segments, registry, vec![card], VerbsOptions::default());
                let made = made.map_err(std::io::Error::other)?.with_devices(Some(Arc::new(devices)));
                Ok(vec![Arc::new(made) as Arc<dyn Transport>])
            });
            started.unwrap()
        };
        let (near, far) = (engine("near", &cards[0]), engine("far", &cards[1]));
        let peer = near.connect(&far.descriptor(), PATIENCE).unwrap();
        assert_eq!(peer.transport(), "verbs");
        Self { near, far, peer, folder }
    }

    /// The near one works in its own calls only.
    pub(crate) fn start_inline() -> Self {
        let folder = std::env::temp_dir().join(format!("penstock-copies-{}", std::process::id()));
        let config = |name: &str| Config::default().named(name).directory(&folder);
        let far = Engine::start(config("far")).unwrap();
        let mut inline = config("near");
        inline.workers.progress = Progress::Inline;
        let near = Engine::start(inline).unwrap();
        let peer = near.connect(&far.descriptor(), PATIENCE).unwrap();
        Self { near, far, peer, folder }
    }

    /// One more engine beside them.
    pub(crate) fn another(&self, name: &str) -> Engine<SystemEnv> {
        Engine::start(Config::default().named(name).directory(&self.folder)).unwrap()
    }

    pub(crate) fn close(&mut self) {
        assert!(self.near.close(PATIENCE).is_empty());
        assert!(self.far.close(PATIENCE).is_empty());
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Bytes that tell where they are and which round it was.
pub(crate) fn pattern(bytes: u64, seed: u64) -> Vec<u8> {
    (0..bytes).map(|at| (at ^ (at >> 8) ^ (at >> 16) ^ seed.wrapping_mul(31)) as u8).collect()
}

/// Lets an inline engine work, and sleeps on its descriptor in between.
pub(crate) fn sleep_until(engine: &Engine<SystemEnv>, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    loop {
        engine.progress().unwrap();
        if is_so() {
            return;
        }
        assert!(Instant::now() < end, "nobody has woken it");
        if engine.arm().unwrap() == Armed::Armed {
            let mut ready = libc::pollfd { fd: engine.event_fd().as_raw_fd(), events: libc::POLLIN, revents: 0 };
            // SAFETY: it reads and writes one structure.
            unsafe { libc::poll(&raw mut ready, 1, 20_000) };
        }
    }
}
