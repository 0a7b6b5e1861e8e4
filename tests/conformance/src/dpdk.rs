//! Devices of DPDK for the engines of a case: memory that two of them share, or an interface for each on a bridge of the kernel, where
//! the initiator may have a socket of the kernel instead.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use penstock::config::DpdkConfig;
use penstock::config::network::{Ipv4Network, Mac};

use crate::setting::{Carrier, DIRECTORY, EngineSpec, SOURCE};
use crate::skip;

/// Names the library between Penstock and DPDK.
const SHIM: &str = "PENSTOCK_DPDK_SHIM";

/// The place of somebody who is no engine.
const STRANGER: u8 = 254;

/// Why datagrams cannot be carried so here, if they cannot.
pub fn why_not(carrier: Carrier) -> Option<String> {
    let reason =
        if matches!(carrier, Carrier::Memif | Carrier::Ring) { skip::labs_are_off() } else { skip::lab_reason() };
    let no_shim = || std::env::var_os(SHIM).is_none().then_some("needs the library that `make dpdk` builds");
    reason.or_else(no_shim).map(str::to_owned)
}

/// What the engines of the case with this folder have in common.
fn number(folder: &Path) -> u16 {
    let mut hasher = DefaultHasher::new();
    folder.hash(&mut hasher);
    hasher.finish() as u16
}

/// The place of an engine among those of its case, from 1.
pub fn place(folder: &Path, name: &str) -> u8 {
    let listed = std::fs::read_to_string(folder.join(DIRECTORY)).unwrap_or_default();
    let place = listed.lines().position(|line| line.split(' ').next() == Some(name));
    place.expect("each engine of a case is listed") as u8 + 1
}

fn address(folder: &Path, place: u8) -> Ipv4Addr {
    let [high, low] = number(folder).to_be_bytes();
    Ipv4Addr::new(10, 64 | high & 63, low, place)
}

/// The bridge of a case, and the interface of an engine: one end on the bridge, one for its device.
fn bridge(folder: &Path) -> String {
    format!("pkb{:04x}", number(folder))
}

fn interface(folder: &Path, place: u8, end: char) -> String {
    format!("pk{:04x}{end}{place}", number(folder))
}

fn run(program: &str, arguments: &[&str]) -> bool {
    let (out, err) = (Stdio::null(), Stdio::null());
    Command::new(program).args(arguments).stdout(out).stderr(err).status().is_ok_and(|status| status.success())
}

fn ip(arguments: &[&str]) -> bool {
    run("ip", arguments)
}

fn set_up(link: &str) {
    assert!(ip(&["link", "set", link, "addrgenmode", "none"]), "{link} is there");
    assert!(ip(&["link", "set", link, "up"]), "{link} is there");
}

/// Makes the case's bridge, unless another engine has. Its station is its own: usually it is that of an interface on it, and
/// changes when one more comes.
fn make_bridge(folder: &Path) -> String {
    let (bridge, [high, low]) = (bridge(folder), number(folder).to_be_bytes());
    let station = format!("02:70:6b:{high:02x}:{low:02x}:00");
    ip(&["link", "add", &bridge, "address", &station, "type", "bridge"]);
    set_up(&bridge);
    bridge
}

/// Makes an interface on the bridge without an address of its own. It is DPDK's alone: the kernel, to which its packets come as
/// well, neither answers for its other addresses there nor forwards anything.
fn make_interface(spec: &EngineSpec) -> String {
    let folder = Path::new(&spec.folder);
    let (bridge, on_bridge, of_device) =
        (make_bridge(folder), interface(folder, spec.place, 'b'), interface(folder, spec.place, 'd'));
    // DPDK's driver gives its sockets a number that nobody else of this host may have: the process's xor the interface's, in 16 bits.
    // So interfaces differ there only where one process has several.
    let index = (u32::from(number(folder)) << 16 | u32::from(spec.place) << 12) & i32::MAX as u32;
    // It is there where this engine has lived before.
    ip(&["link", "add", &on_bridge, "type", "veth", "peer", "name", &of_device, "index", &index.to_string()]);
    set_up(&on_bridge);
    assert!(ip(&["link", "set", &of_device, "arp", "off"]), "{of_device} is there");
    let forwarding = format!("/proc/sys/net/ipv4/conf/{of_device}/forwarding");
    if std::fs::read_to_string(&forwarding).is_ok_and(|value| value.trim() != "0") {
        std::fs::write(&forwarding, "0").expect("root may");
    }
    set_up(&of_device);
    assert!(ip(&["link", "set", &on_bridge, "master", &bridge]), "{bridge} takes {on_bridge}");
    of_device
}

/// Where an engine of this name and place listens, and its socket receives, if its packets go through the kernel and over the bridge.
pub fn host(carrier: Carrier, folder: &Path, name: &str, place: u8) -> Option<IpAddr> {
    (carrier == Carrier::FromUdp && name.starts_with(SOURCE)).then(|| address(folder, place).into())
}

/// Gives the kernel an address among those of the case's engines, for somebody who is none of them. Answers it, and the name of the bridge.
pub fn stranger(folder: &Path) -> (String, Ipv4Addr) {
    let host = address(folder, STRANGER);
    join_bridge(folder, host.into());
    (bridge(folder), host)
}

/// The address of an engine's device on the bridge.
pub fn address_of(folder: &Path, name: &str) -> Ipv4Addr {
    address(folder, place(folder, name))
}

/// The station of an engine's device on the bridge.
pub fn station_of(folder: &Path, name: &str) -> Mac {
    let path = format!("/sys/class/net/{}/address", interface(folder, place(folder, name), 'd'));
    let station = std::fs::read_to_string(path).expect("its interface is there");
    station.trim().parse().expect("an interface has a station")
}

/// Takes the link of an engine's device down, or up again: at the device, or at the other end of its cable, where the device keeps
/// its own state and has no carrier.
pub fn set_link(folder: &Path, name: &str, at_device: bool, is_up: bool) {
    let link = interface(folder, place(folder, name), if at_device { 'd' } else { 'b' });
    assert!(ip(&["link", "set", &link, if is_up { "up" } else { "down" }]), "{link} is there");
}

/// Packets that the bridge of a case loses, by chance.
pub struct Loss {
    table: String,
}

/// What was lost, and of how many packets.
#[derive(Debug)]
pub struct Lost {
    pub packets: u64,
    pub of: u64,
}

impl Loss {
    /// From now on so much of all packets between the engines is lost.
    pub fn begin(folder: &Path, percent: u8) -> Self {
        let (bridge, prefix) = (bridge(folder), format!("pk{:04x}", number(folder)));
        let chance = if percent < 100 { format!("numgen random mod 100 < {percent}") } else { String::new() };
        let rules = format!(
            "table bridge {bridge} {{
                counter seen {{ }}
                counter lost {{ }}
                chain forward {{
                    type filter hook forward priority 0
                    iifname \"{prefix}*\" counter name seen {chance} counter name lost drop
                }}
            }}"
        );
        assert!(run("nft", &[&rules]), "nft makes the table {bridge}");
        Self { table: bridge }
    }

    /// From now on nothing is lost.
    pub fn end(self) -> Lost {
        let [of, packets] = ["seen", "lost"].map(|counter| {
            let output = Command::new("nft").args(["list", "counter", "bridge", &self.table, counter]).output();
            let text = String::from_utf8(output.expect("nft is there").stdout).expect("nft writes text");
            let number = text.split_whitespace().skip_while(|word| *word != "packets").nth(1);
            number.and_then(|number| number.parse().ok()).expect("nft says how many packets")
        });
        Lost { packets, of }
    }
}

impl Drop for Loss {
    fn drop(&mut self) {
        run("nft", &["delete", "table", "bridge", &self.table]);
    }
}

/// Gives the bridge that address.
fn join_bridge(folder: &Path, host: IpAddr) {
    let bridge = make_bridge(folder);
    assert!(ip(&["address", "replace", &format!("{host}/24"), "dev", &bridge]), "{bridge} takes {host}");
}

/// The case with this folder is over.
pub fn forget(folder: &Path) {
    let Ok(links) = std::fs::read_dir("/sys/class/net") else { return };
    let (bridge, prefix) = (bridge(folder), format!("pk{:04x}", number(folder)));
    let names: Vec<_> = links.flatten().map(|link| link.file_name().to_string_lossy().into_owned()).collect();
    let its = names.iter().filter(|name| **name == bridge || (name.starts_with(&prefix) && name.contains('b')));
    its.for_each(|name| _ = ip(&["link", "del", name]));
}

/// The section of an engine's configuration that names its device, if it has one. The device is one of its own in each of its lives.
pub fn section(spec: &EngineSpec) -> DpdkConfig {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (folder, place, own) = (Path::new(&spec.folder), spec.place, NEXT.fetch_add(1, Ordering::Relaxed));
    if let Some(host) = host(spec.carrier, folder, &spec.name, place) {
        join_bridge(folder, host);
        return DpdkConfig::default();
    }
    let (device, mtu) = match spec.carrier {
        Carrier::Udp => return DpdkConfig::default(),
        Carrier::Memif => {
            let role = if spec.name == SOURCE { "server" } else { "client" };
            let socket = format!("penstock-{:04x}", number(folder));
            (format!("net_memif{own},role={role},id=0,socket={socket}"), 9000)
        }
        Carrier::Ring => (format!("ring:pk{:04x}/{}", number(folder), spec.place - 1), 1500),
        Carrier::Bridge | Carrier::FromUdp => (format!("net_af_packet{own},iface={}", make_interface(spec)), 1500),
    };
    let network = Ipv4Network { address: address(folder, place), prefix: 24 };
    DpdkConfig { device: Some(device), address: Some(network), mtu, ..DpdkConfig::default() }
}
