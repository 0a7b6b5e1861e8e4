//! Engines of others, measured beside ours in the same run. They are programs of their own: downloaded into a
//! folder of their own, run as processes, never linked.
//!
//! - [`catalog`]: which there are, at which versions; [`store`]: the folder that holds them
//! - `debian`, `wheels`: how they get there; `child`: how their programs are run
//! - [`pair`]: two processes of one of them that move a workload when they are told; [`tools`]: their own programs
//!   that measure
//! - `wheel`: our own Python package, for the pair that is ours
//! - [`command`]: `penstock-lab peers`
//! - [`error`]: what can go wrong

pub mod catalog;
mod child;
pub mod command;
mod debian;
pub mod error;
pub mod pair;
pub mod perftest;
pub mod store;
pub mod tools;
mod wheel;
mod wheels;

pub use self::catalog::Peer;
pub use self::error::PeerError;
pub use self::store::{Installed, Store};

/// What a short program of this machine prints, if it ends well and in time.
pub(crate) fn run_quietly(program: &str, arguments: &[&str], within: std::time::Duration) -> Option<String> {
    let mut command = child::command(std::path::Path::new(program), "");
    child::run(command.args(arguments), within).ok().map(|said| said.out.trim().to_owned())
}

/// What a program of ours says, if it ends well and in time.
pub(crate) fn run_within(
    program: &std::path::Path,
    arguments: &[&str],
    within: std::time::Duration,
) -> Result<String, PeerError> {
    child::run(child::command(program, "").args(arguments), within).map(|said| said.out)
}
