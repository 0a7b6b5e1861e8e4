//! A queue of a DPDK device as a port: Ethernet, IPv4 and UDP by us, polled from user space.
//!
//! - `headers`: what is before a packet on the wire; `neighbours`: which station has an address
//! - `eal`: DPDK in this process; `device`, `queue`: what it opens, and the bursts that move
//!
//! A device has no kernel behind it: this port answers who asks for its address, and asks for those of others.

mod device;
mod eal;
pub mod headers;
mod neighbours;
mod queue;

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4, UdpSocket};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use penstock_core::Timestamp;
use penstock_core::config::Config;
use penstock_core::config::network::{Ipv4Network, Mac, Neighbour};
use penstock_core::env::TransportEnv;
use penstock_datagram::PacketRoom;
use penstock_datagram::credit::charge;
use penstock_datagram::wire::{FRAME_BYTES_MAX, FRAME_BYTES_MIN};
use penstock_dpdk_shim::{Shim, ShimUnusable};
use penstock_transport::PacketStatistics;

use self::device::Device;
use self::headers::{ARP_FRAME_BYTES, Arp, EthernetFrame, FlowEnd, HEADERS_BYTES, IP_HEADERS_BYTES, is_for};
use self::neighbours::Neighbours;
pub use self::queue::{BURST_MAX, Queue, Written};
use crate::port::{BurstSent, Port, PortFacts, Train};

/// Where nothing comes the link is looked at so often: a client of memif connects then.
const LINK_EVERY: Duration = Duration::from_millis(250);

/// What to do where not one packet comes.
const UNHEARD_MEND: &str = ": see that the link is up and nothing between takes packets away; a memif joins two ends, and a third one finds nobody; \
     the stations of `dpdk.neighbours` are those of the other side";

/// Questions and answers of one burst that are heard at most: whoever floods the port with them is not served before packets.
const QUESTIONS_MAX: usize = 8;

/// How a device is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DpdkOptions {
    /// As DPDK's `--vdev` or `--allow` names it: `net_memif0,role=server,socket=/run/x.sock`, `0000:3b:00.0`.
    pub device: String,
    /// This engine's address.
    pub network: Ipv4Network,
    /// UDP's port of the first worker; the others follow.
    pub port: u16,
    /// Stations that are not asked for.
    pub neighbours: Vec<Neighbour>,
    /// Bytes of an IP packet at most; 0: as the device has it.
    pub mtu: u16,
    /// Queue pairs, one for each worker.
    pub queues: u16,
    /// Packets that wait in each queue.
    pub queue_packets: u16,
    /// MiB of memory for buffers, where there are no huge pages.
    pub memory_mib: u32,
    pub huge_pages: bool,
    /// More arguments for DPDK.
    pub more: Vec<String>,
}

/// UDP's port of the first worker where none is chosen: the address is nobody else's.
const PORT: u16 = 7401;

impl DpdkOptions {
    /// As this configuration has it, if it names a device.
    pub fn of(config: &Config) -> Option<Self> {
        let chosen = &config.dpdk;
        let (device, network) = chosen.device.clone().zip(chosen.address)?;
        Some(Self {
            device,
            network,
            port: if config.datagram.port == 0 { PORT } else { config.datagram.port },
            neighbours: chosen.neighbours.clone(),
            mtu: chosen.mtu,
            queues: config.workers.count as u16,
            queue_packets: chosen.queue_packets,
            memory_mib: chosen.memory_mib,
            huge_pages: chosen.huge_pages,
            more: chosen.arguments.clone(),
        })
    }

    /// What DPDK is started with. Devices are added one by one, so that engines of one process may have different ones.
    fn arguments(&self) -> Vec<String> {
        // It would take every card that no driver of the kernel has: only one that is nowhere.
        let mut all = vec!["--allow=ffff:ff:1f.7".to_owned()];
        if self.huge_pages {
            all.push("--in-memory".to_owned());
        } else {
            all.extend(["--no-huge", "--no-shconf", "-m"].map(str::to_owned));
            all.push(self.memory_mib.to_string());
        }
        all.extend(self.more.iter().cloned());
        all
    }

    /// With some arguments DPDK says something and ends the process, or waits for another one.
    fn check_arguments(&self) -> Result<(), DpdkError> {
        // As DPDK reads them: a long one may be cut short, and a short one has its value behind it.
        let is_long = |argument: &str| {
            let name = argument.split('=').next().unwrap_or_default();
            name.len() > "--".len() && ["--vdev", "--allow", "--block"].iter().any(|whole| whole.starts_with(name))
        };
        let device =
            |argument: &&String| is_long(argument) || ["-a", "-b"].iter().any(|short| argument.starts_with(short));
        if let Some(argument) = self.more.iter().find(device).cloned() {
            return Err(DpdkError::DeviceArgument { argument });
        }
        let is_fatal = |argument: &&String| {
            let name = argument.split('=').next().unwrap_or_default();
            !argument.starts_with('-') || ["-h", "--help", "-v", "--version", "--proc-type", "--"].contains(&name)
        };
        let fatal = self.more.iter().find(is_fatal).cloned();
        fatal.map_or(Ok(()), |argument| Err(DpdkError::Argument { argument }))
    }
}

/// Why packets cannot go by DPDK.
#[derive(Debug, thiserror::Error)]
pub enum DpdkError {
    #[error(transparent)]
    Shim(#[from] ShimUnusable),
    #[error(
        "the process that this one was forked from has started DPDK, which a child cannot use: run a program anew (`exec`, or `spawn` in \
         Python's multiprocessing), or fork before an engine with `dpdk.device` starts"
    )]
    Forked,
    #[error("the thread of DPDK cannot be started: {0}")]
    Thread(io::Error),
    #[error(
        "this process runs DPDK with `{running}`, and this engine wants `{wanted}`: DPDK starts once in a process, so give its engines \
         the same memory, huge pages and arguments under `dpdk`"
    )]
    OtherArguments { running: String, wanted: String },
    #[error(
        "DPDK does not start with `{arguments}`: {words}; see `dpdk.arguments`, `dpdk.memory_mib`, and for `dpdk.huge_pages` \
         `penstock doctor hugepages dpdk`"
    )]
    Start { arguments: String, words: String },
    #[error("`{argument}` under `dpdk.arguments` would not start DPDK for this process: leave it out")]
    Argument { argument: String },
    #[error("`{argument}` under `dpdk.arguments` names a device: an engine has the one of `dpdk.device` and no other")]
    DeviceArgument { argument: String },
    #[error(
        "the kernel has {address} at an interface of its own, and would answer for it: choose an address for `dpdk.address` that no \
         interface has"
    )]
    KernelAddress { address: Ipv4Addr },
    #[error(
        "there is no memory for the buffers of {device}: {words}; raise `dpdk.memory_mib` ({has}), or choose less of `dpdk.queue_packets` or \
         `dpdk.mtu`"
    )]
    Memory { device: String, has: u32, words: String },
    #[error("the device {device} has no queue pair for worker {worker}, or it was given out already")]
    Taken { device: String, worker: usize },
    #[error("another engine of this process has the device {device}: see `dpdk.device`")]
    InUse { device: String },
    #[error(
        "{device} has {has} queue pairs, and what comes by one that no worker has is lost: set `qpairs` to {wanted}, or leave it out"
    )]
    Idle { device: String, wanted: u16, has: u16 },
    #[error(
        "`framesz` of {device} has to be from {least} to {most} for packets of this MTU: leave it out, or choose one of these"
    )]
    Ring { device: String, least: usize, most: usize },
    #[error("the device {device} cannot be opened: {words}; see `dpdk.device`")]
    Device { device: String, words: String },
    #[error(
        "{device} names the interface `{interface}`, and this host has none of that name: `ip link` lists them, in the namespace of this process"
    )]
    Interface { device: String, interface: String },
    #[error("the device {device} has {has} queue pairs and {wanted} workers want one each: see `workers.count`")]
    Queues { device: String, wanted: u16, has: u16 },
    #[error(
        "{device} does not deal packets out to {wanted} workers by their UDP port (rte_flow: {words}): set `workers.count` to 1; memif pairs the \
         queues of both sides, and takes as many as both have"
    )]
    Steering { device: String, wanted: u16, words: String },
    #[error("`bsize` of {device} is less than a packet: leave it out, or choose {wanted} or more")]
    Piece { device: String, wanted: usize },
    #[error("the device {device} carries packets of at most {most} B and `dpdk.mtu` is {wanted}")]
    Mtu { device: String, wanted: u16, most: u16 },
    #[error(
        "the MTU of {device} is {mtu}, and the datagram transport needs {}: raise `dpdk.mtu`",
        FRAME_BYTES_MIN + IP_HEADERS_BYTES
    )]
    Narrow { device: String, mtu: u16 },
}

impl From<DpdkError> for io::Error {
    fn from(error: DpdkError) -> Self {
        Self::other(error)
    }
}

/// Whether an interface of the kernel has this address: then a socket can be bound to it. Where anything can be, nobody knows.
fn is_of_kernel(address: Ipv4Addr) -> bool {
    let any = std::fs::read_to_string("/proc/sys/net/ipv4/ip_nonlocal_bind").is_ok_and(|value| value.trim() != "0");
    !any && UdpSocket::bind((address, 0)).is_ok()
}

/// The ports of an engine's workers over one device.
pub struct DpdkPorts {
    device: Arc<Device>,
    options: DpdkOptions,
    env: Arc<dyn TransportEnv>,
}

impl DpdkPorts {
    /// The release of DPDK that engines here use, or why they cannot.
    pub fn release() -> Result<String, DpdkError> {
        Ok(Shim::find()?.release())
    }

    /// Starts DPDK, unless this process runs it, and opens the device.
    pub fn open(options: DpdkOptions, env: Arc<dyn TransportEnv>) -> Result<Self, DpdkError> {
        Self::new(Device::open(&options)?, options, env)
    }

    fn new(device: Arc<Device>, options: DpdkOptions, env: Arc<dyn TransportEnv>) -> Result<Self, DpdkError> {
        if usize::from(device.mtu) < FRAME_BYTES_MIN + IP_HEADERS_BYTES {
            return Err(DpdkError::Narrow { device: options.device, mtu: device.mtu });
        }
        let address = options.network.address;
        if !device.is_within_host() && is_of_kernel(address) {
            return Err(DpdkError::KernelAddress { address });
        }
        Ok(Self { device, options, env })
    }

    /// The bare queues of this worker, in place of its port.
    pub fn queue(&self, worker: usize) -> Result<Queue, DpdkError> {
        let taken = || DpdkError::Taken { device: self.options.device.clone(), worker };
        Queue::take(&self.device, worker as u16).ok_or_else(taken)
    }

    /// The port of this worker, which it alone has.
    pub fn port(&self, worker: usize) -> Result<DpdkPort, DpdkError> {
        let Self { device, options, env } = self;
        let address = SocketAddrV4::new(options.network.address, options.port + worker as u16);
        let frame_bytes = (usize::from(device.mtu) - IP_HEADERS_BYTES).min(FRAME_BYTES_MAX);
        let facts = PortFacts {
            name: format!("dpdk {}", device.facts.driver()),
            address: address.into(),
            receive_bytes: u64::from(options.queue_packets) * charge(frame_bytes),
            needs_checksums: !device.is_within_host(),
            // A card's kernel cuts before the wire; an interface of Linux has what the other one was given.
            comes_apart: device.facts.driver() == "net_af_packet",
            joins_equal: false,
            pairs_workers: device.is_within_host(),
            unheard_mend: UNHEARD_MEND,
        };
        Ok(DpdkPort {
            queue: self.queue(worker)?,
            facts,
            here: FlowEnd { mac: device.mac, address },
            frame_bytes,
            options: options.clone(),
            env: Arc::clone(env),
            questions: Vec::with_capacity(QUESTIONS_MAX),
            is_announced: device.is_within_host(),
            twin: None,
            blocked: 0,
            has_told_of_bursts: false,
            link_at: Timestamp::default(),
        })
    }
}

/// A port over one queue pair.
pub struct DpdkPort {
    queue: Queue,
    facts: PortFacts,
    here: FlowEnd,
    frame_bytes: usize,
    options: DpdkOptions,
    env: Arc<dyn TransportEnv>,
    /// What others have asked, to be answered.
    questions: Vec<Arp>,
    /// Whether others were told of this station, which whoever has its address hears.
    is_announced: bool,
    /// The station with the same address that was complained of last.
    twin: Option<Mac>,
    /// How often the device had no room.
    blocked: u64,
    /// Whether somebody was told that whole bursts come in one packet.
    has_told_of_bursts: bool,
    /// When the link is looked at next, where nothing comes.
    link_at: Timestamp,
}

impl DpdkPort {
    fn neighbours(&self) -> MutexGuard<'_, Neighbours> {
        self.queue.device.neighbours.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send_arp(&mut self, arp: Arp, station: Mac) {
        // Without room it is lost, as on the way; whoever wants to know asks again.
        self.queue.write(|room| {
            arp.write(room.bytes.first_chunk_mut()?, station);
            Some(ARP_FRAME_BYTES)
        });
    }

    /// What was asked is answered, and what others say of themselves is known now.
    fn hear_arps(&mut self) {
        let own = *self.here.address.ip();
        let (now, mut heard) = (self.env.now(), std::mem::take(&mut self.questions));
        for arp in heard.drain(..) {
            let (from, twin) = arp.from;
            if from == own && twin != self.here.mac && self.twin.replace(twin) != Some(twin) {
                tracing::error!(
                    address = %own, here = %self.here.mac, there = %twin,
                    "another station has this address too, and packets of both get lost: give each its own under `dpdk.address`"
                );
            }
            self.neighbours().hear(&arp, own, now);
            if arp.to == own && !arp.is_answer {
                let (asker, station) = arp.from;
                self.send_arp(Arp { is_answer: true, from: (own, self.here.mac), to: asker }, station);
            }
        }
        self.questions = heard;
        self.queue.flush();
    }

    /// The station that a packet to this address goes to, if it is known.
    fn station(&mut self, ip: Ipv4Addr) -> Option<Mac> {
        let (known, is_due) = self.neighbours().find(ip, self.env.now());
        if is_due {
            self.send_arp(Arp { is_answer: false, from: (*self.here.address.ip(), self.here.mac), to: ip }, Mac::ALL);
        }
        known
    }

    fn blocked(&mut self) -> BurstSent {
        self.blocked += 1;
        BurstSent::Blocked
    }
}

impl Port for DpdkPort {
    fn facts(&self) -> &PortFacts {
        &self.facts
    }

    fn frame_bytes(&self, _: SocketAddr) -> io::Result<usize> {
        Ok(self.frame_bytes)
    }

    fn reach(&self, to: SocketAddr) -> io::Result<()> {
        let network = self.options.network;
        match to.ip().to_canonical() {
            IpAddr::V4(ip) if ip != network.address && network.has(ip) => Ok(()),
            ip => Err(io::Error::new(
                ErrorKind::Unsupported,
                format!(
                    "{ip} is not another address in the network of {network}, and packets go to no others: see `dpdk.address` on both sides"
                ),
            )),
        }
    }

    fn receive(&mut self, take: &mut dyn FnMut(Train<'_>)) -> usize {
        let came = self.queue.receive();
        if came == 0 {
            let now = self.env.now();
            if self.link_at <= now {
                self.link_at = now + LINK_EVERY;
                if self.queue.is_up() && !std::mem::replace(&mut self.is_announced, true) {
                    let own = *self.here.address.ip();
                    self.send_arp(Arp { is_answer: false, from: (own, self.here.mac), to: own }, Mac::ALL);
                    self.queue.flush();
                }
            }
            return 0;
        }
        let mut payloads = [&[][..]; BURST_MAX];
        let (mut count, mut others, mut cut) = (0, 0, 0);
        for frame in self.queue.arrived() {
            match EthernetFrame::parse(frame) {
                EthernetFrame::Udp { to, payload, .. } if to == self.here.address && is_for(frame, self.here.mac) => {
                    payloads[count] = payload;
                    count += 1;
                }
                EthernetFrame::Arp(arp) => {
                    let concerns = arp.is_answer || arp.to == *self.here.address.ip();
                    if concerns && self.questions.len() < QUESTIONS_MAX {
                        self.questions.push(arp);
                    }
                }
                EthernetFrame::Cut { to } if to == self.here.address => cut += 1,
                EthernetFrame::Udp { .. } | EthernetFrame::Cut { .. } | EthernetFrame::Other => others += 1,
            }
        }
        if count > 0 {
            take(Train::Apart(&payloads[..count]));
        }
        self.queue.dropped += others + cut;
        if cut > 0 && !std::mem::replace(&mut self.has_told_of_bursts, true) {
            tracing::warn!(
                device = self.options.device,
                "packets come that are longer than a frame, and are dropped: the kernel at the other end of a virtual interface leaves bursts in one \
                 piece; there: `ethtool -K INTERFACE tx-udp-segmentation off gso off tx off`"
            );
        }
        if !self.questions.is_empty() {
            self.hear_arps();
        }
        came
    }

    fn send(
        &mut self,
        to: SocketAddr,
        frame_bytes: usize,
        fill: &mut dyn FnMut(PacketRoom<'_>) -> Option<usize>,
    ) -> BurstSent {
        if !self.queue.flush().1 {
            return self.blocked();
        }
        let IpAddr::V4(ip) = to.ip().to_canonical() else { return self.blocked() };
        let Some(mac) = self.station(ip) else {
            self.queue.flush();
            return self.blocked();
        };
        let there = FlowEnd { mac, address: SocketAddrV4::new(ip, to.port()) };
        let mut written = Written::One;
        while written == Written::One {
            let here = &self.here;
            written = self.queue.write(|PacketRoom { bytes, mut lent }| {
                let (headers, room) = bytes.split_first_chunk_mut::<HEADERS_BYTES>()?;
                let room_bytes = room.len().min(frame_bytes);
                let written = fill(PacketRoom { bytes: &mut room[..room_bytes], lent: lent.as_deref_mut() })?;
                let lent: u64 = lent.into_iter().flatten().map(|piece| piece.len).sum();
                headers::write(headers, here, &there, written + lent as usize);
                Some(HEADERS_BYTES + written)
            });
        }
        match self.queue.flush() {
            (_, false) => self.blocked(),
            (_, true) if written == Written::Nothing => BurstSent::Whole,
            (0, true) => self.blocked(), // There was no buffer.
            (_, true) => BurstSent::Full,
        }
    }

    fn add_statistics(&self, sum: &mut PacketStatistics) {
        sum.dropped_by_port += self.queue.dropped;
        // What the device counts it counts for all its queues together.
        if self.here.address.port() == self.options.port {
            let counts = self.queue.device.counts();
            sum.dropped_by_port += counts.missed + counts.receive_errors;
            sum.refused_by_port += counts.send_errors;
        }
        sum.blocked += self.blocked;
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
