//! What one engine tells the other before they move anything, checked before it is used.
//!
//! ```text
//! version u16 | rails u8 | how they are connected u8 | fingerprint of the limits u32 | workers u32 | channels u32 | grants u32
//! for each rail:
//!   gid 16 B | bandwidth u64 | mtu u32 | lid u16 | kind of its address u8 | network bits u8 | routable u8 | reads u8 |
//!   length of its name u8 | its name
//!   if it is met by the connection manager: its address, as one of IPv6, 16 B | port u16
//!   for each channel: queue u32 | first packet u32 | if it is met: its token 16 B
//! ```

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use penstock_core::limits::{COUNTERS_MAX, IN_FLIGHT_PER_LANE_MAX, NOTE_BYTES_MAX, WORKERS_MAX};
use penstock_transport::JoinError;

use crate::adapter::{DeviceAttr, GidKind, QpAddress, Token};
use crate::device::networks::MAPPED_BITS;
use crate::message::GRANTS_MAX;
use crate::pairing::RAILS_MAX;
use crate::slab::SLOT_BYTES;

/// The version of the offer, and of what goes over the rails after it. The first did not say what its addresses speak.
const VERSION: u16 = 2;

/// The longest name of a rail.
const NAME_BYTES_MAX: usize = 96;

/// Numbers of queues and of packets have 24 bits.
pub const NUMBER_MAX: u32 = (1 << 24) - 1;

/// The fewest messages that a queue may be sent before it answers: one is kept for the return of others.
pub const GRANTS_MIN: u32 = 4;

/// Payloads of one packet that there are.
const MTUS: [u32; 5] = [256, 512, 1024, 2048, 4096];

/// Of the limits that both sides must agree on.
const FINGERPRINT: u32 = fingerprint(&[
    NOTE_BYTES_MAX as u64,
    SLOT_BYTES as u64,
    IN_FLIGHT_PER_LANE_MAX as u64,
    COUNTERS_MAX as u64,
    RAILS_MAX as u64,
]);

const fn fingerprint(limits: &[u64]) -> u32 {
    let (mut hash, mut at) = (0xcbf2_9ce4_8422_2325_u64, 0);
    while at < limits.len() {
        hash = (hash ^ limits[at]).wrapping_mul(0x0000_0100_0000_01b3);
        at += 1;
    }
    (hash ^ hash >> 32) as u32
}

/// How an engine has its queues connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// By the numbers in offers.
    Exchange,
    /// By the connection manager.
    Manager,
}

impl By {
    /// The word of the setting.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exchange => "exchange",
            Self::Manager => "cm",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerbsOffer {
    /// How many workers it has.
    pub workers: usize,
    /// How many messages it may be sent on each queue before it answers: a power of two.
    pub grants: u32,
    /// How its queues are connected.
    pub by: By,
    pub rails: Vec<OfferedRail>,
}

/// An adapter, with a queue for each channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OfferedRail {
    /// Its name for people.
    pub name: String,
    pub gid: [u8; 16],
    /// Its number within an InfiniBand subnet; zero on Ethernet.
    pub lid: u16,
    /// What is spoken from there.
    pub kind: GidKind,
    /// Bits of the address that all ports of its network share.
    pub network_bits: u8,
    /// Whether packets to it are routed beyond its network.
    pub is_routable: bool,
    /// Payload of one packet, in bytes.
    pub mtu: u32,
    /// Bits in a second.
    pub bandwidth: u64,
    /// Reads that the peer may have under way on one queue.
    pub reads_max: u8,
    /// Where its connection manager is called, if its queues are met by it.
    pub cm_address: Option<SocketAddr>,
    /// One for each channel.
    pub queues: Vec<OfferedQueue>,
}

/// A queue that waits to be connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OfferedQueue {
    pub number: u32,
    /// The number of the first packet from it.
    pub first_packet: u32,
    /// What it is called by, if it is met by the connection manager.
    pub token: Option<Token>,
}

impl OfferedRail {
    /// An adapter by its own facts.
    pub fn of(attr: &DeviceAttr, queues: Vec<OfferedQueue>) -> Self {
        let end = (0..=attr.name.len().min(NAME_BYTES_MAX)).rev().find(|end| attr.name.is_char_boundary(*end));
        let name =
            attr.name[..end.unwrap_or(0)].chars().map(|char| if char.is_control() { ' ' } else { char }).collect();
        Self {
            name,
            gid: attr.gid,
            lid: attr.lid,
            kind: attr.kind,
            network_bits: attr.network_bits,
            is_routable: attr.is_routable,
            mtu: attr.mtu,
            bandwidth: attr.bandwidth,
            reads_max: attr.reads_max.max(1),
            cm_address: attr.cm_address,
            queues,
        }
    }

    /// Where its queue of a channel is.
    pub fn endpoint(&self, channel: usize) -> QpAddress {
        let OfferedQueue { number, first_packet, .. } = self.queues[channel];
        QpAddress { queue: number, first_packet, gid: self.gid, lid: self.lid }
    }

    /// Its name and where it is.
    pub fn in_words(&self) -> String {
        let Self { name, kind, lid, .. } = self;
        match kind {
            GidKind::InfiniBand => format!("{name} ({kind}, lid {lid})"),
            GidKind::RoceV1 | GidKind::RoceV2 => {
                format!("{name} ({}, {kind})", show_network(&self.gid, self.network_bits))
            }
        }
    }

    /// The network of its address, and what is spoken there.
    pub fn network(&self) -> String {
        let bits = self.network_bits.min(128);
        let shared = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
        let network = u128::from_be_bytes(self.gid) & shared;
        format!("{} ({})", show_network(&network.to_be_bytes(), bits), self.kind)
    }
}

/// An address and how much of it its network shares.
fn show_network(gid: &[u8; 16], bits: u8) -> String {
    let six = Ipv6Addr::from(*gid);
    // Less than the mark of IPv4 in front of it is no network of IPv4.
    match (six.to_ipv4_mapped(), bits.checked_sub(MAPPED_BITS)) {
        (Some(four), Some(bits)) => format!("{four}/{bits}"),
        _ => format!("{six}/{bits}"),
    }
}

impl VerbsOffer {
    /// The offer as it is sent.
    pub fn blob(&self) -> Vec<u8> {
        let channels = self.rails.first().map_or(0, |rail| rail.queues.len());
        let mut blob = Vec::with_capacity(64 + self.rails.len() * (64 + channels * 8));
        blob.extend(VERSION.to_le_bytes());
        blob.extend([self.rails.len() as u8, self.by as u8]);
        blob.extend(FINGERPRINT.to_le_bytes());
        blob.extend((self.workers as u32).to_le_bytes());
        blob.extend((channels as u32).to_le_bytes());
        blob.extend(self.grants.to_le_bytes());
        for rail in &self.rails {
            blob.extend(rail.gid);
            blob.extend(rail.bandwidth.to_le_bytes());
            blob.extend(rail.mtu.to_le_bytes());
            blob.extend(rail.lid.to_le_bytes());
            blob.extend([number_of(rail.kind), rail.network_bits, u8::from(rail.is_routable), rail.reads_max]);
            blob.push(rail.name.len() as u8);
            blob.extend(rail.name.as_bytes());
            if let Some(at) = rail.cm_address {
                blob.extend(wide(at.ip()).octets());
                blob.extend(at.port().to_le_bytes());
            }
            for queue in &rail.queues {
                blob.extend(queue.number.to_le_bytes());
                blob.extend(queue.first_packet.to_le_bytes());
                blob.extend(queue.token.iter().flat_map(|token| token.0));
            }
        }
        blob
    }

    /// What the two sides are ordered by, so that both know who is first: all that tells them apart.
    pub(crate) fn order(&self) -> Vec<u8> {
        self.blob()
    }

    /// Reads the offer of an engine that has said to have so many workers; between the two there are so many channels.
    pub fn parse(blob: &[u8], workers: usize, channels: usize) -> Result<Self, JoinError> {
        const GARBLED: fn(&'static str) -> JoinError = JoinError::Malformed;
        let mut from = Reader(blob);
        let version = u16::from_le_bytes(from.take()?);
        let [rails, by] = from.take()?;
        if version != VERSION {
            return Err(GARBLED("its rails have another version: run the same release on both hosts"));
        }
        if u32::from_le_bytes(from.take()?) != FINGERPRINT {
            return Err(GARBLED("its rails have other limits: run the same release on both hosts"));
        }
        let theirs = u32::from_le_bytes(from.take()?) as usize;
        if theirs != workers || workers == 0 || workers > WORKERS_MAX {
            return Err(GARBLED("it does not say as many workers as its greeting"));
        }
        if u32::from_le_bytes(from.take()?) as usize != channels {
            return Err(GARBLED("it has another number of channels"));
        }
        let by = match by {
            0 => By::Exchange,
            1 => By::Manager,
            _ => return Err(GARBLED("its queues are connected in a way that is not known here")),
        };
        let grants = u32::from_le_bytes(from.take()?);
        if !(GRANTS_MIN..=GRANTS_MAX).contains(&grants) || !grants.is_power_of_two() {
            return Err(GARBLED("it takes an impossible number of messages"));
        }
        if rails == 0 || usize::from(rails) > RAILS_MAX {
            return Err(GARBLED("it has an impossible number of rails"));
        }
        let rails = (0..rails).map(|_| rail(&mut from, by, channels)).collect::<Result<_, _>>()?;
        if !from.0.is_empty() {
            return Err(GARBLED("it is longer than what it says"));
        }
        Ok(Self { workers, grants, by, rails })
    }
}

const KINDS: [GidKind; 3] = [GidKind::InfiniBand, GidKind::RoceV1, GidKind::RoceV2];

fn number_of(kind: GidKind) -> u8 {
    match kind {
        GidKind::InfiniBand => 0,
        GidKind::RoceV1 => 1,
        GidKind::RoceV2 => 2,
    }
}

fn rail(from: &mut Reader<'_>, by: By, channels: usize) -> Result<OfferedRail, JoinError> {
    let gid = from.take()?;
    let bandwidth = u64::from_le_bytes(from.take()?);
    let mtu = u32::from_le_bytes(from.take()?);
    let lid = u16::from_le_bytes(from.take()?);
    let [kind, network_bits, routable, reads_max, name_bytes] = from.take()?;
    let kind = KINDS.into_iter().find(|known| number_of(*known) == kind);
    let kind = kind.ok_or(JoinError::Malformed("an address of it is of no kind that there is"))?;
    let name = std::str::from_utf8(from.bytes(usize::from(name_bytes))?);
    let name = name.map_err(|_| JoinError::Malformed("a name of it is no text"))?;
    if name.len() > NAME_BYTES_MAX || name.chars().any(char::is_control) {
        return Err(JoinError::Malformed("a name of it is no name"));
    }
    if !MTUS.contains(&mtu) || network_bits > 128 || routable > 1 || reads_max == 0 {
        return Err(JoinError::Malformed("a rail of it is impossible"));
    }
    let cm_address = match by {
        By::Exchange => None,
        By::Manager => Some(cm_address(from)?),
    };
    let queues = (0..channels).map(|_| queue(from, by)).collect::<Result<_, _>>()?;
    let (is_routable, name) = (routable == 1, name.to_owned());
    Ok(OfferedRail { name, gid, lid, kind, network_bits, is_routable, mtu, bandwidth, reads_max, cm_address, queues })
}

/// An address as one of IPv6.
fn wide(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(four) => four.to_ipv6_mapped(),
        IpAddr::V6(six) => six,
    }
}

fn cm_address(from: &mut Reader<'_>) -> Result<SocketAddr, JoinError> {
    let address = Ipv6Addr::from(from.take::<16>()?).to_canonical();
    let port = u16::from_le_bytes(from.take()?);
    if port == 0 || address.is_unspecified() || address.is_multicast() || address.is_loopback() {
        return Err(JoinError::Malformed("a rail of it is met nowhere"));
    }
    Ok(SocketAddr::new(address, port))
}

fn queue(from: &mut Reader<'_>, by: By) -> Result<OfferedQueue, JoinError> {
    let (number, first_packet) = (u32::from_le_bytes(from.take()?), u32::from_le_bytes(from.take()?));
    if number == 0 || number > NUMBER_MAX || first_packet > NUMBER_MAX {
        return Err(JoinError::Malformed("a queue of it is impossible"));
    }
    let token = match by {
        By::Exchange => None,
        By::Manager => Some(Token(from.take()?)),
    };
    Ok(OfferedQueue { number, first_packet, token })
}

/// What is left to be read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8], JoinError> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(JoinError::Malformed("it ends early"))?;
        self.0 = rest;
        Ok(taken)
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], JoinError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(JoinError::Malformed("it ends early"))?;
        self.0 = rest;
        Ok(*taken)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn offer() -> VerbsOffer {
        let queue = |number, first_packet| OfferedQueue { number, first_packet, token: None };
        let queues = vec![queue(17, 99), queue(18, 0)];
        let rail = |name: &str, last| OfferedRail {
            name: name.to_owned(),
            gid: [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, last],
            lid: 0,
            kind: GidKind::RoceV1,
            network_bits: 64,
            is_routable: false,
            mtu: 1024,
            bandwidth: 100_000_000_000,
            reads_max: 16,
            cm_address: None,
            queues: queues.clone(),
        };
        VerbsOffer { workers: 2, grants: 32, by: By::Exchange, rails: vec![rail("one/1", 1), rail("two/1", 2)] }
    }

    /// The same of an engine whose queues are met by the connection manager.
    fn managed() -> VerbsOffer {
        let mut offer = offer();
        offer.by = By::Manager;
        for (rail, at) in offer.rails.iter_mut().zip(["10.0.0.1:4711", "[fd00::2]:1"]) {
            rail.cm_address = Some(at.parse().unwrap());
            for (place, queue) in rail.queues.iter_mut().enumerate() {
                queue.token = Some(Token([place as u8 + 1; 16]));
            }
        }
        offer
    }

    #[test]
    fn an_offer_is_read_as_it_was_written() {
        assert_eq!(VerbsOffer::parse(&offer().blob(), 2, 2).unwrap(), offer());
        assert_eq!(VerbsOffer::parse(&managed().blob(), 2, 2).unwrap(), managed());
        assert_eq!(offer().rails[0].in_words(), "one/1 (fe80::102:304:506:701/64, RoCE v1)");
        assert_eq!(offer().rails[0].network(), "fe80::/64 (RoCE v1)");
    }

    #[test]
    fn an_offer_that_is_cut_short_or_has_more_is_refused() {
        for good in [offer().blob(), managed().blob()] {
            for end in 0..good.len() {
                assert!(VerbsOffer::parse(&good[..end], 2, 2).is_err(), "cut at {end}");
            }
            assert!(VerbsOffer::parse(&[&good[..], &[0]].concat(), 2, 2).is_err());
            assert!(VerbsOffer::parse(&good, 1, 2).is_err());
            assert!(VerbsOffer::parse(&good, 2, 3).is_err());
        }
    }

    #[test]
    fn a_rail_that_is_met_nowhere_is_refused() {
        let at = |at: &str| {
            let mut offer = managed();
            offer.rails[1].cm_address = Some(at.parse().unwrap());
            VerbsOffer::parse(&offer.blob(), 2, 2)
        };
        assert!(at("10.0.0.2:1").is_ok());
        for nowhere in ["10.0.0.2:0", "0.0.0.0:1", "[::]:1", "224.0.0.1:1", "[ff02::1]:1", "127.0.0.1:1", "[::1]:1"] {
            assert!(at(nowhere).is_err(), "{nowhere}");
        }
        let mut other = managed().blob();
        other[3] = 2;
        assert!(VerbsOffer::parse(&other, 2, 2).is_err(), "another way to connect");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let change = |change: fn(&mut VerbsOffer)| {
            let mut offer = offer();
            change(&mut offer);
            VerbsOffer::parse(&offer.blob(), 2, 2)
        };
        assert!(change(|_| ()).is_ok());
        assert!(change(|offer| offer.rails.clear()).is_err());
        assert!(change(|offer| offer.grants = 2).is_err());
        assert!(change(|offer| offer.grants = 12).is_err());
        assert!(change(|offer| offer.grants = 128).is_err());
        assert!(change(|offer| offer.grants = u32::MAX).is_err());
        assert!(change(|offer| offer.rails[1].mtu = 1500).is_err());
        assert!(change(|offer| offer.rails[1].network_bits = 129).is_err());
        for kind in 0..=255 {
            let mut blob = offer().blob();
            // Behind the head, the address, the bandwidth, the packets and the number in a subnet.
            blob[20 + 16 + 8 + 4 + 2] = kind;
            let read = VerbsOffer::parse(&blob, 2, 2).map(|offer| offer.rails[0].kind);
            assert_eq!(read.ok(), KINDS.get(usize::from(kind)).copied());
        }
        assert!(change(|offer| offer.rails[1].reads_max = 0).is_err());
        assert!(change(|offer| offer.rails[1].name = "a\nb".to_owned()).is_err());
        assert!(change(|offer| offer.rails[1].queues[1].number = 0).is_err());
        assert!(change(|offer| offer.rails[1].queues[1].number = 1 << 24).is_err());
        assert!(change(|offer| offer.rails[0].queues[0].first_packet = 1 << 24).is_err());
        let one = offer().rails.remove(0);
        let mut many = offer();
        many.rails = vec![one; RAILS_MAX + 1];
        assert!(VerbsOffer::parse(&many.blob(), 2, 2).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_give_an_offer_or_a_reason(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = VerbsOffer::parse(&bytes, 1, 1);
        }

        #[test]
        fn a_changed_byte_gives_an_offer_or_a_reason(is_managed: bool, at in 0usize..300, bit in 0u32..8) {
            let mut blob = if is_managed { managed() } else { offer() }.blob();
            let at = at % blob.len();
            blob[at] ^= 1 << bit;
            if let Ok(read) = VerbsOffer::parse(&blob, 2, 2) {
                prop_assert_eq!(read.blob(), blob, "what is read is what was there");
            }
        }
    }
}
