//! One thing, how it stands, what that means, and what mends it.

use serde::Serialize;

use crate::topic::Topic;
use crate::way::Way;

/// How a thing stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    /// As Penstock likes it.
    Ok,
    /// It works, but is slower, smaller or reaches less far than it could.
    Limited,
    /// It is not here, or not for this process; the paths that need it are not offered.
    Missing,
    /// Every engine needs it, and it does not work.
    Broken,
    /// It could not be looked at.
    Unknown,
}

impl Status {
    /// Its word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Limited => "limited",
            Self::Missing => "missing",
            Self::Broken => "BROKEN",
            Self::Unknown => "unknown",
        }
    }
}

/// Who can mend a thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum By {
    /// Whoever runs the doctor.
    You,
    /// Root of this host.
    Root,
    /// Whoever started the container, or owns the host around it: it cannot be mended from inside.
    Outside,
}

/// What mends a thing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Act {
    /// A command, ready to be pasted.
    Command(String),
    /// What to do, in words.
    Advice(String),
}

/// One way to mend a thing, and who can take it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mend {
    /// Who.
    pub by: By,
    /// What.
    #[serde(flatten)]
    pub act: Act,
}

impl Mend {
    /// A command for whoever runs the doctor.
    pub fn you(command: impl Into<String>) -> Self {
        Self { by: By::You, act: Act::Command(command.into()) }
    }

    /// A command for whoever is outside this container.
    pub fn outside(command: impl Into<String>) -> Self {
        Self { by: By::Outside, act: Act::Command(command.into()) }
    }

    /// Words for somebody.
    pub fn advice(by: By, advice: impl Into<String>) -> Self {
        Self { by, act: Act::Advice(advice.into()) }
    }

    /// The command or the words.
    pub fn text(&self) -> &str {
        match &self.act {
            Act::Command(text) | Act::Advice(text) => text,
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Where it belongs.
    pub topic: Topic,
    /// Its name, the same in every release.
    pub name: &'static str,
    /// How it stands.
    pub status: Status,
    /// What was found.
    pub found: String,
    /// What that means for Penstock, if it is not well.
    pub means: Option<String>,
    /// What mends it, the likeliest first.
    pub mends: Vec<Mend>,
    /// The paths that it takes away while it is missing or broken.
    pub paths: Vec<Way>,
    /// The ports of RDMA devices, where it is about which are used.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub ports: Vec<Port>,
}

/// A port of an RDMA device: whether it is used, and why.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Port {
    /// Its name, or its device's, as `transports.verbs_devices` takes it.
    pub name: String,
    /// Whether an engine uses it.
    pub used: bool,
    /// Why.
    pub why: String,
    /// The address that is used.
    pub address: Option<String>,
    /// What is spoken from there.
    pub speaks: Option<String>,
    /// The place of the address in the port's table.
    pub gid_index: Option<u8>,
    /// The network device behind it.
    pub netdev: Option<String>,
    /// The NUMA node of its device.
    pub node: Option<u32>,
    /// Bits in a second, as the port says.
    pub bits_per_second: Option<u64>,
}

impl Finding {
    fn new(topic: Topic, name: &'static str, status: Status, found: impl Into<String>) -> Self {
        let (means, mends, paths, ports) = (None, Vec::new(), Vec::new(), Vec::new());
        Self { topic, name, status, found: found.into(), means, mends, paths, ports }
    }

    /// It is well.
    pub(crate) fn ok(topic: Topic, name: &'static str, found: impl Into<String>) -> Self {
        Self::new(topic, name, Status::Ok, found)
    }

    /// It works, but not as well as it could.
    pub(crate) fn limited(topic: Topic, name: &'static str, found: impl Into<String>) -> Self {
        Self::new(topic, name, Status::Limited, found)
    }

    /// It is not here.
    pub(crate) fn missing(topic: Topic, name: &'static str, found: impl Into<String>) -> Self {
        Self::new(topic, name, Status::Missing, found)
    }

    /// Every engine needs it, and it does not work.
    pub(crate) fn broken(topic: Topic, name: &'static str, found: impl Into<String>) -> Self {
        Self::new(topic, name, Status::Broken, found).on(Way::ENGINE)
    }

    /// It could not be looked at.
    pub(crate) fn unknown(topic: Topic, name: &'static str, found: impl Into<String>) -> Self {
        Self::new(topic, name, Status::Unknown, found)
    }

    /// What it means for Penstock.
    pub(crate) fn means(mut self, means: impl Into<String>) -> Self {
        self.means = Some(means.into());
        self
    }

    /// What it means for Penstock, unless it is well.
    pub(crate) fn means_if_limited(self, means: &str) -> Self {
        if self.status == Status::Ok { self } else { self.means(means) }
    }

    /// What mends it.
    pub(crate) fn mend(mut self, mend: Mend) -> Self {
        self.mends.push(mend);
        self
    }

    /// What else mends it.
    pub(crate) fn mends(mut self, mends: impl IntoIterator<Item = Mend>) -> Self {
        self.mends.extend(mends);
        self
    }

    /// Which ports it is about.
    pub(crate) fn with_ports(mut self, ports: Vec<Port>) -> Self {
        self.ports = ports;
        self
    }

    /// Which paths it takes away.
    pub(crate) fn on(mut self, paths: &[Way]) -> Self {
        self.paths.extend(paths.iter().filter(|path| !self.paths.contains(path)).copied().collect::<Vec<_>>());
        self
    }

    /// Whether it takes its paths away.
    pub fn blocks(&self) -> bool {
        matches!(self.status, Status::Missing | Status::Broken)
    }

    /// Whether it concerns only paths that this release does not have.
    pub fn is_for_later(&self) -> bool {
        !self.paths.is_empty() && !self.paths.iter().any(|path| path.is_released())
    }
}
