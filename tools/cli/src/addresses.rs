//! The addresses by which another host reaches an engine of this one.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// Where an engine is reached, the best address first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reached {
    pub(crate) addresses: Vec<SocketAddr>,
    /// Whether no other host can use any of them.
    pub(crate) is_this_host_only: bool,
}

impl Reached {
    /// Of an engine that advertises these.
    pub(crate) fn of(advertised: &[SocketAddr]) -> Self {
        Self::ordered(advertised, &sources())
    }

    /// Those from which packets to elsewhere leave come first, then IPv4 before IPv6. Loopback is named only where there is nothing else.
    fn ordered(advertised: &[SocketAddr], sources: &[IpAddr]) -> Self {
        let is_elsewhere = |address: &&SocketAddr| {
            let ip = address.ip();
            !ip.is_loopback() && !ip.is_unspecified()
        };
        let mut addresses: Vec<SocketAddr> = advertised.iter().filter(is_elsewhere).copied().collect();
        let is_this_host_only = addresses.is_empty();
        if is_this_host_only {
            addresses = advertised.iter().filter(|address| address.ip().is_loopback()).copied().collect();
        }
        let rank = |address: &SocketAddr| {
            let is_link_local = matches!(address.ip(), IpAddr::V4(ip) if ip.is_link_local());
            let source = sources.iter().position(|source| *source == address.ip()).unwrap_or(sources.len());
            (is_link_local, source, address.is_ipv6())
        };
        // Stable: beyond that they stay as the kernel has them.
        addresses.sort_by_key(rank);
        Self { addresses, is_this_host_only }
    }

    /// The one to be used in examples.
    pub(crate) fn best(&self) -> Option<SocketAddr> {
        self.addresses.first().copied()
    }
}

/// From where packets to other networks leave, by the default routes: IPv4 first. Nothing is sent.
fn sources() -> Vec<IpAddr> {
    // Addresses for documentation: they are nobody's, so only a default route leads there.
    let routes = [
        (SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)), SocketAddr::from((Ipv4Addr::new(192, 0, 2, 1), 9))),
        (
            SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
            SocketAddr::from((Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1), 9)),
        ),
    ];
    let source = |(from, to): (SocketAddr, SocketAddr)| {
        let socket = UdpSocket::bind(from).ok()?;
        socket.connect(to).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    routes.into_iter().filter_map(source).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ordered(advertised: &[&str], sources: &[&str]) -> (Vec<String>, bool) {
        let advertised: Vec<SocketAddr> = advertised.iter().map(|text| text.parse().unwrap()).collect();
        let sources: Vec<IpAddr> = sources.iter().map(|text| text.parse().unwrap()).collect();
        let reached = Reached::ordered(&advertised, &sources);
        (reached.addresses.iter().map(ToString::to_string).collect(), reached.is_this_host_only)
    }

    #[test]
    fn the_address_of_the_default_route_comes_first_and_loopback_never() {
        let all = ["127.0.0.1:7400", "172.17.0.1:7400", "169.254.3.4:7400", "10.0.0.7:7400", "[2001:db8::7]:7400"];
        assert_eq!(
            ordered(&all, &["10.0.0.7", "2001:db8::7"]),
            (
                ["10.0.0.7:7400", "[2001:db8::7]:7400", "172.17.0.1:7400", "169.254.3.4:7400"]
                    .map(str::to_owned)
                    .to_vec(),
                false
            )
        );
        assert_eq!(ordered(&["[2001:db8::7]:1", "10.0.0.7:1"], &[]).0, ["10.0.0.7:1", "[2001:db8::7]:1"]);
    }

    #[test]
    fn an_engine_at_loopback_is_this_hosts_alone() {
        assert_eq!(ordered(&["127.0.0.1:1"], &["10.0.0.7"]), (vec!["127.0.0.1:1".to_owned()], true));
        assert_eq!(ordered(&[], &[]), (Vec::new(), true));
    }
}
