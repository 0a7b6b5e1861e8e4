//! A device of DPDK: a card's port or a virtual one, with a queue pair for each worker.

use std::ffi::CString;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex};

use penstock_core::config::network::Mac;
use penstock_dpdk_shim::{DpdkCounts, DpdkFacts, DpdkOptions as ShimOptions};

use super::eal::{self, Eal};
use super::neighbours::Neighbours;
use super::{DpdkError, DpdkOptions};

/// Drivers whose packets stay in the memory of this host, where nothing is checked and nothing rots: rings of one process, memory that
/// two processes share.
const WITHIN_HOST: [&str; 2] = ["net_ring", "net_memif"];

/// A device that is open. It is closed when the last of its queues is gone.
pub(super) struct Device {
    pub(super) eal: &'static Eal,
    pub(super) port: u16,
    name: String,
    pub(super) facts: DpdkFacts,
    pub(super) mac: Mac,
    /// Bytes of an IP packet at most.
    pub(super) mtu: u16,
    pub(super) neighbours: Mutex<Neighbours>,
}

/// A device's name, as DPDK has it: what is before its arguments.
fn name_of(device: &str) -> &str {
    device.split(',').next().unwrap_or_default()
}

/// Of a device without one: a station of nobody's, named by the IP address.
fn own_mac(ip: Ipv4Addr) -> Mac {
    let [a, b, c, d] = ip.octets();
    Mac([2, 0, a, b, c, d])
}

impl Device {
    /// Starts DPDK if this process has not, and opens the device with so many queue pairs.
    pub(super) fn open(options: &DpdkOptions) -> Result<Arc<Self>, DpdkError> {
        let eal = eal::start(options.arguments())?;
        let name = name_of(&options.device);
        eal.add(name, || {
            let failed =
                |answered| DpdkError::Device { device: name.to_owned(), words: eal::words(eal.shim, answered) };
            let text = CString::new(options.device.as_str()).map_err(|_| failed(-libc::EINVAL))?;
            // SAFETY: DPDK runs, and this is a C string.
            let port = unsafe { eal.shim.penstock_dpdk_add(text.as_ptr()) };
            let port = u16::try_from(port).map_err(|_| failed(port))?;
            Self::open_port(eal, port, name, options)
        })
    }

    /// Opens two devices of this process; each receives what the other sends.
    pub(super) fn open_pair(options: [&DpdkOptions; 2]) -> Result<[Arc<Self>; 2], DpdkError> {
        let eal = eal::start(options[0].arguments())?;
        let names = options.map(|options| name_of(&options.device));
        eal.add(names[0], || {
            let failed =
                |answered| DpdkError::Device { device: names[0].to_owned(), words: eal::words(eal.shim, answered) };
            let texts = names.map(|name| CString::new(name).unwrap_or_default());
            let mut ports = [0u16; 2];
            // SAFETY: DPDK runs, these are C strings, and there is room for two numbers.
            let answered = unsafe {
                let [first, second] = texts.each_ref().map(|text| text.as_ptr());
                eal.shim.penstock_dpdk_add_pair(first, second, options[0].queues, ports.as_mut_ptr())
            };
            if answered < 0 {
                return Err(failed(answered));
            }
            Ok([
                Self::open_port(eal, ports[0], names[0], options[0])?,
                Self::open_port(eal, ports[1], names[1], options[1])?,
            ])
        })
    }

    fn open_port(eal: &'static Eal, port: u16, name: &str, options: &DpdkOptions) -> Result<Arc<Self>, DpdkError> {
        let opened = Self::set_up(eal, port, name, options);
        if opened.is_err() {
            // SAFETY: it was added just now, and nobody has a queue of it.
            unsafe { eal.shim.penstock_dpdk_remove(port) };
        }
        opened
    }

    fn set_up(eal: &'static Eal, port: u16, name: &str, options: &DpdkOptions) -> Result<Arc<Self>, DpdkError> {
        let device = || name.to_owned();
        let failed = |answered| DpdkError::Device { device: device(), words: eal::words(eal.shim, answered) };
        let mut facts = DpdkFacts::default();
        // SAFETY: there is room for the facts.
        let answered = unsafe { eal.shim.penstock_dpdk_facts(port, &raw mut facts) };
        if answered < 0 {
            return Err(failed(answered));
        }
        if options.queues > facts.queues_max {
            return Err(DpdkError::Queues { device: device(), wanted: options.queues, has: facts.queues_max });
        }
        if options.queues > 1 && !WITHIN_HOST.contains(&facts.driver().as_str()) {
            return Err(DpdkError::Steering { device: device(), wanted: options.queues });
        }
        if options.mtu > facts.mtu_max {
            return Err(DpdkError::Mtu { device: device(), wanted: options.mtu, most: facts.mtu_max });
        }
        let queue_packets = options.queue_packets;
        let how = ShimOptions {
            queues: options.queues,
            receive_packets: queue_packets,
            send_packets: queue_packets,
            mtu: options.mtu,
        };
        // SAFETY: these are options.
        let answered = unsafe { eal.shim.penstock_dpdk_open(port, &raw const how) };
        if answered < 0 {
            return Err(failed(answered));
        }
        // SAFETY: as above. What was set is known now.
        unsafe { eal.shim.penstock_dpdk_facts(port, &raw mut facts) };
        let mac = Mac(facts.mac);
        Ok(Arc::new(Self {
            eal,
            port,
            name: device(),
            facts,
            mac: if mac.is_station() { mac } else { own_mac(options.network.address) },
            mtu: if options.mtu == 0 { facts.mtu } else { options.mtu },
            neighbours: Mutex::new(Neighbours::new(&options.neighbours)),
        }))
    }

    /// Whether nothing on the way checks that packets come as they left, and it is not all memory either.
    pub(super) fn needs_checksums(&self) -> bool {
        !WITHIN_HOST.contains(&self.facts.driver().as_str())
    }

    /// Whether its link is up. A memif that has lost its other end connects anew when it is asked.
    pub(super) fn is_up(&self) -> bool {
        // SAFETY: it takes the number of a port.
        unsafe { self.eal.shim.penstock_dpdk_link(self.port) > 0 }
    }

    pub(super) fn counts(&self) -> DpdkCounts {
        let mut counts = DpdkCounts::default();
        // SAFETY: there is room for the counts. Where it fails nothing was counted.
        unsafe { self.eal.shim.penstock_dpdk_counts(self.port, &raw mut counts) };
        counts
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: the last of its queues has given all buffers back.
        self.eal.remove(&self.name, || unsafe { self.eal.shim.penstock_dpdk_close(self.port) });
    }
}
