//! What a host can do for Penstock, and for what it cannot: why, and the command that mends it.
//!
//! An examination only looks: it changes nothing, and needs no rights beyond the user's own. All it learns comes
//! through a [`Host`], so that a test can hand in a host that is broken in exactly one way. Read in this order:
//!
//! - [`topic`]: what is examined; [`way`]: the paths bytes can take, and which of them this release has
//! - [`finding`]: one thing, how it stands, what that means and what mends it
//! - [`host`]: the files, limits and system calls that are looked at
//! - `examine`: one file a topic
//! - [`report`]: everything that was found, as a verdict, as text and as JSON

#![forbid(unsafe_code)]

mod examine;
pub mod finding;
pub mod host;
mod parse;
pub mod report;
mod text;
pub mod topic;
pub mod way;

pub use self::examine::limits::{ENGINE_FILES, PEER_FILES};
pub use self::finding::{Act, By, Finding, Mend, Port, Status};
pub use self::host::{Asked, Call, Host, Refusal, System, ThisSystem};
pub use self::report::{Report, WayReport};
pub use self::topic::Topic;
pub use self::way::Way;

/// Whether this is how a port of an RDMA device is named; else why not.
pub fn check_device(name: &str) -> Result<(), String> {
    name.parse::<penstock_verbs::device::WantedDevice>().map(drop).map_err(|error| error.to_string())
}

/// Examines these topics of a host; all of them if none is named.
pub fn examine(host: &Host, topics: &[Topic]) -> Report {
    let chosen = |topic: &Topic| topics.is_empty() || topics.contains(topic);
    let findings = Topic::ALL.into_iter().filter(chosen).flat_map(|topic| examine::topic(host, topic)).collect();
    Report::new(findings, topics.is_empty())
}
