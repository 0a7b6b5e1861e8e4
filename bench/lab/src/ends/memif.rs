//! Memory that the two ends of a measurement share through DPDK, in place of a network.

use std::sync::atomic::{AtomicU32, Ordering};

use penstock::config::DpdkConfig;
use penstock::config::network::Ipv4Network;
use penstock_datagram_transport::dpdk::DpdkPorts;
use serde::{Deserialize, Serialize};

/// Bytes of the headers of IPv4 and UDP.
const HEADERS_BYTES: usize = 28;

/// Frames where nothing else is asked for: those of a network with jumbo frames.
pub const FRAME_BYTES: usize = 8_972;

/// Whether the library between Penstock and DPDK is here.
pub fn is_usable() -> bool {
    DpdkPorts::release().is_ok()
}

/// A memif of two ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memif {
    /// The name of its socket, which no other one has.
    pub socket: String,
    /// Bytes of a UDP payload at most.
    pub frame_bytes: usize,
    /// Whether this is the end that waits for the other.
    pub is_server: bool,
}

impl Memif {
    /// A new one, of which this end waits for the other.
    pub fn new(frame_bytes: usize) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { socket: format!("penstock-lab-{}-{number}", std::process::id()), frame_bytes, is_server: true }
    }

    /// The end that the other process has.
    #[must_use]
    pub fn other(&self) -> Self {
        Self { is_server: !self.is_server, ..self.clone() }
    }

    /// How an engine is told of it.
    pub fn section(&self) -> DpdkConfig {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (number, mtu) = (NEXT.fetch_add(1, Ordering::Relaxed), self.frame_bytes + HEADERS_BYTES);
        let (role, host) = if self.is_server { ("server", 1) } else { ("client", 2) };
        let device = format!("net_memif{number},role={role},id=0,socket={}", self.socket);
        let network = Ipv4Network { address: [10, 0, 9, host].into(), prefix: 24 };
        DpdkConfig { device: Some(device), address: Some(network), mtu: mtu as u16, ..DpdkConfig::default() }
    }
}
