//! Both ends of a measurement on this host: an initiator here, and a target here or in a process of its own.
//!
//! - [`end`]: one engine with its pool and its arrival counter; [`own`]: memory that its application allocated; [`on_device`]: a GPU's
//! - [`network`]: what ends need that meet over the network, and the end that another host serves
//! - [`wire`]: what the initiator asks of a target process, and what that answers
//! - [`target`]: the target process; [`process`]: its handle on this side
//! - [`sweep()`]: what a process removes that ends in the middle of it
//! - [`rally`]: the two ends sending each other one small write after the other; [`hops`]: the floor of a rally of
//!   sleepers; [`stream`], [`datagrams`]: the floors between hosts, a bare socket of either kind between the two processes, or a bare queue of
//!   DPDK over [`memif`]

pub mod datagrams;
pub mod end;
pub mod hops;
mod lossy;
pub mod memif;
pub mod network;
pub mod on_device;
pub mod own;
pub mod process;
pub mod rally;
pub mod stream;
mod sweep;
pub mod target;
pub mod wire;

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use penstock::config::{PagesChoice, Progress, TransportName};
use penstock::{Peer, RemoteRegion, SystemEnv, Window};

use self::end::{ARRIVALS, End, EndSpec, LABEL};
use self::network::{Network, Served};
use self::on_device::MemoryKind;
use self::process::TargetProcess;
use self::sweep::Making;
pub use self::sweep::sweep;
use self::wire::{Command, Reply, TargetSpec};
use crate::error::LabError;

/// How long engines may take to find each other.
const CONNECT: Duration = Duration::from_secs(30);

/// The secret of two ends that are both started here, in their folder.
const SECRET: &str = "secret";

/// What both ends should be.
#[derive(Debug, Clone)]
pub struct EndsSpec {
    /// What is measured: within this process, or between two.
    pub transport: TransportName,
    /// Bytes of either pool.
    pub pool_bytes: u64,
    /// Pages of either pool.
    pub pages: PagesChoice,
    /// How the initiator makes progress.
    pub progress: Progress,
    /// Workers of the initiator.
    pub workers: usize,
    /// The cores of its workers, or of its own thread if it has none; empty: anywhere.
    pub cores: Vec<usize>,
    /// How the target makes progress.
    pub target_progress: Progress,
    /// The cores of a target process; empty: anywhere.
    pub target_cores: Vec<usize>,
    /// How long adaptive workers look for work before they sleep; the engine's default where absent.
    pub spin: Option<Duration>,
    /// The initiator's memory, and the target's.
    pub memory: [MemoryKind; 2],
    /// The program that becomes the target process when asked to; this one where absent.
    pub target_program: Option<PathBuf>,
    /// What ends need that meet over the network.
    pub network: Network,
}

/// Both ends, connected.
pub struct Ends {
    /// The initiator.
    pub near: End,
    /// The target, as the initiator sees it.
    pub peer: Peer<SystemEnv>,
    /// The target's pool, as plans name it.
    pub remote: RemoteRegion<SystemEnv>,
    /// The target's pool, mapped here a second time: for floors, which are not the engine's. The initiator's own where the
    /// target is on another host; see [`Ends::is_here`].
    pub far: Window,
    /// What the target calls its arrival counter.
    pub counter: String,
    target: Target,
}

enum Target {
    Here(Box<End>),
    Process(TargetProcess),
    Served(Box<Served>),
}

impl Ends {
    /// Starts both ends and connects them. The folder in which they meet is gone when they have: whoever is killed later leaves
    /// nothing behind.
    pub fn open(spec: &EndsSpec) -> Result<Self, LabError> {
        let folder = Folder::create()?;
        let end = |name: &str, progress: Progress, workers: usize, cores: &[usize]| EndSpec {
            name: name.to_owned(),
            directory: folder.path.clone(),
            transport: spec.transport,
            progress,
            workers,
            cores: if progress.is_threaded() { cores.to_vec() } else { Vec::new() },
            spin_us: spec.spin.map(|spin| spin.as_micros() as u64),
            pool_bytes: spec.pool_bytes,
            pages: spec.pages,
            memory: spec.memory[0],
            network: spec.network.clone(),
        };
        if let Some(host) = &spec.network.host {
            let near = end(&network::unique_name("perf"), spec.progress, spec.workers, &spec.cores);
            return Self::open_there(&near, host);
        }
        let near = end("initiator", spec.progress, spec.workers, &spec.cores);
        // memif joins the workers of both sides one by one.
        let workers = if spec.network.memif.is_some() { spec.workers } else { 1 };
        let far = EndSpec { memory: spec.memory[1], ..end("target", spec.target_progress, workers, &[]) };
        if spec.transport == TransportName::Local {
            return Self::open_here(&near, &far);
        }
        let far = EndSpec { network: spec.network.of_target(), ..far };
        let target = TargetSpec { end: far, stay_on: spec.target_cores.clone() };
        let mut process = TargetProcess::start(spec.target_program.as_deref(), &target)?;
        let near = near.start()?;
        let ready = process.ready()?;
        let peer = near.engine.connect(&ready.card, CONNECT).map_err(LabError::refused("connect to the target"))?;
        let remote = peer.wait_region(LABEL, CONNECT).map_err(LabError::refused("find the target's pool"))?;
        let far = process.map_pool(&ready)?;
        Ok(Self { near, peer, remote, far, counter: ARRIVALS.to_owned(), target: Target::Process(process) })
    }

    fn open_here(near: &EndSpec, far: &EndSpec) -> Result<Self, LabError> {
        let (target, near) = (far.start()?, near.start()?);
        let connecting = near.engine.connect_begin(&target.engine.descriptor());
        let connecting = connecting.map_err(LabError::refused("connect to the target"))?;
        let start = Instant::now();
        // Inline engines share this thread and are turned in turns; for others the turns do nothing.
        let peer = loop {
            target.turn()?;
            near.turn()?;
            if let Some(answer) = connecting.poll() {
                break answer.map_err(LabError::refused("connect to the target"))?;
            }
            if start.elapsed() > CONNECT {
                return Err(LabError::Silent { doing: "greet", waited: CONNECT });
            }
            if near.is_threaded() {
                std::thread::sleep(Duration::from_micros(100));
            }
        };
        let remote = peer.wait_region(LABEL, CONNECT).map_err(LabError::refused("find the target's pool"))?;
        let far = target.pool.window().clone();
        Ok(Self { near, peer, remote, far, counter: ARRIVALS.to_owned(), target: Target::Here(Box::new(target)) })
    }

    fn open_there(near: &EndSpec, host: &str) -> Result<Self, LabError> {
        // No pool is made here before the other host has promised one.
        let engine = near.start_engine()?;
        let peer = engine.connect_address(host, network::CONNECT);
        let peer = peer.map_err(LabError::refused("connect to the other host"))?;
        let asked = network::Asked::begin(&engine, peer.clone(), near.pool_bytes, near.pages)?;
        let near = near.furnish(engine)?;
        let (served, remote, counter) = asked.finish(&near.engine)?;
        let far = near.pool.window().clone();
        Ok(Self { near, peer, remote, far, counter, target: Target::Served(Box::new(served)) })
    }

    /// Whether the target's memory can be reached from here without the engine.
    pub fn is_here(&self) -> bool {
        !matches!(self.target, Target::Served(_))
    }

    /// The engine that serves the target on another host, in words.
    pub fn served_by(&self) -> Option<String> {
        let Target::Served(served) = &self.target else { return None };
        let about = served.about();
        Some(format!(
            "{} ({}, {} cores, Linux {}, release {})",
            about.name, about.cpu, about.cores, about.kernel, about.release
        ))
    }

    /// Has the target do something and waits for its answer.
    pub fn ask(&mut self, command: &Command) -> Result<Reply, LabError> {
        match &mut self.target {
            Target::Here(end) => wire::perform(end, command),
            Target::Served(served) => served.ask(&self.near, command),
            Target::Process(process) => process.ask(command),
        }
    }

    /// Has a target process begin something that the initiator takes part in; [`Ends::settle`] waits for its end.
    pub fn begin(&mut self, command: &Command) -> Result<(), LabError> {
        match &mut self.target {
            Target::Here(_) | Target::Served(_) => Err(LabError::Option {
                option: "transport",
                mend: "both ends of a rally need a process each, so it must be shm, tcp or verbs",
            }),
            Target::Process(process) => process.begin(command),
        }
    }

    /// Waits until what was begun has ended.
    pub fn settle(&mut self) -> Result<Reply, LabError> {
        match &mut self.target {
            Target::Here(_) | Target::Served(_) => Ok(Reply::Done),
            Target::Process(process) => process.reply("end what it had begun"),
        }
    }

    /// The initiator, its way to the target, the target's pool, and the engine that serves it on another host.
    pub(crate) fn parts(&mut self) -> (&End, &Peer<SystemEnv>, &RemoteRegion<SystemEnv>, Option<&mut Served>) {
        let served = match &mut self.target {
            Target::Served(served) => Some(&mut **served),
            Target::Here(_) | Target::Process(_) => None,
        };
        (&self.near, &self.peer, &self.remote, served)
    }

    /// CPU time that the target's process has used so far, apart from this one's. That of another host serves others as well: what of it is
    /// whose is asked by [`Served::charge`].
    pub fn target_cpu(&mut self) -> Result<Duration, LabError> {
        match &self.target {
            Target::Here(_) | Target::Served(_) => Ok(Duration::ZERO),
            Target::Process(_) => match self.ask(&Command::Cpu)? {
                Reply::Cpu { nanos } => Ok(Duration::from_nanos(nanos)),
                other => Err(other.unexpected()),
            },
        }
    }
}

/// A folder of its own for the sockets of a measurement.
pub(crate) struct Folder {
    path: PathBuf,
    /// Locked while this process lives.
    _secret: File,
}

impl Folder {
    pub(crate) fn create() -> Result<Self, LabError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        static SWEPT: Once = Once::new();
        SWEPT.call_once(|| sweep::folders_of_the_dead(&std::env::temp_dir()));
        let mut making = Making::begin()?;
        let mut builder = std::fs::DirBuilder::new();
        builder.mode(0o700);
        let path = loop {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(sweep::folder_name(std::process::id(), number));
            match builder.create(&path) {
                Ok(()) => break path,
                // Left by a process of this number that was killed.
                Err(error) if error.kind() == ErrorKind::AlreadyExists && number < 1000 => {}
                Err(error) => {
                    let error = std::io::Error::new(error.kind(), format!("{}: {error}; see TMPDIR", path.display()));
                    return Err(LabError::refused("make a folder for the sockets")(error));
                }
            }
        };
        making.has_folder(&path);
        match make_secret(&path) {
            Ok(secret) => Ok(Self { path, _secret: secret }),
            Err(error) => {
                drop(making);
                remove(&path);
                Err(LabError::refused("make a secret for the two ends")(error))
            }
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

/// For ends of this folder that meet over the network: a line of 64 digits that nobody else knows. Locked until it is closed.
fn make_secret(folder: &Path) -> std::io::Result<File> {
    let mut bytes = [0u8; 32];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let mut file = File::options().write(true).create_new(true).mode(0o600).open(folder.join(SECRET))?;
    // Without locks, as on some network file systems, only the process's number says whether it lives.
    let _ = file.try_lock();
    writeln!(file, "{digits}")?;
    Ok(file)
}

fn remove(folder: &Path) {
    // A folder that cannot be removed is empty and in the system's folder for such.
    let _ = std::fs::remove_dir_all(folder);
    sweep::folder_is_gone(folder);
}

impl Drop for Folder {
    fn drop(&mut self) {
        remove(&self.path);
    }
}
