//! What carries one worker's packets: a socket, a queue of a NIC, or a simulated network.
//!
//! A port is asked for a burst at a time. Packets are lent, not given: what it receives is looked at where it lies, and what is sent
//! is written where it leaves from.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

pub use penstock_datagram::PacketRoom;
use penstock_transport::PacketStatistics;

/// What a port is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PortFacts {
    /// Its name and what it can do, as text for people: `udp, GSO, GRO`.
    pub name: String,
    /// Where peers send to. An unspecified address stands for the one at which the peer was met.
    pub address: SocketAddr,
    /// What fits into its receive buffer, in bytes as it charges them ([`penstock_datagram::credit::charge`]).
    pub receive_bytes: u64,
    /// Whether packets need a checksum of their own, because nothing on the way checks that they come as they left.
    pub needs_checksums: bool,
    /// Whether packets have to come one by one: nothing cuts what leaves the peer's kernel in one piece.
    pub comes_apart: bool,
    /// Whether packets of one length that follow each other leave together, at about the cost of one.
    pub joins_equal: bool,
    /// Whether what a worker sends comes to the peer's worker of the same number, whatever its address says.
    pub pairs_workers: bool,
    /// What to do where not one packet comes, to be put behind what has happened.
    pub unheard_mend: &'static str,
}

/// What became of a burst that was to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BurstSent {
    /// There was nothing more to send.
    Whole,
    /// There may be more: the burst was as long as one may be.
    Full,
    /// The port takes no more now. Packets that it has taken and that have not left are the first of the next burst, to whomever.
    Blocked,
    /// A packet was longer than the way to that address carries: no packet will get through.
    TooLong,
}

/// Packets that came together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Train<'a> {
    /// One behind the other.
    Joined {
        bytes: &'a [u8],
        /// Of each but the last, which may be shorter.
        packet_bytes: usize,
    },
    /// Each in a place of its own.
    Apart(&'a [&'a [u8]]),
}

impl<'a> Train<'a> {
    pub fn packets(self) -> impl Iterator<Item = &'a [u8]> {
        let (joined, packet_bytes, apart) = match self {
            Self::Joined { bytes, packet_bytes } => (bytes, packet_bytes, &[][..]),
            Self::Apart(packets) => (&[][..], 1, packets),
        };
        joined.chunks(packet_bytes.max(1)).chain(apart.iter().copied())
    }
}

/// One worker's port. Only that worker calls what moves packets.
pub trait Port: Send {
    fn facts(&self) -> &PortFacts;

    /// The longest packet that the way to this address carries unfragmented, as far as is known here.
    fn frame_bytes(&self, to: SocketAddr) -> io::Result<usize>;

    /// Whether packets to this address can leave here at all.
    fn reach(&self, to: SocketAddr) -> io::Result<()> {
        let _ = to;
        Ok(())
    }

    /// Packets to this host leave one by one from now on: its port has said [`PortFacts::comes_apart`].
    fn send_apart(&mut self, to: IpAddr) {
        let _ = to;
    }

    /// Packets come from now on whose ids begin with this, the same at each call, in trains of this frame. Those with ids that begin otherwise may be dropped
    /// before anybody sees them.
    fn admit(&mut self, prefix: u32, frame_bytes: usize) {
        let _ = (prefix, frame_bytes);
    }

    /// Passes on the packets that have come, trains one by one, together at most [`RECEIVE_BURST_MAX`](penstock_datagram::connection::RECEIVE_BURST_MAX), and
    /// returns how many have come, those included that were not for the caller. Does not wait.
    fn receive(&mut self, take: &mut dyn FnMut(Train<'_>)) -> usize;

    /// Sends packets to one address, of at most `frame_bytes` each. `fill` writes the next one and returns how many bytes it has written;
    /// none: that was all. What it lends is not touched any more when this returns. What cannot be sent for another reason than those of [`BurstSent`] is lost, as on the way. Does not wait.
    fn send(
        &mut self,
        to: SocketAddr,
        frame_bytes: usize,
        fill: &mut dyn FnMut(PacketRoom<'_>) -> Option<usize>,
    ) -> BurstSent;

    /// Adds what only the port knows: packets that it dropped or refused, and how often it had no room.
    fn add_statistics(&self, sum: &mut PacketStatistics) {
        let _ = sum;
    }

    /// Becomes readable when [`Port::receive`] would find something. None: nothing tells, and whoever sleeps wakes up to look.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
}
