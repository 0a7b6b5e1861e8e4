//! What is said of each key, and what ranges accept; the one table of keys is `table`.
//!
//! Reading, validation, the reference page and the commented default file are all made from it.

mod table;

use core::net::SocketAddr;
use std::fmt;
use std::path::Path;

use serde_yaml::Value;

pub use self::table::KEYS;
use super::network::{Ipv4Network, Neighbour};
use crate::ids::{ENGINE_NAME_BYTES_MAX, EngineName};

/// Everything a person needs to know to set one key.
#[derive(Debug, Clone, Copy)]
pub struct KeyDoc {
    /// The full path: `workers.spin_us`.
    pub key: &'static str,
    /// The default, as it is written in YAML.
    pub default: &'static str,
    /// What the number counts; empty where the value is not a number.
    pub unit: &'static str,
    /// What the key accepts. This is what is checked, not a description of it.
    pub range: Range,
    /// What the key does.
    pub what: &'static str,
    /// What more of it costs. For a choice: what the first choice of the range costs.
    pub more_costs: &'static str,
    /// What less of it costs. For a choice: what the last choice of the range costs.
    pub less_costs: &'static str,
}

/// What a key accepts. Its `Display` is the documented range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Range {
    /// A whole number, both ends included.
    Number {
        min: u64,
        max: u64,
    },
    /// A power of two, both ends included.
    PowerOfTwo {
        min: u64,
        max: u64,
    },
    /// One of these words.
    OneOf(&'static [&'static str]),
    /// Some of these words in any order, each at most once, at least one.
    SomeOf(&'static [&'static str]),
    /// A list of different whole numbers.
    Cores {
        count_max: usize,
        core_max: u64,
    },
    /// An engine name, or nothing.
    Name,
    /// An absolute path, or nothing.
    Folder,
    /// A list of addresses with ports.
    Addresses,
    /// A list of RDMA devices, with a port and an address of it where they are meant.
    Devices,
    /// A device of DPDK with its arguments, or nothing.
    Device,
    /// An IPv4 address with the length of its network's prefix, or nothing.
    Network,
    /// A list of IPv4 addresses with the Ethernet addresses of their stations.
    Neighbours,
    /// A list of arguments of a program.
    Arguments,
    Flag,
}

/// The part of a value that its range does not accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RefusedKey {
    Whole,
    /// This element of the list.
    Item(usize),
}

/// The most addresses of one engine.
const ADDRESSES_MAX: usize = 16;
/// The most devices that are named: one for each rail of a session.
const DEVICES_MAX: usize = 8;
/// The most stations that are named, and the most arguments.
const NEIGHBOURS_MAX: usize = 1024;
const ARGUMENTS_MAX: usize = 64;
/// Bytes of an argument at most: several times a memif with a long path.
const ARGUMENT_BYTES_MAX: usize = 1024;
/// The kernel's names are shorter.
const DEVICE_BYTES_MAX: usize = 64;

impl KeyDoc {
    /// The key of this full path.
    pub fn find(key: &str) -> Option<&'static Self> {
        KEYS.iter().find(|doc| doc.key == key)
    }

    /// The section and the name within it: (`workers`, `spin_us`).
    pub fn parts(&self) -> (&'static str, &'static str) {
        self.key.split_once('.').unwrap_or(("", self.key))
    }

    /// The sections, in the order of the file.
    pub fn sections() -> Vec<&'static str> {
        let mut sections: Vec<_> = KEYS.iter().map(|doc| doc.parts().0).collect();
        sections.dedup();
        sections
    }

    /// The names within one section, in the order of the file.
    pub fn names_in(section: &str) -> Vec<&'static str> {
        KEYS.iter().map(Self::parts).filter(|(of, _)| *of == section).map(|(_, name)| name).collect()
    }
}

impl Range {
    /// What of this value is not accepted, if anything.
    pub(super) fn refused(&self, value: &Value) -> Option<RefusedKey> {
        match (self, value) {
            (Self::SomeOf(words), Value::Sequence(items)) => {
                first_refused(items, words.len(), 1, |item| is_one_of(item, words))
            }
            (Self::Addresses, Value::Sequence(items)) => first_refused(items, ADDRESSES_MAX, 0, |item| {
                item.as_str().is_some_and(|text| text.parse::<SocketAddr>().is_ok())
            }),
            (Self::Devices, Value::Sequence(items)) => {
                first_refused(items, DEVICES_MAX, 0, |item| item.as_str().is_some_and(is_device))
            }
            (Self::Neighbours, Value::Sequence(items)) => first_refused(items, NEIGHBOURS_MAX, 0, |item| {
                item.as_str().is_some_and(|text| text.parse::<Neighbour>().is_ok())
            }),
            (Self::Arguments, Value::Sequence(items)) => {
                first_refused(items, ARGUMENTS_MAX, 0, |item| item.as_str().is_some_and(is_argument))
            }
            (Self::Cores { count_max, core_max }, Value::Sequence(items)) => {
                first_refused(items, *count_max, 0, |item| item.as_u64().is_some_and(|core| core <= *core_max))
            }
            _ if self.accepts_one(value) => None,
            _ => Some(RefusedKey::Whole),
        }
    }

    fn accepts_one(&self, value: &Value) -> bool {
        match self {
            Self::Number { min, max } => value.as_u64().is_some_and(|n| (*min..=*max).contains(&n)),
            Self::PowerOfTwo { min, max } => {
                value.as_u64().is_some_and(|n| n.is_power_of_two() && (*min..=*max).contains(&n))
            }
            Self::OneOf(words) => is_one_of(value, words),
            Self::Name => value.is_null() || value.as_str().is_some_and(|name| EngineName::new(name).is_ok()),
            Self::Folder => value.is_null() || value.as_str().is_some_and(is_usable_folder),
            Self::Device => value.is_null() || value.as_str().is_some_and(is_argument),
            Self::Network => value.is_null() || value.as_str().is_some_and(|text| text.parse::<Ipv4Network>().is_ok()),
            Self::Flag => value.is_bool(),
            Self::SomeOf(_) | Self::Cores { .. } | Self::Addresses | Self::Devices => false,
            Self::Neighbours | Self::Arguments => false,
        }
    }
}

fn is_one_of(value: &Value, words: &[&str]) -> bool {
    value.as_str().is_some_and(|word| words.contains(&word))
}

/// One word of a command line.
fn is_argument(text: &str) -> bool {
    let is_odd = |letter: char| letter.is_whitespace() || letter.is_control() || letter == char::REPLACEMENT_CHARACTER;
    (1..=ARGUMENT_BYTES_MAX).contains(&text.len()) && !text.contains(is_odd)
}

/// `device`, `device:port` or `device:port:gid index`.
fn is_device(text: &str) -> bool {
    let mut parts = text.split(':');
    let device = parts.next().unwrap_or_default();
    let is_name = !device.is_empty()
        && device.len() <= DEVICE_BYTES_MAX
        && !device.contains(|letter: char| letter == '/' || letter.is_whitespace() || letter.is_control());
    let is_port = parts.next().is_none_or(|port| port.parse::<u8>().is_ok_and(|port| port > 0));
    let is_index = parts.next().is_none_or(|index| index.parse::<u8>().is_ok());
    is_name && is_port && is_index && parts.next().is_none()
}

/// A relative folder would be another one for every program that is started elsewhere. The
/// replacement character stands for what is not UTF-8 and could not be written down.
fn is_usable_folder(path: &str) -> bool {
    Path::new(path).is_absolute() && !path.contains(['\0', char::REPLACEMENT_CHARACTER])
}

fn first_refused(items: &[Value], most: usize, least: usize, accepts: impl Fn(&Value) -> bool) -> Option<RefusedKey> {
    // Before the look for repeated items: it is quadratic, and this bounds it.
    if items.len() < least || items.len() > most {
        let wrong = items.iter().position(|item| !accepts(item));
        return Some(wrong.map_or(RefusedKey::Whole, RefusedKey::Item));
    }
    let repeated = |at: usize| items[..at].contains(&items[at]);
    (0..items.len()).find(|&at| !accepts(&items[at]) || repeated(at)).map(RefusedKey::Item)
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number { min, max } => write!(f, "a whole number from {min} to {max}"),
            Self::PowerOfTwo { min, max } => write!(f, "a power of two from {min} to {max}"),
            Self::OneOf(words) => write!(f, "one of {}", quoted(words)),
            Self::SomeOf(words) => write!(f, "a list of at least one of {}, each at most once", quoted(words)),
            Self::Cores { count_max, core_max } => {
                write!(f, "a list of at most {count_max} different whole numbers from 0 to {core_max}")
            }
            Self::Name => write!(
                f,
                "`null` or 1 to {ENGINE_NAME_BYTES_MAX} letters, digits, `.`, `_` and `-`, not starting with a dot \
                 (in quotes if they read as a number)"
            ),
            Self::Folder => f.write_str("`null` or an absolute path in UTF-8"),
            Self::Devices => write!(
                f,
                "a list of at most {DEVICES_MAX} different RDMA devices, as `mlx5_0`, `mlx5_0:1` or `mlx5_0:1:3` (in quotes)"
            ),
            Self::Device => f.write_str("`null` or a device with its arguments, without spaces (in quotes)"),
            Self::Network => f.write_str("`null` or an IPv4 address of a station with its prefix, as `10.0.9.1/24`"),
            Self::Neighbours => write!(
                f,
                "a list of at most {NEIGHBOURS_MAX} different stations, as `10.0.9.2=02:00:0a:00:09:02` (in quotes)"
            ),
            Self::Arguments => {
                write!(f, "a list of at most {ARGUMENTS_MAX} different arguments, without spaces (in quotes)")
            }
            Self::Flag => f.write_str("`true` or `false`"),
            Self::Addresses => write!(
                f,
                "a list of at most {ADDRESSES_MAX} different addresses with ports, as `10.0.0.1:7400` or `[::]:7400`"
            ),
        }
    }
}

/// Words as a person lists them: `` `a`, `b`, `c` ``.
pub(super) fn quoted(words: &[&str]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
}
