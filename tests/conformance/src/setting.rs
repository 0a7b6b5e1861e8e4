//! What a case is run under.

use std::fmt;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use penstock::config::{Progress, TcpIo, TransportName, VerbsConnect};
use penstock::{Config, StartError};
use serde::{Deserialize, Serialize};

use crate::{Engine, cards, dpdk};

/// The name of the file with the secret that the engines of a case share.
pub const SECRET: &str = "secret";

/// The name of the file that says where the engines of a case are.
pub const DIRECTORY: &str = "directory";

/// The name of the engine that begins transfers.
pub const SOURCE: &str = "source";

/// The port of an engine of this name, which it has in each of its lives. Below those that the kernel gives out by itself.
fn port_of(folder: &Path, name: &str, carrier: Carrier) -> u16 {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let path = folder.join(DIRECTORY);
    let listed = std::fs::read_to_string(&path).unwrap_or_default();
    let port_in = |line: &str| line.strip_prefix(name)?.strip_prefix(' ')?.rsplit_once(':')?.1.parse().ok();
    listed.lines().find_map(port_in).unwrap_or_else(|| {
        let seed = std::process::id().wrapping_mul(977);
        let mut tried = (0..10_000).map(|_| NEXT.fetch_add(1, Ordering::Relaxed).wrapping_add(seed) % 20_000 + 10_000);
        let is_free = |port: &u32| std::net::TcpListener::bind(("127.0.0.1", *port as u16)).is_ok();
        let port = tried.find(is_free).expect("one of so many ports is free");
        let host = host_of(folder, name, carrier, listed.lines().count() as u8 + 1);
        std::fs::write(&path, format!("{listed}{name} {host}:{port}\n")).expect("the case's folder can be written");
        port as u16
    })
}

/// Where an engine of this name and place listens.
fn host_of(folder: &Path, name: &str, carrier: Carrier, place: u8) -> IpAddr {
    dpdk::host(carrier, folder, name, place).unwrap_or(Ipv4Addr::LOCALHOST.into())
}

/// Writes the secret, unless it is there.
pub(crate) fn share_secret(folder: &Path) {
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
    ///
    /// In cases of transfers by name both engines have it.
    Caller,
    /// The memory under [`KV`](crate::stage::KV) is not allocated by its engine, everything else is.
    Mixed,
}

/// At which ends the pools of a case are of a device's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Devices {
    /// All pools are of host memory.
    #[default]
    Nowhere,
    /// At the engine that begins transfers.
    Here,
    /// At all others.
    There,
    /// At all.
    Everywhere,
}

impl Devices {
    /// Whether those of the engine that begins transfers are.
    pub fn here(self) -> bool {
        matches!(self, Self::Here | Self::Everywhere)
    }

    /// Whether those of all others are.
    pub fn there(self) -> bool {
        matches!(self, Self::There | Self::Everywhere)
    }
}

/// What cards both engines have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Cards {
    /// Those of the machine.
    #[default]
    Machines,
    /// The soft devices of a guest: the initiator has those of one side, `rxe_a0` and so on, all others those of the other
    /// side, with a wire between.
    Wired {
        /// How many each engine has.
        rails: u8,
    },
    /// Cards in this process.
    Model {
        /// How many each engine has. Each is in a network with one of the other's.
        rails: u8,
        /// How their network behaves.
        manner: Manner,
    },
    /// One each in this process, beside devices.
    BesideDevices {
        /// Whether they reach devices' memory themselves.
        gpudirect: bool,
    },
}

/// How a network of cards in this process behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Manner {
    /// Whoever polls a card does its work.
    #[default]
    Polled,
    /// The same, in small parts and in no order between queues, and bytes are seen as late as a card may show them.
    Late,
    /// A thread of its own does its work.
    Thread,
}

/// What carries datagrams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Carrier {
    /// Sockets of the kernel.
    #[default]
    Udp,
    /// DPDK, through memory that two processes share: there can be one target.
    Memif,
    /// The same through rings within this process.
    Ring,
    /// DPDK, through a device for each engine on a bridge of the kernel.
    Bridge,
    /// The same, but a socket of the kernel for the initiator.
    FromUdp,
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
    /// Where pools are of a device's memory.
    pub devices: Devices,
    /// Whether the engines may use the kernel's copies between processes.
    pub process_vm: bool,
    /// What moves bytes between sockets and memory.
    pub io: TcpIo,
    /// TCP streams of each worker.
    pub streams: usize,
    /// What cards both engines have.
    pub cards: Cards,
    /// How queues of those are connected.
    pub connect: VerbsConnect,
    /// The most bytes of a part of a transfer by name, where it is not the default.
    pub part_bytes: Option<u64>,
    /// What carries datagrams.
    pub carrier: Carrier,
}

impl Setting {
    /// Engines with so many adaptive workers.
    pub const fn adaptive(transport: TransportName, workers: usize, place: Place) -> Self {
        let (progress, memory) = (Progress::Adaptive, Memory::Pools);
        let (io, cards, connect, part_bytes) = (TcpIo::Auto, Cards::Machines, VerbsConnect::Exchange, None);
        let (process_vm, carrier, devices) = (true, Carrier::Udp, Devices::Nowhere);
        Self {
            transport,
            progress,
            workers,
            place,
            memory,
            devices,
            process_vm,
            io,
            streams: 1,
            cards,
            connect,
            part_bytes,
            carrier,
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

    /// The same with pools of a device's memory at these ends, on the stand-in for a driver.
    #[must_use]
    pub const fn devices(self, devices: Devices) -> Self {
        Self { devices, ..self }
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

    /// The same over so many cards in this process on each side.
    #[must_use]
    pub const fn over(self, rails: u8, manner: Manner) -> Self {
        Self { cards: Cards::Model { rails, manner }, ..self }
    }

    /// The same over a card in this process on each side, which reaches devices' memory itself, or does not.
    #[must_use]
    pub const fn gpudirect(self, gpudirect: bool) -> Self {
        Self { cards: Cards::BesideDevices { gpudirect }, ..self }
    }

    /// The same over so many soft devices of a guest on each side.
    #[must_use]
    pub const fn wired(self, rails: u8) -> Self {
        Self { cards: Cards::Wired { rails }, ..self }
    }

    /// The same with queues that are connected so.
    #[must_use]
    pub const fn connected(self, connect: VerbsConnect) -> Self {
        Self { connect, ..self }
    }

    /// The same with parts of transfers by name of so many bytes at most.
    #[must_use]
    pub const fn parts(self, bytes: u64) -> Self {
        Self { part_bytes: Some(bytes), ..self }
    }

    /// The same with datagrams carried by this.
    #[must_use]
    pub const fn carried(self, carrier: Carrier) -> Self {
        Self { carrier, ..self }
    }

    /// The same without threads.
    #[must_use]
    pub const fn without_threads(self) -> Self {
        Self { progress: Progress::Inline, workers: 1, ..self }
    }

    /// Why no case can be run under this setting here, if none can.
    pub fn why_not(&self) -> Option<String> {
        if self.carrier != Carrier::Udp {
            return dpdk::why_not(self.carrier);
        }
        let Cards::Wired { rails } = self.cards else { return None };
        let mut devices = ["a", "b"].into_iter().flat_map(|side| soft_devices(side, rails));
        let absent = devices.find(|device| !Path::new(SOFT_DEVICES).join(device).exists());
        absent.map(|device| format!("needs path:{SOFT_DEVICES}/{device}; a guest of the RDMA labs has it"))
    }

    /// Bytes of a transfer that goes on for long enough to be interrupted in the middle: several times what is under way at once,
    /// which on soft cards takes as long as ten times that in memory.
    pub fn large(&self) -> u64 {
        if matches!(self.cards, Cards::Wired { .. }) { 12 << 20 } else { 32 << 20 }
    }

    /// Whether the engines meet over the network.
    pub fn is_between_hosts(&self) -> bool {
        is_between_hosts(self.transport.as_str())
    }

    /// Whether the engines have no threads.
    pub fn is_inline(&self) -> bool {
        !self.progress.is_threaded()
    }

    /// The configuration of an engine of this name, with its socket in this folder.
    pub fn spec(&self, folder: &Path, name: &str) -> EngineSpec {
        // Engines of one case may begin in several threads.
        static FILES: Mutex<()> = Mutex::new(());
        let _one = FILES.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_between_hosts() {
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
            port: if self.is_between_hosts() { port_of(folder, name, self.carrier) } else { 0 },
            place: if self.is_between_hosts() { dpdk::place(folder, name) } else { 0 },
            cards: self.cards,
            is_on_device: if name == SOURCE { self.devices.here() } else { self.devices.there() },
            connect: self.connect.as_str().to_owned(),
            part_bytes: self.part_bytes,
            carrier: self.carrier,
            tuning: Tuning::default(),
        }
    }
}

/// Pinned memory of each worker and direction between a device's memory and peers.
const STAGING_BYTES: u64 = 2 << 20;

/// Where the kernel shows RDMA devices.
const SOFT_DEVICES: &str = "/sys/class/infiniband";

/// What an engine in a guest is given more of: it is emulated, and starts in a second.
const EMULATED: &str = "session: { greeting_timeout_ms: 10000 }\n";

/// The same of one without threads, which nobody turns while its application looks at every byte of many.
const EMULATED_INLINE: &str = "session: { greeting_timeout_ms: 10000, heartbeat_ms: 60000 }\n";

/// The names of the soft devices on one side of a guest's wires.
fn soft_devices(side: &str, rails: u8) -> impl Iterator<Item = String> {
    (0..rails).map(move |rail| format!("rxe_{side}{rail}"))
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}-{}", self.transport.as_str(), self.progress.as_str(), self.workers)?;
        f.write_str(match self.memory {
            Memory::Pools => "",
            Memory::Caller => "/caller memory",
            Memory::Mixed => "/mixed memory",
        })?;
        if self.devices != Devices::Nowhere {
            write!(f, "/devices {:?}", self.devices)?;
        }
        f.write_str(if self.process_vm { "" } else { "/without process_vm" })?;
        if self.transport == TransportName::Tcp {
            write!(f, "/{}/{} streams", self.io, self.streams)?;
        }
        match self.cards {
            Cards::Machines => {}
            Cards::Wired { rails } => write!(f, "/{rails} wires")?,
            Cards::Model { rails, manner } => write!(f, "/{rails} rails, {manner:?}")?,
            Cards::BesideDevices { gpudirect } => write!(f, "/gpudirect: {gpudirect}")?,
        }
        f.write_str(if self.connect == VerbsConnect::Exchange { "" } else { "/cm" })?;
        if self.carrier != Carrier::Udp {
            write!(f, "/{:?}", self.carrier)?;
        }
        self.part_bytes.map_or(Ok(()), |bytes| write!(f, "/parts of {bytes} bytes"))
    }
}

fn is_between_hosts(transport: &str) -> bool {
    TransportName::ALL.iter().any(|name| name.is_between_hosts() && name.as_str() == transport)
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
    /// Descriptors of peers' memory that may wait to be mapped.
    pub descriptors: Option<usize>,
    /// How long a peer on another host may be silent, in milliseconds.
    pub heartbeat_ms: Option<u64>,
    /// Connections from one address that are heard in a second.
    pub accepts_per_second: Option<u64>,
    /// The address it listens at, where that is not the loopback's.
    pub host: Option<IpAddr>,
    /// The UDP port of its first worker, where that is not any.
    pub udp_port: Option<u16>,
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
    /// Where it listens, if it does: the same for each life of a name.
    pub port: u16,
    /// Its place among the engines of its case that listen, from 1.
    pub place: u8,
    /// Its cards.
    pub cards: Cards,
    /// Whether its pools are of a device's memory.
    pub is_on_device: bool,
    /// How queues of those are connected.
    pub connect: String,
    /// The most bytes of a part of a transfer by name, where it is not the default.
    pub part_bytes: Option<u64>,
    /// What carries datagrams.
    pub carrier: Carrier,
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

    /// Starts it.
    pub fn start(&self) -> Result<Engine, StartError> {
        match self.cards {
            Cards::Machines | Cards::Wired { .. } => Engine::start(self.config()),
            Cards::Model { rails, manner } => cards::start(self, rails, manner),
            Cards::BesideDevices { gpudirect } => cards::start_beside_devices(self, gpudirect),
        }
    }

    /// As a configuration. It goes by way of YAML, as a user's would.
    pub fn config(&self) -> Config {
        let devices: Vec<String> = match self.cards {
            Cards::Wired { rails } => {
                soft_devices(if self.name.starts_with(SOURCE) { "a" } else { "b" }, rails).collect()
            }
            Cards::Machines | Cards::Model { .. } | Cards::BesideDevices { .. } => Vec::new(),
        };
        let yaml = format!(
            "workers: {{ progress: {}, count: {} }}\n\
             transports: {{ allow: [{}], process_vm: {}, tcp_io: {}, tcp_streams: {}, verbs_devices: [{}], verbs_connect: {} }}\n",
            self.progress,
            self.workers,
            // With a transport of its own the engine opens its devices, too.
            if matches!(self.cards, Cards::BesideDevices { .. }) { "verbs, tcp" } else { &self.transport },
            if self.process_vm { "auto" } else { "off" },
            self.io,
            self.streams,
            devices.join(", "),
            self.connect,
        );
        let yaml = match self.cards {
            Cards::Wired { .. } if self.progress == Progress::Inline.as_str() => yaml + EMULATED_INLINE,
            Cards::Wired { .. } => yaml + EMULATED,
            Cards::Machines | Cards::Model { .. } | Cards::BesideDevices { .. } => yaml,
        };
        let mut config = Config::parse(&yaml, "the case's configuration").expect("a setting names what there is");
        config = config.named(&self.name).directory(&self.folder);
        if is_between_hosts(&self.transport) {
            let folder = Path::new(&self.folder);
            let listens = || host_of(folder, &self.name, self.carrier, self.place);
            let host = self.tuning.host.unwrap_or_else(listens);
            config = config.listen([SocketAddr::from((host, self.port))]);
            config = config.secret_file(folder.join(SECRET)).directory_file(folder.join(DIRECTORY));
        }
        if self.carrier != Carrier::Udp {
            config.dpdk = dpdk::section(self);
        }
        // Few slots: who has to wait for one is tested, and pinning many takes longer than most cases.
        config.device.staging_bytes = STAGING_BYTES;
        if let Some(bytes) = self.part_bytes {
            config.legs.part_bytes = bytes;
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
        if let Some(count) = self.tuning.descriptors {
            config = config.descriptors(count);
        }
        if let Some(heartbeat) = self.tuning.heartbeat_ms {
            config = config.heartbeat(Duration::from_millis(heartbeat));
        }
        if let Some(count) = self.tuning.accepts_per_second {
            config = config.accepts_per_second(count);
        }
        if let Some(port) = self.tuning.udp_port {
            config = config.datagram_port(port);
        }
        config
    }
}
