//! RDMA: drivers, devices, ports and their addresses, which of them are used, access, libraries, memory that may be locked.

mod addresses;
mod libraries;
mod rails;

use super::limits;
use crate::finding::{By, Finding, Mend, Status};
use crate::host::{Host, Rights};
use crate::parse::{count, listed};
use crate::topic::Topic;
use crate::way::Way;

const TOPIC: Topic = Topic::Rdma;
const DEVICES: &str = "/sys/class/infiniband";
const FILES: &str = "/dev/infiniband";

pub(super) fn examine(host: &Host) -> Vec<Finding> {
    let devices = host.names(DEVICES);
    let mut findings = vec![found(host, &devices)];
    if !devices.is_empty() {
        findings.push(ports(host, &devices));
        findings.extend(addresses::examine(host, &devices));
    }
    // Who names devices is told of each also where there are none.
    if !devices.is_empty() || !host.asked().devices.is_empty() {
        findings.push(rails::examine(host));
    }
    if !devices.is_empty() {
        findings.push(files(host));
    }
    findings.extend(libraries::examine(host, &devices));
    if !devices.is_empty() {
        let locked = limits::lockable(host, TOPIC).map(|finding| {
            let means =
                "pools and regions are locked where RDMA reaches them: beyond this, all together, that is refused";
            finding.means_if_limited(means).on(&[Way::Verbs])
        });
        findings.extend(locked);
    }
    findings
}

fn missing(name: &'static str, found: impl Into<String>) -> Finding {
    Finding::missing(TOPIC, name, found).on(&[Way::Verbs])
}

fn ok(name: &'static str, found: impl Into<String>) -> Finding {
    Finding::ok(TOPIC, name, found).on(&[Way::Verbs])
}

fn found(host: &Host, devices: &[String]) -> Finding {
    const NAME: &str = "devices";
    if !devices.is_empty() {
        return ok(NAME, listed(devices));
    }
    let found = match (host.exists("/sys/module/ib_core"), host.exists("/sys/module/ib_uverbs")) {
        (false, _) => "none, and no drivers are loaded",
        (true, false) => "none, and of the drivers ib_uverbs is not loaded",
        (true, true) => "none, though the drivers are loaded",
    };
    // What keeps programs from devices that come is better known before.
    let locked = limits::lockable(host, TOPIC).filter(|finding| finding.status == Status::Limited);
    let mends_locked = locked.map(|finding| finding.mends).unwrap_or_default();
    let card = host.names("/sys/class/net").into_iter().find(|card| card != "lo").unwrap_or_else(|| "eth0".to_owned());
    missing(NAME, found)
        .means("no RDMA between hosts")
        .mend(Mend::advice(By::Root, "with an RDMA card: install its vendor's driver, and look with `rdma link`"))
        .mend(host.as_root(&format!(
            "sh -c 'modprobe rdma_rxe && rdma link add rxe0 type rxe netdev {card}'   # in software, to try it"
        )))
        .mend(host.as_root("modprobe ib_uverbs   # programs reach devices through it, as /dev/infiniband/uverbs*"))
        .mends(mends_locked)
}

/// A port whose state is not `4: ACTIVE` carries nothing.
fn ports(host: &Host, devices: &[String]) -> Finding {
    const NAME: &str = "ports";
    let mut active = Vec::new();
    let mut idle = Vec::new();
    for device in devices {
        for port in host.names(format!("{DEVICES}/{device}/ports")) {
            let folder = format!("{DEVICES}/{device}/ports/{port}");
            let state = host.word(format!("{folder}/state")).unwrap_or_default();
            let state = state.split_once(": ").map_or(state.as_str(), |(_, word)| word).to_owned();
            let kind = host.word(format!("{folder}/link_layer")).unwrap_or_default();
            let rate = host.word(format!("{folder}/rate")).unwrap_or_default();
            if state == "ACTIVE" {
                active.push(format!("{device}/{port} ({kind}, {rate})"));
            } else {
                idle.push((device, port, state, kind));
            }
        }
    }
    if idle.is_empty() && !active.is_empty() {
        return ok(NAME, format!("active: {}", listed(&active)));
    }
    let shown = idle.iter().map(|(device, port, state, kind)| format!("{device}/{port} is {state} ({kind})"));
    let shown: Vec<String> = shown.collect();
    let mends = idle.iter().map(|(device, _, _, kind)| {
        // What is made in software names the card it stands on.
        let card = host.names(format!("{DEVICES}/{device}/device/net")).into_iter().next();
        let card = card.or_else(|| host.word(format!("{DEVICES}/{device}/parent")));
        match card {
            Some(card) if kind == "Ethernet" => host.as_root(&format!("ip link set {card} up")),
            _ if kind == "InfiniBand" => Mend::advice(
                By::Root,
                format!("{device}: plug the cable in, and run a subnet manager (opensm) in this fabric"),
            ),
            _ => Mend::advice(By::Root, format!("{device}: bring its network card up (`rdma link` names it)")),
        }
    });
    let mends: Vec<Mend> = mends.collect();
    if active.is_empty() {
        let found = if shown.is_empty() { "none".to_owned() } else { listed(&shown) };
        return missing(NAME, found).means("nothing can be sent through these devices").mends(mends);
    }
    let found = format!("active: {}; {}", listed(&active), listed(&shown));
    Finding::limited(TOPIC, NAME, found).means("only the active ones carry anything").on(&[Way::Verbs]).mends(mends)
}

fn files(host: &Host) -> Finding {
    const NAME: &str = "access";
    let names = host.names(FILES);
    let verbs: Vec<String> =
        names.iter().filter(|name| name.starts_with("uverbs")).map(|name| format!("{FILES}/{name}")).collect();
    if verbs.is_empty() {
        let finding = missing(NAME, format!("no {FILES}/uverbs*")).means("programs cannot reach the devices");
        let container = Mend::outside("docker run --device=/dev/infiniband …");
        return if host.in_container() {
            finding.mend(container)
        } else {
            finding.mend(host.as_root("modprobe ib_uverbs"))
        };
    }
    let manager = format!("{FILES}/rdma_cm");
    let may = |path: &&String| host.system().may(&host.at(path), Rights::ReadWrite).is_ok();
    let barred: Vec<&String> = verbs.iter().filter(|path| !may(path)).collect();
    if barred.is_empty() {
        // Only who asks for `transports.verbs_connect: cm` needs the connection manager: without it nothing is wrong here.
        let manager = match (host.exists(&manager), may(&&manager)) {
            (true, true) => format!("and {manager}"),
            (true, false) => format!("but not {manager}, which `transports.verbs_connect: cm` needs"),
            (false, _) => {
                format!("without {manager}, which `transports.verbs_connect: cm` needs (`modprobe rdma_ucm`)")
            }
        };
        return ok(NAME, format!("{} can be used, {manager}", count(verbs.len(), "device file")));
    }
    let paths: Vec<&str> = barred.iter().map(|path| path.as_str()).collect();
    missing(NAME, format!("this user may not use {}", listed(&paths)))
        .means("programs of this user cannot reach the devices")
        .mend(host.as_root(&format!("chmod a+rw {}", paths.join(" "))))
}
