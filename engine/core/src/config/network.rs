//! Addresses of a network that an engine speaks to by itself.

use core::net::Ipv4Addr;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The Ethernet address of a station.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// All stations of a network.
    pub const ALL: Self = Self([0xff; 6]);

    /// Whether one station can have it.
    pub fn is_station(self) -> bool {
        self.0[0] & 1 == 0 && self != Self::default()
    }
}

/// Text that is not an address, or not one that a station can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("it is not an address of a station")]
pub struct NoStation;

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl FromStr for Mac {
    type Err = NoStation;

    fn from_str(text: &str) -> Result<Self, NoStation> {
        let (mut mac, mut parts) = ([0; 6], text.split(':'));
        for byte in &mut mac {
            let is_byte = |part: &&str| part.len() == 2 && part.bytes().all(|digit| digit.is_ascii_hexdigit());
            let part = parts.next().filter(is_byte).ok_or(NoStation)?;
            *byte = u8::from_str_radix(part, 16).map_err(|_| NoStation)?;
        }
        let mac = Self(mac);
        if parts.next().is_none() && mac.is_station() { Ok(mac) } else { Err(NoStation) }
    }
}

/// A station's address, and the length of its network's prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Ipv4Network {
    pub address: Ipv4Addr,
    /// From 1 to 31.
    pub prefix: u8,
}

impl Ipv4Network {
    /// Whether the network has this address.
    pub fn has(self, ip: Ipv4Addr) -> bool {
        let mask = u32::MAX << (32 - u32::from(self.prefix));
        (u32::from(ip) ^ u32::from(self.address)) & mask == 0
    }
}

impl fmt::Display for Ipv4Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

fn is_host(ip: Ipv4Addr) -> bool {
    !(ip.is_unspecified() || ip.is_multicast() || ip.is_broadcast() || ip.is_loopback())
}

impl FromStr for Ipv4Network {
    type Err = NoStation;

    fn from_str(text: &str) -> Result<Self, NoStation> {
        let (address, prefix) = text.split_once('/').ok_or(NoStation)?;
        let address = address.parse().ok().filter(|&ip| is_host(ip)).ok_or(NoStation)?;
        let prefix: u8 = prefix.parse().ok().filter(|prefix| (1..=31).contains(prefix)).ok_or(NoStation)?;
        let hosts = u32::MAX >> u32::from(prefix);
        let host = u32::from(address) & hosts;
        // Of a network of two both are stations.
        if prefix < 31 && (host == 0 || host == hosts) { Err(NoStation) } else { Ok(Self { address, prefix }) }
    }
}

/// Which station has an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Neighbour {
    pub address: Ipv4Addr,
    pub station: Mac,
}

impl fmt::Display for Neighbour {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.address, self.station)
    }
}

impl FromStr for Neighbour {
    type Err = NoStation;

    fn from_str(text: &str) -> Result<Self, NoStation> {
        let (address, station) = text.split_once('=').ok_or(NoStation)?;
        let address = address.parse().ok().filter(|&ip| is_host(ip)).ok_or(NoStation)?;
        Ok(Self { address, station: station.parse()? })
    }
}

/// Types that a configuration has as text.
macro_rules! as_text {
    ($($kind:ty),+) => {
        $(impl From<$kind> for String {
            fn from(value: $kind) -> Self {
                value.to_string()
            }
        }

        impl TryFrom<String> for $kind {
            type Error = NoStation;

            fn try_from(text: String) -> Result<Self, NoStation> {
                text.parse()
            }
        })+
    };
}

as_text!(Ipv4Network, Neighbour);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_they_are_shown() {
        for good in ["02:00:0a:ff:00:01", "fe:ff:ff:ff:ff:ff"] {
            assert_eq!(good.parse::<Mac>().unwrap().to_string(), good);
        }
        for bad in
            ["", "02:00:0a:ff:00", "02:00:0a:ff:00:01:02", "2:0:0:0:0:1", "+2:00:00:00:00:01", "01:00:5e:00:00:01"]
        {
            assert_eq!(bad.parse::<Mac>(), Err(NoStation), "{bad}");
        }
        assert_eq!("10.0.9.1/24".parse::<Ipv4Network>().unwrap().to_string(), "10.0.9.1/24");
        for bad in [
            "10.0.9.1",
            "10.0.9.1/0",
            "10.0.9.0/24",
            "10.0.9.255/24",
            "10.0.9.1/32",
            "10.0.9/24",
            "::1/64",
            "127.0.0.1/8",
            "0.0.0.0/8",
        ] {
            assert_eq!(bad.parse::<Ipv4Network>(), Err(NoStation), "{bad}");
        }
        assert_eq!("10.0.9.0/31".parse::<Ipv4Network>().unwrap().to_string(), "10.0.9.0/31");
        let neighbour = "10.0.9.2=02:00:0a:00:09:02";
        assert_eq!(neighbour.parse::<Neighbour>().unwrap().to_string(), neighbour);
        for bad in ["10.0.9.2", "10.0.9.2=", "=02:00:0a:00:09:02", "10.0.9.2=00:00:00:00:00:00"] {
            assert_eq!(bad.parse::<Neighbour>(), Err(NoStation), "{bad}");
        }
    }

    #[test]
    fn a_network_has_the_addresses_with_its_prefix() {
        let network: Ipv4Network = "10.0.9.1/23".parse().unwrap();
        assert!(network.has([10, 0, 8, 255].into()) && network.has([10, 0, 9, 2].into()));
        assert!(!network.has([10, 0, 10, 1].into()));
        assert!("10.0.9.1/1".parse::<Ipv4Network>().unwrap().has([127, 0, 0, 1].into()));
    }
}
