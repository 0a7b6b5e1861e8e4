//! The addresses of this host, for the descriptor of an engine that listens at all of them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use penstock_session::descriptor::ADDRESSES_MAX;

/// Scopes of IPv6 addresses as the kernel writes them.
const SCOPE_LINK: u8 = 0x20;

/// What a descriptor names for these addresses that are listened at: a wildcard stands for all addresses of this
/// host, those of the loopback only where there are no others.
pub(crate) fn advertised(bound: &[SocketAddr]) -> Vec<SocketAddr> {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    let own = if bound.iter().any(|address| address.ip().is_unspecified()) {
        let mut own = of_fib_trie(&read("/proc/net/fib_trie"));
        own.extend(of_if_inet6(&read("/proc/net/if_inet6")));
        own
    } else {
        Vec::new()
    };
    expand(bound, &own)
}

fn expand(bound: &[SocketAddr], own: &[IpAddr]) -> Vec<SocketAddr> {
    let mut all = Vec::new();
    for address in bound {
        if !address.ip().is_unspecified() {
            all.push(*address);
            continue;
        }
        let fitting = own.iter().filter(|ip| ip.is_ipv4() == address.is_ipv4());
        let (near, far): (Vec<&IpAddr>, Vec<&IpAddr>) = fitting.partition(|ip| ip.is_loopback());
        let chosen = if far.is_empty() { near } else { far };
        all.extend(chosen.into_iter().map(|&ip| SocketAddr::new(ip, address.port())));
    }
    let mut seen = std::collections::BTreeSet::new();
    all.retain(|address| seen.insert(*address));
    all.truncate(ADDRESSES_MAX);
    all
}

/// The addresses that the kernel's table of routes calls its own: each stands in the line before `/32 host LOCAL`.
fn of_fib_trie(text: &str) -> Vec<IpAddr> {
    let mut found = Vec::new();
    let mut last: Option<Ipv4Addr> = None;
    for line in text.lines() {
        let line = line.trim();
        if let Some(address) = line.strip_prefix("|-- ") {
            last = address.parse().ok();
        } else if line == "/32 host LOCAL"
            && let Some(address) = last.map(IpAddr::V4)
            && !found.contains(&address)
        {
            found.push(address);
        }
    }
    found
}

/// Each line: address in hexadecimal digits, index, prefix, scope, flags, name. Those of one link only are left
/// out: they mean nothing without the name of an interface there.
fn of_if_inet6(text: &str) -> Vec<IpAddr> {
    let parse = |line: &str| {
        let mut words = line.split_whitespace();
        let digits = u128::from_str_radix(words.next()?, 16).ok()?;
        let scope = u8::from_str_radix(words.nth(2)?, 16).ok()?;
        (scope != SCOPE_LINK).then_some(IpAddr::V6(Ipv6Addr::from(digits)))
    };
    text.lines().filter_map(parse).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRIE: &str = "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\nLocal:\n     |-- 10.0.0.0\n        /24 link UNICAST\n     |-- 10.0.0.7\n        /32 host LOCAL\n     |-- 10.0.0.255\n        /32 link BROADCAST\n     |-- 127.0.0.1\n        /32 host LOCAL\nLocal:\n     |-- 10.0.0.7\n        /32 host LOCAL\n";
    const INET6: &str = "00000000000000000000000000000001 01 80 10 80       lo\nfe800000000000000000000000000007 02 40 20 80     eth0\n20010db8000000000000000000000007 02 40 00 80     eth0\n";

    fn addresses(bound: &[&str], own: &[IpAddr]) -> Vec<String> {
        let bound: Vec<SocketAddr> = bound.iter().map(|text| text.parse().unwrap()).collect();
        expand(&bound, own).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_wildcard_stands_for_all_addresses_of_its_family() {
        let mut own = of_fib_trie(TRIE);
        own.extend(of_if_inet6(INET6));
        assert_eq!(addresses(&["0.0.0.0:7400"], &own), ["10.0.0.7:7400"]);
        assert_eq!(addresses(&["[::]:7400"], &own), ["[2001:db8::7]:7400"]);
        assert_eq!(addresses(&["127.0.0.1:1", "10.0.0.7:2", "0.0.0.0:2"], &own), ["127.0.0.1:1", "10.0.0.7:2"]);
    }

    #[test]
    fn loopback_stands_where_there_is_nothing_else() {
        let own = of_fib_trie("|-- 127.0.0.1\n/32 host LOCAL\n");
        assert_eq!(addresses(&["0.0.0.0:7400"], &own), ["127.0.0.1:7400"]);
        assert!(addresses(&["[::]:7400"], &own).is_empty());
    }

    #[test]
    fn a_host_with_many_addresses_names_sixteen() {
        let own: Vec<IpAddr> = (0..40).map(|last| IpAddr::from([10, 0, 0, last])).collect();
        assert_eq!(addresses(&["0.0.0.0:7400"], &own).len(), ADDRESSES_MAX);
    }

    #[test]
    fn this_host_has_an_address() {
        assert!(!advertised(&["0.0.0.0:7400".parse().unwrap()]).is_empty());
    }
}
