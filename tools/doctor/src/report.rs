//! Everything that was found: a verdict, as text and as JSON.

use serde::Serialize;

use crate::finding::{Finding, Status};
use crate::text;
use crate::way::Way;

/// What was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The version of Penstock.
    pub version: &'static str,
    /// Whether everything that this release needs works, as far as it was looked at.
    pub ok: bool,
    /// The paths bytes can take, if everything was looked at.
    pub paths: Vec<WayReport>,
    /// All that was looked at.
    pub findings: Vec<Finding>,
}

/// How one path stands.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct WayReport {
    /// Which.
    pub path: Way,
    /// Whether it can be used: this release has it, and the host lets it.
    pub offered: bool,
    /// Whether this release has it.
    pub in_this_release: bool,
    /// What the host lacks for it, as `topic: finding`.
    pub lacks: Vec<String>,
}

impl Report {
    pub(crate) fn new(findings: Vec<Finding>, is_whole: bool) -> Self {
        let ok = findings.iter().all(|finding| finding.status != Status::Broken);
        let paths = if is_whole { Way::ALL.map(|way| WayReport::of(way, &findings)).to_vec() } else { Vec::new() };
        Self { version: env!("CARGO_PKG_VERSION"), ok, paths, findings }
    }

    /// For people.
    pub fn to_text(&self) -> String {
        text::of(self)
    }

    /// The finding of this topic and name.
    pub fn find(&self, topic: crate::Topic, name: &str) -> Option<&Finding> {
        self.findings.iter().find(|finding| finding.topic == topic && finding.name == name)
    }
}

impl WayReport {
    fn of(path: Way, findings: &[Finding]) -> Self {
        let lacks = findings.iter().filter(|finding| finding.blocks() && finding.paths.contains(&path));
        let lacks: Vec<String> = lacks.map(|finding| format!("{}: {}", finding.topic, finding.name)).collect();
        Self { path, offered: path.is_released() && lacks.is_empty(), in_this_release: path.is_released(), lacks }
    }
}
