//! Workloads, floors and the scoreboard: what Penstock is measured by, each figure beside what the
//! machine itself can do in the same run.
//!
//! - [`workload`]: what is moved, as files; [`layout`]: where the blocks lie; [`pattern`]: what is in them
//! - [`measure`]: rounds in turns, medians, clocks and cores
//! - [`floor`], [`raw`]: the same copies by bare threads; [`raw_stream`]: the same blocks by bare calls over a socket
//! - [`ends`]: an initiator here and a target, in a process of its own over shm
//! - [`peers`]: engines of others, run beside ours
//! - [`service`]: what an engine on another host does for whoever measures
//! - [`perf`]: one measurement with its floor and a proof of the bytes
//! - [`scoreboard`]: all metrics against their floors
//! - [`results`]: runs that are kept
//! - [`bench`]: the micro-benches; [`compare`]: which of two programs is quicker
//! - [`guard`]: instructions a block against a baseline
//! - [`limited`]: programs that are run to their end, within a limit
//! - [`error`]: what can go wrong

#![deny(unsafe_code)]

pub mod bench;
pub mod compare;
pub mod ends;
pub mod error;
pub mod floor;
pub mod guard;
pub mod layout;
pub mod limited;
pub mod measure;
pub mod pattern;
pub mod peers;
pub mod perf;
pub mod raw;
pub mod raw_stream;
pub mod results;
pub mod scoreboard;
pub mod service;
pub mod workload;

pub use self::error::LabError;
pub use self::workload::{Workload, WorkloadError};
