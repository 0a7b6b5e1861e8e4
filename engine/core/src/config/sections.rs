//! The types of the configuration, one per section, in the order of the file.

use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};

use super::network::{Ipv4Network, Neighbour};
use crate::ids::{ENGINE_NAME_BYTES_MAX, EngineName, NameError};

/// The configuration of one engine.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// What the engine is called and where it can be found.
    pub engine: EngineConfig,
    /// The threads that move bytes.
    pub workers: WorkersConfig,
    /// How many transfers there may be and how long they may take.
    pub transfers: TransfersConfig,
    /// What a peer may occupy here before it must wait.
    pub credits: CreditsConfig,
    /// The ways bytes may take.
    pub transports: TransportsConfig,
    /// What carries the packets of the transport `datagram`.
    pub datagram: DatagramConfig,
    /// The device that carries them, where no sockets do.
    pub dpdk: DpdkConfig,
    /// How memory of GPUs is moved.
    pub device: DeviceConfig,
    /// How pools get their memory.
    pub memory: MemoryConfig,
    /// How long conversations with peers may take.
    pub session: SessionConfig,
    /// How much is kept of transfers by name, and how long.
    pub control: ControlConfig,
    /// In which pieces transfers by name go.
    pub legs: LegsConfig,
}

/// What the engine is called and where it can be found.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EngineConfig {
    /// The name peers know this engine by; `None`: made from the program and its process id.
    pub name: Option<String>,
    /// The folder of the rendezvous sockets; `None`: the user's own runtime folder.
    #[serde(serialize_with = "folder_as_text")]
    pub directory: Option<PathBuf>,
}

/// The threads that move bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WorkersConfig {
    /// How many worker threads there are.
    pub count: usize,
    /// The core of each worker; empty: the scheduler chooses.
    pub cores: Vec<usize>,
    /// What a worker does while there is nothing to do.
    pub progress: Progress,
    /// How long an adaptive worker looks for work before it sleeps, in microseconds.
    pub spin_us: u64,
}

/// What moves bytes, and what it does while there is nothing to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Progress {
    /// Worker threads that never sleep.
    Busy,
    /// Worker threads that look for work for a bounded time, then sleep until they are woken.
    #[default]
    Adaptive,
    /// No threads: the caller's own `progress()` is the loop.
    Inline,
}

/// How many transfers there may be and how long they may take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TransfersConfig {
    /// The most transfers between submission and the drop of their handle.
    pub in_flight: usize,
    /// The deadline of a transfer that names none, in milliseconds.
    pub timeout_ms: u64,
    /// Commands that one worker's queue holds. A power of two.
    pub queue: usize,
}

/// What a peer may occupy here before it must wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CreditsConfig {
    /// Undelivered notifications that one peer may have in the inbox.
    pub notifications_per_peer: usize,
}

/// The ways bytes may take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TransportsConfig {
    /// The transports that may be used, the preferred one first.
    pub allow: Vec<TransportName>,
    /// Whether the kernel may copy into and out of other processes' memory for this engine.
    pub process_vm: ProcessVmChoice,
    /// What moves bytes between sockets and memory.
    pub tcp_io: TcpIo,
    /// Streams to one peer that each worker has.
    pub tcp_streams: usize,
    /// The RDMA devices that are used, best first; empty: they are chosen.
    pub verbs_devices: Vec<String>,
    /// Whether RDMA cards page memory in when it is first touched, where they can.
    pub verbs_on_demand: bool,
    /// How queue pairs of two RDMA cards are connected.
    pub verbs_connect: VerbsConnect,
}

/// What carries the packets of the transport `datagram`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DatagramConfig {
    /// The UDP port of the first worker; the others follow. 0: any that are free.
    pub port: u16,
    /// The longest packet, in bytes of UDP payload.
    pub frame_bytes: usize,
    /// Each worker's receive buffer in the kernel, in bytes. 0: as many as the host allows.
    pub receive_bytes: usize,
    /// The same for the send buffer.
    pub send_bytes: usize,
}

/// How memory of GPUs is moved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DeviceConfig {
    /// Whether bytes go through host memory where a transport does not reach a device's.
    pub staging: StagingChoice,
    /// Host memory for that, for each worker and direction.
    pub staging_bytes: u64,
}

/// Whether device memory is staged in host memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StagingChoice {
    /// Where nothing reaches it directly.
    #[default]
    Auto,
    /// Such plans are refused.
    Off,
}

/// The device that carries the packets of the transport `datagram`, where no sockets do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DpdkConfig {
    /// As DPDK names it, with its arguments. None: sockets.
    pub device: Option<String>,
    /// This engine's address on it.
    pub address: Option<Ipv4Network>,
    /// Stations that are not asked for.
    pub neighbours: Vec<Neighbour>,
    /// The longest IP packet, in bytes. 0: as the device has it.
    pub mtu: u16,
    /// Packets that wait in each queue.
    pub queue_packets: u16,
    /// Memory of DPDK in MiB, where it has no huge pages.
    pub memory_mib: u32,
    /// Whether it has.
    pub huge_pages: bool,
    /// More arguments with which it starts.
    pub arguments: Vec<String>,
}

/// How queue pairs of two RDMA cards are connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum VerbsConnect {
    /// By the numbers that the engines tell each other.
    #[default]
    Exchange,
    /// By the connection manager, rdma_cm.
    Cm,
}

/// What moves bytes between sockets and memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TcpIo {
    /// io_uring where the kernel lets this process, else epoll.
    #[default]
    Auto,
    /// io_uring; without it the engine does not start.
    IoUring,
    /// epoll and plain calls.
    Epoll,
}

/// Whether system calls that reach another process's memory are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcessVmChoice {
    /// Where the kernel lets both processes.
    #[default]
    Auto,
    /// Never, in neither direction.
    Off,
}

/// A way bytes may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum TransportName {
    Local,
    /// Between two processes of one host, through mapped pools.
    Shm,
    /// Between hosts, by RDMA cards.
    Verbs,
    /// Between hosts, over TCP.
    Tcp,
    /// Between hosts, in packets of the engine's own.
    Datagram,
}

/// How pools get their memory.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MemoryConfig {
    /// The pages of a pool that does not choose for itself.
    pub pages: PagesChoice,
}

/// The size of a pool's pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PagesChoice {
    /// Huge pages where the kernel gives them by itself, small ones otherwise.
    #[default]
    Auto,
    /// The host's ordinary pages.
    Small,
    /// Huge pages that were set aside, then those of `Auto`. The pool reports what it got.
    Huge,
}

/// How long conversations with peers may take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SessionConfig {
    /// How long a connect that names no deadline may take, in milliseconds.
    pub connect_timeout_ms: u64,
    /// How long a stranger on the socket may take to say hello, in milliseconds.
    pub greeting_timeout_ms: u64,
    /// How long a shutdown waits for transfers and peers, in milliseconds.
    pub shutdown_timeout_ms: u64,
    /// Where other hosts can connect; empty: nowhere.
    pub listen: Vec<String>,
    /// The addresses that the engine's descriptor names; empty: those it listens at.
    pub advertise: Vec<String>,
    /// The secret that hosts share, itself. It comes before all files, and is no part of the YAML.
    #[serde(skip)]
    pub secret: Option<HiddenText>,
    /// The file with the secret that hosts share; `None`: the user's own.
    #[serde(serialize_with = "folder_as_text")]
    pub secret_file: Option<PathBuf>,
    /// How long a peer on another host may be silent, in milliseconds.
    pub heartbeat_ms: u64,
    /// Connections from one address that are heard in a second.
    pub accepts_per_second: u64,
    /// Descriptors of peers' memory that wait here to be mapped; 0: half of what the process may have.
    pub descriptors: usize,
    /// Bytes of peers' pools that are mapped here; 0: four times the machine's memory.
    pub mapped_bytes: u64,
    /// Bytes that what one peer has announced may take here.
    pub announced_bytes_per_peer: usize,
    /// Bytes that may wait for one peer that does not read.
    pub unsent_bytes: usize,
    /// The file that says where engines are; `None`: there is none.
    #[serde(serialize_with = "folder_as_text")]
    pub directory_file: Option<PathBuf>,
}

/// A text that is never shown: no way of printing it leads to what it says, and its memory is cleared when it goes.
#[derive(Clone, PartialEq, Eq)]
pub struct HiddenText(String);

impl HiddenText {
    /// Takes a text that only [`HiddenText::reveal`] gives back.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text itself: never to be logged or put into an error.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl Drop for HiddenText {
    fn drop(&mut self) {
        let mut bytes = std::mem::take(&mut self.0).into_bytes();
        bytes.fill(0);
        // The compiler may not leave out a store whose result is looked at.
        std::hint::black_box(&bytes);
    }
}

impl fmt::Debug for HiddenText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HiddenText(..)")
    }
}

/// How much is kept of transfers by name, and how long.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ControlConfig {
    /// The most transfers that stand at a time.
    pub transfers_max: usize,
    /// Words for transfers that are not admitted yet.
    pub early_messages: usize,
    /// The bytes of those.
    pub early_bytes: usize,
    /// How long such a word waits, in milliseconds.
    pub early_ms: u64,
    /// Ended transfers that are remembered.
    pub tombstones: usize,
    /// How long they are, in milliseconds.
    pub tombstone_ms: u64,
    /// How long the other side may take to say that nothing can land any more, in milliseconds.
    pub abort_ms: u64,
    /// How long a transfer that may be resumed waits for the next session, in milliseconds.
    pub resume_ms: u64,
}

/// In which pieces transfers by name go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LegsConfig {
    /// For how many tokens memory is asked for while nobody knows how many come.
    pub default_tokens: u64,
    /// The percentage of the last transfers for which that would have been enough; 0: the default always.
    pub quantile_percent: u8,
    /// What a sink does without memory for the next leg.
    pub memory: LegMemory,
    /// The most bytes under one landing.
    pub part_bytes: u64,
    /// Parts of one transfer that are under way to one rank.
    pub parts_ahead: usize,
    /// Legs that a sink may have granted and not taken.
    pub ahead: u32,
}

/// What a sink does without memory for the next leg.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LegMemory {
    /// Asks again until the deadline.
    #[default]
    Wait,
    /// Takes what there is.
    Shrink,
    Fail,
}

impl Default for WorkersConfig {
    fn default() -> Self {
        Self { count: 1, cores: Vec::new(), progress: Progress::default(), spin_us: 20 }
    }
}

impl Default for TransfersConfig {
    fn default() -> Self {
        Self { in_flight: 4096, timeout_ms: 30_000, queue: 1024 }
    }
}

impl Default for CreditsConfig {
    fn default() -> Self {
        Self { notifications_per_peer: 1024 }
    }
}

impl Default for TransportsConfig {
    fn default() -> Self {
        Self {
            allow: TransportName::ALL.to_vec(),
            process_vm: ProcessVmChoice::default(),
            tcp_io: TcpIo::default(),
            tcp_streams: 1,
            verbs_devices: Vec::new(),
            verbs_on_demand: false,
            verbs_connect: VerbsConnect::default(),
        }
    }
}

impl Default for DatagramConfig {
    fn default() -> Self {
        Self { port: 0, frame_bytes: 65_507, receive_bytes: 0, send_bytes: 0 }
    }
}

impl Default for DeviceConfig {
    fn default() -> Self {
        Self { staging: StagingChoice::default(), staging_bytes: 16 << 20 }
    }
}

impl Default for DpdkConfig {
    fn default() -> Self {
        Self {
            device: None,
            address: None,
            neighbours: Vec::new(),
            mtu: 0,
            queue_packets: 512,
            memory_mib: 256,
            huge_pages: false,
            arguments: Vec::new(),
        }
    }
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            connect_timeout_ms: 2_000,
            greeting_timeout_ms: 1_000,
            shutdown_timeout_ms: 1_000,
            listen: Vec::new(),
            advertise: Vec::new(),
            secret: None,
            secret_file: None,
            heartbeat_ms: 5_000,
            accepts_per_second: 512,
            descriptors: 0,
            mapped_bytes: 0,
            announced_bytes_per_peer: 64 << 20,
            unsent_bytes: 16 << 20,
            directory_file: None,
        }
    }
}

impl Default for ControlConfig {
    fn default() -> Self {
        Self {
            transfers_max: 65_536,
            early_messages: 4096,
            early_bytes: 4 << 20,
            early_ms: 30_000,
            tombstones: 65_536,
            tombstone_ms: 60_000,
            abort_ms: 500,
            resume_ms: 10_000,
        }
    }
}

impl Default for LegsConfig {
    fn default() -> Self {
        Self {
            default_tokens: 8192,
            quantile_percent: 0,
            memory: LegMemory::default(),
            part_bytes: 16 << 20,
            parts_ahead: 16,
            ahead: 16,
        }
    }
}

impl EngineConfig {
    /// The configured name, or one made from the program and its process id: `loader-4711`.
    ///
    /// What a program name has that an engine name may not have becomes `-`, so only a configured
    /// name can be refused.
    pub fn name_or(&self, program: &str, pid: u32) -> Result<EngineName, NameError> {
        if let Some(name) = &self.name {
            return EngineName::new(name);
        }
        let suffix = format!("-{pid}");
        let allowed = |c: char| if c.is_ascii_alphanumeric() || c == '_' { c } else { '-' };
        let mut name: String = program.chars().map(allowed).take(ENGINE_NAME_BYTES_MAX - suffix.len()).collect();
        if name.is_empty() {
            name.push_str("engine");
        }
        EngineName::new(&(name + &suffix))
    }

    /// The configured folder, or `<runtime_dir>/penstock`, or for root `/run/penstock`, or `/tmp/penstock-<uid>`.
    ///
    /// `runtime_dir` is the user's runtime folder (`XDG_RUNTIME_DIR`), where there is one; a
    /// relative one is ignored, as its specification asks.
    pub fn directory_or(&self, runtime_dir: Option<&OsStr>, uid: u32) -> PathBuf {
        match (&self.directory, runtime_dir.map(Path::new).filter(|path| path.is_absolute())) {
            (Some(directory), _) => directory.clone(),
            (None, Some(runtime)) => runtime.join("penstock"),
            // Nobody else can have made it before, which in /tmp anybody can.
            (None, None) if uid == 0 => PathBuf::from("/run/penstock"),
            (None, None) => PathBuf::from(format!("/tmp/penstock-{uid}")),
        }
    }
}

impl WorkersConfig {
    /// How long an adaptive worker looks for work before it sleeps.
    pub const fn spin(&self) -> Duration {
        Duration::from_micros(self.spin_us)
    }
}

impl TransfersConfig {
    /// The time of a transfer that names no deadline.
    pub const fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }
}

impl SessionConfig {
    /// How long a connect that names no deadline may take.
    pub const fn connect_timeout(&self) -> Duration {
        Duration::from_millis(self.connect_timeout_ms)
    }

    /// How long a stranger on the socket may take to say hello.
    pub const fn greeting_timeout(&self) -> Duration {
        Duration::from_millis(self.greeting_timeout_ms)
    }

    /// How long a shutdown waits for transfers and peers.
    pub const fn shutdown_timeout(&self) -> Duration {
        Duration::from_millis(self.shutdown_timeout_ms)
    }
}

impl Progress {
    /// The word of the YAML form.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Adaptive => "adaptive",
            Self::Inline => "inline",
        }
    }

    /// Whether there are worker threads at all.
    pub const fn is_threaded(self) -> bool {
        !matches!(self, Self::Inline)
    }
}

impl TransportName {
    /// Every transport, the preferred one first.
    pub const ALL: &'static [Self] = &[Self::Local, Self::Shm, Self::Verbs, Self::Tcp, Self::Datagram];

    /// Whether it goes between hosts.
    pub const fn is_between_hosts(self) -> bool {
        matches!(self, Self::Verbs | Self::Tcp | Self::Datagram)
    }

    /// The word of the YAML form.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Shm => "shm",
            Self::Verbs => "verbs",
            Self::Tcp => "tcp",
            Self::Datagram => "datagram",
        }
    }
}

impl VerbsConnect {
    /// The word of the YAML form.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exchange => "exchange",
            Self::Cm => "cm",
        }
    }
}

impl TcpIo {
    /// The word of the YAML form.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::IoUring => "io_uring",
            Self::Epoll => "epoll",
        }
    }
}

impl PagesChoice {
    /// The word of the YAML form.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Small => "small",
            Self::Huge => "huge",
        }
    }
}

macro_rules! displayed_by_its_word {
    ($($name:ident),+) => {
        $(impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        })+
    };
}

displayed_by_its_word!(Progress, TransportName, PagesChoice, TcpIo);

/// Folders that are not UTF-8 must not make writing fail: `validate` is what refuses them.
fn folder_as_text<S: Serializer>(folder: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
    folder.as_ref().map(|path| path.to_string_lossy()).serialize(serializer)
}
