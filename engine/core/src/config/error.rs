//! Why a configuration was refused: where, what, and what to do next.

use std::fmt;
use std::io;
use std::path::PathBuf;

use super::keys::Range;
use super::nearest::Suggestion;
use super::network::{Ipv4Network, Neighbour};

/// Why a configuration was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConfigError {
    /// There is no such file.
    #[error(
        "there is no configuration file `{}`: check the path, or start from a copy of `configs/default.yaml`",
        path.display()
    )]
    NotFound {
        /// The path that was asked for.
        path: PathBuf,
    },
    /// The file is there and cannot be read.
    #[error("cannot read the configuration file `{}`: {source}", path.display())]
    Unreadable {
        /// The path that was asked for.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// More text than any configuration has.
    #[error("{origin}: a configuration has at most {limit} bytes, this is longer: is it the right file?")]
    TooLarge {
        origin: ConfigOrigin,
        /// The most bytes that are read.
        limit: usize,
    },
    /// The bytes are not text.
    #[error("{origin}: this is not UTF-8 text: is it the right file? (if so, save it as UTF-8)")]
    NotText {
        /// The first bad byte.
        origin: ConfigOrigin,
    },
    /// The text is not YAML.
    #[error("{origin}: this is not valid YAML: {reason}")]
    Syntax {
        /// Where the parser stopped.
        origin: ConfigOrigin,
        /// What the parser said.
        reason: String,
    },
    /// Something other than `key: value` pairs stands where sections or keys belong.
    #[error("{origin}: expected {expected}, found {found}")]
    Shape { origin: ConfigOrigin, expected: &'static str, found: String },
    /// A key that does not exist.
    #[error("{origin}: there is no key `{key}`{suggestion}")]
    UnknownKey {
        origin: ConfigOrigin,
        /// The key's full path, as written.
        key: String,
        /// What may have been meant.
        suggestion: Suggestion,
    },
    /// A key or a section that is given twice.
    #[error("{origin}: `{key}` is given twice: remove one of the two")]
    Duplicate {
        /// Where the second one stands.
        origin: ConfigOrigin,
        /// The key's full path.
        key: String,
    },
    /// A value of the wrong type or out of range.
    #[error("{origin}: `{key}` must be {expected}; found {found}")]
    BadValue {
        /// Where the value stands.
        origin: ConfigOrigin,
        /// The key's full path.
        key: &'static str,
        /// What the key accepts.
        expected: Range,
        found: String,
    },
    /// Two values that are fine alone and not together.
    #[error("{origin}: {conflict}")]
    Conflict {
        /// Where the value stands.
        origin: ConfigOrigin,
        /// What does not go together.
        conflict: Conflict,
    },
}

/// Two values that are fine alone and not together.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Conflict {
    /// Without threads there is one loop.
    #[error(
        "`workers.count` is {count} but `workers.progress` is `inline`, which has no threads: \
         set the count to 1, or choose `busy` or `adaptive`"
    )]
    InlineCount {
        /// The number of workers.
        count: usize,
    },
    /// Without threads there is nothing to pin.
    #[error(
        "`workers.cores` pins threads but `workers.progress` is `inline`, which has none: \
         leave the cores out and pin the calling thread, or choose `busy` or `adaptive`"
    )]
    InlineCores,
    /// Pinning is for all workers or for none.
    #[error(
        "`workers.cores` names {cores} and `workers.count` is {count}: name one core for each worker, or none at all"
    )]
    CoresAndCount {
        /// The number of cores.
        cores: usize,
        /// The number of workers.
        count: usize,
    },
    /// The workers' ports follow each other.
    #[error(
        "`datagram.port` is {first} and `workers.count` is {count}: there is no UDP port for the last worker; choose a lower one"
    )]
    DatagramPorts { first: u16, count: usize },
    /// There is no kernel behind a device of DPDK that would have an address.
    #[error(
        "`dpdk.device` is set and `dpdk.address` is not: give the engine an address in the network of its peers, as `10.0.9.1/24`"
    )]
    DpdkAddress,
    #[error(
        "`{neighbour}` under `dpdk.neighbours` is no other station in the network of `dpdk.address`, {network}, or its address has two: name each \
         peer of that network once"
    )]
    DpdkNeighbour { neighbour: Neighbour, network: Ipv4Network },
}

impl Conflict {
    /// The keys that are at odds, the likelier mistake first.
    pub const fn keys(&self) -> [&'static str; 2] {
        match self {
            Self::InlineCount { .. } => ["workers.count", "workers.progress"],
            Self::InlineCores => ["workers.cores", "workers.progress"],
            Self::CoresAndCount { .. } => ["workers.cores", "workers.count"],
            Self::DatagramPorts { .. } => ["datagram.port", "workers.count"],
            Self::DpdkAddress => ["dpdk.device", "dpdk.address"],
            Self::DpdkNeighbour { .. } => ["dpdk.neighbours", "dpdk.address"],
        }
    }
}

/// Where a configuration, or a part of it, came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfigOrigin {
    Code,
    /// A text as a whole.
    Source(String),
    /// A place in a text.
    Place {
        /// The file's path, or what the caller called the text.
        source: String,
        line: usize,
        /// Counted from 1, in characters.
        column: usize,
    },
}

impl fmt::Display for ConfigOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code => f.write_str("configuration made in code"),
            Self::Source(source) => f.write_str(source),
            Self::Place { source, line, column } => write!(f, "{source}:{line}:{column}"),
        }
    }
}
