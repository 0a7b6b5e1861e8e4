//! What the kernel shows of RDMA devices, their ports and addresses, in `/sys`. Nothing is opened for it.

use std::fs;
use std::io;
use std::io::Read;
use std::path::Path;

use super::networks::{Network, is_mapped};
pub use crate::adapter::GidKind;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenDevice {
    pub name: String,
    pub speaks: Speaks,
    pub node: Option<u32>,
    /// Whether libibverbs has a driver for it.
    pub has_driver: bool,
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

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenPort {
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
    pub gid: [u8; 16],
    /// What is spoken from it.
    pub kind: GidKind,
    /// The network device that it is of. Always on Ethernet, if this process may see it.
    pub network: Option<SeenNetwork>,
    /// Bits of it that its network shares.
    pub network_bits: u8,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SeenNetwork {
    pub name: String,
    /// Whether it is up.
    pub is_up: bool,
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

/// More than any line of a device has.
const LINE: usize = 256;

/// A file of one line. Nothing if it is not there or its driver does not answer, as for an unused place of a table. A port has
/// hundreds of them, so one is opened, read once and closed.
fn line(file: &Path) -> Option<String> {
    let mut bytes = [0; LINE];
    let len = fs::File::open(file).and_then(|mut file| file.read(&mut bytes)).ok()?;
    Some(std::str::from_utf8(&bytes[..len]).ok()?.trim_end().to_owned())
}

/// An address as people write it.
pub fn show_gid(gid: &[u8; 16]) -> String {
    if is_mapped(gid) {
        return std::net::Ipv4Addr::new(gid[12], gid[13], gid[14], gid[15]).to_string();
    }
    std::net::Ipv6Addr::from(*gid).to_string()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::networks::mapped;
    use super::*;

    /// A tree of files that is gone with its value.
    struct Recorded(PathBuf);

    impl Recorded {
        fn new(label: &str, files: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir().join(format!("penstock-verbs-{}-{label}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                fs::create_dir_all(path.parent().expect("it is below the root")).expect("a folder");
                fs::write(&path, format!("{text}\n")).expect("a file");
            }
            Self(root)
        }
    }

    impl Drop for Recorded {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn a_card_on_ethernet_is_read_with_its_networks() {
        let port = "class/infiniband/mlx5_0/ports/1";
        let at = |file: &str| format!("{port}/{file}");
        let files = [
            ("class/infiniband/mlx5_0/node_type".to_owned(), "1: CA"),
            ("class/infiniband/mlx5_0/device/numa_node".to_owned(), "1"),
            (at("state"), "4: ACTIVE"),
            (at("link_layer"), "Ethernet"),
            (at("rate"), "100 Gb/sec (4X EDR)"),
            (at("gids/0"), "fe80:0000:0000:0000:0e42:a1ff:fe00:0001"),
            (at("gids/1"), "0000:0000:0000:0000:0000:ffff:c000:0201"),
            (at("gids/2"), "0000:0000:0000:0000:0000:0000:0000:0000"),
            (at("gids/3"), "2001:0db8:0000:0000:0000:0000:0000:0001"),
            (at("gid_attrs/types/0"), "IB/RoCE v1"),
            (at("gid_attrs/types/1"), "RoCE v2"),
            (at("gid_attrs/types/3"), "RoCE v2"),
            (at("gid_attrs/ndevs/0"), "eth0"),
            (at("gid_attrs/ndevs/1"), "eth0"),
            (at("gid_attrs/ndevs/3"), "eth7"),
            ("class/net/eth0/flags".to_owned(), "0x1003"),
            ("class/net/eth0/carrier".to_owned(), "1"),
        ];
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        let recorded = Recorded::new("roce", &files);
        let network = Network { interface: "eth0".to_owned(), address: mapped([192, 0, 2, 1]), bits: 120 };
        let seen = read(&recorded.0, &[network]).expect("it is read");
        let eth0 = Some(SeenNetwork { name: "eth0".to_owned(), is_up: true, node: None });
        let gid = |index, gid, kind, network, network_bits| SeenGid { index, gid, kind, network, network_bits };
        let port = SeenPort {
            number: 1,
            state: "4: ACTIVE".to_owned(),
            is_ethernet: true,
            bandwidth: Some(100_000_000_000),
            gids: vec![
                gid(
                    0,
                    [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0x0e, 0x42, 0xa1, 0xff, 0xfe, 0, 0, 1],
                    GidKind::RoceV1,
                    eth0.clone(),
                    64,
                ),
                gid(1, mapped([192, 0, 2, 1]), GidKind::RoceV2, eth0, 120),
                // Its network device is not to be seen, and nothing is known of its network.
                gid(3, [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], GidKind::RoceV2, None, 128),
            ],
        };
        let device = SeenDevice {
            name: "mlx5_0".to_owned(),
            speaks: Speaks::InfiniBand,
            node: Some(1),
            has_driver: true,
            ports: vec![port],
        };
        assert_eq!(seen, [device]);
    }

    #[test]
    fn a_card_on_infiniband_is_read_without_networks() {
        let port = "class/infiniband/ibp3s0/ports/1";
        let at = |file: &str| format!("{port}/{file}");
        let files = [
            ("class/infiniband/ibp3s0/node_type".to_owned(), "1: CA"),
            ("class/infiniband/ibp3s0/device/numa_node".to_owned(), "-1"),
            (at("state"), "2: INIT"),
            (at("link_layer"), "InfiniBand"),
            (at("rate"), "unknown"),
            (at("gids/0"), "fe80:0000:0000:0000:f452:1403:0000:0001"),
            (at("gids/1"), "fe80:0000:0000:0000:0000:0000:0000:0000"),
            ("class/infiniband/irdma0/node_type".to_owned(), "4: RNIC"),
        ];
        let files: Vec<(&str, &str)> = files.iter().map(|(path, text)| (path.as_str(), *text)).collect();
        let recorded = Recorded::new("infiniband", &files);
        let seen = read(&recorded.0, &[]).expect("it is read");
        assert_eq!((seen[0].name.as_str(), seen[0].node), ("ibp3s0", None));
        let port = &seen[0].ports[0];
        assert!(!port.is_active() && !port.is_ethernet && port.bandwidth.is_none());
        let [gid] = &port.gids[..] else { panic!("one address is in use: {port:?}") };
        assert_eq!((gid.kind, gid.network_bits), (GidKind::InfiniBand, 64));
        assert_eq!(seen[1].speaks, Speaks::Other("4: RNIC".to_owned()));
    }

    #[test]
    fn a_kernel_without_rdma_shows_nothing() {
        let recorded = Recorded::new("nothing", &[("class/net/lo/flags", "0x9")]);
        assert_eq!(read(&recorded.0, &[]).expect("there is nothing to read"), []);
    }

    #[test]
    fn devices_are_in_the_order_of_their_numbers() {
        let mut names = vec!["mlx5_10", "mlx5_2", "bnxt_re0", "mlx5_bond"];
        names.sort_by(|one, other| in_order(one).cmp(&in_order(other)));
        assert_eq!(names, ["bnxt_re0", "mlx5_2", "mlx5_10", "mlx5_bond"]);
    }

    #[test]
    fn a_rate_is_read_in_every_form_of_the_kernel() {
        assert_eq!(read_rate("100 Gb/sec (4X EDR)"), Some(100_000_000_000));
        assert_eq!(read_rate("2.5 Gb/sec (1X SDR)"), Some(2_500_000_000));
        assert_eq!(read_rate("-1 Gb/sec"), None);
        assert_eq!(read_rate("fast"), None);
    }
}
