//! The addresses of ports on Ethernet: connections are made between IP addresses, and travel by RoCE's second version.

use std::net::{IpAddr, Ipv6Addr};

use super::{DEVICES, TOPIC, ok};
use crate::finding::{By, Finding, Mend};
use crate::host::Host;
use crate::parse::listed;
use crate::way::Way;

/// What `node_type` says of iWARP, which has other addresses.
const IWARP: &str = "4: RNIC";

/// Of the active ports of RoCE: the first few addresses of each.
pub(super) fn examine(host: &Host, devices: &[String]) -> Option<Finding> {
    const NAME: &str = "addresses";
    const SHOWN: usize = 3;
    let ports = devices.iter().filter(|device| !is_iwarp(host, device)).flat_map(|device| {
        let ports = host.names(format!("{DEVICES}/{device}/ports")).into_iter();
        ports.map(move |port| (format!("{device}/{port}"), format!("{DEVICES}/{device}/ports/{port}")))
    });
    let ports: Vec<(String, String)> = ports.filter(|(_, folder)| is_active_roce(host, folder)).collect();
    let mut reached = Vec::new();
    for (name, folder) in &ports {
        let mut addresses = addresses(host, folder);
        addresses.truncate(SHOWN);
        if !addresses.is_empty() {
            reached.push(format!("{name}: {}", listed(&addresses)));
        }
    }
    if !reached.is_empty() {
        return Some(ok(NAME, reached.join("; ")));
    }
    let (name, folder) = ports.first()?;
    let names: Vec<&str> = ports.iter().map(|(name, _)| name.as_str()).collect();
    let card = host.word(format!("{folder}/gid_attrs/ndevs/0")).unwrap_or_else(|| format!("the card of {name}"));
    let mend = format!("give {card} an IP address, such as `ip address add 192.168.7.1/24 dev {card}`");
    Some(
        Finding::limited(TOPIC, NAME, format!("none of RoCE v2 at {}, other than of the link alone", listed(&names)))
            .on(&[Way::Verbs])
            .means("these ports are reached from their own link only, and by name of the device, not by address")
            .mend(Mend::advice(By::Root, mend)),
    )
}

fn is_iwarp(host: &Host, device: &str) -> bool {
    host.word(format!("{DEVICES}/{device}/node_type")).is_some_and(|kind| kind == IWARP)
}

fn is_active_roce(host: &Host, folder: &str) -> bool {
    let word = |file: &str| host.word(format!("{folder}/{file}")).unwrap_or_default();
    word("link_layer") == "Ethernet" && word("state").ends_with("ACTIVE")
}

/// The IP addresses of a port that are good beyond its link. Empty places of its table cannot be read.
fn addresses(host: &Host, folder: &str) -> Vec<String> {
    let is_v2 =
        |place: &String| host.word(format!("{folder}/gid_attrs/types/{place}")).is_some_and(|kind| kind == "RoCE v2");
    let mut places = host.names(format!("{folder}/gid_attrs/types"));
    places.sort_by_key(|place| place.parse::<usize>().unwrap_or(usize::MAX));
    let tables = places.iter().filter(|place| is_v2(place));
    let found = tables.filter_map(|place| address(&host.word(format!("{folder}/gids/{place}"))?));
    found.map(|address| address.to_string()).collect()
}

/// The IP address in an entry, unless it is good on its link only.
fn address(gid: &str) -> Option<IpAddr> {
    let address: Ipv6Addr = gid.parse().ok()?;
    let is_of_link = address.is_unspecified() || address.segments()[0] & 0xffc0 == 0xfe80;
    (!is_of_link).then(|| address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::address;

    #[test]
    fn entries_are_read_as_ip_addresses_unless_they_are_of_the_link_alone() {
        let read = |gid: &str| address(gid).map(|address| address.to_string());
        assert_eq!(read("0000:0000:0000:0000:0000:ffff:0a00:0001").as_deref(), Some("10.0.0.1"));
        assert_eq!(read("2001:0db8:0000:0000:0000:0000:0000:0001").as_deref(), Some("2001:db8::1"));
        assert_eq!(read("fe80:0000:0000:0000:0202:c9ff:fe00:0001"), None);
        assert_eq!(read("0000:0000:0000:0000:0000:0000:0000:0000"), None);
        assert_eq!(read("no address"), None);
    }
}
