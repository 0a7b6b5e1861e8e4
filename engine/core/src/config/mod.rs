//! The configuration: its types, its YAML form, its documentation.
//!
//! ```
//! use penstock_core::config::{Config, Progress};
//!
//! let config = Config::parse("workers: { count: 2 }", "example.yaml")?.named("decode-0").progress(Progress::Busy);
//! assert_eq!(config.workers.count, 2);
//! # Ok::<(), penstock_core::config::ConfigError>(())
//! ```
//!
//! Read in this order:
//!
//! - `sections`: the types, one per section, with their defaults
//! - `build`: the setters for a configuration made in code
//! - `keys`: the one table that says what every key accepts, means and costs; [`network`]: addresses in it
//! - `read`: from text to a [`Config`], every refusal with its line; on top of `tree`
//! - `rules`: what a [`Config`] must keep, wherever it came from
//! - `reference`: the pages and the commented file that are made from the table
//!
//! The fields are public and hold what was asked for; [`Config::validate`] says whether it can be
//! had. Reading from YAML validates; whoever starts an engine validates again.

mod build;
mod error;
mod keys;
mod nearest;
pub mod network;
mod read;
mod reference;
mod rules;
mod sections;
mod tree;

#[cfg(test)]
mod tests;

pub use error::{ConfigError, ConfigOrigin, Conflict};
pub use keys::{KEYS, KeyDoc, Range};
pub use nearest::Suggestion;
pub use read::CONFIG_BYTES_MAX;
pub use reference::{default_yaml, reference_markdown};
pub use sections::{
    Config, ControlConfig, CreditsConfig, DatagramConfig, DeviceConfig, DpdkConfig, EngineConfig, HiddenText,
    LegMemory, LegsConfig, MemoryConfig, PagesChoice, ProcessVmChoice, Progress, SessionConfig, StagingChoice, TcpIo,
    TransfersConfig, TransportName, TransportsConfig, VerbsConnect, WorkersConfig,
};
