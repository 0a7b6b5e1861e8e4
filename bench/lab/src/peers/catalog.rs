//! Which engines of others there are, what each consists of, and how it shows that it starts.

use super::error::PeerError;

/// A Python package at a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pin {
    /// Its name.
    pub package: &'static str,
    /// The version that results are made with.
    pub version: &'static str,
}

const fn pin(package: &'static str, version: &'static str) -> Pin {
    Pin { package, version }
}

/// Where a peer comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Wheels in a virtual environment of its own, and system libraries that they name without bringing them.
    Wheels {
        /// The wheels, without what they declare to need: those that are needed are named.
        wheels: &'static [Pin],
        /// Debian packages of the libraries.
        libraries: &'static [&'static str],
    },
    /// A Debian package with the packages that it needs.
    Debian {
        /// The package.
        package: Pin,
    },
}

/// A peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// What it is called here.
    pub name: &'static str,
    /// What it is.
    pub what: &'static str,
    /// Where it comes from.
    pub source: Source,
    /// What shows that it starts: a Python program for wheels, a command for others.
    pub probe: &'static [&'static str],
}

const fn wheels(
    (name, what): (&'static str, &'static str),
    (wheels, libraries): (&'static [Pin], &'static [&'static str]),
    probe: &'static [&'static str],
) -> Peer {
    Peer { name, what, source: Source::Wheels { wheels, libraries }, probe }
}

const fn debian((name, what): (&'static str, &'static str), package: Pin, probe: &'static [&'static str]) -> Peer {
    Peer { name, what, source: Source::Debian { package }, probe }
}

const NUMPY: Pin = pin("numpy", "2.4.6");

/// All peers.
pub const PEERS: &[Peer] = &[
    wheels(
        ("nixl", "NIXL, agents over UCX"),
        (&[pin("nixl", "1.5.1"), pin("nixl-cu13", "1.5.1"), NUMPY], &[]),
        &["import numpy; from nixl._api import nixl_agent, nixl_agent_config; \
           nixl_agent('probe', nixl_agent_config(backends=['UCX']))"],
    ),
    wheels(
        ("mooncake", "Mooncake transfer engine, over TCP"),
        (&[pin("mooncake-transfer-engine-non-cuda", "0.3.13.post1"), NUMPY], &["libibverbs1", "libnuma1", "libcurl4"]),
        &["import numpy; from mooncake.engine import TransferEngine; TransferEngine()"],
    ),
    wheels(("python", "numpy, for Penstock's own wheel"), (&[NUMPY], &[]), &["import numpy"]),
    debian(("ucx", "UCX, by ucx_perftest"), pin("ucx-utils", "1.13.1-1"), &["ucx_info", "-v"]),
    debian(("libfabric", "libfabric, by fi_pingpong"), pin("libfabric-bin", "1.17.0-3"), &["fi_info", "--version"]),
    debian(("iperf3", "iperf3, streams over TCP"), pin("iperf3", "3.12-1+deb12u2"), &["iperf3", "--version"]),
    debian(("qperf", "qperf, bandwidth and latency over TCP"), pin("qperf", "0.4.11-3"), &["qperf", "--version"]),
];

impl Peer {
    /// The peer of this name.
    pub fn find(name: &str) -> Result<&'static Self, PeerError> {
        let known = || PEERS.iter().map(|peer| peer.name).collect::<Vec<_>>().join(", ");
        let found = PEERS.iter().find(|peer| peer.name.eq_ignore_ascii_case(name));
        found.ok_or_else(|| PeerError::Unknown { name: name.to_owned(), known: known() })
    }

    /// The peers of these names in their own order, or all if none is named.
    pub fn choose(names: &[String]) -> Result<Vec<&'static Self>, PeerError> {
        let named = names.iter().map(|name| Self::find(name)).collect::<Result<Vec<_>, _>>()?;
        Ok(PEERS.iter().filter(|peer| named.is_empty() || named.contains(peer)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_chosen_by_name() {
        let names = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            Peer::choose(&names).map(|peers| peers.iter().map(|peer| peer.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&["UCX", "nixl", "ucx"]).unwrap(), ["nixl", "ucx"]);
        assert_eq!(names(&[]).unwrap().len(), PEERS.len());
        let refused = names(&["nixl", "mpi"]).unwrap_err().to_string();
        assert!(refused.starts_with("mpi is no peer") && refused.contains("libfabric"), "{refused}");
    }
}
