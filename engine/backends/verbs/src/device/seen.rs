//! What the kernel shows of RDMA devices, their ports and addresses, in `/sys`. Nothing is opened for it.

use std::fs;
use std::io;
use std::path::Path;

use super::networks::{Network, is_mapped};

/// A device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenDevice {
    /// Its name.
    pub name: String,
    /// What it speaks.
    pub speaks: Speaks,
    /// Its NUMA node.
    pub node: Option<u32>,
    /// Whether libibverbs has a driver for it.
    pub has_driver: bool,
    /// Its ports.
    pub ports: Vec<SeenPort>,
}

/// What a device speaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Speaks {
    /// The verbs of InfiniBand, on its own fabric or on Ethernet.
    InfiniBand,
    /// Something else, as the kernel calls it.
    Other(String),
}

/// A port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenPort {
    /// Its number.
    pub number: u8,
    /// How far it has come, as the kernel says it.
    pub state: String,
    /// What it stands on.
    pub is_ethernet: bool,
    /// Bits in a second, if it says so.
    pub bandwidth: Option<u64>,
    /// Its addresses that are in use.
    pub gids: Vec<SeenGid>,
}

/// An address of a port.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenGid {
    /// Its place in the port's table.
    pub index: u8,
    /// The address.
    pub gid: [u8; 16],
    /// What is spoken from it.
    pub kind: GidKind,
    /// The network device that it is of. Always on Ethernet, if this process may see it.
    pub network: Option<SeenNetwork>,
    /// Bits of it that its network shares.
    pub network_bits: u8,
}

/// What is spoken from an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GidKind {
    /// InfiniBand on its own fabric.
    InfiniBand,
    /// RoCE's first version, which routers do not carry.
    RoceV1,
    /// RoCE's second version, in UDP.
    RoceV2,
}

/// A network device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenNetwork {
    /// Its name.
    pub name: String,
    /// Whether it is up.
    pub is_up: bool,
    /// Its NUMA node.
    pub node: Option<u32>,
}

impl SeenPort {
    /// Whether packets can be sent.
    pub fn is_active(&self) -> bool {
        self.state.contains("ACTIVE")
    }
}

/// Bits of an address that a subnet of InfiniBand shares, and every network of IPv6 that hosts give themselves addresses in.
const PREFIX_BITS: u8 = 64;
/// All bits of an address: nobody else is known to be in its network.
const ALONE_BITS: u8 = 128;

/// Whether an address is good in its own network only: that of a network device's hardware, or of a fabric without a name.
pub(crate) fn is_link_local(gid: &[u8; 16]) -> bool {
    gid[0] == 0xfe && gid[1] & 0xc0 == 0x80
}

/// All devices that `sys`, normally `/sys`, shows. None if the kernel has no RDMA in it.
pub(crate) fn read(sys: &Path, networks: &[Network]) -> io::Result<Vec<SeenDevice>> {
    let devices = match fs::read_dir(sys.join("class/infiniband")) {
        Ok(devices) => devices,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut seen = Vec::new();
    for device in devices {
        let device = device?;
        seen.push(read_device(sys, &device.path(), &device.file_name().to_string_lossy(), networks));
    }
    seen.sort_by(|one, other| in_order(&one.name).cmp(&in_order(&other.name)));
    Ok(seen)
}

/// `mlx5_2` comes before `mlx5_10`.
fn in_order(name: &str) -> (&str, u64, &str) {
    let letters = name.trim_end_matches(|letter: char| letter.is_ascii_digit());
    (letters, name[letters.len()..].parse().unwrap_or(u64::MAX), name)
}

fn read_device(sys: &Path, folder: &Path, name: &str, networks: &[Network]) -> SeenDevice {
    let kind = line(&folder.join("node_type")).unwrap_or_default();
    let mut ports: Vec<SeenPort> = numbered(&folder.join("ports"))
        .into_iter()
        .filter_map(|number| read_port(sys, &folder.join("ports").join(number.to_string()), number, networks))
        .collect();
    ports.sort_by_key(|port| port.number);
    let behind = ports.iter().flat_map(|port| &port.gids).find_map(|gid| gid.network.as_ref()?.node);
    SeenDevice {
        name: name.to_owned(),
        speaks: if kind.starts_with("1:") { Speaks::InfiniBand } else { Speaks::Other(kind) },
        node: node(&folder.join("device/numa_node")).or(behind),
        has_driver: true,
        ports,
    }
}

fn read_port(sys: &Path, folder: &Path, number: u32, networks: &[Network]) -> Option<SeenPort> {
    let is_ethernet = line(&folder.join("link_layer"))? == "Ethernet";
    let mut gids: Vec<SeenGid> = numbered(&folder.join("gids"))
        .into_iter()
        .filter_map(|index| read_gid(sys, folder, u8::try_from(index).ok()?, is_ethernet, networks))
        .collect();
    gids.sort_by_key(|gid| gid.index);
    Some(SeenPort {
        number: u8::try_from(number).ok()?,
        state: line(&folder.join("state"))?,
        is_ethernet,
        bandwidth: line(&folder.join("rate")).as_deref().and_then(read_rate),
        gids,
    })
}

/// Bits in a second from `100 Gb/sec (4X EDR)`.
fn read_rate(text: &str) -> Option<u64> {
    let (number, rest) = text.split_once(' ')?;
    let number: f64 = number.parse().ok()?;
    (rest.starts_with("Gb/sec") && number > 0.0 && number < 1e6).then_some((number * 1e9) as u64)
}

fn read_gid(sys: &Path, port: &Path, index: u8, is_ethernet: bool, networks: &[Network]) -> Option<SeenGid> {
    let gid = read_address(&line(&port.join("gids").join(index.to_string()))?)?;
    if gid == [0; 16] || (is_link_local(&gid) && gid[8..] == [0; 8]) {
        return None;
    }
    let kind = match (is_ethernet, line(&port.join("gid_attrs/types").join(index.to_string()))) {
        (false, _) => GidKind::InfiniBand,
        (true, Some(kind)) if kind == "RoCE v2" => GidKind::RoceV2,
        (true, _) => GidKind::RoceV1,
    };
    let device = line(&port.join("gid_attrs/ndevs").join(index.to_string()));
    let network = device.filter(|name| is_ethernet && !name.is_empty()).and_then(|name| read_network(sys, &name));
    let network_bits = if !is_ethernet || is_link_local(&gid) {
        PREFIX_BITS
    } else {
        let its_own = network.as_ref().map(|network| network.name.as_str());
        let known = networks.iter().filter(|network| network.address == gid);
        let best = known.max_by_key(|network| Some(network.interface.as_str()) == its_own);
        best.map_or(ALONE_BITS, |network| network.bits)
    };
    Some(SeenGid { index, gid, kind, network, network_bits })
}

/// A network device that this process may see.
fn read_network(sys: &Path, name: &str) -> Option<SeenNetwork> {
    let folder = sys.join("class/net").join(name);
    let flags = line(&folder.join("flags"))?;
    let flags = u32::from_str_radix(flags.trim_start_matches("0x"), 16).ok()?;
    let carries = line(&folder.join("carrier")).as_deref() != Some("0");
    let is_up = flags & libc::IFF_UP as u32 != 0 && carries;
    Some(SeenNetwork { name: name.to_owned(), is_up, node: node(&folder.join("device/numa_node")) })
}

/// The address in `fe80:0000:0000:0000:0002:03ff:fe04:0506`.
fn read_address(text: &str) -> Option<[u8; 16]> {
    text.parse::<std::net::Ipv6Addr>().ok().map(|address| address.octets())
}

/// A NUMA node, unless it is said to be none.
fn node(file: &Path) -> Option<u32> {
    line(file)?.parse().ok()
}

/// The numbers that the entries of a folder are called by.
fn numbered(folder: &Path) -> Vec<u32> {
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

/// A file of one line. Nothing if it is not there or its driver does not answer, as for an unused place of a table.
fn line(file: &Path) -> Option<String> {
    fs::read_to_string(file).ok().map(|text| text.trim_end().to_owned())
}

/// An address as people write it.
pub(crate) fn show_gid(gid: &[u8; 16]) -> String {
    if is_mapped(gid) {
        return std::net::Ipv4Addr::new(gid[12], gid[13], gid[14], gid[15]).to_string();
    }
    std::net::Ipv6Addr::from(*gid).to_string()
}
