//! What a case is run under.

use std::fmt;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use penstock::Config;
use penstock::config::{Progress, TcpIo, TransportName};
use serde::{Deserialize, Serialize};

/// The name of the file with the secret that the engines of a case share.
pub const SECRET: &str = "secret";

/// The name of the file that says where the engines of a case are.
pub const DIRECTORY: &str = "directory";

/// The port of an engine of this name, which it has in each of its lives. Below those that the kernel gives out by itself.
fn port_of(folder: &Path, name: &str) -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let path = folder.join(DIRECTORY);
    let listed = std::fs::read_to_string(&path).unwrap_or_default();
    let found = listed.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(" 127.0.0.1:")?.parse().ok());
    found.unwrap_or_else(|| {
        let seed = std::process::id().wrapping_mul(977);
        let mut tried = (0..10_000).map(|_| NEXT.fetch_add(1, Ordering::Relaxed).wrapping_add(seed) % 20_000 + 10_000);
        let is_free = |port: &u32| std::net::TcpListener::bind(("127.0.0.1", *port as u16)).is_ok();
        let port = tried.find(is_free).expect("one of so many ports is free");
        std::fs::write(&path, format!("{listed}{name} 127.0.0.1:{port}\n")).expect("the case's folder can be written");
        port as u16
    })
}

/// Writes the secret, unless it is there.
fn share_secret(folder: &Path) {
    let made = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(folder.join(SECRET));
    if let Ok(mut file) = made {
        writeln!(file, "{}", "5e".repeat(32)).expect("the case's folder can be written");
    }
}

/// Where the other engine runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// In a thread of this process.
    Here,
    /// In a process of this program: the path of `penstock-conformance-peer`.
    Process(&'static str),
}

/// What kind of memory the other engine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Memory {
    /// Pools.
    #[default]
    Pools,
    /// Memory that its engine did not allocate, at odd addresses.
    Caller,
    /// The memory under [`KV`](crate::stage::KV) is not allocated by its engine, everything else is.
    Mixed,
}

/// A transport, a mode, and where the other engine runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// The only transport that both engines allow.
    pub transport: TransportName,
    /// The mode of both engines.
    pub progress: Progress,
    /// The workers of each engine.
    pub workers: usize,
    /// Where the other engine runs.
    pub place: Place,
    /// What kind of memory it has.
    pub memory: Memory,
    /// Whether the engines may use the kernel's copies between processes.
    pub process_vm: bool,
    /// What moves bytes between sockets and memory.
    pub io: TcpIo,
    /// TCP streams of each worker.
    pub streams: usize,
    /// The RDMA devices of this engine and of the other one, separated by commas; chosen where empty.
    pub devices: [&'static str; 2],
}

impl Setting {
    /// Engines with so many adaptive workers.
    pub const fn adaptive(transport: TransportName, workers: usize, place: Place) -> Self {
        let (progress, memory) = (Progress::Adaptive, Memory::Pools);
        Self {
            transport,
            progress,
            workers,
            place,
            memory,
            process_vm: true,
            io: TcpIo::Auto,
            streams: 1,
            devices: [""; 2],
        }
    }

    /// Engines without threads.
    pub const fn inline(transport: TransportName, place: Place) -> Self {
        Self { progress: Progress::Inline, ..Self::adaptive(transport, 1, place) }
    }

    /// The same with another kind of memory on the other side.
    #[must_use]
    pub const fn with(self, memory: Memory) -> Self {
        Self { memory, ..self }
    }

    /// The same with the kernel's copies between processes switched off.
    #[must_use]
    pub const fn without_process_vm(self) -> Self {
        Self { process_vm: false, ..self }
    }

    /// The same with this between sockets and memory.
    #[must_use]
    pub const fn by(self, io: TcpIo) -> Self {
        Self { io, ..self }
    }

    /// The same with so many streams for each worker.
    #[must_use]
    pub const fn streams(self, streams: usize) -> Self {
        Self { streams, ..self }
    }

    /// The same with these RDMA devices on the side of the test and on the other, each a list separated by commas.
    #[must_use]
    pub const fn devices(self, near: &'static str, far: &'static str) -> Self {
        Self { devices: [near, far], ..self }
    }

    /// Whether the engines have no threads.
    pub fn is_inline(&self) -> bool {
        !self.progress.is_threaded()
    }

    /// The configuration of an engine of this name on the side of the test, with its socket in this folder.
    pub fn spec(&self, folder: &Path, name: &str) -> EngineSpec {
        self.spec_with(folder, name, self.devices[0])
    }

    /// The same on the other side.
    pub fn far_spec(&self, folder: &Path, name: &str) -> EngineSpec {
        self.spec_with(folder, name, self.devices[1])
    }

    fn spec_with(&self, folder: &Path, name: &str, devices: &str) -> EngineSpec {
        if self.transport.is_between_hosts() {
            share_secret(folder);
        }
        EngineSpec {
            name: name.to_owned(),
            folder: folder.display().to_string(),
            transport: self.transport.as_str().to_owned(),
            progress: self.progress.as_str().to_owned(),
            workers: self.workers,
            process_vm: self.process_vm,
            io: self.io.as_str().to_owned(),
            streams: self.streams,
            devices: devices.split(',').filter(|device| !device.is_empty()).map(str::to_owned).collect(),
            port: if self.transport.is_between_hosts() { port_of(folder, name) } else { 0 },
            tuning: Tuning::default(),
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}-{}", self.transport.as_str(), self.progress.as_str(), self.workers)?;
        f.write_str(match self.memory {
            Memory::Pools => "",
            Memory::Caller => "/caller memory",
            Memory::Mixed => "/mixed memory",
        })?;
        f.write_str(if self.process_vm { "" } else { "/without process_vm" })?;
        match self.transport {
            TransportName::Tcp => write!(f, "/{}/{} streams", self.io, self.streams),
            TransportName::Verbs if self.devices != [""; 2] => write!(f, "/{} to {}", self.devices[0], self.devices[1]),
            _ => Ok(()),
        }
    }
}

/// Settings of an engine that only some cases change.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tuning {
    /// Notifications of one peer that may wait in the inbox.
    pub notifications_per_peer: Option<usize>,
    /// Commands of one worker's queue.
    pub queue: Option<usize>,
    /// Transfers between submission and the drop of their handle.
    pub in_flight: Option<usize>,
    /// How long a peer on another host may be silent, in milliseconds.
    pub heartbeat_ms: Option<u64>,
    /// Connections from one address that are heard in a second.
    pub accepts_per_second: Option<u64>,
    /// The address it listens at, where that is not the loopback's.
    pub host: Option<IpAddr>,
}

/// An engine to be started, here or elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EngineSpec {
    /// Its name.
    pub name: String,
    /// Where its socket is.
    pub folder: String,
    /// The only transport it allows.
    pub transport: String,
    /// Its mode.
    pub progress: String,
    /// Its workers.
    pub workers: usize,
    /// Whether it may use the kernel's copies between processes.
    pub process_vm: bool,
    /// What moves bytes between sockets and memory.
    pub io: String,
    /// TCP streams of each worker.
    pub streams: usize,
    /// Its RDMA devices; chosen if there are none.
    #[serde(default)]
    pub devices: Vec<String>,
    /// Where it listens, if it does: the same for each life of a name.
    pub port: u16,
    /// What this case changes.
    pub tuning: Tuning,
}

impl EngineSpec {
    /// The same engine, tuned.
    #[must_use]
    pub fn tuned(mut self, tuning: Tuning) -> Self {
        self.tuning = tuning;
        self
    }

    /// As a configuration. It goes by way of YAML, as a user's would.
    pub fn config(&self) -> Config {
        let yaml = format!(
            "workers: {{ progress: {}, count: {} }}\n\
             transports: {{ allow: [{}], process_vm: {}, tcp_io: {}, tcp_streams: {} }}\n",
            self.progress,
            self.workers,
            self.transport,
            if self.process_vm { "auto" } else { "off" },
            self.io,
            self.streams,
        );
        let mut config = Config::parse(&yaml, "the case's configuration").expect("a setting names what there is");
        config = config.named(&self.name).directory(&self.folder);
        let between = [TransportName::Verbs, TransportName::Tcp];
        config = config.verbs_devices(&self.devices);
        if between.iter().any(|transport| self.transport == transport.as_str()) {
            let folder = Path::new(&self.folder);
            let host = self.tuning.host.unwrap_or(Ipv4Addr::LOCALHOST.into());
            config = config.listen([SocketAddr::from((host, self.port))]);
            config = config.secret_file(folder.join(SECRET)).directory_file(folder.join(DIRECTORY));
        }
        if let Some(count) = self.tuning.notifications_per_peer {
            config = config.notifications_per_peer(count);
        }
        if let Some(commands) = self.tuning.queue {
            config = config.transfer_queue(commands);
        }
        if let Some(count) = self.tuning.in_flight {
            config = config.transfers_in_flight(count);
        }
        if let Some(heartbeat) = self.tuning.heartbeat_ms {
            config = config.heartbeat(Duration::from_millis(heartbeat));
        }
        if let Some(count) = self.tuning.accepts_per_second {
            config = config.accepts_per_second(count);
        }
        config
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_side_has_its_own_devices() {
        let setting = Setting::adaptive(TransportName::Verbs, 1, Place::Here).devices("rxe0,rxe1:1", "rxe2");
        let folder = std::env::temp_dir().join(format!("penstock-setting-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let [near, far] = [setting.spec(&folder, "near"), setting.far_spec(&folder, "far")].map(|spec| spec.config());
        std::fs::remove_dir_all(&folder).expect("a folder of this test's own");
        assert_eq!(near.transports.verbs_devices, ["rxe0", "rxe1:1"]);
        assert_eq!(far.transports.verbs_devices, ["rxe2"]);
        assert_eq!((near.transports.allow.as_slice(), near.session.listen.len()), (&[TransportName::Verbs][..], 1));
        assert!(setting.to_string().ends_with("/rxe0,rxe1:1 to rxe2"), "{setting}");
    }
}
