//! A UDP socket as a port.
//!
//! - `call`: the calls that move packets
//! - `burst`: packets that wait to be sent
//! - `filter`: what the kernel drops of what strangers send
//! - `socket`: how the socket is set up, and what a route carries
//!
//! Where the kernel can, packets of one length cross it together: it cuts what is sent as late as it can (GSO), and
//! joins what comes as early as it can (GRO). Most of what a packet costs is paid once for all of them then.

mod burst;
mod call;
mod filter;
mod socket;
#[cfg(test)]
mod tests;

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use penstock_datagram::PacketRoom;
use penstock_datagram::connection::RECEIVE_BURST_MAX;
use penstock_transport::PacketStatistics;
use rustix::net::sockopt;

use self::burst::KeptBurst;
use self::filter::StrangerFilter;
pub use self::socket::UdpRouteError;
use crate::port::{BurstSent, Port, PortFacts, Train};

/// What to do where not one packet comes.
const UNHEARD_MEND: &str =
    ": let UDP pass between both hosts in both directions, with no translation of addresses between them";
/// Packets that leave with one call at most: what every kernel with GSO cuts.
const UDP_MAX_SEGMENTS: usize = 64;
/// After so many packets a call of [`Port::receive`] takes no more from the socket.
const RECEIVED_ENOUGH: usize = 64;
/// And after so many calls, whatever they brought.
const RECEIVE_CALLS_MAX: usize = RECEIVED_ENOUGH;
/// What comes at once is no longer than an IP packet may be.
const TRAIN_BYTES_MAX: usize = 1 << 16;
/// Addresses remembered as those that packets cannot be cut for. With more, the oldest is forgotten, and tried anew.
const UNCUT_MAX: usize = 16;

const _: () = assert!(
    RECEIVED_ENOUGH - 1 + UDP_MAX_SEGMENTS <= RECEIVE_BURST_MAX,
    "what comes at once is passed on at once, if it was sent like this"
);

/// How a port is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UdpOptions {
    /// Where it receives. Port 0 stands for any; `::` serves IPv4 as well.
    pub bind: SocketAddr,
    /// The receive buffer, in bytes as they are asked of the kernel, which allows itself twice as many. More lets more
    /// senders send at once; less takes less of the kernel's memory. 0: as many as the host allows everybody.
    pub receive_bytes: usize,
    /// The same for the send buffer. More lets a burst wait in the kernel; with less it waits in the port.
    pub send_bytes: usize,
    /// Whether packets cross the kernel together where it can do that.
    pub segmentation: bool,
}

/// Counts since the port was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UdpStatistics {
    /// Packets that the kernel has taken.
    pub sent: u64,
    /// Packets that the kernel has refused for good: they are lost.
    pub sent_errors: u64,
    /// Packets that were longer than their route carries: they are lost.
    pub too_long: u64,
    /// How often the kernel had no room.
    pub blocked: u64,
    /// How often the kernel did not cut a burst, so that its packets were sent one by one.
    pub uncut: u64,
    /// Packets that were passed on.
    pub received: u64,
    /// Calls that received an error instead of a packet.
    pub received_errors: u64,
    /// Arrivals that were longer than the buffer: they are lost.
    pub truncated: u64,
}

/// A port over one UDP socket.
pub struct UdpPort {
    socket: OwnedFd,
    facts: PortFacts,
    /// The kernel cuts bursts.
    cuts: bool,
    /// It did not for these.
    uncut: Vec<IpAddr>,
    kept: KeptBurst,
    filter: StrangerFilter,
    arrived: Box<[u8]>,
    train: TrainRest,
    statistics: UdpStatistics,
}

/// What has not been passed on of the packets that have come together.
#[derive(Debug, Clone, Copy, Default)]
struct TrainRest {
    at: usize,
    end: usize,
    packet_bytes: usize,
}

/// What became of the packets that are kept.
enum KeptSent {
    All,
    Blocked,
    /// At least one was; others have left or are still kept.
    TooLong,
}

impl UdpPort {
    /// Opens a socket that neither waits nor outlives an `exec`, and whose packets are never fragmented.
    pub fn open(options: UdpOptions) -> io::Result<Self> {
        let (socket, offloads, address) = socket::open(&options)?;
        let facts = PortFacts {
            name: offloads.name().to_owned(),
            address,
            // The kernel gives room back a quarter of the buffer at a time, so that as much may be charged for what was
            // read already.
            receive_bytes: sockopt::socket_recv_buffer_size(&socket)? as u64 / 4 * 3,
            needs_checksums: false,
            comes_apart: false,
            joins_equal: offloads.cuts,
            pairs_workers: false,
            unheard_mend: UNHEARD_MEND,
        };
        Ok(Self {
            socket,
            facts,
            cuts: offloads.cuts,
            uncut: Vec::with_capacity(UNCUT_MAX),
            kept: KeptBurst::new(),
            filter: StrangerFilter::new(),
            arrived: vec![0; TRAIN_BYTES_MAX].into(),
            train: TrainRest::default(),
            statistics: UdpStatistics::default(),
        })
    }

    /// What was counted since the port was opened.
    pub fn statistics(&self) -> UdpStatistics {
        self.statistics
    }

    /// An address as this socket's version of IP says it.
    fn destination(&self, to: SocketAddr) -> SocketAddr {
        match socket::canonical(to) {
            SocketAddr::V4(v4) if self.facts.address.is_ipv6() => {
                SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port())
            }
            to => to,
        }
    }

    /// Sends what is kept, as much as there is room for.
    fn send_kept(&mut self) -> KeptSent {
        let mut is_too_long = false;
        while !self.kept.is_empty() {
            let to = self.kept.ip();
            let (runs, count) = self.kept.runs(self.cuts && !self.uncut.contains(&to));
            let runs = &runs[..count];
            let was_cut = runs[0].packet_bytes.is_some();
            let error = match call::send(self.socket.as_fd(), self.kept.to(), runs) {
                Ok(left) => {
                    let packets = runs[..left].iter().map(|run| run.packets).sum();
                    self.statistics.sent += packets as u64;
                    self.kept.pass(packets);
                    continue;
                }
                Err(error) => error,
            };
            let packets = runs[0].packets;
            match error.raw_os_error() {
                // Also with ENOBUFS, of which nobody says when it is over: whoever flushes tries it.
                _ if error.kind() == ErrorKind::WouldBlock => return self.blocked(is_too_long),
                Some(libc::ENOBUFS) => return self.blocked(is_too_long),
                // The way may be one that cannot cut: tunnels with encryption, some cards. One by one it will be seen.
                Some(libc::EINVAL | libc::EIO | libc::EMSGSIZE) if was_cut => {
                    self.statistics.uncut += 1;
                    self.remember_uncut(to);
                }
                Some(libc::EMSGSIZE) => {
                    // So it was not the cutting: it is tried again with the packets that the caller chooses next.
                    self.uncut.retain(|ip| *ip != to);
                    self.statistics.too_long += self.kept.pass_too_long() as u64;
                    is_too_long = true;
                }
                _ => {
                    self.statistics.sent_errors += packets as u64;
                    self.kept.pass(packets);
                }
            }
        }
        if is_too_long { KeptSent::TooLong } else { KeptSent::All }
    }

    /// Sends what was taken before and could not be sent. Returns whether all of it has left.
    fn flush(&mut self) -> bool {
        // What is too long is counted; whoever sends as much to that address again learns it then.
        self.send_kept();
        self.kept.is_empty()
    }

    fn blocked(&mut self, is_too_long: bool) -> KeptSent {
        self.statistics.blocked += 1;
        if is_too_long { KeptSent::TooLong } else { KeptSent::Blocked }
    }

    fn remember_uncut(&mut self, to: IpAddr) {
        if self.uncut.len() == UNCUT_MAX {
            self.uncut.remove(0);
        }
        self.uncut.push(to);
    }

    /// Passes on what has come, so many packets at most.
    fn pass_on(&mut self, packets_max: usize, take: &mut dyn FnMut(Train<'_>)) -> usize {
        let TrainRest { at, end, packet_bytes } = self.train;
        let end = end.min(at.saturating_add(packets_max.saturating_mul(packet_bytes)));
        if at == end {
            return 0;
        }
        take(Train::Joined { bytes: &self.arrived[at..end], packet_bytes });
        self.train.at = end;
        let packets = (end - at).div_ceil(packet_bytes.max(1));
        self.statistics.received += packets as u64;
        packets
    }
}

impl Port for UdpPort {
    fn facts(&self) -> &PortFacts {
        &self.facts
    }

    fn frame_bytes(&self, to: SocketAddr) -> io::Result<usize> {
        socket::frame_bytes(self.facts.address, to)
    }

    fn send_apart(&mut self, to: IpAddr) {
        let to = self.destination(SocketAddr::new(to, 0)).ip();
        if !self.uncut.contains(&to) {
            self.remember_uncut(to);
        }
    }

    fn admit(&mut self, prefix: u32, frame_bytes: usize) {
        self.filter.admit(self.socket.as_fd(), prefix, frame_bytes);
    }

    fn receive(&mut self, take: &mut dyn FnMut(Train<'_>)) -> usize {
        let mut passed = self.pass_on(RECEIVE_BURST_MAX, take);
        let mut failed = false;
        for _ in 0..RECEIVE_CALLS_MAX {
            // A rest is kept only by a call that has passed on all it may, so that the caller comes again before it
            // sleeps.
            if passed >= RECEIVED_ENOUGH {
                break;
            }
            match call::receive(self.socket.as_fd(), &mut self.arrived) {
                Ok(train) if train.is_cut => self.statistics.truncated += 1,
                // It is a packet like others, for the caller to refuse.
                Ok(train) if train.bytes == 0 => {
                    take(Train::Apart(&[&[]]));
                    self.statistics.received += 1;
                    passed += 1;
                }
                Ok(train) => {
                    let packet_bytes = train.packet_bytes.unwrap_or(train.bytes);
                    self.train = TrainRest { at: 0, end: train.bytes, packet_bytes };
                    passed += self.pass_on(RECEIVE_BURST_MAX - passed, take);
                    failed = false;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // What a packet sent earlier met on its way may be told here, once; behind it there may be packets.
                Err(_) => {
                    self.statistics.received_errors += 1;
                    if failed {
                        break;
                    }
                    failed = true;
                }
            }
        }
        passed
    }

    fn send(
        &mut self,
        to: SocketAddr,
        frame_bytes: usize,
        fill: &mut dyn FnMut(PacketRoom<'_>) -> Option<usize>,
    ) -> BurstSent {
        if !self.flush() {
            return BurstSent::Blocked;
        }
        let is_full = self.kept.fill(self.destination(to), frame_bytes, fill);
        match self.send_kept() {
            KeptSent::TooLong => BurstSent::TooLong,
            KeptSent::Blocked => BurstSent::Blocked,
            KeptSent::All if is_full => BurstSent::Full,
            KeptSent::All => BurstSent::Whole,
        }
    }

    fn add_statistics(&self, sum: &mut PacketStatistics) {
        let UdpStatistics { sent_errors, too_long, blocked, truncated, .. } = self.statistics;
        sum.dropped_by_port += truncated + call::drops(self.socket.as_fd());
        sum.refused_by_port += sent_errors + too_long;
        sum.blocked += blocked;
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }
}
