//! Devices of DPDK for the engines of a case: memory that two of them share, or an interface for each on a bridge of the kernel.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use penstock::config::DpdkConfig;
use penstock::config::network::Ipv4Network;

use crate::setting::{Carrier, DIRECTORY, EngineSpec, SOURCE};
use crate::skip;

/// Names the library between Penstock and DPDK.
const SHIM: &str = "PENSTOCK_DPDK_SHIM";

/// Why datagrams cannot be carried so here, if they cannot.
pub fn why_not(carrier: Carrier) -> Option<String> {
    let reason = if carrier == Carrier::Memif { skip::labs_are_off() } else { skip::lab_reason() };
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

fn ip(arguments: &[&str]) -> bool {
    Command::new("ip").args(arguments).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
}

/// Makes an interface of nobody's, without an address of its own.
fn make_interface(folder: &Path, place: u8) -> String {
    let (bridge, on_bridge, of_device) = (bridge(folder), interface(folder, place, 'b'), interface(folder, place, 'd'));
    // Somebody else may have made it, or this engine in the life before.
    ip(&["link", "add", &bridge, "type", "bridge"]);
    ip(&["link", "add", &on_bridge, "type", "veth", "peer", "name", &of_device]);
    for link in [&bridge, &on_bridge, &of_device] {
        assert!(ip(&["link", "set", link, "addrgenmode", "none"]), "{link} is there");
        assert!(ip(&["link", "set", link, "up"]), "{link} is there");
    }
    assert!(ip(&["link", "set", &on_bridge, "master", &bridge]), "{bridge} takes {on_bridge}");
    of_device
}

/// The case with this folder is over.
pub fn forget(folder: &Path) {
    let Ok(links) = std::fs::read_dir("/sys/class/net") else { return };
    let (bridge, prefix) = (bridge(folder), format!("pk{:04x}", number(folder)));
    let names: Vec<_> = links.flatten().map(|link| link.file_name().to_string_lossy().into_owned()).collect();
    let its = names.iter().filter(|name| **name == bridge || (name.starts_with(&prefix) && name.contains('b')));
    its.for_each(|name| _ = ip(&["link", "del", name]));
}

/// The section of an engine's configuration that names its device. The device is one of its own in each of its lives.
pub fn section(spec: &EngineSpec) -> DpdkConfig {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let (folder, place, own) = (Path::new(&spec.folder), spec.place, NEXT.fetch_add(1, Ordering::Relaxed));
    let (device, mtu) = match spec.carrier {
        Carrier::Udp => return DpdkConfig::default(),
        Carrier::Memif => {
            let role = if spec.name == SOURCE { "server" } else { "client" };
            let socket = format!("penstock-{:04x}", number(folder));
            (format!("net_memif{own},role={role},id=0,socket={socket}"), 9000)
        }
        Carrier::Bridge => (format!("net_af_packet{own},iface={}", make_interface(folder, place)), 1500),
    };
    let network = Ipv4Network { address: address(folder, place), prefix: 24 };
    DpdkConfig { device: Some(device), address: Some(network), mtu, ..DpdkConfig::default() }
}
