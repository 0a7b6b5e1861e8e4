//! Somebody else on the way: sees the packets of a session, and sends its own to the same port.

use std::net::{Ipv4Addr, SocketAddrV4, UdpSocket};
use std::ops::AddAssign;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use penstock_conformance::pattern::Random;
use rustix::net::{AddressFamily, Protocol, RecvFlags, SocketType};

/// The least bytes of a packet: what is shorter names no connection.
const LEAST: usize = 80;
/// Where the bytes before the bit maps of an acknowledgement end.
const ACK_END: usize = 72;
const WRITE: u8 = 1;
/// Packets that are remembered: the newest.
const KEPT: usize = 512;
/// Packets that are sent before it listens again.
const TURN: u32 = 64;
/// Strangers that go with one call, which the kernel cuts, and how many such calls follow.
pub(crate) const BURST: usize = 64;
const BURSTS: usize = 8;
/// The length of one of those.
const BURST_PACKET: usize = 120;
/// What comes meanwhile that is looked at.
const HEARD: usize = 16;

/// Packets that were sent, by kind.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Injected {
    /// With a connection id that nobody has, too short, or with the place of a real connection and another rest of its id.
    pub(crate) strangers: u64,
    /// Real ones with other offsets, generations, operations or acknowledgements, and with other tags.
    pub(crate) forged: u64,
    /// Real ones as they were.
    pub(crate) replayed: u64,
    /// Real ones, shortened behind their tag or with bytes behind their end.
    pub(crate) cut: u64,
}

impl Injected {
    pub(crate) fn all(self) -> u64 {
        self.strangers + self.forged + self.replayed + self.cut
    }
}

impl AddAssign for Injected {
    fn add_assign(&mut self, more: Self) {
        let Self { strangers, forged, replayed, cut } = more;
        self.strangers += strangers;
        self.forged += forged;
        self.replayed += replayed;
        self.cut += cut;
    }
}

pub(crate) struct Injector {
    socket: UdpSocket,
    /// What it sends is cut.
    cutting: UdpSocket,
    tap: OwnedFd,
    /// Between these ports the packets go that it wants to see.
    from: u16,
    to: u16,
    seen: Vec<Vec<u8>>,
    /// Where the next one is kept.
    next: usize,
    random: Random,
}

/// Has the kernel cut what a socket sends into packets of so many bytes.
#[allow(unsafe_code, reason = "no safe call sets this option")]
fn cut_into(socket: &UdpSocket, bytes: usize) {
    let bytes = bytes as libc::c_int;
    // SAFETY: the call reads the number, whose length it is told.
    let set = unsafe {
        let (value, len) = ((&raw const bytes).cast(), size_of_val(&bytes) as libc::socklen_t);
        libc::setsockopt(socket.as_raw_fd(), libc::SOL_UDP, libc::UDP_SEGMENT, value, len)
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

impl Injector {
    /// Sends from this address of this host, and looks at what passes between these ports. Only root may look there.
    pub(crate) fn new(host: Ipv4Addr, from: u16, to: u16) -> Self {
        let everything = Protocol::from_raw(u32::from(0x0800_u16.to_be()).try_into().expect("it is not 0"));
        let tap = rustix::net::socket(AddressFamily::PACKET, SocketType::DGRAM, Some(everything)).expect("root may");
        let socket = UdpSocket::bind((host, 0)).unwrap();
        let cutting = UdpSocket::bind((host, 0)).unwrap();
        cut_into(&cutting, BURST_PACKET);
        Self { socket, cutting, tap, from, to, seen: Vec::new(), next: 0, random: Random::new(77) }
    }

    /// How many real packets it remembers.
    pub(crate) fn seen(&self) -> usize {
        self.seen.len()
    }

    /// Looks at some of what has passed, and keeps packets of the session.
    pub(crate) fn listen(&mut self) {
        let mut buffer = [0; 1 << 16];
        for _ in 0..HEARD {
            let Ok((read, _)) = rustix::net::recv(&self.tap, &mut buffer, RecvFlags::DONTWAIT) else { return };
            let at = usize::from(buffer[0] & 15) * 4;
            let Some(udp) = buffer[..read].get(at..).filter(|udp| udp.len() > 8 && buffer[9] == 17) else { continue };
            let port = |at: usize| u16::from_be_bytes([udp[at], udp[at + 1]]);
            if (port(0), port(2)) != (self.from, self.to) {
                continue;
            }
            let burst = &udp[8..];
            // A burst that the kernel has not cut yet: each of its packets begins with the same id.
            let id = &burst[..burst.len().min(8)];
            let again = burst.windows(8).skip(LEAST).position(|bytes| bytes == id);
            let packet_bytes = again.map_or(burst.len(), |at| at + LEAST);
            for packet in burst.chunks(packet_bytes).filter(|packet| packet.len() >= LEAST) {
                match self.seen.get_mut(self.next) {
                    Some(place) => *place = packet.to_vec(),
                    None => self.seen.push(packet.to_vec()),
                }
                self.next = (self.next + 1) % KEPT;
            }
        }
    }

    /// Sends to a port as fast as it can until it is told to stop. It has seen packets before.
    pub(crate) fn inject(&mut self, to: SocketAddrV4, stop: &AtomicBool) -> Injected {
        let mut injected = Injected::default();
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..TURN {
                let (packet, is) = self.packet();
                // What the kernel has no room for was not sent.
                if self.socket.send_to(&packet, to).is_ok() {
                    injected += is;
                }
            }
            for _ in 0..BURSTS {
                let mut burst = [0; BURST * BURST_PACKET];
                for packet in burst.chunks_mut(BURST_PACKET) {
                    packet[..8].copy_from_slice(&self.random.number().to_le_bytes());
                }
                if self.cutting.send_to(&burst, to).is_ok() {
                    injected += Injected { strangers: BURST as u64, ..Injected::default() };
                }
            }
            self.listen();
        }
        injected
    }

    /// The next packet that goes alone: four of five are strangers.
    fn packet(&mut self) -> (Vec<u8>, Injected) {
        let none = Injected::default();
        let real = self.seen[self.random.below(self.seen.len() as u64) as usize].clone();
        match self.random.below(20) {
            0..=1 => (self.forge(real), Injected { forged: 1, ..none }),
            2 => (real, Injected { replayed: 1, ..none }),
            3 => (self.cut(real), Injected { cut: 1, ..none }),
            4 => (real[..self.random.below(LEAST as u64) as usize].to_vec(), Injected { strangers: 1, ..none }),
            5 => {
                let mut foreign = real;
                let rest = self.random.number() | 1;
                (2..8).for_each(|at| foreign[at] ^= rest.to_le_bytes()[at - 2]);
                (foreign, Injected { strangers: 1, ..none })
            }
            _ => {
                let mut stranger = vec![0; LEAST + self.random.below(200) as usize];
                let id = self.random.number();
                stranger[..8].copy_from_slice(&id.to_le_bytes());
                (stranger, Injected { strangers: 1, ..none })
            }
        }
    }

    /// A real header in which something that matters is another, as something is in its number or tag.
    fn forge(&mut self, mut packet: Vec<u8>) -> Vec<u8> {
        let wild = self.random.number().to_le_bytes();
        let end = usize::from(u16::from_le_bytes([packet[16], packet[17]])).min(packet.len());
        let heads = ACK_END + 8 * (usize::from(packet[68]) + usize::from(packet[69]));
        let mut put = |at: usize, bytes: &[u8]| {
            if let Some(place) = packet.get_mut(at..at + bytes.len()) {
                place.copy_from_slice(bytes);
            }
        };
        // New, so that nothing but the tag is in its way.
        put(8, &(u64::from_le_bytes(wild) >> 16 | 1 << 40).to_le_bytes());
        let kind = self.random.below(6);
        // The first extent's offset, the generation, the region, the operation; credit, grant and watermark.
        match kind {
            0 => put(heads + 32, &wild),
            1 => put(heads + 16, &[0; 4]),
            2 => put(heads + 4, &[wild[0] % 4, 0, 0, 0]),
            3 => put(heads + 8, &wild),
            4 => (40..64).step_by(8).for_each(|at| put(at, &[0xff; 8])),
            _ if end > 8 => put(end - 8, &wild),
            _ => {}
        }
        if kind < 4 && packet.get(heads) == Some(&WRITE) {
            packet[end..].fill(0xbd);
        }
        packet
    }

    /// A real packet whose tag is right, with less payload or with more.
    fn cut(&mut self, mut packet: Vec<u8>) -> Vec<u8> {
        let end = usize::from(u16::from_le_bytes([packet[16], packet[17]])).clamp(LEAST, packet.len());
        match self.random.below(2) {
            0 => packet.truncate(end + self.random.below((packet.len() - end + 1) as u64) as usize),
            _ => packet.extend_from_slice(&[0xbd; 24]),
        }
        packet
    }
}
