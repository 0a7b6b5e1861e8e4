//! What every Penstock crate agrees on, and nothing that touches memory, sockets or threads.
//!
//! Read in this order:
//!
//! - [`ids`]: the names of engines, regions, counters and notifications
//! - [`rights`]: what a peer may do to a region
//! - [`error`]: causes, stages and faults; every failure a transfer can end with
//! - [`limits`]: the sizes that are related to each other, and why
//! - [`time`]: moments and durations as plain numbers
//! - [`env`](mod@env): the one door through which time, randomness, threads and sockets enter
//! - [`credit`]: the one credit type
//! - [`address`]: which registered range an address lies in
//! - [`plan`]: the compact, validated description of one scatter-gather move
//! - [`config`]: the configuration, its YAML form and its documentation
//! - [`planted`]: bugs that builds for the simulation have on purpose

#![forbid(unsafe_code)]

pub mod address;
pub mod budget;
pub mod config;
pub mod credit;
pub mod env;
pub mod error;
pub mod ids;
pub mod limits;
pub mod plan;
pub mod planted;
pub mod rights;
pub mod time;

pub use config::Config;
pub use credit::Credits;
pub use env::Env;
pub use error::{Cause, Fault, Notified, Stage};
pub use ids::{CounterId, EngineName, Epoch, Generation, NoteId, RegionId};
pub use plan::{Direction, Span};
pub use rights::Rights;
pub use time::Timestamp;
