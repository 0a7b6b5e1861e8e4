//! Who is where: as a file says ([`Directory`]), and as peers tell ([`PeerBook`]).
//!
//! The file has one line for each engine, its name and its addresses, best first:
//!
//! ```text
//! # prefill
//! prefill-0   10.0.0.7:4711,[2001:db8::7]:4711
//! decode-0    decode-0.lab:4711
//! ```
//!
//! Host names are taken as they stand; looking them up is for who connects.

use std::collections::BTreeMap;

use penstock_core::EngineName;
use penstock_core::ids::NameError;

use crate::descriptor::ADDRESSES_MAX;

mod peer_book;
pub use peer_book::{Learned, PEERS_KEPT_MAX, PeerBook};

/// The longest text of a directory, in bytes.
pub const DIRECTORY_BYTES_MAX: usize = 64 * 1024;
/// The most engines of a directory.
pub const DIRECTORY_ENTRIES_MAX: usize = 4096;
/// The longest name of a host, in bytes.
const HOST_BYTES_MAX: usize = 253;

/// Why a text is not a directory.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DirectoryError {
    /// The text is too long.
    #[error("a directory of {0} bytes is longer than the {DIRECTORY_BYTES_MAX} allowed")]
    TooLong(usize),
    /// There are too many engines.
    #[error("line {0}: a directory has at most {DIRECTORY_ENTRIES_MAX} engines")]
    TooManyEntries(usize),
    /// The name is not one of an engine.
    #[error("line {line}: {error}")]
    Name {
        /// Which line, from 1.
        line: usize,
        /// What is wrong with the name.
        error: NameError,
    },
    /// The same name stands in two lines.
    #[error("line {line}: `{name}` stands in line {first} already; write all its addresses there")]
    Twice {
        /// Which line, from 1.
        line: usize,
        /// In which line it stood first.
        first: usize,
        name: String,
    },
    /// There is no address behind the name, or something behind the addresses.
    #[error("line {0}: write a name, a space and its addresses: `decode-0 10.0.0.7:4711,10.0.1.7:4711`")]
    Shape(usize),
    /// An engine has too many addresses.
    #[error("line {line}: {found} addresses are more than the {ADDRESSES_MAX} allowed")]
    TooManyAddresses {
        /// Which line, from 1.
        line: usize,
        /// How many there are.
        found: usize,
    },
    /// An address that is none.
    #[error("line {line}: address {place} is not of the form `host:port` or `[ip]:port` with a port from 1 to 65535")]
    Address {
        /// Which line, from 1.
        line: usize,
        /// Which address of the line, from 1.
        place: usize,
    },
}

/// The engines of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Directory {
    entries: BTreeMap<EngineName, Vec<String>>,
}

impl Directory {
    /// The directory in this text.
    pub fn parse(text: &str) -> Result<Self, DirectoryError> {
        if text.len() > DIRECTORY_BYTES_MAX {
            return Err(DirectoryError::TooLong(text.len()));
        }
        let mut entries = BTreeMap::new();
        let mut lines = BTreeMap::new();
        for (place, words) in text.lines().enumerate() {
            let line = place + 1;
            let words = words.split_once('#').map_or(words, |(words, _)| words);
            let mut words = words.split_whitespace();
            let Some(name) = words.next() else { continue };
            let (Some(addresses), None) = (words.next(), words.next()) else {
                return Err(DirectoryError::Shape(line));
            };
            let name = EngineName::new(name).map_err(|error| DirectoryError::Name { line, error })?;
            if let Some(&first) = lines.get(&name) {
                return Err(DirectoryError::Twice { line, first, name: name.to_string() });
            }
            if entries.len() == DIRECTORY_ENTRIES_MAX {
                return Err(DirectoryError::TooManyEntries(line));
            }
            lines.insert(name.clone(), line);
            entries.insert(name, addresses_of(line, addresses)?);
        }
        Ok(Self { entries })
    }

    /// Where this engine is, best first.
    pub fn find(&self, name: &str) -> Option<&[String]> {
        self.entries.get(&EngineName::new(name).ok()?).map(Vec::as_slice)
    }

    /// All engines and where they are, in the order of their names.
    pub fn entries(&self) -> impl Iterator<Item = (&EngineName, &[String])> {
        self.entries.iter().map(|(name, addresses)| (name, addresses.as_slice()))
    }

    /// How many engines there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

fn addresses_of(line: usize, text: &str) -> Result<Vec<String>, DirectoryError> {
    let found = text.split(',').count();
    if found > ADDRESSES_MAX {
        return Err(DirectoryError::TooManyAddresses { line, found });
    }
    match text.split(',').position(|address| !is_address(address)) {
        Some(place) => Err(DirectoryError::Address { line, place: place + 1 }),
        None => Ok(text.split(',').map(str::to_owned).collect()),
    }
}

/// Whether this is an address and a port, or a name and a port.
fn is_address(text: &str) -> bool {
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let is_port = port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port != 0);
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    let is_host = match host.strip_prefix('[') {
        Some(_) => text.parse::<core::net::SocketAddrV6>().is_ok(),
        None => !host.is_empty() && host.len() <= HOST_BYTES_MAX && host.chars().all(allowed),
    };
    is_port && is_host
}

#[cfg(test)]
mod tests;
