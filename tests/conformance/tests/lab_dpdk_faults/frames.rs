//! Frames that no engine sends: questions and answers (ARP) of thousands of stations that are nobody's, and malformed ones of every kind.

use std::ffi::CString;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use penstock::config::network::Mac;
use penstock_conformance::pattern::Random;
use rustix::net::{AddressFamily, SendFlags, SocketType};

/// Where the header of IPv4 begins in a frame, UDP's, and its payload.
const IP: usize = 14;
const UDP: usize = 34;
const PAYLOAD: usize = 42;
const TYPE_IP: [u8; 2] = [8, 0];
const TYPE_ARP: [u8; 2] = [8, 6];
/// Frames that are sent before it looks whether to stop.
const TURN: usize = 64;

/// Frames that were sent, by kind.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Framed {
    /// Questions for the victim, each of another station.
    pub(crate) questions: u64,
    /// Other ARP: answers that were not asked for, what claims the victim's address, malformed messages.
    pub(crate) arps: u64,
    /// IPv4 with a length, fragment, protocol, version or checksum that is wrong, cut anywhere, or another protocol.
    pub(crate) malformed: u64,
    /// Whole packets for the victim with the honest peer's address as that of their sender, of a connection that there is not.
    pub(crate) strangers: u64,
    /// The same for all stations and no one in particular: they are not for the victim.
    pub(crate) misled: u64,
}

impl Framed {
    pub(crate) fn all(self) -> u64 {
        self.questions + self.arps + self.malformed + self.strangers + self.misled
    }
}

/// Sends frames by the bridge of a case.
pub(crate) struct Framer {
    socket: OwnedFd,
    victim: SocketAddrV4,
    station: Mac,
    /// Whom it pretends to be.
    honest: SocketAddrV4,
    random: Random,
}

/// A socket that sends frames by this interface.
#[allow(unsafe_code, reason = "no safe call knows the addresses of these sockets")]
fn socket_of(link: &str) -> OwnedFd {
    let socket = rustix::net::socket(AddressFamily::PACKET, SocketType::RAW, None).expect("root may");
    let name = CString::new(link).expect("a name has no zeros");
    // SAFETY: it is a C string.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    assert!(index != 0, "{link} is there");
    // SAFETY: all zeros are an address.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    (address.sll_family, address.sll_ifindex) = (libc::AF_PACKET as u16, index as i32);
    // SAFETY: the call reads the address, whose length it is told.
    let bound = unsafe {
        libc::bind(socket.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as libc::socklen_t)
    };
    assert_eq!(bound, 0, "{}", std::io::Error::last_os_error());
    socket
}

/// Makes the checksum of an IPv4 header right, so that whoever reads it looks at the rest.
fn mend_checksum(frame: &mut [u8]) {
    let header_bytes = usize::from(frame[IP] & 15) * 4;
    frame[IP + 10..IP + 12].fill(0);
    let Some(header) = frame.get(IP..IP + header_bytes.max(20)) else { return };
    let words = header.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    frame[IP + 10..IP + 12].copy_from_slice(&(!sum as u16).to_be_bytes());
}

impl Framer {
    pub(crate) fn new(bridge: &str, victim: SocketAddrV4, station: Mac, honest: SocketAddrV4) -> Self {
        Self { socket: socket_of(bridge), victim, station, honest, random: Random::new(78) }
    }

    /// Sends as fast as it can until it is told to stop.
    pub(crate) fn send(&mut self, stop: &AtomicBool) -> Framed {
        let mut sent = Framed::default();
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..TURN {
                let mut kind = Framed::default();
                let frame = self.frame(&mut kind);
                // What the kernel has no room for, or finds too short, was not sent.
                if rustix::net::send(&self.socket, &frame, SendFlags::empty()).is_ok() {
                    sent.questions += kind.questions;
                    sent.arps += kind.arps;
                    sent.malformed += kind.malformed;
                    sent.strangers += kind.strangers;
                    sent.misled += kind.misled;
                }
            }
        }
        sent
    }

    /// A station and an address in the network of all these engines, but in none of a case.
    fn nobody(&mut self) -> (Ipv4Addr, Mac) {
        let number = self.random.number().to_le_bytes();
        (
            Ipv4Addr::new(10, 128 | number[0], number[1], number[2]),
            Mac([2, 0xee, number[3], number[4], number[5], number[6]]),
        )
    }

    fn frame(&mut self, is: &mut Framed) -> Vec<u8> {
        match self.random.below(9) {
            8 => {
                is.misled = 1;
                let mut packet = self.packet();
                packet[..6].copy_from_slice(&Mac::ALL.0);
                packet
            }
            0..=2 => {
                is.questions = 1;
                let from = self.nobody();
                self.arp(1, from)
            }
            3 => {
                is.arps = 1;
                self.other_arp()
            }
            4..=6 => {
                is.malformed = 1;
                self.malformed()
            }
            _ => {
                is.strangers = 1;
                self.packet()
            }
        }
    }

    fn header(&self, from: Mac, kind: [u8; 2]) -> Vec<u8> {
        [&self.station.0[..], &from.0, &kind].concat()
    }

    /// A question (1) of this one for the victim, or an answer (2).
    fn arp(&self, operation: u8, (ip, mac): (Ipv4Addr, Mac)) -> Vec<u8> {
        let head = [0, 1, 8, 0, 6, 4, 0, operation];
        let to = self.victim.ip().octets();
        [&self.header(mac, TYPE_ARP)[..], &head, &mac.0, &ip.octets(), &[0; 6], &to].concat()
    }

    fn other_arp(&mut self) -> Vec<u8> {
        let from = self.nobody();
        match self.random.below(4) {
            0 => self.arp(2, from),
            1 => {
                let operation = 1 + self.random.below(2) as u8;
                self.arp(operation, (*self.victim.ip(), from.1))
            }
            2 => {
                let mut frame = self.arp(1, from);
                // Kinds and lengths of addresses, the operation, a station that is many.
                let at = [14, 16, 18, 19, 20, 21, 22][self.random.below(7) as usize];
                frame[at] ^= 0x0d;
                frame
            }
            _ => {
                let mut frame = self.arp(1, from);
                frame.truncate(14 + self.random.below(28) as usize);
                frame
            }
        }
    }

    /// From the honest peer, as it says, with a connection that is nobody's.
    fn packet(&mut self) -> Vec<u8> {
        let (words, from) = (self.random.below(180), self.nobody().1);
        let udp_bytes = (PAYLOAD - UDP) as u16 + 8 * words as u16;
        let mut frame = self.header(from, TYPE_IP);
        let total = (udp_bytes + (UDP - IP) as u16).to_be_bytes();
        frame.extend([0x45, 0, total[0], total[1], 0, 0, 0x40, 0, 64, 17, 0, 0]);
        frame.extend([self.honest.ip().octets(), self.victim.ip().octets()].concat());
        frame.extend([self.honest.port(), self.victim.port(), udp_bytes, 0].iter().flat_map(|word| word.to_be_bytes()));
        frame.extend((0..words).flat_map(|_| self.random.number().to_le_bytes()));
        mend_checksum(&mut frame);
        frame
    }

    fn malformed(&mut self) -> Vec<u8> {
        let mut frame = self.packet();
        let (len, wild) = ((frame.len() - IP) as u16, self.random.number());
        let mut put = |at: usize, value: u16| frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
        match self.random.below(9) {
            0 => frame[IP] = 0x65,
            1 => frame[IP] = 0x40 | (wild % 5) as u8,
            2 => frame[IP] = 0x4f,
            // The length of all: less than headers, or more than there is.
            3 => put(IP + 2, if wild & 1 == 0 { (wild >> 8) as u16 % 28 } else { len + 1 + (wild >> 8) as u16 % 9000 }),
            4 => put(IP + 6, 1 << (wild % 14)),
            5 => frame[IP + 9] = 18 + wild as u8 % 100,
            // UDP's length, likewise.
            6 => {
                put(UDP + 4, if wild & 1 == 0 { (wild >> 8) as u16 % 8 } else { len - 19 + (wild >> 8) as u16 % 9000 })
            }
            7 => {
                frame[IP + 10] ^= wild as u8 | 1;
                return frame;
            }
            _ => {
                frame.truncate(IP + wild as usize % (frame.len() - IP));
                return frame;
            }
        }
        mend_checksum(&mut frame);
        frame
    }
}
