//! Ethernet, ARP, IPv4 and UDP: what is before a packet on the wire, read as the untrusted bytes it is.
//!
//! Numbers are big-endian here, as everywhere below our own packets.

use std::net::{Ipv4Addr, SocketAddrV4};

use penstock_core::config::network::Mac;

/// The header of a frame.
pub const ETHERNET_BYTES: usize = 14;
const IPV4_BYTES: usize = 20;
const UDP_BYTES: usize = 8;
const ARP_BYTES: usize = 28;
/// Before the payload of a packet.
pub const HEADERS_BYTES: usize = ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES;
/// Of an IP packet that are not UDP's payload.
pub const IP_HEADERS_BYTES: usize = IPV4_BYTES + UDP_BYTES;
/// A frame with an ARP message.
pub const ARP_FRAME_BYTES: usize = ETHERNET_BYTES + ARP_BYTES;

const TYPE_IPV4: [u8; 2] = [0x08, 0x00];
const TYPE_ARP: [u8; 2] = [0x08, 0x06];
const PROTOCOL_UDP: u8 = 17;
const DO_NOT_FRAGMENT: u8 = 0x40;
const HOPS: u8 = 64;
/// Ethernet, IPv4, and the lengths of their addresses.
const ARP_HEAD: [u8; 6] = [0, 1, 0x08, 0x00, 6, 4];

/// What a frame is to this port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EthernetFrame<'a> {
    Arp(Arp),
    Udp {
        from: SocketAddrV4,
        to: SocketAddrV4,
        payload: &'a [u8],
    },
    /// A packet of which the end is missing.
    Cut {
        to: SocketAddrV4,
    },
    /// Anything else, and what is malformed.
    Other,
}

/// Who asks for a station's address, or answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arp {
    pub is_answer: bool,
    pub from: (Ipv4Addr, Mac),
    /// Who is asked for; in an answer, who has asked.
    pub to: Ipv4Addr,
}

fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    *bytes[at..].first_chunk().expect("what is read was found to be there")
}

fn u16_at(bytes: &[u8], at: usize) -> usize {
    u16::from_be_bytes(array(bytes, at)).into()
}

/// The checksum of an IPv4 header: 0 where the one in it is right.
fn checksum(header: &[u8]) -> u16 {
    let words = header.as_chunks::<2>().0.iter();
    let sum: u32 = words.map(|&word| u32::from(u16::from_be_bytes(word))).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !((sum & 0xffff) as u16 + (sum >> 16) as u16)
}

impl<'a> EthernetFrame<'a> {
    #[inline]
    pub fn parse(frame: &'a [u8]) -> Self {
        let Some((ethernet, rest)) = frame.split_at_checked(ETHERNET_BYTES) else { return Self::Other };
        match array(ethernet, 12) {
            TYPE_IPV4 => Self::parse_ipv4(rest).unwrap_or(Self::Other),
            TYPE_ARP => Arp::parse(rest).map_or(Self::Other, Self::Arp),
            _ => Self::Other,
        }
    }

    #[inline]
    fn parse_ipv4(bytes: &'a [u8]) -> Option<Self> {
        let first = *bytes.first()?;
        let (header_bytes, is_v4) = (usize::from(first & 0x0f) * 4, first >> 4 == 4);
        if !is_v4 || header_bytes < IPV4_BYTES || bytes.len() < header_bytes + UDP_BYTES {
            return None;
        }
        let total = u16_at(bytes, 2);
        let is_fragment = u16_at(bytes, 6) & 0x3fff != 0;
        if total < header_bytes + UDP_BYTES || is_fragment || bytes[9] != PROTOCOL_UDP {
            return None;
        }
        let (header, udp) = bytes[..total.min(bytes.len())].split_at(header_bytes);
        let udp_bytes = u16_at(udp, 4);
        if checksum(header) != 0 || udp_bytes < UDP_BYTES || udp_bytes > total - header_bytes {
            return None;
        }
        let ip = |at| Ipv4Addr::from(array::<4>(header, at));
        if total > bytes.len() {
            return Some(Self::Cut { to: SocketAddrV4::new(ip(16), u16_at(udp, 2) as u16) });
        }
        Some(Self::Udp {
            from: SocketAddrV4::new(ip(12), u16_at(udp, 0) as u16),
            to: SocketAddrV4::new(ip(16), u16_at(udp, 2) as u16),
            payload: &udp[UDP_BYTES..udp_bytes],
        })
    }
}

impl Arp {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; ARP_BYTES] = bytes.first_chunk()?;
        let operation = u16_at(bytes, 6);
        let from = (Ipv4Addr::from(array::<4>(bytes, 14)), Mac(array(bytes, 8)));
        let is_fine = bytes[..6] == ARP_HEAD && (1..=2).contains(&operation) && from.1.is_station();
        is_fine.then(|| Self { is_answer: operation == 2, from, to: Ipv4Addr::from(array::<4>(bytes, 24)) })
    }

    /// Writes it as a frame, to one station or to all.
    pub fn write(&self, into: &mut [u8; ARP_FRAME_BYTES], station: Mac) {
        let (ip, mac) = self.from;
        write_ethernet(into, mac, station, TYPE_ARP);
        let arp = &mut into[ETHERNET_BYTES..];
        arp[..6].copy_from_slice(&ARP_HEAD);
        arp[6..8].copy_from_slice(&[0, if self.is_answer { 2 } else { 1 }]);
        arp[8..14].copy_from_slice(&mac.0);
        arp[14..18].copy_from_slice(&ip.octets());
        arp[18..24].copy_from_slice(&if self.is_answer { station.0 } else { [0; 6] });
        arp[24..28].copy_from_slice(&self.to.octets());
    }
}

/// Whether a frame is for this station; what is for all is not.
#[inline]
pub fn is_for(frame: &[u8], station: Mac) -> bool {
    frame.first_chunk() == Some(&station.0)
}

fn write_ethernet(into: &mut [u8], from: Mac, to: Mac, kind: [u8; 2]) {
    into[..6].copy_from_slice(&to.0);
    into[6..12].copy_from_slice(&from.0);
    into[12..14].copy_from_slice(&kind);
}

/// One end of a flow of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowEnd {
    pub mac: Mac,
    pub address: SocketAddrV4,
}

/// The headers of a packet with so many bytes of payload. Its UDP checksum is left out, as IPv4 allows: the payload has its own where
/// nothing on the way vouches for it.
#[inline]
pub fn write(into: &mut [u8; HEADERS_BYTES], from: &FlowEnd, to: &FlowEnd, payload: usize) {
    write_ethernet(into, from.mac, to.mac, TYPE_IPV4);
    let (total, udp_bytes) = ((IP_HEADERS_BYTES + payload) as u16, (UDP_BYTES + payload) as u16);
    let (ip, udp) = into[ETHERNET_BYTES..].split_at_mut(IPV4_BYTES);
    let ([t0, t1], [s0, s1, s2, s3], [d0, d1, d2, d3]) =
        (total.to_be_bytes(), from.address.ip().octets(), to.address.ip().octets());
    ip.copy_from_slice(&[
        0x45,
        0,
        t0,
        t1,
        0,
        0,
        DO_NOT_FRAGMENT,
        0,
        HOPS,
        PROTOCOL_UDP,
        0,
        0,
        s0,
        s1,
        s2,
        s3,
        d0,
        d1,
        d2,
        d3,
    ]);
    let sum = checksum(ip);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
    udp[..2].copy_from_slice(&from.address.port().to_be_bytes());
    udp[2..4].copy_from_slice(&to.address.port().to_be_bytes());
    udp[4..6].copy_from_slice(&udp_bytes.to_be_bytes());
    udp[6..8].fill(0);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HERE: FlowEnd =
        FlowEnd { mac: Mac([2, 0, 0, 0, 0, 1]), address: SocketAddrV4::new(Ipv4Addr::new(10, 0, 9, 1), 7401) };
    const THERE: FlowEnd =
        FlowEnd { mac: Mac([2, 0, 0, 0, 0, 2]), address: SocketAddrV4::new(Ipv4Addr::new(10, 0, 9, 2), 7402) };

    fn packet(payload: &[u8]) -> Vec<u8> {
        let mut frame = vec![0; HEADERS_BYTES];
        write(frame.first_chunk_mut().unwrap(), &HERE, &THERE, payload.len());
        frame.extend(payload);
        frame
    }

    #[test]
    fn a_frame_is_for_the_station_that_it_names() {
        let frame = packet(b"payload");
        assert_eq!([THERE.mac, HERE.mac, Mac::ALL].map(|station| is_for(&frame, station)), [true, false, false]);
        assert!(!is_for(&frame[..5], THERE.mac));
    }

    #[test]
    fn a_packet_is_read_as_it_was_written_without_what_ethernet_adds() {
        let wanted = EthernetFrame::Udp { from: HERE.address, to: THERE.address, payload: b"payload" };
        assert_eq!(EthernetFrame::parse(&packet(b"payload")), wanted);
        let padded = [packet(b"payload"), vec![0; 30]].concat();
        assert_eq!(EthernetFrame::parse(&padded), wanted);
        assert!(matches!(EthernetFrame::parse(&packet(b"")), EthernetFrame::Udp { payload: b"", .. }));
    }

    /// Five bytes from 127.0.0.1:33003 to 127.0.0.1:7000, summed by hand.
    #[test]
    fn headers_are_as_they_are_laid_down() {
        let ip = [0x45, 0x00, 0x00, 0x21, 0x00, 0x00, 0x40, 0x00, 0x40, 0x11, 0x3c, 0xca, 127, 0, 0, 1, 127, 0, 0, 1];
        let end = |port| FlowEnd { mac: Mac::default(), address: SocketAddrV4::new(Ipv4Addr::LOCALHOST, port) };
        let mut frame = [0; HEADERS_BYTES];
        write(&mut frame, &end(33_003), &end(7000), 5);
        assert_eq!(frame[14..34], ip);
        assert_eq!(frame[34..], [0x80, 0xeb, 0x1b, 0x58, 0, 13, 0, 0]);
    }

    #[test]
    fn what_is_not_whole_is_nothing() {
        let whole = packet(b"payload");
        let EthernetFrame::Udp { to, .. } = EthernetFrame::parse(&whole) else { panic!("it is whole") };
        for len in 0..whole.len() {
            // With its headers it says whose it would have been.
            let expected = if len < HEADERS_BYTES { EthernetFrame::Other } else { EthernetFrame::Cut { to } };
            assert_eq!(EthernetFrame::parse(&whole[..len]), expected, "{len} bytes");
        }
        // Version, lengths, fragments, protocol, checksum, addresses, UDP's length.
        for (at, value) in [
            (14, 0x65),
            (14, 0x44),
            (14, 0x4f),
            (17, 1),
            (20, 0x20),
            (21, 5),
            (23, 6),
            (25, 9),
            (27, 1),
            (39, 3),
            (39, 200),
        ] {
            let mut bad = whole.clone();
            bad[at] = value;
            assert_eq!(EthernetFrame::parse(&bad), EthernetFrame::Other, "byte {at}");
        }
    }

    #[test]
    fn a_question_and_an_answer_are_read_as_they_were_written() {
        for is_answer in [false, true] {
            let arp = Arp { is_answer, from: (*HERE.address.ip(), HERE.mac), to: *THERE.address.ip() };
            let mut frame = [0; ARP_FRAME_BYTES];
            arp.write(&mut frame, if is_answer { THERE.mac } else { Mac::ALL });
            assert_eq!(EthernetFrame::parse(&frame), EthernetFrame::Arp(arp));
            frame[22..28].fill(0xff);
            assert_eq!(EthernetFrame::parse(&frame), EthernetFrame::Other, "nobody is all stations");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_frame_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..80), kind in 0usize..3) {
            let mut bytes = bytes;
            if let Some(at) = bytes.get_mut(12..14) {
                at.copy_from_slice(&[TYPE_IPV4, TYPE_ARP, [at[0], at[1]]][kind]);
            }
            if let EthernetFrame::Udp { payload, .. } = EthernetFrame::parse(&bytes) {
                prop_assert!(payload.len() <= bytes.len() - HEADERS_BYTES);
            }
        }
    }
}
