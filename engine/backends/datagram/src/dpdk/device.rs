//! A device of DPDK: a card's port or a virtual one, with a queue pair for each worker.

use std::ffi::CString;
use std::io::ErrorKind;
use std::net::Ipv4Addr;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use penstock_core::config::network::Mac;
use penstock_dpdk_shim::{DpdkCounts, DpdkFacts, DpdkOptions as ShimOptions};

use super::eal::{self, Eal};
use penstock_datagram::wire::FRAME_BYTES_MIN;

use super::headers::{ETHERNET_BYTES, IP_HEADERS_BYTES};
use super::neighbours::Neighbours;
use super::{DpdkError, DpdkOptions};

/// Whether a driver's packets stay in the memory of this host: rings of one process, memory that two processes share.
fn is_within_host(facts: &DpdkFacts) -> bool {
    ["net_ring", "net_memif"].contains(&facts.driver().as_str())
}

/// A device that is open. It is closed when the last of its queues is gone.
pub(super) struct Device {
    pub(super) eal: &'static Eal,
    pub(super) port: u16,
    pub(super) facts: DpdkFacts,
    pub(super) mac: Mac,
    /// Bytes of an IP packet at most.
    pub(super) mtu: u16,
    /// Whether packets may lend memory to it.
    pub(super) lends: bool,
    pub(super) neighbours: Mutex<Neighbours>,
    /// Which of its queue pairs somebody has.
    pub(super) taken: Box<[AtomicBool]>,
}

/// Of a device without one: a station of nobody's, named by the IP address.
fn own_mac(ip: Ipv4Addr) -> Mac {
    let [a, b, c, d] = ip.octets();
    Mac([2, 0, a, b, c, d])
}

/// What memif takes in one piece, and its MTU, where nothing else is said.
const MEMIF_PIECE: usize = 2048;
const MEMIF_MTU: u16 = 1500;
/// A longer one is refused for itself.
const MTU_MAX: usize = 64_000 + ETHERNET_BYTES;

/// What memif copies of a packet goes in one piece, so that its receiver need not put it together: the piece is made as long as a packet, or
/// is refused where it was chosen shorter.
fn with_pieces(options: &DpdkOptions) -> Result<String, DpdkError> {
    let mtu = if options.mtu == 0 { MEMIF_MTU } else { options.mtu };
    let (device, wanted) = (&options.device, usize::from(mtu) + ETHERNET_BYTES);
    if !device.starts_with("net_memif") {
        return Ok(device.clone());
    }
    let chosen = device.split(',').find_map(|argument| argument.strip_prefix("bsize="));
    match chosen {
        Some(piece) if piece.parse().is_ok_and(|piece: usize| piece < wanted) => {
            Err(DpdkError::Piece { device: device.clone(), wanted })
        }
        None if (MEMIF_PIECE..=MTU_MAX).contains(&wanted) => {
            Ok(format!("{device},bsize={}", wanted.next_multiple_of(64)))
        }
        _ => Ok(device.clone()),
    }
}

/// A server of memif that was killed leaves the file of its socket, and the next one could not make it. Nobody listens at such a file.
fn remove_stale_socket(device: &str) {
    let its = |wanted: &str| device.split(',').find_map(|argument| argument.strip_prefix(wanted));
    if let Some(path) = its("socket=")
        && is_memif_server(device)
        && its("socket-abstract=") == Some("no")
        && std::fs::symlink_metadata(path).is_ok_and(|file| file.file_type().is_socket())
        && UnixStream::connect(path).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
        && let Err(error) = std::fs::remove_file(path)
    {
        tracing::warn!(path, %error, "the socket of a memif that is no more cannot be removed");
    }
}

/// Whether this is the end of a memif that waits for the other.
fn is_memif_server(device: &str) -> bool {
    device.starts_with("net_memif") && device.split(',').any(|role| ["role=server", "role=master"].contains(&role))
}

/// What the kernel and the driver put before a frame in the ring of an af_packet, at most.
const RING_HEAD: usize = 66;
/// The driver holds places of the ring against our buffers, whose room is made in steps.
const BUFFER_STEP: usize = 1024;
const BUFFER_SPARE: usize = 256 + ETHERNET_BYTES + 8;
const RING_HEAD_LEAST: usize = 32;

/// Places in the ring of an af_packet hold a packet, and our buffers what a place does: else packets come cut, or none.
fn check_ring(device: &str, mtu: u16) -> Result<(), DpdkError> {
    let mtu = usize::from(if mtu == 0 { MEMIF_MTU } else { mtu });
    let (least, most) =
        (mtu + ETHERNET_BYTES + RING_HEAD, (mtu + BUFFER_SPARE).next_multiple_of(BUFFER_STEP) + RING_HEAD_LEAST);
    let chosen = device.split(',').find_map(|argument| argument.strip_prefix("framesz=")?.parse().ok());
    match chosen {
        Some(bytes) if device.starts_with("net_af_packet") && !(least..=most).contains(&bytes) => {
            Err(DpdkError::Ring { device: device.to_owned(), least, most })
        }
        _ => Ok(()),
    }
}

/// An af_packet is of an interface that is there.
fn check_interface(device: &str) -> Result<(), DpdkError> {
    let named = device.split(',').find_map(|argument| argument.strip_prefix("iface="));
    let is_there = |interface: &str| {
        // SAFETY: it takes a C string and keeps nothing of it.
        CString::new(interface).is_ok_and(|name| unsafe { libc::if_nametoindex(name.as_ptr()) } != 0)
    };
    match named.filter(|interface| device.starts_with("net_af_packet") && !is_there(interface)) {
        Some(interface) => Err(DpdkError::Interface { device: device.to_owned(), interface: interface.to_owned() }),
        None => Ok(()),
    }
}

impl Device {
    /// Starts DPDK if this process has not, and opens the device with so many queue pairs.
    pub(super) fn open(options: &DpdkOptions) -> Result<Arc<Self>, DpdkError> {
        if options.mtu != 0 && usize::from(options.mtu) < FRAME_BYTES_MIN + IP_HEADERS_BYTES {
            return Err(DpdkError::Narrow { device: options.device.clone(), mtu: options.mtu });
        }
        check_ring(&options.device, options.mtu)?;
        check_interface(&options.device)?;
        let (eal, text) = (eal::start(options)?, with_pieces(options)?);
        remove_stale_socket(&options.device);
        eal.add(&text, options.queues, |port| Self::set_up(eal, port, options).map(Arc::new))
    }

    fn set_up(eal: &'static Eal, port: u16, options: &DpdkOptions) -> Result<Self, DpdkError> {
        let device = || options.device.clone();
        let failed = |answered| DpdkError::Device { device: device(), words: eal::words(eal.shim, answered) };
        let mut facts = DpdkFacts::default();
        // SAFETY: there is room for the facts.
        let answered = unsafe { eal.shim.penstock_dpdk_facts(port, &raw mut facts) };
        if answered < 0 {
            return Err(failed(answered));
        }
        let (queues, mtu, queue_packets) = (options.queues, options.mtu, options.queue_packets);
        if queues > facts.queues_max {
            return Err(DpdkError::Queues { device: device(), wanted: queues, has: facts.queues_max });
        }
        if facts.driver() == "net_af_packet" && facts.queues_max > queues && queues == 1 {
            return Err(DpdkError::Idle { device: device(), wanted: queues, has: facts.queues_max });
        }
        if mtu > facts.mtu_max {
            return Err(DpdkError::Mtu { device: device(), wanted: mtu, most: facts.mtu_max });
        }
        let is_client = facts.driver() == "net_memif" && !is_memif_server(&options.device);
        let how = ShimOptions {
            queues,
            receive_packets: queue_packets,
            send_packets: queue_packets,
            mtu,
            waits: (is_client && queues == 1).into(),
        };
        // SAFETY: these are options.
        let answered = unsafe { eal.shim.penstock_dpdk_open(port, &raw const how) };
        if answered == -libc::ENOMEM {
            let words = eal::words(eal.shim, answered);
            return Err(DpdkError::Memory { device: device(), has: options.memory_mib, words });
        }
        if answered < 0 {
            return Err(failed(answered));
        }
        if queues > 1 && !is_within_host(&facts) {
            // SAFETY: the port is open, with so many queues.
            let answered = unsafe { eal.shim.penstock_dpdk_steer(port, options.port, queues) };
            if answered < 0 {
                let words = eal.shim.words(answered);
                return Err(DpdkError::Steering { device: device(), wanted: queues, words });
            }
        }
        // SAFETY: the port is open.
        let lends = unsafe { eal.shim.penstock_dpdk_lends(port) } > 0;
        let mac = Mac(facts.mac);
        Ok(Self {
            eal,
            port,
            facts,
            mac: if mac.is_station() { mac } else { own_mac(options.network.address) },
            mtu: if mtu == 0 { facts.mtu } else { mtu },
            lends,
            neighbours: Mutex::new(Neighbours::new(&options.neighbours)),
            taken: (0..queues).map(|_| AtomicBool::new(false)).collect(),
        })
    }

    /// Whether its packets stay in the memory of this host: nothing rots, and each queue is joined to one of the other end.
    pub(super) fn is_within_host(&self) -> bool {
        is_within_host(&self.facts)
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
        // The last of its queues has given all buffers back.
        self.eal.remove(self.port);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn options(device: &str, mtu: u16) -> DpdkOptions {
        DpdkOptions {
            device: device.to_owned(),
            network: "10.0.9.1/24".parse().unwrap(),
            port: 7401,
            neighbours: Vec::new(),
            mtu,
            queues: 1,
            queue_packets: 512,
            memory_mib: 256,
            huge_pages: false,
            more: Vec::new(),
        }
    }

    #[test]
    fn a_piece_of_memif_holds_a_packet() {
        let pieces = |device: &str, mtu| with_pieces(&options(device, mtu)).ok();
        assert_eq!(pieces("net_memif0", 0).unwrap(), "net_memif0");
        assert_eq!(pieces("net_memif0", 9000).unwrap(), "net_memif0,bsize=9024");
        assert_eq!(pieces("net_memif0,bsize=9014", 9000).unwrap(), "net_memif0,bsize=9014");
        assert_eq!(pieces("net_memif0,bsize=9013", 9000), None);
        assert_eq!(pieces("net_memif0,bsize=64", 0), None);
        assert_eq!(pieces("net_af_packet0,iface=a", 9000).unwrap(), "net_af_packet0,iface=a");
    }

    #[test]
    fn places_of_a_ring_hold_a_packet() {
        let is_fine = |device: &str, mtu| check_ring(device, mtu).is_ok();
        assert!(is_fine("net_af_packet0,iface=a", 0) && is_fine("net_af_packet0,iface=a,framesz=2048", 1500));
        assert!(is_fine("net_memif0,framesz=64", 0), "it is none of this driver's");
        for framesz in [1024, 1579, 4096] {
            assert!(!is_fine(&format!("net_af_packet0,iface=a,framesz={framesz},blocksz=4096"), 1500), "{framesz}");
        }
        assert!(is_fine("net_af_packet0,iface=a,framesz=1580", 1500));
    }

    #[test]
    fn an_interface_that_is_not_there_is_named() {
        let words = |device: &str| check_interface(device).err().map(|error| error.to_string());
        assert_eq!(words("net_af_packet0,iface=lo"), None);
        assert_eq!(words("net_memif0,iface=nowhere7"), None, "it is none of this driver's");
        let said = words("net_af_packet0,iface=nowhere7,framesz=2048").unwrap();
        assert!(said.contains("`nowhere7`") && said.contains("ip link"), "{said}");
    }

    #[test]
    fn arguments_that_would_end_the_process_are_refused() {
        for (argument, is_fine) in [
            ("--log-level=lib.eal:debug", true),
            ("--help", false),
            ("-h", false),
            ("--proc-type=secondary", false),
            ("--", false),
            ("abc", false),
            ("--vdev=net_ring1", false),
            ("--allow", false),
            ("-a", false),
            ("--vde=net_ring1", false),
            ("-a0000:00:01.0", false),
            ("--all", false),
            ("--no-telemetry", true),
        ] {
            let options = DpdkOptions { more: vec![argument.to_owned()], ..options("net_memif0", 0) };
            assert_eq!(options.check_arguments().is_ok(), is_fine, "{argument}");
        }
    }

    #[test]
    fn an_address_of_the_kernel_is_known() {
        assert!(super::super::is_of_kernel(Ipv4Addr::LOCALHOST));
        assert!(!super::super::is_of_kernel(Ipv4Addr::new(192, 0, 2, 1)), "nobody has an address of that network");
    }

    #[test]
    fn a_socket_at_which_nobody_listens_is_removed() {
        let path = std::env::temp_dir().join(format!("penstock-stale-{}", std::process::id()));
        let device = format!("net_memif0,role=server,socket-abstract=no,socket={}", path.display());
        let listener = UnixListener::bind(&path).unwrap();
        remove_stale_socket(&device);
        assert!(path.exists(), "somebody listens");
        drop(listener);
        remove_stale_socket(&device.replace("server", "client"));
        assert!(path.exists(), "it is not this end's");
        remove_stale_socket(&device);
        assert!(!path.exists());
        remove_stale_socket(&device);
        std::fs::write(&path, "precious").unwrap();
        remove_stale_socket(&device);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious", "it is no socket");
        std::fs::remove_file(&path).unwrap();
    }
}
