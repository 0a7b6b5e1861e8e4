//! What one engine tells the other before they move anything, checked before it is used. It travels inside the sealed control
//! connection.
//!
//! ```text
//! version u16 | flags u16: 1 needs checksums, 2 comes apart | workers u32 | frame bytes u32 | half key 32 B
//! | of each worker: port u16, 0 u16, address 16 B (IPv6, or IPv4 in it; zero: the one at which it was met)
//! | of each channel: connection u64
//! ```

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use penstock_core::limits::WORKERS_MAX;
use penstock_datagram::HalfKey;
use penstock_datagram::wire::{FRAME_BYTES_MAX, FRAME_BYTES_MIN, VERSION};
use penstock_transport::JoinError;

const HEAD_BYTES: usize = 44;
const WORKER_BYTES: usize = 20;
const CHANNEL_BYTES: usize = 8;
const NEEDS_CHECKSUMS: u16 = 1;
const COMES_APART: u16 = 2;

/// One side's offer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DatagramOffer {
    /// Whether its packets need a checksum of their own.
    pub needs_checksums: bool,
    /// Whether packets to it have to come one by one.
    pub comes_apart: bool,
    /// The longest packet that its side of the way carries.
    pub frame_bytes: usize,
    pub half: HalfKey,
    /// Where each of its workers receives.
    pub addresses: Vec<SocketAddr>,
    /// The id under which it receives on each channel.
    pub connections: Vec<u64>,
}

impl DatagramOffer {
    pub fn blob(&self) -> Vec<u8> {
        let mut blob = Vec::with_capacity(
            HEAD_BYTES + WORKER_BYTES * self.addresses.len() + CHANNEL_BYTES * self.connections.len(),
        );
        blob.extend(VERSION.to_le_bytes());
        let flags = (NEEDS_CHECKSUMS * u16::from(self.needs_checksums)) | (COMES_APART * u16::from(self.comes_apart));
        blob.extend(flags.to_le_bytes());
        blob.extend((self.addresses.len() as u32).to_le_bytes());
        blob.extend((self.frame_bytes as u32).to_le_bytes());
        blob.extend(self.half);
        for address in &self.addresses {
            let ip = match address.ip() {
                ip if ip.is_unspecified() => Ipv6Addr::UNSPECIFIED,
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            blob.extend(address.port().to_le_bytes());
            blob.extend([0; 2]);
            blob.extend(ip.octets());
        }
        blob.extend(self.connections.iter().flat_map(|connection| connection.to_le_bytes()));
        blob
    }

    /// Reads the offer of a peer with so many workers and channels, met at this address.
    pub fn parse(blob: &[u8], workers: usize, channels: usize, met_at: SocketAddr) -> Result<Self, JoinError> {
        const LENGTH: JoinError = JoinError::Malformed("it has another length");
        let (head, rest) = blob.split_first_chunk::<HEAD_BYTES>().ok_or(LENGTH)?;
        let u16_at = |at: usize| u16::from_le_bytes([head[at], head[at + 1]]);
        let u32_at = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| head[at + byte])) as usize;
        if u16_at(0) != VERSION {
            return Err(JoinError::Malformed("its packets have another version: run the same release on both hosts"));
        }
        let flags = u16_at(2);
        if flags & !(NEEDS_CHECKSUMS | COMES_APART) != 0 {
            return Err(JoinError::Malformed("reserved bits of it are in use"));
        }
        if u32_at(4) != workers || workers == 0 || workers > WORKERS_MAX {
            return Err(JoinError::Malformed("it does not say as many workers as its greeting"));
        }
        let frame_bytes = u32_at(8);
        if !(FRAME_BYTES_MIN..=FRAME_BYTES_MAX).contains(&frame_bytes) {
            return Err(JoinError::Malformed("it wants an impossible frame"));
        }
        if rest.len() != WORKER_BYTES * workers + CHANNEL_BYTES * channels {
            return Err(LENGTH);
        }
        let (of_workers, of_channels) = rest.split_at(WORKER_BYTES * workers);
        let (of_workers, of_channels) = (of_workers.as_chunks::<WORKER_BYTES>().0, of_channels.as_chunks().0);
        let addresses = of_workers.iter().map(|of_worker| address(of_worker, met_at)).collect::<Result<_, _>>()?;
        let connections = of_channels.iter().map(|&connection| u64::from_le_bytes(connection)).collect();
        let half = std::array::from_fn(|byte| head[12 + byte]);
        let (needs_checksums, comes_apart) = (flags & NEEDS_CHECKSUMS != 0, flags & COMES_APART != 0);
        Ok(Self { needs_checksums, comes_apart, frame_bytes, half, addresses, connections })
    }
}

fn address(bytes: &[u8; WORKER_BYTES], met_at: SocketAddr) -> Result<SocketAddr, JoinError> {
    let &[p0, p1, 0, 0, ref ip @ ..] = bytes else {
        return Err(JoinError::Malformed("reserved bits of it are in use"));
    };
    let (port, ip) = (u16::from_le_bytes([p0, p1]), Ipv6Addr::from(*ip));
    if port == 0 || ip.is_multicast() {
        return Err(JoinError::Malformed("nobody can be reached at its address"));
    }
    let mut address = met_at;
    address.set_port(port);
    if !ip.is_unspecified() {
        address.set_ip(ip.to_canonical());
    }
    Ok(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn met_at() -> SocketAddr {
        "192.0.2.7:7400".parse().unwrap()
    }

    fn good() -> DatagramOffer {
        DatagramOffer {
            needs_checksums: true,
            comes_apart: false,
            frame_bytes: 1472,
            half: std::array::from_fn(|byte| byte as u8),
            addresses: vec!["0.0.0.0:9000".parse().unwrap(), "192.0.2.9:9001".parse().unwrap()],
            connections: vec![1, 2, u64::MAX],
        }
    }

    #[test]
    fn an_offer_is_read_as_it_was_written_and_an_address_that_was_not_told_is_the_one_it_was_met_at() {
        let read = DatagramOffer::parse(&good().blob(), 2, 3, met_at()).unwrap();
        let addresses = vec!["192.0.2.7:9000".parse().unwrap(), "192.0.2.9:9001".parse().unwrap()];
        assert_eq!(read, DatagramOffer { addresses, ..good() });
        for (needs_checksums, comes_apart) in [(false, false), (false, true), (true, true)] {
            let offer = DatagramOffer { needs_checksums, comes_apart, ..good() };
            let read = DatagramOffer::parse(&offer.blob(), 2, 3, met_at()).unwrap();
            assert_eq!((read.needs_checksums, read.comes_apart), (needs_checksums, comes_apart));
        }
        let met: SocketAddr = "[fe80::1%3]:7400".parse().unwrap_or("[fe80::1]:7400".parse().unwrap());
        let read = DatagramOffer::parse(&good().blob(), 2, 3, met).unwrap();
        assert_eq!((read.addresses[0].ip(), read.addresses[0].port()), (met.ip(), 9000));
    }

    #[test]
    fn what_was_changed_is_refused() {
        let blob = good().blob();
        for place in [0, 1, 3, 4, 5, 6, 7, 10, 11, 46, 47, 66, 67] {
            let mut bad = blob.clone();
            bad[place] ^= 0x80;
            assert!(DatagramOffer::parse(&bad, 2, 3, met_at()).is_err(), "byte {place}");
        }
        for len in 0..blob.len() {
            assert!(DatagramOffer::parse(&blob[..len], 2, 3, met_at()).is_err(), "{len} bytes");
        }
        assert!(DatagramOffer::parse(&[&blob[..], &[0]].concat(), 2, 3, met_at()).is_err());
        assert!(DatagramOffer::parse(&blob, 3, 3, met_at()).is_err());
        assert!(DatagramOffer::parse(&blob, 2, 2, met_at()).is_err());
        for (place, bytes) in [(44, &[0, 0][..]), (48, &[0xff][..]), (8, &[0, 0][..])] {
            let mut bad = blob.clone();
            bad[place..place + bytes.len()].copy_from_slice(bytes);
            assert!(DatagramOffer::parse(&bad, 2, 3, met_at()).is_err(), "byte {place}");
        }
    }
}
