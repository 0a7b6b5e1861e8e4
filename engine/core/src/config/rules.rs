//! What a configuration must keep, wherever it came from.

use serde_yaml::Value;

use super::error::{ConfigError, ConfigOrigin, Conflict};
use super::keys::{KEYS, RefusedKey};
use super::network::Neighbour;
use super::sections::{Config, Progress};
use super::tree::describe;

impl Config {
    /// Checks every value against its documented range, and the values against each other.
    ///
    /// A configuration that was read from a file was checked when it was read, with line numbers;
    /// one that was changed since is checked here.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let values = self.values();
        for doc in KEYS {
            let (section, name) = doc.parts();
            // A key without a field is impossible: a test compares the table with the types.
            let value = values.get(section).and_then(|section| section.get(name)).unwrap_or(&Value::Null);
            if let Some(refused) = doc.range.refused(value) {
                let found = match (refused, value) {
                    (RefusedKey::Item(index), Value::Sequence(items)) => describe(&items[index]),
                    _ => describe(value),
                };
                return Err(ConfigError::BadValue {
                    origin: ConfigOrigin::Code,
                    key: doc.key,
                    expected: doc.range,
                    found,
                });
            }
        }
        match conflict(self) {
            Some(conflict) => Err(ConfigError::Conflict { origin: ConfigOrigin::Code, conflict }),
            None => Ok(()),
        }
    }

    /// The same configuration as sections of keys.
    pub(super) fn values(&self) -> Value {
        serde_yaml::to_value(self).expect("numbers, words and lists of them have a YAML form")
    }
}

/// Two values that are each in range and do not go together.
pub(super) fn conflict(config: &Config) -> Option<Conflict> {
    let workers = &config.workers;
    if workers.progress == Progress::Inline {
        if workers.count != 1 {
            return Some(Conflict::InlineCount { count: workers.count });
        }
        if !workers.cores.is_empty() {
            return Some(Conflict::InlineCores);
        }
    }
    if !workers.cores.is_empty() && workers.cores.len() != workers.count {
        return Some(Conflict::CoresAndCount { cores: workers.cores.len(), count: workers.count });
    }
    let first = config.datagram.port;
    if first != 0 && usize::from(first) + workers.count > 1 << 16 {
        return Some(Conflict::DatagramPorts { first, count: workers.count });
    }
    if config.dpdk.device.is_some() && config.dpdk.address.is_none() {
        return Some(Conflict::DpdkAddress);
    }
    if let Some(network) = config.dpdk.address {
        let neighbours = &config.dpdk.neighbours;
        let is_known = |known: &[Neighbour], ip| known.iter().any(|other| other.address == ip);
        let is_wrong = |&(place, of): &(usize, &Neighbour)| {
            of.address == network.address || !network.has(of.address) || is_known(&neighbours[..place], of.address)
        };
        if let Some((_, &neighbour)) = neighbours.iter().enumerate().find(is_wrong) {
            return Some(Conflict::DpdkNeighbour { neighbour, network });
        }
    }
    None
}
