//! A host as the doctor sees it: files under a root, and what the system answers.
//!
//! - `system`: what must be asked by calls, as a trait; `call`: the calls that are tried
//! - `this`: the host this runs on; `companion`: the process in which calls are tried that might kill
//! - `mends`: commands as they are written on this host
//! - `libraries`: where shared libraries lie

mod call;
mod companion;
mod libraries;
mod mends;
mod system;
mod this;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use penstock::Config;

pub use self::call::{Call, Refusal};
pub use self::companion::{ARGUMENT as COMPANION_ARGUMENT, main as companion_main};
pub(crate) use self::mends::LimitNames;
pub use self::system::{Rights, Space, System};
pub use self::this::ThisSystem;

use crate::parse;

/// Numbers of the first user and pid namespace, the same on every Linux.
const FIRST_USER_NAMESPACE: &str = "user:[4026531837]";
const FIRST_PID_NAMESPACE: &str = "pid:[4026531836]";

/// What of an engine's configuration a host has to fit.
#[derive(Debug, Clone)]
pub struct Asked {
    /// The folder of the rendezvous sockets.
    pub folder: PathBuf,
    /// How many threads move bytes.
    pub workers: usize,
    /// The cores they shall run on, if any are named.
    pub cores: Vec<usize>,
    /// The RDMA devices that are named.
    pub devices: Vec<String>,
}

impl Asked {
    /// By this configuration, for this user.
    pub fn by(config: &Config, user: u32) -> Self {
        let runtime_dir = std::env::var_os("XDG_RUNTIME_DIR");
        Self {
            folder: config.engine.directory_or(runtime_dir.as_deref(), user),
            workers: if config.workers.progress.is_threaded() { config.workers.count } else { 0 },
            cores: config.workers.cores.clone(),
            devices: config.transports.verbs_devices.clone(),
        }
    }
}

/// A host to examine.
pub struct Host {
    root: PathBuf,
    system: Box<dyn System>,
    asked: Asked,
    /// Answers to calls: each is tried once.
    tried: RefCell<BTreeMap<Call, Result<String, Refusal>>>,
}

impl std::fmt::Debug for Host {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Host").field("root", &self.root).field("asked", &self.asked).finish_non_exhaustive()
    }
}

impl Host {
    /// The host this runs on. `program` is started for calls that might kill; it must hand its arguments to
    /// [`companion_main`] when the first one is [`COMPANION_ARGUMENT`]. Without it they are tried here.
    pub fn this(program: Option<PathBuf>, config: &Config) -> Self {
        let system = ThisSystem::new(program);
        let asked = Asked::by(config, system.user());
        Self::new(PathBuf::from("/"), Box::new(system), asked)
    }

    /// A host whose files lie under `root`.
    pub fn new(root: PathBuf, system: Box<dyn System>, asked: Asked) -> Self {
        Self { root, system, asked, tried: RefCell::default() }
    }

    /// What an engine asks of it.
    pub fn asked(&self) -> &Asked {
        &self.asked
    }

    /// What must be asked by calls.
    pub(crate) fn system(&self) -> &dyn System {
        &*self.system
    }

    /// Tries a call; a second time it only remembers.
    pub(crate) fn try_call(&self, call: Call) -> Result<String, Refusal> {
        if let Some(answer) = self.tried.borrow().get(&call) {
            return answer.clone();
        }
        let answer = self.system.try_call(call);
        self.tried.borrow_mut().insert(call, answer.clone());
        answer
    }

    /// Where a file of this host lies.
    pub(crate) fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The text of a file, if it can be read.
    pub(crate) fn text(&self, path: impl AsRef<Path>) -> Option<String> {
        // Not every file is text: what is not becomes visible as such instead of hiding the rest.
        fs::read(self.at(path)).ok().map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The text of a file with one value.
    pub(crate) fn word(&self, path: impl AsRef<Path>) -> Option<String> {
        self.text(path).map(|text| text.trim().to_owned())
    }

    /// The number in a file with one value.
    pub(crate) fn number(&self, path: impl AsRef<Path>) -> Option<u64> {
        self.word(path)?.parse().ok()
    }

    /// What a symbolic link says.
    pub(crate) fn link(&self, path: impl AsRef<Path>) -> Option<String> {
        fs::read_link(self.at(path)).ok().map(|target| target.to_string_lossy().into_owned())
    }

    /// Whether there is such a file.
    pub(crate) fn exists(&self, path: impl AsRef<Path>) -> bool {
        self.at(path).exists()
    }

    /// The names in a folder, sorted; none if it cannot be read.
    pub(crate) fn names(&self, path: impl AsRef<Path>) -> Vec<String> {
        let entries = fs::read_dir(self.at(path)).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort_unstable();
        names
    }

    /// A field of `/proc/self/status`.
    pub(crate) fn status(&self, name: &str) -> Option<String> {
        parse::field(&self.text("/proc/self/status")?, name).map(str::to_owned)
    }

    /// How many filters of system calls are on; none where that cannot be told.
    pub(crate) fn filters(&self) -> Option<u64> {
        let mode: u64 = self.status("Seccomp")?.parse().ok()?;
        let count = self.status("Seccomp_filters").and_then(|count| count.parse().ok());
        Some(if mode == 0 { 0 } else { count.unwrap_or(1).max(1) })
    }

    /// Whether this process has a capability that counts everywhere, not only in its user namespace.
    pub(crate) fn has_capability(&self, bit: u32) -> bool {
        let bits = self.status("CapEff").and_then(|bits| u64::from_str_radix(&bits, 16).ok());
        !self.in_user_namespace() && bits.is_some_and(|bits| bits >> bit & 1 == 1)
    }

    /// Whether this process is in a user namespace that is not the host's first.
    pub(crate) fn in_user_namespace(&self) -> bool {
        self.link("/proc/self/ns/user").is_some_and(|number| number != FIRST_USER_NAMESPACE)
    }

    /// Whether this process is in a pid namespace that is not the host's first.
    pub(crate) fn in_pid_namespace(&self) -> bool {
        self.link("/proc/self/ns/pid").is_some_and(|number| number != FIRST_PID_NAMESPACE)
    }

    /// Whether this is a container: marked as one, and with a pid namespace of its own. Images of virtual machines that
    /// were made from a container's carry the marks too.
    pub(crate) fn in_container(&self) -> bool {
        let is_marked =
            ["/.dockerenv", "/run/.containerenv", "/run/systemd/container"].iter().any(|mark| self.exists(mark))
                || self.system.variable("KUBERNETES_SERVICE_HOST").is_some()
                || self.system.variable("container").is_some();
        is_marked && self.in_pid_namespace()
    }

    /// Whether root in here is not root of the host.
    pub(crate) fn is_confined(&self) -> bool {
        self.in_container() || self.in_user_namespace()
    }

    /// The service this process belongs to, as systemd names it.
    pub(crate) fn service(&self) -> Option<String> {
        let groups = self.text("/proc/self/cgroup")?;
        let parts = groups.lines().flat_map(|line| line.rsplit('/'));
        // `user@1000.service` holds whatever a user runs: it is no service of Penstock's.
        parts.map(str::to_owned).find(|part| part.ends_with(".service") && !part.starts_with("user@"))
    }
}
